//! The journal of systemd, as a place for messages with their fields: its native protocol.
//!
//! Source: "Native Journal Protocol" of systemd's documentation. The crate `tracing-journald` says the same, but waits for
//! a journal that is stuck.

use std::fmt::{self, Write as _};
use std::io::{IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, sendmsg_addr,
};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::outlet::{Outlet, Put, Sink};

/// Where the journal listens.
pub(super) const SOCKET: &str = "/run/systemd/journal/socket";

/// The journal's socket.
pub(super) struct Journald {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journald {
    /// # Errors
    /// When there is no journal there.
    pub(super) fn open(path: &Path) -> std::io::Result<Self> {
        let journald = Self { socket: UnixDatagram::unbound()?, path: path.to_owned() };
        // The journal ignores a message without fields.
        journald.send(&[], SendFlags::DONTWAIT).or_else(|error| match error {
            Errno::AGAIN => Ok(()),
            error => Err(error),
        })?;
        Ok(journald)
    }

    fn send(&self, message: &[u8], flags: SendFlags) -> Result<(), Errno> {
        let flags = flags | SendFlags::NOSIGNAL;
        let to = SocketAddrUnix::new(&self.path)?;
        let parts = [IoSlice::new(message)];
        match sendmsg_addr(&self.socket, &to, &parts, &mut SendAncillaryBuffer::default(), flags) {
            Err(Errno::MSGSIZE) => self.send_long(message, &to, flags),
            result => result.map(drop),
        }
    }

    /// A message that is longer than a datagram: a file in memory, which nobody can change any longer.
    fn send_long(
        &self,
        message: &[u8],
        to: &SocketAddrUnix,
        flags: SendFlags,
    ) -> Result<(), Errno> {
        let flags_of_memory = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut memory: std::fs::File = memfd_create("raceline-log", flags_of_memory)?.into();
        memory.write_all(message).map_err(|_| Errno::NOMEM)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        fcntl_add_seals(&memory, seals)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [memory.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg_addr(&self.socket, to, &[], &mut control, flags).map(drop)
    }
}

impl Sink for Journald {
    fn try_put(&self, message: &[u8]) -> Put {
        match self.send(message, SendFlags::DONTWAIT) {
            Ok(()) => Put::Taken,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => Put::Full,
            Err(_) => Put::Lost,
        }
    }

    fn put(&self, message: &[u8]) -> bool {
        let mut sent = self.send(message, SendFlags::empty());
        while sent == Err(Errno::INTR) {
            sent = self.send(message, SendFlags::empty());
        }
        // The kernel has no memory for it (ENOBUFS), or there is no journal.
        sent.is_ok()
    }

    fn loss(&self, count: u64) -> Vec<u8> {
        let mut message = Message::new(Level::WARN, super::IDENTIFIER);
        let _ = write!(
            message.begin("MESSAGE"),
            "{count} messages are lost: the journal took none for too long, was not there, or the kernel had no memory"
        );
        message.end()
    }
}

/// A layer of the log that sends messages to the journal.
pub(super) struct JournaldLayer {
    pub(super) outlet: &'static Outlet<Journald>,
    /// SYSLOG_IDENTIFIER, by which journalctl finds them.
    pub(super) identifier: &'static str,
}

impl<S: Subscriber> Layer<S> for JournaldLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut message = Message::new(*metadata.level(), self.identifier);
        // Writing to memory does not fail.
        let _ = write!(message.begin("TARGET"), "{}", metadata.target());
        if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
            let _ = write!(message.begin("CODE_FILE"), "{file}");
            let _ = write!(message.begin("CODE_LINE"), "{line}");
        }
        event.record(&mut message);
        self.outlet.emit(&message.end());
    }
}

/// A message as the journal takes it: for each field a name, the length and the value.
struct Message {
    bytes: Vec<u8>,
    /// Where the value of the last field begins.
    value: usize,
}

impl Message {
    fn new(level: Level, identifier: &str) -> Self {
        let mut message = Self { bytes: Vec::with_capacity(512), value: 0 };
        let priority = match level {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 5,
            Level::DEBUG => 6,
            Level::TRACE => 7,
        };
        let _ = write!(message.begin("PRIORITY"), "{priority}");
        let _ = write!(message.begin("SYSLOG_IDENTIFIER"), "{identifier}");
        message
    }

    /// Begins a field; its value is written to what this gives.
    fn begin(&mut self, name: &str) -> &mut Self {
        self.end_value();
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(b'\n');
        self.bytes.extend_from_slice(&[0; 8]);
        self.value = self.bytes.len();
        self
    }

    fn end_value(&mut self) {
        if self.value > 0 {
            let len = self.bytes.len() - self.value;
            self.bytes[self.value - 8..self.value].copy_from_slice(&(len as u64).to_le_bytes());
            self.bytes.push(b'\n');
        }
    }

    fn end(mut self) -> Vec<u8> {
        self.end_value();
        self.bytes
    }

