//! Controller properties: CAP, VS, CC, CSTS (Base 2.0, 3.1.3) and the commands that reach them.

use super::command::Sqe;
use super::opcode::fabrics;

/// CAP: controller capabilities, 8 bytes.
pub const CAP: u32 = 0x00;
/// VS: version, 4 bytes.
pub const VS: u32 = 0x08;
/// CC: controller configuration, 4 bytes.
pub const CC: u32 = 0x14;
/// CSTS: controller status, 4 bytes.
pub const CSTS: u32 = 0x1c;
/// NSSR: NVM subsystem reset, 4 bytes.
pub const NSSR: u32 = 0x20;
/// CRTO: controller ready timeouts, 4 bytes.
pub const CRTO: u32 = 0x68;

/// VS of version 1.4.0.
pub const VERSION_1_4: u32 = 0x0001_0400;

/// How wide a property access is: ATTRIB bits 2:0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertySize {
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
}

/// Property Get or Property Set (Fabrics 1.1, 3.4 and 3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyAccess {
    /// ATTRIB.
    pub size: PropertySize,
    /// OFST: which property.
    pub offset: u32,
    /// VALUE: what Property Set writes; 0 in Property Get.
    pub value: u64,
}

impl PropertyAccess {
    /// Reads the words of either command; `None` when ATTRIB has no meaning.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Option<Self> {
        let size = match sqe.cdw10.get() & 0b111 {
            0 => PropertySize::Four,
            1 => PropertySize::Eight,
            _ => return None,
        };
        let value = u64::from(sqe.cdw13.get()) << 32 | u64::from(sqe.cdw12.get());
        Some(Self { size, offset: sqe.cdw11.get(), value })
    }

    /// A Property Get.
    #[must_use]
    pub fn get(offset: u32, size: PropertySize) -> Sqe {
        Self { size, offset, value: 0 }.to_sqe(fabrics::PROPERTY_GET)
    }

    /// A Property Set of 4 bytes.
    #[must_use]
    pub fn set(offset: u32, value: u32) -> Sqe {
        Self { size: PropertySize::Four, offset, value: value.into() }.to_sqe(fabrics::PROPERTY_SET)
    }

    fn to_sqe(self, fctype: u8) -> Sqe {
        let [v0, v1, v2, v3, v4, v5, v6, v7] = self.value.to_le_bytes();
        Sqe {
            opc: fabrics::OPCODE,
            flags: Sqe::PSDT_SGL,
            nsid: u32::from(fctype).into(),
            sgl1: super::SglDescriptor::transport(0),
            cdw10: u32::from(self.size == PropertySize::Eight).into(),
            cdw11: self.offset.into(),
            cdw12: u32::from_le_bytes([v0, v1, v2, v3]).into(),
            cdw13: u32::from_le_bytes([v4, v5, v6, v7]).into(),
            ..Sqe::default()
        }
    }
}

/// CAP (Base 2.0, figure 36).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// MQES: the greatest SQSIZE of an I/O queue, 0's based.
    #[must_use]
    pub fn mqes(self) -> u16 {
        let [b0, b1, ..] = self.0.to_le_bytes();
        u16::from_le_bytes([b0, b1])
    }

    /// TO: how long CSTS.RDY may take to follow CC.EN, in 500 ms.
    #[must_use]
    pub fn to(self) -> u8 {
        self.0.to_le_bytes()[3]
    }

    /// CSS bit 0: the NVM command set is supported.
    #[must_use]
    pub fn supports_nvm(self) -> bool {
        self.0 & 1 << 37 != 0
    }

    /// MPSMIN: the smallest memory page is 2^(12 + MPSMIN) bytes.
    #[must_use]
    pub fn mpsmin(self) -> u8 {
        self.0.to_le_bytes()[6] & 0x0f
    }

    /// CAP of a fabrics controller with 4 KiB pages and the NVM command set: CQR set, DSTRD,
    /// NSSRS, MPSMIN, MPSMAX and CRMS 0.
    #[must_use]
    pub fn fabrics(mqes: u16, to: u8) -> Self {
        const CQR: u64 = 1 << 16;
        const CSS_NVM: u64 = 1 << 37;
        Self(u64::from(mqes) | CQR | u64::from(to) << 24 | CSS_NVM)
    }

    /// CSS bit 6: the controller reports its I/O command sets (Identify, CNS 1Ch), and CC.CSS may select
    /// all of them.
    #[must_use]
    pub fn tells_command_sets(self) -> bool {
        self.0 & Self::CSS_ALL != 0
    }

    /// The same with CSS bit 6.
    #[must_use]
    pub fn telling_command_sets(self) -> Self {
        Self(self.0 | Self::CSS_ALL)
    }

    const CSS_ALL: u64 = 1 << 43;
}

