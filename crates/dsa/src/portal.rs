//! The door through which descriptors reach a work queue: MOVDIR64B, ENQCMD, or an emulation.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::descriptor::Descriptor;
use crate::discover::{Mode, WorkQueue};

/// What became of a submission (DSA specification 3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Submission {
    /// The work queue has it.
    Accepted,
    /// The work queue has no room for it now.
    Retry,
}

/// A way into one work queue, for one submitter.
///
/// # Safety
///
/// Once [`is_stopped`](Self::is_stopped) has been true, the device touches no memory that a
/// descriptor submitted here names, not even completion records.
pub unsafe trait Portal: Send {
    /// Most descriptors that this submitter may have in the work queue: submitted, and their completion
    /// not seen. A dedicated work queue loses descriptors beyond this.
    fn window(&self) -> usize;

    /// Offers a descriptor.
    ///
    /// # Safety
    ///
    /// If it is accepted: all memory that it names (completion record, data, and for a batch the list and
    /// what its entries name) stays valid for the accesses of its operation until the device has written
    /// the completion record, or until [`is_stopped`](Self::is_stopped) is true. Nothing else writes the
    /// destinations meanwhile. Not more than [`window`](Self::window) descriptors are under way.
    unsafe fn submit(&mut self, descriptor: &Descriptor) -> Submission;

    /// Whether the device has stopped, and will never touch memory again.
    fn is_stopped(&self) -> bool {
        false
    }
}

/// Why a work queue could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortalError {
    /// The CPU lacks the instruction.
    #[error(
        "{queue} is a {mode} work queue, which takes the instruction {instruction}; this CPU does \
         not have it"
    )]
    NoInstruction {
        /// The work queue.
        queue: String,
        /// Its mode.
        mode: Mode,
        /// The instruction's name.
        instruction: &'static str,
    },
    /// The character device could not be opened.
    #[error(
        "cannot open {}: {source}; it takes read and write permission, and a dedicated work queue \
         serves one process only", path.display()
    )]
    Open {
        /// The character device.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The portal could not be mapped.
    #[error(
        "cannot map the portal of {}: {source}; for DSA 1.0 the kernel demands CAP_SYS_RAWIO \
         (INTEL-SA-01084)", path.display()
    )]
    Map {
        /// The character device.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// All room of a dedicated work queue is given to other submitters.
    #[error("{queue} holds {depth} descriptors, and all are given to other cores")]
    Exhausted {
        /// The work queue.
        queue: String,
        /// Its size.
        depth: usize,
    },
}

/// An opened work queue of a device, from which each core gets its portal.
#[derive(Debug)]
pub struct OpenWorkQueue {
    mapping: Arc<Mapping>,
    queue: WorkQueue,
    /// The room of a dedicated queue that is given to no portal, and the number of portals made so far.
    room: Arc<Mutex<Room>>,
}

#[derive(Debug)]
struct Room {
    free: usize,
    opened: usize,
}

impl OpenWorkQueue {
    /// Opens the character device and maps the portal page.
    ///
    /// # Errors
    ///
    /// When the CPU lacks the instruction, or the kernel refuses.
    pub fn open(queue: &WorkQueue) -> Result<Self, PortalError> {
        let instruction = Instruction::of(queue.mode);
        if !instruction.is_available() {
            return Err(PortalError::NoInstruction {
                queue: queue.name.clone(),
                mode: queue.mode,
                instruction: instruction.name(),
            });
        }
        let path = &queue.path;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|source| PortalError::Open { path: path.clone(), source })?;
        let mapping =
            Mapping::new(file).map_err(|source| PortalError::Map { path: path.clone(), source })?;
        let room = Room { free: queue.depth, opened: 0 };
        Ok(Self {
            mapping: Arc::new(mapping),
            queue: queue.clone(),
            room: Arc::new(Mutex::new(room)),
        })
    }

    /// The work queue's properties.
    #[must_use]
    pub fn queue(&self) -> &WorkQueue {
        &self.queue
    }

    /// A portal with room for at most `window` descriptors.
    ///
    /// Room in a dedicated queue is divided: the sum over all portals is never more than it
    /// holds. In a shared queue the device says when it is full, and each portal may try to fill
    /// it.
    ///
    /// # Errors
    ///
    /// When other portals have all the room.
    pub fn portal(&self, window: usize) -> Result<Box<dyn Portal>, PortalError> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let page = Page { mapping: Arc::clone(&self.mapping), offset: room.first_offset() };
        room.opened += 1;
        if self.queue.mode == Mode::Shared {
            return Ok(Box::new(Enqcmd { page, window: window.min(self.queue.depth) }));
        }
        let window = window.min(room.free);
        if window == 0 {
            let (queue, depth) = (self.queue.name.clone(), self.queue.depth);
            return Err(PortalError::Exhausted { queue, depth });
        }
        room.free -= window;
        Ok(Box::new(Movdir64b { page, window, room: Arc::clone(&self.room) }))
    }
}

