//! Test beds: the network between host and target, and the network namespaces of both.
//!
//! A bed exists from its creation until it is dropped, and leaves nothing behind. Sockets belong to the network
//! namespace of the thread that makes them, and a thread inherits the namespace of the thread that starts it:
//! so [`in_target_ns`] and [`in_host_ns`] are all that a target and a host need.

pub mod link;
pub mod named;
pub mod namespace;
pub mod neighbour;
mod netlink;
mod program;
pub mod relay;
pub mod veth;

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use raceline_environment::interface::{self, Interface};
use raceline_environment::network::Network;
use raceline_environment::{Reading, System};

use crate::record::{self, StandIn};

use self::link::LinkOptions;
use self::veth::{Veth, VethError};

/// A network between host and target.
pub trait Bed: Send + Sync {
    /// Its kind and description, as a record holds them.
    fn describe(&self) -> record::Bed;

    /// The address at which a host reaches a target that listens in the target's namespace.
    fn target_addr(&self) -> IpAddr;

    /// What stands in for which piece of a published network.
    fn stand_ins(&self) -> Vec<StandIn>;

    /// The settings of the network at the target's end, and the interface that carries what is measured.
    ///
    /// # Errors
    /// When the target's namespace cannot be looked into.
    fn network(&self) -> io::Result<(Network, Reading<Interface>)>;

    /// Moves the calling thread into the target's network namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    fn enter_target(&self) -> io::Result<()>;

    /// Moves the calling thread into the host's network namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    fn enter_host(&self) -> io::Result<()>;
}

/// Which bed is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// A veth pair where this process may make one; else the loopback.
    #[default]
    Auto,
    /// The loopback.
    Loopback,
    /// A veth pair, or an error.
    Veth,
}

/// A bed that was made.
pub struct Made {
    /// The bed.
    pub bed: Box<dyn Bed>,
    /// Why it is not the veth pair that `Auto` prefers.
    pub instead: Option<String>,
}

/// Makes a bed; `options` are those of a veth pair.
///
/// # Errors
/// When a veth pair is wanted and cannot be made, or its options are out of range.
pub fn make(wanted: Wanted, options: &LinkOptions) -> Result<Made, VethError> {
    if wanted == Wanted::Loopback {
        return Ok(Made { bed: Box::new(Loopback), instead: None });
    }
    match Veth::make(options) {
        Ok(bed) => Ok(Made { bed: Box::new(bed), instead: None }),
        Err(error @ VethError::Options(_)) => Err(error),
        Err(error) if wanted == Wanted::Auto => {
            Ok(Made { bed: Box::new(Loopback), instead: Some(error.to_string()) })
        }
        Err(error) => Err(error),
    }
}

/// Runs `work` on a thread of its own in the target's network namespace.
///
/// # Errors
/// When the namespace cannot be entered, or `work` panics.
pub fn in_target_ns<T: Send>(bed: &dyn Bed, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    apart(|| bed.enter_target(), work)
}

/// Runs `work` on a thread of its own in the host's network namespace.
///
/// # Errors
/// When the namespace cannot be entered, or `work` panics.
pub fn in_host_ns<T: Send>(bed: &dyn Bed, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    apart(|| bed.enter_host(), work)
}

fn apart<T: Send>(
    enter: impl FnOnce() -> io::Result<()> + Send,
    work: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| enter().map(|()| work()));
        let panicked = |_| Err(io::Error::other("a thread of the test bed panicked"));
        thread.join().unwrap_or_else(panicked)
    })
}

/// Host and target in the namespace of this process, over its loopback device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loopback;

impl Bed for Loopback {
    fn describe(&self) -> record::Bed {
        record::Bed {
            kind: "loopback".to_owned(),
            description: "Host and target run on one machine, over its loopback device.".to_owned(),
        }
    }

    fn target_addr(&self) -> IpAddr {
        Ipv4Addr::LOCALHOST.into()
    }

    fn stand_ins(&self) -> Vec<StandIn> {
        vec![StandIn {
            of: "network and NIC between two machines".to_owned(),
            by: "the loopback device of one machine".to_owned(),
            effect: "There are no interrupts, no receive queues (NAPI) and no line rate; one copy of the data replaces the transfer."
                .to_owned(),
        }]
    }

    fn network(&self) -> io::Result<(Network, Reading<Interface>)> {
        let system = System::here();
        Ok((Network::read(&system), Interface::read(&system, "lo")))
    }

    fn enter_target(&self) -> io::Result<()> {
        Ok(())
    }

    fn enter_host(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Hosts on this machine, and targets that run already at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The targets' address. Targets that the run starts by itself listen there, too, if it is this machine's.
    pub address: IpAddr,
}

impl Bed for Remote {
    fn describe(&self) -> record::Bed {
        let address = self.address;
        record::Bed {
            kind: "remote".to_owned(),
            description: format!(
                "Hosts run on this machine; a target that runs already is at {address}."
            ),
        }
    }

    fn target_addr(&self) -> IpAddr {
        self.address
    }

    fn stand_ins(&self) -> Vec<StandIn> {
        Vec::new()
    }

    fn network(&self) -> io::Result<(Network, Reading<Interface>)> {
        let system = System::here();
        let name = interface::towards(&system, self.address);
        Ok((Network::read(&system), name.then(|name| Interface::read(&system, &name))))
    }

    fn enter_target(&self) -> io::Result<()> {
        Ok(())
    }

    fn enter_host(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_a_thread_of_its_own() {
        let here = std::thread::current().id();
        let there = in_target_ns(&Loopback, || std::thread::current().id()).unwrap();
        assert_ne!(here, there);
        assert_eq!(in_host_ns(&Loopback, || 7).unwrap(), 7);
    }

    #[test]
    fn auto_gives_a_bed_in_any_case_and_says_why_it_is_the_loopback() {
        let usual = LinkOptions::default();
        let kind = |made: &Made| made.bed.describe().kind;
        assert_eq!(kind(&make(Wanted::Loopback, &usual).unwrap()), "loopback");
        let auto = make(Wanted::Auto, &usual).unwrap();
        assert_eq!(kind(&auto) == "loopback", auto.instead.is_some());
        // A kernel that loses 50 % of packets on request has sch_netem; others are not the place for this bed.
        let shape = link::Shape { loss_percent: Some(50.0), ..link::Shape::default() };
        let lossy = make(Wanted::Auto, &LinkOptions { shape, ..usual.clone() }).unwrap();
        assert_eq!(kind(&lossy) == "loopback", lossy.instead.is_some());
        assert!(make(Wanted::Auto, &LinkOptions { mtu: 1, ..usual }).is_err());
    }

    #[test]
    fn a_target_elsewhere_is_a_bed_without_stand_ins() {
        let bed = Remote { address: Ipv4Addr::LOCALHOST.into() };
        assert_eq!(bed.describe().kind, "remote");
        assert!(bed.describe().description.contains("127.0.0.1") && bed.stand_ins().is_empty());
        let (_, interface) = bed.network().unwrap();
        // Without the program ip the interface is not known, and the reason says so.
        let name = interface.value().map(|interface| interface.name.clone());
        assert!(name == Some("lo".to_owned()) || interface.reason().is_some(), "{name:?}");
    }

    #[test]
    fn a_panic_is_an_error() {
        let error = in_host_ns(&Loopback, || panic!("on purpose")).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
    }
}
