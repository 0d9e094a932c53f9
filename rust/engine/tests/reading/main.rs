//! Consumers, and what they cost the store: on real sockets, every byte compared.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ahead;
mod consumers;
mod links;

const MIB: u64 = 1 << 20;

/// What Kafka asks for at a time.
const FETCH: usize = 1 << 20;
