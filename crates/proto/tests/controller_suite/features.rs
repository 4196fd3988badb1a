//! Get Features and Set Features.

use raceline_proto::controller::AdminOutcome;
use raceline_proto::nvme::feature::{WriteProtection, fid};
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::property::Configuration;
use raceline_proto::nvme::{NamespaceId, Sqe, Status};

use super::support::{Connect, HOSTID, Host, snapshot, subsystem};

const CURRENT: u32 = 0;
const DEFAULT: u32 = 1;
const SAVED: u32 = 2;
const CAPABILITIES: u32 = 3;

fn get(host: &mut Host, fid: u8) -> u32 {
    host.get_feature(fid, CURRENT, 0, 0).ok().dw0
}

#[test]
fn values_are_kept_until_a_reset() {
    let mut host = Host::ready();
    for (fid, value) in [
        (fid::ARBITRATION, 0x0102_0304),
        (fid::POWER_MANAGEMENT, 0x20),
        (fid::ERROR_RECOVERY, 0x1234),
        (fid::WRITE_ATOMICITY, 1),
        (fid::ASYNC_EVENT_CONFIG, 0x1ff),
    ] {
        let default = get(&mut host, fid);
        host.set_feature(fid, value).ok();
        assert_eq!(get(&mut host, fid), value, "{fid:#x}");
        assert_eq!(host.get_feature(fid, DEFAULT, 0, 0).ok().dw0, default);
        assert_eq!(host.get_feature(fid, SAVED, 0, 0).ok().dw0, default);
        host.set_cc(Configuration::default()).ok();
        host.enable();
        assert_eq!(get(&mut host, fid), default, "{fid:#x} after a reset");
    }
}

#[test]
fn capabilities_say_what_can_change() {
    let mut volatile = subsystem();
    volatile.namespaces[0].volatile_write_cache = true;
    let mut host = Host::ready_with(volatile);
    let capabilities = |host: &mut Host, fid| host.get_feature(fid, CAPABILITIES, 0, 0).ok().dw0;
    for fid in [fid::ARBITRATION, fid::NUMBER_OF_QUEUES, fid::KEEP_ALIVE_TIMER] {
        assert_eq!(capabilities(&mut host, fid), 0b100);
    }
    for fid in [fid::VOLATILE_WRITE_CACHE, fid::HOST_IDENTIFIER] {
        assert_eq!(capabilities(&mut host, fid), 0);
    }
    for select in 4..8 {
        let status = host.get_feature(fid::ARBITRATION, select, 0, 0).status;
        assert_eq!(status, Status::INVALID_FIELD.dnr());
    }
}

#[test]
fn unknown_features_are_invalid_fields() {
    let mut host = Host::ready();
    // LBA range, coalescing, vectors, APST, timestamp, reservations where there are none, ...
    let unknown =
        [0x00, 0x03, 0x08, 0x09, 0x0c, 0x0d, 0x0e, 0x10, 0x11, 0x15, 0x80, 0x82, 0x83, 0xc0];
    for fid in unknown {
        for select in [CURRENT, DEFAULT, SAVED, CAPABILITIES] {
            let status = host.get_feature(fid, select, 0, 4096).status;
            assert_eq!(status, Status::INVALID_FIELD.dnr(), "{fid:#x}");
        }
        assert_eq!(host.set_feature(fid, 0).status, Status::INVALID_FIELD.dnr(), "{fid:#x}");
    }
}

#[test]
fn the_command_set_profile_is_the_only_one() {
    let mut host = Host::ready();
    let fid = fid::COMMAND_SET_PROFILE;
    assert_eq!(host.get_feature(fid, CAPABILITIES, 0, 0).ok().dw0, 0b100);
    for select in [CURRENT, DEFAULT, SAVED] {
        assert_eq!(host.get_feature(fid, select, 0, 0).ok().dw0, 0);
    }
    host.set_feature(fid, 0).ok();
    for index in [1, 0x1ff] {
        let status = host.set_feature(fid, index).status;
        assert_eq!(status, Status::COMMAND_SETS_REJECTED.dnr(), "{index}");
    }
    assert_eq!(get(&mut host, fid), 0);
}

#[test]
fn nothing_can_be_saved() {
    let mut host = Host::ready();
    let sqe = Sqe {
        cdw10: (1 << 31 | u32::from(fid::ARBITRATION)).into(),
        ..Host::admin(admin::SET_FEATURES, 0)
    };
    assert_eq!(host.command(&sqe).status, Status::FEATURE_NOT_SAVEABLE.dnr());
}

