//! Both ends against each other, in memory.

mod common;

use common::disk::{BLOCK, Setup, TARGET};
use common::{Pair, Random, config};
use raceline_iscsi::Violation;
use raceline_iscsi::chap::{Algorithm, Secret};
use raceline_iscsi::initiator::{InitiatorConfig, InitiatorCredentials};
use raceline_iscsi::pdu::{
    AsyncEvent, LoginStatus, LogoutResponseCode, TmfFunction, TmfResponseCode,
};
use raceline_iscsi::target::{
    Async, Authentication, ChapDemand, Credentials, Residual, TargetConfig,
};

fn secret(text: &str) -> Secret {
    Secret::new(text.as_bytes().to_vec())
}

/// A target that wants CHAP, and an account for it.
fn chap_setup(mutual: bool) -> Setup {
    let own = mutual.then(|| ("target".to_owned(), secret("target-secret-1")));
    let credentials = Credentials { secret: secret("host-secret-123"), own };
    Setup {
        authentication: Authentication::Chap(ChapDemand {
            required: true,
            mutual,
            algorithms: Algorithm::ALL,
            id: 9,
            challenge: [0xa5; 32],
        }),
        accounts: vec![("0xhost".to_owned(), credentials)],
        ..Setup::default()
    }
}

fn chap_config(mutual: bool, algorithms: &'static [Algorithm]) -> InitiatorConfig {
    let target = mutual.then(|| ("target".to_owned(), secret("target-secret-1")));
    InitiatorConfig {
        credentials: Some(InitiatorCredentials {
            name: "0xhost".to_owned(),
            secret: secret("host-secret-123"),
            algorithms,
            target,
            id: 77,
            challenge: [0x3c; 32],
        }),
        ..config()
    }
}

fn refused(config: InitiatorConfig, setup: Setup) -> LoginStatus {
    let mut pair = Pair::new(config, setup, 8);
    pair.log_in();
    assert!(!pair.host.logged_in);
    assert!(pair.disk.closing);
    pair.host.refused.expect("a refusal")
}

#[test]
fn logins_with_every_choice_of_digests() {
    for bits in 0..16_u8 {
        let bit = |at: u8| bits & 1 << at != 0;
        let mut setup = Setup::default();
        setup.config.allow_header_digest = bit(0);
        setup.config.allow_data_digest = bit(1);
        let mut config = config();
        config.wishes.header_digest = bit(2);
        config.wishes.data_digest = bit(3);
        let mut pair = Pair::new(config, setup, 8);
        pair.log_in();
        assert!(pair.host.logged_in);
        assert_eq!(pair.disk.target.header_digest(), bit(0) && bit(2));
        assert_eq!(pair.disk.target.data_digest(), bit(1) && bit(3));
        assert_eq!(pair.host.initiator.data_digest(), bit(1) && bit(3));
        pair.host.write(0, 1, &[7; 1024], &mut pair.to_target);
        pair.run_well();
        assert!(pair.disk.data[512..1536] == [7; 1024]);
        assert_eq!(pair.host.take_ended().1.status, 0);
    }
}

#[test]
fn a_digest_that_an_initiator_insists_on_must_be_agreed() {
    let mut config = config();
    config.wishes.header_digest = true;
    config.wishes.no_header_digest = false;
    let mut setup = Setup::default();
    setup.config.allow_header_digest = false;
    let mut pair = Pair::new(config, setup, 8);
    pair.log_in();
    let error = pair.host_error.expect("an error");
    assert_eq!(error.violation(), Violation::LoginKey);
    assert!(error.to_string().contains("HeaderDigest=Reject"), "{error}");
}

#[test]
fn chap_with_every_hash_one_way_and_mutual() {
    for algorithms in
        [&[Algorithm::Md5], &[Algorithm::Sha1], &[Algorithm::Sha256], &[Algorithm::Sha3]]
    {
        for mutual in [false, true] {
            let mut pair = Pair::new(chap_config(mutual, algorithms), chap_setup(mutual), 8);
            pair.log_in();
            assert!(pair.host.logged_in, "{algorithms:?} {mutual}");
            assert_eq!(pair.disk.target.chap_name(), Some("0xhost"));
            pair.host.read(0, 0, 1, &mut pair.to_target);
            pair.run_well();
        }
    }
}

