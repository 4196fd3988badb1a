//! Configurations from random bytes and from random decisions, and what must hold of each.
//!
//! Comments change nothing; a refused configuration has made nothing; an accepted one is saved and loaded as
//! the same. Only calls that stay within this process are made.

use std::path::Path;
use std::sync::Arc;

use raceline_control::absent;
use raceline_control::configuration::{blank_comments, parse};
use raceline_control::daemon::load;
use raceline_control::manager::{Manager, ManagerConfig};
use raceline_control::reconcile::Contents;
use raceline_control::role::Peer;
use raceline_control::schema::schema;
use raceline_control::state::{Call, SubsystemConfig};
use serde_json::{Value, json};

use crate::daemon::{Choices, REGISTRY, parameters_of};

/// Calls in a generated configuration.
const MAX_CALLS: usize = 24;
/// The largest device in bytes, because creating a device fills its memory.
const MAX_DEVICE_BYTES: u64 = 1 << 21;

/// Methods that are called: they open no file, no socket and no connection, end no process and wait for nothing.
const CALLED: [&str; 19] = [
    "bdev_malloc_create",
    "bdev_null_create",
    "bdev_passthru_create",
    "bdev_delay_create",
    "bdev_error_create",
    "bdev_wait_for_examine",
    "bdev_set_options",
    "bdev_nvme_set_options",
    "sock_impl_set_options",
    "sock_set_default_impl",
    "iobuf_set_options",
    "accel_set_options",
    "framework_set_scheduler",
    "scheduler_set_options",
    "nvmf_set_config",
    "nvmf_set_crdt",
    "nvmf_create_subsystem",
    "nvmf_subsystem_add_ns",
    "nvmf_subsystem_add_host",
];

