//! Structures and numbers of the kernel's interface (linux/ublk_cmd.h).

/// Device features (`UBLK_F_*`).
pub(crate) mod feature {
    /// Completions come in the context of the serving thread.
    pub(crate) const COMP_IN_TASK: u64 = 1 << 1;
    /// The disk outlives the process that serves it.
    pub(crate) const USER_RECOVERY: u64 = 1 << 3;
    /// What was in flight then is asked for again.
    pub(crate) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands have the numbers of ioctl(2).
    pub(crate) const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// Data of a request are read and written by pread(2) and pwrite(2) of the character device.
    pub(crate) const USER_COPY: u64 = 1 << 7;
    /// A disk can get another size.
    pub(crate) const UPDATE_SIZE: u64 = 1 << 10;
    /// The pages of a request become a buffer of the serving thread's ring, until the request is committed.
    pub(crate) const AUTO_BUF_REG: u64 = 1 << 11;
    /// Pages of requests may be registered by any task. It is not asked for; drivers that have it are of Linux 6.17 or newer.
    pub(crate) const BUF_REG_OFF_DAEMON: u64 = 1 << 14;
}

/// Device states.
pub(crate) mod state {
    /// Not started, or stopped.
    pub(crate) const DEAD: u16 = 0;
    /// Served.
    pub(crate) const LIVE: u16 = 1;
    /// Its process has ended.
    pub(crate) const QUIESCED: u16 = 2;
}

/// Operations of a descriptor (`UBLK_IO_OP_*`).
pub(crate) mod op {
    pub(crate) const READ: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const FLUSH: u32 = 2;
    pub(crate) const DISCARD: u32 = 3;
    pub(crate) const WRITE_ZEROES: u32 = 5;
    /// The bits that are the operation.
    pub(crate) const MASK: u32 = 0xff;
    /// Flag: on stable media before it completes.
    pub(crate) const FUA: u32 = 1 << 13;
    /// Flag: zeroed blocks stay allocated.
    pub(crate) const NOUNMAP: u32 = 1 << 15;
    /// Flag: the pages did not become a buffer of the ring.
    pub(crate) const NEED_REG_BUF: u32 = 1 << 17;
}

/// Attributes of a disk (`UBLK_ATTR_*`).
pub(crate) mod attribute {
    pub(crate) const READ_ONLY: u32 = 1 << 0;
    pub(crate) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(crate) const FUA: u32 = 1 << 3;
}

/// `UBLK_PARAM_TYPE_BASIC` and `UBLK_PARAM_TYPE_DISCARD`.
pub(crate) const PARAM_TYPES: u32 = 1 << 0 | 1 << 1;
/// `UBLK_PARAM_TYPE_DMA_ALIGN`.
pub(crate) const PARAM_DMA_ALIGN: u32 = 1 << 4;

/// Where the data of a request are in the character device, with user copy (`UBLKSRV_IO_BUF_OFFSET` and what follows it).
pub(crate) fn data_offset(queue: u16, tag: u16) -> u64 {
    0x8000_0000 + (u64::from(queue) << 41 | u64::from(tag) << 25)
}

/// Bytes of a sector, the unit of all ranges.
pub(crate) const SECTOR: u64 = 512;

/// A control command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    GetInfo,
    Add,
    Delete,
    Start,
    Stop,
    SetParams,
    GetParams,
    StartRecovery,
    EndRecovery,
    GetFeatures,
    UpdateSize,
}

