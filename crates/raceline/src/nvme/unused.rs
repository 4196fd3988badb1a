//! Options of a connection that a daemon's controllers cannot have: refused on the command line, and named where a file has
//! them.

use raceline_host::HostConfig;
use raceline_proto::nvme::HostId;
use uuid::Uuid;

use super::files::Connection;
use crate::cli::nvme::ConnectAllArgs;
use crate::failure::Failure;
use crate::shell;

/// An option without a counterpart in the daemon's calls.
struct Unused {
    /// The name of its field.
    field: &'static str,
    /// As the command line has it.
    option: &'static str,
    /// As a file has it.
    member: &'static str,
    /// Why it cannot be had, and what to do instead.
    why: &'static str,
}

const fn unused(
    field: &'static str,
    option: &'static str,
    member: &'static str,
    why: &'static str,
) -> Unused {
    Unused { field, option, member, why }
}

const QUEUES: &str =
    "the controllers of a daemon have --nr-io-queues alone, whose queues take all commands";
const PATHS: &str = "every address that is listed becomes a path, and bdev_nvme_set_multipath_policy chooses among \
    them";
const ALGORITHMS: &str = "a daemon has one list for all its controllers; set it with bdev_nvme_set_options \
    dhchap_digests and dhchap_dhgroups before they are attached";
const KEYS: &str = "a daemon makes the identity of its key itself, and takes the name of the key alone (--tls-psk)";

/// All of them, but for the host's identifier, which the daemon makes from the host's name.
const UNUSED: [Unused; 16] = [
    unused(
        "keep_alive",
        "-k",
        "keep_alive_tmo",
        "a daemon has one keep alive timeout for all its controllers; set it with bdev_nvme_set_options \
         keep_alive_timeout_ms before they are attached",
    ),
    unused(
        "tos",
        "--tos",
        "tos",
        "the controllers of a daemon have none; --sock-priority sets the priority of what they send",
    ),
    unused("nr_write_queues", "--nr-write-queues", "nr_write_queues", QUEUES),
    unused("nr_poll_queues", "--nr-poll-queues", "nr_poll_queues", QUEUES),
    unused("queue_size", "--queue-size", "queue_size", QUEUES),
    unused("path", "--path", "path", PATHS),
    unused("multipath", "--multipath", "multipath", PATHS),
    unused("policy", "--policy", "policy", PATHS),
    unused("no_failback", "--no-failback", "no_failback", PATHS),
    unused(
        "quiesce",
        "--quiesce",
        "quiesce",
        "a daemon takes the time that the controller itself says (CQT)",
    ),
    unused("digests", "--dhchap-digests", "dhchap_digests", ALGORITHMS),
    unused("groups", "--dhchap-dhgroups", "dhchap_dhgroups", ALGORITHMS),
    unused("tls_key_identity", "--tls-key-identity", "tls_key_identity", KEYS),
    unused("tls_identity", "--tls-identity", "tls_identity", KEYS),
    unused("tls_compat", "--tls-compat", "tls_compat", KEYS),
    unused(
        "ktls",
        "--ktls",
        "ktls",
        "who makes the records of TLS is one setting of a daemon: sock_impl_set_options enable_ktls",
    ),
];

/// Refuses what the command line has of them.
pub(super) fn refuse(args: &ConnectAllArgs) -> Result<(), Failure> {
    let given = &args.device.given;
    // Zero queues are the same as none.
    let queues: Vec<&str> = args.queues.given().map(|(name, _)| name).collect();
    let is_none = |it: &&Unused| it.why == QUEUES && !queues.contains(&it.field);
    let found = UNUSED.iter().find(|it| given.has(it.field) && !is_none(it));
    if let Some(Unused { option, why, .. }) = found {
        return Err(Failure::usage(format!("{option}: {why}")));
    }
    if args.device.connect.paths.fast_io_fail_tmo == Some(0) {
        return Err(Failure::usage(format!("-F 0: {NO_TIME}")));
    }
    Ok(())
}

/// Why commands cannot fail at once.
const NO_TIME: &str = "a daemon takes 0 for none, so the least is 1 second";

/// What is not passed of an entry of a file: its members, each with the reason.
fn passed_over(connection: &Connection) -> Vec<(&'static str, &'static str)> {
    let queues: Vec<&str> = connection.queues.given().map(|(name, _)| name).collect();
    let is_none = |it: &&Unused| it.why == QUEUES && !queues.contains(&it.field);
    let mut found: Vec<(&str, &str)> = UNUSED
        .iter()
        .filter(|it| connection.given.has(it.field) && !is_none(it))
        .map(|it| (it.member, it.why))
        .collect();
    if connection.connect.paths.fast_io_fail_tmo == Some(0) {
        found.push(("fast_io_fail_tmo", NO_TIME));
    }
    if connection.connect.address.iscsi.iscsi {
        found.push(("iscsi", "this verb is for NVMe, and so is the connection"));
    }
    found
}