    /// Begins the field of a message's field. F_ keeps it apart from the journal's own.
    fn begin_field(&mut self, field: &Field) -> &mut Self {
        if field.name() == "message" {
            return self.begin("MESSAGE");
        }
        let is_allowed = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        let name = field.name().replace('.', "_");
        let name: String = name.chars().filter(is_allowed).collect();
        self.begin(&format!("F_{}", name.to_ascii_uppercase()))
    }
}

impl fmt::Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.begin_field(field), "{value:?}");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = self.begin_field(field).write_str(value);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;
    use std::time::Duration;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    /// The fields of a message, as the journal reads them.
    fn fields(mut bytes: &[u8]) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        while !bytes.is_empty() {
            let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
            let name = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let (len, rest) = bytes[end + 1..].split_first_chunk::<8>().unwrap();
            let (value, rest) = rest.split_at(usize::try_from(u64::from_le_bytes(*len)).unwrap());
            assert_eq!(rest[0], b'\n');
            fields.insert(name, String::from_utf8(value.to_vec()).unwrap());
            bytes = &rest[1..];
        }
        fields
    }

    fn journal() -> (tempfile::TempDir, UnixDatagram, &'static Outlet<Journald>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let receiver = UnixDatagram::bind(&path).unwrap();
        let outlet = Outlet::new(Journald::open(&path).unwrap());
        assert_eq!(receiver.recv(&mut [0; 16]).unwrap(), 0);
        (directory, receiver, Box::leak(Box::new(outlet)))
    }

    #[test]
    fn a_message_has_its_fields() {
        let (_directory, receiver, outlet) = journal();
        let layer = JournaldLayer { outlet, identifier: "raceline" };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(target: "t", host = "two\nlines", cntlid = 3, "it {}", "failed");
        });
        let mut bytes = [0; 4096];
        let len = receiver.recv(&mut bytes).unwrap();
        let mut fields = fields(&bytes[..len]);
        assert!(fields.remove("CODE_FILE").unwrap().ends_with("journald.rs"));
        assert!(fields.remove("CODE_LINE").unwrap().parse::<u32>().is_ok());
        let expected = [
            ("F_CNTLID", "3"),
            ("F_HOST", "two\nlines"),
            ("MESSAGE", "it failed"),
            ("PRIORITY", "4"),
            ("SYSLOG_IDENTIFIER", "raceline"),
            ("TARGET", "t"),
        ];
        assert!(fields.iter().map(|(a, b)| (a.as_str(), b.as_str())).eq(expected), "{fields:?}");
    }

    #[test]
    fn a_long_message_comes_as_a_file() {
        let (_directory, receiver, outlet) = journal();
        let long = vec![b'x'; 4 << 20];
        outlet.emit(&long);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        recvmsg(&receiver, &mut [], &mut control, RecvFlags::empty()).unwrap();
        let Some(RecvAncillaryMessage::ScmRights(mut files)) = control.drain().next() else {
            panic!("no file");
        };
        let mut file = std::fs::File::from(files.next().unwrap());
        std::io::Seek::rewind(&mut file).unwrap();
        let mut read = Vec::new();
        file.read_to_end(&mut read).unwrap();
        assert_eq!(read, long);
    }

    #[test]
    fn what_no_journal_takes_is_counted_and_told_to_the_next_one() {
        let (directory, receiver, outlet) = journal();
        outlet.start("log-test").unwrap();
        // Nobody listens at the socket any more.
        drop(receiver);
        let layer = JournaldLayer { outlet, identifier: "raceline" };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            (0..3).for_each(|number| tracing::warn!(target: "t", number, "here"));
        });
        let path = directory.path().join("socket");
        std::fs::remove_file(&path).unwrap();
        let next = UnixDatagram::bind(&path).unwrap();
        next.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut bytes = [0; 4096];
        let len = next.recv(&mut bytes).unwrap();
        let message = fields(&bytes[..len])["MESSAGE"].clone();
        assert!(message.starts_with("3 messages are lost: "), "{message}");
        assert!(outlet.finish(Duration::from_secs(60)));
    }

    #[test]
    fn a_journal_that_is_stuck_holds_nobody_up_and_loses_nothing_that_had_room() {
        let (_directory, receiver, outlet) = journal();
        outlet.start("log-test").unwrap();
        let layer = JournaldLayer { outlet, identifier: "raceline" };
        // More than the socket's buffer holds, and less than the outlet does. Nobody reads meanwhile: this would never end.
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            (0..2000).for_each(|number| tracing::warn!(target: "t", number, "here"));
        });
        assert!(!outlet.finish(Duration::from_millis(1)), "the socket's buffer holds fewer");
        let mut bytes = [0; 4096];
        for number in 0..2000 {
            let len = receiver.recv(&mut bytes).unwrap();
            assert_eq!(fields(&bytes[..len])["F_NUMBER"], number.to_string());
        }
        assert!(outlet.finish(Duration::from_secs(60)));
    }
}
