//! The blocking API and remote namespaces over real sockets, against the scripted target, and over RDMA.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "common/rdma.rs"]
mod rdma;
#[path = "common/rdma_domains.rs"]
mod rdma_domains;
#[path = "common/rdma_hostile.rs"]
mod rdma_hostile;
#[path = "common/rdma_removal.rs"]
mod rdma_removal;
#[path = "common/rdma_target.rs"]
mod rdma_target;
#[path = "common/served.rs"]
mod served;

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{BLOCK, BLOCKS, Script, Target, config};
use raceline_bdev::{Bdev, BdevError, Channel, Done, Op, Request};
use raceline_host::blocking::Host;
use raceline_host::{CommandError, HostConfig, HostError, RemoteNamespace};
use raceline_proto::nvme::{NamespaceId, Status};
use raceline_reactor::core::{Backend, open_io};
use raceline_reactor::{BufferPool, Context, Io, IoBuf, Payload, PoolConfig, Wait};

const NS: NamespaceId = NamespaceId(1);
/// Bound of everything that waits for another thread.
const LIMIT: Duration = Duration::from_secs(20);

/// Starts a target on a thread that ends with the process.
fn start_target(script: impl FnOnce() -> Script + Send + 'static) -> SocketAddr {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let (io, _) = open_io(Backend::Auto).unwrap();
        let mut target = Target::new(io, "127.0.0.1:0".parse().unwrap());
        target.script = script();
        sender.send(target.address).unwrap();
        loop {
            target.turn(Wait::Yes);
        }
    });
    receiver.recv_timeout(LIMIT).unwrap()
}

fn host_config(script: impl FnOnce() -> Script + Send + 'static) -> HostConfig {
    HostConfig { address: start_target(script), data_digest: true, io_queues: 2, ..config() }
}

#[test]
fn large_transfers_are_cut_and_put_together() {
    let host = Host::connect(host_config(Script::default)).unwrap();
    assert_eq!(host.namespaces().len(), 1);
    assert_eq!(host.controller().max_transfer_bytes, Some(131_072));
    let data: Vec<u8> = (0..1000 * BLOCK).map(|index| (index / 7).to_le_bytes()[0]).collect();
    host.write(NS, 5, &data, false).unwrap();
    host.flush(NS).unwrap();
    let mut back = vec![0; data.len()];
    host.read(NS, 5, &mut back).unwrap();
    assert!(back == data);
    assert_eq!(host.identify(2, NamespaceId(0)).unwrap()[0], 1);
    host.disconnect();
}

#[test]
fn errors_are_typed() {
    let host = Host::connect(host_config(Script::default)).unwrap();
    let last = u64::try_from(BLOCKS).unwrap();
    let error = host.read(NS, last - 1, &mut [0; 2 * BLOCK]).unwrap_err();
    let HostError::Command(failure) = error else { panic!("{error}") };
    assert_eq!(failure.error, CommandError::Status(Status::LBA_OUT_OF_RANGE.dnr()));
    assert!(matches!(host.read(NS, 0, &mut [0; 100]), Err(HostError::Invalid(_))));
    assert!(matches!(host.read(NamespaceId(9), 0, &mut []), Err(HostError::Invalid(_))));
    assert!(matches!(host.get_log(2, NS, 0, 3), Err(HostError::Invalid(_))));
    drop(host);
    // A port without a listener.
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    drop(socket);
    let error = Host::connect(HostConfig { address, ..config() }).unwrap_err();
    assert!(matches!(error, HostError::Tcp(..)), "{error}");
}

/// A core with a channel of a remote namespace.
struct Core {
    io: Box<dyn Io>,
    pool: BufferPool,
    channel: Box<dyn Channel>,
    done: Vec<Done>,
}

impl Core {
    fn new(device: &dyn Bdev) -> Self {
        let (mut io, _) = open_io(Backend::Auto).unwrap();
        let pool = BufferPool::new(&PoolConfig::new(&[(128 << 10, 2)])).unwrap();
        let now = io.now();
        let mut cx = Context { io: &mut *io, pool: &pool, now };
        let channel = device.open_channel(&mut cx, 5).unwrap();
        Self { io, pool, channel, done: Vec::new() }
    }

