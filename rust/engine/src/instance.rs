//! One instance of the plugin: its runtime, store, cache and budgets, and the operations on them.
//!
//! # Flow
//! The boundary's threads start operations here and wait for their [`Task`]s; the work runs on the instance's own runtime.
//!
//! # Invariants
//! * After [`Engine::close`] no operation starts, and those under way have ended or were dropped within its deadline.
//! * Nothing is global: several instances live side by side.
//!
//! # Cancel
//! Closing cancels every operation's token; a copy cleans up before it ends.

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use alluvium_format::{DataKeys, IndexType, SegmentMetadata};
use alluvium_store::{
    ObjectStore,
    file::FileStore,
    layer::{self, Guards, Policies, metrics::StoreMetrics},
    s3::S3Store,
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    CopyRequest, Error, ErrorKind, Outcome, Result, SegmentRef, Task,
    budget::{Budget, BufferPool},
    cache::{Cache, DiskCache},
    completion::{Completion, blocking},
    config::{Config, StartupProbe, StoreConfig},
    keyring::KeyRing,
    metrics::{Metrics, Sources},
    ops, probe,
    read::{Ahead, DiskReads},
    write::{Janitor, Workshop},
};

/// The release.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Limit of starting the threads.
const START_TIMEOUT: Duration = Duration::from_secs(1);

/// Limit of opening a store: reading files, finding credentials.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);

/// Limit of finding what a cache on disk holds: a hundred thousand files take under a second.
const DISK_TIMEOUT: Duration = Duration::from_secs(10);

/// Limit of trying a store: a broker that cannot start should say so at once.
const PROBE_TIMEOUT: Duration = Duration::from_secs(6);

/// Share of a fetch's deadline that its request may use.
const FETCH_REQUEST_SHARE: f32 = 0.9;

/// Share of a delete's deadline that each of its two steps may use.
const DELETE_STEP_SHARE: f32 = 0.45;

/// Limits of each request that removes the remains of a failed copy, so that one that hangs leaves time for the others.
const CLEANUP_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);
const CLEANUP_OPERATION_TIMEOUT: Duration = Duration::from_secs(8);

/// What is left of a runtime after its tasks ended has this long.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Threads for file reads and writes at the same time, made when needed: enough that consumers of a directory do not queue behind ten
/// copies behind each other's parts.
const BLOCKING_THREADS_MAX: usize = 96;

/// Segments whose files are removed from the disk tier at the same time.
const DISK_REMOVALS_MAX: usize = 2;

/// Worker threads, whatever the machine has: they only move bytes and compute checksums.
const WORKERS_MAX: usize = 8;

/// What operations and readers of an instance share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) store: Arc<dyn ObjectStore>,
    /// The same store for fetches: its requests end before the fetch does, so that the reason is told and not only the deadline; those
    /// that are slow are hedged.
    pub(crate) fetch_store: Arc<dyn ObjectStore>,
    /// The same store for deletes: both of their steps end before the delete does.
    pub(crate) delete_store: Arc<dyn ObjectStore>,
    /// The same store with the short deadlines of a clean-up, tried also while it seems to be away.
    pub(crate) cleanup_store: Arc<dyn ObjectStore>,
    /// Whether the store is there, and how much it can take.
    pub(crate) guards: Guards,
    pub(crate) cache: Arc<Cache>,
    pub(crate) ahead: Ahead,
    /// `None` without one, and after the close: another instance may have its directory then.
    disk: RwLock<Option<Arc<DiskCache>>>,
    pub(crate) disk_reads: DiskReads,
    /// Removals of its files at the same time: a disk that hangs must not take all threads.
    disk_removals: Arc<Semaphore>,
    pub(crate) uploads: Arc<Budget>,
    pub(crate) buffers: Arc<BufferPool>,
    pub(crate) workshop: Arc<Workshop>,
    pub(crate) keys: KeyRing,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) closing: CancellationToken,
    pub(crate) janitor: Janitor,
    runtime: Handle,
    tracker: TaskTracker,
}