/// Names on standard error what is not passed of an entry of a file.
pub(super) fn note(connection: &Connection) {
    let shown = connection.shown();
    for (member, why) in passed_over(connection) {
        shell::note(&format!("{shown}: {member} is passed over: {why}"));
    }
}

/// Whether an identifier of the host is given that the daemon does not use: it takes the UUID in the host's name.
///
/// One of the command line is refused, because reservations would be another host's; one of a file of connections is named.
/// That of `/etc/nvme/hostid` is not given: packages of nvme-cli make it, and it need not be the UUID in the name.
pub(super) fn check_host_id(
    connection: &Connection,
    config: &HostConfig,
    is_on_the_line: bool,
) -> Result<(), Failure> {
    if !connection.given.has("hostid") {
        return Ok(());
    }
    let Some(text) = other_id(config) else { return Ok(()) };
    if is_on_the_line {
        return Err(Failure::usage(format!("-I: {text}")));
    }
    shell::note(&format!("{}: hostid is passed over: {text}", connection.shown()));
    Ok(())
}

/// What to say where the daemon has another identifier of the host than this program.
fn other_id(config: &HostConfig) -> Option<String> {
    let (own, name) = (Uuid::from_bytes(config.hostid.0), config.hostnqn.as_str());
    (id_in(name) != Some(config.hostid)).then(|| {
        format!(
            "a daemon takes the UUID in the name of the host (-q), {name}, as its identifier, and not {own}: reservations \
             would be another host's; name it nqn.2014-08.org.nvmexpress:uuid:{own}"
        )
    })
}

/// The identifier in a name of a host, as the daemon reads it.
fn id_in(name: &str) -> Option<HostId> {
    let (_, uuid) = name.rsplit_once("uuid:")?;
    Uuid::try_parse(uuid).ok().map(|uuid| HostId(uuid.into_bytes()))
}

#[cfg(test)]
mod tests {
    use clap::Args as _;
    use raceline_proto::nvme::Nqn;

    use super::*;
    use crate::cli::host::ConnectArgs;
    use crate::cli::nvme::OF_ISCSI;
    use crate::cli::queues::QueueNumbers;

    /// Options that reach the daemon, or are refused because of what they say, or say how the answer is printed.
    const PASSED: [&str; 21] = [
        "transport",
        "address",
        "port",
        "nqn",
        "source",
        "interface",
        "hostnqn",
        "hostid",
        "dhchap_secret",
        "dhchap_ctrl_secret",
        "tls_psk",
        "tls",
        "concat",
        "ctrl_loss_tmo",
        "priority",
        "header_digest",
        "data_digest",
        "fast_io_fail_tmo",
        "reconnect_delay",
        "nr_io_queues",
        "output",
    ];
    /// Options of nvme-cli that no verb here needs, as their own help says.
    const TAKEN: [&str; 3] = ["keyring", "disable_sqflow", "duplicate_connect"];

    #[test]
    fn each_option_is_passed_or_refused_by_its_name() {
        let command = ConnectArgs::augment_args(clap::Command::new("options"));
        let command = QueueNumbers::augment_args(command);
        for argument in command.get_arguments() {
            let id = argument.get_id().as_str();
            let unused = UNUSED.iter().filter(|it| it.field == id);
            let others = PASSED.iter().chain(&TAKEN).chain(&OF_ISCSI).filter(|known| **known == id);
            assert_eq!(unused.count() + others.count(), 1, "{id}");
        }
        for it in &UNUSED {
            assert!(
                command.get_arguments().any(|known| known.get_id() == it.field),
                "{}",
                it.field
            );
        }
    }

    #[test]
    fn an_identifier_has_to_be_that_in_the_name() {
        let id = HostId([7; 16]);
        let uuid = Uuid::from_bytes(id.0);
        let config = |name: &str| {
            let (subsystem, host) = (Nqn::discovery(), Nqn::new(name).unwrap());
            HostConfig::new("192.0.2.1:4420".parse().unwrap(), subsystem, host, id)
        };
        let named = config(&format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}"));
        assert_eq!(other_id(&named), None);
        let plain = config("nqn.2014-08.org.example:h");
        let text = other_id(&plain).unwrap();
        assert!(text.contains(&format!("and not {uuid}")), "{text}");
        let other = format!("nqn.2014-08.org.nvmexpress:uuid:{}", Uuid::from_bytes([8; 16]));
        assert!(other_id(&config(&other)).is_some());
    }
}
