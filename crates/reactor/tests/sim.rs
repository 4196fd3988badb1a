//! The simulated world: the same service as on a real core, in virtual time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../examples/echo.rs"]
mod echo;
#[path = "common/scramble.rs"]
mod scramble;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use echo::Echo;
use raceline_reactor::io::{RecvBuffers, SocketId};
use raceline_reactor::sim::Random;
use raceline_reactor::{
    BufferPool, Completion, Context, Io, IoBuf, Outcome, SendBatch, Service, SimConfig, SimIo,
    SimWorld, StreamProvider, Token, Wait,
};
use scramble::{HandedOn, Scrambler};

/// The maker of the streams; `None`: the simulated network alone.
type Provider = Option<Arc<dyn StreamProvider>>;

const ADDRESS: &str = "10.0.0.1:7";

/// A simulated core that runs the echo server.
struct Server {
    io: SimIo,
    pool: BufferPool,
    echo: Echo,
    provider: Provider,
}

impl Server {
    fn new(world: &SimWorld, provider: Provider) -> Server {
        let mut io = world.io();
        let pool = BufferPool::new(&echo::config().pool).unwrap();
        let now = io.now();
        let address = ADDRESS.parse().unwrap();
        let echo = Echo::new(&mut Context { io: &mut io, pool: &pool, now }, address).unwrap();
        Server { io, pool, echo, provider }
    }

    fn turn(&mut self) {
        let mut done = Vec::new();
        self.io.poll(Wait::Yes, &mut done).unwrap();
        let now = self.io.now();
        let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
        for Completion { token, outcome } in done {
            let outcome = match (outcome, &self.provider) {
                (Outcome::Accepted(Ok((socket, peer))), Some(provider)) => {
                    Outcome::Accepted(provider.accepted(socket).map(|socket| (socket, peer)))
                }
                (outcome, _) => outcome,
            };
            self.echo.handle_completion(&mut cx, Completion { token, outcome });
        }
        self.echo.flush(&mut cx);
    }
}

/// A connection that sends its message and expects it back.
#[derive(Debug)]
struct Caller {
    socket: Option<SocketId>,
    message: Vec<u8>,
    sent: usize,
    answer: Vec<u8>,
    end: Option<io::ErrorKind>,
}

/// A simulated core with callers.
struct Callers {
    io: SimIo,
    callers: Vec<Caller>,
    random: Random,
    provider: Provider,
}

fn token(index: usize) -> Token {
    Token { owner: 3, generation: 1, index: u32::try_from(index).unwrap() }
}

impl Callers {
    fn new(
        world: &SimWorld,
        provider: Provider,
        seed: u64,
        count: usize,
        max_len: usize,
    ) -> Callers {
        let mut random = Random::new(!seed);
        let mut io = world.io();
        let callers = (0..count)
            .map(|index| {
                io.connect(ADDRESS.parse().unwrap(), None, token(index));
                let len = random.size(max_len);
                let message = (0..len).map(|_| random.next_u64().to_le_bytes()[0]).collect();
                Caller { socket: None, message, sent: 0, answer: Vec::new(), end: None }
            })
            .collect();
        Callers { io, callers, random, provider }
    }

    fn turn(&mut self) {
        let mut done = Vec::new();
        self.io.poll(Wait::Yes, &mut done).unwrap();
        for completion in done {
            self.handle(completion);
        }
    }

