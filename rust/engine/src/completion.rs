//! A result that is produced once and waited for by threads and by tasks.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::FutureExt;
use tokio::sync::Notify;

use crate::{Error, Result};

/// The place of one result. Whoever waits with a deadline and gives up leaves it to the others.
#[derive(Debug)]
pub(crate) struct Completion<T> {
    slot: Mutex<Slot<T>>,
    thread_waiters: Condvar,
    task_waiters: Notify,
}

#[derive(Debug)]
enum Slot<T> {
    Running,
    Done(Result<T>),
    Taken,
}

impl<T> Completion<T> {
    /// One that somebody will complete.
    pub(crate) fn running() -> Arc<Self> {
        Arc::new(Completion {
            slot: Mutex::new(Slot::Running),
            thread_waiters: Condvar::new(),
            task_waiters: Notify::new(),
        })
    }

    /// One that is done from the start.
    pub(crate) fn done(result: Result<T>) -> Arc<Self> {
        let completion = Self::running();
        completion.complete(result);
        completion
    }

    /// A completion and the future that will fill it: with `work`'s result, with an error if `work` panics, and with
    /// [`Error::closed`] if the future is dropped before its end, as a runtime that shuts down does.
    pub(crate) fn of<Work>(work: Work) -> (Arc<Self>, impl Future<Output = ()>)
    where
        Work: Future<Output = Result<T>>,
    {
        let completion = Self::running();
        let guard = Guard(Arc::clone(&completion));
        let filled = async move {
            let result = contained(work).await;
            guard.0.complete(result);
        };
        (completion, filled)
    }

    /// Whether there is no result yet.
    pub(crate) fn is_running(&self) -> bool {
        matches!(*self.lock(), Slot::Running)
    }

    /// Sets the result; a second one is ignored.
    pub(crate) fn complete(&self, result: Result<T>) {
        let mut slot = self.lock();
        if matches!(*slot, Slot::Running) {
            *slot = Slot::Done(result);
        }
        drop(slot);
        self.thread_waiters.notify_all();
        self.task_waiters.notify_waiters();
    }

    /// Waits on this thread at most that long; whether there is a result.
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        let (slot, _) = self
            .thread_waiters
            .wait_timeout_while(self.lock(), at_most, |slot| matches!(slot, Slot::Running))
            .unwrap_or_else(PoisonError::into_inner);
        !matches!(*slot, Slot::Running)
    }

    /// Takes the result, once; `None` while it is running.
    pub(crate) fn take(&self) -> Option<Result<T>> {
        let mut slot = self.lock();
        match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Running => {
                *slot = Slot::Running;
                None
            }
            Slot::Done(result) => Some(result),
            Slot::Taken => Some(Err(Error::new(crate::ErrorKind::Internal, "a result was taken twice"))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slot<T>> {
        // The slot is whole at every point where a panic could poison the lock.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> Completion<T> {
    /// A copy of the result; `None` while it is running.
    pub(crate) fn peek(&self) -> Option<Result<T>> {
        match &*self.lock() {
            Slot::Running => None,
            Slot::Done(result) => Some(result.clone()),
            Slot::Taken => Some(Err(Error::new(crate::ErrorKind::Internal, "a result was taken twice"))),
        }
    }

    /// Waits in a task.
    ///
    /// # Cancel safety
    /// Dropping it changes nothing.
    pub(crate) async fn finished(&self) -> Result<T> {
        loop {
            let notified = self.task_waiters.notified();
            tokio::pin!(notified);
            // Registered before the look, so a result that comes in between is not missed.
            notified.as_mut().enable();
            if let Some(result) = self.peek() {
                return result;
            }
            notified.await;
        }
    }
}

/// Turns a panic of `work` into an error.
pub(crate) async fn contained<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(result) => result,
        Err(payload) => {
            let error = Error::panic(payload.as_ref());
            tracing::error!(%error, "a task panicked");
            Err(error)
        }
    }
}

/// Runs file I/O or long computing where it may block; a panic in it is an error.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(payload) => Err(Error::panic(payload.as_ref())),
            Err(_) => Err(Error::closed()),
        },
    }
}

struct Guard<T>(Arc<Completion<T>>);

impl<T> Drop for Guard<T> {
    fn drop(&mut self) {
        self.0.complete(Err(Error::closed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[tokio::test]
    async fn threads_and_tasks_see_the_same_result() {
        let (completion, filled) = Completion::of(async { Ok(7) });
        assert_eq!(completion.peek(), None);
        assert!(!completion.wait(Duration::ZERO));
        let waiter = tokio::spawn({
            let completion = Arc::clone(&completion);
            async move { completion.finished().await }
        });
        filled.await;
        assert_eq!(waiter.await.unwrap(), Ok(7));
        assert!(completion.wait(Duration::ZERO));
        assert_eq!(completion.take(), Some(Ok(7)));
    }

    #[tokio::test]
    async fn a_panic_and_a_dropped_future_are_errors() {
        let (completion, filled) = Completion::<()>::of(async { panic!("number {}", 1) });
        filled.await;
        let error = completion.take().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.message().contains("number 1"), "{error}");

        let (completion, filled) = Completion::<()>::of(std::future::pending());
        drop(filled);
        assert_eq!(completion.take().unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }
}
