//! SPDK's targets as processes of their own: nvmf_tgt for NVMe/TCP and NVMe/RDMA, iscsi_tgt for iSCSI.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use raceline_initiator::Name;
use raceline_proto::nvme::Nqn;
use serde_json::{Value, json};

use super::{Counts, Export, Needs, Rdma, Subject, node_names};
use crate::bed;
use crate::run::{LoadSettings, Protocol};

const NQN: &str = "nqn.2026-01.io.raceline:spdk";
/// How long the target may take until it listens, and to end.
const READY_LIMIT: Duration = Duration::from_secs(30);
const END_LIMIT: Duration = Duration::from_secs(5);
const NAP: Duration = Duration::from_millis(50);
const BLOCK_BYTES: u32 = 512;
/// Options of the iSCSI target have at least SPDK's own values.
const DEPTH_MIN: u16 = 64;
const SESSIONS_MIN: u16 = 128;
/// The largest command, as Raceline's target has it.
const MAX_IO_BYTES: u32 = 1 << 20;
/// Buffers of which a command over RDMA may take 16. SPDK's usual ones are too small for the largest command; from 26.05 on,
/// SPDK chooses them by itself.
const RDMA_BUFFER_BYTES: u32 = MAX_IO_BYTES / 16;
/// Entries of a queue: over RDMA as many as SPDK itself has.
const TCP_QUEUE_ENTRIES: u32 = 256;
const RDMA_QUEUE_ENTRIES: u32 = 128;
/// What a build without RDMA writes about that transport.
const NO_RDMA: &str = "Transport type 'RDMA' unavailable";
/// What helps when DPDK finds no memory.
const HUGE_PAGES_HINT: &str =
    ". SPDK's target needs huge pages: reserve 2 GiB of them by sysctl vm.nr_hugepages=1024";
/// Lines of the target's output in an error.
const TAIL_LINES: usize = 5;

/// SPDK's target.
pub struct Spdk {
    child: Child,
    address: SocketAddr,
    export: Export,
    program: PathBuf,
    files: [PathBuf; 3],
    rdma: Option<Rdma>,
}

/// The program in a folder in which SPDK was built.
pub(super) fn program(folder: &Path, protocol: Protocol) -> PathBuf {
    folder.join("build/bin").join(match protocol {
        Protocol::NvmeTcp | Protocol::NvmeRdma => "nvmf_tgt",
        Protocol::Iscsi => "iscsi_tgt",
    })
}

impl Spdk {
    /// Starts it with a device in memory and waits until it listens.
    ///
    /// # Errors
    /// When it does not start; the error has the end of its output.
    pub fn start(folder: &Path, needs: &Needs<'_>) -> Result<Self, String> {
        let rdma = match needs.settings.protocol {
            Protocol::NvmeRdma => Some(needs.rdma.find()?),
            Protocol::NvmeTcp | Protocol::Iscsi => None,
        };
        let address = match &rdma {
            Some(rdma) => rdma.free_address()?,
            None => free_address(needs)?,
        };
        let (own, port) = (std::process::id(), address.port());
        let file =
            |end: &str| std::env::temp_dir().join(format!("raceline-spdk-{own}-{port}.{end}"));
        let files = [file("json"), file("sock"), file("log")];
        let export = match needs.settings.protocol {
            Protocol::NvmeTcp | Protocol::NvmeRdma => {
                Export::Subsystem(Nqn::new(NQN).expect("a constant NQN"))
            }
            Protocol::Iscsi => Export::Nodes { names: node_names(needs.settings), lun: 0 },
        };
        let text = configuration(address, needs.settings, &export).to_string();
        let fail = |error: std::io::Error| format!("SPDK's target: {error}");
        fs::write(&files[0], text).map_err(fail)?;
        let log = fs::File::create(&files[2]).map_err(fail)?;
        let cores: Vec<String> = needs.cpus.iter().map(ToString::to_string).collect();
        let program = program(folder, needs.settings.protocol);
        let mut command = Command::new(&program);
        command.args(["-m", &format!("[{}]", cores.join(",")), "--no-pci"]);
        command.arg("--disable-cpumask-locks").arg("-c").arg(&files[0]).arg("-r").arg(&files[1]);
        command.stdin(Stdio::null()).stderr(log.try_clone().map_err(fail)?).stdout(log);
        let child = bed::in_target_ns(needs.bed, || command.spawn());
        let child = child.and_then(|child| child).map_err(fail)?;
        let mut target = Self { child, address, export, program, files, rdma };
        target.wait_until_ready(needs)?;
        Ok(target)
    }

