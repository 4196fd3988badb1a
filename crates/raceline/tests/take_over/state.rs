//! The state directory at a take-over: one that cannot be used ends it before the daemon is gone, and what fails later shows.

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use raceline_control::hand_over::socket_of;
use raceline_control::state::StateJournal;
use rustix::process::getuid;
use serde_json::{Value, json};

use crate::support::{self, call};
use crate::{LIMIT, NOBODY, Place, command, end_load, ready_line, start, wait};

/// The answer to GET.
fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A metric without labels.
fn metric(address: SocketAddr, name: &str) -> Option<String> {
    let text = get(address, "/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("raceline_{name} ")));
    line.map(str::to_owned)
}

fn writable(address: SocketAddr) -> Option<String> {
    metric(address, "state_writable")
}

/// A null device comes and goes, which is written down.
fn change(place: &Place) {
    place.call("bdev_null_create", json!({ "name": "N", "num_blocks": 8, "block_size": 512 }));
    place.call("bdev_null_delete", json!({ "name": "N" }));
}

#[test]
fn whether_the_state_can_be_written_is_shown_after_a_take_over() {
    let address = support::own_address();
    let at = address.to_string();
    let words = ["--keep-ram", "--metrics", &at];
    let mut place = Place::new(&words);
    assert_eq!(writable(address).as_deref(), Some("1"));
    for _ in 0..2 {
        place.take_over(&words);
        assert_eq!(writable(address).as_deref(), Some("1"));
        change(&place);
    }
    // The next one writes nothing to files, as on a disk that is full.
    let program = command(place.directory.path(), &[&["--take-over"], &words[..]].concat());
    let limited = "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", limited]).arg(program.get_program()).args(program.get_args());
    shell.env_remove("RACELINE_LOG").stdin(Stdio::null()).stderr(Stdio::null());
    let successor = shell.stdout(Stdio::piped()).spawn().unwrap();
    let mut before = std::mem::replace(&mut place.daemon, successor);
    place.wait_for_ready().unwrap();
    assert_eq!(wait(&mut before), Some(0), "{}", place.said());
    assert_eq!(writable(address).as_deref(), Some("0"));
    // Hosts have nothing to do with it.
    assert!(get(address, "/readyz").starts_with("HTTP/1.0 200"), "{}", get(address, "/readyz"));
}

fn newest(state: &Path) -> PathBuf {
    let all = fs::read_dir(state).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|it| it == "json"))
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("config-"))
        .max()
        .unwrap()
}

#[test]
fn a_damaged_state_is_found_before_the_daemon_is_gone() {
    let mut place = Place::new(&["--keep-ram"]);
    let load = place.load(2);
    let before = place.controllers();
    let state = place.path("state");
    let attempt = |words: &[&str]| {
        let said =
            place.refused(&mut command(place.directory.path(), &["--take-over", "--keep-ram"]));
        let always = ["goes on", "cannot take its place", "raceline config save FILE"];
        assert!(always.iter().chain(words).all(|word| said.contains(word)), "{said}");
        place.wait_for_reads(20);
        assert_eq!(place.controllers(), before, "{}", place.said());
    };
    let newest = newest(&state);
    let whole = fs::read(&newest).unwrap();
    fs::write(&newest, &whole[..whole.len() / 2]).unwrap();
    attempt(&[newest.to_str().unwrap(), "is damaged at byte", "Restore it from a copy"]);
    fs::write(&newest, &whole).unwrap();
    // The daemon goes on, changes included.
    change(&place);
    // Nothing is there.
    let away = place.path("away");
    fs::rename(&state, &away).unwrap();
    attempt(&[state.to_str().unwrap(), "holds no state any more"]);
    // The attempt has made the folder that it was told, and no state of its own in it.
    let left = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_str().unwrap().contains('-')).collect();
    assert!(left.is_empty(), "{left:?}");
    fs::remove_dir_all(&state).unwrap();
    fs::rename(&away, &state).unwrap();
    change(&place);
    // It was only that.
    place.take_over(&["--keep-ram"]);
    assert_eq!(place.controllers(), before);
    change(&place);
    end_load(load);
}

