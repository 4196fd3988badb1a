//! `raceline config log` and `undo`: what has been changed, and the way back.

use std::collections::BTreeSet;

use raceline_control::reconcile::{Contents, Step};
use raceline_control::state::Call;
use serde_json::{Value, json};

use super::super::{Daemon, elements, names, text};
use super::{agreed, apply, running};
use crate::failure::Failure;
use crate::shell;
use crate::table::{Table, printable};

/// The most characters of parameters that a row shows.
const PARAMS_WIDTH: usize = 60;

/// Lists the last changes.
pub(super) fn log(daemon: &mut Daemon, last: usize) -> Result<(), Failure> {
    let changes = daemon.list("raceline_get_changes", json!({ "last": last }))?;
    daemon.print(&changes, || {
        let mut table = Table::new(&["NUMBER", "TIME", "BY", "CALL", "EFFECT"]);
        for change in &changes {
            let caller = &change["caller"];
            let by = match caller["via"].as_str() {
                Some("socket") => format!("user {}, process {}", caller["uid"], caller["pid"]),
                Some(via) => via.to_owned(),
                None => "the daemon itself".to_owned(),
            };
            let params = text(&caller["params"]);
            let end = params.char_indices().nth(PARAMS_WIDTH).map(|(at, _)| at);
            let params = end.map_or(params.clone(), |end| format!("{}...", &params[..end]));
            let effects: Vec<String> = elements(change, "effects").iter().map(text).collect();
            let number = text(&change["number"]);
            let time = utc(change["time"].as_u64().unwrap_or(0));
            let call = format!("{} {params}", text(&caller["method"]));
            table.row([number, time, by, call.trim().to_owned(), effects.join("; ")]);
        }
        table
    })
}

/// How an undo goes on when it knows its calls.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    /// Print the calls and make none.
    pub(super) dry_run: bool,
    /// Do not ask.
    pub(super) yes: bool,
}

/// Goes back to before a change. It asks first where that takes back more than one change, or where somebody is connected to what
/// it changes.
pub(super) fn undo(
    daemon: &mut Daemon,
    number: Option<u64>,
    manner: Manner,
) -> Result<(), Failure> {
    let before = daemon.call("raceline_get_config_before", json!({ "number": number }))?;
    let wanted = Contents::parse(before.to_string().as_bytes())
        .map_err(|error| Failure::runtime(format!("what the daemon says of its past: {error}")))?;
    let is = running(daemon)?;
    let steps = is.plan(&wanted);
    let calls = steps.iter().map(|step| json!(step.call).to_string());
    if manner.dry_run {
        let lines: String = calls.map(|call| call + "\n").collect();
        return shell::print(lines.as_bytes());
    }
    let first = before["number"].as_u64().unwrap_or(0);
    shell::note(&format!("back to before change {first}"));
    calls.for_each(|call| shell::note(&printable(&call)));
    let changes = daemon.list("raceline_get_changes", Value::Null)?;
    let count = changes.iter().filter(|one| one["number"].as_u64() >= Some(first)).count();
    let concerned = concerned(daemon, &steps)?;
    if (count > 1 && !steps.is_empty() || !concerned.is_empty()) && !manner.yes {
        let what = match count {
            1 => "1 change".to_owned(),
            count => format!("{count} changes"),
        };
        let whom = match concerned.is_empty() {
            true => String::new(),
            false => format!(" ({})", concerned.join("; ")),
        };
        let question = format!("Undo {what}{whom}? [y/N] ");
        if !agreed(&question, &format!("undo would take back {what}{whom}"))? {
            return Err(Failure::runtime("nothing was undone"));
        }
    }
    apply(daemon, &is, &wanted)
}

/// The most hosts of a subsystem that a question names.
const NAMED_HOSTS: usize = 3;
/// Calls that take a disk away from programs of this machine or from guests.
const DISKS: [&str; 4] =
    ["vhost_delete_controller", "ublk_stop_disk", "ublk_destroy_target", "nbd_stop_disk"];
/// Calls that take away all devices whose names begin with the name that they have.
const WITH_PARTS: [&str; 2] = ["bdev_nvme_detach_controller", "bdev_split_delete"];

