//! What a target may say wrong, and that the initiator closes at it. Responses are made by hand.

mod common;

use common::config;
use common::host::Host;
use raceline_iscsi::Violation;
use raceline_iscsi::initiator::InitiatorConfig;
use raceline_iscsi::pdu::{
    DataIn, LoginResponse, LoginStatus, LogoutResponse, NopIn, R2t, RESERVED_TAG, Reject,
    ScsiResponse, TextResponse, TmfResponse,
};
use raceline_iscsi::target::Residual;

/// The tag of a login, as the initiator chooses it.
const LOGIN_TAG: u32 = 1 << 31;

/// An initiator, and the target that a test plays.
struct Bench {
    host: Host,
    out: Vec<u8>,
    stat_sn: u32,
}

impl Bench {
    fn new(config: InitiatorConfig) -> Self {
        let mut bench = Self { host: Host::new(config), out: Vec::new(), stat_sn: 100 };
        bench.host.initiator.login(&mut bench.out);
        bench
    }

    fn logged_in() -> Self {
        Self::logged_in_with(
            "MaxBurstLength=4096 MaxOutstandingR2T=1 InitialR2T=Yes ImmediateData=No",
        )
    }

    fn logged_in_with(keys: &str) -> Self {
        let mut bench = Self::new(config());
        assert_eq!(bench.answer_login(|_| {}, keys), None);
        assert!(bench.host.logged_in);
        bench.out.clear();
        bench
    }

    /// Answers the login with one response.
    fn answer_login(
        &mut self,
        change: impl Fn(&mut LoginResponse),
        keys: &str,
    ) -> Option<Violation> {
        let mut pdu = LoginResponse {
            flags: 0x87,
            isid: config().isid.0,
            tsih: 5,
            itt: LOGIN_TAG,
            stat_sn: self.stat_sn,
            exp_cmd_sn: 1,
            max_cmd_sn: 32,
            ..LoginResponse::default()
        };
        self.stat_sn += 1;
        change(&mut pdu);
        let text = keys.replace(' ', "\0") + "\0";
        self.send(&pdu.encode(len(text.as_bytes())), text.as_bytes())
    }

    /// Gives the initiator a PDU; gives its complaint.
    fn send(&mut self, header: &[u8], data: &[u8]) -> Option<Violation> {
        let mut bytes = header.to_vec();
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let error = self.host.feed(&bytes, &mut self.out).err();
        assert_eq!(
            error.is_some(),
            self.host.initiator.is_closing() && self.host.refused.is_none()
        );
        error.map(|error| error.violation())
    }

    /// Sends a read of 8 blocks or a write of 16; gives its tag.
    fn begin(&mut self, write: bool) -> u32 {
        self.out.clear();
        if write {
            self.host.write(0, 0, &[1; 8192], &mut self.out);
        } else {
            self.host.read(0, 0, 8, &mut self.out);
        }
        u32::from_be_bytes(self.out[16..20].try_into().expect("4 bytes"))
    }
}

fn len(data: &[u8]) -> u32 {
    u32::try_from(data.len()).expect("small")
}

#[test]
fn login_responses_that_contradict_their_request() {
    type Change = fn(&mut LoginResponse);
    let cases: [(Change, &str, Violation); 14] = [
        (|pdu| pdu.itt = 1, "", Violation::LoginResponseInvalid),
        (|pdu| pdu.isid = [9; 6], "", Violation::LoginResponseInvalid),
        (|pdu| pdu.version_active = 1, "", Violation::LoginResponseInvalid),
        (|pdu| pdu.tsih = 0, "", Violation::LoginResponseInvalid),
        (|pdu| pdu.flags = 0x83, "", Violation::LoginStage), // CSG 0
        (|pdu| pdu.flags = 0x85, "", Violation::LoginStage), // NSG 1
        (|pdu| pdu.flags = 0xc7, "", Violation::LoginStage), // T and C
        (|_| {}, "NoValue", Violation::LoginResponseText),
        (|_| {}, "MaxBurstLength=99999999", Violation::LoginKey),
        (|_| {}, "MaxBurstLength=16777215", Violation::LoginKey), // more than offered
        (|_| {}, "InitialR2T=Maybe", Violation::LoginKey),
        (|_| {}, "ErrorRecoveryLevel=1", Violation::LoginKey),
        (|_| {}, "CHAP_A=5", Violation::LoginKey),
        (|_| {}, "HeaderDigest=None HeaderDigest=None", Violation::LoginKey),
    ];
    for (change, keys, violation) in cases {
        let mut bench = Bench::new(config());
        assert_eq!(bench.answer_login(change, keys), Some(violation), "{keys}");
    }
    let mut bench = Bench::new(config());
    assert_eq!(bench.answer_login(|_| {}, "HeaderDigest=CRC32C"), Some(Violation::LoginKey));
    let mut bench = Bench::new(config());
    let other = NopIn::default().encode(0);
    assert_eq!(bench.send(&other, &[]), Some(Violation::OpcodeInvalid));
}

