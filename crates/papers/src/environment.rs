//! The machine of a record: read as its test bed shows it, and compared with that of another record.

use raceline_environment::{Environment, Reading};
use serde_json::Value;

use crate::bed::Bed;

pub use raceline_environment::{Difference, differences};

/// The fields that belong to the network of a bed: beds of different kinds differ in them by what they are.
const OF_THE_NETWORK: [&str; 2] = ["network", "interface"];

/// Reads this machine, with the network of a bed. What cannot be read has the reason.
#[must_use]
pub fn read(bed: &dyn Bed) -> Value {
    let whole = Environment::read(None);
    let environment = match bed.network() {
        Ok((network, interface)) => Environment { network, interface, ..whole },
        Err(error) => Environment {
            interface: Reading::unread(format!("the test bed does not show it: {error}")),
            ..whole
        },
    };
    serde_json::to_value(environment).unwrap_or_default()
}

/// Whether a record has the whole environment. Records of earlier versions have `processor` and `kernel` only.
#[must_use]
pub fn is_whole(environment: &Value) -> bool {
    environment.get("schema").is_some()
}

/// As [`differences`], also between a whole environment and one of an earlier version: only the processor and the
/// kernel can be compared then, and that the rest is unknown is a difference of its own.
#[must_use]
pub fn differences_of_versions(left: &Value, right: &Value) -> Vec<Difference> {
    if is_whole(left) == is_whole(right) {
        return differences(left, right);
    }
    let what = |value: &Value| {
        Some(if is_whole(value) { "read whole" } else { "processor and kernel only" }.to_owned())
    };
    let mut found =
        vec![Difference { field: "schema".to_owned(), left: what(left), right: what(right) }];
    for (field, parts) in EARLIER {
        let of = |value: &Value| earlier(value, field, parts);
        let (left, right) = (of(left), of(right));
        if left != right {
            found.push(Difference { field: field.to_owned(), left, right });
        }
    }
    found
}

/// The fields of earlier versions, and where a whole environment has the end of the same text.
const EARLIER: [(&str, [&str; 2]); 2] =
    [("kernel", ["kernel", "release"]), ("processor", ["cpu", "model"])];

/// A field of an earlier version as text, without the number of cores before the processor's name.
fn earlier(environment: &Value, field: &str, [part, name]: [&str; 2]) -> Option<String> {
    let found = match environment.get(field).filter(|value| value.is_string()) {
        Some(text) => text,
        None => environment.get(part)?.get(name)?,
    };
    let text = found.as_str()?;
    Some(text.split_once(" cores of ").map_or(text, |(_, model)| model).to_owned())
}

/// In what environments on beds of these kinds differ. The network is compared only on beds of the same kind.
#[must_use]
pub fn differences_on_beds(left: (&str, &Value), right: (&str, &Value)) -> Vec<Difference> {
    let mut found = differences_of_versions(left.1, right.1);
    if left.0 != right.0 {
        found.retain(|difference| {
            let part = difference.field.split(['.', '[']).next().unwrap_or_default();
            !OF_THE_NETWORK.contains(&part)
        });
    }
    found
}

/// How many values an environment has, and how many of them could not be read.
#[must_use]
pub fn coverage(environment: &Value) -> (usize, usize) {
    match environment {
        Value::Object(map) if reason(environment).is_none() => sum(map.values()),
        Value::Array(list) if !list.is_empty() => sum(list.iter()),
        value => (1, usize::from(value.is_null() || reason(value).is_some())),
    }
}

fn sum<'a>(values: impl Iterator<Item = &'a Value>) -> (usize, usize) {
    values.map(coverage).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// Why a value could not be read.
#[must_use]
pub fn reason(value: &Value) -> Option<&str> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.get("unread")?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::bed::{Loopback, Remote};

    #[test]
    fn the_bed_s_network_is_read_with_the_machine() {
        let found = read(&Loopback);
        assert!(is_whole(&found));
        assert_eq!(found["interface"]["name"], "lo");
        assert_eq!(found["interface"]["mtu"], 65536);
        assert!(found["network"]["settings"]["net.core.somaxconn"].is_string(), "{found}");
        for part in ["cpu", "idle", "memory", "kernel", "services", "programs", "drives"] {
            assert!(!found[part].is_null(), "{part} is missing: {found}");
        }
        let (values, unread) = coverage(&found);
        assert!(values > 50 && unread < values, "{unread} of {values}");
        let back: Environment = serde_json::from_value(found).unwrap();
        assert_eq!(back.schema, raceline_environment::SCHEMA);
        let (away, known) = (read(&Remote { address: [127, 0, 0, 1].into() }), "lo");
        let name = &away["interface"]["name"];
        assert!(name == known || reason(&away["interface"]).is_some(), "{name}");
    }

    #[test]
    fn values_and_reasons_are_counted() {
        let environment = json!({
            "a": 1, "b": { "unread": "needs root" }, "c": [{ "d": 1 }, { "d": { "unread": "x" } }], "e": [],
            "f": null, "g": { "unread": 3 },
        });
        assert_eq!(coverage(&environment), (7, 3));
    }

    #[test]
    fn earlier_records_are_compared_by_what_they_have() {
        let old = json!({ "processor": "2 cores of AMD EPYC", "kernel": "6.18.1" });
        let new = |kernel: &str| json!({ "schema": 1, "cpu": { "model": "AMD EPYC" }, "kernel": { "release": kernel } });
        let fields = |left: &Value, right: &Value| -> Vec<String> {
            let found = differences_of_versions(left, right);
            found.into_iter().map(|difference| difference.field).collect()
        };
        assert_eq!(fields(&old, &new("6.18.1")), ["schema"]);
        assert_eq!(fields(&new("6.1.0"), &old), ["schema", "kernel"]);
        assert_eq!(fields(&old, &old), Vec::<String>::new());
        let other = json!({ "processor": "4 cores of Xeon", "kernel": "6.18.1" });
        assert_eq!(fields(&old, &other), ["processor"]);
        assert_eq!(fields(&other, &new("6.18.1")), ["schema", "processor"]);
    }

    #[test]
    fn networks_are_compared_on_beds_of_the_same_kind_only() {
        let left = json!({ "schema": 1, "interface": { "mtu": 1500 }, "network": { "a": 1 } });
        let right =
            json!({ "schema": 1, "interface": { "mtu": 9000 }, "network": { "a": 2 }, "cpu": 1 });
        let fields = |a: &str, b: &str| differences_on_beds((a, &left), (b, &right)).len();
        assert_eq!((fields("veth", "veth"), fields("veth", "loopback")), (3, 1));
    }
}
