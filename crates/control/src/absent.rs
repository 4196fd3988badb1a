//! What SPDK has and this program does not: the part that a method belongs to, and what the method does.

use std::sync::LazyLock;

use crate::spelling::current_name;

/// The facts; its first lines describe the form.
const TABLE: &str = include_str!("absent/parts.txt");

/// This program, by the name that its users know.
pub const US: &str = "Raceline";
/// A daemon that a client talks to, which may be another program.
pub const THIS_DAEMON: &str = "this daemon";

/// A part of SPDK.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// SPDK's name for it, as `bdev_lvol`.
    pub name: &'static str,
    /// The section of a configuration in which its settings stand; any word, where it has none.
    pub section: &'static str,
    /// What it is, as `logical volumes`.
    pub text: &'static str,
}

/// What a method of an absent part does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// It sets options: they are kept and have no effect.
    Sets,
    /// It makes something that others rely on: a configuration that calls it is refused.
    Creates,
    /// It reads, changes or removes what other methods have made.
    Handles,
}

/// One method of a part that is not here.
#[derive(Debug)]
pub struct Absent {
    /// SPDK's name of the method.
    pub method: &'static str,
    /// What it belongs to.
    pub part: &'static Part,
    /// What it does.
    pub does: Does,
}

/// All methods of parts that are not here, in the table's order.
pub fn methods() -> &'static [Absent] {
    static METHODS: LazyLock<Vec<Absent>> = LazyLock::new(read);
    &METHODS
}

/// The method of this name, old or new, if it belongs to a part of SPDK that is not here.
#[must_use]
pub fn absent(name: &str) -> Option<&'static Absent> {
    let name = current_name(name);
    methods().iter().find(|absent| absent.method == name)
}

impl Absent {
    /// A sentence for the caller of the method, under the name it called; `who` lacks the method.
    #[must_use]
    pub fn sentence(&self, called: &str, who: &str) -> String {
        let Part { name, text, .. } = self.part;
        let meant = match called == self.method {
            true => String::new(),
            false => format!(" (now {})", self.method),
        };
        format!("{called}{meant} belongs to SPDK's {text} ({name}), which {who} does not have")
    }
}

/// Reads the table. It is part of this program, so a line that is wrong is a bug of ours.
fn read() -> Vec<Absent> {
    let mut methods = Vec::new();
    let mut part: Option<&'static Part> = None;
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (kind, rest) = line.split_once(' ').expect("a kind and its words");
        if kind == "part" {
            let mut words = rest.splitn(3, ' ');
            let mut word = || words.next().expect("part NAME SECTION text");
            let (name, section) = (word(), word());
            // Read once, and needed until the program ends.
            part = Some(Box::leak(Box::new(Part { name, section, text: word() })));
            continue;
        }
        let does = match kind {
            "sets" => Does::Sets,
            "creates" => Does::Creates,
            _ => Does::Handles,
        };
        let part = part.expect("a part before its methods");
        methods.extend(rest.split(' ').map(|method| Absent { method, part, does }));
    }
    methods
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::manager::catalogue::Section;
    use crate::method::{Effect, Registry};
    use crate::schema::schema;

    #[test]
    fn every_method_of_spdk_is_here_or_belongs_to_a_part_that_is_not() {
        let registry = Registry::new();
        let mut seen = BTreeSet::new();
        for absent in methods() {
            assert!(seen.insert(absent.method), "{} stands in the table twice", absent.method);
            assert!(schema().method(absent.method).is_some(), "SPDK has no {}", absent.method);
            let ours = registry.get(absent.method);
            match absent.does {
                Does::Sets => {
                    let ours = ours.unwrap_or_else(|| panic!("{} is not kept", absent.method));
                    assert!(ours.effect.is_none(), "{} has an effect", absent.method);
                    assert!(
                        Section::from_name(absent.part.section).is_some(),
                        "{} has no section",
                        absent.method
                    );
                }
                _ => assert!(ours.is_none(), "{} is here by now", absent.method),
            }
        }
        let is_unknown = |name: &&str| registry.get(name).is_none() && !seen.contains(name);
        let names = schema().methods().iter().map(|method| method.name);
        let unknown: Vec<&str> = names.filter(is_unknown).collect();
        assert!(unknown.is_empty(), "neither here nor in the table: {unknown:?}");
        for method in registry.methods().filter(|method| method.effect.is_none()) {
            assert!(seen.contains(method.name), "{}: {:?}", method.name, Effect::None);
        }
    }

    #[test]
    fn what_a_method_belongs_to_is_said_under_any_name() {
        let said = |name: &str| absent(name).map(|found| found.sentence(name, US));
        assert_eq!(
            said("bdev_lvol_create").unwrap(),
            "bdev_lvol_create belongs to SPDK's logical volumes (bdev_lvol), which Raceline does not have"
        );
        assert_eq!(
            said("construct_lvol_store").unwrap(),
            "construct_lvol_store (now bdev_lvol_create_lvstore) belongs to SPDK's logical volumes \
             (bdev_lvol), which Raceline does not have"
        );
        assert_eq!(said("bdev_malloc_create"), None);
        assert_eq!(said("no_such_method"), None);
    }
}
