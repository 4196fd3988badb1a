//! The workload on a file or a block device, by an io_uring of its own, with or without polling the device.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use io_uring::{IoUring, opcode, types};
use raceline_reactor::{HugePages, PageBuf};
use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;

use super::{LocalError, LocalJob, offset, outcome};
use crate::job::{Issue, JobResult, QueueJob};
use crate::random::Random;

/// Most commands in flight.
const DEPTH_MAX: u16 = 4096;
/// Turns of the loop after which it is asked whether to stop.
const STOP_TURNS: u32 = 1024;

/// Why a ring cannot drive a file.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The file cannot be opened.
    #[error("cannot open {} past the page cache (O_DIRECT): {error}{}", path.display(), busy(error))]
    Open {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The kernel gives no ring or no memory.
    #[error("cannot make an io_uring for {}: {error}", path.display())]
    Ring {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// The file system or the device has no polled completions.
    #[error(
        "{} has no polled completions (IOPOLL): they take a file system such as ext4 or xfs on an NVMe drive with poll \
         queues (nvme.poll_queues=N), or such a drive itself", path.display()
    )]
    NoPolling {
        /// The file.
        path: PathBuf,
    },
}

fn busy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ResourceBusy => ": it is mounted, or another program has it",
        _ => "",
    }
}

/// A file with its ring.
pub struct Ring {
    path: PathBuf,
    file: File,
    bytes: u64,
    ring: IoUring,
    polls: bool,
    /// The memory of each slot. It is freed after the ring.
    memory: Vec<PageBuf>,
    io_bytes: usize,
}

impl Ring {
    /// Opens a file for jobs like this one; with `polls`, completions are polled for.
    ///
    /// # Errors
    /// When the file, the ring or the memory is not available. A file without polled completions is found by the first
    /// command.
    pub fn open(path: &Path, polls: bool, job: &LocalJob) -> Result<Self, LocalError> {
        let fail = |error| RingError::Open { path: path.to_owned(), error };
        let writes = job.mode.read_percent(job.mixed_read_percent) < 100;
        let is_block = std::fs::metadata(path).map_err(fail)?.file_type().is_block_device();
        // A block device that is mounted refuses to be opened so.
        let exclusive = if is_block { OFlags::EXCL } else { OFlags::empty() };
        let flags = (OFlags::DIRECT | exclusive).bits().cast_signed();
        let file = OpenOptions::new().read(true).write(writes).custom_flags(flags).open(path);
        let file = file.map_err(fail)?;
        let bytes = seek(&file, SeekFrom::End(0)).map_err(|error| fail(error.into()))?;
        let fail = |error| RingError::Ring { path: path.to_owned(), error };
        let entries = u32::from(job.depth.clamp(1, DEPTH_MAX));
        let mut builder = IoUring::builder();
        if polls {
            builder.setup_iopoll();
        }
        let ring = builder.build(entries).map_err(fail)?;
        let io_bytes = job.io_bytes as usize;
        let mut random = Random::new(job.seed);
        let slot = |_| {
            let mut slot = PageBuf::new(io_bytes, HugePages::None)?;
            random.fill(&mut slot);
            Ok(slot)
        };
        let memory = (0..job.depth).map(slot).collect::<io::Result<_>>().map_err(fail)?;
        Ok(Self { path: path.to_owned(), file, bytes, ring, polls, memory, io_bytes })
    }

    /// One run on the calling thread, which polls meanwhile; it ends early when `stop` gives true.
    ///
    /// # Errors
    /// When the job has another depth or size than the ring was opened for, does not fit the file, or a command fails.
    pub fn run(
        &mut self,
        job: &LocalJob,
        stop: &dyn Fn() -> bool,
    ) -> Result<JobResult, LocalError> {
        if job.io_bytes as usize != self.io_bytes || usize::from(job.depth) > self.memory.len() {
            return Err(LocalError::Generator("was opened for another job".to_owned()));
        }
        let mut queue_job = job.queue_job(self.bytes, Instant::now())?;
        let mut in_flight: Vec<Option<Issue>> = vec![None; usize::from(job.depth)];
        let driven = self.drive(&mut queue_job, &mut in_flight, stop);
        // The kernel has the slots' memory until the commands have ended.
        while in_flight.iter().any(Option::is_some) {
            if let Err(error) = self.enter(1) {
                // The kernel may still use the slots' memory, which must not be freed then; the ring is of no more use.
                std::mem::forget(std::mem::take(&mut self.memory));
                return Err(error);
            }
            let now = Instant::now();
            for (slot, _) in self.completions() {
                in_flight[slot] = None;
                queue_job.abandon(now, "the run has ended".to_owned());
            }
        }
        driven?;
        outcome(queue_job.into_result())
    }

