//! The controller's connection to one agent: a child process, or TCP.

use std::io::{self, BufReader, ErrorKind, Read};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::fleet::FleetError;
use super::message::{self, ANSWER_BYTES_MAX, Answer, PROTOCOL, Request};

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long an agent may take for what it can answer at once. `ssh` may take some seconds to connect.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// How long a child may take to end after its input has ended; then it is killed.
const END_LIMIT: Duration = Duration::from_secs(2);
/// Looks at an agent's clock; the one with the shortest round trip counts.
const CLOCK_LOOKS: u32 = 8;

/// An agent, as its controller sees it.
#[derive(Debug)]
pub struct Agent {
    name: String,
    means: Means,
    answers: Receiver<io::Result<Answer>>,
    environment: serde_json::Value,
}

#[derive(Debug)]
enum Means {
    /// The child's input is closed before the child is waited for.
    Child(Box<Child>),
    Tcp(TcpStream),
}

/// An agent's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// When the agent's clock was 0, by the clock of this process; the agent may have begun before it.
    zero_ns: i128,
    /// The estimate is wrong by this at most.
    pub error: Duration,
}

impl Agent {
    /// Starts an agent as a child that speaks over its standard input and output, and greets it. What the agent writes
    /// to its standard error goes to that of this process. `target` is that of the loads to come.
    ///
    /// # Errors
    /// When the child does not start, has another version, or does not answer.
    pub fn spawn(
        name: &str,
        command: &mut Command,
        target: Option<IpAddr>,
    ) -> Result<Self, FleetError> {
        let failed = |error| FleetError::vanished(name, "starting", &error);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(failed)?;
        let output = child.stdout.take().ok_or_else(|| failed(ErrorKind::BrokenPipe.into()))?;
        let answers = listen(output).map_err(failed)?;
        Self::greet(name, Means::Child(Box::new(child)), answers, (None, target))
    }

    /// Connects to an agent that listens, and greets it; `target` as in [`Self::spawn`].
    ///
    /// # Errors
    /// When the agent cannot be reached, refuses the token, has another version, or does not answer.
    pub fn connect(
        name: &str,
        address: SocketAddr,
        token: Option<&str>,
        target: Option<IpAddr>,
    ) -> Result<Self, FleetError> {
        let failed = |error| FleetError::vanished(name, "connecting", &error);
        let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_write_timeout(Some(ANSWER_LIMIT)).map_err(failed)?;
        let answers = stream.try_clone().and_then(listen).map_err(failed)?;
        Self::greet(name, Means::Tcp(stream), answers, (token, target))
    }

    fn greet(
        name: &str,
        means: Means,
        answers: Receiver<io::Result<Answer>>,
        (token, target): (Option<&str>, Option<IpAddr>),
    ) -> Result<Self, FleetError> {
        let environment = serde_json::Value::Null;
        let mut agent = Self { name: name.to_owned(), means, answers, environment };
        let (version, token) = (super::version(), token.map(str::to_owned));
        let hello = Request::Hello { protocol: PROTOCOL, version: version.clone(), target, token };
        // An agent of another version may have said so and ended already.
        let unsaid = agent.write(&hello).err();
        let limit = if unsaid.is_some() { END_LIMIT } else { ANSWER_LIMIT };
        let heard = match (agent.wait(limit, "greeting"), unsaid) {
            (Err(FleetError::Silent { .. }), Some(error)) => {
                return Err(FleetError::vanished(name, "greeting", &error));
            }
            (heard, _) => heard?,
        };
        match heard {
            Answer::Hello { protocol, version: theirs, environment }
                if (protocol, &theirs) == (PROTOCOL, &version) =>
            {
                agent.environment = environment;
                Ok(agent)
            }
            Answer::Hello { version: theirs, .. } => {
                Err(FleetError::Version { agent: agent.name.clone(), theirs, ours: version })
            }
            other => Err(agent.unexpected(&other, "greeting")),
        }
    }