#[test]
fn features_belong_to_the_controller() {
    let mut host = Host::ready();
    for (nsid, status) in [
        (0, Status::SUCCESS),
        (u32::MAX, Status::SUCCESS),
        (1, Status::FEATURE_NOT_NAMESPACE_SPECIFIC.dnr()),
    ] {
        let sqe = Sqe {
            nsid: nsid.into(),
            cdw10: u32::from(fid::ARBITRATION).into(),
            ..Host::admin(admin::SET_FEATURES, 0)
        };
        assert_eq!(host.command(&sqe).status, status);
    }
}

#[test]
fn number_of_queues_is_granted_up_to_the_limit() {
    let mut host = Host::ready();
    assert_eq!(get(&mut host, fid::NUMBER_OF_QUEUES), 0x000f_000f);
    for (asked, granted) in [
        (0x0003_0003, 0x0003_0003),
        (0x0007_0001, 0x0001_0001),
        (0x00ff_00ff, 0x000f_000f),
        (0xfffe_fffe, 0x000f_000f),
        (0x0000_0000, 0x0000_0000),
    ] {
        assert_eq!(host.set_feature(fid::NUMBER_OF_QUEUES, asked).ok().dw0, granted);
        assert_eq!(get(&mut host, fid::NUMBER_OF_QUEUES), granted);
    }
    for asked in [0xffff_0000, 0x0000_ffff, 0xffff_ffff] {
        let status = host.set_feature(fid::NUMBER_OF_QUEUES, asked).status;
        assert_eq!(status, Status::INVALID_FIELD.dnr());
    }
    // one pair was granted
    host.io_connect(&Connect::io(1)).unwrap();
    assert!(host.io_connect(&Connect::io(2)).is_err());
    let status = host.set_feature(fid::NUMBER_OF_QUEUES, 0x0003_0003).status;
    assert_eq!(status, Status::COMMAND_SEQUENCE_ERROR.dnr(), "not with I/O queues");
}

#[test]
fn volatile_write_cache_is_there_only_with_a_cache() {
    let status = Host::ready().get_feature(fid::VOLATILE_WRITE_CACHE, CURRENT, 0, 0).status;
    assert_eq!(status, Status::INVALID_FIELD.dnr());
    let mut volatile = subsystem();
    volatile.namespaces[0].volatile_write_cache = true;
    let mut host = Host::ready_with(volatile);
    assert_eq!(get(&mut host, fid::VOLATILE_WRITE_CACHE), 1);
    host.set_feature(fid::VOLATILE_WRITE_CACHE, 1).ok();
    let status = host.set_feature(fid::VOLATILE_WRITE_CACHE, 0).status;
    assert_eq!(status, Status::FEATURE_NOT_CHANGEABLE.dnr(), "it cannot be turned off");
    assert_eq!(get(&mut host, fid::VOLATILE_WRITE_CACHE), 1);
}

#[test]
fn temperature_thresholds() {
    let mut host = Host::ready();
    let over =
        |host: &mut Host, cdw11| host.get_feature(fid::TEMPERATURE_THRESHOLD, CURRENT, cdw11, 0);
    assert_eq!(over(&mut host, 0).ok().dw0, 0xffff);
    assert_eq!(over(&mut host, 1 << 20).ok().dw0, 0);
    host.set_feature(fid::TEMPERATURE_THRESHOLD, 350).ok();
    host.set_feature(fid::TEMPERATURE_THRESHOLD, 1 << 20 | 0xf << 16 | 270).ok();
    assert_eq!(over(&mut host, 0).ok().dw0, 350);
    assert_eq!(over(&mut host, 1 << 20).ok().dw0, 270);
    for cdw11 in [1 << 16, 0xf << 16, 2 << 20, 3 << 20] {
        assert_eq!(over(&mut host, cdw11).status, Status::INVALID_FIELD.dnr());
    }
    let status = host.set_feature(fid::TEMPERATURE_THRESHOLD, 1 << 16).status;
    assert_eq!(status, Status::INVALID_FIELD.dnr());
}

#[test]
fn values_that_cannot_be_are_refused() {
    let mut host = Host::ready();
    for (fid, value) in [
        (fid::POWER_MANAGEMENT, 1),         // there is one power state
        (fid::ERROR_RECOVERY, 1 << 16),     // DULBE
        (fid::ASYNC_EVENT_CONFIG, 1 << 11), // no ANA
        (fid::ASYNC_EVENT_CONFIG, 1 << 31), // not a discovery controller
        (fid::ASYNC_EVENT_CONFIG, 1 << 9),  // no firmware activation
    ] {
        let status = host.set_feature(fid, value).status;
        assert_eq!(status, Status::INVALID_FIELD.dnr(), "{fid:#x} {value:#x}");
        assert_eq!(get(&mut host, fid), 0);
    }
}

