//! Identify: its data structures (Base 2.0, 5.17; NVM Command Set 1.0, 4.1.5).

use zerocopy::little_endian::{U16, U32, U64, U128};

use super::wire::wire;

/// Size of every Identify data structure in bytes.
pub const IDENTIFY_LEN: usize = 4096;

/// CNS: which data structure Identify returns, CDW10 bits 7:0 (Base 2.0, figure 273).
pub mod cns {
    /// Identify Namespace of the NVM command set.
    pub const NAMESPACE: u8 = 0x00;
    /// Identify Controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Active Namespace ID list: those greater than NSID.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Namespace Identification Descriptor list.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// I/O Command Set specific Identify Namespace.
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// I/O Command Set specific Identify Controller.
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    /// Active Namespace ID list of one I/O command set: those greater than NSID.
    pub const COMMAND_SET_ACTIVE_NAMESPACES: u8 = 0x07;
    /// I/O Command Set independent Identify Namespace.
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
    /// Allocated Namespace ID list: those greater than NSID, attached or not.
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    /// Identify Namespace of an allocated namespace, attached or not.
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    /// Controllers that a namespace is attached to: those from CNTID on.
    pub const NAMESPACE_CONTROLLERS: u8 = 0x12;
    /// Controllers of the subsystem: those from CNTID on.
    pub const CONTROLLERS: u8 = 0x13;
    /// Allocated Namespace ID list of one I/O command set: those greater than NSID.
    pub const COMMAND_SET_ALLOCATED_NAMESPACES: u8 = 0x1a;
    /// I/O Command Set specific Identify Namespace of an allocated namespace, attached or not.
    pub const COMMAND_SET_ALLOCATED_NAMESPACE: u8 = 0x1b;
    /// Combinations of I/O command sets that the controller can have at a time.
    pub const COMMAND_SETS: u8 = 0x1c;
}

/// CSI of the NVM command set.
pub const CSI_NVM: u8 = 0;

