//! What a socket is for, as its owner declares it.

/// What the sends of a socket tell about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Traffic {
    /// Admin commands, or nothing yet: its batches leave whole, and no batch is cut into shares for its sake.
    #[default]
    Admin,
    /// Responses and data of a target. A queue whose sends are small waits for small answers.
    Responses,
    /// Commands and data of a host. A small send says nothing: a bulk writer's capsules are small, too.
    Commands,
}

/// How the bytes of a socket's batches come into the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Departure {
    /// By a copy.
    #[default]
    Copied,
    /// By a copy, with what the sender knows of the bytes that follow: each call that leaves bytes of its
    /// batch to another one says so (MSG_MORE), and the last one ends a record (MSG_EOR), unless the owner
    /// has said that another batch follows ([`crate::SendBatch::set_followed`]).
    Flagged,
    /// Large payloads that stay as they are may leave without a copy
    /// ([`crate::SendBatch::push_kept`]).
    ByReference,
    /// A batch that consists for the most part of payloads of at least so many bytes in memory of regions
    /// ([`crate::Payload::Region`]) may leave without a copy. It is kept until the kernel has told that
    /// nobody reads its memory any more; its owner gets another one back. Over io_uring only.
    ZeroCopy(usize),
}

/// How a socket is to be treated beside the others of its core. An owner declares it with
/// [`crate::Io::declare`] when the socket is adopted, and again when it learns more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketClass {
    /// What it carries.
    pub traffic: Traffic,
    /// Most bytes of one send while a socket with small sends waits for its turn; not 0.
    pub share: usize,
    /// Bytes of the core's staging memory that one of its receives may fill; 0: it has only its own.
    pub core_staging: usize,
    /// How its bytes come into the kernel.
    pub departure: Departure,
}

impl SocketClass {
    /// Of an admin queue, and of every socket until its owner says something else.
    pub const ADMIN: SocketClass = SocketClass {
        traffic: Traffic::Admin,
        share: usize::MAX,
        core_staging: 0,
        departure: Departure::Copied,
    };

    /// Whether its sends take turns with those of others.
    pub(crate) fn takes_turns(&self) -> bool {
        self.traffic != Traffic::Admin
    }
}

impl Default for SocketClass {
    fn default() -> SocketClass {
        SocketClass::ADMIN
    }
}
