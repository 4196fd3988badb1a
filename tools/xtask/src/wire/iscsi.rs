//! iSCSI in the same step: every PDU type that both ends make, with and without digests, dissected.
//!
//! The PDUs of the initiator are made by hand, because no initiator sends all types, and libiscsi's tools come by as an
//! initiator that is not ours. All of it is about 1 MiB.

pub(crate) mod session;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use self::session::{
    ASYNC, COMMAND, DATA_IN, DATA_OUT, FINAL, Header, IMMEDIATE, LOGIN, LOGIN_RESPONSE, LOGOUT,
    LOGOUT_RESPONSE, NO_TAG, NOP_IN, NOP_OUT, R2T, REJECT, RESPONSE, SNACK, Session, TEXT,
    TEXT_RESPONSE, TMF, TMF_RESPONSE, word,
};
use super::{capture, finish, lines_of, missing_bytes, none, until_complete};
use crate::child::Task;
use crate::interop::free_port;
use crate::raceline::Tree;
use crate::serve::Serve;
use crate::step::Checks;

const IQN: &str = "iqn.2026-01.io.raceline:wire";
const INITIATOR: &str = "iqn.2026-01.io.raceline:hand";

/// Every PDU type of ErrorRecoveryLevel 0, and SNACK, which such a target rejects.
const PDU_TYPES: [(u8, &str); 18] = [
    (NOP_OUT, "NOP-Out"),
    (COMMAND, "SCSI Command"),
    (TMF, "Task Management Function Request"),
    (LOGIN, "Login Request"),
    (TEXT, "Text Request"),
    (DATA_OUT, "Data-Out"),
    (LOGOUT, "Logout Request"),
    (SNACK, "SNACK Request"),
    (NOP_IN, "NOP-In"),
    (RESPONSE, "SCSI Response"),
    (TMF_RESPONSE, "Task Management Function Response"),
    (LOGIN_RESPONSE, "Login Response"),
    (TEXT_RESPONSE, "Text Response"),
    (DATA_IN, "Data-In"),
    (LOGOUT_RESPONSE, "Logout Response"),
    (R2T, "R2T"),
    (ASYNC, "Asynchronous Message"),
    (REJECT, "Reject"),
];

/// Bytes of a block and of the transfers: one fits into a command, one needs R2T, and one is padded.
const BLOCK: usize = 512;
const SMALL: usize = 4096;
const LARGE: usize = 65_536;
const PING: &[u8] = b"seven b";
/// Most bytes of the capture, and the fewest digests of each kind in it.
const MOST_CAPTURED: u64 = 4 << 20;
const FEWEST_DIGESTS: usize = 40;
/// What tshark complains of, and data that it does not take for iSCSI.
const WRONG: &str = "_ws.malformed || _ws.expert.severity == error || iscsi.opcode.invalid || \
    iscsi.keyvalue.invalid || (tcp.len > 0 && !iscsi && !tcp.segment_data)";

/// Captures sessions, and judges them. The inner error says why this user or machine may not capture.
pub(super) fn run(tree: &Tree, scratch: &Path, checks: &mut Checks) -> Result<Result<(), String>> {
    let file = scratch.join("iscsi.pcapng");
    match until_complete(&file, || record(tree, scratch, &file))? {
        Ok((port, ())) => judge(checks, &file, port),
        Err(why) => return Ok(Err(why)),
    }
    Ok(Ok(()))
}

/// Captures the traffic with a daemon of its own; gives the portal's port.
fn record(tree: &Tree, scratch: &Path, file: &Path) -> Result<Result<(u16, ()), String>> {
    let port = free_port()?;
    let mut daemon = Serve::start(tree, scratch, &["--wait-for-rpc"])?;
    let portal = format!("127.0.0.1:{port}");
    for line in [
        // A silent initiator is pinged after a second.
        "iscsi_set_options --nop-in-interval 1 --nop-timeout 30",
        "framework_start_init",
        "bdev_malloc_create -b disk 16 512",
        "iscsi_create_initiator_group 1 ANY ANY",
        &format!("iscsi_create_portal_group 1 {portal}"),
        &format!("iscsi_create_target_node {IQN} alias disk:0 1:1 64"),
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        daemon.rpc(tree, &words)?.limit(60).check().context(line.to_owned())?;
    }
    let capture = match capture(file, port)? {
        Ok(capture) => capture,
        Err(why) => return Ok(Err(why)),
    };
    discover(port)?;
    refused(port)?;
    for (number, (header, data)) in
        [(false, false), (true, false), (false, true), (true, true)].into_iter().enumerate()
    {
        every_kind(port, u16::try_from(number)?, header, data)
            .with_context(|| format!("header digest {header}, data digest {data}"))?;
    }
    asked_to_leave(tree, &daemon, port)?;
    for tool in ["iscsi-inq", "iscsi-readcapacity16"] {
        Task::new(tool).args([format!("iscsi://{portal}/{IQN}/0")]).limit(60).check()?;
    }
    daemon.healthy()?;
    finish(capture)?;
    daemon.stop()?;
    Ok(Ok((port, ())))
}

