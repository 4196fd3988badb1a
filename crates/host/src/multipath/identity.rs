//! Whether paths lead to the same namespaces.

use std::fmt::Write as _;

use raceline_proto::host::NamespaceInfo;
use raceline_proto::nvme::identify::CMIC_MULTI_CONTROLLER;

use crate::config::Association;

/// Why the namespaces of `new` are not those that `known` leads to; `None`: they are, or the two have none in common.
///
/// Two namespaces are the same if all their identifiers are: NSID, NGUID, EUI64 and UUID. As with Linux, a subsystem
/// that gives none of the last three is believed.
pub(super) fn contradiction(known: &Association, new: &Association) -> Option<String> {
    let single =
        |association: &Association| association.controller.raw.cmic & CMIC_MULTI_CONTROLLER == 0;
    if single(known) || single(new) {
        return Some("its subsystem has one controller only (CMIC bit 1 is 0)".to_owned());
    }
    new.namespaces.iter().find_map(|namespace| {
        let same = known.namespaces.iter().find(|same| same.nsid == namespace.nsid)?;
        difference(same, namespace)
    })
}

fn difference(known: &NamespaceInfo, new: &NamespaceInfo) -> Option<String> {
    let nsid = new.nsid;
    for (name, known, new) in [
        ("NGUID", &known.nguid[..], &new.nguid[..]),
        ("EUI64", &known.eui64, &new.eui64),
        ("UUID", &known.uuid, &new.uuid),
    ] {
        if known != new {
            let (new, known) = (hex(new), hex(known));
            return Some(format!(
                "its namespace {nsid} has the {name} {new}, and on other paths {known}"
            ));
        }
    }
    if known.block_size != new.block_size {
        return Some(format!(
            "its namespace {nsid} has blocks of {} bytes, and on other paths of {}",
            new.block_size, known.block_size
        ));
    }
    if !known.shared || !new.shared {
        return Some(format!(
            "its namespace {nsid} is private to one controller (NMIC bit 0 is 0)"
        ));
    }
    None
}

fn hex(bytes: &[u8]) -> String {
    if bytes.iter().all(|byte| *byte == 0) {
        return "none".to_owned();
    }
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use raceline_proto::host::ControllerInfo;
    use raceline_proto::nvme::{ControllerId, NamespaceId};

    use super::*;
    use crate::multipath::Fence;

    fn namespace(nsid: u32) -> NamespaceInfo {
        let mut page = [0; 4096];
        (page[0], page[8], page[130], page[30]) = (64, 64, 12, 1);
        page[104..120].fill(7);
        NamespaceInfo::parse(NamespaceId(nsid), &page).unwrap().unwrap()
    }

    fn association(namespaces: Vec<NamespaceInfo>) -> Association {
        let mut page = [0; 4096];
        page[76] = CMIC_MULTI_CONTROLLER;
        Association {
            cntlid: ControllerId(1),
            max_entries: 128,
            io_queues: 1,
            controller: Arc::new(ControllerInfo::parse(&page).unwrap()),
            namespaces: namespaces.into(),
            ana: None,
            fence: Fence::new(Duration::ZERO),
            generated: None,
        }
    }

    #[test]
    fn the_same_namespaces_may_be_there_in_part() {
        let known = association(vec![namespace(1), namespace(3)]);
        assert_eq!(contradiction(&known, &association(vec![namespace(3), namespace(4)])), None);
        let larger = NamespaceInfo { block_count: 128, ..namespace(1) };
        assert_eq!(contradiction(&known, &association(vec![larger])), None, "it is being resized");
    }

    #[test]
    fn other_namespaces_are_refused_with_the_reason() {
        let known = association(vec![namespace(1)]);
        let sevens = "07".repeat(16);
        for (other, text) in [
            (
                NamespaceInfo { nguid: [0; 16], ..namespace(1) },
                format!("its namespace 1 has the NGUID none, and on other paths {sevens}"),
            ),
            (
                NamespaceInfo { uuid: [7; 16], ..namespace(1) },
                format!("its namespace 1 has the UUID {sevens}, and on other paths none"),
            ),
            (
                NamespaceInfo { eui64: [1, 2, 3, 4, 5, 6, 7, 8], ..namespace(1) },
                "its namespace 1 has the EUI64 0102030405060708, and on other paths none"
                    .to_owned(),
            ),
            (
                NamespaceInfo { block_size: 512, ..namespace(1) },
                "its namespace 1 has blocks of 512 bytes, and on other paths of 4096".to_owned(),
            ),
            (
                NamespaceInfo { shared: false, ..namespace(1) },
                "its namespace 1 is private to one controller (NMIC bit 0 is 0)".to_owned(),
            ),
        ] {
            assert_eq!(contradiction(&known, &association(vec![other])), Some(text));
        }
        let mut single = association(vec![]);
        single.controller = Arc::new(ControllerInfo::parse(&[0; 4096]).unwrap());
        let text = "its subsystem has one controller only (CMIC bit 1 is 0)";
        assert_eq!(contradiction(&known, &single).as_deref(), Some(text));
    }
}
