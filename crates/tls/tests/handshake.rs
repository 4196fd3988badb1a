//! Both ends of a handshake and of what follows, without I/O: right keys, wrong ones, and changed bytes.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use proptest::prelude::*;
use raceline_auth::{GeneratedPsk, Hash, IdentityVersion, SecretBytes, TlsKey};
use raceline_proto::nvme::Nqn;
use raceline_tls::{
    ClientPsk, DATA_MAX, Established, Handshake, Opened, PskLookup, PskTable, RECORD_MAX, Session,
    SharedPsk, Suite, TlsError,
};

const VERSIONS: [IdentityVersion; 2] = [IdentityVersion::Zero, IdentityVersion::One];

fn names() -> (Nqn, Nqn) {
    let nqn = |name| Nqn::new(name).unwrap();
    (nqn("nqn.2014-08.org.nvmexpress:uuid:host"), nqn("nqn.2026-01.io.raceline:sub"))
}

fn key(hash: Hash) -> TlsKey {
    TlsKey::parse(match hash {
        Hash::Sha256 => "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
        _ => "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
    })
    .unwrap()
}

fn table(key: &TlsKey) -> Arc<PskTable> {
    let (host, subsystem) = names();
    let table = PskTable::new();
    table.insert(key, &host, &subsystem).unwrap();
    Arc::new(table)
}

fn offer(key: &TlsKey, version: IdentityVersion) -> ClientPsk {
    let (host, subsystem) = names();
    ClientPsk::new(key, version, &host, &subsystem).unwrap()
}

/// Both ends, and what the wire does with each flight on its way.
struct Pair {
    client: Handshake,
    server: Handshake,
}

type Ends = (Result<Established, TlsError>, Result<Established, TlsError>);

impl Pair {
    fn new(lookup: Arc<dyn PskLookup>, psk: &ClientPsk) -> Pair {
        Pair { client: Handshake::client(psk).unwrap(), server: Handshake::server(lookup) }
    }

    /// Runs until both ends are done, or until nothing is left on the wire. `wire` sees each flight: whether the client
    /// has sent it, and its bytes.
    fn run(mut self, piece: usize, mut wire: impl FnMut(bool, &mut Vec<u8>)) -> Ends {
        let mut results = [None, None];
        loop {
            let mut idle = true;
            for from_client in [true, false] {
                let (from, to) = if from_client {
                    (&mut self.client, &mut self.server)
                } else {
                    (&mut self.server, &mut self.client)
                };
                let mut flight = from.take_output();
                if flight.is_empty() {
                    continue;
                }
                idle = false;
                wire(from_client, &mut flight);
                let result = &mut results[usize::from(from_client)];
                for bytes in flight.chunks(piece) {
                    if result.is_none() {
                        *result = to.handle(bytes).transpose();
                    }
                }
            }
            if idle {
                break;
            }
        }
        let [client, server] = results.map(|end| end.unwrap_or(Err(TlsError::CutOff)));
        (client, server)
    }
}

fn established(hash: Hash) -> (Established, Established) {
    let key = key(hash);
    let (client, server) =
        Pair::new(table(&key), &offer(&key, IdentityVersion::One)).run(usize::MAX, |_, _| {});
    let server = server.unwrap();
    (client.unwrap(), server)
}

fn seal(session: &mut Session, data: &[u8]) -> Vec<u8> {
    let mut out = vec![0; Session::sealed_max(data.len().max(1))];
    let (len, taken) = session.seal(&mut out, |room| {
        room[..data.len()].copy_from_slice(data);
        data.len()
    });
    assert_eq!(taken, data.len());
    out.truncate(len);
    out
}

fn open(session: &mut Session, record: &[u8]) -> Result<Vec<u8>, TlsError> {
    let mut record = record.to_vec();
    assert_eq!(session.record_len(&record)?, Some(record.len()));
    match session.open(&mut record)? {
        Opened::Data { start, len } => Ok(record[start..start + len].to_vec()),
        Opened::Nothing | Opened::Closed => Ok(Vec::new()),
    }
}

