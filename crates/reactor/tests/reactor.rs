//! The thread of a core: messages, modes, pinning, panics, and what it costs when idle.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../examples/echo.rs"]
mod echo;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use echo::{Echo, Message};
use raceline_reactor::affinity::allowed_cores;
use raceline_reactor::{
    Backend, Completion, Context, Mode, Reactor, ReactorConfig, ReactorError, ReactorHandle,
    Service, Token,
};

const MODES: [Mode; 3] =
    [Mode::Poll, Mode::Adaptive { spin: Duration::from_micros(50) }, Mode::Interrupt];

fn start(config: ReactorConfig) -> (ReactorHandle<Message>, SocketAddr) {
    let any = "127.0.0.1:0".parse().unwrap();
    let reactor = Reactor::spawn(config, move |cx| Echo::new(cx, any)).unwrap();
    let address = ask_address(&reactor);
    (reactor, address)
}

fn ask_address(reactor: &ReactorHandle<Message>) -> SocketAddr {
    let (reply, answer) = mpsc::channel();
    reactor.sender().send(Message::Address(reply)).unwrap();
    answer.recv_timeout(Duration::from_secs(10)).expect("a message wakes the core")
}

fn stop(reactor: ReactorHandle<Message>) {
    reactor.sender().send(Message::Stop).unwrap();
    reactor.join().unwrap();
}