/// Root may write everywhere, so this is about another user.
#[test]
fn a_state_that_may_not_be_written_is_found_before_the_daemon_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join("own");
    fs::create_dir(&own).unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    let by_user = |more: &[&str]| {
        let mut command = command(&own, more);
        if getuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    if getuid().is_root() {
        std::os::unix::fs::chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut daemon = by_user(&[]).spawn().unwrap();
    assert_eq!(ready_line(&mut daemon).unwrap(), daemon.id());
    let state = own.join("state");
    fs::set_permissions(&state, Permissions::from_mode(0o500)).unwrap();
    let output = by_user(&["--take-over"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let words = ["goes on", "cannot write in the state directory", "give it to the user"];
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
    fs::set_permissions(&state, Permissions::from_mode(0o700)).unwrap();
    let mut successor = by_user(&["--take-over"]).spawn().unwrap();
    assert_eq!(ready_line(&mut successor), Ok(successor.id()));
    assert_eq!(wait(&mut daemon), Some(0));
    successor.kill().unwrap();
    successor.wait().unwrap();
}

/// A daemon that this test plays, up to the step that it wants.
pub(crate) struct Played {
    stream: UnixStream,
    pub(crate) successor: Child,
}

impl Played {
    /// Meets a successor, and hands over a configuration of nothing.
    pub(crate) fn meet(directory: &Path, more: &[&str]) -> Self {
        let listener = UnixListener::bind(socket_of(&directory.join("rpc.sock"))).unwrap();
        let successor = start(directory, &[&["--take-over"], more].concat());
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        fs::remove_file(socket_of(&directory.join("rpc.sock"))).unwrap();
        let mut played = Self { stream, successor };
        assert!(played.hear()["Hello"].is_object());
        played
    }

    /// The configuration of nothing.
    pub(crate) fn offer(&mut self) {
        let nothing: [Value; 0] = [];
        self.say(
            &json!({ "Offer": { "catalogue": nothing, "missing": nothing, "run": 1, "changes": 1,
            "descriptors": nothing } }),
        );
    }

    pub(crate) fn say(&mut self, what: &Value) {
        let bytes = what.to_string();
        let length = u32::try_from(bytes.len()).unwrap();
        self.stream.write_all(&length.to_le_bytes()).unwrap();
        self.stream.write_all(bytes.as_bytes()).unwrap();
    }

    pub(crate) fn hear(&mut self) -> Value {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        self.stream.read_exact(&mut bytes).unwrap();
        serde_json::from_slice(&bytes).unwrap()
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        let _ = self.successor.kill();
        let _ = self.successor.wait();
    }
}

#[test]
fn what_fails_when_the_daemon_is_gone_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, state) = (directory.path().join("rpc.sock"), directory.path().join("state"));
    drop(StateJournal::open(&state).unwrap());
    let address = support::own_address();
    let mut played = Played::meet(directory.path(), &["--metrics", &address.to_string()]);
    played.offer();
    assert_eq!(played.hear(), "Ready");
    // It has looked, and found nothing.
    fs::write(newest(&state), "nonsense").unwrap();
    let nothing: [Value; 0] = [];
    played
        .say(&json!({ "State": { "targets": {}, "reservations": nothing, "protected": nothing } }));
    assert_eq!(played.hear(), "Taken");
    played.say(&json!("Go"));
    ready_line(&mut played.successor).unwrap();
    let ready = get(address, "/readyz");
    assert!(
        ready.contains(" 503 ") && ready.contains("The state directory cannot be used"),
        "{ready}"
    );
    assert!(get(address, "/healthz").contains(" 200 "));
    assert_eq!(writable(address).as_deref(), Some("0"));
    assert_eq!(metric(address, "ready").as_deref(), Some("0"));
    let params = json!({ "name": "N", "num_blocks": 8, "block_size": 512 });
    let refused = call(&socket, "bdev_null_create", params).unwrap_err().to_string();
    let words = ["is damaged at byte", "Hosts are served", "config save", "restart the daemon"];
    assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    assert!(refused.contains(&format!("{}", -rustix::io::Errno::ROFS.raw_os_error())), "{refused}");
    assert!(!refused.contains("in a moment"), "{refused}");
    assert_eq!(call(&socket, "bdev_get_bdevs", Value::Null), Ok(json!([])));
}
