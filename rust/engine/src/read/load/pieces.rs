//! A body, cut as it is wanted.

use std::sync::Arc;

use alluvium_store::Body;
use bytes::Bytes;
use futures::StreamExt;

use crate::{
    Error, ErrorKind, Result,
    read::ahead::{Flow, Paused, Receiving},
};

/// A body, in pieces as large as they are wanted.
pub(super) struct Pieces {
    body: Body,
    rest: Bytes,
    flow: Arc<Flow>,
    /// While its bytes are wanted.
    receiving: Option<Receiving>,
    paused: Option<Paused>,
}

impl Pieces {
    pub(super) fn new(body: Body, flow: &Arc<Flow>) -> Self {
        Pieces {
            body,
            rest: Bytes::new(),
            flow: Arc::clone(flow),
            receiving: Some(flow.receive(false)),
            paused: None,
        }
    }

    /// Makes the store wait until the next bytes are asked for.
    pub(super) fn pause(&mut self) {
        if let Some(receiving) = self.receiving.take() {
            self.paused = Some(receiving.pause());
        }
    }

    /// At least one and at most `max` bytes.
    pub(super) async fn next(&mut self, max: usize) -> Result<Bytes> {
        self.paused = None;
        let receiving = self.receiving.get_or_insert_with(|| self.flow.receive(true));
        while self.rest.is_empty() {
            self.rest = match self.body.next().await {
                Some(piece) => piece?,
                None => return Err(Error::new(ErrorKind::Corrupt, "the body is shorter than announced")),
            };
            receiving.arrived(self.rest.len());
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
