//! What the driver of an interface was told: queues, rings, interrupt moderation, offloads, private flags.
//!
//! The kernel answers over generic netlink, and without privileges (Documentation/networking/ethtool-netlink).

mod driver;
mod netlink;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::reading::Reading;
use crate::system::System;
use netlink::Connection;
use raceline_netlink::{Attribute, attributes, text, unsigned};

/// What the driver of an interface was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverSettings {
    /// The driver's version. Drivers of the kernel have the kernel's.
    pub driver_version: Reading<String>,
    /// The version of the device's firmware.
    pub firmware: Reading<String>,
    /// Numbers of queues, and the most that there can be, e.g. `combined` and `combined-max`.
    pub channels: Reading<BTreeMap<String, u64>>,
    /// Entries of the rings, and the most that they can have, e.g. `rx` and `rx-max`.
    pub rings: Reading<BTreeMap<String, u64>>,
    /// How interrupts are moderated, e.g. `rx-usecs`, and `adaptive-rx` as 0 or 1.
    pub coalescing: Reading<BTreeMap<String, u64>>,
    /// Offloads by their names in the kernel: `on`, `off`, and `on [fixed]` or `off [fixed]`.
    pub features: Reading<BTreeMap<String, String>>,
    /// Flags of this driver only.
    pub private_flags: Reading<BTreeMap<String, bool>>,
    /// Whether flow control is on: `autoneg`, `rx`, `tx`, as 0 or 1.
    pub pause: Reading<BTreeMap<String, u64>>,
}

impl DriverSettings {
    /// Reads them. A recorded machine has them in `ethtool/NAME.json`.
    #[must_use]
    pub fn read(system: &System, interface: &str) -> Self {
        if !system.is_recorded() {
            return Self::ask(interface);
        }
        let path = format!("/ethtool/{interface}.json");
        let recorded = system.text(&path).then(|text| match serde_json::from_str(&text) {
            Ok(settings) => Reading::Read(settings),
            Err(error) => Reading::unread(format!("{path}: {error}")),
        });
        match recorded {
            Reading::Read(settings) => settings,
            Reading::Unread { unread } => Self::none(&unread),
        }
    }

    /// Whether an offload is on; nothing if the driver does not know it.
    #[must_use]
    pub fn feature(&self, name: &str) -> Option<bool> {
        Some(self.features.value()?.get(name)?.starts_with("on"))
    }

    /// Whether an offload can be turned on or off.
    #[must_use]
    pub fn can_change(&self, name: &str) -> bool {
        let state = self.features.value().and_then(|features| features.get(name));
        state.is_some_and(|state| !state.ends_with("[fixed]"))
    }

    fn none(reason: &str) -> Self {
        Self {
            driver_version: Reading::unread(reason),
            firmware: Reading::unread(reason),
            channels: Reading::unread(reason),
            rings: Reading::unread(reason),
            coalescing: Reading::unread(reason),
            features: Reading::unread(reason),
            private_flags: Reading::unread(reason),
            pause: Reading::unread(reason),
        }
    }

    fn ask(interface: &str) -> Self {
        let mut connection = match Connection::open() {
            Ok(connection) => connection,
            Err(error) => return Self::none(&format!("the kernel's ethtool family: {error}")),
        };
        let information = driver::information(interface);
        let mut numbers = |request: &Request| {
            connection.ask(request.command, interface).then(|body| request.numbers(&body))
        };
        Self {
            channels: numbers(&CHANNELS),
            rings: numbers(&RINGS),
            coalescing: numbers(&COALESCING),
            pause: numbers(&PAUSE),
            features: connection.ask(FEATURES_GET, interface).map(|body| features(&body)),
            private_flags: connection.ask(PRIVATE_FLAGS_GET, interface).map(|body| {
                let set = |attribute: &Attribute| attribute.kind == PRIVATE_FLAGS;
                attributes(&body).find(set).map(|found| bits(found.value)).unwrap_or_default()
            }),
            driver_version: information.clone().map(|found| found.version),
            firmware: information.map(|found| found.firmware).then(|firmware| {
                if firmware.is_empty() {
                    Reading::unread("the driver names no firmware")
                } else {
                    Reading::Read(firmware)
                }
            }),
        }
    }
}

/// A request whose answer is a list of numbers.
struct Request {
    /// The command of the ethtool family.
    command: u8,
    /// The kinds of the answer's attributes, and our names of them.
    names: &'static [(u16, &'static str)],
}

impl Request {
    fn numbers(&self, body: &[u8]) -> Reading<BTreeMap<String, u64>> {
        let name = |attribute: Attribute| {
            let (_, name) = self.names.iter().find(|(kind, _)| *kind == attribute.kind)?;
            Some(((*name).to_owned(), unsigned(attribute.value)?))
        };
        Reading::Read(attributes(body).filter_map(name).collect())
    }
}

const CHANNELS: Request = Request {
    command: 17,
    names: &[
        (2, "rx-max"),
        (3, "tx-max"),
        (4, "other-max"),
        (5, "combined-max"),
        (6, "rx"),
        (7, "tx"),
        (8, "other"),
        (9, "combined"),
    ],
};

