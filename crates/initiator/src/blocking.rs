//! A session for calls that wait: tools, discovery, and finding out about a logical unit.
//!
//! A thread in the background has the session. Many threads may call at a time.

use std::collections::HashMap;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};

use raceline_iscsi::initiator::DiscoveredTarget;
use raceline_reactor::{
    Completion, Context, IoBuf, Mode, PoolConfig, Reactor, ReactorConfig, ReactorHandle, Sender,
    Service, Token,
};

use crate::cdb::Cdb;
use crate::config::SessionConfig;
use crate::error::SessionError;
use crate::session::{Session, SessionEvent};
use crate::task::{Task, TaskData, TaskError};

/// Staging of the session, and buffers for data.
const POOL: &[(usize, usize)] = &[(128 << 10, 1), (1 << 20, 2)];

/// A session whose calls return when they are done. Dropped, it logs out without waiting.
#[derive(Debug)]
pub struct BlockingSession {
    reactor: Mutex<Option<ReactorHandle<Message>>>,
    sender: Sender<Message>,
    config: Arc<SessionConfig>,
}

/// What a thread asks of the reactor.
#[derive(Debug)]
enum Message {
    Execute(Submission),
    Discover(String, mpsc::Sender<Result<Vec<DiscoveredTarget>, SessionError>>),
    Stop,
}

/// A command on its way to the reactor; buffers of a reactor do not leave it.
#[derive(Debug)]
struct Submission {
    cdb: Cdb,
    /// Bytes that the initiator sends; none unless they go to the target.
    send: Vec<u8>,
    /// Most bytes that the target sends.
    receive_len: usize,
    /// All of them have to come.
    whole: bool,
    reply: mpsc::Sender<Result<Vec<u8>, TaskError>>,
}

impl BlockingSession {
    /// Logs in, and waits until that is done.
    ///
    /// # Errors
    /// When the target cannot be reached, or refuses the login.
    pub fn connect(config: SessionConfig) -> Result<Self, SessionError> {
        let config = Arc::new(config);
        let reactor = ReactorConfig {
            core: None,
            mode: Mode::Interrupt,
            pool: PoolConfig::new(POOL),
            name: "iscsi".to_owned(),
            ..ReactorConfig::default()
        };
        let (started, outcome) = mpsc::channel();
        let own = Arc::clone(&config);
        let reactor = Reactor::spawn(reactor, move |cx| {
            let session = Session::connect(cx, own, Token { owner: 0, generation: 0, index: 0 });
            Ok(Blocking {
                session,
                started: Some(started),
                waiting: HashMap::new(),
                next: 0,
                discovering: None,
            })
        });
        let reactor = reactor
            .map_err(|error| SessionError::Invalid(format!("cannot start a thread: {error}")))?;
        let sender = reactor.sender().clone();
        let this = Self { reactor: Mutex::new(Some(reactor)), sender, config };
        match outcome.recv().unwrap_or(Err(SessionError::Closed)) {
            Ok(()) => Ok(this),
            Err(error) => {
                this.close();
                Err(error)
            }
        }
    }

    /// What it was made with.
    #[must_use]
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }

    /// Executes a command that answers with up to `len` bytes; gives those that have come.
    ///
    /// # Errors
    /// When the command fails.
    pub fn inquire(&self, cdb: Cdb, len: usize) -> Result<Vec<u8>, TaskError> {
        self.execute(cdb, Vec::new(), len, false)
    }

    /// Executes a command that answers with exactly `len` bytes.
    ///
    /// # Errors
    /// When the command fails.
    pub fn receive(&self, cdb: Cdb, len: usize) -> Result<Vec<u8>, TaskError> {
        self.execute(cdb, Vec::new(), len, true)
    }

    /// Executes a command that takes these bytes, maybe none.
    ///
    /// # Errors
    /// When the command fails.
    pub fn send(&self, cdb: Cdb, data: Vec<u8>) -> Result<(), TaskError> {
        self.execute(cdb, data, 0, true).map(drop)
    }

    fn execute(
        &self,
        cdb: Cdb,
        send: Vec<u8>,
        receive_len: usize,
        whole: bool,
    ) -> Result<Vec<u8>, TaskError> {
        let (reply, result) = mpsc::channel();
        let submission = Submission { cdb, send, receive_len, whole, reply };
        if self.sender.send(Message::Execute(submission)).is_err() {
            return Err(TaskError::NotSent);
        }
        result.recv().unwrap_or(Err(TaskError::NotSent))
    }

    /// The targets that the portal tells of: `All` in a discovery session, nothing for the target of the session.
    ///
    /// # Errors
    /// When the session is lost meanwhile.
    pub fn discover(&self, what: &str) -> Result<Vec<DiscoveredTarget>, SessionError> {
        let (reply, result) = mpsc::channel();
        if self.sender.send(Message::Discover(what.to_owned(), reply)).is_err() {
            return Err(SessionError::Closed);
        }
        result.recv().unwrap_or(Err(SessionError::Closed))
    }

    /// Logs out, and waits until that is done.
    pub fn close(&self) {
        // Fails only if the thread has ended.
        let _ = self.sender.send(Message::Stop);
        let reactor = self.reactor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = reactor.map(ReactorHandle::join) {
            tracing::error!("{error}");
        }
    }
}

