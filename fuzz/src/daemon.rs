//! A daemon in memory that gets structured random calls, and the conditions that must hold after each.
//!
//! A refused call has changed nothing; the final configuration makes the same target again.

use std::fmt::Write as _;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use raceline_control::manager::catalogue::{Catalogue, Entry, Key, Section};
use raceline_control::manager::{Manager, ManagerConfig, Phase};
use raceline_control::method::{Access, Method, Registry, States};
use raceline_control::request::Dispatcher;
use raceline_control::role::{Peer, Role, Via};
use raceline_control::schema::{Kind, schema};
use serde_json::Value;

/// Calls in one life. At its end a second daemon is made from the configuration.
const MAX_CALLS: usize = 64;
/// Size of the file that devices may be made of, in bytes.
const FILE_BYTES: u64 = 1 << 20;
/// How deep generated values nest.
const MAX_LEVELS: u32 = 3;

/// Methods that may wait without end.
const WAITS: [&str; 1] = ["framework_wait_init"];

/// Methods that create and delete things later, at times of their own: only their parameters are checked.
const GOES_ON: [&str; 1] = ["bdev_nvme_start_discovery"];

/// Methods that create things for other methods: half of all calls, so that other calls find objects.
const BUILDERS: [&str; 12] = [
    "nvmf_create_transport",
    "bdev_malloc_create",
    "bdev_null_create",
    "bdev_aio_create",
    "bdev_passthru_create",
    "bdev_split_create",
    "nvmf_create_subsystem",
    "nvmf_subsystem_add_ns",
    "nvmf_subsystem_add_ns",
    "nvmf_subsystem_add_listener",
    "nvmf_subsystem_add_host",
    "nvmf_subsystem_add_pool",
];

pub(crate) static REGISTRY: LazyLock<Arc<Registry>> = LazyLock::new(|| Arc::new(Registry::new()));

/// Files that may hold devices, and an address that no other process uses.
struct Place {
    file: PathBuf,
    folder: PathBuf,
    address: String,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let process = std::process::id();
    let folder = std::env::temp_dir().join(format!("raceline-fuzz-{process}"));
    std::fs::create_dir_all(&folder).expect("a folder for the files of devices");
    let file = folder.join("disk");
    File::create(&file).and_then(|file| file.set_len(FILE_BYTES)).expect("a file for a device");
    let address = format!("127.{}.{}.77", (process >> 8) & 0xff, process & 0xff);
    Place { file, folder, address }
});

/// An admin from outside, like any client.
const PEER: Peer = Peer { uid: 0, pid: 1, role: Role::Admin, is_internal: false, via: Via::Socket };

/// The input, consumed from its beginning; then zeros.
pub(crate) struct Choices<'a>(pub(crate) &'a [u8]);

impl Choices<'_> {
    pub(crate) fn byte(&mut self) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first)
    }

    pub(crate) fn one_of<'b, T: ?Sized>(&mut self, all: &[&'b T]) -> &'b T {
        all[self.byte() % all.len()]
    }

    /// True once in `n`.
    pub(crate) fn once_in(&mut self, n: usize) -> bool {
        self.byte() % n == 1
    }
}

/// One life of a daemon, as the input describes it.
pub fn run(data: &[u8]) {
    let mut choices = Choices(data);
    let mut daemon = Daemon::new();
    if !choices.once_in(4) {
        daemon.manager.start_all().expect("nothing is configured");
    }
    for _ in 0..MAX_CALLS {
        if choices.0.is_empty() {
            break;
        }
        daemon.call(&mut choices);
    }
    daemon.comes_back();
}

/// The state that a client can see, and the configuration that would be saved.
#[derive(Debug, PartialEq)]
struct Picture {
    entries: Vec<(Key, Entry)>,
    visible: Vec<(&'static str, Value)>,
}

struct Daemon {
    manager: Arc<Manager>,
    /// The calls so far, for the report of a failure.
    story: String,
}

impl Daemon {
    fn new() -> Self {
        let manager = Arc::new(Manager::new(ManagerConfig::default(), REGISTRY.clone()));
        manager.share();
        Self { manager, story: String::new() }
    }

