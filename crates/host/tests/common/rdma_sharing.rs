//! Queues of one core share a device: one completion queue, and for one target one protection domain with its memory; and each
//! ends alone.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use raceline_bdev::{Bdev, BdevError, Channel, Done, Op, Request};
use raceline_host::{BlockRange, Command, HostConfig, RdmaDevices, RemoteNamespace, Transport};
use raceline_rdma::WaitingDevice;
use raceline_rdma::fake::{Network, NetworkConfig, Profile, Trouble};
use raceline_rdma::verbs::ProviderError;
use raceline_reactor::core::{Backend, open_io};
use raceline_reactor::{BufferPool, Context, Io, IoBuf, Payload, PoolConfig, Wait};
use raceline_target::{Entrance, RdmaConfig, RdmaStreams, Target};

use super::common::core::Core;
use super::served::{self, BLOCK, NS};

const LIMIT: Duration = Duration::from_secs(60);
/// Memory without a command that a core keeps for the next ones.
const KEPT: usize = 16 << 20;
const PROFILES: [Profile; 2] = [Profile::Roce, Profile::Iwarp];

/// An adapter of the host, which counts how often it is opened.
#[derive(Debug)]
struct Adapter {
    network: Network,
    opened: Mutex<Vec<usize>>,
    /// Entries of completion queues; 0: as many as the network gives.
    completions: AtomicU32,
}

impl RdmaDevices for Adapter {
    fn open(
        &self,
        _: SocketAddr,
        _: Option<IpAddr>,
        _: u32,
    ) -> Result<Box<dyn WaitingDevice>, ProviderError> {
        let mut device = self.network.add_device();
        self.opened.lock().unwrap().push(device.number());
        match self.completions.load(Ordering::Relaxed) {
            0 => {}
            entries => device.set_completions(entries),
        }
        Ok(Box::new(device))
    }
}

impl Adapter {
    fn opened(&self) -> Vec<usize> {
        self.opened.lock().unwrap().clone()
    }
}

/// A target over a network that moves by itself, and an adapter for hosts.
struct Fabric {
    network: Network,
    adapter: Arc<Adapter>,
    target: Target,
    address: SocketAddr,
    stop: Arc<std::sync::atomic::AtomicBool>,
    mover: Option<std::thread::JoinHandle<()>>,
}

