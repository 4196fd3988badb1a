//! Discovery log page (Fabrics 1.1, 5.3; Base 2.0, 5.16.1.23).

use std::net::IpAddr;

use zerocopy::little_endian::{U16, U64};

use super::wire::wire;

wire! {
    /// Header of the Discovery log page.
    pub struct DiscoveryHeader[1024] {
        /// GENCTR: changes whenever the content does.
        pub genctr: U64,
        /// NUMREC: entries that follow.
        pub numrec: U64,
        /// RECFMT: 0.
        pub recfmt: U16,
        /// Reserved.
        pub reserved_18: [u8; 1006],
    }
}

wire! {
    /// Discovery log page entry.
    pub struct DiscoveryEntry[1024] {
        /// TRTYPE: 3 is TCP.
        pub trtype: u8,
        /// ADRFAM: 1 IPv4, 2 IPv6.
        pub adrfam: u8,
        /// SUBTYPE: 1 referral, 2 NVM subsystem, 3 this discovery subsystem.
        pub subtype: u8,
        /// TREQ: bits 1:0 secure channel, 2 SQ flow control may be disabled.
        pub treq: u8,
        /// PORTID.
        pub portid: U16,
        /// CNTLID: FFFFh is the dynamic controller model.
        pub cntlid: U16,
        /// ASQSZ: most entries of the admin queue.
        pub asqsz: U16,
        /// EFLAGS.
        pub eflags: U16,
        /// Reserved.
        pub reserved_12: [u8; 20],
        /// TRSVCID: the TCP port in decimal, space padded.
        pub trsvcid: [u8; 32],
        /// Reserved.
        pub reserved_64: [u8; 192],
        /// SUBNQN: zero padded.
        pub subnqn: [u8; 256],
        /// TRADDR: the IP address as text, space padded.
        pub traddr: [u8; 256],
        /// TSAS: byte 0 is SECTYPE: 0 none, 1 TLS 1.2, 2 TLS 1.3.
        pub tsas: [u8; 256],
    }
}

/// TRTYPE of TCP.
pub const TRTYPE_TCP: u8 = 3;
/// ADRFAM of IPv4.
pub const ADRFAM_IPV4: u8 = 1;
/// ADRFAM of IPv6.
pub const ADRFAM_IPV6: u8 = 2;
/// SUBTYPE: a referral to another discovery service.
pub const SUBTYPE_REFERRAL: u8 = 1;
/// SUBTYPE: an NVM subsystem.
pub const SUBTYPE_NVM: u8 = 2;
/// SUBTYPE: the discovery subsystem that was asked.
pub const SUBTYPE_CURRENT_DISCOVERY: u8 = 3;
/// EFLAGS bit 0, DUPRETINFO: every entry of this kind gives the same log.
pub const EFLAGS_DUPLICATE: u16 = 1 << 0;
/// EFLAGS bit 1, EPCSD: the discovery service takes connections that last.
pub const EFLAGS_PERSISTENT: u16 = 1 << 1;
/// SECTYPE, the first byte of TSAS: TLS 1.3.
pub const SECTYPE_TLS_1_3: u8 = 2;
/// TREQ bits 1:0: a secure channel is required.
pub const TREQ_SECURE_REQUIRED: u8 = 1;
/// TREQ bits 1:0: a secure channel is not required.
pub const TREQ_SECURE_NOT_REQUIRED: u8 = 2;
/// TREQ bit 2: Connect may disable SQ flow control.
pub const TREQ_DISABLE_SQ_FLOW: u8 = 1 << 2;

impl DiscoveryEntry {
    /// ADRFAM of an address.
    #[must_use]
    pub fn address_family(address: IpAddr) -> u8 {
        if address.is_ipv4() { ADRFAM_IPV4 } else { ADRFAM_IPV6 }
    }

    /// TRADDR and TRSVCID as text without padding, when they are ASCII.
    #[must_use]
    pub fn address(&self) -> Option<(&str, &str)> {
        Some((text(&self.traddr)?, text(&self.trsvcid)?))
    }
}

/// A field up to its padding of spaces or zeroes.
fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    let (used, _) = field.split_at(end);
    let text = std::str::from_utf8(used).ok()?.trim_end_matches(' ');
    text.is_ascii().then_some(text)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn discovery_offsets() {
        assert_eq!(offset_of!(DiscoveryHeader, recfmt), 16);
        assert_eq!(offset_of!(DiscoveryEntry, portid), 4);
        assert_eq!(offset_of!(DiscoveryEntry, asqsz), 8);
        assert_eq!(offset_of!(DiscoveryEntry, trsvcid), 32);
        assert_eq!(offset_of!(DiscoveryEntry, subnqn), 256);
        assert_eq!(offset_of!(DiscoveryEntry, traddr), 512);
        assert_eq!(offset_of!(DiscoveryEntry, tsas), 768);
    }

    #[test]
    fn addresses_end_at_padding() {
        let mut entry = DiscoveryEntry::default();
        entry.traddr[..9].copy_from_slice(b"10.0.0.1 ");
        entry.trsvcid = super::super::identify::ascii_field("4420");
        assert_eq!(entry.address(), Some(("10.0.0.1", "4420")));
        entry.traddr = [0xff; 256];
        assert_eq!(entry.address(), None);
    }
}
