//! What an initiator may do wrong in a login, and how keys are answered. Requests are made by hand.

mod common;

use common::bench::{Bench, assert_rejected, len, login_status};
use common::disk::{Setup, TARGET};
use raceline_iscsi::Violation;
use raceline_iscsi::chap::{Algorithm, Secret};
use raceline_iscsi::pdu::{
    LoginRequest, LoginResponse, LoginStatus, NopOut, RejectReason, TmfRequest,
};
use raceline_iscsi::target::{Authentication, ChapDemand, Credentials};

#[test]
fn logins_that_are_refused() {
    let name = "InitiatorName=iqn.2026-11.test:i";
    let target = format!("TargetName={TARGET}");
    let both = format!("{name} {target}");
    let long = format!("{both} X-{}=1", "k".repeat(70));
    let cases = [
        (0x87, target.clone(), LoginStatus::MISSING_PARAMETER),
        (0x87, name.to_owned(), LoginStatus::MISSING_PARAMETER),
        (0x87, format!("{both} SessionType=Other"), LoginStatus::SESSION_TYPE_UNSUPPORTED),
        (0x87, format!("InitiatorName=me {target}"), LoginStatus::INITIATOR_ERROR),
        (0x87, format!("{name} TargetName=it"), LoginStatus::NOT_FOUND),
        (0x87, format!("{name} TargetName=iqn.2026-11.test:x"), LoginStatus::NOT_FOUND),
        (
            0x87,
            format!("{both} MaxBurstLength=512 MaxBurstLength=512"),
            LoginStatus::INITIATOR_ERROR,
        ),
        (0x87, format!("{both} NoValue"), LoginStatus::INITIATOR_ERROR),
        (0x87, long, LoginStatus::INITIATOR_ERROR),
        (0x87, format!("{both} CHAP_A=5"), LoginStatus::INITIATOR_ERROR),
        (0x87, format!("{both} SendTargets=All"), LoginStatus::INITIATOR_ERROR),
        (0x87, format!("{both} TargetPortalGroupTag=1"), LoginStatus::INITIATOR_ERROR),
        (0x81, format!("{both} HeaderDigest=None"), LoginStatus::INITIATOR_ERROR),
        (0x81, format!("{both} AuthMethod=KRB5"), LoginStatus::AUTHENTICATION_FAILED),
        (0x81, format!("{both} CHAP_A=5"), LoginStatus::AUTHENTICATION_FAILED),
        (0x84, both.clone(), LoginStatus::INITIATOR_ERROR), // NSG 0 behind CSG 1
        (0x85, both.clone(), LoginStatus::INITIATOR_ERROR), // NSG 1 behind CSG 1
        (0x8b, both.clone(), LoginStatus::INITIATOR_ERROR), // CSG 2
        (0x8f, both.clone(), LoginStatus::INITIATOR_ERROR), // CSG 3
        (0x86, both.clone(), LoginStatus::INITIATOR_ERROR), // NSG 2
        (0xc7, both.clone(), LoginStatus::INITIATOR_ERROR), // T and C
    ];
    for (flags, text, status) in cases {
        let mut bench = Bench::new(Setup::default());
        let answers = bench.log_in(flags, &text);
        assert_eq!(login_status(&answers), status, "{flags:02x} {text}");
        assert!(bench.disk.closing, "{text}");
        assert!(bench.disk.target.refusal().is_some());
        assert_eq!(bench.send(&[0; 48], &[]), [], "nothing is taken after it");
    }
}

#[test]
fn a_version_above_0_is_refused() {
    let mut bench = Bench::new(Setup::default());
    let request = LoginRequest {
        immediate: true,
        flags: 0x87,
        version_max: 2,
        version_min: 1,
        ..LoginRequest::default()
    };
    let answers = bench.send(&request.encode(0), &[]);
    assert_eq!(login_status(&answers), LoginStatus::UNSUPPORTED_VERSION);
}

