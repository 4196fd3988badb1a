//! Drives one end of TLS with bytes before, during and after the handshake: it does not panic, believes nobody without the
//! key, and gives no byte that its peer has not sent.

use std::sync::{Arc, OnceLock};

use raceline_auth::{IdentityVersion, TlsKey};
use raceline_proto::nvme::Nqn;
use raceline_tls::{
    ClientPsk, Established, Handshake, Opened, PskLookup, PskTable, RECORD_MAX, Session, Suite,
    TlsError,
};

const KEYS: [&str; 2] = [
    "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
];
/// Type of a record of data.
const DATA: u8 = 23;
/// Flights of a handshake that are changed.
const FLIGHTS: usize = 6;
/// The most that a target or a host reads of a handshake, with one read behind it.
const HANDSHAKE_MAX: usize = 64 << 10;

/// What a target knows and a host offers, for one suite.
struct Ends {
    table: Arc<PskTable>,
    psk: ClientPsk,
}

fn ends(second: bool) -> &'static Ends {
    static ENDS: [OnceLock<Ends>; 2] = [OnceLock::new(), OnceLock::new()];
    ENDS[usize::from(second)].get_or_init(|| {
        let nqn = |name: &str| Nqn::new(name).expect("it is a name");
        let (host, subsystem) = (nqn("nqn.2026-01.io.x:h"), nqn("nqn.2026-01.io.x:s"));
        let key = TlsKey::parse(KEYS[usize::from(second)]).expect("it is a key");
        let table = PskTable::new();
        table.insert(&key, &host, &subsystem).expect("names without spaces");
        let psk = ClientPsk::new(&key, IdentityVersion::One, &host, &subsystem);
        Ends { table: Arc::new(table), psk: psk.expect("names without spaces") }
    })
}

impl Ends {
    fn target(&self) -> Handshake {
        Handshake::server(Arc::clone(&self.table) as Arc<dyn PskLookup>)
    }

    fn host(&self) -> Handshake {
        Handshake::client(&self.psk).expect("a key that the library takes")
    }
}

/// Takes a length byte and as many bytes as it says, or as there are.
fn take<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (&len, rest) = input.split_first()?;
    let (bytes, rest) = rest.split_at(usize::from(len).min(rest.len()));
    *input = rest;
    Some(bytes)
}

fn byte(input: &mut &[u8]) -> Option<u8> {
    let (&byte, rest) = input.split_first()?;
    *input = rest;
    Some(byte)
}

/// One run. The first byte of the input chooses the suite, the end that is attacked, and the time of the attack.
pub fn door(mut input: &[u8]) {
    let Some(how) = byte(&mut input) else { return };
    let (second, is_target) = (how & 1 != 0, how & 2 != 0);
    match how >> 2 & 3 {
        0 => strange(ends(second), is_target, input),
        1 => changed(ends(second), is_target, input),
        _ => records(second, input),
    }
}

/// A peer that has no key sends anything.
fn strange(ends: &Ends, is_target: bool, mut input: &[u8]) {
    let mut end = if is_target { ends.target() } else { ends.host() };
    let mut given = 0;
    while let Some(piece) = take(&mut input) {
        given += piece.len();
        match end.handle(piece) {
            Ok(None) => assert!(given <= HANDSHAKE_MAX, "a handshake without end"),
            Ok(Some(_)) => panic!("a peer without the key was believed"),
            Err(error) => {
                assert_eq!(end.handle(piece).map(|_| ()).unwrap_err(), error, "it stays failed");
                assert!(end.take_output().len() < HANDSHAKE_MAX);
                return;
            }
        }
        end.take_output();
    }
}

/// Changes bytes on their way, as the input says. Gives whether they do not begin with what was sent any more.
fn change(bytes: &mut Vec<u8>, input: &mut &[u8]) -> bool {
    let before = bytes.clone();
    for _ in 0..byte(input).unwrap_or(0) % 4 {
        let (Some(act), Some(high), Some(low)) = (byte(input), byte(input), byte(input)) else {
            break;
        };
        let at = usize::from(u16::from_be_bytes([high, low])) % (bytes.len() + 1);
        match act % 4 {
            0 if at < bytes.len() => bytes[at] ^= act >> 2 | 1,
            1 => bytes.truncate(at),
            2 => {
                let more = take(input).unwrap_or_default();
                bytes.splice(at..at, more.iter().copied());
            }
            _ => {
                let end = bytes.len().min(at + usize::from(act >> 2));
                bytes.drain(at..end);
            }
        }
    }
    !bytes.starts_with(&before)
}