impl Drop for BlockingSession {
    fn drop(&mut self) {
        // Fails only if the thread has ended.
        let _ = self.sender.send(Message::Stop);
    }
}

/// The service of the thread.
struct Blocking {
    session: Session,
    /// Who waits for the login.
    started: Option<mpsc::Sender<Result<(), SessionError>>>,
    waiting: HashMap<u64, mpsc::Sender<Result<Vec<u8>, TaskError>>>,
    next: u64,
    discovering: Option<mpsc::Sender<Result<Vec<DiscoveredTarget>, SessionError>>>,
}

impl Blocking {
    fn submit(&mut self, cx: &mut Context<'_>, submission: Submission) {
        let Submission { cdb, send, receive_len, whole, reply } = submission;
        let data = match (send.len(), receive_len) {
            (0, 0) => TaskData::None,
            (0, len) => {
                let mut buf = cx.pool.take(len).unwrap_or_else(|| IoBuf::heap(len));
                buf.set_len(len);
                TaskData::Read(buf)
            }
            _ => TaskData::Write(IoBuf::from_slice(&send).share()),
        };
        self.next += 1;
        match self.session.submit(cx, Task { cdb, data, whole }, self.next) {
            Ok(()) => drop(self.waiting.insert(self.next, reply)),
            // The caller may be gone; then the result is dropped.
            Err(_) => drop(reply.send(Err(TaskError::NotSent))),
        }
    }

    fn handle_events(&mut self, cx: &mut Context<'_>) {
        while let Some(done) = self.session.poll_done() {
            let Some(reply) = self.waiting.remove(&done.user) else { continue };
            let result = done.result.map(|len| match &done.data {
                TaskData::Read(buf) => buf[..usize::try_from(len).unwrap_or(0)].to_vec(),
                TaskData::None | TaskData::Write(_) => Vec::new(),
            });
            drop(reply.send(result)); // as above
        }
        while let Some(event) = self.session.poll_event() {
            match event {
                SessionEvent::Ready => self.tell_started(Ok(())),
                SessionEvent::Lost(error) | SessionEvent::Failed(error) => {
                    if self.started.is_some() {
                        self.session.close(cx);
                    } else {
                        tracing::warn!(%error, "session lost");
                    }
                    if let Some(reply) = self.discovering.take() {
                        drop(reply.send(Err(error.clone()))); // as above
                    }
                    self.tell_started(Err(error));
                }
                SessionEvent::Targets(targets) => {
                    if let Some(reply) = self.discovering.take() {
                        drop(reply.send(Ok(targets))); // as above
                    }
                }
                SessionEvent::Closed | SessionEvent::Attention(_) => {}
            }
        }
    }

    fn tell_started(&mut self, result: Result<(), SessionError>) {
        if let Some(started) = self.started.take() {
            drop(started.send(result)); // as above
        }
    }
}

impl Service for Blocking {
    type Message = Message;

    fn handle_message(&mut self, cx: &mut Context<'_>, message: Message) {
        match message {
            Message::Execute(submission) => self.submit(cx, submission),
            Message::Discover(what, reply) => {
                self.discovering = Some(reply);
                self.session.discover(&what);
            }
            Message::Stop => self.session.close(cx),
        }
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        self.session.handle_completion(cx, completion);
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        self.handle_events(cx);
        self.session.flush(cx);
        self.handle_events(cx);
    }

    fn is_finished(&self) -> bool {
        self.session.is_closed()
    }
}
