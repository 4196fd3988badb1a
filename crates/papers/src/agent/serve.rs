//! The agent: does what one controller after the other asks for.

use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use raceline_bench::Latencies;
use raceline_bench::job::JobError;
use raceline_bench::runner::{Outcome, RunError, Session};
use raceline_host::QueueCounters;
use raceline_reactor::Mode;

use super::load::Load;
use super::message::{
    self, AgentOutcome, Answer, Histogram, PROTOCOL, REQUEST_BYTES_MAX, Request, SLICES, Slice,
};
use crate::bed::{Loopback, Remote};
use crate::environment;

/// How long a controller may take for its first message.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// How long a controller may be silent between requests.
const SILENCE_LIMIT: Duration = Duration::from_secs(600);
/// How far ahead a start may be.
const START_AHEAD_MAX: Duration = Duration::from_secs(60);
/// How long a run takes from the call to the start.
const RUN_DELAY: Duration = Duration::from_millis(20);
/// Requests that wait for the agent at most; a controller sends the next one after an answer.
const REQUESTS_MAX: usize = 16;
/// A slice is at least this long.
const SLICE_MIN: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Why an agent has left its controller.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The connection failed.
    #[error("the connection to the controller: {0}")]
    Connection(#[from] io::Error),
    /// The controller said something wrong.
    #[error("the controller: {0}")]
    Controller(String),
}

/// Serves the controller behind this stream until it is gone.
///
/// # Errors
/// When the controller does not keep to the protocol, is silent for too long, or lacks the token.
pub fn serve(
    reader: impl Read + Send + 'static,
    writer: impl Write,
    token: Option<&str>,
) -> Result<(), ServeError> {
    let stop = Arc::new(AtomicBool::new(false));
    let requests = listen(reader, Arc::clone(&stop))?;
    let mut agent = Agent { requests, writer, stop, clock: Instant::now(), prepared: None };
    let result = agent.greet(token).and_then(|()| agent.obey());
    if let Err(ServeError::Controller(why)) = &result {
        // The controller may be gone.
        let _ = message::write(&mut agent.writer, &Answer::Failed { why: why.clone() });
    }
    result
}

/// Reads requests on a thread of its own, so that a run ends when the controller is gone or says so.
fn listen(
    reader: impl Read + Send + 'static,
    stop: Arc<AtomicBool>,
) -> io::Result<Receiver<io::Result<Request>>> {
    let (sender, requests) = sync_channel(REQUESTS_MAX);
    std::thread::Builder::new().name("requests".to_owned()).spawn(move || {
        let mut reader = BufReader::new(reader);
        loop {
            let request = message::read(&mut reader, REQUEST_BYTES_MAX);
            match request.transpose() {
                Some(Ok(Request::Stop {})) => stop.store(true, Ordering::Release),
                Some(Ok(request)) => {
                    if sender.send(Ok(request)).is_err() {
                        return;
                    }
                }
                Some(Err(error)) => {
                    stop.store(true, Ordering::Release);
                    // The agent may have left.
                    let _ = sender.send(Err(error));
                    return;
                }
                None => {
                    stop.store(true, Ordering::Release);
                    return;
                }
            }
        }
    })?;
    Ok(requests)
}

struct Agent<W> {
    requests: Receiver<io::Result<Request>>,
    writer: W,
    /// The controller is gone, or wants the run to end.
    stop: Arc<AtomicBool>,
    clock: Instant,
    /// The load to connect next.
    prepared: Option<Box<Load>>,
}

impl<W: Write> Agent<W> {
    fn greet(&mut self, token: Option<&str>) -> Result<(), ServeError> {
        let request = self.next(HELLO_LIMIT)?;
        let Some(Request::Hello { protocol, token: given, target, .. }) = request else {
            return Err(ServeError::Controller("the first message must be hello".to_owned()));
        };
        if let Some(token) = token
            && !is_same(token, given.as_deref().unwrap_or_default())
        {
            return Err(ServeError::Controller(
                "the token is wrong: give both sides the same token file".to_owned(),
            ));
        }
        let (version, environment) = (super::version(), machine(target));
        self.say(&Answer::Hello { protocol: PROTOCOL, version, environment })?;
        if protocol == PROTOCOL {
            return Ok(());
        }
        let why =
            format!("protocol {protocol}, and the agent has {PROTOCOL}: use the same version");
        Err(ServeError::Controller(why))
    }

