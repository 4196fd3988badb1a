//! A process gives up, for good, what it does not need once it has started.
//!
//! [`enter`] does it in this order, so that each step can still do what it needs:
//!
//! 1. no core dumps, and no debugger of the same user (prctl(2) PR_SET_DUMPABLE, RLIMIT_CORE);
//! 2. no new privileges (PR_SET_NO_NEW_PRIVS);
//! 3. no capability except those of the [`Policy`], in any set (capabilities(7));
//! 4. no file, folder or device outside of the policy, no other TCP port, no signal to a process outside (Landlock,
//!    landlock(7));
//! 5. no system call that the program does not make (seccomp(2)).
//!
//! Steps 3 to 5 hold for the calling thread and for all threads that it starts later. So a program calls [`enter`]
//! before it starts others. What operations a ring of io_uring may do is not seen by a filter of system calls: the
//! `reactor` restricts its rings when it makes them.
#![forbid(unsafe_code)]

mod calls;
mod files;
mod privileges;

use std::io;
use std::path::PathBuf;

pub use rustix::thread::CapabilitySet;

pub use files::{Access, Rule};
pub use privileges::hide_memory;

/// What a process keeps.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Files, folders and devices that it may open.
    pub files: Vec<Rule>,
    /// Whether it may connect to TCP ports.
    pub connects: bool,
    /// TCP ports that it may listen on; `None`: any.
    pub listens: Option<Vec<u16>>,
    /// Whether it may connect to sockets of the abstract name space, as systemd's in some containers is.
    pub abstract_sockets: bool,
    /// Whether it may list the network interfaces and their addresses, by rtnetlink(7). With CAP_NET_ADMIN it could
    /// also change them.
    pub interfaces: bool,
    /// Whether it may ask parts of the kernel by generic netlink, such as the kernel's NBD client.
    pub generic_netlink: bool,
    /// Whether it may drive RDMA devices whose libraries are loaded: their requests, and the kernel's list of them. Which
    /// devices, the files say.
    pub rdma: bool,
    /// Whether it may open performance counters of its own threads.
    pub counters: bool,
    /// Whether it may find and read keys in the kernel's keyrings.
    pub keyrings: bool,
    /// Capabilities that it keeps, of those that it has.
    pub capabilities: CapabilitySet,
}

/// What happens where the kernel lacks Landlock or seccomp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// The process goes on without that part.
    WherePossible,
    /// Entering fails.
    All,
}

/// What the kernel could not do, one line for each part. Empty: the policy holds whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Whole parts: Landlock, or seccomp.
    pub parts: Vec<String>,
    /// Rights that this kernel's Landlock does not know, and so does not restrict.
    pub details: Vec<String>,
}

impl Missing {
    /// Whether files are restricted.
    #[must_use]
    pub fn restricts_files(&self) -> bool {
        !self.parts.iter().any(|part| part.contains("Landlock"))
    }
}

/// Why a process could not enter. It may have given up a part: it should end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// A step failed.
    #[error(
        "the sandbox cannot be entered: cannot {action}: {source}. --sandbox off starts without it"
    )]
    Step {
        /// What failed.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A path of the policy cannot be used.
    #[error("the sandbox cannot be entered: `{path}`: {source}")]
    Path {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel's Landlock refused.
    #[error("the sandbox cannot be entered: Landlock: {0}. --sandbox off starts without it")]
    Landlock(#[from] landlock::RulesetError),
    /// The filter of system calls could not be made or was refused.
    #[error("the sandbox cannot be entered: seccomp: {0}. --sandbox off starts without it")]
    Seccomp(#[from] seccompiler::Error),
    /// A part is missing that was demanded.
    #[error(
        "the sandbox cannot be entered: {0}. Leave out --sandbox on to start with the parts that this kernel has"
    )]
    Unsupported(String),
}

/// The sandbox that a process is in.
#[derive(Debug)]
#[must_use = "it says what the kernel could not do"]
pub struct Sandbox {
    missing: Missing,
    filters_calls: bool,
}

impl Sandbox {
    /// What the kernel could not do.
    #[must_use]
    pub fn missing(&self) -> &Missing {
        &self.missing
    }

    /// Gives up new sockets and new rings of io_uring, in all threads: for a process that has all of them.
    ///
    /// # Errors
    /// When the kernel refuses, for instance because a thread is not in the sandbox.
    pub fn seal(&self) -> Result<(), SandboxError> {
        if self.filters_calls { calls::seal() } else { Ok(()) }
    }
}

/// Enters the sandbox. There is no way back.
///
/// # Errors
/// When a step fails, or when a part is missing and `demand` is [`Demand::All`].
pub fn enter(policy: &Policy, demand: Demand) -> Result<Sandbox, SandboxError> {
    let mut missing = Missing::default();
    privileges::hide_memory()?;
    privileges::drop_all_but(policy.capabilities)?;
    files::restrict(policy, &mut missing)?;
    refuse_missing(&missing, demand)?;
    let filters_calls = calls::filter(policy, &mut missing)?;
    refuse_missing(&missing, demand)?;
    Ok(Sandbox { missing, filters_calls })
}

fn refuse_missing(missing: &Missing, demand: Demand) -> Result<(), SandboxError> {
    match missing.parts.first() {
        Some(part) if demand == Demand::All => Err(SandboxError::Unsupported(part.clone())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use super::*;

    #[test]
    fn a_missing_part_is_an_error_only_if_it_was_demanded() {
        let details = vec!["older".to_owned()];
        let old = Missing { details, ..Missing::default() };
        assert!(refuse_missing(&old, Demand::All).is_ok());
        let none = Missing { parts: vec!["there is no Landlock".to_owned()], ..old };
        assert!(refuse_missing(&none, Demand::WherePossible).is_ok());
        let error = refuse_missing(&none, Demand::All).unwrap_err().to_string();
        assert!(error.contains("there is no Landlock. Leave out --sandbox on"), "{error}");
    }
}
