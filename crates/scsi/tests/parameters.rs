//! Mode pages and the lists of Mode Select and Unmap, whole and damaged.

mod common;

use common::{BLOCK_COUNT, Disk, hex};
use raceline_scsi::cdb::ModeSelect;
use raceline_scsi::mode::mode_select;
use raceline_scsi::{
    Blocks, Change, DataDirection, FieldPointer, Lun, ModeSettings, Parameters, Plan, Sense,
    UnitAttention, Whom, unmapped_blocks,
};

const RECOVERY: &str = "01 0a c0 00 00 00 00 00 00 00 00 00";
const CACHING: &str = "08 12 04 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00";
const CONTROL: &str = "0a 0a 00 10 00 00 00 00 ff ff 00 00";
const CONTROL_EXTENSION: &str =
    "4a 01 00 1c 01000000 00000000 00000000 00000000 00000000 00000000 00000000";
const EXCEPTIONS: &str = "1c 0a 08 00 00 00 00 00 00 00 00 00";
/// 10,000 blocks of 512 bytes.
const DESCRIPTOR: &str = "00 00 27 10 00 00 02 00";

/// Mode Sense (6) of a page and subpage, by page control.
fn sense_6(control: u8, page: u8, subpage: u8) -> [u8; 6] {
    [0x1a, 0, control << 6 | page, subpage, 255, 0]
}

#[test]
fn pages() {
    let mut disk = Disk::new();
    for (page, bytes) in [(0x01, RECOVERY), (0x08, CACHING), (0x0a, CONTROL), (0x1c, EXCEPTIONS)] {
        let rest = hex(&format!("{DESCRIPTOR} {bytes}"));
        let mut six = vec![u8::try_from(rest.len() + 3).unwrap(), 0x00, 0x10, 0x08];
        six.extend(&rest);
        assert_eq!(disk.data(&sense_6(0, page, 0)), six);
        let mut ten = vec![0, u8::try_from(rest.len() + 6).unwrap(), 0x00, 0x10, 0, 0, 0, 8];
        ten.extend(&rest);
        assert_eq!(disk.data(&[0x5a, 0, page, 0, 0, 0, 0, 2, 0, 0]), ten);
    }
    assert_eq!(
        disk.data(&[0x1a, 0x08, 0x0a, 1, 255, 0]),
        hex(&format!("23 00 10 00 {CONTROL_EXTENSION}")),
        "DBD"
    );
}

#[test]
fn all_pages() {
    let mut disk = Disk::new();
    let all = hex(&format!("43 00 10 08 {DESCRIPTOR} {RECOVERY} {CACHING} {CONTROL} {EXCEPTIONS}"));
    assert_eq!(disk.data(&sense_6(0, 0x3f, 0)), all);
    let with_subpages = hex(&format!(
        "63 00 10 08 {DESCRIPTOR} {RECOVERY} {CACHING} {CONTROL} {CONTROL_EXTENSION} {EXCEPTIONS}"
    ));
    assert_eq!(disk.data(&sense_6(0, 0x3f, 0xff)), with_subpages);
    let control = hex(&format!("37 00 10 08 {DESCRIPTOR} {CONTROL} {CONTROL_EXTENSION}"));
    assert_eq!(disk.data(&sense_6(0, 0x0a, 0xff)), control);
    // an allocation length cuts, and the length stays
    assert_eq!(disk.data(&[0x1a, 0, 0x3f, 0, 4, 0]), all[..4]);
    for (page, subpage, byte) in
        [(0x02, 0, 2), (0x00, 0, 2), (0x0a, 2, 3), (0x3f, 7, 3), (0x08, 1, 3)]
    {
        let sense = disk.sense(&sense_6(0, page, subpage), DataDirection::In, 255);
        assert_eq!(sense, Sense::bad_cdb(byte), "{page:02x}, {subpage:02x}");
    }
    let saved = disk.sense(&sense_6(3, 0x3f, 0), DataDirection::In, 255);
    assert_eq!(saved, Sense::SAVING_NOT_SUPPORTED);
}