    /// Prepares one load after the other, until the controller is gone.
    fn obey(&mut self) -> Result<(), ServeError> {
        loop {
            match self.prepared.take() {
                Some(load) => self.prepare(&load)?,
                None => match self.next(SILENCE_LIMIT)? {
                    None => return Ok(()),
                    Some(Request::Start { .. }) => self.fail("start comes before prepare")?,
                    Some(request) => self.reply(request)?,
                },
            }
        }
    }

    /// Connects, and runs the load as often as the controller says.
    fn prepare(&mut self, load: &Load) -> Result<(), ServeError> {
        self.stop.store(false, Ordering::Release);
        let config = match load.run_config() {
            Ok(config) => config,
            Err(why) => return self.fail(&why),
        };
        let stop = Arc::clone(&self.stop);
        let mut watch = |_| !stop.load(Ordering::Acquire);
        let mut session = match Session::connect(&config, &mut watch) {
            Ok(session) => session,
            Err(error) => return self.fail(&format!("target {}: {error}", load.target)),
        };
        self.say(&Answer::Ready {})?;
        while self.prepared.is_none() {
            match self.next(SILENCE_LIMIT)? {
                None => return Ok(()),
                Some(Request::Start { at_ns }) => match self.run(load, &mut session, at_ns) {
                    Ok(outcome) => self.say(&Answer::Result { outcome: Box::new(outcome) })?,
                    Err(why) => self.fail(&why)?,
                },
                Some(request) => self.reply(request)?,
            }
        }
        Ok(())
    }

    /// Everything but starting.
    fn reply(&mut self, request: Request) -> Result<(), ServeError> {
        match request {
            Request::Clock { number } => {
                let agent_ns = nanos(self.clock.elapsed());
                self.say(&Answer::Clock { number, agent_ns })
            }
            Request::Prepare { load } => {
                self.prepared = Some(load);
                Ok(())
            }
            Request::Hello { .. } => self.fail("hello comes only once"),
            // The thread that reads has done it.
            Request::Start { .. } | Request::Stop {} => Ok(()),
        }
    }

    fn run(
        &self,
        load: &Load,
        session: &mut Session<'_>,
        at_ns: u64,
    ) -> Result<AgentOutcome, String> {
        let now = self.clock.elapsed();
        let wait = Duration::from_nanos(at_ns).checked_sub(now + RUN_DELAY);
        let wait = wait.ok_or_else(|| {
            format!("the start was due at {at_ns} ns, and it is {} ns already", nanos(now))
        })?;
        if wait > START_AHEAD_MAX {
            return Err(format!("the start is {wait:?} ahead: use {START_AHEAD_MAX:?} at most"));
        }
        self.stop.store(false, Ordering::Release);
        std::thread::sleep(wait);
        if load.poll {
            session.set_mode(Mode::Poll);
        }
        let counters = session.counters();
        let start = self.clock + Duration::from_nanos(at_ns);
        let slice = (Duration::from_millis(load.runtime_ms) / SLICES).max(SLICE_MIN);
        let done = AtomicBool::new(false);
        let (outcome, pdus_by_second) = std::thread::scope(|scope| {
            let series = scope.spawn(|| by_second(&counters, &done));
            let outcome = session.run_at(load.seed, start, slice);
            done.store(true, Ordering::Release);
            (outcome, series.join().unwrap_or_default())
        });
        session.set_mode(Mode::Interrupt);
        let outcome = outcome.map_err(|error: RunError| error.to_string())?;
        if let Some(error) = &outcome.error {
            return Err(match error {
                JobError::Io(why) => format!("a command failed: {why}"),
                JobError::Mismatch(mismatch) => mismatch.to_string(),
            });
        }
        Ok(measured(&outcome, slice, pdus_by_second))
    }

    /// The next request; `None` when the controller is gone.
    fn next(&self, limit: Duration) -> Result<Option<Request>, ServeError> {
        match self.requests.recv_timeout(limit) {
            Ok(Ok(request)) => Ok(Some(request)),
            Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                Err(ServeError::Controller(error.to_string()))
            }
            Ok(Err(error)) => Err(error.into()),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                Err(ServeError::Controller(format!("it said nothing for {} s", limit.as_secs())))
            }
        }
    }

    fn fail(&mut self, why: &str) -> Result<(), ServeError> {
        self.say(&Answer::Failed { why: why.to_owned() })
    }

    fn say(&mut self, answer: &Answer) -> Result<(), ServeError> {
        Ok(message::write(&mut self.writer, answer)?)
    }
}

/// The agent's machine, with the interface by which it reaches the target.
fn machine(target: Option<IpAddr>) -> serde_json::Value {
    match target {
        Some(address) => environment::read(&Remote { address }),
        None => environment::read(&Loopback),
    }
}

