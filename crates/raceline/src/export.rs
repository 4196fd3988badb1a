//! `raceline export`: a target in this process, which runs until a signal.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use raceline_accel::{Framework, Statistics};
use raceline_bdev::{Backing, Identity, SharedBdev};
use raceline_bench::acceleration::Acceleration;
use raceline_bench::cost::{Cost, CostPerIo};
use raceline_bench::report::binary_bytes;
use raceline_initiator::{LunBdev, SessionConfig};
use raceline_mdns::Publisher;
use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_reactor::listening::address_trouble;
use raceline_reactor::stats::DepartureCounts;
use raceline_reactor::{StreamProvider, room};
use raceline_target::{
    BALANCE_INTERVAL, GeneratedKeys, HostAccess, NamespaceConfig, RdmaConfig, RdmaStreams,
    SubsystemConfig, Target, TargetConfig, TargetError, load_rdma_libraries,
};
use raceline_tls::{PskLookup, PskTable, SharedPsk, TlsAcceptor};
use serde::Serialize;
use uuid::Uuid;

use crate::admission::Admission;
use crate::cli::device::Device;
use crate::cli::export::ExportArgs;
use crate::export_iscsi::{IscsiExport, ReadyIscsi};
use crate::export_key::{self, KeptKey};
use crate::failure::Failure;
use crate::profile::Judge;
use crate::signals::Interrupt;
use crate::sizes::Sizes;
use crate::table::{Table, printable};
use crate::tally::Tally;
use crate::{initiator, limits, log, naming, sandbox, secrets, shell};

/// Model number that subsystems report.
pub(crate) const MODEL: &str = "Raceline";

/// How often an export checks that its cores are healthy.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// The line on standard output that reports readiness.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Ready {
    ready: bool,
    nqn: String,
    listeners: Vec<SocketAddr>,
    /// Those for RDMA, which are not among the listeners.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rdma: Vec<SocketAddr>,
    namespaces: Vec<ReadyNamespace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iscsi: Option<ReadyIscsi>,
    pid: u32,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct ReadyNamespace {
    nsid: u32,
    device: String,
    block_size: u32,
    block_count: u64,
    uuid: Uuid,
}

/// The line on standard output that reports the cost of commands.
#[derive(Debug, Serialize)]
struct CostLine {
    cost: CostPerIo,
    #[serde(skip_serializing_if = "Acceleration::is_empty")]
    acceleration: Acceleration,
    #[serde(skip_serializing_if = "Departures::is_empty")]
    departures: Departures,
}

/// How batches that are not simply copied have left since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Departures {
    zero_copy_sends: u64,
    zero_copy_bytes: u64,
    zero_copy_copied: u64,
    zero_copy_refused: u64,
    more_sends: u64,
    eor_sends: u64,
    uncorks: u64,
}

