//! Programs of other versions: who does not know the form of the other one's state says so, and the daemon goes on.

use std::time::{Duration, Instant};

use raceline_control::hand_over::{FORM, FromDaemon, FromSuccessor, Hello, Wire, socket_of};
use raceline_control::state::StateJournal;
use serde_json::json;

use crate::state::Played;
use crate::{LIMIT, Place, end_load, wait};

/// What `raceline` gives back when a restart is the way, and the packages' scripts look for.
const OTHER_FORM: i32 = 5;

/// What a daemon answers to a successor.
fn answer(place: &Place, adjust: impl FnOnce(&mut Hello)) -> FromDaemon {
    let wire = Wire::connect(&socket_of(&place.socket())).unwrap();
    wire.limit(LIMIT).unwrap();
    let mut hello = Hello::of_this_program(Some(place.path("state")));
    adjust(&mut hello);
    wire.send(&FromSuccessor::Hello(hello)).unwrap();
    wire.receive().unwrap()
}

/// A form that is one older, or one newer, is another one in every part.
#[test]
fn a_successor_of_another_form_is_refused() {
    type Adjust = fn(&mut Hello);
    let place = Place::new(&["--keep-ram"]);
    let load = place.load(2);
    let before = place.controllers();
    let others: [(Adjust, u32, u32); 4] = [
        (|hello| hello.form -= 1, FORM - 1, raceline_target::FORM),
        (|hello| hello.form += 1, FORM + 1, raceline_target::FORM),
        (|hello| hello.connections -= 1, FORM, raceline_target::FORM - 1),
        (|hello| hello.connections += 1, FORM, raceline_target::FORM + 1),
    ];
    for (adjust, form, connections) in others {
        let FromDaemon::Refused(said) = answer(&place, adjust) else { panic!("not refused") };
        let forms = format!("(forms {form}.{connections}) cannot go on with the state of version");
        let own = format!("(forms {FORM}.{})", raceline_target::FORM);
        assert!(said.contains(&forms) && said.contains(&own), "{said}");
        place.wait_for_reads(20);
        assert_eq!(place.controllers(), before);
    }
    end_load(load);
}

/// What a daemon of any version so far says to a successor of another one: then it has to be started anew.
#[test]
fn a_daemon_of_another_form_is_told_by_the_exit_code() {
    let refusals = [
        (
            "version 0.2.0 (forms 4.2) cannot go on with the state of version 0.1.0 (forms 3.1): end the daemon",
            OTHER_FORM,
        ),
        (
            "an unknown version cannot go on with the state of version 0.1.0 (forms 3.1): end the daemon",
            OTHER_FORM,
        ),
        ("it has not started yet: wait until it is ready", 1),
    ];
    for (refusal, code) in refusals {
        let directory = tempfile::tempdir().unwrap();
        drop(StateJournal::open(&directory.path().join("state")).unwrap());
        for detach in [&[][..], &["--detach"]] {
            let mut played = Played::meet(directory.path(), detach);
            played.say(&json!({ "Refused": refusal }));
            let ended = wait(&mut played.successor);
            let said = std::fs::read_to_string(directory.path().join("log")).unwrap();
            assert_eq!(ended, Some(code), "{said}");
            assert!(
                said.contains("the daemon goes on and is not replaced") && said.contains(refusal),
                "{said}"
            );
        }
    }
}

/// systemd does not wait for the end of a daemon that is the child of another process when it takes the place of the old one.
#[test]
fn a_detached_successor_is_no_child_of_who_waits_for_it() {
    let directory = tempfile::tempdir().unwrap();
    drop(StateJournal::open(&directory.path().join("state")).unwrap());
    let mut played = Played::meet(directory.path(), &["--detach"]);
    let waiting = played.successor.id();
    let children = format!("/proc/{waiting}/task/{waiting}/children");
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let children = std::fs::read_to_string(&children).unwrap();
        if children.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "{waiting} has the children {children}");
        std::thread::sleep(Duration::from_millis(5));
    }
    // It waits all the same, and gives back what the successor does.
    assert!(played.successor.try_wait().unwrap().is_none());
    played.say(&json!({ "Refused": "it has not started yet: wait until it is ready" }));
    assert_eq!(wait(&mut played.successor), Some(1));
}

/// The connections of a daemon whose program has lacked what this one has are not taken, and the process says so.
#[test]
fn the_state_of_an_older_form_is_not_taken() {
    let directory = tempfile::tempdir().unwrap();
    drop(StateJournal::open(&directory.path().join("state")).unwrap());
    let mut played = Played::meet(directory.path(), &[]);
    played.offer();
    assert_eq!(played.hear(), "Ready");
    // Without write protection, as in the form before.
    let nothing: [u8; 0] = [];
    played.say(&json!({ "State": { "targets": {}, "reservations": nothing } }));
    assert_eq!(wait(&mut played.successor), Some(1));
    let said = std::fs::read_to_string(directory.path().join("log")).unwrap();
    assert!(
        said.contains("missing field `protected`") && said.contains("does not understand"),
        "{said}"
    );
}
