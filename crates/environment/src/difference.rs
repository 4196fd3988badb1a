//! In what two environments differ that changes results.

use serde::Serialize;
use serde_json::{Map, Value};

/// Parts of an environment that change no result, or that a comparison is about.
const NOT_COMPARED: &[&str] =
    &["schema", "read_unix_s", "raceline", "host", "programs", "now", "interface.name"];
/// Fields that differ from boot to boot without any effect, wherever they stand.
const NUMBERS_OF_THE_BOOT: &[&str] = &["number"];
/// The kernel takes a little of memory for itself, more or less from boot to boot: sizes in KiB within this
/// share of each other count as the same.
const SAME_SIZE: f64 = 0.01;

/// A value that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Where it stands in the environment, e.g. `cpu.governors` or `interface.settings.rings.rx`.
    pub field: String,
    /// The first environment's value; nothing if it has none.
    pub left: Option<String>,
    /// The second environment's value.
    pub right: Option<String>,
}

/// The differences between two environments, in JSON, that change results. A value that was read in one and
/// not in the other is a difference: nobody knows whether it is the same. Other JSON than environments gives
/// what differs in it. They are sorted by field.
#[must_use]
pub fn differences(left: &Value, right: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", Some(left), Some(right), &mut found);
    // Objects keep the order of their keys or sort them, as the program was built.
    found.sort_by(|one, other| one.field.cmp(&other.field));
    found
}

fn compare(field: &str, left: Option<&Value>, right: Option<&Value>, found: &mut Vec<Difference>) {
    if NOT_COMPARED.contains(&field) || is_same(field, left, right) {
        return;
    }
    match (left, right) {
        (Some(Value::Object(left)), Some(Value::Object(right)))
            if !is_unread(left) && !is_unread(right) =>
        {
            let names = left.keys().chain(right.keys().filter(|name| !left.contains_key(*name)));
            for name in names.filter(|name| !NUMBERS_OF_THE_BOOT.contains(&name.as_str())) {
                let inner = if field.is_empty() { name.clone() } else { format!("{field}.{name}") };
                compare(&inner, left.get(name), right.get(name), found);
            }
        }
        (Some(Value::Array(left)), Some(Value::Array(right)))
            if left.len() == right.len() && left.iter().any(Value::is_object) =>
        {
            for (at, (left, right)) in left.iter().zip(right).enumerate() {
                compare(&format!("{field}[{at}]"), Some(left), Some(right), found);
            }
        }
        _ => found.push(Difference {
            field: field.to_owned(),
            left: left.map(shown),
            right: right.map(shown),
        }),
    }
}

fn is_same(field: &str, left: Option<&Value>, right: Option<&Value>) -> bool {
    let unread = |value: &Value| value.as_object().is_some_and(is_unread);
    match (left, right) {
        // The reasons may differ: one run had privileges, or spoke to another version of a program.
        (Some(left), Some(right)) if unread(left) && unread(right) => true,
        (Some(left), Some(right)) if field.ends_with("_kib") => {
            match (left.as_f64(), right.as_f64()) {
                (Some(left), Some(right)) => {
                    (left - right).abs() <= SAME_SIZE * left.abs().max(right.abs())
                }
                _ => left == right,
            }
        }
        _ => left == right,
    }
}

fn is_unread(value: &Map<String, Value>) -> bool {
    value.len() == 1 && value.get("unread").is_some_and(Value::is_string)
}

/// A value in one line; lists and objects longer than a line are cut.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 120;
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Object(object) if is_unread(object) => {
            let reason = object.get("unread").and_then(Value::as_str).unwrap_or_default();
            format!("not read: {reason}")
        }
        other => other.to_string(),
    };
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_changes_results_is_found() {
        let left = json!({
            "read_unix_s": 1, "now": { "load": 0.1 }, "cpu": { "governors": ["performance"] },
            "memory": { "total_kib": 1000 }, "interface": {
                "name": "eth0", "interrupts": [{ "number": 3, "cpus": "1" }], "mtu": 1500 },
            "kernel": { "hz": { "unread": "a" } }, "idle": { "driver": "none" },
        });
        let right = json!({
            "read_unix_s": 2, "now": { "load": 9.1 }, "cpu": { "governors": ["powersave"] },
            "memory": { "total_kib": 1009 }, "interface": {
                "name": "eth1", "interrupts": [{ "number": 4, "cpus": "2" }], "mtu": 1500 },
            "kernel": { "hz": { "unread": "b" } }, "idle": { "driver": { "unread": "no file" } },
        });
        let found = differences(&left, &right);
        let fields: Vec<_> = found.iter().map(|found| found.field.as_str()).collect();
        assert_eq!(fields, ["cpu.governors", "idle.driver", "interface.interrupts[0].cpus"]);
        assert_eq!(found[1].right.as_deref(), Some("not read: no file"));
        assert!(differences(&left, &left).is_empty());
    }

    #[test]
    fn missing_fields_and_other_lengths_are_differences() {
        let left = json!({ "a": 1, "list": [{}, {}] });
        let right = json!({ "b": 1, "list": [{}] });
        let found = differences(&left, &right);
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].left.as_deref(), found[0].right.as_deref()), (Some("1"), None));
    }

    #[test]
    fn sizes_that_differ_by_more_than_a_percent_are_different() {
        let found = differences(&json!({ "total_kib": 1000 }), &json!({ "total_kib": 1020 }));
        assert_eq!(found.len(), 1);
    }
}
