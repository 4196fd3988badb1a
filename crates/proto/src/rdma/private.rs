//! Private data of the connection manager's request, accept and reject (NVMe/RDMA 1.0, 3.3), and what a target grants.

use std::fmt;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

use crate::nvme::wire::wire;
use crate::nvme::{ControllerId, QueueId};

/// RECFMT: the only format of private data.
const RECFMT: u16 = 0;

wire! {
    /// Private data of a request: what a host says of its queue.
    pub struct RequestData[32] {
        /// RECFMT: record format, 0.
        pub recfmt: U16,
        /// QID: queue identifier.
        pub qid: U16,
        /// HRQSIZE: receives that the host posts, from 1.
        pub hrqsize: U16,
        /// HSQSIZE: entries of the submission queue, 0's based.
        pub hsqsize: U16,
        /// CNTLID: the controller of an I/O queue; 0 from hosts that do not send it.
        pub cntlid: U16,
        /// Reserved.
        pub reserved_10: [u8; 22],
    }
}

wire! {
    /// Private data of an accept.
    pub struct AcceptData[32] {
        /// RECFMT: record format, 0.
        pub recfmt: U16,
        /// CRQSIZE: receives that the controller posts, from 1.
        pub crqsize: U16,
        /// Reserved. Some targets send other bytes than zeroes.
        pub reserved_4: [u8; 28],
    }
}

wire! {
    /// Private data of a reject.
    pub struct RejectData[4] {
        /// RECFMT: record format, 0.
        pub recfmt: U16,
        /// STS: why.
        pub sts: U16,
    }
}

macro_rules! statuses {
    ($( $name:ident = $value:literal, $text:literal; )*) => {
        /// STS of a reject: why a target refuses a queue (NVMe/RDMA 1.0, 3.3).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum RejectStatus {
            $( #[doc = $text] $name, )*
            /// A value without a meaning.
            Other(u16),
        }

        impl RejectStatus {
            /// All with a meaning.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// From the field.
            #[must_use]
            pub fn from_wire(value: u16) -> Self {
                match value {
                    $( $value => Self::$name, )*
                    other => Self::Other(other),
                }
            }

            /// As in the field.
            #[must_use]
            pub fn to_wire(self) -> u16 {
                match self {
                    $( Self::$name => $value, )*
                    Self::Other(other) => other,
                }
            }

            /// In words.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self {
                    $( Self::$name => $text, )*
                    Self::Other(_) => "unknown status",
                }
            }
        }
    };
}

statuses! {
    Length = 0x01, "invalid length of the private data";
    Recfmt = 0x02, "invalid RECFMT";
    QueueId = 0x03, "invalid queue identifier";
    Hsqsize = 0x04, "invalid HSQSIZE";
    Hrqsize = 0x05, "invalid HRQSIZE";
    NoResources = 0x06, "no resources";
    Ird = 0x07, "invalid IRD: the host allows no RDMA READ";
    Ord = 0x08, "invalid ORD";
    ControllerId = 0x09, "invalid controller identifier";
}

impl fmt::Display for RejectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (STS {:02x}h)", self.text(), self.to_wire())
    }
}

impl RejectData {
    /// A reject for this reason.
    #[must_use]
    pub fn new(status: RejectStatus) -> Self {
        Self { recfmt: RECFMT.into(), sts: status.to_wire().into() }
    }

    /// The reason in the private data of a reject; `None` if there is none in them. InfiniBand and RoCE pad the data.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<RejectStatus> {
        let (data, _) = Self::read_from_prefix(bytes).ok()?;
        (data.recfmt.get() == RECFMT).then(|| RejectStatus::from_wire(data.sts.get()))
    }
}

impl AcceptData {
    /// An accept of a controller that posts `receives` receives.
    #[must_use]
    pub fn new(receives: u16) -> Self {
        Self { recfmt: RECFMT.into(), crqsize: receives.into(), ..Self::default() }
    }

    /// CRQSIZE of an accept; `None` if the data are too short or of another format. It is information: targets
    /// count differently, so it is no limit.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<u16> {
        let (data, _) = Self::read_from_prefix(bytes).ok()?;
        (data.recfmt.get() == RECFMT).then(|| data.crqsize.get())
    }
}

