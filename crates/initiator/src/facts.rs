//! What a logical unit is and can do: INQUIRY, vital product data, READ CAPACITY, MODE SENSE (SPC-5, SBC-4).

use crate::blocking::BlockingSession;
use crate::cdb;
use crate::check::CheckCondition;
use crate::error::SessionError;
use crate::task::TaskError;

/// Bytes that a page of vital product data may have here.
const PAGE_LEN: u16 = 1024;
/// Most logical units that are listed.
const MAX_LUNS: u32 = 1024;
/// Sense key of a command or a field that the target does not know.
const ILLEGAL_REQUEST: u8 = 5;
/// For identities that are made of names (RFC 9562, 5.5).
const NAMES: uuid::Uuid = uuid::Uuid::from_u128(0x4f3c_7f0e_97b2_4a53_9be0_3d6a_71c2_58a1);

/// What a logical unit is and can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitInfo {
    /// Peripheral device type; 0 is a disk.
    pub device_type: u8,
    /// T10 vendor identification.
    pub vendor: String,
    /// Product identification.
    pub product: String,
    /// Product revision.
    pub revision: String,
    /// Serial number, from page 80h.
    pub serial: Option<String>,
    /// NAA or EUI-64 identifier of the logical unit, from page 83h.
    pub identifier: Option<Vec<u8>>,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Capacity in blocks.
    pub block_count: u64,
    /// Bytes of a physical block.
    pub physical_block_size: u32,
    /// Writes are refused.
    pub write_protected: bool,
    /// Commands may ask for stable media (FUA).
    pub has_fua: bool,
    /// Completed writes may be lost in a power cut until SYNCHRONIZE CACHE.
    pub volatile_write_cache: bool,
    /// UNMAP is supported, with at most this many blocks in a range.
    pub max_unmap_blocks: Option<u32>,
    /// WRITE SAME (16) may unmap.
    pub write_same_unmaps: bool,
    /// Unmapped blocks read as zeroes.
    pub unmapped_read_zeroes: bool,
    /// Most blocks of one WRITE SAME; 0: the target does not say.
    pub max_write_same_blocks: u64,
    /// Most blocks of one COMPARE AND WRITE; 0: it is not supported.
    pub max_compare_blocks: u8,
    /// Most blocks that one command may move; 0: the target does not say.
    pub max_transfer_blocks: u32,
    /// Blocks of a transfer that suits the target; 0: it does not say.
    pub optimal_transfer_blocks: u32,
    /// It has no rotating medium.
    pub solid_state: bool,
}

impl UnitInfo {
    /// Asks the logical unit of a session.
    ///
    /// # Errors
    /// When it is not there, or does not answer as it has to.
    pub fn read(session: &BlockingSession) -> Result<Self, SessionError> {
        let mut unit = Self::default();
        unit.take_inquiry(session)?;
        let pages = page(session, 0x00)?;
        let has = |code: u8| pages.as_ref().is_some_and(|pages| pages.contains(&code));
        if has(0x80) {
            unit.serial = page(session, 0x80)?.map(|serial| text(&serial));
        }
        if has(0x83) {
            unit.identifier = page(session, 0x83)?.and_then(|page| identifier(&page));
        }
        unit.take_capacity(session)?;
        if has(0xb0)
            && let Some(limits) = page(session, 0xb0)?
        {
            unit.take_limits(&limits);
        }
        if has(0xb1)
            && let Some(page) = page(session, 0xb1)?
        {
            unit.solid_state = page.get(..2) == Some(&[0, 1]);
        }
        let provisioning = if has(0xb2) { page(session, 0xb2)? } else { None };
        let bits = provisioning.as_ref().and_then(|page| page.get(1)).copied().unwrap_or(0);
        unit.write_same_unmaps = bits & 0x40 != 0;
        unit.unmapped_read_zeroes |= bits & 0x1c == 0x04;
        if bits & 0x80 == 0 {
            unit.max_unmap_blocks = None;
        }
        unit.take_modes(session)?;
        Ok(unit)
    }

    fn take_inquiry(&mut self, session: &BlockingSession) -> Result<(), SessionError> {
        let answer = session.inquire(cdb::inquiry(None, 96), 96).map_err(of("INQUIRY failed"))?;
        let Some(&first) = answer.first().filter(|_| answer.len() >= 36) else {
            return Err(odd("INQUIRY", answer.len()));
        };
        let config = session.config();
        if first >> 5 != 0 {
            let lun = config.lun;
            return Err(SessionError::Invalid(format!(
                "the target has no logical unit {lun}: `raceline identify --iscsi` without --lun lists those that it has"
            )));
        }
        self.device_type = first & 0x1f;
        self.vendor = text(&answer[8..16]);
        self.product = text(&answer[16..32]);
        self.revision = text(&answer[32..36]);
        Ok(())
    }