#[test]
fn other_pdus_than_logins_end_a_login() {
    let mut bench = Bench::new(Setup::default());
    assert_eq!(bench.send(&NopOut::default().encode(0), &[]), []);
    assert_eq!(bench.error, Some(Violation::NotLogin));

    let mut bench = Bench::new(Setup::default());
    assert_eq!(bench.send_bytes(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03TLS"), []);
    assert_eq!(bench.error, Some(Violation::NotLogin));

    let mut bench = Bench::new(Setup::default());
    let text = format!("InitiatorName=iqn.2026-11.test:i TargetName={TARGET}");
    assert_eq!(login_status(&bench.log_in(0x04, &text)), LoginStatus::SUCCESS);
    let answers = bench.send(&NopOut::default().encode(0), &[]);
    assert_eq!(login_status(&answers), LoginStatus::INVALID_DURING_LOGIN);
    assert_eq!(bench.error, Some(Violation::NotLoginInLogin));
}

#[test]
fn a_login_keeps_its_numbers() {
    let text = format!("InitiatorName=iqn.2026-11.test:i TargetName={TARGET}");
    let changed: [fn(&mut LoginRequest); 6] = [
        |request| request.itt = 2,
        |request| request.isid = [1; 6],
        |request| request.tsih = 1,
        |request| request.cid = 1,
        |request| request.cmd_sn = 11,
        |request| request.flags = 0, // back to stage 0
    ];
    for change in changed {
        let mut bench = Bench::new(Setup::default());
        assert_eq!(login_status(&bench.log_in(0x04, &text)), LoginStatus::SUCCESS);
        let mut request = LoginRequest {
            immediate: true,
            flags: 0x87,
            isid: [0x80, 0, 0, 0, 0, 1],
            itt: 1,
            cmd_sn: 10,
            ..LoginRequest::default()
        };
        change(&mut request);
        let answers = bench.send(&request.encode(0), &[]);
        assert_eq!(login_status(&answers), LoginStatus::INITIATOR_ERROR);
    }
}

#[test]
fn a_login_does_not_go_on_for_ever() {
    let mut bench = Bench::new(Setup::default());
    let text = format!("InitiatorName=iqn.2026-11.test:i TargetName={TARGET}");
    let mut answers = bench.log_in(0x04, &text);
    for _ in 0..64 {
        assert_eq!(login_status(&answers), LoginStatus::SUCCESS);
        answers = bench.log_in(0x04, "");
    }
    assert_eq!(login_status(&answers), LoginStatus::INITIATOR_ERROR);

    // 8 KiB of text in each of 9 requests.
    let mut bench = Bench::new(Setup::default());
    let text = "x".repeat(8191);
    let mut last = LoginStatus::SUCCESS;
    for _ in 0..9 {
        assert_eq!(last, LoginStatus::SUCCESS);
        last = login_status(&bench.log_in(0x44, &text));
    }
    assert_eq!(last, LoginStatus::INITIATOR_ERROR);

    let mut bench = Bench::new(Setup::default());
    let request = LoginRequest { immediate: true, flags: 0x87, ..LoginRequest::default() };
    bench.send(&request.encode(8193), &[0; 8193]);
    assert_eq!(bench.error, Some(Violation::DataSegmentTooLong));
}

#[test]
fn text_of_a_login_is_continued_anywhere() {
    let text = format!("InitiatorName=iqn.2026-11.test:i TargetName={TARGET} X-Key=1");
    for at in 1..text.len() {
        let mut bench = Bench::new(Setup::default());
        let whole = text.replace(' ', "\0") + "\0";
        let (first, second) = whole.as_bytes().split_at(at);
        let mut request = LoginRequest {
            immediate: true,
            flags: 0x44,
            itt: 1,
            cmd_sn: 10,
            ..LoginRequest::default()
        };
        let answers = bench.send(&request.encode(len(first)), first);
        assert_eq!(answers.len(), 1);
        assert!(answers[0].1.is_empty(), "an empty response asks for the rest");
        assert_eq!(answers[0].0[1], 0x04);
        request.flags = 0x87;
        let answers = bench.send(&request.encode(len(second)), second);
        assert_eq!(answers[0].0[1], 0x87);
        let reply = String::from_utf8_lossy(&answers[0].1);
        assert!(reply.contains("X-Key=NotUnderstood\0"), "{reply}");
    }
}

#[test]
fn a_long_answer_to_a_login_is_continued() {
    // 700 unknown keys make more than 8192 bytes of answers.
    let mut bench = Bench::new(Setup::default());
    let mut text = format!("InitiatorName=iqn.2026-11.test:i TargetName={TARGET}");
    for number in 0..700 {
        text += &format!(" X{number}=1");
    }
    let mut answers = bench.log_in(0x87, &text);
    let mut reply = Vec::new();
    loop {
        let (header, page) = answers.remove(0);
        reply.extend_from_slice(&page);
        assert!(page.len() <= 8192);
        let response = LoginResponse::decode(&header);
        if !response.continues() {
            assert!(response.transits());
            assert_ne!(response.tsih, 0);
            break;
        }
        assert!(!response.transits() && response.tsih == 0);
        answers = bench.log_in(0x87, "");
    }
    let reply = String::from_utf8_lossy(&reply);
    assert_eq!(reply.matches("NotUnderstood").count(), 700);
    assert!(bench.disk.target.is_full_feature());
}

#[test]
fn keys_are_answered_by_their_rules() {
    let cases = [
        ("HeaderDigest=None,CRC32C", "HeaderDigest=None"),
        ("HeaderDigest=CRC32C,None", "HeaderDigest=CRC32C"),
        ("DataDigest=MD5", "DataDigest=Reject"),
        ("MaxConnections=8", "MaxConnections=1"),
        ("MaxConnections=0", "MaxConnections=Reject"),
        ("InitialR2T=No", "InitialR2T=No"),
        ("InitialR2T=Yes", "InitialR2T=Yes"),
        ("InitialR2T=no", "InitialR2T=Reject"),
        ("ImmediateData=No", "ImmediateData=No"),
        ("ImmediateData=Yes", "ImmediateData=Yes"),
        ("MaxBurstLength=16776192", "MaxBurstLength=1048576"),
        ("MaxBurstLength=0x200", "MaxBurstLength=512"),
        ("MaxBurstLength=511", "MaxBurstLength=Reject"),
        ("MaxBurstLength=16777216", "MaxBurstLength=Reject"),
        ("FirstBurstLength=65536", "FirstBurstLength=65536"),
        ("MaxRecvDataSegmentLength=262144", "MaxRecvDataSegmentLength=262144"),
        ("DefaultTime2Wait=0", "DefaultTime2Wait=2"),
        ("DefaultTime2Wait=3601", "DefaultTime2Wait=Reject"),
        ("DefaultTime2Retain=20", "DefaultTime2Retain=0"),
        ("MaxOutstandingR2T=16", "MaxOutstandingR2T=1"),
        ("DataPDUInOrder=No", "DataPDUInOrder=Yes"),
        ("DataSequenceInOrder=No", "DataSequenceInOrder=Yes"),
        ("ErrorRecoveryLevel=2", "ErrorRecoveryLevel=0"),
        ("TaskReporting=FastAbort,RFC3720", "TaskReporting=RFC3720"),
        ("iSCSIProtocolLevel=2", "iSCSIProtocolLevel=1"),
        ("IFMarker=No", "IFMarker=No"),
        ("OFMarkInt=1~2", "OFMarkInt=Reject"),
        ("X-com.example=1", "X-com.example=NotUnderstood"),
        ("initialr2t=No", "initialr2t=NotUnderstood"),
    ];
    for (offer, expected) in cases {
        let mut bench = Bench::new(Setup::default());
        let text = format!("InitiatorName=iqn.2026-11.test:i TargetName={TARGET} {offer}");
        let answers = bench.log_in(0x04, &text);
        let reply = String::from_utf8_lossy(&answers[0].1).replace('\0', " ");
        assert!(reply.split(' ').any(|pair| pair == expected), "{offer}: {reply}");
    }
}

#[test]
fn discovery_sessions_have_irrelevant_keys() {
    let mut bench = Bench::new(Setup::default());
    let text = "InitiatorName=iqn.2026-11.test:i SessionType=Discovery InitialR2T=Irrelevant MaxBurstLength=512";
    let answers = bench.log_in(0x87, text);
    let reply = String::from_utf8_lossy(&answers[0].1).replace('\0', " ");
    assert!(reply.contains("InitialR2T=Irrelevant MaxBurstLength=Irrelevant"), "{reply}");
    assert!(!reply.contains("TargetPortalGroupTag"), "{reply}");
    // No commands there.
    let command = bench.command(2, 0xc0, 512, 0x28, 1).encode(0);
    assert_rejected(&bench.send(&command, &[]), RejectReason::Unsupported, &command);
    let tmf = TmfRequest { immediate: true, flags: 0x81, itt: 3, ..TmfRequest::default() };
    let tmf = tmf.encode(0);
    assert_rejected(&bench.send(&tmf, &[]), RejectReason::Unsupported, &tmf);
    bench.assert_alive();
}

#[test]
fn chap_steps_have_an_order_and_exact_lengths() {
    let start =
        format!("InitiatorName=iqn.2026-11.test:i TargetName={TARGET} AuthMethod=CHAP,None");
    let response = "0x000102030405060708090a0b0c0d0e0f";
    let cases = [
        "CHAP_A=",
        "CHAP_A=56",
        "CHAP_A=1,2",
        "CHAP_N=me",
        "AuthMethod=CHAP",
        "",
        "CHAP_A=5|CHAP_N=me",
        &format!("CHAP_A=5|CHAP_R={response}"),
        &format!("CHAP_A=5|CHAP_N=me CHAP_R={response}00"),
        "CHAP_A=5|CHAP_N=me CHAP_R=0x00",
        "CHAP_A=5|CHAP_N=me CHAP_R=0bAAECAwQFBgcICQoLDA0ODxA=",
        "CHAP_A=5|CHAP_N=me CHAP_R=text",
        "CHAP_A=5|CHAP_A=5",
        &format!("CHAP_A=5|CHAP_N=me CHAP_R={response} CHAP_I=1"),
        &format!("CHAP_A=5|CHAP_N=me CHAP_R={response} CHAP_I=256 CHAP_C=0x00"),
        &format!("CHAP_A=5|CHAP_N=me CHAP_R={response}"),
        &format!("CHAP_A=5|CHAP_N=0xhost CHAP_R={response}"),
    ];
    for case in cases {
        let credentials = Credentials { secret: Secret::new(b"secret-secret".to_vec()), own: None };
        let mut bench = Bench::new(Setup {
            authentication: Authentication::Chap(ChapDemand {
                required: true,
                mutual: false,
                algorithms: Algorithm::ALL,
                id: 1,
                challenge: [7; 32],
            }),
            accounts: vec![("0xhost".to_owned(), credentials)],
            ..Setup::default()
        });
        assert_eq!(login_status(&bench.log_in(0x00, &start)), LoginStatus::SUCCESS);
        let mut answers = Vec::new();
        for step in case.split('|') {
            answers = bench.log_in(0x81, step);
        }
        let status = login_status(&answers);
        let refused = [LoginStatus::AUTHENTICATION_FAILED, LoginStatus::INITIATOR_ERROR];
        assert!(refused.contains(&status), "{case}: {status}");
        assert!(bench.disk.closing);
    }
}

#[test]
fn the_security_stage_cannot_be_skipped() {
    for flags in [0x87, 0x81, 0x83] {
        let mut bench = Bench::new(Setup {
            authentication: Authentication::Chap(ChapDemand {
                required: true,
                mutual: false,
                algorithms: Algorithm::ALL,
                id: 1,
                challenge: [7; 32],
            }),
            ..Setup::default()
        });
        let text = format!("InitiatorName=iqn.2026-11.test:i TargetName={TARGET}");
        let answers = bench.log_in(flags, &text);
        assert_eq!(login_status(&answers), LoginStatus::AUTHENTICATION_FAILED, "{flags:02x}");
    }
}