impl Command {
    /// Its name in the kernel's documentation.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::GetInfo => "GET_DEV_INFO",
            Self::Add => "ADD_DEV",
            Self::Delete => "DEL_DEV",
            Self::Start => "START_DEV",
            Self::Stop => "STOP_DEV",
            Self::SetParams => "SET_PARAMS",
            Self::GetParams => "GET_PARAMS",
            Self::StartRecovery => "START_USER_RECOVERY",
            Self::EndRecovery => "END_USER_RECOVERY",
            Self::GetFeatures => "GET_FEATURES",
            Self::UpdateSize => "UPDATE_SIZE",
        }
    }

    /// Its number: that of ioctl(2), or without the encoding, which kernels before Linux 6.4 do not know.
    pub(crate) fn number(self, encoded: bool) -> u32 {
        const READ: u32 = 2 << 30;
        const BOTH: u32 = 3 << 30;
        let (direction, number) = match self {
            Self::GetInfo => (READ, 0x02),
            Self::Add => (BOTH, 0x04),
            Self::Delete => (BOTH, 0x05),
            Self::Start => (BOTH, 0x06),
            Self::Stop => (BOTH, 0x07),
            Self::SetParams => (BOTH, 0x08),
            Self::GetParams => (READ, 0x09),
            Self::StartRecovery => (BOTH, 0x10),
            Self::EndRecovery => (BOTH, 0x11),
            Self::GetFeatures => (READ, 0x13),
            Self::UpdateSize => (BOTH, 0x15),
        };
        // `_IOC(direction, 'u', number, sizeof(struct ublksrv_ctrl_cmd))`.
        if encoded { direction | 32 << 16 | 0x75 << 8 | number } else { number }
    }
}

/// Bytes of a control command in a submission entry of 128 bytes.
pub(crate) const ROOM: usize = 80;

/// The bytes of `struct ublksrv_ctrl_cmd`, for no queue.
pub(crate) fn control(id: u32, (address, len): (u64, u16), data: u64) -> [u8; ROOM] {
    let mut bytes = [0; ROOM];
    bytes[..4].copy_from_slice(&id.to_ne_bytes());
    bytes[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
    bytes[6..8].copy_from_slice(&len.to_ne_bytes());
    bytes[8..16].copy_from_slice(&address.to_ne_bytes());
    bytes[16..24].copy_from_slice(&data.to_ne_bytes());
    bytes
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceInfo {
    pub(crate) queues: u16,
    pub(crate) depth: u16,
    pub(crate) state: u16,
    pub(crate) max_io_bytes: u32,
    pub(crate) id: u32,
    pub(crate) pid: i32,
    pub(crate) features: u64,
    /// What the server wants the kernel to keep for it (`ublksrv_flags`).
    pub(crate) mark: u64,
}

impl DeviceInfo {
    pub(crate) const LEN: usize = 64;

    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..2].copy_from_slice(&self.queues.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.depth.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.state.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.max_io_bytes.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.id.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.pid.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.features.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.mark.to_ne_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            queues: u16::from_ne_bytes(at(bytes, 0)),
            depth: u16::from_ne_bytes(at(bytes, 2)),
            state: u16::from_ne_bytes(at(bytes, 4)),
            max_io_bytes: u32::from_ne_bytes(at(bytes, 8)),
            id: u32::from_ne_bytes(at(bytes, 12)),
            pid: i32::from_ne_bytes(at(bytes, 16)),
            features: u64::from_ne_bytes(at(bytes, 24)),
            mark: u64::from_ne_bytes(at(bytes, 32)),
        }
    }
}

/// `struct ublk_params`, as far as it is used here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Params {
    pub(crate) attributes: u32,
    pub(crate) logical_shift: u8,
    pub(crate) physical_shift: u8,
    pub(crate) max_sectors: u32,
    pub(crate) sectors: u64,
    pub(crate) discard_granularity: u32,
    pub(crate) max_discard_sectors: u32,
    pub(crate) max_zeroes_sectors: u32,
    /// Memory of requests lies at multiples of this many bytes; 0: that of the kernel's choice.
    pub(crate) memory_alignment: u32,
}

impl Params {
    /// Up to and with the alignment of memory.
    pub(crate) const LEN: usize = 116;
    /// Without it.
    const BASIC_LEN: u32 = 60;

