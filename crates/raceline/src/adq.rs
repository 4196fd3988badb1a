//! `raceline adq`: queues of a network device for one application.

use std::io::{self, BufRead as _};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use raceline_adq::apply::apply;
use raceline_adq::error::Error;
use raceline_adq::facts::{Facts, read};
use raceline_adq::guard;
use raceline_adq::journal::{Disk, Store as _};
use raceline_adq::machine::Live;
use raceline_adq::plan::{Plan, Request, commands, plan, render};
use raceline_adq::revert::{Fate, Reverted, revert};
use raceline_adq::setting::ABSENT;
use raceline_adq::show::{Condition, Shown, show};
use serde_json::{Value, json};

use crate::cli::adq::{Action, AdqArgs, ApplyArgs, PlanArgs, RecipeArgs, RevertArgs, ShowArgs};
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::shell;
use crate::signals::Interrupt;
use crate::table::{Table, printable};

/// How long another `raceline adq`, or a program that a killed one has left, may still have the lock.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// How often the wait for a confirmation looks for a signal.
const LOOK: Duration = Duration::from_millis(100);

/// Does what was asked for.
pub(crate) fn run(args: &AdqArgs) -> Result<(), Failure> {
    match &args.action {
        Action::Plan(args) => run_plan(args),
        Action::Apply(args) => run_apply(args),
        Action::Show(args) => run_show(args),
        Action::Revert(args) => run_revert(args),
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::BadName(_) | Error::NoInterface { .. } | Error::Request(_) => Failure::usage(error),
        other => Failure::runtime(other),
    }
}

fn request(args: &RecipeArgs) -> Request {
    Request {
        listeners: args.listeners.clone(),
        role: args.role.into(),
        queues: args.queues,
        profile: args.profile.into(),
    }
}

/// The port at which this session came in must stay reachable.
fn ssh() -> Option<String> {
    std::env::var("SSH_CONNECTION").ok()
}

fn run_plan(args: &PlanArgs) -> Result<(), Failure> {
    let facts = match &args.facts {
        None => read::read(&Live::default(), &args.recipe.interface).map_err(failure)?,
        Some(path) => {
            let wrong = |error: &dyn std::fmt::Display| {
                Failure::usage(format!("--facts {}: {error}", path.display()))
            };
            let text = std::fs::read(path).map_err(|error| wrong(&error))?;
            let value: Value = serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
            // Both the whole output of a plan and its facts alone are taken.
            let facts = value.get("facts").cloned().unwrap_or(value);
            serde_json::from_value(facts).map_err(|error| wrong(&error))?
        }
    };
    let plan = plan(&facts, &request(&args.recipe)).map_err(failure)?;
    let objections = guard::objections(&facts, &plan, ssh().as_deref());
    let text = match args.recipe.output {
        OutputFormat::Json => format!("{:#}\n", document(&plan, &facts, &objections)),
        OutputFormat::Table => {
            let mut text = render(&plan, &facts);
            for objection in &objections {
                text.push_str(&format!("- apply refuses this plan: {objection}\n"));
            }
            lines(&text)
        }
    };
    shell::print(text.as_bytes())
}

/// Names and values of the machine must not control a terminal.
fn lines(text: &str) -> String {
    text.lines().map(|line| printable(line) + "\n").collect()
}

fn document(plan: &Plan, facts: &Facts, objections: &[String]) -> Value {
    let steps: Vec<Value> = plan
        .steps
        .iter()
        .map(|step| {
            let before = step.current.as_deref().unwrap_or(ABSENT);
            json!({
                "setting": step.setting.to_string(),
                "state": step.state,
                "current": step.current,
                "wanted": step.wanted,
                "why": step.why,
                "command": commands(&step.setting, facts, &step.wanted),
                "undo": commands(&step.setting, facts, before),
                "pause_ms": step.pause_ms,
            })
        })
        .collect();
    json!({
        "interface": plan.interface,
        "driver": plan.driver,
        "request": plan.request,
        "way": plan.way,
        "first_queue": plan.first_queue,
        "queues": plan.queues,
        "cpus": plan.cpus,
        "steps": steps,
        "notes": plan.notes,
        "objections": objections,
        "facts": facts,
    })
}

fn run_apply(args: &ApplyArgs) -> Result<(), Failure> {
    let interrupt = Interrupt::catch_with_hangup().map_err(Failure::runtime)?;
    let interface = &args.recipe.interface;
    read::identity(&Live::default(), interface).map_err(failure)?;
    guard::privileges(&Live::default()).map_err(failure)?;
    let mut disk = Disk::new(&args.state_dir, interface);
    let lock = disk.lock(LOCK_WAIT).map_err(failure)?;
    let mut machine = Live::locked(&lock);
    let facts = read::read(&machine, interface).map_err(failure)?;
    let plan = plan(&facts, &request(&args.recipe)).map_err(failure)?;
    let for_people = args.recipe.output == OutputFormat::Table;
    let mut observer = |number: usize, step: &raceline_adq::plan::Step| {
        if for_people {
            let line = commands(&step.setting, &facts, &step.wanted);
            let _ = shell::print(lines(&format!("{number:3}. {line}")).as_bytes());
        }
        interrupt.requested().is_none()
    };
    let applied = apply(&mut machine, &facts, &plan, &mut disk, ssh().as_deref(), &mut observer);
    let journal = applied.map_err(|error| match interrupt.requested() {
        Some(signal) => Failure { message: error.to_string(), ..Failure::signal(signal) },
        None => failure(error),
    })?;
    if let Some(limit) = args.confirm_within
        && !is_confirmed(limit, &interrupt)
    {
        let reverted = revert(&mut machine, &mut disk, false).map_err(failure)?;
        let failures = reverted.iter().flat_map(Reverted::failures).count();
        let end = match failures {
            0 => String::new(),
            _ => format!(", except {failures} settings: see `raceline adq revert {interface}`"),
        };
        return Err(Failure::runtime(format!(
            "nobody confirmed within {} s, so everything was given back{end}",
            limit.as_secs()
        )));
    }
    let path = disk.path().display().to_string();
    let text = if for_people {
        let steps = plan.to_do().count();
        let notes: String = plan.notes.iter().map(|note| format!("- {note}\n")).collect();
        lines(&format!(
            "{notes}{steps} steps are done and read back. `raceline adq revert {interface}` gives \
             everything back, by the journal {path}"
        ))
    } else {
        let document = json!({ "journal": path, "applied": journal, "notes": plan.notes });
        format!("{document:#}\n")
    };
    shell::print(text.as_bytes())
}