wire! {
    /// Identify Controller (CNS 01h; Base 2.0, figure 275).
    pub struct IdentifyController[4096] {
        /// VID: PCI vendor.
        pub vid: U16,
        /// SSVID: PCI subsystem vendor.
        pub ssvid: U16,
        /// SN: serial number, ASCII, space padded.
        pub sn: [u8; 20],
        /// MN: model number, ASCII, space padded.
        pub mn: [u8; 40],
        /// FR: firmware revision, ASCII, space padded.
        pub fr: [u8; 8],
        /// RAB: recommended arbitration burst.
        pub rab: u8,
        /// IEEE: OUI.
        pub ieee: [u8; 3],
        /// CMIC: bit 0 several ports, 1 several controllers, 3 ANA.
        pub cmic: u8,
        /// MDTS: largest transfer is 2^MDTS pages of 4 KiB; 0 is no limit.
        pub mdts: u8,
        /// CNTLID.
        pub cntlid: U16,
        /// VER: version, as the VS property.
        pub ver: U32,
        /// RTD3R.
        pub rtd3r: U32,
        /// RTD3E.
        pub rtd3e: U32,
        /// OAES: optional events supported; bits as in feature 0Bh.
        pub oaes: U32,
        /// CTRATT: controller attributes.
        pub ctratt: U32,
        /// RRLS.
        pub rrls: U16,
        /// Reserved.
        pub reserved_102: [u8; 9],
        /// CNTRLTYPE: 1 I/O, 2 discovery, 3 administrative.
        pub cntrltype: u8,
        /// FGUID.
        pub fguid: [u8; 16],
        /// CRDT1 to 3: command retry delay times.
        pub crdt: [U16; 3],
        /// Reserved.
        pub reserved_134: u8,
        /// CIU: controller instance uniquifier, another one for each new instance of a CNTLID (TP8028).
        pub ciu: u8,
        /// CIRN: controller instance random number (TP8028); 0 is not reported.
        pub cirn: U64,
        /// Reserved.
        pub reserved_144: [u8; 109],
        /// NVMSR.
        pub nvmsr: u8,
        /// VWCI.
        pub vwci: u8,
        /// MEC.
        pub mec: u8,
        /// OACS: optional admin commands.
        pub oacs: U16,
        /// ACL: concurrent Abort commands, 0's based.
        pub acl: u8,
        /// AERL: outstanding event requests, 0's based.
        pub aerl: u8,
        /// FRMW: firmware updates; bit 0 slot 1 is read-only, 3:1 number of slots.
        pub frmw: u8,
        /// LPA: bit 1 effects log, 2 extended data for Get Log Page.
        pub lpa: u8,
        /// ELPE: error log entries, 0's based.
        pub elpe: u8,
        /// NPSS: power states, 0's based.
        pub npss: u8,
        /// AVSCC.
        pub avscc: u8,
        /// APSTA.
        pub apsta: u8,
        /// WCTEMP: warning temperature in kelvin.
        pub wctemp: U16,
        /// CCTEMP: critical temperature in kelvin.
        pub cctemp: U16,
        /// MTFA.
        pub mtfa: U16,
        /// HMPRE.
        pub hmpre: U32,
        /// HMMIN.
        pub hmmin: U32,
        /// TNVMCAP.
        pub tnvmcap: U128,
        /// UNVMCAP.
        pub unvmcap: U128,
        /// RPMBS.
        pub rpmbs: U32,
        /// EDSTT.
        pub edstt: U16,
        /// DSTO.
        pub dsto: u8,
        /// FWUG.
        pub fwug: u8,
        /// KAS: granularity of the keep alive timeout in 100 ms.
        pub kas: U16,
        /// HCTMA.
        pub hctma: U16,
        /// MNTMT.
        pub mntmt: U16,
        /// MXTMT.
        pub mxtmt: U16,
        /// SANICAP.
        pub sanicap: U32,
        /// HMMINDS.
        pub hmminds: U32,
        /// HMMAXD.
        pub hmmaxd: U16,
        /// NSETIDMAX.
        pub nsetidmax: U16,
        /// ENDGIDMAX.
        pub endgidmax: U16,
        /// ANATT.
        pub anatt: u8,
        /// ANACAP.
        pub anacap: u8,
        /// ANAGRPMAX.
        pub anagrpmax: U32,
        /// NANAGRPID.
        pub nanagrpid: U32,
        /// PELS.
        pub pels: U32,
        /// Domain Identifier.
        pub domain: U16,
        /// Reserved.
        pub reserved_358: [u8; 28],
        /// CQT: command quiesce time in milliseconds (TP4129); 0 is not reported.
        pub cqt: U16,
        /// Reserved.
        pub reserved_388: [u8; 124],
        /// SQES: submission queue entry size, log2; required 3:0, maximum 7:4.
        pub sqes: u8,
        /// CQES: completion queue entry size, log2; required 3:0, maximum 7:4.
        pub cqes: u8,
        /// MAXCMD: outstanding commands per I/O queue.
        pub maxcmd: U16,
        /// NN: the greatest valid NSID.
        pub nn: U32,
        /// ONCS: optional NVM commands.
        pub oncs: U16,
        /// FUSES: bit 0 Compare and Write.
        pub fuses: U16,
        /// FNA.
        pub fna: u8,
        /// VWC: bit 0 present, 2:1 whether Flush takes the broadcast NSID.
        pub vwc: u8,
        /// AWUN: atomic write unit in blocks, 0's based.
        pub awun: U16,
        /// AWUPF: the same across power failure.
        pub awupf: U16,
        /// ICSVSCC.
        pub icsvscc: u8,
        /// NWPC: namespace write protection.
        pub nwpc: u8,
        /// ACWU: atomic compare and write unit in blocks, 0's based.
        pub acwu: U16,
        /// CDFS.
        pub cdfs: U16,
        /// SGLS: SGL support.
        pub sgls: U32,
        /// MNAN: most namespaces; at most NN.
        pub mnan: U32,
        /// MAXDNA.
        pub maxdna: [u8; 16],
        /// MAXCNA.
        pub maxcna: U32,
        /// Reserved.
        pub reserved_564: [u8; 204],
        /// SUBNQN: zero padded.
        pub subnqn: [u8; 256],
        /// Reserved.
        pub reserved_1024: [u8; 768],
        /// IOCCSZ: I/O queue command capsule size in 16 bytes.
        pub ioccsz: U32,
        /// IORCSZ: I/O queue response capsule size in 16 bytes.
        pub iorcsz: U32,
        /// ICDOFF: in-capsule data offset in 16 bytes.
        pub icdoff: U16,
        /// FCATT: bit 0 static controller model.
        pub fcatt: u8,
        /// MSDBD: SGL descriptors per command.
        pub msdbd: u8,
        /// OFCS: bit 0 Disconnect supported.
        pub ofcs: U16,
        /// DCTYPE: what kind of discovery controller; 0 is not reported.
        pub dctype: u8,
        /// CCRL: Cross-Controller Resets that this controller executes at a time (TP8028); 0: none.
        pub ccrl: u8,
        /// Reserved.
        pub reserved_1808: [u8; 240],
        /// PSD0 to 31: power states, 32 bytes each.
        pub psd: [[u8; 32]; 32],
        /// Vendor specific.
        pub vs: [u8; 1024],
    }
}

