//! The tshark step: captures of every PDU type of NVMe/TCP and iSCSI, dissected by an independent decoder, and of TLS.

pub(crate) mod iscsi;
mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::child::{Running, Task, tail};
use crate::interop::write_read;
use crate::raceline::{Export, Tree, host, perf_job};
use crate::raw;
use crate::setup;
use crate::step::{Checks, Outcome};

/// Every PDU type that NVMe/TCP has, with its name.
const PDU_TYPES: [(u8, &str); 9] = [
    (0, "ICReq"),
    (1, "ICResp"),
    (2, "H2CTermReq"),
    (3, "C2HTermReq"),
    (4, "CapsuleCmd"),
    (5, "CapsuleResp"),
    (6, "H2CData"),
    (7, "C2HData"),
    (9, "R2T"),
];

/// The text that tshark prints once it captures.
const CAPTURING: &str = "Capturing on";
/// Time for packets to reach the capture after the traffic ends.
const SETTLE: Duration = Duration::from_millis(1500);
/// Most captures until one holds every byte: a packet that the capture missed is not the target's fault.
const CAPTURES: u32 = 3;
/// tshark's values of a digest's status: checked and wrong, checked and right.
const DIGEST_BAD: &str = "0";
const DIGEST_GOOD: &str = "1";

/// Captures the traffic, dissects it, and checks the result.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    if let Some(why) = setup::missing_for("tshark") {
        return setup::cannot(&why);
    }
    let scratch = tree.scratch("tshark")?;
    let file = scratch.join("traffic.pcapng");
    let recorded =
        until_complete(&file, || Ok(record(tree, &scratch, &file)?.map(|port| (port, ()))))?;
    let port = match recorded {
        Ok((port, ())) => port,
        Err(why) => return setup::cannot(&why),
    };
    let mut checks = Checks::default();
    judge(&mut checks, &file, port);
    for part in [tls::run, iscsi::run] {
        if let Err(why) = part(tree, &scratch, &mut checks)? {
            return setup::cannot(&why);
        }
    }
    if checks.all_passed() {
        std::fs::remove_dir_all(&scratch)?;
    } else {
        println!("# the captures are kept: {}", scratch.display());
    }
    checks.outcome()
}

/// Records, with a target at the port that `record` gives, until the capture in `file` holds every byte, [`CAPTURES`]
/// times at most. The inner error says why this user or machine may not capture.
fn until_complete<T>(
    file: &Path,
    record: impl Fn() -> Result<Result<(u16, T), String>>,
) -> Result<Result<(u16, T), String>> {
    let mut attempt = 1;
    loop {
        let recorded = match record()? {
            Ok(recorded) => recorded,
            Err(why) => return Ok(Err(why)),
        };
        let missing = missing_bytes(file, recorded.0)?;
        if missing.is_empty() || attempt == CAPTURES {
            return Ok(Ok(recorded));
        }
        println!("# capture {attempt} is not complete, once more: {}", missing.join("; "));
        attempt += 1;
    }
}

/// Captures the traffic with a target of its own and returns that target's port; the inner error
/// says why this user or machine may not capture.
fn record(tree: &Tree, scratch: &Path, file: &Path) -> Result<Result<u16, String>> {
    let mut target = Export::start(tree, &["ram:64M", "ram:64M,bs=4096", "--allow-any-host"])?;
    let capture = match capture(file, target.port)? {
        Ok(capture) => capture,
        Err(why) => return Ok(Err(why)),
    };
    traffic(tree, &target, scratch)?;
    target.healthy()?;
    finish(capture)?;
    let port = target.port;
    target.stop("TERM")?;
    Ok(Ok(port))
}

/// Starts tshark; the inner error says why this user or machine may not capture.
fn capture(file: &Path, port: u16) -> Result<Result<Running, String>> {
    let mut capture = Task::new("tshark")
        .args(["-i", "lo", "-B", "64", "-f", &format!("tcp port {port}"), "-w"])
        .args([file])
        .limit(180)
        .start()?;
    if capture.wait_for(CAPTURING, 15).is_err() {
        let why = tail(capture.output(), 3).trim().replace('\n', "; ");
        return Ok(Err(format!("tshark cannot capture on lo: {why}")));
    }
    // tshark prints the line shortly before it sees the first packet.
    std::thread::sleep(SETTLE);
    Ok(Ok(capture))
}

