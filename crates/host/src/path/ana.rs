//! How well a path leads to namespaces, as its controller says it.

use std::time::{Duration, Instant};

use raceline_proto::host::AnaLog;
use raceline_proto::nvme::NamespaceId;
use raceline_proto::nvme::ana::AnaState;

/// What a path can do for a namespace now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Commands run, and this path is a preferred one.
    Optimized,
    /// Commands run, for want of an optimized path.
    NonOptimized,
    /// Commands do not run, and may run later.
    Awaited,
    /// Commands do not run, and nothing says that they will.
    Lost,
}

impl Access {
    /// Whether commands run.
    #[must_use]
    pub fn is_usable(self) -> bool {
        matches!(self, Self::Optimized | Self::NonOptimized)
    }
}

/// One state of a controller's ANA log, and since when groups have been changing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathAna {
    log: AnaLog,
    /// Groups in the state change, and since when the host has known that.
    changing: Vec<(u32, Instant)>,
    /// ANATT: how long a group may be in the state change.
    transition: Duration,
    /// Counts the readings of the log on this association.
    pub(crate) reading: u64,
}

impl PathAna {
    /// The log as it was read now.
    #[must_use]
    pub(crate) fn new(log: AnaLog, transition: Duration, now: Instant) -> Self {
        let mut first = Self { log, changing: Vec::new(), transition, reading: 1 };
        first.note_changing(&[], now);
        first
    }

    /// The log as it was read now, after this one.
    #[must_use]
    pub(crate) fn followed_by(&self, log: AnaLog, now: Instant) -> Self {
        let mut next = Self {
            log,
            changing: Vec::new(),
            transition: self.transition,
            reading: self.reading + 1,
        };
        next.note_changing(&self.changing, now);
        next
    }

    fn note_changing(&mut self, before: &[(u32, Instant)], now: Instant) {
        let changing = self.log.groups.iter().filter(|group| group.state == AnaState::Change);
        let since = |id| before.iter().find(|(known, _)| *known == id).map_or(now, |&(_, at)| at);
        self.changing = changing.map(|group| (group.id, since(group.id))).collect();
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> &AnaLog {
        &self.log
    }

    /// The state of a namespace; `None`: the log does not name it.
    #[must_use]
    pub fn state(&self, nsid: NamespaceId) -> Option<AnaState> {
        self.log.state(nsid)
    }

    /// What the path can do for a namespace.
    ///
    /// A namespace that the log does not name is awaited: a later reading will name it. The state change is awaited
    /// for ANATT, and counts as lost after that, as a controller has to leave it by then (Base 2.0, 8.1.2).
    #[must_use]
    pub fn access(&self, nsid: NamespaceId, now: Instant) -> Access {
        let Some(group) = self.log.group(nsid) else { return Access::Awaited };
        match group.state {
            AnaState::Optimized => Access::Optimized,
            AnaState::NonOptimized => Access::NonOptimized,
            AnaState::Inaccessible => Access::Awaited,
            AnaState::PersistentLoss => Access::Lost,
            AnaState::Change => {
                let since = self.changing.iter().find(|(id, _)| *id == group.id);
                let late = since.is_some_and(|&(_, since)| now >= since + self.transition);
                if late { Access::Lost } else { Access::Awaited }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use raceline_proto::host::{AnaReader, ControllerInfo};
    use raceline_proto::nvme::Cqe;

    use super::*;

    /// A log with one group for each namespace from 1 on, in these states.
    pub(crate) fn log(change_count: u64, states: &[AnaState]) -> AnaLog {
        let mut identify = [0; 4096];
        identify[76] = 8;
        identify[344] = 255;
        let info = ControllerInfo::parse(&identify).unwrap();
        let mut reader = AnaReader::new(&info).unwrap();
        reader.poll_request().unwrap();
        let mut page = vec![0; 16];
        page[..8].copy_from_slice(&change_count.to_le_bytes());
        page[8] = u8::try_from(states.len()).unwrap();
        for (id, state) in (1u8..).zip(states) {
            let mut group = [0; 36];
            (group[0], group[4], group[16], group[32]) = (id, 1, state.to_wire(), id);
            page.extend(group);
        }
        page.resize(4096, 0);
        reader.handle_completion(&Cqe::default(), &page).unwrap();
        reader.poll_done().unwrap()
    }

    const ANATT: Duration = Duration::from_secs(10);

    #[test]
    fn what_each_state_means() {
        let now = Instant::now();
        let ana = PathAna::new(log(1, &AnaState::ALL), ANATT, now);
        let access: Vec<Access> = (1..=6).map(|nsid| ana.access(NamespaceId(nsid), now)).collect();
        let (lost, awaited) = (Access::Lost, Access::Awaited);
        let (best, good) = (Access::Optimized, Access::NonOptimized);
        assert_eq!(access, [best, good, awaited, lost, awaited, awaited]);
        assert!(best.is_usable() && good.is_usable() && !lost.is_usable() && !awaited.is_usable());
    }

    #[test]
    fn a_change_is_awaited_for_anatt_from_its_first_reading() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (ns, change) = (NamespaceId(1), AnaState::Change);
        let first = PathAna::new(log(1, &[change]), ANATT, start);
        let again = first.followed_by(log(2, &[change]), at(6));
        assert_eq!((again.reading, again.access(ns, at(9))), (2, Access::Awaited));
        assert_eq!(again.access(ns, at(10)), Access::Lost);
        let left = again.followed_by(log(3, &[AnaState::Optimized]), at(11));
        let back = left.followed_by(log(4, &[change]), at(12));
        assert_eq!(back.access(ns, at(21)), Access::Awaited, "a new change has its own time");
    }
}