impl Shared {
    /// Forgets all of a segment that is deleted, or that another one takes the place of.
    pub(crate) fn purge(&self, segment: &SegmentMetadata) {
        self.cache.purge(segment.segment_id);
        self.ahead
            .purge((segment.topic_id, segment.partition), segment.segment_id);
        if let Some(disk) = self.disk() {
            let remove = disk.remove_segment(segment.segment_id);
            let turns = Arc::clone(&self.disk_removals);
            self.spawn(async move {
                let turn = turns.acquire_owned().await;
                let removed = blocking(move || {
                    remove();
                    drop(turn);
                    Ok(())
                });
                if let Err(error) = removed.await {
                    tracing::debug!(%error, "files of the disk cache were not removed");
                }
            });
        }
    }

    /// The disk tier of the cache.
    pub(crate) fn disk(&self) -> Option<Arc<DiskCache>> {
        self.disk.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs file work that nobody waits for.
    pub(crate) fn spawn_blocking(&self, work: impl FnOnce() + Send + 'static) {
        self.runtime.spawn_blocking(work);
    }

    /// Runs something on the instance's runtime that nobody waits for; closing drops it.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }
}

/// An open instance.
pub struct Engine {
    shared: Arc<Shared>,
    runtime: Mutex<Option<Runtime>>,
}

impl Engine {
    /// Parses the settings, opens the store and tries it, each within limits of its own. Blocks the caller for half a minute at most.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] naming the key to mend; [`ErrorKind::Internal`] when the machine gives no threads.
    pub fn open(settings: Vec<(String, String)>) -> Result<Arc<Self>> {
        Self::with_config(Config::parse(settings)?)
    }

    /// Opens an instance of settings that are parsed already.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn with_config(config: Config) -> Result<Arc<Self>> {
        let runtime = runtime()?;
        let store_metrics = Arc::new(StoreMetrics::default());
        let metrics = Arc::new(Metrics::new(Arc::clone(&store_metrics)));
        let opened = runtime.block_on(async {
            let (base, keys) = open_store(&config, &store_metrics).await?;
            let disk = open_disk(&config, &metrics).await?;
            Ok(Opened { base, keys, disk })
        });
        match opened {
            Ok(opened) => Ok(Self::assemble(config, opened, store_metrics, metrics, runtime)),
            Err(error) => {
                runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
                Err(error)
            }
        }
    }

    fn assemble(
        config: Config,
        opened: Opened,
        store_metrics: Arc<StoreMetrics>,
        metrics: Arc<Metrics>,
        runtime: Runtime,
    ) -> Arc<Self> {
        let Opened { base, keys, disk } = opened;
        let cleanup_policies = Policies {
            attempt_timeout: config.policies.attempt_timeout.min(CLEANUP_ATTEMPT_TIMEOUT),
            operation_timeout: config.policies.operation_timeout.min(CLEANUP_OPERATION_TIMEOUT),
            ..config.policies.clone()
        };
        let fetch_policies = Policies {
            operation_timeout: config
                .policies
                .operation_timeout
                .min(config.fetch_timeout.mul_f32(FETCH_REQUEST_SHARE)),
            // Of a directory both reads would wait for the same disk, and one that is dropped keeps its thread.
            hedging: config.fetch_hedging && matches!(config.store, StoreConfig::S3(_)),
            ..config.policies.clone()
        };
        let workshop = Workshop::new(
            config.upload_threads,
            config.workshop_memory,
            config.chunk_size,
            config.compression_level,
        );
        let delete_policies = Policies {
            operation_timeout: config
                .policies
                .operation_timeout
                .min(config.delete_timeout.mul_f32(DELETE_STEP_SHARE)),
            ..config.policies.clone()
        };
        let guards = Guards::new(&config.policies);
        let uploads = Arc::new(Budget::new(config.upload_memory));
        let shared = Arc::new(Shared {
            store: layer::guarded(
                Arc::clone(&base),
                config.policies.clone(),
                Arc::clone(&store_metrics),
                &guards,
            ),
            fetch_store: layer::guarded(Arc::clone(&base), fetch_policies, Arc::clone(&store_metrics), &guards),
            delete_store: layer::guarded(Arc::clone(&base), delete_policies, Arc::clone(&store_metrics), &guards),
            guards,
            cleanup_store: layer::stack(base, cleanup_policies, store_metrics),
            cache: Cache::new(
                config.cache_memory,
                config.cache_memory + config.load_memory,
                Arc::clone(&metrics),
            ),
            ahead: Ahead::new(),
            disk: RwLock::new(disk),
            disk_reads: DiskReads::new(config.cache_memory + config.load_memory),
            disk_removals: Arc::new(Semaphore::new(DISK_REMOVALS_MAX)),
            buffers: BufferPool::new(Arc::clone(&uploads)),
            uploads,
            workshop,
            keys,
            metrics,
            closing: CancellationToken::new(),
            janitor: Janitor::default(),
            runtime: runtime.handle().clone(),
            tracker: TaskTracker::new(),
            config,
        });
        let Config {
            store,
            key_prefix,
            chunk_size,
            part_size,
            upload_memory,
            load_memory,
            cache_memory,
            ..
        } = &shared.config;
        tracing::info!(
            version = VERSION, %store, %key_prefix, chunk_bytes = chunk_size.bytes(), part_bytes = part_size,
            upload_memory, load_memory, cache_memory, compression = ?shared.config.compression,
            encrypted_with = shared.config.encryption.active.as_deref().unwrap_or("no key pair"), "storage manager open"
        );
        Arc::new(Engine {
            shared,
            runtime: Mutex::new(Some(runtime)),
        })
    }

