//! The iSCSI side of the verbs that talk to a target.

use std::time::Duration;

use raceline_bdev::Identity;
use raceline_bench::report::{binary_bytes, grouped};
use raceline_bench::runner::iscsi::IscsiUnit;
use raceline_host::{NamespaceInfo, Transport};
use raceline_initiator::{
    BlockingSession, Chap, DiscoveredTarget, IscsiUrl, Name, Secret, SessionConfig, SessionError,
    TaskError, UnitInfo, cdb, luns,
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::cli::host::{AddressArgs, ConnectArgs};
use crate::cli::initiator::IscsiArgs;
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::table::{Table, printable};
use crate::{remote, secrets, shell};

/// Where open-iscsi keeps the name of this machine as an initiator.
const NAME_FILE: &str = "/etc/iscsi/initiatorname.iscsi";
/// The prefix of names made here.
const NAME_PREFIX: &str = "iqn.2026-01.io.raceline:initiator";
/// Most bytes of a command of `read` and `write`, where the logical unit allows it.
const COMMAND_BYTES: u32 = 1 << 20;

/// A logical unit, and the session with its target.
pub(crate) struct RemoteUnit {
    session: BlockingSession,
    known: IscsiUnit,
}

impl RemoteUnit {
    /// Logs in, and asks what the unit is.
    pub(crate) fn connect(args: &ConnectArgs) -> Result<Self, Failure> {
        let config = config(args)?;
        let session = BlockingSession::connect(config.clone()).map_err(|error| failure(&error))?;
        let unit = UnitInfo::read(&session).map_err(|error| failure(&error))?;
        Ok(Self { session, known: IscsiUnit { session: config, unit } })
    }

    /// What a run of `perf` needs to know.
    pub(crate) fn into_known(self) -> IscsiUnit {
        self.session.close();
        self.known
    }

    /// The unit in terms of a namespace.
    pub(crate) fn namespace(&self) -> NamespaceInfo {
        self.known.namespace()
    }

    /// Its number.
    pub(crate) fn lun(&self) -> u16 {
        self.known.session.lun
    }

    /// Blocks and bytes of each command for this number of bytes.
    fn parts(
        &self,
        bytes: usize,
    ) -> impl Iterator<Item = (u64, u32, std::ops::Range<usize>)> + use<> {
        let unit = &self.known.unit;
        let block = usize::try_from(unit.block_size).unwrap_or(usize::MAX);
        let most = match unit.max_transfer_blocks {
            0 => COMMAND_BYTES / unit.block_size,
            most => most.min(COMMAND_BYTES / unit.block_size),
        };
        let step = usize::try_from(most.max(1)).unwrap_or(1) * block;
        (0..bytes).step_by(step).map(move |start| {
            let range = start..(start + step).min(bytes);
            let blocks = u32::try_from(range.len() / block).unwrap_or(0);
            (u64::try_from(start / block).unwrap_or(0), blocks, range)
        })
    }

    /// Reads blocks from `lba` on; `data` is a whole number of them.
    pub(crate) fn read(&self, lba: u64, data: &mut [u8]) -> Result<(), Failure> {
        for (first, blocks, range) in self.parts(data.len()) {
            let answer = self.session.receive(cdb::read(lba + first, blocks), range.len());
            data[range].copy_from_slice(&answer.map_err(|error| of_task("READ", error))?);
        }
        Ok(())
    }

    /// Writes blocks from `lba` on; `data` is a whole number of them.
    pub(crate) fn write(&self, lba: u64, data: &[u8]) -> Result<(), Failure> {
        for (first, blocks, range) in self.parts(data.len()) {
            let command = cdb::write(lba + first, blocks, false);
            let sent = self.session.send(command, data[range].to_vec());
            sent.map_err(|error| of_task("WRITE", error))?;
        }
        Ok(())
    }

    /// Earlier writes are on stable media when this returns.
    pub(crate) fn flush(&self) -> Result<(), Failure> {
        let sent = self.session.send(cdb::synchronize_cache(), Vec::new());
        sent.map_err(|error| of_task("SYNCHRONIZE CACHE", error))
    }

    /// Logs out.
    pub(crate) fn disconnect(self) {
        self.session.close();
    }
}

/// `raceline identify --iscsi`: one logical unit, or all that the target has.
pub(crate) fn identify(args: &ConnectArgs) -> Result<(), Failure> {
    let first = config(args)?;
    let session = BlockingSession::connect(first.clone()).map_err(|error| failure(&error))?;
    let numbers = match args.address.iscsi.lun {
        Some(lun) => Ok(vec![lun]),
        None => luns(&session).map_err(|error| failure(&error)),
    };
    session.close();
    let mut units = Vec::new();
    for lun in numbers? {
        let config = SessionConfig { lun, ..first.clone() };
        let session = BlockingSession::connect(config.clone()).map_err(|error| failure(&error))?;
        match UnitInfo::read(&session) {
            Ok(unit) => units.push(IscsiUnit { session: config, unit }),
            // One unit of many may be a controller or a tape.
            Err(SessionError::Invalid(why)) if args.address.iscsi.lun.is_none() => {
                tracing::warn!("LUN {lun} is left out: {why}");
            }
            Err(error) => return Err(failure(&error)),
        }
        session.close();
    }
    let text = match args.address.output {
        OutputFormat::Table => unit_table(args.nqn.as_str(), &units),
        OutputFormat::Json => format!("{:#}\n", unit_document(args.nqn.as_str(), &units)),
    };
    shell::print(text.as_bytes())
}

fn unit_table(target: &str, units: &[IscsiUnit]) -> String {
    let mut text = format!("target  {}\n", printable(target));
    if units.is_empty() {
        text.push_str("\nno logical units that are disks\n");
        return text;
    }
    let mut table =
        Table::new(&["lun", "size", "blocks", "block", "access", "product", "serial", "uuid"]);
    for known in units {
        let (unit, namespace) = (&known.unit, known.namespace());
        table.row([
            known.session.lun.to_string(),
            binary_bytes(namespace.size_bytes()),
            grouped(unit.block_count),
            unit.block_size.to_string(),
            (if unit.write_protected { "read only" } else { "read/write" }).to_owned(),
            printable(&format!("{} {}", unit.vendor, unit.product)),
            printable(unit.serial.as_deref().unwrap_or("-")),
            Uuid::from_bytes(namespace.uuid).to_string(),
        ]);
    }
    text.push('\n');
    text.push_str(&table.render(""));
    text
}

fn unit_document(target: &str, units: &[IscsiUnit]) -> Value {
    let units = units.iter().map(|known| {
        let (unit, namespace) = (&known.unit, known.namespace());
        json!({
            "lun": known.session.lun,
            "vendor": unit.vendor,
            "product": unit.product,
            "revision": unit.revision,
            "serial": unit.serial,
            "block_size": unit.block_size,
            "block_count": unit.block_count,
            "size_bytes": namespace.size_bytes(),
            "physical_block_size": unit.physical_block_size,
            "read_only": unit.write_protected,
            "volatile_write_cache": unit.volatile_write_cache,
            "unmap": unit.max_unmap_blocks.is_some(),
            "unmapped_read_zeroes": unit.unmapped_read_zeroes,
            "max_transfer_blocks": unit.max_transfer_blocks,
            "max_compare_blocks": unit.max_compare_blocks,
            "solid_state": unit.solid_state,
            "uuid": Uuid::from_bytes(namespace.uuid),
        })
    });
    json!({ "target": target, "units": units.collect::<Vec<_>>() })
}

/// `raceline discover --iscsi`: the targets that a portal tells of.
pub(crate) fn discover(args: &AddressArgs) -> Result<(), Failure> {
    let config = address_config(args, None)?;
    let session = BlockingSession::connect(config).map_err(|error| failure(&error))?;
    let targets = session.discover("All").map_err(|error| failure(&error));
    session.close();
    let targets = targets?;
    let text = match args.output {
        OutputFormat::Table => target_table(&targets),
        OutputFormat::Json => format!("{:#}\n", target_document(&targets)),
    };
    shell::print(text.as_bytes())
}

fn target_table(targets: &[DiscoveredTarget]) -> String {
    if targets.is_empty() {
        return "the portal offers nothing to this initiator\n".to_owned();
    }
    let mut table = Table::new(&["portal", "group", "target"]);
    for target in targets {
        for (address, group) in &target.addresses {
            table.row([printable(address), group.to_string(), printable(target.name.as_str())]);
        }
    }
    table.render("")
}

fn target_document(targets: &[DiscoveredTarget]) -> Value {
    let targets = targets.iter().map(|target| {
        let portals = target.addresses.iter();
        let portals = portals.map(|(address, group)| json!({ "address": address, "group": group }));
        json!({ "target": target.name.as_str(), "portals": portals.collect::<Vec<_>>() })
    });
    json!({ "targets": targets.collect::<Vec<_>>() })
}

/// How to log in to the target of a command line.
pub(crate) fn config(args: &ConnectArgs) -> Result<SessionConfig, Failure> {
    let target = Name::new(args.nqn.as_str()).map_err(|error| {
        Failure::usage(format!("-n {}: {error}", args.nqn.as_str().escape_default()))
    })?;
    if args.paths.wants_multipath() || !args.paths.path.is_empty() {
        return Err(Failure::usage("--iscsi has one path: leave --path and its options out"));
    }
    let mut config = address_config(&args.address, Some(target))?;
    config.header_digest = args.header_digest;
    config.data_digest = args.data_digest;
    config.lun = args.address.iscsi.lun.unwrap_or(0);
    if let Some(delay) = args.paths.reconnect_delay {
        (config.backoff.first, config.backoff.longest) = (delay, delay);
    }
    Ok(config)
}

fn address_config(args: &AddressArgs, target: Option<Name>) -> Result<SessionConfig, Failure> {
    let nvme_only = [
        ("--dhchap-secret", args.dhchap_secret.is_some()),
        ("--dhchap-ctrl-secret", args.dhchap_ctrl_secret.is_some()),
        ("--tls-psk", args.tls_psk.is_some()),
        ("--concat", args.concat),
        ("-t rdma", args.transport == Some(Transport::Rdma)),
    ];
    if let Some((option, _)) = nvme_only.iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!(
            "{option} is for NVMe/TCP: with --iscsi, --chap-user and --chap-secret authenticate, and nothing is encrypted"
        )));
    }
    let without = [
        ("--sock-priority", args.priority.is_some()),
        ("--tos", args.tos.is_some()),
        ("--host-iface", args.interface.is_some()),
    ];
    if let Some((option, _)) = without.iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!(
            "{option} is for NVMe: sessions of --iscsi cannot have it, and --host-traddr says from where they come"
        )));
    }
    let address = remote::resolve(&args.address, args.port)?;
    let name = match &args.iscsi.initiator {
        Some(name) => name.clone(),
        None => own_name()?,
    };
    let mut config = SessionConfig::new(address, name, target);
    config.source = args.source;
    config.chap = chap(&args.iscsi)?;
    config.ping_interval = args.keep_alive;
    // -1, the only negative value, means no limit.
    config.backoff.give_up_after = u64::try_from(args.ctrl_loss_tmo).ok().map(Duration::from_secs);
    Ok(config)
}

