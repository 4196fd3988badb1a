//! Identify data of a controller and its namespaces, checked as strictly as Linux checks them.

use std::fmt;
use std::time::Duration;

use zerocopy::FromBytes;

use crate::nvme::cross_reset::ControllerInstance;
use crate::nvme::identify::{
    CMIC_ANA, CTRATT_TRAFFIC_BASED_KEEP_ALIVE, DLFEAT_READS_ZEROES, IdentifyController,
    IdentifyNamespace, NMIC_SHARED, NSATTR_WRITE_PROTECTED, NSFEAT_OPTPERF, SGLS_KEYED,
    SGLS_OFFSET, VWC_PRESENT,
};
use crate::nvme::{ControllerId, NamespaceId, Nqn};

/// How long a loss stays unnoticed without keep alive: longer than a program waits.
const UNNOTICED: Duration = Duration::from_secs(1 << 32);
/// Smallest IOCCSZ: room for a submission queue entry, in units of 16 bytes.
const MIN_IOCCSZ: u32 = 4;
/// Smallest IORCSZ: room for a completion queue entry, in units of 16 bytes.
const MIN_IORCSZ: u32 = 1;
/// Bytes of a submission queue entry in a capsule.
const SQE_LEN: u32 = 64;
/// More in-capsule data than this is never used, whatever the controller offers.
const MAX_IN_CAPSULE_BYTES: u32 = 1 << 20;
/// From this MDTS on, the limit exceeds the range of an SGL's length.
const MDTS_BEYOND_32_BITS: u32 = 20;
/// Logical block sizes that this host can use: 512 bytes to 64 KiB, as powers of two.
const LBADS_RANGE: std::ops::RangeInclusive<u8> = 9..=16;

/// What a controller is and can do (Identify CNS 01h; Base 2.0, figure 276).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// CNTLID.
    pub cntlid: ControllerId,
    /// VER: the NVMe version, e.g. 0001_0400h.
    pub version: u32,
    /// SN: serial number.
    pub serial: String,
    /// MN: model number.
    pub model: String,
    /// FR: firmware revision.
    pub firmware: String,
    /// SUBNQN, if the field holds an NQN.
    pub subnqn: Option<Nqn>,
    /// CNTRLTYPE: 1 I/O, 2 discovery, 0 not reported.
    pub controller_type: u8,
    /// MDTS in bytes; `None` when the controller sets no limit.
    pub max_transfer_bytes: Option<u32>,
    /// In-capsule data that a command on an I/O queue may carry (from IOCCSZ; over RDMA also from SGLS).
    pub in_capsule_bytes: u32,
    /// KAS: keep alive granularity in 100 ms; 0 for no keep alive.
    pub kas: u16,
    /// NN: number of namespaces, the highest NSID.
    pub namespace_count: u32,
    /// OAES: asynchronous events that it can send.
    pub oaes: u32,
    /// ONCS: optional I/O commands that it has.
    pub oncs: u16,
    /// AERL: asynchronous event requests it takes, 0's based.
    pub aerl: u8,
    /// VWC bit 0: there is a volatile write cache.
    pub volatile_write_cache: bool,
    /// The whole structure.
    pub raw: Box<IdentifyController>,
}

/// Why a controller or namespace cannot be used by this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InfoError {
    /// Fewer bytes than the structure has.
    Short,
    /// CNTLID is not the one of the answer to Connect.
    ControllerId {
        /// From Connect.
        expected: ControllerId,
        /// From Identify.
        found: ControllerId,
    },
    /// KAS is 0, though the host asked for keep alive.
    NoKeepAlive,
    /// IOCCSZ has no room for a command.
    CommandCapsule(u32),
    /// IORCSZ has no room for a response.
    ResponseCapsule(u32),
    /// ICDOFF is not 0.
    InCapsuleOffset(u16),
    /// SGLS says that there are no SGLs.
    NoSgls,
    /// SGLS says that there are no keyed data blocks, though the transport is RDMA.
    NoKeyedSgls,
    /// LBADS names a block size that this host cannot use.
    BlockSize(u8),
    /// The blocks carry metadata.
    Metadata(u16),
    /// The capacity does not fit 64 bits.
    Capacity(u64),
}