    fn handle(&mut self, Completion { token, outcome }: Completion) {
        let caller = &mut self.callers[token.index as usize];
        match outcome {
            Outcome::Connected(Ok(socket)) => {
                let socket = match &self.provider {
                    Some(provider) => provider.connected(socket).unwrap(),
                    None => socket,
                };
                let socket = self.io.adopt(socket).unwrap();
                caller.socket = Some(socket);
                self.send(token);
                self.receive(token);
            }
            Outcome::Sent(Ok(()), batch) => {
                assert!(batch.is_empty());
                self.send(token);
            }
            Outcome::Received(Ok(count), buffers) if count > 0 => {
                let payload =
                    buffers.payload.as_ref().map_or(&[][..], |(buf, range)| &buf[range.clone()]);
                let staging = &buffers.staging[buffers.staging_range.clone()];
                caller.answer.extend(payload.iter().chain(staging).take(count));
                assert!(caller.message.starts_with(&caller.answer));
                if caller.answer.len() == caller.message.len() {
                    caller.end = Some(io::ErrorKind::Other);
                    self.io.close(caller.socket.unwrap(), false);
                } else {
                    self.receive(token);
                }
            }
            Outcome::Received(Ok(_), _) => caller.end = Some(io::ErrorKind::UnexpectedEof),
            Outcome::Received(Err(error), _)
            | Outcome::Sent(Err(error), _)
            | Outcome::Connected(Err(error)) => {
                caller.end = caller.end.or(Some(error.kind()));
                if let Some(socket) = caller.socket {
                    self.io.close(socket, false);
                }
            }
            other => panic!("{other:?}"),
        }
    }

    /// Sends a random part of what is left.
    fn send(&mut self, token: Token) {
        let caller = &mut self.callers[token.index as usize];
        let left = &caller.message[caller.sent..];
        if let (false, None) = (left.is_empty(), caller.end) {
            let part = &left[..self.random.size(left.len())];
            caller.sent += part.len();
            let mut batch = SendBatch::new(part.len(), 1);
            batch.push_bytes(part);
            self.io.send(caller.socket.unwrap(), batch, token);
        }
    }

    fn receive(&mut self, token: Token) {
        let caller = &mut self.callers[token.index as usize];
        let payload = self.random.below(300);
        let payload =
            (payload > 0).then(|| (IoBuf::heap(300), 0..usize::try_from(payload).unwrap()));
        let buffers = RecvBuffers { payload, staging: IoBuf::heap(100), staging_range: 50..100 };
        self.io.recv(caller.socket.unwrap(), buffers, token);
    }
}

/// Runs a whole simulation; gives the ends of the callers, the virtual time and the fingerprint.
fn run(
    seed: u64,
    config: SimConfig,
    count: usize,
    max_len: usize,
) -> (Vec<Option<io::ErrorKind>>, Duration, u64) {
    run_over(None, seed, config, count, max_len)
}

/// The same with the streams of a provider.
fn run_over(
    provider: Provider,
    seed: u64,
    config: SimConfig,
    count: usize,
    max_len: usize,
) -> (Vec<Option<io::ErrorKind>>, Duration, u64) {
    let world = SimWorld::new(seed, config);
    let mut server = Server::new(&world, provider.clone());
    let available = server.pool.available_total();
    let mut callers = Callers::new(&world, provider, seed, count, max_len);
    let mut steps = 0u64;
    while world.step() {
        server.turn();
        callers.turn();
        steps += 1;
        assert!(steps < 10_000_000, "seed {seed} does not end");
    }
    assert_eq!(server.pool.available_total(), available, "seed {seed}");
    assert_eq!(world.open_connections(), 0, "seed {seed}");
    let ends = callers.callers.iter().map(|caller| caller.end).collect();
    (ends, world.elapsed(), world.fingerprint())
}

#[test]
fn the_same_seed_is_the_same_run() {
    let mut fingerprints = Vec::new();
    for seed in 0..20 {
        let first = run(seed, SimConfig::default(), 10, 20_000);
        assert_eq!(first, run(seed, SimConfig::default(), 10, 20_000));
        assert!(
            first.0.iter().all(|&end| end == Some(io::ErrorKind::Other)),
            "seed {seed}: {:?}",
            first.0
        );
        fingerprints.push(first.2);
    }
    fingerprints.sort_unstable();
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), 20, "every seed is another run");
}

