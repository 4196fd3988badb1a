//! Fused Compare and Write over two paths to a target of ours: both halves go by one path, or none does.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::served::{self, BLOCK, NS};
use raceline_host::{
    BlockRange, Command, CommandDone, CommandError, ControllerEvent, HostConfig, PathEvent,
    PathSet, PathSetEvent, Paths,
};
use raceline_proto::nvme::Status;
use raceline_reactor::core::{Backend, open_io};
use raceline_reactor::{BufferPool, Context, Io, IoBuf, PoolConfig, Token, Wait};
use raceline_target::{Target, TargetConfig};

/// FUSE: the first and the second half of a fused operation.
const FIRST: u8 = 0b01;
const SECOND: u8 = 0b10;
/// Users of the commands of a pair.
const COMPARE: u64 = 1;
const WRITE: u64 = 2;
const LIMIT: Duration = Duration::from_secs(30);

fn filled(byte: u8) -> IoBuf {
    IoBuf::from_slice(&[byte; BLOCK])
}

fn block(slba: u64) -> BlockRange {
    BlockRange::new(slba, 1).unwrap()
}

fn compare(slba: u64, expected: u8) -> Command {
    let mut command = Command::compare(NS, block(slba), filled(expected).share());
    command.sqe.flags |= FIRST;
    command
}

fn write(slba: u64, data: IoBuf) -> Command {
    let mut command = Command::write(NS, block(slba), data.share(), false);
    command.sqe.flags |= SECOND;
    command
}

/// A host core with two paths, in turns with the test; the target has a thread of its own.
struct Rig {
    target: Target,
    addresses: [SocketAddr; 2],
    io: Box<dyn Io>,
    pool: BufferPool,
    paths: Paths,
    queues: PathSet,
    done: Vec<CommandDone>,
}

impl Rig {
    fn new() -> Self {
        Self::with_config(served::small())
    }

    fn with_config(config: TargetConfig) -> Self {
        let target = served::serve_with(config, served::memory());
        let first = served::listen(&target, served::any_port());
        let second = served::second_path(&target);
        let addresses = [first, second.address];
        let more_paths = vec![second];
        let config = HostConfig { more_paths, ..served::config(addresses[0]) };
        let (mut io, _) = open_io(Backend::Auto).unwrap();
        let pool = BufferPool::new(&PoolConfig::default()).unwrap();
        let now = io.now();
        let mut cx = Context { io: &mut *io, pool: &pool, now };
        let token = |owner| Token { owner, generation: 0, index: 0 };
        let paths = Paths::connect(&mut cx, &config, token(1));
        let queues = PathSet::new(&cx, &config, [1], token(2));
        let mut rig = Self { target, addresses, io, pool, paths, queues, done: Vec::new() };
        rig.until("both paths", |rig| rig.ready() == [true, true]);
        rig
    }

    fn ready(&self) -> [bool; 2] {
        let mut ready = [false; 2];
        for (place, path) in self.queues.summaries().iter().enumerate() {
            ready[place] = path.is_ready;
        }
        ready
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut PathSet, &mut Context<'_>) -> T) -> T {
        let now = self.io.now();
        act(&mut self.queues, &mut Context { io: &mut *self.io, pool: &self.pool, now })
    }

    fn submit(&mut self, command: Command, user: u64) {
        self.with(|queues, cx| queues.submit(cx, 0, command, user)).unwrap();
    }

    fn turn(&mut self) {
        let mut completions = Vec::new();
        self.io.poll(Wait::No, &mut completions).unwrap();
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        let Self { paths, queues, done, .. } = self;
        for completion in completions {
            match completion.token.owner {
                1 => paths.handle_completion(&mut cx, completion),
                _ => queues.handle_completion(&mut cx, completion),
            }
        }
        while let Some(PathEvent { path, event }) = paths.poll_event() {
            match &event {
                ControllerEvent::Up(association) => queues.handle_up(&mut cx, path, association),
                ControllerEvent::Down(error) => queues.handle_down(&mut cx, path, error),
                ControllerEvent::Failed(_) => queues.handle_failed(&mut cx, path),
                _ => {}
            }
        }
        while let Some(event) = queues.poll_event() {
            match event {
                PathSetEvent::Lost { path, cntlid, error } => {
                    paths.queue_lost(&mut cx, path, cntlid, error);
                }
                PathSetEvent::Outdated { path } => paths.refresh_ana(&mut cx, path),
                PathSetEvent::Ready { .. } => {}
            }
        }
        queues.take_done(|_, command| done.push(command));
        paths.flush(&mut cx);
        queues.flush(&mut cx);
    }