    pub(crate) fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut put = |at: usize, word: u32| {
            bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        };
        // A kernel that knows the rest also knows its length.
        let aligned = self.memory_alignment != 0;
        put(0, if aligned { 116 } else { Self::BASIC_LEN });
        put(4, PARAM_TYPES | if aligned { PARAM_DMA_ALIGN } else { 0 });
        put(108, self.memory_alignment.saturating_sub(1));
        put(8, self.attributes);
        put(16, self.max_sectors);
        put(44, self.discard_granularity);
        put(48, self.max_discard_sectors);
        put(52, self.max_zeroes_sectors);
        // The best size of I/O, and the least, are those of the physical block.
        let (logical, physical) = (self.logical_shift, self.physical_shift);
        bytes[12..16].copy_from_slice(&[logical, physical, physical, physical]);
        bytes[24..32].copy_from_slice(&self.sectors.to_ne_bytes());
        // One range in a discard.
        bytes[56..58].copy_from_slice(&1_u16.to_ne_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            attributes: u32::from_ne_bytes(at(bytes, 8)),
            logical_shift: bytes[12],
            physical_shift: bytes[13],
            max_sectors: u32::from_ne_bytes(at(bytes, 16)),
            sectors: u64::from_ne_bytes(at(bytes, 24)),
            discard_granularity: u32::from_ne_bytes(at(bytes, 44)),
            max_discard_sectors: u32::from_ne_bytes(at(bytes, 48)),
            max_zeroes_sectors: u32::from_ne_bytes(at(bytes, 52)),
            memory_alignment: match u32::from_ne_bytes(at(bytes, 4)) & PARAM_DMA_ALIGN {
                0 => 0,
                _ => u32::from_ne_bytes(at(bytes, 108)).saturating_add(1),
            },
        }
    }
}

/// The bytes from a place on, which is inside.
fn at<const N: usize>(bytes: &[u8], from: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[from..from + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        // `_IOR` and `_IOWR` of 'u' and 32 bytes.
        assert_eq!(Command::GetInfo.number(true), 0x8020_7502);
        assert_eq!(Command::Add.number(true), 0xc020_7504);
        assert_eq!(Command::GetFeatures.number(true), 0x8020_7513);
        assert_eq!(Command::UpdateSize.number(true), 0xc020_7515);
        assert_eq!(Command::EndRecovery.number(false), 0x11);
        assert_eq!(Command::GetParams.number(false), 0x09);
    }

    #[test]
    fn a_command_has_its_fields_where_the_kernel_looks() {
        let bytes = control(7, (0x1000, 64), 99);
        assert_eq!(bytes[..8], [7, 0, 0, 0, 0xff, 0xff, 64, 0]);
        assert_eq!(bytes[8..16], 0x1000_u64.to_ne_bytes());
        assert_eq!(bytes[16..24], 99_u64.to_ne_bytes());
        assert!(bytes[24..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn structures_survive_the_way_there_and_back() {
        let info = DeviceInfo {
            queues: 2,
            depth: 128,
            state: state::QUIESCED,
            max_io_bytes: 512 << 10,
            id: u32::MAX,
            pid: -1,
            features: feature::USER_RECOVERY | 1 << 60,
            mark: 0x1122_3344_5566_7788,
        };
        let bytes = info.encode();
        assert_eq!(DeviceInfo::decode(&bytes), info);
        assert_eq!(bytes[24], 8);
        assert_eq!(bytes[32], 0x88);
        let params = Params {
            attributes: attribute::VOLATILE_CACHE | attribute::FUA,
            logical_shift: 9,
            physical_shift: 12,
            max_sectors: 1024,
            sectors: 1 << 40,
            discard_granularity: 4096,
            max_discard_sectors: 77,
            max_zeroes_sectors: 88,
            memory_alignment: 0,
        };
        let aligned = Params { memory_alignment: 4096, ..params };
        let bytes = aligned.encode();
        assert_eq!(Params::decode(&bytes), aligned);
        assert_eq!(bytes[..8], [116, 0, 0, 0, 0x13, 0, 0, 0]);
        assert_eq!(bytes[108..], [0xff, 0x0f, 0, 0, 0, 0, 0, 0]);
        let bytes = params.encode();
        assert_eq!(Params::decode(&bytes), params);
        assert_eq!(bytes[..8], [60, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(bytes[12..16], [9, 12, 12, 12]);
        assert_eq!(bytes[56..60], [1, 0, 0, 0]);
        assert!(bytes[60..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn data_are_where_the_kernel_has_them() {
        assert_eq!(data_offset(0, 0), 0x8000_0000);
        assert_eq!(data_offset(0, 3), 0x8600_0000);
        assert_eq!(data_offset(2, 1), 0x400_8200_0000);
    }
}
