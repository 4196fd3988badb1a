//! Hosts that have to prove themselves: on every queue, before anything else, and again while they do I/O.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::{Duration, Instant};

use crate::common::chap::{
    all_closed, authenticate, connect, enable, guarded, guarded_by, initiator, receive, secret,
    send,
};
use crate::common::{RawHost, Wants, config, host_nqn, nqn, pattern, status};
use raceline_auth::{AuthenticationError, Keys};
use raceline_proto::nvme::authentication::{Explanation, authentication_send};
use raceline_proto::nvme::{ControllerId, Nqn, QueueId, Sqe, Status};
use raceline_target::{PreConnectLimits, TargetConfig};

const BLOCK: u32 = 512;

#[test]
fn every_queue_authenticates_in_both_directions_and_again() {
    let [secret, controller_secret] = [(); 2].map(|()| secret());
    let keys = Keys::new(secret.clone(), Some(controller_secret.clone()));
    let (target, address) = guarded(keys);
    let config = initiator(&secret, Some(&controller_secret));
    let (mut admin, cntlid) = connect(address, 0, ControllerId::DYNAMIC);
    assert_eq!(target.stats().pre_connect, 1, "it counts as a stranger until it is known");
    authenticate(&mut admin, &config).unwrap();
    assert_eq!(target.stats().pre_connect, 0);
    enable(&mut admin);
    let (mut queue, _) = connect(address, 1, cntlid);
    authenticate(&mut queue, &config).unwrap();
    for round in 0..3 {
        let data = pattern(round, 4096);
        assert!(status(&queue.write(1, 8, &data, BLOCK)).is_success());
        assert_eq!(queue.read(1, 8, 8, BLOCK).data, data);
        authenticate(&mut queue, &config).unwrap();
        authenticate(&mut admin, &config).unwrap();
    }
    drop((admin, queue));
    all_closed(&target);
    target.shutdown().unwrap();
}

#[test]
fn nothing_but_authentication_is_taken_before_it() {
    let secret = secret();
    let (target, address) = guarded(Keys::new(secret.clone(), None));
    let config = initiator(&secret, None);
    let (mut admin, cntlid) = connect(address, 0, ControllerId::DYNAMIC);
    let required = Status::AUTHENTICATION_REQUIRED.dnr();
    assert_eq!(admin.set_property(0x14, 0x0046_0001).status, required);
    let identify = Sqe { opc: 6, cdw10: 1.into(), ..Sqe::default() };
    assert_eq!(status(&admin.read_command(identify, 4096)), required);
    // No I/O queue joins a controller whose host is a stranger.
    let mut early = RawHost::open(address, Wants::default());
    assert!(!early.connect(QueueId(1), 32, cntlid).status.is_success());
    authenticate(&mut admin, &config).unwrap();
    enable(&mut admin);
    let (mut queue, _) = connect(address, 1, cntlid);
    assert_eq!(status(&queue.read(1, 0, 1, BLOCK)), required);
    assert_eq!(status(&queue.write(1, 0, &[0; 512], BLOCK)), required);
    authenticate(&mut queue, &config).unwrap();
    assert!(status(&queue.read(1, 0, 1, BLOCK)).is_success());
    target.shutdown().unwrap();
}

#[test]
fn a_wrong_secret_is_refused_and_the_connection_closed() {
    let (target, address) = guarded(Keys::new(secret(), None));
    let refused = Err(AuthenticationError::Refused(Explanation::Failed));
    let (mut admin, _) = connect(address, 0, ControllerId::DYNAMIC);
    assert_eq!(authenticate(&mut admin, &initiator(&secret(), None)), refused);
    assert!(admin.until_closed().is_none());
    all_closed(&target);
    target.shutdown().unwrap();
}

