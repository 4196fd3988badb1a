//! Mode pages: what Mode Sense tells and Mode Select changes (SPC-5, 7.5; SBC-4, 6.5).
//!
//! | page | subpage | what can be changed |
//! |--|--|--|
//! | 01h Read-Write Error Recovery | 00h | nothing |
//! | 08h Caching | 00h | WCE, where there is a cache |
//! | 0Ah Control | 00h | D_SENSE, SWP |
//! | 0Ah Control Extension | 01h | nothing |
//! | 1Ch Informational Exceptions Control | 00h | nothing |
//!
//! Nothing is saved: every value is the default again after a restart or a reset.

use crate::cdb::{ModeSelect, ModeSense, PageControl};
use crate::lun::Lun;
use crate::sense::{FieldPointer, Sense};

/// The values of the mode pages that can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModeSettings {
    /// D_SENSE: sense data are in descriptor format.
    pub descriptor_sense: bool,
    /// SWP: writes are refused.
    pub software_write_protect: bool,
    /// WCE: a write may be answered when it is in the cache. Without effect where there is none.
    pub write_cache: bool,
}

impl Default for ModeSettings {
    fn default() -> Self {
        Self { descriptor_sense: false, software_write_protect: false, write_cache: true }
    }
}

/// WCE, in byte 2 of the caching page.
const WCE: u8 = 1 << 2;
/// D_SENSE, in byte 2 of the control page.
const D_SENSE: u8 = 1 << 2;
/// SWP, in byte 4 of the control page.
const SWP: u8 = 1 << 3;
/// Device-specific parameter: write protected.
const WRITE_PROTECTED: u8 = 1 << 7;
/// Device-specific parameter: DPO and FUA are supported. FUA has an effect where writes can be lost; DPO is advice.
const DPOFUA: u8 = 1 << 4;
/// PAGE CODE that asks for all pages.
const ALL_PAGES: u8 = 0x3f;
/// SUBPAGE CODE that asks for all subpages.
const ALL_SUBPAGES: u8 = 0xff;

const CACHING: (u8, u8) = (0x08, 0x00);
const CONTROL: (u8, u8) = (0x0a, 0x00);

