//! The typed detail of a gRPC error, as it travels in the `grpc-status-details-bin` trailer.
//!
//! The trailer holds a serialized `google.rpc.Status`. Three fields do not earn a vendored copy of
//! Google's proto tree, so the message is written out here.

use prost::Message;
use prost_types::Any;

use crate::pb::ErrorInfo;

/// The type URL under which an [`ErrorInfo`] is packed.
pub const ERROR_INFO_URL: &str = "type.googleapis.com/cua.env.v1.ErrorInfo";

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// The gRPC status code, the same as in `grpc-status`.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// For developers, the same as in `grpc-message`.
    #[prost(string, tag = "2")]
    pub message: String,
    /// Typed details, each under its own type URL.
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<Any>,
}

impl Status {
    /// A status with `info` as its one detail. The message is the info's own.
    pub fn with_info(code: i32, info: &ErrorInfo) -> Self {
        let detail = Any { type_url: ERROR_INFO_URL.into(), value: info.encode_to_vec() };
        Self { code, message: info.message.clone(), details: vec![detail] }
    }

    /// The first detail that is an [`ErrorInfo`], as clients look for it: by the end of its URL.
    pub fn info(&self) -> Option<ErrorInfo> {
        let is_info = |any: &&Any| any.type_url.rsplit('/').next() == Some("cua.env.v1.ErrorInfo");
        let detail = self.details.iter().find(is_info)?;
        ErrorInfo::decode(detail.value.as_slice()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::ErrorReason;

    // Written out by hand from the two messages' field numbers, so that a mistake in the derive
    // attributes cannot hide behind a round trip.
    #[test]
    fn a_status_is_laid_out_as_google_rpc_defines_it() {
        let info = ErrorInfo {
            reason: ErrorReason::OffsetMismatch.into(),
            message: "no".into(),
            feature: String::new(),
            metadata: [("expected_offset".into(), "7".into())].into(),
        };
        let mut info_bytes = vec![0x08, 18, 0x12, 2, b'n', b'o', 0x22, 20, 0x0a, 15];
        info_bytes.extend(b"expected_offset");
        info_bytes.extend([0x12, 1, b'7']);

        let mut any = vec![0x0a, ERROR_INFO_URL.len() as u8];
        any.extend(ERROR_INFO_URL.as_bytes());
        any.extend([0x12, info_bytes.len() as u8]);
        any.extend(&info_bytes);

        let mut expected = vec![0x08, 9, 0x12, 2, b'n', b'o', 0x1a, any.len() as u8];
        expected.extend(&any);
        assert_eq!(Status::with_info(9, &info).encode_to_vec(), expected);
    }

    #[test]
    fn the_info_is_found_by_the_end_of_its_url() {
        let info = ErrorInfo { message: "gone".into(), ..ErrorInfo::default() };
        let mut status = Status::with_info(5, &info);
        status.details.insert(0, Any { type_url: "x/google.rpc.Help".into(), value: vec![1] });
        status.details[1].type_url = "example.org/cua.env.v1.ErrorInfo".into();
        assert_eq!(status.info(), Some(info));
        assert_eq!(Status::default().info(), None);
    }
}
