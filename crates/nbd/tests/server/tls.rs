//! TLS by STARTTLS: what it carries, who gets nothing without it, and who tries to talk around it.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use raceline_auth::{Hash, IdentityVersion, TlsKey};
use raceline_nbd::ServerTls;
use raceline_proto::nvme::Nqn;
use raceline_reactor::Backend;
use raceline_tls::{ClientPsk, DATA_MAX, Handshake, Opened, PskTable, Session, TlsAcceptor};

use crate::client::{Bed, go, option, request};
use crate::pattern;
use crate::refusals::{expect_logged, keep_log};

const FLAGS: [u8; 4] = [0, 0, 0, 3];
const STARTTLS: u32 = 5;
const ACK: u32 = 1;
const TLS_REQD: u32 = 1 << 31 | 5;

fn names() -> (Nqn, Nqn) {
    (Nqn::new("nqn.client").unwrap(), Nqn::new("nqn.disk").unwrap())
}

fn offer(key: &TlsKey) -> ClientPsk {
    let (client, disk) = names();
    ClientPsk::new(key, IdentityVersion::One, &client, &disk).unwrap()
}

fn serve(key: &TlsKey, required: bool, backend: Backend) -> Bed {
    keep_log();
    let table = PskTable::new();
    let (client, disk) = names();
    table.insert(key, &client, &disk).unwrap();
    let provider = Arc::new(TlsAcceptor::new(Arc::new(table)));
    Bed::start_with("ram:16M", |config| {
        config.backend = backend;
        config.tls = Some(ServerTls { provider, required });
    })
}

fn greeted(bed: &Bed) -> UnixStream {
    let mut stream = bed.raw();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(&FLAGS).unwrap();
    stream
}

/// Sends an option in the clear; gives the kind of the reply.
fn ask(stream: &mut UnixStream, kind: u32, data: &[u8]) -> io::Result<u32> {
    stream.write_all(&option(kind, data))?;
    let mut header = [0; 20];
    stream.read_exact(&mut header)?;
    let len = u32::from_be_bytes(header[16..].try_into().unwrap());
    stream.read_exact(&mut vec![0; len.try_into().unwrap()])?;
    Ok(u32::from_be_bytes(header[12..16].try_into().unwrap()))
}

/// A client whose TLS is established.
struct Secure {
    stream: UnixStream,
    session: Session,
    sealed: Vec<u8>,
    opened: Vec<u8>,
}

impl Secure {
    fn begin(mut stream: UnixStream, psk: &ClientPsk) -> io::Result<Self> {
        assert_eq!(ask(&mut stream, STARTTLS, b"")?, ACK);
        let mut handshake = Handshake::client(psk).unwrap();
        loop {
            stream.write_all(&handshake.take_output())?;
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes)?;
            let result = handshake.handle(&bytes[..count]);
            stream.write_all(&handshake.take_output())?;
            if let Some(established) = result? {
                let (session, sealed) = (established.session, established.rest);
                return Ok(Self { stream, session, sealed, opened: Vec::new() });
            }
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(DATA_MAX) {
            let mut record = vec![0; Session::sealed_max(part.len())];
            let (sealed, _) = self.session.seal(&mut record, |room| {
                room[..part.len()].copy_from_slice(part);
                part.len()
            });
            self.stream.write_all(&record[..sealed]).unwrap();
        }
    }

    fn read(&mut self, len: usize) -> Vec<u8> {
        while self.opened.len() < len {
            let whole = self.session.record_len(&self.sealed).unwrap();
            let Some(record) = whole.filter(|whole| *whole <= self.sealed.len()) else {
                let mut bytes = [0; 4096];
                let count = self.stream.read(&mut bytes).unwrap();
                assert!(count > 0, "the server has closed");
                self.sealed.extend(&bytes[..count]);
                continue;
            };
            let mut record: Vec<u8> = self.sealed.drain(..record).collect();
            if let Opened::Data { start, len } = self.session.open(&mut record).unwrap() {
                self.opened.extend(&record[start..start + len]);
            }
        }
        self.opened.drain(..len).collect()
    }

