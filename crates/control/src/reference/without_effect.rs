//! Parameters that a method accepts without effect, for the reference page.

/// The facts; its first lines describe the form.
const TABLE: &str = include_str!("without_effect.txt");

/// The parameters of one method without effect, and why they have none.
pub(super) struct WithoutEffect {
    pub(super) method: &'static str,
    /// By name, or `object.name`.
    pub(super) parameters: Vec<&'static str>,
    pub(super) why: &'static str,
}

/// All lines of the table.
pub(super) fn all() -> impl Iterator<Item = WithoutEffect> {
    let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let (words, why) = line.split_once(" : ").expect("METHOD parameter... : why");
        let mut words = words.split(' ');
        let method = words.next().unwrap_or_default();
        WithoutEffect { method, parameters: words.collect(), why }
    })
}

/// The line for this method.
pub(super) fn of(method: &str) -> Option<WithoutEffect> {
    all().find(|line| line.method == method)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use serde_json::{Map, Value, json};

    use super::*;
    use crate::method::Registry;
    use crate::schema::{Kind, Parameter, schema};

    /// A value that a decoder accepts for this parameter.
    fn value(parameter: &Parameter) -> Value {
        match parameter.kind {
            Kind::Boolean => json!(false),
            Kind::Unsigned(_) | Kind::Signed(_) => json!(0),
            Kind::Text => json!("text"),
            Kind::Uuid => json!("11111111-2222-4333-8444-555555555555"),
            Kind::Enum(words) => json!(schema().words(words).unwrap()[0]),
            Kind::Bitmask(_) | Kind::Array(_) => json!([]),
            Kind::Object(object) => {
                let fields = schema().object(object).unwrap();
                let required = fields.iter().filter(|field| field.required);
                required
                    .map(|field| (field.name.to_owned(), value(field)))
                    .collect::<Map<_, _>>()
                    .into()
            }
        }
    }

    #[test]
    fn every_parameter_in_the_table_is_taken() {
        let registry = Registry::new();
        for WithoutEffect { method, parameters, why } in all() {
            assert!(!why.is_empty() && !parameters.is_empty(), "{method}");
            let ours = registry.get(method).unwrap_or_else(|| panic!("{method} is not here"));
            assert!(!ours.effect.is_none(), "{method} has no effect at all");
            let spdk = schema().method(method).unwrap();
            let required = spdk.parameters.iter().filter(|parameter| parameter.required);
            let required: Map<String, Value> =
                required.map(|parameter| (parameter.name.to_owned(), value(parameter))).collect();
            for path in parameters {
                let outer = path.split('.').next().unwrap();
                assert!(ours.parameters.contains(&outer), "{method} does not know {outer}");
                let Some(known) = spdk.at(path) else {
                    assert!(OLD.contains(&path), "SPDK's {method} has no {path}");
                    continue;
                };
                let mut params = required.clone();
                match path.split_once('.') {
                    None => drop(params.insert(path.to_owned(), value(known))),
                    Some((object, field)) => params[object][field] = value(known),
                }
                let raw = serde_json::value::to_raw_value(&params).unwrap();
                registry
                    .check(method, Some(&raw))
                    .unwrap_or_else(|error| panic!("{method} refuses {path}: {error}"));
            }
        }
    }

    /// Parameters that only older releases of SPDK had.
    const OLD: [&str; 7] = [
        "small_buf_pool_size",
        "large_buf_pool_size",
        "enable_zerocopy_send",
        "acceptor_poll_rate",
        "conn_sched",
        "min_connections_per_session",
        "portals.cpumask",
    ];

    /// A member that a decoder has and no code reads begins with `_`: the table must have all of these.
    #[test]
    fn every_member_that_nothing_reads_stands_in_the_table() {
        let mut listed = BTreeSet::new();
        for line in all() {
            listed.extend(
                line.parameters.iter().map(|path| path.rsplit('.').next().unwrap().to_owned()),
            );
        }
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/methods")];
        let mut seen = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                for line in text.lines().map(str::trim_start).filter(|line| line.starts_with('_')) {
                    let Some((name, _)) = line[1..].split_once(": ") else { continue };
                    // Arguments of functions, on lines of their own.
                    if ["call", "params"].contains(&name) {
                        continue;
                    }
                    assert!(
                        listed.contains(name),
                        "{}: {name} is not in the table",
                        path.display()
                    );
                    seen += 1;
                }
            }
        }
        assert!(
            seen > 0,
            "no such members: the names are looked for in another way than they are written"
        );
    }
}
