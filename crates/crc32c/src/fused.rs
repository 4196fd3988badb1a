//! CRC32C by AVX-512, also in one pass with a copy: each byte is loaded once, stored, and folded.
//!
//! The folding is that of Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction", 2009. Against `copy_from_slice` and then [`crate::crc32c`], by
//! `crates/accel/examples/cost.rs` on two virtual cores of an AMD EPYC with 1 MiB of second-level cache,
//! shared with other work (lower quartile of 2,000 turns; three runs):
//!
//! | bytes | source in the cache: both, fused | source of 64 MiB: both, fused |
//! |---|---|---|
//! | 512 | 29 ns, 35 ns | 207 to 224 ns, 376 to 438 ns |
//! | 1 KiB | | 412 to 436 ns, 414 to 416 ns |
//! | 4 KiB | 167 ns, 99 ns | 680 to 709 ns, 645 to 659 ns |
//! | 16 KiB | 617 ns, 336 ns | 1.81 to 2.00 us, 1.73 to 1.85 us |
//! | 128 KiB | 5.0 us, 2.4 us | 11.7 to 14.9 us, 8.1 to 9.5 us |
//!
//! The fused times include the channel. Copy and digest by turns of 4 to 16 KiB were within the spread
//! of the two passes, but for 128 KiB in some runs.

#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m512i, _MM_HINT_T0, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64,
    _mm_cvtsi32_si128, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_prefetch, _mm_set_epi64x,
    _mm_xor_si128, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_set_epi64,
    _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};
use std::ops::Range;

/// Bytes of one register, and of four, which are folded side by side.
const REGISTER_BYTES: usize = 64;
const ROUND_BYTES: usize = 4 * REGISTER_BYTES;

/// Shorter data are faster copied, then digested (the table above).
pub const WORTH_BYTES: usize = 1024;

/// Lengths that are digested here as fast as by the `crc-fast` crate, or faster. For longer data the
/// crate also uses the CRC instruction, which pays where other work shares the core: 16 and 128 KiB took
/// 450 ns and 3.5 us here, 380 ns and 2.9 us there; without other work they were level (lab 0021).
const WORTH_DIGEST_BYTES: Range<usize> = 1024..8192;

/// How far ahead of the copy lines are asked for: in the source, and beyond its end in the bytes that are
/// copied next (lab 0020).
const AHEAD_BYTES: usize = 4096;

/// The Castagnoli polynomial without its highest coefficient.
const POLYNOMIAL: u32 = 0x1EDC_6F41;

/// x^n modulo the polynomial, as a factor for reflected data.
const fn power(n: u32) -> i64 {
    let mut remainder = 1_u32;
    let mut step = 0;
    while step < n {
        remainder = (remainder << 1) ^ (POLYNOMIAL * (remainder >> 31));
        step += 1;
    }
    (remainder.reverse_bits() as u64).cast_signed() << 32
}

/// The factors that move 128 bits over `bits` zero bits: of their first 64 and of their last.
///
/// In reflected data bit i of a word stands for x^(63 - i), and the product of two words comes out
/// one place too low: hence the ones less.
const fn factors(bits: u32) -> (i64, i64) {
    (power(bits + 63), power(bits - 1))
}

const OVER_ROUND: (i64, i64) = factors(2048);
const OVER_REGISTER: (i64, i64) = factors(512);
const OVER_LANE: (i64, i64) = factors(128);

/// True if the CPU can.
#[inline]
#[must_use]
pub fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("sse4.2")
}

/// Copies `len` bytes, and gives the CRC register after them, from `register` on. The register is that of
/// the bytes stored, whatever others do to those of `from` meanwhile. `next` is where the bytes start
/// that will be copied after these: only a hint.
///
/// # Safety
/// [`is_available`]; `from` is valid for reads and `to` for writes of `len` bytes, and they do not
/// overlap.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]
pub unsafe fn copy_crc32c(
    register: u32,
    from: *const u8,
    to: *mut u8,
    len: usize,
    next: *const u8,
) -> u32 {
    let whole = len - len % REGISTER_BYTES;
    // SAFETY: `whole` <= `len`; the tail lies between them.
    unsafe {
        let register = if whole == 0 {
            register
        } else {
            fold_registers::<true>(register, from, to, whole, next)
        };
        let tail = to.add(whole);
        std::ptr::copy_nonoverlapping(from.add(whole), tail, len - whole);
        short(register, std::slice::from_raw_parts(tail, len - whole))
    }
}

