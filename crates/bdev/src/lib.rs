//! Block devices: RAM, null, files, block devices, and wrappers that delay or fail.
//!
//! A [`Bdev`] describes a device and is shared by all cores; a [`Channel`] is one core's way to
//! it. Requests complete in any order, at once or later, into a list of [`Done`].
//!
//! [`open`] makes a device from a [`DeviceSpec`], the device grammar of the command line:
//!
//! ```
//! let identity = raceline_bdev::Identity::of_this_machine();
//! let device = raceline_bdev::open(&"ram:1M,bs=4096".parse()?, &identity)?;
//! assert_eq!(device.info().block_count, 256);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod block;
mod claim;
mod confined;
mod delay;
mod disk;
mod disk_channel;
mod drive;
mod error;
mod extent;
mod fault;
mod file;
mod histogram;
mod identity;
mod inject;
mod latency;
mod limits;
mod named;
mod null;
mod op_kind;
mod open;
mod part;
mod probe;
mod ram;
mod served;
mod size;
mod slots;
mod spec;
mod stats;
mod uncorrectable;
mod wrap;

use std::sync::Arc;

use raceline_reactor::send::Payload;
use raceline_reactor::{Completion, Context, IoBuf, SharedBuf};

pub use confined::confine_to;
pub use delay::{DelayBdev, DelayControl, DelayError, Delays, Latency};
pub use drive::{Drive, DriveError, DriveNamespace, Drives, IoPath, PciAddress, PciAddressError};
pub use error::{ErrorBdev, ErrorControl, ErrorRule, RuleError};
pub use extent::{Sought, found_parts};
pub use histogram::{DEFAULT_GRANULARITY, Histogram, HistogramShape};
pub use identity::Identity;
pub use inject::{InjectBdev, InjectControl, Injected, Injection};
pub use latency::{FIRST_BORDER, LATENCY_BUCKETS, Latencies, UNITS_PER_SECOND, latency_bucket};
pub use named::NamedBdev;
pub use null::NullBdev;
pub use op_kind::OpKind;
pub use open::{OpenError, open};
pub use part::PartBdev;
pub use ram::RamBdev;
pub use served::{DiskCounters, DiskFigures, DiskStats, DiskTotals};
pub use size::{ByteSize, SizeError};
pub use spec::{Backing, BlockSize, DeviceSpec, MAX_PHYSICAL_BLOCK_BYTES, SpecError, SpecProblem};
pub use stats::{DeviceStats, IoTotals, KindTotals, Meter};
pub use uncorrectable::UncorrectableBdev;
pub use wrap::{MAX_WRAPPER_LEVELS, WRAPPER_INDEX};

/// What a device is and can do. Only its size changes while it is open ([`Bdev::rescan`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BdevInfo {
    /// The name people gave it, e.g. `ram:64M` or `/srv/disk.img`.
    pub name: String,
    /// Logical block size in bytes, 512 or 4096.
    pub block_size: u32,
    /// Capacity in blocks.
    pub block_count: u64,
    /// Physical block size in bytes, >= `block_size`: a hint for alignment and speed, never a
    /// promise of atomicity.
    pub physical_block_size: u32,
    /// Reads and writes that do not cross a multiple of this many bytes are faster; 0: it makes no
    /// difference.
    pub io_boundary_bytes: u64,
    /// Completed writes may be lost in a power cut until a flush.
    pub volatile_write_cache: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// Deallocate is supported; deallocated blocks read zeroes if also `deallocate_zeroes`.
    pub deallocate: bool,
    /// Deallocated blocks are known to read zeroes.
    pub deallocate_zeroes: bool,
    /// [`Op::Copy`] may work: a device says only when asked whether it can copy a range.
    pub copies: bool,
    /// [`Op::Find`] finds [`Sought::Data`].
    pub knows_holes: bool,
    /// [`Op::WriteUncorrectable`] works, and [`Op::Find`] finds [`Sought::Uncorrectable`].
    pub uncorrectable: bool,
    /// Reads need no buffer: the device gives its own memory as payload.
    pub reads_in_place: bool,
    /// Reads into a buffer and writes are copies that the submitting core makes itself.
    pub copies_data: bool,
    /// The NUMA node that the device is attached to, or whose memory it prefers; `None` where that is not
    /// known.
    pub numa_node: Option<u32>,
    /// Stable identity of the device.
    pub uuid: [u8; 16],
}