/// Ends a capture once what was sent has reached it. A capture that failed, of a full disk for one, is an error.
fn finish(capture: Running) -> Result<()> {
    std::thread::sleep(SETTLE);
    capture.signal("INT");
    let ended = capture.wait()?;
    ensure!(ended.success(), "tshark, which captures: {}\n{}", ended.why(), ended.tail(10));
    Ok(())
}

/// Traffic with every PDU type: in-capsule writes and R2T, with and without digests, and errors.
fn traffic(tree: &Tree, target: &Export, scratch: &Path) -> Result<()> {
    let address = target.address();
    host(tree, "discover", &address[..4], &[])?;
    host(tree, "identify", &address, &[])?;
    for namespace in ["1", "2"] {
        for blocks in ["1", "128"] {
            write_read(tree, &address, scratch, namespace, blocks)?;
        }
    }
    for digests in [&[][..], &["-g"], &["-G"], &["-g", "-G"]] {
        for (kind, size) in [("randwrite", "4k"), ("randwrite", "64k"), ("randrw", "16k")] {
            let mut words = vec!["--rw", kind, "--bs", size, "--iodepth", "4", "-i", "2"];
            words.extend(["--runtime", "1", "--ramp_time", "0", "--rate_iops", "100", "--verify"]);
            words.extend(digests);
            perf_job(tree, &address, &words)?;
        }
    }
    // A second ICReq is well-formed and out of sequence: the target answers with a C2HTermReq.
    let (mut stream, _) = raw::negotiated(target.port)?;
    stream.write_all(&raw::ic_req())?;
    let status = raw::expect_term_req(&mut stream)?;
    ensure!(status == 2, "fatal error status {status} for a second ICReq, not 2 (sequence)");
    drop(stream);
    // A host that rejects the ICResp.
    let (mut stream, response) = raw::negotiated(target.port)?;
    stream.write_all(&raw::h2c_term_req(&response)?)?;
    raw::time_to_close(&mut stream, Duration::from_secs(5)).context("after H2CTermReq")?;
    Ok(())
}

/// Runs tshark over the capture; one line for each packet that fits `filter`.
fn dissect(file: &Path, port: u16, filter: &str, fields: &[&str]) -> Result<Vec<String>> {
    let mut words = vec!["-n".to_owned(), "-d".to_owned(), format!("tcp.port=={port},nvme-tcp")];
    // Loopback may reorder two packets of a sender that changed its core.
    for preference in
        ["nvme-tcp.check_hdgst", "nvme-tcp.check_ddgst", "tcp.reassemble_out_of_order"]
    {
        words.extend(["-o".to_owned(), format!("{preference}:TRUE")]);
    }
    words.extend(["-Y", filter, "-T", "fields"].map(str::to_owned));
    words.extend(fields.iter().flat_map(|&field| ["-e".to_owned(), field.to_owned()]));
    lines_of(Task::new("tshark").args(["-r"]).args([file]).args(words))
}

/// What a tshark that reads a capture prints. Its error is what it printed beside the packets: their lines, which
/// are many, would hide the reason.
fn lines_of(tshark: Task) -> Result<Vec<String>> {
    let ended = tshark.limit(120).run()?;
    if !ended.success() {
        let packets: BTreeSet<&str> = ended.stdout.lines().collect();
        let said: Vec<&str> = ended.output.lines().filter(|line| !packets.contains(line)).collect();
        bail!("tshark, which reads the capture: {}\n{}", ended.why(), tail(&said.join("\n"), 10));
    }
    Ok(ended.stdout.lines().map(str::to_owned).collect())
}

/// The byte ranges that are in no packet of the capture, whatever the packets' order, as text.
fn missing_bytes(file: &Path, port: u16) -> Result<Vec<String>> {
    let fields = ["tcp.stream", "tcp.srcport", "tcp.seq", "tcp.len"];
    missing_ranges(&dissect(file, port, "tcp.len > 0", &fields)?)
}