    fn execute(&mut self, op: Op) -> Done {
        let start = Instant::now();
        let mut now = self.io.now();
        let mut request = Some(Request { tag: 77, op });
        loop {
            let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
            if let Some(request) = request.take() {
                self.channel.submit(&mut cx, request, &mut self.done);
            }
            self.channel.flush(&mut cx, &mut self.done);
            if let Some(done) = self.done.pop() {
                assert_eq!(done.tag, 77);
                return done;
            }
            assert!(start.elapsed() < LIMIT, "no completion");
            let mut completions = Vec::new();
            // The channel's own timer ends the wait.
            self.io.poll(Wait::Yes, &mut completions).unwrap();
            now = self.io.now();
            for completion in completions {
                assert_eq!(completion.token.owner, 5);
                let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
                self.channel.handle_completion(&mut cx, completion, &mut self.done);
            }
        }
    }
}

#[test]
fn a_remote_namespace_is_a_block_device() {
    let device = RemoteNamespace::open(host_config(Script::default), NS).unwrap();
    let info = device.info();
    assert_eq!((info.block_size, info.block_count), (512, 4096));
    let mut core = Core::new(&device);
    // More than one command can carry.
    let data: Vec<u8> = (0..600 * BLOCK).map(|index| (index / 5).to_le_bytes()[0]).collect();
    let write = Op::Write { offset: 512, data: IoBuf::from_slice(&data).share(), fua: true };
    let done = core.execute(write);
    assert_eq!(done.result, Ok(()));
    assert!(matches!(done.payload, Some(Payload::Shared(buf, _)) if buf.len() == data.len()));
    let read = Op::Read { offset: 512, len: data.len(), buf: Some(IoBuf::heap(data.len())) };
    let Some(Payload::Buf(buf, range)) = core.execute(read).payload else { panic!("no data") };
    assert!(buf[range] == data);
    assert_eq!(core.execute(Op::Flush).result, Ok(()));
    let beyond = Op::Read { offset: 4095 * 512, len: 1024, buf: Some(IoBuf::heap(1024)) };
    assert_eq!(core.execute(beyond).result, Err(BdevError::Internal));
    // A request of three commands, whose last two fail.
    let len = 600 * BLOCK;
    let beyond = Op::Read { offset: (4096 - 300) * 512, len, buf: Some(IoBuf::heap(len)) };
    let done = core.execute(beyond);
    assert_eq!(done.result, Err(BdevError::Internal));
    assert!(matches!(done.payload, Some(Payload::Buf(buf, _)) if buf.len() == len));
    // More parts, one after the other, than there are at a time.
    for round in 0..100u8 {
        let data = IoBuf::from_slice(&vec![round; len]).share();
        assert_eq!(core.execute(Op::Write { offset: 0, data, fua: false }).result, Ok(()));
        let read = Op::Read { offset: 0, len, buf: Some(IoBuf::heap(len)) };
        let Some(Payload::Buf(buf, _)) = core.execute(read).payload else { panic!("no data") };
        assert!(buf.iter().all(|&byte| byte == round), "round {round}");
    }

    // The channel notices within a second or so; until then the target still answers.
    device.disconnect();
    let start = Instant::now();
    loop {
        let read = Op::Read { offset: 0, len: 512, buf: Some(IoBuf::heap(512)) };
        let done = core.execute(read);
        assert!(done.payload.is_some(), "the buffer comes back");
        if done.result.is_err() {
            assert!(
                matches!(done.result, Err(BdevError::Transient | BdevError::Gone)),
                "{:?}",
                done.result
            );
            break;
        }
        assert!(start.elapsed() < LIMIT, "still connected");
    }
}

/// As a target does that takes connections over TLS only, and closes others without having read what they send.
#[test]
fn a_reset_before_the_first_answer_says_what_may_be_the_reason() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let peer = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        assert_eq!(stream.peek(&mut [0]).unwrap(), 1);
    });
    let mut config = HostConfig { address, ..config() };
    config.backoff.give_up_after = Some(Duration::ZERO);
    let error = Host::connect(config).unwrap_err();
    assert!(matches!(error, HostError::ClosedEarly(_)), "{error}");
    assert!(error.to_string().contains("--tls-psk"), "{error}");
    peer.join().unwrap();
}