/// The keys of a login, each with its NUL.
fn keys(more: &[(&str, &str)]) -> String {
    let own = [("InitiatorName", INITIATOR)];
    own.iter().chain(more).map(|(key, value)| format!("{key}={value}\0")).collect()
}

fn final_header(opcode: u8, flags: u8) -> Header {
    let mut header = [0; 48];
    (header[0], header[1]) = (opcode, FINAL | flags);
    header
}

/// A discovery session.
fn discover(port: u16) -> Result<()> {
    let mut session = Session::open(port)?;
    let (status, _) = session.login_step(9, [1, 3], &keys(&[("SessionType", "Discovery")]))?;
    ensure!(status == [0, 0], "discovery: login status {status:?}");
    text(&mut session, "SendTargets=All\0", IQN)?;
    leave(&mut session)
}

/// A target that there is not.
fn refused(port: u16) -> Result<()> {
    let mut session = Session::open(port)?;
    let name = format!("{IQN}-not");
    let (status, _) = session.login_step(8, [1, 3], &keys(&[("TargetName", &name)]))?;
    ensure!(status == [2, 3], "login status {status:?} and not 2/3 (not found)");
    Ok(())
}

/// A session over both stages of a login.
fn enter(port: u16, number: u16, header: bool, data: bool) -> Result<Session> {
    let mut session = Session::open(port)?;
    let security =
        keys(&[("TargetName", IQN), ("SessionType", "Normal"), ("AuthMethod", "CHAP,None")]);
    let (status, text) = session.login_step(number, [0, 1], &security)?;
    ensure!(status == [0, 0] && text.contains("AuthMethod=None"), "{status:?}: {text:?}");
    let digest = |wanted| if wanted { "CRC32C" } else { "None" };
    let wishes = [
        ("HeaderDigest", digest(header)),
        ("DataDigest", digest(data)),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("FirstBurstLength", "8192"),
        ("MaxBurstLength", "32768"),
        ("MaxRecvDataSegmentLength", "16384"),
        ("ErrorRecoveryLevel", "0"),
    ];
    let wishes: String = wishes.iter().map(|(key, value)| format!("{key}={value}\0")).collect();
    let (status, text) = session.login_step(number, [1, 3], &wishes)?;
    ensure!(status == [0, 0], "login status {status:?}: {text:?}");
    ensure!(text.contains(&format!("DataDigest={}", digest(data))), "{text:?}");
    Ok(session.with_digests(header, data))
}

/// Every PDU type but the asynchronous message.
fn every_kind(port: u16, number: u16, header: bool, data: bool) -> Result<()> {
    let mut session = enter(port, number, header, data)?;
    // A new nexus is told of itself: CHECK CONDITION with sense data.
    let status = command(&mut session, &[0; 6], 0, 0)?;
    ensure!(matches!(status, 0 | 2), "TEST UNIT READY: status {status:#x}");
    let bytes: Vec<u8> = (0..LARGE).map(|n| (n % 251).to_le_bytes()[0]).collect();
    for length in [SMALL, LARGE] {
        write(&mut session, &bytes[..length])?;
        ensure!(read(&mut session, length)? == bytes[..length], "other data than were written");
    }
    // INQUIRY with a length that is no multiple of 4, and an opcode that there is not.
    ensure!(command(&mut session, &[0x12, 0, 0, 0, 37, 0], 0x40, 37)? == 0, "INQUIRY failed");
    ensure!(command(&mut session, &[0xc1, 0, 0, 0, 0, 0], 0, 0)? == 2, "opcode C1 was taken");
    let mut header = final_header(NOP_OUT, 0);
    header[20..24].copy_from_slice(&NO_TAG);
    let tag = session.request(header, PING)?;
    let (pong, ping) = session.expect(NOP_IN)?;
    ensure!(word(&pong, 16) == tag && ping == PING, "the ping came back as {ping:?}");
    let mut abort = final_header(TMF | IMMEDIATE, 1);
    abort[20..24].copy_from_slice(&[0, 0, 0x77, 0x77]);
    session.request(abort, &[])?;
    session.expect(TMF_RESPONSE)?;
    text(&mut session, "SendTargets=\0", IQN)?;
    // A target without error recovery has nothing to send again.
    let mut snack = final_header(SNACK, 0);
    snack[16..24].fill(0xff);
    session.send(snack, &[])?;
    let (_, rejected) = session.expect(REJECT)?;
    ensure!(rejected.first() == Some(&SNACK), "a Reject of {rejected:?}");
    session.pinged()?;
    leave(&mut session)
}