#[test]
fn both_hashes_and_both_versions() {
    for (hash, suite) in
        [(Hash::Sha256, Suite::Aes128GcmSha256), (Hash::Sha384, Suite::Aes256GcmSha384)]
    {
        let key = key(hash);
        for version in VERSIONS {
            for piece in [1, 7, 300, usize::MAX] {
                let psk = offer(&key, version);
                let (client, server) = Pair::new(table(&key), &psk).run(piece, |_, _| {});
                let (mut client, mut server) = (client.unwrap(), server.unwrap());
                assert_eq!((client.suite, server.suite), (suite, suite));
                assert_eq!(client.identity, psk.identity.as_str());
                assert_eq!(server.identity, psk.identity.as_str());
                assert!(client.rest.is_empty() && server.rest.is_empty());
                for len in [0, 1, 24, 4096 + 24, DATA_MAX] {
                    let data: Vec<u8> = (0..len).map(|i| (i % 251).to_le_bytes()[0]).collect();
                    for _ in 0..2 {
                        let record = seal(&mut client.session, &data);
                        assert_eq!(open(&mut server.session, &record).unwrap(), data);
                        let record = seal(&mut server.session, &data);
                        assert_eq!(open(&mut client.session, &record).unwrap(), data);
                    }
                }
            }
        }
    }
}

#[test]
fn names_are_not_in_what_follows_the_first_flight() {
    let key = key(Hash::Sha256);
    let mut flights = 0;
    let pair = Pair::new(table(&key), &offer(&key, IdentityVersion::One));
    let (client, server) = pair.run(usize::MAX, |_, bytes| {
        let visible = bytes.windows(8).any(|window| window == b"raceline");
        assert_eq!(visible, flights == 0, "flight {flights}");
        flights += 1;
    });
    assert!(client.is_ok() && server.is_ok() && flights >= 3);
}

#[test]
fn keys_that_do_not_fit() {
    let (right, other) = (key(Hash::Sha256), TlsKey::generate(Hash::Sha256).unwrap());
    // Version 1 has a digest of the key, so another key has another identity. In version 0 only the key differs.
    let end = |offered, version| {
        let pair = Pair::new(table(&right), &offer(offered, version));
        let (client, server) = pair.run(usize::MAX, |_, _| {});
        (client.map(|_| ()).unwrap_err(), server.map(|_| ()).unwrap_err())
    };
    let (client, server) = end(&other, IdentityVersion::One);
    assert_eq!(client, TlsError::Refused(115));
    let TlsError::UnknownIdentity(text) = server else { panic!("{server:?}") };
    assert!(text.starts_with("NVMe1R01 nqn.2014-08.org.nvmexpress:uuid:host "), "{text}");
    let (client, server) = end(&other, IdentityVersion::Zero);
    assert!(matches!(client, TlsError::Refused(_)), "{client:?}");
    assert!(matches!(server, TlsError::Handshake(_)), "{server:?}");
    let (_, server) = end(&key(Hash::Sha384), IdentityVersion::Zero);
    assert!(matches!(server, TlsError::UnknownIdentity(_)), "{server:?}");
}

#[test]
fn a_table_may_change() {
    let (host, subsystem) = names();
    let (first, second) = (TlsKey::generate(Hash::Sha256).unwrap(), key(Hash::Sha384));
    let table = table(&first);
    let works = |key: &TlsKey| {
        let psk = offer(key, IdentityVersion::One);
        let lookup = Arc::clone(&table) as Arc<dyn PskLookup>;
        Pair::new(lookup, &psk).run(usize::MAX, |_, _| {}).1.is_ok()
    };
    assert!(works(&first) && !works(&second));
    table.insert(&second, &host, &subsystem).unwrap();
    assert!(!works(&first) && works(&second));
    assert!(table.remove(&host, &subsystem) && !table.remove(&host, &subsystem));
    assert!(!works(&second));
}

