//! The files in which nvme-cli keeps where to connect: `discovery.conf` and `config.json`.
//!
//! Each entry becomes the options of a connection. What an entry has and a connection here cannot have is refused by its
//! name, or said on standard error. Secrets are kept apart from the options, and no text shows them.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use clap::Parser;
use raceline_host::HostConfig;
use serde_json::Value;
use zeroize::Zeroizing;

use crate::cli::host::{AddressArgs, ConnectArgs};
use crate::cli::nvme::{DeviceArgs, Given};
use crate::cli::paths::PathArgs;
use crate::cli::queues::QueueNumbers;
use crate::cli::values::is_serial;
use crate::failure::{Failure, one_line};
use crate::remote::{self, ALL_KEYRINGS, KEYRINGS, Secrets};
use crate::shell;
use crate::table::printable;

/// The file of connections of libnvme.
pub(crate) const CONFIG: &str = "/etc/nvme/config.json";
/// The file of discovery controllers.
pub(crate) const DISCOVERY: &str = "/etc/nvme/discovery.conf";
/// A larger file is none of these.
const MAX_BYTES: u64 = 4 << 20;
/// The name of the discovery service.
const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// The port of discovery controllers, unless an entry has one.
const DISCOVERY_PORT: &str = "8009";

/// Where to connect, and as whom.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) connect: ConnectArgs,
    pub(crate) secrets: Secrets,
    /// It is a discovery controller.
    pub(crate) is_discovery: bool,
    /// How many I/O queues it is to have; questions to a controller do not need them.
    pub(crate) queues: QueueNumbers,
    /// The options that its entry has, and the command line.
    pub(crate) given: Given,
    /// Nobody has named its port: those at which discovery controllers listen are tried in turn.
    pub(crate) has_any_port: bool,
}

impl Connection {
    /// One to a subsystem, without secrets of a file.
    pub(crate) fn new(connect: ConnectArgs) -> Self {
        let (secrets, queues) = (Secrets::default(), QueueNumbers::default());
        let given = Given::default();
        Self { connect, secrets, is_discovery: false, queues, given, has_any_port: false }
    }

    /// The same connection to another port.
    pub(crate) fn at_port(&self, port: u16) -> Self {
        let mut other = self.clone();
        other.connect.address.port = port;
        other.has_any_port = false;
        other
    }

    /// The configuration of the host library.
    pub(crate) fn config(&self) -> Result<HostConfig, Failure> {
        let mut connect = self.connect.clone();
        if self.is_discovery {
            // Nobody asks a discovery controller for I/O: these are for what it offers.
            let reconnect_delay = connect.paths.reconnect_delay;
            connect.paths = PathArgs { reconnect_delay, ..PathArgs::default() };
        }
        let mut config = remote::config_with(&connect, &self.secrets)?;
        config.discovery = self.is_discovery;
        Ok(config)
    }

    /// ADDRESS:PORT, or the address alone where nobody has named a port.
    pub(crate) fn shown(&self) -> String {
        let (address, port) = (&self.connect.address.address, self.connect.address.port);
        if self.has_any_port {
            return address.clone();
        }
        if address.contains(':') && !address.starts_with('[') {
            format!("[{address}]:{port}")
        } else {
            format!("{address}:{port}")
        }
    }
}

/// Options of the command line, which come before those of each entry.
#[derive(Clone, Copy)]
pub(crate) struct Overrides<'a> {
    pub(crate) given: &'a Given,
    pub(crate) line: &'a AddressArgs,
    /// Secrets are names of keys of a daemon, and are not read here.
    pub(crate) are_names: bool,
}

