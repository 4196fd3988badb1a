//! The connection to the namespace of a disk: what the command line and a file of nvme-cli say of it.

use std::path::Path;
use std::time::Duration;

use raceline_host::{HostConfig, Transport};
use serde_json::{Map, Value, json};

use super::renewal::Renewal;
use crate::cli::connect::{DiskArgs, RemoteArgs};
use crate::cli::paths::PathSpec;
use crate::cli::queues::QueueNumbers;
use crate::failure::Failure;
use crate::nvme::files::{self, Connection, Overrides};
use crate::{interfaces, remote, shell};

/// `-J none` of nvme-cli.
const NO_FILE: &str = "none";

/// How to connect, with how many queues, and from where the secrets are.
pub(super) fn config(args: &DiskArgs) -> Result<(HostConfig, QueueNumbers, Renewal), Failure> {
    let mut connection = with_paths(connections(&args.remote)?)?;
    // A file system ends at the first write that fails, so a write whose fate nobody knows is held back and sent again, also
    // over an only path. Without keep alive it would be held back for ever: nobody sees the lost controller end.
    if !connection.connect.address.keep_alive.is_zero() {
        connection.connect.paths.multipath = true;
    }
    let mut config = connection.config()?;
    if let Some(entries) = connection.queues.number("queue_size") {
        config.io_entries = entries;
    }
    let renewal = Renewal::new(connection.connect.address.clone(), config.credentials.clone());
    Ok((config, connection.queues, renewal))
}

/// The connection of the command line, or those that a file has for the subsystem, each with the options of the command
/// line before its own.
fn connections(remote: &RemoteArgs) -> Result<Vec<Connection>, Failure> {
    let (given, line) = (&remote.given, &remote.connect);
    let nqn = &line.nqn;
    let (has_address, has_port) = (given.has("address"), given.has("port"));
    let path = match remote.file.config.as_deref() {
        Some(path) if path == Path::new(NO_FILE) => None,
        None if has_address => None,
        path => Some(path.unwrap_or(Path::new(files::CONFIG))),
    };
    let Some(path) = path else {
        if !has_address {
            return Err(Failure::usage(
                "-a is missing, and --config none says that no file has it",
            ));
        }
        let mut connection = Connection::new(line.clone());
        connection.queues = remote.queues;
        return Ok(vec![connection]);
    };
    if remote.file.config.is_none() && !path.exists() {
        return Err(Failure::usage(format!(
            "-a is missing, and there is no {} that has the address of {nqn}",
            path.display()
        )));
    }
    let over = Overrides { given, line: &line.address, are_names: false };
    let mut found = files::config(path, over)?;
    found.retain(|it| {
        let address = &it.connect.address;
        it.connect.nqn == *nqn
            && (!has_address || address.address == line.address.address)
            && (!has_port || address.port == line.address.port)
    });
    if found.is_empty() {
        let at = if has_address || has_port { " at that address" } else { "" };
        return Err(Failure::usage(format!(
            "{} has no subsystem {nqn}{at}: add it, or name its address with -a and no file",
            path.display()
        )));
    }
    Ok(found)
}

/// One connection of all: the addresses of a subsystem are paths to it.
fn with_paths(found: Vec<Connection>) -> Result<Connection, Failure> {
    let mut found = found.into_iter();
    let mut first = found.next().expect("at least one connection is found");
    for other in found {
        if !agree(&first, &other) {
            return Err(Failure::usage(format!(
                "{} and {} are addresses of {} with different options: give them the same, or choose one with -a and -s",
                first.shown(),
                other.shown(),
                first.connect.nqn
            )));
        }
        let own = &other.connect.address;
        let source = match (own.source, own.interface) {
            (None, Some(interface)) if first.connect.address.interface != own.interface => {
                let target = remote::resolve(&own.address, own.port)?;
                Some(interfaces::address_of(interface, target)?)
            }
            (source, _) => source,
        };
        first.connect.paths.path.push(PathSpec {
            address: own.address.clone(),
            port: own.port,
            source,
            transport: own.transport,
        });
    }
    Ok(first)
}

/// Whether two connections differ in their addresses only.
fn agree(one: &Connection, other: &Connection) -> bool {
    let options = |it: &Connection| {
        let mut connect = it.connect.clone();
        connect.paths.path.clear();
        let address = &mut connect.address;
        (address.address, address.port) = (String::new(), 0);
        (address.source, address.interface, address.transport) = (None, None, None);
        // What they come to is in the key.
        (address.tls, address.keyring) = (false, None);
        let secrets = &it.secrets;
        let keys = [secrets.host.is_some(), secrets.controller.is_some(), secrets.tls.is_some()];
        format!("{connect:?} {:?} {keys:?} {}", it.queues, secrets.concat)
    };
    options(one) == options(other)
}