/// In version 0, keys of the same length have one identity. The binder tells which of them the host has.
#[test]
fn several_keys_with_one_identity_are_told_apart() {
    let (host, subsystem) = names();
    for hash in [Hash::Sha256, Hash::Sha384] {
        let [first, second, third, stranger] = [(); 4].map(|()| TlsKey::generate(hash).unwrap());
        let table = Arc::new(PskTable::new());
        table.set(&[&first, &second, &first, &third], &host, &subsystem).unwrap();
        for version in VERSIONS {
            for (key, known) in
                [(&first, true), (&second, true), (&third, true), (&stranger, false)]
            {
                for piece in [1, 100, usize::MAX] {
                    let lookup = Arc::clone(&table) as Arc<dyn PskLookup>;
                    let (client, server) =
                        Pair::new(lookup, &offer(key, version)).run(piece, |_, _| {});
                    assert_eq!((client.is_ok(), server.is_ok()), (known, known), "{version:?}");
                }
            }
        }
        table.set(&[&third], &host, &subsystem).unwrap();
        assert_eq!(
            table.find_all(offer(&first, VERSIONS[0]).identity.as_str().as_bytes()).len(),
            1
        );
        assert!(table.remove(&host, &subsystem));
    }
}

#[test]
fn generated_keys_go_one_by_one_and_the_oldest_gives_way() {
    let (host, subsystem) = names();
    let table = PskTable::new();
    let generate = |number: u8| {
        let session_key = SecretBytes::new(&[number; 32]);
        let psk = GeneratedPsk::new(Hash::Sha256, &session_key, &[1; 32], &[2; 32]).unwrap();
        psk.for_tls(&host, &subsystem).unwrap()
    };
    let given = key(Hash::Sha256);
    table.insert(&given, &host, &subsystem).unwrap();
    let holds = |number| table.find(generate(number).0.as_str().as_bytes()).is_some();
    for number in 0..=64 {
        let (identity, psk) = generate(number);
        table.add_generated(&identity, psk, &host, &subsystem);
    }
    assert!(!holds(0) && (1..=64).all(holds));
    table.insert(&given, &host, &subsystem).unwrap();
    assert!(table.forget_generated(generate(5).0.as_str()) && !holds(5) && holds(6));
    assert!(!table.forget_generated(generate(5).0.as_str()));
    assert!(table.remove_generated(&host, &subsystem) && !holds(6));
    let offered = offer(&given, IdentityVersion::One);
    assert!(table.find(offered.identity.as_str().as_bytes()).is_some());
}

#[test]
fn a_shared_key_is_for_any_host_and_for_its_subsystems_only() {
    let (_, subsystem) = names();
    let key = key(Hash::Sha384);
    let shared: Arc<dyn PskLookup> =
        Arc::new(SharedPsk::new(key.clone(), vec![subsystem.clone(), Nqn::discovery()]));
    let works = |key: &TlsKey, host: &str, subsystem: &Nqn| {
        VERSIONS.map(|version| {
            let host = Nqn::new(host).unwrap();
            let psk = ClientPsk::new(key, version, &host, subsystem).unwrap();
            Pair::new(Arc::clone(&shared), &psk).run(usize::MAX, |_, _| {}).1.is_ok()
        })
    };
    let (elsewhere, other) =
        (Nqn::new("nqn.2014-08.org.example:s").unwrap(), TlsKey::generate(Hash::Sha384).unwrap());
    for host in ["nqn.2014-08.org.example:a", "b"] {
        assert_eq!(works(&key, host, &subsystem), [true; 2]);
        assert_eq!(works(&key, host, &Nqn::discovery()), [true; 2]);
        assert_eq!(works(&key, host, &elsewhere), [false; 2]);
        assert_eq!(works(&other, host, &subsystem), [false; 2]);
    }
    for identity in
        ["", " ", "NVMe1R02", "NVMe9R02 a b", "NVMe1R02 a b c", "\u{e9}\u{e9}\u{e9} a b"]
    {
        assert!(shared.find(identity.as_bytes()).is_none(), "{identity}");
    }
    assert!(shared.find(&[0xff; 40]).is_none());
}