/// Waits for Enter on standard input. The end of the input, as when a session is cut off, is none.
fn is_confirmed(limit: Duration, interrupt: &Interrupt) -> bool {
    shell::note(&format!("press Enter within {} s to keep this", limit.as_secs()));
    let (sender, line) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = io::stdin().lock().read_line(&mut text);
        // If nobody waits any more, the time is over.
        let _ = sender.send(read.is_ok_and(|bytes| bytes > 0));
    });
    let end = Instant::now() + limit;
    while Instant::now() < end && interrupt.requested().is_none() {
        match line.try_recv() {
            Ok(true) => return true,
            // The signal's number is looked at above.
            _ => drop(interrupt.wait(LOOK)),
        }
    }
    false
}

fn run_show(args: &ShowArgs) -> Result<(), Failure> {
    read::check_name(&args.interface).map_err(failure)?;
    let disk = Disk::new(&args.state_dir, &args.interface);
    let journal = disk.load().map_err(failure)?.ok_or_else(|| {
        Failure::runtime(format!(
            "no recipe is applied to {}: there is no journal {}",
            args.interface,
            disk.path().display()
        ))
    })?;
    let shown = show(&Live::default(), &journal).map_err(failure)?;
    let text = match args.output {
        OutputFormat::Json => {
            format!("{:#}\n", serde_json::to_value(&shown).map_err(Failure::runtime)?)
        }
        OutputFormat::Table => comparison(&shown),
    };
    shell::print(text.as_bytes())?;
    if shown.is_in_place() {
        return Ok(());
    }
    Err(Failure::runtime(format!(
        "the recipe of {} is not in place: `raceline adq revert {}`, then apply it again",
        args.interface, args.interface
    )))
}

fn comparison(shown: &Shown) -> String {
    let mut table = Table::new(&["setting", "before", "recipe", "now", "state"]);
    for line in &shown.settings {
        let state = match line.condition {
            Condition::InPlace => "in place",
            Condition::Lost => "lost",
            Condition::Changed => "changed by others",
            Condition::Begun => "broken off here",
            Condition::NotReached => "not reached",
            Condition::Unreadable => "cannot be read",
        };
        table.row([
            line.setting.clone(),
            line.before.clone(),
            line.wanted.clone(),
            line.now.clone().unwrap_or_else(|| "-".to_owned()),
            state.to_owned(),
        ]);
    }
    let name = match &shown.interface {
        None => format!("{} is gone, or has another number\n", shown.applied_to),
        Some(name) if *name != shown.applied_to => format!("{} is {name} now\n", shown.applied_to),
        Some(_) => String::new(),
    };
    name + &table.render("")
}

fn run_revert(args: &RevertArgs) -> Result<(), Failure> {
    let journal = &args.journal;
    read::check_name(&journal.interface).map_err(failure)?;
    guard::privileges(&Live::default()).map_err(failure)?;
    let mut disk = Disk::new(&journal.state_dir, &journal.interface);
    let lock = disk.lock(LOCK_WAIT).map_err(failure)?;
    let reverted = revert(&mut Live::locked(&lock), &mut disk, args.force).map_err(failure)?;
    let text = match (&reverted, journal.output) {
        (_, OutputFormat::Json) => {
            format!("{:#}\n", serde_json::to_value(&reverted).map_err(Failure::runtime)?)
        }
        (None, _) => format!("nothing is applied to {}\n", journal.interface),
        (Some(reverted), OutputFormat::Table) => lines(&report(reverted)),
    };
    shell::print(text.as_bytes())?;
    let failures: Vec<String> = reverted
        .iter()
        .flat_map(Reverted::failures)
        .map(|(setting, reason)| format!("{setting}: {reason}"))
        .collect();
    if failures.is_empty() {
        return Ok(());
    }
    Err(Failure::runtime(format!(
        "not everything could be given back, and the journal stays: {}",
        failures.join("; ")
    )))
}

fn report(reverted: &Reverted) -> String {
    let mut out = String::new();
    let mut unchanged = 0;
    for (setting, fate) in &reverted.settings {
        let text = match fate {
            Fate::Restored { to } => format!("is {to} again"),
            Fate::Unchanged => {
                unchanged += 1;
                continue;
            }
            Fate::Left { before, set, now } => {
                format!(
                    "was {before}, the recipe set {set}, now {now}: left alone (--force gives it back)"
                )
            }
            Fate::HandedOver { interface } => {
                format!("stays, since the recipe of {interface} needs it and gives it back later")
            }
            Fate::Gone(reason) => reason.clone(),
            Fate::Failed(reason) => format!("could not be given back: {reason}"),
        };
        out.push_str(&format!("{setting}: {text}\n"));
    }
    if unchanged > 0 {
        out.push_str(&format!("{unchanged} settings had their values already\n"));
    }
    out
}
