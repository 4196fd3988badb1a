//! The data transfer that a command's SGL descriptor asks for (Base 2.0, 4.1.2; NVMe/TCP 3.3).

use crate::nvme::{Direction, SglDescriptor, Sqe, Status, Transfer};

/// Checks PSDT and the SGL descriptor of a command whose data go in this direction. A transfer of length 0
/// has no direction: such a command moves no data, whatever its opcode.
pub(crate) fn sgl_transfer(
    sqe: &Sqe,
    direction: Direction,
    max_bytes: u32,
) -> Result<Transfer, Status> {
    if !sqe.uses_sgl() {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let sgl = &sqe.sgl1;
    let len = sgl.length.get();
    // No data: hosts leave various kinds of empty descriptors, even one of zeroes.
    if direction == Direction::None || len == 0 {
        return Ok(Transfer::default());
    }
    match (direction, sgl.kind) {
        (_, SglDescriptor::TRANSPORT) => {}
        (Direction::HostToController, SglDescriptor::IN_CAPSULE) => {
            if sgl.address.get() != 0 {
                return Err(Status::INVALID_SGL_OFFSET.dnr());
            }
        }
        _ => return Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()),
    }
    if len > max_bytes {
        return Err(Status::INVALID_FIELD.dnr());
    }
    Ok(Transfer { direction, len })
}

/// Whether the descriptor of a command without data has a type that commands cannot have here. That
/// does no harm.
pub(crate) fn is_odd_and_empty(sqe: &Sqe) -> bool {
    let sgl = &sqe.sgl1;
    sgl.length.get() == 0
        && !matches!(sgl.kind, SglDescriptor::TRANSPORT | SglDescriptor::IN_CAPSULE)
}
