//! What an initiator may do wrong after its login, and what the target makes of it. Requests are made by hand.

mod common;

use common::bench::{Answer, Bench, assert_aborted, assert_rejected, len};
use common::disk::{Setup, TARGET};
use raceline_iscsi::Violation;
use raceline_iscsi::pdu::{
    DataIn, DataOut, LoginRequest, LogoutRequest, LogoutResponse, NopOut, R2t, RESERVED_TAG,
    RejectReason, ScsiCommand, ScsiResponse, Snack, TextRequest, TextResponse, TmfRequest,
    TmfResponse, opcode,
};
use raceline_iscsi::target::TargetConfig;

#[test]
fn commands_outside_the_window_are_dropped_in_silence() {
    let mut bench = Bench::plain();
    for ahead in [u32::MAX, 1, 64, 70_000] {
        let wrong = bench.cmd_sn.wrapping_add(ahead);
        let mut command = bench.command(2, 0xc0, 512, 0x28, 1);
        bench.cmd_sn -= 1;
        command.cmd_sn = wrong;
        assert_eq!(bench.send(&command.encode(0), &[]), []);
        // With data, which are dropped, too.
        let mut write = bench.command(2, 0xa0, 512, 0x2a, 1);
        bench.cmd_sn -= 1;
        write.cmd_sn = wrong;
        assert_eq!(bench.send(&write.encode(512), &[1; 512]), []);
        let text = TextRequest {
            flags: 0x80,
            itt: 2,
            ttt: RESERVED_TAG,
            cmd_sn: wrong,
            ..TextRequest::default()
        };
        assert_eq!(bench.send(&text.encode(4), b"A=1\0"), []);
        bench.assert_works();
    }
    assert!(bench.disk.data.iter().all(|&byte| byte == 0));
}

