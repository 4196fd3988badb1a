//! Writes the seed corpora of the PDU stream targets and of configurations: `cargo run --example seeds` in `fuzz`.
//!
//! This program runs every seed, which must have the outcome stated here. The queues themselves make the
//! correct traffic. The incorrect seeds are mistakes that other implementations failed on, each under
//! its name.

use std::io;
use std::path::Path;

use raceline_fuzz::config::Outcome;
use raceline_fuzz::tcp::{Feed, Trace, host_queue, run_controller, run_host, setup};
use raceline_proto::nvme::{CommandId, Cqe, Direction, SglDescriptor, Sqe};
use raceline_proto::tcp::{
    ControllerQueue, ControllerQueueConfig, FatalError, HostQueue, R2tGrant, Violation,
    Violation as V,
};

const HDGST: u8 = setup::HDGST | setup::REPAIR;
const BOTH: u8 = HDGST | setup::DDGST;

/// A PDU from the values of its common header and the rest.
fn pdu(pdu_type: u8, flags: u8, hlen: u8, pdo: u8, plen: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![pdu_type, flags, hlen, pdo];
    bytes.extend(plen.to_le_bytes());
    bytes.extend(rest);
    bytes
}

/// H2CData, C2HData or R2T with no padding and no digests.
fn data_pdu(pdu_type: u8, flags: u8, cccid: u16, ttag: u16, offset: u32, len: u32) -> Vec<u8> {
    let (pdo, plen) = if pdu_type == 9 { (0, 24) } else { (24, len.wrapping_add(24)) };
    let mut bytes = pdu(pdu_type, flags, 24, pdo, plen, &cccid.to_le_bytes());
    bytes.extend(ttag.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.resize(24, 0);
    if pdu_type != 9 {
        bytes.resize(24 + len.min(64) as usize, 0x5a);
    }
    bytes
}

fn sqe(opc: u8, cid: u16) -> Sqe {
    Sqe { opc, cid: cid.into(), ..Sqe::default() }
}

fn controller_queue() -> ControllerQueue {
    ControllerQueue::new(ControllerQueueConfig {
        max_h2c_data: 4096,
        in_capsule_bytes: 4096,
        max_r2t_slots: 8,
        allow_hdgst: true,
        allow_ddgst: true,
    })
}

/// Ends after ICReq and ICResp, and these PDUs.
fn connected(setup: u8) -> (HostQueue, ControllerQueue, Vec<u8>, Vec<u8>) {
    let (mut host, mut controller) = (host_queue(setup), controller_queue());
    let (mut request, mut response) = (Vec::new(), Vec::new());
    host.ic_req(&mut request);
    controller.receive(&mut &request[..]).expect("a good ICReq");
    controller.ic_resp(&mut response);
    host.receive(&mut &response[..]).expect("a good ICResp");
    (host, controller, request, response)
}

fn payload(out: &mut Vec<u8>, len: usize, setup: u8) {
    let data = vec![0xc3; len];
    out.extend(&data);
    if setup & setup::DDGST != 0 {
        out.extend(raceline_crc32c::crc32c(&data).to_le_bytes());
    }
}

/// The stream of a faultless host: the first R2T of slot n of the model has tag n + 8.
fn host_traffic(setup: u8) -> Vec<u8> {
    let (mut host, _, request, _) = connected(setup);
    let mut out = if setup & setup::RAW != 0 { request } else { Vec::new() };
    host.command(&sqe(2, 1), Direction::ControllerToHost, 512, false, &mut out);
    host.command(&sqe(1, 2), Direction::HostToController, 64, true, &mut out);
    payload(&mut out, 64, setup);
    host.command(&sqe(1, 3), Direction::HostToController, 96, false, &mut out);
    let grant = R2tGrant { cid: CommandId(3), ttag: 11, offset: 0, len: 96 };
    host.h2c_data(&grant, 0, 64, false, &mut out);
    payload(&mut out, 64, setup);
    host.h2c_data(&grant, 64, 32, true, &mut out);
    payload(&mut out, 32, setup);
    host.command(&sqe(0, 4), Direction::None, 0, false, &mut out);
    host.term_req(&FatalError::new(Violation::QueueOverrun), &mut out);
    out
}

/// The stream of a faultless controller for the commands of the model.
fn controller_traffic(setup: u8) -> Vec<u8> {
    let (_, mut controller, _, response) = connected(setup);
    let mut out = if setup & setup::RAW != 0 { response } else { Vec::new() };
    controller.c2h_data(CommandId(1), 0, 32, false, false, &mut out);
    payload(&mut out, 32, setup);
    controller.c2h_data(CommandId(1), 32, 32, true, true, &mut out);
    payload(&mut out, 32, setup);
    controller.r2t(0, CommandId(7), 0, 8, &mut out);
    controller.r2t(1, CommandId(2), 0, 4096, &mut out);
    for cid in [7, 3, 4] {
        controller.response(&Cqe { cid: CommandId(cid), ..Cqe::default() }, &mut out);
    }
    controller.c2h_data(CommandId(9), 0, 64, true, false, &mut out);
    payload(&mut out, 64, setup);
    controller.response(&Cqe { cid: CommandId(9), ..Cqe::default() }, &mut out);
    controller.term_req(&FatalError::new(Violation::QueueOverrun), &mut out);
    out
}

/// A write of 64 bytes whose R2T has tag 11.
fn write_command() -> Vec<u8> {
    let mut out = Vec::new();
    let (mut host, ..) = connected(0);
    host.command(&sqe(1, 3), Direction::HostToController, 64, false, &mut out);
    out
}

fn capsule(pdo: u8, plen: u32, sgl: SglDescriptor) -> Vec<u8> {
    let mut command = sqe(1, 2);
    command.sgl1 = sgl;
    let mut out = Vec::new();
    let (mut host, ..) = connected(0);
    host.command(&command, Direction::HostToController, 64, true, &mut out);
    out[3] = pdo;
    out[4..8].copy_from_slice(&plen.to_le_bytes());
    out[8 + 24..8 + 32].copy_from_slice(&sgl.address.get().to_le_bytes());
    out[8 + 32..8 + 36].copy_from_slice(&sgl.length.get().to_le_bytes());
    out[8 + 39] = sgl.kind;
    out.resize(72 + 64, 0x3c);
    out
}

/// The input, and its required outcome.
struct Seed {
    name: &'static str,
    setup: u8,
    stream: Vec<u8>,
    violation: Option<Violation>,
}

/// A stream without fault.
fn good(name: &'static str, setup: u8, stream: Vec<u8>) -> Seed {
    Seed { name, setup, stream, violation: None }
}

/// A stream that ends the connection.
fn bad(violation: Violation, name: &'static str, setup: u8, stream: Vec<u8>) -> Seed {
    Seed { name, setup, stream, violation: Some(violation) }
}

fn controller_seeds() -> Vec<Seed> {
    let (_, _, request, _) = connected(BOTH);
    let mut bad_request = request.clone();
    bad_request[10] = 32;
    let after_write = |pdu: Vec<u8>| [write_command(), pdu].concat();
    let in_capsule = SglDescriptor::in_capsule;
    let offset = SglDescriptor { address: u64::MAX.into(), ..in_capsule(64) };
    vec![
        good("traffic", 0, host_traffic(0)),
        good("traffic_raw", setup::RAW, host_traffic(setup::RAW)),
        good("traffic_digests", BOTH, host_traffic(BOTH)),
        good("traffic_digests_raw", BOTH | setup::RAW, host_traffic(BOTH | setup::RAW)),
        good("traffic_aligned_admin", 0x70 | BOTH, host_traffic(0x70 | BOTH)),
        bad(V::PdaInvalid, "icreq_bad_with_digests", BOTH | setup::RAW, bad_request),
        bad(V::AlreadyInitialized, "icreq_twice", setup::RAW, [&request[..], &request].concat()),
        bad(V::AlreadyInitialized, "icreq_after_ready", 0, request.clone()),
        bad(
            V::NotInitialized,
            "http_garbage",
            setup::RAW,
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        ),
        bad(V::NotInitialized, "capsule_before_icreq", setup::RAW, write_command()),
        bad(V::TtagNotWaiting, "h2c_without_r2t", 0, data_pdu(6, 4, 3, 3, 0, 64)),
        bad(V::TtagNotWaiting, "h2c_tag_zero", 0, data_pdu(6, 4, 0, 0, 0, 64)),
        bad(V::TtagUnknown, "h2c_tag_max", 0, after_write(data_pdu(6, 4, 3, 0xffff, 0, 64))),
        bad(V::CccidMismatch, "h2c_of_other_command", 0, after_write(data_pdu(6, 4, 2, 11, 0, 64))),
        bad(V::H2cDataoNotNext, "h2c_wrong_offset", 0, after_write(data_pdu(6, 4, 3, 11, 32, 32))),
        bad(V::H2cDataOutOfRange, "h2c_past_end", 0, after_write(data_pdu(6, 4, 3, 11, 0, 68))),
        bad(V::PlenInvalid, "h2c_length_max", 0, after_write(data_pdu(6, 4, 3, 11, 0, u32::MAX))),
        bad(
            V::H2cDataoNotNext,
            "h2c_offset_max",
            0,
            after_write(data_pdu(6, 4, 3, 11, u32::MAX, 64)),
        ),
        bad(V::DatalZero, "h2c_empty", 0, after_write(data_pdu(6, 0, 3, 11, 0, 0))),
        bad(V::H2cLastInvalid, "h2c_no_last", 0, after_write(data_pdu(6, 0, 3, 11, 0, 64))),
        bad(V::TtagNotWaiting, "h2c_twice", 0, after_write(data_pdu(6, 4, 3, 11, 0, 64).repeat(2))),
        bad(V::PlenInvalid, "plen_below_hlen", 0, pdu(4, 0, 72, 0, 8, &[0; 64])),
        bad(V::PlenInvalid, "plen_zero", 0, pdu(6, 0, 24, 24, 0, &[0; 16])),
        bad(V::PdoInvalid, "pdo_below_hlen", 0, capsule(8, 80, in_capsule(64))),
        bad(V::PlenInvalid, "pdo_above_plen", 0, capsule(128, 100, in_capsule(64))),
        bad(V::PdoInvalid, "pdo_max", 0, capsule(255, 400, in_capsule(64))),
        bad(V::HlenInvalid, "hlen_wrong", 0, pdu(4, 0, 255, 0, 255, &[0; 64])),
        bad(
            V::InCapsuleTooLong,
            "capsule_4_gib",
            0,
            capsule(72, u32::MAX, in_capsule(u32::MAX - 72)),
        ),
        bad(V::SglOffsetInvalid, "capsule_offset_max", 0, capsule(72, 136, offset)),
        bad(
            V::SglNotInCapsule,
            "capsule_other_sgl",
            0,
            capsule(72, 136, SglDescriptor::transport(64)),
        ),
        good("capsule_padded", 0, capsule(72, 136, in_capsule(64))),
        bad(V::HdgstMismatch, "digest_wrong", setup::HDGST, pdu(4, 1, 72, 0, 76, &[0; 68])),
    ]
}

fn host_seeds() -> Vec<Seed> {
    let (_, _, _, response) = connected(BOTH);
    let mut bad_response = response.clone();
    bad_response[12..16].copy_from_slice(&[0; 4]);
    let done = |cid: u16| {
        let mut bytes = pdu(5, 0, 24, 0, 24, &[0; 16]);
        bytes[20..22].copy_from_slice(&cid.to_le_bytes());
        bytes
    };
    vec![
        good("traffic", 0, controller_traffic(0)),
        good("traffic_raw", setup::RAW, controller_traffic(setup::RAW)),
        good("traffic_digests", BOTH, controller_traffic(BOTH)),
        good("traffic_digests_raw", BOTH | setup::RAW, controller_traffic(BOTH | setup::RAW)),
        good("traffic_aligned", 0x30 | BOTH, controller_traffic(0x30 | BOTH)),
        bad(V::Maxh2cdataInvalid, "icresp_bad_with_digests", BOTH | setup::RAW, bad_response),
        bad(
            V::AlreadyInitialized,
            "icresp_twice",
            BOTH | setup::RAW,
            [&response[..], &response].concat(),
        ),
        bad(V::NotInitialized, "response_before_icresp", setup::RAW, done(0)),
        bad(V::R2tUnexpected, "r2t_for_read", 0, data_pdu(9, 0, 0, 1, 0, 4096)),
        bad(V::R2tUnexpected, "r2t_for_capsule", 0, data_pdu(9, 0, 3, 1, 0, 512)),
        bad(V::R2tUnexpected, "r2t_for_flush", 0, data_pdu(9, 0, 4, 1, 0, 512)),
        bad(V::R2tlZero, "r2t_empty", 0, data_pdu(9, 0, 2, 1, 0, 0)),
        bad(V::R2tOutOfRange, "r2t_past_end", 0, data_pdu(9, 0, 2, 1, 0, 8196)),
        bad(V::R2tOutOfRange, "r2t_max", 0, data_pdu(9, 0, 2, 1, 0, u32::MAX)),
        bad(V::CccidUnknown, "r2t_of_no_command", 0, data_pdu(9, 0, 0xffff, 1, 0, 512)),
        bad(
            V::TooManyR2ts,
            "r2ts_outstanding",
            setup::VARIANT | setup::LAZY,
            (0..5).flat_map(|n| data_pdu(9, 0, 2, n, u32::from(n) * 512, 512)).collect(),
        ),
        bad(V::C2hDataUnexpected, "c2h_for_write", 0, data_pdu(7, 4, 2, 0, 0, 64)),
        bad(V::CccidUnknown, "c2h_of_no_command", 0, data_pdu(7, 4, 0xffff, 0, 0, 64)),
        bad(V::C2hDataOutOfRange, "c2h_past_end", 0, data_pdu(7, 4, 1, 0, 0, 68)),
        bad(V::PlenInvalid, "c2h_length_max", 0, data_pdu(7, 4, 1, 0, 0, u32::MAX)),
        bad(V::C2hDataoNotNext, "c2h_offset_max", 0, data_pdu(7, 4, 1, 0, u32::MAX, 64)),
        bad(V::DatalZero, "c2h_empty", 0, data_pdu(7, 4, 1, 0, 0, 0)),
        bad(V::SuccessWithoutLast, "c2h_success_no_last", 0, data_pdu(7, 8, 1, 0, 0, 64)),
        bad(V::SuccessShort, "c2h_success_short", 0, data_pdu(7, 12, 1, 0, 0, 32)),
        bad(
            V::C2hDataAfterLast,
            "c2h_after_last",
            0,
            [data_pdu(7, 4, 1, 0, 0, 32), data_pdu(7, 4, 1, 0, 32, 32)].concat(),
        ),
        good("read_short", 0, [data_pdu(7, 4, 1, 0, 0, 32), done(1)].concat()),
        good("fabrics_short", 0, [data_pdu(7, 4, 5, 0, 0, 32), done(5)].concat()),
        bad(V::ResponseCidUnknown, "response_twice", 0, [done(0), done(0)].concat()),
        good("response_generations", 0, [done(0), done(8), done(16)].concat()),
        bad(V::HlenInvalid, "hlen_wrong", 0, pdu(9, 0, 72, 0, 72, &[0; 64])),
        bad(V::PlenInvalid, "plen_wrong", 0, pdu(5, 0, 24, 0, u32::MAX, &[0; 16])),
    ]
}

/// Configurations by name, and their outcomes.
fn config_seeds() -> Vec<(&'static str, Outcome, &'static str)> {
    vec![
        (
            "accepted",
            Outcome::Accepted,
            r#"{"subsystems": [{"subsystem": "bdev", "config": [
 {"method": "bdev_malloc_create", "params": {"name": "m0", "num_blocks": 64, "block_size": 512}},
 [{"method": "bdev_null_create", "params": {"name": "m1", "num_blocks": 64, "block_size": 512}}]]},
 {"subsystem": "scsi", "config": null},
 {"subsystem": "nvmf", "config": [
 {"method": "nvmf_create_subsystem", "params": {"nqn": "nqn.2026-01.io.raceline:a"}},
 {"method": "nvmf_subsystem_add_ns", "params": {"nqn": "nqn.2026-01.io.raceline:a", "namespace": {"bdev_name": "m0"}}}]}]}"#,
        ),
        (
            "kept",
            Outcome::Accepted,
            r#"{"subsystems": [{"subsystem": "vmd", "config": [{"method": "vmd_enable", "params": {}}]},
 {"subsystem": "scheduler", "config": [{"method": "framework_set_scheduler", "params": {"name": "dynamic", "core_limit": 80}}]},
 {"subsystem": "iscsi", "config": [{"method": "set_iscsi_options", "params": {"max_sessions": 16, "other": [1]}}]},
 {"subsystem": "accel", "config": [{"method": "ioat_scan_accel_module"}]}]}"#,
        ),
        (
            "comments",
            Outcome::Accepted,
            "// one\n{/* two\n*/\"subsystems\":[{\"subsystem\":\"bdev\",\"config\":[]}// \"three\n]}/**/ // four",
        ),
        (
            "refused",
            Outcome::Refused,
            r#"{"subsystems": [{"subsystem": "bdev", "config": [
 {"method": "bdev_null_create", "params": {"name": "m1", "num_blocks": 64, "block_size": 512}},
 {"method": "construct_lvol_store"}, {"method": "bdev_null_creat"}]},
 {"subsystem": "vhost_blk", "config": [{"method": "vhost_create_blk_controller"}]}]}"#,
        ),
        (
            "fails",
            Outcome::Failed,
            r#"{"subsystems": [{"subsystem": "bdev", "config": [
 {"method": "bdev_null_create", "params": {"name": "m1", "num_blocks": 64, "block_size": 512}},
 {"method": "bdev_null_create", "params": {"name": "m1", "num_blocks": 64, "block_size": 512}}]}]}"#,
        ),
        (
            "half",
            Outcome::NoConfiguration,
            r#"{"subsystems": [{"subsystem": "bdev", "config": [{"me"#,
        ),
        ("open_comment", Outcome::NoConfiguration, "{\"subsystems\": []} /* open"),
        (
            "twice",
            Outcome::NoConfiguration,
            r#"{"subsystems": [{"subsystem": "a", "config": [{"method": "m", "params": {"a": 1, "a": 2}}]}]}"#,
        ),
        ("mark", Outcome::Accepted, "\u{feff}{\"subsystems\": []}"),
    ]
}

