//! Framing of sent PDUs: header digest, data, padding, data digest.

use raceline_crc32c::{Crc32c, crc32c};

use crate::pdu::{Bhs, pad_len};

/// How the PDUs that one end sends are framed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Framing {
    pub(crate) header_digest: bool,
    pub(crate) data_digest: bool,
}

impl Framing {
    /// Appends a header and its digest.
    #[inline(always)]
    pub(crate) fn put(self, bhs: &Bhs, out: &mut Vec<u8>) {
        out.extend_from_slice(bhs);
        if self.header_digest {
            out.extend_from_slice(&crc32c(bhs).to_le_bytes());
        }
    }

    /// Appends what follows `len` bytes of data whose CRC32C is in `crc`: padding and digest.
    #[inline]
    pub(crate) fn put_trailer(self, len: u32, mut crc: Crc32c, out: &mut Vec<u8>) {
        let pad = &[0; 3][..pad_len(len) as usize];
        out.extend_from_slice(pad);
        if self.data_digest {
            if !pad.is_empty() {
                crc.update(pad);
            }
            out.extend_from_slice(&crc.finalize().to_le_bytes());
        }
    }

    /// Bytes that follow `len` bytes of data.
    #[inline]
    pub(crate) fn trailer_len(self, len: u32) -> u32 {
        pad_len(len) + if self.data_digest { 4 } else { 0 }
    }

    /// Appends a whole PDU.
    pub(crate) fn put_with_data(self, bhs: &Bhs, data: &[u8], out: &mut Vec<u8>) {
        self.put(bhs, out);
        if data.is_empty() {
            return;
        }
        let len = u32::try_from(data.len()).expect("a data segment is below 16 MiB");
        out.extend_from_slice(data);
        let mut crc = Crc32c::new();
        if self.data_digest {
            crc.update(data);
        }
        self.put_trailer(len, crc, out);
    }
}
