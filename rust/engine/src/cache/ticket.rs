//! The duty to load an entry.

use std::{iter, sync::Arc};

use super::{Cache, Entry, EntryKey, Load, Loading, State, Stocked, order::Taken};
use crate::{Error, ErrorKind, Result};

/// The duty to load an entry. Dropping it fails the load.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(super) cache: Arc<Cache>,
    pub(super) key: EntryKey,
    pub(super) load: Load,
    /// Of what is loaded ahead: whose it is.
    pub(super) stocked: Option<Stocked>,
}

impl Ticket {
    /// Whether somebody waits for it.
    pub(crate) fn is_wanted(&self) -> bool {
        Ticket::is_any_wanted(iter::once(self))
    }

    /// Whether somebody waits for any of these, which are of one cache.
    pub(crate) fn is_any_wanted<'tickets>(mut tickets: impl Iterator<Item = &'tickets Ticket>) -> bool {
        let Some(first) = tickets.next() else { return false };
        let state = first.cache.lock();
        iter::once(first)
            .chain(tickets)
            .any(|ticket| ticket.loading(&state).is_some_and(|loading| loading.place.is_some()))
    }

    /// Whether its result still has a place: not after a purge.
    pub(crate) fn is_registered(&self) -> bool {
        self.loading(&self.cache.lock()).is_some()
    }

    /// Its place: after a purge it may be gone, or be that of a later load.
    fn loading<'state>(&self, state: &'state State) -> Option<&'state Loading> {
        let loading = state.loads.get(&self.key)?;
        Arc::ptr_eq(&loading.load.completion, &self.load.completion).then_some(loading)
    }

    /// Notes that some of its bytes have come.
    pub(crate) fn note_arrival(&self) {
        self.load.note_arrival();
    }

    /// Counts the entry as a part of a stock until it is used.
    pub(crate) fn stock(&mut self, stocked: Stocked) {
        self.stocked = Some(stocked);
    }

    /// Ends the load: the entry is here before anybody who waited goes on.
    pub(crate) fn fill(mut self, result: Result<Entry>) {
        self.end(result);
    }

    fn end(&mut self, result: Result<Entry>) {
        if let Err(error) = &result
            && !self.load.is_ahead
        {
            self.cache.metrics.cache_load_failures.add(1);
            tracing::debug!(key = ?self.key, %error, "a load failed");
        }
        let dropped = {
            let mut state = self.cache.lock();
            match self.loading(&state).map(|loading| loading.place) {
                Some(place) => {
                    state.loads.remove(&self.key);
                    match &result {
                        Ok(entry) => {
                            let taken = match (place, self.stocked.take()) {
                                (Some(place), _) => Taken::At(place),
                                (None, mut stocked) => {
                                    if let Some(stocked) = &mut stocked {
                                        stocked.shrink_to(entry.bytes());
                                    }
                                    Taken::Ahead(stocked)
                                }
                            };
                            self.cache.insert(&mut state, self.key, entry.clone(), taken)
                        }
                        Err(error) => {
                            if error.kind() == ErrorKind::Corrupt && !self.load.is_ahead {
                                state.remember_corrupt(self.key, error);
                            }
                            Vec::new()
                        }
                    }
                }
                None => Vec::new(),
            }
        };
        drop(dropped);
        self.load.completion.complete(result);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.load.completion.is_running() {
            self.end(Err(Error::closed()));
        }
    }
}