impl fmt::Display for InfoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => write!(f, "the identify structure is incomplete"),
            Self::ControllerId { expected, found } => {
                write!(f, "Connect gave controller {expected}, Identify is of {found}")
            }
            Self::NoKeepAlive => write!(f, "the controller does not support keep alive (KAS is 0)"),
            Self::CommandCapsule(size) => {
                write!(f, "command capsules are too small (IOCCSZ is {size})")
            }
            Self::ResponseCapsule(size) => {
                write!(f, "response capsules are too small (IORCSZ is {size})")
            }
            Self::InCapsuleOffset(offset) => {
                write!(f, "in-capsule data have an offset (ICDOFF is {offset})")
            }
            Self::NoSgls => write!(f, "the controller does not support SGLs"),
            Self::NoKeyedSgls => write!(
                f,
                "the controller does not support keyed SGLs (SGLS bit 2 is 0), which RDMA needs: connect to it over TCP"
            ),
            Self::BlockSize(lbads) => write!(f, "blocks of 2^{lbads} bytes cannot be used"),
            Self::Metadata(bytes) => {
                write!(f, "blocks with {bytes} bytes of metadata cannot be used")
            }
            Self::Capacity(blocks) => write!(f, "{blocks} blocks are more than 2^64 bytes"),
        }
    }
}

impl std::error::Error for InfoError {}

/// ASCII, space padded; other bytes become replacement characters.
fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(field).trim_matches(['\0', ' ']).to_owned()
}

impl ControllerInfo {
    /// Reads the structure.
    ///
    /// # Errors
    /// When it is short.
    pub fn parse(data: &[u8]) -> Result<Self, InfoError> {
        let (raw, _) = IdentifyController::ref_from_prefix(data).map_err(|_| InfoError::Short)?;
        let mdts = u32::from(raw.mdts);
        let capsule_bytes = raw.ioccsz.get().saturating_mul(16);
        Ok(Self {
            cntlid: ControllerId(raw.cntlid.get()),
            version: raw.ver.get(),
            serial: text(&raw.sn),
            model: text(&raw.mn),
            firmware: text(&raw.fr),
            subnqn: Nqn::from_field(&raw.subnqn).ok(),
            controller_type: raw.cntrltype,
            // In units of CAP.MPSMIN; bring-up accepts 4 KiB only. 0 is no limit.
            max_transfer_bytes: (mdts > 0 && mdts < MDTS_BEYOND_32_BITS).then(|| 4096 << mdts),
            in_capsule_bytes: capsule_bytes.saturating_sub(SQE_LEN).min(MAX_IN_CAPSULE_BYTES),
            kas: raw.kas.get(),
            namespace_count: raw.nn.get(),
            oaes: raw.oaes.get(),
            oncs: raw.oncs.get(),
            aerl: raw.aerl,
            volatile_write_cache: raw.vwc & VWC_PRESENT != 0,
            raw: Box::new(*raw),
        })
    }

    /// CMIC bit 3: it says in a log how well it leads to which namespaces.
    #[must_use]
    pub fn reports_ana(&self) -> bool {
        self.raw.cmic & CMIC_ANA != 0
    }

    /// ANATT: how long a group may be in the state change.
    #[must_use]
    pub fn ana_transition_time(&self) -> Duration {
        Duration::from_secs(u64::from(self.raw.anatt).max(1))
    }

    /// This instance of the controller, for a Cross-Controller Reset; `None`: it has no random number, and so cannot
    /// be told from another one with the same CNTLID (TP8028).
    #[must_use]
    pub fn instance(&self) -> Option<ControllerInstance> {
        let cirn = self.raw.cirn.get();
        let instance = ControllerInstance { cntlid: self.cntlid, ciu: self.raw.ciu, cirn };
        (cirn != 0).then_some(instance)
    }

    /// CCRL: how many Cross-Controller Resets it executes at a time; 0: none.
    #[must_use]
    pub fn cross_resets(&self) -> u8 {
        self.raw.ccrl
    }

    /// How long after the loss of an association its commands may still execute: the time within which the controller
    /// notices that the host is gone, then the time that it needs to quiesce (TP4129). A controller that does not say
    /// the latter (CQT is 0) is given `default_quiesce`. Without keep alive, the controller never notices the loss.
    #[must_use]
    pub fn hold_time(&self, kato_ms: u32, default_quiesce: Duration) -> Duration {
        if kato_ms == 0 {
            return UNNOTICED;
        }
        // KATO is rounded up to the controller's granularity (Base 2.0, 3.9).
        let unit = u32::from(self.kas).max(1) * 100;
        let kato = Duration::from_millis(u64::from(kato_ms.div_ceil(unit)) * u64::from(unit));
        let by_traffic = self.raw.ctratt.get() & CTRATT_TRAFFIC_BASED_KEEP_ALIVE != 0;
        let quiesce = match self.raw.cqt.get() {
            0 => default_quiesce,
            cqt => Duration::from_millis(u64::from(cqt)),
        };
        kato * if by_traffic { 3 } else { 2 } + quiesce
    }

