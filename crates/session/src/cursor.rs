//! The pointer beside the packets, and what of it a viewer has not been told.

use std::sync::Arc;

use spaceport_types::{CursorImage, CursorPosition};

use crate::Event;

/// Where the pointer of a stream is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cursor {
    /// Beside the picture, for viewers that draw it: moving it costs no frames.
    #[default]
    Apart,
    /// In the picture, for players that cannot.
    Baked,
}

/// What is known of a pointer, or news of it. What is `None` is not known, or no news.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pointer {
    pub(crate) image: Option<Arc<CursorImage>>,
    pub(crate) position: Option<CursorPosition>,
}

impl Pointer {
    pub(crate) fn is_empty(&self) -> bool {
        self.image.is_none() && self.position.is_none()
    }

    /// Puts newer news over what there is.
    pub(crate) fn update(&mut self, news: &Self) {
        if let Some(image) = &news.image {
            self.image = Some(Arc::clone(image));
        }
        self.position = news.position.or(self.position);
    }

    /// Takes one thing out, the image before the position it is needed for.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let image = self.image.take().map(Event::CursorImage);
        image.or_else(|| self.position.take().map(Event::CursorPosition))
    }
}
