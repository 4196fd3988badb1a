//! Faults of the emulated processor itself: what a guest shows then says nothing about Raceline or Linux.
//!
//! QEMU's emulation was seen to lose the state of its processor: a program of the guest ended by a segmentation fault, and the kernel
//! in its own memory allocator.

/// Bits of EFLAGS that are always zero (Intel SDM volume 1, 3.4.3: bits 22 to 31 are reserved).
const RESERVED: u32 = 0xffc0_0000;

/// Whether a kernel that has ended shows flags that no processor has.
pub(super) fn is_at_fault(console: &str) -> bool {
    console.split("EFLAGS: ").skip(1).any(|rest| {
        let digits = rest.split_whitespace().next().unwrap_or_default();
        u32::from_str_radix(digits, 16).is_ok_and(|flags| flags & RESERVED != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flags_that_cannot_be_are_the_emulators_fault() {
        let lost = "[   28.67] RSP: 0018:ffffc9000088fb10 EFLAGS: 06488002\n[   28.68] Kernel panic - not syncing";
        assert!(is_at_fault(lost));
        assert!(is_at_fault(
            "RSP: 0018:0 EFLAGS: 00010246\nRSP: 002b:0 EFLAGS: 06488202 ORIG_RAX: 1"
        ));
        // All bits that a processor may have.
        assert!(!is_at_fault(
            "RSP: 0018:0 EFLAGS: 003f7fd7\nKernel panic - not syncing: Fatal exception"
        ));
        assert!(!is_at_fault("the guest stopped early") && !is_at_fault("EFLAGS: none"));
    }
}
