//! What lives longer than a call, under numbers that Java keeps.
//!
//! # Invariants
//! * A number is never used twice, so one that is stale finds nothing instead of something else.
//! * A call holds what it works on: closing takes it out of the table, and the last call under way frees it.
//! * No lock is held while anything is waited for, opened or freed.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use alluvium_engine::{Engine, Reader, Task};

use crate::errors::{Result, closed};

/// Starts at 1: Java takes 0 for none.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

pub(crate) static ENGINES: Table<Engine> = Table::new("storage manager");
pub(crate) static TASKS: Table<Owned<Task>> = Table::new("task");
pub(crate) static READERS: Table<Owned<Reader>> = Table::new("stream");

/// A task or a stream, and the instance it belongs to.
pub(crate) struct Owned<T> {
    pub(crate) engine: i64,
    pub(crate) object: T,
}

/// Objects of one kind by number.
pub(crate) struct Table<T> {
    what: &'static str,
    entries: RwLock<Option<HashMap<i64, Arc<T>>>>,
}

impl<T> Table<T> {
    const fn new(what: &'static str) -> Self {
        Table {
            what,
            entries: RwLock::new(None),
        }
    }

    pub(crate) fn insert(&self, object: impl Into<Arc<T>>) -> i64 {
        let number = NEXT_ID.fetch_add(1, Ordering::Relaxed).cast_signed();
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.get_or_insert_default().insert(number, object.into());
        number
    }

    pub(crate) fn get(&self, number: i64) -> Result<Arc<T>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries
            .as_ref()
            .and_then(|entries| entries.get(&number))
            .map(Arc::clone)
            .ok_or_else(|| closed(self.what))
    }

    /// Takes it out; `None` when it is not there (any more).
    pub(crate) fn remove(&self, number: i64) -> Option<Arc<T>> {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.as_mut().and_then(|entries| entries.remove(&number))
    }
}

impl<T> Table<Owned<T>> {
    /// Takes out all that belong to the instance.
    pub(crate) fn remove_all_of(&self, engine: i64) -> Vec<Arc<Owned<T>>> {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let Some(entries) = entries.as_mut() else {
            return Vec::new();
        };
        entries
            .extract_if(|_, owned| owned.engine == engine)
            .map(|(_, owned)| owned)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_number_finds_nothing_and_is_not_used_again() {
        let table: Table<&str> = Table::new("word");
        let first = table.insert("one");
        assert_eq!(*table.get(first).unwrap(), "one");
        assert!(table.remove(first).is_some());
        assert!(table.remove(first).is_none());
        assert!(table.get(first).is_err());
        assert!(table.insert("two") > first);
        assert!(table.get(0).is_err());
    }

    #[test]
    fn a_sweep_takes_only_what_belongs_to_the_instance() {
        let table: Table<Owned<u8>> = Table::new("thing");
        let mine = table.insert(Owned { engine: 1, object: 10 });
        let other = table.insert(Owned { engine: 2, object: 20 });
        let swept = table.remove_all_of(1);
        assert_eq!(swept.iter().map(|owned| owned.object).collect::<Vec<_>>(), [10]);
        assert!(table.get(mine).is_err());
        assert!(table.get(other).is_ok());
    }

    #[test]
    fn what_a_call_holds_outlives_its_removal() {
        let table: Table<Vec<u8>> = Table::new("thing");
        let number = table.insert(vec![1]);
        let held = table.get(number).unwrap();
        drop(table.remove(number));
        assert_eq!(*held, [1]);
    }
}