/// Who is connected to what these calls change, each with what it is connected to.
fn concerned(daemon: &mut Daemon, steps: &[Step]) -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for subsystem in daemon.subsystems(None)? {
        if !steps.iter().any(|step| touches(&step.call, &subsystem)) {
            continue;
        }
        let nqn = &subsystem["nqn"];
        let controllers = daemon.list("nvmf_subsystem_get_controllers", json!({ "nqn": nqn }))?;
        let hosts = names(&controllers, "hostnqn").into_iter().collect::<BTreeSet<_>>();
        if let Some(hosts) = few(&hosts) {
            all.push(format!("connected to {}: {hosts}", text(nqn)));
        }
    }
    if steps.iter().any(|step| step.call.method.starts_with("iscsi_")) {
        let connections = daemon.list("iscsi_get_connections", Value::Null).unwrap_or_default();
        let initiators = names(&connections, "initiator_addr").into_iter().collect();
        all.extend(few(&initiators).map(|hosts| format!("connected by iSCSI: {hosts}")));
    }
    let disks = steps.iter().filter(|step| DISKS.contains(&step.call.method.as_str()));
    all.extend(disks.map(|step| format!("a disk goes: {}", json!(step.call))));
    Ok(all.iter().map(|one| printable(one)).collect())
}

/// Some names, and how many more there are; `None`: no name.
fn few(names: &BTreeSet<String>) -> Option<String> {
    let shown: Vec<&str> = names.iter().take(NAMED_HOSTS).map(String::as_str).collect();
    let more = names.len().saturating_sub(NAMED_HOSTS);
    let shown = shown.join(", ");
    match (names.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(shown),
        (false, more) => Some(format!("{shown} and {more} more")),
    }
}

/// Whether a call is about a subsystem, or about a device of its namespaces.
fn touches(call: &Call, subsystem: &Value) -> bool {
    let mut words = Vec::new();
    collect_words(call.params.as_ref().unwrap_or(&Value::Null), &mut words);
    let is_whole = !WITH_PARTS.contains(&call.method.as_str());
    words.iter().any(|word| {
        let is_device = |namespace: &Value| {
            let name = namespace["bdev_name"].as_str().unwrap_or_default();
            name == *word || namespace["uuid"] == **word || (!is_whole && name.starts_with(word))
        };
        subsystem["nqn"] == **word || elements(subsystem, "namespaces").iter().any(is_device)
    })
}

/// The texts of a value, but for the names of its members.
fn collect_words<'a>(value: &'a Value, words: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => words.push(text),
        Value::Array(values) => values.iter().for_each(|value| collect_words(value, words)),
        Value::Object(members) => members.values().for_each(|value| collect_words(value, words)),
        _ => {}
    }
}

/// Seconds since 1970 as `2026-11-28 08:00:00Z`.
fn utc(time_s: u64) -> String {
    let (days, second) = (time_s / 86_400, time_s % 86_400);
    // Years begin in March here, so that a leap day is the last day; 400 of them have 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = era * 400 + year + next;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_about_the_subsystems_that_it_names_or_whose_devices_it_takes() {
        let subsystem = json!({
            "nqn": "nqn.a",
            "namespaces": [{ "bdev_name": "Nvme1n1", "uuid": "u1" }, { "bdev_name": "m0" }],
        });
        for (method, params, expected) in [
            ("nvmf_subsystem_allow_any_host", json!({ "nqn": "nqn.a" }), true),
            ("nvmf_subsystem_allow_any_host", json!({ "nqn": "nqn.b" }), false),
            ("bdev_malloc_delete", json!({ "name": "m0" }), true),
            ("bdev_malloc_delete", json!({ "name": "m" }), false),
            ("bdev_malloc_delete", json!({ "name": "u1" }), true),
            ("bdev_nvme_detach_controller", json!({ "name": "Nvme1" }), true),
            ("bdev_nvme_detach_controller", json!({ "name": "Nvme2" }), false),
            ("some_call", json!({ "list": [{ "deep": "nqn.a" }] }), true),
            ("some_call", json!({ "nqn.a": 1 }), false),
        ] {
            let call = Call { method: method.to_owned(), params: Some(params.clone()) };
            assert_eq!(touches(&call, &subsystem), expected, "{method} {params}");
        }
    }

    #[test]
    fn many_names_are_counted() {
        let some = |count: usize| (0..count).map(|number| format!("h{number}")).collect();
        assert_eq!(few(&some(0)), None);
        assert_eq!(few(&some(2)).unwrap(), "h0, h1");
        assert_eq!(few(&some(5)).unwrap(), "h0, h1, h2 and 2 more");
    }

    #[test]
    fn times_are_dates() {
        for (time_s, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (951_868_799, "2000-02-29 23:59:59Z"),
            (1_767_225_599, "2025-12-31 23:59:59Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
        ] {
            assert_eq!(utc(time_s), text);
        }
    }
}
