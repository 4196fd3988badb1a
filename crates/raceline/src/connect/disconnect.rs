//! `raceline disconnect`: disks of this user, and remote controllers of a daemon.

use std::time::{Duration, Instant};

use raceline_control::client::{Address, DEFAULT_SOCKET, PACKAGED_SOCKET};
use raceline_host::Transport;
use serde_json::{Value, json};

use super::registry::{Ends, Entry, Found, Registry};
use super::{ublk, units};
use crate::cli::connect::DisconnectArgs;
use crate::failure::Failure;
use crate::manage::{self, Daemon};
use crate::nvme::connect_all::{Place, family, paths};
use crate::shell;
use crate::table::printable;

/// A daemon may need long for a controller that does not answer.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the verb.
pub(crate) fn disconnect(args: &DisconnectArgs) -> Result<(), Failure> {
    let registry = Registry::of_this_user()?;
    let running = registry.running()?;
    let mut run = Run { args, ended: 0, last: None };
    run.disks(&registry, &running);
    let (known, daemon) = match Controllers::find(args) {
        Ok(Some(mut controllers)) => {
            run.controllers(&mut controllers);
            (Some(controllers.names()), None)
        }
        Ok(None) => (None, None),
        Err(failure) => (None, Some(failure)),
    };
    let Run { ended, last, .. } = run;
    if let Some(nqn) = args.nqn.as_deref().filter(|_| ended > 0) {
        shell::print(format!("NQN:{nqn} disconnected {ended} controller(s)\n").as_bytes())?;
    }
    if let Some(failure) = last {
        return Err(failure);
    }
    match daemon {
        // A socket that was named is to be asked.
        Some(failure) if args.end.socket.is_some() || (ended == 0 && !args.all) => Err(failure),
        _ if ended > 0 || args.all => Ok(()),
        _ => Err(nothing(&running, known)),
    }
}

/// Nothing was meant by the options. `controllers` are those of the daemon that was asked.
fn nothing(running: &[Found], controllers: Option<Vec<String>>) -> Failure {
    let of_daemon = match controllers {
        Some(_) => "no such controller of the daemon".to_owned(),
        None => format!(
            "no daemon was asked, because there is neither {DEFAULT_SOCKET} nor {PACKAGED_SOCKET}: name its socket with \
             --socket or RACELINE_RPC_SOCKET"
        ),
    };
    let places = running.iter().flat_map(|found| &found.entry.places).map(|it| printable(it));
    let known: Vec<String> = places.chain(controllers.into_iter().flatten()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    Failure::runtime(format!(
        "there is no such disk of this user, and {of_daemon}; those that run: {known}"
    ))
}

/// What was done so far.
struct Run<'a> {
    args: &'a DisconnectArgs,
    /// Disks, and paths of controllers.
    ended: usize,
    last: Option<Failure>,
}

impl Run<'_> {
    /// Keeps what failed, for the end, and says what failed before.
    fn failed(&mut self, failure: Failure) {
        if let Some(before) = self.last.replace(failure) {
            shell::note(&before.message);
        }
    }

    fn disks(&mut self, registry: &Registry, running: &[Found]) {
        let mut ends = Ends::new();
        for found in running.iter().filter(|found| self.args.means_disk(&found.entry)) {
            let (entry, force) = (&found.entry, self.args.end.force);
            let unit = units::unit_of(entry.pid);
            let unused = if force { Ok(()) } else { ublk::check_unused(entry) };
            let time = registry.time_to_end(found, &mut ends, Instant::now());
            let ended = unused.and_then(|()| registry.end(found, time));
            match ended.and_then(|()| ublk::remove_left(entry, force)) {
                Ok(()) => {
                    println!("disconnected {}", printable(&entry.places.join(" ")));
                    self.ended += 1;
                    if let Some(unit) = unit {
                        shell::note(&units::afterwards(&unit));
                    }
                }
                Err(failure) => self.failed(failure),
            }
        }
        // A block device outlives its process.
        for place in &self.args.device {
            if running.iter().any(|found| found.entry.places.contains(place)) {
                continue;
            }
            match ublk::remove_orphan(place) {
                Ok(true) => {
                    println!("removed {place}, whose process had ended");
                    self.ended += 1;
                }
                Ok(false) => {}
                Err(failure) => self.failed(failure),
            }
        }
    }

    fn controllers(&mut self, controllers: &mut Controllers) {
        for controller in controllers.meant(self.args) {
            match controllers.end(&controller, self.args.end.force) {
                Ok(()) => {
                    let places: Vec<String> = controller.ends.iter().map(shown).collect();
                    let name = printable(&controller.name);
                    println!("disconnected {name} from {}", places.join(", "));
                    self.ended += controller.ends.len();
                }
                Err(failure) => self.failed(failure),
            }
        }
    }
}

