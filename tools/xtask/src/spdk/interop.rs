//! `cargo xtask spdk --interop`: each host with each target, over TLS and with DH-HMAC-CHAP.
//!
//! Nothing is measured, so SPDK runs without huge pages.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::config::call;
use super::huge::Leftovers;
use super::program::{Scratch, free_port, spdk_program, total};
use crate::child::{Running, Task};
use crate::raceline::{Export, Tree, host, iops, perf_job};
use crate::step::{Checks, Outcome};

const HOST: &str = "nqn.2014-08.org.example:interop:host";
const NQN: &str = "nqn.2014-08.org.example:interop";
/// Keys and secrets of tests: anyone may know them. The digits say how they are transformed.
const TEXTS: [(&str, &str); 8] = [
    ("psk-00", "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"),
    ("psk-01", "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"),
    (
        "psk-02",
        "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
    ),
    ("psk-other", "NVMeTLSkey-1:01:MDAxMTIyMzM0NDU1NjY3Nzg4OTlhYWJiY2NkZGVlZmZwJEiQ:"),
    ("host", "DHHC-1:01:E9an7+T0aHqRy+bPTH8/JfJNfoQRYRy4P0Phxj+FxT10jwKd:"),
    (
        "ctrl",
        "DHHC-1:03:nIZBRxIa4/8EhkH94jj4d+xpRocL+10DcgXbA3ezASlZ03wazuWLVqhzywOTAVOpu25M6RDlAuZffxVYvIIqy6aSyHY=:",
    ),
    ("other", "DHHC-1:00:opdXssgtulUGtA7urcpHIqTK3wJJ5Y7anIl1sUVNsng3PXjQ:"),
    ("new", "DHHC-1:02:EoKcfg9lMRdaVFfojeCJpA5bK/B1Pf901D98lHK/v4Ge89CJutcWqWvDQZO977HKVTa//g==:"),
];
const PSKS: [&str; 3] = ["psk-00", "psk-01", "psk-02"];
const HASHES: [&str; 3] = ["sha256", "sha384", "sha512"];
const GROUPS: [&str; 3] = ["null", "ffdhe2048", "ffdhe8192"];
/// Memory of SPDK's programs, in MiB.
const TARGET_MIB: &str = "1024";
const HOST_MIB: &str = "256";
/// Blocks of 4 KiB of each of their namespaces.
const BLOCK_COUNT: u32 = 16_384;
/// Time until SPDK's target listens, and for one run of its host, in seconds.
const READY_LIMIT_S: u64 = 30;
const HOST_LIMIT_S: u64 = 60;
/// What our host does where data are moved: each block says where it belongs.
const VERIFY: [&str; 14] = [
    "--verify",
    "-i",
    "2",
    "--iodepth",
    "8",
    "--rw",
    "randrw",
    "--bs",
    "20k",
    "--size",
    "20m",
    "--ramp_time",
    "0",
    "--runtime",
];

/// Runs all checks.
pub(crate) fn run(tree: &Tree, build: &Path, leftovers: &Leftovers) -> Result<bool> {
    let scratch = Scratch::new()?;
    for (name, text) in TEXTS {
        scratch.private(name, text)?;
    }
    let bench = Bench {
        tree,
        target: spdk_program(build, "nvmf_tgt")?,
        host: spdk_program(build, "spdk_nvme_perf")?,
        scratch: &scratch,
        leftovers,
    };
    let mut checks = Checks::default();
    for psk in PSKS {
        bench.their_host_over_tls(&mut checks, psk)?;
    }
    bench.their_host_over_both(&mut checks)?;
    for hash in HASHES {
        for group in GROUPS {
            bench.their_host_proves_itself(&mut checks, hash, group)?;
        }
    }
    let target = bench.start_target()?;
    for psk in PSKS {
        bench.our_host_over_tls(&mut checks, &target, psk);
    }
    bench.our_host_proves_itself(&mut checks, &target);
    match checks.outcome()? {
        Outcome::Passed(what) | Outcome::Skipped(what) => println!("{what}"),
    }
    Ok(true)
}