    /// Whether this host can use the I/O controller, by the same rules as Linux.
    ///
    /// # Errors
    /// The first reason why not.
    pub fn check(
        &self,
        cntlid: ControllerId,
        discovery: bool,
        keep_alive: bool,
    ) -> Result<(), InfoError> {
        if self.cntlid != cntlid {
            return Err(InfoError::ControllerId { expected: cntlid, found: self.cntlid });
        }
        // SGLS bits 1:0: 1 without, 2 with dword alignment (Base 2.0, figure 276).
        if !matches!(self.raw.sgls.get() & 0b11, 1 | 2) {
            return Err(InfoError::NoSgls);
        }
        if discovery {
            return Ok(());
        }
        if keep_alive && self.kas == 0 {
            return Err(InfoError::NoKeepAlive);
        }
        let IdentifyController { ioccsz, iorcsz, icdoff, .. } = &*self.raw;
        let (ioccsz, iorcsz, icdoff) = (ioccsz.get(), iorcsz.get(), icdoff.get());
        if ioccsz < MIN_IOCCSZ {
            return Err(InfoError::CommandCapsule(ioccsz));
        }
        if iorcsz < MIN_IORCSZ {
            return Err(InfoError::ResponseCapsule(iorcsz));
        }
        if icdoff != 0 {
            return Err(InfoError::InCapsuleOffset(icdoff));
        }
        Ok(())
    }
}

impl ControllerInfo {
    /// Whether this host can use the controller over RDMA, by the same rules as Linux: keyed data blocks are needed
    /// (SGLS bit 2), and data go in capsules only where SGLs may have an offset (bit 20; Base 2.0, figure 276).
    ///
    /// # Errors
    /// When there are no keyed data blocks.
    pub fn adapt_to_rdma(&mut self) -> Result<(), InfoError> {
        let sgls = self.raw.sgls.get();
        if sgls & SGLS_KEYED == 0 {
            return Err(InfoError::NoKeyedSgls);
        }
        if sgls & SGLS_OFFSET == 0 {
            self.in_capsule_bytes = 0;
        }
        Ok(())
    }
}

/// What a namespace is and can do (Identify CNS 00h, NVM Command Set 1.0, figure 97; CNS 03h).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// NSID.
    pub nsid: NamespaceId,
    /// NSZE: size in blocks.
    pub block_count: u64,
    /// NCAP: blocks that may be allocated at one time.
    pub capacity_blocks: u64,
    /// NUSE: blocks allocated.
    pub used_blocks: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Preferred write granularity in bytes (NPWG), else the block size.
    pub physical_block_size: u32,
    /// NSATTR bit 0: write protected.
    pub read_only: bool,
    /// DLFEAT bits 2:0 are 1: deallocated blocks read zeroes.
    pub deallocate_zeroes: bool,
    /// NMIC bit 0: several controllers may lead to it.
    pub shared: bool,
    /// NGUID, zeroes for none.
    pub nguid: [u8; 16],
    /// EUI64, zeroes for none.
    pub eui64: [u8; 8],
    /// UUID, zeroes for none.
    pub uuid: [u8; 16],
}

impl NamespaceInfo {
    /// Reads the structure; `None` for an inactive namespace (NCAP is 0).
    ///
    /// # Errors
    /// When this host cannot use the namespace.
    pub fn parse(nsid: NamespaceId, data: &[u8]) -> Result<Option<Self>, InfoError> {
        let (raw, _) = IdentifyNamespace::ref_from_prefix(data).map_err(|_| InfoError::Short)?;
        let capacity_blocks = raw.ncap.get();
        if capacity_blocks == 0 {
            return Ok(None);
        }
        let format = raw.format();
        if !LBADS_RANGE.contains(&format.lbads) {
            return Err(InfoError::BlockSize(format.lbads));
        }
        if format.ms.get() != 0 {
            return Err(InfoError::Metadata(format.ms.get()));
        }
        let (block_size, block_count) = (1u32 << format.lbads, raw.nsze.get());
        block_count.checked_mul(u64::from(block_size)).ok_or(InfoError::Capacity(block_count))?;
        // NPWG is in blocks, 0's based.
        let granular = raw.nsfeat & NSFEAT_OPTPERF != 0;
        let granule_blocks = if granular { u32::from(raw.npwg.get()) + 1 } else { 1 };
        Ok(Some(Self {
            nsid,
            block_count,
            capacity_blocks,
            used_blocks: raw.nuse.get(),
            block_size,
            physical_block_size: granule_blocks.checked_mul(block_size).unwrap_or(block_size),
            read_only: raw.nsattr & NSATTR_WRITE_PROTECTED != 0,
            deallocate_zeroes: raw.dlfeat & 0b111 == DLFEAT_READS_ZEROES,
            shared: raw.nmic & NMIC_SHARED != 0,
            nguid: raw.nguid,
            eui64: raw.eui64,
            uuid: [0; 16],
        }))
    }