#[test]
fn a_login_that_never_ends_is_given_up() {
    let mut bench = Bench::new(config());
    for _ in 0..32 {
        assert_eq!(bench.answer_login(|pdu| (pdu.flags, pdu.tsih) = (0x04, 0), "X-Key=1"), None);
        let reply = String::from_utf8_lossy(&bench.out[bench.out.len() - 24..]).into_owned();
        assert!(reply.contains("NotUnderstood"), "{reply}");
    }
    let last = bench.answer_login(|pdu| (pdu.flags, pdu.tsih) = (0x04, 0), "");
    assert_eq!(last, Some(Violation::LoginTooLong));

    let mut bench = Bench::new(config());
    assert_eq!(bench.answer_login(|pdu| (pdu.flags, pdu.tsih) = (0x04, 0), ""), None);
    bench.stat_sn += 1;
    assert_eq!(bench.answer_login(|_| {}, ""), Some(Violation::StatSnInvalid));
}

#[test]
fn a_refusal_and_a_redirection_say_where_to_go() {
    let mut bench = Bench::new(config());
    let error = bench.answer_login(|pdu| pdu.status = [1, 1], "TargetAddress=[::1]:3261,2");
    assert_eq!(error, None);
    assert_eq!(bench.host.refused, Some(LoginStatus::MOVED_TEMPORARILY));
    assert_eq!(bench.host.initiator.redirected_to(), Some("[::1]:3261,2"));
    assert!(bench.host.initiator.is_closing());
}

#[test]
fn a_target_may_make_offers_of_its_own() {
    let mut config = config();
    config.wishes.header_digest = true;
    let mut bench = Bench::new(config);
    bench.out.clear();
    let keys = "TargetPortalGroupTag=1 HeaderDigest=CRC32C iSCSIProtocolLevel=1 OFMarker=No";
    assert_eq!(bench.answer_login(|pdu| (pdu.flags, pdu.tsih) = (0x04, 0), keys), None);
    let reply = String::from_utf8_lossy(&bench.out[48..]).replace('\0', " ");
    assert_eq!(reply.trim_end(), "iSCSIProtocolLevel=1 OFMarker=No");
    assert_eq!(bench.answer_login(|_| {}, ""), None);
    assert!(bench.host.logged_in);
    assert!(bench.host.initiator.parameters().header_digest);
}

#[test]
fn data_in_that_contradict_their_command() {
    type Change = fn(&mut DataIn);
    let cases: [(Change, usize, Violation); 11] = [
        (|pdu| pdu.itt ^= 1 << 20, 512, Violation::IttUnknown),
        (|pdu| pdu.itt = RESERVED_TAG, 512, Violation::IttUnknown),
        (|pdu| pdu.data_sn = 1, 512, Violation::DataSnInvalid),
        (|pdu| pdu.buffer_offset = 512, 512, Violation::DataInOffset),
        (|pdu| pdu.buffer_offset = u32::MAX, 512, Violation::DataInOffset),
        (|_| {}, 4097, Violation::DataInOutOfRange),
        (|pdu| pdu.flags = 0x01, 4096, Violation::StatusWithoutFinal),
        (|pdu| pdu.flags = 0xc0, 4096, Violation::AckRequested),
        (|pdu| (pdu.flags, pdu.stat_sn) = (0x81, 7), 4096, Violation::StatSnInvalid),
        (|_| {}, 262_144, Violation::DataInOutOfRange),
        (|_| {}, 262_145, Violation::DataSegmentTooLong),
    ];
    for (change, count, violation) in cases {
        let mut bench = Bench::logged_in();
        let itt = bench.begin(false);
        let mut pdu = DataIn { itt, ttt: RESERVED_TAG, ..DataIn::default() };
        change(&mut pdu);
        let data = vec![3; count];
        assert_eq!(bench.send(&pdu.encode(len(&data)), &data), Some(violation));
        assert!(bench.host.ended.is_empty());
    }
    let mut bench = Bench::logged_in();
    let itt = bench.begin(true);
    let pdu = DataIn { itt, ttt: RESERVED_TAG, ..DataIn::default() };
    assert_eq!(bench.send(&pdu.encode(4), &[0; 4]), Some(Violation::DataInUnexpected));
}