#[test]
fn host_identifier_is_that_of_connect() {
    let mut host = Host::ready();
    let answer = host.get_feature(fid::HOST_IDENTIFIER, CURRENT, 1, 16).ok();
    assert_eq!(answer.data, HOSTID.0);
    let short = host.get_feature(fid::HOST_IDENTIFIER, CURRENT, 1, 8).status;
    assert_eq!(short, Status::DATA_SGL_LENGTH_INVALID.dnr());
    let narrow = host.get_feature(fid::HOST_IDENTIFIER, CURRENT, 0, 16).status;
    assert_eq!(narrow, Status::HOST_ID_INCONSISTENT.dnr());
    let set = host.set_feature(fid::HOST_IDENTIFIER, 1).status;
    assert_eq!(set, Status::COMMAND_SEQUENCE_ERROR.dnr());
}

#[test]
fn keep_alive_timer_is_rounded() {
    let mut host = Host::ready();
    assert_eq!(get(&mut host, fid::KEEP_ALIVE_TIMER), 5000);
    host.set_feature(fid::KEEP_ALIVE_TIMER, 1001).ok();
    assert_eq!(get(&mut host, fid::KEEP_ALIVE_TIMER), 2000);
}

#[test]
fn discovery_controllers_have_events_and_keep_alive() {
    let mut host = Host::discovery(&snapshot(1, subsystem()), 0, "192.0.2.1:8009");
    host.set_feature(fid::ASYNC_EVENT_CONFIG, 1 << 31).ok();
    assert_eq!(get(&mut host, fid::ASYNC_EVENT_CONFIG), 1 << 31);
    host.set_feature(fid::KEEP_ALIVE_TIMER, 30_000).ok();
    assert_eq!(get(&mut host, fid::KEEP_ALIVE_TIMER), 30_000);
    for fid in [fid::ARBITRATION, fid::NUMBER_OF_QUEUES, fid::VOLATILE_WRITE_CACHE] {
        let status = host.get_feature(fid, CURRENT, 0, 0).status;
        assert_eq!(status, Status::INVALID_FIELD.dnr());
    }
}

#[test]
fn a_reply_longer_than_the_value_is_zero() {
    let mut host = Host::ready();
    let answer = host.get_feature(fid::NUMBER_OF_QUEUES, CURRENT, 0, 4096).ok();
    assert_eq!(answer.data, [0; 4096]);
}

#[test]
fn write_protection_is_that_of_a_namespace() {
    let fid = fid::WRITE_PROTECTION;
    let ask = |host: &mut Host, opcode, nsid: u32, word: u32, select: u32| {
        let sqe = Sqe {
            nsid: nsid.into(),
            cdw10: (u32::from(fid) | select << 8).into(),
            cdw11: word.into(),
            ..Host::admin(opcode, 0)
        };
        host.submit(&sqe)
    };
    let done = |dw0| Ok(AdminOutcome::success(dw0));
    let failed = |status: Status| Ok(AdminOutcome::status(status.dnr()));
    let wanted = [
        (WriteProtection::None, 0),
        (WriteProtection::On, 1),
        (WriteProtection::UntilPowerCycle, 2),
    ];
    for (now, word) in wanted {
        let mut changed = subsystem();
        changed.namespaces[0].protection = now;
        let mut host = Host::ready_with(changed);
        let get = |host: &mut Host, nsid, select| ask(host, admin::GET_FEATURES, nsid, 0, select);
        assert_eq!((get(&mut host, 1, CURRENT), get(&mut host, 2, CURRENT)), (done(word), done(0)));
        assert_eq!(
            (get(&mut host, 1, DEFAULT), get(&mut host, 1, CAPABILITIES)),
            (done(0), done(0b110))
        );
        assert_eq!(get(&mut host, 3, CURRENT), failed(Status::INVALID_NAMESPACE));
        for (protection, word) in wanted {
            let expected = match now {
                now if now == protection => done(0),
                WriteProtection::UntilPowerCycle => failed(Status::FEATURE_NOT_CHANGEABLE),
                _ => Ok(AdminOutcome::Protect { nsid: NamespaceId(1), protection }),
            };
            assert_eq!(ask(&mut host, admin::SET_FEATURES, 1, word, 0), expected, "{now:?}");
        }
        let permanent = ask(&mut host, admin::SET_FEATURES, 2, 3, 0);
        assert_eq!(permanent, failed(Status::INVALID_FIELD), "nobody could take it back");
        let all = ask(&mut host, admin::SET_FEATURES, u32::MAX, 1, 0);
        assert_eq!(all, failed(Status::INVALID_NAMESPACE));
    }
}