/// Texts, and decisions that make several kinds of configurations.
fn write_config_seeds(corpus: &Path) -> io::Result<()> {
    let folder = corpus.join("config");
    std::fs::create_dir_all(&folder)?;
    for (name, outcome, text) in config_seeds() {
        assert_eq!(raceline_fuzz::config::try_text(text.as_bytes()), outcome, "config {name}");
        std::fs::write(folder.join(name), [&[0], text.as_bytes()].concat())?;
    }
    for seed in 1..=6_u64 {
        let mut state = seed;
        let mut input = vec![1];
        for _ in 0..200 * seed {
            // Knuth's multiplier: the same bytes on every machine.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            input.push(state.to_be_bytes()[0]);
        }
        raceline_fuzz::config::run(&input);
        std::fs::write(folder.join(format!("made-{seed}")), input)?;
    }
    Ok(())
}

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    write_config_seeds(&corpus)?;
    let chunked = corpus.join("chunked_receive");
    std::fs::create_dir_all(&chunked)?;
    for (end, target) in [(0, "pdu_stream_controller"), (1, "pdu_stream_host")] {
        let folder = corpus.join(target);
        std::fs::create_dir_all(&folder)?;
        let (run, seeds): (fn(_, &_, _) -> _, _) = match end {
            0 => (run_controller, controller_seeds()),
            _ => (run_host, host_seeds()),
        };
        for Seed { name, setup, stream, violation } in seeds {
            let trace: Trace = run(setup, &stream, Feed::Whole);
            assert_eq!(trace.violation(), violation, "{target} {name}");
            std::fs::write(folder.join(name), [&[setup], &stream[..]].concat())?;
            // The differential target begins with streams that have several PDUs.
            if stream.len() > 160 {
                let head = [end, setup, 1, 2, 3, 4, 5, 6, 7, 8];
                let path = chunked.join(format!("{target}_{name}"));
                std::fs::write(path, [&head, &stream[..]].concat())?;
            }
        }
    }
    Ok(())
}
