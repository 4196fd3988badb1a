//! A connection to a daemon: sends requests and receives replies, each within a time limit.

use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::{DEFAULT_SOCKET, PACKAGED_SOCKET, Request};

/// The largest reply that is accepted, in bytes. SPDK's largest reply is half of that.
const REPLY_LIMIT_BYTES: u64 = 64 << 20;
/// Pause between two attempts to connect.
const RETRY_PERIOD: Duration = Duration::from_millis(200);

/// Where a daemon listens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// An address and port.
    Tcp(SocketAddr),
}

impl Address {
    /// What `rpc.py` makes of its `-s` and `-p`: an IP address means TCP, anything else is a path.
    pub fn new(text: &str, port: u16) -> Self {
        match text.parse::<IpAddr>() {
            Ok(ip) => Self::Tcp(SocketAddr::new(ip, port)),
            Err(_) => Self::Unix(PathBuf::from(text)),
        }
    }

    /// Where a daemon is that nobody has named: the place of the packages, in which only the service can make a socket, and
    /// then SPDK's, in which any user can.
    pub fn usual() -> [Self; 2] {
        [PACKAGED_SOCKET, DEFAULT_SOCKET].map(|path| Self::Unix(PathBuf::from(path)))
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// What a daemon said instead of a result.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
pub struct Refusal {
    /// JSON-RPC's code, or a negative errno.
    pub code: i64,
    /// Its text.
    pub message: String,
    /// What was wrong; Raceline sends this detail, SPDK does not.
    pub detail: Option<String>,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (JSON-RPC error {})", self.message, self.code)?;
        self.detail.as_ref().map_or(Ok(()), |detail| write!(f, ": {detail}"))
    }
}

/// Why a call brought no result.
#[derive(Debug, Error)]
pub enum ClientError {
    /// Nothing accepts connections at the address.
    #[error("cannot connect to {address}: {source} ({})", what_to_do(source))]
    Connect {
        /// Where it was tried.
        address: Address,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody has named a daemon, and there is none at the usual addresses.
    #[error("there is no daemon at {}: name its socket with --socket or RACELINE_RPC_SOCKET, or start raceline serve", each(.0))]
    Nowhere(Vec<(Address, io::Error)>),
    /// The daemon refused the request.
    #[error("{method}: {refusal}")]
    Refused {
        /// The method that was called.
        method: String,
        /// What the daemon said.
        refusal: Refusal,
    },
    /// No reply within the time limit.
    #[error("no reply within {0:?} (--timeout sets the time)")]
    Timeout(Duration),
    /// The connection ended before the reply.
    #[error("the daemon closed the connection before it replied")]
    Closed,
    /// The reply is not what JSON-RPC says.
    #[error("the reply is not JSON-RPC: {0}")]
    Malformed(String),
    /// The socket failed.
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
}

fn what_to_do(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            "the socket is for root, the daemon's user and its group"
        }
        _ => "is raceline serve running?",
    }
}

/// The addresses that were tried, and what each said.
fn each(tried: &[(Address, io::Error)]) -> String {
    let tried = tried.iter().map(|(address, source)| match source.kind() {
        io::ErrorKind::PermissionDenied => format!("{address} ({source}: {})", what_to_do(source)),
        _ => format!("{address} ({source})"),
    });
    tried.collect::<Vec<String>>().join(" or ")
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    address: Address,
    reader: BufReader<Timed>,
    timeout: Duration,
    next_id: u64,
}

impl Connection {
    /// Connects, and retries up to `retries` times. `timeout` applies to each call.
    pub fn open(address: &Address, timeout: Duration, retries: u32) -> Result<Self, ClientError> {
        Self::open_first(std::slice::from_ref(address), timeout, retries)
    }

    /// The daemon at `address`; without an address, the one that is at a usual place.
    pub fn find(
        address: Option<&Address>,
        timeout: Duration,
        retries: u32,
    ) -> Result<Self, ClientError> {
        match address {
            Some(address) => Self::open(address, timeout, retries),
            None => Self::open_first(&Address::usual(), timeout, retries),
        }
    }

    /// Connects to the first address where a daemon listens: a socket that a daemon has left behind is passed over.
    fn open_first(
        addresses: &[Address],
        timeout: Duration,
        retries: u32,
    ) -> Result<Self, ClientError> {
        let mut left = retries;
        loop {
            let mut tried = Vec::new();
            for address in addresses {
                match Stream::connect(address, timeout) {
                    Ok(stream) => {
                        let reader = BufReader::new(Timed { stream, until: Instant::now() });
                        return Ok(Self { address: address.clone(), reader, timeout, next_id: 1 });
                    }
                    Err(source) => {
                        // A daemon is there, and another one than this is not meant.
                        let is_there = source.kind() == std::io::ErrorKind::PermissionDenied;
                        tried.push((address.clone(), source));
                        if is_there {
                            break;
                        }
                    }
                }
            }
            if left == 0 {
                return Err(match (tried.pop(), tried.is_empty()) {
                    (Some((address, source)), true) => ClientError::Connect { address, source },
                    (last, _) => ClientError::Nowhere(tried.into_iter().chain(last).collect()),
                });
            }
            left -= 1;
            std::thread::sleep(RETRY_PERIOD);
        }
    }

