//! Tests of the list of changes, as calls make it.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::manager::catalogue::{Entry, Key, Section};
use crate::manager::history::{MOST_CHANGES, NoWayBack};
use crate::manager::{Manager, ManagerConfig, ManagerError};
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
    let change = first.change(|change| {
        change.put(Key::new(&["bdev", "at-start"]), entry);
        Ok::<_, ManagerError>(())
    });
    change.unwrap();
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
    // The 99 changes before it, and what was there at the start.
    assert_eq!((number, before.len()), (100, 100));
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

#[test]
fn nothing_leads_back_over_what_the_list_does_not_have() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("history.json");
    let (first, registry) = manager(&file);
    first.start();
    create(&first, &registry, "a");
    let after_a = first.model().catalogue.clone();
    first.save_history();
    let written = std::fs::read(&file).unwrap();
    create(&first, &registry, "b");
    let after_b = first.model().catalogue.clone();
    first.close_journal().unwrap();
    // Everything is there.
    let again = manager(&file).0;
    again.check_history(&after_b, true);
    assert_eq!(again.history().changes().iter().filter(|past| past.undo.is_some()).count(), 2);
    // A crash has lost the last change: of the configuration, or of the list.
    let whole = std::fs::read(&file).unwrap();
    for (list, kept) in [(&whole, &after_a), (&written, &after_b)] {
        std::fs::write(&file, list).unwrap();
        let (lost, registry) = manager(&file);
        let last = lost.history().changes().last().unwrap().number;
        lost.check_history(kept, true);
        let shown = lost.history().changes();
        assert!(shown.iter().all(|past| past.undo.is_none()) && !shown.is_empty());
        assert_eq!(lost.configuration_before(None).unwrap_err(), NoWayBack::Cut(last));
        // Later changes can be undone, also after another restart.
        lost.start();
        create(&lost, &registry, "c");
        assert_eq!(lost.configuration_before(None).unwrap().0, last + 1);
        assert_eq!(lost.configuration_before(Some(last)).unwrap_err(), NoWayBack::Cut(last));
        let kept = lost.model().catalogue.clone();
        lost.close_journal().unwrap();
        let later = manager(&file).0;
        later.check_history(&kept, true);
        assert_eq!(later.configuration_before(None).unwrap().0, last + 1);
        assert_eq!(later.configuration_before(Some(last)).unwrap_err(), NoWayBack::Cut(last));
    }
}

#[test]
fn nothing_leads_back_over_what_a_start_adds() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("history.json");
    let (first, registry) = manager(&file);
    first.start();
    create(&first, &registry, "a");
    first.close_journal().unwrap();
    let (again, _) = manager(&file);
    let entry = Entry { section: Section::Nvmf, method: "m".to_owned(), params: 1.into() };
    let change = again.change(|change| {
        change.put(Key::new(&["options"]), entry);
        Ok::<_, ManagerError>(())
    });
    change.unwrap();
    again.start();
    assert_eq!(again.configuration_before(None).unwrap_err(), NoWayBack::Cut(1));
}

/// Earlier releases have not written where the list leads.
#[test]
fn a_list_of_an_earlier_release_is_good_unless_it_was_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("history.json");
    let (first, registry) = manager(&file);
    first.start();
    create(&first, &registry, "a");
    let kept = first.model().catalogue.clone();
    first.close_journal().unwrap();
    let mut list: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    list.as_object_mut().unwrap().remove("after").unwrap();
    std::fs::write(&file, list.to_string()).unwrap();
    for (is_whole, way) in [(true, Ok(1)), (false, Err(NoWayBack::Cut(1)))] {
        let again = manager(&file).0;
        again.check_history(&kept, is_whole);
        assert_eq!(again.configuration_before(None).map(|(number, _)| number), way);
    }
}