    fn ask(&self, request: &str) -> Option<Value> {
        let dispatcher = Dispatcher { registry: &REGISTRY, manager: &self.manager, peer: PEER };
        let answer = dispatcher.answer(request.as_bytes())?;
        Some(serde_json::from_str(&answer).expect("every answer is JSON"))
    }

    fn call(&mut self, choices: &mut Choices<'_>) {
        let methods: Vec<&Method> = REGISTRY.methods().collect();
        let method = match choices.once_in(2) {
            true => REGISTRY.get(choices.one_of(&BUILDERS)).expect("a method that is here"),
            false => methods[choices.byte() % methods.len()],
        };
        if WAITS.contains(&method.name) && self.manager.phase() != Phase::Runtime {
            return;
        }
        let params = parameters(choices, method);
        if GOES_ON.contains(&method.name) {
            let raw = params.strip_prefix(r#","params":"#).unwrap_or("null");
            let raw = serde_json::from_str(raw).expect("what is made up is JSON");
            let _ = REGISTRY.check(method.name, raw);
            return;
        }
        let request = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"{params}}}"#, method.name);
        let before = self.picture();
        let answer = self.ask(&request);
        let refused = answer.as_ref().is_some_and(|answer| answer.get("error").is_some());
        let _ = writeln!(self.story, "{request}\n  {}", answer.unwrap_or_default());
        if refused || method.access == Access::Read {
            assert_eq!(before, self.picture(), "this has changed something:\n{}", self.story);
        }
    }

    /// The catalogue in the order in which a start makes it: settings that may come before the start do.
    fn entries(&self) -> Vec<(Key, Entry)> {
        let catalogue = self.manager.model().catalogue.clone();
        let of = |section| catalogue.entries().filter(move |(_, entry)| entry.section == section);
        let all = Section::ALL.into_iter().flat_map(of);
        let all = all.map(|(key, entry)| (key.clone(), entry.clone()));
        let is_setting = |(_, entry): &(Key, Entry)| {
            REGISTRY.get(&entry.method).is_some_and(|method| method.states != States::Runtime)
        };
        let (mut settings, rest): (Vec<_>, Vec<_>) = all.partition(is_setting);
        settings.sort_by(|(one, _), (other, _)| one.cmp(other));
        settings.into_iter().chain(rest).collect()
    }

    fn picture(&self) -> Picture {
        let methods = [
            "bdev_get_bdevs",
            "bdev_get_missing",
            "nvmf_get_targets",
            "nvmf_get_subsystems",
            "nvmf_get_transports",
            "nvmf_discovery_get_referrals",
            "framework_get_scheduler",
            "accel_get_opc_assignments",
        ];
        let visible = methods.map(|method| {
            let request = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
            (method, self.ask(&request).expect("a request with an id has an answer"))
        });
        Picture { entries: self.entries(), visible: visible.to_vec() }
    }

    /// Ends the daemon, and starts another with the configuration that it would have saved.
    fn comes_back(mut self) {
        if self.manager.phase() != Phase::Runtime {
            self.manager.start_all().expect("what was taken before the start can be made");
            self.story.push_str("(started)\n");
        }
        let before = self.picture();
        let catalogue: Catalogue = self.manager.model().catalogue.clone();
        let Self { manager, story } = self;
        manager.shut_down().expect("it ends in good order");
        // This also closes the files that the manager has open.
        drop(manager);
        let again = Self::new();
        let restore = |manager: &Manager| {
            let restored = manager.restore(&catalogue);
            restored.unwrap_or_else(|error| panic!("it does not come back: {error}\n{}", story));
        };
        restore(&again.manager);
        again.manager.start_all().expect("nothing was left for the start");
        restore(&again.manager);
        assert_eq!(before, again.picture(), "it came back as another:\n{}", story);
        again.manager.shut_down().expect("it ends in good order");
    }
}

/// The member `params` of a request, or nothing.
fn parameters(choices: &mut Choices<'_>, method: &Method) -> String {
    // Mostly calls that could succeed: the decoder refuses others early.
    let wild = choices.once_in(8);
    parameters_of(choices, method, wild)
}

/// The same; with `wild` they may have any kind and name.
pub(crate) fn parameters_of(choices: &mut Choices<'_>, method: &Method, wild: bool) -> String {
    let known = schema().method(method.name);
    let kind = |name: &str| known.and_then(|known| known.parameter(name)).map(|known| known.kind);
    let is_required = |name: &str| {
        known.and_then(|known| known.parameter(name)).is_some_and(|known| known.required)
    };
    let mut members = Vec::new();
    for name in method.parameters {
        let wanted =
            if is_required(name) { !(wild && choices.once_in(4)) } else { choices.once_in(4) };
        if wanted {
            let value = value(choices, name, kind(name), wild);
            members.push(format!("{}:{value}", Value::from(*name)));
        }
    }
    if wild && choices.once_in(4) {
        let name = choices.one_of(&["", "nqn", "name", "unknown", "tgt_name", "\u{0}"]);
        members.push(format!("{}:{}", Value::from(name), anything(choices, MAX_LEVELS)));
    }
    match (members.is_empty(), wild) {
        (true, false) => String::new(),
        (true, true) => format!(r#","params":{}"#, anything(choices, MAX_LEVELS)),
        (false, _) => format!(r#","params":{{{}}}"#, members.join(",")),
    }
}

/// Any JSON.
fn anything(choices: &mut Choices<'_>, levels: u32) -> String {
    match choices.byte() % 8 {
        0 => "null".to_owned(),
        1 => "{}".to_owned(),
        2 if levels > 0 => format!("[{}]", anything(choices, levels - 1)),
        3 if levels > 0 => {
            let name = choices.one_of(&["traddr", "bdev_name", "nsid", "x", "trsvcid"]);
            format!("{{{}:{}}}", Value::from(name), anything(choices, levels - 1))
        }
        4 => "true".to_owned(),
        5 => number(choices).to_owned(),
        _ => text(choices, ""),
    }
}

fn number(choices: &mut Choices<'_>) -> &'static str {
    choices.one_of(&[
        "1",
        "0",
        "2",
        "8",
        "64",
        "512",
        "4096",
        "2048",
        "-1",
        "255",
        "256",
        "65535",
        "65536",
        "2147483647",
        "4294967295",
        "4294967296",
        "1099511627776",
        "9007199254740993",
        "9223372036854775807",
        "18446744073709551615",
        "18446744073709551616",
        "1.5",
        "1e3",
        "1e999",
    ])
}

/// A text that fits a parameter of this name, or one that does not.
fn text(choices: &mut Choices<'_>, name: &str) -> String {
    let place = &*PLACE;
    if choices.once_in(16) {
        let long = "n".repeat(300);
        let odd =
            ["", " ", "\u{0}", "../../x", "%s%n", "a\"b\\c\n", "ä\u{202e}\u{1f980}", long.as_str()];
        return Value::from(choices.one_of(&odd)).to_string();
    }
    let (file, folder) = (place.file.to_string_lossy(), place.folder.to_string_lossy());
    let is = |part: &str| name.contains(part);
    let fitting: &[&str] = match name {
        "trtype" => &["TCP", "tcp", "RDMA", "PCIe"],
        "adrfam" => &["IPv4", "ipv4", "IPv6", "IB"],
        "traddr" => &[&place.address, &place.address, "::1", "0.0.0.0", "256.1.1.1", "localhost"],
        // No port that another process may use: 0 is any free port.
        "trsvcid" => &["0", "4420", "4421", "1", "65536", "-1", "http"],
        "cpumask" | "poll_groups_mask" | "isolated_core_mask" => {
            &["0x1", "[0]", "0x0", "[1-0]", "0xfffffffffffffffff"]
        }
        "filename" => &[&file, &folder, "/nonexistent/disk", "/dev/null"],
        "sig_name" => &["SIGNOTHING", "99", "0"],
        "impl_name" | "sock_impl" => &["posix", "uring", "ssl", "none"],
        "opname" => &["copy", "crc32c", "fill", "encrypt"],
        "opcode" => &["crc32c", "copy", "all"],
        "module" => &["software", "dsa", "dsa_emulated"],
        "level" => &["ERROR", "NOTICE", "DEBUG", "nothing"],
        "flag" => &["nvmf", "all", "nothing"],
        "subnqn" | "nqn" => &[
            "nqn.2026-01.io.raceline:a",
            "nqn.2026-01.io.raceline:b",
            "nqn.2014-08.org.nvmexpress.discovery",
            "nqn",
        ],
        "host" | "hostnqn" | "managers" => {
            &["nqn.2014-08.org.example:h1", "nqn.2014-08.org.example:h2", "any"]
        }
        "tgt_name" => &["nvmf_tgt", "nvmf_tgt", "other", "none"],
        "uuid" => &[
            "11111111-2222-4333-8444-555555555555",
            "00000000-0000-0000-0000-000000000000",
            "1111",
            "22222222-2222-4333-8444-555555555555",
        ],
        "nguid" => &["11111111222243338444555555555555", "1111"],
        "eui64" => &["1111111122224333", "x"],
        "serial_number" => &["SN1", "123456789012345678901"],
        _ if is("bdev") || is("name") || is("base") => {
            &["m0", "m1", "m2", "m0p0", "m0p1", "EE_m0", "d0", "other", "bdev", "nvmf", "nvmf_tgt"]
        }
        _ => &["a", "1", "true", "m0"],
    };
    // Mostly the first two, so that calls meet the same objects.
    let usual = &fitting[..fitting.len().min(2)];
    let text = if choices.once_in(3) { choices.one_of(fitting) } else { choices.one_of(usual) };
    Value::from(text).to_string()
}

/// A value for a parameter: of its kind, or with `wild` of any kind.
fn value(choices: &mut Choices<'_>, name: &str, kind: Option<Kind>, wild: bool) -> String {
    // Thousands of devices, which are checked after each call, take longer than an input may.
    if name == "split_count" {
        return choices.one_of(&["1", "2", "3", "8", "0", "-1", "4294967295"]).to_owned();
    }
    if wild && choices.once_in(3) {
        return anything(choices, MAX_LEVELS);
    }
    // The signal would end this process.
    if name == "sig_name" {
        return text(choices, name);
    }
    // These parameters make a call wait.
    if name.contains("timeout") {
        return choices.one_of(&["0", "1", "-1", "\"1\""]).to_owned();
    }
    // Creating a device fills its memory: little of it, or more than there is.
    if name == "num_blocks" {
        return choices
            .one_of(&["64", "2048", "1", "0", "9223372036854775807", "18446744073709551615"])
            .to_owned();
    }
    match kind {
        Some(Kind::Boolean) => choices.one_of(&["true", "false"]).to_owned(),
        Some(Kind::Unsigned(_) | Kind::Signed(_)) => match name {
            "block_size" => choices.one_of(&["512", "4096", "0", "520", "1"]).to_owned(),
            "nsid" => choices.one_of(&["1", "2", "0", "32", "4294967295"]).to_owned(),
            _ => number(choices).to_owned(),
        },
        Some(Kind::Enum(words)) => {
            let words = schema().words(words).unwrap_or(&["none"]);
            Value::from(choices.one_of(words)).to_string()
        }
        Some(Kind::Bitmask(_) | Kind::Array(_)) => format!("[{}]", text(choices, name)),
        Some(Kind::Object(object)) => {
            let fields = schema().object(object).unwrap_or(&[]);
            let mut members = Vec::new();
            for field in fields {
                if field.required || choices.once_in(3) {
                    let value = value(choices, field.name, Some(field.kind), wild);
                    members.push(format!("\"{}\":{value}", field.name));
                }
            }
            format!("{{{}}}", members.join(","))
        }
        Some(Kind::Text | Kind::Uuid) => text(choices, name),
        None if choices.once_in(2) => text(choices, name),
        None => anything(choices, MAX_LEVELS),
    }
}
