//! Stable identities: the same device on the same machine has the same UUID at every start.
//!
//! Kernels drop a namespace whose identity changes while they are connected, so it must survive
//! a restart of the target without any state of ours.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use uuid::Uuid;

/// The namespace of all UUIDs derived here (RFC 9562 section 5.5); never to be changed.
const RACELINE: Uuid = Uuid::from_u128(0x8f7d_3a52_5f0c_4d0e_9a41_6c1b_9d2e_73b8);

/// Where a machine keeps its id, by preference.
const MACHINE_ID_PATHS: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

/// A process warns once of the missing id of its machine.
static WARNED: Once = Once::new();

/// Where UUIDs come from when none is given: the machine, and what the device is on it.
///
/// * A block device is known by the serial number or WWID that the kernel reports, with the
///   number of the partition; without one, by its path.
/// * A file is known by its canonical path.
/// * A RAM or null device is known by its size and by how many of its kind came before it.
#[derive(Debug)]
pub struct Identity {
    machine: Vec<u8>,
    memory_devices: AtomicU32,
}

impl Identity {
    /// Identities derived from the id of this machine; from its host name if it has none.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let read = |path: &str| {
            let id = std::fs::read_to_string(path).ok()?;
            let id = id.trim();
            (!id.is_empty() && id != "uninitialized").then(|| id.to_owned())
        };
        if let Some(id) = MACHINE_ID_PATHS.into_iter().find_map(read) {
            return Self::from_seed(id.as_bytes());
        }
        let name = read("/proc/sys/kernel/hostname").unwrap_or_default();
        // A program may ask several times.
        WARNED.call_once(|| {
            tracing::warn!(
                "no /etc/machine-id: identities of devices follow the host name `{}`, and change with it; \
                 systemd-machine-id-setup makes the file",
                name.escape_default()
            );
        });
        Self::from_seed(name.as_bytes())
    }

    /// Identities derived from any bytes.
    #[must_use]
    pub fn from_seed(seed: &[u8]) -> Self {
        Self { machine: seed.to_vec(), memory_devices: AtomicU32::new(0) }
    }

    /// The UUID of a kind of thing and its name on this machine, e.g. a subsystem's NQN.
    #[must_use]
    pub fn derive(&self, kind: &str, name: &[u8]) -> Uuid {
        // Lengths first, so that no two triples run together.
        let mut text = Vec::with_capacity(self.machine.len() + kind.len() + name.len() + 24);
        for part in [self.machine.as_slice(), kind.as_bytes(), name] {
            text.extend_from_slice(&(part.len() as u64).to_le_bytes());
            text.extend_from_slice(part);
        }
        Uuid::new_v5(&RACELINE, &text)
    }

    pub(crate) fn of_file(&self, canonical: &Path) -> Uuid {
        self.derive("file", canonical.as_os_str().as_bytes())
    }

    pub(crate) fn of_block(&self, canonical: &Path, wwid: Option<&str>) -> Uuid {
        match wwid {
            Some(wwid) => self.derive("wwid", wwid.as_bytes()),
            None => self.derive("block", canonical.as_os_str().as_bytes()),
        }
    }

    /// The next RAM or null device; opening the same devices in the same order gives the same
    /// UUIDs.
    pub(crate) fn of_memory(&self, kind: &str, bytes: u64) -> Uuid {
        let ordinal = self.memory_devices.fetch_add(1, Ordering::Relaxed);
        self.derive(kind, format!("{ordinal} {bytes}").as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_stable_and_distinct() {
        let one = Identity::from_seed(b"one");
        let file = one.of_file(Path::new("/srv/a"));
        assert_eq!(file, Identity::from_seed(b"one").of_file(Path::new("/srv/a")));
        // Pinned: a change here changes the identity of every exported device in the field.
        assert_eq!(file.get_version_num(), 5);
        assert_eq!(file.to_string(), "c452530c-699f-5cd6-84f6-d0825030cc77");
        let ram = [one.of_memory("ram", 4096), one.of_memory("ram", 4096)];
        let again = Identity::from_seed(b"one");
        assert_eq!(ram, [again.of_memory("ram", 4096), again.of_memory("ram", 4096)]);
        let all = [
            file,
            Identity::from_seed(b"two").of_file(Path::new("/srv/a")),
            one.of_file(Path::new("/srv/b")),
            one.of_block(Path::new("/srv/a"), None),
            one.of_block(Path::new("/srv/a"), Some("eui.1")),
            ram[0],
            ram[1],
        ];
        for (index, uuid) in all.iter().enumerate() {
            assert!(!all[..index].contains(uuid), "{index}");
        }
    }
}