    /// Its name in messages and reports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it said about its machine.
    #[must_use]
    pub fn environment(&self) -> &serde_json::Value {
        &self.environment
    }

    /// Estimates the offset of the agent's clock to `clock`.
    pub(super) fn offset(&mut self, clock: Instant) -> Result<Offset, FleetError> {
        let mut best: Option<Offset> = None;
        for number in 0..CLOCK_LOOKS {
            let asked = clock.elapsed();
            self.say(&Request::Clock { number }, "comparing clocks")?;
            let agent_ns = match self.wait(ANSWER_LIMIT, "comparing clocks")? {
                Answer::Clock { number: of, agent_ns } if of == number => agent_ns,
                other => return Err(self.unexpected(&other, "comparing clocks")),
            };
            let answered = clock.elapsed();
            let error = (answered - asked) / 2;
            let middle = i128::try_from((asked + error).as_nanos()).unwrap_or(i128::MAX);
            if best.is_none_or(|best| error < best.error) {
                best = Some(Offset { zero_ns: middle - i128::from(agent_ns), error });
            }
        }
        best.ok_or_else(|| FleetError::protocol(&self.name, "no look at its clock".to_owned()))
    }

    pub(super) fn say(
        &mut self,
        request: &Request,
        during: &'static str,
    ) -> Result<(), FleetError> {
        let Err(error) = self.write(request) else { return Ok(()) };
        // An agent that cannot be written to may have said why, or its end says it.
        match self.wait(END_LIMIT, during) {
            Err(FleetError::Silent { .. }) | Ok(_) => {
                Err(FleetError::vanished(&self.name, during, &error))
            }
            Err(said) => Err(said),
        }
    }

    fn write(&mut self, request: &Request) -> io::Result<()> {
        match &mut self.means {
            Means::Child(child) => match &mut child.stdin {
                Some(input) => message::write(input, request),
                None => Err(ErrorKind::BrokenPipe.into()),
            },
            Means::Tcp(stream) => message::write(stream, request),
        }
    }

    /// The next answer; a failure of the agent is an error.
    pub(super) fn wait(
        &mut self,
        limit: Duration,
        during: &'static str,
    ) -> Result<Answer, FleetError> {
        match self.answers.recv_timeout(limit) {
            Ok(Ok(Answer::Failed { why })) => {
                Err(FleetError::Failed { agent: self.name.clone(), during, why })
            }
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if error.kind() == ErrorKind::InvalidData => {
                Err(FleetError::protocol(&self.name, error.to_string()))
            }
            Ok(Err(error)) => Err(FleetError::vanished(&self.name, during, &error)),
            Err(RecvTimeoutError::Disconnected) => {
                let why = io::Error::new(ErrorKind::UnexpectedEof, self.end());
                Err(FleetError::vanished(&self.name, during, &why))
            }
            Err(RecvTimeoutError::Timeout) => {
                Err(FleetError::Silent { agent: self.name.clone(), during, limit })
            }
        }
    }

