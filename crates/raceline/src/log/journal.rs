//! Feeds the daemon's journal of events from the log, whatever the log itself shows.

use std::fmt;
use std::sync::Arc;

use raceline_control::events::{CHANGE, EventJournal, Severity};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::AUDIT;

/// The field of a message that says what kind of event it is.
const KIND: &str = "event";
/// The kind of messages that do not say theirs.
const OTHER: &str = "log";
/// Requests of this program's own client, whose parameters may hold secrets.
const REQUESTS: &str = "raceline_control::client";

/// A layer of the log that fills a journal.
pub(super) struct JournalLayer(pub(super) Arc<EventJournal>);

/// Whether a message becomes an event.
pub(super) fn is_event(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    *metadata.level() <= Level::INFO
        && target.starts_with("raceline")
        && !target.starts_with(REQUESTS)
}

impl<S: Subscriber> Layer<S> for JournalLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut seen = Seen::default();
        event.record(&mut seen);
        let severity = match *metadata.level() {
            Level::ERROR => Severity::Error,
            Level::WARN => Severity::Warning,
            _ => Severity::Info,
        };
        let is_audit = metadata.target() == AUDIT;
        let kind = seen.fields.remove(KIND);
        let kind = kind.as_ref().and_then(Value::as_str).unwrap_or(OTHER);
        let text = |name: &str| seen.fields.get(name).and_then(Value::as_str).unwrap_or_default();
        match (is_audit, kind) {
            // A line of the log for people says the same.
            (true, "connect") => {}
            (true, OTHER) => {
                let message = format!("{}: {}", text("method"), text("outcome"));
                self.0.push(severity, CHANGE, AUDIT, &message, seen.fields);
            }
            (true, kind) => {
                let message = format!("{kind}: {}", text("result"));
                self.0.push(severity, kind, AUDIT, &message, seen.fields);
            }
            (false, kind) => {
                self.0.push(severity, kind, metadata.target(), &seen.message, seen.fields);
            }
        }
    }
}

/// The fields of one message.
#[derive(Default)]
struct Seen {
    message: String,
    fields: Map<String, Value>,
}

impl Seen {
    fn put(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().to_owned(), value);
    }
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else {
            self.put(field, text.into());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tracing_subscriber::filter::filter_fn;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn messages_become_events_of_their_kind() {
        let journal = Arc::new(EventJournal::default());
        let layer = JournalLayer(Arc::clone(&journal)).with_filter(filter_fn(is_event));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!(target: "raceline_target", event = "connect", cntlid = 3, "host connected");
            tracing::warn!(target: "raceline_bdev", "a {}", "drive is gone");
            tracing::info!(target: AUDIT, uid = 0, method = "bdev_null_create", outcome = "ok");
            tracing::info!(target: AUDIT, event = "authentication", host = "h", result = "ok");
            tracing::info!(target: AUDIT, event = "connect", host = "h", result = "refused");
            tracing::debug!(target: "raceline_target", "not this");
            tracing::info!(target: "mdns_sd", "nor this");
            tracing::info!(target: REQUESTS, "request with a password");
        });
        let batch = journal.since(0, 100, Duration::ZERO);
        let seen: Vec<(&str, &str, Severity)> = batch
            .events
            .iter()
            .map(|event| (event.kind.as_str(), event.message.as_str(), event.severity))
            .collect();
        let expected = [
            ("connect", "host connected", Severity::Info),
            ("log", "a drive is gone", Severity::Warning),
            ("change", "bdev_null_create: ok", Severity::Info),
            ("authentication", "authentication: ok", Severity::Info),
        ];
        assert_eq!(seen, expected);
        assert_eq!(batch.events[0].fields["cntlid"], 3);
    }
}
