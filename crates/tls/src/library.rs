//! The handshake of s2n-tls over memory: the only file with the library's callbacks.
//!
//! The library reads and writes through callbacks of C, and tells its traffic secrets by a callback for key logs. All
//! of them run on the thread that drives the handshake, inside [`Library::drive`]. So the memory of that handshake is
//! in a variable of the thread meanwhile, and no pointer outlives a call.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Once, OnceLock};
use std::task::{Poll, Waker};

use raceline_auth::{Hash, SecretBytes, TlsPsk};
use s2n_tls::callbacks::{ClientHelloCallback, ConnectionFuture, VerifyHostNameCallback};
use s2n_tls::config::{Builder, Config};
use s2n_tls::connection::Connection;
use s2n_tls::enums::{Blinding, ClientAuthType, Mode, PskHmac};
use s2n_tls::psk::Psk;
use s2n_tls::security::Policy;
use zeroize::Zeroize as _;

use crate::binder;
use crate::client_hello;
use crate::error::TlsError;
use crate::keys::{ClientPsk, PskLookup};

/// TLS 1.3 only, AES-128 before AES-256 with GCM, P-256, P-384 and P-521. Numbered policies of the library never change.
const BOTH_SUITES: &str = "ELBSecurityPolicy-TLS13-1-3-FIPS-2023-04";
/// TLS 1.3 only, AES-256 with GCM, P-384. Servers of other libraries choose the first suite that they support, whatever
/// the key is for. So a host with a key for SHA-384 offers no other suite.
const AES_256_ONLY: &str = "20250414";

/// Bytes of an unknown identity that an error shows. Both names have at most 223.
const SHOWN_MAX: usize = 540;

/// The name of a client with a certificate of the authority.
const CERTIFIED: &str = "a client with a certificate";
/// The name of a client that was not asked for a certificate.
const ANONYMOUS: &str = "a client without a certificate";

/// What goes in and out of a handshake.
#[derive(Default)]
struct Exchange {
    input: Vec<u8>,
    /// Bytes of the input that were read.
    read: usize,
    output: Vec<u8>,
    client_secret: Option<SecretBytes>,
    server_secret: Option<SecretBytes>,
}

thread_local! {
    /// Of the handshake that this thread drives.
    static CURRENT: RefCell<Exchange> = RefCell::default();
}

/// What the end of a target knows of its handshake.
struct ServerContext {
    lookup: Arc<dyn PskLookup>,
    /// Why the host's offer was refused.
    refused: Option<TlsError>,
}

/// Makes the random numbers of the library ready, once in a process. The library seeds them with noise that it measures of the
/// processor: that took 35 to 38 ms of one, and seconds in an emulated machine. Whoever makes a provider waits for it. Otherwise the
/// first handshake would, on a core whose connections have to wait as well.
pub(crate) fn prepare() {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        // If there are none, the first handshake fails and says so.
        let _ = aws_lc_rs::rand::fill(&mut [0]);
    });
}

/// One handshake.
pub(crate) struct Library {
    connection: Connection,
    /// Nobody proves to know a key: certificates stand for it.
    by_certificates: bool,
    exchange: Exchange,
}

/// What a handshake has come to.
pub(crate) struct Agreed {
    pub(crate) identity: Vec<u8>,
    /// The library's name of the suite.
    pub(crate) suite: String,
    pub(crate) client_secret: SecretBytes,
    pub(crate) server_secret: SecretBytes,
    /// Input behind the handshake: the peer's first records.
    pub(crate) rest: Vec<u8>,
}

impl Library {
    pub(crate) fn client(psk: &ClientPsk) -> Result<Library, TlsError> {
        static CONFIGS: [OnceLock<Result<Config, String>>; 2] = [OnceLock::new(), OnceLock::new()];
        let (config, policy) = match psk.psk.hash() {
            Hash::Sha384 => (&CONFIGS[1], AES_256_ONLY),
            _ => (&CONFIGS[0], BOTH_SUITES),
        };
        let mut connection = connection(Mode::Client, config, policy)?;
        let psk = library_psk(psk.identity.as_str().as_bytes(), &psk.psk)?;
        connection.append_psk(&psk).map_err(|error| failed(&error))?;
        Ok(Library { connection, by_certificates: false, exchange: Exchange::default() })
    }

