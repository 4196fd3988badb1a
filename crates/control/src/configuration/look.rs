//! Checks all calls of a configuration before the first is made: which calls cannot be made here, and which
//! are kept without effect.

use std::collections::BTreeMap;

use crate::absent::absent;
use crate::state::{Call, SubsystemConfig};

/// How many of the calls that cannot be made a message names.
const MAX_NAMED: usize = 100;

/// How the answer to a call of an unknown method begins.
const NOT_FOUND: &str = "Method not found";

/// What the check of a configuration has found.
#[derive(Debug, Default)]
pub struct Looked {
    /// The calls that have no effect, section by section: one line for a log. `None` if there are none.
    pub kept: Option<String>,
    /// All calls that cannot be made. `None` if there are none.
    pub refused: Option<String>,
}

/// Checks all calls. `check` says why a call cannot be made (nothing where there is no such method),
/// `is_kept` whether a call is kept without effect; `who` is the program that would make the calls.
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

/// A call and why it cannot be made. The part that an absent method belongs to tells more than "not found".
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

/// Calls without effect in one line, by section: `fsdev (fsdev_set_opts), vmd (vmd_enable)`.
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
