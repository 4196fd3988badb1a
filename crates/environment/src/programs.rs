//! Versions of programs that measurements use.

use std::collections::BTreeMap;

use crate::reading::Reading;
use crate::system::System;

/// Programs, and how each is asked for its version.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("fio", &["--version"]),
    ("nvme", &["version"]),
    ("ethtool", &["--version"]),
    ("ip", &["-V"]),
    ("tc", &["-V"]),
    ("devlink", &["-V"]),
    ("numactl", &["--version"]),
];

/// The first line that each program prints about its version.
#[must_use]
pub fn read(system: &System) -> BTreeMap<String, Reading<String>> {
    let version = |(name, arguments): &(&str, &[&str])| {
        let output = system.output(name, arguments);
        ((*name).to_owned(), output.map(|text| text.lines().next().unwrap_or_default().to_owned()))
    };
    PROGRAMS.iter().map(version).collect()
}
