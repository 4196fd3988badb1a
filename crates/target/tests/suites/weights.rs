//! Weights of hosts: the parts of a full core that hosts get, and what happens when weights change meanwhile.
#![allow(clippy::unwrap_used)] // a test

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use raceline_bdev::{BdevInfo, Op, SharedBdev};
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{Direction, NamespaceId};
use raceline_reactor::Payload;
use raceline_target::{QosLimits, Target, TargetConfig, Weight};

use crate::common::hosts::{connect_with, host, weight};
use crate::common::{
    Heard, RawHost, block_sqe, config, listen, namespace, nqn, pattern, ram, settle, subsystem,
};
use crate::watched::watched;

const BS: u32 = 512;
/// The block whose read stops the core, until the test lets it go on.
const STOP: u64 = 0;
/// Commands of a connection.
const COMMANDS: usize = 400;
const ENTRIES: u16 = 512;

/// A device that reads zeroes, notes the first block of each read, and stops the core at one of them.
struct Gate {
    reads: Arc<Mutex<Vec<u64>>>,
    stopped: Receiver<()>,
    go_on: Sender<()>,
}

impl Gate {
    fn new() -> (Self, SharedBdev) {
        let (stopped_sender, stopped) = channel();
        let (go_on, go_on_receiver) = channel();
        let go_on_receiver = Mutex::new(go_on_receiver);
        let reads = Arc::new(Mutex::new(Vec::new()));
        let gate = Self { reads: Arc::clone(&reads), stopped, go_on };
        let info = BdevInfo { reads_in_place: true, copies_data: false, ..ram("1M").info() };
        let device = watched(ram("1M"), info, move |op| {
            let Op::Read { offset, len, .. } = op else { panic!("only reads are sent") };
            let block = offset / u64::from(BS);
            if block == STOP {
                stopped_sender.send(()).unwrap();
                let patience = Duration::from_secs(30);
                go_on_receiver.lock().unwrap().recv_timeout(patience).expect("the test goes on");
            } else {
                reads.lock().unwrap().push(block);
            }
            Some(Payload::Zeroes(*len))
        });
        (gate, device)
    }
}

fn connect(address: SocketAddr, number: u64, queues: u16) -> (RawHost, Vec<RawHost>) {
    connect_with(address, number, (queues, ENTRIES))
}

fn submit(queue: &mut RawHost, block: u64) {
    queue.submit(block_sqe(io::READ, 1, block, 1), Direction::ControllerToHost, BS);
}

/// Takes the answers of so many commands.
fn drain(queue: &mut RawHost, mut commands: usize) {
    while commands > 0 {
        match queue.listen() {
            Heard::Response(cqe) => {
                assert!(cqe.status.is_success(), "{}", cqe.status);
                commands -= 1;
            }
            Heard::DataEnd { success: true, .. } => commands -= 1,
            Heard::Closed => panic!("the target has closed it with {commands} commands to go"),
            _ => {}
        }
    }
}

/// Two hosts of (weight, connections) have more for one core than it can do; gives how many commands of each the core had
/// done when one of them had no more.
fn compete(hosts: [(Option<Weight>, u16); 2]) -> [usize; 2] {
    let target =
        Target::start(TargetConfig { max_queue_entries: ENTRIES, max_io_queues: 16, ..config(1) })
            .unwrap();
    target.add_subsystem(subsystem()).unwrap();
    let (gate, device) = Gate::new();
    target.add_namespace(&nqn(), namespace(device)).unwrap();
    let address = listen(&target);
    for (number, (weight, _)) in (1..).zip(hosts) {
        target.set_host_weight(&nqn(), &host(number), weight).unwrap();
    }
    let (_admin, mut stopper) = connect(address, 3, 1);
    let mut connected: Vec<_> =
        (1..).zip(hosts).map(|(number, (_, queues))| connect(address, number, queues)).collect();

    submit(&mut stopper[0], STOP);
    gate.stopped.recv_timeout(Duration::from_secs(30)).expect("the core stops");
    for (place, (_, queues)) in (1..).zip(&mut connected) {
        for queue in queues {
            (0..COMMANDS).for_each(|_| submit(queue, place));
        }
    }
    settle();
    gate.go_on.send(()).unwrap();
    std::thread::scope(|scope| {
        for queue in connected.iter_mut().flat_map(|(_, queues)| queues) {
            scope.spawn(move || drain(queue, COMMANDS));
        }
    });
    let reads = gate.reads.lock().unwrap();
    let mut done = [0; 2];
    for read in reads.iter() {
        let place = usize::try_from(read - 1).unwrap();
        done[place] += 1;
        if done[place] == COMMANDS * usize::from(hosts[place].1) {
            break;
        }
    }
    drop(reads);
    target.shutdown().unwrap();
    done
}

/// How many commands the second host had done for each of the first one's, in percent.
fn percent(done: [usize; 2]) -> usize {
    done[1] * 100 / done[0].max(1)
}

#[test]
fn a_full_core_is_divided_by_weights_whatever_the_connections() {
    let _alone = crate::rates::alone();
    for (light, heavy, few, many) in [
        (100, 100, 1, 16),
        (100, 300, 1, 1),
        (100, 300, 1, 16),
        (100, 300, 16, 1),
        (50, 500, 2, 16),
    ] {
        let done = compete([(weight(light), few), (weight(heavy), many)]);
        let wanted = usize::from(heavy) * 100 / usize::from(light);
        let reached = percent(done);
        assert!(
            (wanted * 8 / 10..=wanted * 12 / 10).contains(&reached),
            "{done:?} by weights {light} : {heavy} with {few} and {many} connections"
        );
    }
}

