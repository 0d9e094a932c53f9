//! The log of all instances of this process: kept, and made to panic.

use std::{
    io,
    sync::{Mutex, Once, PoisonError},
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

static LINES: Mutex<String> = Mutex::new(String::new());

/// The next line in which all of these occur panics; none when there are none.
static EXPLOSIVE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps the log from now on.
pub(crate) fn capture() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let filter = EnvFilter::new("alluvium_engine=debug,alluvium_store=debug");
        let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Writer);
        lines.init();
    });
}

/// All lines so far.
pub(crate) fn text() -> String {
    LINES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Makes whoever writes the next line that has all of these texts in it panic.
pub(crate) fn panic_at(texts: [String; 2]) {
    capture();
    *EXPLOSIVE.lock().unwrap_or_else(PoisonError::into_inner) = texts.to_vec();
}

/// Whether that line is still to come.
pub(crate) fn is_armed() -> bool {
    !EXPLOSIVE.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
}

struct Writer;

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        let explodes = {
            let mut texts = EXPLOSIVE.lock().unwrap_or_else(PoisonError::into_inner);
            let hit = !texts.is_empty() && texts.iter().all(|text| line.contains(text));
            if hit {
                texts.clear();
            }
            hit
        };
        assert!(!explodes, "a panic that the test asked for");
        LINES.lock().unwrap_or_else(PoisonError::into_inner).push_str(&line);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Writer {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        Writer
    }
}
