//! Tests of the list of changes, as calls make it.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use crate::manager::catalogue::{Entry, Key, Record, Section};
use crate::manager::history::{MOST_CHANGES, NoWayBack};
use crate::manager::{Manager, ManagerConfig};
use crate::method::Registry;

fn create(manager: &Manager, registry: &Registry, name: &str) {
    let params = json!({ "name": name, "num_blocks": 64, "block_size": 512 });
    let raw = serde_json::value::to_raw_value(&params).unwrap();
    let peer = crate::role::Peer::this_process();
    registry.call(manager, peer, "bdev_malloc_create", Some(&raw)).unwrap();
}

fn manager(file: &Path) -> (Manager, Arc<Registry>) {
    let registry = Arc::new(Registry::new());
    let config = ManagerConfig { history: Some(file.to_owned()), ..ManagerConfig::default() };
    let manager = Manager::new(config, registry.clone());
    (manager, registry)
}

#[test]
fn the_list_is_bounded_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("history.json");
    let (first, registry) = manager(&file);
    let entry = Entry { section: Section::Nvmf, method: "m".to_owned(), params: 1.into() };
    first.note_change(&[Record::Put { key: Key::new(&["bdev", "at-start"]), entry }]);
    assert!(first.history().changes().is_empty(), "the start is no change");
    assert_eq!(first.configuration_before(None).unwrap_err(), NoWayBack::Empty);
    first.start();
    for number in 0..MOST_CHANGES + 4 {
        create(&first, &registry, &format!("m{number}"));
    }
    let kept = first.history().changes();
    assert_eq!(kept.len(), MOST_CHANGES);
    assert_eq!((kept[0].number, kept[0].effects[0].as_str()), (5, "+ bdev / m4"));
    let caller = kept[0].caller.as_ref().unwrap();
    assert_eq!((caller.via.as_str(), caller.method.as_str()), ("raceline", "bdev_malloc_create"));
    let (number, before) = first.configuration_before(Some(100)).unwrap();
    // What was there at the start is not in this catalogue: nobody has applied it.
    assert_eq!((number, before.len()), (100, 99));
    let unknown = first.configuration_before(Some(4)).unwrap_err().to_string();
    assert!(unknown.contains("the changes 5 to 260"), "{unknown}");
    first.close_journal().unwrap();
    drop(first);
    let (again, registry) = manager(&file);
    assert_eq!(again.history().changes(), kept);
    again.start();
    create(&again, &registry, "later");
    assert_eq!(again.history().changes().last().unwrap().number, 261);
    // It is written without an orderly end, too.
    drop(again);
    assert!(std::fs::read_to_string(&file).unwrap().contains("later"));
    // A damaged file costs the list alone.
    std::fs::write(&file, b"{\"last\": 1, \"chan").unwrap();
    assert!(manager(&file).0.history().changes().is_empty());
}