    fn take_capacity(&mut self, session: &BlockingSession) -> Result<(), SessionError> {
        if self.device_type != 0 {
            return Err(SessionError::Invalid(format!(
                "logical unit {} is no disk: its device type is {:02x}h ({} {})",
                session.config().lun,
                self.device_type,
                self.vendor,
                self.product
            )));
        }
        let answer = session.inquire(cdb::read_capacity(), 32);
        let answer = answer.map_err(of("READ CAPACITY (16) failed"))?;
        let (Some(last), Some(size)) = (be64(&answer, 0), be32(&answer, 8)) else {
            return Err(odd("READ CAPACITY (16)", answer.len()));
        };
        if !(512..=1 << 20).contains(&size) || !size.is_power_of_two() {
            return Err(SessionError::Invalid(format!(
                "the logical unit has blocks of {size} bytes: they have to be a power of two from 512"
            )));
        }
        let count = last.checked_add(1).filter(|count| count.checked_mul(size.into()).is_some());
        self.block_count = count.ok_or_else(|| {
            SessionError::Invalid(format!(
                "a last block {last} of {size} bytes is beyond 2^64 bytes"
            ))
        })?;
        self.block_size = size;
        let exponent = answer.get(13).copied().unwrap_or(0) & 0xf;
        self.physical_block_size = size.checked_shl(exponent.into()).unwrap_or(size).max(size);
        let thin = answer.get(14).copied().unwrap_or(0);
        self.unmapped_read_zeroes = thin & 0xc0 == 0xc0;
        Ok(())
    }

    /// Block limits (SBC-4, 6.6.4), behind the page header.
    fn take_limits(&mut self, limits: &[u8]) {
        self.max_compare_blocks = limits.get(1).copied().unwrap_or(0);
        self.max_transfer_blocks = be32(limits, 4).unwrap_or(0);
        self.optimal_transfer_blocks = be32(limits, 8).unwrap_or(0);
        let (blocks, ranges) = (be32(limits, 16).unwrap_or(0), be32(limits, 20).unwrap_or(0));
        self.max_unmap_blocks = (blocks > 0 && ranges > 0).then_some(blocks);
        self.max_write_same_blocks = be64(limits, 32).unwrap_or(0);
    }

    /// Write protection and the write cache (SPC-5, 7.5.6; SBC-4, 6.5.6). A target without the page has a cache, so far as
    /// can be known.
    fn take_modes(&mut self, session: &BlockingSession) -> Result<(), SessionError> {
        let answer =
            optional(session.inquire(cdb::mode_sense(0x08, 252), 252), "MODE SENSE failed")?;
        let Some(answer) = answer.filter(|answer| answer.len() >= 4) else {
            self.volatile_write_cache = true;
            return Ok(());
        };
        self.write_protected = answer[2] & 0x80 != 0;
        self.has_fua = answer[2] & 0x10 != 0;
        let page = answer.get(4 + usize::from(answer[3])..).unwrap_or_default();
        let caching = page.first().is_some_and(|code| code & 0x3f == 0x08);
        self.volatile_write_cache = !caching || page.get(2).is_none_or(|byte| byte & 0x04 != 0);
        Ok(())
    }

    /// A stable identity: its own, if it is one of 16 bytes, else one made of its identifier, or of the names of target
    /// and logical unit.
    #[must_use]
    pub fn uuid(&self, target: &str, lun: u16) -> [u8; 16] {
        let name = match (&self.identifier, &self.serial) {
            (Some(identifier), _) => match <[u8; 16]>::try_from(&identifier[..]) {
                Ok(uuid) => return uuid,
                Err(_) => identifier.clone(),
            },
            (None, serial) => {
                let serial = serial.as_deref().unwrap_or_default();
                format!("{target}/{lun}/{serial}").into_bytes()
            }
        };
        *uuid::Uuid::new_v5(&NAMES, &name).as_bytes()
    }
}

/// The logical units of the session's target, by number, in the target's order. Those whose addressing is neither
/// peripheral nor flat space are left out.
///
/// # Errors
/// When REPORT LUNS fails.
pub fn luns(session: &BlockingSession) -> Result<Vec<u16>, SessionError> {
    let len = 8 + 8 * MAX_LUNS;
    let answer = session.inquire(cdb::report_luns(len), usize::try_from(len).unwrap_or(0));
    let answer = answer.map_err(of("REPORT LUNS failed"))?;
    let list = usize::try_from(be32(&answer, 0).unwrap_or(0)).unwrap_or(0);
    let entries = answer.get(8..).unwrap_or_default();
    let entries = &entries[..entries.len().min(list)];
    let number = |entry: &[u8]| match entry[0] >> 6 {
        0 if entry[0] == 0 => Some(u16::from(entry[1])),
        1 => Some(u16::from_be_bytes([entry[0] & 0x3f, entry[1]])),
        _ => None,
    };
    Ok(entries.chunks_exact(8).filter_map(number).collect())
}

