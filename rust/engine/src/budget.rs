//! Memory budgets.
//!
//! # Purpose
//! Bounds the bytes that copies hold at once, and those of loads, cache and readers: each of the two has a budget of its own, parts of one total.
//!
//! # Invariants
//! * A buffer gives its bytes back when it is dropped, wherever that happens.
//! * Waiters are served in order, so a large request is not starved by small ones.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Error, ErrorKind, Result, block::Block};

/// Bytes per permit: the semaphore counts in u32, a budget may be larger.
const PERMIT_BYTES: u64 = 4096;

/// How much larger than wanted a used buffer may be.
const SLACK_BYTES: usize = 64 * 1024;

/// The budget.
#[derive(Debug)]
pub struct Budget {
    permits: Arc<Semaphore>,
    total: u64,
}

/// Bytes taken from the budget until dropped.
#[derive(Debug)]
pub struct Reservation {
    permit: OwnedSemaphorePermit,
}

impl Reservation {
    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.permit.num_permits() as u64 * PERMIT_BYTES
    }

    /// Takes `bytes` out of it, or as many as it has: a request over the whole budget got less than it wanted.
    pub(crate) fn split(&mut self, bytes: u64) -> Reservation {
        let wanted = usize::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(usize::MAX);
        let permit = self.permit.split(wanted.min(self.permit.num_permits()));
        Reservation {
            permit: permit.expect("no more than there are"),
        }
    }
}

impl Budget {
    /// A budget of `total` bytes.
    pub fn new(total: u64) -> Self {
        let permits = usize::try_from(total / PERMIT_BYTES)
            .unwrap_or(usize::MAX)
            .min(Semaphore::MAX_PERMITS);
        Budget {
            permits: Arc::new(Semaphore::new(permits)),
            total: permits as u64 * PERMIT_BYTES,
        }
    }

    /// The whole budget in bytes.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes taken now.
    pub fn in_use(&self) -> u64 {
        self.total
            .saturating_sub(self.permits.available_permits() as u64 * PERMIT_BYTES)
    }

    /// What a reservation of `bytes` takes.
    pub(crate) fn rounded(bytes: u64) -> u64 {
        bytes.div_ceil(PERMIT_BYTES) * PERMIT_BYTES
    }

    /// Takes `bytes` when they are free at this moment.
    pub fn try_reserve(&self, bytes: u64) -> Option<Reservation> {
        let permit = Arc::clone(&self.permits).try_acquire_many_owned(self.permits_of(bytes));
        permit.ok().map(|permit| Reservation { permit })
    }

    /// Waits for `bytes`; a request over the whole budget gets the whole budget, so that it can be served at all.
    ///
    /// # Cancel safety
    /// Dropping it takes nothing.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Closed`] when the instance closes.
    pub async fn reserve(&self, bytes: u64) -> Result<Reservation> {
        let permit = Arc::clone(&self.permits)
            .acquire_many_owned(self.permits_of(bytes))
            .await
            .map_err(|_| Error::closed())?;
        Ok(Reservation { permit })
    }

    fn permits_of(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.min(self.total).div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
    }
}

/// Buffers that are used again, since a fresh one costs a page fault for every 4 KiB.
///
/// # Invariants
/// Idle buffers and reserved bytes together stay within the budget: idle ones give way before a fresh one is made.
#[derive(Debug)]
pub(crate) struct BufferPool {
    budget: Arc<Budget>,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    buffers: Vec<Block>,
    bytes: u64,
}

impl Idle {
    fn push(&mut self, buffer: Block) {
        self.bytes += buffer.len() as u64;
        self.buffers.push(buffer);
    }

    /// One for so many bytes. One that is much larger would hold more than was reserved.
    fn take_fitting(&mut self, capacity: usize) -> Option<Block> {
        let is_fitting = |buffer: &Block| (capacity..=capacity + SLACK_BYTES).contains(&buffer.len());
        let place = self.buffers.iter().position(is_fitting)?;
        let buffer = self.buffers.swap_remove(place);
        self.bytes -= buffer.len() as u64;
        Some(buffer)
    }

    /// Those that are over `room` bytes. Giving one back to the system takes a while: not under a lock.
    #[must_use]
    fn surplus(&mut self, room: u64) -> Vec<Block> {
        let mut surplus = Vec::new();
        while self.bytes > room
            && let Some(buffer) = self.buffers.pop()
        {
            self.bytes -= buffer.len() as u64;
            surplus.push(buffer);
        }
        surplus
    }
}

impl BufferPool {
    pub(crate) fn new(budget: Arc<Budget>) -> Arc<Self> {
        Arc::new(BufferPool {
            budget,
            idle: Mutex::default(),
        })
    }

    /// The budget that its buffers are part of.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Frees idle buffers as far as they do not fit beside what is reserved: after a reservation that is not for a buffer of the pool.
    pub(crate) fn fit(&self) {
        let surplus = self.lock().surplus(self.room(0));
        drop(surplus);
    }

    /// Waits for `bytes`; idle buffers make room for them.
    ///
    /// # Errors
    /// As [`Budget::reserve`].
    pub(crate) async fn reserve(&self, bytes: u64) -> Result<Reservation> {
        let reservation = self.budget.reserve(bytes).await?;
        self.fit();
        Ok(reservation)
    }

