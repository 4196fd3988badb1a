//! The store with many callers, with a full disk, and with a disk that fails.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use super::sim::{Random, SimDisk};
use super::{Configuration, Health, Recovered, StateError, Store};

fn open(disk: &SimDisk) -> (Store, Recovered) {
    Store::with_disk(Arc::new(disk.clone())).unwrap()
}

fn record(store: &Store, number: usize) -> Result<(), StateError> {
    let permit = store.reserve(100)?;
    let sequence = store.append(permit, &[json!({ "number": number })])?;
    store.wait(sequence)
}

/// The changes that are there after a power cut.
fn after_crash(disk: &SimDisk) -> Vec<Value> {
    let image = disk.image().crash(&mut Random(3));
    open(&SimDisk::new(image)).1.changes
}

#[test]
fn many_callers_share_syncs_and_keep_their_order() {
    const CALLERS: usize = 16;
    const CHANGES: usize = 200;
    let dir = tempfile::tempdir().unwrap();
    let (store, recovered) = Store::open(dir.path()).unwrap();
    assert!(recovered.is_empty());
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let store = &store;
            scope.spawn(move || {
                for number in 0..CHANGES {
                    let permit = store.reserve(100).unwrap();
                    let change = json!({ "caller": caller, "number": number });
                    let sequence = store.append(permit, &[change]).unwrap();
                    store.wait(sequence).unwrap();
                }
            });
        }
    });
    drop(store);
    let (_store, recovered) = Store::open(dir.path()).unwrap();
    assert_eq!(recovered.changes.len(), CALLERS * CHANGES);
    assert!(recovered.notes.is_empty(), "{:?}", recovered.notes);
    let mut next = [0; CALLERS];
    for change in &recovered.changes {
        let caller = usize::try_from(change["caller"].as_u64().unwrap()).unwrap();
        assert_eq!(change["number"], next[caller]);
        next[caller] += 1;
    }
}

#[test]
fn changes_that_wait_together_are_synced_together() {
    let disk = SimDisk::default();
    let (store, _) = open(&disk);
    record(&store, 0).unwrap();
    let before = disk.image().syncs;
    // The first group is held up in its write until all others have been appended.
    let (sender, receiver) = mpsc::channel::<()>();
    let mut held = false;
    disk.observe(move |_| {
        if !std::mem::replace(&mut held, true) {
            let _ = receiver.recv_timeout(Duration::from_secs(10));
        }
    });
    let mut last = 0;
    for number in 1..=1000 {
        let permit = store.reserve(10).unwrap();
        last = store.append(permit, &[json!(number)]).unwrap();
        if number == 100 {
            // After some hundred changes the reserved room is used up, and callers wait for the write to
            // end.
            sender.send(()).unwrap();
        }
    }
    store.wait(last).unwrap();
    let syncs = disk.image().syncs - before;
    assert!(syncs < 500, "{syncs} syncs for 1000 changes");
    assert_eq!(after_crash(&disk).len(), 1001);
}