/// Counts the PDUs of each second until the run is done.
fn by_second(counters: &[Arc<QueueCounters>], done: &AtomicBool) -> Vec<u64> {
    let sent = || counters.iter().map(|counters| counters.totals().pdus_sent).sum::<u64>();
    let (began, mut before, mut series) = (Instant::now(), sent(), Vec::new());
    for second in 1.. {
        let due = began + SECOND * second;
        while Instant::now() < due {
            if done.load(Ordering::Acquire) {
                return series;
            }
            let left = due.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
        let now = sent();
        series.push(now.saturating_sub(before));
        before = now;
    }
    series
}

fn measured(outcome: &Outcome, slice: Duration, pdus_by_second: Vec<u64>) -> AgentOutcome {
    let histogram = |side: &Option<Box<Latencies>>| {
        side.as_ref().map_or_else(Histogram::default, |side| Histogram::of(side))
    };
    let slices = outcome.slices.iter();
    AgentOutcome {
        measured_ns: nanos(outcome.measured),
        late_ns: outcome.late.map_or(0, nanos),
        slice_ns: nanos(slice),
        slices: slices
            .map(|one| Slice { reads: histogram(&one.read), writes: histogram(&one.write) })
            .collect(),
        reads: Histogram::of(&outcome.read),
        writes: Histogram::of(&outcome.write),
        missed: outcome.missed,
        user_ns: nanos(outcome.cpu.user),
        system_ns: nanos(outcome.cpu.system),
        pdus_by_second,
    }
}

/// Compares in a time that does not depend on where the two differ.
fn is_same(token: &str, given: &str) -> bool {
    let differ = token.bytes().zip(given.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    token.len() == given.len() && differ == 0
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an agent answers to these lines.
    fn answers(lines: &str, token: Option<&str>) -> (Vec<Answer>, Result<(), ServeError>) {
        let mut written = Vec::new();
        let lines = io::Cursor::new(lines.to_owned().into_bytes());
        let result = serve(lines, &mut written, token);
        let mut reader = &written[..];
        let mut answers = Vec::new();
        while let Some(answer) = message::read(&mut reader, message::ANSWER_BYTES_MAX).unwrap() {
            answers.push(answer);
        }
        (answers, result)
    }

    const HELLO: &str = r#"{"message":"hello","protocol":2,"version":"x"}"#;

    #[test]
    fn a_controller_that_leaves_is_no_error() {
        let (said, result) = answers(&format!("{HELLO}\n"), None);
        result.unwrap();
        let [Answer::Hello { protocol: PROTOCOL, environment, .. }] = &said[..] else {
            panic!("{said:?}")
        };
        assert!(environment::is_whole(environment), "{environment}");
        let (said, _) =
            answers(&format!("{HELLO}\n{{\"message\":\"clock\",\"number\":7}}\n"), None);
        assert!(matches!(said[1], Answer::Clock { number: 7, .. }), "{said:?}");
    }

    #[test]
    fn wrong_requests_are_answered_with_the_reason() {
        let why = |lines: &str, token| match answers(lines, token).0.pop() {
            Some(Answer::Failed { why }) => why,
            other => panic!("{other:?}"),
        };
        assert!(why("garbage\n", None).contains("not a message"));
        assert!(why("{\"message\":\"clock\",\"number\":7}\n", None).contains("must be hello"));
        assert!(why(&format!("{HELLO}\n"), Some("secret")).contains("token is wrong"));
        assert!(why(&HELLO.replace(":2", ":3"), Some("x")).contains("not complete"));
        assert!(why(&(HELLO.replace(":2", ":3") + "\n"), None).contains("protocol 3"));
        let start = format!("{HELLO}\n{{\"message\":\"start\",\"at_ns\":1}}\n");
        assert!(why(&start, None).contains("before prepare"));
        let again = format!("{HELLO}\n{HELLO}\n");
        assert!(why(&again, None).contains("only once"));
        let mut load = Load::new("127.0.0.1:1".parse().unwrap(), "nqn.2026-01.io.raceline:x");
        load.depth = 0;
        let prepare = serde_json::to_string(&Request::Prepare { load: Box::new(load) }).unwrap();
        assert!(why(&format!("{HELLO}\n{prepare}\n"), None).contains("depth 0"));
    }

    #[test]
    fn tokens() {
        assert!(is_same("abc", "abc"));
        assert!(!is_same("abc", "abd") && !is_same("abc", "ab") && !is_same("abc", ""));
    }
}
