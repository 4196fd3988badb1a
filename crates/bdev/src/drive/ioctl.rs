//! Commands of fixed size to a drive, and its reset, through the kernel's character devices.
//!
//! Only commands with a fixed amount of data are offered: the drive, which writes by itself, writes no
//! more than the buffer has.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;

use raceline_proto::nvme::command::{self, BlockRange};
use raceline_proto::nvme::identify::{IDENTIFY_LEN, cns};
use raceline_proto::nvme::log::{SmartLog, lid};
use raceline_proto::nvme::{NamespaceId, PassthroughCommand, Sqe};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, opcode};

/// The group of the driver's requests, and their numbers.
const GROUP: u8 = b'N';
const ADMIN_COMMAND: u8 = 0x41;
const IO_COMMAND: u8 = 0x43;
const RESET: u8 = 0x44;

/// Identify Controller.
pub(super) fn identify_controller(file: &File) -> io::Result<Vec<u8>> {
    identify(file, cns::CONTROLLER, 0)
}

/// Identify Namespace.
pub(super) fn identify_namespace(file: &File, nsid: u32) -> io::Result<Vec<u8>> {
    identify(file, cns::NAMESPACE, nsid)
}

fn identify(file: &File, cns: u8, nsid: u32) -> io::Result<Vec<u8>> {
    let sqe = command::identify(cns, NamespaceId(nsid));
    send(file, ADMIN_COMMAND, &sqe, vec![0; IDENTIFY_LEN])
}

/// Reads the first block of a namespace without metadata, to see whether that is allowed.
pub(super) fn read_first_block(file: &File, nsid: u32, block_size: usize) -> io::Result<()> {
    let first = BlockRange::new(0, 1).ok_or(io::ErrorKind::InvalidInput)?;
    let sqe = command::read(NamespaceId(nsid), first);
    send(file, IO_COMMAND, &sqe, vec![0; block_size]).map(drop)
}

/// The health log of the controller.
pub(super) fn smart_log(file: &File) -> io::Result<Vec<u8>> {
    let len = u32::try_from(SmartLog::LEN).map_err(io::Error::other)?;
    let sqe = command::get_log_page(lid::SMART, NamespaceId::BROADCAST, 0, len, false);
    send(file, ADMIN_COMMAND, &sqe, vec![0; SmartLog::LEN])
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

/// Sends a command whose data are exactly those of `data`.
fn send(file: &File, number: u8, sqe: &Sqe, mut data: Vec<u8>) -> io::Result<Vec<u8>> {
    let address = data.as_mut_ptr().expose_provenance() as u64;
    let len = u32::try_from(data.len()).map_err(io::Error::other)?;
    let mut command = PassthroughCommand::new(sqe).with_data(address, len);
    // SAFETY: `command` says where `data` is and how long; both live until the call returns, and no other
    // code accesses them. The callers' commands transfer as many bytes as `data` has.
    let status = unsafe { rustix::ioctl::ioctl(file, Request { number, command: &mut command }) }?;
    if status != 0 {
        return Err(io::Error::other(format!("the drive answers with NVMe status {status:#x}")));
    }
    Ok(data)
}

/// The request. Its result is an NVMe status, 0 for success, or an error of the kernel.
struct Request<'a> {
    number: u8,
    command: &'a mut PassthroughCommand,
}

// SAFETY: the pointer is to a live command of the size that the opcode says, which the kernel may
// change; the output is the system call's return value.
unsafe impl Ioctl for Request<'_> {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<PassthroughCommand>(GROUP, self.number)
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
        assert_eq!(
            u64::from(opcode::read_write::<PassthroughCommand>(GROUP, ADMIN_COMMAND)),
            0xc048_4e41
        );
        assert_eq!(
            u64::from(opcode::read_write::<PassthroughCommand>(GROUP, IO_COMMAND)),
            0xc048_4e43
        );
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