/// Somebody on the way changes a handshake of two ends that have the key, and what the attacked end then receives.
fn changed(ends: &Ends, is_target: bool, mut input: &[u8]) {
    let (mut host, mut target) = (ends.host(), ends.target());
    let mut made: [Option<Established>; 2] = [None, None];
    for _ in 0..FLIGHTS {
        for (index, from_host) in [(1, true), (0, false)] {
            let (from, to) =
                if from_host { (&mut host, &mut target) } else { (&mut target, &mut host) };
            let mut flight = from.take_output();
            if from_host == is_target {
                change(&mut flight, &mut input);
            }
            if flight.is_empty() || made[index].is_some() {
                continue;
            }
            match to.handle(&flight) {
                Ok(established) => made[index] = established,
                Err(_) => return,
            }
        }
    }
    let [Some(host), Some(target)] = made else { return };
    assert_eq!((&host.identity, host.suite), (&target.identity, target.suite));
    assert_eq!(host.identity, ends.psk.identity.as_str());
    let (mut sender, mut receiver) = if is_target {
        (host.session, target.session)
    } else {
        (target.session, host.session)
    };
    // Both ends have agreed on the same keys, so what is not changed is read.
    let mut record = seal(&mut sender, DATA, b"what was sent");
    if change(&mut record, &mut input) {
        if let Ok(Some(opened)) = open(&mut receiver, &mut record, false) {
            assert_eq!(opened, Vec::<u8>::new(), "changed data were given");
        }
    } else {
        assert_eq!(open(&mut receiver, &mut record, false), Ok(Some(b"what was sent".to_vec())));
    }
}

fn seal(session: &mut Session, kind: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![0; Session::sealed_max(content.len().max(1))];
    let len = session.seal_any(kind, &mut out, content);
    out.truncate(len);
    out
}

/// Opens the record that the bytes begin with, if it is whole, and gives its data. `apart`: into other memory.
fn open(
    session: &mut Session,
    bytes: &mut [u8],
    apart: bool,
) -> Result<Option<Vec<u8>>, TlsError> {
    let Some(len) = session.record_len(bytes)? else { return Ok(None) };
    assert!(len <= RECORD_MAX, "a record of {len} bytes");
    let Some(record) = bytes.get_mut(..len) else { return Ok(None) };
    let data = |opened, memory: &[u8]| match opened {
        Opened::Data { start, len } => memory[start..start + len].to_vec(),
        Opened::Nothing | Opened::Closed => Vec::new(),
    };
    if apart {
        let mut out = vec![0; Session::opened_max(len)];
        let opened = session.open_into(record, &mut out)?;
        Ok(Some(data(opened, &out)))
    } else {
        let opened = session.open(record)?;
        Ok(Some(data(opened, record)))
    }
}

/// Whatever has come, the peer can read what this end sends.
fn answer(own: &mut Session, peer: &mut Session, apart: bool) {
    let mut out = vec![0; Session::sealed_max(4)];
    let (len, _) = own.seal(&mut out, |room| {
        room[..4].copy_from_slice(b"mine");
        4
    });
    assert!(!own.owes_answer());
    let (mut rest, mut read) = (&mut out[..len], Vec::new());
    while !rest.is_empty() {
        let len = peer.record_len(rest).expect("a record").expect("a whole one");
        let (record, later) = rest.split_at_mut(len);
        read.extend(open(peer, record, apart).expect("authentic").expect("whole"));
        rest = later;
    }
    assert_eq!(read, b"mine");
}

/// What comes after a handshake: from the peer that has the keys, and from others.
fn records(second: bool, mut input: &[u8]) {
    let suite = if second { Suite::Aes256GcmSha384 } else { Suite::Aes128GcmSha256 };
    let (mut peer, mut own) = Session::pair(suite);
    let mut failed: Option<TlsError> = None;
    while let Some(act) = byte(&mut input) {
        let apart = act & 0x80 != 0;
        let (genuine, mut bytes) = match act & 3 {
            // A record of any type, by who has the keys.
            0 => {
                let kind = byte(&mut input).unwrap_or(DATA);
                let content = take(&mut input).unwrap_or_default();
                (true, seal(&mut peer, kind, content))
            }
            // A record of data that is changed on the way, maybe.
            1 => {
                let content = take(&mut input).unwrap_or_default();
                let mut record = seal(&mut peer, DATA, content);
                (!change(&mut record, &mut input), record)
            }
            2 => (false, take(&mut input).unwrap_or_default().to_vec()),
            // Data of our own, with what the peer has asked for before them.
            _ => {
                answer(&mut own, &mut peer, apart);
                continue;
            }
        };
        let before = bytes.clone();
        match open(&mut own, &mut bytes, apart) {
            Ok(Some(data)) => {
                assert!(failed.is_none(), "data after {failed:?}");
                assert!(genuine || data.is_empty(), "data that nobody has sent");
            }
            // Not whole: the next record would be read with the rest of this one, which the driver does not do.
            Ok(None) => return,
            Err(error) => {
                if let Some(first) = &failed {
                    let is_header = own.record_len(&before).is_err();
                    assert!(is_header || *first == error, "{first:?}, then {error:?}");
                }
                // A header that cannot be is told before the session knows of it.
                if own.record_len(&before).is_ok() {
                    failed.get_or_insert(error);
                }
            }
        }
    }
}