    /// The end of a server that has a certificate.
    pub(crate) fn certified_server(certificates: &Certificates) -> Result<Library, TlsError> {
        let connection = connect(Mode::Server, certificates.config.clone())?;
        Ok(Library { connection, by_certificates: true, exchange: Exchange::default() })
    }

    pub(crate) fn server(lookup: Arc<dyn PskLookup>) -> Result<Library, TlsError> {
        static CONFIG: OnceLock<Result<Config, String>> = OnceLock::new();
        let mut connection = connection(Mode::Server, &CONFIG, BOTH_SUITES)?;
        connection.set_application_context(ServerContext { lookup, refused: None });
        Ok(Library { connection, by_certificates: false, exchange: Exchange::default() })
    }

    /// Takes bytes of the peer.
    pub(crate) fn handle(&mut self, bytes: &[u8]) {
        self.exchange.input.extend_from_slice(bytes);
    }

    /// Bytes for the peer.
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.exchange.output
    }

    /// Goes on as far as the input reaches; `None`: more input is needed.
    pub(crate) fn drive(&mut self) -> Result<Option<Agreed>, TlsError> {
        let swap = |exchange: &mut Exchange| {
            CURRENT.with_borrow_mut(|current| std::mem::swap(current, exchange));
        };
        swap(&mut self.exchange);
        let result = self.connection.poll_negotiate().map_ok(|_| ());
        swap(&mut self.exchange);
        match result {
            Poll::Pending => Ok(None),
            Poll::Ready(Ok(())) => self.agree().map(Some),
            Poll::Ready(Err(error)) => Err(self.explain(&error)),
        }
    }

    fn agree(&mut self) -> Result<Agreed, TlsError> {
        let connection = &self.connection;
        let length = connection.negotiated_psk_identity_length().map_err(|e| failed(&e))?;
        let mut identity = vec![0; length];
        if length > 0 {
            connection.negotiated_psk_identity(&mut identity).map_err(|e| failed(&e))?;
        } else if self.by_certificates {
            let name = if connection.client_cert_used() { CERTIFIED } else { ANONYMOUS };
            identity = name.as_bytes().to_vec();
        }
        let suite = connection.cipher_suite().map_err(|e| failed(&e))?.to_owned();
        let exchange = std::mem::take(&mut self.exchange);
        let secrets = exchange.client_secret.clone().zip(exchange.server_secret.clone());
        let (client_secret, server_secret) =
            secrets.ok_or_else(|| TlsError::Handshake("the library gave no secrets".into()))?;
        let rest = exchange.input[exchange.read..].to_vec();
        self.exchange.output = exchange.output;
        Ok(Agreed { identity, suite, client_secret, server_secret, rest })
    }

    /// Why the handshake has failed: what we refused, or the peer's alert, or the library's words.
    fn explain(&mut self, error: &s2n_tls::error::Error) -> TlsError {
        let context = self.connection.application_context_mut::<ServerContext>();
        if let Some(refused) = context.and_then(|context| context.refused.take()) {
            return refused;
        }
        match self.connection.alert() {
            Some(alert) => TlsError::Refused(alert),
            None => failed(error),
        }
    }
}

fn failed(error: &s2n_tls::error::Error) -> TlsError {
    TlsError::Handshake(format!("{} ({})", error.message(), error.name()))
}

fn connection(
    mode: Mode,
    config: &OnceLock<Result<Config, String>>,
    policy: &str,
) -> Result<Connection, TlsError> {
    let config = config.get_or_init(|| configure(policy).map_err(|error| error.to_string()));
    connect(mode, config.clone().map_err(TlsError::Handshake)?)
}