impl Fabric {
    fn new(profile: Profile) -> Self {
        let network = Network::new(NetworkConfig { profile, ..NetworkConfig::default() });
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (moved, stopped) = (network.clone(), Arc::clone(&stop));
        let mover = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if !moved.step() {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        let target = served::serve_with(served::small(), served::memory());
        let devices = network.clone();
        let open = move |_| Ok(Box::new(devices.add_device()) as _);
        let streams = Arc::new(RdmaStreams::over(RdmaConfig::of(&served::small()), open));
        let entrance = Entrance { streams: Some(streams as _), ..Entrance::default() };
        let address = "10.0.0.1:4420".parse().unwrap();
        let address = target.add_listener_with(address, entrance).unwrap();
        let adapter = Adapter {
            network: network.clone(),
            opened: Mutex::default(),
            completions: AtomicU32::new(0),
        };
        let adapter = Arc::new(adapter);
        Self { network, adapter, target, address, stop, mover: Some(mover) }
    }

    fn config(&self) -> HostConfig {
        HostConfig {
            transport: Transport::Rdma,
            rdma_devices: Arc::clone(&self.adapter) as _,
            ..served::tcp_config(self.address)
        }
    }

    /// Nothing is left, and nothing was done that no correct user of verbs does.
    fn finish(mut self) {
        self.target.shutdown().unwrap();
        eventually("nothing is left", || self.network.leftovers() == (0, 0));
        assert_eq!(self.network.misuses(), Vec::<String>::new());
        self.stop.store(true, Ordering::Relaxed);
        self.mover.take().unwrap().join().unwrap();
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let seed = usize::try_from(seed).unwrap();
    (0..len).map(|at| (at / 7 + seed).to_le_bytes()[0]).collect()
}

/// Writes and reads on every queue, so many commands of so many blocks on each at a time.
fn verify(core: &mut Core, queues: usize, at_once: u64, blocks: u32) {
    let len = usize::try_from(blocks).unwrap() * BLOCK;
    let range = |user: u64| BlockRange::new(user % 40 * u64::from(blocks), blocks).unwrap();
    let count = at_once * u64::try_from(queues).unwrap();
    for of_queue in 0..queues {
        // Of one queue after another, so that no two write the same blocks.
        let data = |user: u64| pattern(len, user + u64::try_from(of_queue).unwrap() * 1000);
        core.with(|_, queues, cx| {
            for user in 0..at_once {
                let buf = IoBuf::from_slice(&data(user)).share();
                queues
                    .submit(cx, of_queue, Command::write(NS, range(user), buf, false), user)
                    .unwrap();
            }
        });
        (0..at_once).for_each(|user| assert!(core.take_done(user).result.is_ok(), "{user}"));
        if of_queue > 0 && of_queue + 1 < queues {
            continue;
        }
        // All queues read.
        core.with(|_, set, cx| {
            for user in 0..count {
                let queue = usize::try_from(user / at_once).unwrap();
                let command = Command::read(NS, range(user % at_once), IoBuf::heap(len));
                set.submit(cx, queue, command, user).unwrap();
            }
        });
        for user in 0..count {
            let done = core.take_done(user);
            assert!(done.result.is_ok(), "{user}: {:?}", done.failure());
            assert!(done.data.into_read().unwrap()[..] == data(user % at_once)[..], "{user}");
        }
    }
}

/// Memory that is registered for so many I/O queues on one core, idle and used.
fn registered(profile: Profile, io_queues: u16) -> (usize, usize) {
    let fabric = Fabric::new(profile);
    let config = HostConfig { io_queues, io_entries: 33, ..fabric.config() };
    let mut core = Core::mapped(config);
    let queues = usize::from(io_queues);
    assert_eq!(core.queues.len(), queues);
    let [device] = fabric.adapter.opened()[..] else {
        panic!("{io_queues} queues: opened {} times", fabric.adapter.opened().len());
    };
    let idle = fabric.network.core_numbered(device);
    assert_eq!(idle.pairs, queues + 1, "all queues, and the admin queue");
    verify(&mut core, queues, 32, 64);
    assert_eq!(fabric.adapter.opened(), [device]);
    let used = fabric.network.core_numbered(device);
    assert_eq!(used.pairs, queues + 1, "no connection was made again");
    core.ends_clean();
    fabric.finish();
    (idle.registered, used.registered)
}

#[test]
fn queues_of_one_core_share_a_device_and_its_memory() {
    for profile in PROFILES {
        let [one, twelve] = [1, 12].map(|queues| registered(profile, queues));
        // A queue has its capsules without data, as many as it has commands, and its responses.
        let of_queue = 32 * (64 + 16);
        // Its Connect had data in its capsule, whose block others use as well.
        let blocks = twelve.0 - one.0 - 11 * of_queue;
        assert!(blocks <= 11 * 8192, "{profile:?}: {blocks}");
        // Twelve queues had 12 MiB of data under way, one had 1 MiB.
        let data = |(idle, used): (usize, usize)| used - idle;
        assert!(data(one) <= 2 << 20 && data(twelve) <= KEPT, "{profile:?}: {one:?} {twelve:?}");
    }
}

/// Completions are taken from the device, whose notices cost system calls.
#[test]
fn a_core_that_spins_needs_no_notice() {
    for profile in PROFILES {
        let fabric = Fabric::new(profile);
        let mut core = Core::mapped(HostConfig { io_queues: 2, ..fabric.config() });
        let [device] = fabric.adapter.opened()[..] else { panic!("one device for all queues") };
        verify(&mut core, 2, 4, 8);
        fabric.network.mute_numbered(device, true);
        // What was told before is looked at, in the turns of a core that spins each 100 us at most.
        let looks = || fabric.network.looks_numbered(device);
        let mut goes_on_looking = || {
            let before = looks();
            for _ in 0..20 {
                std::thread::sleep(Duration::from_micros(200));
                core.turn();
            }
            looks() > before
        };
        assert!((0..1000).any(|_| !goes_on_looking()), "{profile:?}: it never ceases to look");
        let before = looks();
        (0..3).for_each(|_| verify(&mut core, 2, 4, 8));
        assert_eq!(looks(), before, "{profile:?}: its descriptor says that there is nothing else");
        fabric.network.mute_numbered(device, false);
        core.ends_clean();
        fabric.finish();
    }
}

#[test]
fn a_completion_queue_that_is_full_gets_a_second_device() {
    for profile in PROFILES {
        let fabric = Fabric::new(profile);
        // An admin queue has 62 completions at most, an I/O queue of 17 entries 32.
        fabric.adapter.completions.store(62 + 3 * 32 + 31, Ordering::Relaxed);
        let config = HostConfig { io_queues: 10, io_entries: 17, ..fabric.config() };
        let mut core = Core::mapped(config);
        let opened = fabric.adapter.opened();
        let pairs = |device: &usize| fabric.network.core_numbered(*device).pairs;
        // The second holds five: 189 / 32.
        assert_eq!(opened.iter().map(pairs).collect::<Vec<_>>(), [4, 5, 2], "{profile:?}");
        verify(&mut core, 10, 16, 20);
        core.ends_clean();
        fabric.finish();
    }
}

/// A core with channels of several controllers, each with one I/O queue.
struct Channels {
    io: Box<dyn Io>,
    pool: BufferPool,
    devices: Vec<RemoteNamespace>,
    channels: Vec<Option<Box<dyn Channel>>>,
    /// What each has under way: the write, or the read of what was written.
    rounds: Vec<Round>,
    done: Vec<Done>,
}

#[derive(Default)]
struct Round {
    number: u64,
    is_read: bool,
    /// Requests that have failed.
    failures: u64,
    is_busy: bool,
    /// It gets no further request.
    is_over: bool,
}

/// Blocks of each request: more than a capsule takes.
const REQUEST: usize = 24 * BLOCK;

impl Channels {
    fn new(fabric: &Fabric, count: usize) -> Self {
        let config = || HostConfig {
            io_queues: 1,
            command_timeout: Some(Duration::from_secs(6)),
            admin_timeout: Some(LIMIT),
            connect_timeout: Duration::from_secs(6),
            ..fabric.config()
        };
        let open = |_| RemoteNamespace::open(config(), NS).unwrap();
        let devices: Vec<_> = (0..count).map(open).collect();
        let (mut io, _) = open_io(Backend::Auto).unwrap();
        let pool = BufferPool::new(&PoolConfig::new(&[(128 << 10, 2 * count)])).unwrap();
        let mut channels = Vec::new();
        for (device, owner) in devices.iter().zip(1..) {
            let now = io.now();
            let mut cx = Context { io: &mut *io, pool: &pool, now };
            channels.push(Some(device.open_channel(&mut cx, owner).unwrap()));
        }
        let rounds = (0..count).map(|_| Round::default()).collect();
        Self { io, pool, devices, channels, rounds, done: Vec::new() }
    }

    fn offset(channel: usize) -> u64 {
        u64::try_from(channel * 4 * REQUEST).unwrap()
    }

    fn data(&self, channel: usize) -> Vec<u8> {
        pattern(REQUEST, self.rounds[channel].number * 5 + u64::try_from(channel).unwrap())
    }

    /// Gives every channel its next request.
    fn feed(&mut self) {
        for n in 0..self.channels.len() {
            let round = &mut self.rounds[n];
            if round.is_over || std::mem::replace(&mut round.is_busy, true) {
                continue;
            }
            let offset = Self::offset(n);
            let op = match self.rounds[n].is_read {
                true => Op::Read { offset, len: REQUEST, buf: Some(IoBuf::heap(REQUEST)) },
                false => {
                    let data = IoBuf::from_slice(&self.data(n)).share();
                    Op::Write { offset, data, fua: false }
                }
            };
            let now = self.io.now();
            let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
            if let Some(channel) = &mut self.channels[n] {
                let tag = u64::try_from(n).unwrap();
                channel.submit(&mut cx, Request { tag, op }, &mut self.done);
            }
        }
    }

    fn take_done(&mut self) {
        for done in std::mem::take(&mut self.done) {
            let n = usize::try_from(done.tag).unwrap();
            let wanted = self.data(n);
            let round = &mut self.rounds[n];
            round.is_busy = false;
            match done.result {
                Ok(()) if round.is_read => {
                    let Some(Payload::Buf(buf, range)) = done.payload else { panic!("no data") };
                    assert!(buf[range] == wanted[..], "channel {n}, round {}", round.number);
                    (round.is_read, round.number) = (false, round.number + 1);
                }
                Ok(()) => round.is_read = true,
                // A write whose fate is unknown, or a read that took too long: the same again.
                Err(BdevError::Unknown | BdevError::Gone) => round.failures += 1,
                Err(error) => panic!("channel {n}: {error:?}"),
            }
        }
    }

    /// A turn of the core.
    fn turn(&mut self) {
        self.feed();
        for channel in self.channels.iter_mut().flatten() {
            let now = self.io.now();
            let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
            channel.flush(&mut cx, &mut self.done);
        }
        self.take_done();
        let mut completions = Vec::new();
        self.io.poll(Wait::No, &mut completions).unwrap();
        if completions.is_empty() {
            std::thread::sleep(Duration::from_micros(50));
        }
        let now = self.io.now();
        for completion in completions {
            let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
            let n = usize::from(completion.token.owner) - 1;
            if let Some(channel) = &mut self.channels[n] {
                channel.handle_completion(&mut cx, completion, &mut self.done);
            }
        }
        self.take_done();
    }

    /// Turns until every open channel has done so many more rounds.
    fn go_on(&mut self, rounds: u64) {
        let ends: Vec<u64> = self.rounds.iter().map(|round| round.number + rounds).collect();
        let until = Instant::now() + LIMIT;
        let is_over = |this: &Self| {
            let open = this.channels.iter().map(Option::is_some);
            let mut all = open.zip(&this.rounds).zip(&ends);
            all.all(|((is_open, round), end)| !is_open || round.number >= *end)
        };
        while !is_over(self) {
            let rounds = || self.rounds.iter().map(|round| round.number).collect::<Vec<_>>();
            assert!(Instant::now() < until, "{:?} of {ends:?}", rounds());
            self.turn();
        }
    }

    fn failures(&self) -> Vec<u64> {
        self.rounds.iter().map(|round| round.failures).collect()
    }

    /// Closes a channel, and drops it at once, as a target does.
    fn close(&mut self, n: usize) {
        self.rounds[n].is_over = true;
        let end = Instant::now() + LIMIT;
        while self.rounds[n].is_busy {
            assert!(Instant::now() < end, "channel {n} has a request");
            self.turn();
        }
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        if let Some(mut channel) = self.channels[n].take() {
            channel.close(&mut cx);
        }
        self.devices[n].disconnect();
    }
}

#[test]
fn trouble_of_one_queue_is_that_of_no_other() {
    for profile in PROFILES {
        let fabric = Fabric::new(profile);
        let mut core = Channels::new(&fabric, 4);
        // The admin queues are on cores of their own.
        let opened = fabric.adapter.opened();
        assert_eq!(opened.len(), 5, "four admin queues, and the core of the four I/O queues");
        let shared = opened[4];
        core.go_on(20);
        assert_eq!(fabric.network.core_numbered(shared).pairs, 4);
        let mut failed = 0;
        for (nth, trouble) in [Trouble::Cut, Trouble::BadKey, Trouble::NoReceives]
            .into_iter()
            .cycle()
            .take(6)
            .enumerate()
        {
            let connected = fabric.network.sources().len();
            let before = core.failures();
            // The oldest one, which may be that under whose name the core is called.
            fabric.network.make_trouble(shared, nth % 2, trouble);
            core.go_on(20);
            let after = core.failures();
            let hurt = before.iter().zip(&after).filter(|(before, after)| before != after).count();
            assert!(hurt <= 1, "{trouble:?}: {before:?} {after:?}");
            failed += hurt;
            // An admin queue and an I/O queue were connected again.
            eventually("two connections", || fabric.network.sources().len() == connected + 2);
            core.go_on(1);
            assert_eq!(fabric.network.core_numbered(shared).pairs, 4, "{trouble:?}");
        }
        assert!(failed > 0, "no write was lost: the troubles came too late");
        // The core never had another device.
        let devices = fabric.adapter.opened();
        let shared_by: Vec<usize> =
            devices.iter().map(|device| fabric.network.core_numbered(*device).pairs).collect();
        assert_eq!(shared_by.iter().filter(|pairs| **pairs > 1).count(), 1, "{shared_by:?}");
        (0..4).for_each(|n| core.close(n));
        drop(core);
        fabric.finish();
    }
}

#[test]
fn a_device_that_is_removed_ends_all_queues_and_the_next_one_has_all() {
    for profile in PROFILES {
        let fabric = Fabric::new(profile);
        let mut core = Channels::new(&fabric, 4);
        let mut shared = fabric.adapter.opened()[4];
        for _ in 0..3 {
            core.go_on(10);
            fabric.network.remove_numbered(shared);
            core.go_on(10);
            // Admin queues are connected again, too.
            let four = |device: &&usize| fabric.network.core_numbered(**device).pairs == 4;
            let opened = fabric.adapter.opened();
            let next: Vec<usize> = opened.iter().filter(four).copied().collect();
            assert!(next.len() == 1 && next[0] != shared, "{next:?} of {opened:?}");
            shared = next[0];
        }
        (0..4).for_each(|n| core.close(n));
        drop(core);
        fabric.finish();
    }
}

#[test]
fn channels_that_are_closed_one_by_one_leave_the_others_awake() {
    let fabric = Fabric::new(Profile::Roce);
    let mut core = Channels::new(&fabric, 6);
    let timed = |core: &mut Channels| {
        let start = Instant::now();
        core.go_on(5);
        start.elapsed()
    };
    for n in [0, 3, 1, 5, 2] {
        let usual = timed(&mut core);
        core.close(n);
        let took = timed(&mut core);
        // Who is not told looks by itself, after a second.
        let most = Duration::from_millis(700) + 10 * usual;
        assert!(took < most, "the core was deaf for {took:?} after {n}, usual are {usual:?}");
    }
    core.close(4);
    drop(core);
    fabric.finish();
}