impl Departures {
    fn of(target: &Target) -> Self {
        let mut all = DepartureCounts::default();
        target.stats().loops.iter().for_each(|core| all.add(&core.departures));
        Self {
            zero_copy_sends: all.zero_copy_sends,
            zero_copy_bytes: all.zero_copy_bytes,
            zero_copy_copied: all.zero_copy_copied,
            zero_copy_refused: all.zero_copy_refused,
            more_sends: all.more_sends,
            eor_sends: all.eor_sends,
            uncorks: all.uncorks,
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Lines for users; none if nothing was counted.
    fn to_table(self) -> String {
        let mut text = String::new();
        if self.zero_copy_sends > 0 {
            text.push_str(&format!(
                "  without copy  {} sends of {} bytes since the start; the kernel copied {} after \
                 all and refused {}\n",
                self.zero_copy_sends,
                self.zero_copy_bytes,
                self.zero_copy_copied,
                self.zero_copy_refused
            ));
        }
        if self.more_sends + self.eor_sends > 0 {
            text.push_str(&format!(
                "  send flags    {} with MSG_MORE, {} with MSG_EOR since the start; {} were sent on \
                 by a timer\n",
                self.more_sends, self.eor_sends, self.uncorks
            ));
        }
        text
    }
}

/// Exports the devices until SIGINT or SIGTERM.
pub(crate) fn run(args: &ExportArgs) -> Result<(), Failure> {
    room::watch_memory();
    // The kernel is asked for what the machine is while it still answers: a sandbox forbids that, and /proc/self/auxv is root's
    // once the memory of the process is hidden.
    let _ = rustix::param::page_size();
    export(args).map_err(limits::explain)
}

fn export(args: &ExportArgs) -> Result<(), Failure> {
    args.devices.iter().try_for_each(Device::check)?;
    let mut admission = Admission::check(args)?;
    if args.in_capsule > args.max_io_size {
        return Err(Failure::usage("--in-capsule must not be more than --max-io-size"));
    }
    limits::raise_file_descriptors();
    let cores = args.cores.clone().unwrap_or_default().0;
    let identity = Identity::of_this_machine();
    let nqn = args.nqn.clone().unwrap_or_else(|| {
        naming::subsystem_nqn(&identity, &naming::machine_name(), &args.devices, &admission.listen)
    });
    let iscsi = IscsiExport::check(args, &admission, &nqn)?;
    // While the state directory can be written.
    let kept = keep_key(args, &identity, &nqn, &mut admission)?;
    // Files and devices are opened, and perhaps made, with all rights of the user. The sandbox holds for threads that
    // start in it: no other has started but the judge.
    let sources = sources(args)?;
    let mut devices = vec![None; args.devices.len()];
    open_devices(&sources, &identity, &mut devices, |device| device.path().is_some())?;
    let profile = args.connections.profile;
    let judge = profile.map(|_| Judge::start()).transpose().map_err(Failure::runtime)?;
    let portals = iscsi.iter().flat_map(|iscsi| &iscsi.listen);
    let listen: Vec<SocketAddr> = admission.listen.iter().chain(portals).copied().collect();
    if !admission.rdma.is_empty() {
        load_rdma_libraries().map_err(Failure::runtime)?;
    }
    let sandbox = sandbox::enter_export(args, &listen)?;
    log::begin_serving();
    let interrupt = Interrupt::catch_with_reports().map_err(Failure::runtime)?;
    open_devices(&sources, &identity, &mut devices, |device| device.path().is_none())?;
    let framework = args.accel.clone().unwrap_or_default().framework(cores.len())?;
    let serial = args.serial.clone().unwrap_or_else(|| naming::serial(&identity, &nqn));

    let mut config = TargetConfig {
        cores: cores.clone(),
        mode: args.mode.into(),
        backend: args.io.into(),
        accel: Some(framework.clone()),
        max_io_bytes: args.max_io_size,
        in_capsule_bytes: args.in_capsule,
        max_queue_entries: args.max_queue_depth.saturating_add(1),
        pass_bytes: args.pass_bytes,
        ..TargetConfig::default()
    };
    args.connections.options().apply(&mut config);
    let (streams, generated_keys) = tls(&nqn, &admission)?;
    config.generated_keys = generated_keys;
    let rdma = RdmaStreams::new(RdmaConfig::of(&config));
    let target = Target::start(config).map_err(Failure::runtime)?;
    if args.connections.balance {
        target.set_balancing(Some(BALANCE_INTERVAL)).map_err(Failure::runtime)?;
    }
    let devices = args.devices.iter().zip(devices.into_iter().flatten()).enumerate();
    let devices: Vec<NamespaceConfig> = devices
        .map(|(ordinal, (spec, bdev))| {
            let uuid = memory_uuid(&identity, &nqn, ordinal, spec);
            NamespaceConfig { uuid, ..NamespaceConfig::new(bdev) }
        })
        .collect();
    let luns: Vec<_> =
        devices.iter().map(|config| (Arc::clone(&config.bdev), config.uuid)).collect();
    let mut sizes = Sizes::follow(luns.iter().map(|(device, _)| Arc::clone(device)));
    target.set_algorithms(args.algorithms.algorithms()).map_err(Failure::runtime)?;
    let mut ready = set_up(&target, (&nqn, serial), &admission, streams.as_ref(), devices)?;
    ready.rdma = listen_for_rdma(&target, &admission, rdma)?;
    ready.iscsi = iscsi.map(|iscsi| iscsi.set_up(&target, luns)).transpose()?;

    tell_people(args, &ready, &admission, kept.as_ref());
    if let Some(judge) = judge {
        judge.tell(ready.listeners.clone());
    }
    // All listeners and all rings are there. Multicast DNS needs new sockets whenever the interfaces change, and a session
    // that is made again needs one.
    let needs_sockets = args.mdns || args.devices.iter().any(|device| device.url().is_some());
    if let Some(sandbox) = sandbox.filter(|_| !needs_sockets) {
        sandbox.seal().map_err(Failure::runtime)?;
    }
    let _announced = announce(args, &ready)?;
    let line = serde_json::to_string(&ready).map_err(Failure::runtime)?;
    shell::print(format!("{line}\n").as_bytes())?;

    let signal = serve(&target, &cores, &framework, (&interrupt, &mut sizes))?;
    end(target, signal)
}

/// Ends the target when those who are connected know, and what is in flight is done.
fn end(target: Target, signal: i32) -> Result<(), Failure> {
    tracing::info!("signal {signal}: draining");
    if std::io::stderr().is_terminal() {
        shell::tell("\nending after what is in flight; once more to end at once\n");
    }
    target.announce_end();
    target.shutdown().map_err(Failure::runtime)
}

/// Announces where other machines can connect, until the returned value is dropped.
fn announce(args: &ExportArgs, ready: &Ready) -> Result<Option<Publisher>, Failure> {
    if !args.mdns {
        return Ok(None);
    }
    if !ready.listeners.iter().any(raceline_mdns::is_reachable) {
        return Err(Failure::usage(
            "--mdns announces listeners that other machines can reach, and there is none: name an address of this \
             machine with -l",
        ));
    }
    let mut publisher = Publisher::start().map_err(Failure::runtime)?;
    publisher.announce(&ready.listeners.iter().copied().collect()).map_err(Failure::runtime)?;
    Ok(Some(publisher))
}

/// What is exported, as text for users; and a warning if other machines reach it without encryption.
fn tell_people(args: &ExportArgs, ready: &Ready, admission: &Admission, kept: Option<&KeptKey>) {
    shell::tell(&describe(ready, admission, kept));
    if let Some(iscsi) = &ready.iscsi {
        shell::tell(&iscsi.advice(args.chap_user.as_deref()));
    }
    let is_open =
        ready.iscsi.iter().flat_map(|iscsi| &iscsi.portals).any(|it| !it.ip().is_loopback());
    if (!admission.local_only || is_open) && !admission.encrypts() {
        tracing::warn!(
            "--insecure: whoever is on the way reads and changes what other machines read and write here; --tls encrypts it"
        );
    }
}

/// The devices, and how sessions with the targets of logical units are made. Files of secrets and of names are read here,
/// before the sandbox.
fn sources(args: &ExportArgs) -> Result<Vec<(&Device, Option<SessionConfig>)>, Failure> {
    let has_user = |device: &Device| device.url().is_some_and(|url| url.user.is_some());
    if args.lun_secret.is_some() && !args.devices.iter().any(has_user) {
        return Err(Failure::usage(
            "--lun-secret is the secret of the user of an iscsi:// device, and no device has one: \
             write iscsi://USER@HOST/IQN/LUN",
        ));
    }
    let source = |device| {
        let secret = args.lun_secret.as_deref();
        let config = Device::url(device).map(|url| initiator::device_config(url, secret));
        Ok((device, config.transpose()?))
    };
    args.devices.iter().map(source).collect()
}

/// Opens the devices that are of this kind.
fn open_devices(
    sources: &[(&Device, Option<SessionConfig>)],
    identity: &Identity,
    devices: &mut [Option<SharedBdev>],
    is_wanted: impl Fn(&Device) -> bool,
) -> Result<(), Failure> {
    let sources = sources.iter().zip(devices).filter(|((device, _), _)| is_wanted(device));
    for ((device, config), opened) in sources {
        *opened = Some(match (device, config) {
            (Device::Local(spec), _) => {
                raceline_bdev::open(spec, identity).map_err(Failure::runtime)?
            }
            (Device::Lun(url), Some(config)) => {
                let lun = LunBdev::open(config.clone()).map_err(|error| {
                    let failure = initiator::failure(&error);
                    Failure { message: format!("device {url}: {}", failure.message), ..failure }
                })?;
                Arc::new(lun)
            }
            (Device::Lun(_), None) => unreachable!("every URL has its configuration"),
            (Device::Refused(_), _) => unreachable!("these were refused at the start"),
        });
    }
    Ok(())
}

/// Waits for the signal to end. Reports the cost of commands: at the end for the whole run, and on SIGUSR1
/// since the last report. Hosts are told of devices that have grown.
fn serve(
    target: &Target,
    cores: &[usize],
    framework: &Framework,
    (interrupt, sizes): (&Interrupt, &mut Sizes),
) -> Result<i32, Failure> {
    let mut lap_statistics = Statistics::default();
    let mut all = Tally::start(target, cores);
    let mut lap = Tally::start(target, cores);
    loop {
        let signal = interrupt.wait(HEALTH_INTERVAL);
        if interrupt.report_requested() {
            let cost = std::mem::replace(&mut lap, Tally::start(target, cores)).cost(target);
            let acceleration = Acceleration::since(framework, &lap_statistics);
            lap_statistics = framework.statistics();
            report(&cost, acceleration, Departures::of(target))?;
        }
        if let Some(signal) = signal {
            let cost = all.cost(target);
            if cost.ios > 0 {
                let acceleration = Acceleration::since(framework, &Statistics::default());
                report(&cost, acceleration, Departures::of(target))?;
            }
            return Ok(signal);
        }
        if !target.is_running() {
            return Err(Failure::runtime(
                "a core of the target has stopped: see the messages above",
            ));
        }
        if sizes.look() {
            target.refresh_sizes().map_err(Failure::runtime)?;
        }
    }
}

/// Reports to users on standard error, to programs as one line on standard output.
fn report(cost: &Cost, acceleration: Acceleration, departures: Departures) -> Result<(), Failure> {
    if cost.ios == 0 {
        shell::tell("nothing was read or written since the last report\n");
    }
    let tables = [cost.to_table("this target"), departures.to_table(), acceleration.to_table()];
    shell::tell(&tables.concat());
    let line = CostLine { cost: cost.per_io(), acceleration, departures };
    let line = serde_json::to_string(&line).map_err(Failure::runtime)?;
    shell::print(format!("{line}\n").as_bytes())
}

/// The UUID of a memory device, unless it was given: memory has no identity of its own, and the same memory
/// in two subsystems must not look like one disk.
fn memory_uuid(
    identity: &Identity,
    nqn: &Nqn,
    ordinal: usize,
    device: &Device,
) -> Option<[u8; 16]> {
    let Device::Local(spec) = device else { return None };
    let is_memory = matches!(spec.backing, Backing::Ram { .. } | Backing::Null { .. });
    let name = format!("{nqn} {ordinal} {spec}");
    (is_memory && spec.uuid.is_none())
        .then(|| identity.derive("memory namespace", name.as_bytes()).into_bytes())
}

/// Creates the subsystem, its namespaces, and then the listeners: a host that connects finds all of it.
fn set_up(
    target: &Target,
    (nqn, serial): (&Nqn, String),
    admission: &Admission,
    streams: Option<&Arc<dyn StreamProvider>>,
    devices: Vec<NamespaceConfig>,
) -> Result<Ready, Failure> {
    let hosts = admission.hosts.clone().map_or(HostAccess::Any, HostAccess::List);
    let model = MODEL.to_owned();
    let subsystem = SubsystemConfig { serial, model, hosts, ..SubsystemConfig::new(nqn.clone()) };
    target.add_subsystem(subsystem).map_err(Failure::runtime)?;
    for host in admission.hosts.iter().flatten() {
        target.set_host_keys(nqn, host, admission.keys.clone()).map_err(Failure::runtime)?;
    }
    let mut namespaces = Vec::with_capacity(devices.len());
    for config in devices {
        let info = config.bdev.info();
        let uuid = config.uuid.unwrap_or(info.uuid);
        let NamespaceId(nsid) = target.add_namespace(nqn, config).map_err(Failure::runtime)?;
        namespaces.push(ReadyNamespace {
            nsid,
            device: info.name,
            block_size: info.block_size,
            block_count: info.block_count,
            uuid: Uuid::from_bytes(uuid),
        });
    }
    let mut listeners = Vec::with_capacity(admission.tcp.len());
    let rdma = Vec::new();
    for &address in &admission.tcp {
        let listening =
            Target::listen_after_restart(|| target.add_listener_with(address, streams.cloned()));
        listeners.push(listening.map_err(|error| listen_failure(&error, "-l"))?);
    }
    let pid = std::process::id();
    let nqn = nqn.as_str().to_owned();
    Ok(Ready { ready: true, nqn, listeners, rdma, namespaces, iscsi: None, pid })
}

/// Opens the listeners for RDMA.
fn listen_for_rdma(
    target: &Target,
    admission: &Admission,
    streams: RdmaStreams,
) -> Result<Vec<SocketAddr>, Failure> {
    let streams: Arc<dyn StreamProvider> = Arc::new(streams);
    let listen = |address: &SocketAddr| {
        let streams = Some(Arc::clone(&streams));
        target.add_listener_with(*address, streams).map_err(|error| listen_failure(&error, "-l"))
    };
    admission.rdma.iter().map(listen).collect()
}

/// What carries connections over TLS, and where the keys go that authentications make.
type Secure = (Option<Arc<dyn StreamProvider>>, Option<Arc<dyn GeneratedKeys>>);

/// TLS with the key that is there, for the subsystem and for the Discovery service: of the hosts that are admitted, or of
/// any host that has it. Or with the keys that authentications make.
fn tls(nqn: &Nqn, admission: &Admission) -> Result<Secure, Failure> {
    let subsystems = [nqn.clone(), Nqn::discovery()];
    if admission.concat {
        let table = Arc::new(PskTable::new());
        let acceptor = acceptor(Arc::clone(&table) as _, admission).or_plain();
        return Ok((Some(Arc::new(acceptor)), Some(table)));
    }
    let Some(key) = &admission.tls_key else { return Ok((None, None)) };
    let Some(hosts) = &admission.hosts else {
        let lookup = SharedPsk::new(key.clone(), subsystems.to_vec());
        return Ok((Some(Arc::new(acceptor(Arc::new(lookup), admission))), None));
    };
    let table = PskTable::new();
    for host in hosts {
        for subsystem in &subsystems {
            table
                .insert(key, host, subsystem)
                .map_err(|error| Failure::usage(format!("TLS for {host}: {error}")))?;
        }
    }
    Ok((Some(Arc::new(acceptor(Arc::new(table), admission))), None))
}

fn acceptor(lookup: Arc<dyn PskLookup>, admission: &Admission) -> TlsAcceptor {
    TlsAcceptor::new(lookup).with_offload(admission.offload)
}

/// Finds or makes the key of `--tls` if none was given; gives where it is kept.
fn keep_key(
    args: &ExportArgs,
    identity: &Identity,
    nqn: &Nqn,
    admission: &mut Admission,
) -> Result<Option<KeptKey>, Failure> {
    if !admission.tls || admission.tls_key.is_some() {
        return Ok(None);
    }
    let (key, kept) = export_key::find_or_make(identity, nqn)?;
    let derivation = secrets::derivation(args.tls_compat);
    admission.tls_key = Some(key.with_derivation(derivation));
    Ok(Some(kept))
}

/// The failure for an address that cannot be bound, with a remedy; `option` names other addresses.
pub(crate) fn listen_failure(error: &TargetError, option: &str) -> Failure {
    let TargetError::Listen { address, error: cause } = error else {
        return Failure::runtime(error);
    };
    let trouble = address_trouble(*address, cause, Some(option));
    Failure::runtime(format!("cannot listen on {address}: {trouble}"))
}

/// The export as text for users: what is exported to which hosts, and how to use it.
fn describe(ready: &Ready, admission: &Admission, kept: Option<&KeptKey>) -> String {
    let mut table = Table::new(&["nsid", "device", "size", "block", "uuid"]);
    for namespace in &ready.namespaces {
        let bytes = namespace.block_count.saturating_mul(u64::from(namespace.block_size));
        table.row([
            namespace.nsid.to_string(),
            namespace.device.clone(),
            binary_bytes(bytes),
            namespace.block_size.to_string(),
            namespace.uuid.to_string(),
        ]);
    }
    let mut text = format!("exporting {}\n{}", printable(&ready.nqn), table.render("  "));
    text.push_str(&format!("admits {}\n", admission.describe()));
    if let (Some(kept), Some(&listener)) = (kept, ready.listeners.first()) {
        let host = admission.hosts.as_ref().and_then(|hosts| hosts.first());
        text.push_str(&kept.advice(&ready.nqn, host, listener));
        return text;
    }
    text.push_str("connect with\n");
    for listener in &ready.listeners {
        let address = if listener.ip().is_unspecified() {
            "ADDRESS".to_owned()
        } else {
            listener.ip().to_string()
        };
        let (port, nqn) = (listener.port(), &ready.nqn);
        let tls = match (admission.tls, admission.concat) {
            (true, _) => " --tls",
            (false, true) => " --concat",
            (false, false) => "",
        };
        text.push_str(&format!("  nvme connect -t tcp -a {address} -s {port} -n {nqn}{tls}\n"));
    }
    for listener in &ready.rdma {
        let (address, port, nqn) = (listener.ip(), listener.port(), &ready.nqn);
        text.push_str(&format!("  nvme connect -t rdma -a {address} -s {port} -n {nqn}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use raceline_tls::Offload;

    use super::*;

    fn ready() -> Ready {
        Ready {
            ready: true,
            nqn: "nqn.2014-08.org.example:1".to_owned(),
            listeners: vec!["127.0.0.1:4420".parse().unwrap(), "[::]:1".parse().unwrap()],
            rdma: Vec::new(),
            namespaces: vec![ReadyNamespace {
                nsid: 1,
                device: "ram:64M".to_owned(),
                block_size: 512,
                block_count: 131_072,
                uuid: Uuid::from_u128(7),
            }],
            iscsi: None,
            pid: 123,
        }
    }

    #[test]
    fn the_ready_line_has_the_shape_that_scripts_read() {
        assert_eq!(
            serde_json::to_string(&ready()).unwrap(),
            "{\"ready\":true,\"nqn\":\"nqn.2014-08.org.example:1\",\
             \"listeners\":[\"127.0.0.1:4420\",\"[::]:1\"],\
             \"namespaces\":[{\"nsid\":1,\"device\":\"ram:64M\",\"block_size\":512,\
             \"block_count\":131072,\"uuid\":\"00000000-0000-0000-0000-000000000007\"}],\"pid\":123}"
        );
    }

    #[test]
    fn what_was_not_copied_is_told_and_silence_is_nothing() {
        assert_eq!(Departures::default().to_table(), "");
        let sent = Departures {
            zero_copy_sends: 3,
            zero_copy_bytes: 400_000,
            zero_copy_copied: 1,
            eor_sends: 9,
            more_sends: 2,
            ..Departures::default()
        };
        assert_eq!(
            sent.to_table(),
            "  without copy  3 sends of 400000 bytes since the start; the kernel copied 1 after all \
             and refused 0\n  \
             send flags    2 with MSG_MORE, 9 with MSG_EOR since the start; 0 were sent on by a timer\n"
        );
    }

    #[test]
    fn people_read_what_to_type() {
        let admission = Admission {
            listen: Vec::new(),
            rdma: Vec::new(),
            tcp: Vec::new(),
            hosts: None,
            keys: None,
            tls_key: None,
            tls: false,
            concat: false,
            offload: Offload::default(),
            local_only: true,
        };
        let text = describe(&ready(), &admission, None);
        assert!(text.contains("64 MiB"), "{text}");
        assert!(text.contains("admits any host of this machine"), "{text}");
        let line = "  nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2014-08.org.example:1\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("-a ADDRESS -s 1 "), "{text}");
    }

    #[test]
    fn a_port_in_use_says_what_to_do() {
        let error = std::io::Error::from(std::io::ErrorKind::AddrInUse);
        let address = "127.0.0.1:4420".parse().unwrap();
        let failure = listen_failure(&TargetError::Listen { address, error }, "-l");
        assert_eq!(failure.code, 1);
        assert_eq!(
            failure.message,
            "cannot listen on 127.0.0.1:4420: another process listens there: choose another port \
             with -l, or 0 for any free one"
        );
    }
}
