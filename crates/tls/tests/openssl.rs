//! Against OpenSSL, where its program is installed: both ends, with the suite that its program has for such keys.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_auth::{IdentityVersion, TlsKey};
use raceline_proto::nvme::Nqn;
use raceline_tls::{ClientPsk, Handshake, Opened, PskTable, Session, Suite, TlsError};

const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const LIMIT: Duration = Duration::from_secs(20);

fn names() -> (Nqn, Nqn) {
    (Nqn::new("nqn.host").unwrap(), Nqn::new("nqn.subsystem").unwrap())
}

fn offer(version: IdentityVersion) -> ClientPsk {
    let (host, subsystem) = names();
    ClientPsk::new(&TlsKey::parse(KEY).unwrap(), version, &host, &subsystem).unwrap()
}

fn hex(psk: &ClientPsk) -> String {
    psk.psk.key().expose().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_installed() -> bool {
    let found = Command::new("openssl").arg("version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: openssl is not installed: nothing was tested against it");
    }
    found
}

/// The process ends with the test.
struct OpenSsl(Child);

impl OpenSsl {
    fn start(arguments: &[&str]) -> OpenSsl {
        let mut command = Command::new("openssl");
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        OpenSsl(command.spawn().unwrap())
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection whose bytes this test moves itself.
struct Wire {
    stream: TcpStream,
    session: Session,
    raw: Vec<u8>,
}

impl Wire {
    fn shake_hands(mut stream: TcpStream, mut handshake: Handshake) -> (Wire, Suite) {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        loop {
            stream.write_all(&handshake.take_output()).unwrap();
            let mut piece = [0; 1000];
            let count = stream.read(&mut piece).unwrap();
            assert!(count > 0, "OpenSSL has closed the connection");
            let established = handshake.handle(&piece[..count]).unwrap();
            if let Some(established) = established {
                stream.write_all(&handshake.take_output()).unwrap();
                let (session, raw) = (established.session, established.rest);
                return (Wire { stream, session, raw }, established.suite);
            }
        }
    }

    fn send(&mut self, data: &[u8]) {
        let mut out = vec![0; Session::sealed_max(data.len())];
        let (len, _) = self.session.seal(&mut out, |room| {
            room[..data.len()].copy_from_slice(data);
            data.len()
        });
        self.stream.write_all(&out[..len]).unwrap();
    }

    /// Data until a line ends.
    fn receive_line(&mut self) -> Vec<u8> {
        let mut data = Vec::new();
        while !data.ends_with(b"\n") {
            match self.session.record_len(&self.raw).unwrap() {
                Some(len) if self.raw.len() >= len => {
                    let mut record: Vec<u8> = self.raw.drain(..len).collect();
                    match self.session.open(&mut record).unwrap() {
                        Opened::Data { start, len } => data.extend(&record[start..start + len]),
                        // Tickets come here.
                        Opened::Nothing => {}
                        Opened::Closed => panic!("OpenSSL has closed the connection"),
                    }
                }
                _ => {
                    let mut piece = [0; 1000];
                    let count = self.stream.read(&mut piece).unwrap();
                    assert!(count > 0, "OpenSSL has closed the connection");
                    self.raw.extend(&piece[..count]);
                }
            }
        }
        data
    }
}

fn connect(port: u16) -> TcpStream {
    let began = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(began.elapsed() < LIMIT, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_host_with_a_server_of_openssl() {
    if !is_installed() {
        return;
    }
    for version in [IdentityVersion::Zero, IdentityVersion::One] {
        let psk = offer(version);
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        // It sends lines back, with their letters in the other order, and gives out tickets.
        let (address, key) = (format!("127.0.0.1:{port}"), hex(&psk));
        let arguments = ["s_server", "-accept", &address, "-nocert", "-tls1_3", "-rev", "-psk"];
        let server = OpenSsl::start(
            &[&arguments[..], &[&key, "-psk_identity", psk.identity.as_str()]].concat(),
        );
        let (mut wire, suite) = Wire::shake_hands(connect(port), Handshake::client(&psk).unwrap());
        assert_eq!(suite, Suite::Aes128GcmSha256);
        for word in ["raceline", &"x".repeat(9000)] {
            wire.send(format!("{word}\n").as_bytes());
            let mut line = wire.receive_line();
            line.pop();
            line.reverse();
            assert_eq!(String::from_utf8(line).unwrap(), word);
        }
        drop(server);
    }
}

#[test]
fn a_target_with_a_client_of_openssl() {
    if !is_installed() {
        return;
    }
    let (host, subsystem) = names();
    let table = Arc::new(PskTable::new());
    table.insert(&TlsKey::parse(KEY).unwrap(), &host, &subsystem).unwrap();
    // The last one's share of the key exchange is of a curve that this end does not have: it has to try again.
    for (version, groups) in [
        (IdentityVersion::Zero, "P-256"),
        (IdentityVersion::One, "P-384"),
        (IdentityVersion::One, "X25519:P-256"),
    ] {
        let psk = offer(version);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, key) = (listener.local_addr().unwrap().to_string(), hex(&psk));
        let arguments =
            ["s_client", "-connect", &address, "-tls1_3", "-quiet", "-groups", groups, "-psk"];
        let mut client = OpenSsl::start(
            &[&arguments[..], &[&key, "-psk_identity", psk.identity.as_str()]].concat(),
        );
        let handshake = Handshake::server(Arc::clone(&table) as Arc<_>);
        let (mut wire, suite) = Wire::shake_hands(listener.accept().unwrap().0, handshake);
        assert_eq!(suite, Suite::Aes128GcmSha256);
        client.0.stdin.as_mut().unwrap().write_all(b"from openssl\n").unwrap();
        assert_eq!(wire.receive_line(), b"from openssl\n");
        wire.send(b"to openssl\n");
        let mut line = [0; 11];
        client.0.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"to openssl\n");
    }
}

/// OpenSSL has no alert of its own for what is wrong with a key.
#[test]
fn a_host_is_told_what_a_server_of_openssl_refuses() {
    if !is_installed() {
        return;
    }
    let psk = offer(IdentityVersion::Zero);
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let address = format!("127.0.0.1:{port}");
    let other = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    let arguments = ["s_server", "-accept", &address, "-nocert", "-tls1_3", "-psk", other];
    let _server =
        OpenSsl::start(&[&arguments[..], &["-psk_identity", psk.identity.as_str()]].concat());
    let (mut stream, mut handshake) = (connect(port), Handshake::client(&psk).unwrap());
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&handshake.take_output()).unwrap();
    let mut piece = [0; 1000];
    let count = stream.read(&mut piece).unwrap();
    let error = handshake.handle(&piece[..count]).map(|_| ()).unwrap_err();
    assert!(matches!(error, TlsError::Refused(_)), "{error:?}");
    assert!(error.to_string().contains("Give both ends the same key"), "{error}");
}