#[test]
fn messages_out_of_order_end_the_connection() {
    let (target, address) = guarded(Keys::new(secret(), None));
    let success2 = [1, 4, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (mut admin, _) = connect(address, 0, ControllerId::DYNAMIC);
    // There is no transaction that a message could be fetched of.
    assert_eq!(status(&receive(&mut admin, 4096)), Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(send(&mut admin, &success2), Status::SUCCESS);
    let failure = receive(&mut admin, 4096);
    assert_eq!(failure.data[..8], [0, 0xf1, 0, 0, 3, 0, 1, 7]);
    assert!(failure.data[8..].iter().all(|byte| *byte == 0));
    admin.until_closed();
    // Rubbish of every length, also with wrong words in the command.
    for len in [1_u32, 5, 8, 71, 4096] {
        let (mut admin, _) = connect(address, 0, ControllerId::DYNAMIC);
        let rubbish = vec![0xa5; len as usize];
        let wrong = Sqe { cdw10: 0.into(), ..authentication_send(len) };
        let answer = admin.write_command(wrong, &rubbish, true);
        assert_eq!(status(&answer), Status::INVALID_FIELD.dnr());
        assert_eq!(send(&mut admin, &rubbish), Status::SUCCESS);
        assert_eq!(receive(&mut admin, 64).data[..2], [0, 0xf1]);
        admin.until_closed();
    }
    all_closed(&target);
    target.shutdown().unwrap();
}

#[test]
fn keys_change_while_hosts_are_connected() {
    let (old, new) = (secret(), secret());
    let (target, address) = guarded(Keys::new(old.clone(), None));
    let (mut admin, _) = connect(address, 0, ControllerId::DYNAMIC);
    authenticate(&mut admin, &initiator(&old, None)).unwrap();
    enable(&mut admin);
    // Both hold for a time.
    let both = Keys::new(new.clone(), None).or(old.clone(), None);
    target.set_host_keys(&nqn(), &host_nqn(), Some(both)).unwrap();
    authenticate(&mut admin, &initiator(&old, None)).unwrap();
    authenticate(&mut admin, &initiator(&new, None)).unwrap();
    let last = Keys::new(new.clone(), None);
    target.set_host_keys(&nqn(), &host_nqn(), Some(last)).unwrap();
    // The connection stays, whatever its host has proved itself with.
    assert_eq!(admin.get_property(0x1c) & 1, 1);
    authenticate(&mut admin, &initiator(&new, None)).unwrap();
    authenticate(&mut admin, &initiator(&old, None)).unwrap_err();
    admin.until_closed();
    // With keys that have no pair, it cannot authenticate.
    target.set_host_keys(&nqn(), &host_nqn(), Some(Keys::default())).unwrap();
    let (mut shut_out, _) = connect(address, 0, ControllerId::DYNAMIC);
    authenticate(&mut shut_out, &initiator(&new, None)).unwrap_err();
    shut_out.until_closed();
    // Without keys, the host need not authenticate.
    target.set_host_keys(&nqn(), &host_nqn(), None).unwrap();
    let (mut free, _) = RawHost::admin(address, Wants::default());
    assert_eq!(send(&mut free, &[0; 72]), Status::INVALID_OPCODE.dnr());
    let stranger = Nqn::new("nqn.2026-01.io.raceline:stranger").unwrap();
    assert!(target.set_host_keys(&nqn(), &stranger, None).is_err());
    target.shutdown().unwrap();
}

#[test]
fn a_host_that_never_answers_has_to_go() {
    let limit = Duration::from_millis(300);
    let pre_connect = PreConnectLimits { authentication: limit, ..PreConnectLimits::default() };
    let config = TargetConfig { pre_connect, ..config(1) };
    let (target, address) = guarded_by(config, Keys::new(secret(), None));
    let start = Instant::now();
    let (mut admin, _) = connect(address, 0, ControllerId::DYNAMIC);
    admin.until_closed();
    assert!(start.elapsed() >= limit, "{:?}", start.elapsed());
    all_closed(&target);
    target.shutdown().unwrap();
}