fn shown(place: &Place) -> String {
    let address = std::net::SocketAddr::new(place.address, place.port);
    format!("{} at {address}", printable(&place.subnqn))
}

impl DisconnectArgs {
    fn means_disk(&self, entry: &Entry) -> bool {
        let transport = self.transport.map(name_of);
        let is_of_transport = transport.is_none_or(|name| entry.transport.as_deref() == Some(name));
        (self.all && is_of_transport)
            || (self.nqn.is_some() && self.nqn == entry.nqn)
            || self.device.iter().any(|place| entry.places.contains(place))
    }
}

/// The name of a transport in the registry.
pub(super) fn name_of(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Rdma => "rdma",
    }
}

/// A controller of the daemon that is meant.
#[derive(Debug)]
struct Meant {
    name: String,
    /// The paths that end.
    ends: Vec<Place>,
    /// Other paths stay.
    keeps_some: bool,
}

/// The remote controllers of the daemon.
struct Controllers {
    daemon: Daemon,
    /// By their names, in the order of their paths.
    paths: Vec<(String, Place)>,
}

impl Controllers {
    /// Those of the daemon at the socket; `None`: nobody has named a socket, and no daemon is at the usual one.
    fn find(args: &DisconnectArgs) -> Result<Option<Self>, Failure> {
        let is_there = |address: &Address| matches!(address, Address::Unix(path) if path.exists());
        let socket = args.end.socket.as_deref();
        if socket.is_none() && !Address::usual().iter().any(is_there) {
            return Ok(None);
        }
        let mut daemon = manage::connect(socket, DAEMON_TIMEOUT)?;
        let controllers = daemon.list("bdev_nvme_get_controllers", Value::Null)?;
        let paths = controllers.iter().flat_map(paths).collect();
        Ok(Some(Self { daemon, paths }))
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.paths.iter().map(|(name, _)| printable(name)).collect();
        names.dedup();
        names
    }

    fn meant(&self, args: &DisconnectArgs) -> Vec<Meant> {
        let wanted = args.transport.map(name_of);
        let is_meant = |(name, place): &&(String, Place)| {
            let is_of_transport = wanted.is_none_or(|it| place.transport.eq_ignore_ascii_case(it));
            (args.all && is_of_transport)
                || args.nqn.as_ref() == Some(&place.subnqn)
                || args.device.contains(name)
        };
        let mut meant: Vec<Meant> = Vec::new();
        for (name, place) in self.paths.iter().filter(is_meant) {
            match meant.iter_mut().find(|known| known.name == *name) {
                Some(known) => known.ends.push(place.clone()),
                None => meant.push(Meant {
                    name: name.clone(),
                    ends: vec![place.clone()],
                    keeps_some: false,
                }),
            }
        }
        for known in &mut meant {
            let all = self.paths.iter().filter(|(name, _)| *name == known.name).count();
            known.keeps_some = known.ends.len() < all;
        }
        meant
    }

