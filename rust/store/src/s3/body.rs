//! Keeps the body of a GET to exactly its announced bytes, with a limit of silence.

use std::time::Duration;

use aws_sdk_s3::primitives::ByteStream;
use futures::stream;

use super::errors;
use crate::{Body, ErrorKind, Key, Operation, StoreError, boxed_body};

struct State {
    stream: ByteStream,
    left: u64,
    length: u64,
    silence: Duration,
    key: Key,
    request_id: Option<String>,
}

impl State {
    fn error(&self, kind: ErrorKind, detail: String) -> StoreError {
        let error = StoreError::new(kind, Operation::Get, detail).with_key(&self.key);
        match &self.request_id {
            Some(request_id) => error.with_request_id(request_id),
            None => error,
        }
    }

    fn received(&self) -> u64 {
        self.length - self.left
    }
}

/// A body that yields `length` bytes, or an error.
pub(super) fn exactly(
    stream: ByteStream,
    length: u64,
    silence: Duration,
    key: Key,
    request_id: Option<String>,
) -> Body {
    let state = State {
        stream,
        left: length,
        length,
        silence,
        key,
        request_id,
    };
    boxed_body(stream::unfold(Some(state), |state| async move {
        let mut state = state?;
        if state.left == 0 {
            // Reading on to the end lets the connection go back to its pool. Nothing may come.
            let rest = tokio::time::timeout(state.silence, state.stream.next()).await;
            if let Ok(Some(Ok(extra))) = rest
                && !extra.is_empty()
            {
                let detail = format!("the body goes on after its announced {} bytes", state.length);
                return Some((Err(state.error(ErrorKind::Unexpected, detail)), None));
            }
            return None;
        }
        let error = match tokio::time::timeout(state.silence, state.stream.next()).await {
            Ok(Some(Ok(piece))) => {
                let length = piece.len() as u64;
                if length <= state.left {
                    state.left -= length;
                    return Some((Ok(piece), Some(state)));
                }
                let detail = format!("the body goes on after its announced {} bytes", state.length);
                state.error(ErrorKind::Unexpected, detail)
            }
            Ok(Some(Err(error))) => {
                let detail = format!(
                    "the body broke after {} of {} bytes: {}",
                    state.received(),
                    state.length,
                    errors::chain(&error)
                );
                state.error(ErrorKind::Truncated, detail)
            }
            Ok(None) => {
                let detail = format!("the body ended after {} of {} bytes", state.received(), state.length);
                state.error(ErrorKind::Truncated, detail)
            }
            Err(_) => {
                let detail = format!(
                    "silence for {:?} after {} of {} bytes of the body",
                    state.silence,
                    state.received(),
                    state.length
                );
                state.error(ErrorKind::Timeout, detail)
            }
        };
        Some((Err(error), None))
    }))
}
