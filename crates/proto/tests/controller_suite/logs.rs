//! Get Log Page: every page, offsets and lengths.

use std::time::Duration;

use raceline_proto::controller::{ERROR_LOG_ENTRIES, ErrorEntry, IoCounters};
use raceline_proto::nvme::log::{EffectsLog, ErrorLogEntry, GetLogPage, SmartLog, lid};
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::{CommandId, NamespaceId, QueueId, Sqe, Status};
use zerocopy::FromBytes;

use super::support::{Host, namespace, snapshot, subsystem};

fn entries(host: &mut Host) -> Vec<ErrorLogEntry> {
    let data = host.log(lid::ERROR, 0, 4096, false).ok().data;
    data.chunks_exact(64).map(|bytes| ErrorLogEntry::read_from_bytes(bytes).unwrap()).collect()
}

fn smart(host: &mut Host) -> SmartLog {
    let data = host.log(lid::SMART, 0, 512, false).ok().data;
    SmartLog::read_from_bytes(&data).unwrap()
}

#[test]
fn error_log_is_empty_at_first() {
    assert!(Host::ready().log(lid::ERROR, 0, 4096, false).ok().data.iter().all(|&b| b == 0));
}

#[test]
fn error_log_has_failed_commands_newest_first() {
    let mut host = Host::ready();
    let unknown = Sqe {
        cid: 0x1234.into(),
        nsid: 9.into(),
        cdw10: 0x0c.into(),
        ..Host::admin(admin::GET_FEATURES, 0)
    };
    assert_eq!(host.command(&unknown).status, Status::INVALID_FIELD.dnr());
    host.controller.record_error(ErrorEntry {
        sqid: QueueId(3),
        cid: CommandId(0x77),
        status: Status::UNRECOVERED_READ_ERROR,
        nsid: NamespaceId(2),
        lba: 0x1_0000_0001,
    });
    let entries = entries(&mut host);
    assert_eq!((entries[0].error_count.get(), entries[1].error_count.get()), (2, 1));
    assert_eq!((entries[0].sqid.get(), entries[0].cid.get()), (3, 0x77));
    assert_eq!(entries[0].status.get(), 0x0281 << 1);
    assert_eq!((entries[0].lba.get(), entries[0].nsid.get()), (0x1_0000_0001, 2));
    assert_eq!((entries[1].sqid.get(), entries[1].cid.get()), (0, 0x1234));
    assert_eq!(entries[1].status.get(), 0x4002 << 1, "Invalid Field, DNR");
    assert_eq!(entries[1].parameter_location.get(), 0xffff);
    assert_eq!(entries[2], ErrorLogEntry::default());
    assert_eq!(u128::from(smart(&mut host).error_log_entries), 2);
}

#[test]
fn error_log_keeps_the_latest() {
    let mut host = Host::ready();
    for cid in 0..100 {
        host.controller.record_error(ErrorEntry {
            sqid: QueueId(1),
            cid: CommandId(cid),
            status: Status::WRITE_FAULT,
            nsid: NamespaceId(1),
            lba: 0,
        });
    }
    let entries = entries(&mut host);
    assert_eq!(entries.len(), ERROR_LOG_ENTRIES);
    assert_eq!((entries[0].error_count.get(), entries[63].error_count.get()), (100, 37));
    assert_eq!(u128::from(smart(&mut host).error_log_entries), 100);
}

#[test]
fn smart_log_counts() {
    let mut host = Host::ready();
    host.facts.counters = IoCounters {
        read_commands: 128,
        write_commands: 2,
        // 1016 times 512 bytes: a second thousand has begun
        read_bytes: 127 * 4096,
        written_bytes: 4096,
        media_errors: 3,
        busy: Duration::from_secs(179),
    };
    host.now += Duration::from_secs(2 * 3600 + 1);
    let smart = smart(&mut host);
    assert_eq!(u128::from(smart.host_read_commands), 128);
    assert_eq!(u128::from(smart.host_write_commands), 2);
    assert_eq!(u128::from(smart.data_units_read), 2);
    assert_eq!(u128::from(smart.data_units_written), 1);
    assert_eq!(u128::from(smart.media_errors), 3);
    assert_eq!(u128::from(smart.controller_busy_time), 2);
    assert_eq!(u128::from(smart.power_on_hours), 2);
    assert_eq!((smart.critical_warning, smart.available_spare, smart.percentage_used), (0, 100, 0));
}

#[test]
fn smart_log_is_that_of_the_controller() {
    let mut host = Host::ready();
    for (nsid, valid) in [(0, true), (u32::MAX, true), (1, false)] {
        let mut sqe = Host::admin(admin::GET_LOG_PAGE, 512);
        GetLogPage { lid: lid::SMART, len_bytes: 512, ..GetLogPage::default() }.write(&mut sqe);
        sqe.nsid = nsid.into();
        assert_eq!(host.command(&sqe).status.is_success(), valid);
    }
}

#[test]
fn firmware_log_names_the_revision() {
    let data = Host::ready().log(lid::FIRMWARE, 0, 512, false).ok().data;
    assert_eq!(data[0], 1, "AFI");
    assert_eq!(&data[8..16], b"0.1     ");
    assert!(data[16..].iter().all(|&b| b == 0));
}

