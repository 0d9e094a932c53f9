//! Log events of the library, kept until a Java thread fetches them.
//!
//! # Flow
//! `tracing` event -> [`Collector`] (level check, one line of text) -> bounded queue -> [`poll`] -> SLF4J.
//!
//! # Invariants
//! * Logging never waits: a full queue drops the newest events, counts them, and says so once there is room again.
//! * Of other libraries only warnings and errors are kept, since the SDK's finer levels may show requests with secrets.
//! * A panic says where it happened here and prints nothing.
//!
//! # Not here
//! Rate limits of hot failures: whoever logs them knows which they are.

use std::{
    collections::VecDeque,
    fmt::{self, Write as _},
    panic::PanicHookInfo,
    sync::{
        Condvar, Mutex, Once, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

/// Events kept at most; at a few hundred bytes each this stays within a few MiB.
const EVENTS_MAX: usize = 4096;
/// Longest text of an event.
const MESSAGE_BYTES_MAX: usize = 8 * 1024;
/// Targets of our own crates begin so.
const OWN_TARGET: &str = "alluvium";
/// Where a panic is reported.
const PANIC_TARGET: &str = "alluvium::panic";
/// Where lost events are reported.
const QUEUE_TARGET: &str = "alluvium::log_queue";

/// One log line on its way to Java.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) level: &'static str,
    pub(crate) target: String,
    pub(crate) message: String,
}

struct Queue {
    lines: VecDeque<Line>,
    dropped: u64,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue {
    lines: VecDeque::new(),
    dropped: 0,
});
static FILLED: Condvar = Condvar::new();
/// What our own crates may log, as a number of [`level_number`]. One for all instances of this copy of the library.
static OWN_LEVEL: AtomicU8 = AtomicU8::new(3);

/// Installs the collector and the panic hook, once.
pub(crate) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // Nothing else in this copy of the library could have set one.
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Collector));
        std::panic::set_hook(Box::new(report_panic));
    });
}

/// Sets the level of our own crates from a word; an unknown one changes nothing, since the engine's configuration refuses it.
pub(crate) fn set_level(word: &str) {
    if let Ok(level) = word.trim().parse::<LevelFilter>() {
        OWN_LEVEL.store(level.into_level().map_or(0, level_number), Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }
}

fn level_number(level: Level) -> u8 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

/// Takes up to `max` lines, waiting for the first at most that long.
pub(crate) fn poll(max: usize, wait: Duration) -> Vec<Line> {
    let queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut queue, _) = FILLED
        .wait_timeout_while(queue, wait, |queue| queue.lines.is_empty() && queue.dropped == 0)
        .unwrap_or_else(PoisonError::into_inner);
    let count = max.min(queue.lines.len());
    let mut lines: Vec<Line> = queue.lines.drain(..count).collect();
    let dropped = std::mem::take(&mut queue.dropped);
    drop(queue);
    if dropped > 0 {
        lines.push(Line {
            level: Level::WARN.as_str(),
            target: QUEUE_TARGET.to_owned(),
            message: format!("{dropped} log events were lost because the log did not keep up"),
        });
    }
    lines
}

fn push(line: Line) {
    let mut queue = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    if queue.lines.len() < EVENTS_MAX {
        queue.lines.push_back(line);
    } else {
        queue.dropped += 1;
    }
    drop(queue);
    FILLED.notify_one();
}

fn report_panic(info: &PanicHookInfo<'_>) {
    let what = info.payload_as_str().unwrap_or("no message");
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    let message = format!(
        "panic in thread {} at {place}: {what}",
        thread.name().unwrap_or("of Java")
    );
    push(Line {
        level: Level::ERROR.as_str(),
        target: PANIC_TARGET.to_owned(),
        message: shortened(message),
    });
}

fn shortened(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        message.push_str(" ...");
    }
    message
}

fn is_wanted(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    let own = target
        .strip_prefix(OWN_TARGET)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('_') || rest.starts_with("::"));
    let most = OWN_LEVEL.load(Ordering::Relaxed);
    let most = if own { most } else { most.min(level_number(Level::WARN)) };
    level_number(*metadata.level()) <= most
}

/// Turns events into lines.
struct Collector;

/// The fields of a span as text, kept with the span.
struct SpanFields(String);

impl<S> Layer<S> for Collector
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn enabled(&self, metadata: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        is_wanted(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let most = [
            LevelFilter::OFF,
            LevelFilter::ERROR,
            LevelFilter::WARN,
            LevelFilter::INFO,
            LevelFilter::DEBUG,
        ];
        let number = usize::from(OWN_LEVEL.load(Ordering::Relaxed));
        Some(most.get(number).copied().unwrap_or(LevelFilter::TRACE))
    }

    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut text = Text::default();
        attributes.record(&mut text);
        span.extensions_mut().insert(SpanFields(text.fields));
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut text = Text::default();
        values.record(&mut text);
        if let Some(SpanFields(fields)) = span.extensions_mut().get_mut() {
            fields.push_str(&text.fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let mut message = text.message;
        message.push_str(&text.fields);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(SpanFields(fields)) = span.extensions().get() {
                message.push_str(fields);
            }
        }
        let metadata = event.metadata();
        push(Line {
            level: metadata.level().as_str(),
            target: metadata.target().to_owned(),
            message: shortened(message),
        });
    }
}

/// A message, and its fields as ` key=value` each.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing into a String does not fail; a value that fails to print is left out.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test, since the queue is one for the process.
    #[test]
    fn events_become_lines_levels_hold_and_a_full_queue_counts() {
        install();
        install();
        let span = tracing::info_span!("copy", segment = "abc", bytes = tracing::field::Empty);
        span.record("bytes", 7);
        span.in_scope(|| tracing::warn!(attempt = 2, reason = "slow", "part failed: {}", "timeout"));
        tracing::debug!("not wanted");
        tracing::info!(target: "aws_sdk_s3", "not wanted: may hold secrets");
        tracing::warn!(target: "hyper::client", "wanted");
        tracing::info!(target: "alluviumother", "not ours");
        let lines = poll(10, Duration::ZERO);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(lines[0].level, "WARN");
        assert_eq!(lines[0].target, "alluvium::log_queue::tests");
        assert_eq!(
            lines[0].message,
            "part failed: timeout attempt=2 reason=\"slow\" segment=\"abc\" bytes=7"
        );
        assert_eq!(lines[1].target, "hyper::client");

        set_level("DEBUG");
        tracing::debug!("wanted now");
        tracing::debug!(target: "aws_sdk_s3", "never");
        set_level("nonsense");
        tracing::debug!("still wanted");
        set_level("info");
        tracing::debug!("not wanted again");
        assert_eq!(poll(10, Duration::ZERO).len(), 2);

        let _ = std::panic::catch_unwind(|| panic!("number {}", 1));
        let lines = poll(10, Duration::from_secs(10));
        assert!(lines[0].message.contains("number 1"), "{lines:?}");

        for number in 0..EVENTS_MAX + 3 {
            tracing::info!(number, "{}", "é".repeat(MESSAGE_BYTES_MAX));
        }
        let first = poll(1, Duration::ZERO);
        assert_eq!(first.len(), 2);
        assert!(first[0].message.len() < MESSAGE_BYTES_MAX + 10);
        assert!(
            first[1].message.starts_with("3 log events were lost"),
            "{}",
            first[1].message
        );
        assert_eq!(poll(usize::MAX, Duration::ZERO).len(), EVENTS_MAX - 1);
        assert!(poll(1, Duration::from_millis(1)).is_empty());
    }
}
