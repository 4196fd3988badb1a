//! Sessions with tgt, a target that is not ours. Skipped where tgtd or tgtadm is not installed, or cannot start.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{Core, LIMIT, TARGET, config, pattern};
use raceline_bdev::Bdev as _;
use raceline_initiator::{BlockingSession, LunBdev, SessionConfig, UnitInfo, luns};

/// A daemon of this test, ended with it.
struct Tgt {
    daemon: Child,
    control: String,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Tgt {
    /// One target with a disk of 16 MiB as LUN 1; `None`: it cannot run here, for the printed reason.
    fn start(number: u16) -> Option<Self> {
        let program =
            ["/usr/sbin/tgtd", "/sbin/tgtd"].into_iter().find(|path| Path::new(path).exists());
        let Some(program) = program else {
            eprintln!("SKIPPED: tgtd is not installed");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        std::fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
        // Free now; another process could take it before tgtd does, and the test would be skipped.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // Control ports of daemons on one machine differ.
        let control = (7000 + u32::from(number) + std::process::id() % 20_000).to_string();
        let daemon = Command::new(program)
            .args(["-f", "-C", &control, "--iscsi", &format!("portal={address}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let daemon = match daemon {
            Ok(daemon) => daemon,
            Err(error) => {
                eprintln!("SKIPPED: tgtd does not start: {error}");
                return None;
            }
        };
        let mut tgt = Self { daemon, control, address, _folder: folder };
        let start = Instant::now();
        while TcpStream::connect(address).is_err()
            || !tgt.admin("--op show --mode sys").status.success()
        {
            if tgt.daemon.try_wait().unwrap().is_some() || start.elapsed() > LIMIT {
                eprintln!("SKIPPED: tgtd does not come up; it needs privileges");
                return None;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for words in [
            format!("--op new --mode target --tid 1 -T {TARGET}"),
            format!("--op new --mode logicalunit --tid 1 --lun 1 -b {}", disk.display()),
            "--op update --mode logicalunit --tid 1 --lun 1 --params thin_provisioning=1"
                .to_owned(),
            "--op bind --mode target --tid 1 -I ALL".to_owned(),
        ] {
            let output = tgt.admin(&words);
            assert!(output.status.success(), "{words}: {output:?}");
        }
        Some(tgt)
    }

    fn admin(&self, words: &str) -> Output {
        let mut command = Command::new("tgtadm");
        command.args(["-C", &self.control, "--lld", "iscsi"]).args(words.split_whitespace());
        command.output().unwrap()
    }

    fn config(&self) -> SessionConfig {
        SessionConfig { lun: 1, ..config(self.address) }
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[test]
fn data_arrive_and_the_unit_is_described() {
    let Some(tgt) = Tgt::start(1) else { return };
    let discovery = SessionConfig { target_name: None, ..tgt.config() };
    let session = BlockingSession::connect(discovery).unwrap();
    let targets = session.discover("All").unwrap();
    assert!(targets.iter().any(|target| target.name.as_str() == TARGET), "{targets:?}");
    session.close();
    let session = BlockingSession::connect(tgt.config()).unwrap();
    assert_eq!(luns(&session).unwrap(), [0, 1]);
    let unit = UnitInfo::read(&session).unwrap();
    assert_eq!((unit.block_size, unit.block_count, &*unit.vendor), (512, 32_768, "IET"));
    session.close();
    // Digests are off at a target of tgt unless its administrator allows them.
    blocks_arrive(tgt.config());
}

/// Writes of many sizes, one after the other and many at once, are read back.
fn blocks_arrive(config: SessionConfig) {
    let mut core = Core::ready(config);
    for (seed, bytes) in (1_u64..).zip([512, 8192, 65_536, 300 << 10, 1 << 20]) {
        let data = pattern(seed, bytes);
        core.write(seed, &data, seed);
        assert_eq!(core.take_done(seed).result, Ok(0), "{bytes} bytes, {:?}", core.events);
        assert_eq!(core.data(seed, u32::try_from(bytes / 512).unwrap()), data, "{bytes} bytes");
    }
    let many: Vec<Vec<u8>> = (0..64).map(|seed| pattern(seed, 16_384)).collect();
    for (user, data) in (0_u64..).zip(&many) {
        core.write(user * 32, data, user);
    }
    (0..64).for_each(|user| assert_eq!(core.take_done(user).result, Ok(0)));
    for (user, data) in (0_u64..).zip(&many) {
        assert_eq!(core.data(user * 32, 32), *data);
    }
    core.close();
    assert!(core.lost().is_none(), "{:?}", core.events);
    assert_eq!(core.session.counters().totals().digest_errors, 0);
}

#[test]
fn each_side_takes_the_digests_of_the_other() {
    let Some(tgt) = Tgt::start(3) else { return };
    let config =
        |header_digest, data_digest| SessionConfig { header_digest, data_digest, ..tgt.config() };
    assert!(BlockingSession::connect(config(true, true)).is_err(), "tgt has not been told to");
    for digest in ["HeaderDigest", "DataDigest"] {
        let words = format!("--op update --mode target --tid 1 --name {digest} --value CRC32C");
        let output = tgt.admin(&words);
        assert!(output.status.success(), "{words}: {output:?}");
    }
    let session = BlockingSession::connect(config(true, true)).unwrap();
    assert_eq!(UnitInfo::read(&session).unwrap().block_count, 32_768);
    session.close();
    for (header_digest, data_digest) in [(true, true), (true, false), (false, true)] {
        blocks_arrive(config(header_digest, data_digest));
    }
}

#[test]
fn a_unit_is_a_device() {
    let Some(tgt) = Tgt::start(2) else { return };
    let device = LunBdev::open(tgt.config()).unwrap();
    let info = device.info();
    assert_eq!((info.block_size, info.block_count), (512, 32_768));
    assert_ne!(info.uuid, [0; 16]);
    let again = LunBdev::open(tgt.config()).unwrap();
    assert_eq!(again.info().uuid, info.uuid);
}
