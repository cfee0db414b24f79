//! Why a target has no frames for now.

use serde::{Deserialize, Serialize};

use crate::{Cause, Error};

/// Why a target has no frames for now, in the public contract's words. The attach stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Suspension {
    /// The window is minimized.
    Minimized,
    /// The window is covered, and this desktop does not draw covered windows.
    OccludedNoFrames,
    /// A person has to allow the capture.
    ConsentRequired,
    /// A person took the permission back.
    ConsentRevoked,
    /// Reading the pixels failed.
    CaptureFailed,
    /// The window is not shown, and may be again.
    WindowUnavailable,
    /// The display is switched off or locked.
    DisplayBlanked,
}

impl Suspension {
    /// The contract's word for `error`.
    pub fn for_error(error: &Error) -> Self {
        match error.cause() {
            Some(Cause::TargetGone) => Self::WindowUnavailable,
            Some(Cause::DisplayBlanked) => Self::DisplayBlanked,
            Some(Cause::Minimized) => Self::Minimized,
            Some(Cause::WindowUnavailable) => Self::WindowUnavailable,
            _ => Self::CaptureFailed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_a_word() {
        let word = |cause| Suspension::for_error(&Error::because(cause, "x"));
        assert_eq!(word(Cause::TargetGone), Suspension::WindowUnavailable);
        assert_eq!(word(Cause::DisplayBlanked), Suspension::DisplayBlanked);
        assert_eq!(word(Cause::Minimized), Suspension::Minimized);
        assert_eq!(word(Cause::WindowUnavailable), Suspension::WindowUnavailable);
        assert_eq!(word(Cause::EncoderFailed), Suspension::CaptureFailed);
        let json = serde_json::to_value(Suspension::OccludedNoFrames).unwrap();
        assert_eq!(json, "occluded_no_frames");
    }
}
