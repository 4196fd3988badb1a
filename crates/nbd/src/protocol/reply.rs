//! Replies, as they are appended to what is to be sent.

use super::wire::{
    BASE_ALLOCATION_ID, CHUNK_MAGIC, Errno, SIMPLE_REPLY_MAGIC, STATE_HOLE_ZERO, chunk,
};

/// Most bytes that one of the functions here appends, except [`push_block_status`].
pub const MAX_HEADER_LEN: usize = 20 + 6 + MAX_TEXT_LEN;

/// Most bytes of a text for people.
const MAX_TEXT_LEN: usize = 80;

/// A part of the range that was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its length in bytes, not 0.
    pub len: u32,
    /// It is not allocated, and reads zeroes.
    pub hole: bool,
}

/// Appends a reply without data.
pub fn push_simple(out: &mut Vec<u8>, cookie: u64, error: u32) {
    out.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
    out.extend(error.to_be_bytes());
    out.extend(cookie.to_be_bytes());
}

/// Appends what goes before `len` bytes of data that were read from `offset` on.
///
/// # Panics
/// If `len` is more than a request can ask for.
pub fn push_read(out: &mut Vec<u8>, structured: bool, cookie: u64, offset: u64, len: usize) {
    if !structured {
        return push_simple(out, cookie, 0);
    }
    let len = u32::try_from(len + size_of::<u64>()).expect("a read is at most 32 MiB");
    push_chunk(out, chunk::OFFSET_DATA, cookie, len);
    out.extend(offset.to_be_bytes());
}

/// Appends an error.
///
/// Rule: only READ and BLOCK_STATUS (`chunked`) have to be answered by chunks on a connection with
/// structured replies. All other commands get a simple reply.
pub fn push_error(out: &mut Vec<u8>, chunked: bool, cookie: u64, error: Errno, text: &str) {
    if !chunked {
        return push_simple(out, cookie, error.number());
    }
    let text = text.as_bytes();
    let text = &text[..text.len().min(MAX_TEXT_LEN)];
    let text_len = u16::try_from(text.len()).unwrap_or(0);
    push_chunk(out, chunk::ERROR, cookie, 6 + u32::from(text_len));
    out.extend(error.number().to_be_bytes());
    out.extend(text_len.to_be_bytes());
    out.extend(text);
}

/// Appends extents.
///
/// # Panics
/// If there are more than 2^28.
pub fn push_block_status(out: &mut Vec<u8>, cookie: u64, extents: &[Extent]) {
    let len = u32::try_from(4 + 8 * extents.len()).expect("few extents");
    push_chunk(out, chunk::BLOCK_STATUS, cookie, len);
    out.extend(BASE_ALLOCATION_ID.to_be_bytes());
    for extent in extents {
        out.extend(extent.len.to_be_bytes());
        out.extend(if extent.hole { STATE_HOLE_ZERO } else { 0 }.to_be_bytes());
    }
}

/// Appends the header of the only chunk of a reply.
fn push_chunk(out: &mut Vec<u8>, kind: u16, cookie: u64, len: u32) {
    out.extend(CHUNK_MAGIC.to_be_bytes());
    out.extend(chunk::FLAG_DONE.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(len.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_as_the_specification_draws_them() {
        let mut out = Vec::new();
        push_simple(&mut out, 0x0102, 22);
        assert_eq!(out, b"\x67\x44\x66\x98\0\0\0\x16\0\0\0\0\0\0\x01\x02");
        out.clear();
        push_read(&mut out, true, 3, 512, 1024);
        let chunk = b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x03\0\0\x04\x08";
        assert_eq!(out, [&chunk[..], &512_u64.to_be_bytes()].concat());
        out.clear();
        push_error(&mut out, true, 3, Errno::Io, "no");
        let chunk = b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x03\0\0\0\x08\0\0\0\x05\0\x02no";
        assert_eq!(out, chunk);
        out.clear();
        push_block_status(&mut out, 3, &[Extent { len: 512, hole: true }]);
        let chunk = b"\x66\x8e\x33\xef\0\x01\0\x05\0\0\0\0\0\0\0\x03\0\0\0\x0c\0\0\0\x01\0\0\x02\0\0\0\0\x03";
        assert_eq!(out, chunk);
        out.clear();
        push_error(&mut out, true, 3, Errno::Io, &"x".repeat(1000));
        assert_eq!(out.len(), MAX_HEADER_LEN);
    }
}
