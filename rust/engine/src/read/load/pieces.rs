//! A body, cut as it is wanted.

use alluvium_store::Body;
use bytes::Bytes;
use futures::StreamExt;

use crate::{Error, ErrorKind, Result};

/// A body, in pieces as large as they are wanted.
pub(super) struct Pieces {
    body: Body,
    rest: Bytes,
}

impl Pieces {
    pub(super) fn new(body: Body) -> Self {
        Pieces {
            body,
            rest: Bytes::new(),
        }
    }

    /// At least one and at most `max` bytes.
    pub(super) async fn next(&mut self, max: usize) -> Result<Bytes> {
        while self.rest.is_empty() {
            self.rest = match self.body.next().await {
                Some(piece) => piece?,
                None => return Err(Error::new(ErrorKind::Corrupt, "the body is shorter than announced")),
            };
        }
        Ok(self.rest.split_to(self.rest.len().min(max)))
    }

    /// The next bytes into `room`; how many.
    pub(super) async fn read(&mut self, room: &mut [u8]) -> Result<usize> {
        let piece = self.next(room.len()).await?;
        if let Some(room) = room.get_mut(..piece.len()) {
            room.copy_from_slice(&piece);
        }
        Ok(piece.len())
    }

    /// Proves that nothing follows; the connection can be used again then.
    pub(super) async fn end(mut self) -> Result<()> {
        let nothing = self.rest.is_empty();
        match self.body.next().await {
            None if nothing => Ok(()),
            Some(Err(error)) => Err(error.into()),
            _ => Err(Error::new(ErrorKind::Corrupt, "the body is longer than announced")),
        }
    }
}
