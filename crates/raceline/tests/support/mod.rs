//! Runs the built program: exports that end with their test, verbs with a time limit.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod counting;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Longer than any verb of these tests takes.
const LIMIT: Duration = Duration::from_secs(60);

/// How often a condition is looked at that a test waits for.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// An IP address of the caller's own: nobody else takes its ports while nobody listens there.
pub(crate) fn own_ip() -> Ipv4Addr {
    static COUNT: AtomicU8 = AtomicU8::new(100);
    let [low, high, ..] = std::process::id().to_le_bytes();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    assert!(count > 0, "a process has 156 of them");
    Ipv4Addr::new(127, count, high, low.max(1))
}

/// A port that is free now, at such an address.
pub(crate) fn own_address() -> SocketAddr {
    TcpListener::bind((own_ip(), 0)).unwrap().local_addr().unwrap()
}

/// Waits for a condition; `what` names what comes with it.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// The results of a finished run.
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) stderr: String,
}

/// Runs a verb to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    run_with_input(arguments, &[])
}

/// Starts a verb.
pub(crate) fn start(arguments: &[&str]) -> Running {
    Running::start(arguments, Stdio::null())
}

/// Runs a verb to its end through another program, as in `env NAME=VALUE`.
pub(crate) fn run_by(prefix: &[&str], arguments: &[&str]) -> Output {
    Running::spawn(command_by(prefix, arguments).stdin(Stdio::null())).finish()
}

/// Runs a verb to its end with this input.
pub(crate) fn run_with_input(arguments: &[&str], input: &[u8]) -> Output {
    let mut running = Running::start(arguments, Stdio::piped());
    let mut stdin = running.child.stdin.take().unwrap();
    // The program may end without reading all of its input.
    let _ = stdin.write_all(input);
    drop(stdin);
    running.finish()
}

