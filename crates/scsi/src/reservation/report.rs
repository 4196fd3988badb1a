//! What Persistent Reserve In reports (SPC-5, 6.16).

use raceline_proto::nvme::reservation::ReservationType;

use super::types::type_to_wire;
use super::{Nexus, Reservations};
use crate::cdb::ReserveInAction;

impl Reservations {
    /// The parameter data.
    #[must_use]
    pub fn report(&self, action: ReserveInAction) -> Vec<u8> {
        match action {
            ReserveInAction::Keys => {
                let keys = self.registrants.iter().flat_map(|one| one.key.to_be_bytes());
                self.with_header(&keys.collect::<Vec<_>>())
            }
            ReserveInAction::Reservation => self.with_header(&self.descriptor()),
            ReserveInAction::Capabilities => self.capabilities(),
            ReserveInAction::FullStatus => self.full_status(),
        }
    }

    /// PRGENERATION and ADDITIONAL LENGTH before the descriptors.
    fn with_header(&self, descriptors: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + descriptors.len());
        bytes.extend(self.generation.to_be_bytes());
        bytes.extend(u32::try_from(descriptors.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend(descriptors);
        bytes
    }

    /// The one descriptor of READ RESERVATION; its key is 0 where all registrants hold it.
    fn descriptor(&self) -> Vec<u8> {
        let Some(held) = &self.held else { return Vec::new() };
        let mut registrants = self.registrants.iter();
        let holder =
            registrants.find(|one| !held.kind.is_held_by_all() && one.nexus == held.holder);
        let mut bytes = vec![0; 16];
        bytes[..8].copy_from_slice(&holder.map_or(0, |one| one.key).to_be_bytes());
        bytes[13] = type_to_wire(held.kind);
        bytes
    }

    /// CRH and PTPL_C; TMV, PTPL_A and all six types.
    fn capabilities(&self) -> Vec<u8> {
        let mut types = 0_u16;
        for kind in ReservationType::ALL {
            // the type in bits 7:0 of the first byte up to 7; type 8 is bit 0 of the second one
            types |= match type_to_wire(kind) {
                8 => 0x0001,
                number => 0x0100 << number,
            };
        }
        let [first, second] = types.to_be_bytes();
        let can = 0x10 | u8::from(self.can_persist);
        vec![0, 8, can, 0x80 | u8::from(self.persists), first, second, 0, 0]
    }

    fn full_status(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for registrant in &self.registrants {
            let id = transport_id(&registrant.nexus);
            let mut bytes = [0; 24];
            bytes[..8].copy_from_slice(&registrant.key.to_be_bytes());
            if let Some(held) = self.held.as_ref().filter(|_| self.holds(registrant)) {
                bytes[12] = 0x01; // R_HOLDER
                bytes[13] = type_to_wire(held.kind);
            }
            bytes[18..20].copy_from_slice(&registrant.nexus.port.relative.to_be_bytes());
            let len = u32::try_from(id.len()).expect("a name of at most 223 bytes");
            bytes[20..24].copy_from_slice(&len.to_be_bytes());
            all.extend(bytes);
            all.extend(id);
        }
        self.with_header(&all)
    }
}

/// The iSCSI TransportID of an initiator port (SPC-5, 7.6.4.6): format 01b, protocol 5h, then `NAME,i,0xISID`,
/// ended and padded with zeroes to a multiple of 4 bytes, at least 20.
#[must_use]
pub fn transport_id(nexus: &Nexus) -> Vec<u8> {
    let mut name = format!("{},i,0x", nexus.initiator).into_bytes();
    for byte in nexus.isid {
        name.extend(format!("{byte:02x}").bytes());
    }
    name.push(0);
    name.resize(name.len().next_multiple_of(4).max(20), 0);
    let len = u16::try_from(name.len()).unwrap_or(u16::MAX);
    let mut id = vec![0x45, 0];
    id.extend(len.to_be_bytes());
    id.extend(name);
    id
}