/// A target that asks for a logout.
fn asked_to_leave(tree: &Tree, daemon: &Serve, port: u16) -> Result<()> {
    let mut session = enter(port, 7, false, false)?;
    daemon.rpc(tree, &["iscsi_target_node_request_logout", IQN])?.limit(60).check()?;
    let (message, _) = session.expect(ASYNC)?;
    ensure!(message[36] == 1, "asynchronous event {} and not 1 (logout)", message[36]);
    leave(&mut session)
}

fn text(session: &mut Session, keys: &str, expected: &str) -> Result<()> {
    let mut header = final_header(TEXT, 0);
    header[20..24].copy_from_slice(&NO_TAG);
    session.request(header, keys.as_bytes())?;
    let (_, answer) = session.expect(TEXT_RESPONSE)?;
    let answer = String::from_utf8_lossy(&answer);
    ensure!(answer.contains(expected), "{answer:?} without {expected}");
    Ok(())
}

fn leave(session: &mut Session) -> Result<()> {
    session.request(final_header(LOGOUT | IMMEDIATE, 0), &[])?;
    let (answer, _) = session.expect(LOGOUT_RESPONSE)?;
    ensure!(answer[2] == 0, "logout: response {}", answer[2]);
    Ok(())
}

/// The header of a command for LUN 0; the flags are R and W.
fn scsi(cdb: &[u8], flags: u8, length: usize) -> Result<Header> {
    let mut header = final_header(COMMAND, flags | 1);
    header[20..24].copy_from_slice(&u32::try_from(length)?.to_be_bytes());
    header[32..32 + cdb.len()].copy_from_slice(cdb);
    Ok(header)
}

/// READ (10) or WRITE (10) from block 0 on.
fn transfer(opcode: u8, length: usize) -> Result<[u8; 10]> {
    let [high, low] = u16::try_from(length / BLOCK)?.to_be_bytes();
    Ok([opcode, 0, 0, 0, 0, 0, 0, high, low, 0])
}

/// A command whose data, if it reads, are of no interest; gives its status.
fn command(session: &mut Session, cdb: &[u8], flags: u8, length: usize) -> Result<u8> {
    session.request(scsi(cdb, flags, length)?, &[])?;
    let opcode = if length > 0 { DATA_IN } else { RESPONSE };
    let (answer, _) = session.expect(opcode)?;
    Ok(answer[3])
}

/// Reads; data come in PDUs of at most 16 KiB, and the status with the last or behind it.
fn read(session: &mut Session, length: usize) -> Result<Vec<u8>> {
    session.request(scsi(&transfer(0x28, length)?, 0x40, length)?, &[])?;
    let mut data = Vec::with_capacity(length);
    loop {
        let (header, part) = session.next()?;
        match header[0] {
            DATA_IN => data.extend(part),
            RESPONSE => ensure!(header[3] == 0, "READ: status {:#x}", header[3]),
            other => anyhow::bail!("opcode {other:#04x} in a read"),
        }
        if header[0] == RESPONSE || header[1] & 1 != 0 {
            return Ok(data);
        }
    }
}

/// Writes: half of the first burst within the command, the other half unsolicited, the rest on request.
fn write(session: &mut Session, data: &[u8]) -> Result<()> {
    let burst = data.len().min(8192);
    let (within, behind) = data[..burst].split_at(burst / 2);
    let mut header = scsi(&transfer(0x2a, data.len())?, 0x20, data.len())?;
    header[1] &= !FINAL;
    let tag = session.request(header, within)?;
    send_data(session, tag, NO_TAG, within.len(), behind)?;
    loop {
        let (header, _) = session.next()?;
        if header[0] == RESPONSE {
            ensure!(header[3] == 0, "WRITE: status {:#x}", header[3]);
            return Ok(());
        }
        ensure!(header[0] == R2T, "opcode {:#04x} in a write", header[0]);
        let [from, length] = [40, 44].map(|at| u32::from_be_bytes(word(&header, at)));
        let (from, length) = (usize::try_from(from)?, usize::try_from(length)?);
        let wanted = data.get(from..from + length).context("an R2T beyond the command's data")?;
        send_data(session, tag, word(&header, 20), from, wanted)?;
    }
}