/// How to log in to the target of a device. A lost session is tried again for as long as the program runs, because
/// hosts use the device.
pub(crate) fn device_config(
    url: &IscsiUrl,
    secret_file: Option<&std::path::Path>,
) -> Result<SessionConfig, Failure> {
    let address = remote::resolve(&url.host, url.port)?;
    let mut config = SessionConfig::new(address, own_name()?, Some(url.target.clone()));
    config.lun = url.lun;
    config.backoff.give_up_after = None;
    if let Some(user) = &url.user {
        let Some(file) = secret_file else {
            return Err(Failure::usage(format!(
                "device {url} has a user without a secret: give --lun-secret, a file with the secret or the name of a key"
            )));
        };
        let secret = secret("--lun-secret", file)?;
        raceline_sandbox::hide_memory().map_err(Failure::runtime)?;
        config.chap = Some(Chap { user: user.clone(), secret, target: None });
    }
    Ok(config)
}

/// The name of this machine as an initiator.
pub(crate) fn own_name() -> Result<Name, Failure> {
    if let Ok(text) = std::fs::read_to_string(NAME_FILE)
        && let Some(name) = text.lines().find_map(|line| line.trim().strip_prefix("InitiatorName="))
    {
        return Name::new(name.trim()).map_err(|error| {
            Failure::runtime(format!(
                "{NAME_FILE}: {error}: correct the file, or give --initiator IQN"
            ))
        });
    }
    let uuid = Identity::of_this_machine().derive("initiator", b"");
    Name::new(&format!("{NAME_PREFIX}:{uuid}")).map_err(Failure::runtime)
}

