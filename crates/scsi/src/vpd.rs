//! Vital product data pages (SPC-5, 7.7; SBC-4, 6.6).

use crate::copy;
use crate::lun::{BINARY, Designator, Lun, Port, TargetFacts};

/// Supported VPD Pages.
pub const SUPPORTED_PAGES: u8 = 0x00;
/// Unit Serial Number.
pub const SERIAL_NUMBER: u8 = 0x80;
/// Device Identification.
pub const DEVICE_IDENTIFICATION: u8 = 0x83;
/// Extended Inquiry Data.
pub const EXTENDED_INQUIRY: u8 = 0x86;
/// Third Party Copy.
pub const THIRD_PARTY_COPY: u8 = 0x8f;
/// Block Limits.
pub const BLOCK_LIMITS: u8 = 0xb0;
/// Block Device Characteristics.
pub const CHARACTERISTICS: u8 = 0xb1;
/// Logical Block Provisioning.
pub const PROVISIONING: u8 = 0xb2;

/// All pages, ascending.
pub const PAGES: [u8; 8] = [
    SUPPORTED_PAGES,
    SERIAL_NUMBER,
    DEVICE_IDENTIFICATION,
    EXTENDED_INQUIRY,
    THIRD_PARTY_COPY,
    BLOCK_LIMITS,
    CHARACTERISTICS,
    PROVISIONING,
];

/// A page with its header; `None`: there is no such page.
#[must_use]
pub fn page(code: u8, lun: &Lun, target: &TargetFacts, port: Port) -> Option<Vec<u8>> {
    let body = match code {
        SUPPORTED_PAGES => PAGES.to_vec(),
        SERIAL_NUMBER => lun.identity.serial_bytes().collect(),
        DEVICE_IDENTIFICATION => device_identification(lun, target, port),
        EXTENDED_INQUIRY => extended_inquiry(lun),
        THIRD_PARTY_COPY => copy::third_party_copy_page(),
        BLOCK_LIMITS => block_limits(lun),
        CHARACTERISTICS => characteristics(),
        PROVISIONING => provisioning(lun),
        _ => return None,
    };
    let mut page = Vec::with_capacity(4 + body.len());
    page.extend([0x00, code]); // direct access block device
    page.extend(u16::try_from(body.len()).expect("pages are short").to_be_bytes());
    page.extend(body);
    Some(page)
}

/// What a designator is about (ASSOCIATION).
#[derive(Clone, Copy)]
enum Association {
    Lun,
    Port,
    Target,
}

/// CODE SET: UTF-8.
const UTF8: u8 = 3;
/// PROTOCOL IDENTIFIER: iSCSI.
const ISCSI: u8 = 5;

fn put_designator(out: &mut Vec<u8>, about: Association, code_set: u8, kind: u8, id: &[u8]) {
    let (protocol, about) = match about {
        Association::Lun => (0, 0x00),
        Association::Port => (ISCSI << 4, 0x80 | 0x10), // PIV
        Association::Target => (ISCSI << 4, 0x80 | 0x20),
    };
    out.extend([protocol | code_set, about | kind, 0]);
    out.push(u8::try_from(id.len()).expect("at most 255"));
    out.extend(id);
}

/// Which logical unit this is, in every form that initiators look for, and by which port it is seen.
fn device_identification(lun: &Lun, target: &TargetFacts, port: Port) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    for designator in lun.identity.designators() {
        let Designator { code_set, kind, id } = designator;
        put_designator(&mut out, Association::Lun, code_set, kind, &id);
    }

    let number = |value: u16| [0, 0, value.to_be_bytes()[0], value.to_be_bytes()[1]];
    put_designator(&mut out, Association::Port, BINARY, 0x4, &number(port.relative));
    put_designator(&mut out, Association::Port, BINARY, 0x5, &number(port.group));
    let port_name = format!("{},t,0x{:04x}", target.name, port.group);
    put_designator(&mut out, Association::Port, UTF8, 0x8, &name_string(&port_name));
    put_designator(&mut out, Association::Target, UTF8, 0x8, &name_string(&target.name));
    out
}

/// A SCSI name string: ended and padded with zeroes to a multiple of 4 bytes (SPC-5, 7.7.6.11).
fn name_string(name: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = name.bytes().take(251).collect();
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// No protection information; commands of all three kinds of order are taken; V_SUP where there is a cache that may lose
/// its data.
fn extended_inquiry(lun: &Lun) -> Vec<u8> {
    let mut page = vec![0; 60];
    page[1] = 0x07; // HEADSUP, ORDSUP, SIMPSUP
    page[2] = u8::from(lun.volatile_write_cache); // V_SUP
    page
}

/// All lengths are in blocks.
fn block_limits(lun: &Lun) -> Vec<u8> {
    let limits = &lun.limits;
    let max_transfer = lun.max_transfer_blocks();
    let physical = lun.physical_block_size / lun.block_size.max(1);
    let boundary = lun.io_boundary_bytes / u64::from(lun.block_size.max(1));
    let optimal = u32::try_from(boundary).unwrap_or(0).min(max_transfer);
    let mut page = vec![0; 60];
    page[0] = 0x01; // WSNZ: Write Same of 0 blocks is refused
    page[1] = limits.max_compare_and_write_blocks;
    page[2..4].copy_from_slice(&u16::try_from(physical).unwrap_or(1).to_be_bytes());
    page[4..8].copy_from_slice(&max_transfer.to_be_bytes());
    page[8..12].copy_from_slice(&optimal.to_be_bytes());
    if lun.deallocate {
        page[16..20].copy_from_slice(&limits.max_unmap_blocks.to_be_bytes());
        page[20..24].copy_from_slice(&limits.max_unmap_descriptors.to_be_bytes());
        page[24..28].copy_from_slice(&physical.to_be_bytes());
        page[28] = 0x80; // UGAVALID, alignment 0
    }
    page[32..40].copy_from_slice(&limits.max_write_same_blocks.to_be_bytes());
    page
}

/// A medium that does not rotate.
fn characteristics() -> Vec<u8> {
    let mut page = vec![0; 60];
    page[1] = 0x01; // MEDIUM ROTATION RATE 0001h
    page
}

/// LBPU, LBPWS, LBPWS10 where blocks can be deallocated, and LBPRZ as Read Capacity (16) has it.
fn provisioning(lun: &Lun) -> Vec<u8> {
    if !lun.deallocate {
        return vec![0; 4];
    }
    let zeroes = u8::from(lun.reads_zeroes()) << 2;
    vec![0, 0xe0 | zeroes, 0x02, 0] // PROVISIONING TYPE: thin
}