/// Data-Out PDUs of at most 8192 bytes.
fn send_data(
    session: &mut Session,
    tag: [u8; 4],
    target_tag: [u8; 4],
    mut offset: usize,
    data: &[u8],
) -> Result<()> {
    let parts = data.chunks(8192);
    let last = parts.len() - 1;
    for (number, part) in parts.enumerate() {
        let mut header = [0; 48];
        (header[0], header[1]) = (DATA_OUT, if number == last { FINAL } else { 0 });
        header[16..20].copy_from_slice(&tag);
        header[20..24].copy_from_slice(&target_tag);
        header[36..40].copy_from_slice(&u32::try_from(number)?.to_be_bytes());
        header[40..44].copy_from_slice(&u32::try_from(offset)?.to_be_bytes());
        session.send(header, part)?;
        offset += part.len();
    }
    Ok(())
}

/// tshark over the capture, with the portal's port as one of iSCSI.
fn tshark(file: &Path, port: u16, words: &[&str]) -> Result<Vec<String>> {
    let mut task = Task::new("tshark").args(["-r"]).args([file]);
    task = task.args(["-n", "-d", &format!("tcp.port=={port},iscsi")]);
    lines_of(task.args(["-o", "tcp.reassemble_out_of_order:TRUE"]).args(words))
}

fn judge(checks: &mut Checks, file: &Path, port: u16) {
    checks.run("iscsi-capture-complete", || none(&missing_bytes(file, port)?));
    checks.run("iscsi-capture-bounded", || {
        let bytes = std::fs::metadata(file)?.len();
        ensure!(bytes <= MOST_CAPTURED, "{bytes} bytes and not {MOST_CAPTURED} at most");
        Ok(())
    });
    checks.run("iscsi-every-pdu-type", || {
        let words = ["-Y", "iscsi", "-T", "fields", "-e", "iscsi.opcode"];
        let lines = tshark(file, port, &words)?;
        let missing = missing_types(&lines)?;
        ensure!(missing.is_empty(), "not seen: {}", missing.join(", "));
        Ok(())
    });
    checks.run("iscsi-nothing-wrong", || {
        let words = ["-Y", WRONG, "-T", "fields", "-e", "frame.number", "-e", "_ws.col.Info"];
        none(&tshark(file, port, &[&words[..], &["-e", "_ws.expert.message"]].concat())?)
    });
    checks.run("iscsi-digests", || {
        let text = tshark(file, port, &["-Y", "iscsi", "-O", "iscsi"])?;
        for kind in ["HeaderDigest", "DataDigest"] {
            let digests: Vec<&String> =
                text.iter().filter(|line| line.trim_start().starts_with(kind)).collect();
            let good = digests.iter().filter(|line| line.contains("(Good CRC32)")).count();
            ensure!(good == digests.len(), "{} {kind} of {} are wrong", digests.len() - good, good);
            ensure!(good >= FEWEST_DIGESTS, "{good} {kind} were checked");
        }
        Ok(())
    });
}

/// The names of the PDU types that are in no line of opcodes (`0x01,0x25`).
fn missing_types(lines: &[String]) -> Result<Vec<&'static str>> {
    let mut seen = BTreeSet::new();
    for word in lines.iter().flat_map(|line| line.split(',')).filter(|word| !word.is_empty()) {
        let digits = word.trim_start_matches("0x");
        seen.insert(u8::from_str_radix(digits, 16).with_context(|| format!("opcode {word:?}"))?);
    }
    let missing = PDU_TYPES.iter().filter(|(opcode, _)| !seen.contains(opcode));
    Ok(missing.map(|(_, name)| *name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_that_were_not_seen_are_named() {
        let line = |opcodes: &[u8]| {
            let words: Vec<String> =
                opcodes.iter().map(|opcode| format!("0x{opcode:02x}")).collect();
            words.join(",")
        };
        let all: Vec<u8> = PDU_TYPES.iter().map(|(opcode, _)| *opcode).collect();
        assert!(
            missing_types(&[line(&all[..4]), String::new(), line(&all[4..])]).unwrap().is_empty()
        );
        assert_eq!(missing_types(&[line(&all[1..])]).unwrap(), ["NOP-Out"]);
        assert!(missing_types(&["x".to_owned()]).is_err());
    }
}
