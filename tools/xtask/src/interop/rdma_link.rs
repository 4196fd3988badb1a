//! RDMA over a wire between two guests, which goes and comes: the kernel's host and ours in one, our daemon in the other.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{Part, drives, free_port, guest, scratch, script, watch};
use crate::raceline::Tree;
use crate::step::Outcome;

/// The monitor answers within this time.
const MONITOR_LIMIT: Duration = Duration::from_secs(20);

/// Runs both guests.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let dir = scratch(tree, image, Part::RdmaLink)?;
    let program = drives::stripped(tree, &dir)?;
    let [tcp, web] = [free_port()?, free_port()?];
    // A path of a socket has at most 107 bytes, and that of the scratch folder may be longer.
    let wires = std::env::temp_dir().join(format!("raceline-wire-{}", std::process::id()));
    std::fs::create_dir_all(&wires)?;
    let [target_end, host_end, monitor] =
        ["target", "host", "monitor"].map(|name| wires.join(name));
    let (target_wire, host_wire) = (target_end.display(), host_end.display());
    let machine = |role: &str, wire: String| {
        guest(tree, image, Part::RdmaLink)
            .args(["-e", &format!("ROLE={role}"), "-n", &wire])
            .args([Path::new("-f"), &program])
    };
    let mut target = machine("target", format!("{target_wire}:{host_wire}"))
        .args(["-p", &format!("{tcp}:4421"), "-p", &format!("{web}:8080")])
        // The other guest's console has the checks.
        .args([Path::new("-l"), &image.join("console-target.log")])
        .args([image, &script(tree, Part::RdmaLink)])
        .start()?;
    let mut host = machine("host", format!("{host_wire}:{target_wire}"))
        .args(["-e", &format!("TCP={tcp}"), "-e", &format!("WEB={web}")])
        .args([Path::new("-q"), &monitor])
        .args([image, &script(tree, Part::RdmaLink)])
        .start()?;
    let outcome = watch(&mut host, |request| match request {
        "down" | "up" => set_link(&monitor, request == "up"),
        other => bail!("the guest asks for '{other}'"),
    });
    let was_alive = target.alive();
    if outcome.is_err() || !was_alive {
        println!("# the target's guest said:\n{}", crate::child::tail(target.output(), 25));
    }
    target.kill();
    std::fs::remove_dir_all(&wires)?;
    std::fs::remove_dir_all(&dir)?;
    let outcome = outcome?;
    ensure!(was_alive, "the target's guest has ended before the host's");
    Ok(outcome)
}

/// Has the wire of a guest go or come, by QEMU's monitor.
fn set_link(monitor: &Path, is_up: bool) -> Result<()> {
    let mut monitor = UnixStream::connect(monitor).context("cannot reach QEMU's monitor")?;
    monitor.set_read_timeout(Some(MONITOR_LIMIT))?;
    let mut answers = BufReader::new(monitor.try_clone()?);
    let link = format!(r#"{{"execute":"set_link","arguments":{{"name":"n1","up":{is_up}}}}}"#);
    for command in [r#"{"execute":"qmp_capabilities"}"#, &link] {
        writeln!(monitor, "{command}")?;
        // A greeting and events come in between.
        let mut line = String::new();
        while !line.contains(r#""return""#) {
            line.clear();
            ensure!(answers.read_line(&mut line)? > 0, "QEMU's monitor has closed");
            ensure!(!line.contains(r#""error""#), "QEMU's monitor refuses {command}: {line}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    use super::*;

    const GREETING: &str =
        r#"{"QMP": {"version": {"qemu": {"major": 7}}, "capabilities": ["oob"]}}"#;
    const EVENT: &str = r#"{"timestamp": {"seconds": 1}, "event": "NIC_RX_FILTER_CHANGED"}"#;
    const DONE: &str = r#"{"return": {}}"#;

    /// A monitor that greets, answers one command after the other with these lines, and ends. It gives the commands.
    fn monitor(path: &Path, answers: Vec<Vec<&'static str>>) -> JoinHandle<Vec<String>> {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut commands = BufReader::new(stream.try_clone().unwrap()).lines();
            writeln!(stream, "{GREETING}").unwrap();
            let mut taken = Vec::new();
            for answer in answers {
                taken.push(commands.next().unwrap().unwrap());
                answer.iter().for_each(|line| writeln!(stream, "{line}").unwrap());
            }
            taken
        })
    }

    fn in_folder(check: impl FnOnce(&Path)) {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("raceline-monitor-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        check(&folder.join("monitor"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_monitor_is_told_of_the_wire_after_the_capabilities() {
        for (is_up, word) in [(false, "false"), (true, "true")] {
            in_folder(|path| {
                let told = monitor(path, vec![vec![EVENT, DONE], vec![EVENT, DONE]]);
                set_link(path, is_up).unwrap();
                let told = told.join().unwrap();
                let command: serde_json::Value = serde_json::from_str(&told[1]).unwrap();
                assert!(told[0].contains("qmp_capabilities"), "{told:?}");
                assert_eq!(command["execute"], "set_link");
                assert_eq!(command["arguments"]["name"], "n1");
                assert_eq!(command["arguments"]["up"].to_string(), word);
            });
        }
    }

    #[test]
    fn a_monitor_that_refuses_or_ends_is_an_error() {
        let refusal = r#"{"error": {"class": "DeviceNotFound", "desc": "Device 'n1' not found"}}"#;
        in_folder(|path| {
            let told = monitor(path, vec![vec![DONE], vec![EVENT, refusal]]);
            let error = set_link(path, false).unwrap_err().to_string();
            assert!(error.contains("refuses") && error.contains("'n1' not found"), "{error}");
            told.join().unwrap();
        });
        in_folder(|path| {
            let told = monitor(path, vec![vec![DONE], vec![EVENT]]);
            let error = set_link(path, false).unwrap_err().to_string();
            assert!(error.contains("closed"), "{error}");
            told.join().unwrap();
        });
        in_folder(|path| {
            let error = set_link(path, true).unwrap_err().to_string();
            assert!(error.contains("cannot reach"), "{error}");
        });
    }
}