/// Calls that succeed in some order.
const GOOD: [(&str, &str); 20] = [
    ("bdev_malloc_create", r#"{"name":"m0","num_blocks":64,"block_size":512}"#),
    ("bdev_null_create", r#"{"name":"m1","num_blocks":64,"block_size":4096}"#),
    ("construct_null_bdev", r#"{"name":"m2","num_blocks":8,"block_size":512}"#),
    ("bdev_passthru_create", r#"{"name":"p0","base_bdev_name":"m0"}"#),
    ("bdev_error_create", r#"{"base_name":"m1"}"#),
    ("bdev_wait_for_examine", ""),
    ("bdev_set_options", r#"{"bdev_io_pool_size":65535,"bdev_io_cache_size":256}"#),
    ("bdev_nvme_set_options", r#"{"action_on_timeout":"none","transport_retry_count":4}"#),
    ("sock_set_default_impl", r#"{"impl_name":"posix"}"#),
    ("accel_set_options", r#"{"task_count":2048}"#),
    ("framework_set_scheduler", r#"{"name":"dynamic","load_limit":20,"core_limit":80}"#),
    ("scheduler_set_options", r#"{"isolated_core_mask":"0x2"}"#),
    ("nvmf_set_crdt", r#"{"crdt1":1}"#),
    ("nvmf_create_subsystem", r#"{"nqn":"nqn.2026-01.io.raceline:a","allow_any_host":true}"#),
    (
        "nvmf_subsystem_add_ns",
        r#"{"nqn":"nqn.2026-01.io.raceline:a","namespace":{"bdev_name":"m1"}}"#,
    ),
    (
        "nvmf_subsystem_add_host",
        r#"{"nqn":"nqn.2026-01.io.raceline:a","host":"nqn.2014-08.org.example:h"}"#,
    ),
    ("set_iscsi_options", r#"{"max_sessions":16,"node_base":"iqn.2026-01.org.example"}"#),
    ("vmd_enable", "{}"),
    ("ioat_scan_accel_module", ""),
    ("fsdev_set_opts", r#"{"fsdev_io_pool_size":65535,"fsdev_io_cache_size":256}"#),
];

/// The outcome of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// It is not a configuration.
    NoConfiguration,
    /// It has calls that cannot be made here, so none was made.
    Refused,
    /// One of its calls is not run here.
    NotRun,
    /// A call has failed.
    Failed,
    /// It has been made, saved and made again.
    Accepted,
}

/// One input.
pub fn run(data: &[u8]) -> Outcome {
    let Some((first, rest)) = data.split_first() else { return Outcome::NoConfiguration };
    if first % 2 == 0 {
        return try_text(rest);
    }
    let mut choices = Choices(rest);
    let tokens = tokens(&mut choices);
    let (mut with, mut without) = (String::new(), String::new());
    for token in &tokens {
        let (comment, blank) = gap(&mut choices);
        with.push_str(comment);
        without.push_str(blank);
        with.push_str(token);
        without.push_str(token);
    }
    let end = cut(&mut choices, &with);
    if end == with.len() {
        let (with, without) = (parse(with.as_bytes()), parse(without.as_bytes()));
        assert_eq!(with.ok(), without.ok(), "comments change what is read");
    }
    try_text(&with.as_bytes()[..end])
}

/// Reads a text, and makes the configuration if its calls are harmless.
pub fn try_text(text: &[u8]) -> Outcome {
    let parsed = parse(text);
    if let Ok(blanked) = blank_comments(text) {
        assert_eq!(blanked.len(), text.len(), "every byte stays where it is");
        let ends = |text: &[u8]| {
            let places = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
            places.map(|(place, _)| place).collect::<Vec<_>>()
        };
        assert_eq!(ends(&blanked), ends(text), "every line stays where it is");
        assert_eq!(blank_comments(&blanked).as_deref(), Ok(&*blanked), "no comment is left");
        let again = parse(&blanked);
        assert_eq!(again.as_ref().ok(), parsed.as_ref().ok(), "comments change what is read");
    }
    if let Ok(contents) = Contents::parse(text) {
        assert!(contents.differences(&contents).is_empty(), "it differs from itself");
        assert!(contents.plan(&contents).is_empty(), "there is nothing to do");
    }
    let Ok(sections) = parsed else { return Outcome::NoConfiguration };
    make(&sections)
}

/// Makes it, saves it, and makes what was saved.
fn make(sections: &[SubsystemConfig]) -> Outcome {
    let calls = || sections.iter().flat_map(|section| &section.config);
    // A call that the daemon refuses is not made, so it need not be harmless.
    let is_known = |call: &Call| REGISTRY.get(&call.method).is_some();
    if calls().all(is_known) && !calls().all(is_harmless) {
        return Outcome::NotRun;
    }
    let manager = manager();
    let failed = begin(&manager, sections).err();
    let outcome = match &failed {
        Some(error) if error.contains("nothing was made") => {
            let model = manager.model();
            let is_empty = model.catalogue.is_empty() && model.bdevs.iter().next().is_none();
            assert!(is_empty, "it is refused, and has made something: {error}");
            Outcome::Refused
        }
        Some(_) => Outcome::Failed,
        None => {
            let saved = save(&manager);
            assert!(calls().all(is_known), "a method that is not here was taken");
            let again = self::manager();
            let text = saved.to_string();
            let sections = parse(text.as_bytes()).expect("what is saved is a configuration");
            begin(&again, &sections)
                .unwrap_or_else(|error| panic!("what is saved is not taken: {error}\n{text}"));
            assert_eq!(save(&again), saved, "what is saved makes something else");
            again.shut_down().expect("it ends in good order");
            Outcome::Accepted
        }
    };
    manager.shut_down().expect("it ends in good order");
    outcome
}

/// Whether a call stays within this process and ends soon.
fn is_harmless(call: &Call) -> bool {
    let Some(method) = REGISTRY.get(&call.method) else { return false };
    let number = |name: &str| {
        let value = call.params.as_ref().and_then(|params| params.get(name));
        value.and_then(Value::as_u64).unwrap_or(0)
    };
    let bytes = number("num_blocks").checked_mul(number("block_size"));
    let is_small = bytes.is_some_and(|bytes| bytes <= MAX_DEVICE_BYTES);
    match method.name {
        "bdev_malloc_create" | "bdev_null_create" => is_small,
        name => method.effect.is_none() || CALLED.contains(&name),
    }
}

fn manager() -> Arc<Manager> {
    let manager = Arc::new(Manager::new(ManagerConfig::default(), REGISTRY.clone()));
    manager.share();
    manager
}

/// Starts as a daemon does that reads a file.
fn begin(manager: &Arc<Manager>, sections: &[SubsystemConfig]) -> Result<(), String> {
    let from = Path::new("config.json");
    load(manager, &REGISTRY, from, sections).map_err(|error| error.to_string())?;
    let sections = sections.to_vec();
    manager.at_start(Box::new(move |manager| {
        load(manager, &REGISTRY, from, &sections).map_err(|error| error.to_string())
    }));
    manager.start_all()
}

/// The configuration that a client would save.
fn save(manager: &Manager) -> Value {
    let call = |method: &str, params: Option<Value>| {
        let raw = params.map(|params| serde_json::value::to_raw_value(&params).expect("JSON"));
        let result = REGISTRY.call(manager, Peer::this_process(), method, raw.as_deref());
        result.unwrap_or_else(|error| panic!("{method}: {error}"))
    };
    let listed = call("framework_get_subsystems", None);
    let part = |section: &Value| {
        let name = &section["subsystem"];
        json!({ "subsystem": name, "config": call("framework_get_config", Some(json!({ "name": name }))) })
    };
    let listed = listed.as_array().map(Vec::as_slice).unwrap_or_default();
    json!({ "subsystems": listed.iter().map(part).collect::<Vec<_>>() })
}

/// The text between two tokens: with a comment, and the same without one.
fn gap(choices: &mut Choices<'_>) -> (&'static str, &'static str) {
    match choices.byte() % 12 {
        0 => ("/**/", " "),
        1 => ("// {\"\n", "\n"),
        2 => ("/* \" // \n */", "\n"),
        3 => ("//\r", "\r"),
        4 => ("/*/ */", " "),
        5 => ("\t", "\t"),
        _ => ("", ""),
    }
}

/// Where the text is cut: mostly at its end.
fn cut(choices: &mut Choices<'_>, text: &str) -> usize {
    if !choices.once_in(8) {
        return text.len();
    }
    let place = choices.byte() << 8 | choices.byte();
    text.floor_char_boundary(place % (text.len() + 1))
}

/// A configuration in tokens, between which comments may stand.
fn tokens(choices: &mut Choices<'_>) -> Vec<String> {
    let mut all: Vec<String> = ["{", "\"subsystems\"", ":", "["].map(str::to_owned).to_vec();
    // Mostly a configuration that could be accepted: few and valid calls.
    let is_tame = !choices.once_in(4);
    let mut left = if is_tame { 1 + choices.byte() % 8 } else { MAX_CALLS };
    let mut is_first = true;
    while !choices.0.is_empty() && left > 0 {
        if !std::mem::replace(&mut is_first, false) {
            all.push(",".to_owned());
        }
        let section =
            choices.one_of(&["bdev", "nvmf", "iscsi", "accel", "scheduler", "vhost_blk", "x"]);
        all.extend(["{", "\"subsystem\"", ":"].map(str::to_owned));
        all.push(Value::from(section).to_string());
        all.extend([",", "\"config\"", ":"].map(str::to_owned));
        if choices.once_in(8) {
            all.push("null".to_owned());
        } else {
            calls(choices, &mut all, &mut left, is_tame, true);
        }
        all.push("}".to_owned());
    }
    all.extend(["]", "}"].map(str::to_owned));
    all
}

/// A list of calls, among which may be batches.
fn calls(
    choices: &mut Choices<'_>,
    all: &mut Vec<String>,
    left: &mut usize,
    is_tame: bool,
    may_batch: bool,
) {
    all.push("[".to_owned());
    let mut is_first = true;
    while !choices.once_in(4) && !choices.0.is_empty() && *left > 0 {
        *left -= 1;
        if !std::mem::replace(&mut is_first, false) {
            all.push(",".to_owned());
        }
        if may_batch && choices.once_in(8) {
            calls(choices, all, left, is_tame, false);
            continue;
        }
        let (method, params) = call(choices, is_tame);
        all.extend(["{", "\"method\"", ":"].map(str::to_owned));
        all.push(Value::from(method).to_string());
        if !params.is_empty() {
            all.extend([",", "\"params\"", ":"].map(str::to_owned));
            all.push(params);
        }
        all.push("}".to_owned());
    }
    all.push("]".to_owned());
}

/// A method and the text of its parameters.
fn call(choices: &mut Choices<'_>, is_tame: bool) -> (&'static str, String) {
    if is_tame && !choices.once_in(8) {
        let (method, params) = GOOD[choices.byte() % GOOD.len()];
        return (method, params.to_owned());
    }
    let method = if is_tame { choices.one_of(&CALLED) } else { method(choices) };
    let Some(known) = REGISTRY.get(method) else { return (method, String::new()) };
    let wild = !is_tame && choices.once_in(8);
    let params = parameters_of(choices, known, wild);
    (method, params.strip_prefix(r#","params":"#).unwrap_or_default().to_owned())
}

/// A method: mostly one that is run here, sometimes one of an absent part, by its new or an old name.
fn method(choices: &mut Choices<'_>) -> &'static str {
    let absent = absent::methods();
    match choices.byte() % 16 {
        0 => absent[choices.byte() % absent.len()].method,
        1 => schema().methods()[choices.byte() % schema().methods().len()].name,
        2 => choices.one_of(&[
            "construct_malloc_bdev",
            "set_iscsi_options",
            "ioat_scan_copy_engine",
            "construct_lvol_store",
            "get_bdevs",
            "no_method",
        ]),
        3..7 => {
            let kept: Vec<&str> = absent
                .iter()
                .filter(|absent| absent.does == absent::Does::Sets)
                .map(|absent| absent.method)
                .collect();
            kept[choices.byte() % kept.len()]
        }
        _ => choices.one_of(&CALLED),
    }
}
