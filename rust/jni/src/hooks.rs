//! Panics on demand, for tests that show that the broker survives them. Never in a library that ships.

use std::sync::atomic::{AtomicI32, Ordering};

use bytes::Bytes;
use jni::{EnvUnowned, objects::JClass, sys::jint};

use crate::errors::{Failure, Throw};

const IN_CALL: i32 = 0;
const IN_TASK: i32 = 1;
const IN_CALL_FORMATTED: i32 = 2;
const NONE: i32 = -1;

/// Where the next panic happens.
static ARMED: AtomicI32 = AtomicI32::new(NONE);

/// `PanicHooks.arm(int)`: the next call that passes the chosen place panics there, once.
#[expect(unsafe_code, reason = "the JVM finds the test's native by its name")]
#[unsafe(no_mangle)]
extern "system" fn Java_io_alluvium_kafka_PanicHooks_arm<'local>(
    mut env: EnvUnowned<'local>,
    _class: JClass<'local>,
    place: jint,
) {
    env.with_env(|_env| {
        ARMED.store(place, Ordering::SeqCst);
        Ok::<(), Failure>(())
    })
    .resolve::<Throw>();
}

fn is_armed(place: i32) -> bool {
    ARMED
        .compare_exchange(place, NONE, Ordering::SeqCst, Ordering::SeqCst)
        .is_ok()
}

/// Panics in the calling thread when that is armed.
pub(crate) fn in_call() {
    if is_armed(IN_CALL) {
        panic!("a panic that a test asked for, in a call");
    }
    if is_armed(IN_CALL_FORMATTED) {
        let place = "a call";
        panic!("a panic that a test asked for, formatted, in {place}");
    }
}

/// The same bytes; when that is armed, the task that drops them panics.
pub(crate) fn in_task(bytes: Bytes) -> Bytes {
    if is_armed(IN_TASK) {
        Bytes::from_owner(Explosive(bytes))
    } else {
        bytes
    }
}

struct Explosive(Bytes);

impl AsRef<[u8]> for Explosive {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Explosive {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("a panic that a test asked for, in a task");
        }
    }
}
