//! What every object store must do, as many small cases.
//!
//! # Purpose
//! One suite for all backends and for every server: a store that passes may be put under the engine.
//!
//! # Flow
//! [`run`] takes all cases on one store and reports; `conformance_suite!` makes one `#[test]` of each case, so that totals count
//! cases. Each case works below a prefix of its own and leaves nothing there.
//!
//! # Failure
//! A case says in one line what it saw and what it expected.

mod basics;
mod keys;
mod listing;
mod races;
mod uploads;

use std::{
    any::Any,
    fmt,
    future::Future,
    hash::{BuildHasher, RandomState},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use alluvium_store::{ErrorKind, Key, ObjectStore, Payload, StoreError, StoreResult, UploadId};
use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::SmallRng};

/// Environment variable with the names of cases, separated by commas, that the server under test is known not to pass.
pub const GAPS_VARIABLE: &str = "ALLUVIUM_S3_GAPS";

/// Why a case failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure(format!("{error:?}"))
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Failure(text)
    }
}

type Outcome = Result<(), Failure>;
type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A named case.
#[derive(Clone, Copy)]
pub struct Case {
    /// The name, also of the test.
    pub name: &'static str,
    run: fn(Arc<Place>) -> Running,
}

/// What [`run`] saw.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Names of the cases that passed.
    pub passed: Vec<&'static str>,
    /// Names of the cases that failed, and why.
    pub failed: Vec<(&'static str, Failure)>,
}

/// A store for one test, and what must live as long as it does.
pub struct Fixture {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// Dropped after the case: a server, a directory.
    pub guard: Box<dyn Any + Send>,
}

/// Where a case works: a store and a prefix of its own.
pub(crate) struct Place {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    uploads: Mutex<Vec<(Key, UploadId)>>,
}

macro_rules! check {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::conformance::Failure::from(format!($($text)+)));
        }
    };
}
pub(crate) use check;

macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        /// All cases.
        pub const CASES: &[Case] = &[
            $(Case { name: stringify!($name), run: |place| Box::pin(async move { $module::$name(&place).await }) }),*
        ];
    };
}

cases! {
    basics::put_then_get,
    basics::put_replaces,
    basics::empty_object,
    basics::object_of_five_mebibytes_and_one,
    basics::ranges,
    basics::ranges_that_cannot_be,
    basics::head_tells_length_and_checksum,
    basics::absent_objects,
    basics::wrong_checksum_is_refused,
    basics::delete_twice,
    basics::delete_a_thousand,
    basics::delete_existing_and_missing_together,
    keys::keys_with_special_characters,
    keys::component_of_249_characters,
    keys::key_of_1024_bytes,
    listing::order_is_of_bytes,
    listing::pages,
    listing::start_after_a_key_that_is_not_there,
    listing::prefix_within_a_component,
    listing::uploads_are_not_listed,
    uploads::three_parts_with_a_small_last,
    uploads::one_small_part,
    uploads::parts_out_of_order_and_twice,
    uploads::replaces_an_object,
    uploads::visible_only_when_complete,
    uploads::complete_twice,
    uploads::abort_frees_and_refuses,
    uploads::abort_twice,
    uploads::complete_after_abort,
    uploads::two_uploads_of_a_key_are_listed,
    uploads::unknown_upload,
    uploads::part_with_a_wrong_checksum,
    uploads::sixty_four_mebibytes_in_parallel,
    races::concurrent_puts_leave_one_whole,
    races::puts_and_deletes_in_one_directory,
    races::reader_of_a_deleted_object,
    races::reader_of_a_replaced_object,
}

/// Makes one `#[test]` of every case, on a store from `$fixture`, an `async fn() -> Fixture` called for each.
#[macro_export]
macro_rules! conformance_suite {
    ($fixture:path) => {
        $crate::conformance_suite! { @each $fixture;
            put_then_get put_replaces empty_object object_of_five_mebibytes_and_one ranges ranges_that_cannot_be
            head_tells_length_and_checksum absent_objects wrong_checksum_is_refused delete_twice delete_a_thousand
            delete_existing_and_missing_together keys_with_special_characters component_of_249_characters
            key_of_1024_bytes order_is_of_bytes pages start_after_a_key_that_is_not_there prefix_within_a_component
            uploads_are_not_listed three_parts_with_a_small_last one_small_part parts_out_of_order_and_twice
            replaces_an_object visible_only_when_complete complete_twice abort_frees_and_refuses abort_twice
            complete_after_abort two_uploads_of_a_key_are_listed unknown_upload part_with_a_wrong_checksum
            sixty_four_mebibytes_in_parallel concurrent_puts_leave_one_whole puts_and_deletes_in_one_directory
            reader_of_a_deleted_object reader_of_a_replaced_object
        }
    };
    (@each $fixture:path; $($case:ident)*) => {
        $(
            #[test]
            fn $case() {
                $crate::conformance::test_case(stringify!($case), $fixture);
            }
        )*

        #[test]
        fn every_case_is_a_test() {
            let tests = [$(stringify!($case)),*];
            let cases: Vec<&str> = $crate::conformance::CASES.iter().map(|case| case.name).collect();
            assert_eq!(tests.as_slice(), cases.as_slice());
        }
    };
}