    /// As [`Self::wait`], without waiting.
    pub(super) fn look(&mut self, during: &'static str) -> Result<Option<Answer>, FleetError> {
        match self.wait(Duration::ZERO, during) {
            Err(FleetError::Silent { .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    pub(super) fn unexpected(&self, answer: &Answer, during: &str) -> FleetError {
        let text: String = format!("{answer:?}").chars().take(80).collect();
        FleetError::protocol(&self.name, format!("an answer that does not fit {during}: {text}"))
    }

    /// How a child ended.
    fn end(&mut self) -> String {
        let Means::Child(child) = &mut self.means else {
            return "the connection has ended".to_owned();
        };
        let deadline = Instant::now() + END_LIMIT;
        while Instant::now() < deadline {
            match child.try_wait() {
                Ok(Some(status)) => return format!("the process has ended: {status}"),
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => return format!("the process: {error}"),
            }
        }
        "the process has closed its output".to_owned()
    }
}

impl Offset {
    /// This time by the agent's clock, in nanoseconds.
    pub(super) fn agent_ns(self, at: Duration) -> u64 {
        let at = i128::try_from(at.as_nanos()).unwrap_or(i128::MAX);
        u64::try_from(at.saturating_sub(self.zero_ns)).unwrap_or(0)
    }

    /// How far apart two estimates of one clock are.
    pub(super) fn apart(self, other: Self) -> Duration {
        let apart = self.zero_ns.abs_diff(other.zero_ns);
        Duration::from_nanos(u64::try_from(apart).unwrap_or(u64::MAX))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        match &mut self.means {
            // The agent ends when its controller is gone.
            Means::Tcp(stream) => drop(stream.shutdown(Shutdown::Both)),
            Means::Child(child) => {
                drop(child.stdin.take());
                let deadline = Instant::now() + END_LIMIT;
                while Instant::now() < deadline {
                    if !matches!(child.try_wait(), Ok(None)) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                // It may have ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Reads answers on a thread of its own, so that waiting for them has a limit.
fn listen(reader: impl Read + Send + 'static) -> io::Result<Receiver<io::Result<Answer>>> {
    // An agent answers each request once; a talkative one waits.
    let (sender, answers) = sync_channel(4);
    std::thread::Builder::new().name("answers".to_owned()).spawn(move || {
        let mut reader = BufReader::new(reader);
        while let Some(answer) = message::read(&mut reader, ANSWER_BYTES_MAX).transpose() {
            let is_last = answer.is_err();
            if sender.send(answer).is_err() || is_last {
                return;
            }
        }
    })?;
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_translated() {
        let at = Duration::from_secs(5);
        let offset = |zero_ns| Offset { zero_ns, error: Duration::ZERO };
        for (zero_ns, agent_ns) in [
            (-3_000_000_000, 8_000_000_000),
            (0, 5_000_000_000),
            (2_000_000_000, 3_000_000_000),
            (i128::MAX, 0),
        ] {
            assert_eq!(offset(zero_ns).agent_ns(at), agent_ns);
        }
        assert_eq!(offset(-7).apart(offset(5)), Duration::from_nanos(12));
        assert_eq!(offset(i128::MIN).apart(offset(i128::MAX)), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn a_child_that_is_no_agent_is_named() {
        let error =
            Agent::spawn("left", &mut Command::new("/nonexistent/agent"), None).unwrap_err();
        assert!(error.to_string().contains("agent left"), "{error}");
        let error =
            Agent::spawn("left", Command::new("sh").args(["-c", "exit 3"]), None).unwrap_err();
        assert!(
            error.to_string().contains("agent left") && error.to_string().contains('3'),
            "{error}"
        );
        let error = Agent::spawn("left", Command::new("echo").arg("hello"), None).unwrap_err();
        assert!(error.to_string().contains("not a message"), "{error}");
        let old = r#"{"message":"hello","protocol":1,"version":"0.0.1","environment":null}"#;
        let error = Agent::spawn("left", Command::new("echo").arg(old), None).unwrap_err();
        assert!(error.to_string().contains("0.0.1"), "{error}");
    }

    #[test]
    fn a_child_that_has_ended_before_it_is_greeted_is_named() {
        let old = r#"{"message":"hello","protocol":1,"version":"0.0.1","environment":null}"#;
        for (script, expected) in
            [("exit 3", "exit status: 3"), (&*format!("echo '{old}'"), "0.0.1")]
        {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let answers = listen(child.stdout.take().unwrap()).unwrap();
            while child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let error = Agent::greet("left", Means::Child(Box::new(child)), answers, (None, None));
            let error = error.unwrap_err().to_string();
            assert!(error.contains("agent left") && error.contains(expected), "{error}");
        }
    }
}