    /// Copies a segment. The outcome is [`Outcome::Copied`].
    pub fn start_copy(&self, request: CopyRequest) -> Task {
        self.start(|shared, cancel| async move { ops::copy(&shared, request, &cancel).await.map(Outcome::Copied) })
    }

    /// Opens a stream over `range` of a segment (half-open; an end past the segment's is clipped). The outcome is [`Outcome::Opened`].
    pub fn start_open_segment(&self, segment: SegmentRef, range: Range<u64>) -> Task {
        match ops::fetch_cached(&self.shared, &segment, &range) {
            Some(result) => Task::done(result.map(Outcome::Opened)),
            None => self.start(|shared, cancel| async move {
                ops::fetch(&shared, &segment, range, &cancel).await.map(Outcome::Opened)
            }),
        }
    }

    /// Opens a stream over an index of a segment. The outcome is [`Outcome::Opened`].
    pub fn start_open_index(&self, segment: SegmentRef, index_type: IndexType) -> Task {
        match ops::fetch_index_cached(&self.shared, &segment, index_type) {
            Some(result) => Task::done(result.map(Outcome::Opened)),
            None => self.start(move |shared, cancel| async move {
                ops::fetch_index(&shared, &segment, index_type, &cancel)
                    .await
                    .map(Outcome::Opened)
            }),
        }
    }

    /// Deletes a segment; one that does not exist is success. The outcome is [`Outcome::Deleted`].
    pub fn start_delete(&self, segment: SegmentRef) -> Task {
        self.start(
            |shared, cancel| async move { ops::delete(&shared, &segment, &cancel).await.map(|()| Outcome::Deleted) },
        )
    }

    /// Values of all metrics, in the order of [`crate::metrics::DEFINITIONS`].
    pub fn metrics(&self) -> Vec<i64> {
        Sources::of(&self.shared).values()
    }

    /// The store, under all its policies: for tools.
    pub fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.shared.store)
    }

    /// The key pairs: for tools that read segments.
    pub fn keys(&self) -> &dyn DataKeys {
        &self.shared.keys
    }

    /// Runs a tool's future on the instance's runtime and waits for it.
    pub fn block_on<Work: Future>(&self, work: Work) -> Work::Output {
        self.shared.runtime.block_on(work)
    }

    /// Refuses new calls, cancels those under way, waits for their clean-up within `close.timeout.ms`, frees everything. A second call does nothing.
    pub fn close(&self) {
        self.shared.closing.cancel();
        self.shared.tracker.close();
        let Some(runtime) = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        let limit = self.shared.config.close_timeout;
        let drained = runtime.block_on(async { tokio::time::timeout(limit, self.shared.tracker.wait()).await });
        if drained.is_err() {
            tracing::warn!(
                running = self.shared.tracker.len(),
                ?limit,
                "closing without waiting any longer for operations"
            );
        }
        runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
        self.shared.buffers.clear();
        self.shared.workshop.close();
        self.shared.cache.close();
        drop(self.shared.disk.write().unwrap_or_else(PoisonError::into_inner).take());
        tracing::info!("storage manager closed");
    }

    fn start<Work>(&self, work: impl FnOnce(Arc<Shared>, CancellationToken) -> Work) -> Task
    where
        Work: Future<Output = Result<Outcome>> + Send + 'static,
    {
        if self.shared.closing.is_cancelled() {
            return Task::done(Err(Error::closed()));
        }
        let cancel = self.shared.closing.child_token();
        let (completion, filled) = Completion::of(work(Arc::clone(&self.shared), cancel.clone()));
        self.shared.runtime.spawn(self.shared.tracker.track_future(filled));
        Task::new(completion, cancel)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Engine").finish_non_exhaustive()
    }
}