/// CC (Base 2.0, figure 46).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Configuration(pub u32);

impl Configuration {
    /// EN, with 64-byte submission and 16-byte completion entries, the NVM command set, 4 KiB.
    pub const ENABLED: Self = Self(4 << 20 | 6 << 16 | 1);

    /// CSS: the NVM command set.
    pub const CSS_NVM: u32 = 0b000;
    /// CSS: all I/O command sets that the controller has.
    pub const CSS_ALL: u32 = 0b110;

    /// EN.
    #[must_use]
    pub fn en(self) -> bool {
        self.0 & 1 != 0
    }

    /// CSS: the command set.
    #[must_use]
    pub fn css(self) -> u32 {
        self.0 >> 4 & 0b111
    }

    /// MPS: the memory page is 2^(12 + MPS) bytes.
    #[must_use]
    pub fn mps(self) -> u32 {
        self.0 >> 7 & 0xf
    }

    /// AMS: arbitration.
    #[must_use]
    pub fn ams(self) -> u32 {
        self.0 >> 11 & 0b111
    }

    /// SHN: 1 normal, 2 abrupt shutdown.
    #[must_use]
    pub fn shn(self) -> u32 {
        self.0 >> 14 & 0b11
    }

    /// IOSQES: log2 of the submission queue entry size.
    #[must_use]
    pub fn iosqes(self) -> u32 {
        self.0 >> 16 & 0xf
    }

    /// IOCQES: log2 of the completion queue entry size.
    #[must_use]
    pub fn iocqes(self) -> u32 {
        self.0 >> 20 & 0xf
    }

    /// The same with CSS replaced.
    #[must_use]
    pub fn with_css(self, css: u32) -> Self {
        Self(self.0 & !(0b111 << 4) | (css & 0b111) << 4)
    }

    /// The same with SHN replaced.
    #[must_use]
    pub fn with_shn(self, shn: u32) -> Self {
        Self(self.0 & !(0b11 << 14) | (shn & 0b11) << 14)
    }
}

/// CSTS (Base 2.0, figure 47).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerStatus(pub u32);

impl ControllerStatus {
    /// RDY.
    #[must_use]
    pub fn rdy(self) -> bool {
        self.0 & 1 != 0
    }

    /// CFS: controller fatal status.
    #[must_use]
    pub fn cfs(self) -> bool {
        self.0 & 2 != 0
    }

    /// SHST: 0 none, 1 in progress, 2 complete.
    #[must_use]
    pub fn shst(self) -> u32 {
        self.0 >> 2 & 0b11
    }

    /// From its parts.
    #[must_use]
    pub fn new(rdy: bool, cfs: bool, shst: u32) -> Self {
        Self(u32::from(rdy) | u32::from(cfs) << 1 | (shst & 0b11) << 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_layout() {
        let cap = Capabilities::fabrics(127, 30);
        assert_eq!(cap.0, 0x0000_0020_1e01_007f);
        assert_eq!((cap.mqes(), cap.to(), cap.mpsmin()), (127, 30, 0));
        assert!(cap.supports_nvm() && !cap.tells_command_sets());
        let cap = cap.telling_command_sets();
        assert_eq!(cap.0, 0x0000_0820_1e01_007f);
        assert!(cap.supports_nvm() && cap.tells_command_sets());
    }

    #[test]
    fn configuration_layout() {
        let cc = Configuration(0x0046_4001);
        assert!(cc.en());
        assert_eq!((cc.iosqes(), cc.iocqes(), cc.shn()), (6, 4, 1));
        assert_eq!(Configuration::ENABLED.with_shn(1), cc);
        let cc = Configuration(0b101 << 11 | 0b1001 << 7 | 0b110 << 4);
        assert_eq!((cc.ams(), cc.mps(), cc.css()), (0b101, 0b1001, 0b110));
        assert_eq!(Configuration::ENABLED.with_css(Configuration::CSS_ALL).0, 0x0046_0061);
        assert_eq!(ControllerStatus::new(true, true, 2), ControllerStatus(0b1011));
    }

    #[test]
    fn property_commands() {
        let get = PropertyAccess::get(CAP, PropertySize::Eight);
        assert_eq!((get.opc, get.fctype(), get.cdw10.get()), (0x7f, 0x04, 1));
        let set = PropertyAccess::set(CC, 0x0046_0001);
        assert_eq!((set.opc, set.fctype(), set.cdw11.get()), (0x7f, 0x00, 0x14));
        assert_eq!(
            PropertyAccess::parse(&set),
            Some(PropertyAccess { size: PropertySize::Four, offset: CC, value: 0x0046_0001 })
        );
        let bad = Sqe { cdw10: 2.into(), ..get };
        assert_eq!(PropertyAccess::parse(&bad), None);
    }
}
