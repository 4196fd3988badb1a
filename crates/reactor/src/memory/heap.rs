//! The heap of a program that ends with words when there is no memory.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write as _;

/// The system's heap. Where that has nothing to give, the process says what it wanted and what to do, and ends: an
/// allocation that fails could not be answered in any other way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap {
    /// The exit code of the process then.
    pub exit_code: i32,
}

// SAFETY: everything is the system's answer, unless there is none.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller has promised.
        self.given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller has promised.
        self.given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller has promised.
        self.given(unsafe { System.realloc(old, layout, size) }, size)
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as the caller has promised.
        unsafe { System.dealloc(old, layout) }
    }
}

impl Heap {
    #[inline]
    fn given(&self, memory: *mut u8, size: usize) -> *mut u8 {
        if memory.is_null() {
            self.end(size);
        }
        memory
    }

    #[cold]
    fn end(&self, size: usize) -> ! {
        let mut line = [0; 512];
        let text = words(&mut line, size);
        // SAFETY: the bytes are there for the call; nothing else can be done if it fails. The process ends without
        // the destructors and hooks that could allocate.
        unsafe {
            libc::write(2, text.as_ptr().cast(), text.len());
            libc::_exit(self.exit_code);
        }
    }
}

/// What the process says, made without an allocation.
fn words(line: &mut [u8; 512], size: usize) -> &[u8] {
    let whole = line.len();
    let mut rest = &mut line[..];
    let _ = writeln!(
        rest,
        "raceline: there is no memory for another {size} bytes: this process ends. The limit of its address space \
         (ulimit -v, LimitAS= of the service) or of its control group is used up, or the machine's memory is \
         (vm.overcommit_memory 2): raise the limit, or give it less to do (fewer cores, connections or devices in memory)"
    );
    let left = rest.len();
    &line[..whole - left]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_a_whole_line() {
        let mut line = [0; 512];
        let text = std::str::from_utf8(words(&mut line, usize::MAX)).unwrap();
        assert!(
            text.starts_with("raceline: there is no memory for another 18446744073709551615 bytes")
        );
        assert!(text.ends_with(")\n"), "{text}");
    }

    #[test]
    fn memory_is_given_grown_and_taken_back() {
        let heap = Heap { exit_code: 1 };
        let layout = Layout::array::<u8>(64).unwrap();
        // SAFETY: each call gets what the one before has given, with its layout.
        unsafe {
            let memory = heap.alloc_zeroed(layout);
            memory.add(63).write(7);
            let larger = heap.realloc(memory, layout, 4096);
            assert_eq!((larger.read(), larger.add(63).read()), (0, 7));
            heap.dealloc(larger, Layout::array::<u8>(4096).unwrap());
        }
    }
}