/// The instance's runtime. Built on a thread of its own: where the machine gives only some of the worker threads, tokio panics and
/// then waits for ever for those that it has.
fn runtime() -> Result<Runtime> {
    let workers = std::thread::available_parallelism()
        .map_or(2, usize::from)
        .clamp(2, WORKERS_MAX);
    let next = AtomicU64::new(0);
    let build = move || {
        Builder::new_multi_thread()
            .worker_threads(workers)
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .thread_name_fn(move || format!("alluvium-{}", next.fetch_add(1, Ordering::Relaxed)))
            .enable_all()
            .build()
    };
    let no_threads = |reason: &dyn fmt::Display| {
        Error::new(
            ErrorKind::Internal,
            format!("cannot start {workers} threads: {reason}; raise the limit of processes"),
        )
    };
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("alluvium-start".to_owned())
        .spawn(move || {
            // The receiver is gone only after it has given up.
            let _ = sender.send(build());
        })
        .map_err(|error| no_threads(&error))?;
    match receiver.recv_timeout(START_TIMEOUT) {
        Ok(built) => built.map_err(|error| no_threads(&error)),
        Err(error) => Err(no_threads(&error)),
    }
}

/// What an instance works with.
struct Opened {
    base: Arc<dyn ObjectStore>,
    keys: KeyRing,
    disk: Option<Arc<DiskCache>>,
}

/// Opens the disk tier of the cache, where there is one.
async fn open_disk(config: &Config, metrics: &Metrics) -> Result<Option<Arc<DiskCache>>> {
    let Some(disk) = config.disk_cache.clone() else {
        return Ok(None);
    };
    let counted = Arc::clone(&metrics.disk);
    let opening = blocking(move || DiskCache::open(&disk, counted));
    let opened = tokio::time::timeout(DISK_TIMEOUT, opening).await.unwrap_or_else(|_| {
        let reason = format!("the directory was not read within {DISK_TIMEOUT:?}; is its disk well?");
        Err(Error::config("cache.path", reason))
    });
    opened.map(Some)
}

/// Opens the store and tries it, each with a verdict on what to mend when it takes too long.
async fn open_store(config: &Config, metrics: &Arc<StoreMetrics>) -> Result<(Arc<dyn ObjectStore>, KeyRing)> {
    let encryption = config.encryption.clone();
    let loading = blocking(move || KeyRing::load(&encryption));
    let keys = tokio::time::timeout(OPEN_TIMEOUT, loading).await.unwrap_or_else(|_| {
        let reason = format!("the key files were not read within {OPEN_TIMEOUT:?}");
        Err(Error::config("encryption.key.pairs", reason))
    })?;
    let opening = async {
        match &config.store {
            StoreConfig::S3(s3) => S3Store::open(s3.clone()).await.map(|store| {
                let store = Arc::new(store);
                (Arc::clone(&store) as Arc<dyn ObjectStore>, Some(store))
            }),
            StoreConfig::File(file) => FileStore::open(file.clone())
                .await
                .map(|store| (Arc::new(store) as _, None)),
        }
        .map_err(|error| probe::verdict(config, &error))
    };
    let (base, bucket) = tokio::time::timeout(OPEN_TIMEOUT, opening)
        .await
        .unwrap_or_else(|_| Err(probe::opening_timed_out(config, OPEN_TIMEOUT)))?;
    tokio::time::timeout(
        PROBE_TIMEOUT,
        probe::probe(config, Arc::clone(&base), Arc::clone(metrics)),
    )
    .await
    .unwrap_or_else(|_| Err(probe::timed_out(config, PROBE_TIMEOUT)))?;
    if let Some(bucket) = bucket
        && config.startup_probe != StartupProbe::Off
    {
        probe::warn_of_versions(&bucket).await;
    }
    Ok((base, keys))
}
