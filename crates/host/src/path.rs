//! What is known of a path by itself: its name and address, how well it leads to namespaces, and when the commands of
//! its lost association can execute no more. [`crate::multipath`] makes several paths one.

pub(crate) mod ana;
mod config;
mod fence;
mod numa;

use std::fmt;

pub use ana::{Access, PathAna};
pub use config::{DEFAULT_QUIESCE, MultipathConfig, PathAddress, Policy};
pub use fence::Fence;
pub(crate) use fence::Lease;
pub use numa::Topology;
pub(crate) use numa::current_core;

/// The name of a path, which no other path of the subsystem gets again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u16);

impl PathId {
    /// The path that a host begins with.
    pub const FIRST: Self = Self(0);
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which path commands take, beyond what paths were connected with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Routing {
    /// `None`: as paths were connected with.
    pub(crate) options: Option<MultipathConfig>,
    /// The path that is taken before others that are as good.
    pub(crate) preferred: Option<PathId>,
    /// Commands are counted by path.
    pub(crate) counts_paths: bool,
}
