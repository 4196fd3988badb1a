//! Serial numbers: 32-bit counters that wrap (RFC 7143, 4.2.2; RFC 1982).

/// Whether `a` comes before `b`.
#[inline]
#[must_use]
pub const fn before(a: u32, b: u32) -> bool {
    distance(b, a) > 0
}

/// Whether `a` comes before `b`, or is `b`.
#[inline]
#[must_use]
pub const fn at_most(a: u32, b: u32) -> bool {
    distance(b, a) >= 0
}

/// How far `to` is ahead of `from`; negative when it is behind.
#[inline]
#[must_use]
pub const fn distance(to: u32, from: u32) -> i32 {
    to.wrapping_sub(from).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        assert!(before(u32::MAX, 0));
        assert!(!before(0, u32::MAX));
        assert!(before(1, 2));
        assert!(!before(2, 2));
        assert!(at_most(2, 2));
        assert!(at_most(u32::MAX - 1, 3));
        assert_eq!(distance(3, u32::MAX), 4);
        assert_eq!(distance(u32::MAX, 3), -4);
    }
}