impl Overrides<'_> {
    /// Puts the secrets of the command line in the place of those of the entries.
    fn put_secrets(self, found: &mut [Connection]) -> Result<(), Failure> {
        let Self { given, line, are_names } = self;
        let (host, controller) =
            if are_names { (None, None) } else { remote::given_secrets(line)? };
        for Connection { connect, secrets, .. } in found {
            let address = &mut connect.address;
            if given.has("dhchap_secret") {
                secrets.host.clone_from(&host);
                address.dhchap_secret = line.dhchap_secret.clone().filter(|_| are_names);
            }
            if given.has("dhchap_ctrl_secret") {
                secrets.controller.clone_from(&controller);
                address.dhchap_ctrl_secret = line.dhchap_ctrl_secret.clone().filter(|_| are_names);
            }
            if given.has("tls_psk") || given.has("tls_key_identity") {
                secrets.tls = None;
            }
        }
        Ok(())
    }
}

/// A line of `discovery.conf`, or an entry of `config.json` as one.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_version_flag = true)]
#[command(args_override_self = true)]
struct Line {
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    queues: QueueNumbers,
    /// How long connections stay: a question to a controller does not need it.
    #[arg(short = 'p', long)]
    persistent: bool,
}

/// The discovery controllers of one file: of JSON, or of lines as in `discovery.conf`.
pub(crate) fn discovery_controllers(
    path: &Path,
    over: Overrides<'_>,
) -> Result<Vec<Connection>, Failure> {
    let is_json = read(path)?.trim_start().starts_with(['[', '{']);
    if !is_json {
        return discovery(path, over);
    }
    let mut found = config(path, over)?;
    found.retain(|it| it.is_discovery);
    if found.is_empty() {
        let text = format!(
            "{} names no discovery controller: a subsystem of the name {DISCOVERY_NQN}",
            path.display()
        );
        return Err(Failure::usage(text));
    }
    Ok(found)
}

/// Those of the files that nvme-cli reads.
pub(crate) fn known_discovery_controllers(over: Overrides<'_>) -> Result<Vec<Connection>, Failure> {
    known_discovery_controllers_at([CONFIG, DISCOVERY].map(Path::new), over)
}

fn known_discovery_controllers_at(
    places: [&Path; 2],
    over: Overrides<'_>,
) -> Result<Vec<Connection>, Failure> {
    let mut found = known(places, over)?;
    found.retain(|it| it.is_discovery);
    if found.is_empty() {
        return Err(nothing_known(places, "a discovery controller", ", --config FILE, --mdns"));
    }
    Ok(found)
}

/// All connections of a file of either form.
pub(crate) fn connections(path: &Path, over: Overrides<'_>) -> Result<Vec<Connection>, Failure> {
    let is_json = read(path)?.trim_start().starts_with(['[', '{']);
    let found = if is_json { config(path, over)? } else { discovery(path, over)? };
    if found.is_empty() {
        return Err(Failure::usage(format!("{} names no subsystem", path.display())));
    }
    Ok(found)
}

/// Those of the files that nvme-cli reads.
pub(crate) fn known_connections(over: Overrides<'_>) -> Result<Vec<Connection>, Failure> {
    known_connections_at([CONFIG, DISCOVERY].map(Path::new), over)
}

fn known_connections_at(
    places: [&Path; 2],
    over: Overrides<'_>,
) -> Result<Vec<Connection>, Failure> {
    let found = known(places, over)?;
    if found.is_empty() {
        let what = "a discovery controller or a subsystem";
        return Err(nothing_known(places, what, ", --config FILE"));
    }
    Ok(found)
}

/// All connections of a `config.json` and of a `discovery.conf`. A file without entries is like none: packages of
/// nvme-cli bring one that has only comments.
fn known([json, lines]: [&Path; 2], over: Overrides<'_>) -> Result<Vec<Connection>, Failure> {
    let mut found = Vec::new();
    if json.exists() && !matches!(read(json)?.trim(), "" | "{}") {
        found.extend(config(json, over)?);
    }
    if lines.exists() {
        found.extend(entries(lines, over)?);
    }
    Ok(found)
}

/// What to say where neither file has what is looked for.
fn nothing_known([json, lines]: [&Path; 2], what: &str, options: &str) -> Failure {
    let (json, lines) = (json.display(), lines.display());
    Failure::usage(format!(
        "neither {json} nor {lines} names {what}: say where to ask with -a ADDRESS{options}, or write a line such as \
         `-t tcp -a 192.0.2.1 -s {DISCOVERY_PORT}` into {lines}"
    ))
}

