//! A veth bed with names, which stays until it is taken down: for measurements by hand.
//!
//! The bed is made without names, and gets them last. So what a killed `up` leaves is one name at most.

use std::io;
use std::path::Path;

use super::link::{LinkOptions, LinkState};
use super::namespace::Namespace;
use super::program::run;
use super::veth::{QueueSet, Side, Veth, VethError, read_state};

/// The folder in which `ip netns` keeps names.
const FOLDER: &str = "/run/netns";

/// Why a bed with names is not as asked for.
#[derive(Debug, thiserror::Error)]
pub enum NamedError {
    /// There is one.
    #[error(
        "the bed is up already: `raceline bench bed show` describes it, `raceline bench bed down` removes it"
    )]
    Exists,
    /// There is none.
    #[error("the bed is not up: `raceline bench bed up` makes it")]
    Absent,
    /// It cannot be made.
    #[error(transparent)]
    Make(#[from] VethError),
    /// A step failed.
    #[error("{step}: {error}")]
    Step {
        /// What was done.
        step: String,
        /// Why it failed.
        error: io::Error,
    },
}

/// The name of a side's namespace.
#[must_use]
pub fn name(side: Side) -> &'static str {
    match side {
        Side::Target => "raceline-target",
        Side::Host => "raceline-host",
    }
}

/// Makes the bed, and gives the state of both ends. What is left of an `up` that was killed is removed first.
///
/// # Errors
/// When there is a bed, or it cannot be made; nothing is left then.
pub fn up(options: &LinkOptions) -> Result<Vec<LinkState>, NamedError> {
    match Side::BOTH.map(exists) {
        [true, true] => return Err(NamedError::Exists),
        [false, false] => {}
        _ => drop(down()?),
    }
    let bed = Veth::make(options)?;
    let mut names = Names(Vec::new());
    for side in Side::BOTH {
        let give = || {
            let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
            Ok(run("ip", &["netns", "attach", name(side), &thread]).map(drop)?)
        };
        // Also if it fails: `ip` may have made the file.
        names.0.push(side);
        step(format!("naming {}", name(side)), bed.namespace(side).run(give))?;
    }
    let states = show()?;
    names.0.clear();
    Ok(states)
}

/// The state of the target's and of the host's end.
///
/// # Errors
/// When there is no bed, or it cannot be read.
pub fn show() -> Result<Vec<LinkState>, NamedError> {
    // With one namespace, the link's end in the other one goes, too: that end is not read first.
    if !Side::BOTH.into_iter().all(exists) {
        return Err(NamedError::Absent);
    }
    let state = |side: Side| {
        let namespace = Namespace::open(&path(side));
        let read = |namespace: Namespace| {
            namespace.run_with_sysfs(|| read_state(QueueSet::Shared.link().0))
        };
        step(format!("reading {}", name(side)), namespace.and_then(read))
    };
    Side::BOTH.into_iter().map(state).collect()
}

/// Removes the bed, or what is left of one; gives whether there was anything.
///
/// # Errors
/// When a namespace cannot be removed.
pub fn down() -> Result<bool, NamedError> {
    let mut found = false;
    for side in Side::BOTH {
        if exists(side) {
            found = true;
            let removed = run("ip", &["netns", "delete", name(side)]);
            step(format!("removing {}", name(side)), removed.map(drop).map_err(io::Error::from))?;
        }
    }
    Ok(found)
}

/// Names that go again unless the list is emptied.
struct Names(Vec<Side>);

impl Drop for Names {
    fn drop(&mut self) {
        for &side in &self.0 {
            // The name may not exist; the error that led here is the one to report.
            let _ = run("ip", &["netns", "delete", name(side)]);
        }
    }
}

fn path(side: Side) -> String {
    format!("{FOLDER}/{}", name(side))
}

fn exists(side: Side) -> bool {
    Path::new(&path(side)).exists()
}

fn step<T>(step: String, result: io::Result<T>) -> Result<T, NamedError> {
    result.map_err(|error| NamedError::Step { step, error })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since the names are the machine's.
    #[test]
    fn a_bed_with_names_goes_up_and_down_and_leaves_nothing() {
        let links = || run("ip", &["-o", "link"]).unwrap();
        let before = links();
        if Side::BOTH.map(exists) != [false; 2] {
            println!("SKIPPED: somebody's bed is up");
            return;
        }
        match up(&LinkOptions::default()) {
            Ok(states) => assert!(states.iter().all(|state| state.napi_ids.len() == 4)),
            Err(NamedError::Make(VethError::Refused(error))) => {
                println!("SKIPPED: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(matches!(up(&LinkOptions::default()), Err(NamedError::Exists)));
        assert_eq!(show().unwrap()[0].mtu, 1500);
        // As an `up` that is killed leaves it: one of the names.
        run("ip", &["netns", "delete", name(Side::Host)]).unwrap();
        assert!(matches!(show(), Err(NamedError::Absent)));
        let options = LinkOptions { mtu: 9000, ..LinkOptions::default() };
        assert!(up(&options).unwrap().iter().all(|state| state.mtu == 9000));
        assert!(down().unwrap());
        assert!(!down().unwrap());
        assert!(matches!(show(), Err(NamedError::Absent)));
        // A wrong MTU is found before anything is made.
        assert!(up(&LinkOptions { mtu: 1, ..LinkOptions::default() }).is_err());
        assert_eq!(Side::BOTH.map(exists), [false; 2]);
        assert_eq!(links(), before);
    }
}