#[test]
fn chap_refuses_what_is_not_proved() {
    let failed = LoginStatus::AUTHENTICATION_FAILED;
    assert_eq!(refused(config(), chap_setup(false)), failed, "no CHAP at all");
    assert_eq!(refused(chap_config(false, Algorithm::ALL), chap_setup(true)), failed, "one way");
    let mut wrong = chap_config(false, Algorithm::ALL);
    if let Some(credentials) = &mut wrong.credentials {
        credentials.secret = secret("another-secret");
    }
    assert_eq!(refused(wrong, chap_setup(false)), failed, "a wrong secret");
    let mut nobody = chap_config(false, Algorithm::ALL);
    if let Some(credentials) = &mut nobody.credentials {
        credentials.name = "nobody".to_owned();
    }
    assert_eq!(refused(nobody, chap_setup(false)), failed, "an unknown name");
    // The target has no secret of its own.
    assert_eq!(refused(chap_config(true, Algorithm::ALL), chap_setup(false)), failed);
    let mut reflecting = chap_config(true, Algorithm::ALL);
    if let Some(credentials) = &mut reflecting.credentials {
        credentials.challenge = [0xa5; 32];
    }
    let mut pair = Pair::new(reflecting, chap_setup(true), 8);
    pair.log_in();
    let violation = pair.host_error.map(|error| error.violation());
    assert_eq!(violation, Some(Violation::TargetNotAuthentic), "the same challenge both ways");
}

#[test]
fn an_initiator_finds_out_a_false_target() {
    let mut config = chap_config(true, Algorithm::ALL);
    if let Some(credentials) = &mut config.credentials {
        credentials.target = Some(("target".to_owned(), secret("what the target lacks")));
    }
    let mut pair = Pair::new(config, chap_setup(true), 8);
    pair.log_in();
    let violation = pair.host_error.map(|error| error.violation());
    assert_eq!(violation, Some(Violation::TargetNotAuthentic));
}

#[test]
fn chap_is_left_out_where_it_is_not_demanded() {
    let mut setup = chap_setup(false);
    setup.authentication = Authentication::None;
    let mut pair = Pair::new(chap_config(false, Algorithm::ALL), setup, 8);
    pair.log_in();
    assert!(pair.host.logged_in);
    assert_eq!(pair.disk.target.chap_name(), None);
}

#[test]
fn an_unknown_target_is_not_found() {
    let mut config = config();
    config.target_name = raceline_iscsi::names::Name::new("iqn.2026-11.test.raceline:none").ok();
    assert_eq!(refused(config, Setup::default()), LoginStatus::NOT_FOUND);
}

#[test]
fn an_initiator_is_sent_elsewhere() {
    for (permanently, status) in
        [(false, LoginStatus::MOVED_TEMPORARILY), (true, LoginStatus::MOVED_PERMANENTLY)]
    {
        let redirect = Some(("[fd00::1]:3260", permanently));
        let mut pair = Pair::new(config(), Setup { redirect, ..Setup::default() }, 8);
        pair.log_in();
        assert_eq!(pair.host.refused, Some(status));
        assert_eq!(pair.host.initiator.redirected_to(), Some("[fd00::1]:3260"));
        assert!(pair.disk.closing);
    }
}

#[test]
fn discovery_lists_targets_over_many_pages() {
    for (extra, limit) in [(0, 262_144), (3, 512), (1000, 8192), (1000, 262_144)] {
        let mut config = config();
        config.target_name = None;
        config.wishes.max_data_segment_len = limit;
        let setup = Setup { extra_targets: extra, ..Setup::default() };
        let mut pair = Pair::new(config, setup, 8);
        pair.log_in();
        assert!(pair.host.initiator.send_targets("All", &mut pair.to_target));
        pair.run_well();
        assert!(pair.host.targets);
        let targets = pair.host.initiator.targets().expect("text");
        assert_eq!(targets.len(), 1 + extra);
        assert_eq!(targets[0].name.as_str(), TARGET);
        assert_eq!(targets[0].addresses, [("127.0.0.1:3260".to_owned(), 1)]);
        pair.host.targets = false;
        assert!(pair.host.initiator.send_targets(TARGET, &mut pair.to_target));
        pair.run_well();
        assert_eq!(pair.host.initiator.targets().expect("text").len(), 1);
        assert!(pair.host.initiator.logout(&mut pair.to_target));
        pair.run_well();
        assert_eq!(pair.host.logged_out, Some(Some(LogoutResponseCode::Closed)));
        assert!(pair.disk.closing);
    }
}

