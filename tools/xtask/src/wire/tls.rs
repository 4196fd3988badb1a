//! A listener with TLS in the same step: what its connections show to whoever captures them.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::{capture, finish, lines_of, missing_bytes, none, until_complete};
use crate::child::Task;
use crate::raceline::{Export, Tree, host, perf_job};
use crate::step::Checks;

/// A key of tests: anyone may know it.
const KEY: &str =
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
const HOSTNQN: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000008";
/// What is written.
const WORD: &[u8] = b"-- a secret of the company --";
const DATA_BYTES: usize = 256 << 10;

/// Types of records (RFC 8446, 5.1), and of the two messages that are in the clear.
const CHANGE_CIPHER_SPEC: u8 = 20;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;

/// Captures connections over TLS, and judges them. The inner error says why this user or machine may not capture.
pub(super) fn run(tree: &Tree, scratch: &Path, checks: &mut Checks) -> Result<Result<(), String>> {
    let file = scratch.join("tls.pcapng");
    match until_complete(&file, || record(tree, scratch, &file))? {
        Ok((port, nqn)) => judge(checks, &file, port, &nqn),
        Err(why) => return Ok(Err(why)),
    }
    Ok(Ok(()))
}

/// Captures the traffic with a target of its own; gives that target's port and subsystem.
fn record(tree: &Tree, scratch: &Path, file: &Path) -> Result<Result<(u16, String), String>> {
    let key = scratch.join("tls.key");
    std::fs::write(&key, KEY)?;
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))?;
    let key = key.display().to_string();
    let words = ["ram:64M", "--host", HOSTNQN, "--tls-psk", &key];
    let mut target = Export::start(tree, &words)?;
    let capture = match capture(file, target.port)? {
        Ok(capture) => capture,
        Err(why) => return Ok(Err(why)),
    };
    let mut address = target.address();
    address.extend(["-q", HOSTNQN, "--tls-psk", &key].map(str::to_owned));
    traffic(tree, &address, scratch)?;
    target.healthy()?;
    finish(capture)?;
    let (port, nqn) = (target.port, target.nqn.clone());
    target.stop("TERM")?;
    Ok(Ok((port, nqn)))
}

fn judge(checks: &mut Checks, file: &Path, port: u16, nqn: &str) {
    checks.run("tls-capture-complete", || none(&missing_bytes(file, port)?));
    checks.run("tls-nothing-readable", || {
        let directions = directions(&payloads(file, port)?)?;
        let secrets = [HOSTNQN.as_bytes(), nqn.as_bytes(), WORD];
        ensure!(directions.len() >= 8, "{} directions were captured", directions.len());
        let mut hellos = 0;
        for ((stream, source), bytes) in &directions {
            let from_target = *source == u64::from(port);
            let shown = readable(bytes, from_target, &secrets);
            hellos += shown.with_context(|| format!("stream {stream} from port {source}"))?;
        }
        // The check can fail: the names are in the ClientHello.
        ensure!(hellos * 2 == directions.len(), "{hellos} ClientHellos with the host's name");
        Ok(())
    });
    checks.run("tls-as-tshark-reads-it", || {
        none(&dissect(file, port, "_ws.malformed", "frame.number")?)?;
        let seen = dissect(file, port, "tls.handshake.type", "tls.handshake.type")?;
        let mut types: Vec<&str> = seen.iter().flat_map(|line| line.split(',')).collect();
        types.sort_unstable();
        types.dedup();
        ensure!(types == ["1", "2"], "handshake messages in the clear: {types:?}");
        none(&dissect(file, port, "nvme-tcp", "frame.number")?)
    });
}

/// Verbs with names, and data of one word, in commands of several sizes.
fn traffic(tree: &Tree, address: &[String], scratch: &Path) -> Result<()> {
    host(tree, "identify", address, &[])?;
    let data: Vec<u8> = WORD.iter().copied().cycle().take(DATA_BYTES).collect();
    let (from, to) = (scratch.join("secret"), scratch.join("secret-back"));
    std::fs::write(&from, &data)?;
    host(tree, "write", address, &[&*from.to_string_lossy()])?;
    let blocks = (DATA_BYTES / 512).to_string();
    host(tree, "read", address, &["--blocks", &blocks, &*to.to_string_lossy()])?;
    ensure!(std::fs::read(&to)? == data, "what was read differs from what was written");
    let words = ["--rw", "randread", "--bs", "4k", "--iodepth", "8", "-i", "2", "--size", "256k"];
    // Unpaced reads are hundreds of megabytes on a fast machine, more than a capture on disk keeps up with.
    let pace = ["--runtime", "1", "--ramp_time", "0", "--rate_iops", "1000"];
    perf_job(tree, address, &[&words[..], &pace].concat())?;
    Ok(())
}

