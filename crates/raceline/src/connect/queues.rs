//! How many I/O queues the disk of a namespace has, and on how many cores.
//!
//! A queue lives on one core, and a core of the disk has one queue, or one for reads and one for all other commands. So
//! `--nr-io-queues` is the number of cores. A core may have one more, which takes its reads and writes, and for which it polls.

use raceline_host::{HostConfig, QueueKind, QueueMaps, RemoteNamespace};
use raceline_proto::nvme::NamespaceId;

use crate::cli::connect::DiskArgs;
use crate::cli::queues::QueueNumbers;
use crate::failure::Failure;
use crate::{remote, shell};

/// The cores of a disk, each of which may float, and the queues that it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) cores: Vec<Option<usize>>,
    /// As many as cores; `None`: nobody has said how many, and there is room for more.
    io: Option<u16>,
    /// How many of the cores have a queue of their own for what is no read.
    write: u16,
    /// How many of the cores have a queue for which they poll.
    poll: u16,
}

impl Plan {
    /// Of a device of this machine, or of a namespace of which nobody says how many queues it has.
    pub(super) fn of_cores(args: &DiskArgs) -> Self {
        let cores = match &args.cores {
            Some(cores) => cores.0.iter().copied().map(Some).collect(),
            None => vec![None],
        };
        Self { cores, io: None, write: 0, poll: 0 }
    }

    /// Of a namespace with so many queues.
    pub(super) fn new(args: &DiskArgs, queues: &QueueNumbers) -> Result<Self, Failure> {
        let plan = Self::of_cores(args);
        let more = |name| queues.number(name).unwrap_or_default();
        let (write, poll) = (more("nr_write_queues"), more("nr_poll_queues"));
        let Some(io) = queues.number("nr_io_queues") else {
            let count = u16::try_from(plan.cores.len()).unwrap_or(u16::MAX);
            check_more((write, poll), count)?;
            return Ok(Self { io: (write > 0 || poll > 0).then_some(count), write, poll, ..plan });
        };
        check_more((write, poll), io)?;
        let cores = match &args.cores {
            None => vec![None; usize::from(io)],
            Some(cores) if cores.0.len() == usize::from(io) => plan.cores,
            Some(cores) => {
                return Err(Failure::usage(format!(
                    "-i {io} (--nr-io-queues): each core has one, and --cores has {} of them; give as many, or leave one \
                     of the two out",
                    cores.0.len()
                )));
            }
        };
        Ok(Self { cores, io: Some(io), write, poll })
    }

    /// Connects with these queues.
    pub(super) fn open(
        &self,
        config: HostConfig,
        nsid: NamespaceId,
    ) -> Result<RemoteNamespace, Failure> {
        let opened = match self.io {
            None => RemoteNamespace::open(config, nsid),
            Some(io_queues) => {
                let (write_queues, poll_queues) = (self.write, self.poll);
                let config = HostConfig { io_queues, write_queues, poll_queues, ..config };
                RemoteNamespace::open_exactly(config, nsid)
            }
        };
        let namespace = opened.map_err(|error| remote::failure(&error))?;
        match self.check(&namespace.queue_maps()) {
            Ok(notes) => {
                notes.iter().for_each(|note| shell::note(note));
                Ok(namespace)
            }
            Err(failure) => {
                namespace.disconnect();
                Err(failure)
            }
        }
    }

    /// Whether the granted queues are enough, and what to say if only some cores have all that were asked for.
    fn check(&self, maps: &QueueMaps) -> Result<Vec<String>, Failure> {
        let (reads, defaults) = (maps.count(QueueKind::Read), maps.count(QueueKind::Default));
        let (served, pairs) = if reads > 0 { (reads, defaults) } else { (defaults, 0) };
        let (granted, wanted) = (maps.total(), self.cores.len());
        if usize::from(served) < wanted {
            return Err(Failure::connect(format!(
                "the controller grants {granted} I/O queues, and each of {wanted} cores needs one: give fewer with -i or \
                 --cores"
            )));
        }
        let mut notes = Vec::new();
        if pairs < self.write {
            notes.push(format!(
                "the controller grants {granted} I/O queues: {pairs} of {wanted} cores have one of their own for writes, \
                 and the others use theirs for everything"
            ));
        }
        let polled = maps.count(QueueKind::Poll);
        if polled < self.poll {
            notes.push(format!(
                "the controller grants {granted} I/O queues: {polled} of {wanted} cores have one for which they poll, and \
                 the others are woken for each completion"
            ));
        }
        Ok(notes)
    }
}

