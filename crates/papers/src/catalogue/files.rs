//! The experiments that are part of the program: name and text of each file, in the order of the list.

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../experiments/", $name)))),*]
    };
}

/// All files.
pub(super) const ALL: [(&str, &str); 34] = files![
    "adq-f4.toml",
    "adq-f5.toml",
    "adq-f6.toml",
    "ch-f1.toml",
    "ch-f2.toml",
    "ch-t2.toml",
    "nt-mix.toml",
    "nt-aff.toml",
    "nt-direct.toml",
    "nt-adq.toml",
    "nt-batch.toml",
    "nt-flags.toml",
    "nt-i10-l.toml",
    "nt-i10-t.toml",
    "nt-arch.toml",
    "dsa-t1.toml",
    "dsa-128k-scale.toml",
    "dsa-128k-lat.toml",
    "dsa-16k-scale.toml",
    "dsa-16k-lat.toml",
    "dsa-4k-scale.toml",
    "dsa-4k-lat.toml",
    "limit.toml",
    "gap.toml",
    "connections.toml",
    "latency.toml",
    "neighbour.toml",
    "fleet.toml",
    "converged.toml",
    "gro.toml",
    "mtu.toml",
    "messages.toml",
    "submit.toml",
    "accel.toml",
];
