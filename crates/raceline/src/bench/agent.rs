//! `raceline bench agent` and `bench fleet`: several load generators at the same time.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use raceline_bench::Latencies;
use raceline_papers::agent::fleet::{Fleet, FleetError, Together};
use raceline_papers::agent::link::Agent;
use raceline_papers::agent::load::Load;
use raceline_papers::agent::serve::serve;
use raceline_reactor::listening::address_trouble;
use serde_json::{Value, json};

use crate::cli::bench::agent::{AgentArgs, FleetArgs};
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::signals::Interrupt;
use crate::table::Table;
use crate::{limits, shell};

/// Bytes of a token: fewer could be guessed.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_BYTES_MAX: usize = 1024;
/// Differences between machines that the table lists at most.
const DIFFERENCES_SHOWN: usize = 20;
/// How long a controller's connection may take a line of the agent.
const WRITE_LIMIT: Duration = Duration::from_secs(20);

/// Serves controllers.
pub(crate) fn agent(args: &AgentArgs) -> Result<(), Failure> {
    let token = args.token.as_deref().map(token).transpose()?;
    limits::raise_file_descriptors();
    let Some(address) = args.listen else {
        return serve(io::stdin(), io::stdout(), None).map_err(Failure::runtime);
    };
    if !address.ip().is_loopback() && token.is_none() {
        return Err(Failure::usage(format!(
            "--listen {address} can be reached from other machines: name a file with a secret by --token, or \
             start the agent with --stdio through ssh"
        )));
    }
    let cannot = |error| {
        let trouble = address_trouble(address, &error, Some("--listen"));
        Failure::runtime(format!("cannot listen on {address}: {trouble}"))
    };
    let listener = TcpListener::bind(address).map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let ready = json!({ "ready": true, "listening": address.to_string() });
    shell::print(format!("{ready}\n").as_bytes())?;
    for stream in listener.incoming() {
        // One controller after the other: two loads at the same time would measure each other.
        if let Err(error) = stream.and_then(|stream| controller(stream, token.as_deref())) {
            tracing::warn!("{error}");
        }
    }
    Ok(())
}

fn controller(stream: TcpStream, token: Option<&str>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    serve(stream.try_clone()?, &stream, token).map_err(io::Error::other)
}

/// Reads a secret.
fn token(path: &Path) -> Result<String, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::runtime(format!("cannot read the token {name}: {error}")))?;
    let token = text.trim();
    if (TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
        return Ok(token.to_owned());
    }
    Err(Failure::usage(format!(
        "the token in {name} has {} bytes: use {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX}",
        token.len()
    )))
}

/// Runs a load on all agents.
pub(crate) fn fleet(args: &FleetArgs) -> Result<(), Failure> {
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let token = args.token.as_deref().map(token).transpose()?;
    let mut agents = Vec::new();
    let target = Some(args.target.0.ip());
    for (number, &address) in args.agent.iter().enumerate() {
        if args.agent[..number].contains(&address) {
            let message = format!("--agent {address} is there twice: an agent runs one load");
            return Err(Failure::usage(message));
        }
        let name = address.to_string();
        agents.push(Agent::connect(&name, address, token.as_deref(), target).map_err(failure)?);
    }
    for (number, line) in args.spawn.iter().enumerate() {
        let words = shlex::split(line).filter(|words| !words.is_empty());
        let Some(words) = words else {
            return Err(Failure::usage(format!(
                "--spawn {line:?} is no command: close its quotes"
            )));
        };
        let name = format!("{} ({line})", args.agent.len() + number + 1);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        agents.push(Agent::spawn(&name, &mut command, target).map_err(failure)?);
    }
    let loads: Vec<Load> = (0..agents.len() as u64).map(|number| load(args, number)).collect();
    let mut fleet = Fleet::prepare(agents, &loads).map_err(failure)?;
    let result = fleet.run(&mut |_| interrupt.requested().is_none());
    if let Some(signal) = interrupt.requested() {
        return Err(Failure::signal(signal));
    }
    let together = result.map_err(failure)?;
    let text = match args.output {
        OutputFormat::Table => table(&together),
        OutputFormat::Json => {
            serde_json::to_string_pretty(&value(&together)).map_err(Failure::runtime)? + "\n"
        }
    };
    shell::print(text.as_bytes())
}

