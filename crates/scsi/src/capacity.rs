//! What is told of the disk's size, its blocks, and the target: Read Capacity, Get LBA Status, Read Defect Data,
//! Report LUNs, Report Target Port Groups (SBC-4, 5.9 and 5.19 to 5.22; SPC-5, 6.33 and 6.36).

use std::ops::Range;

use crate::lun::{Lun, TargetFacts, lun_to_wire};

/// Read Capacity (10): the last LBA, all ones if it does not fit, and the block length.
#[must_use]
pub fn read_capacity_10(lun: &Lun) -> [u8; 8] {
    let last = u32::try_from(last_lba(lun)).unwrap_or(u32::MAX);
    let mut data = [0; 8];
    data[..4].copy_from_slice(&last.to_be_bytes());
    data[4..].copy_from_slice(&lun.block_size.to_be_bytes());
    data
}

/// Read Capacity (16).
#[must_use]
pub fn read_capacity_16(lun: &Lun) -> [u8; 32] {
    let mut data = [0; 32];
    data[..8].copy_from_slice(&last_lba(lun).to_be_bytes());
    data[8..12].copy_from_slice(&lun.block_size.to_be_bytes());
    data[13] = lun.physical_exponent();
    if lun.deallocate {
        data[14] = 0x80; // LBPME
    }
    if lun.reads_zeroes() {
        data[14] |= 0x40; // LBPRZ
    }
    data
}

fn last_lba(lun: &Lun) -> u64 {
    lun.block_count.saturating_sub(1)
}

/// PROVISIONING STATUS of blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Provisioning {
    Mapped = 0,
    Deallocated = 1,
}

/// Get LBA Status: what the blocks from `lba` on are, which are `lba < end <= lun.block_count`.
///
/// `allocated` are the parts of the device, in bytes and ascending, that are; it was looked for them from `lba` to the
/// block `end`. Blocks after `end` are not described. A disk that does not know gives one part with all blocks.
#[must_use]
pub fn lba_status(lun: &Lun, lba: u64, end: u64, allocated: &[Range<u64>]) -> Vec<u8> {
    let block = u64::from(lun.block_size);
    let mut descriptors: Vec<(u64, u64, Provisioning)> =
        Vec::with_capacity(allocated.len() * 2 + 1);
    let mut put = |start: u64, until: u64, status| {
        if start < until {
            descriptors.push((start, until - start, status));
        }
        until.max(start)
    };
    let mut at = lba;
    for part in allocated {
        // a block that is allocated in part is
        let start = (part.start / block).clamp(at, end);
        let until = part.end.div_ceil(block).clamp(start, end);
        at = put(at, start, Provisioning::Deallocated);
        at = put(at, until, Provisioning::Mapped);
    }
    put(at, end, Provisioning::Deallocated);
    let mut data = vec![0; 8];
    for (start, count, status) in descriptors {
        put_descriptors(&mut data, start, count, status);
    }
    let len = u32::try_from(data.len() - 4).unwrap_or(u32::MAX);
    data[..4].copy_from_slice(&len.to_be_bytes());
    data
}

/// As many descriptors as NUMBER OF LOGICAL BLOCKS, which has 32 bits, needs.
fn put_descriptors(data: &mut Vec<u8>, mut start: u64, mut count: u64, status: Provisioning) {
    while count > 0 && data.len() < MAX_STATUS_LEN {
        let part = u32::try_from(count).unwrap_or(u32::MAX);
        data.extend(start.to_be_bytes());
        data.extend(part.to_be_bytes());
        data.extend([status as u8, 0, 0, 0]);
        start += u64::from(part);
        count -= u64::from(part);
    }
}

/// Most bytes that Get LBA Status answers with, about.
const MAX_STATUS_LEN: usize = 8192;

/// Read Defect Data: no list has any defects. The header repeats which lists and which format were asked for.
#[must_use]
pub fn read_defect_data(twelve: bool, lists_and_format: u8) -> Vec<u8> {
    let mut data = vec![0; if twelve { 8 } else { 4 }];
    data[1] = lists_and_format;
    data
}

/// Report LUNs. `select`: 00h and 02h are all logical units, 01h are well known ones, of which there are none.
#[must_use]
pub fn report_luns(target: &TargetFacts, select: u8) -> Vec<u8> {
    let luns = if select == 1 { &[][..] } else { &target.luns[..] };
    let mut data = Vec::with_capacity(8 + luns.len() * 8);
    data.extend(u32::try_from(luns.len() * 8).expect("below 16,384 LUNs").to_be_bytes());
    data.extend([0; 4]);
    for number in luns {
        data.extend(lun_to_wire(*number));
    }
    data
}

/// Report Target Port Groups: states change only by themselves (TPGS 01b).
#[must_use]
pub fn report_port_groups(target: &TargetFacts, extended: bool) -> Vec<u8> {
    let mut groups = Vec::new();
    for group in &target.groups {
        groups.push(group.state.to_wire());
        groups.push(0x8f); // T_SUP, U_SUP, S_SUP, AN_SUP, AO_SUP
        groups.extend(group.tag.to_be_bytes());
        let ports = u8::try_from(group.ports.len()).unwrap_or(u8::MAX);
        groups.extend([0, 0, 0, ports]);
        for port in group.ports.iter().take(ports.into()) {
            groups.extend([0, 0]);
            groups.extend(port.to_be_bytes());
        }
    }
    let header: &[u8] = if extended { &[0x10, 0, 0, 0] } else { &[] }; // format 1h, no implicit transition time
    let len = u32::try_from(header.len() + groups.len()).expect("few groups");
    let mut data = len.to_be_bytes().to_vec();
    data.extend(header);
    data.extend(groups);
    data
}
