//! CRC32C by the instruction of SSE4.2, three streams at a time.
//!
//! The instruction takes a new operand every cycle but gives its result after three, so three
//! independent streams keep it busy. Their registers are joined by tables that move a register over
//! as many zero bytes as a stream is long.

#![allow(unsafe_code)]

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

use crate::table::POLYNOMIAL;

/// Bytes of one stream, where the data are long enough for three of them.
const LONG_BYTES: usize = 1344;

/// Bytes of one stream of what is left.
const SHORT_BYTES: usize = 168;

/// Moves a register over `LONG_BYTES` zeroes.
static OVER_LONG: [[u32; 256]; 4] = over_zeroes(LONG_BYTES);

/// Moves a register over `SHORT_BYTES` zeroes.
static OVER_SHORT: [[u32; 256]; 4] = over_zeroes(SHORT_BYTES);

/// `tables[k][b]` is where `count` zero bytes take the register `b << 8 * k`.
const fn over_zeroes(count: usize) -> [[u32; 256]; 4] {
    // Where each single bit goes; the rest follows, because the map is linear.
    let mut of_bit = [0_u32; 32];
    let mut bit = 0;
    while bit < 32 {
        let mut register = 1 << bit;
        let mut step = 0;
        while step < 8 * count {
            register = (register >> 1) ^ (POLYNOMIAL * (register & 1));
            step += 1;
        }
        of_bit[bit] = register;
        bit += 1;
    }
    let mut tables = [[0; 256]; 4];
    let mut table = 0;
    while table < 4 {
        let mut byte = 1;
        while byte < 256_usize {
            let lowest = byte.trailing_zeros() as usize;
            let others = tables[table][byte & (byte - 1)];
            tables[table][byte] = others ^ of_bit[8 * table + lowest];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// The register after `data`.
///
/// # Panics
/// If the CPU has no SSE4.2.
pub(super) fn update(register: u32, data: &[u8]) -> u32 {
    assert!(is_x86_feature_detected!("sse4.2"), "this CPU has no SSE4.2");
    // SAFETY: it has.
    unsafe { update_by_instruction(register, data) }
}

#[target_feature(enable = "sse4.2")]
fn update_by_instruction(mut register: u32, data: &[u8]) -> u32 {
    let (mut words, rest) = data.as_chunks::<8>();
    for (stream_bytes, tables) in [(LONG_BYTES, &OVER_LONG), (SHORT_BYTES, &OVER_SHORT)] {
        let stream = stream_bytes / 8;
        while let Some((three, after)) = words.split_at_checked(3 * stream) {
            register = three_streams(register, three, tables);
            words = after;
        }
    }
    let mut wide = u64::from(register);
    for word in words {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
    }
    let mut register = low(wide);
    for &byte in rest {
        register = _mm_crc32_u8(register, byte);
    }
    register
}

/// The register after three streams of the same length, one behind the other.
#[target_feature(enable = "sse4.2")]
#[inline]
fn three_streams(register: u32, words: &[[u8; 8]], tables: &[[u32; 256]; 4]) -> u32 {
    let (first, others) = words.split_at(words.len() / 3);
    let (second, third) = others.split_at(first.len());
    let (mut a, mut b, mut c) = (u64::from(register), 0, 0);
    for ((one, two), three) in first.iter().zip(second).zip(third) {
        a = _mm_crc32_u64(a, u64::from_le_bytes(*one));
        b = _mm_crc32_u64(b, u64::from_le_bytes(*two));
        c = _mm_crc32_u64(c, u64::from_le_bytes(*three));
    }
    let joined = over(tables, low(a)) ^ low(b);
    over(tables, joined) ^ low(c)
}

/// A register moved over a stream of zeroes.
#[inline]
fn over(tables: &[[u32; 256]; 4], register: u32) -> u32 {
    let [a, b, c, d] = register.to_le_bytes().map(usize::from);
    tables[0][a] ^ tables[1][b] ^ tables[2][c] ^ tables[3][d]
}

/// The register, which the instruction gives in 64 bits.
#[inline]
const fn low(wide: u64) -> u32 {
    let [a, b, c, d, ..] = wide.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}