#[test]
fn commands_fail_with_sense_data_and_count_residuals() {
    let mut pair = Pair::new(config(), Setup::default(), 8);
    pair.log_in();
    pair.host.read(3, 8, 1, &mut pair.to_target);
    pair.run_well();
    let (slot, outcome, sense) = pair.host.take_ended();
    assert_eq!((slot, outcome.status, sense[2], sense[12]), (3, 2, 5, 0x21));
    assert_eq!(sense.len(), 18);

    // Fewer bytes than expected: INQUIRY has 36.
    pair.host.command(4, &[0x12, 0, 0, 0, 255, 0], 255, &mut pair.to_target);
    pair.run_well();
    let (_, outcome, _) = pair.host.take_ended();
    assert_eq!((outcome.status, outcome.received, outcome.missing), (0, 36, 0));
    assert_eq!(outcome.residual, Residual::Underflow(219));

    // More: two blocks into the memory of one.
    pair.host.command(5, &common::host::cdb16(0x88, 0, 2), 512, &mut pair.to_target);
    pair.run_well();
    let (_, outcome, _) = pair.host.take_ended();
    assert_eq!((outcome.status, outcome.residual), (0, Residual::Overflow(512)));
    assert_eq!((outcome.received, outcome.missing), (512, 0));
}

#[test]
fn pings_and_messages_go_both_ways() {
    let mut pair = Pair::new(config(), Setup::default(), 8);
    assert!(!pair.host.initiator.ping(&mut pair.to_target), "before the login");
    assert!(!pair.disk.target.ping(&mut pair.to_host), "before the login");
    pair.log_in();
    for round in 1..4 {
        assert!(pair.host.initiator.ping(&mut pair.to_target));
        assert!(!pair.host.initiator.ping(&mut pair.to_target), "one at a time");
        let start = pair.to_host.len();
        assert!(pair.disk.target.ping(&mut pair.to_host));
        // Wireshark does not take an answer with a TTT of 0 for iSCSI.
        assert_ne!(pair.to_host[start + 20..start + 24], [0; 4]);
        pair.disk.target.window_update(&mut pair.to_host);
        pair.run_well();
        assert_eq!((pair.host.pongs, pair.disk.pongs), (round, round));
    }
    let message = Async {
        event: AsyncEvent::ScsiEvent,
        lun: 1 << 48,
        parameters: (1, 2, 3, 4),
        sense: &[0x70, 0, 6],
    };
    pair.disk.target.async_message(&message, &mut pair.to_host);
    pair.run_well();
    let (pdu, data) = pair.host.messages.remove(0);
    assert_eq!((pdu.event, pdu.vcode, pdu.parameter1, pdu.parameter3), (0, 1, 2, 4));
    assert_eq!(data, [0, 3, 0x70, 0, 6]);
}

#[test]
fn a_task_is_aborted_and_its_slot_is_free_again() {
    let setup = Setup { window: 2, ..Setup::default() };
    let mut pair = Pair::new(config(), setup, 8);
    pair.log_in();
    pair.disk.hold = true;
    pair.host.read(0, 0, 1, &mut pair.to_target);
    pair.host.read(1, 0, 1, &mut pair.to_target);
    assert!(!pair.host.initiator.may_send(), "the window has two places");
    pair.run_well();
    assert_eq!(pair.disk.target.live_tasks(), 2);
    let tag = pair.host.initiator.task_management(
        TmfFunction::AbortTask,
        0,
        Some(0),
        &mut pair.to_target,
    );
    assert!(tag.is_some());
    pair.run_well();
    assert_eq!(pair.host.tmf_responses, [Some(TmfResponseCode::Complete)]);
    pair.host.initiator.forget(0);
    assert!(pair.host.initiator.may_send(), "its place is free");
    assert_eq!(pair.disk.target.live_tasks(), 1);
    pair.disk.hold = false;
    pair.disk.release(&mut pair.to_host);
    pair.run_well();
    assert_eq!(pair.host.take_ended().0, 1);
    let none = pair.host.initiator.task_management(
        TmfFunction::AbortTask,
        0,
        Some(0),
        &mut pair.to_target,
    );
    assert_eq!(none, None, "the command has ended");
}

#[test]
fn late_data_of_an_aborted_write_are_dropped() {
    let mut pair = Pair::new(config(), Setup::default(), 4096);
    pair.host.immediate_limit = 0;
    pair.host.unsolicited = false;
    pair.log_in();
    pair.host.keep_grants = true;
    pair.host.write(0, 0, &[1; 4096], &mut pair.to_target);
    pair.run_well();
    let grant = pair.host.grants.remove(0);
    pair.host
        .initiator
        .task_management(TmfFunction::AbortTask, 0, Some(0), &mut pair.to_target)
        .expect("a tag");
    pair.host.send_data(grant, &mut pair.to_target);
    pair.run_well();
    assert_eq!(pair.host.tmf_responses, [Some(TmfResponseCode::Complete)]);
    assert_eq!(pair.disk.target.live_tasks(), 0);
    assert!(pair.disk.data[..4096] == [0; 4096]);
    pair.host.initiator.forget(0);
    pair.host.keep_grants = false;
    pair.host.write(0, 0, &[2; 4096], &mut pair.to_target);
    pair.run_well();
    assert!(pair.disk.data[..4096] == [2; 4096]);
}