/// What a host asks for, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueRequest {
    /// The queue.
    pub qid: QueueId,
    /// Receives that the host posts, at least 1.
    pub receives: u16,
    /// Entries of the submission queue, at least 2.
    pub entries: u32,
    /// The controller of an I/O queue, from a host that says it.
    pub cntlid: Option<ControllerId>,
}

/// Most of what a target grants.
#[derive(Clone, Copy, Debug)]
pub struct GrantLimits {
    /// Entries of an admin queue.
    pub admin_entries: u16,
    /// Entries of an I/O queue.
    pub io_entries: u16,
    /// I/O queues of a controller.
    pub io_queues: u16,
    /// RDMA READs under way on one queue pair; the device's limit, or a lower one.
    pub reads: u8,
}

/// What a target grants to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Receives that the controller posts: commands that the host may have outstanding.
    pub entries: u16,
    /// RDMA READs that the controller may have under way.
    pub reads: u8,
}

impl QueueRequest {
    /// Reads the private data of a request. InfiniBand and RoCE pad them, iWARP does not.
    ///
    /// # Errors
    /// What the reject has to say.
    pub fn parse(bytes: &[u8]) -> Result<Self, RejectStatus> {
        let (data, _) = RequestData::read_from_prefix(bytes).map_err(|_| RejectStatus::Length)?;
        if data.recfmt.get() != RECFMT {
            return Err(RejectStatus::Recfmt);
        }
        // A submission queue has at least two entries (Base 2.0, 3.3.3).
        if data.hsqsize.get() == 0 {
            return Err(RejectStatus::Hsqsize);
        }
        if data.hrqsize.get() == 0 {
            return Err(RejectStatus::Hrqsize);
        }
        let qid = QueueId(data.qid.get());
        let cntlid = data.cntlid.get();
        let is_said = !qid.is_admin() && cntlid != 0 && cntlid != ControllerId::DYNAMIC.0;
        Ok(Self {
            qid,
            receives: data.hrqsize.get(),
            entries: u32::from(data.hsqsize.get()) + 1,
            cntlid: is_said.then_some(ControllerId(cntlid)),
        })
    }

    /// As a host sends it.
    ///
    /// # Panics
    /// When there are fewer than 2 or more than 65,536 entries: that is a bug of the caller.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; RequestData::LEN] {
        assert!((2..=0x1_0000).contains(&self.entries), "{} entries", self.entries);
        let hsqsize = u16::try_from(self.entries - 1).unwrap_or(u16::MAX);
        let data = RequestData {
            recfmt: RECFMT.into(),
            qid: self.qid.0.into(),
            hrqsize: self.receives.into(),
            hsqsize: hsqsize.into(),
            cntlid: self.cntlid.map_or(0, |id| id.0).into(),
            ..RequestData::default()
        };
        let mut bytes = [0; RequestData::LEN];
        bytes.copy_from_slice(data.as_bytes());
        bytes
    }

    /// What a target with these limits grants to a host that allows `host_reads` RDMA READs.
    ///
    /// # Errors
    /// What the reject has to say.
    pub fn grant(&self, limits: &GrantLimits, host_reads: u8) -> Result<Grant, RejectStatus> {
        if self.qid.0 > limits.io_queues {
            return Err(RejectStatus::QueueId);
        }
        // Data of writes come by RDMA READ: a queue without any could not even take a Connect.
        if host_reads == 0 {
            return Err(RejectStatus::Ird);
        }
        let most = if self.qid.is_admin() { limits.admin_entries } else { limits.io_entries };
        // Every command has a response, which needs a receive of the host.
        let wanted = self.entries.min(self.receives.into());
        let entries = u16::try_from(wanted).unwrap_or(u16::MAX).min(most);
        Ok(Grant { entries, reads: limits.reads.min(host_reads) })
    }
}

impl Grant {
    /// Whether a Connect with this SQSIZE, which is 0's based, asks for no more entries than the queue pair has receives.
    #[must_use]
    pub fn allows_sqsize(&self, sqsize: u16) -> bool {
        u32::from(sqsize) < u32::from(self.entries)
    }
}