/// CNTRLTYPE: an I/O controller.
pub const CNTRLTYPE_IO: u8 = 1;
/// CNTRLTYPE: a discovery controller.
pub const CNTRLTYPE_DISCOVERY: u8 = 2;

/// CMIC bit 0: the subsystem may have several ports.
pub const CMIC_MULTI_PORT: u8 = 1 << 0;
/// CMIC bit 1: the subsystem may have several controllers.
pub const CMIC_MULTI_CONTROLLER: u8 = 1 << 1;
/// CMIC bit 3: Asymmetric Namespace Access is reported.
pub const CMIC_ANA: u8 = 1 << 3;
/// ANACAP: all five states are reported (bits 4:0).
pub const ANACAP: u8 = 0x1f;

/// AOCS bit 0, RALBAS: Get LBA Status tells which blocks are allocated.
pub const AOCS_ALLOCATED: u16 = 1 << 0;

/// OACS bit 9: Get LBA Status.
pub const OACS_LBA_STATUS: u16 = 1 << 9;
/// OACS bit 1: Format NVM.
pub const OACS_FORMAT: u16 = 1 << 1;
/// OACS bit 3: Namespace Management and Namespace Attachment.
pub const OACS_NAMESPACE_MANAGEMENT: u16 = 1 << 3;

/// CTRATT bit 0: 128-bit host identifiers.
pub const CTRATT_HOST_ID_128: u32 = 1 << 0;
/// CTRATT bit 6, TBKAS: any command keeps the controller alive.
pub const CTRATT_TRAFFIC_BASED_KEEP_ALIVE: u32 = 1 << 6;

/// LPA bit 1: Commands Supported and Effects log.
pub const LPA_EFFECTS: u8 = 1 << 1;
/// LPA bit 2: log page offset and 32-bit length.
pub const LPA_EXTENDED: u8 = 1 << 2;

/// FRMW bit 0: slot 1 is read-only.
pub const FRMW_SLOT1_READ_ONLY: u8 = 1 << 0;
/// FRMW bits 3:1: one slot.
pub const FRMW_ONE_SLOT: u8 = 1 << 1;