/// All pages, by ascending page code and subpage code: code, subpage code, bytes after the header, in force where
/// nothing was changed.
const PAGES: [(u8, u8, &[u8]); 5] = [
    // AWRE and ARRE: what is behind does so, or has no defects
    (0x01, 0x00, &[0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    (CACHING.0, CACHING.1, &[0; 18]),
    // QUEUE ALGORITHM MODIFIER 1h: commands are reordered; BUSY TIMEOUT PERIOD: unlimited
    (CONTROL.0, CONTROL.1, &[0, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 0]),
    (
        0x0a,
        0x01,
        // IALUAE: states of port groups change by themselves
        &[0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ),
    // DEXCPT: there are no informational exceptions
    (0x1c, 0x00, &[0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
];

/// Bytes of a page's header: two, or four where it has a subpage code.
fn header_len(subpage: u8) -> usize {
    if subpage == 0 { 2 } else { 4 }
}

/// The bytes of a page after its header.
fn page_data(
    (page, subpage): (u8, u8),
    template: &[u8],
    lun: &Lun,
    settings: &ModeSettings,
    control: PageControl,
) -> Vec<u8> {
    let changeable = control == PageControl::Changeable;
    let settings = match control {
        PageControl::Default => &ModeSettings::default(),
        _ => settings,
    };
    let mut data = if changeable { vec![0; template.len()] } else { template.to_vec() };
    let mut set = |at: usize, bit: u8, on: bool| {
        if on {
            data[at] |= bit;
        }
    };
    match (page, subpage) {
        CACHING => {
            let on = changeable || settings.write_cache;
            set(0, WCE, lun.volatile_write_cache && on);
        }
        CONTROL => {
            set(0, D_SENSE, changeable || settings.descriptor_sense);
            set(2, SWP, changeable || settings.software_write_protect);
        }
        _ => {}
    }
    data
}

/// A page with its header.
fn put_page(out: &mut Vec<u8>, (page, subpage): (u8, u8), data: &[u8]) {
    if subpage == 0 {
        out.extend([page, u8::try_from(data.len()).expect("short pages")]);
    } else {
        out.extend([0x40 | page, subpage]);
        out.extend(u16::try_from(data.len()).expect("short pages").to_be_bytes());
    }
    out.extend(data);
}

/// Whether Mode Sense with these codes includes a page.
fn includes(command: &ModeSense, (page, subpage): (u8, u8)) -> bool {
    let is_page = command.page == ALL_PAGES || command.page == page;
    is_page && (command.subpage == ALL_SUBPAGES || command.subpage == subpage)
}

/// The parameter data of Mode Sense.
///
/// # Errors
/// INVALID FIELD IN CDB if there is no such page, SAVING PARAMETERS NOT SUPPORTED if saved values are asked for.
pub fn mode_sense(
    lun: &Lun,
    settings: &ModeSettings,
    command: &ModeSense,
) -> Result<Vec<u8>, Sense> {
    if command.control == PageControl::Saved {
        return Err(Sense::SAVING_NOT_SUPPORTED);
    }
    let mut pages = Vec::with_capacity(128);
    for (page, subpage, template) in PAGES {
        if includes(command, (page, subpage)) {
            let data = page_data((page, subpage), template, lun, settings, command.control);
            put_page(&mut pages, (page, subpage), &data);
        }
    }
    if pages.is_empty() {
        let is_page = PAGES.iter().any(|(page, _, _)| *page == command.page);
        return Err(Sense::bad_cdb(if is_page || command.page == ALL_PAGES { 3 } else { 2 }));
    }
    let descriptor = if command.no_block_descriptors {
        Vec::new()
    } else {
        block_descriptor(lun, command.long_lba)
    };
    let protected = lun.read_only || settings.software_write_protect;
    let specific = DPOFUA | if protected { WRITE_PROTECTED } else { 0 };
    Ok(with_header(command, specific, &descriptor, &pages))
}

/// The mode parameter header before block descriptors and pages. Its first field does not count itself.
fn with_header(command: &ModeSense, specific: u8, descriptor: &[u8], pages: &[u8]) -> Vec<u8> {
    let rest = descriptor.len() + pages.len();
    let mut data = Vec::with_capacity(8 + rest);
    let descriptor_len = u8::try_from(descriptor.len()).expect("at most 16");
    if command.ten {
        let len = u16::try_from(rest + 6).expect("short pages");
        data.extend(len.to_be_bytes());
        let long_lba = u8::from(command.long_lba && !descriptor.is_empty());
        data.extend([0, specific, long_lba, 0, 0, descriptor_len]);
    } else {
        let len = u8::try_from(rest + 3).expect("short pages");
        data.extend([len, 0, specific, descriptor_len]);
    }
    data.extend(descriptor);
    data.extend(pages);
    data
}

/// Number of blocks and block length: short (8 bytes) or long (16 bytes).
fn block_descriptor(lun: &Lun, long: bool) -> Vec<u8> {
    let size = lun.block_size.to_be_bytes();
    if long {
        let mut descriptor = lun.block_count.to_be_bytes().to_vec();
        descriptor.extend([0; 4]);
        descriptor.extend(size);
        descriptor
    } else {
        let count = u32::try_from(lun.block_count).unwrap_or(u32::MAX);
        let mut descriptor = count.to_be_bytes().to_vec();
        descriptor.extend([0, size[1], size[2], size[3]]);
        descriptor
    }
}

/// What Mode Select makes of the settings. Either all of its list holds, or nothing changes.
///
/// # Errors
/// PARAMETER LIST LENGTH ERROR if the list ends within a header, a block descriptor or a page; INVALID FIELD IN
/// PARAMETER LIST, with its place, for pages that do not exist and for values that cannot be changed.
pub fn mode_select(
    lun: &Lun,
    settings: &ModeSettings,
    command: &ModeSelect,
    list: &[u8],
) -> Result<ModeSettings, Sense> {
    if command.length == 0 {
        return Ok(*settings); // not an error: nothing is changed
    }
    if list.len() < usize::from(command.length) {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    let mut at = skip_descriptors(lun, command, list)?;
    let mut changed = *settings;
    while at < list.len() {
        at = select_page(lun, settings, &mut changed, list, at)?;
    }
    Ok(changed)
}

/// Checks the header and the block descriptor, and gives the offset of the first page.
fn skip_descriptors(lun: &Lun, command: &ModeSelect, list: &[u8]) -> Result<usize, Sense> {
    let header = if command.ten { 8 } else { 4 };
    let head = list.get(..header).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    let (descriptor_len, long) = if command.ten {
        (usize::from(u16::from_be_bytes([head[6], head[7]])), head[4] & 1 != 0)
    } else {
        (usize::from(head[3]), false)
    };
    let first = header + descriptor_len;
    let descriptor = list.get(header..first).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    if descriptor_len == 0 {
        return Ok(first);
    }
    let own = block_descriptor(lun, long);
    if descriptor_len != own.len() {
        return Err(Sense::bad_parameter(if command.ten { 6 } else { 3 }));
    }
    // The number of blocks may be left alone by 0 or all ones; the disk cannot be given another format.
    let count = if long { 8 } else { 4 };
    let keeps_count = descriptor[..count] == own[..count]
        || descriptor[..count].iter().all(|byte| *byte == 0)
        || descriptor[..count].iter().all(|byte| *byte == 0xff);
    // byte 4 of the short form is reserved
    let size = if long { 12 } else { 5 };
    if !keeps_count || descriptor[size..] != own[size..] {
        return Err(Sense::bad_parameter(u16::try_from(header).expect("at most 8")));
    }
    Ok(first)
}

/// Takes the page at an offset into the settings, and gives the offset of the next one.
fn select_page(
    lun: &Lun,
    settings: &ModeSettings,
    changed: &mut ModeSettings,
    list: &[u8],
    at: usize,
) -> Result<usize, Sense> {
    let place = |offset: usize| u16::try_from(offset).unwrap_or(u16::MAX);
    let rest = &list[at..];
    let (code, subpage, len) = match *rest {
        [first, len, ..] if first & 0x40 == 0 => (first & 0x3f, 0, usize::from(len)),
        [first, subpage, high, low, ..] if first & 0x40 != 0 => {
            (first & 0x3f, subpage, usize::from(u16::from_be_bytes([high, low])))
        }
        _ => return Err(Sense::PARAMETER_LIST_LENGTH),
    };
    let known = PAGES.iter().find(|page| (page.0, page.1) == (code, subpage));
    let Some((_, _, template)) = known else {
        return Err(Sense::bad_parameter(place(at)));
    };
    let header = header_len(subpage);
    if rest[0] & 0x40 != 0 && subpage == 0 || len != template.len() {
        return Err(Sense::bad_parameter(place(at + 1)));
    }
    let start = at + header;
    let data = list.get(start..start + len).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    let page = (code, subpage);
    let current = page_data(page, template, lun, settings, PageControl::Current);
    let mask = page_data(page, template, lun, settings, PageControl::Changeable);
    for (offset, ((new, old), mask)) in data.iter().zip(&current).zip(&mask).enumerate() {
        let wrong = (new ^ old) & !mask;
        if wrong != 0 {
            let bit = Some(u8::try_from(wrong.ilog2()).expect("below 8"));
            let byte = place(start + offset);
            let field = FieldPointer { in_cdb: false, bit, byte };
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS.at(field));
        }
    }
    match page {
        CACHING if lun.volatile_write_cache => changed.write_cache = data[0] & WCE != 0,
        CONTROL => {
            changed.descriptor_sense = data[0] & D_SENSE != 0;
            changed.software_write_protect = data[2] & SWP != 0;
        }
        _ => {}
    }
    Ok(start + len)
}