    fn end(&mut self, meant: &Meant, force: bool) -> Result<(), Failure> {
        let name = &meant.name;
        if meant.keeps_some {
            for place in &meant.ends {
                let path = json!({
                    "name": name,
                    "trtype": place.transport,
                    "adrfam": family(place.address),
                    "traddr": place.address.to_string(),
                    "trsvcid": place.port.to_string(),
                    "subnqn": place.subnqn,
                });
                self.daemon.call("bdev_nvme_detach_controller", path)?;
            }
            return Ok(());
        }
        if !force {
            self.check_unused(name)?;
        }
        self.daemon.call("bdev_nvme_detach_controller", json!({ "name": name })).map(drop)
    }

    /// Refuses the end of a controller whose namespaces are in use, as exported ones are.
    fn check_unused(&mut self, name: &str) -> Result<(), Failure> {
        let devices = self.daemon.list("bdev_get_bdevs", Value::Null)?;
        let is_of_it = |device: &&Value| {
            let number =
                device["name"].as_str().and_then(|it| it.strip_prefix(name)?.strip_prefix('n'));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        let used = devices.iter().filter(is_of_it).find(|device| device["claimed"] == true);
        used.map_or(Ok(()), |device| {
            let (device, user) = (&device["name"], &device["claimed_by"]);
            let text = |value: &Value| printable(value.as_str().unwrap_or("something"));
            Err(Failure::runtime(format!(
                "{} of the daemon is in use, by {}: take it out of use first, or add --force, and its users lose it",
                text(device),
                text(user)
            )))
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb};

    fn parse(line: &str) -> DisconnectArgs {
        match Cli::try_parse_from(format!("raceline {line}").split(' ')).unwrap().verb {
            Verb::Disconnect(args) => args,
            Verb::DisconnectAll(args) => args.into(),
            verb => panic!("{verb:?}"),
        }
    }

    #[test]
    fn what_was_not_asked_is_said() {
        let text = nothing(&[], None).message;
        for part in
            ["no daemon was asked", "/var/tmp/spdk.sock", "/run/raceline/rpc.sock", "--socket "]
        {
            assert!(text.contains(part), "{text}");
        }
        let text = nothing(&[], Some(vec!["Nvme0".to_owned()])).message;
        assert!(text.contains("no such controller of the daemon; those that run: Nvme0"), "{text}");
    }

    #[test]
    fn disks_are_meant_by_subsystem_place_and_transport() {
        let entry = |nqn: Option<&str>, transport: Option<&str>, place: &str| Entry {
            pid: 1,
            kind: "nbd".into(),
            nqn: nqn.map(str::to_owned),
            transport: transport.map(str::to_owned),
            places: vec![place.into()],
        };
        let entries = [
            entry(Some("nqn.a"), Some("tcp"), "/a"),
            entry(Some("nqn.a"), Some("rdma"), "/b"),
            entry(None, None, "/c"),
        ];
        for (line, expected) in [
            ("disconnect -n nqn.a", &["/a", "/b"][..]),
            ("disconnect -d /c -d /b", &["/b", "/c"]),
            ("disconnect -d /nowhere", &[]),
            ("disconnect --all", &["/a", "/b", "/c"]),
            ("disconnect --all -t tcp", &["/a"]),
            ("disconnect-all", &["/a", "/b", "/c"]),
            ("disconnect-all -r rdma", &["/b"]),
            ("disconnect-all -t rdma", &["/b"]),
        ] {
            let args = parse(line);
            let meant = entries.iter().filter(|entry| args.means_disk(entry));
            let places: Vec<&str> = meant.map(|entry| entry.places[0].as_str()).collect();
            assert_eq!(places, expected, "{line}");
        }
        for line in ["disconnect", "disconnect -t tcp -n nqn.a", "disconnect -n nqn.a --all"] {
            Cli::try_parse_from(format!("raceline {line}").split(' ')).unwrap_err();
        }
    }
}