#[test]
fn data_that_are_missing_are_counted() {
    for (flags, residual, missing) in [(0x81, 0, 3584), (0x83, 3584, 0), (0x83, 512, 3072)] {
        let mut bench = Bench::logged_in();
        let itt = bench.begin(false);
        let stat_sn = bench.stat_sn;
        let pdu = DataIn { flags, itt, ttt: RESERVED_TAG, stat_sn, residual, ..DataIn::default() };
        assert_eq!(bench.send(&pdu.encode(512), &[3; 512]), None);
        let (_, outcome, _) = bench.host.take_ended();
        assert_eq!((outcome.received, outcome.missing), (512, missing));
    }
    // A status without any data.
    let mut bench = Bench::logged_in();
    let itt = bench.begin(false);
    let pdu = ScsiResponse { flags: 0x80, itt, stat_sn: bench.stat_sn, ..ScsiResponse::default() };
    assert_eq!(bench.send(&pdu.encode(0), &[]), None);
    let (_, outcome, _) = bench.host.take_ended();
    assert_eq!((outcome.residual, outcome.missing), (Residual::None, 4096));
    // The command has ended.
    assert_eq!(bench.send(&pdu.encode(0), &[]), Some(Violation::IttUnknown));
}

#[test]
fn r2ts_that_contradict_their_command() {
    type Change = fn(&mut R2t);
    let cases: [(Change, Violation); 8] = [
        (|pdu| pdu.itt ^= 1 << 20, Violation::IttUnknown),
        (|pdu| pdu.r2t_sn = 1, Violation::DataSnInvalid),
        (|pdu| pdu.buffer_offset = 512, Violation::R2tOffset),
        (|pdu| pdu.desired_len = 0, Violation::R2tLenZero),
        (|pdu| pdu.desired_len = 4097, Violation::R2tTooLong),
        (|pdu| pdu.desired_len = u32::MAX, Violation::R2tTooLong),
        (|pdu| pdu.ttt = RESERVED_TAG, Violation::R2tUnexpected),
        (|pdu| pdu.flags = 0x80, Violation::DataUnexpected), // with data, see below
    ];
    for (change, violation) in cases {
        let mut bench = Bench::logged_in();
        let itt = bench.begin(true);
        let mut pdu = R2t { flags: 0x80, itt, ttt: 1, desired_len: 4096, ..R2t::default() };
        change(&mut pdu);
        let data: &[u8] = if violation == Violation::DataUnexpected { &[0; 4] } else { &[] };
        assert_eq!(bench.send(&pdu.encode(len(data)), data), Some(violation));
    }
    // Two at once, and one beyond the end.
    let mut bench = Bench::logged_in();
    bench.host.keep_grants = true;
    let itt = bench.begin(true);
    let first = R2t { flags: 0x80, itt, ttt: 1, desired_len: 4096, ..R2t::default() };
    let second = R2t { r2t_sn: 1, buffer_offset: 4096, ..first };
    assert_eq!(bench.send(&first.encode(0), &[]), None);
    assert_eq!(bench.send(&second.encode(0), &[]), Some(Violation::R2tTooMany));
    let mut bench = Bench::logged_in();
    let itt = bench.begin(true);
    let first = R2t { itt, ..first };
    assert_eq!(bench.send(&first.encode(0), &[]), None);
    assert_eq!(bench.send(&R2t { itt, ..second }.encode(0), &[]), None);
    let third = R2t { itt, r2t_sn: 2, buffer_offset: 8192, desired_len: 1, ..first };
    assert_eq!(bench.send(&third.encode(0), &[]), Some(Violation::R2tOutOfRange));
    // For a read.
    let mut bench = Bench::logged_in();
    let itt = bench.begin(false);
    assert_eq!(bench.send(&R2t { itt, ..first }.encode(0), &[]), Some(Violation::R2tUnexpected));
}

