//! An operation under way, as the boundary holds it.

use std::{fmt, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{Reader, Result, completion::Completion};

/// What an operation gives.
#[derive(Debug)]
pub enum Outcome {
    /// A copy: the custom metadata for Kafka, under 128 bytes.
    Copied(Vec<u8>),
    /// An open: the stream.
    Opened(Reader),
    /// A delete.
    Deleted,
}

/// An operation under way. Dropping it does not end the operation.
pub struct Task {
    completion: Arc<Completion<Outcome>>,
    cancel: CancellationToken,
}

impl Task {
    pub(crate) fn new(completion: Arc<Completion<Outcome>>, cancel: CancellationToken) -> Self {
        Task { completion, cancel }
    }

    pub(crate) fn done(result: Result<Outcome>) -> Self {
        Task {
            completion: Completion::done(result),
            cancel: CancellationToken::new(),
        }
    }

    /// Waits on this thread at most that long. `None`: still running. The result can be taken once.
    pub fn wait(&self, at_most: Duration) -> Option<Result<Outcome>> {
        self.completion.wait(at_most).then(|| self.completion.take()).flatten()
    }

    /// Asks the operation to end early. It cleans up first, so the result is still to be waited for.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Task").finish_non_exhaustive()
    }
}
