//! The library that the broker loads: the engine behind a dozen native methods.
//!
//! # Purpose
//! Lets `io.alluvium.kafka.Native` call `alluvium-engine`: parses arguments, hands out ids for what lives longer than a call,
//! turns failures into one exception class and panics into failures.
//!
//! # Flow
//! The JVM finds one exported symbol, `init`, which binds all other methods ([`natives`]). A call parses its arguments
//! ([`args`]), looks its object up ([`handles`]), asks the engine, and returns a number or throws ([`errors`]).
//! Log events wait in a queue until a Java thread fetches them ([`log_queue`]).
//!
//! # Invariants
//! * The only crate with `unsafe`, each block with its proof.
//! * Rust never calls Java, and no thread of the engine is ever attached to the JVM.
//! * No array of Java's is held over a wait.
//! * Nothing unwinds into the JVM; whatever goes wrong in a call leaves it as a `NativeException`.
//! * All state is per copy of the library: two class loaders load two copies and share nothing.
//!
//! # Failure
//! Only running out of native memory ends the process.
//!
//! # Not here
//! Any logic: what a copy or a fetch does is the engine's business, which of Kafka's exceptions a failure becomes Java's.

mod args;
mod errors;
mod handles;
#[cfg(feature = "test-hooks")]
mod hooks;
mod log_queue;
mod natives;