/// The discovery controllers of a `discovery.conf`.
fn discovery(path: &Path, over: Overrides<'_>) -> Result<Vec<Connection>, Failure> {
    let found = entries(path, over)?;
    if found.is_empty() {
        let text = "no line names a discovery controller, such as: -t tcp -a 192.0.2.1 -s 8009";
        return Err(Failure::usage(format!("{}: {text}", path.display())));
    }
    Ok(found)
}

/// The discovery controllers of a `discovery.conf`, which may be none. Lines of other transports are passed over.
fn entries(path: &Path, over: Overrides<'_>) -> Result<Vec<Connection>, Failure> {
    let text = read(path)?;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let place = format!("{}:{}", path.display(), number + 1);
        let words = shlex::split(line)
            .ok_or_else(|| Failure::usage(format!("{place}: a quote is not closed")))?;
        let words: Vec<_> = words.into_iter().map(Zeroizing::new).collect();
        if let Some(transport) = transport_of(&words).filter(|it| is_other(it)) {
            pass_over(&place, transport);
            continue;
        }
        let more = over.given.words.iter().cloned().map(Zeroizing::new);
        let mut connection = connection(&place, words.into_iter().chain(more).collect())?;
        connection.is_discovery = true;
        found.push(connection);
    }
    over.put_secrets(&mut found)?;
    Ok(found)
}

/// The transport that a line names. The parser of lines knows only those that can be used.
fn transport_of(words: &[Zeroizing<String>]) -> Option<&str> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if matches!(word.as_str(), "-t" | "--transport") {
            return words.next().map(|value| value.as_str());
        }
        let value = word.strip_prefix("--transport=").or_else(|| word.strip_prefix("-t"));
        if let Some(value) = value {
            return Some(value.trim_start_matches('='));
        }
    }
    None
}

/// Whether nvme-cli knows the transport, and Raceline does not. Any other word is an error of its line.
fn is_other(transport: &str) -> bool {
    matches!(transport.to_ascii_lowercase().as_str(), "fc" | "loop" | "pcie")
}

fn pass_over(place: &str, transport: &str) {
    let transport = printable(transport);
    shell::note(&format!(
        "{place} is passed over: its transport is {transport}, and not tcp or rdma"
    ));
}

/// The connection of a line. Secrets may stand in the line, as nvme-cli takes them.
fn connection(place: &str, words: Vec<Zeroizing<String>>) -> Result<Connection, Failure> {
    let mut secrets = Secrets::default();
    let mut plain: Vec<String> = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let (name, mut value) = match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => {
                (name, Some(Zeroizing::new(value.to_owned())))
            }
            _ => (word.as_str(), None),
        };
        let kind = match name {
            "-S" | "--dhchap-secret" => "dhchap_key",
            "-C" | "--dhchap-ctrl-secret" => "dhchap_ctrl_key",
            "--tls-key" | "--tls_key" => "tls_key",
            _ => {
                plain.push(word.to_string());
                continue;
            }
        };
        if value.is_none() {
            value = words.next();
        }
        let value = value.ok_or_else(|| Failure::usage(format!("{place}: {name} has no value")))?;
        if kind == "tls_key" && is_serial(&value) {
            plain.push(format!("--tls-psk={}", value.as_str()));
            continue;
        }
        put_secret(&mut secrets, kind, &value, &format!("{place}: {name}"))?;
    }
    if secrets.tls.is_some() {
        // The key of the line takes the place of the kernel's.
        plain.retain(|word| word != "--tls");
    }
    let has = |short: &str, long: &str| {
        plain.iter().any(|word| word.starts_with(short) || word.starts_with(long))
    };
    if !has("-s", "--trsvcid") {
        plain.extend(["-s".to_owned(), DISCOVERY_PORT.to_owned()]);
    }
    let line = Line::try_parse_from(&plain)
        .map_err(|error| Failure::usage(format!("{place}: {}", reason(&error))))?;
    if line.persistent {
        tracing::debug!(place, "--persistent means nothing here");
    }
    if !line.device.has_address {
        return Err(Failure::usage(format!("{place}: -a ADDRESS is missing")));
    }
    let mut connection = super::device::plain(&line.device)?;
    connection.secrets = secrets;
    connection.queues = line.queues;
    connection.given = line.device.given;
    connection.is_discovery = connection.connect.nqn.as_str() == DISCOVERY_NQN;
    Ok(connection)
}

