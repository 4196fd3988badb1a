//! The process, its start, what it may run out of, its HTTP server, and its accelerators.

use std::fs;
use std::time::SystemTime;

use raceline_control::logging;
use raceline_control::manager::Manager;
use raceline_reactor::room::{self, Lack};
use rustix::process::{Resource, getrlimit};

use super::text::{Labels, Text, Value};
use crate::health::why_not_ready;
use crate::server::Counts;

pub(super) fn write(text: &mut Text, manager: &Manager, counts: &Counts) {
    let none = Labels::default;
    let version = env!("CARGO_PKG_VERSION");
    let info = Labels::new(&[("version", version)]);
    text.gauge("build_info", "The program.", [(info, Value::Count(1))]);
    let node = rustix::system::uname();
    let host = node.nodename().to_string_lossy();
    let gateway = Labels::new(&[
        ("version", version),
        ("name", &host),
        ("hostname", &host),
        ("group", "_null_"),
    ]);
    text.gauge("gateway_info", "The program and its machine.", [(gateway, Value::Count(1))]);
    let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let began = began.saturating_sub(manager.began().elapsed());
    let began = Value::Real(began.as_secs_f64());
    text.gauge("start_time_seconds", "When the daemon has started.", [(none(), began)]);
    let ready = why_not_ready(manager).is_none();
    text.gauge("ready", "Whether the configuration is in service.", [(none(), ready.into())]);
    let missing = manager.model().missing.len();
    text.gauge(
        "config_missing",
        "What is configured and is not there.",
        [(none(), missing.into())],
    );
    if let Some(cpu) = cpu_ns() {
        let help = "Time that all threads have spent on CPUs.";
        text.counter("process_cpu_seconds", help, [(none(), Value::Nanoseconds(cpu))]);
    }
    if let Some(bytes) = resident_bytes() {
        text.gauge(
            "process_resident_memory_bytes",
            "Memory of the process.",
            [(none(), bytes.into())],
        );
    }
    exhaustion(text, manager);
    http(text, counts);
    accelerators(text, manager);
}

/// What the process may run out of, and what it does then.
fn exhaustion(text: &mut Text, manager: &Manager) {
    let one = |value: Option<u64>| value.map(|value| (Labels::default(), Value::Count(value)));
    text.gauge("process_open_fds", "File descriptors that are open.", one(open_descriptors()));
    let most = getrlimit(Resource::Nofile).current;
    text.gauge("process_max_fds", "File descriptors that may be open.", one(most));
    let memory = room::limited_memory();
    text.gauge(
        "memory_limit_bytes",
        "The limit of memory of which least is left.",
        one(memory.map(|(_, limit)| limit)),
    );
    text.gauge(
        "memory_limit_used_bytes",
        "What is in use of that limit.",
        one(memory.map(|(used, _)| used)),
    );
    let lack = room::lack();
    let waits = [("descriptors", Lack::Descriptors), ("memory", Lack::Memory)]
        .map(|(name, kind)| (Labels::new(&[("reason", name)]), Value::from(lack == Some(kind))));
    text.gauge("accept_paused", "Whether new connections wait, by what is lacking.", waits);
    let writable = manager.config().journal.is_writable();
    text.gauge(
        "state_writable",
        "Whether the last change could be written to the state directory.",
        one(writable.map(u64::from)),
    );
    let lost = logging::lost_messages();
    text.counter(
        "log_messages_lost",
        "Messages of the log that were not taken, or not in time.",
        one(Some(lost)),
    );
}

/// How many descriptors are open. Linux 6.2 and newer have the number as a size.
fn open_descriptors() -> Option<u64> {
    const OPEN: &str = "/proc/self/fd";
    let size = fs::metadata(OPEN).ok()?.len();
    if size > 0 {
        return Some(size);
    }
    // The folder itself is open meanwhile.
    let open = fs::read_dir(OPEN).ok()?.count() as u64;
    Some(open.saturating_sub(1))
}

/// Time in user space and in the kernel (proc_pid_stat(5)).
fn cpu_ns() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program may hold anything but ends with the last bracket; the state is field 3.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let spent = ticks()? + ticks()?;
    Some(spent.saturating_mul(1_000_000_000) / rustix::param::clock_ticks_per_second())
}

fn resident_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

fn http(text: &mut Text, counts: &Counts) {
    let codes = counts.answers();
    let samples =
        codes.into_iter().map(|(class, count)| (Labels::new(&[("code", class)]), count.into()));
    text.counter("http_requests", "Requests answered by HTTP.", samples);
    let none = Labels::default;
    text.gauge("http_connections", "Connections by HTTP.", [(none(), counts.connections().into())]);
    text.counter(
        "http_connections_refused",
        "Connections by HTTP that were too many.",
        [(none(), counts.refused.get().into())],
    );
    text.counter(
        "http_wrong_tokens",
        "Requests by HTTP with a wrong token.",
        [(none(), counts.wrong_tokens.get().into())],
    );
    text.gauge(
        "metrics_scrape_seconds",
        "How long the last answer to a scraper took to make.",
        [(none(), Value::Nanoseconds(counts.scrape_ns.get()))],
    );
}

fn accelerators(text: &mut Text, manager: &Manager) {
    let framework = &manager.config().accel;
    let statistics = framework.statistics();
    let rows: Vec<_> = framework
        .assignments()
        .into_iter()
        .map(|(code, engine)| {
            let labels = Labels::new(&[("operation", code.name()), ("engine", engine)]);
            (labels, *statistics.of(code))
        })
        .collect();
    let each = |read: fn(&raceline_accel::OpStatistics) -> u64| {
        rows.iter()
            .map(move |(labels, counts)| (labels.clone(), Value::Count(read(counts))))
            .collect::<Vec<_>>()
    };
    text.counter(
        "accel_operations",
        "Operations of accelerators that succeeded.",
        each(|c| c.executed),
    );
    text.counter("accel_failures", "Operations of accelerators that failed.", each(|c| c.failed));
    text.counter("accel_bytes", "Bytes of operations that succeeded.", each(|c| c.bytes));
    text.counter("accel_fallbacks", "Operations done in software instead.", each(|c| c.fallbacks));
}