/// A change of any bit of the handshake ends it at one end at least, and no data come through. Middle boxes may change
/// what carries no meaning: the records of change_cipher_spec, and versions in headers of records.
#[test]
fn changed_handshakes_never_give_a_connection_that_works() {
    let key = key(Hash::Sha256);
    let psk = offer(&key, IdentityVersion::One);
    let mut lengths = Vec::new();
    let (client, server) =
        Pair::new(table(&key), &psk).run(usize::MAX, |_, flight| lengths.push(flight.len()));
    assert!(client.is_ok() && server.is_ok());
    let mut survived = Vec::new();
    for (number, len) in lengths.iter().enumerate() {
        for at in 0..*len {
            let mut flights = 0;
            let mut original = 0;
            let pair = Pair::new(table(&key), &psk);
            let (client, server) = pair.run(usize::MAX, |_, flight| {
                if flights == number && at < flight.len() {
                    original = flight[at];
                    flight[at] ^= 1 << (at % 8);
                }
                flights += 1;
            });
            let (Ok(mut client), Ok(mut server)) = (client, server) else { continue };
            survived.push((number, at, original));
            // Only what does not matter was changed: both ends have the same keys and the right identity.
            assert_eq!(
                (&*client.identity, &*server.identity),
                (psk.identity.as_str(), psk.identity.as_str())
            );
            let record = seal(&mut client.session, b"data");
            assert_eq!(open(&mut server.session, &record).unwrap(), b"data");
        }
    }
    // Headers have two bytes of version, in about six records.
    assert!(survived.len() <= 16, "{survived:?}");
}

#[test]
fn handshakes_that_are_cut_off_wait() {
    let key = key(Hash::Sha256);
    let psk = offer(&key, IdentityVersion::One);
    for keep in [0, 1, 4, 5, 6, 100, 150] {
        let (client, server) = Pair::new(table(&key), &psk)
            .run(usize::MAX, |from_client, flight| {
                flight.truncate(if from_client { keep } else { 0 })
            });
        assert_eq!(client.map(|_| ()).unwrap_err(), TlsError::CutOff);
        assert_eq!(server.map(|_| ()).unwrap_err(), TlsError::CutOff);
    }
}

#[test]
fn peers_without_tls_are_told_apart() {
    let key = key(Hash::Sha256);
    let mut server = Handshake::server(table(&key));
    let ic_req = [&[0, 0, 128, 0, 128, 0, 0, 0][..], &[0; 120]].concat();
    let error = server.handle(&ic_req).map(|_| ()).unwrap_err();
    assert_eq!(error, TlsError::Plain(0));
    assert!(error.to_string().contains("without TLS"), "{error}");
    assert_eq!(server.take_output(), [21, 3, 3, 0, 2, 2, 10]);
    // It stays failed.
    assert_eq!(server.handle(&[22]).map(|_| ()).unwrap_err(), TlsError::Plain(0));
    let mut client = Handshake::client(&offer(&key, IdentityVersion::One)).unwrap();
    assert_eq!(client.handle(&[3, 0]).map(|_| ()).unwrap_err(), TlsError::Plain(3));
    let mut client = Handshake::client(&offer(&key, IdentityVersion::One)).unwrap();
    let error = client.handle(&[21, 3, 3, 0, 2, 2, 115]).map(|_| ()).unwrap_err();
    assert_eq!(error, TlsError::Refused(115));
    for first in [20, 21, 23, b'G', 255] {
        let mut server = Handshake::server(table(&key));
        assert_eq!(server.handle(&[first]).map(|_| ()).unwrap_err(), TlsError::NotTls(first));
    }
}

#[test]
fn endless_handshakes_are_given_up() {
    let key = key(Hash::Sha256);
    let mut server = Handshake::server(table(&key));
    // The first fragment of a ClientHello of 16 MiB, without end.
    let mut given = 0;
    let error = loop {
        let fragment = [&[22, 3, 1, 64, 0, 1, 255, 255, 255][..], &[0; 16380]].concat();
        given += fragment.len();
        match server.handle(&fragment) {
            Ok(_) => assert!(given < 100_000),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, TlsError::TooLong(_) | TlsError::Handshake(_)), "{error:?}");
}

#[test]
fn changed_records_never_give_data() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        let (mut client, _) = established(hash);
        let record = seal(&mut client.session, b"sixteen bytes...");
        for at in 0..record.len() {
            for bit in 0..8 {
                let (mut client, mut server) = established(hash);
                let mut changed = seal(&mut client.session, b"sixteen bytes...");
                changed[at] ^= 1 << bit;
                match server.session.record_len(&changed) {
                    Ok(Some(len)) if len == changed.len() => {
                        let opened = server.session.open(&mut changed);
                        assert_eq!(opened, Err(TlsError::NotAuthentic), "byte {at}, bit {bit}");
                    }
                    // Another length or type: not this record.
                    Ok(_) | Err(_) => assert!(at < 5, "byte {at}"),
                }
            }
            if at > 8 && hash == Hash::Sha384 {
                break; // a handshake for each bit takes its time
            }
        }
    }
}