    fn drive(
        &mut self,
        job: &mut QueueJob,
        in_flight: &mut [Option<Issue>],
        stop: &dyn Fn() -> bool,
    ) -> Result<(), LocalError> {
        let mut turns = 0_u32;
        while !job.is_finished() {
            turns = turns.wrapping_add(1);
            let now = Instant::now();
            if turns.is_multiple_of(STOP_TURNS) && stop() {
                job.stop(now);
            }
            let mut issued = false;
            while let Some(issue) = job.poll_issue(now) {
                self.push(issue);
                in_flight[usize::from(issue.slot)] = Some(issue);
                issued = true;
            }
            // A ring that polls asks the device in this call; without polling, completions come by themselves.
            if self.polls && job.in_flight() > 0 {
                self.enter(1)?;
            } else if issued {
                self.enter(0)?;
            }
            let now = Instant::now();
            let mut failed = Ok(());
            for (slot, code) in self.completions() {
                let Some(issue) = in_flight[slot].take() else { continue };
                failed = failed.and(self.complete(job, issue, code, now));
            }
            failed?;
        }
        Ok(())
    }

    fn complete(
        &self,
        job: &mut QueueJob,
        issue: Issue,
        code: i32,
        now: Instant,
    ) -> Result<(), LocalError> {
        let whole = i32::try_from(self.io_bytes).unwrap_or(i32::MAX);
        match code {
            code if code == whole && issue.write => job.handle_written(now, issue.slot),
            code if code == whole => job.handle_read(now, issue.slot, &[]),
            code if code >= 0 => {
                let why = format!("{code} of {whole} bytes at {}", offset(issue.slba));
                job.handle_failed(now, issue.slot, why);
            }
            code if self.polls && -code == Errno::OPNOTSUPP.raw_os_error() => {
                job.handle_failed(now, issue.slot, String::new());
                return Err(RingError::NoPolling { path: self.path.clone() }.into());
            }
            code => {
                let error = io::Error::from_raw_os_error(-code);
                job.handle_failed(now, issue.slot, format!("{error} at {}", offset(issue.slba)));
            }
        }
        Ok(())
    }

    /// Puts a command into the ring, which has an entry for each slot.
    fn push(&mut self, issue: Issue) {
        let fd = types::Fd(self.file.as_raw_fd());
        let len = u32::try_from(self.io_bytes).unwrap_or(u32::MAX);
        let slot = self.memory[usize::from(issue.slot)].as_mut_ptr();
        let at = offset(issue.slba);
        let entry = if issue.write {
            opcode::Write::new(fd, slot, len).offset(at).build()
        } else {
            opcode::Read::new(fd, slot, len).offset(at).build()
        };
        let entry = entry.user_data(issue.slot.into());
        // SAFETY: the slot's memory has `len` bytes. No one reads or writes it while the ring has a command of this
        // slot, and it is freed only after `run` has waited for all commands. `self.file` stays open as long.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        debug_assert!(pushed.is_ok(), "the ring has an entry for each slot");
    }

    /// Slots and results of what has ended.
    fn completions(&mut self) -> Vec<(usize, i32)> {
        let ended = |entry: io_uring::cqueue::Entry| {
            Some((usize::try_from(entry.user_data()).ok()?, entry.result()))
        };
        self.ring.completion().filter_map(ended).collect()
    }

    /// Submits what was pushed, and waits for this many completions.
    fn enter(&self, completions: usize) -> Result<(), LocalError> {
        match self.ring.submit_and_wait(completions) {
            Ok(_) => Ok(()),
            // A signal has come: the next turn goes on.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(RingError::Ring { path: self.path.clone(), error }.into()),
        }
    }
}