const RINGS: Request =
    Request { command: 15, names: &[(2, "rx-max"), (5, "tx-max"), (6, "rx"), (9, "tx")] };

const COALESCING: Request = Request {
    command: 19,
    names: &[
        (2, "rx-usecs"),
        (3, "rx-frames"),
        (4, "rx-usecs-irq"),
        (5, "rx-frames-irq"),
        (6, "tx-usecs"),
        (7, "tx-frames"),
        (8, "tx-usecs-irq"),
        (9, "tx-frames-irq"),
        (11, "adaptive-rx"),
        (12, "adaptive-tx"),
    ],
};

const PAUSE: Request = Request { command: 21, names: &[(2, "autoneg"), (3, "rx"), (4, "tx")] };

const FEATURES_GET: u8 = 11;
/// Attributes of the answer to [`FEATURES_GET`]: what the device can change, and what is on.
const FEATURES_HARDWARE: u16 = 2;
const FEATURES_ACTIVE: u16 = 4;
/// What can never be changed, whatever the device can do.
const FEATURES_NO_CHANGE: u16 = 5;

const PRIVATE_FLAGS_GET: u8 = 13;
/// The attribute of the answer to [`PRIVATE_FLAGS_GET`] that has the flags.
const PRIVATE_FLAGS: u16 = 2;

/// All offloads, with their state.
fn features(body: &[u8]) -> BTreeMap<String, String> {
    let set = |kind: u16| {
        let found = attributes(body).find(|attribute| attribute.kind == kind);
        found.map(|attribute| bits(attribute.value)).unwrap_or_default()
    };
    let (changeable, active, fixed) =
        (set(FEATURES_HARDWARE), set(FEATURES_ACTIVE), set(FEATURES_NO_CHANGE));
    let is_set = |bits: &BTreeMap<String, bool>, name: &String| bits.get(name) == Some(&true);
    let state = |name: &String| {
        let on = if is_set(&active, name) { "on" } else { "off" };
        let is_fixed = !is_set(&changeable, name) || is_set(&fixed, name);
        (name.clone(), format!("{on}{}", if is_fixed { " [fixed]" } else { "" }))
    };
    changeable.keys().chain(active.keys()).map(state).collect()
}

/// The bits of a set by name. A set without a mask lists those that are set.
fn bits(value: &[u8]) -> BTreeMap<String, bool> {
    const NO_MASK: u16 = 1;
    const BITS: u16 = 3;
    const NAME: u16 = 2;
    const IS_SET: u16 = 3;
    let only_set = attributes(value).any(|attribute| attribute.kind == NO_MASK);
    let list = attributes(value).find(|attribute| attribute.kind == BITS);
    let bit = |bit: Attribute| {
        let name = attributes(bit.value).find(|part| part.kind == NAME)?;
        let is_set = only_set || attributes(bit.value).any(|part| part.kind == IS_SET);
        Some((text(name.value), is_set))
    };
    list.map(|list| attributes(list.value).filter_map(bit).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use raceline_netlink::append;

    fn bit_set(no_mask: bool, bits: &[(&str, bool)]) -> Vec<u8> {
        let mut list = Vec::new();
        for (name, is_set) in bits {
            let mut bit = Vec::new();
            append(&mut bit, 2, format!("{name}\0").as_bytes());
            if *is_set {
                append(&mut bit, 3, &[]);
            }
            append(&mut list, 1, &bit);
        }
        let mut set = Vec::new();
        if no_mask {
            append(&mut set, 1, &[]);
        }
        append(&mut set, 2, &64_u32.to_ne_bytes());
        append(&mut set, 3, &list);
        set
    }

    #[test]
    fn offloads_have_their_state() {
        let mut body = Vec::new();
        let hardware =
            bit_set(false, &[("rx-gro", true), ("hw-tc-offload", true), ("rx-lro", false)]);
        append(&mut body, FEATURES_HARDWARE, &hardware);
        append(
            &mut body,
            FEATURES_ACTIVE,
            &bit_set(true, &[("rx-gro", false), ("loopback", false)]),
        );
        let found = features(&body);
        assert_eq!(found["rx-gro"], "on");
        assert_eq!(found["hw-tc-offload"], "off");
        assert_eq!(found["rx-lro"], "off [fixed]");
        assert_eq!(found["loopback"], "on [fixed]");
    }

    #[test]
    fn numbers_have_our_names_and_strange_attributes_are_skipped() {
        let mut body = Vec::new();
        append(&mut body, 2, &50_u32.to_ne_bytes());
        append(&mut body, 11, &[1]);
        append(&mut body, 200, &7_u32.to_ne_bytes());
        append(&mut body, 6, &[1, 2, 3]);
        let found = COALESCING.numbers(&body);
        let expected = BTreeMap::from([("rx-usecs".to_owned(), 50), ("adaptive-rx".to_owned(), 1)]);
        assert_eq!(found.value(), Some(&expected));
    }

    #[test]
    fn this_machines_loopback_answers() {
        let settings = DriverSettings::ask("lo");
        assert!(settings.feature("rx-gro").is_some(), "{settings:?}");
        assert!(settings.channels.reason().is_some(), "{settings:?}");
    }
}
