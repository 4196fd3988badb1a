//! What the disk tells of itself, byte for byte. The bytes were put together by hand from the layouts in SPC-5 and SBC-4.

mod common;

use common::{Disk, cdb, hex, request};
use raceline_scsi::{
    AsciiField, DataDirection, Identity, Plan, Sense, lun_from_wire, lun_to_wire, vpd,
};

fn vpd(disk: &mut Disk, page: u8) -> Vec<u8> {
    disk.data(&[0x12, 0x01, page, 0x10, 0, 0])
}

#[test]
fn inquiry() {
    let expected = hex("00 00 06 12 5b 18 10 02  52 41 43 45 4c 49 4e 45
        64 69 73 6b 20 20 20 20  20 20 20 20 20 20 20 20
        30 2e 31 20 00 00 00 00  00 00 00 00 00 00 00 00
        00 00 00 00 00 00 00 00  00 00 00 a0 09 60 04 60
        04 c0 00 00 00 00 00 00  00 00 00 00 00 00 00 00
        00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00");
    let mut disk = Disk::new();
    assert_eq!(disk.data(&[0x12, 0, 0, 0, 255, 0]), expected);
    assert_eq!(disk.data(&[0x12, 0, 0, 2, 0, 0]), expected, "16 bits of allocation length");
    assert_eq!(disk.sense(&[0x12, 0, 1, 0, 255, 0], DataDirection::In, 255), Sense::bad_cdb(2));
    assert_eq!(disk.sense(&[0x12, 1, 1, 0, 255, 0], DataDirection::In, 255), Sense::bad_cdb(2));
    assert_eq!(
        disk.sense(&[0x12, 2, 0, 0, 255, 0], DataDirection::In, 255),
        Sense::bad_cdb_bit(1, 1)
    );
}

#[test]
fn text_fields_are_ascii_of_fixed_length() {
    assert_eq!(AsciiField::<8>::new("abc").as_bytes(), b"abc     ");
    assert_eq!(AsciiField::<4>::new("abcdef").as_bytes(), b"abcd");
    assert_eq!(AsciiField::<8>::new("a\u{e9}\u{20ac}\n\u{7f}~").as_bytes(), b"a____~  ");
}

#[test]
fn supported_pages_are_ascending_and_can_be_read() {
    let mut disk = Disk::new();
    let page = vpd(&mut disk, 0x00);
    assert_eq!(page, hex("00 00 00 08 00 80 83 86 8f b0 b1 b2"));
    for code in &page[4..] {
        let page = vpd(&mut disk, *code);
        assert_eq!((page[0], page[1]), (0, *code));
        assert_eq!(usize::from(u16::from_be_bytes([page[2], page[3]])), page.len() - 4);
    }
    let others = (0..=255).filter(|code| !vpd::PAGES.contains(code));
    for code in others {
        assert_eq!(
            disk.sense(&[0x12, 1, code, 0, 255, 0], DataDirection::In, 255),
            Sense::bad_cdb(2)
        );
    }
}

#[test]
fn serial_number() {
    let mut disk = Disk::new();
    assert_eq!(vpd(&mut disk, 0x80), hex("00 80 00 0a 30 31 32 33 34 35 36 37 38 39"));
    disk.lun.identity.serial = "\u{e9}".repeat(400);
    let page = vpd(&mut disk, 0x80);
    assert!(page.len() == 4 + 252 && page[4..].iter().all(|byte| *byte == b'_'));
}

#[test]
fn device_identification() {
    let mut disk = Disk::new();
    // SHA-256 of the UUID begins with dbe66283 3a579f44 1f33a7af 65 (sha256sum)
    let expected = hex("00 83 00 c0
        01 03 00 10 65 24 14 3d be 66 28 33 a5 79 f4 41 f3 3a 7a f6
        01 02 00 10 a0 a0 a0 a0 a0 a0 a0 a0 a0 a0 a0 a0 a0 a0 a0 a0
        01 02 00 08 e0 e0 e0 e0 e0 e0 e0 e0
        02 01 00 12 52 41 43 45 4c 49 4e 45 30 31 32 33 34 35 36 37 38 39
        01 0a 00 12 10 00 12 34 56 78 9a bc 4d ef 81 23 45 67 89 ab cd ef
        51 94 00 04 00 00 00 01
        51 95 00 04 00 00 00 01
        53 98 00 28 69 71 6e 2e 32 30 32 36 2d 30 31 2e 6f 72 67 2e 65 78 61 6d 70 6c 65 3a 64 69 73 6b
                    2c 74 2c 30 78 30 30 30 31 00 00 00
        53 a8 00 20 69 71 6e 2e 32 30 32 36 2d 30 31 2e 6f 72 67 2e 65 78 61 6d 70 6c 65 3a 64 69 73 6b
                    00 00 00 00");
    let page = vpd(&mut disk, 0x83);
    assert_eq!(page, expected, "{page:02x?}");
    // what a namespace does not have is not made up
    disk.lun.identity.nguid = [0; 16];
    disk.lun.identity.eui64 = [0; 8];
    let page = vpd(&mut disk, 0x83);
    assert_eq!(page[4..24], expected[4..24]);
    assert_eq!(page[24..], expected[56..]);
}

#[test]
fn every_uuid_has_a_naa_identifier_of_its_own() {
    let naa = |uuid: u128| Identity { uuid: uuid.to_be_bytes(), ..common::lun().identity }.naa();
    let base = u128::from_be_bytes(common::UUID);
    let mut all: Vec<[u8; 16]> = (0..128).map(|bit| naa(base ^ 1 << bit)).collect();
    all.push(naa(base));
    assert!(all.iter().all(|id| id[..3] == [0x65, 0x24, 0x14] && id[3] >> 4 == 3));
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 129);
}

#[test]
fn a_uuid_is_enough_of_an_identity() {
    let mut disk = Disk::new();
    disk.lun.identity = Identity::of_uuid(common::UUID);
    let serial = vpd(&mut disk, 0x80);
    assert_eq!(serial[4..], *b"123456789abc4def8123456789abcdef");
    assert_eq!(disk.data(&[0x12, 0, 0, 0, 36, 0])[8..32], *b"RACELINERaceline disk   ");
}

#[test]
fn extended_inquiry() {
    let mut disk = Disk::new();
    let mut expected = hex("00 86 00 3c 00 07 01 00");
    expected.resize(64, 0);
    assert_eq!(vpd(&mut disk, 0x86), expected);
    disk.lun.volatile_write_cache = false;
    expected[6] = 0;
    assert_eq!(vpd(&mut disk, 0x86), expected);
}

#[test]
fn block_limits() {
    let mut disk = Disk::new();
    let expected = hex("00 b0 00 3c 01 08 00 08  00 00 08 00 00 00 01 00
        00 00 00 00 00 00 10 00  00 00 00 04 00 00 00 08
        80 00 00 00 00 00 00 00  00 00 13 88 00 00 00 00
        00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00");
    assert_eq!(vpd(&mut disk, 0xb0), expected);
    disk.lun.deallocate = false;
    let mut without = expected;
    without[20..36].fill(0);
    assert_eq!(vpd(&mut disk, 0xb0), without, "no Unmap, no limits of it");
}

#[test]
fn characteristics_and_provisioning() {
    let mut disk = Disk::new();
    let mut expected = hex("00 b1 00 3c 00 01");
    expected.resize(64, 0);
    assert_eq!(vpd(&mut disk, 0xb1), expected);

    // (deallocates, reads zeroes) -> flags and type of page B2h, byte 14 of Read Capacity (16)
    for (deallocate, zeroes, page, capacity) in [
        (true, true, "00 b2 00 04 00 e4 02 00", 0xc0),
        (true, false, "00 b2 00 04 00 e0 02 00", 0x80),
        (false, true, "00 b2 00 04 00 00 00 00", 0x00),
        (false, false, "00 b2 00 04 00 00 00 00", 0x00),
    ] {
        disk.lun.deallocate = deallocate;
        disk.lun.deallocate_zeroes = zeroes;
        assert_eq!(vpd(&mut disk, 0xb2), hex(page));
        assert_eq!(disk.data(&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32])[14], capacity);
    }
}

#[test]
fn read_capacity() {
    let mut disk = Disk::new();
    assert_eq!(disk.data(&[0x25]), hex("00 00 27 0f 00 00 02 00"));
    let sixteen = [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255];
    let mut expected = hex("00 00 00 00 00 00 27 0f 00 00 02 00 00 03 c0 00");
    expected.resize(32, 0);
    assert_eq!(disk.data(&sixteen), expected);
    let mut last = |count: u64| {
        disk.lun.block_count = count;
        disk.data(&[0x25])[..4].to_vec()
    };
    assert_eq!(last((1 << 32) - 1), hex("ff ff ff fe"));
    assert_eq!(last(1 << 32), hex("ff ff ff ff"), "look at the other one");
    assert_eq!(last(1 << 40), hex("ff ff ff ff"));
    assert_eq!(disk.data(&sixteen)[..8], hex("00 00 00 ff ff ff ff ff"));
}

#[test]
fn report_luns() {
    let mut disk = Disk::new();
    let all = hex("00 00 00 18 00 00 00 00
        00 00 00 00 00 00 00 00  00 05 00 00 00 00 00 00  41 2c 00 00 00 00 00 00");
    let report = |select| [0xa0, 0, select, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(disk.data(&report(0)), all);
    assert_eq!(disk.data(&report(1)), hex("00 00 00 00 00 00 00 00"));
    assert_eq!(disk.data(&report(2)), all);
    assert_eq!(disk.sense(&report(3), DataDirection::In, 256), Sense::bad_cdb(2));
    let short = [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 15];
    assert_eq!(disk.sense(&short, DataDirection::In, 15), Sense::bad_cdb(6));
    let cut = [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16];
    assert_eq!(disk.data(&cut), all[..16], "the length is that of the whole list");
}

#[test]
fn luns_have_one_level() {
    for number in [0, 1, 255, 256, 300, 16_383] {
        assert_eq!(lun_from_wire(lun_to_wire(number)), Some(number));
    }
    assert_eq!(lun_from_wire([0x40, 5, 0, 0, 0, 0, 0, 0]), Some(5), "flat space, though small");
    for other in [
        [0x01, 5, 0, 0, 0, 0, 0, 0], // another bus
        [0x80, 5, 0, 0, 0, 0, 0, 0], // logical unit addressing
        [0xc1, 1, 0, 0, 0, 0, 0, 0], // a well known logical unit
        [0x00, 5, 0, 1, 0, 0, 0, 0], // a second level
    ] {
        assert_eq!(lun_from_wire(other), None, "{other:02x?}");
    }
}

#[test]
fn port_groups() {
    let mut disk = Disk::new();
    let groups = "00 8f 00 01 00 00 00 01 00 00 00 01
        02 8f 00 02 00 00 00 02 00 00 00 02 00 00 00 03";
    let plain = disk.data(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(plain, hex(&format!("00 00 00 1c {groups}")));
    let extended = disk.data(&[0xa3, 0x2a, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(extended, hex(&format!("00 00 00 20 10 00 00 00 {groups}")));
    let sense = disk.sense(&[0xa3, 0x4a, 0, 0, 0, 0, 0, 0, 1, 0], DataDirection::In, 256);
    assert_eq!(sense, Sense::bad_cdb_bit(1, 7));
}

#[test]
fn defects_there_are_none() {
    let mut disk = Disk::new();
    assert_eq!(disk.data(&[0x37, 0, 0x1d, 0, 0, 0, 0, 0, 255, 0]), hex("00 1d 00 00"));
    let twelve = [0xb7, 0x0d, 0, 0, 0, 0, 0, 0, 0, 255];
    assert_eq!(disk.data(&twelve), hex("00 0d 00 00 00 00 00 00"));
}

#[test]
fn lba_status() {
    use raceline_scsi::capacity::lba_status;
    let mut disk = Disk::new();
    let get = |lba: u8| [0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, 24];
    let all = hex("00 00 00 14 00 00 00 00  00 00 00 00 00 00 00 09 00 00 27 07 00 00 00 00");
    assert_eq!(disk.data(&get(9)), all, "where holes are not known, all is mapped");
    let beyond = [0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0x27, 0x10, 0, 0, 0, 24];
    assert_eq!(disk.sense(&beyond, DataDirection::In, 24).code, 0x2100);
    disk.lun.knows_holes = true;
    let plan = disk.plan(&request(&cdb(&get(9)), DataDirection::In, 24));
    assert_eq!(plan, Plan::LbaStatus { lba: 9, allocation: 24 });

    let descriptors = |lba, end, allocated: &[std::ops::Range<u64>]| -> Vec<(u64, u32, u8)> {
        let data = lba_status(&disk.lun, lba, end, allocated);
        assert_eq!(u32::from_be_bytes(data[..4].try_into().unwrap()) as usize, data.len() - 4);
        let parts = data[8..].chunks(16).map(|one| {
            let lba = u64::from_be_bytes(one[..8].try_into().unwrap());
            (lba, u32::from_be_bytes(one[8..12].try_into().unwrap()), one[12])
        });
        parts.collect()
    };
    let block = |from: u64, to: u64| from * 512..to * 512;
    assert_eq!(descriptors(0, 100, &[]), [(0, 100, 1)]);
    assert_eq!(descriptors(0, 100, &[block(0, 100)]), [(0, 100, 0)]);
    let parts = [block(10, 20), block(30, 40)];
    let expected = [(0, 10, 1), (10, 10, 0), (20, 10, 1), (30, 10, 0), (40, 60, 1)];
    assert_eq!(descriptors(0, 100, &parts), expected);
    // the first one begins at the block that was asked for
    assert_eq!(descriptors(15, 35, &parts), [(15, 5, 0), (20, 10, 1), (30, 5, 0)]);
    assert_eq!(descriptors(25, 26, &parts), [(25, 1, 1)]);
    // a block that is allocated in part is
    let part = 700..800;
    assert_eq!(descriptors(0, 4, std::slice::from_ref(&part)), [(0, 1, 1), (1, 1, 0), (2, 2, 1)]);
    // 32 bits of blocks, and then another descriptor
    let huge = 1 << 33;
    let most = u32::MAX;
    let expected = [(0, most, 1), (u64::from(most), most, 1), (2 * u64::from(most), 2, 1)];
    assert_eq!(descriptors(0, huge, &[]), expected);
}

#[test]
fn supported_opcodes() {
    let mut disk = Disk::new();
    let report = |options: u8, opcode: u8, action: u8| {
        [0xa3, 0x0c, options, opcode, 0, action, 0, 0, 0xff, 0xff]
    };
    let all = disk.data(&report(0, 0, 0));
    assert_eq!(u32::from_be_bytes(all[..4].try_into().unwrap()) as usize, all.len() - 4);
    let with_timeouts = disk.data(&report(0x80, 0, 0));
    assert_eq!((with_timeouts.len() - 4) / 20, (all.len() - 4) / 8);
    for (one, long) in all[4..].chunks(8).zip(with_timeouts[4..].chunks(20)) {
        let (opcode, action, has_action) = (one[0], one[3], one[5] == 1);
        assert!(one[5] <= 1 && (has_action || action == 0));
        assert_eq!(long[5], one[5] | 2);
        assert_eq!(long[8..], hex("00 0a 00 00 00 00 00 00 00 00 00 00"));
        // each can be asked for in the way that fits, and in no other
        let (right, wrong) = if has_action { (2, 1) } else { (1, 2) };
        let data = disk.data(&report(right, opcode, action));
        assert_eq!((data[1], data[4], data[3]), (3, opcode, one[7]));
        if has_action {
            assert_eq!(data[5] & 0x1f, action);
        }
        let sense = disk.sense(&report(wrong, opcode, action), DataDirection::In, 512);
        assert_eq!(sense.code, 0x2400);
        assert_eq!(disk.data(&report(3, opcode, action)), data);
        let timed = disk.data(&report(0x80 | right, opcode, action));
        assert_eq!((timed[1], timed.len()), (0x83, data.len() + 12));
    }
    assert_eq!(disk.data(&report(1, 0x28, 0)), hex("00 03 00 0a 28 18 ff ff ff ff 00 ff ff 00"));
    assert_eq!(disk.data(&report(1, 0x04, 0)), hex("00 01 00 00"), "there is no Format Unit");
    assert_eq!(disk.data(&report(3, 0x28, 1)), hex("00 01 00 00"));
    assert_eq!(disk.sense(&report(4, 0, 0), DataDirection::In, 512), Sense::bad_cdb_bit(2, 2));
    // what the logical unit cannot do is not there
    disk.lun.deallocate = false;
    assert_eq!(disk.data(&report(1, 0x42, 0)), hex("00 01 00 00"));
    assert_eq!(disk.data(&report(0, 0, 0)).len(), all.len() - 8);
}

#[test]
fn task_management_functions() {
    let mut disk = Disk::new();
    assert_eq!(disk.data(&[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4]), hex("da 00 00 00"));
    let long = disk.data(&[0xa3, 0x0d, 0x80, 0, 0, 0, 0, 0, 0, 255]);
    assert_eq!(long, hex("da 00 00 0c 00 00 00 00 00 00 00 00 00 00 00 00"));
}
