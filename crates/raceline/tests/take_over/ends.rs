//! One of the two processes ends amid a take-over: nothing is lost that was kept, and nobody waits for it.

use std::process::Child;
use std::time::{Duration, Instant};

use raceline_control::hand_over::{FromDaemon, FromSuccessor, Hello, Wire, socket_of};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::kept::Silent;
use crate::{LIMIT, NQN, Place, start, wait};

/// A service manager has more patience; without a take-over, the daemon ends within a second.
const END_LIMIT: Duration = Duration::from_secs(15);

/// A successor that this test plays.
struct Played {
    wire: Wire,
    /// What it has been given; dropped, the daemon still has it.
    descriptors: Vec<std::os::fd::OwnedFd>,
}

impl Played {
    /// Gets the configuration.
    fn offered(place: &Place) -> Self {
        let wire = Wire::connect(&socket_of(&place.socket())).unwrap();
        wire.limit(LIMIT).unwrap();
        let hello = Hello::of_this_program(Some(place.path("state")));
        wire.send(&FromSuccessor::Hello(hello)).unwrap();
        let FromDaemon::Offer(offered) = wire.receive().unwrap() else { panic!("no offer") };
        let descriptors = wire.receive_descriptors(offered.descriptors()).unwrap();
        Self { wire, descriptors }
    }

    /// Gets the connections as well.
    fn given(place: &Place) -> Self {
        let mut played = Self::offered(place);
        played.wire.send(&FromSuccessor::Ready).unwrap();
        let FromDaemon::State(state) = played.wire.receive().unwrap() else { panic!("no state") };
        played.descriptors.extend(played.wire.receive_descriptors(state.sockets()).unwrap());
        played
    }

    /// What the daemon says last; none if it is gone without a word.
    fn last(&self) -> Option<FromDaemon> {
        self.wire.receive().ok()
    }
}

/// Waits for the end of the daemon; gives how long that took.
fn end_of(daemon: &mut Child) -> (Option<i32>, Duration) {
    let begun = Instant::now();
    let code = wait(daemon);
    (code, begun.elapsed())
}

/// What the daemon exports, which is the same after a fresh start.
fn exported(place: &Place) -> Value {
    let subsystems = place.call("nvmf_get_subsystems", Value::Null);
    let subsystems = subsystems.as_array().unwrap();
    subsystems.iter().find(|subsystem| subsystem["nqn"] == NQN).unwrap()["namespaces"].clone()
}

/// A daemon starts with what the others have left.
fn start_anew(place: &mut Place, exported_before: &Value) {
    place.daemon = start(place.directory.path(), &["--keep-ram"]);
    let ready = place.wait_for_ready();
    assert_eq!(ready, Ok(place.daemon.id()), "{}", place.said());
    assert_eq!(exported(place), *exported_before);
    place.call("bdev_null_create", json!({ "name": "N", "num_blocks": 8, "block_size": 512 }));
    place.call("bdev_null_delete", json!({ "name": "N" }));
}

#[test]
fn a_daemon_that_is_asked_to_end_amid_a_take_over_ends() {
    for has_connections in [false, true] {
        let mut place = Place::new(&["--keep-ram"]);
        let before = exported(&place);
        let played = if has_connections { Played::given(&place) } else { Played::offered(&place) };
        kill_process(Pid::from_child(&place.daemon), Signal::TERM).unwrap();
        let (code, time) = end_of(&mut place.daemon);
        assert_eq!(code, Some(0), "{}", place.said());
        assert!(time < END_LIMIT, "it took {time:?}: {}", place.said());
        assert!(
            !matches!(played.last(), Some(FromDaemon::Go)),
            "it ends, and says that another goes on"
        );
        drop(played);
        start_anew(&mut place, &before);
    }
}

#[test]
fn a_daemon_that_is_killed_amid_a_take_over_leaves_what_it_has_kept() {
    let mut place = Place::new(&["--keep-ram"]);
    let before = exported(&place);
    let silent = Silent::new(&place);
    let mut successor = silent.start_successor(&place);
    place.daemon.kill().unwrap();
    place.daemon.wait().unwrap();
    // What it would have gone on with is gone.
    assert_eq!(wait(&mut successor), Some(1), "{}", place.said());
    assert!(place.said().contains("the daemon does not listen to it any more"), "{}", place.said());
    start_anew(&mut place, &before);
}

#[test]
fn a_successor_that_dies_in_the_place_of_the_daemon_leaves_what_was_kept() {
    let mut place = Place::new(&["--keep-ram"]);
    let before = exported(&place);
    let played = Played::given(&place);
    played.wire.send(&FromSuccessor::Taken).unwrap();
    assert!(matches!(played.last(), Some(FromDaemon::Go)));
    // It dies before it has done anything with it.
    drop(played);
    assert_eq!(wait(&mut place.daemon), Some(0), "{}", place.said());
    start_anew(&mut place, &before);
}
