//! Purpose: a runtime on threads of its own, beside which a test may block, or run on one thread.
//!
//! Cancel: [`Service::shutdown`] and dropping do the same: they ask the service to stop, and wait for its threads.

use std::{future::Future, io, sync::mpsc, thread::JoinHandle, time::Duration};

use tokio::{
    runtime::Builder,
    sync::{oneshot, watch},
};
use tracing::warn;

/// Enough for what a loopback client and server produce on the machines this runs on.
const WORKER_THREADS: usize = 2;
const BLOCKING_THREADS: usize = 16;
/// For file work in progress at the end; it is never long.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Turns true when the service is to stop; an error means that it was dropped.
pub(crate) type Stopping = watch::Receiver<bool>;

/// A running service. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Service {
    name: &'static str,
    stop: watch::Sender<bool>,
    /// Signalled by the thread's end.
    stopped: Option<oneshot::Receiver<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Starts it: `begin` is called within its runtime and gives what runs until told to stop. It has begun when this returns.
    pub(crate) fn start<Run: Future<Output = ()>>(
        name: &'static str,
        begin: impl FnOnce(Stopping) -> io::Result<Run> + Send + 'static,
    ) -> io::Result<Self> {
        let (stop, stopping) = watch::channel(false);
        let (ended, stopped) = oneshot::channel();
        let (report, started) = mpsc::sync_channel(1);
        // The runtime lives and ends in this thread: dropping one inside another runtime would panic.
        let serve = move || {
            let serving = || {
                let runtime = Builder::new_multi_thread()
                    .worker_threads(WORKER_THREADS)
                    .max_blocking_threads(BLOCKING_THREADS)
                    .thread_name(name)
                    .enable_all()
                    .build()?;
                let entered = runtime.enter();
                let run = begin(stopping)?;
                drop(entered);
                // The receiver waits for this and nothing else.
                let _ = report.send(Ok(()));
                runtime.block_on(run);
                runtime.shutdown_timeout(END_TIMEOUT);
                Ok(())
            };
            if let Err(error) = serving() {
                let _ = report.send(Err(error));
            }
            // The receiver is gone when the service is being dropped; it joins the thread then.
            let _ = ended.send(());
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(serve)?;
        started.recv().unwrap_or_else(|error| Err(io::Error::other(error)))?;
        Ok(Self {
            name,
            stop,
            stopped: Some(stopped),
            thread: Some(thread),
        })
    }

    /// Ends it; its threads are gone when this returns.
    pub(crate) async fn shutdown(mut self) {
        self.stop.send_replace(true);
        if let Some(stopped) = self.stopped.take() {
            // An error means that the thread has gone already, which is what is waited for.
            let _ = stopped.await;
        }
        self.end();
    }

    fn end(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!(service = self.name, "a service's thread panicked");
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}
