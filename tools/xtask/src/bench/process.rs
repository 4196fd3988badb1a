//! Data of the kernel on a process: its memory, its CPU time; and the core of a thread.

use std::fs;

use anyhow::{Context, Result};

use crate::child::Task;

/// Bytes of a process that are in memory now, and the greatest number so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resident {
    pub(super) now_bytes: u64,
    pub(super) peak_bytes: u64,
}

impl Resident {
    /// Reads the present values.
    pub(super) fn of(pid: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        Ok(Self { now_bytes: field(&status, "VmRSS")?, peak_bytes: field(&status, "VmHWM")? })
    }
}

/// CPU time of all living threads of a process, in nanoseconds: ticks of 10 ms are too coarse
/// for an idle process.
pub(super) fn cpu_ns(pid: u32) -> Result<u64> {
    let mut sum = 0;
    fs::metadata(format!("/proc/{pid}/schedstat"))
        .context("no schedstat: this kernel counts no CPU time in nanoseconds")?;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended in the meantime.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let word = text.split_whitespace().next().context("an empty schedstat")?;
        sum += word.parse::<u64>()?;
    }
    Ok(sum)
}

/// Binds the calling thread to a core.
pub(super) fn bind_to_core(core: usize) -> Result<()> {
    let thread = fs::read_link("/proc/thread-self")?;
    let id = thread.file_name().context("/proc/thread-self")?.to_string_lossy().into_owned();
    Task::new("taskset").args(["-p", "-c", &core.to_string(), &id]).check().map(|_| ())
}

/// Allows this process `count` files and sockets.
pub(super) fn allow_files(count: u32) -> Result<()> {
    let (pid, limit) = (std::process::id().to_string(), format!("--nofile={count}:"));
    let ended = Task::new("prlimit").args(["--pid", &pid, &limit]).check();
    ended.with_context(|| format!("{count} sockets are needed: raise ulimit -n")).map(|_| ())
}

/// Drops a file from the page cache.
pub(super) fn drop_cached(file: &std::path::Path) -> Result<()> {
    let input = format!("if={}", file.display());
    Task::new("dd").args([&input, "iflag=nocache", "count=0", "status=none"]).check().map(|_| ())
}

fn field(status: &str, name: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("no {name} in /proc/PID/status"))? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_kib() {
        let status = "VmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(field(status, "VmRSS").unwrap(), 1 << 20);
        assert!(field(status, "Vm").is_err());
    }

    #[test]
    fn a_process_that_works_uses_time() {
        let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; exec sleep 10";
        let mut child = std::process::Command::new("sh").args(["-c", work]).spawn().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(9);
        while cpu_ns(child.id()).unwrap() < 5_000_000 {
            assert!(std::time::Instant::now() < end, "it works and uses no time");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
