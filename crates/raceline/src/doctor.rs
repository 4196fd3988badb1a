//! `raceline doctor`: whether this machine is fit for a measurement, and what changes that.

use raceline_environment::check::{Check, Role, Severity};
use raceline_environment::measure::Costs;
use raceline_environment::{Environment, System, check};
use serde_json::json;

use crate::cli::doctor::DoctorArgs;
use crate::cli::values::OutputFormat;
use crate::failure::{Failure, code};
use crate::shell;
use crate::table::printable;

/// The widest line of the table. Commands are never broken.
const WIDTH: usize = 100;
/// Where titles, values, and explanations begin.
const TITLE_AT: usize = 11;
const VALUE_AT: usize = 43;

/// Reads, checks and prints. It fails if there is something to warn of, so that scripts see it.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Failure> {
    let system = System::here();
    let environment = Environment::read_of(&system, args.interface.as_deref());
    if let (Some(_), Some(reason)) = (&args.interface, environment.interface.reason()) {
        return Err(Failure::usage(reason));
    }
    let costs = args.measure.then(Costs::measure);
    let role = args.role.map(Role::from);
    let checks = check(&environment, role, costs.as_ref());
    match args.output {
        OutputFormat::Table => {
            let mut text = String::new();
            if let Some(note) = note(&system) {
                text.push_str(&format!("{note}\n\n"));
            }
            text.push_str(&table(&checks));
            shell::print(text.as_bytes())?;
        }
        OutputFormat::Json => {
            let document = json!({
                "severity": worst(&checks),
                "role": role,
                "checks": checks,
                "costs": costs,
                "environment": environment,
            });
            shell::print(format!("{document:#}\n").as_bytes())?;
        }
    }
    verdict(&checks)
}

/// What keeps most values from being read, if something does.
fn note(system: &System) -> Option<String> {
    let known = [("/proc", "/proc/self"), ("/sys", "/sys/class")];
    let (folder, _) = known.into_iter().find(|(_, inside)| !system.has(inside))?;
    Some(format!(
        "{folder} is not mounted here, so most values cannot be read. Containers can be started with it; \
         otherwise run raceline doctor on the system around the container."
    ))
}

fn worst(checks: &[Check]) -> Severity {
    checks.iter().map(|check| check.severity).max().unwrap_or(Severity::Ok)
}

fn verdict(checks: &[Check]) -> Result<(), Failure> {
    let count = |severity| checks.iter().filter(|check| check.severity == severity).count();
    let (failures, warnings) = (count(Severity::Fail), count(Severity::Warning));
    let number = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    match (failures, warnings) {
        (0, 0) => Ok(()),
        (0, _) => Err(Failure {
            code: code::RUNTIME,
            message: format!("{}; results depend on what they say", number(warnings, "warning")),
        }),
        _ => Err(Failure {
            code: code::USAGE,
            message: format!(
                "{} and {}; results are not valid before the failures are gone",
                number(failures, "failure"),
                number(warnings, "warning")
            ),
        }),
    }
}

/// The checks by area. Only what is wrong has its reason and its commands.
fn table(checks: &[Check]) -> String {
    let mut text = String::new();
    let mut area = None;
    for check in checks {
        if area != Some(check.area) {
            if area.is_some() {
                text.push('\n');
            }
            text.push_str(&format!("{}\n", check.area));
            area = Some(check.area);
        }
        let lead = format!("  {:<8} {:<30}  ", check.severity, check.title);
        text.push_str(&wrapped(&lead, VALUE_AT, &check.value));
        if let Some(cost) = &check.cost {
            text.push_str(&wrapped(
                &" ".repeat(VALUE_AT),
                VALUE_AT,
                &format!("measured here: {cost}"),
            ));
        }
        if check.severity >= Severity::Warning {
            text.push_str(&wrapped(&" ".repeat(TITLE_AT), TITLE_AT, check.why));
            for command in &check.fix {
                text.push_str(&format!("{}  {}\n", " ".repeat(TITLE_AT), printable(command)));
            }
        }
    }
    text
}

/// A text behind a lead, broken into lines that begin at a column.
fn wrapped(lead: &str, column: usize, text: &str) -> String {
    let mut out = lead.to_owned();
    let mut at = lead.chars().count();
    let mut begins = true;
    for word in printable(text).split_whitespace() {
        let length = word.chars().count();
        if !begins && at + 1 + length > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(column));
            at = column;
            begins = true;
        }
        if !begins {
            out.push(' ');
            at += 1;
        }
        out.push_str(word);
        at += length;
        begins = false;
    }
    format!("{}\n", out.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_broken_and_stay_in_their_column() {
        let lead = format!("{:<11}", "info");
        let text = wrapped(&lead, TITLE_AT, &"word ".repeat(40));
        assert!(text.lines().count() > 1, "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("           word")), "{text}");
        assert_eq!(wrapped("a ", 2, ""), "a\n");
    }

    #[test]
    fn a_system_without_its_file_systems_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let system = System::recorded(folder.path());
        assert!(note(&system).unwrap().starts_with("/proc is not mounted here"));
        std::fs::create_dir_all(folder.path().join("proc/self")).unwrap();
        assert!(note(&system).unwrap().starts_with("/sys is not mounted here"));
        std::fs::create_dir_all(folder.path().join("sys/class")).unwrap();
        assert_eq!(note(&system), None);
        // Nothing can be read, and that is no failure and no panic.
        let folder = tempfile::tempdir().unwrap();
        let environment = Environment::read_of(&System::recorded(folder.path()), None);
        let checks = check(&environment, None, None);
        assert_eq!(worst(&checks), Severity::Info, "{}", table(&checks));
        assert_eq!(verdict(&checks), Ok(()));
    }
}
