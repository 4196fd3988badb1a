//! The page step: the page of a daemon in Chromium, with a thousand namespaces, judged by a script and by axe.

use anyhow::{Context, Result};

use crate::child::{Task, has_program};
use crate::raceline::Tree;
use crate::serve::Serve;
use crate::step::{Checks, Outcome};
use crate::{python, setup};

/// The script that drives the browser.
const SCRIPT: &str = "interop/page/check.py";
/// The package with the rules of accessibility: axe-core 4.12.1.
const AXE: &str = "axe-playwright-python==0.1.8";
/// The only file of it that is used.
const AXE_FILE: &str = "axe_playwright_python/axe.min.js";
/// Time for the whole script, in seconds; on a quiet machine it takes about 30.
const SCRIPT_LIMIT_S: u64 = 400;
/// The variable by which the script's week gets longer: updates between two of its looks.
const WEEK_UPDATES: &str = "PAGE_WEEK_UPDATES";
/// Looks in a week.
const WEEK_LOOKS: u64 = 6;
/// A busy machine does more of its updates per second.
const WEEK_UPDATES_PER_S: u64 = 50;
/// A token of this test alone.
const TOKEN: &str = "a-token-of-the-page-step-and-of-nothing-else";

/// Starts a daemon with a page, and opens that.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    if let Some(why) = setup::missing_for("papers-report") {
        return setup::cannot(&why);
    }
    if !has_program("python3") {
        return setup::cannot("missing: python3 (cargo xtask setup)");
    }
    let folder = tree.scratch("page")?;
    let token = folder.join("token");
    std::fs::write(&token, TOKEN)?;
    Task::new("chmod").args(["600"]).args([&token]).check()?;
    let token_file = token.to_str().context("a path that is no text")?;
    let options = ["--ui", "127.0.0.1:0", "--http-token", token_file];
    let mut daemon = Serve::start(tree, &folder, &options)?;
    let url = daemon.ready["http"][0].as_str().context("the ready line has no http")?.to_owned();
    let mut checks = Checks::default();
    let axe = python::file(&tree.target.join("axe"), AXE, AXE_FILE);
    if let Err(why) = &axe {
        checks.skip("page: axe", &format!("{why:#}"));
    }
    let script = Task::new("python3").args(["-B"]).args([&tree.root.join(SCRIPT)]);
    let script = script.args([url.as_str(), TOKEN, &daemon.pid().to_string()]).args([&folder]);
    let script = script.env("RACELINE", tree.binary()?);
    let ended = script.args(axe.ok()).limit(SCRIPT_LIMIT_S + week_s()?).run()?;
    let mut told = 0;
    for line in ended.stdout.lines() {
        if let Some(rest) = line.strip_prefix("ok ") {
            checks.ok(&format!("page: {rest}"));
        } else if let Some(rest) = line.strip_prefix("not ok ") {
            let (name, why) = rest.split_once(": ").unwrap_or((rest, ""));
            checks.not_ok(&format!("page: {name}"), why);
        } else {
            continue;
        }
        told += 1;
    }
    if told == 0 || !ended.success() && !ended.stdout.contains("not ok ") {
        checks.not_ok("page: script", &format!("{} {}", ended.why(), ended.tail(5)));
    }
    checks.run("page: the daemon goes on, and ends in good order", || {
        daemon.healthy()?;
        daemon.stop()
    });
    checks.outcome()
}

/// Time for a week that was made longer, in seconds.
fn week_s() -> Result<u64> {
    let Ok(updates) = std::env::var(WEEK_UPDATES) else { return Ok(0) };
    let updates: u64 =
        updates.parse().with_context(|| format!("{WEEK_UPDATES} is '{updates}': no number"))?;
    Ok(updates.saturating_mul(WEEK_LOOKS) / WEEK_UPDATES_PER_S)
}