impl Room {
    /// Portals begin at different places of the page, so that cores do not write to one address.
    fn first_offset(&self) -> usize {
        self.opened * size_of::<Descriptor>() % PAGE_BYTES
    }
}

/// The portal of a dedicated work queue: a posted write of 64 bytes, without an answer (3.3.2).
struct Movdir64b {
    page: Page,
    window: usize,
    room: Arc<Mutex<Room>>,
}

impl Drop for Movdir64b {
    fn drop(&mut self) {
        self.room.lock().unwrap_or_else(PoisonError::into_inner).free += self.window;
    }
}

// SAFETY: is_stopped is never true.
unsafe impl Portal for Movdir64b {
    fn window(&self) -> usize {
        self.window
    }

    unsafe fn submit(&mut self, descriptor: &Descriptor) -> Submission {
        // SAFETY: the CPU has the instruction, or the queue would not have been opened; the
        // address is aligned and lies in the mapped page; the caller vouches for the memory.
        unsafe { instruction::movdir64b(self.page.next(), descriptor) };
        Submission::Accepted
    }
}

/// The portal of a shared work queue: a write of 64 bytes that the device takes or not (3.3.1).
struct Enqcmd {
    page: Page,
    window: usize,
}

// SAFETY: is_stopped is never true.
unsafe impl Portal for Enqcmd {
    fn window(&self) -> usize {
        self.window
    }

    unsafe fn submit(&mut self, descriptor: &Descriptor) -> Submission {
        // SAFETY: as for MOVDIR64B.
        let retry = unsafe { instruction::enqcmd(self.page.next(), descriptor) };
        if retry { Submission::Retry } else { Submission::Accepted }
    }
}

/// The size of a portal's page (9.3).
const PAGE_BYTES: usize = 4096;

/// A submitter's view of the portal page.
struct Page {
    mapping: Arc<Mapping>,
    offset: usize,
}

impl Page {
    /// The next address. Any multiple of 64 within the page means the same (9.3); taking turns
    /// lets the CPU have several stores under way.
    fn next(&mut self) -> *mut u8 {
        let offset = self.offset;
        self.offset = (offset + size_of::<Descriptor>()) % PAGE_BYTES;
        self.mapping.page.as_ptr().cast::<u8>().wrapping_add(offset)
    }
}

/// The mapped portal page of an opened work queue.
#[derive(Debug)]
struct Mapping {
    page: NonNull<std::ffi::c_void>,
    /// While this is open, the device knows this process's address space.
    _file: File,
}