/// The load of an agent. Each has addresses of its own.
fn load(args: &FleetArgs, number: u64) -> Load {
    let (target, nqn) = &args.target;
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Load {
        nsid: args.nsid,
        rw: args.rw.name().to_owned(),
        io_bytes: args.bs,
        depth: args.iodepth,
        queues: args.queues,
        rate_iops: args.rate_iops,
        ramp_ms: millis(args.ramp_time),
        runtime_ms: millis(args.runtime),
        cores: args.cores.as_ref().map(|list| list.0.clone()).unwrap_or_default(),
        poll: args.poll,
        seed: args.seed.wrapping_add(number),
        ..Load::new(*target, nqn.as_str())
    }
}

fn failure(error: FleetError) -> Failure {
    match error {
        FleetError::Invalid(_) => Failure::usage(error),
        error => Failure::runtime(error),
    }
}

fn table(together: &Together) -> String {
    let mut table = Table::new(&["agent", "IOPS", "mean us", "P99 us", "CPU us/IO", "missed"]);
    let micros = |ns: f64| format!("{:.1}", ns / 1000.0);
    for share in &together.shares {
        let mut latencies = share.reads.clone();
        latencies.merge(&share.writes);
        // CPU time is that of all commands, also of those outside of the common window.
        let commands = share.outcome.reads.count() + share.outcome.writes.count();
        let cpu_ns = (share.outcome.user_ns + share.outcome.system_ns) as f64;
        table.row([
            share.agent.clone(),
            format!("{:.0}", share.iops),
            micros(latencies.mean_ns()),
            micros(latencies.percentile_ns(99.0) as f64),
            micros(cpu_ns / commands.max(1) as f64),
            share.outcome.missed.to_string(),
        ]);
    }
    let mut all = together.reads.clone();
    all.merge(&together.writes);
    table.row([
        "all".to_owned(),
        format!("{:.0}", together.iops),
        micros(all.mean_ns()),
        micros(all.percentile_ns(99.0) as f64),
        String::new(),
        String::new(),
    ]);
    let fair = if together.is_fair() { "fair" } else { "unfair: below 0.9" };
    let mut text = format!(
        "{}least share / greatest share {:.2} ({fair}); common window {:.3} s of {:.3} s; clocks within {} us, moved by {} us\n",
        table.render(""),
        together.fairness(),
        together.window.as_secs_f64(),
        together.runtime.as_secs_f64(),
        together.clock_error.as_micros(),
        together.skew.as_micros(),
    );
    let differences = together.differences();
    if !differences.is_empty() {
        text.push_str("the agents' machines differ:\n");
    }
    for line in differences.iter().take(DIFFERENCES_SHOWN) {
        text.push_str(&format!("  {line}\n"));
    }
    if let Some(more @ 1..) = differences.len().checked_sub(DIFFERENCES_SHOWN) {
        text.push_str(&format!("  {more} more: -o json has them\n"));
    }
    text
}

fn value(together: &Together) -> Value {
    let latencies = |latencies: &Latencies| {
        json!({
            "count": latencies.count(),
            "mean_ns": latencies.mean_ns(),
            "p50_ns": latencies.percentile_ns(50.0),
            "p99_ns": latencies.percentile_ns(99.0),
            "p999_ns": latencies.percentile_ns(99.9),
            "p9999_ns": latencies.percentile_ns(99.99),
            "max_ns": latencies.max_ns(),
        })
    };
    let share = |share: &raceline_papers::agent::fleet::Share| {
        json!({
            "agent": share.agent,
            "iops": share.iops,
            "reads": latencies(&share.reads),
            "writes": latencies(&share.writes),
            "outcome": share.outcome,
            "environment": share.environment,
        })
    };
    json!({
        "iops": together.iops,
        "reads": latencies(&together.reads),
        "writes": latencies(&together.writes),
        "fairness": together.fairness(),
        "window_s": together.window.as_secs_f64(),
        "runtime_s": together.runtime.as_secs_f64(),
        "differences": together.differences(),
        "skew_us": together.skew.as_micros() as f64,
        "clock_error_us": together.clock_error.as_micros() as f64,
        "agents": together.shares.iter().map(share).collect::<Vec<_>>(),
    })
}