/// Runs all cases on `store`, below `prefix` (empty, or ending in a slash), one after the other.
pub async fn run(store: Arc<dyn ObjectStore>, prefix: &str) -> Report {
    let mut report = Report::default();
    for case in CASES {
        match run_case(case, Arc::clone(&store), prefix).await {
            Ok(()) => report.passed.push(case.name),
            Err(failure) => report.failed.push((case.name, failure)),
        }
    }
    report
}

/// Runs the case `name` on a store of its own, as a test.
///
/// # Panics
/// When the case fails.
pub fn test_case<F: Future<Output = Fixture>>(name: &str, fixture: impl FnOnce() -> F) {
    let case = CASES.iter().find(|case| case.name == name);
    let Some(case) = case else { panic!("no case {name:?}") };
    let gaps = std::env::var(GAPS_VARIABLE).unwrap_or_default();
    if gaps.split(',').any(|gap| gap.trim() == name) {
        println!("{name} is left out: {GAPS_VARIABLE} names it");
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    };
    let outcome = runtime.block_on(async {
        let fixture = fixture().await;
        // Several test processes may share one bucket.
        let prefix = format!("conformance-{:016x}/", RandomState::new().hash_one(name));
        let outcome = run_case(case, fixture.store, &prefix).await;
        drop(fixture.guard);
        outcome
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

async fn run_case(case: &Case, store: Arc<dyn ObjectStore>, prefix: &str) -> Outcome {
    let prefix = format!("{prefix}{}/", case.name);
    let place = Arc::new(Place {
        store,
        prefix,
        uploads: Mutex::default(),
    });
    let outcome = match tokio::spawn((case.run)(Arc::clone(&place))).await {
        Ok(outcome) => outcome,
        Err(error) => Err(Failure(format!("the case panicked: {error}"))),
    };
    let cleaned = place.clean().await;
    outcome.and(cleaned)
}

impl Place {
    /// A key below the case's prefix.
    fn key(&self, name: &str) -> Result<Key, Failure> {
        Key::new(format!("{}{name}", self.prefix)).map_err(|error| Failure(format!("key {name:?}: {error}")))
    }

    /// Puts bytes under a name.
    async fn put(&self, name: &str, bytes: &Bytes) -> Result<Key, Failure> {
        let key = self.key(name)?;
        self.store.put(&key, Payload::new(bytes.clone())).await?;
        Ok(key)
    }

    /// Checks that the object is there with exactly these bytes.
    async fn expect(&self, key: &Key, bytes: &Bytes) -> Outcome {
        let answer = self.store.get(key, None).await?;
        let length = bytes.len() as u64;
        check!(
            answer.range == (0..length) && answer.object_length == length,
            "a whole object of {length} bytes came as {answer:?}"
        );
        let read = answer.collect().await?;
        check!(read == *bytes, "{key} has other bytes than were written");
        Ok(())
    }

    /// Begins an upload that is given up at the end whatever happens.
    async fn upload(&self, key: &Key) -> Result<UploadId, Failure> {
        let upload = self.store.create_upload(key).await?;
        self.uploads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((key.clone(), upload.clone()));
        Ok(upload)
    }

    async fn clean(&self) -> Outcome {
        let uploads = std::mem::take(&mut *self.uploads.lock().unwrap_or_else(PoisonError::into_inner));
        for (key, upload) in uploads {
            self.store.abort_upload(&key, &upload).await?;
        }
        loop {
            let page = self.store.list(&self.prefix, None, 1000).await?;
            let keys: Vec<Key> = page
                .objects
                .iter()
                .filter_map(|object| Key::new(&*object.key).ok())
                .collect();
            if keys.is_empty() {
                return Ok(());
            }
            self.store.delete(&keys).await?;
        }
    }
}

/// Checks that an operation failed with a kind.
fn expect_kind<T: fmt::Debug>(outcome: StoreResult<T>, kind: ErrorKind) -> Outcome {
    match outcome {
        Err(error) if error.kind() == kind => Ok(()),
        Err(error) => Err(Failure(format!("expected {kind:?}, got {error:?}"))),
        Ok(value) => Err(Failure(format!("expected {kind:?}, got {value:?}"))),
    }
}

/// Bytes that look like nothing and are the same every time.
fn noise(length: usize, seed: u64) -> Bytes {
    let mut bytes = vec![0; length];
    SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    Bytes::from(bytes)
}