    fn wait_until_ready(&mut self, needs: &Needs<'_>) -> Result<(), String> {
        let end = Instant::now() + READY_LIMIT;
        while let Err(why) = self.reach(needs) {
            self.check()?;
            if Instant::now() >= end {
                let (address, seconds) = (self.address, READY_LIMIT.as_secs());
                let tail = self.tail();
                return Err(format!(
                    "SPDK's target does not listen at {address} after {seconds} s ({why}){tail}"
                ));
            }
            std::thread::sleep(NAP);
        }
        Ok(())
    }

    /// Connects once, as hosts of its protocol do.
    fn reach(&self, needs: &Needs<'_>) -> Result<(), String> {
        let connect = || match (&self.rdma, &self.export) {
            (Some(rdma), Export::Subsystem(nqn)) => rdma.try_subsystem(self.address, nqn),
            _ => TcpStream::connect(self.address).map(drop).map_err(|error| error.to_string()),
        };
        bed::in_host_ns(needs.bed, connect).map_err(|error| error.to_string())?
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.files[2]).unwrap_or_default()
    }

    fn tail(&self) -> String {
        let text = self.log();
        let lines: Vec<&str> = text.lines().rev().take(TAIL_LINES).collect();
        if lines.is_empty() {
            return String::new();
        }
        let lines = lines.into_iter().rev().collect::<Vec<_>>().join(" / ");
        format!(": {lines}{}", if lines.contains("hugepage") { HUGE_PAGES_HINT } else { "" })
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid
            && let Err(error) = rustix::process::kill_process(pid, signal)
        {
            tracing::warn!(%error, "SPDK's target cannot be signalled");
        }
    }
}

/// An address of the bed that nobody has.
fn free_address(needs: &Needs<'_>) -> Result<SocketAddr, String> {
    let any = SocketAddr::new(needs.bed.target_addr(), 0);
    let free = || TcpListener::bind(any)?.local_addr();
    let address = bed::in_target_ns(needs.bed, free).and_then(|address| address);
    address.map_err(|error| format!("no port for SPDK's target: {error}"))
}

fn call(method: &str, params: Value) -> Value {
    json!({"method": method, "params": params})
}

/// The configuration of a target with one device in memory.
fn configuration(address: SocketAddr, settings: &LoadSettings, export: &Export) -> Value {
    let blocks = (u64::from(settings.memory_mib) << 20) / u64::from(BLOCK_BYTES);
    let memory = json!({"name": "Memory", "num_blocks": blocks, "block_size": BLOCK_BYTES});
    let bdev = json!({"subsystem": "bdev", "config": [
        call("bdev_set_options", json!({"bdev_auto_examine": false})),
        call("bdev_malloc_create", memory),
    ]});
    let exported = match export {
        Export::Subsystem(_) => subsystem(address, settings.protocol),
        Export::Nodes { names, lun } => nodes(address, settings, names, *lun),
    };
    json!({"subsystems": [bdev, exported]})
}

/// The device as LUN of these target nodes.
fn nodes(address: SocketAddr, settings: &LoadSettings, names: &[Name], lun: u16) -> Value {
    let depth = settings.depth.max(DEPTH_MIN);
    let options = json!({
        "max_sessions": settings.total_connections().max(SESSIONS_MIN), "max_queue_depth": depth,
    });
    let portal = json!({"host": address.ip().to_string(), "port": address.port().to_string()});
    let anyone = json!({"tag": 1, "initiators": ["ANY"], "netmasks": ["ANY"]});
    let node = |name: &Name| {
        let params = json!({
            "name": name.as_str(), "alias_name": name.as_str(), "disable_chap": true,
            "pg_ig_maps": [{"pg_tag": 1, "ig_tag": 1}], "queue_depth": depth,
            "luns": [{"bdev_name": "Memory", "lun_id": lun}],
        });
        call("iscsi_create_target_node", params)
    };
    let mut config = vec![
        call("iscsi_set_options", options),
        call("iscsi_create_portal_group", json!({"tag": 1, "portals": [portal]})),
        call("iscsi_create_initiator_group", anyone),
    ];
    config.extend(names.iter().map(node));
    json!({"subsystem": "iscsi", "config": config})
}

