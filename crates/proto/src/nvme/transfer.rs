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

/// A command's data transfer, checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Which way.
    pub direction: Direction,
    /// Bytes; 0 exactly when the direction is [`Direction::None`].
    pub len: u32,
}
