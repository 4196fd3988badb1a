//! Two paths to one namespace under load: policies, ANA states, and the loss of each path. Over RDMA, the second path is one
//! over TCP.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use raceline_host::blocking::Host;
use raceline_host::{HostConfig, MultipathConfig, Policy};
use raceline_target::{AnaState, NamespaceConfig, SubsystemConfig, Target};

use crate::served::{self, BLOCK, NS, any_port, config, nqn, second_path};

const LIMIT: Duration = Duration::from_secs(60);
/// Threads that read and write.
const THREADS: u64 = 2;
/// Queues of a controller: the admin queue and two for I/O.
const QUEUES: usize = 3;

/// A target with two listeners, and what its host does.
struct Rig {
    target: Target,
    addresses: [SocketAddr; 2],
    is_over: AtomicBool,
    rounds: AtomicU64,
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl Rig {
    /// Has a host with this policy read and write all the time while something is done.
    fn under_load(policy: Policy, act: impl FnOnce(&Self)) {
        let target = Target::start(served::small()).unwrap();
        target
            .add_subsystem(SubsystemConfig { ana_reporting: true, ..SubsystemConfig::new(nqn()) })
            .unwrap();
        target.add_namespace(&nqn(), NamespaceConfig::new(served::memory())).unwrap();
        let first = served::listen(&target, any_port());
        let second = second_path(&target);
        let multipath = Some(MultipathConfig { policy, ..MultipathConfig::default() });
        let config = HostConfig { more_paths: vec![second], multipath, ..config(first) };
        let host = Host::connect(config).unwrap();
        let rig = Self {
            target,
            addresses: [first, second.address],
            is_over: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (rig, host) = (&rig, &host);
                scope.spawn(move || {
                    let _last = Last(rig);
                    rig.work(host, thread);
                });
            }
            let _last = Last(&rig);
            rig.both_are_there();
            act(&rig);
        });
        host.disconnect();
        rig.target.shutdown().unwrap();
    }

    /// Writes, reads and compares, until all is over. No command may fail.
    fn work(&self, host: &Host, thread: u64) {
        for round in 0u64.. {
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let block = thread * 64 + round % 64;
            let byte = u8::try_from(round % 251).unwrap();
            host.write(NS, block, &[byte; BLOCK], false).unwrap();
            let mut back = [0; BLOCK];
            host.read(NS, block, &mut back).unwrap();
            assert!(back == [byte; BLOCK], "block {block} in round {round}");
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn goes_on(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        wait_for("reads and writes go on", || {
            assert!(!self.is_over.load(Ordering::Relaxed), "a command has failed");
            self.rounds.load(Ordering::Relaxed) >= before + 40
        });
    }

    /// Of each path: queues that are connected, and reads and writes that are complete.
    fn paths(&self) -> [(usize, u64); 2] {
        let all = self.target.by_address();
        self.addresses.map(|address| {
            let own = all.iter().filter(|((local, _), _)| *local == address);
            own.fold((0, 0), |(queues, done), (_, stats)| {
                let totals = stats.totals;
                (queues + stats.queues, done + totals.reads + totals.writes)
            })
        })
    }

    fn both_are_there(&self) {
        wait_for("both paths", || self.paths().map(|(queues, _)| queues) == [QUEUES; 2]);
    }

    /// How much each path does from now on.
    fn done_meanwhile(&self) -> [u64; 2] {
        let before = self.paths();
        self.goes_on();
        let now = self.paths();
        [0, 1].map(|path| now[path].1 - before[path].1)
    }
}

/// Ends the work, also where something panics.
struct Last<'a>(&'a Rig);

impl Drop for Last<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

const POLICIES: [Policy; 4] =
    [Policy::ActivePassive, Policy::RoundRobin { min_io: 1 }, Policy::QueueDepth, Policy::Numa];

#[test]
fn each_policy_uses_the_paths_that_it_names() {
    for policy in POLICIES {
        Rig::under_load(policy, |rig| match policy {
            Policy::ActivePassive | Policy::Numa => {
                // Until the first path is there, the second one has the work.
                wait_for("the first path has all work", || rig.done_meanwhile()[1] == 0);
                let done = rig.done_meanwhile();
                assert!(done[0] > 0 && done[1] == 0, "{policy:?}: {done:?}");
            }
            Policy::RoundRobin { .. } => {
                wait_for("both paths have work", || rig.done_meanwhile().iter().all(|it| *it > 0));
            }
            Policy::QueueDepth => rig.goes_on(),
        });
    }
}

#[test]
fn no_command_fails_while_ana_states_change() {
    for policy in POLICIES {
        Rig::under_load(policy, |rig| {
            for (closed, open) in [(0, 1), (1, 0), (0, 1)] {
                let set = |state| {
                    rig.target.set_ana_state(&nqn(), rig.addresses[closed], None, state).unwrap();
                };
                set(AnaState::Inaccessible);
                let done = rig.done_meanwhile();
                assert!(done[closed] == 0 && done[open] > 0, "{policy:?}: {done:?}");
                set(AnaState::Optimized);
                rig.goes_on();
            }
        });
    }
}

#[test]
fn no_command_fails_when_either_path_is_lost() {
    for policy in [Policy::ActivePassive, Policy::RoundRobin { min_io: 1 }] {
        Rig::under_load(policy, |rig| {
            for lost in [0, 1] {
                let address = rig.addresses[lost];
                rig.target.remove_listener(address).unwrap();
                let done = rig.done_meanwhile();
                assert!(done[lost] == 0 && done[1 - lost] > 0, "{policy:?}: {done:?}");
                assert_eq!(served::listen(&rig.target, address), address);
                rig.both_are_there();
                rig.goes_on();
            }
        });
    }
}
