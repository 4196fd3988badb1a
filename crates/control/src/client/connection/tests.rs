//! The client against a peer that answers what each test says.

use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

use super::*;

/// How a test's peer answers each request.
type Answer = Box<dyn FnMut(&Value) -> Option<String> + Send>;

/// A peer that answers each value it reads; it ends when the connection ends or `answer` gives `None`.
pub(crate) struct Peer {
    dir: tempfile::TempDir,
    thread: JoinHandle<Vec<Value>>,
}

impl Peer {
    pub(crate) fn start(mut answer: Answer) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("sock")).unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let reader = BufReader::new(stream.try_clone().unwrap());
            let mut seen = Vec::new();
            for request in serde_json::Deserializer::from_reader(reader).into_iter::<Value>() {
                let request = request.unwrap();
                let reply = answer(&request);
                seen.push(request);
                match reply {
                    Some(reply) => stream.write_all(reply.as_bytes()).unwrap(),
                    None => break,
                }
            }
            seen
        });
        Self { dir, thread }
    }

    pub(crate) fn connect(&self) -> Connection {
        self.connect_for(Duration::from_secs(20))
    }

    fn connect_for(&self, timeout: Duration) -> Connection {
        let address = Address::Unix(self.dir.path().join("sock"));
        Connection::open(&address, timeout, 0).unwrap()
    }

    /// All requests that came. The connection must be closed.
    pub(crate) fn requests(self) -> Vec<Value> {
        self.thread.join().unwrap()
    }
}

/// A reply to `request` that carries `result`.
pub(crate) fn reply(request: &Value, result: Value) -> String {
    format!("{:#}\n", json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))
}

#[test]
fn calls_are_numbered_and_answered() {
    let peer = Peer::start(Box::new(|request| Some(reply(request, request["method"].clone()))));
    let mut connection = peer.connect();
    let params = Map::from_iter([("name".to_owned(), Value::from("m"))]);
    assert_eq!(connection.call("one", &Map::new()).unwrap(), "one");
    assert_eq!(connection.call("two", &params).unwrap(), "two");
    drop(connection);
    let seen = peer.requests();
    assert_eq!(seen[0], json!({"jsonrpc": "2.0", "method": "one", "id": 1}));
    assert_eq!(seen[1]["params"], json!({"name": "m"}), "parameters are sent when there are any");
}

#[test]
fn errors_say_code_and_text() {
    let peer = Peer::start(Box::new(|request| {
        let mut error = json!({"code": -32602, "message": "Invalid parameters"});
        if request["id"] == 2 {
            error["data"] = json!("nqn is missing");
        }
        Some(json!({"jsonrpc": "2.0", "id": request["id"], "error": error}).to_string())
    }));
    let mut connection = peer.connect();
    let error = connection.call("nvmf_get_stats", &Map::new()).unwrap_err();
    assert_eq!(error.to_string(), "nvmf_get_stats: Invalid parameters (JSON-RPC error -32602)");
    let error = connection.call("nvmf_get_stats", &Map::new()).unwrap_err();
    assert!(error.to_string().ends_with("-32602): nqn is missing"), "{error}");
}

#[test]
fn a_batch_is_one_array_and_its_replies_may_come_in_any_order() {
    let peer = Peer::start(Box::new(|batch| {
        let each = batch.as_array().unwrap().iter().rev().map(
            |request| json!({"jsonrpc": "2.0", "id": request["id"], "result": request["method"]}),
        );
        Some(Value::Array(each.collect()).to_string())
    }));
    let mut connection = peer.connect();
    let request = |method: &str| crate::client::arguments::parse(method, &[]).unwrap();
    let results = connection.call_batch(&[request("first"), request("second")]).unwrap();
    assert_eq!(results, [Ok(Value::from("first")), Ok(Value::from("second"))]);
}

#[test]
fn replies_that_are_missing_late_or_wrong() {
    let peer = Peer::start(Box::new(|_| None));
    let error = peer.connect().call("one", &Map::new()).unwrap_err();
    assert!(matches!(error, ClientError::Closed), "{error}");

    let peer = Peer::start(Box::new(|_| None));
    let ended = peer.connect().call("spdk_kill_instance", &Map::new());
    assert_eq!(ended.unwrap(), Value::Null, "who was told to end need not answer");

    let peer = Peer::start(Box::new(|_| Some("no JSON".to_owned())));
    let error = peer.connect().call("one", &Map::new()).unwrap_err();
    assert!(matches!(error, ClientError::Malformed(_)), "{error}");

    let peer = Peer::start(Box::new(|_| Some("{\"result\": [1, ".to_owned())));
    let error = peer.connect_for(Duration::from_millis(50)).call("one", &Map::new()).unwrap_err();
    assert!(matches!(error, ClientError::Timeout(_)), "{error}");

    let peer = Peer::start(Box::new(|_| Some("{\"id\": 77, \"result\": 1}".to_owned())));
    let error = peer.connect().call("one", &Map::new()).unwrap_err();
    assert!(error.to_string().contains("another request"), "{error}");
}

#[test]
fn the_first_address_with_a_daemon_is_taken() {
    let peer = Peer::start(Box::new(|request| Some(reply(request, Value::from(7)))));
    let at = |name: &str| Address::Unix(peer.dir.path().join(name));
    // A daemon that died leaves a socket behind.
    drop(UnixListener::bind(peer.dir.path().join("left")).unwrap());
    let few = Duration::from_secs(20);
    let mut connection = Connection::open_first(&[at("left"), at("sock")], few, 0).unwrap();
    assert_eq!(connection.address(), &at("sock"));
    assert_eq!(connection.call("one", &Map::new()).unwrap(), 7);
    let error = Connection::open_first(&[at("left"), at("none")], few, 1).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ClientError::Nowhere(_)), "{text}");
    for part in
        ["left (Connection refused", "none (No such file", "--socket or RACELINE_RPC_SOCKET"]
    {
        assert!(text.contains(part), "{text}");
    }
    let usual = Address::usual().map(|address| address.to_string());
    assert_eq!(usual, ["/run/raceline/rpc.sock", "/var/tmp/spdk.sock"]);
}

#[test]
fn nobody_there() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::new(dir.path().join("none").to_str().unwrap(), 1);
    let error = Connection::open(&address, Duration::from_secs(1), 1).unwrap_err();
    assert!(error.to_string().contains("raceline serve"), "{error}");
    assert_eq!(Address::new("::1", 5260), Address::Tcp("[::1]:5260".parse().unwrap()));
}
