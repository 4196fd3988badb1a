//! The standard data of Inquiry (SPC-5, 6.7.2).

use crate::lun::Lun;

/// Bytes of the standard data.
pub const STANDARD_LEN: usize = 96;

/// PERIPHERAL QUALIFIER 011b and PERIPHERAL DEVICE TYPE 1Fh: there is no logical unit of this number.
const NO_LUN: u8 = 0x7f;

/// What the disk conforms to: SAM-5, iSCSI, SPC-4, SBC-3 (SPC-5, annex F).
const VERSIONS: [u16; 4] = [0x00a0, 0x0960, 0x0460, 0x04c0];

/// The standard data; without a logical unit, those that say that there is none.
#[must_use]
pub fn standard(lun: Option<&Lun>) -> Vec<u8> {
    let mut data = vec![0; STANDARD_LEN];
    data[0] = if lun.is_some() { 0x00 } else { NO_LUN };
    data[2] = 0x06; // VERSION: SPC-4
    data[3] = 0x10 | 0x02; // HISUP, RESPONSE DATA FORMAT
    data[4] = 0x5b; // ADDITIONAL LENGTH: 96 bytes in all
    data[8..36].fill(b' ');
    let Some(lun) = lun else { return data };
    data[5] = 0x18; // TPGS 01b: states of port groups are told; 3PC: there is Extended Copy
    data[6] = 0x10; // MULTIP: several ports
    data[7] = 0x02; // CMDQUE
    data[8..16].copy_from_slice(lun.identity.vendor.as_bytes());
    data[16..32].copy_from_slice(lun.identity.product.as_bytes());
    data[32..36].copy_from_slice(lun.identity.revision.as_bytes());
    for (field, version) in data[58..66].chunks_exact_mut(2).zip(VERSIONS) {
        field.copy_from_slice(&version.to_be_bytes());
    }
    data
}
