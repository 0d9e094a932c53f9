//! The conformance suite on the store in memory.

use std::sync::Arc;

use alluvium_store::mem::MemStore;
use alluvium_testkit::conformance::Fixture;

async fn fixture() -> Fixture {
    Fixture {
        store: Arc::new(MemStore::new()),
        guard: Box::new(()),
    }
}

alluvium_testkit::conformance_suite!(fixture);