/// Prints the connection in the form of a `config.json`.
pub(super) fn dump(args: &DiskArgs) -> Result<(), Failure> {
    let found = connections(&args.remote)?;
    // What could not be used is no configuration.
    let config = with_paths(found.clone())?.config()?;
    let ports: Vec<Value> = found.iter().map(port).collect();
    let hosts = json!([{
        "hostnqn": config.hostnqn.as_str(),
        "hostid": uuid::Uuid::from_bytes(config.hostid.0).to_string(),
        "subsystems": [{ "nqn": config.subnqn.as_str(), "ports": ports }],
    }]);
    let address = &args.remote.connect.address;
    let from_file = |it: &Connection| {
        let secrets = &it.secrets;
        secrets.host.is_some() || secrets.controller.is_some() || secrets.tls.is_some()
    };
    if address.dhchap_secret.is_some() || address.tls_psk.is_some() || found.iter().any(from_file) {
        shell::note("the secrets are left out: dhchap_key, dhchap_ctrl_key and tls_key have them");
    }
    shell::print(format!("{hosts:#}\n").as_bytes())
}

/// An entry of `ports`.
fn port(connection: &Connection) -> Value {
    let address = &connection.connect.address;
    let rdma = address.transport == Some(Transport::Rdma);
    let mut port = Map::new();
    let mut put = |name: &str, value: Value| port.insert(name.to_owned(), value);
    put("transport", json!(if rdma { "rdma" } else { "tcp" }));
    put("traddr", json!(address.address));
    put("trsvcid", json!(address.port.to_string()));
    if let Some(source) = address.source {
        put("host_traddr", json!(source.to_string()));
    }
    if let Some(interface) = address.interface {
        put("host_iface", json!(interface.to_string()));
    }
    for (name, number) in connection.queues.given() {
        put(name, json!(number));
    }
    put("keep_alive_tmo", json!(whole_seconds(address.keep_alive)));
    if let Some(delay) = connection.connect.paths.reconnect_delay {
        put("reconnect_delay", json!(whole_seconds(delay)));
    }
    put("ctrl_loss_tmo", json!(address.ctrl_loss_tmo));
    if let Some(time) = connection.connect.paths.fast_io_fail_tmo.filter(|time| *time > 0) {
        put("fast_io_fail_tmo", json!(time));
    }
    if let Some(tos) = address.tos {
        put("tos", json!(tos));
    }
    if let Some(identity) = &address.tls_key_identity {
        put("tls_key_identity", json!(identity));
    }
    let is_of_kernel = |key: &std::path::PathBuf| key.to_string_lossy().starts_with("kernel:");
    for (name, is_on) in [
        ("hdr_digest", connection.connect.header_digest),
        ("data_digest", connection.connect.data_digest),
        ("tls", address.tls_psk.as_ref().is_some_and(is_of_kernel)),
        ("concat", address.concat || connection.secrets.concat),
    ] {
        if is_on {
            put(name, json!(true));
        }
    }
    Value::Object(port)
}