fn chap(args: &IscsiArgs) -> Result<Option<Chap>, Failure> {
    let (Some(user), Some(file)) = (&args.chap_user, &args.chap_secret) else { return Ok(None) };
    let target = match (&args.chap_target_user, &args.chap_target_secret) {
        (Some(user), Some(file)) => Some((user.clone(), secret("--chap-target-secret", file)?)),
        _ => None,
    };
    let secret = secret("--chap-secret", file)?;
    raceline_sandbox::hide_memory().map_err(Failure::runtime)?;
    Ok(Some(Chap { user: user.clone(), secret, target }))
}

fn secret(option: &str, file: &std::path::Path) -> Result<Secret, Failure> {
    let text = secrets::text(option, file)?;
    let bytes = text.trim_end_matches('\n').as_bytes();
    if bytes.is_empty() {
        return Err(Failure::usage(format!("{option}: {} is empty", file.display())));
    }
    Ok(Secret::new(bytes.to_vec()))
}

/// An error of a session as a failure of the verb.
pub(crate) fn failure(error: &SessionError) -> Failure {
    match error {
        SessionError::Task(..) => Failure::runtime(error),
        SessionError::Invalid(message) => Failure::usage(message),
        _ => Failure::connect(error),
    }
}

fn of_task(command: &str, error: TaskError) -> Failure {
    match error {
        TaskError::Disconnected | TaskError::NotSent => {
            Failure::connect(format!("{command}: {error}"))
        }
        error => Failure::runtime(format!("{command}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb};

    fn identify_args(options: &str) -> Result<ConnectArgs, String> {
        let line = format!("raceline identify -a 127.0.0.1 {options}");
        let parsed = Cli::try_parse_from(line.split_whitespace());
        let Verb::Identify(args) = parsed.map_err(|error| error.to_string())?.verb else {
            unreachable!()
        };
        Ok(args.connect.clone())
    }

    #[test]
    fn the_port_is_that_of_iscsi_unless_it_is_given() {
        let iqn = "-n iqn.2026-01.io.raceline:x";
        let port = |options: &str| config(&identify_args(options).unwrap()).unwrap().address.port();
        assert_eq!(port(&format!("--iscsi {iqn}")), 3260);
        assert_eq!(port(&format!("--iscsi {iqn} -s 4420")), 4420);
        assert_eq!(identify_args("-n nqn.2014-08.org.example:x").unwrap().address.port, 4420);
    }

    #[test]
    fn options_say_how_a_lost_session_is_tried_again() {
        let iqn = "--iscsi -n iqn.2026-01.io.raceline:x";
        let backoff = |options: &str| {
            config(&identify_args(&format!("{iqn} {options}")).unwrap()).unwrap().backoff
        };
        let (usual, second) = (backoff(""), Duration::from_secs(1));
        assert_eq!(usual.first, Duration::from_millis(100));
        let given = backoff("-c 1s -l 7");
        assert_eq!(
            (given.first, given.longest, given.give_up_after),
            (second, second, Some(7 * second))
        );
        assert_eq!(backoff("-l -1").give_up_after, None);
    }

    #[test]
    fn what_does_not_belong_to_iscsi_is_refused() {
        let iqn = "--iscsi -n iqn.2026-01.io.raceline:x";
        let error = |options: &str| config(&identify_args(options).unwrap()).unwrap_err().message;
        assert!(error("--iscsi -n nqn.2014-08.org.example:x").contains("begins with iqn."));
        assert!(error(&format!("{iqn} --tls-psk k")).contains("--tls-psk is for NVMe/TCP"));
        assert!(
            identify_args("-n nqn.2014-08.org.example:x --lun 1").unwrap_err().contains("--iscsi")
        );
        assert!(
            identify_args(&format!("{iqn} --chap-user u")).unwrap_err().contains("--chap-secret")
        );
    }
}
