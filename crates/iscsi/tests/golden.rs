//! Headers of every PDU, byte for byte after the figures of RFC 7143, section 11. Every line is 16 bytes.

use raceline_iscsi::pdu::{
    AsyncMessage, Bhs, DataIn, DataOut, Lengths, LoginRequest, LoginResponse, LoginStatus,
    LogoutRequest, LogoutResponse, NopIn, NopOut, R2t, RESERVED_TAG, Reject, ScsiCommand,
    ScsiResponse, Snack, Stage, TextRequest, TextResponse, TmfRequest, TmfResponse,
};

/// A header written as hexadecimal digits with spaces.
fn header(text: &str) -> Bhs {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    assert_eq!(digits.len(), 96, "a header has 48 bytes");
    let mut header = [0; 48];
    for (byte, pair) in header.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::try_from(pair[0] << 4 | pair[1]).expect("two digits");
    }
    header
}

/// Decodes and encodes a header, which must come to the same both ways.
macro_rules! golden {
    ($pdu:ident { $($field:ident: $value:expr),* $(,)? }, $data_len:expr, $text:expr) => {{
        let pdu = $pdu { $($field: $value),* };
        let bytes = header($text);
        assert_eq!($pdu::decode(&bytes), pdu);
        assert_eq!(pdu.encode($data_len), bytes);
        let first = bytes.first_chunk().expect("48 bytes");
        assert_eq!(Lengths::of(first), Lengths { ahs: 0, data: $data_len });
    }};
}

#[test]
fn nop_out() {
    golden!(
        NopOut {
            immediate: true,
            flags: 0x80,
            lun: 0x0001_0000_0000_0000,
            itt: RESERVED_TAG,
            ttt: 0x0102_0304,
            cmd_sn: 0x1112_1314,
            exp_stat_sn: 0x2122_2324,
        },
        5,
        "40 80 0000 00 000005 0001000000000000
         ffffffff 01020304 11121314 21222324
         00000000 00000000 00000000 00000000"
    );
}

#[test]
fn scsi_command() {
    let cdb = [0x28, 0, 0, 0, 0x10, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0xee];
    golden!(
        ScsiCommand {
            immediate: false,
            flags: 0xc1,
            lun: 0x0002_0000_0000_0000,
            itt: 0xa1a2_a3a4,
            edtl: 0x1000,
            cmd_sn: 7,
            exp_stat_sn: 8,
            cdb: cdb,
        },
        0,
        "01 c1 0000 00 000000 0002000000000000
         a1a2a3a4 00001000 00000007 00000008
         28000000 10000000 08000000 000000ee"
    );
    let write = ScsiCommand { flags: 0x22, ..ScsiCommand::default() };
    assert!(write.writes() && !write.reads() && !write.is_final());
    assert_eq!(write.attribute(), 2);
}

#[test]
fn task_management() {
    golden!(
        TmfRequest {
            immediate: true,
            flags: 0x81,
            lun: 0x4001_0000_0000_0000,
            itt: 1,
            rtt: 2,
            cmd_sn: 3,
            exp_stat_sn: 4,
            ref_cmd_sn: 5,
            exp_data_sn: 6,
        },
        0,
        "42 81 0000 00 000000 4001000000000000
         00000001 00000002 00000003 00000004
         00000005 00000006 00000000 00000000"
    );
    golden!(
        TmfResponse {
            flags: 0x80,
            response: 0xff,
            itt: 1,
            stat_sn: 2,
            exp_cmd_sn: 3,
            max_cmd_sn: 4,
        },
        0,
        "22 80 ff 00 00 000000 0000000000000000
         00000001 00000000 00000002 00000003
         00000004 00000000 00000000 00000000"
    );
}

