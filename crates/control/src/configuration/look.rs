//! A look at all calls of a configuration before the first is made: which cannot be made here, and which are
//! kept without effect.

use std::collections::BTreeMap;

use crate::absent::absent;
use crate::state::{Call, SubsystemConfig};

/// How many calls that cannot be made are named at once.
const MAX_NAMED: usize = 100;

/// How the answer to a call of an unknown method begins.
const NOT_FOUND: &str = "Method not found";

/// What a look at a configuration has found.
#[derive(Debug, Default)]
pub struct Looked {
    /// The calls that have no effect, section by section: one line for a log. None without any.
    pub kept: Option<String>,
    /// The calls that cannot be made, all of them. None if there are none.
    pub refused: Option<String>,
}

/// Looks at all calls. `check` says why one cannot be made (nothing where there is no such method), `is_kept`
/// whether one is kept without effect; `who` would make them.
pub fn look(
    sections: &[SubsystemConfig],
    who: &str,
    mut check: impl FnMut(&Call) -> Result<(), String>,
    is_kept: impl Fn(&Call) -> bool,
) -> Looked {
    let (mut kept, mut refused) = (Vec::new(), Vec::new());
    let mut count = 0;
    for SubsystemConfig { subsystem, config } in sections {
        for (index, call) in config.iter().enumerate() {
            match check(call) {
                Ok(()) if is_kept(call) => kept.push((subsystem.as_str(), call.method.as_str())),
                Ok(()) => {}
                Err(why) => {
                    count += 1;
                    if count <= MAX_NAMED {
                        let section = subsystem.escape_debug();
                        refused.push(format!(
                            "{section} config[{index}] {}",
                            because(call, who, &why)
                        ));
                    }
                }
            }
        }
    }
    if count > MAX_NAMED {
        refused.push(format!("and {} more", count - MAX_NAMED));
    }
    let calls = if count == 1 { "a call that" } else { "calls that" };
    let refused = (count > 0).then(|| {
        format!(
            "nothing was made: the configuration has {calls} cannot be made: {}",
            refused.join("; ")
        )
    });
    Looked { kept: summary(kept), refused }
}

/// A call and why it cannot be made: what it belongs to says more than that there is no such method.
fn because(call: &Call, who: &str, why: &str) -> String {
    let is_unknown = why.is_empty() || why.starts_with(NOT_FOUND);
    match absent(&call.method) {
        Some(found) if is_unknown => found.sentence(&call.method, who),
        None if why.is_empty() => {
            format!("{}: {who} has no such method", call.method.escape_debug())
        }
        _ => format!("{}: {why}", call.method.escape_debug()),
    }
}

/// Calls without effect in one line, by section: `iscsi (iscsi_set_options), vmd (vmd_enable)`.
pub fn summary<'a>(calls: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<String> {
    let mut order = Vec::new();
    let mut by_section: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (section, method) in calls {
        let methods = by_section.entry(section).or_insert_with(|| {
            order.push(section);
            Vec::new()
        });
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    let named = order.iter().map(|section| {
        let methods = by_section[section].join(", ");
        format!("{} ({methods})", section.escape_debug())
    });
    let named: Vec<String> = named.collect();
    (!named.is_empty()).then(|| named.join(", "))
}
