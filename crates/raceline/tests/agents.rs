//! Several load generators at the same time: agents as processes, and the fleet that drives them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use raceline_papers::agent::fleet::{Fleet, FleetError};
use raceline_papers::agent::link::Agent;
use raceline_papers::agent::load::Load;
use support::{Export, run};

const AGENTS: usize = 4;
/// Commands per second of each.
const RATE: u64 = 100;
/// How long runs without a common window are repeated.
const LIMIT: Duration = Duration::from_secs(120);

fn target() -> Export {
    Export::start(&["ram:64M", "--insecure", "--allow-any-host", "--mode", "interrupt"])
}

fn agents() -> Vec<Agent> {
    let spawn = |number: usize| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_raceline"));
        command.args(["bench", "agent", "--stdio"]);
        Agent::spawn(&format!("host{number}"), &mut command, None).unwrap()
    };
    (1..=AGENTS).map(spawn).collect()
}

fn loads(target: &Export, runtime_ms: u64) -> Vec<Load> {
    let address = format!("{}:{}", target.address, target.port).parse().unwrap();
    let load = |seed| Load {
        seed,
        depth: 4,
        ramp_ms: 200,
        runtime_ms,
        // The machine may be busy: a rate that it keeps up with.
        rate_iops: Some(RATE),
        ..Load::new(address, &target.nqn)
    };
    (1..=AGENTS as u64).map(load).collect()
}

/// The processes that this one has started, and that are agents.
fn agent_processes() -> Vec<String> {
    let own = std::process::id();
    let children = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid = entry.file_name().into_string().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let parent: u32 = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
        // A fleet that another test runs has these words in one argument.
        (parent == own && line.contains("agent\0--stdio")).then_some(pid)
    });
    children.collect()
}

/// One test, because it looks at the processes that this one has started.
#[test]
fn four_agents_run_together_and_one_that_is_killed_is_named() {
    let target = target();
    let mut fleet = Fleet::prepare(agents(), &loads(&target, 2000)).unwrap();
    let mut watched = 0;
    // Too short a common window voids the run, and a machine that is busy with other tests may delay an agent so far.
    let deadline = Instant::now() + LIMIT;
    let together = loop {
        match fleet.run(&mut |_| {
            watched += 1;
            true
        }) {
            Ok(together) => break together,
            Err(error @ FleetError::Late { .. }) if Instant::now() < deadline => {
                println!("{error}");
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(watched > 10);
    assert_eq!(together.shares.len(), AGENTS);
    let each: Vec<u64> = together.shares.iter().map(|share| share.reads.count()).collect();
    assert_eq!(together.reads.count(), each.iter().sum::<u64>());
    // 100 per second for 2 s each; a busy machine misses some.
    assert!(each.iter().all(|count| (100..=210).contains(count)), "{each:?}");
    let sum: f64 = together.shares.iter().map(|share| share.iops).sum();
    assert!((together.iops - sum).abs() < 1.0 && together.fairness() > 0.0);
    assert!(together.shares[0].outcome.pdus_by_second.iter().sum::<u64>() > 100);
    assert!(together.skew < Duration::from_millis(30), "{:?}", together.skew);
    assert!(together.window >= Duration::from_millis(1800) && together.window <= together.runtime);
    // All of them are on this machine.
    assert_eq!(together.differences(), Vec::<String>::new());
    let environment = &together.shares[0].environment;
    assert!(environment["cpu"]["cpus"].as_u64().is_some_and(|cpus| cpus > 0), "{environment}");

    let processes = agent_processes();
    assert_eq!(processes.len(), AGENTS, "{processes:?}");
    drop(fleet);
    assert_eq!(agent_processes().len(), 0, "agents outlive their fleet");

    let mut fleet = Fleet::prepare(agents(), &loads(&target, 20_000)).unwrap();
    let mut killed = agent_processes().into_iter().next();
    let began = Instant::now();
    let error = fleet.run(&mut |since| {
        if since > Duration::from_millis(400)
            && let Some(pid) = killed.take()
        {
            assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
        }
        true
    });
    let error = error.unwrap_err();
    assert!(matches!(&error, FleetError::Vanished { agent, .. } if agent.starts_with("host")));
    assert!(error.to_string().contains("signal: 9"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(10), "it waited for the end of the run");
}

#[test]
fn a_fleet_over_tcp_needs_the_token() {
    let folder = support::Scratch::new();
    let token = folder.path("token");
    std::fs::write(&token, "a secret of many bytes\n").unwrap();
    let token = token.as_str();
    let child = Command::new(env!("CARGO_BIN_EXE_raceline"))
        .args(["bench", "agent", "--listen", "127.0.0.1:0", "--token", token])
        .stdout(Stdio::piped())
        .spawn();
    let mut agent = Killed(child.unwrap());
    let mut line = String::new();
    let mut output = std::io::BufReader::new(agent.0.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = ready["listening"].as_str().unwrap();
    let target = target();
    let at = format!("{}:{},{}", target.address, target.port, target.nqn);
    let usual = ["bench", "fleet", "--target", &at, "--agent", address, "--rate-iops", "200"];
    let short = ["--runtime", "1", "--ramp_time", "100ms", "-o", "json"];
    let line = [&usual[..], &short].concat();
    let refused = run(&line);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("token is wrong"), "{}", refused.stderr);
    // An agent serves the next controller after one that it has refused.
    let served = run(&[&line[..], &["--token", token]].concat());
    if served.code == Some(1) {
        assert!(served.stderr.contains("common window"), "{}", served.stderr);
    } else {
        let value: serde_json::Value = serde_json::from_str(&served.stdout).unwrap();
        assert!(value["reads"]["count"].as_u64().unwrap() > 50, "{value}");
        let interface = &value["agents"][0]["environment"]["interface"];
        assert!(interface["name"] == "lo" || interface["unread"].is_string(), "{interface}");
        assert!(value["window_s"].as_f64().unwrap() <= 1.0, "{value}");
    }
}

#[test]
fn what_is_wrong_is_said_before_anything_runs() {
    let open = run(&["bench", "agent", "--listen", "0.0.0.0:0"]);
    assert_eq!(open.code, Some(2));
    assert!(open.stderr.contains("--token"), "{}", open.stderr);
    let target = "127.0.0.1:1,nqn.2026-01.io.raceline:x";
    let spawn = |command: &str| run(&["bench", "fleet", "--target", target, "--spawn", command]);
    let none = spawn("/nonexistent/agent --stdio");
    assert!(none.stderr.contains("agent 1") && none.code == Some(1), "{}", none.stderr);
    assert!(spawn("'").stderr.contains("close its quotes"));
    let agent = format!("{} bench agent --stdio", env!("CARGO_BIN_EXE_raceline"));
    let no_target = spawn(&agent);
    assert!(no_target.stderr.contains("target 127.0.0.1:1"), "{}", no_target.stderr);
}

/// A process that does not outlive the test.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