/// The file knows whole seconds only.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb};

    const NQN: &str = "nqn.2026-01.io.raceline:x";

    fn parse(line: &str) -> DiskArgs {
        let line = format!("raceline connect --as nbd -n {NQN} {line}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().verb {
            Verb::Connect(args) => *args,
            verb => panic!("{verb:?}"),
        }
    }

    fn of(line: &str) -> Result<HostConfig, String> {
        config(&parse(line)).map(|(config, ..)| config).map_err(|failure| failure.message)
    }

    /// A file with these ports.
    fn file(ports: &str) -> tempfile::NamedTempFile {
        let text = format!(
            r#"[{{"hostnqn": "nqn.2014-08.org.example:h", "subsystems": [
                {{"nqn": "{NQN}", "ports": [{ports}]}},
                {{"nqn": "nqn.2026-01.io.raceline:y", "ports": [{{"traddr": "127.0.0.9"}}]}}]}}]"#
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn a_connection_has_the_options_of_the_line() {
        let made = of("-a 127.0.0.1 -s 7 -w 127.0.0.2 -f lo -T 40 -Q 17 -k 9").unwrap();
        assert_eq!((made.address.to_string(), made.tos), ("127.0.0.1:7".into(), 40));
        assert_eq!(made.source, Some("127.0.0.2".parse().unwrap()));
        assert_eq!((made.interface.unwrap().to_string(), made.io_entries), ("lo".into(), 17));
        assert_eq!(of("-a 127.0.0.1 -J none").unwrap().io_entries, 128);
        let rdma = of("-t rdma -a 127.0.0.1 -f lo").unwrap();
        assert_eq!((rdma.source, rdma.interface), (Some("127.0.0.1".parse().unwrap()), None));
        for (line, says) in [
            ("-J none", "-a is missing"),
            ("-a 127.0.0.1 -f no-such0", "there is no interface no-such0"),
            ("-t rdma -a 127.0.0.1 -T 8", "--tos: it is for TCP"),
            ("-J /nowhere/config.json", "No such file"),
        ] {
            let error = of(line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn a_file_has_the_addresses_and_options_and_the_line_comes_first() {
        let options = r#""queue_size": 33, "keep_alive_tmo": 30, "tos": -1, "hdr_digest": true"#;
        let two = file(&format!(
            r#"{{"traddr": "127.0.0.1", "trsvcid": "71", "host_traddr": "127.0.0.5", {options}}},
               {{"traddr": "127.0.0.2", "trsvcid": "72", {options}}}"#
        ));
        let path = two.path().display();
        let made = of(&format!("-J {path}")).unwrap();
        assert_eq!((made.io_entries, made.kato_ms, made.header_digest), (33, 30_000, true));
        assert_eq!(made.hostnqn.as_str(), "nqn.2014-08.org.example:h");
        let paths: Vec<String> =
            made.paths().iter().map(|path| format!("{} {:?}", path.address, path.source)).collect();
        assert_eq!(paths, ["127.0.0.1:71 Some(127.0.0.5)", "127.0.0.2:72 Some(127.0.0.5)"]);
        let made = of(&format!("-J {path} -s 72 -Q 44 -k 7 -q nqn.2014-08.org.example:other -G"));
        let made = made.unwrap();
        assert_eq!((made.io_entries, made.kato_ms), (44, 7000));
        assert!(made.header_digest && made.data_digest && made.more_paths.is_empty());
        assert_eq!(made.hostnqn.as_str(), "nqn.2014-08.org.example:other");
        assert_eq!(of(&format!("-J {path} -a 127.0.0.2")).unwrap().address.port(), 72);
        let error = of(&format!("-J {path} -a 127.0.0.3")).unwrap_err();
        assert!(error.contains("has no subsystem") && error.contains("at that address"), "{error}");

        let differ = file(r#"{"traddr": "127.0.0.1"}, {"traddr": "127.0.0.2", "queue_size": 5}"#);
        let error = of(&format!("-J {}", differ.path().display())).unwrap_err();
        assert!(error.contains("with different options"), "{error}");
    }

    #[test]
    fn a_file_says_when_commands_of_a_lost_controller_fail() {
        let with = |members: &str| {
            let file = file(&format!(r#"{{"traddr": "127.0.0.1", {members}}}"#));
            of(&format!("-J {}", file.path().display()))
        };
        let times = |members: &str| {
            let made = with(members).unwrap();
            let seconds = |time: Option<Duration>| time.map(|time| time.as_secs());
            let multipath =
                made.multipath.expect("a disk holds writes back over an only path, too");
            (seconds(multipath.fast_io_fail), seconds(made.backoff.give_up_after))
        };
        assert_eq!(times(r#""fast_io_fail_tmo": 7, "ctrl_loss_tmo": 20"#), (Some(7), Some(20)));
        // As with nvme-cli, whose controllers are given up after 600 s.
        assert_eq!(times(r#""fast_io_fail_tmo": 60"#), (Some(60), Some(600)));
        assert_eq!(times(r#""fast_io_fail_tmo": 0"#), (None, Some(30)));
        assert_eq!(times(r#""fast_io_fail_tmo": -1"#), (None, Some(30)));
        // Linux takes a time after the loss of the controller, and commands fail with that loss.
        assert_eq!(times(r#""fast_io_fail_tmo": 700"#), (None, Some(600)));
        assert_eq!(times(r#""fast_io_fail_tmo": 7, "ctrl_loss_tmo": 0"#), (None, Some(0)));
        let error = with(r#""fast_io_fail_tmo": "soon""#).unwrap_err();
        assert!(error.contains("fast_io_fail_tmo: it has to be a number"), "{error}");
    }

    #[test]
    fn an_identity_in_a_file_names_a_key_of_the_kernel() {
        let digest = "VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ";
        let with = |version: &str, subsystem: &str, more: &str| {
            let host = "nqn.2014-08.org.example:h";
            let identity = format!("NVMe{version} {host} {subsystem} {digest}");
            let file = file(&format!(
                r#"{{"traddr": "127.0.0.1", "tls_key_identity": "{identity}"{more}}}"#
            ));
            let args = parse(&format!("-J {}", file.path().display()));
            let found = connections(&args.remote).map_err(|failure| failure.message)?;
            let address = found[0].connect.address.clone();
            let shown = port(&found[0])["tls_key_identity"].as_str().map(str::to_owned);
            assert_eq!(shown, address.tls_key_identity);
            // The command line comes before the file.
            for option in ["--tls-psk kernel:7", "--concat"] {
                let args = parse(&format!("-J {} {option}", file.path().display()));
                connections(&args.remote).map_err(|failure| failure.message)?;
            }
            Ok::<_, String>((address.tls_psk, address.tls_key_identity))
        };
        let kernel = Some(std::path::PathBuf::from("kernel:"));
        let tls = r#", "tls": true"#;
        for more in [tls, r#", "tls": true, "keyring": ".nvme""#] {
            for form in ["1R01", "1R02"] {
                let host = "nqn.2014-08.org.example:h";
                let identity = Some(format!("NVMe{form} {host} {NQN} {digest}"));
                assert_eq!(with(form, NQN, more), Ok((kernel.clone(), identity)));
            }
        }
        // Another keyring is said to be passed over.
        assert_eq!(with("1R02", NQN, r#", "tls": true, "keyring": 77"#).unwrap().0, kernel);
        // A connection that does not begin with TLS needs no key, as with nvme-cli.
        for more in ["", r#", "tls": false"#] {
            assert_eq!(with("1R02", NQN, more).unwrap().0, None, "{more}");
            assert_eq!(with("1R02", "nqn.2026-01.io.raceline:y", more).unwrap().0, None, "{more}");
        }
        let error = with("1R02", "nqn.2026-01.io.raceline:y", tls).unwrap_err();
        assert!(error.contains("tls_key_identity: it is for other names"), "{error}");
        let error = with("1X02", NQN, tls).unwrap_err();
        assert!(error.contains("it is no identity of a key for TLS"), "{error}");
    }

    #[test]
    fn the_serial_number_of_a_key_in_a_file_names_it() {
        let of = |members: &str, line: &str| {
            let file = file(&format!(r#"{{"traddr": "127.0.0.1"{members}}}"#));
            let args = parse(&format!("-J {} {line}", file.path().display()));
            let found = connections(&args.remote).map_err(|failure| failure.message).unwrap();
            found[0].connect.address.tls_psk.clone()
        };
        let kernel = |name: &str| Some(std::path::PathBuf::from(name));
        assert_eq!(of(r#", "tls": true, "tls_key": 305419896"#, ""), kernel("kernel:305419896"));
        assert_eq!(of(r#", "tls": true, "tls_key": 0"#, ""), kernel("kernel:"));
        assert_eq!(of(r#", "tls_key": 305419896"#, ""), None);
        assert_eq!(of(r#", "tls": true, "tls_key": 7"#, "--tls_key 0x9"), kernel("kernel:0x9"));
    }

    #[test]
    fn what_is_printed_is_read_back() {
        let line = "-a 127.0.0.1 -s 71 -w 127.0.0.2 -f lo -T 8 -Q 64 -k 1500ms -c 2 -l -1 -g --fast-io-fail-tmo 9 --tls-psk kernel:";
        let args = parse(line);
        let shown = port(&connections(&args.remote).unwrap()[0]);
        let expected = json!({
            "transport": "tcp", "traddr": "127.0.0.1", "trsvcid": "71", "host_traddr": "127.0.0.2",
            "host_iface": "lo", "queue_size": 64, "keep_alive_tmo": 2, "reconnect_delay": 2,
            "ctrl_loss_tmo": -1, "fast_io_fail_tmo": 9, "tos": 8, "hdr_digest": true, "tls": true,
        });
        assert_eq!(shown, expected);
        let mut shown = shown;
        shown.as_object_mut().unwrap().remove("tls");
        let file = file(&shown.to_string());
        let again = of(&format!("-J {}", file.path().display())).unwrap();
        assert_eq!((again.tos, again.io_entries, again.kato_ms), (8, 64, 2000));
        assert_eq!((again.backoff.give_up_after, again.header_digest), (None, true));
        let fast = again.multipath.unwrap().fast_io_fail;
        assert_eq!(fast, Some(Duration::from_secs(9)));
    }
}