/// ONCS bit 0: Compare.
pub const ONCS_COMPARE: u16 = 1 << 0;
/// ONCS bit 1: Write Uncorrectable.
pub const ONCS_WRITE_UNCORRECTABLE: u16 = 1 << 1;
/// ONCS bit 2: Dataset Management.
pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
/// ONCS bit 3: Write Zeroes.
pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
/// ONCS bit 7: Verify.
pub const ONCS_VERIFY: u16 = 1 << 7;
/// ONCS bit 8: Copy.
pub const ONCS_COPY: u16 = 1 << 8;
/// CDFS bit 0: Copy takes source ranges of format 0.
pub const CDFS_FORMAT_0: u16 = 1 << 0;
/// CDFS bit 2: Copy takes source ranges of format 2, once a host has enabled them.
pub const CDFS_FORMAT_2: u16 = 1 << 2;
/// NWPC bits 1:0: namespaces can be write protected, also until a power cycle.
pub const NWPC: u8 = 0b11;
/// ONCS bit 5: reservations.
pub const ONCS_RESERVATIONS: u16 = 1 << 5;

/// FUSES bit 0: Compare and Write.
pub const FUSES_COMPARE_AND_WRITE: u16 = 1 << 0;

/// VWC bit 0: a volatile write cache is present.
pub const VWC_PRESENT: u8 = 1 << 0;
/// VWC bits 2:1 = 10b: Flush does not take the broadcast NSID.
pub const VWC_NO_BROADCAST_FLUSH: u8 = 0b10 << 1;

/// SGLS bits 1:0 = 01b: SGLs without alignment rules.
pub const SGLS_SUPPORTED: u32 = 1 << 0;
/// SGLS bit 2: Keyed SGL Data Block.
pub const SGLS_KEYED: u32 = 1 << 2;
/// SGLS bit 20: the address of a Data Block may be an offset.
pub const SGLS_OFFSET: u32 = 1 << 20;
/// SGLS bit 21: Transport SGL Data Block.
pub const SGLS_TRANSPORT: u32 = 1 << 21;

/// SQES of the 64-byte entry, required and maximum.
pub const SQES: u8 = 0x66;
/// CQES of the 16-byte entry, required and maximum.
pub const CQES: u8 = 0x44;

wire! {
    /// LBA format (NVM Command Set 1.0, figure 98).
    pub struct LbaFormat[4] {
        /// MS: metadata bytes per block.
        pub ms: U16,
        /// LBADS: block size, log2.
        pub lbads: u8,
        /// RP: relative performance.
        pub rp: u8,
    }
}

wire! {
    /// Identify Namespace (CNS 00h; NVM Command Set 1.0, figure 97).
    pub struct IdentifyNamespace[4096] {
        /// NSZE: size in blocks.
        pub nsze: U64,
        /// NCAP: capacity in blocks; 0 means there is no such namespace.
        pub ncap: U64,
        /// NUSE: blocks allocated.
        pub nuse: U64,
        /// NSFEAT: bit 0 thin, 1 atomicity fields, 4 granularity fields are meaningful.
        pub nsfeat: u8,
        /// NLBAF: formats, 0's based.
        pub nlbaf: u8,
        /// FLBAS: bits 3:0 the format in use.
        pub flbas: u8,
        /// MC.
        pub mc: u8,
        /// DPC.
        pub dpc: u8,
        /// DPS.
        pub dps: u8,
        /// NMIC: bit 0 shared.
        pub nmic: u8,
        /// RESCAP.
        pub rescap: u8,
        /// FPI.
        pub fpi: u8,
        /// DLFEAT: bits 2:0 what deallocated blocks read, 3 Write Zeroes may deallocate.
        pub dlfeat: u8,
        /// NAWUN.
        pub nawun: U16,
        /// NAWUPF.
        pub nawupf: U16,
        /// NACWU.
        pub nacwu: U16,
        /// NABSN.
        pub nabsn: U16,
        /// NABO.
        pub nabo: U16,
        /// NABSPF.
        pub nabspf: U16,
        /// NOIOB.
        pub noiob: U16,
        /// NVMCAP: bytes.
        pub nvmcap: U128,
        /// NPWG: preferred write granularity in blocks, 0's based.
        pub npwg: U16,
        /// NPWA: preferred write alignment in blocks, 0's based.
        pub npwa: U16,
        /// NPDG: preferred deallocate granularity in blocks, 0's based.
        pub npdg: U16,
        /// NPDA: preferred deallocate alignment in blocks, 0's based.
        pub npda: U16,
        /// NOWS: optimal write size in blocks, 0's based.
        pub nows: U16,
        /// MSSRL.
        pub mssrl: U16,
        /// MCL.
        pub mcl: U32,
        /// MSRC.
        pub msrc: u8,
        /// Reserved.
        pub reserved_81: [u8; 11],
        /// ANAGRPID.
        pub anagrpid: U32,
        /// Reserved.
        pub reserved_96: [u8; 3],
        /// NSATTR: bit 0 write protected.
        pub nsattr: u8,
        /// NVMSETID.
        pub nvmsetid: U16,
        /// ENDGID.
        pub endgid: U16,
        /// NGUID.
        pub nguid: [u8; 16],
        /// EUI64.
        pub eui64: [u8; 8],
        /// LBAF0 to 63.
        pub lbaf: [LbaFormat; 64],
        /// Vendor specific.
        pub vs: [u8; 3712],
    }
}

