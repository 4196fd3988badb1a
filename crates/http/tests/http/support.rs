//! A manager with an HTTP server, and a client that sends bytes.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use raceline_control::manager::{Manager, ManagerConfig};
use raceline_control::method::Registry;
use raceline_http::{HttpConfig, HttpServer, Listener, Page, Parts, Token};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

/// How long a test waits for an answer before it fails.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

const ALL: Parts = Parts { rpc: true, metrics: true, page: true };
/// `:TOKEN`, `admin:TOKEN` and so on are made of this.
pub(crate) const TOKEN: &str = "correct-horse-battery";
pub(crate) const READ_TOKEN: &str = "only-looking-at-it";

pub(crate) const PAGE: Page = Page {
    path: "/",
    content_type: "text/html; charset=utf-8",
    policy: "default-src 'self'",
    body: b"<!doctype html><title>Raceline</title>",
};

/// A server. It ends with its test.
pub(crate) struct Served {
    pub(crate) manager: Arc<Manager>,
    pub(crate) address: SocketAddr,
    server: Option<HttpServer>,
    _folder: TempDir,
}

impl Served {
    /// A server on loopback with all parts, whose framework has started.
    pub(crate) fn start() -> Self {
        let served = Self::start_with(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), ALL, |_| ());
        served.change("framework_start_init", Value::Null);
        served
    }

    pub(crate) fn start_with(
        address: SocketAddr,
        parts: Parts,
        adjust: impl FnOnce(&mut HttpConfig),
    ) -> Self {
        let manager = Manager::new(ManagerConfig::default(), Arc::new(Registry::new()));
        let manager = Arc::new(manager);
        manager.share();
        let listener = Listener::bind(address, parts).unwrap();
        let mut address = listener.address();
        if address.ip().is_unspecified() {
            address.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        let folder = tempfile::tempdir().unwrap();
        let mut config = HttpConfig {
            listeners: vec![listener],
            token: Some(token(&folder, TOKEN)),
            read_token: Some(token(&folder, READ_TOKEN)),
            pages: vec![PAGE],
            ..HttpConfig::default()
        };
        adjust(&mut config);
        let server = Some(HttpServer::start(config, Arc::clone(&manager)).unwrap());
        Self { manager, address, server, _folder: folder }
    }

    pub(crate) fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Client { stream, rest: Vec::new() }
    }

    /// A connection from another address of loopback.
    pub(crate) fn connect_from(&self, source: [u8; 4]) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
        socket.connect(&self.address.into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Client { stream, rest: Vec::new() }
    }

    /// The answer to one request on a connection of its own.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[&str], body: &str) -> Answer {
        let mut client = self.connect();
        client.send(method, path, headers, body);
        client.answer(method)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    /// A call with these headers.
    pub(crate) fn call(&self, headers: &[&str], method: &str, params: Value) -> Value {
        let mut request = json!({ "jsonrpc": "2.0", "id": 1, "method": method });
        if !params.is_null() {
            request["params"] = params;
        }
        let answer = self.ask("POST", "/rpc", headers, &request.to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
        serde_json::from_str(&answer.body).unwrap()
    }

    /// A call that changes something, and its result.
    pub(crate) fn change(&self, method: &str, params: Value) -> Value {
        let bearer = format!("Authorization: Bearer {TOKEN}");
        let answer = self.call(&[&bearer], method, params);
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// A device, a subsystem with it, and a listener; gives its port.
    pub(crate) fn export(&self, nqn: &str) -> String {
        self.change(
            "bdev_malloc_create",
            json!({ "name": "M0", "num_blocks": 2048, "block_size": 512 }),
        );
        self.change("nvmf_create_transport", json!({ "trtype": "TCP" }));
        self.change("nvmf_create_subsystem", json!({ "nqn": nqn, "allow_any_host": true }));
        let namespace = json!({ "nqn": nqn, "namespace": { "bdev_name": "M0" } });
        self.change("nvmf_subsystem_add_ns", namespace);
        let address =
            json!({ "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": "0" });
        let listen = json!({ "nqn": nqn, "listen_address": address });
        self.change("nvmf_subsystem_add_listener", listen);
        let listeners = self.change("nvmf_subsystem_get_listeners", json!({ "nqn": nqn }));
        listeners[0]["address"]["trsvcid"].as_str().unwrap().to_owned()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.server.take());
        self.manager.shut_down().unwrap();
    }
}

fn token(folder: &TempDir, text: &str) -> Token {
    use std::os::unix::fs::PermissionsExt as _;
    let path = folder.path().join(text);
    std::fs::write(&path, format!("{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    Token::read(&path).unwrap()
}

/// A connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    rest: Vec<u8>,
}

/// What a server has answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The value of a header, by its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1);
        let mut pairs = lines.filter_map(|line| line.split_once(": "));
        pairs.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl Client {
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[&str], body: &str) {
        let host = match headers.iter().any(|header| header.starts_with("Host:")) {
            true => String::new(),
            false => format!("Host: {}\r\n", self.stream.peer_addr().unwrap()),
        };
        let length = match body.is_empty() {
            true => String::new(),
            false => format!("Content-Length: {}\r\n", body.len()),
        };
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let text = format!("{method} {path} HTTP/1.1\r\n{host}{length}{headers}\r\n{body}");
        self.stream.write_all(text.as_bytes()).unwrap();
    }

    /// The next answer.
    pub(crate) fn answer(&mut self, method: &str) -> Answer {
        let end = loop {
            match self.rest.windows(4).position(|window| window == b"\r\n\r\n") {
                Some(end) => break end,
                None => assert!(self.more(), "closed: {}", String::from_utf8_lossy(&self.rest)),
            }
        };
        let head = String::from_utf8(self.rest.drain(..end + 4).collect()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { status, head, body: String::new() };
        let length = answer.header("content-length").map_or(0, |text| text.parse().unwrap());
        let length = if method == "HEAD" { 0 } else { length };
        while self.rest.len() < length {
            assert!(self.more(), "closed within a body");
        }
        answer.body = String::from_utf8(self.rest.drain(..length).collect()).unwrap();
        answer
    }

    /// Whether the server takes this connection, rather than having too many.
    pub(crate) fn is_served(&mut self) -> bool {
        let request = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", Ipv4Addr::LOCALHOST);
        // A connection that is refused may be gone before it can say so.
        let mut start = [0; 12];
        let asked = self.stream.write_all(request.as_bytes());
        asked.and_then(|()| self.stream.read_exact(&mut start)).is_ok() && start == *b"HTTP/1.1 200"
    }

    /// Whether the server closes without another byte.
    pub(crate) fn is_closed(&mut self) -> bool {
        !self.more()
    }

    fn more(&mut self) -> bool {
        let mut piece = [0; 16 << 10];
        // A reset is an end, too; that nothing comes in time is not.
        match self.stream.read(&mut piece) {
            Ok(len) => {
                self.rest.extend_from_slice(&piece[..len]);
                len > 0
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
            Err(error) => panic!("{error}"),
        }
    }
}