#[test]
fn responses_that_cannot_be() {
    let mut bench = Bench::logged_in();
    let itt = bench.begin(false);
    let stat_sn = bench.stat_sn;
    let response = ScsiResponse { flags: 0x80, status: 2, itt, stat_sn, ..ScsiResponse::default() };
    assert_eq!(
        bench.send(&response.encode(6), &[0, 9, 0x70, 0, 0, 0]),
        Some(Violation::SenseInvalid)
    );

    let cases = [
        TmfResponse { itt: 3, stat_sn, ..TmfResponse::default() }.encode(0),
        LogoutResponse { itt: 3, stat_sn, ..LogoutResponse::default() }.encode(0),
        TextResponse { itt: 3, stat_sn, ..TextResponse::default() }.encode(0),
        NopIn { itt: 3, stat_sn, ..NopIn::default() }.encode(0),
    ];
    for header in cases {
        let mut bench = Bench::logged_in();
        assert_eq!(bench.send(&header, &[]), Some(Violation::IttUnknown));
    }
    for opcode in [0x00, 0x01, 0x23, 0x27, 0x60, 0xff] {
        let mut bench = Bench::logged_in();
        let mut header = NopIn::default().encode(0);
        header[0] = opcode;
        assert_eq!(bench.send(&header, &[]), Some(Violation::OpcodeInvalid), "{opcode:02x}");
    }
    let mut bench = Bench::logged_in();
    let mut header = NopIn::default().encode(0);
    header[4] = 1;
    assert_eq!(bench.send(&header, &[0; 4]), Some(Violation::AhsUnexpected));
    let mut bench = Bench::logged_in();
    let reject = Reject { flags: 0x80, reason: 4, itt: RESERVED_TAG, ..Reject::default() };
    assert_eq!(bench.send(&reject.encode(48), &[1; 48]), Some(Violation::Rejected));
}

#[test]
fn text_that_would_go_on_for_ever() {
    let mut config = config();
    config.target_name = None;
    let mut bench = Bench::new(config);
    assert_eq!(bench.answer_login(|_| {}, ""), None);
    bench.out.clear();
    assert!(bench.host.initiator.send_targets("All", &mut bench.out));
    assert!(!bench.host.initiator.send_targets("All", &mut bench.out), "one at a time");
    let itt = u32::from_be_bytes(bench.out[16..20].try_into().expect("4 bytes"));
    let page = TextResponse {
        flags: 0x40,
        itt,
        ttt: 1,
        stat_sn: bench.stat_sn,
        ..TextResponse::default()
    };
    assert_eq!(bench.send(&page.encode(0), &[]), Some(Violation::TextInvalid));
}

#[test]
fn windows_that_go_back_are_old() {
    let mut bench = Bench::logged_in();
    let window = |exp_cmd_sn, max_cmd_sn| NopIn {
        flags: 0x80,
        itt: RESERVED_TAG,
        ttt: RESERVED_TAG,
        exp_cmd_sn,
        max_cmd_sn,
        ..NopIn::default()
    };
    // 32 commands were allowed; what goes back takes none of them.
    assert_eq!(bench.send(&window(1, 8).encode(0), &[]), None);
    assert_eq!(bench.send(&window(60, 50).encode(0), &[]), None, "a window that cannot be");
    for slot in 0..32 {
        assert!(bench.host.initiator.may_send(), "command {slot}");
        bench.host.command(slot, &[0], 0, &mut bench.out);
    }
    assert!(!bench.host.initiator.may_send());
    assert_eq!(bench.send(&window(1, 33).encode(0), &[]), None);
    assert!(bench.host.initiator.may_send());
}
