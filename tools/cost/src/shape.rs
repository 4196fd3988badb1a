//! The kinds of I/O whose cost is counted.

use std::str::FromStr;

use anyhow::{Error, bail};

/// The end of the connection whose instructions are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Target,
    Host,
}

/// The protocol between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    NvmeTcp,
    Iscsi,
    NvmeRdma,
}

/// The I/O that the host repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Its name, without the side.
    pub(crate) name: &'static str,
    /// A write; otherwise a read.
    pub(crate) is_write: bool,
    /// Bytes of one I/O.
    pub(crate) bytes: usize,
    /// I/Os outstanding. All capsules of a round come in one receive.
    pub(crate) depth: usize,
    /// I/Os that are counted: a multiple of the depth.
    pub(crate) count: usize,
    /// With data digests, which valgrind's processor computes without AVX-512.
    pub(crate) data_digest: bool,
    /// The device has a meter, as every device of `raceline serve` does.
    pub(crate) counted: bool,
    /// The device needs a request for each I/O, as a file does.
    pub(crate) asked: bool,
}

impl Shape {
    const fn new(name: &'static str, bytes: usize, depth: usize, count: usize) -> Self {
        Self {
            name,
            is_write: false,
            bytes,
            depth,
            count,
            data_digest: false,
            counted: false,
            asked: false,
        }
    }

    const fn write(self) -> Self {
        Self { is_write: true, ..self }
    }

    const fn digest(self) -> Self {
        Self { data_digest: true, ..self }
    }

    const fn counted(self) -> Self {
        Self { counted: true, ..self }
    }

    const fn asked(self) -> Self {
        Self { asked: true, ..self }
    }
}

/// All shapes. Writes up to 8 KiB go in the capsule, larger ones by R2T.
pub(crate) const SHAPES: [Shape; 11] = [
    Shape::new("4k-read-1", 4 << 10, 1, 1024),
    Shape::new("4k-read-32", 4 << 10, 32, 4096),
    Shape::new("4k-read-32-counted", 4 << 10, 32, 4096).counted(),
    Shape::new("4k-read-32-asked", 4 << 10, 32, 4096).asked(),
    Shape::new("4k-read-32-digest", 4 << 10, 32, 4096).digest(),
    Shape::new("4k-write-1", 4 << 10, 1, 1024).write(),
    Shape::new("4k-write-32", 4 << 10, 32, 4096).write(),
    Shape::new("4k-write-32-counted", 4 << 10, 32, 4096).write().counted(),
    Shape::new("4k-write-32-digest", 4 << 10, 32, 4096).write().digest(),
    Shape::new("16k-write-r2t-8", 16 << 10, 8, 1024).write(),
    Shape::new("128k-read-8", 128 << 10, 8, 256),
];

/// The shapes that are counted over iSCSI too.
const ISCSI_SHAPES: [&str; 5] =
    ["4k-read-1", "4k-read-32", "4k-write-1", "4k-write-32", "128k-read-8"];

/// The shapes that are counted over RDMA, on the target. The last one goes by RDMA READ.
const RDMA_SHAPES: [&str; 6] =
    ["4k-read-1", "4k-read-32", "4k-write-1", "4k-write-32", "128k-read-8", "16k-write-r2t-8"];

/// One shape over one protocol, counted on one side: `target-4k-read-1`, `target-iscsi-4k-read-1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) side: Side,
    pub(crate) protocol: Protocol,
    pub(crate) shape: Shape,
}

impl Case {
    /// All cases: NVMe/TCP's, iSCSI's, NVMe/RDMA's, and of each the target's first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let of = |protocol| {
            let sides = [Side::Target, Side::Host].into_iter();
            sides.flat_map(move |side| {
                SHAPES.into_iter().map(move |shape| Self { side, protocol, shape })
            })
        };
        let all = [Protocol::NvmeTcp, Protocol::Iscsi, Protocol::NvmeRdma].into_iter();
        all.flat_map(of).filter(|case| case.is_counted())
    }

    /// A host does not see the kind of the device.
    fn is_counted(self) -> bool {
        let is_special = self.shape.counted || self.shape.asked;
        match self.protocol {
            Protocol::NvmeTcp => self.side == Side::Target || !is_special,
            Protocol::Iscsi => ISCSI_SHAPES.contains(&self.shape.name),
            Protocol::NvmeRdma => {
                self.side == Side::Target && RDMA_SHAPES.contains(&self.shape.name)
            }
        }
    }

    pub(crate) fn name(self) -> String {
        let side = match self.side {
            Side::Target => "target",
            Side::Host => "host",
        };
        let protocol = match self.protocol {
            Protocol::NvmeTcp => "",
            Protocol::Iscsi => "iscsi-",
            Protocol::NvmeRdma => "rdma-",
        };
        format!("{side}-{protocol}{}", self.shape.name)
    }
}

impl FromStr for Case {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        match Self::all().find(|case| case.name() == word) {
            Some(case) => Ok(case),
            None => bail!("there is no case '{word}' (see --list)"),
        }
    }
}
