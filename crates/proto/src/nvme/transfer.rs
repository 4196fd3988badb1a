//! Which way a command's data goes, and how much of it.

/// Direction of a command's data; opcode bits 1:0 say it (Base 2.0, 3.3.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// No data.
    #[default]
    None,
    /// From host to controller.
    HostToController,
    /// From controller to host.
    ControllerToHost,
}

impl Direction {
    /// By an opcode or FCTYPE; `None` for the reserved value (Base 2.0, figure 86).
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        match code & 0b11 {
            0b00 => Some(Self::None),
            0b01 => Some(Self::HostToController),
            0b10 => Some(Self::ControllerToHost),
            _ => None,
        }
    }
}

/// A command's data transfer, checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Which way.
    pub direction: Direction,
    /// Bytes; 0 exactly when the direction is [`Direction::None`].
    pub len: u32,
}