#[test]
fn the_service_runs_in_every_mode_on_every_back_end() {
    for backend in [Backend::Auto, Backend::Epoll] {
        for mode in MODES {
            let (reactor, address) = start(ReactorConfig { backend, mode, ..echo::config() });
            assert_ne!(reactor.backend(), Backend::Auto);
            let streams: Vec<TcpStream> =
                (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
            for (number, mut stream) in (0u8..).zip(&streams) {
                stream.write_all(&[number; 100_000]).unwrap();
            }
            for (number, mut stream) in (0u8..).zip(&streams) {
                let mut bytes = vec![0; 100_000];
                stream.read_exact(&mut bytes).unwrap();
                assert!(bytes.iter().all(|&byte| byte == number));
            }
            let stats = reactor.stats().clone();
            stop(reactor);
            let stats = stats.snapshot();
            assert!(stats.busy_turns > 0 && stats.turns >= stats.busy_turns);
            assert_eq!(stats.buckets.iter().sum::<u64>(), stats.busy_turns);
            assert!(stats.waits == 0 || mode != Mode::Poll);
            assert!(stats.waits > 0 || mode != Mode::Interrupt);
            assert_eq!((&streams[0]).read(&mut [0]).unwrap(), 0, "closed when the core ended");
        }
    }
}

#[test]
fn a_message_wakes_a_waiting_core() {
    let (reactor, address) = start(ReactorConfig { mode: Mode::Interrupt, ..echo::config() });
    for round in 0..100 {
        if round % 10 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(ask_address(&reactor), address);
    }
    stop(reactor);
}

#[test]
fn a_spinning_core_can_be_told_to_sleep_and_to_spin_again() {
    let (reactor, address) = start(ReactorConfig { mode: Mode::Poll, ..echo::config() });
    let sleeps = || reactor.stats().snapshot().waits;
    let turns = || reactor.stats().snapshot().turns;
    let until = |what: &str, done: &dyn Fn() -> bool| {
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while !done() {
            assert!(std::time::Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let begun = turns();
    until("it spins", &|| turns() > begun + 1000);
    assert_eq!(sleeps(), 0);
    reactor.set_mode(Mode::Interrupt);
    until("it sleeps", &|| sleeps() > 0);
    reactor.set_mode(Mode::Poll);
    assert_eq!(ask_address(&reactor), address, "a message wakes it");
    let woken = turns();
    until("it spins again", &|| turns() > woken + 1000);
    stop(reactor);
}

#[test]
fn floods_of_messages_are_all_handled() {
    let (reactor, _) = start(echo::config());
    let (reply, answers) = mpsc::channel();
    for _ in 0..20_000 {
        let mut message = Message::Address(reply.clone());
        while let Err(error) = reactor.sender().send(message) {
            let raceline_reactor::SendError::Full(back) = error else { panic!("closed") };
            message = back;
            std::thread::yield_now();
        }
    }
    drop(reply);
    for number in 0..20_000 {
        answers.recv_timeout(Duration::from_secs(10)).unwrap_or_else(|_| panic!("answer {number}"));
    }
    stop(reactor);
}

/// Runs what it is sent; ends when told.
struct Runner {
    ended: bool,
}

impl Service for Runner {
    type Message = Option<Box<dyn FnOnce() + Send>>;

    fn handle_message(&mut self, _: &mut Context<'_>, message: Self::Message) {
        match message {
            Some(call) => call(),
            None => self.ended = true,
        }
    }

    fn handle_completion(&mut self, _: &mut Context<'_>, _: Completion) {}

    fn flush(&mut self, _: &mut Context<'_>) {}

    fn is_finished(&self) -> bool {
        self.ended
    }
}

#[test]
fn messages_beyond_one_turn_are_not_slept_on() {
    let config = ReactorConfig { mode: Mode::Interrupt, ..ReactorConfig::default() };
    let reactor = Reactor::spawn(config, |_| Ok(Runner { ended: false })).unwrap();
    let (unblock, blocked) = mpsc::channel::<()>();
    // While the core is held up, more messages come than it takes in two turns. They leave one
    // wake-up behind, not one each.
    let block = move || blocked.recv().unwrap();
    reactor.sender().send(Some(Box::new(block))).unwrap();
    let (reply, replies) = mpsc::channel();
    for number in 0..300 {
        let reply = reply.clone();
        reactor.sender().send(Some(Box::new(move || reply.send(number).unwrap()))).unwrap();
    }
    unblock.send(()).unwrap();
    for number in 0..300 {
        assert_eq!(replies.recv_timeout(Duration::from_secs(10)), Ok(number));
    }
    reactor.sender().send(None).unwrap();
    reactor.join().unwrap();
}

#[test]
fn a_core_is_pinned_or_the_error_says_why_not() {
    let core = *allowed_cores().unwrap().last().unwrap();
    let config = ReactorConfig { core: Some(core), ..echo::config() };
    let (seen, allowed) = mpsc::channel();
    let reactor = Reactor::spawn(config, move |cx| {
        seen.send(allowed_cores()?).unwrap();
        Echo::new(cx, "127.0.0.1:0".parse().unwrap())
    });
    assert_eq!(allowed.recv().unwrap(), [core]);
    stop(reactor.unwrap());

    let config = ReactorConfig { core: Some(4000), ..echo::config() };
    let error =
        Reactor::spawn(config, |cx| Echo::new(cx, "127.0.0.1:0".parse().unwrap())).unwrap_err();
    assert!(
        error.to_string().starts_with("core 4000 cannot be used: this process may use "),
        "{error}"
    );
}

/// The echo server, except that it panics when it is told to stop.
struct Fragile(Echo);

impl Service for Fragile {
    type Message = Message;

    fn handle_message(&mut self, cx: &mut Context<'_>, message: Message) {
        assert!(!matches!(message, Message::Stop), "as asked");
        self.0.handle_message(cx, message);
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        self.0.handle_completion(cx, completion);
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        self.0.flush(cx);
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

#[test]
fn a_panic_ends_the_core_and_is_reported() {
    let any = "127.0.0.1:0".parse().unwrap();
    let reactor =
        Reactor::spawn(echo::config(), move |cx| Echo::new(cx, any).map(Fragile)).unwrap();
    let address = ask_address(&reactor);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
    reactor.sender().send(Message::Stop).unwrap();
    // Its connections are closed, so hosts notice at once.
    assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
    let sender = reactor.sender().clone();
    match reactor.join() {
        Err(ReactorError::Panicked(message)) => assert_eq!(message, "as asked"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(sender.send(Message::Stop), Err(raceline_reactor::SendError::Closed(_))));
}

#[test]
fn a_builder_that_fails_or_panics_is_reported() {
    let error =
        Reactor::spawn::<Echo, _>(echo::config(), |_| Err(io::Error::other("no such thing")));
    assert_eq!(error.unwrap_err().to_string(), "no such thing");
    let error = Reactor::spawn::<Echo, _>(echo::config(), |_| panic!("at once"));
    assert_eq!(error.unwrap_err().to_string(), "the core panicked: at once");
}

/// Does nothing but tell its thread id, and stop.
struct Idle {
    stopped: bool,
}

impl Service for Idle {
    type Message = ();

    fn handle_message(&mut self, _: &mut Context<'_>, (): ()) {
        self.stopped = true;
    }

    fn handle_completion(&mut self, _: &mut Context<'_>, _: Completion) {}

    fn flush(&mut self, _: &mut Context<'_>) {}

    fn is_finished(&self) -> bool {
        self.stopped
    }
}

/// Processor time that an idle core uses in a quarter of a second.
fn idle_cost(mode: Mode, backend: Backend) -> Duration {
    let (tell, path) = mpsc::channel();
    let reactor =
        Reactor::spawn(ReactorConfig { mode, backend, ..ReactorConfig::default() }, move |cx| {
            cx.io.listen(
                "127.0.0.1:0".parse().unwrap(),
                Token { owner: 0, generation: 0, index: 0 },
            )?;
            tell.send(std::fs::read_link("/proc/thread-self")?).unwrap();
            Ok(Idle { stopped: false })
        })
        .unwrap();
    let path = std::path::Path::new("/proc").join(path.recv().unwrap()).join("schedstat");
    let time = || -> Duration {
        let text = std::fs::read_to_string(&path).unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    };
    std::thread::sleep(Duration::from_millis(20));
    let before = time();
    std::thread::sleep(Duration::from_millis(250));
    let used = time() - before;
    reactor.sender().send(()).unwrap();
    reactor.join().unwrap();
    used
}

#[test]
fn an_idle_core_costs_nothing_unless_it_polls() {
    for backend in [Backend::Auto, Backend::Epoll] {
        for mode in [Mode::default(), Mode::Interrupt] {
            let used = idle_cost(mode, backend);
            assert!(used < Duration::from_millis(5), "{mode:?} {backend:?}: {used:?}");
        }
    }
    assert!(idle_cost(Mode::Poll, Backend::Auto) > Duration::from_millis(10));
}

/// A core that sleeps whenever it can does not do so while somebody polls for commands, for as long as something ends.
#[test]
fn a_core_with_polled_commands_does_not_sleep_before_they_end() {
    #[derive(Default)]
    struct Polled {
        told: bool,
        under_way: bool,
        ended: bool,
    }
    impl Service for Polled {
        /// Whether commands are under way; none: end.
        type Message = Option<bool>;
        fn handle_message(&mut self, _: &mut Context<'_>, message: Option<bool>) {
            self.ended = message.is_none();
            self.under_way = message.unwrap_or_default();
        }
        fn handle_completion(&mut self, _: &mut Context<'_>, _: Completion) {}
        fn flush(&mut self, cx: &mut Context<'_>) {
            cx.io.flight().poll_for(&mut self.told, self.under_way);
        }
        fn is_finished(&self) -> bool {
            self.ended
        }
    }
    for backend in [Backend::Auto, Backend::Epoll] {
        let config = ReactorConfig { mode: Mode::Interrupt, backend, ..ReactorConfig::default() };
        let reactor = Reactor::spawn(config, |_| Ok(Polled::default())).unwrap();
        let stats = || reactor.stats().snapshot();
        // With something to do every few milliseconds, it only spins.
        reactor.sender().send(Some(true)).unwrap();
        let begun = stats();
        let end = Instant::now() + Duration::from_millis(200);
        while Instant::now() < end {
            reactor.sender().send(Some(true)).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let now = stats();
        let (turns, waits) = (now.turns - begun.turns, now.waits - begun.waits);
        // This thread may be kept from its processor for longer than the core polls, but not often.
        assert!(turns > 1000 && waits < 20, "{backend:?}: {turns} turns, {waits} waits");
        // Without, it sleeps, and as well if none end for long.
        for under_way in [true, false] {
            reactor.sender().send(Some(under_way)).unwrap();
            let before = stats().waits;
            std::thread::sleep(Duration::from_millis(100));
            let turns = stats().turns;
            std::thread::sleep(Duration::from_millis(50));
            assert!(stats().turns - turns < 10 && stats().waits > before, "{backend:?}");
        }
        reactor.sender().send(None).unwrap();
        reactor.join().unwrap();
    }
}

#[test]
fn timers_keep_time_while_waiting() {
    struct Alarm {
        rung: Option<mpsc::Sender<Instant>>,
    }
    impl Service for Alarm {
        type Message = ();
        fn handle_message(&mut self, _: &mut Context<'_>, (): ()) {}
        fn handle_completion(&mut self, cx: &mut Context<'_>, _: Completion) {
            self.rung.take().unwrap().send(cx.now).unwrap();
        }
        fn flush(&mut self, _: &mut Context<'_>) {}
        fn is_finished(&self) -> bool {
            self.rung.is_none()
        }
    }
    for backend in [Backend::Auto, Backend::Epoll] {
        let at = Instant::now() + Duration::from_millis(30);
        let (rung, ring) = mpsc::channel();
        let config = ReactorConfig { mode: Mode::Interrupt, backend, ..ReactorConfig::default() };
        let reactor = Reactor::spawn(config, move |cx| {
            cx.io.timer(at, Token { owner: 0, generation: 0, index: 0 });
            Ok(Alarm { rung: Some(rung) })
        });
        let time = ring.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(time >= at && time < at + Duration::from_secs(5));
        reactor.unwrap().join().unwrap();
    }
}