/// The echo server over records with a handshake, and over the simulated network by way of the seam.
#[test]
fn streams_of_a_provider_are_simulated_by_seed() {
    let scrambler: Arc<dyn StreamProvider> = Arc::new(Scrambler::new(5, "sim"));
    let mut fingerprints = Vec::new();
    for seed in 0..20 {
        for provider in [Arc::clone(&scrambler), Arc::new(HandedOn)] {
            let config = SimConfig { socket_buffer: 3000, ..SimConfig::default() };
            let over = |config| run_over(Some(Arc::clone(&provider)), seed, config, 10, 20_000);
            let first = over(config.clone());
            assert_eq!(first, over(config));
            let whole = first.0.iter().all(|&end| end == Some(io::ErrorKind::Other));
            assert!(whole, "seed {seed}, {provider:?}: {:?}", first.0);
            fingerprints.push(first.2);
        }
    }
    fingerprints.sort_unstable();
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), 40, "every seed is another run");
    let hard = SimConfig { max_chunk: 1, socket_buffer: 10, ..SimConfig::default() };
    let (ends, _, _) = run_over(Some(scrambler), 1, hard, 3, 500);
    assert!(ends.iter().all(|&end| end == Some(io::ErrorKind::Other)), "{ends:?}");
}

#[test]
fn streams_of_a_provider_break_and_leave_nothing_behind() {
    let config =
        SimConfig { broken_per_thousand: 500, break_within: 20_000, ..SimConfig::default() };
    let provider: Arc<dyn StreamProvider> = Arc::new(Scrambler::new(5, "sim"));
    let (mut broken, mut whole) = (0, 0);
    for seed in 0..50 {
        for end in run_over(Some(Arc::clone(&provider)), seed, config.clone(), 10, 20_000).0 {
            match end {
                Some(io::ErrorKind::Other) => whole += 1,
                Some(_) => broken += 1,
                None => panic!("seed {seed}: a caller hangs"),
            }
        }
    }
    assert!(broken > 50 && whole > 50, "{broken} broken, {whole} whole");
}

#[test]
fn bytes_arrive_one_by_one_if_so_configured() {
    let config = SimConfig { max_chunk: 1, socket_buffer: 10, ..SimConfig::default() };
    let (ends, _, _) = run(1, config, 3, 500);
    assert!(ends.iter().all(|&end| end == Some(io::ErrorKind::Other)));
}

#[test]
fn a_message_is_split_everywhere() {
    let mut splits = std::collections::HashSet::new();
    for seed in 0..300 {
        let world = SimWorld::new(seed, SimConfig::default());
        let (mut one, mut two, a, b) = pair(&world);
        let mut batch = SendBatch::new(8, 1);
        batch.push_bytes(b"8 bytes!");
        one.send(a, batch, token(0));
        let buffers = RecvBuffers { payload: None, staging: IoBuf::heap(8), staging_range: 0..8 };
        two.recv(b, buffers, token(1));
        while world.step() {}
        let mut done = Vec::new();
        two.poll(Wait::No, &mut done).unwrap();
        let Some(Completion { outcome: Outcome::Received(Ok(count), _), .. }) = done.pop() else {
            panic!()
        };
        splits.insert(count);
    }
    assert_eq!(splits.len(), 8, "1 to 8 bytes at first: {splits:?}");
}

/// Two cores with a connection between them.
fn pair(world: &SimWorld) -> (SimIo, SimIo, SocketId, SocketId) {
    let (mut one, mut two) = (world.io(), world.io());
    let (_, address) = two.listen("10.0.0.2:0".parse().unwrap(), token(0)).unwrap();
    one.connect(address, None, token(0));
    while world.step() {}
    let mut done = Vec::new();
    one.poll(Wait::No, &mut done).unwrap();
    two.poll(Wait::No, &mut done).unwrap();
    let [first, second] = <[Completion; 2]>::try_from(done).unwrap();
    let (Outcome::Connected(Ok(a)), Outcome::Accepted(Ok((b, peer)))) =
        (first.outcome, second.outcome)
    else {
        panic!()
    };
    assert_eq!((a.local_address(), a.peer_address()), (peer, address));
    let (a, b) = (one.adopt(a).unwrap(), two.adopt(b).unwrap());
    (one, two, a, b)
}

