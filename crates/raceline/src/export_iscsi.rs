//! The iSCSI side of an export: `raceline export --iscsi`.

use std::net::SocketAddr;

use raceline_bdev::SharedBdev;
use raceline_proto::nvme::Nqn;
use raceline_target::{
    ChapDemand, ChapPolicy, ChapSecret, InitiatorGroupConfig, InitiatorPattern, LunConfig, Netmask,
    PortalGroupConfig, PortalMap, Target, TargetError, TargetNodeConfig, check_iscsi_name,
};
use serde::Serialize;

use crate::admission::Admission;
use crate::cli::export::ExportArgs;
use crate::cli::values::DEFAULT_ISCSI_PORT;
use crate::failure::Failure;
use crate::secrets;
use crate::table::printable;

/// The tag of the only group of each kind.
const TAG: u16 = 1;

/// What the command line says about iSCSI, within the rules.
#[derive(Debug)]
pub(crate) struct IscsiExport {
    /// The target node's name.
    name: String,
    /// Where it is reached, at least one address.
    pub(crate) listen: Vec<SocketAddr>,
    /// Who may log in.
    initiators: Vec<InitiatorPattern>,
    /// The secret by which they prove who they are.
    secret: Option<ChapSecret>,
}

/// The part of the line on standard output that reports readiness.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ReadyIscsi {
    name: String,
    pub(crate) portals: Vec<SocketAddr>,
    chap: bool,
}

impl IscsiExport {
    /// Checks the command line; `None`: there is no iSCSI.
    ///
    /// # Errors
    /// When an option is missing that an address or another option asks for; the error names it and the reason.
    pub(crate) fn check(
        args: &ExportArgs,
        admission: &Admission,
        nqn: &Nqn,
    ) -> Result<Option<Self>, Failure> {
        let Some(given) = &args.iscsi else { return Ok(None) };
        if admission.encrypts() {
            return Err(Failure::usage(
                "--iscsi is not encrypted, and --tls, --tls-psk and --concat are for exports that are: leave one out",
            ));
        }
        let name = node_name(given, nqn)?;
        let listen = match args.iscsi_listen.is_empty() {
            true => default_portals(admission),
            false => args.iscsi_listen.clone(),
        };
        listen.iter().try_for_each(|address| check_portal(*address, args))?;
        if args.initiators.is_empty() && admission.hosts.is_some() {
            return Err(Failure::usage(
                "--host restricts NVMe/TCP hosts alone: add --initiator IQN to say who may log in by iSCSI",
            ));
        }
        if admission.keys.is_some() && args.chap_user.is_none() {
            return Err(Failure::usage(
                "--dhchap-key is for NVMe/TCP hosts alone: add --chap-user and --chap-secret for iSCSI",
            ));
        }
        let initiators = initiators(args)?;
        let secret = secret(args)?;
        Ok(Some(Self { name, listen, initiators, secret }))
    }

    /// Exports the devices as LUN 0, 1, ... and listens last: an initiator that logs in finds all of it.
    pub(crate) fn set_up(
        &self,
        target: &Target,
        devices: Vec<(SharedBdev, Option<[u8; 16]>)>,
    ) -> Result<ReadyIscsi, Failure> {
        let live = target.iscsi();
        let made = || -> Result<(), TargetError> {
            live.set_initiator_group(InitiatorGroupConfig {
                tag: TAG.into(),
                initiators: self.initiators.clone(),
                netmasks: vec![Netmask::ANY],
            })?;
            if let Some(secret) = &self.secret {
                live.set_auth_group(TAG.into(), vec![secret.clone()])?;
            }
            let portals = PortalGroupConfig::new(TAG, self.listen.clone());
            live.add_portal_group(PortalGroupConfig { wait: true, ..portals })?;
            let luns = devices.into_iter();
            let luns = luns.map(|(bdev, uuid)| LunConfig { uuid, ..LunConfig::new(bdev) });
            let auth = match &self.secret {
                Some(_) => ChapPolicy { demand: ChapDemand::Required, group: TAG.into() },
                None => ChapPolicy::default(),
            };
            live.add_target_node(TargetNodeConfig {
                maps: vec![PortalMap { portal_group: TAG, initiator_group: TAG.into() }],
                luns: luns.collect(),
                auth,
                ..TargetNodeConfig::new(&self.name)
            })
        };
        made().map_err(Failure::runtime)?;
        let portals = Target::listen_after_restart(|| live.start_portal_group(TAG));
        let portals =
            portals.map_err(|error| crate::export::listen_failure(&error, "--iscsi-listen"))?;
        let name = self.name.to_ascii_lowercase();
        Ok(ReadyIscsi { name, portals, chap: self.secret.is_some() })
    }
}