#[test]
fn one_weight_gives_the_others_the_default_one() {
    let done = compete([(None, 1), (weight(200), 16)]);
    assert!((160..=240).contains(&percent(done)), "{done:?}");
}

#[test]
fn weights_come_and_go_while_hosts_work() {
    let config = TargetConfig { max_queue_entries: ENTRIES, ..config(2) };
    let target = Target::start(config).unwrap();
    target.add_subsystem(subsystem()).unwrap();
    target.add_namespace(&nqn(), namespace(ram("1M"))).unwrap();
    let address = listen(&target);
    let mut connected: Vec<_> = (1..=3).map(|number| connect(address, number, 3)).collect();
    let limit = target.throttle(QosLimits { rw_ios_per_sec: 1 << 20, ..QosLimits::default() });
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for queue in connected.iter_mut().flat_map(|(_, queues)| queues) {
            workers.push(scope.spawn(move || {
                for _ in 0..300 {
                    (0..64).for_each(|block| submit(queue, block));
                    drain(queue, 64);
                }
            }));
        }
        let mut round = 0;
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            round += 1;
            let weights = [weight(1 + round % 1000), None, weight(10_000)];
            for (number, weight) in (1..).zip(weights) {
                target.set_host_weight(&nqn(), &host(number), weight).unwrap();
            }
            // A host that is limited as well.
            let throttle = limit.as_ref().ok().cloned().filter(|_| round % 2 == 0);
            target.set_namespace_limits(&nqn(), NamespaceId(1), throttle).unwrap();
            for number in 1..=3 {
                target.set_host_weight(&nqn(), &host(number), None).unwrap();
            }
        }
    });
    for (_, queues) in &mut connected {
        for queue in queues {
            submit(queue, 0);
            drain(queue, 1);
        }
    }
    target.shutdown().unwrap();
}

/// A device that keeps its core busy with each request, so that one core is full however slow its hosts are.
fn laborious(labour: Duration) -> SharedBdev {
    watched(ram("1M"), ram("1M").info(), move |_| {
        let until = Instant::now() + labour;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        None
    })
}

/// Keeps commands under way until the time is over; counts those that ended.
fn work(
    queue: &mut RawHost,
    opcode: u8,
    len: u32,
    depth: usize,
    ended: &AtomicU64,
    over: &AtomicBool,
) {
    let data = pattern(1, len as usize);
    let sqe = block_sqe(opcode, 1, 0, len / BS);
    let submit = |queue: &mut RawHost| match opcode {
        io::READ => drop(queue.submit(sqe, Direction::ControllerToHost, len)),
        _ if len <= 8192 => drop(queue.submit_in_capsule(sqe, &data)),
        _ => drop(queue.submit(sqe, Direction::HostToController, len)),
    };
    (0..depth).for_each(|_| submit(queue));
    let mut under_way = depth;
    while under_way > 0 {
        match queue.listen() {
            Heard::SendData(grant) => queue.send_data(&grant, &data),
            Heard::Response(_) | Heard::DataEnd { success: true, .. } => {
                under_way -= 1;
                if !over.load(Ordering::Relaxed) {
                    ended.fetch_add(1, Ordering::Relaxed);
                    under_way += 1;
                    submit(queue);
                }
            }
            _ => {}
        }
    }
}

/// Prints the rows of lab 0062.
#[test]
#[ignore = "it measures"]
fn ratios_of_hosts_that_keep_commands_under_way() {
    let labour = Duration::from_micros(50);
    for (opcode, len, depth) in [
        (io::READ, 4096, 64),
        (io::WRITE, 4096, 64),
        (io::READ, 131_072, 16),
        (io::WRITE, 131_072, 16),
    ] {
        for (weights, queues) in [
            (None, [1, 16]),
            (Some([100, 100]), [1, 16]),
            (Some([100, 300]), [1, 1]),
            (Some([100, 300]), [1, 16]),
            (Some([100, 300]), [16, 1]),
            (Some([100, 1000]), [1, 16]),
        ] {
            let target = Target::start(TargetConfig {
                max_queue_entries: ENTRIES,
                max_io_queues: 16,
                ..config(1)
            })
            .unwrap();
            target.add_subsystem(subsystem()).unwrap();
            target.add_namespace(&nqn(), namespace(laborious(labour))).unwrap();
            let address = listen(&target);
            for (number, weight) in (1..).zip(weights.into_iter().flatten()) {
                target.set_host_weight(&nqn(), &host(number), Weight::new(weight)).unwrap();
            }
            let mut connected: Vec<_> = (1..)
                .zip(queues)
                .map(|(number, queues)| connect(address, number, queues))
                .collect();
            let (ended, over) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicBool::new(false));
            let counts = std::thread::scope(|scope| {
                for ((_, queues), ended) in connected.iter_mut().zip(&ended) {
                    for queue in queues {
                        let over = &over;
                        scope.spawn(move || work(queue, opcode, len, depth, ended, over));
                    }
                }
                let read = || [0, 1].map(|host| ended[host].load(Ordering::Relaxed));
                std::thread::sleep(Duration::from_millis(500));
                let before = read();
                std::thread::sleep(Duration::from_secs(3));
                let after = read();
                over.store(true, Ordering::Relaxed);
                [0, 1].map(|host| after[host] - before[host])
            });
            #[expect(clippy::cast_precision_loss, reason = "numbers of commands")]
            let ratio = counts[1] as f64 / counts[0].max(1) as f64;
            println!(
                "{opcode:#x} {len} depth {depth} queues {queues:?} weights {weights:?}: {counts:?}, {ratio:.2}"
            );
            drop(connected);
            target.shutdown().unwrap();
        }
    }
}