#[test]
fn login() {
    golden!(
        LoginRequest {
            immediate: true,
            flags: 0x87,
            version_max: 0,
            version_min: 0,
            isid: [0x00, 0x02, 0x3d, 0x01, 0x00, 0x05],
            tsih: 0x1234,
            itt: 9,
            cid: 0x5678,
            cmd_sn: 10,
            exp_stat_sn: 11,
        },
        300,
        "43 87 00 00 00 00012c 00023d010005 1234
         00000009 5678 0000 0000000a 0000000b
         00000000 00000000 00000000 00000000"
    );
    let request = LoginRequest { flags: 0x87, ..LoginRequest::default() };
    assert_eq!(request.current_stage(), Some(Stage::Operational));
    assert_eq!(request.next_stage(), Some(Stage::FullFeature));
    assert!(request.transits() && !request.continues());
    golden!(
        LoginResponse {
            flags: 0x41,
            version_max: 0,
            version_active: 0,
            isid: [0x80, 1, 2, 3, 4, 5],
            tsih: 0,
            itt: 9,
            stat_sn: 1,
            exp_cmd_sn: 10,
            max_cmd_sn: 10,
            status: [2, 1],
        },
        0,
        "23 41 00 00 00 000000 800102030405 0000
         00000009 00000000 00000001 0000000a
         0000000a 02 01 0000 00000000 00000000"
    );
    let response = LoginResponse { flags: 0x44, status: [2, 1], ..LoginResponse::default() };
    assert_eq!(response.login_status(), LoginStatus::AUTHENTICATION_FAILED);
    assert_eq!(response.current_stage(), Some(Stage::Operational));
    assert!(response.continues() && !response.transits());
}

#[test]
fn text() {
    golden!(
        TextRequest {
            immediate: false,
            flags: 0x80,
            lun: 0,
            itt: 1,
            ttt: RESERVED_TAG,
            cmd_sn: 2,
            exp_stat_sn: 3,
        },
        16,
        "04 80 0000 00 000010 0000000000000000
         00000001 ffffffff 00000002 00000003
         00000000 00000000 00000000 00000000"
    );
    golden!(
        TextResponse {
            flags: 0x40,
            lun: 0,
            itt: 1,
            ttt: 4,
            stat_sn: 5,
            exp_cmd_sn: 6,
            max_cmd_sn: 7,
        },
        8192,
        "24 40 0000 00 002000 0000000000000000
         00000001 00000004 00000005 00000006
         00000007 00000000 00000000 00000000"
    );
}

#[test]
fn data_out_and_snack() {
    golden!(
        DataOut {
            flags: 0x80,
            lun: 0x0003_0000_0000_0000,
            itt: 1,
            ttt: 2,
            exp_stat_sn: 3,
            data_sn: 4,
            buffer_offset: 0x0001_0000,
        },
        0x00ff_ffff,
        "05 80 0000 00 ffffff 0003000000000000
         00000001 00000002 00000000 00000003
         00000000 00000004 00010000 00000000"
    );
    golden!(
        Snack {
            flags: 0x81,
            lun: 0,
            itt: 1,
            ttt: RESERVED_TAG,
            exp_stat_sn: 2,
            beg_run: 3,
            run_length: 4,
        },
        0,
        "10 81 0000 00 000000 0000000000000000
         00000001 ffffffff 00000000 00000002
         00000000 00000000 00000003 00000004"
    );
}

#[test]
fn logout() {
    golden!(
        LogoutRequest {
            immediate: true,
            flags: 0x81,
            itt: 1,
            cid: 0x0102,
            cmd_sn: 3,
            exp_stat_sn: 4,
        },
        0,
        "46 81 0000 00 000000 0000000000000000
         00000001 0102 0000 00000003 00000004
         00000000 00000000 00000000 00000000"
    );
    golden!(
        LogoutResponse {
            flags: 0x80,
            response: 1,
            itt: 1,
            stat_sn: 2,
            exp_cmd_sn: 3,
            max_cmd_sn: 4,
            time2wait: 2,
            time2retain: 20,
        },
        0,
        "26 80 01 00 00 000000 0000000000000000
         00000001 00000000 00000002 00000003
         00000004 00000000 0002 0014 00000000"
    );
}

#[test]
fn nop_in() {
    golden!(
        NopIn {
            flags: 0x80,
            lun: 0x0001_0000_0000_0000,
            itt: RESERVED_TAG,
            ttt: 2,
            stat_sn: 3,
            exp_cmd_sn: 4,
            max_cmd_sn: 5,
        },
        0,
        "20 80 0000 00 000000 0001000000000000
         ffffffff 00000002 00000003 00000004
         00000005 00000000 00000000 00000000"
    );
}