fn connect(mode: Mode, config: Config) -> Result<Connection, TlsError> {
    let prepare = || {
        let mut connection = Connection::new(mode);
        connection.set_config(config)?;
        // The library would delay errors, against peers that time the padding of CBC. No suite here has padding.
        connection.set_blinding(Blinding::SelfService)?;
        connection.set_receive_callback(Some(read))?;
        connection.set_send_callback(Some(write))?;
        // The library asks for a waker before each callback. None of ours ever waits.
        connection.set_waker(Some(Waker::noop()))?;
        Ok(connection)
    };
    prepare().map_err(|error: s2n_tls::error::Error| failed(&error))
}

fn configure(policy: &str) -> Result<Config, s2n_tls::error::Error> {
    let mut builder = Builder::new();
    // No certificate is trusted: without its key, a handshake fails.
    builder.with_system_certs(false)?;
    builder.set_security_policy(&Policy::from_version(policy)?)?;
    builder.set_client_hello_callback(FindKeys)?;
    // SAFETY: the callback does not use its context, so there is nothing that has to live.
    unsafe { builder.set_key_log_callback(Some(log_secret), std::ptr::null_mut())? };
    builder.build()
}

/// What a server proves itself with, and what it wants of its clients.
#[derive(Clone)]
pub struct Certificates {
    config: Config,
}

impl Certificates {
    /// The certificate of the server with those between it and the authority, and its key, all as PEM. With
    /// `authorities`, clients have to have a certificate of one of these; else whoever comes is served.
    ///
    /// # Errors
    /// When the library does not take what is in them.
    pub fn new(
        certificate: &[u8],
        key: &[u8],
        authorities: Option<&[u8]>,
    ) -> Result<Self, TlsError> {
        let make = || {
            let mut builder = Builder::new();
            builder.with_system_certs(false)?;
            builder.set_security_policy(&Policy::from_version(BOTH_SUITES)?)?;
            builder.load_pem(certificate, key)?;
            if let Some(authorities) = authorities {
                builder.trust_pem(authorities)?;
                builder.set_client_auth_type(ClientAuthType::Required)?;
                builder.set_verify_host_callback(AnyName)?;
            }
            // SAFETY: the callback does not use its context, so there is nothing that has to live.
            unsafe { builder.set_key_log_callback(Some(log_secret), std::ptr::null_mut())? };
            builder.build()
        };
        make().map(|config| Self { config }).map_err(|error| failed(&error))
    }
}

/// A client has no name to compare with: that the authority has certified it admits it.
struct AnyName;

impl VerifyHostNameCallback for AnyName {
    fn verify_host_name(&self, _host_name: &str) -> bool {
        true
    }
}

fn library_psk(identity: &[u8], key: &raceline_auth::TlsPsk) -> Result<Psk, TlsError> {
    let hmac = match key.hash() {
        Hash::Sha256 => PskHmac::SHA256,
        Hash::Sha384 => PskHmac::SHA384,
        Hash::Sha512 => {
            return Err(TlsError::Handshake("TLS 1.3 has no suite with SHA-512".into()));
        }
    };
    let make = || {
        let mut builder = Psk::builder()?;
        builder.set_identity(identity)?;
        builder.set_secret(key.key().expose())?;
        builder.set_hmac(hmac)?;
        builder.build()
    };
    make().map_err(|error| failed(&error))
}

/// Gives the library the keys that a host offers and the target knows.
struct FindKeys;

