//! A handshake without I/O: bytes in, bytes out, and in the end a session.

use std::fmt;
use std::sync::Arc;

use crate::error::TlsError;
use crate::keys::{ClientPsk, PskLookup};
use crate::library::{Certificates, Library};
use crate::record::Suite;
use crate::session::Session;

/// Most bytes that a peer may need for its part of the handshake. The largest message, a ClientHello with eight
/// identities, has about 4 KiB.
const INPUT_MAX: usize = 32 << 10;

/// The type of a record of the handshake, and of one that ends it: the first byte of a peer that speaks TLS.
pub(crate) const HANDSHAKE: u8 = 22;
const ALERT: u8 = 21;
/// The largest type of a PDU of NVMe/TCP.
const PDU_TYPE_MAX: u8 = 9;

/// One end of a handshake. Give it what comes ([`Self::handle`]) and send what [`Self::take_output`] gives, also after
/// an error: then it is the alert that tells the peer why.
pub struct Handshake {
    engine: Engine,
    /// The identity that this end offers; a target offers none.
    offered: Option<String>,
    /// Bytes that have come.
    received: usize,
    /// Bytes that were given out.
    sent: usize,
    failed: Option<TlsError>,
}

/// By what the end of a target is known, and whom it lets in.
#[derive(Clone)]
pub(crate) enum Credentials {
    /// Keys that hosts have, too.
    Keys(Arc<dyn PskLookup>),
    /// A certificate of its own.
    Certificates(Certificates),
}

/// A target has no memory for the library before the host's first byte: silent sockets cost nothing.
enum Engine {
    Idle(Credentials),
    /// It failed before the library was needed; the output is the alert.
    Refused(Vec<u8>),
    Running(Library),
}

/// What a handshake has made.
pub struct Established {
    /// The identity of the key that both ends have proved to know.
    pub identity: String,
    /// The suite.
    pub suite: Suite,
    /// The keys of the records.
    pub session: Session,
    /// What has come behind the handshake: the peer's first records.
    pub rest: Vec<u8>,
}

impl Handshake {
    /// The end of a host, with the one key that it offers. Its first output is there at once.
    ///
    /// # Errors
    /// When the library refuses the key or has no memory.
    pub fn client(psk: &ClientPsk) -> Result<Handshake, TlsError> {
        let library = Library::client(psk)?;
        let offered = Some(psk.identity.as_str().to_owned());
        let mut handshake = Handshake::new(Engine::Running(library), offered);
        handshake.drive()?;
        Ok(handshake)
    }

    /// The end of a target.
    #[must_use]
    pub fn server(lookup: Arc<dyn PskLookup>) -> Handshake {
        Handshake::served_by(Credentials::Keys(lookup))
    }

    pub(crate) fn served_by(credentials: Credentials) -> Handshake {
        Handshake::new(Engine::Idle(credentials), None)
    }

    fn new(engine: Engine, offered: Option<String>) -> Handshake {
        Handshake { engine, offered, received: 0, sent: 0, failed: None }
    }

    /// Whether this is the end of a host.
    pub(crate) fn is_of_host(&self) -> bool {
        self.offered.is_some()
    }

    /// Whether anything has come from the peer.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.received > 0
    }

    /// Takes bytes of the peer, in pieces of any size; `None`: more are needed.
    ///
    /// # Errors
    /// When the handshake has failed. It stays failed.
    pub fn handle(&mut self, bytes: &[u8]) -> Result<Option<Established>, TlsError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.handle_new(bytes);
        if let Err(error) = &result {
            self.failed = Some(error.clone());
            self.add_alert(error);
        }
        result
    }

    fn handle_new(&mut self, bytes: &[u8]) -> Result<Option<Established>, TlsError> {
        if let (0, Some(&first)) = (self.received, bytes.first()) {
            self.check_first(first)?;
        }
        self.received += bytes.len();
        if let Engine::Idle(credentials) = &self.engine {
            self.engine = Engine::Running(match credentials {
                Credentials::Keys(lookup) => Library::server(Arc::clone(lookup))?,
                Credentials::Certificates(own) => Library::certified_server(own)?,
            });
        }
        if let Engine::Running(library) = &mut self.engine {
            library.handle(bytes);
        }
        let established = self.drive()?;
        if established.is_none() && self.received > INPUT_MAX {
            return Err(TlsError::TooLong(self.received));
        }
        Ok(established)
    }

    /// A host may answer with an alert; a target is greeted with a handshake.
    fn check_first(&self, first: u8) -> Result<(), TlsError> {
        match first {
            HANDSHAKE => Ok(()),
            ALERT if self.offered.is_some() => Ok(()),
            0..=PDU_TYPE_MAX => Err(TlsError::Plain(first)),
            _ => Err(TlsError::NotTls(first)),
        }
    }

    fn drive(&mut self) -> Result<Option<Established>, TlsError> {
        let Engine::Running(library) = &mut self.engine else { return Ok(None) };
        let Some(agreed) = library.drive()? else { return Ok(None) };
        let wrong = |what: String| Err(TlsError::NotThePsk(what));
        let Ok(identity) = String::from_utf8(agreed.identity) else {
            return wrong("an identity that is not text".into());
        };
        if identity.is_empty() {
            return wrong("the peer chose none".into());
        }
        if self.offered.as_ref().is_some_and(|offered| *offered != identity) {
            return wrong(format!("the peer chose {}", identity.escape_debug()));
        }
        let suites = [Suite::Aes128GcmSha256, Suite::Aes256GcmSha384];
        let suite = suites.into_iter().find(|suite| {
            suite.name() == agreed.suite
                && suite.secret_len() == agreed.client_secret.expose().len()
        });
        let Some(suite) = suite else { return wrong(format!("the suite is {}", agreed.suite)) };
        let secrets = if self.offered.is_some() {
            (agreed.client_secret, agreed.server_secret)
        } else {
            (agreed.server_secret, agreed.client_secret)
        };
        let session = Session::new(suite, secrets.0, secrets.1);
        Ok(Some(Established { identity, suite, session, rest: agreed.rest }))
    }

    /// Bytes for the peer.
    pub fn take_output(&mut self) -> Vec<u8> {
        let output = match &mut self.engine {
            Engine::Idle(_) => Vec::new(),
            Engine::Refused(alert) => std::mem::take(alert),
            Engine::Running(library) => std::mem::take(library.output()),
        };
        self.sent += output.len();
        output
    }

    /// The alert of an error. Before this end has said anything, it is in the clear. After that, the library has said
    /// what is to be said.
    fn add_alert(&mut self, error: &TlsError) {
        if matches!(self.engine, Engine::Idle(_)) {
            self.engine = Engine::Refused(Vec::new());
        }
        let output = match &mut self.engine {
            Engine::Idle(_) => return,
            Engine::Refused(output) => output,
            Engine::Running(library) => library.output(),
        };
        if let (0, true, Some(alert)) = (self.sent, output.is_empty(), error.alert()) {
            output.extend([ALERT, 3, 3, 0, 2, 2, alert]);
        }
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handshake({} bytes received, {} sent)", self.received, self.sent)
    }
}