#[test]
fn records_out_of_order_twice_or_of_another_connection() {
    let (mut client, mut server) = established(Hash::Sha256);
    let first = seal(&mut client.session, b"first");
    let second = seal(&mut client.session, b"second");
    assert_eq!(open(&mut server.session, &second), Err(TlsError::NotAuthentic));
    // Nothing is believed after a record that was not authentic, whatever its number.
    for record in [&first, &second, &seal(&mut client.session, b"third")] {
        assert_eq!(open(&mut server.session, record), Err(TlsError::NotAuthentic));
    }
    let (mut client, mut server) = established(Hash::Sha256);
    assert_eq!(open(&mut server.session, &first), Err(TlsError::NotAuthentic));
    let record = seal(&mut client.session, b"once");
    let (mut other, mut server) = established(Hash::Sha256);
    assert_eq!(open(&mut server.session, &record), Err(TlsError::NotAuthentic));
    let record = seal(&mut other.session, b"once");
    // Reflected: our own records do not come back.
    assert_eq!(open(&mut other.session, &record), Err(TlsError::NotAuthentic));
}

#[test]
fn the_end_is_told_from_a_cut() {
    let (mut client, mut server) = established(Hash::Sha384);
    let mut out = vec![0; Session::sealed_max(1)];
    let len = client.session.close(None, &mut out);
    assert_eq!(server.session.open(&mut out[..len]), Ok(Opened::Closed));
    // Nothing is believed after it.
    let mut record = seal(&mut client.session, b"late");
    assert_eq!(server.session.open(&mut record), Ok(Opened::Closed));
    let (mut client, mut server) = established(Hash::Sha384);
    let mut out = vec![0; Session::sealed_max(1)];
    let len = client.session.close(Some(&TlsError::NotAuthentic), &mut out);
    assert_eq!(server.session.open(&mut out[..len]), Err(TlsError::Alert(20)));
}

#[test]
fn records_without_end_are_given_up() {
    let (mut client, mut server) = established(Hash::Sha256);
    let mut empty = 0;
    let error = loop {
        let record = seal(&mut client.session, b"");
        match open(&mut server.session, &record) {
            Ok(_) => empty += 1,
            Err(error) => break error,
        }
        assert!(empty < 100);
    };
    assert_eq!(error, TlsError::Flood);
    let too_long = [23, 3, 3, 0xff, 0xff];
    assert_eq!(server.session.record_len(&too_long), Err(TlsError::TooLong(65535)));
    assert_eq!(RECORD_MAX, 5 + (1 << 14) + 256);
}

/// A ClientHello with its real header, and what a host could have put behind it.
fn hello() -> Vec<u8> {
    Handshake::client(&offer(&key(Hash::Sha256), IdentityVersion::One)).unwrap().take_output()
}

proptest! {
    #[test]
    fn any_bytes_end_a_handshake_or_wait(
        start in 0..3_usize,
        mut bytes in prop::collection::vec(any::<u8>(), 0..600),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        piece in 1..700_usize,
    ) {
        // Nothing that looks like TLS, or like a record of a handshake, or a ClientHello with changes.
        match start {
            0 => {}
            1 => {
                let [high, low] = u16::try_from(bytes.len()).unwrap().to_be_bytes();
                bytes.splice(0..0, [22, 3, 1, high, low]);
            }
            _ => {
                bytes = hello();
                for (at, value) in &changes {
                    let at = at.index(bytes.len());
                    bytes[at] = *value;
                }
            }
        }
        let key = key(Hash::Sha256);
        let mut server = Handshake::server(table(&key));
        let mut client = Handshake::client(&offer(&key, IdentityVersion::One)).unwrap();
        for end in [&mut server, &mut client] {
            for part in bytes.chunks(piece) {
                match end.handle(part) {
                    Ok(None) => {}
                    Ok(Some(_)) => prop_assert!(false, "established without the other end"),
                    Err(_) => break,
                }
            }
            let _ = end.take_output();
        }
    }
}
