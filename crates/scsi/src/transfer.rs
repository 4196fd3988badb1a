//! How much of a command's data moves, and what is left over (RFC 7143, 11.4.5; SAM-6, 5.4.2).

/// Which way the initiator says that data move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataDirection {
    /// There are no data.
    None,
    /// From the target to the initiator.
    In,
    /// From the initiator to the target.
    Out,
}

/// A command as it comes to a logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The CDB; shorter ones are padded with zeroes.
    pub cdb: [u8; 16],
    /// Expected data transfer length in bytes.
    pub edtl: u32,
    /// Which way the initiator expects data. Both ways at once is for the transport to refuse.
    pub direction: DataDirection,
}

/// The difference between what a command moves and what the initiator expects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Residual {
    /// There is none.
    #[default]
    None,
    /// So many of the expected bytes do not move (U).
    Underflow(u32),
    /// So many bytes of the command were not expected, and do not move (O).
    Overflow(u32),
}

/// The data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Which way they move; `None` exactly if none do.
    pub direction: DataDirection,
    /// How many bytes: never more than the initiator expects.
    pub bytes: u32,
    /// What is left over if the command succeeds.
    pub residual: Residual,
}

impl Transfer {
    /// The transfer of a command that moves `needed` bytes in a direction.
    ///
    /// A direction other than the command's gives nothing to move: bytes that the initiator sends for a command that
    /// reads are no data of the command, and are for the transport to drop.
    #[must_use]
    pub fn new(request: &Request, direction: DataDirection, needed: u64) -> Self {
        let room = if request.direction == direction { request.edtl } else { 0 };
        let bytes = u32::try_from(needed.min(u64::from(room))).expect("at most `room`");
        let over = needed - u64::from(bytes);
        let residual = if over > 0 {
            Residual::Overflow(u32::try_from(over).unwrap_or(u32::MAX))
        } else if request.direction != DataDirection::None && request.edtl > bytes {
            Residual::Underflow(request.edtl - bytes)
        } else {
            Residual::None
        };
        let direction = if bytes == 0 { DataDirection::None } else { direction };
        Self { direction, bytes, residual }
    }

    /// The transfer of a command without data.
    #[must_use]
    pub fn none(request: &Request) -> Self {
        Self::new(request, DataDirection::None, 0)
    }

    /// Whether exactly what the command needs moves.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.residual == Residual::None
    }
}