/// The device as namespace 1 of a subsystem.
fn subsystem(address: SocketAddr, protocol: Protocol) -> Value {
    let (kind, transport) = match protocol {
        Protocol::NvmeRdma => {
            let options = json!({
                "trtype": "RDMA", "max_queue_depth": RDMA_QUEUE_ENTRIES,
                "max_io_size": MAX_IO_BYTES, "io_unit_size": RDMA_BUFFER_BYTES,
            });
            ("RDMA", options)
        }
        Protocol::NvmeTcp | Protocol::Iscsi => {
            let options = json!({
                "trtype": "TCP", "max_queue_depth": TCP_QUEUE_ENTRIES, "max_io_size": MAX_IO_BYTES,
            });
            ("TCP", options)
        }
    };
    let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
    let listen = json!({
        "trtype": kind, "adrfam": family,
        "traddr": address.ip().to_string(), "trsvcid": address.port().to_string(),
    });
    let subsystem = json!({"nqn": NQN, "allow_any_host": true, "serial_number": "PAPERS"});
    let namespace = json!({"nqn": NQN, "namespace": {"nsid": 1, "bdev_name": "Memory"}});
    json!({"subsystem": "nvmf", "config": [
        call("nvmf_create_transport", transport),
        call("nvmf_create_subsystem", subsystem),
        call("nvmf_subsystem_add_ns", namespace),
        call("nvmf_subsystem_add_listener", json!({"nqn": NQN, "listen_address": listen})),
    ]})
}

impl Subject for Spdk {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn export(&self) -> Export {
        self.export.clone()
    }

    fn process(&self) -> Option<u32> {
        Some(self.child.id())
    }

    fn rdma(&self) -> Option<&Rdma> {
        self.rdma.as_ref()
    }

    fn wake(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn sleep(&self) {
        // It would take its core away from the others.
        self.signal(rustix::process::Signal::STOP);
    }

    fn counts(&self) -> Counts {
        Counts::default()
    }

    fn check(&mut self) -> Result<(), String> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(_)) if self.rdma.is_some() && self.log().contains(NO_RDMA) => {
                let program = self.program.display();
                Err(format!("{program} says \"{NO_RDMA}\": build SPDK --with-rdma"))
            }
            Ok(Some(status)) => {
                Err(format!("SPDK's target has ended with {status}{}", self.tail()))
            }
            Err(error) => Err(format!("SPDK's target: {error}")),
        }
    }

    fn stop(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}

impl Drop for Spdk {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.wake();
            self.signal(rustix::process::Signal::TERM);
        }
        let end = Instant::now() + END_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(NAP);
        }
        // It has ended already, or is ended now.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_has_the_address_and_size() {
        let address = "127.0.0.1:4420".parse().unwrap();
        let settings = LoadSettings { memory_mib: 64, ..LoadSettings::default() };
        let value = configuration(address, &settings, &Export::Subsystem(Nqn::new(NQN).unwrap()));
        let bdev = &value["subsystems"][0]["config"][1]["params"];
        assert_eq!(bdev["num_blocks"], 131_072);
        let listen = &value["subsystems"][1]["config"][3]["params"]["listen_address"];
        assert_eq!((&listen["traddr"], &listen["trsvcid"]), (&"127.0.0.1".into(), &"4420".into()));
        let transport = &value["subsystems"][1]["config"][0]["params"];
        assert_eq!(transport["max_io_size"], 1_048_576, "experiments have commands of 256 KiB");
        assert_eq!((&transport["trtype"], &listen["trtype"]), (&"TCP".into(), &"TCP".into()));
        let over_rdma = LoadSettings { protocol: Protocol::NvmeRdma, ..settings.clone() };
        let address = "[2001:db8::1]:4420".parse().unwrap();
        let value = configuration(address, &over_rdma, &Export::Subsystem(Nqn::new(NQN).unwrap()));
        let nvmf = &value["subsystems"][1]["config"];
        let expected = json!({
            "trtype": "RDMA", "max_queue_depth": 128, "max_io_size": 1_048_576, "io_unit_size": 65_536,
        });
        assert_eq!(nvmf[0], json!({"method": "nvmf_create_transport", "params": expected}));
        let expected = json!({
            "trtype": "RDMA", "adrfam": "IPv6", "traddr": "2001:db8::1", "trsvcid": "4420",
        });
        assert_eq!(nvmf[3]["params"]["listen_address"], expected);
        let address = "127.0.0.1:4420".parse().unwrap();
        let settings = LoadSettings { connections: 2, protocol: Protocol::Iscsi, ..settings };
        let nodes = Export::Nodes { names: node_names(&settings), lun: 0 };
        let value = configuration(address, &settings, &nodes);
        let iscsi = value["subsystems"][1]["config"].as_array().unwrap();
        assert_eq!(iscsi[1]["params"]["portals"][0]["port"], "4420");
        assert_eq!(iscsi.len(), 5, "options, two groups and two nodes: {iscsi:?}");
        assert_eq!(iscsi[4]["params"]["luns"][0]["bdev_name"], "Memory");
    }
}