    /// Where the daemon is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Calls a method and waits for its result.
    pub fn call(
        &mut self,
        method: &str,
        params: &Map<String, Value>,
    ) -> Result<Value, ClientError> {
        let (id, request) = self.request(method, params);
        self.send(&request)?;
        let reply = match self.receive() {
            // A daemon that is told to end may end before it answers.
            Err(ClientError::Closed) if method == "spdk_kill_instance" => return Ok(Value::Null),
            reply => reply?,
        };
        if reply.get("id") != Some(&Value::from(id)) && reply.get("error").is_none() {
            return Err(ClientError::Malformed(format!("a reply to another request: {reply}")));
        }
        result_of(reply)?
            .map_err(|refusal| ClientError::Refused { method: method.to_owned(), refusal })
    }

    /// Sends all requests as one batch, and gives the results in the order of the requests.
    pub fn call_batch(
        &mut self,
        requests: &[Request],
    ) -> Result<Vec<Result<Value, Refusal>>, ClientError> {
        let numbered: Vec<(u64, Value)> =
            requests.iter().map(|request| self.request(&request.method, &request.params)).collect();
        let ids: Vec<u64> = numbered.iter().map(|(id, _)| *id).collect();
        self.send(&numbered.into_iter().map(|(_, request)| request).collect())?;
        let mut replies = match self.receive()? {
            Value::Array(replies) => replies,
            // One answer for all of them.
            reply => {
                let batch = || format!("the batch of {} calls", ids.len());
                result_of(reply)?
                    .map_err(|refusal| ClientError::Refused { method: batch(), refusal })?;
                let problem = "a batch was answered by something else".to_owned();
                return Err(ClientError::Malformed(problem));
            }
        };
        let mut results = Vec::with_capacity(ids.len());
        for id in ids {
            let mine = replies.iter().position(|reply| reply.get("id") == Some(&Value::from(id)));
            let Some(at) = mine else {
                return Err(ClientError::Malformed(format!(
                    "no reply to request {id} of the batch"
                )));
            };
            results.push(result_of(replies.swap_remove(at))?);
        }
        Ok(results)
    }

    fn request(&mut self, method: &str, params: &Map<String, Value>) -> (u64, Value) {
        let id = self.next_id;
        self.next_id += 1;
        (id, message(method, params, id))
    }

    fn send(&mut self, request: &Value) -> Result<(), ClientError> {
        tracing::info!("request {request}");
        let timed = self.reader.get_mut();
        timed.until = Instant::now() + self.timeout;
        let written = timed.stream.write_all(request.to_string().as_bytes());
        written.map_err(|error| self.failed(error))
    }

    fn receive(&mut self) -> Result<Value, ClientError> {
        self.reader.get_mut().until = Instant::now() + self.timeout;
        let limited = (&mut self.reader).take(REPLY_LIMIT_BYTES);
        let mut values = serde_json::Deserializer::from_reader(limited).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => {
                tracing::info!("reply {value}");
                Ok(value)
            }
            Some(Err(error)) if error.is_io() => Err(self.failed(error.into())),
            Some(Err(error)) if error.is_eof() => Err(ClientError::Closed),
            Some(Err(error)) => Err(ClientError::Malformed(error.to_string())),
            None => Err(ClientError::Closed),
        }
    }

    fn failed(&self, error: io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                ClientError::Timeout(self.timeout)
            }
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => ClientError::Closed,
            _ => ClientError::Socket(error),
        }
    }
}

impl Request {
    /// The request as it goes out.
    pub fn message(&self, id: u64) -> Value {
        message(&self.method, &self.params, id)
    }
}

fn message(method: &str, params: &Map<String, Value>, id: u64) -> Value {
    let mut request = json!({"jsonrpc": "2.0", "method": method, "id": id});
    if !params.is_empty() {
        request["params"] = Value::Object(params.clone());
    }
    request
}

/// The result or the error of a reply; `Malformed` if the reply has neither.
fn result_of(mut reply: Value) -> Result<Result<Value, Refusal>, ClientError> {
    if let Some(error) = reply.get("error") {
        let code = error["code"].as_i64().unwrap_or(0);
        let message = error["message"].as_str().unwrap_or("no message").to_owned();
        let detail = error.get("data").map(|data| match data.as_str() {
            Some(text) => text.to_owned(),
            None => data.to_string(),
        });
        return Ok(Err(Refusal { code, message, detail }));
    }
    match reply.get_mut("result") {
        Some(result) => Ok(Ok(result.take())),
        None => Err(ClientError::Malformed(format!("neither result nor error: {reply}"))),
    }
}

/// A socket whose reads and writes end at a deadline.
#[derive(Debug)]
struct Timed {
    stream: Stream,
    until: Instant,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_timeout(left)?;
        self.stream.read(buffer)
    }
}

#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn connect(address: &Address, timeout: Duration) -> io::Result<Self> {
        let stream = match address {
            Address::Unix(path) => Self::Unix(UnixStream::connect(path)?),
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, timeout)?;
                stream.set_nodelay(true)?;
                Self::Tcp(stream)
            }
        };
        stream.set_timeout(timeout)?;
        Ok(stream)
    }

    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(timeout))
            }
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(buffer),
            Self::Tcp(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