/// What to do; offsets and lengths are in bytes, multiples of the block size and inside the
/// device (the caller has checked).
#[derive(Debug)]
pub enum Op {
    /// Reads `len` bytes: into `buf` if given, else (only with `reads_in_place`) in place.
    Read {
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: usize,
        /// Where the data must land; its length is `len`.
        buf: Option<IoBuf>,
    },
    /// Writes all of `data`.
    Write {
        /// First byte.
        offset: u64,
        /// The data; comes back in [`Done::payload`] as `Payload::Shared`.
        data: SharedBuf,
        /// On stable media before it completes.
        fua: bool,
    },
    /// Reads `len` bytes into the pages of a request of the kernel, which this core's queue of a ublk disk has. Only with
    /// [`Bdev::takes_pages`]. `NotSupported` where these pages, or this range, cannot be read so: then the caller reads into
    /// a buffer.
    ReadPages {
        /// First byte.
        offset: u64,
        /// How many bytes, from the first one of the request on.
        len: usize,
        /// The request.
        tag: u16,
    },
    /// Writes `len` bytes out of the pages of a request of the kernel, as [`Op::ReadPages`] reads. After `NotSupported`,
    /// a part of the range may be written.
    WritePages {
        /// First byte.
        offset: u64,
        /// How many bytes, from the first one of the request on.
        len: usize,
        /// The request.
        tag: u16,
        /// On stable media before it completes.
        fua: bool,
    },
    /// Everything completed before is on stable media when this completes.
    Flush,
    /// Zeroes a range.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// The device may deallocate instead, if the range then reads zeroes.
        deallocate: bool,
        /// On stable media before it completes.
        fua: bool,
    },
    /// Releases a range.
    Deallocate {
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// Copies a range to another place of the device; the ranges do not overlap. `NotSupported` where the device
    /// cannot: then nothing says what the target range holds, and the caller reads and writes.
    Copy {
        /// First byte that is read.
        from: u64,
        /// First byte that is written.
        to: u64,
        /// How many bytes.
        len: u64,
        /// On stable media before it completes.
        fua: bool,
    },
    /// Looks which parts of a range are what is sought; [`found_parts`] reads them from [`Done::payload`].
    Find {
        /// What is sought.
        sought: Sought,
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// Ends when it has found this many parts.
        most: usize,
    },
    /// Makes a range unreadable until it is written again.
    WriteUncorrectable {
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
}

impl Op {
    /// How many bytes of the device it is about.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match *self {
            Self::Read { len, .. } | Self::ReadPages { len, .. } | Self::WritePages { len, .. } => {
                len as u64
            }
            Self::Write { ref data, .. } => data.len() as u64,
            Self::WriteZeroes { len, .. }
            | Self::Deallocate { len, .. }
            | Self::Copy { len, .. }
            | Self::WriteUncorrectable { len, .. } => len,
            Self::Flush | Self::Find { .. } => 0,
        }
    }
}

/// One request to a channel.
#[derive(Debug)]
pub struct Request {
    /// The caller's name for it.
    pub tag: u64,
    /// What to do.
    pub op: Op,
}

/// One finished request.
#[derive(Debug)]
pub struct Done {
    /// The tag of the request.
    pub tag: u64,
    /// Whether it worked.
    pub result: Result<(), BdevError>,
    /// The data of a read; the buffer of a write or of a failed read comes back.
    pub payload: Option<Payload>,
}

