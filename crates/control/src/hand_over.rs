//! A daemon's work goes to a new process, whose hosts see a pause and no error.
//!
//! The daemon listens on a socket of its own ([`socket_of`]). A successor ([`Predecessor`]) meets it there, and the two go
//! through these steps. Until the last one, the daemon goes on as if nothing had been when anything fails.
//!
//! | step | the successor | the daemon |
//! |---|---|---|
//! | 1 | says which forms it knows | checks that and who it is, holds back changes, and gives its configuration and what only one process can have: listeners, locks, devices, memory |
//! | 2 | makes everything anew; says that it is ready | tells hosts whose connections cannot go over; has the others rest between two commands, and gives their state and their sockets |
//! | 3 | makes the connections; says that it has them | ends what could not be handed over, and says that they are the successor's; it ends |
//! | 4 | goes on | |
//!
//! The state of NVMe/TCP connections goes over. Those with TLS or by RDMA and those of iSCSI end in step 3 in good order, and
//! their hosts connect anew. The addresses of RDMA listeners belong to one process: the successor listens there after step 3,
//! when the daemon is gone. Counters begin anew. So do clients of the RPC socket, which is handed over itself.

mod daemon;
mod late;
mod successor;
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use raceline_target::HandedTarget;
use serde::{Deserialize, Serialize};

use crate::manager::catalogue::{Entry, Key};

pub use daemon::{LastWords, Successors};
pub use successor::Predecessor;
pub use wire::Wire;

/// The form of what the two processes say to each other, but for the state of connections, which has its own
/// ([`raceline_target::FORM`]).
pub const FORM: u32 = 3;

/// By these words a successor knows that the daemon refuses another form. Each version of the daemon says them, and none may say
/// them of anything else.
const OTHER_FORM: &str = "cannot go on with the state of version";

/// Where a daemon with this RPC socket meets its successor.
#[must_use]
pub fn socket_of(rpc_socket: &Path) -> PathBuf {
    let mut name = rpc_socket.as_os_str().to_owned();
    name.push(".take-over");
    name.into()
}

/// Why a daemon's work cannot be taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeOverError {
    /// No daemon is there.
    #[error(
        "no daemon can be met at {path} ({error}): name its RPC socket with -r, and run this as the same user; \
         if none runs, start one without --take-over"
    )]
    NotThere {
        /// Where it would be.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The daemon does not agree.
    #[error("the daemon goes on and is not replaced: {0}")]
    Refused(String),
    /// The daemon is of a version with another form of state: only a restart leads to this version.
    #[error("the daemon goes on and is not replaced: {0}")]
    OtherForm(String),
    /// The daemon has fallen silent, or has ended.
    #[error("the daemon has not answered ({0}): it goes on if it still runs")]
    Lost(io::Error),
    /// This process cannot do what the daemon does, and the daemon is gone.
    #[error(
        "this process cannot take the daemon's place ({0}), and the daemon does not listen to it any more: if it has ended, start \
         one without --take-over"
    )]
    Gone(String),
    /// This process cannot do what the daemon does.
    #[error("the daemon goes on, since this process cannot take its place: {0}")]
    Unable(String),
}

/// What a successor says.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromSuccessor {
    /// It wants to take the place of the daemon.
    Hello(Hello),
    /// Everything exists but the connections.
    Ready,
    /// The connections exist as well.
    Taken,
    /// It gives up.
    Failed(String),
}

/// Who a successor is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    /// [`FORM`].
    pub form: u32,
    /// [`raceline_target::FORM`].
    pub connections: u32,
    /// The version of the program, for people.
    pub version: String,
    /// Where it would keep changes.
    pub state_dir: Option<PathBuf>,
}

impl Hello {
    /// That of this program.
    #[must_use]
    pub fn of_this_program(state_dir: Option<PathBuf>) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { form: FORM, connections: raceline_target::FORM, version, state_dir }
    }
}

/// What a daemon says.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromDaemon {
    /// It goes on. The reason is for the one who has started the successor.
    Refused(String),
    /// What it has. As many descriptors as there are names follow.
    Offer(Offered),
    /// Its connections. Their sockets follow.
    State(HandedState),
    /// It is gone, as far as hosts are concerned.
    Go,
}

/// What a daemon has besides connections.
#[derive(Debug, Serialize, Deserialize)]
pub struct Offered {
    /// The calls that make its configuration.
    catalogue: Vec<(Key, Entry)>,
    /// Parts of it that are missing, and what hosts lack therefore ([`crate::manager::Model::absent`]).
    missing: Vec<String>,
    /// How often a daemon has started with its state; `None`: it keeps none.
    run: Option<u64>,
    /// The number of its last change.
    changes: u64,
    /// The names of its descriptors.
    descriptors: Vec<String>,
}

impl Offered {
    /// How many descriptors follow.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        self.descriptors.len()
    }
}

/// The connections of a daemon.
#[derive(Debug, Serialize, Deserialize)]
pub struct HandedState {
    /// Of each target, by name.
    targets: BTreeMap<String, HandedTarget>,
    reservations: Vec<HandedReservations>,
    /// Namespaces that a host has write protected until the next power cycle, which this is none.
    protected: Vec<HandedNamespace>,
}

impl HandedState {
    /// How many sockets follow.
    #[must_use]
    pub fn sockets(&self) -> usize {
        self.targets.values().map(HandedTarget::connections).sum()
    }
}

/// The reservations of a namespace or of a LUN.
#[derive(Debug, Serialize, Deserialize)]
struct HandedReservations {
    of: Reserved,
    /// The count of changes of registrations.
    generation: u32,
    /// As a file keeps them.
    content: String,
}

/// A namespace of a target.
#[derive(Debug, Serialize, Deserialize)]
struct HandedNamespace {
    target: String,
    nqn: String,
    nsid: u32,
}

/// What is reserved. A namespace and the LUNs over its device have the same reservations.
#[derive(Debug, Serialize, Deserialize)]
enum Reserved {
    /// A namespace.
    Namespace { target: String, nqn: String, nsid: u32 },
    /// A LUN, on the cores that serve iSCSI.
    Lun { node: String, number: u16 },
}
