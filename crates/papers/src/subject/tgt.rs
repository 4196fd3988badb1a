//! tgt, an iSCSI target in user space, as a process of its own.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use raceline_initiator::Name;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::raceline::TemporaryFile;
use super::{Counts, Export, Needs, Subject, node_names};
use crate::bed;

/// Where distributions have its programs, which need not be on the path of users.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"];
/// LUN 0 of its targets is a controller.
const LUN: u16 = 1;
/// How long the daemon may take until it listens, and to end.
const READY_LIMIT: Duration = Duration::from_secs(30);
const END_LIMIT: Duration = Duration::from_secs(5);
const NAP: Duration = Duration::from_millis(20);
/// Daemons of a machine have control ports of their own, from this one on.
const CONTROL_PORT_MIN: u32 = 7000;
const CONTROL_PORTS: u32 = 20_000;

/// One of tgt's programs, if it is installed.
pub(super) fn program(name: &str) -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.is_file())
}

/// tgt, with target nodes over one file in memory.
pub struct Tgt {
    daemon: Child,
    admin: PathBuf,
    control_port: String,
    address: SocketAddr,
    names: Vec<Name>,
}

impl Tgt {
    /// Starts the daemon on the target's CPUs, and waits until it has its targets.
    ///
    /// # Errors
    /// When it is not installed, does not start, or refuses a target.
    pub fn start(needs: &Needs<'_>) -> Result<Self, String> {
        let find = |name| program(name).ok_or_else(|| format!("{name} is not installed"));
        let (daemon, admin) = (find("tgtd")?, find("tgtadm")?);
        let fail = |error: std::io::Error| format!("tgt: {error}");
        let ip = needs.bed.target_addr();
        let bind = || TcpListener::bind(SocketAddr::new(ip, 0))?.local_addr();
        let address = bed::in_target_ns(needs.bed, bind).and_then(|address| address);
        let address = address.map_err(fail)?;
        let control_port =
            CONTROL_PORT_MIN + (std::process::id() + u32::from(address.port())) % CONTROL_PORTS;
        let mut command = Command::new(daemon);
        command.args(["-f", "-C", &control_port.to_string()]);
        command.args(["--iscsi", &format!("portal={address}")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = bed::in_target_ns(needs.bed, || command.spawn());
        let mut tgt = Self {
            daemon: child.and_then(|child| child).map_err(fail)?,
            admin,
            control_port: control_port.to_string(),
            address,
            names: node_names(needs.settings),
        };
        // Its threads for files come with the units, and inherit this.
        tgt.bind_to(needs.cpus)?;
        tgt.wait_until_ready(needs)?;
        // The daemon has the file open, so that it needs no name.
        let file = TemporaryFile::filled(u64::from(needs.settings.memory_mib) << 20)?;
        tgt.make_targets(file.path())?;
        Ok(tgt)
    }

    fn bind_to(&self, cpus: &[usize]) -> Result<(), String> {
        let mut set = CpuSet::new();
        cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
        let pid = i32::try_from(self.daemon.id()).ok().and_then(Pid::from_raw);
        sched_setaffinity(pid, &set).map_err(|error| format!("tgt on CPUs {cpus:?}: {error}"))
    }

    fn wait_until_ready(&mut self, needs: &Needs<'_>) -> Result<(), String> {
        let end = Instant::now() + READY_LIMIT;
        let address = self.address;
        let reach = || bed::in_host_ns(needs.bed, || TcpStream::connect(address).is_ok());
        while !reach().unwrap_or(false)
            || !self.run(&["--op", "show", "--mode", "sys"])?.status.success()
        {
            self.check()?;
            if Instant::now() >= end {
                let seconds = READY_LIMIT.as_secs();
                return Err(format!("tgt does not listen after {seconds} s"));
            }
            std::thread::sleep(NAP);
        }
        Ok(())
    }

    fn make_targets(&self, file: &Path) -> Result<(), String> {
        let (file, lun) = (file.display().to_string(), LUN.to_string());
        for (number, name) in (1..).zip(&self.names) {
            let tid = i32::to_string(&number);
            let target = ["--op", "new", "--mode", "target", "--tid", &tid, "-T", name.as_str()];
            self.order(&target)?;
            let unit = ["--op", "new", "--mode", "logicalunit", "--tid", &tid, "--lun", &lun];
            self.order(&[&unit[..], &["-b", &file]].concat())?;
            self.order(&["--op", "bind", "--mode", "target", "--tid", &tid, "-I", "ALL"])?;
        }
        Ok(())
    }

    /// Has the daemon do something.
    fn order(&self, words: &[&str]) -> Result<(), String> {
        let output = self.run(words)?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("tgtadm {}: {}", words.join(" "), said.trim()))
    }

    fn run(&self, words: &[&str]) -> Result<Output, String> {
        let mut command = Command::new(&self.admin);
        command.args(["-C", &self.control_port, "--lld", "iscsi"]).args(words);
        command.output().map_err(|error| format!("{}: {error}", self.admin.display()))
    }
}

impl Subject for Tgt {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn export(&self) -> Export {
        Export::Nodes { names: self.names.clone(), lun: LUN }
    }

    fn process(&self) -> Option<u32> {
        Some(self.daemon.id())
    }

    fn wake(&self) {}

    /// It waits for events when nobody asks for anything.
    fn sleep(&self) {}

    fn counts(&self) -> Counts {
        Counts::default()
    }

    fn check(&mut self) -> Result<(), String> {
        match self.daemon.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("tgt has ended with {status}: it needs privileges")),
            Err(error) => Err(format!("tgt: {error}")),
        }
    }

    fn stop(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}

impl Drop for Tgt {
    fn drop(&mut self) {
        let pid = i32::try_from(self.daemon.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| matches!(self.daemon.try_wait(), Ok(None))) {
            // Fails only if it has ended.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let end = Instant::now() + END_LIMIT;
        while matches!(self.daemon.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(NAP);
        }
        // It has ended already, or is ended now.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}