impl ClientHelloCallback for FindKeys {
    fn on_client_hello(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<std::pin::Pin<Box<dyn ConnectionFuture>>>, s2n_tls::error::Error> {
        let message = connection.client_hello()?.raw_message()?;
        let found = find_keys(connection, &message);
        let Err(refused) = found else { return Ok(None) };
        if let Some(context) = connection.application_context_mut::<ServerContext>() {
            context.refused = Some(refused.clone());
        }
        Err(s2n_tls::error::Error::application(Box::new(refused)))
    }
}

fn find_keys(connection: &mut Connection, message: &[u8]) -> Result<(), TlsError> {
    let offered = client_hello::identities(message).ok_or(TlsError::Malformed("ClientHello"))?;
    if offered.is_empty() {
        return Err(TlsError::NoIdentity);
    }
    let context = connection.application_context::<ServerContext>();
    let lookup = context.map(|context| Arc::clone(&context.lookup));
    let lookup = lookup.ok_or_else(|| TlsError::Handshake("no table of keys".into()))?;
    let mut known = 0;
    for (place, identity) in offered.iter().enumerate() {
        let keys = lookup.find_all(identity);
        let key = match &keys[..] {
            [] => continue,
            [key] => key,
            // The library takes one key for an identity. Without one that is right, it refuses the first.
            [first, ..] => key_of_binder(place, &keys).unwrap_or(first),
        };
        let psk = library_psk(identity, key)?;
        connection.append_psk(&psk).map_err(|error| failed(&error))?;
        known += 1;
    }
    if known == 0 {
        let shown =
            |identity: &[u8]| identity[..identity.len().min(SHOWN_MAX)].escape_ascii().to_string();
        let names = offered.iter().map(|identity| shown(identity));
        return Err(TlsError::UnknownIdentity(names.collect::<Vec<_>>().join(", ")));
    }
    Ok(())
}

/// The one of these keys with which the host has made the binder at this place of its offer. The library's own copy of
/// the ClientHello has no random bytes, so the message is taken from the input.
fn key_of_binder(place: usize, keys: &[TlsPsk]) -> Option<&TlsPsk> {
    let message = CURRENT.with_borrow(|current| client_hello::first_message(&current.input))?;
    let (bound, binders) = client_hello::binders(&message)?;
    let (hello, binder) = (message.get(..bound)?, binders.get(place)?);
    keys.iter().find(|key| binder::is_of(key, hello, binder))
}

/// The library wants bytes of the peer.
unsafe extern "C" fn read(_context: *mut c_void, buf: *mut u8, len: u32) -> c_int {
    CURRENT.with_borrow_mut(|current| {
        let rest = &current.input[current.read..];
        let count = rest.len().min(len as usize);
        let Ok(given @ 1..) = c_int::try_from(count) else {
            errno::set_errno(errno::Errno(libc::EWOULDBLOCK));
            return -1;
        };
        // SAFETY: the library gives memory of `len` bytes, which is not a part of our input.
        unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), buf, count) };
        current.read += count;
        given
    })
}

/// The library has bytes for the peer.
unsafe extern "C" fn write(_context: *mut c_void, buf: *const u8, len: u32) -> c_int {
    // SAFETY: the library gives `len` bytes, which nobody writes during the call.
    let bytes = unsafe { std::slice::from_raw_parts(buf, len as usize) };
    CURRENT.with_borrow_mut(|current| current.output.extend_from_slice(bytes));
    c_int::try_from(len).unwrap_or(c_int::MAX)
}

/// The library has made a secret: `<label> <random of the client> <secret>`, in hexadecimal digits (the form of NSS).
unsafe extern "C" fn log_secret(
    _context: *mut c_void,
    _connection: *mut s2n_tls_sys::s2n_connection,
    line: *mut u8,
    len: usize,
) -> c_int {
    // SAFETY: the library gives a line of `len` bytes, which nobody else uses, and which it frees after the call.
    let line = unsafe { std::slice::from_raw_parts_mut(line, len) };
    CURRENT.with_borrow_mut(|current| {
        let mut words = line.split(|byte| *byte == b' ');
        let place = match words.next() {
            Some(b"CLIENT_TRAFFIC_SECRET_0") => &mut current.client_secret,
            Some(b"SERVER_TRAFFIC_SECRET_0") => &mut current.server_secret,
            _ => return,
        };
        *place = words.nth(1).and_then(secret_of_hex);
    });
    line.zeroize();
    0
}

fn secret_of_hex(digits: &[u8]) -> Option<SecretBytes> {
    let mut bytes = [0; 48];
    let secret = bytes.get_mut(..digits.len() / 2)?;
    for (byte, pair) in secret.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    let made = SecretBytes::new(secret);
    bytes.zeroize();
    Some(made)
}