#[test]
fn a_full_disk_refuses_changes_until_there_is_room() {
    let disk = SimDisk::default();
    let (store, _) = open(&disk);
    record(&store, 1).unwrap();
    disk.image().faults.no_room = true;
    // Room that was reserved before is used up first.
    let mut accepted = 1;
    let error = loop {
        match record(&store, accepted + 1) {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
        assert!(accepted < 10_000);
    };
    assert!(matches!(error, StateError::Full { .. }), "{error}");
    assert!(error.to_string().contains("the change was refused"), "{error}");
    assert!(!store.is_writable());
    assert_eq!(after_crash(&disk).len(), accepted);
    disk.image().faults.no_room = false;
    record(&store, accepted + 1).unwrap();
    assert_eq!(store.health(), Health::Good);
    assert!(store.is_writable());
    assert_eq!(after_crash(&disk).len(), accepted + 1);
}

#[test]
fn a_change_that_finds_no_room_after_all_is_written_when_there_is() {
    let disk = SimDisk::default();
    let (store, _) = open(&disk);
    record(&store, 1).unwrap();
    disk.image().faults.no_room_to_write = true;
    let error = record(&store, 2).unwrap_err();
    assert!(matches!(error, StateError::Behind { .. }), "{error}");
    let error = record(&store, 3).unwrap_err();
    assert!(matches!(error, StateError::Full { .. }), "{error}");
    assert!(matches!(store.health(), Health::Full(_)));
    assert!(!store.is_writable());
    assert_eq!(after_crash(&disk), [json!({ "number": 1 })]);
    disk.image().faults.no_room_to_write = false;
    record(&store, 4).unwrap();
    assert_eq!(after_crash(&disk).len(), 3);
    assert_eq!(store.health(), Health::Good);
}

#[test]
fn a_sync_that_fails_makes_the_state_read_only_until_a_restart() {
    let disk = SimDisk::default();
    let (store, _) = open(&disk);
    record(&store, 1).unwrap();
    disk.image().faults.failing_sync = true;
    let error = record(&store, 2).unwrap_err();
    assert!(matches!(error, StateError::ReadOnly { .. }), "{error}");
    // The disk works again, but its content is no longer known.
    disk.image().faults.failing_sync = false;
    for number in 3..5 {
        let error = record(&store, number).unwrap_err();
        assert!(error.to_string().contains("until the daemon is restarted"), "{error}");
    }
    let done = store.checkpoint_and_wait(Configuration::default());
    assert!(matches!(done, Err(StateError::ReadOnly { .. })));
    drop(store);
    let (store, recovered) = open(&SimDisk::new(disk.image().clone()));
    assert!((1..=2).contains(&recovered.changes.len()));
    record(&store, 5).unwrap();
}

#[test]
fn a_sync_of_zeroes_that_fails_makes_the_state_read_only_too() {
    let disk = SimDisk::default();
    let (store, _) = open(&disk);
    disk.image().faults.failing_sync = true;
    // Before any change: the first change finds no prepared room.
    let error = record(&store, 1).unwrap_err();
    assert!(matches!(error, StateError::ReadOnly { .. }), "{error}");
    disk.image().faults.failing_sync = false;
    assert_eq!(after_crash(&disk), [] as [Value; 0]);
}

#[test]
fn changes_overwrite_zeroes_and_each_is_synced_once() {
    let disk = SimDisk::default();
    let (store, _) = open(&disk);
    record(&store, 0).unwrap();
    let before = disk.image().syncs;
    for number in 1..=1000 {
        record(&store, number).unwrap();
    }
    // Beside one sync for each change, there are syncs of zeroes: 64 KiB first, then up to 1 MiB.
    let syncs = disk.image().syncs - before;
    assert!((1000..1020).contains(&syncs), "{syncs}");
    assert_eq!(after_crash(&disk).len(), 1001);
}

#[test]
fn checkpoints_take_what_came_before_and_nothing_else() {
    let disk = SimDisk::default();
    let (store, _) = open(&disk);
    assert!(!store.checkpoint_due());
    for number in 0..5 {
        record(&store, number).unwrap();
    }
    let permit = store.reserve(100).unwrap();
    store.append(permit, &[json!({ "number": 5 })]).unwrap();
    let identity = json!({ "generation": 6 });
    let configuration = Configuration { identity: identity.clone(), ..Configuration::default() };
    let (sender, receiver) = mpsc::channel();
    store.checkpoint(configuration, move |answer| sender.send(answer).unwrap());
    record(&store, 6).unwrap();
    receiver.recv().unwrap().unwrap();
    drop(store);
    let (store, recovered) = open(&disk);
    assert_eq!(recovered.configuration.identity, identity);
    assert_eq!(recovered.changes, [json!({ "number": 6 })]);
    assert_eq!(recovered.sequence, 7);
    // For a fast next start that does not rely on bytes that were only in memory.
    assert!(store.checkpoint_due());
}

#[test]
fn a_change_that_is_too_large_is_refused() {
    let (store, _) = open(&SimDisk::default());
    let error = store.reserve(super::MAX_CHANGE_BYTES + 1).err().unwrap();
    assert!(matches!(error, StateError::TooLarge { .. }), "{error}");
    // The largest possible change is read back.
    let permit = store.reserve(super::MAX_CHANGE_BYTES).unwrap();
    let text = "x".repeat(super::MAX_CHANGE_BYTES - 2);
    let sequence = store.append(permit, &[text]).unwrap();
    store.wait(sequence).unwrap();
}