/// The CRC register after these bytes, from `register` on; `None` if the CPU or the length does not suit.
#[inline]
pub(crate) fn crc32c(register: u32, bytes: &[u8]) -> Option<u32> {
    // SAFETY: the CPU can.
    (WORTH_DIGEST_BYTES.contains(&bytes.len()) && is_available())
        .then(|| unsafe { digest(register, bytes) })
}

/// The CRC register after these bytes, from `register` on.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]
fn digest(register: u32, bytes: &[u8]) -> u32 {
    let whole = bytes.len() - bytes.len() % REGISTER_BYTES;
    let (from, nowhere) = (bytes.as_ptr(), std::ptr::null_mut());
    let register = if whole == 0 {
        register
    } else {
        // SAFETY: `whole` bytes can be read; none are written.
        unsafe { fold_registers::<false>(register, from, nowhere, whole, from) }
    };
    short(register, &bytes[whole..])
}

/// Takes at least one whole register. With a copy, lines are asked for ahead; without, the bytes are only
/// read, and the CPU itself fetches lines ahead.
#[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]
#[inline]
unsafe fn fold_registers<const COPY: bool>(
    register: u32,
    from: *const u8,
    to: *mut u8,
    len: usize,
    next: *const u8,
) -> u32 {
    let start = _mm512_zextsi128_si512(_mm_cvtsi32_si128(register.cast_signed()));
    let mut at = 0;
    // SAFETY: `at` + what is read and written <= `len` in each step.
    unsafe {
        let mut sum;
        if len >= ROUND_BYTES {
            if COPY {
                prefetch_round(ahead(from, len, next, at));
            }
            let mut a = _mm512_xor_si512(take::<COPY>(from, to), start);
            let mut b = take::<COPY>(from.add(64), to.wrapping_add(64));
            let mut c = take::<COPY>(from.add(128), to.wrapping_add(128));
            let mut d = take::<COPY>(from.add(192), to.wrapping_add(192));
            at = ROUND_BYTES;
            while at + ROUND_BYTES <= len {
                if COPY {
                    prefetch_round(ahead(from, len, next, at));
                }
                let (from, to) = (from.add(at), to.wrapping_add(at));
                a = fold(a, OVER_ROUND, take::<COPY>(from, to));
                b = fold(b, OVER_ROUND, take::<COPY>(from.add(64), to.wrapping_add(64)));
                c = fold(c, OVER_ROUND, take::<COPY>(from.add(128), to.wrapping_add(128)));
                d = fold(d, OVER_ROUND, take::<COPY>(from.add(192), to.wrapping_add(192)));
                at += ROUND_BYTES;
            }
            sum = fold(a, OVER_REGISTER, b);
            sum = fold(sum, OVER_REGISTER, c);
            sum = fold(sum, OVER_REGISTER, d);
        } else {
            sum = _mm512_xor_si512(take::<COPY>(from, to), start);
            at += REGISTER_BYTES;
        }
        while at < len {
            sum = fold(sum, OVER_REGISTER, take::<COPY>(from.add(at), to.wrapping_add(at)));
            at += REGISTER_BYTES;
        }
        reduce(sum)
    }
}

/// The address of the byte that is copied [`AHEAD_BYTES`] after that at `at`, or `len` if that is less.
#[inline]
fn ahead(from: *const u8, len: usize, next: *const u8, at: usize) -> *const u8 {
    let at = at + AHEAD_BYTES.min(len);
    if at < len { from.wrapping_add(at) } else { next.wrapping_add(at - len) }
}

/// Asks for the lines of a round.
#[inline]
fn prefetch_round(start: *const u8) {
    for line in (0..ROUND_BYTES).step_by(REGISTER_BYTES) {
        // SAFETY: a prefetch changes nothing but the cache, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast()) };
    }
}