    /// Adds the identifiers of a Namespace Identification Descriptor list (Base 2.0, figure 277).
    /// A malformed list adds the identifiers before the mistake.
    pub fn add_descriptors(&mut self, mut list: &[u8]) {
        while let Some(([kind, len, _, _], rest)) = list.split_first_chunk() {
            let Some((value, after)) = rest.split_at_checked(usize::from(*len)) else { return };
            match (kind, value.len()) {
                (_, 0) => return,
                (1, 8) => self.eui64.copy_from_slice(value),
                (2, 16) => self.nguid.copy_from_slice(value),
                (3, 16) => self.uuid.copy_from_slice(value),
                _ => {}
            }
            list = after;
        }
    }

    /// Size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.block_count * u64::from(self.block_size) // checked in `parse`
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::nvme::identify::IDENTIFY_LEN;

    /// An Identify Controller structure that Linux would accept.
    pub(crate) fn controller_page(cntlid: u16) -> [u8; IDENTIFY_LEN] {
        let mut page = [0; IDENTIFY_LEN];
        page[4..24].fill(b' ');
        page[4..8].copy_from_slice(b"SN01");
        page[24..64].fill(b' ');
        page[24..29].copy_from_slice(b"Model");
        page[77] = 5;
        page[78..80].copy_from_slice(&cntlid.to_le_bytes());
        page[80..84].copy_from_slice(&0x0001_0400u32.to_le_bytes());
        page[92..96].copy_from_slice(&(1u32 << 8).to_le_bytes());
        page[320..322].copy_from_slice(&10u16.to_le_bytes());
        page[516..520].copy_from_slice(&4u32.to_le_bytes());
        page[536..540].copy_from_slice(&1u32.to_le_bytes());
        page[1792..1796].copy_from_slice(&516u32.to_le_bytes());
        page[1796..1800].copy_from_slice(&1u32.to_le_bytes());
        page
    }

    /// An Identify Namespace structure: `blocks` of 4096 bytes.
    pub(crate) fn namespace_page(blocks: u64) -> [u8; IDENTIFY_LEN] {
        let mut page = [0; IDENTIFY_LEN];
        page[0..8].copy_from_slice(&blocks.to_le_bytes());
        page[8..16].copy_from_slice(&blocks.to_le_bytes());
        page[130] = 12;
        page
    }

    #[test]
    fn controller_fields() {
        let info = ControllerInfo::parse(&controller_page(7)).unwrap();
        assert_eq!((info.serial.as_str(), info.model.as_str()), ("SN01", "Model"));
        assert_eq!(info.max_transfer_bytes, Some(131_072));
        assert_eq!(info.in_capsule_bytes, 8192);
        assert_eq!(info.check(ControllerId(7), false, true), Ok(()));
    }

    #[test]
    fn how_long_commands_of_a_lost_association_may_execute() {
        let info = |ctratt: u32, cqt: u16| {
            let mut page = controller_page(7);
            page[96..100].copy_from_slice(&ctratt.to_le_bytes());
            page[386..388].copy_from_slice(&cqt.to_le_bytes());
            ControllerInfo::parse(&page).unwrap()
        };
        let default = Duration::from_secs(7);
        let hold = |ctratt, cqt, kato_ms| info(ctratt, cqt).hold_time(kato_ms, default).as_millis();
        assert_eq!(hold(0, 2000, 5000), 12_000);
        assert_eq!(hold(CTRATT_TRAFFIC_BASED_KEEP_ALIVE, 2000, 5000), 17_000);
        assert_eq!(hold(0, 0, 5000), 17_000);
        assert_eq!(hold(0, 2000, 0), UNNOTICED.as_millis());
        // KAS is 10, a second.
        assert_eq!(hold(0, 1, 4200), 10_001);
    }