// SAFETY: the page is only written, by single instructions that any thread may execute.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: File) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let page = unsafe { mmap(ptr::null_mut(), PAGE_BYTES, ProtFlags::WRITE, flags, &file, 0) }?;
        let page = NonNull::new(page).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { page, _file: file })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size; all portals that point into it are gone.
        let unmapped = unsafe { munmap(self.page.as_ptr(), PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

/// The two instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instruction {
    Movdir64b,
    Enqcmd,
}

impl Instruction {
    fn of(mode: Mode) -> Self {
        match mode {
            Mode::Dedicated => Self::Movdir64b,
            Mode::Shared => Self::Enqcmd,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Movdir64b => "MOVDIR64B",
            Self::Enqcmd => "ENQCMD",
        }
    }

    /// Whether the CPU says so: CPUID leaf 7, sub-leaf 0, ECX bits 28 and 29 (Intel SDM volume 2A,
    /// CPUID).
    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        let bit = match self {
            Self::Movdir64b => 28,
            Self::Enqcmd => 29,
        };
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & (1 << bit) != 0
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_available(self) -> bool {
        false
    }
}

#[cfg(target_arch = "x86_64")]
mod instruction {
    //! Both are weakly ordered and read 64 bytes of memory; the fence before them makes what the
    //! device will read (data, lists, cleared records) visible first.

    use super::Descriptor;
    use std::arch::asm;

    /// # Safety
    ///
    /// The CPU has MOVDIR64B; `portal` is a multiple of 64 in a mapped portal page; the
    /// descriptor's memory is as [`super::Portal::submit`] demands.
    pub(super) unsafe fn movdir64b(portal: *mut u8, descriptor: &Descriptor) {
        // SAFETY: the caller's.
        unsafe {
            asm!(
                "sfence",
                "movdir64b {portal}, [{descriptor}]",
                portal = in(reg) portal,
                descriptor = in(reg) descriptor,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Whether the device said Retry (ZF).
    ///
    /// # Safety
    ///
    /// As for MOVDIR64B, with ENQCMD.
    pub(super) unsafe fn enqcmd(portal: *mut u8, descriptor: &Descriptor) -> bool {
        let retry: u8;
        // SAFETY: the caller's.
        unsafe {
            asm!(
                "sfence",
                "enqcmd {portal}, [{descriptor}]",
                "setz {retry}",
                portal = in(reg) portal,
                descriptor = in(reg) descriptor,
                retry = out(reg_byte) retry,
                options(nostack),
            );
        }
        retry != 0
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod instruction {
    //! Not reached: no work queue is opened on such a CPU.

    use super::Descriptor;

    pub(super) unsafe fn movdir64b(_: *mut u8, _: &Descriptor) {
        unreachable!("no work queue is opened without MOVDIR64B");
    }

    pub(super) unsafe fn enqcmd(_: *mut u8, _: &Descriptor) -> bool {
        unreachable!("no work queue is opened without ENQCMD");
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use std::arch::global_asm;

    global_asm!(
        ".pushsection .rodata",
        ".globl raceline_dsa_portal_instructions",
        "raceline_dsa_portal_instructions:",
        "movdir64b rax, [rdx]",
        "enqcmd rax, [rdx]",
        ".popsection",
    );

    unsafe extern "C" {
        static raceline_dsa_portal_instructions: [u8; 10];
    }

    /// Intel SDM volume 2: 66 0F 38 F8 /r and F2 0F 38 F8 /r; ModRM 02h is [rdx], register rax.
    #[test]
    fn the_assembler_knows_both_instructions() {
        // SAFETY: ten bytes that the assembly above put there.
        let code = unsafe { raceline_dsa_portal_instructions };
        assert_eq!(code[..5], [0x66, 0x0F, 0x38, 0xF8, 0x02]);
        assert_eq!(code[5..], [0xF2, 0x0F, 0x38, 0xF8, 0x02]);
    }

    fn queue(mode: Mode, path: PathBuf) -> WorkQueue {
        WorkQueue {
            name: "wq0.0".to_owned(),
            path,
            mode,
            depth: 16,
            batch_max: 32,
            transfer_bytes_max: 1 << 20,
            block_on_fault: false,
            cache_control: false,
            numa_node: None,
            missing: Vec::new(),
        }
    }

    /// On any CPU: without the instruction nothing is opened, with it a missing file is named.
    #[test]
    fn a_queue_that_cannot_be_opened_says_why() {
        for mode in [Mode::Dedicated, Mode::Shared] {
            let queue = queue(mode, PathBuf::from("/nonexistent/wq0.0"));
            let error = OpenWorkQueue::open(&queue).expect_err("there is no such file");
            let text = error.to_string();
            if Instruction::of(mode).is_available() {
                assert!(text.contains("/nonexistent/wq0.0"), "{text}");
            } else {
                assert!(text.contains("this CPU does not have it"), "{text}");
                assert!(text.contains(Instruction::of(mode).name()), "{text}");
            }
        }
    }

    /// A memory file stands for the device: what is divided is counted, and given back.
    #[test]
    fn the_room_of_a_dedicated_queue_is_divided() {
        let mut file = tempfile::tempfile().expect("a file");
        io::Write::write_all(&mut file, &[0; PAGE_BYTES]).expect("a page");
        let open = OpenWorkQueue {
            mapping: Arc::new(Mapping::new(file).expect("mapped")),
            queue: queue(Mode::Dedicated, PathBuf::new()),
            room: Arc::new(Mutex::new(Room { free: 16, opened: 0 })),
        };
        let first = open.portal(10).expect("room");
        let second = open.portal(10).expect("room");
        assert_eq!((first.window(), second.window()), (10, 6));
        assert!(matches!(open.portal(1), Err(PortalError::Exhausted { .. })));
        drop(first);
        assert_eq!(open.portal(100).expect("room").window(), 10);
    }

    #[test]
    fn a_page_is_used_at_all_its_places() {
        let mut file = tempfile::tempfile().expect("a file");
        io::Write::write_all(&mut file, &[0; PAGE_BYTES]).expect("a page");
        let mapping = Arc::new(Mapping::new(file).expect("mapped"));
        let start = mapping.page.as_ptr().addr();
        let mut page = Page { mapping, offset: PAGE_BYTES - 64 };
        assert_eq!(page.next().addr(), start + PAGE_BYTES - 64);
        assert_eq!(page.next().addr(), start);
        assert_eq!(page.next().addr(), start + 64);
    }
}