/// Loads a register once, stores it if `COPY`, and gives it.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn take<const COPY: bool>(from: *const u8, to: *mut u8) -> __m512i {
    let bytes: __m512i;
    // SAFETY: both are valid for 64 bytes, if they are used. The load is in assembly, because the compiler
    // must not load twice what others may change.
    unsafe {
        asm!(
            "vmovdqu64 {0}, [{1}]",
            out(zmm_reg) bytes,
            in(reg) from,
            options(nostack, preserves_flags, readonly),
        );
        if COPY {
            _mm512_storeu_si512(to.cast(), bytes);
        }
    }
    bytes
}

/// Moves four sums of 128 bits over what lies between them and `next`, and adds it.
#[target_feature(enable = "avx512f,vpclmulqdq")]
#[inline]
fn fold(sum: __m512i, (first, last): (i64, i64), next: __m512i) -> __m512i {
    let factors = _mm512_set_epi64(last, first, last, first, last, first, last, first);
    let low = _mm512_clmulepi64_epi128::<0x00>(sum, factors);
    let high = _mm512_clmulepi64_epi128::<0x11>(sum, factors);
    _mm512_ternarylogic_epi64::<0x96>(low, high, next) // the sum of the three
}

/// The CRC register that four sums of 128 bits, one behind the other, stand for.
#[target_feature(enable = "avx512f,pclmulqdq,sse4.2")]
#[inline]
fn reduce(sum: __m512i) -> u32 {
    let mut lane = _mm512_extracti32x4_epi32::<0>(sum);
    lane = fold_lane(lane, _mm512_extracti32x4_epi32::<1>(sum));
    lane = fold_lane(lane, _mm512_extracti32x4_epi32::<2>(sum));
    lane = fold_lane(lane, _mm512_extracti32x4_epi32::<3>(sum));
    // What is left are 16 bytes with the same CRC.
    let wide = _mm_crc32_u64(0, _mm_cvtsi128_si64(lane).cast_unsigned());
    low(_mm_crc32_u64(wide, _mm_extract_epi64::<1>(lane).cast_unsigned()))
}

#[target_feature(enable = "pclmulqdq")]
#[inline]
fn fold_lane(sum: __m128i, next: __m128i) -> __m128i {
    let (first, last) = OVER_LANE;
    let factors = _mm_set_epi64x(last, first);
    let low = _mm_clmulepi64_si128::<0x00>(sum, factors);
    let high = _mm_clmulepi64_si128::<0x11>(sum, factors);
    _mm_xor_si128(_mm_xor_si128(low, high), next)
}

/// The register after less than one register full of bytes.
#[target_feature(enable = "sse4.2")]
#[inline]
fn short(register: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut wide = u64::from(register);
    for word in words {
        wide = _mm_crc32_u64(wide, u64::from_le_bytes(*word));
    }
    rest.iter().fold(low(wide), |register, &byte| _mm_crc32_u8(register, byte))
}

/// The register, which the instruction gives in 64 bits.
#[inline]
const fn low(wide: u64) -> u32 {
    let [a, b, c, d, ..] = wide.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Crc32c, CrcPath};

    #[test]
    fn copies_and_digests_at_every_length_and_alignment() {
        if !is_available() {
            eprintln!("SKIPPED: no AVX-512 with VPCLMULQDQ here");
            return;
        }
        let from: Vec<u8> =
            (0..5000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        for len in (0..700).chain(1000..1050).chain(4000..4200) {
            for (start, end) in [(0, 0), (1, 0), (3, 61), (64, 7)] {
                let piece = &from[start..start + len];
                let mut to = vec![0xee; end + len + 64];
                let next = [piece.as_ptr(), std::ptr::null()][len % 2];
                // SAFETY: both vectors have this many bytes, and the CPU can.
                let register =
                    unsafe { copy_crc32c(!7, piece.as_ptr(), to.as_mut_ptr().add(end), len, next) };
                assert_eq!(&to[end..end + len], piece, "{len} bytes from {start}");
                assert!(to[..end].iter().chain(&to[end + len..]).all(|&byte| byte == 0xee));
                let mut digest = Crc32c::resume(7);
                digest.update_by(CrcPath::Table, piece);
                assert_eq!(!register, digest.finalize(), "{len} bytes from {start}");
                // SAFETY: the CPU can.
                assert_eq!(unsafe { super::digest(!7, piece) }, register, "{len} from {start}");
            }
        }
    }
}
