//! What Persistent Reserve In reports (SPC-5, 6.16).

use raceline_proto::nvme::reservation::ReservationType;
use raceline_proto::nvme::{HostId, HostNqn};

use super::types::type_to_wire;
use super::{Nexus, Registrant, Reservations, Who};
use crate::cdb::ReserveInAction;

/// The parameter data. Hosts of NVMe are registrants like I_T nexuses: their keys count, and FULL STATUS shows each by
/// its [`host_transport_id`].
#[must_use]
pub fn report(state: &Reservations, action: ReserveInAction) -> Vec<u8> {
    match action {
        ReserveInAction::Keys => {
            let keys = state.registrants.iter().flat_map(|one| one.key.to_be_bytes());
            with_header(state, &keys.collect::<Vec<_>>())
        }
        ReserveInAction::Reservation => with_header(state, &descriptor(state)),
        ReserveInAction::Capabilities => capabilities(state),
        ReserveInAction::FullStatus => full_status(state),
    }
}

/// PRGENERATION and ADDITIONAL LENGTH before the descriptors.
fn with_header(state: &Reservations, descriptors: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + descriptors.len());
    bytes.extend(state.generation.to_be_bytes());
    bytes.extend(u32::try_from(descriptors.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(descriptors);
    bytes
}

/// The one descriptor of READ RESERVATION; its key is 0 where all registrants hold it.
fn descriptor(state: &Reservations) -> Vec<u8> {
    let Some(held) = state.held else { return Vec::new() };
    let mut registrants = state.registrants.iter();
    let holder = registrants.find(|one| !held.kind.is_held_by_all() && one.id == held.holder);
    let mut bytes = vec![0; 16];
    bytes[..8].copy_from_slice(&holder.map_or(0, |one| one.key).to_be_bytes());
    bytes[13] = type_to_wire(held.kind);
    bytes
}

/// CRH and PTPL_C; TMV, PTPL_A and all six types.
fn capabilities(state: &Reservations) -> Vec<u8> {
    let mut types = 0_u16;
    for kind in ReservationType::ALL {
        // the type in bits 7:0 of the first byte up to 7; type 8 is bit 0 of the second one
        types |= match type_to_wire(kind) {
            8 => 0x0001,
            number => 0x0100 << number,
        };
    }
    let [first, second] = types.to_be_bytes();
    let can = 0x10 | u8::from(state.can_persist);
    vec![0, 8, can, 0x80 | u8::from(state.persists), first, second, 0, 0]
}

fn full_status(state: &Reservations) -> Vec<u8> {
    let mut all = Vec::new();
    for registrant in &state.registrants {
        let id = id_of(registrant);
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&registrant.key.to_be_bytes());
        if let Some(held) = state.held.filter(|_| state.holds(registrant)) {
            bytes[12] = 0x01; // R_HOLDER
            bytes[13] = type_to_wire(held.kind);
        }
        // A host of NVMe comes by no target port of SCSI: 0 is the number of none.
        let port = registrant.as_nexus().map_or(0, |nexus| nexus.port.relative);
        bytes[18..20].copy_from_slice(&port.to_be_bytes());
        let len = u32::try_from(id.len()).expect("names of at most 223 bytes");
        bytes[20..24].copy_from_slice(&len.to_be_bytes());
        all.extend(bytes);
        all.extend(id);
    }
    with_header(state, &all)
}

fn id_of(registrant: &Registrant) -> Vec<u8> {
    match &registrant.who {
        Who::Nexus(nexus) => transport_id(nexus),
        Who::Host(name) => host_transport_id(registrant.id, name.as_ref()),
    }
}

/// The iSCSI TransportID of an initiator port (SPC-5, 7.6.4.6): format 01b, protocol 5h, then `NAME,i,0xISID`,
/// ended and padded with zeroes to a multiple of 4 bytes, at least 20.
#[must_use]
pub fn transport_id(nexus: &Nexus) -> Vec<u8> {
    named(0x45, nexus.initiator_port())
}

/// What stands for a host of NVMe where SCSI asks for a TransportID. SPC-5 has none for NVMe over fabrics, so it is in
/// the form of iSCSI's with another protocol: format 01b, protocol Fh (no specific protocol), then `HOSTNQN,h,0xHOSTID`
/// with 32 hexadecimal digits, ended and padded alike. A host that is known by its identifier alone has no `HOSTNQN`
/// before the comma.
#[must_use]
pub fn host_transport_id(id: HostId, name: Option<&HostNqn>) -> Vec<u8> {
    let name = match name {
        Some(HostNqn::Named(name)) => name.as_str(),
        Some(HostNqn::Unnamed) | None => "",
    };
    named(0x4f, format!("{name},h,0x{:032x}", u128::from_be_bytes(id.0)))
}

fn named(first: u8, name: String) -> Vec<u8> {
    let mut name = name.into_bytes();
    name.push(0);
    name.resize(name.len().next_multiple_of(4).max(20), 0);
    let len = u16::try_from(name.len()).unwrap_or(u16::MAX);
    let mut id = vec![first, 0];
    id.extend(len.to_be_bytes());
    id.extend(name);
    id
}