/// A page of vital product data without its header; `None` where the target has none.
fn page(session: &BlockingSession, code: u8) -> Result<Option<Vec<u8>>, SessionError> {
    let answer = session.inquire(cdb::inquiry(Some(code), PAGE_LEN), PAGE_LEN.into());
    let Some(answer) = optional(answer, "INQUIRY of a page of vital product data failed")? else {
        return Ok(None);
    };
    let [_, told, high, low, ref rest @ ..] = answer[..] else { return Ok(None) };
    let len = usize::from(u16::from_be_bytes([high, low]));
    Ok((told == code).then(|| rest[..rest.len().min(len)].to_vec()))
}

/// UUID, else NAA, else EUI-64 of the logical unit itself (SPC-5, 7.7.6). A Raceline's UUID is that of the namespace over
/// the same device.
fn identifier(page: &[u8]) -> Option<Vec<u8>> {
    let mut found: Option<(u8, &[u8])> = None;
    let mut rest = page;
    while let [_, kind, _, len, ref tail @ ..] = *rest {
        let (id, next) = tail.split_at_checked(usize::from(len))?;
        let (of_unit, kind) = (kind & 0x30 == 0, kind & 0xf);
        let id = match (kind, id) {
            (0xa, [0x10, 0, uuid @ ..]) if uuid.len() == 16 => Some(uuid),
            (2 | 3, id) => Some(id),
            _ => None,
        };
        if let Some(id) = id.filter(|_| of_unit && found.is_none_or(|(known, _)| kind > known)) {
            found = Some((kind, id));
        }
        rest = next;
    }
    found.map(|(_, id)| id.to_vec())
}

/// An answer that the target need not have.
fn optional(
    answer: Result<Vec<u8>, TaskError>,
    what: &'static str,
) -> Result<Option<Vec<u8>>, SessionError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(TaskError::Check(CheckCondition { key: ILLEGAL_REQUEST, .. })) => Ok(None),
        Err(error) => Err(SessionError::Task(what, error)),
    }
}

fn of(what: &'static str) -> impl Fn(TaskError) -> SessionError {
    move |error| SessionError::Task(what, error)
}

fn odd(command: &str, len: usize) -> SessionError {
    SessionError::Invalid(format!(
        "the target answers {command} with {len} bytes, which are too few"
    ))
}

fn text(bytes: &[u8]) -> String {
    let printable = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { ' ' };
    bytes.iter().map(printable).collect::<String>().trim().to_owned()
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|it| u32::from_be_bytes(*it))
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|it| u64::from_be_bytes(*it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identifier_is_that_of_the_unit_and_a_uuid_goes_first() {
        let mut page = vec![1, 0x10 | 3, 0, 2, 9, 9]; // of a port
        page.extend([1, 2, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(identifier(&page).unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
        page.extend([1, 3, 0, 2, 0x60, 7]);
        assert_eq!(identifier(&page).unwrap(), [0x60, 7]);
        page.extend([1, 0xa, 0, 18, 0x10, 0]);
        page.extend([5; 16]);
        page.extend([1, 3, 0, 1, 0x61]);
        page.extend([1, 0xa, 0, 17, 0x10, 0]);
        page.extend([6; 15]); // no UUID
        assert_eq!(identifier(&page).unwrap(), [5; 16]);
        page.extend([1, 3, 0, 200]);
        assert_eq!(identifier(&page), None, "cut short");
        assert_eq!(identifier(&[]), None);
    }

    #[test]
    fn identities_are_stable_and_differ() {
        let own = UnitInfo { identifier: Some((0..16).collect()), ..UnitInfo::default() };
        assert_eq!(own.uuid("iqn.x", 1)[..3], [0, 1, 2]);
        let named = UnitInfo { serial: Some("S1".into()), ..UnitInfo::default() };
        assert_eq!(named.uuid("iqn.x", 1), named.uuid("iqn.x", 1));
        assert_ne!(named.uuid("iqn.x", 1), named.uuid("iqn.x", 2));
        let eui = UnitInfo { identifier: Some(vec![1; 8]), ..UnitInfo::default() };
        assert_eq!(eui.uuid("iqn.x", 1), eui.uuid("iqn.y", 2));
    }

    #[test]
    fn limits_of_any_length_are_read() {
        let mut unit = UnitInfo::default();
        unit.take_limits(&[]);
        assert_eq!(unit, UnitInfo::default());
        let mut page = [0; 60];
        (page[1], page[7], page[19], page[23]) = (8, 9, 10, 1);
        unit.take_limits(&page);
        assert_eq!((unit.max_compare_blocks, unit.max_transfer_blocks), (8, 9));
        assert_eq!(unit.max_unmap_blocks, Some(10));
        assert_eq!(text(b" RL\0x  "), "RL x");
    }
}