/// What clap says, in one line and without what it would print around it.
fn reason(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let end = text.find("\n\nUsage:").or_else(|| text.find("\n\nFor more")).unwrap_or(text.len());
    one_line(text[..end].trim_start_matches("error:"))
}

fn put_secret(secrets: &mut Secrets, kind: &str, text: &str, place: &str) -> Result<(), Failure> {
    // No error of a key shows a part of it.
    let wrong = |error: raceline_auth::KeyError| Failure::usage(format!("{place}: {error}"));
    match kind {
        "dhchap_key" => secrets.host = Some(text.parse().map_err(wrong)?),
        "dhchap_ctrl_key" => secrets.controller = Some(text.parse().map_err(wrong)?),
        _ => secrets.tls = Some(text.parse().map_err(wrong)?),
    }
    raceline_sandbox::hide_memory().map_err(Failure::runtime)
}

/// The connections of a `config.json`: all controllers of all subsystems of all hosts.
pub(crate) fn config(path: &Path, over: Overrides<'_>) -> Result<Vec<Connection>, Failure> {
    let mut found = read_config(path, &over.given.words)?;
    over.put_secrets(&mut found)?;
    Ok(found)
}

fn read_config(path: &Path, more: &[String]) -> Result<Vec<Connection>, Failure> {
    let text = read(path)?;
    let value: Value = serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!(
            "{}: no JSON at line {}: {}",
            path.display(),
            error.line(),
            kind(&error)
        ))
    })?;
    let mut reader = ConfigReader { path, more, found: Vec::new(), has_secrets: false };
    let hosts = if value.is_object() { &value["hosts"] } else { &value };
    reader.hosts(hosts)?;
    if reader.has_secrets && is_open(path) {
        let path = path.display();
        shell::note(&format!("{path} has secrets, and other users can read it: chmod 600 {path}"));
    }
    Ok(reader.found)
}

/// What is wrong with the text, without the text.
fn kind(error: &serde_json::Error) -> &'static str {
    if error.is_eof() { "the file ends too early" } else { "the text is not JSON" }
}

fn is_open(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|info| info.mode() & 0o077 != 0)
}

struct ConfigReader<'a> {
    path: &'a Path,
    /// Options that come before those of each entry.
    more: &'a [String],
    found: Vec<Connection>,
    has_secrets: bool,
}

/// Members of a port, and the options that they are.
const TEXTS: [(&str, &str); 5] = [
    ("transport", "-t"),
    ("traddr", "-a"),
    ("trsvcid", "-s"),
    ("host_traddr", "-w"),
    ("host_iface", "-f"),
];
/// Those that are numbers.
const NUMBERS: [(&str, &str); 9] = [
    ("tos", "--tos"),
    ("nr_io_queues", "--nr-io-queues"),
    ("nr_write_queues", "--nr-write-queues"),
    ("nr_poll_queues", "--nr-poll-queues"),
    ("queue_size", "--queue-size"),
    ("keep_alive_tmo", "--keep-alive-tmo"),
    ("reconnect_delay", "--reconnect-delay"),
    ("ctrl_loss_tmo", "--ctrl-loss-tmo"),
    (FAST_IO_FAIL, "--fast-io-fail-tmo"),
];
/// Seconds after the loss of the last path after which its commands fail.
const FAST_IO_FAIL: &str = "fast_io_fail_tmo";
/// The beginning of its option.
const FAST_IO_FAIL_OPTION: &str = "--fast-io-fail-tmo";
/// The same for --ctrl-loss-tmo, where nvme-cli has no other.
const CTRL_LOSS_TMO_S: &str = "600";
/// Those that are true or false.
const SWITCHES: [(&str, &str); 6] = [
    ("hdr_digest", "--hdr-digest"),
    ("data_digest", "--data-digest"),
    ("tls", "--tls"),
    ("duplicate_connect", "--duplicate-connect"),
    ("disable_sqflow", "--disable-sqflow"),
    ("persistent", "--persistent"),
];
/// Secrets.
const SECRETS: [&str; 3] = ["dhchap_key", "dhchap_ctrl_key", "tls_key"];
/// Members that are read elsewhere.
const OTHERS: [&str; 4] = ["discovery", "concat", "keyring", "tls_key_identity"];
/// Members of a subsystem and of a host that are read.
const OF_SUBSYSTEM: [&str; 2] = ["nqn", "ports"];
const OF_HOST: [&str; 6] =
    ["hostnqn", "hostid", "subsystems", "dhchap_key", "dhchap_ctrl_key", "tls_key"];