impl ReadyIscsi {
    /// What to type, as text for users.
    pub(crate) fn advice(&self, user: Option<&str>) -> String {
        let mut text = format!("by iSCSI {}, connect with\n", printable(&self.name));
        for portal in &self.portals {
            let at = match portal.ip().is_unspecified() {
                true => format!("ADDRESS:{}", portal.port()),
                false => portal.to_string(),
            };
            let node = format!("iscsiadm -m node -T {} -p {at}", self.name);
            text.push_str(&format!("  iscsiadm -m discovery -t sendtargets -p {at}\n"));
            if let Some(user) = user {
                let set = [
                    ("authmethod", "CHAP".to_owned()),
                    ("username", printable(user)),
                    ("password", "SECRET".to_owned()),
                ];
                for (what, value) in set {
                    let what = format!("node.session.auth.{what}");
                    text.push_str(&format!("  {node} -o update -n {what} -v {value}\n"));
                }
            }
            text.push_str(&format!("  {node} --login\n"));
        }
        text
    }
}

/// The name that was given, or that of the subsystem as an iSCSI name.
fn node_name(given: &str, nqn: &Nqn) -> Result<String, Failure> {
    let name = match given {
        "" => nqn.as_str().replacen("nqn.", "iqn.", 1),
        given => given.to_owned(),
    };
    match check_iscsi_name(&name) {
        Ok(()) => Ok(name),
        Err(error) if given.is_empty() => Err(Failure::usage(format!(
            "--iscsi makes its name of that of the subsystem, and {error}: give one by --iscsi=IQN"
        ))),
        Err(error) => Err(Failure::usage(format!("--iscsi: {error}"))),
    }
}

/// The addresses of NVMe/TCP at the port of iSCSI.
fn default_portals(admission: &Admission) -> Vec<SocketAddr> {
    let mut portals: Vec<SocketAddr> = Vec::new();
    for address in &admission.listen {
        let portal = SocketAddr::new(address.ip(), DEFAULT_ISCSI_PORT);
        if !portals.contains(&portal) {
            portals.push(portal);
        }
    }
    portals
}

fn check_portal(address: SocketAddr, args: &ExportArgs) -> Result<(), Failure> {
    let ip = address.ip().to_canonical();
    if ip.is_loopback() {
        return Ok(());
    }
    let mut missing = Vec::new();
    if ip.is_unspecified() && !args.allow_wildcard {
        missing.push("--allow-wildcard to listen on every address that this machine has");
    }
    if args.initiators.is_empty() && !args.allow_any_host {
        missing.push("--initiator IQN (or --allow-any-host) to say who may log in");
    }
    if !args.insecure {
        missing.push("--insecure to accept that nothing is encrypted");
    }
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "the iSCSI portal {address} is open to other machines: add {}",
            missing.join(", ")
        ))),
    }
}

fn initiators(args: &ExportArgs) -> Result<Vec<InitiatorPattern>, Failure> {
    if args.initiators.is_empty() {
        return Ok(vec![InitiatorPattern::Any]);
    }
    let checked = args.initiators.iter().map(|name| {
        let checked = check_iscsi_name(name).map(|()| InitiatorPattern::Name(name.clone()));
        checked.map_err(|error| Failure::usage(format!("--initiator: {error}")))
    });
    checked.collect()
}