    /// An empty buffer with room for `capacity` bytes, which `reservation` covers.
    ///
    /// # Errors
    /// As [`Block::new`].
    pub(crate) fn take(self: &Arc<Self>, capacity: usize, reservation: Reservation) -> Result<PooledBuffer> {
        let (reused, surplus) = {
            let mut idle = self.lock();
            (idle.take_fitting(capacity), idle.surplus(self.room(0)))
        };
        drop(surplus);
        let bytes = match reused {
            Some(bytes) => bytes,
            None => Block::new(capacity)?,
        };
        Ok(PooledBuffer {
            bytes,
            capacity,
            filled: 0,
            pool: Arc::clone(self),
            _reservation: reservation,
        })
    }

    /// Frees all idle buffers.
    pub(crate) fn clear(&self) {
        let all = self.lock().surplus(0);
        drop(all);
    }

    /// Takes a buffer back whose bytes are still reserved.
    fn put_back(&self, buffer: Block) {
        let reserved = buffer.len() as u64;
        let surplus = {
            let mut idle = self.lock();
            idle.push(buffer);
            idle.surplus(self.room(reserved))
        };
        drop(surplus);
    }

    /// Bytes that idle buffers may have beside what is reserved, `counted` bytes of which are idle already.
    fn room(&self, counted: u64) -> u64 {
        let reserved = self.budget.in_use().saturating_sub(counted);
        self.budget.total().saturating_sub(reserved)
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer that goes back to its pool, and its bytes to the budget.
#[derive(Debug)]
pub(crate) struct PooledBuffer {
    bytes: Block,
    capacity: usize,
    filled: usize,
    pool: Arc<BufferPool>,
    /// Given back after the buffer, by the order of drops: whoever waits for the bytes finds this buffer, and makes no other.
    _reservation: Reservation,
}

impl PooledBuffer {
    /// Bytes that still fit in.
    pub(crate) fn room(&self) -> usize {
        self.capacity - self.filled
    }

    /// Lets `fill` write the next `length` bytes, which must fit in, and counts them if it succeeds.
    pub(crate) fn fill<T>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> Result<T>) -> Result<T> {
        let end = self.filled + length;
        let room = self.bytes.get_mut(self.filled..end).filter(|_| end <= self.capacity);
        let room = room.ok_or_else(|| Error::new(ErrorKind::Internal, "more bytes than a buffer has room for"))?;
        let filled = fill(room)?;
        self.filled = end;
        Ok(filled)
    }

    /// The whole buffer as filled, for somebody who will write all of it: what it holds until then is left from an earlier use.
    pub(crate) fn into_room(mut self) -> Self {
        self.filled = self.capacity;
        self
    }

    /// Shares the filled bytes without a copy; the last user gives the buffer back.
    pub(crate) fn share(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.filled).unwrap_or_default()
    }
}

impl AsMut<[u8]> for PooledBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.filled).unwrap_or_default()
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        self.pool.put_back(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn bytes_come_back_and_waiters_are_served_in_order() {
        let budget = Arc::new(Budget::new(10 * PERMIT_BYTES));
        let first = budget.reserve(8 * PERMIT_BYTES).await.unwrap();
        assert_eq!(budget.in_use(), 8 * PERMIT_BYTES);
        let large = tokio::spawn({
            let budget = Arc::clone(&budget);
            async move { budget.reserve(9 * PERMIT_BYTES).await }
        });
        tokio::task::yield_now().await;
        // There would be room for this one, but the large one came first.
        let small = tokio::time::timeout(Duration::from_millis(20), budget.reserve(PERMIT_BYTES)).await;
        assert!(small.is_err());
        drop(first);
        drop(large.await.unwrap().unwrap());
        assert_eq!(budget.in_use(), 0);
        drop(budget.reserve(u64::MAX).await.unwrap());
        assert_eq!(budget.in_use(), 0);
    }

    #[tokio::test]
    async fn a_shared_buffer_returns_once_its_last_user_is_gone() {
        let budget = Arc::new(Budget::new(1 << 20));
        let pool = BufferPool::new(Arc::clone(&budget));
        let mut buffer = pool.take(1000, budget.reserve(1000).await.unwrap()).unwrap();
        buffer
            .fill(3, |room| {
                room.copy_from_slice(b"abc");
                Ok(())
            })
            .unwrap();
        assert!(buffer.fill(998, |_| Ok(())).is_err(), "over its room");
        let shared = buffer.share();
        let part = shared.slice(1..);
        drop(shared);
        assert_eq!((&part[..], budget.in_use()), (&b"bc"[..], 4096));
        drop(part);
        assert_eq!(budget.in_use(), 0);
        let again = pool.take(10, budget.reserve(10).await.unwrap()).unwrap();
        assert!(again.bytes.len() >= 1000 && again.as_ref().is_empty() && again.room() == 10);
    }

    #[tokio::test]
    async fn idle_buffers_and_reserved_bytes_never_pass_the_budget_together() {
        let budget = Arc::new(Budget::new(1 << 20));
        let pool = BufferPool::new(Arc::clone(&budget));
        let idle = || pool.lock().bytes;
        let mut small = Vec::new();
        for _ in 0..4 {
            small.push(pool.take(200_000, budget.reserve(200_000).await.unwrap()).unwrap());
        }
        drop(small);
        assert_eq!((idle(), budget.in_use()), (800_000, 0));
        // No used buffer fits, so a fresh one is made, and idle ones make room for it.
        let large = pool.take(900_000, budget.reserve(900_000).await.unwrap()).unwrap();
        assert!(idle() + budget.in_use() <= budget.total(), "{} idle", idle());
        drop(large);
        assert_eq!((idle(), budget.in_use()), (900_000, 0));
        let _other = pool.reserve(500_000).await.unwrap();
        assert!(idle() + budget.in_use() <= budget.total(), "{} idle", idle());
        pool.clear();
        assert_eq!(idle(), 0);
    }
}