/// NSFEAT bit 4, of OPTPERF: NPWG, NPWA, NPDG, NPDA and NOWS are meaningful.
pub const NSFEAT_GRANULARITY: u8 = 1 << 4;
/// NSFEAT bits 5:4, OPTPERF: NPWG, NPWA and NOWS are meaningful if one of them is set (NVM Command Set 1.1).
pub const NSFEAT_OPTPERF: u8 = 0b11 << 4;
/// NMIC bit 0: the namespace may be attached to several controllers.
pub const NMIC_SHARED: u8 = 1 << 0;
/// NSATTR bit 0: the namespace is write protected.
pub const NSATTR_WRITE_PROTECTED: u8 = 1 << 0;
/// DLFEAT bits 2:0 = 001b: deallocated blocks read as zeroes.
pub const DLFEAT_READS_ZEROES: u8 = 0b001;
/// DLFEAT bit 3: Write Zeroes takes the Deallocate bit.
pub const DLFEAT_WRITE_ZEROES_DEALLOCATES: u8 = 1 << 3;

impl IdentifyNamespace {
    /// The format in use, by FLBAS.
    #[must_use]
    pub fn format(&self) -> LbaFormat {
        let index = usize::from(self.flbas & 0x0f) | usize::from(self.flbas & 0x60) >> 1;
        self.lbaf[index % self.lbaf.len()]
    }

    /// Block size in bytes, when LBADS is one that the specification allows (9..=31).
    #[must_use]
    pub fn block_size(&self) -> Option<u32> {
        let lbads = self.format().lbads;
        (9..=31).contains(&lbads).then(|| 1 << lbads)
    }
}

wire! {
    /// Identify Namespace, independent of the command set (CNS 08h; Base 2.0, figure 280).
    pub struct IdentifyNamespaceIndependent[4096] {
        /// NSFEAT.
        pub nsfeat: u8,
        /// NMIC: bit 0 shared.
        pub nmic: u8,
        /// RESCAP.
        pub rescap: u8,
        /// FPI.
        pub fpi: u8,
        /// ANAGRPID.
        pub anagrpid: U32,
        /// NSATTR: bit 0 write protected.
        pub nsattr: u8,
        /// Reserved.
        pub reserved_9: u8,
        /// NVMSETID.
        pub nvmsetid: U16,
        /// ENDGID.
        pub endgid: U16,
        /// NSTAT: bit 0 ready.
        pub nstat: u8,
        /// Reserved.
        pub reserved_15: [u8; 4081],
    }
}

/// NSTAT bit 0: the namespace is ready.
pub const NSTAT_READY: u8 = 1 << 0;