#[test]
fn changeable_default_and_current_values() {
    let mut disk = Disk::new();
    disk.state.mode =
        ModeSettings { descriptor_sense: true, software_write_protect: true, write_cache: false };
    let mut page =
        |control: u8, code: u8| disk.data(&[0x1a, 8, control << 6 | code, 0, 255, 0])[4..].to_vec();
    assert_eq!(page(0, 0x0a), hex("0a 0a 04 10 08 00 00 00 ff ff 00 00"));
    assert_eq!(page(1, 0x0a), hex("0a 0a 04 00 08 00 00 00 00 00 00 00"));
    assert_eq!(page(2, 0x0a), hex(CONTROL));
    assert_eq!(page(0, 0x08)[2], 0x00);
    assert_eq!(page(1, 0x08)[2], 0x04);
    assert_eq!(page(2, 0x08)[2], 0x04);
    assert_eq!(page(1, 0x1c)[2..], [0; 10]);
    disk.lun.volatile_write_cache = false;
    for control in [0, 1, 2] {
        let data = disk.data(&[0x1a, 8, control << 6 | 0x08, 0, 255, 0]);
        assert_eq!(data[6], 0, "there is no cache to turn off: {control}");
    }
}

#[test]
fn write_protection_is_in_the_header() {
    let mut disk = Disk::new();
    let header = |disk: &mut Disk| disk.data(&[0x5a, 8, 0x1c, 0, 0, 0, 0, 1, 0, 0])[3];
    assert_eq!(header(&mut disk), 0x10);
    disk.state.mode.software_write_protect = true;
    assert_eq!(header(&mut disk), 0x90);
    disk.state.mode.software_write_protect = false;
    disk.lun.read_only = true;
    assert_eq!(header(&mut disk), 0x90);
}