fn secret(args: &ExportArgs) -> Result<Option<ChapSecret>, Failure> {
    let (Some(user), Some(file)) = (&args.chap_user, &args.chap_secret) else { return Ok(None) };
    let text = secrets::text("--chap-secret", file)?;
    let secret = text.trim_end_matches('\n').to_owned();
    if secret.is_empty() {
        return Err(Failure::usage(format!("--chap-secret: {} is empty", file.display())));
    }
    Ok(Some(ChapSecret { user: user.clone(), secret, mutual: None }))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb};

    fn check(options: &str) -> Result<IscsiExport, String> {
        let words = ["raceline", "export", "ram:1M"].into_iter().chain(options.split_whitespace());
        let Verb::Export(args) = Cli::try_parse_from(words).unwrap().verb else { unreachable!() };
        let admission = Admission::check(&args).unwrap();
        let nqn = args.nqn.clone().unwrap_or(Nqn::new("nqn.2026-01.io.raceline:box").unwrap());
        let checked = IscsiExport::check(&args, &admission, &nqn);
        checked.map(Option::unwrap).map_err(|failure| failure.message)
    }

    #[test]
    fn the_name_and_the_addresses_follow_those_of_the_subsystem() {
        let export = check("--iscsi -l 127.0.0.1:1 -l 127.0.0.1:2 -l [::1]:1").unwrap();
        assert_eq!(export.name, "iqn.2026-01.io.raceline:box");
        let portals: Vec<String> = export.listen.iter().map(ToString::to_string).collect();
        assert_eq!(portals, ["127.0.0.1:3260", "[::1]:3260"]);
        let export = check("--iscsi=iqn.2026-01.io.raceline:x --iscsi-listen 127.0.0.2").unwrap();
        assert_eq!(
            (&*export.name, export.listen[0].to_string()),
            ("iqn.2026-01.io.raceline:x", "127.0.0.2:3260".to_owned())
        );
        let error = check("--iscsi -n nqn.2026-01.io.raceline:a_b").unwrap_err();
        assert!(error.ends_with("give one by --iscsi=IQN"), "{error}");
    }

    #[test]
    fn what_is_open_to_other_machines_is_said_to_be() {
        let host = "--host nqn.2014-08.org.example:h";
        for (options, missing) in [
            (
                "--iscsi --iscsi-listen 192.0.2.1",
                "--initiator IQN (or --allow-any-host) to say who may log in, --insecure",
            ),
            ("--iscsi --iscsi-listen 0.0.0.0 --insecure --allow-any-host", "--allow-wildcard"),
            (&*format!("--iscsi {host}"), "--initiator IQN"),
            (&*format!("--iscsi --tls {host}"), "--iscsi is not encrypted"),
            ("--iscsi --initiator x", "no iSCSI name"),
        ] {
            let error = check(options).unwrap_err();
            assert!(error.contains(missing), "{options}: {error}");
        }
        check("--iscsi --iscsi-listen 192.0.2.1 --insecure --initiator iqn.2026-01.io.raceline:i")
            .unwrap();
    }

    #[test]
    fn people_read_what_to_type() {
        let portals = vec!["192.0.2.1:3260".parse().unwrap()];
        let ready =
            ReadyIscsi { name: "iqn.2026-01.io.raceline:x".to_owned(), portals, chap: true };
        let text = ready.advice(Some("me"));
        assert!(
            text.contains("  iscsiadm -m discovery -t sendtargets -p 192.0.2.1:3260\n"),
            "{text}"
        );
        let line = "  iscsiadm -m node -T iqn.2026-01.io.raceline:x -p 192.0.2.1:3260 --login\n";
        assert!(
            text.ends_with(line) && text.contains("node.session.auth.username -v me"),
            "{text}"
        );
        assert!(!ready.advice(None).contains("auth"), "{text}");
    }
}