struct Bench<'a> {
    tree: &'a Tree,
    target: PathBuf,
    host: PathBuf,
    scratch: &'a Scratch,
    leftovers: &'a Leftovers,
}

/// SPDK's target, with a port over TLS and one in the clear.
struct TheirTarget {
    _running: Running,
    tls_port: u16,
    port: u16,
}

impl Bench<'_> {
    fn path(&self, name: &str) -> String {
        self.scratch.dir.join(name).display().to_string()
    }

    fn their_host_over_tls(&self, checks: &mut Checks, psk: &str) -> Result<()> {
        let (key, other) = (self.path(psk), self.path("psk-other"));
        let words = ["ram:64M", "-n", NQN, "--host", HOST, "--tls-psk", &key];
        let target = Export::start(self.tree, &words)?;
        let tls = |key: &str| self.their_host(target.port, &["-S", "ssl", "--psk-path", key]);
        checks.run(&format!("their-host-{psk}"), || tls(&key));
        checks.run(&format!("their-host-{psk}-another-key"), || refused(tls(&other), ""));
        checks.run(&format!("their-host-{psk}-without-tls"), || {
            refused(self.their_host(target.port, &[]), "")
        });
        target.stop("TERM")
    }

    fn their_host_over_both(&self, checks: &mut Checks) -> Result<()> {
        let [psk, own, ctrl] = ["psk-02", "host", "ctrl"].map(|name| self.path(name));
        let words = ["ram:64M", "-n", NQN, "--host", HOST, "--tls-psk", &psk];
        let keys = ["--dhchap-key", &own, "--dhchap-ctrlr-key", &ctrl];
        let target = Export::start(self.tree, &[&words[..], &keys].concat())?;
        let tls = ["-S", "ssl", "--psk-path", &psk];
        checks.run("their-host-tls-and-proof", || {
            self.their_host(target.port, &[&tls[..], &keys].concat())
        });
        checks.run("their-host-tls-without-proof", || {
            refused(self.their_host(target.port, &tls), "")
        });
        target.stop("TERM")
    }

    fn their_host_proves_itself(&self, checks: &mut Checks, hash: &str, group: &str) -> Result<()> {
        let [own, ctrl, other] = ["host", "ctrl", "other"].map(|name| self.path(name));
        let words = ["ram:64M", "-n", NQN, "--host", HOST];
        let keys = ["--dhchap-key", &own, "--dhchap-ctrlr-key", &ctrl];
        let allowed = ["--dhchap-digests", hash, "--dhchap-dhgroups", group];
        let target = Export::start(self.tree, &[&words[..], &keys, &allowed].concat())?;
        let name = format!("their-host-{hash}-{group}");
        let proof = |words: &[&str]| self.their_host(target.port, words);
        checks.run(&name, || proof(&keys[..2]));
        checks.run(&format!("{name}-mutual"), || proof(&keys));
        if group == GROUPS[1] {
            checks.run(&format!("{name}-another-key"), || {
                refused(proof(&["--dhchap-key", &other]), "")
            });
            checks.run(&format!("{name}-another-ctrlr-key"), || {
                refused(proof(&["--dhchap-key", &own, "--dhchap-ctrlr-key", &other]), "")
            });
        }
        target.stop("TERM")
    }

    /// SPDK's host reads and writes for a second.
    fn their_host(&self, port: u16, words: &[&str]) -> Result<()> {
        let transport = format!(
            "trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{port} subnqn:{NQN} hostnqn:{HOST}"
        );
        let load = ["-q", "8", "-o", "20480", "-w", "randrw", "-M", "50", "-P", "2", "-t", "1"];
        let task = Task::new(&self.host)
            .args(["--no-huge", "-s", HOST_MIB, "-r", &transport])
            .args(load)
            .args(words);
        let running = task.limit(HOST_LIMIT_S).start()?;
        self.leftovers.add(running.pid());
        let ended = running.wait()?;
        // It exits with 0 when it could not connect.
        ensure!(ended.success(), "spdk_nvme_perf: {}\n{}", ended.why(), ended.tail(5));
        total(&ended.stdout).map(drop).with_context(|| ended.tail(5))
    }

    /// Starts SPDK's target: for each key a subsystem over TLS, and subsystems whose host proves itself.
    fn start_target(&self) -> Result<TheirTarget> {
        let (tls_port, port) = (free_port()?, free_port()?);
        let keys = TEXTS.iter().map(|(name, _)| {
            call("keyring_file_add_key", json!({"name": name, "path": self.path(name)}))
        });
        let mut devices = Vec::new();
        let mut fabric = vec![call("nvmf_create_transport", json!({"trtype": "TCP"}))];
        let proof = json!({"dhchap_key": "host"});
        let mutual = json!({"dhchap_key": "host", "dhchap_ctrlr_key": "ctrl"});
        let both = json!({"psk": "psk-02", "dhchap_key": "host", "dhchap_ctrlr_key": "ctrl"});
        let tls = PSKS.map(|psk| (psk, tls_port, json!({"psk": psk})));
        let others = [("both", tls_port, both), ("oneway", port, proof), ("mutual", port, mutual)];
        for (name, port, mut host) in tls.into_iter().chain(others) {
            let device = json!({"name": name, "num_blocks": BLOCK_COUNT, "block_size": 4096});
            devices.push(call("bdev_malloc_create", device));
            let nqn = format!("{NQN}:{name}");
            let subsystem = json!({"nqn": nqn, "serial_number": "INTEROP"});
            fabric.push(call("nvmf_create_subsystem", subsystem));
            let namespace = json!({"nqn": nqn, "namespace": {"nsid": 1, "bdev_name": name}});
            fabric.push(call("nvmf_subsystem_add_ns", namespace));
            host["nqn"] = nqn.clone().into();
            host["host"] = HOST.into();
            fabric.push(call("nvmf_subsystem_add_host", host));
            let address = json!({
                "trtype": "TCP", "adrfam": "IPv4", "traddr": "127.0.0.1", "trsvcid": port.to_string(),
            });
            let secure = port == tls_port;
            let listener = json!({"nqn": nqn, "listen_address": address, "secure_channel": secure});
            fabric.push(call("nvmf_subsystem_add_listener", listener));
        }
        let config = json!({"subsystems": [
            {"subsystem": "keyring", "config": keys.collect::<Vec<Value>>()},
            {"subsystem": "bdev", "config": devices},
            {"subsystem": "nvmf", "config": fabric},
        ]});
        let file = self.scratch.dir.join("interop.json");
        std::fs::write(&file, config.to_string())?;
        let mut running = Task::new(&self.target)
            .args(["--no-huge", "-s", TARGET_MIB, "--no-pci", "-r", &self.path("interop.sock")])
            .args(["-c".as_ref(), file.as_os_str()])
            .limit(600)
            .start()?;
        self.leftovers.add(running.pid());
        let end = Instant::now() + Duration::from_secs(READY_LIMIT_S);
        // The listener in the clear is the last part of the configuration.
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            running.drain();
            let output = crate::child::tail(running.output(), 10);
            ensure!(running.alive() && Instant::now() < end, "nvmf_tgt does not listen:\n{output}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(TheirTarget { _running: running, tls_port, port })
    }

    fn our_host_over_tls(&self, checks: &mut Checks, target: &TheirTarget, psk: &str) {
        let (key, other) = (self.path(psk), self.path("psk-other"));
        let address = address(target.tls_port, psk);
        let identify = |key: &str, version: &str| {
            let words = ["-q", HOST, "-l", "0", "--tls-psk", key, "--tls-identity", version];
            host(self.tree, "identify", &address, &words)
        };
        checks.run(&format!("their-target-{psk}"), || identify(&key, "0").map(drop));
        checks.run(&format!("their-target-{psk}-verify"), || {
            self.verify(&address, "2", &["--tls-psk", &key, "--tls-identity", "0"])
        });
        checks.run(&format!("their-target-{psk}-identity-1"), || {
            refused(identify(&key, "1"), "--tls-identity 0")
        });
        checks.run(&format!("their-target-{psk}-another-key"), || {
            refused(identify(&other, "0"), "Give both ends the same key")
        });
        checks.run(&format!("their-target-{psk}-without-tls"), || {
            refused(host(self.tree, "identify", &address, &["-q", HOST, "-l", "0"]), "--tls-psk")
        });
    }

    fn our_host_proves_itself(&self, checks: &mut Checks, target: &TheirTarget) {
        let [psk, own, ctrl, other] =
            ["psk-02", "host", "ctrl", "other"].map(|name| self.path(name));
        let [oneway, mutual] = ["oneway", "mutual"].map(|name| address(target.port, name));
        let both = address(target.tls_port, "both");
        let keys = ["-S", &own, "-C", &ctrl];
        for hash in HASHES {
            for group in GROUPS {
                let allowed = ["--dhchap-digests", hash, "--dhchap-dhgroups", group];
                let name = format!("their-target-{hash}-{group}");
                checks.run(&name, || self.verify(&oneway, "1", &[&keys[..2], &allowed].concat()));
                checks.run(&format!("{name}-mutual"), || {
                    self.verify(&mutual, "1", &[&keys[..], &allowed].concat())
                });
            }
        }
        let tls = ["--tls-psk", &psk, "--tls-identity", "0"];
        checks.run("their-target-tls-and-proof", || {
            self.verify(&both, "1", &[&keys[..], &tls].concat())
        });
        let again = ["--reauthenticate", "1"];
        checks.run("their-target-reauth-under-io", || {
            self.verify(&mutual, "5", &[&keys[..], &again].concat())
        });
        checks.run("their-target-tls-reauth-under-io", || {
            self.verify(&both, "5", &[&keys[..], &tls, &again].concat())
        });
        let identify = |words: &[&str]| {
            host(self.tree, "identify", &mutual, &[&["-q", HOST, "-l", "0"], words].concat())
        };
        checks.run("their-target-another-key", || {
            refused(identify(&["-S", &other]), "Compare the keys")
        });
        checks.run("their-target-another-ctrlr-key", || {
            refused(identify(&["-S", &own, "-C", &other]), "did not prove")
        });
        checks.run("their-target-without-proof", || refused(identify(&[]), "--dhchap-secret"));
    }

    fn verify(&self, address: &[String], seconds: &str, words: &[&str]) -> Result<()> {
        let words = [&["-q", HOST], words, &VERIFY, &[seconds]].concat();
        let job = perf_job(self.tree, address, &words)?;
        ensure!(iops(&job) > 0.0, "no I/O");
        ensure!(job["verified_ios"].as_u64() > Some(0), "nothing was verified");
        Ok(())
    }
}

/// Arguments with which our host finds one of their subsystems.
fn address(port: u16, name: &str) -> Vec<String> {
    let (port, nqn) = (port.to_string(), format!("{NQN}:{name}"));
    ["-a", "127.0.0.1", "-s", &port, "-n", &nqn].map(str::to_owned).to_vec()
}

/// It must have failed, and its words must say why.
fn refused<T>(result: Result<T>, why: &str) -> Result<()> {
    let Err(error) = result else { bail!("it was accepted") };
    let text = format!("{error:#}");
    ensure!(text.contains(why), "refused without '{why}': {text}");
    Ok(())
}