/// Fails if a direction of a connection shows one of the words, or is anything but records of TLS. Gives how many of its
/// records are a ClientHello with the first of the words.
fn readable(bytes: &[u8], from_target: bool, words: &[&[u8]]) -> Result<usize> {
    let (mut rest, mut number, mut hellos) = (bytes, 0, 0);
    while let [kind, 3, 1 | 3, high, low, body @ ..] = rest {
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        let Some((body, later)) = body.split_at_checked(len) else {
            bail!("record {number} of {len} bytes is cut off");
        };
        let message = body.first().copied();
        let is_clear = match (*kind, number) {
            (HANDSHAKE, 0) if !from_target => {
                ensure!(message == Some(CLIENT_HELLO), "it does not begin with a ClientHello");
                hellos += usize::from(contains(body, words[0]));
                true
            }
            (HANDSHAKE, 0) => {
                ensure!(message == Some(SERVER_HELLO), "it does not begin with a ServerHello");
                false
            }
            (CHANGE_CIPHER_SPEC, _) => {
                ensure!(body == [1], "a strange change_cipher_spec");
                false
            }
            (APPLICATION_DATA, 1..) => false,
            (kind, _) => bail!("record {number} has type {kind}"),
        };
        for word in words.iter().filter(|_| !is_clear) {
            ensure!(!contains(body, word), "record {number} shows {}", word.escape_ascii());
        }
        (rest, number) = (later, number + 1);
    }
    ensure!(rest.is_empty() && number > 1, "{} bytes after {number} records", rest.len());
    Ok(hellos)
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|part| part == word)
}

/// Runs tshark over the capture, with the port as one of TLS.
fn dissect(file: &Path, port: u16, filter: &str, fields: &str) -> Result<Vec<String>> {
    let mut task = Task::new("tshark").args(["-r"]).args([file]);
    task = task.args(["-n", "-d", &format!("tcp.port=={port},tls")]);
    task = task.args(["-o", "tcp.reassemble_out_of_order:TRUE", "-Y", filter, "-T", "fields"]);
    for field in fields.split(' ') {
        task = task.args(["-e", field]);
    }
    lines_of(task)
}

/// One line for each packet with data: stream, source port, relative sequence number, bytes in hexadecimal digits.
fn payloads(file: &Path, port: u16) -> Result<Vec<String>> {
    dissect(file, port, "tcp.len > 0", "tcp.stream tcp.srcport tcp.seq tcp.payload")
}

/// The bytes of each direction of each connection, from such lines.
fn directions(lines: &[String]) -> Result<BTreeMap<(u64, u64), Vec<u8>>> {
    let mut found: BTreeMap<(u64, u64), Vec<u8>> = BTreeMap::new();
    for line in lines {
        let words: Vec<&str> = line.split('\t').collect();
        let [stream, source, sequence, digits] = words[..] else {
            bail!("tshark printed {line:?} where four fields were asked for");
        };
        let payload = hex(digits).with_context(|| format!("not hexadecimal: {digits:?}"))?;
        let bytes = found.entry((stream.parse()?, source.parse()?)).or_default();
        // The first byte of data has the relative number 1: the SYN is 0.
        let start = sequence.parse::<usize>()?.checked_sub(1).context("sequence number 0")?;
        let end = start + payload.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(&payload);
    }
    Ok(found)
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> = digits.bytes().filter(|digit| *digit != b':').collect();
    let pairs = digits.chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok().filter(|_| pair.len() == 2)
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [&[u8]; 2] = [b"host", b"data"];

    fn record(kind: u8, body: &[u8]) -> Vec<u8> {
        let [high, low] = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&[kind, 3, 3, high, low], body].concat()
    }

    #[test]
    fn what_may_be_seen_and_what_may_not() {
        let hello = record(HANDSHAKE, b"\x01host");
        let sealed = record(APPLICATION_DATA, b"xyz");
        let ccs = record(CHANGE_CIPHER_SPEC, &[1]);
        let good = [&hello[..], &ccs, &sealed, &sealed].concat();
        assert_eq!(readable(&good, false, &WORDS).unwrap(), 1);
        let server = [&record(HANDSHAKE, b"\x02")[..], &sealed].concat();
        assert_eq!(readable(&server, true, &WORDS).unwrap(), 0);
        for bad in [
            [&hello[..], &record(APPLICATION_DATA, b"..data..")].concat(),
            [&hello[..], &record(APPLICATION_DATA, b"the host")].concat(),
            [&hello[..], b"\0\0\x80\0plain"].concat(),
            [&hello[..], &record(HANDSHAKE, b"\x01host")].concat(),
            [&hello[..], &record(21, &[2, 40])].concat(),
            [&hello[..], &sealed[..6]].concat(),
            sealed.clone(),
        ] {
            assert!(readable(&bad, false, &WORDS).is_err(), "{}", bad.escape_ascii());
        }
        assert!(readable(&good, true, &WORDS).is_err());
    }

    #[test]
    fn directions_are_put_together_in_any_order() {
        let lines = ["0\t9\t4\t6465", "0\t9\t1\t616263", "0\t9\t1\t616263", "0\t7\t1\t78"];
        let found = directions(&lines.map(str::to_owned)).unwrap();
        assert_eq!((&*found[&(0, 9)], &*found[&(0, 7)]), (&b"abcde"[..], &b"x"[..]));
        assert!(directions(&["0\t9\t1\t6".to_owned()]).is_err());
    }
}