    #[test]
    fn instances_need_a_random_number() {
        let mut page = controller_page(7);
        page[135] = 3;
        assert_eq!(ControllerInfo::parse(&page).unwrap().instance(), None);
        page[136..144].copy_from_slice(&5u64.to_le_bytes());
        let instance = ControllerInfo::parse(&page).unwrap().instance().unwrap();
        assert_eq!((instance.cntlid, instance.ciu, instance.cirn), (ControllerId(7), 3, 5));
    }

    #[test]
    fn controllers_that_linux_refuses() {
        let check = |offset: usize, value: u8, expected| {
            let mut page = controller_page(7);
            page[offset] = value;
            let info = ControllerInfo::parse(&page).unwrap();
            assert_eq!(info.check(ControllerId(7), false, true), Err(expected));
        };
        check(78, 8, InfoError::ControllerId { expected: ControllerId(7), found: ControllerId(8) });
        check(320, 0, InfoError::NoKeepAlive);
        check(1796, 0, InfoError::ResponseCapsule(0));
        check(1800, 1, InfoError::InCapsuleOffset(1));
        check(536, 0, InfoError::NoSgls);
        let mut page = controller_page(7);
        page[1792..1796].copy_from_slice(&3u32.to_le_bytes());
        let info = ControllerInfo::parse(&page).unwrap();
        assert_eq!(info.check(ControllerId(7), false, true), Err(InfoError::CommandCapsule(3)));
        assert_eq!(ControllerInfo::parse(&[0; 4095]), Err(InfoError::Short));
    }

    #[test]
    fn what_a_controller_needs_over_rdma() {
        let adapt = |sgls: u32| {
            let mut page = controller_page(7);
            page[536..540].copy_from_slice(&sgls.to_le_bytes());
            let mut info = ControllerInfo::parse(&page).unwrap();
            info.check(ControllerId(7), false, true).unwrap();
            info.adapt_to_rdma().map(|()| info.in_capsule_bytes)
        };
        assert_eq!(adapt(1 | 1 << 2 | 1 << 20), Ok(8192));
        assert_eq!(adapt(1 | 1 << 2), Ok(0), "no data go in capsules");
        assert_eq!(adapt(1), Err(InfoError::NoKeyedSgls));
        assert_eq!(adapt(1 | 1 << 20), Err(InfoError::NoKeyedSgls));
    }

    #[test]
    fn a_discovery_controller_needs_less() {
        let mut page = controller_page(7);
        page[320] = 0;
        page[1792..1800].fill(0);
        let info = ControllerInfo::parse(&page).unwrap();
        assert_eq!(info.check(ControllerId(7), true, true), Ok(()));
    }

    #[test]
    fn namespace_fields() {
        let info = NamespaceInfo::parse(NamespaceId(1), &namespace_page(100)).unwrap().unwrap();
        assert_eq!((info.block_size, info.size_bytes()), (4096, 409_600));
        assert_eq!(NamespaceInfo::parse(NamespaceId(1), &namespace_page(0)), Ok(None));
        let mut page = namespace_page(1);
        page[130] = 8;
        assert_eq!(NamespaceInfo::parse(NamespaceId(1), &page), Err(InfoError::BlockSize(8)));
        let huge = NamespaceInfo::parse(NamespaceId(1), &namespace_page(1 << 60));
        assert_eq!(huge, Err(InfoError::Capacity(1 << 60)));
    }

    #[test]
    fn descriptors() {
        let mut info = NamespaceInfo::parse(NamespaceId(1), &namespace_page(1)).unwrap().unwrap();
        let mut list = vec![2, 16, 0, 0];
        list.extend([2; 16]);
        list.extend([4, 1, 0, 0, 0]);
        list.extend([3, 16, 0, 0]);
        list.extend([3; 16]);
        list.extend([0; 8]);
        info.add_descriptors(&list);
        assert_eq!((info.nguid, info.uuid, info.eui64), ([2; 16], [3; 16], [0; 8]));
        info.add_descriptors(&[1, 8, 0, 0, 1]);
        assert_eq!(info.eui64, [0; 8], "a truncated descriptor is not read");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(data in prop::collection::vec(any::<u8>(), 4096)) {
            let info = ControllerInfo::parse(&data).unwrap();
            let _ = info.check(ControllerId(0), false, true);
            if let Ok(Some(mut info)) = NamespaceInfo::parse(NamespaceId(1), &data) {
                info.add_descriptors(&data);
                let _ = info.size_bytes();
            }
        }
    }
}