#[test]
fn the_window_closes_and_opens_with_each_answer() {
    let mut bench = Bench::logged_in(Setup { window: 3, ..Setup::default() }, "");
    bench.disk.hold = true;
    for itt in 2..5 {
        let read = bench.command(itt, 0xc0, 512, 0x28, 1);
        assert_eq!(bench.send(&read.encode(0), &[]), []);
    }
    let fourth = bench.command(5, 0xc0, 512, 0x28, 1);
    assert_eq!(bench.send(&fourth.encode(0), &[]), [], "beyond the window");
    assert_eq!(bench.disk.commands, 3);
    let mut out = Vec::new();
    bench.disk.hold = false;
    bench.disk.release(&mut out);
    let answers = bench.parse(&out);
    let maxima: Vec<_> = answers.iter().map(|(header, _)| DataIn::decode(header)).collect();
    assert_eq!(maxima.iter().map(|pdu| pdu.stat_sn).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(maxima.iter().all(|pdu| pdu.exp_cmd_sn == 13));
    assert_eq!(maxima.iter().map(|pdu| pdu.max_cmd_sn).collect::<Vec<_>>(), [13, 14, 15]);
    assert_eq!(bench.send(&fourth.encode(0), &[]).len(), 1, "it fits now");
}

#[test]
fn immediate_commands_have_slots_of_their_own() {
    let mut setup = Setup { window: 1, ..Setup::default() };
    setup.config.immediate_slots = 2;
    let mut bench = Bench::logged_in(setup, "");
    bench.disk.hold = true;
    let read = bench.command(2, 0xc0, 512, 0x28, 1);
    assert_eq!(bench.send(&read.encode(0), &[]), []);
    for itt in 3..5 {
        let read = ScsiCommand { immediate: true, itt, cmd_sn: 0, ..read };
        assert_eq!(bench.send(&read.encode(0), &[]), []);
    }
    let read = ScsiCommand { immediate: true, itt: 5, ..read };
    let header = read.encode(0);
    assert_rejected(&bench.send(&header, &[]), RejectReason::ImmediateCommand, &header);
    let tmf = TmfRequest { immediate: true, flags: 0x85, itt: 6, ..TmfRequest::default() };
    let header = tmf.encode(0);
    assert_rejected(&bench.send(&header, &[]), RejectReason::ImmediateCommand, &header);
    assert_eq!(bench.disk.commands, 3);
    let mut out = Vec::new();
    bench.disk.hold = false;
    bench.disk.release(&mut out);
    assert_eq!(bench.parse(&out).len(), 3);
    bench.assert_works();
}

#[test]
fn a_tag_that_is_in_use_is_rejected() {
    let mut bench = Bench::plain();
    bench.disk.hold = true;
    let read = bench.command(2, 0xc0, 512, 0x28, 1);
    assert_eq!(bench.send(&read.encode(0), &[]), []);
    let again = bench.command(2, 0xa0, 512, 0x2a, 1).encode(512);
    assert_rejected(&bench.send(&again, &[3; 512]), RejectReason::TaskInProgress, &again);
    let ping = NopOut { immediate: true, itt: 2, ttt: RESERVED_TAG, ..NopOut::default() }.encode(0);
    assert_rejected(&bench.send(&ping, &[]), RejectReason::TaskInProgress, &ping);
    let mut out = Vec::new();
    bench.disk.hold = false;
    bench.disk.release(&mut out);
    bench.assert_works();
}

#[test]
fn commands_that_make_no_sense_are_rejected() {
    let mut bench = Bench::plain();
    let both = bench.command(2, 0xe0, 512, 0x28, 1).encode(0);
    assert_rejected(&bench.send(&both, &[]), RejectReason::Protocol, &both);
    let neither = bench.command(2, 0x80, 512, 0x28, 1).encode(0);
    assert_rejected(&bench.send(&neither, &[]), RejectReason::InvalidField, &neither);
    let untagged = bench.command(RESERVED_TAG, 0xc0, 512, 0x28, 1).encode(0);
    assert_rejected(&bench.send(&untagged, &[]), RejectReason::InvalidField, &untagged);
    // An additional header segment: an extended CDB.
    let mut extended = bench.command(2, 0xc0, 512, 0x7f, 1).encode(0).to_vec();
    extended[4] = 2;
    extended.extend_from_slice(&[0, 5, 1, 0, 0, 0, 0, 0]);
    let answers = bench.send(&extended, &[]);
    assert_rejected(&answers, RejectReason::Unsupported, &extended[..48]);
    bench.assert_works();
}

#[test]
fn unknown_opcodes_and_snacks_are_rejected() {
    let mut bench = Bench::plain();
    let snack = Snack { flags: 0x80, itt: 2, ttt: RESERVED_TAG, ..Snack::default() }.encode(0);
    assert_rejected(&bench.send(&snack, &[]), RejectReason::Snack, &snack);
    for (opcode, reason) in [
        (0x07, RejectReason::Unsupported),
        (0x1c, RejectReason::Unsupported),
        (0x20, RejectReason::Protocol),
        (0x25, RejectReason::Protocol),
        (0x3f, RejectReason::Protocol),
    ] {
        let mut header = NopOut::default().encode(5);
        header[0] = opcode;
        assert_rejected(&bench.send(&header, b"12345"), reason, &header);
    }
    bench.assert_works();
}

#[test]
fn framing_that_cannot_be_believed_ends_the_connection() {
    let mut bench = Bench::plain();
    assert_eq!(bench.send(&NopOut::default().encode(262_145), &[]), []);
    assert_eq!(bench.error, Some(Violation::DataSegmentTooLong));

    let mut bench = Bench::plain();
    let mut header = NopOut::default().encode(0);
    header[4] = 16;
    assert_eq!(bench.send(&header, &[]), []);
    assert_eq!(bench.error, Some(Violation::AhsTooLong));

    let mut bench = Bench::plain();
    let login = LoginRequest { immediate: true, flags: 0x87, ..LoginRequest::default() }.encode(0);
    assert_rejected(&bench.send(&login, &[]), RejectReason::Protocol, &login);
    assert_eq!(bench.error, Some(Violation::LoginAgain));

    let mut bench = Bench::logged_in(Setup::default(), "HeaderDigest=CRC32C");
    assert!(bench.header_digest);
    bench.assert_works();
    bench.header_digest = false;
    let mut bytes = NopOut::default().encode(0).to_vec();
    bytes.extend_from_slice(&[0; 4]);
    assert_eq!(bench.send_bytes(&bytes), []);
    assert_eq!(bench.error, Some(Violation::HeaderDigest));
    assert!(bench.disk.closing);
}

/// The same PDU with additional header segments of this many words, which hold what is no header.
fn with_ahs(header: &[u8; 48], words: u8) -> Vec<u8> {
    let mut bytes = header.to_vec();
    bytes[4] = words;
    bytes.extend(vec![0x03; usize::from(words) * 4]);
    bytes
}

#[test]
fn additional_header_segments_of_any_length_keep_the_framing() {
    for words in [1, 2, 14, 15] {
        let mut bench = Bench::plain();
        let ping = NopOut { immediate: true, itt: 2, ttt: RESERVED_TAG, ..NopOut::default() };
        let answers = bench.send(&with_ahs(&ping.encode(4), words), b"ping");
        assert_eq!((answers.len(), &answers[0].1[..]), (1, &b"ping"[..]), "{words}");
        // Of a command with data: both are dropped.
        let write = with_ahs(&bench.command(2, 0xa0, 512, 0x2a, 1).encode(512), words);
        let answers = bench.send(&write, &[1; 512]);
        assert_rejected(&answers, RejectReason::Unsupported, &write[..48]);
        // Of data that were asked for.
        let ttt = bench.write(2, 1);
        let pdu = DataOut { flags: 0x80, itt: 2, ttt, ..DataOut::default() };
        let answers = bench.send(&with_ahs(&pdu.encode(512), words), &[5; 512]);
        assert_eq!(ScsiResponse::decode(&answers[0].0).status, 0, "{words}");
        assert!(bench.disk.data[..512].iter().all(|&byte| byte == 5));
        bench.assert_works();
    }
}

#[test]
fn longer_header_segments_end_the_connection_before_they_come() {
    for opcode in 0..0x40 {
        for words in [16, 17, 255] {
            let mut bench = Bench::plain();
            let mut first = [0; 8];
            (first[0], first[4]) = (opcode, words);
            // The first 8 bytes tell: nothing behind them is waited for.
            let answers = bench.send_bytes(&first);
            assert_eq!((answers.len(), bench.error), (0, Some(Violation::AhsTooLong)));
            assert!(bench.disk.closing, "{opcode:02x}h");
            assert_eq!(bench.send_bytes(&[0; 4096]), [], "nothing is taken any more");
        }
    }
}

#[test]
fn r2ts_that_are_answered_twice_harm_no_other_command() {
    let mut bench = Bench::plain();
    let first = bench.write(2, 1);
    let answer = DataOut { flags: 0x80, itt: 2, ttt: first, ..DataOut::default() };
    assert_eq!(bench.data_out(answer, &[1; 512]).len(), 1);
    // The next command has the same slot and the same tag, and another R2T.
    let mut command = bench.command(2, 0xa0, 512, 0x2a, 1);
    command.cdb[5] = 1;
    let answers = bench.send(&command.encode(0), &[]);
    let second = R2t::decode(&answers[0].0).ttt;
    assert_ne!(first, second);
    assert_rejected(
        &bench.data_out(answer, &[9; 512]),
        RejectReason::InvalidField,
        &answer.encode(512),
    );
    let right = DataOut { ttt: second, ..answer };
    let answers = bench.data_out(right, &[2; 512]);
    assert_eq!(ScsiResponse::decode(&answers[0].0).status, 0);
    assert!(bench.disk.data[..512].iter().all(|&byte| byte == 1));
    assert!(bench.disk.data[512..1024].iter().all(|&byte| byte == 2));
    bench.assert_works();
}

#[test]
fn more_commands_than_the_window_holds_make_no_slot() {
    let setup = Setup { window: 4, ..Setup::default() };
    let immediates = usize::from(setup.config.immediate_slots);
    let mut bench = Bench::logged_in(setup, "");
    bench.disk.hold = true;
    assert_eq!(bench.disk.target.task_slots(), 4 + immediates);
    for itt in 2..200 {
        let read = bench.command(itt, 0xc0, 512, 0x28, 1);
        assert_eq!(bench.send(&read.encode(0), &[]), []);
    }
    assert_eq!((bench.disk.commands, bench.disk.target.live_tasks()), (4, 4));
    bench.cmd_sn -= 194;
    let mut out = Vec::new();
    bench.disk.hold = false;
    bench.disk.release(&mut out);
    assert_eq!(bench.parse(&out).len(), 4);
    bench.assert_works();
}

#[test]
fn wrong_data_digests() {
    let login = || Bench::logged_in(Setup::default(), "DataDigest=CRC32C ImmediateData=Yes");
    // Of Data-Out: a Reject, and the command fails.
    let mut bench = login();
    let ttt = bench.write(2, 1);
    let pdu = DataOut { flags: 0x80, itt: 2, ttt, ..DataOut::default() };
    let mut bytes = pdu.encode(512).to_vec();
    bytes.extend_from_slice(&[9; 516]);
    let answers = bench.send_bytes(&bytes);
    assert_rejected(&answers[..1], RejectReason::DataDigest, &pdu.encode(512));
    assert_aborted(&answers[1..], 0x47, 0x05);
    bench.assert_works();
    // Of immediate data: the connection ends, after a Reject.
    let mut bench = login();
    let command = bench.command(2, 0xa0, 512, 0x2a, 1).encode(512);
    let mut bytes = command.to_vec();
    bytes.extend_from_slice(&[9; 516]);
    let answers = bench.send_bytes(&bytes);
    assert_rejected(&answers, RejectReason::DataDigest, &command);
    assert_eq!(bench.error, Some(Violation::DataDigest));
    // Of a ping: likewise.
    let mut bench = login();
    let ping = NopOut { immediate: true, itt: 2, ttt: RESERVED_TAG, ..NopOut::default() }.encode(3);
    let mut bytes = ping.to_vec();
    bytes.extend_from_slice(b"abc\0nope");
    assert_rejected(&bench.send_bytes(&bytes), RejectReason::DataDigest, &ping);
    assert_eq!(bench.error, Some(Violation::DataDigest));
    assert!(bench.disk.data.iter().all(|&byte| byte == 0), "the disk has seen none of it");
}

#[test]
fn data_that_were_not_negotiated_fail_their_command() {
    // Keys, flags, EDTL, immediate data, additional sense.
    type Case = (&'static str, u8, u32, usize, (u8, u8));
    let cases: [Case; 7] = [
        ("ImmediateData=No", 0xa0, 512, 512, (0x0c, 0x0c)),
        ("InitialR2T=Yes", 0x20, 1024, 0, (0x0c, 0x0c)),
        ("InitialR2T=Yes", 0x20, 1024, 512, (0x0c, 0x0c)),
        ("", 0xc0, 512, 512, (0x0c, 0x0c)),  // a read with data
        ("", 0xa0, 512, 1024, (0x0c, 0x0d)), // more than EDTL
        ("FirstBurstLength=512", 0xa0, 1024, 1024, (0x0c, 0x0d)), // more than the first burst
        ("FirstBurstLength=512 InitialR2T=No", 0x20, 1024, 512, (0x0c, 0x0d)), // nothing is left
    ];
    for (keys, flags, edtl, immediate, (asc, ascq)) in cases {
        let mut bench = Bench::logged_in(Setup::default(), keys);
        let opcode = if flags & 0x40 != 0 { 0x28 } else { 0x2a };
        let command = bench.command(2, flags, edtl, opcode, 1);
        let data = vec![1; immediate];
        assert_aborted(&bench.send(&command.encode(len(&data)), &data), asc, ascq);
        // Unsolicited data that still come are dropped.
        if flags & 0x80 == 0 {
            let late = DataOut { flags: 0x80, itt: 2, ttt: RESERVED_TAG, ..DataOut::default() };
            assert_eq!(bench.data_out(late, &[1; 512]), [], "{keys}");
        }
        bench.assert_works();
        assert!(bench.disk.data.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn data_out_that_contradict_their_r2t_fail_the_command() {
    let right = DataOut { flags: 0x80, itt: 2, ..DataOut::default() };
    let cases: [(DataOut, usize); 8] = [
        (DataOut { data_sn: 1, ..right }, 1024),
        (DataOut { data_sn: 27, ..right }, 1024),
        (DataOut { data_sn: u32::MAX, ..right }, 1024),
        (DataOut { buffer_offset: 512, ..right }, 512),
        (DataOut { buffer_offset: u32::MAX, ..right }, 1024),
        (right, 512),                          // F too early
        (DataOut { flags: 0, ..right }, 1024), // F missing
        (right, 1536),                         // beyond the range
    ];
    for (pdu, count) in cases {
        let mut bench = Bench::plain();
        let ttt = bench.write(2, 2);
        let pdu = DataOut { ttt, ..pdu };
        let answers = bench.data_out(pdu, &vec![1; count]);
        assert_aborted(&answers, 0x0c, 0x0d);
        // What comes later for the same R2T is dropped.
        assert_eq!(bench.data_out(DataOut { ttt, ..right }, &[1; 1024]), []);
        bench.assert_works();
        assert!(bench.disk.data.iter().all(|&byte| byte == 0), "{pdu:?}");
    }
}

#[test]
fn data_out_in_the_wrong_order_fail_the_command() {
    // DataSN 1 before 0, and 0 twice.
    for second in [0, 2] {
        let mut bench = Bench::plain();
        let ttt = bench.write(2, 2);
        let first = DataOut { flags: 0, itt: 2, ttt, ..DataOut::default() };
        assert_eq!(bench.data_out(first, &[1; 512]), []);
        let pdu =
            DataOut { flags: 0x80, itt: 2, ttt, data_sn: second, buffer_offset: 512, ..first };
        assert_aborted(&bench.data_out(pdu, &[1; 512]), 0x0c, 0x0d);
        bench.assert_works();
    }
}

#[test]
fn data_out_for_nothing_are_rejected() {
    let mut bench = Bench::plain();
    let ttt = bench.write(2, 1);
    for pdu in [
        DataOut { flags: 0x80, itt: 3, ttt, ..DataOut::default() },
        DataOut { flags: 0x80, itt: 2, ttt: ttt ^ 0x8000_0000, ..DataOut::default() },
        DataOut { flags: 0x80, itt: 2, ttt: ttt ^ 1, ..DataOut::default() },
        DataOut { flags: 0x80, itt: 99, ttt: RESERVED_TAG, ..DataOut::default() },
    ] {
        let answers = bench.data_out(pdu, &[1; 512]);
        assert_rejected(&answers, RejectReason::InvalidField, &pdu.encode(512));
    }
    let right = DataOut { flags: 0x80, itt: 2, ttt, ..DataOut::default() };
    let answers = bench.data_out(right, &[5; 512]);
    assert_eq!(answers.len(), 1);
    assert_eq!(ScsiResponse::decode(&answers[0].0).status, 0);
    assert_eq!(ScsiResponse::decode(&answers[0].0).exp_data_sn, 1, "one R2T");
    assert!(bench.disk.data[..512].iter().all(|&byte| byte == 5));
    // The R2T is used up.
    assert_rejected(
        &bench.data_out(right, &[6; 512]),
        RejectReason::InvalidField,
        &right.encode(512),
    );
    bench.assert_works();
}

#[test]
fn unsolicited_data_of_a_command_that_has_none() {
    let mut bench = Bench::plain();
    bench.write(2, 2);
    let pdu = DataOut { flags: 0x80, itt: 2, ttt: RESERVED_TAG, ..DataOut::default() };
    assert_aborted(&bench.data_out(pdu, &[1; 1024]), 0x0c, 0x0c);
    bench.assert_works();
}

#[test]
fn r2ts_have_their_numbers() {
    let config =
        TargetConfig { max_burst_len: 512, first_burst_len: 512, ..TargetConfig::default() };
    let mut bench = Bench::logged_in(Setup { config, ..Setup::default() }, "MaxBurstLength=512");
    let mut command = bench.command(2, 0xa0, 1536, 0x2a, 3);
    command.lun = 0x0001_0000_0000_0000;
    let mut answers = bench.send(&command.encode(0), &[]);
    let mut ttts = Vec::new();
    for number in 0..3 {
        let r2t = R2t::decode(&answers[0].0);
        assert_eq!((r2t.r2t_sn, r2t.buffer_offset, r2t.desired_len), (number, number * 512, 512));
        assert_eq!((r2t.lun, r2t.itt, r2t.stat_sn), (command.lun, 2, 1), "StatSN is not used up");
        ttts.push(r2t.ttt);
        let pdu = DataOut {
            flags: 0x80,
            itt: 2,
            ttt: r2t.ttt,
            buffer_offset: number * 512,
            ..DataOut::default()
        };
        answers = bench.data_out(pdu, &[7; 512]);
    }
    ttts.dedup();
    assert_eq!(ttts.len(), 3, "every R2T has a tag of its own");
    let response = ScsiResponse::decode(&answers[0].0);
    assert_eq!((response.status, response.stat_sn, response.exp_data_sn), (0, 1, 3));
}

#[test]
fn pings_without_a_tag_and_late_pongs_mean_nothing() {
    let mut bench = Bench::plain();
    let silent =
        NopOut { immediate: true, itt: RESERVED_TAG, ttt: RESERVED_TAG, ..NopOut::default() };
    assert_eq!(bench.send(&silent.encode(4), b"ping"), []);
    let counted = NopOut { immediate: false, cmd_sn: bench.next_sn(), ..silent };
    assert_eq!(bench.send(&counted.encode(0), &[]), []);
    let late = NopOut { ttt: 1234, ..silent };
    assert_eq!(bench.send(&late.encode(0), &[]), []);
    assert_eq!(bench.disk.pongs, 0);
    bench.assert_works();
}

#[test]
fn task_management_of_nothing() {
    let mut bench = Bench::plain();
    let abort = |cmd_sn, ref_cmd_sn| TmfRequest {
        immediate: true,
        flags: 0x81,
        itt: 3,
        rtt: 99,
        cmd_sn,
        ref_cmd_sn,
        ..TmfRequest::default()
    };
    let response = |answers: Vec<Answer>| {
        assert_eq!(answers.len(), 1);
        TmfResponse::decode(&answers[0].0)
    };
    // A command that was long ago.
    let old = abort(bench.cmd_sn, bench.cmd_sn - 1);
    assert_eq!(response(bench.send(&old.encode(0), &[])).response, 1);
    // One that never came, and counts as received from now on.
    let never = bench.next_sn();
    let answer = response(bench.send(&abort(bench.cmd_sn, never).encode(0), &[]));
    assert_eq!((answer.response, answer.exp_cmd_sn), (0, never + 1));
    bench.assert_works();
    // An unknown function is the driver's to refuse: the test's driver completes it.
    let unknown = TmfRequest { immediate: true, flags: 0xff, itt: 3, ..TmfRequest::default() };
    assert_eq!(bench.send(&unknown.encode(0), &[]).len(), 1);
    bench.assert_alive();
}

#[test]
fn text_that_fails_leaves_the_connection_alone() {
    let mut bench = Bench::plain();
    for value in ["SendTargets=All", "SendTargets=Alle", "SendTargets=A", "NoValue"] {
        let text = TextRequest {
            flags: 0x80,
            itt: 5,
            ttt: RESERVED_TAG,
            cmd_sn: bench.next_sn(),
            ..TextRequest::default()
        };
        let data = [value.as_bytes(), &[0]].concat();
        let answers = bench.send(&text.encode(len(&data)), &data);
        assert_eq!(answers.len(), 1, "{value}");
        assert_eq!(answers[0].0[0], opcode::REJECT, "{value}");
    }
    let mut text = TextRequest {
        flags: 0x80,
        itt: 5,
        ttt: RESERVED_TAG,
        cmd_sn: bench.next_sn(),
        ..TextRequest::default()
    };
    let answers = bench.send(&text.encode(20), b"SendTargetsPlease=1\0");
    assert_eq!(answers[0].1, b"SendTargetsPlease=NotUnderstood\0");
    assert_eq!(TextResponse::decode(&answers[0].0).flags, 0x80);
    text.cmd_sn = bench.next_sn();
    let answers = bench.send(&text.encode(13), b"SendTargets=\0");
    assert!(answers[0].1.starts_with(format!("TargetName={TARGET}\0").as_bytes()));
    // A page of a negotiation that there is not.
    text.cmd_sn = bench.next_sn();
    text.ttt = 77;
    let header = text.encode(0);
    assert_rejected(&bench.send(&header, &[]), RejectReason::InvalidField, &header);
    bench.assert_works();
}

#[test]
fn nothing_is_taken_after_a_logout() {
    let mut bench = Bench::plain();
    let logout = LogoutRequest { immediate: true, flags: 0x80, itt: 8, ..LogoutRequest::default() };
    let mut bytes = logout.encode(0).to_vec();
    bytes.extend_from_slice(&NopOut::default().encode(0));
    let answers = bench.send_bytes(&bytes);
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].0[0], opcode::LOGOUT_RESPONSE);
    assert!(bench.disk.closing);
    let mut bench = Bench::plain();
    // Another connection, and recovery: the connection lives on.
    for (flags, cid, response) in [(0x81, 9, 1), (0x82, 0, 2)] {
        let cmd_sn = bench.next_sn();
        let logout = LogoutRequest { immediate: false, flags, cid, cmd_sn, ..logout };
        let answers = bench.send(&logout.encode(0), &[]);
        assert_eq!(answers.len(), 1);
        assert_eq!(LogoutResponse::decode(&answers[0].0).response, response);
        bench.assert_works();
    }
    let strange = LogoutRequest { flags: 0x83, ..logout }.encode(0);
    assert_rejected(&bench.send(&strange, &[]), RejectReason::InvalidField, &strange);
    bench.assert_works();
}

#[test]
fn text_is_continued_and_lengths_are_declared_again() {
    let mut bench = Bench::plain();
    let whole = b"MaxRecvDataSegmentLength=1024\0SendTargets=\0";
    let mut text = TextRequest {
        flags: 0x40,
        itt: 5,
        ttt: RESERVED_TAG,
        cmd_sn: bench.next_sn(),
        ..TextRequest::default()
    };
    let answers = bench.send(&text.encode(11), &whole[..11]);
    let page = TextResponse::decode(&answers[0].0);
    assert_eq!((page.flags, answers[0].1.len()), (0, 0), "an empty response asks for the rest");
    assert_ne!(page.ttt, RESERVED_TAG);
    text.flags = 0x80;
    text.ttt = page.ttt;
    text.cmd_sn = bench.next_sn();
    let rest = &whole[11..];
    let answers = bench.send(&text.encode(len(rest)), rest);
    assert_eq!(TextResponse::decode(&answers[0].0).flags, 0x80);
    assert!(answers[0].1.starts_with(b"TargetName="));
    // Reads come in pieces of 1024 bytes now.
    let read = bench.command(2, 0xc0, 1536, 0x28, 3);
    let answers = bench.send(&read.encode(0), &[]);
    let lens: Vec<_> = answers.iter().map(|(_, data)| data.len()).collect();
    assert_eq!(lens, [1024, 512]);
    bench.assert_works();
}