    #[track_caller]
    fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < LIMIT, "not in time: {what}");
            self.turn();
            std::thread::yield_now();
        }
    }

    /// The ends of so many commands, in the order of their users.
    #[track_caller]
    fn ends(&mut self, count: usize) -> Vec<(u64, Result<(), CommandError>)> {
        self.until("the ends of commands", |rig| rig.done.len() >= count);
        let mut ends: Vec<_> =
            self.done.drain(..).map(|done| (done.user, done.result.map(|_| ()))).collect();
        ends.sort_by_key(|(user, _)| *user);
        ends
    }

    fn both(result: Result<(), CommandError>) -> [(u64, Result<(), CommandError>); 2] {
        [(COMPARE, result), (WRITE, result)]
    }

    #[track_caller]
    fn assert_holds(&mut self, slba: u64, byte: u8) {
        self.submit(Command::read(NS, block(slba), IoBuf::heap(BLOCK)), 9);
        self.until("a read", |rig| !rig.done.is_empty());
        let read = self.done.pop().unwrap();
        assert!(read.result.is_ok(), "{:?}", read.result);
        assert_eq!(read.data.into_read().unwrap()[..], [byte; BLOCK]);
    }

    fn lose(&mut self, path: usize) {
        self.target.remove_listener(self.addresses[path]).unwrap();
        self.until("the loss of a path", |rig| !rig.ready()[path]);
    }

    fn come_back(&mut self, path: usize) {
        served::listen(&self.target, self.addresses[path]);
        self.until("a path that comes back", |rig| rig.ready()[path]);
    }

    fn end(mut self) {
        self.with(|queues, cx| queues.close(cx));
        let now = self.io.now();
        self.paths.disconnect(&mut Context { io: &mut *self.io, pool: &self.pool, now });
        self.until("closed", |rig| rig.queues.is_closed() && rig.paths.is_finished());
        self.target.shutdown().unwrap();
    }
}

#[test]
fn both_halves_take_the_path_that_there_is_when_the_second_comes() {
    let mut rig = Rig::new();
    let mut value = 0;
    for lost in [0, 1, 0] {
        rig.submit(compare(5, value), COMPARE);
        rig.lose(lost);
        rig.submit(write(5, filled(value + 1)), WRITE);
        assert_eq!(rig.ends(2), Rig::both(Ok(())), "path {lost} was lost between the halves");
        value += 1;
        rig.assert_holds(5, value);
        // The path that was not there sees the next pair alone.
        rig.come_back(lost);
        rig.submit(compare(5, value), COMPARE);
        rig.submit(write(5, filled(value + 1)), WRITE);
        assert_eq!(rig.ends(2), Rig::both(Ok(())));
        value += 1;
    }
    rig.submit(compare(5, 99), COMPARE);
    rig.submit(write(5, filled(98)), WRITE);
    let failed = [Status::COMPARE_FAILURE, Status::ABORTED_FAILED_FUSED];
    for ((_, end), status) in rig.ends(2).into_iter().zip(failed) {
        let Err(CommandError::Status(found)) = end else { panic!("{end:?}") };
        assert!(found.same_code(status), "{found}");
    }
    rig.assert_holds(5, value);
    rig.end();
}

#[test]
fn without_a_path_both_wait_and_run_once_one_is_back() {
    let mut rig = Rig::new();
    rig.lose(0);
    rig.submit(compare(7, 0), COMPARE);
    rig.lose(1);
    rig.submit(write(7, filled(1)), WRITE);
    // A command that comes after them waits behind them.
    rig.submit(Command::flush(NS), 3);
    assert_eq!(rig.queues.outstanding(), 3);
    rig.come_back(1);
    let [compared, written] = Rig::both(Ok(()));
    assert_eq!(rig.ends(3), [compared, written, (3, Ok(()))]);
    rig.assert_holds(7, 1);
    rig.end();
}

#[test]
fn a_half_alone_is_never_sent() {
    let mut rig = Rig::new();
    let not_sent = Err(CommandError::NotSent);
    rig.submit(write(3, filled(1)), WRITE);
    assert_eq!(rig.ends(1), [(WRITE, not_sent)], "no first half");
    rig.submit(compare(3, 0), COMPARE);
    rig.submit(compare(3, 0), COMPARE + 10);
    assert_eq!(rig.ends(1), [(COMPARE, not_sent)], "two first halves");
    rig.assert_holds(3, 0);
    rig.submit(write(3, filled(1)), WRITE);
    assert_eq!(rig.ends(2), [(WRITE, Ok(())), (COMPARE + 10, Ok(()))]);
    // The second half cannot be sent: the first one is not, either.
    rig.submit(compare(3, 1), COMPARE);
    rig.submit(write(3, IoBuf::from_slice(&[2; 510])), WRITE);
    assert_eq!(rig.ends(2), Rig::both(not_sent));
    rig.assert_holds(3, 1);
    rig.submit(compare(3, 1), COMPARE);
    assert_eq!(rig.queues.outstanding(), 1);
    rig.with(|queues, cx| queues.close(cx));
    assert_eq!(rig.ends(1), [(COMPARE, not_sent)], "the queues are closed");
    rig.end();
}

#[test]
fn room_is_what_the_one_path_takes() {
    // Far fewer than the host asks for.
    let config = TargetConfig { max_queue_entries: 4, ..served::small() };
    let mut rig = Rig::with_config(config);
    rig.lose(1);
    assert_eq!(rig.queues.room(0), 3);
    rig.submit(compare(3, 0), COMPARE);
    assert_eq!(rig.queues.room(0), 2, "the first half is to go there");
    rig.submit(write(3, filled(1)), WRITE);
    assert_eq!(rig.queues.room(0), 1);
    assert_eq!(rig.ends(2), Rig::both(Ok(())));
    for turn in 0..5 {
        let room = rig.queues.room(0);
        assert_eq!(room, 3, "turn {turn}");
        for user in 0..3 {
            rig.submit(Command::flush(NS), user);
        }
        assert_eq!(rig.queues.room(0), 0);
        assert_eq!(rig.ends(room).len(), room);
    }
    rig.end();
}
