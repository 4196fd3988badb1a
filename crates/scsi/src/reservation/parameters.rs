//! The parameter list of Persistent Reserve Out (SPC-5, 6.17.3).

use crate::cdb::{ReserveOut, ReserveOutAction};
use crate::sense::{FieldPointer, Sense};

/// Bytes of the list: without a list of transport identifiers.
const LIST_LEN: usize = 24;

/// The parameter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveOutParameters {
    /// RESERVATION KEY: with which the I_T nexus is registered.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY: to register, or of the registrants to preempt.
    pub action_key: u64,
    /// APTPL: registrations and reservations are to be there after a power loss.
    pub persist: bool,
}

impl ReserveOutParameters {
    /// Parses the list. Only registering looks at the flags.
    ///
    /// # Errors
    /// PARAMETER LIST LENGTH ERROR, or INVALID FIELD IN PARAMETER LIST for SPEC_I_PT and ALL_TG_PT, which the
    /// capabilities say are not supported.
    pub fn parse(command: &ReserveOut, data: &[u8]) -> Result<Self, Sense> {
        let Ok(list) = <&[u8; LIST_LEN]>::try_from(data) else {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        };
        let [k0, k1, k2, k3, k4, k5, k6, k7, a0, a1, a2, a3, a4, a5, a6, a7, .., flags, _, _, _] =
            *list;
        let registers = matches!(
            command.action,
            ReserveOutAction::Register | ReserveOutAction::RegisterAndIgnore
        );
        for bit in [3, 2] {
            if registers && flags & (1 << bit) != 0 {
                let field = FieldPointer { in_cdb: false, bit: Some(bit), byte: 20 };
                return Err(Sense::INVALID_FIELD_IN_PARAMETERS.at(field));
            }
        }
        Ok(Self {
            key: u64::from_be_bytes([k0, k1, k2, k3, k4, k5, k6, k7]),
            action_key: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            persist: registers && flags & 0x01 != 0,
        })
    }
}
