//! What the process of a disk answers for itself, within narrow bounds: it may hang, or belong to a user who wants to hold root up.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use raceline_control::methods::GET_DISK;
use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::net::sockopt::socket_peercred;
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, Socket, Type};

use super::registry::{Entry, Found, Registry};
use crate::failure::Failure;

/// How long a process may take for its answer. It answers within milliseconds where the machine is not overloaded.
const TIME: Duration = Duration::from_secs(2);

/// Processes that are asked at a time.
const AT_A_TIME: usize = 16;

/// Most bytes of an answer that are read: one of 64 paths and 256 cores has a quarter of them.
const MAX_ANSWER_BYTES: usize = 256 << 10;

/// A disk that `connect` has made, and what is known of it.
pub(crate) struct ListedDisk {
    /// Where its users find it, first what names it.
    pub(crate) places: Vec<String>,
    /// The subsystem; none for a device of this machine.
    pub(crate) nqn: Option<String>,
    /// What `raceline_get_disk` gives; without an answer of the process, as it was at the beginning of the disk, without figures.
    pub(crate) facts: Value,
    /// The process has answered.
    pub(crate) is_answered: bool,
}

/// The disks of this user that run, and for root those of units.
pub(crate) fn disks() -> Result<Vec<ListedDisk>, Failure> {
    let found = Registry::look()?;
    // Those that do not answer are waited for together.
    let mut listed_disks = Vec::with_capacity(found.len());
    for some in found.chunks(AT_A_TIME) {
        std::thread::scope(|scope| {
            let asking: Vec<_> = some.iter().map(|it| scope.spawn(|| listed(it))).collect();
            let answers = asking.into_iter().filter_map(|asking| asking.join().ok());
            listed_disks.extend(answers);
        });
    }
    Ok(listed_disks)
}

fn listed(found: &Found) -> ListedDisk {
    let (socket, owner) = found.socket();
    let answer = ask(&socket, owner)
        .inspect_err(|error| tracing::debug!("{}: {error}", socket.display()))
        .ok();
    let Entry { places, nqn, .. } = found.entry.clone();
    let is_answered = answer.is_some();
    ListedDisk { places, nqn, facts: answer.unwrap_or_else(|| found.facts.clone()), is_answered }
}

/// Asks the process that listens at a socket, which has to be of this user.
fn ask(path: &Path, owner: u32) -> io::Result<Value> {
    let end = Instant::now() + TIME;
    // Root asks those of units, too: a link of theirs must not lead it elsewhere.
    let place = fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fs::fstat(&place)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket || found.st_uid != owner {
        return Err(wrong(format!("it is no socket of user {owner}")));
    }
    let path = format!("/proc/self/fd/{}", place.as_raw_fd());
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // It waits for no process that accepts nobody.
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)?;
    socket.set_nonblocking(false)?;
    let mut stream = UnixStream::from(std::os::fd::OwnedFd::from(socket));
    let user = socket_peercred(&stream)?.uid.as_raw();
    if user != owner {
        return Err(wrong(format!("user {user} listens there, and not {owner}")));
    }
    let request = json!({ "jsonrpc": "2.0", "method": GET_DISK, "id": 1 });
    stream.set_write_timeout(Some(TIME))?;
    stream.write_all(format!("{request}\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut piece = vec![0; 16 << 10];
    while answer.last() != Some(&b'\n') {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || answer.len() > MAX_ANSWER_BYTES {
            return Err(wrong(format!("no answer of {MAX_ANSWER_BYTES} bytes within {TIME:?}")));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => answer.extend_from_slice(&piece[..count]),
        }
    }
    let mut answer: Value = serde_json::from_slice(&answer)?;
    match answer["result"].take() {
        result @ Value::Object(_) => Ok(result),
        _ => Err(wrong(format!("not a disk but {answer}"))),
    }
}

fn wrong(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn own() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// Answers the first client with these bytes, and keeps the connection until it ends.
    fn answer_once(path: &Path, text: Vec<u8>) -> std::thread::JoinHandle<()> {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 512];
            let count = stream.read(&mut asked).unwrap();
            assert!(asked[..count].ends_with(b"\n"));
            // Who is asked for too much goes away.
            let _ = stream.write_all(&text);
            let _ = stream.read(&mut asked);
        })
    }

    #[test]
    fn an_answer_is_taken_of_the_right_user_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.rpc");
        assert!(ask(&path, own()).is_err(), "nobody is there");
        let text = br#"{"jsonrpc":"2.0","id":1,"result":{"kind":"nbd"}}"#.to_vec();
        let answering = answer_once(&path, [&text[..], b"\n"].concat());
        assert_eq!(ask(&path, own()).unwrap(), json!({ "kind": "nbd" }));
        answering.join().unwrap();
        let other = dir.path().join("b.rpc");
        let _listener = UnixListener::bind(&other).unwrap();
        let refusal = |path, user| ask(path, user).unwrap_err().to_string();
        assert_eq!(refusal(&other, own() + 1), format!("it is no socket of user {}", own() + 1));
        // A link of the right user leads to no other socket.
        let link = dir.path().join("c.rpc");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        assert_eq!(refusal(&link, own()), format!("it is no socket of user {}", own()));
    }

    #[test]
    fn who_does_not_answer_or_never_ends_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let endless = dir.path().join("endless.rpc");
        let answering = answer_once(&endless, vec![b' '; 4 * MAX_ANSWER_BYTES]);
        assert!(ask(&endless, own()).unwrap_err().to_string().starts_with("no answer of"));
        answering.join().unwrap();
        // It listens, and accepts nobody.
        let silent = dir.path().join("silent.rpc");
        let listener = UnixListener::bind(&silent).unwrap();
        let began = Instant::now();
        assert!(ask(&silent, own()).is_err());
        assert!(began.elapsed() < 3 * TIME, "{:?}", began.elapsed());
        // Its queue is full.
        rustix::net::listen(&listener, 0).unwrap();
        let waiting = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        waiting.set_nonblocking(true).unwrap();
        let _ = waiting.connect(&SockAddr::unix(&silent).unwrap());
        let began = Instant::now();
        assert!(ask(&silent, own()).is_err());
        assert!(began.elapsed() < 3 * TIME, "{:?}", began.elapsed());
    }
}
