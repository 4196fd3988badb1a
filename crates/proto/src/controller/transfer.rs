//! The data transfer that a command's SGL descriptor asks for (Base 2.0, 4.1.2; NVMe/TCP 3.3).

use crate::nvme::{Direction, SglDescriptor, Sqe, Status, Transfer};

/// Checks PSDT and the SGL descriptor of a command whose data goes that way. The transfer is
/// without direction when its length is 0: such a command moves no data whatever its opcode.
pub(crate) fn sgl_transfer(
    sqe: &Sqe,
    direction: Direction,
    max_bytes: u32,
) -> Result<Transfer, Status> {
    if !sqe.uses_sgl() {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let sgl = &sqe.sgl1;
    match (direction, sgl.kind) {
        // no data: hosts leave an empty descriptor of one kind or another
        (Direction::None, _) => return Ok(Transfer::default()),
        (_, SglDescriptor::TRANSPORT) => {}
        (Direction::HostToController, SglDescriptor::IN_CAPSULE) => {
            if sgl.address.get() != 0 {
                return Err(Status::INVALID_SGL_OFFSET.dnr());
            }
        }
        _ => return Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()),
    }
    match sgl.length.get() {
        0 => Ok(Transfer::default()),
        len if len > max_bytes => Err(Status::INVALID_FIELD.dnr()),
        len => Ok(Transfer { direction, len }),
    }
}

/// Which way a command's data goes, by its opcode or FCTYPE; `None` for the reserved value
/// (Base 2.0, figure 86).
pub(crate) fn direction_of(code: u8) -> Option<Direction> {
    match code & 0b11 {
        0b00 => Some(Direction::None),
        0b01 => Some(Direction::HostToController),
        0b10 => Some(Direction::ControllerToHost),
        _ => None,
    }
}
