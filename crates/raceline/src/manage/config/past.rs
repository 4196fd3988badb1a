//! `raceline config log` and `undo`: what has been changed, and the way back.

use raceline_control::reconcile::Contents;
use serde_json::{Value, json};

use super::super::{Daemon, elements, text};
use super::{apply, running};
use crate::failure::Failure;
use crate::shell;
use crate::table::Table;

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

/// Goes back to before a change.
pub(super) fn undo(daemon: &mut Daemon, number: Option<u64>, dry_run: bool) -> Result<(), Failure> {
    let before = daemon.call("raceline_get_config_before", json!({ "number": number }))?;
    let wanted = Contents::parse(before.to_string().as_bytes())
        .map_err(|error| Failure::runtime(format!("what the daemon says of its past: {error}")))?;
    let is = running(daemon)?;
    if dry_run {
        let steps = is.plan(&wanted);
        let lines: String = steps.iter().map(|step| json!(step.call).to_string() + "\n").collect();
        return shell::print(lines.as_bytes());
    }
    shell::note(&format!("back to before change {}", Value::clone(&before["number"])));
    apply(daemon, &is, &wanted)
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
    use super::utc;

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