impl ConfigReader<'_> {
    fn wrong(&self, place: &str, what: &str) -> Failure {
        Failure::usage(format!("{}: {place}: {what}", self.path.display()))
    }

    fn list<'v>(&self, value: &'v Value, place: &str) -> Result<&'v [Value], Failure> {
        match value {
            Value::Null => Ok(&[]),
            Value::Array(list) => Ok(list),
            _ => Err(self.wrong(place, "it has to be a list")),
        }
    }

    fn text<'v>(&self, value: &'v Value, place: &str) -> Result<Option<&'v str>, Failure> {
        match value {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text)),
            _ => Err(self.wrong(place, "it has to be text")),
        }
    }

    fn hosts(&mut self, hosts: &Value) -> Result<(), Failure> {
        if !hosts.is_array() {
            return Err(self.wrong(
                "the file",
                "it has to be a list of hosts, or an object with such a list as `hosts`",
            ));
        }
        for (number, host) in self.list(hosts, "hosts")?.iter().enumerate() {
            let place = format!("hosts[{number}]");
            if !host.is_object() {
                return Err(self.wrong(&place, "it has to be an object"));
            }
            self.note_others(host, &OF_HOST, &place);
            let subsystems = self.list(&host["subsystems"], &format!("{place}.subsystems"))?;
            for (number, subsystem) in subsystems.iter().enumerate() {
                let place = format!("{place}.subsystems[{number}]");
                self.note_others(subsystem, &OF_SUBSYSTEM, &place);
                let nqn = self.text(&subsystem["nqn"], &format!("{place}.nqn"))?;
                let nqn = nqn.ok_or_else(|| self.wrong(&place, "it has no nqn"))?;
                for (number, port) in
                    self.list(&subsystem["ports"], &format!("{place}.ports"))?.iter().enumerate()
                {
                    self.port(host, nqn, port, &format!("{place}.ports[{number}]"))?;
                }
            }
        }
        Ok(())
    }

    fn port(&mut self, host: &Value, nqn: &str, port: &Value, place: &str) -> Result<(), Failure> {
        let Some(members) = port.as_object() else {
            return Err(self.wrong(place, "it has to be an object"));
        };
        let transport =
            self.text(&port["transport"], &format!("{place}.transport"))?.unwrap_or("tcp");
        if !matches!(transport, "tcp" | "rdma") {
            pass_over(&format!("{}: {place}", self.path.display()), transport);
            return Ok(());
        }
        let serial = serial_of(host, port);
        let has_key = serial.is_some() || tls_key(host, port).is_string();
        let has_identity = !port["tls_key_identity"].is_null();
        let mut words = vec!["-n".to_owned(), nqn.to_owned()];
        for (name, option) in [("hostnqn", "-q"), ("hostid", "-I")] {
            if let Some(value) = self.text(&host[name], name)? {
                words.extend([option.to_owned(), value.to_owned()]);
            }
        }
        for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
            let at = format!("{place}.{name}");
            if let Some((_, option)) = TEXTS.iter().find(|(known, _)| known == name) {
                let text = self.text(value, &at)?.unwrap_or_default();
                words.extend([(*option).to_owned(), text.to_owned()]);
            } else if let Some((_, option)) = NUMBERS.iter().find(|(known, _)| known == name) {
                let number =
                    value.as_i64().ok_or_else(|| self.wrong(&at, "it has to be a number"))?;
                // libnvme writes -1 where there is none, and takes 0 as none.
                let is_none = match name.as_str() {
                    "tos" => number == -1,
                    FAST_IO_FAIL => number <= 0,
                    _ => false,
                };
                if !is_none {
                    words.push(format!("{option}={number}"));
                }
            } else if let Some((_, option)) = SWITCHES.iter().find(|(known, _)| known == name) {
                match value.as_bool() {
                    // A key in the file takes the place of the kernel's, and a name of one says more.
                    Some(true) if name == "tls" && (has_key || has_identity) => {}
                    Some(true) if self.more.iter().any(|word| is_security(word)) => {}
                    Some(true) => words.push((*option).to_owned()),
                    Some(false) => {}
                    None => return Err(self.wrong(&at, "it has to be true or false")),
                }
            } else if !SECRETS.contains(&name.as_str()) && !OTHERS.contains(&name.as_str()) {
                self.note(&at, "there is nothing like it here");
            }
        }
        if words.iter().any(|word| word.starts_with(FAST_IO_FAIL_OPTION))
            && port["ctrl_loss_tmo"].is_null()
        {
            words.push(format!("--ctrl-loss-tmo={CTRL_LOSS_TMO_S}"));
        }
        if let Some(serial) = serial
            && !self.more.iter().any(|word| is_security(word))
        {
            words.push(format!("--tls-psk={serial}"));
        }
        self.key_of_kernel((host, nqn, has_key), port, place, &mut words)?;
        if port["trsvcid"].is_null() && nqn != DISCOVERY_NQN {
            words.extend(["-s".to_owned(), crate::cli::values::DEFAULT_PORT.to_string()]);
        }
        words.extend_from_slice(self.more);
        let whole = format!("{}: {place}", self.path.display());
        let mut made = connection(&whole, words.into_iter().map(Zeroizing::new).collect())?;
        self.fail_no_later_than_lost(&mut made, place);
        made.is_discovery |= port["discovery"] == true;
        made.secrets.concat = port["concat"] == true;
        self.secrets(host, port, place, &mut made.secrets)?;
        self.found.push(made);
        Ok(())
    }

    /// A time of the file after which commands fail, and after which the controller is lost anyway, says nothing: Linux
    /// takes it, with a warning. On the command line it is an error.
    fn fail_no_later_than_lost(&self, made: &mut Connection, place: &str) {
        let loss = made.connect.address.ctrl_loss_tmo;
        let fast = &mut made.connect.paths.fast_io_fail_tmo;
        let is_on_the_line = self.more.iter().any(|word| word.starts_with(FAST_IO_FAIL_OPTION));
        if !is_on_the_line && loss >= 0 && fast.is_some_and(|fast| fast > loss) {
            *fast = None;
            let at = format!("{place}.{FAST_IO_FAIL}");
            self.note(&at, "the controller is given up before (ctrl_loss_tmo)");
        }
    }

    /// Says that a member is passed over, and why.
    fn note(&self, at: &str, why: &str) {
        let (path, at) = (self.path.display(), printable(at));
        shell::note(&format!("{path}: {at} is passed over: {why}"));
    }

    /// Says which members of an object are not read.
    fn note_others(&self, object: &Value, known: &[&str], place: &str) {
        let members = object.as_object().into_iter().flatten();
        for (name, _) in
            members.filter(|(name, value)| !value.is_null() && !known.contains(&name.as_str()))
        {
            self.note(&format!("{place}.{name}"), "there is nothing like it here");
        }
    }

    /// The key of the kernel that a port names. It has an identity, and is in a keyring.
    fn key_of_kernel(
        &self,
        (host, nqn, has_key): (&Value, &str, bool),
        port: &Value,
        place: &str,
        words: &mut Vec<String>,
    ) -> Result<(), Failure> {
        let at = format!("{place}.keyring");
        let keyring = match &port["keyring"] {
            // Older ones of nvme-cli have written its serial number.
            Value::Number(number) => Some(number.to_string()),
            value => self.text(value, &at)?.map(str::to_owned),
        };
        if keyring.is_some_and(|keyring| !KEYRINGS.contains(&keyring.as_str())) {
            self.note(&at, ALL_KEYRINGS);
        }
        let at = format!("{place}.tls_key_identity");
        let Some(identity) = self.text(&port["tls_key_identity"], &at)? else { return Ok(()) };
        if port["tls"] != true || port["concat"] == true {
            self.note(
                &at,
                "the connection does not begin with TLS (tls is not true, or concat is)",
            );
            return Ok(());
        }
        if self.more.iter().any(|word| is_security(word)) {
            // What the command line says of TLS comes before the file.
            return Ok(());
        }
        if has_key {
            self.note(&at, "the key is in the file (tls_key), and is offered by an identity that is made of it");
            return Ok(());
        }
        let own_host = host["hostnqn"].as_str().or(identity.split(' ').nth(1));
        remote::parse_identity(identity, (own_host.unwrap_or_default(), nqn))
            .map_err(|what| self.wrong(&at, &what))?;
        words.extend(["--tls-psk=kernel:".to_owned(), format!("--tls-key-identity={identity}")]);
        Ok(())
    }

    /// The secret of a port, or of the host.
    fn secrets(
        &mut self,
        host: &Value,
        port: &Value,
        place: &str,
        into: &mut Secrets,
    ) -> Result<(), Failure> {
        for kind in SECRETS {
            let is_none = |value: &Value| match kind {
                "tls_key" => is_no_key(value),
                _ => value.is_null(),
            };
            let (value, at) = match (&port[kind], &host[kind]) {
                (own, value) if is_none(own) => (value, format!("the host's {kind}")),
                (value, _) => (value, format!("{place}.{kind}")),
            };
            if kind == "tls_key" && value.is_number() {
                // The serial number of a key of the kernel.
                continue;
            }
            if let Some(text) = self.text(value, &at)? {
                put_secret(into, kind, text, &format!("{}: {at}", self.path.display()))?;
                self.has_secrets = true;
            }
        }
        Ok(())
    }
}

