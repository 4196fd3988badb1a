//! File operations as blocking system calls, for back ends that have nothing better.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use crate::io::file_call::FileCall;
use crate::io::{AllocateMode, Outcome};
use crate::memory::buffer::{IoBuf, SharedBuf};

/// A file operation with the memory it owns.
pub(crate) enum FileOp {
    Read { buf: IoBuf, offset: u64 },
    Write { buf: SharedBuf, offset: u64, durable: bool },
    Sync,
    Allocate { mode: AllocateMode, offset: u64, len: u64 },
    Call(Box<FileCall>),
}

impl FileOp {
    /// What its owner gets: the result, and the memory back.
    pub(crate) fn outcome(self, result: io::Result<()>) -> Outcome {
        match self {
            FileOp::Read { buf, .. } => Outcome::Read(result, buf),
            FileOp::Write { buf, .. } => Outcome::Written(result, buf),
            FileOp::Sync | FileOp::Allocate { .. } => Outcome::Synced(result),
            FileOp::Call(call) => Outcome::Called(result, call),
        }
    }

    /// Makes the system calls, and blocks.
    pub(crate) fn run(&mut self, file: &File) -> io::Result<()> {
        // SAFETY: the operation is borrowed across the call.
        unsafe { self.call().run(file) }
    }

    /// The operation with its memory by address, for another thread.
    pub(crate) fn call(&mut self) -> Call {
        match self {
            FileOp::Read { buf, offset } => {
                Call::Read { to: buf.as_mut_ptr(), len: buf.len(), offset: *offset }
            }
            FileOp::Write { buf, offset, durable } => Call::Write {
                from: buf.as_ptr(),
                len: buf.len(),
                offset: *offset,
                durable: *durable,
            },
            FileOp::Sync => Call::Sync,
            FileOp::Allocate { mode, offset, len } => {
                Call::Allocate { mode: *mode, offset: *offset, len: *len }
            }
            FileOp::Call(call) => Call::Other(&raw mut **call),
        }
    }
}

/// A file operation whose memory is named by address.
pub(crate) enum Call {
    Read { to: *mut u8, len: usize, offset: u64 },
    Write { from: *const u8, len: usize, offset: u64, durable: bool },
    Sync,
    Allocate { mode: AllocateMode, offset: u64, len: u64 },
    Other(*mut FileCall),
}

// SAFETY: the pointers name memory of a `FileOp`. The maker of the call keeps that memory, and does
// not touch it, until the call has been made.
unsafe impl Send for Call {}

impl Call {
    /// Makes the system calls, and blocks.
    ///
    /// # Safety
    /// The [`FileOp`] that this came from must be alive, and nothing else may use its memory (or, for a
    /// write, change it).
    pub(crate) unsafe fn run(&self, file: &File) -> io::Result<()> {
        match *self {
            Call::Read { to, len, offset } => {
                // SAFETY: the caller's promise.
                let buf = unsafe { std::slice::from_raw_parts_mut(to, len) };
                file.read_exact_at(buf, offset)
            }
            Call::Write { from, len, offset, durable } => {
                // SAFETY: the caller's promise.
                let buf = unsafe { std::slice::from_raw_parts(from, len) };
                if durable {
                    write_durably(file, buf, offset)
                } else {
                    file.write_all_at(buf, offset)
                }
            }
            Call::Sync => file.sync_data(),
            Call::Allocate { mode, offset, len } => allocate(file, mode, offset, len),
            Call::Other(call) => {
                // SAFETY: the caller's promise.
                let call = unsafe { &mut *call };
                call.run(file)
            }
        }
    }
}

fn write_durably(file: &File, buf: &[u8], offset: u64) -> io::Result<()> {
    let mut written = 0;
    while written < buf.len() {
        let rest = &buf[written..];
        let iovec = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        let at = file_offset(offset + written as u64)?;
        // SAFETY: the vector names memory that outlives the call, which only reads it.
        let result =
            unsafe { libc::pwritev2(file.as_raw_fd(), &raw const iovec, 1, at, libc::RWF_DSYNC) };
        match usize::try_from(result) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(_) => retry_if_interrupted()?,
        }
    }
    Ok(())
}

fn allocate(file: &File, mode: AllocateMode, offset: u64, len: u64) -> io::Result<()> {
    let (offset, len) = (file_offset(offset)?, file_offset(len)?);
    loop {
        // SAFETY: takes no pointers.
        if unsafe { libc::fallocate(file.as_raw_fd(), mode.flags(), offset, len) } == 0 {
            return Ok(());
        }
        retry_if_interrupted()?;
    }
}

/// The error of the last call, unless a signal is to blame.
fn retry_if_interrupted() -> io::Result<()> {
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

fn file_offset(value: u64) -> io::Result<i64> {
    i64::try_from(value).map_err(|_| io::ErrorKind::InvalidInput.into())
}