#[test]
fn long_block_descriptors() {
    let mut disk = Disk::new();
    disk.lun.block_count = 1 << 33;
    let long = disk.data(&[0x5a, 0x10, 0x1c, 0, 0, 0, 0, 1, 0, 0]);
    let expected = "00 22 00 10 01 00 00 10 00 00 00 02 00 00 00 00 00 00 00 00 00 00 02 00";
    assert_eq!(long, hex(&format!("{expected} {EXCEPTIONS}")));
    let short = disk.data(&[0x5a, 0, 0x1c, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(short[8..16], hex("ff ff ff ff 00 00 02 00"));
}

fn select(lun: &Lun, ten: bool, list: &[u8]) -> Result<ModeSettings, Sense> {
    let command = ModeSelect { ten, length: u16::try_from(list.len()).expect("short") };
    mode_select(lun, &ModeSettings::default(), &command, list)
}

#[test]
fn what_is_changeable_changes() {
    let lun = common::lun();
    let changed = |list: &str| select(&lun, false, &hex(list)).unwrap();
    let default = ModeSettings::default();
    let swp = changed("00 00 00 00 0a 0a 00 10 08 00 00 00 ff ff 00 00");
    assert_eq!(swp, ModeSettings { software_write_protect: true, ..default });
    let d_sense = changed("00 00 00 00 0a 0a 04 10 00 00 00 00 ff ff 00 00");
    assert_eq!(d_sense, ModeSettings { descriptor_sense: true, ..default });
    // with a block descriptor, PS in a page code, and two pages
    let both = changed(&format!(
        "00 00 00 08 {DESCRIPTOR} 88 12 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
         0a 0a 04 10 00 00 00 00 ff ff 00 00"
    ));
    let expected = ModeSettings { write_cache: false, descriptor_sense: true, ..default };
    assert_eq!(both, expected);
    // what Mode Sense told can be given back
    let all = [RECOVERY, CACHING, CONTROL, CONTROL_EXTENSION, EXCEPTIONS].join(" ");
    assert_eq!(changed(&format!("00 00 00 00 {all}")), default);
    let ten = format!("00 00 00 10 00 00 00 08 {DESCRIPTOR} {all}");
    assert_eq!(select(&lun, true, &hex(&ten)), Ok(default));
    // 0 and all ones leave the number of blocks alone; no list is none
    for count in ["00000000", "ffffffff"] {
        assert_eq!(changed(&format!("00 00 00 08 {count} 00 000200 {CONTROL}")), default);
    }
    assert_eq!(select(&lun, false, &[]), Ok(default));
    // without a cache WCE cannot be set
    let mut without = common::lun();
    without.volatile_write_cache = false;
    let list = hex(&format!("00 00 00 00 {CACHING}"));
    assert!(select(&without, false, &list).is_err());
}

#[test]
fn no_bit_changes_that_is_not_changeable() {
    let lun = common::lun();
    for (page, changeable) in [
        (RECOVERY, vec![]),
        (CACHING, vec![(2, 2)]),
        (CONTROL, vec![(2, 2), (4, 3)]),
        (CONTROL_EXTENSION, vec![]),
        (EXCEPTIONS, vec![]),
    ] {
        let page = hex(page);
        let header = if page[0] & 0x40 == 0 { 2 } else { 4 };
        for byte in header..page.len() {
            for bit in 0..8_u8 {
                let mut list = vec![0; 4];
                list.extend(&page);
                list[4 + byte] ^= 1 << bit;
                let got = select(&lun, false, &list);
                if changeable.contains(&(byte, bit)) {
                    assert_ne!(got.unwrap(), ModeSettings::default());
                } else {
                    let byte = u16::try_from(4 + byte).unwrap();
                    let field = FieldPointer { in_cdb: false, bit: Some(bit), byte };
                    assert_eq!(got, Err(Sense::INVALID_FIELD_IN_PARAMETERS.at(field)));
                }
            }
        }
    }
}

#[test]
fn damaged_mode_parameters_are_refused() {
    let lun = common::lun();
    let whole = hex(&format!("00 00 00 08 {DESCRIPTOR} {CACHING} {CONTROL_EXTENSION}"));
    assert!(select(&lun, false, &whole).is_ok());
    for len in 1..whole.len() {
        let is_whole = [4 + 8, 4 + 8 + 20].contains(&len);
        let got = select(&lun, false, &whole[..len]);
        let expected =
            if is_whole { Ok(ModeSettings::default()) } else { Err(Sense::PARAMETER_LIST_LENGTH) };
        assert_eq!(got, expected, "{len} bytes");
    }
    // what came is less than what the CDB has announced
    let command = ModeSelect { ten: false, length: 255 };
    let got = mode_select(&lun, &ModeSettings::default(), &command, &whole);
    assert_eq!(got, Err(Sense::PARAMETER_LIST_LENGTH));
    for (list, byte) in [
        ("00 00 00 00 02 0e 00000000 00000000 00000000 0000", 4), // no such page
        ("00 00 00 00 4a 02 00 1c", 4),                           // no such subpage
        ("00 00 00 00 0a 0c 00 10 00 00 00 00 ff ff 00 00 00 00", 5), // a page of another length
        ("00 00 00 00 4a 00 00 0a 00 10 00 00 00 00 ff ff 00 00", 5), // SPF without a subpage
        ("00 00 00 04 00 00 27 10", 3),                           // a descriptor of another length
        ("00 00 00 08 00 00 27 11 00 00 02 00", 4),               // another number of blocks
        ("00 00 00 08 00 00 27 10 00 00 10 00", 4),               // another block length
    ] {
        let sense = select(&lun, false, &hex(list)).unwrap_err();
        assert_eq!(sense, Sense::bad_parameter(byte), "{list}");
    }
}

#[test]
fn mode_select_is_for_pages_that_are_not_saved() {
    let mut disk = Disk::new();
    for (flags, bit) in [(0x00, 4), (0x11, 0), (0x12, 1)] {
        let sense = disk.sense(&[0x15, flags, 0, 0, 16, 0], DataDirection::Out, 16);
        assert_eq!(sense, Sense::bad_cdb_bit(1, bit));
    }
    let list = hex("00 00 00 00 0a 0a 00 10 08 00 00 00 ff ff 00 00");
    let plan = disk.plan(&common::request(&[0x15, 0x10, 0, 0, 16, 0], DataDirection::Out, 16));
    let Plan::Collect { parameters: parameters @ Parameters::ModeSelect(_), .. } = plan else {
        panic!("{plan:?}");
    };
    let change = parameters.decide(&disk.lun, &disk.state, &list).unwrap().unwrap();
    let outcome = disk.state.apply(&common::nexus(1), &change).unwrap();
    assert_eq!(outcome.told, [(Whom::Others, UnitAttention::ModeChanged)]);
    let next = outcome.next.unwrap();
    assert!(next.mode.software_write_protect);
    // the same again changes nothing, and nobody is told
    let again = next.apply(&common::nexus(1), &Change::Mode(next.mode)).unwrap();
    assert!(again.next.is_none() && again.told.is_empty());
}

// ---------------------------------------------------------------------------------- Unmap

fn unmap(lun: &Lun, list: &[u8]) -> Result<Vec<(u64, u64)>, Sense> {
    let parts = unmapped_blocks(lun, list)?;
    Ok(parts.map(|Blocks { lba, count }| (lba, count)).collect())
}

/// A list of descriptors with its header.
fn list_of(descriptors: &[(u64, u32)]) -> Vec<u8> {
    let len = u16::try_from(descriptors.len() * 16).expect("few");
    let mut list = (len + 6).to_be_bytes().to_vec();
    list.extend(len.to_be_bytes());
    list.extend([0; 4]);
    for (lba, count) in descriptors {
        list.extend(lba.to_be_bytes());
        list.extend(count.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

#[test]
fn unmap_lists() {
    let lun = common::lun();
    let last = BLOCK_COUNT - 1;
    assert_eq!(unmap(&lun, &list_of(&[])), Ok(vec![]));
    assert_eq!(unmap(&lun, &list_of(&[(0, 1), (last, 1)])), Ok(vec![(0, 1), (last, 1)]));
    // no blocks are fine wherever they are
    let nowhere = list_of(&[(0, 0), (BLOCK_COUNT, 0), (u64::MAX, 0), (5, 2)]);
    assert_eq!(unmap(&lun, &nowhere), Ok(vec![(5, 2)]));
    for bad in [(last, 2), (BLOCK_COUNT, 1), (u64::MAX, 1), (u64::MAX, u32::MAX), (0, u32::MAX)] {
        let list = list_of(&[(0, 1), bad]);
        assert_eq!(unmap(&lun, &list), Err(Sense::LBA_OUT_OF_RANGE), "{bad:?}");
    }
    // limits: 4 descriptors, 4,096 blocks
    let many = [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)];
    assert_eq!(unmap(&lun, &list_of(&many[..4])).map(|parts| parts.len()), Ok(4));
    assert_eq!(unmap(&lun, &list_of(&many)), Err(Sense::bad_parameter(2)));
    assert_eq!(unmap(&lun, &list_of(&[(0, 4096)])), Ok(vec![(0, 4096)]));
    let too_many = unmap(&lun, &list_of(&[(0, 4096), (9000, 1)]));
    assert_eq!(too_many, Err(Sense::INVALID_FIELD_IN_PARAMETERS));
    let mut without = lun;
    without.limits.max_unmap_blocks = u32::MAX;
    without.block_count = 1 << 40;
    let huge = list_of(&[(0, u32::MAX), (1 << 33, u32::MAX)]);
    assert_eq!(unmap(&without, &huge).map(|parts| parts.len()), Ok(2));
}

#[test]
fn damaged_unmap_lists_are_refused() {
    let lun = common::lun();
    let whole = list_of(&[(7, 1), (9, 1)]);
    for len in 0..whole.len() {
        assert_eq!(unmap(&lun, &whole[..len]), Err(Sense::PARAMETER_LIST_LENGTH), "{len} bytes");
    }
    let with = |at: usize, value: u8| {
        let mut list = whole.clone();
        list[at] = value;
        unmap(&lun, &list)
    };
    assert_eq!(with(1, 39), Err(Sense::PARAMETER_LIST_LENGTH), "longer than what came");
    assert_eq!(with(1, 37), Err(Sense::bad_parameter(2)), "shorter than its descriptors");
    assert_eq!(with(3, 33), Err(Sense::PARAMETER_LIST_LENGTH));
    assert_eq!(with(3, 31), Ok(vec![(7, 1)]), "the rest of a descriptor is ignored");
    assert_eq!(with(3, 0), Ok(vec![]));
    // bytes after the list are ignored
    let mut longer = whole.clone();
    longer.extend([0xff; 9]);
    assert_eq!(unmap(&lun, &longer), Ok(vec![(7, 1), (9, 1)]));
}