wire! {
    /// Identify Controller of the NVM command set (CNS 06h; NVM Command Set 1.0, 4.1.5).
    pub struct IdentifyNvmController[4096] {
        /// VSL: Verify limit.
        pub vsl: u8,
        /// WZSL: Write Zeroes limit, 2^WZSL pages; 0 is no limit.
        pub wzsl: u8,
        /// WUSL: Write Uncorrectable limit.
        pub wusl: u8,
        /// DMRL: ranges per Dataset Management; 0 is no limit.
        pub dmrl: u8,
        /// DMRSL: blocks per range; 0 is no limit.
        pub dmrsl: U32,
        /// DMSL: blocks per command; 0 is no limit.
        pub dmsl: U64,
        /// Reserved here.
        pub reserved_16: [u8; 2],
        /// AOCS: optional admin commands (NVM Command Set 1.1).
        pub aocs: U16,
        /// Reserved.
        pub reserved_20: [u8; 4076],
    }
}

wire! {
    /// Namespace list: ascending, zero terminated unless full (Base 2.0, figure 137).
    pub struct NamespaceList[4096] {
        /// NSIDs.
        pub nsids: [U32; 1024],
    }
}

wire! {
    /// Controller list: ascending (Base 2.0, figure 136).
    pub struct ControllerList[4096] {
        /// How many follow.
        pub count: U16,
        /// CNTLIDs.
        pub ids: [U16; 2047],
    }
}

wire! {
    /// Header of a Namespace Identification Descriptor (CNS 03h; Base 2.0, figure 277).
    pub struct NamespaceDescriptorHeader[4] {
        /// NIDT: identifier type; 0 ends the list.
        pub nidt: u8,
        /// NIDL: identifier length in bytes.
        pub nidl: u8,
        /// Reserved.
        pub reserved_2: [u8; 2],
    }
}

/// NIDT: 8 bytes of EUI64.
pub const NIDT_EUI64: u8 = 1;
/// NIDT: 16 bytes of NGUID.
pub const NIDT_NGUID: u8 = 2;
/// NIDT: 16 bytes of UUID.
pub const NIDT_UUID: u8 = 3;
/// NIDT: 1 byte of command set identifier.
pub const NIDT_CSI: u8 = 4;

wire! {
    /// I/O Command Set data structure (CNS 1Ch; Base 2.0, figure 290): in each vector, bit CSI says that
    /// the combination has that command set.
    pub struct CommandSets[4096] {
        /// I/O Command Set Vectors; one of zeroes is none.
        pub vectors: [U64; 512],
    }
}

impl NamespaceDescriptorHeader {
    /// A header for an identifier of that type and length.
    #[must_use]
    pub fn new(nidt: u8, nidl: u8) -> Self {
        Self { nidt, nidl, reserved_2: [0; 2] }
    }
}

