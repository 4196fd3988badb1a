//! Commands of fixed size to a drive, and its reset, through the kernel's character devices.
//!
//! Only commands with a fixed amount of data are offered: the drive, which writes by itself, writes no
//! more than the buffer has.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

/// Identify (opcode 06h) and Get Log Page (02h) of the admin queue.
const IDENTIFY: u8 = 0x06;
const GET_LOG_PAGE: u8 = 0x02;
/// CNS 00h: a namespace; 01h: the controller.
const CNS_NAMESPACE: u32 = 0x00;
const CNS_CONTROLLER: u32 = 0x01;
/// Read (02h) of the NVM command set.
const READ: u8 = 0x02;
/// LID 02h: SMART / Health Information.
const LID_SMART: u32 = 0x02;
/// The NSID that means the whole controller.
const ALL_NAMESPACES: u32 = u32::MAX;
/// Sizes of what these two return.
const IDENTIFY_BYTES: usize = 4096;
const SMART_BYTES: usize = 512;

/// The group of the driver's requests, and their numbers.
const GROUP: u8 = b'N';
const ADMIN_COMMAND: u8 = 0x41;
const IO_COMMAND: u8 = 0x43;
const RESET: u8 = 0x44;

/// Identify Controller.
pub(super) fn identify_controller(file: &File) -> io::Result<Vec<u8>> {
    let command = Command { opcode: IDENTIFY, cdw10: CNS_CONTROLLER, ..Command::default() };
    send(file, ADMIN_COMMAND, command, vec![0; IDENTIFY_BYTES])
}

/// Identify Namespace.
pub(super) fn identify_namespace(file: &File, nsid: u32) -> io::Result<Vec<u8>> {
    let command = Command { opcode: IDENTIFY, nsid, cdw10: CNS_NAMESPACE, ..Command::default() };
    send(file, ADMIN_COMMAND, command, vec![0; IDENTIFY_BYTES])
}

/// Reads the first block of a namespace without metadata, to see whether that is allowed.
pub(super) fn read_first_block(file: &File, nsid: u32, block_size: usize) -> io::Result<()> {
    let command = Command { opcode: READ, nsid, ..Command::default() };
    send(file, IO_COMMAND, command, vec![0; block_size]).map(drop)
}

/// The health log of the controller.
pub(super) fn smart_log(file: &File) -> io::Result<Vec<u8>> {
    // NUMDL: dwords, 0's based, in the upper half.
    let dwords = u32::try_from(SMART_BYTES / 4 - 1).map_err(io::Error::other)?;
    let cdw10 = dwords << 16 | LID_SMART;
    let command =
        Command { opcode: GET_LOG_PAGE, nsid: ALL_NAMESPACES, cdw10, ..Command::default() };
    send(file, ADMIN_COMMAND, command, vec![0; SMART_BYTES])
}

/// Resets the controller and waits for it.
pub(super) fn reset(file: &File) -> io::Result<()> {
    // SAFETY: this request has no argument and touches no memory of the process.
    unsafe {
        let request = rustix::ioctl::NoArg::<{ opcode::none(GROUP, RESET) }>::new();
        rustix::ioctl::ioctl(file, request)?;
    }
    Ok(())
}

/// What the kernel takes for NVME_IOCTL_ADMIN_CMD and NVME_IOCTL_IO_CMD: a command without what it fills in itself.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Command {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<Command>() == 72);

/// Sends a command whose data are exactly those of `data`.
fn send(file: &File, number: u8, mut command: Command, mut data: Vec<u8>) -> io::Result<Vec<u8>> {
    command.address = data.as_mut_ptr().expose_provenance() as u64;
    command.data_len = u32::try_from(data.len()).map_err(io::Error::other)?;
    // SAFETY: `command` says where `data` is and how long; both live until the call returns, and
    // nobody else looks at them. The callers' commands transfer as many bytes as `data` has.
    let status = unsafe { rustix::ioctl::ioctl(file, Request { number, command: &mut command }) }?;
    if status != 0 {
        return Err(io::Error::other(format!("the drive answers with NVMe status {status:#x}")));
    }
    Ok(data)
}

/// The request. Its result is an NVMe status, 0 for success, or an error of the kernel.
struct Request<'a> {
    number: u8,
    command: &'a mut Command,
}

// SAFETY: the pointer is to a live command of the size that the opcode says, which the kernel may
// change; the output is the system call's return value.
unsafe impl Ioctl for Request<'_> {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Command>(GROUP, self.number)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.command).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _command: *mut c_void) -> rustix::io::Result<i32> {
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_kernels_numbers() {
        // As include/uapi/linux/nvme_ioctl.h makes them of 'N', the number and 72 bytes.
        assert_eq!(u64::from(opcode::read_write::<Command>(GROUP, ADMIN_COMMAND)), 0xc048_4e41);
        assert_eq!(u64::from(opcode::read_write::<Command>(GROUP, IO_COMMAND)), 0xc048_4e43);
        assert_eq!(u64::from(opcode::none(GROUP, RESET)), 0x4e44);
    }

    #[test]
    fn another_file_is_no_drive() {
        let file = File::open("/dev/null").unwrap();
        for error in [reset(&file).unwrap_err(), smart_log(&file).unwrap_err()] {
            assert_eq!(error.raw_os_error(), Some(libc::ENOTTY), "{error}");
        }
    }
}