#[test]
fn effects_log_says_what_is_supported() {
    let data = Host::ready().log(lid::EFFECTS, 0, 4096, false).ok().data;
    let page = EffectsLog::read_from_bytes(&data).unwrap();
    let supported = |list: &[zerocopy::little_endian::U32]| -> Vec<(usize, u32)> {
        list.iter().map(|effects| effects.get()).enumerate().filter(|&(_, e)| e != 0).collect()
    };
    let admin = [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x38];
    assert_eq!(supported(&page.acs), admin.map(|opcode| (opcode, 1)));
    assert_eq!(
        supported(&page.iocs),
        [(0, 1), (1, 3), (2, 1), (5, 1), (8, 3), (9, 3), (12, 1), (25, 3)]
    );
    assert_eq!(page.iocs[usize::from(io::WRITE)].get() >> 16, 0, "CSE");
}

#[test]
fn there_are_effects_of_the_nvm_command_set_only() {
    let mut sqe = Host::admin(admin::GET_LOG_PAGE, 4096);
    GetLogPage { lid: lid::EFFECTS, len_bytes: 4096, csi: 2, ..GetLogPage::default() }
        .write(&mut sqe);
    assert_eq!(Host::ready().command(&sqe).status, Status::INVALID_LOG_PAGE.dnr());
}

#[test]
fn changed_namespaces_are_listed_once() {
    let mut host = Host::ready();
    let mut changed = subsystem();
    changed.namespaces[0].block_count += 1;
    changed.namespaces[1] = namespace(9);
    host.controller.handle_snapshot(snapshot(2, changed.clone()));
    changed.namespaces.remove(1);
    host.controller.handle_snapshot(snapshot(3, changed));
    let list = |host: &mut Host, rae| {
        let data = host.log(lid::CHANGED_NAMESPACES, 0, 4096, rae).ok().data;
        let nsids = data.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap()));
        nsids.take_while(|&nsid| nsid != 0).collect::<Vec<_>>()
    };
    assert_eq!(list(&mut host, true), [1, 2, 9]);
    assert_eq!(list(&mut host, false), [1, 2, 9], "RAE keeps it");
    assert_eq!(list(&mut host, false), [] as [u32; 0]);
}

#[test]
fn an_equal_snapshot_changes_nothing() {
    let mut host = Host::ready();
    host.controller.handle_snapshot(snapshot(2, subsystem()));
    assert!(host.log(lid::CHANGED_NAMESPACES, 0, 4096, false).ok().data.iter().all(|&b| b == 0));
}

#[test]
fn offsets_are_dwords_inside_the_page() {
    let mut host = Host::ready();
    let whole = host.log(lid::FIRMWARE, 0, 512, false).ok().data;
    assert_eq!(host.log(lid::FIRMWARE, 8, 8, false).ok().data, whole[8..16]);
    let tail = host.log(lid::FIRMWARE, 508, 512, false).ok().data;
    assert!(tail.iter().all(|&b| b == 0), "zero past the end");
    host.log(lid::FIRMWARE, 512, 4, false).ok();
    for offset in [1, 2, 510, 516, 1 << 32, u64::MAX - 3] {
        let status = host.log(lid::FIRMWARE, offset, 4, false).status;
        assert_eq!(status, Status::INVALID_FIELD.dnr(), "{offset}");
    }
}

#[test]
fn numd_must_fit_into_the_sgl() {
    let mut host = Host::ready();
    let log = |host: &mut Host, len_bytes, sgl| {
        let mut sqe = Host::admin(admin::GET_LOG_PAGE, sgl);
        GetLogPage { lid: lid::SMART, len_bytes, ..GetLogPage::default() }.write(&mut sqe);
        host.command(&sqe)
    };
    for (numd, sgl) in [(516, 512), (4, 0), (1 << 34, 512), (65536, 512)] {
        let status = log(&mut host, numd, sgl).status;
        assert_eq!(status, Status::DATA_SGL_LENGTH_INVALID.dnr(), "{numd} {sgl}");
    }
    let data = log(&mut host, 4, 4096).ok().data;
    assert_eq!(data.len(), 4096, "the transfer length is honoured");
    assert_eq!(data[3], 100);
    assert!(data[4..].iter().all(|&b| b == 0));
    let data = log(&mut host, 65536, 65536).ok().data;
    assert!(data[512..].iter().all(|&b| b == 0), "longer than the page");
}

#[test]
fn unknown_pages_are_invalid_log_pages() {
    let mut host = Host::ready();
    for lid in [0x00, 0x06, 0x07, 0x0c, 0x0d, 0x12, 0x70, 0x80, 0xc0, 0xff] {
        let status = host.log(lid, 0, 512, false).status;
        assert_eq!(status, Status::INVALID_LOG_PAGE.dnr(), "{lid:#x}");
    }
    let mut host = Host::discovery(&snapshot(1, subsystem()), 0, "192.0.2.1:8009");
    for lid in [lid::ERROR, lid::SMART, lid::FIRMWARE, lid::CHANGED_NAMESPACES, lid::EFFECTS] {
        assert_eq!(host.log(lid, 0, 512, false).status, Status::INVALID_LOG_PAGE.dnr());
    }
}