/// A child process, killed by its id if the test abandons it.
pub(crate) struct Running {
    child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Running {
    fn start(arguments: &[&str], stdin: Stdio) -> Self {
        Self::spawn(command(arguments).stdin(stdin))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().map(|mut pipe| drain(move |all| pipe.read_to_end(all)));
        let stderr = child.stderr.take().map(|mut pipe| drain(move |all| pipe.read_to_end(all)));
        Self { child, stdout, stderr }
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) -> Output {
        let code = wait(&mut self.child);
        let collect = |pipe: Option<JoinHandle<Vec<u8>>>| pipe.unwrap().join().unwrap();
        let (bytes, stderr) = (collect(self.stdout.take()), collect(self.stderr.take()));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Output { code, stdout: text(&bytes), stderr: text(&stderr), bytes }
    }

    /// Sends SIGINT and waits for the end.
    pub(crate) fn interrupt(self) -> Output {
        signal(&self.child, Signal::INT);
        self.finish()
    }

    /// Kills it without a request.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a program that goes on once it is ready; gives what it says to people until its end, and its ready line.
fn begin(prefix: &[&str], arguments: &[&str]) -> (Child, JoinHandle<Vec<u8>>, Value) {
    let mut child = command_by(prefix, arguments).stdin(Stdio::null()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    let people = drain(move |all| stderr.read_to_end(all));
    let (sender, line) = mpsc::channel();
    std::thread::spawn(move || {
        let mut first = String::new();
        let _ = BufReader::new(stdout).read_line(&mut first);
        let _ = sender.send(first);
    });
    let line = line.recv_timeout(LIMIT).unwrap_or_default();
    let Ok(ready) = serde_json::from_str(&line) else {
        let _ = child.kill();
        let _ = child.wait();
        let people = String::from_utf8_lossy(&people.join().unwrap()).into_owned();
        panic!("{arguments:?} is not ready: {line:?} {people}");
    };
    (child, people, ready)
}

/// A running `raceline connect`.
pub(crate) struct Disk {
    child: Child,
    people: Option<JoinHandle<Vec<u8>>>,
    /// Its ready line.
    pub(crate) ready: Value,
}

impl Disk {
    /// Makes a disk, and waits until it is there.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_by(&[], arguments)
    }

    /// Makes it through another program, as in `env NAME=VALUE`.
    pub(crate) fn start_by(prefix: &[&str], arguments: &[&str]) -> Self {
        let (child, people, ready) = begin(prefix, &[&["connect"], arguments].concat());
        Self { child, people: Some(people), ready }
    }

    /// Ends it by `raceline disconnect`, and gives its text for users.
    pub(crate) fn disconnect(self) -> String {
        let ended = run(&["disconnect", "-d", self.ready["device"].as_str().unwrap()]);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        let (code, people) = self.finish();
        assert_eq!(code, Some(0), "{people}");
        people
    }

    /// Waits for its end; gives its exit code and its text for users.
    pub(crate) fn finish(mut self) -> (Option<i32>, String) {
        let code = wait(&mut self.child);
        let people = self.people.take().unwrap().join().unwrap();
        let people = String::from_utf8_lossy(&people).into_owned();
        assert!(!people.contains("panicked"), "{people}");
        (code, people)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `raceline export`.
pub(crate) struct Export {
    child: Child,
    people: Option<JoinHandle<Vec<u8>>>,
    /// Its ready line.
    pub(crate) ready: Value,
    /// The NQN that it exports.
    pub(crate) nqn: String,
    /// The address of its first listener.
    pub(crate) address: String,
    /// The port of its first listener.
    pub(crate) port: String,
}

impl Export {
    /// Starts it on a free port, unless the arguments say where, and waits until it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_by(&[], arguments)
    }

    /// Starts it through another program, as in `env NAME=VALUE`.
    pub(crate) fn start_by(prefix: &[&str], arguments: &[&str]) -> Self {
        let mut all = vec!["export"];
        all.extend(arguments);
        if !arguments.contains(&"-l") {
            all.extend(["-l", "127.0.0.1:0"]);
        }
        let (child, people, ready) = begin(prefix, &all);
        let nqn = ready["nqn"].as_str().unwrap().to_owned();
        let listener = ready["listeners"][0].as_str().unwrap();
        let (address, port) = listener.rsplit_once(':').unwrap();
        let (address, port) = (address.to_owned(), port.to_owned());
        Self { child, people: Some(people), ready, nqn, address, port }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The arguments of a host verb that uses this export.
    pub(crate) fn host<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let mut all = arguments.to_vec();
        all.extend(["-a", &self.address, "-s", &self.port, "-n", &self.nqn]);
        all
    }

    /// Waits until hosts have this number of connections.
    pub(crate) fn wait_for_connections(&self, count: usize) {
        let port: u16 = self.port.parse().unwrap();
        let (own, established) = (format!(":{port:04X}"), "01");
        wait_for("the connections of a host", || {
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
            let is_one = |line: &&str| {
                let columns: Vec<&str> = line.split_whitespace().collect();
                columns[1].ends_with(&own) && columns[3] == established
            };
            table.lines().skip(1).filter(is_one).count() >= count
        });
    }

    /// Starts a host verb that uses this export.
    pub(crate) fn spawn_host(&self, arguments: &[&str]) -> Running {
        Running::start(&self.host(arguments), Stdio::null())
    }

    /// Asks for a report of what commands cost.
    pub(crate) fn ask_report(&self) {
        signal(&self.child, Signal::USR1);
    }

    /// Ends it as a service manager does, and gives its text for users.
    pub(crate) fn terminate(mut self) -> String {
        signal(&self.child, Signal::TERM);
        let code = wait(&mut self.child);
        let people = self.people.take().unwrap().join().unwrap();
        let people = String::from_utf8_lossy(&people).into_owned();
        assert_eq!(code, Some(0), "{people}");
        people
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `raceline serve`.
pub(crate) struct Served(Running);

impl Served {
    /// Starts it, and waits until clients can connect.
    pub(crate) fn start(socket: &std::path::Path, arguments: &[&str]) -> Self {
        Self::start_with(&mut Self::command(&[], socket, arguments), socket, arguments)
    }

    /// Starts it through another program, as in `nsenter -m -t PID --`.
    pub(crate) fn start_by(prefix: &[&str], socket: &std::path::Path, arguments: &[&str]) -> Self {
        Self::start_with(&mut Self::command(prefix, socket, arguments), socket, arguments)
    }

    fn start_with(command: &mut Command, socket: &std::path::Path, arguments: &[&str]) -> Self {
        let mut served = Self(Running::spawn(command));
        let deadline = Instant::now() + LIMIT;
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            if served.0.child.try_wait().unwrap().is_some() || Instant::now() > deadline {
                let output = served.0.finish();
                panic!("it is not ready: {}", output.stderr);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if !arguments.contains(&"--wait-for-rpc") {
            served.wait_init(socket);
        }
        served
    }

    /// Starts it in a way that must fail.
    pub(crate) fn fail(socket: &std::path::Path, arguments: &[&str]) -> Output {
        Self::fail_as(None, socket, arguments)
    }

    /// Starts it as another user in a way that must fail.
    pub(crate) fn fail_as(
        user: Option<u32>,
        socket: &std::path::Path,
        arguments: &[&str],
    ) -> Output {
        let mut command = Self::command(&[], socket, arguments);
        if let Some(user) = user {
            command.uid(user);
        }
        Self(Running::spawn(&mut command)).finish()
    }

    fn command(prefix: &[&str], socket: &std::path::Path, arguments: &[&str]) -> Command {
        let mut all = vec!["serve", "-r", socket.to_str().unwrap()];
        all.extend(arguments);
        let mut command = command_by(prefix, &all);
        command.stdin(Stdio::null());
        command
    }

    /// Waits until its initial configuration is made.
    fn wait_init(&mut self, socket: &std::path::Path) {
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(b"{\"method\":\"framework_wait_init\",\"id\":1}").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        assert!(line.contains("\"result\":true"), "{line}");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.child.id()
    }

    /// Sends a signal and waits for the end.
    pub(crate) fn end(self, number: Signal) -> Output {
        signal(&self.0.child, number);
        self.finish()
    }

    /// Waits for the end.
    pub(crate) fn finish(self) -> Output {
        self.0.finish()
    }
}

/// Configures a daemon's subsystem: one namespace in memory, in blocks of 512, and a listener.
pub(crate) fn configure(socket: &std::path::Path, nqn: &str, num_blocks: u64) {
    let address = json!({ "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": "0" });
    for (method, params) in [
        ("nvmf_create_transport", json!({ "trtype": "TCP" })),
        ("bdev_malloc_create", json!({ "name": "M", "num_blocks": num_blocks, "block_size": 512 })),
        ("nvmf_create_subsystem", json!({ "nqn": nqn, "allow_any_host": true })),
        ("nvmf_subsystem_add_ns", json!({ "nqn": nqn, "namespace": { "bdev_name": "M" } })),
        ("nvmf_subsystem_add_listener", json!({ "nqn": nqn, "listen_address": address })),
    ] {
        call(socket, method, params).unwrap();
    }
}

/// Calls a method of a daemon on a connection of its own.
pub(crate) fn call(socket: &std::path::Path, method: &str, params: Value) -> Result<Value, Value> {
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut request = json!({ "jsonrpc": "2.0", "method": method, "id": 1 });
    if !params.is_null() {
        request["params"] = params;
    }
    stream.write_all(request.to_string().as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let mut answer: Value = serde_json::from_str(&line).unwrap();
    if answer["error"].is_null() {
        Ok(answer["result"].take())
    } else {
        Err(answer["error"].take())
    }
}

/// A directory that is removed with its test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn file(&self, name: &str, contents: &[u8]) -> String {
        std::fs::write(self.0.join(name), contents).unwrap();
        self.path(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The program under test: the one that was built with the tests, or the one that RACELINE_PROGRAM names.
pub(crate) fn program() -> String {
    std::env::var("RACELINE_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_raceline").to_owned())
}

fn command(arguments: &[&str]) -> Command {
    command_by(&[], arguments)
}

/// The program, run through another program.
fn command_by(prefix: &[&str], arguments: &[&str]) -> Command {
    let mut words = prefix.to_vec();
    let program = program();
    words.push(&program);
    words.extend(arguments);
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env_remove("RACELINE_LOG");
    command
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_child(child);
    kill_process(pid, signal).unwrap();
}

fn wait(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("took more than {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn drain(
    read: impl FnOnce(&mut Vec<u8>) -> std::io::Result<usize> + Send + 'static,
) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = read(&mut all);
        all
    })
}
