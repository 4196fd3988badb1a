//! Disks of `raceline connect` in the tables of `list` and `list-subsys`: what their processes say of them.

use serde_json::Value;

use super::{Controller, Namespace, Subsystem, of_path, word};
use crate::cli::nvme::DeviceArgs;
use crate::connect::{self, ListedDisk};
use crate::shell;

/// The state of paths whose process does not answer.
const UNKNOWN: &str = "unknown";

/// The subsystems that disks lead to, and the devices of this machine that are disks. DEVICE names one of them.
pub(super) fn gather(args: &DeviceArgs) -> Vec<Subsystem> {
    let is_meant = |disk: &ListedDisk| {
        let device = args.named.device.as_ref();
        device.is_none_or(|device| disk.places.contains(device))
    };
    match connect::disks() {
        Ok(disks) => subsystems(disks.into_iter().filter(is_meant)),
        Err(failure) => {
            shell::note(&format!("disks are passed over: {}", failure.message));
            Vec::new()
        }
    }
}

/// Disks of one subsystem, by one host, are one entry.
fn subsystems(disks: impl Iterator<Item = ListedDisk>) -> Vec<Subsystem> {
    let mut found: Vec<Subsystem> = Vec::new();
    for mut new in disks.map(|disk| subsystem(&disk)) {
        let same = |known: &&mut Subsystem| {
            !new.nqn.is_empty() && known.nqn == new.nqn && known.hostnqn == new.hostnqn
        };
        match found.iter_mut().find(same) {
            Some(known) => {
                known.controllers.append(&mut new.controllers);
                known.namespaces.append(&mut new.namespaces);
            }
            None => found.push(new),
        }
    }
    found
}

fn subsystem(disk: &ListedDisk) -> Subsystem {
    let ListedDisk { places, nqn, facts, is_answered } = disk;
    let node = places.first().cloned().unwrap_or_default();
    let of = &facts["controller"];
    let paths = of["ctrlrs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut controllers: Vec<Controller> = paths.iter().map(|path| of_path(&node, path)).collect();
    if !is_answered {
        controllers.iter_mut().for_each(|path| path.state = UNKNOWN.to_owned());
    }
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let narrow = |value: &Value| u32::try_from(number(value)).unwrap_or(0);
    let (block_count, block_size) = (number(&facts["num_blocks"]), narrow(&facts["block_size"]));
    // A device of this machine has no data of a controller, but a name.
    let model = if nqn.is_some() { word(&of["model_number"]) } else { word(&facts["name"]) };
    Subsystem {
        nqn: nqn.clone().unwrap_or_default(),
        hostnqn: word(&of["hostnqn"]),
        hostid: word(&of["hostid"]),
        serial: word(&of["serial_number"]),
        model,
        firmware: word(&of["firmware_revision"]),
        controllers,
        namespaces: vec![Namespace {
            node,
            nsid: narrow(&of["nsid"]),
            used_bytes: block_count.saturating_mul(u64::from(block_size)),
            block_count,
            block_size,
            metadata_bytes: 0,
        }],
        unopened: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{
        namespaces_document, namespaces_flat, namespaces_normal, subsystems_document,
        subsystems_normal,
    };
    use super::*;

    fn path(port: &str, state: &str, cntlid: u16) -> Value {
        json!({
            "state": state, "cntlid": cntlid,
            "trid": {
                "trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": port,
                "subnqn": "nqn.2014-08.org.example:golden",
            },
            "host": { "nqn": "nqn.2014-08.org.example:host", "addr": "", "svcid": "" },
        })
    }

    /// A disk of a namespace with two paths, of which the second is lost.
    fn disk(place: &str, nsid: u32, is_answered: bool) -> ListedDisk {
        let facts = json!({
            "pid": 7, "kind": "ublk", "places": ["not believed"], "name": "nvme-tcp://x", "block_size": 4096,
            "num_blocks": 262_144, "read_only": false,
            "controller": {
                "subnqn": "not believed", "hostnqn": "nqn.2014-08.org.example:host",
                "hostid": "8a1b2c3d-0000-4000-8000-0000000000ff", "nsid": nsid, "serial_number": "SERIAL-7",
                "model_number": "A model of a drive", "firmware_revision": "1.2.3",
                "ctrlrs": [path("4420", "enabled", 7), path("4421", "resetting", 0)],
            },
        });
        let nqn = Some("nqn.2014-08.org.example:golden".to_owned());
        ListedDisk { places: vec![place.to_owned()], nqn, facts, is_answered }
    }

    /// A device of this machine.
    fn local() -> ListedDisk {
        let facts = json!({ "name": "file:/srv/a.img", "block_size": 512, "num_blocks": 2048, "controller": null });
        let places = vec!["/run/raceline-disks/disk-9.sock".to_owned(), "127.0.0.1:10809".into()];
        ListedDisk { places, nqn: None, facts, is_answered: true }
    }

    #[test]
    fn disks_are_listed_as_the_files_in_golden_say() {
        let disks = [
            disk("/dev/ublkb0", 1, true),
            local(),
            disk("/run/raceline-disks/disk-8.sock", 2, false),
        ];
        let listed = subsystems(disks.into_iter());
        let golden = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(namespaces_normal(&listed), include_str!("../golden/list-disks.txt"));
        assert_eq!(subsystems_normal(&listed), include_str!("../golden/list-subsys-disks.txt"));
        assert_eq!(namespaces_flat(&listed), golden(include_str!("../golden/list-disks.json")));
        assert_eq!(
            namespaces_document(&listed),
            golden(include_str!("../golden/list-v-disks.json"))
        );
        assert_eq!(
            subsystems_document(&listed),
            golden(include_str!("../golden/list-subsys-disks.json"))
        );
    }

    #[test]
    fn what_is_not_known_of_a_disk_keeps_it_in_the_list() {
        // A program of an older version has noted it down, and does not answer.
        let disk = ListedDisk {
            places: vec!["/dev/ublkb3".to_owned()],
            nqn: Some("nqn.2014-08.org.example:old".to_owned()),
            facts: Value::Null,
            is_answered: false,
        };
        let listed = subsystems([disk].into_iter());
        assert!(namespaces_normal(&listed).contains("\n/dev/ublkb3 "));
        let text = subsystems_normal(&listed);
        assert!(text.starts_with("nvme-subsys0 - NQN=nqn.2014-08.org.example:old\n"), "{text}");
    }
}