/// Whether there is a core for each queue beside those of `-i`.
fn check_more((write, poll): (u16, u16), io: u16) -> Result<(), Failure> {
    let (option, count, what) = match (write > io, poll > io) {
        (true, _) => ("-W", write, "for writes"),
        (false, true) => ("-P", poll, "for polling"),
        (false, false) => return Ok(()),
    };
    let name = if option == "-W" { "write" } else { "poll" };
    Err(Failure::usage(format!(
        "{option} {count} (--nr-{name}-queues): a core has one queue {what} beside that of -i, so there are {io} at most"
    )))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use raceline_host::QueueRequest;

    use super::*;
    use crate::cli::{Cli, Verb};

    fn plan(line: &str) -> Result<Plan, String> {
        let line = format!("raceline connect --as nbd -a h -n nqn.2026-01.io.raceline:x {line}");
        match Cli::try_parse_from(line.split_whitespace()).unwrap().verb {
            Verb::Connect(args) => {
                Plan::new(&args, &args.remote.queues).map_err(|failure| failure.message)
            }
            verb => panic!("{verb:?}"),
        }
    }

    #[test]
    fn queues_say_how_many_cores_there_are() {
        let made = |cores: &[Option<usize>], io, write, poll| {
            Ok(Plan { cores: cores.to_vec(), io, write, poll })
        };
        assert_eq!(plan(""), made(&[None], None, 0, 0));
        assert_eq!(plan("-i 0 -W 0 -P 0"), made(&[None], None, 0, 0));
        assert_eq!(plan("-i 3"), made(&[None; 3], Some(3), 0, 0));
        assert_eq!(plan("-i 2 -W 1"), made(&[None; 2], Some(2), 1, 0));
        assert_eq!(plan("-W 1"), made(&[None], Some(1), 1, 0));
        assert_eq!(plan("-W 2 --cores 0,2"), made(&[Some(0), Some(2)], Some(2), 2, 0));
        assert_eq!(plan("-i 2 --cores 0-1"), made(&[Some(0), Some(1)], Some(2), 0, 0));
        assert_eq!(plan("-P 1"), made(&[None], Some(1), 0, 1));
        assert_eq!(plan("-i 2 -W 2 -P 1"), made(&[None; 2], Some(2), 2, 1));
        for (line, says) in [
            ("-i 4 --cores 0,1", "--cores has 2 of them"),
            ("-i 2 -W 3", "there are 2 at most"),
            ("-W 2", "there are 1 at most"),
            ("-i 2 -P 3", "-P 3 (--nr-poll-queues): a core has one queue for polling"),
            ("-P 2 --cores 1", "there are 1 at most"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
        }
    }

    #[test]
    fn a_controller_that_grants_fewer_is_told_of() {
        let check = |line: &str, granted| {
            let plan = plan(line)?;
            let request = QueueRequest { io: 2, write: plan.write, poll: plan.poll };
            plan.check(&request.grant(granted)).map_err(|failure| failure.message)
        };
        let notes = |line: &str, granted| check(line, granted).unwrap().join("; ");
        assert_eq!(notes("-i 2 -W 2", 4), "");
        assert!(notes("-i 2 -W 2", 3).contains("1 of 2 cores have one of their own"));
        assert!(notes("-i 2 -W 2", 2).contains("0 of 2 cores"));
        assert!(check("-i 2 -W 2", 1).unwrap_err().contains("each of 2 cores needs one"));
        assert_eq!(notes("-i 2 -P 2", 4), "");
        assert!(notes("-i 2 -P 2", 3).contains("1 of 2 cores have one for which they poll"));
        let both = notes("-i 2 -W 2 -P 1", 3);
        assert!(
            both.contains("1 of 2 cores have one of") && both.contains("0 of 2 cores"),
            "{both}"
        );
    }
}