/// The key for TLS of a port, or of the host: a key, or the serial number of one of the kernel, which older ones of nvme-cli write.
fn tls_key<'a>(host: &'a Value, port: &'a Value) -> &'a Value {
    if is_no_key(&port["tls_key"]) { &host["tls_key"] } else { &port["tls_key"] }
}

/// 0 is none, as is what is not there.
fn is_no_key(value: &Value) -> bool {
    value.is_null() || value.as_i64().is_some_and(|serial| serial <= 0)
}

/// The serial number of a key of the kernel.
fn serial_of(host: &Value, port: &Value) -> Option<i64> {
    let value = tls_key(host, port);
    value.as_i64().filter(|serial| *serial > 0 && port["tls"] == true)
}

/// Whether a word of the command line says what begins the connection's security.
fn is_security(word: &str) -> bool {
    ["--tls", "--tls-psk", "--tls-key-identity", "--concat"]
        .contains(&word.split('=').next().unwrap_or_default())
}

/// The text of a regular file of a bearable size.
fn read(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let shown = path.display();
    let failed = |error: std::io::Error| Failure::usage(format!("{shown}: {error}"));
    let file = File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_dir() {
        return Err(Failure::usage(format!("{shown} is a folder: name the file in it")));
    }
    let mut text = Zeroizing::new(String::new());
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|error| match error.kind() {
        std::io::ErrorKind::InvalidData => Failure::usage(format!("{shown} is no text")),
        _ => failed(error),
    })?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Failure::usage(format!("{shown}: more than 4 MiB are no file of connections")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
