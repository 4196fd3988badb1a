//! An I_T nexus of iSCSI: what is registered with a device beside the hosts of NVMe (SAM-6, 4.6.3).

use std::hash::{Hash, Hasher};

use crate::nvme::HostId;

/// A target port of iSCSI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    /// Its group: the target portal group tag.
    pub group: u16,
    /// Its relative target port identifier, from 1. It may be another one after a restart of the target.
    pub relative: u16,
}

/// An I_T nexus: an initiator port and a target port. It is the same one after a new login with the same names, and
/// after a restart of the target.
#[derive(Clone, Debug)]
pub struct Nexus {
    /// The initiator's name in its normal form (lower case), at most 223 bytes.
    pub initiator: String,
    /// ISID of the session. With the name it is the initiator port.
    pub isid: [u8; 6],
    /// The target's name in its normal form, at most 223 bytes.
    pub target: String,
    /// The target port. Its group and the target's name identify it; its relative identifier does not.
    pub port: Port,
}

impl Nexus {
    fn identity(&self) -> (&str, [u8; 6], &str, u16) {
        (&self.initiator, self.isid, &self.target, self.port.group)
    }

    /// The name of the initiator port: `NAME,i,0xISID` (RFC 7143, 10.2.2).
    #[must_use]
    pub fn initiator_port(&self) -> String {
        let mut name = format!("{},i,0x", self.initiator);
        for byte in self.isid {
            name.push_str(&format!("{byte:02x}"));
        }
        name
    }

    /// The host identifier that stands for the I_T nexus where NVMe asks for one, so in a Reservation Report. It is the
    /// same after a restart: the FNV-1a hash (128 bits) of the names of both ports, as `NAME,i,0xISID,NAME,t,0xTAG`, in
    /// the form of a UUID of version 8 (RFC 9562, 5.8). It is no secret. Who is registered is never decided by it alone.
    #[must_use]
    pub fn host_id(&self) -> HostId {
        const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let text = format!("{},{},t,0x{:04x}", self.initiator_port(), self.target, self.port.group);
        let hash = text.bytes().fold(BASIS, |hash, byte| {
            let mixed = hash ^ u128::from(byte);
            mixed.wrapping_mul(PRIME)
        });
        let mut id = hash.to_be_bytes();
        id[6] = id[6] & 0x0f | 0x80;
        id[8] = id[8] & 0x3f | 0x80;
        HostId(id)
    }
}

impl PartialEq for Nexus {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Nexus {}

impl Hash for Nexus {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nexus() -> Nexus {
        Nexus {
            initiator: "iqn.2026-01.org.example:a".to_owned(),
            isid: [0x80, 0, 0, 0, 0, 1],
            target: "iqn.2026-01.io.raceline:disk".to_owned(),
            port: Port { group: 1, relative: 1 },
        }
    }

    #[test]
    fn each_part_of_the_identity_counts_and_nothing_else() {
        let one = nexus();
        let renumbered = Nexus { port: Port { relative: 7, ..one.port }, ..nexus() };
        assert_eq!((&one, one.host_id()), (&renumbered, renumbered.host_id()));
        let others = [
            Nexus { initiator: "iqn.2026-01.org.example:b".to_owned(), ..nexus() },
            Nexus { isid: [0x80, 0, 0, 0, 0, 2], ..nexus() },
            Nexus { target: "iqn.2026-01.io.raceline:tape".to_owned(), ..nexus() },
            Nexus { port: Port { group: 2, ..one.port }, ..nexus() },
        ];
        for other in others {
            assert_ne!(one, other);
            assert_ne!(one.host_id(), other.host_id());
        }
    }

    #[test]
    fn the_host_identifier_is_a_uuid_of_version_8_and_stays() {
        let id = nexus().host_id();
        assert_eq!((id.0[6] >> 4, id.0[8] >> 6), (8, 2));
        // Computed apart from this code: it is in files of daemons, so it must not change.
        assert_eq!(id.0, EXPECTED);
    }

    const EXPECTED: [u8; 16] = [
        0x21, 0x77, 0xcc, 0xba, 0x66, 0x3c, 0x88, 0x50, 0x88, 0x0e, 0xec, 0x1a, 0x42, 0x86, 0x5c,
        0xf5,
    ];
}