/// Parameters at random, within what either end may say.
fn random_setup(random: &mut Random) -> (InitiatorConfig, Setup) {
    let len = |random: &mut Random| 512 << random.below(11);
    let odd = |random: &mut Random| u32::try_from(512 + random.below(70_000)).expect("small");
    let mut host = config();
    let wishes = &mut host.wishes;
    wishes.header_digest = random.flip();
    wishes.data_digest = random.flip();
    wishes.initial_r2t = random.flip();
    wishes.immediate_data = random.flip();
    wishes.max_data_segment_len = odd(random);
    wishes.max_burst_len = len(random);
    wishes.first_burst_len = len(random).min(wishes.max_burst_len);
    wishes.max_outstanding_r2t = 1 + u16::try_from(random.below(8)).expect("small");
    let max_burst_len = odd(random);
    let config = TargetConfig {
        max_recv_data_segment_len: odd(random),
        max_burst_len,
        first_burst_len: odd(random).min(max_burst_len),
        immediate_data: random.flip(),
        initial_r2t: random.flip(),
        max_outstanding_r2t: 1 + u16::try_from(random.below(8)).expect("small"),
        ..TargetConfig::default()
    };
    let window = 1 + u16::try_from(random.below(40)).expect("small");
    (host, Setup { config, window, responses: random.flip(), ..Setup::default() })
}

#[test]
fn writes_and_reads_of_all_sizes_with_random_parameters() {
    const DISK_BLOCKS: usize = 8192;
    let (mut r2ts, mut unsolicited, mut immediate, mut digests) = (0, 0, 0, 0);
    for seed in 1..=60 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let (host, setup) = random_setup(&mut random);
        let mut pair = Pair::new(host, setup, DISK_BLOCKS);
        pair.log_in();
        assert!(pair.host.logged_in);
        pair.chunk = 1 + random.below(100_000);
        pair.host.unsolicited = random.flip();
        pair.host.immediate_limit = if random.flip() {
            u32::MAX
        } else {
            u32::try_from(random.below(5000)).expect("small")
        };
        assert_eq!(
            pair.host.initiator.parameters().first_burst_len,
            pair.disk.target.parameters().first_burst_len
        );
        let mut expected = pair.disk.data.clone();
        for _ in 0..8 {
            // Commands of one round do not overlap.
            let depth = 1 + random.below(6);
            let share = DISK_BLOCKS / depth;
            let mut reads = Vec::new();
            let mut sent = 0_u16;
            for at in 0..depth {
                let blocks = 1 + random.below(share.min(2048));
                let lba = at * share + random.below(share - blocks + 1);
                let range = lba * BLOCK..(lba + blocks) * BLOCK;
                if !pair.host.initiator.may_send() {
                    break;
                }
                let slot = u16::try_from(at).expect("small");
                if random.flip() {
                    let data = random.bytes(range.len());
                    expected[range].copy_from_slice(&data);
                    pair.host.write(slot, lba as u64, &data, &mut pair.to_target);
                } else {
                    let blocks = u32::try_from(blocks).expect("small");
                    pair.host.read(slot, lba as u64, blocks, &mut pair.to_target);
                    reads.push((slot, range));
                }
                sent += 1;
            }
            pair.run_well();
            assert_eq!(pair.host.ended.len(), usize::from(sent));
            for (_, outcome, _) in pair.host.ended.drain(..) {
                assert_eq!((outcome.response, outcome.status, outcome.missing), (0, 0, 0));
                assert_eq!(outcome.residual, Residual::None);
            }
            for (slot, range) in reads {
                assert!(pair.host.buffer(slot) == &expected[range], "a read of seed {seed}");
            }
            assert!(pair.disk.data == expected, "a write of seed {seed}");
            assert_eq!(pair.disk.target.live_tasks(), 0);
        }
        r2ts += pair.host.r2ts;
        let parameters = pair.disk.target.parameters();
        unsolicited += usize::from(!parameters.initial_r2t && pair.host.unsolicited);
        immediate += usize::from(parameters.immediate_data);
        digests += usize::from(parameters.data_digest);
        assert!(pair.host.initiator.logout(&mut pair.to_target));
        pair.run_well();
        assert!(pair.host.logged_out.is_some());
    }
    assert!(r2ts > 1000 && unsolicited > 2 && immediate > 5 && digests > 5, "too few ways");
}