#[test]
fn connections_break_and_leave_nothing_behind() {
    let config =
        SimConfig { broken_per_thousand: 500, break_within: 20_000, ..SimConfig::default() };
    let mut broken = 0;
    let mut whole = 0;
    for seed in 0..50 {
        for end in run(seed, config.clone(), 10, 20_000).0 {
            match end {
                Some(io::ErrorKind::Other) => whole += 1,
                Some(_) => broken += 1,
                None => panic!("seed {seed}: a caller hangs"),
            }
        }
    }
    assert!(broken > 50 && whole > 50, "{broken} broken, {whole} whole");
}

#[test]
fn a_crashed_core_resets_its_connections() {
    let world = SimWorld::new(5, SimConfig::default());
    let (mut one, two, a, _) = pair(&world);
    let buffers = RecvBuffers { payload: None, staging: IoBuf::heap(8), staging_range: 0..8 };
    one.recv(a, buffers, token(0));
    drop(two);
    while world.step() {}
    let mut done = Vec::new();
    one.poll(Wait::No, &mut done).unwrap();
    let Some(Completion { outcome: Outcome::Received(Err(error), _), .. }) = done.pop() else {
        panic!()
    };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let address: SocketAddr = ADDRESS.parse().unwrap();
    one.connect(address, None, token(9));
    while world.step() {}
    one.poll(Wait::No, &mut done).unwrap();
    let Some(Completion { outcome: Outcome::Connected(Err(error)), .. }) = done.pop() else {
        panic!()
    };
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[test]
fn dropped_sockets_and_closed_ones_end_the_stream() {
    let world = SimWorld::new(6, SimConfig::default());
    let (mut one, mut two) = (world.io(), world.io());
    let (listener, address) = two.listen("[::]:9".parse().unwrap(), token(0)).unwrap();
    assert_eq!(two.listen(address, token(1)).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    one.connect("[2001:db8::1]:9".parse().unwrap(), None, token(0));
    while world.step() {}
    let mut done = Vec::new();
    two.poll(Wait::No, &mut done).unwrap();
    drop(done.pop());
    two.close_listener(listener);
    one.poll(Wait::No, &mut done).unwrap();
    let Some(Completion { outcome: Outcome::Connected(Ok(socket)), .. }) = done.pop() else {
        panic!()
    };
    let socket = one.adopt(socket).unwrap();
    let buffers = RecvBuffers { payload: None, staging: IoBuf::heap(8), staging_range: 0..8 };
    one.recv(socket, buffers, token(0));
    while world.step() {}
    one.poll(Wait::No, &mut done).unwrap();
    assert!(matches!(done.pop().unwrap().outcome, Outcome::Received(Ok(0), _)));
    one.close(socket, false);
    assert_eq!(world.open_connections(), 0);
}

#[test]
fn virtual_time_passes_without_waiting() {
    let world = SimWorld::new(7, SimConfig::default());
    let mut io = world.io();
    let start = world.now();
    for hours in [3u64, 1, 2] {
        let index = usize::try_from(hours).unwrap();
        io.timer(start + Duration::from_secs(3600 * hours), token(index));
    }
    let mut order = Vec::new();
    while world.step() {
        let mut done = Vec::new();
        io.poll(Wait::Yes, &mut done).unwrap();
        order.extend(done.iter().map(|done| (done.token.index, world.elapsed().as_secs() / 3600)));
    }
    assert_eq!(order, [(1, 1), (2, 2), (3, 3)]);
}