/// The same for lines of `stream`, `source port`, `relative sequence number`, `bytes`.
fn missing_ranges(lines: &[String]) -> Result<Vec<String>> {
    let mut directions: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    for line in lines {
        let numbers: Vec<u64> = line.split('\t').map_while(|word| word.parse().ok()).collect();
        let [stream, source, sequence, length] = numbers[..] else {
            bail!("tshark printed {line:?} where four numbers were asked for");
        };
        directions.entry((stream, source)).or_default().push((sequence, length));
    }
    ensure!(!directions.is_empty(), "no packet with data was captured");
    let mut missing = Vec::new();
    for ((stream, source), mut segments) in directions {
        segments.sort_unstable();
        // The first byte of data has the relative number 1: the SYN is 0.
        let mut expected = 1;
        for (sequence, length) in segments {
            if sequence > expected {
                missing.push(format!(
                    "stream {stream} from port {source}: bytes {expected} to {}",
                    sequence - 1
                ));
            }
            expected = expected.max(sequence + length);
        }
    }
    Ok(missing)
}

fn judge(checks: &mut Checks, file: &Path, port: u16) {
    let dissect = |filter: &str, fields: &[&str]| dissect(file, port, filter, fields);
    // A packet that the capture missed would make every later check worthless.
    checks.run("capture-complete", || none(&missing_bytes(file, port)?));
    checks.run("every-pdu-type", || {
        let lines = dissect("nvme-tcp", &["nvme-tcp.type"])?;
        let seen: BTreeSet<&str> = lines.iter().flat_map(|line| line.split(',')).collect();
        let missing: Vec<&str> = PDU_TYPES
            .iter()
            .filter(|(kind, _)| !seen.contains(kind.to_string().as_str()))
            .map(|(_, name)| *name)
            .collect();
        ensure!(missing.is_empty(), "not seen: {}", missing.join(", "));
        Ok(())
    });
    let columns = ["frame.number", "_ws.col.Info", "_ws.expert.message"];
    checks.run("no-malformed-packet", || none(&dissect("_ws.malformed", &columns)?));
    checks.run("no-expert-error", || none(&dissect("_ws.expert.severity == error", &columns)?));
    checks.run("no-unknown-data", || none(&dissect("nvme-tcp.unknown_data", &columns)?));
    for digest in ["nvme-tcp.hdgst.status", "nvme-tcp.ddgst.status"] {
        checks.run(digest, || {
            let lines = dissect(digest, &["frame.number", digest])?;
            let states = |line: &String, wanted: &str| {
                line.split('\t')
                    .nth(1)
                    .is_some_and(|states| states.split(',').any(|state| state == wanted))
            };
            ensure!(lines.iter().any(|line| states(line, DIGEST_GOOD)), "no digest was checked");
            let bad: Vec<String> =
                lines.into_iter().filter(|line| states(line, DIGEST_BAD)).collect();
            none(&bad)
        });
    }
}

fn none(lines: &[String]) -> Result<()> {
    if let Some(first) = lines.first() {
        bail!("{} found, first: {first}", lines.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::missing_ranges;

    fn ranges(lines: &[&str]) -> Vec<String> {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        missing_ranges(&lines).unwrap()
    }

    #[test]
    fn packets_in_another_order_or_sent_twice_are_all_there() {
        assert!(ranges(&["0\t1\t1\t10", "0\t1\t21\t5", "0\t1\t11\t10", "0\t1\t11\t10"]).is_empty());
    }

    #[test]
    fn a_gap_is_named_with_its_direction() {
        let missing = ranges(&["0\t1\t1\t10", "0\t2\t1\t4", "0\t1\t21\t5", "1\t7\t3\t1"]);
        assert_eq!(
            missing,
            ["stream 0 from port 1: bytes 11 to 20", "stream 1 from port 7: bytes 1 to 2"]
        );
    }

    #[test]
    fn what_is_no_capture_is_an_error() {
        assert!(missing_ranges(&[]).is_err());
        assert!(missing_ranges(&["0\t1\t\t10".to_owned()]).is_err());
    }
}