/// ASCII field: the characters that fit, the rest spaces, anything unprintable a question mark.
#[must_use]
pub fn ascii_field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (place, character) in field.iter_mut().zip(text.chars()) {
        let byte = u8::try_from(character).ok().filter(|byte| (0x20..=0x7e).contains(byte));
        *place = byte.unwrap_or(b'?');
    }
    field
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn identify_controller_offsets() {
        assert_eq!(offset_of!(IdentifyController, mn), 24);
        assert_eq!(offset_of!(IdentifyController, mdts), 77);
        assert_eq!(offset_of!(IdentifyController, cntlid), 78);
        assert_eq!(offset_of!(IdentifyController, ver), 80);
        assert_eq!(offset_of!(IdentifyController, oaes), 92);
        assert_eq!(offset_of!(IdentifyController, ctratt), 96);
        assert_eq!(offset_of!(IdentifyController, cntrltype), 111);
        assert_eq!(offset_of!(IdentifyController, fguid), 112);
        assert_eq!(offset_of!(IdentifyController, ciu), 135);
        assert_eq!(offset_of!(IdentifyController, cirn), 136);
        assert_eq!(offset_of!(IdentifyController, nvmsr), 253);
        assert_eq!(offset_of!(IdentifyController, oacs), 256);
        assert_eq!(offset_of!(IdentifyController, acl), 258);
        assert_eq!(offset_of!(IdentifyController, lpa), 261);
        assert_eq!(offset_of!(IdentifyController, elpe), 262);
        assert_eq!(offset_of!(IdentifyController, kas), 320);
        assert_eq!(offset_of!(IdentifyController, anagrpmax), 344);
        assert_eq!(offset_of!(IdentifyController, cqt), 386);
        assert_eq!(offset_of!(IdentifyController, sqes), 512);
        assert_eq!(offset_of!(IdentifyController, maxcmd), 514);
        assert_eq!(offset_of!(IdentifyController, nn), 516);
        assert_eq!(offset_of!(IdentifyController, oncs), 520);
        assert_eq!(offset_of!(IdentifyController, vwc), 525);
        assert_eq!(offset_of!(IdentifyController, sgls), 536);
        assert_eq!(offset_of!(IdentifyController, mnan), 540);
        assert_eq!(offset_of!(IdentifyController, subnqn), 768);
        assert_eq!(offset_of!(IdentifyController, ioccsz), 1792);
        assert_eq!(offset_of!(IdentifyController, iorcsz), 1796);
        assert_eq!(offset_of!(IdentifyController, icdoff), 1800);
        assert_eq!(offset_of!(IdentifyController, msdbd), 1803);
        assert_eq!(offset_of!(IdentifyController, ofcs), 1804);
        assert_eq!(offset_of!(IdentifyController, ccrl), 1807);
        assert_eq!(offset_of!(IdentifyController, psd), 2048);
    }

    #[test]
    fn identify_namespace_offsets() {
        assert_eq!(offset_of!(IdentifyNamespace, nsfeat), 24);
        assert_eq!(offset_of!(IdentifyNamespace, flbas), 26);
        assert_eq!(offset_of!(IdentifyNamespace, nmic), 30);
        assert_eq!(offset_of!(IdentifyNamespace, dlfeat), 33);
        assert_eq!(offset_of!(IdentifyNamespace, nvmcap), 48);
        assert_eq!(offset_of!(IdentifyNamespace, npwg), 64);
        assert_eq!(offset_of!(IdentifyNamespace, nows), 72);
        assert_eq!(offset_of!(IdentifyNamespace, anagrpid), 92);
        assert_eq!(offset_of!(IdentifyNamespace, nsattr), 99);
        assert_eq!(offset_of!(IdentifyNamespace, nguid), 104);
        assert_eq!(offset_of!(IdentifyNamespace, eui64), 120);
        assert_eq!(offset_of!(IdentifyNamespace, lbaf), 128);
        assert_eq!(offset_of!(IdentifyNamespaceIndependent, nsattr), 8);
        assert_eq!(offset_of!(IdentifyNamespaceIndependent, nstat), 14);
        assert_eq!(offset_of!(IdentifyNvmController, dmrsl), 4);
        assert_eq!(offset_of!(IdentifyNvmController, aocs), 18);
    }

    #[test]
    fn ascii_fields_are_padded_cut_and_printable() {
        assert_eq!(&ascii_field::<6>("ab"), b"ab    ");
        assert_eq!(&ascii_field::<2>("abc"), b"ab");
        assert_eq!(&ascii_field::<4>("a\u{7}\u{e9}b"), b"a??b");
    }

    #[test]
    fn block_sizes() {
        let mut namespace = IdentifyNamespace::default();
        assert_eq!(namespace.block_size(), None);
        namespace.flbas = 1;
        namespace.lbaf[1].lbads = 12;
        assert_eq!(namespace.block_size(), Some(4096));
        namespace.flbas = 0x21;
        namespace.lbaf[17].lbads = 9;
        assert_eq!(namespace.block_size(), Some(512));
        namespace.lbaf[17].lbads = 32;
        assert_eq!(namespace.block_size(), None);
    }
}