#[test]
fn scsi_response() {
    golden!(
        ScsiResponse {
            flags: 0x82,
            response: 0,
            status: 2,
            itt: 1,
            snack_tag: 0,
            stat_sn: 2,
            exp_cmd_sn: 3,
            max_cmd_sn: 4,
            exp_data_sn: 5,
            bidi_residual: 6,
            residual: 7,
        },
        20,
        "21 82 00 02 00 000014 0000000000000000
         00000001 00000000 00000002 00000003
         00000004 00000005 00000006 00000007"
    );
}

#[test]
fn data_in() {
    golden!(
        DataIn {
            flags: 0x83,
            status: 0,
            lun: 0,
            itt: 1,
            ttt: RESERVED_TAG,
            stat_sn: 2,
            exp_cmd_sn: 3,
            max_cmd_sn: 4,
            data_sn: 5,
            buffer_offset: 0x0004_0000,
            residual: 512,
        },
        0x0001_0000,
        "25 83 00 00 00 010000 0000000000000000
         00000001 ffffffff 00000002 00000003
         00000004 00000005 00040000 00000200"
    );
}

#[test]
fn ready_to_transfer() {
    golden!(
        R2t {
            flags: 0x80,
            lun: 0x0005_0000_0000_0000,
            itt: 1,
            ttt: 2,
            stat_sn: 3,
            exp_cmd_sn: 4,
            max_cmd_sn: 5,
            r2t_sn: 6,
            buffer_offset: 0x0001_0000,
            desired_len: 0x0004_0000,
        },
        0,
        "31 80 0000 00 000000 0005000000000000
         00000001 00000002 00000003 00000004
         00000005 00000006 00010000 00040000"
    );
}

#[test]
fn asynchronous_message() {
    golden!(
        AsyncMessage {
            flags: 0x80,
            lun: 0,
            itt: RESERVED_TAG,
            stat_sn: 2,
            exp_cmd_sn: 3,
            max_cmd_sn: 4,
            event: 2,
            vcode: 0,
            parameter1: 0x0102,
            parameter2: 0x0304,
            parameter3: 0x0506,
        },
        0,
        "32 80 0000 00 000000 0000000000000000
         ffffffff 00000000 00000002 00000003
         00000004 02 00 0102 0304 0506 00000000"
    );
}

#[test]
fn reject() {
    golden!(
        Reject {
            flags: 0x80,
            reason: 4,
            itt: RESERVED_TAG,
            stat_sn: 2,
            exp_cmd_sn: 3,
            max_cmd_sn: 4,
            data_sn: 5,
        },
        48,
        "3f 80 04 00 00 000030 0000000000000000
         ffffffff 00000000 00000002 00000003
         00000004 00000005 00000000 00000000"
    );
}

#[test]
fn codes_come_back_from_the_wire() {
    use raceline_iscsi::pdu::{
        AsyncEvent, LogoutReason, LogoutResponseCode, RejectReason, TmfFunction, TmfResponseCode,
    };
    macro_rules! all {
        ($($code:ident),*) => {$(
            for &code in $code::ALL {
                assert_eq!($code::from_wire(code.to_wire()), Some(code));
            }
        )*};
    }
    all!(AsyncEvent, LogoutReason, LogoutResponseCode, RejectReason, TmfFunction, TmfResponseCode);
    assert_eq!(TmfFunction::AbortTask.to_wire(), 1);
    assert_eq!(RejectReason::WaitingForLogout.to_wire(), 12);
    assert_eq!(TmfFunction::from_wire(0), None);
    assert_eq!(Stage::from_bits(2), None);
    assert_eq!(LoginStatus::OUT_OF_RESOURCES.class(), 3);
    assert_eq!(LoginStatus::OUT_OF_RESOURCES.detail(), 2);
}

#[test]
#[should_panic(expected = "below 16 MiB")]
fn a_data_segment_has_24_bits() {
    let _ = NopOut::default().encode(1 << 24);
}