    /// The kind of the reply to an option.
    fn reply(&mut self) -> u32 {
        let header = self.read(20);
        let len = u32::from_be_bytes(header[16..].try_into().unwrap());
        self.read(len.try_into().unwrap());
        u32::from_be_bytes(header[12..16].try_into().unwrap())
    }
}

#[test]
fn a_disk_is_used_by_tls() {
    for backend in [Backend::Auto, Backend::Epoll] {
        let key = TlsKey::generate(Hash::Sha256).unwrap();
        let bed = serve(&key, true, backend);
        let mut client = Secure::begin(greeted(&bed), &offer(&key)).unwrap();
        client.send(&option(STARTTLS, b""));
        assert_eq!(client.reply(), 1 << 31 | 3, "it has TLS already");
        client.send(&go());
        while client.reply() != ACK {}
        let data = pattern(0, 1 << 20);
        client.send(&[request(1, 0, 7, 4096, 1 << 20), data.clone()].concat());
        assert_eq!(client.read(16)[4..], [[0; 4].as_slice(), &7_u64.to_be_bytes()].concat());
        client.send(&request(0, 0, 8, 4096, 1 << 20));
        assert_eq!(client.read(16)[8..], 8_u64.to_be_bytes());
        assert!(client.read(1 << 20) == data);
    }
}

#[test]
fn who_does_not_begin_tls_gets_nothing_where_it_is_required() {
    let key = TlsKey::generate(Hash::Sha256).unwrap();
    let bed = serve(&key, true, Backend::Auto);
    let mut plain = greeted(&bed);
    for (kind, data) in [(3, b"".as_slice()), (8, b""), (7, &go()[16..]), (6, &go()[16..])] {
        assert_eq!(ask(&mut plain, kind, data).unwrap(), TLS_REQD);
    }
    let peer = bed.path().display().to_string();
    expect_logged(&peer, "without TLS, which is required");
    // It may still change its mind.
    let mut client = Secure::begin(plain, &offer(&key)).unwrap();
    client.send(&go());
    while client.reply() != ACK {}
    // By the old option there is no answer but the end.
    let mut old = greeted(&bed);
    old.write_all(&option(1, b"disk")).unwrap();
    assert_eq!(old.read(&mut [0; 100]).unwrap_or(0), 0);

    let bed = serve(&key, false, Backend::Auto);
    bed.client(true).write(0, &pattern(0, 4096));
    Secure::begin(greeted(&bed), &offer(&key)).unwrap();
}

#[test]
fn who_has_no_key_or_talks_around_tls_is_sent_away_and_disturbs_nobody() {
    let key = TlsKey::generate(Hash::Sha256).unwrap();
    let bed = serve(&key, true, Backend::Auto);
    let mut good = Secure::begin(greeted(&bed), &offer(&key)).unwrap();
    good.send(&go());
    while good.reply() != ACK {}
    let other = TlsKey::generate(Hash::Sha256).unwrap();
    assert!(Secure::begin(greeted(&bed), &offer(&other)).is_err());
    expect_logged(&bed.path().display().to_string(), "refused an NBD client");
    // What somebody has put behind STARTTLS never counts as what TLS carries.
    let mut injected = greeted(&bed);
    injected.write_all(&[option(STARTTLS, b""), go()].concat()).unwrap();
    let mut all = Vec::new();
    let _ = injected.read_to_end(&mut all);
    assert_eq!(all.len(), 20, "the ACK, and nothing of the export");
    for garbage in [vec![0x16; 200], go(), vec![0; 40_000]] {
        let mut stream = greeted(&bed);
        assert_eq!(ask(&mut stream, STARTTLS, b"").unwrap(), ACK);
        let _ = stream.write_all(&garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        assert!(all.len() < 100, "{all:?}");
    }
    good.send(&request(0, 0, 9, 0, 4096));
    assert_eq!(good.read(16)[8..], 9_u64.to_be_bytes());
    assert_eq!(good.read(4096), [0; 4096]);
}