/// Why a request failed, in terms a protocol can map to its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BdevError {
    /// The medium failed to read (EIO).
    ReadFault,
    /// The medium failed to write, flush or deallocate (EIO); after a failed flush every later
    /// flush and durable write of the namespace fails until an operator acts.
    WriteFault,
    /// No space left for the data (ENOSPC, EDQUOT, EFBIG).
    NoSpace,
    /// The device refuses writes.
    ReadOnly,
    /// The device is gone (ENODEV, ENXIO, a remote that cannot be reached).
    Gone,
    /// A write whose fate is unknown: it may or may not have reached the medium.
    Unknown,
    /// The path to the device failed before the request had any effect; it may be retried.
    Transient,
    /// The operation is not supported.
    NotSupported,
    /// Anything else that went wrong inside.
    Internal,
    /// A status that a test wants the host to see.
    Status {
        /// Status Code Type (NVMe Base 2.1, 4.2.3).
        sct: u8,
        /// Status Code.
        sc: u8,
    },
}

/// A block device, shared by all cores.
pub trait Bdev: Send + Sync {
    /// What it is and can do.
    fn info(&self) -> BdevInfo;

    /// Opens one core's way to it. `owner` is the [`raceline_reactor::Token::owner`] under which
    /// this channel starts its operations: completions with it must be given back to it. Their
    /// indexes leave [`WRAPPER_INDEX`] clear.
    ///
    /// # Errors
    /// When the device cannot be used from this core.
    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> std::io::Result<Box<dyn Channel>>;

    /// Whether its channels know [`Op::ReadPages`] and [`Op::WritePages`]. Never changes.
    fn takes_pages(&self) -> bool {
        false
    }

    /// True since a flush or durable write failed: acknowledged data may be lost, and every
    /// flush and durable write fails until [`Bdev::reset_write_fault`].
    fn write_fault(&self) -> bool {
        false
    }

    /// An operator has made good what was lost: flushes are tried again.
    fn reset_write_fault(&self) {}

    /// Looks how large the device is now, which [`Bdev::info`] then tells. May block.
    ///
    /// # Errors
    /// When the size cannot be seen, or has become smaller: what uses the device would lose data.
    fn rescan(&self) -> std::io::Result<()> {
        Ok(())
    }

    /// Gives the device another size, which [`Bdev::info`] tells from now on.
    ///
    /// # Errors
    /// `NotSupported` by devices whose size is not ours to choose.
    fn resize(&self, _block_count: u64) -> Result<(), BdevError> {
        Err(BdevError::NotSupported)
    }

    /// The device's counters, if it has any: the code that opens a channel counts with a [`Meter`].
    fn stats(&self) -> Option<&Arc<DeviceStats>> {
        None
    }

    /// Wrappers in this device that have timers of their own, see [`WRAPPER_INDEX`].
    fn wrapper_levels(&self) -> u32 {
        0
    }
}

/// One core's way to a device.
pub trait Channel {
    /// Starts a request. It may complete at once: then it is in `done` on return.
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>);

    /// Whether [`Channel::read_now`] works: this device always has its data at hand. Never changes
    /// while the channel is open.
    fn reads_now(&self) -> bool {
        false
    }

    /// Reads at once, without a buffer: gives what a request would give if it completed at once. `None` by
    /// devices that have to be asked, see [`Channel::reads_now`].
    fn read_now(&mut self, _offset: u64, _len: usize) -> Option<Payload> {
        None
    }

    /// Says that a range, which may be outside of the device, will probably be read soon.
    fn prefetch(&mut self, _offset: u64, _len: usize) {}

    /// Whether [`Channel::write_now`] works: writes to this device never wait.
    fn writes_now(&self) -> bool {
        false
    }

    /// Writes `data` at once, straight from where they lie, so that the caller needs no buffer that
    /// outlives the call. Other threads may rely on the write once they learn of it by what this thread
    /// sends through the reactor, or by a message of the reactor's.
    ///
    /// # Errors
    /// As a write that was submitted; `NotSupported` by devices that cannot.
    fn write_now(&mut self, _offset: u64, _data: &[u8]) -> Result<(), BdevError> {
        Err(BdevError::NotSupported)
    }

    /// Takes a completion of an operation that this channel started.
    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    );

    /// Called once per turn of the loop, after `submit`s: send what is ready to go.
    fn flush(&mut self, _cx: &mut Context<'_>, _done: &mut Vec<Done>) {}

    /// Lets go of files and sockets; called when no request is in flight.
    fn close(&mut self, cx: &mut Context<'_>);
}

/// A device that can be shared.
pub type SharedBdev = Arc<dyn Bdev>;
