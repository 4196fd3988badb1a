//! Reading a controller's ANA log: which namespaces it leads to, and how well (Base 2.0, 5.16.1.13 and 8.1).

use std::collections::BTreeMap;
use std::fmt;

use zerocopy::FromBytes;

use super::info::ControllerInfo;
use super::{AdminRequest, command};
use crate::nvme::ana::{AnaGroupDescriptor, AnaLogHeader, AnaState};
use crate::nvme::log::lid;
use crate::nvme::{Cqe, NamespaceId, Status};

/// Bytes of one read, which every MDTS allows.
const CHUNK_LEN: u32 = 4096;
/// Longest page that this host reads.
const MAX_PAGE_LEN: usize = 1 << 20;
/// Most attempts to read a page that changes meanwhile.
const MAX_ATTEMPTS: u32 = 8;

/// A group of namespaces whose state is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// ANAGRPID, from 1.
    pub id: u32,
    /// Its state on this path.
    pub state: AnaState,
    /// Its change count; 0: not reported.
    pub change_count: u64,
}

/// One state of a controller's ANA log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnaLog {
    /// CHGCNT: moves with every change; 0 for controllers that do not count.
    pub change_count: u64,
    /// The groups, in the order of the page.
    pub groups: Vec<AnaGroup>,
    /// Each namespace and the position of its group.
    namespaces: BTreeMap<u32, usize>,
}

impl AnaLog {
    /// The state of a namespace on this path; `None`: the log does not name it.
    #[must_use]
    pub fn state(&self, nsid: NamespaceId) -> Option<AnaState> {
        Some(self.group(nsid)?.state)
    }

    /// The group of a namespace.
    #[must_use]
    pub fn group(&self, nsid: NamespaceId) -> Option<&AnaGroup> {
        self.namespaces.get(&nsid.0).map(|&at| &self.groups[at])
    }

    /// Whether this log is of an earlier time than `other`, which was read before it. Controllers that do not count
    /// say 0. A count that has come to its end begins again.
    #[must_use]
    pub fn is_older_than(&self, other: &Self) -> bool {
        self.change_count < other.change_count
            && self.change_count != 0
            && other.change_count != u64::MAX
    }

    /// Reads a page that begins with `bytes`.
    fn parse(bytes: &[u8], max_group: u32) -> Result<Parsed, AnaError> {
        let Ok((header, mut rest)) = AnaLogHeader::ref_from_prefix(bytes) else {
            return Ok(Parsed::Needs(AnaLogHeader::LEN));
        };
        let mut log = Self { change_count: header.change_count.get(), ..Self::default() };
        let mut len = AnaLogHeader::LEN;
        for position in 0..usize::from(header.groups.get()) {
            let Ok((descriptor, after)) = AnaGroupDescriptor::ref_from_prefix(rest) else {
                return Ok(Parsed::Needs(len + AnaGroupDescriptor::LEN));
            };
            let count = usize::try_from(descriptor.namespaces.get()).unwrap_or(usize::MAX);
            let nsids_len = count.checked_mul(4).ok_or(AnaError::TooLong)?;
            len += AnaGroupDescriptor::LEN + nsids_len.min(MAX_PAGE_LEN);
            if len > MAX_PAGE_LEN {
                return Err(AnaError::TooLong);
            }
            let Some((nsids, after)) = after.split_at_checked(nsids_len) else {
                return Ok(Parsed::Needs(len));
            };
            rest = after;
            log.add_group(position, descriptor, nsids, max_group)?;
        }
        Ok(Parsed::Log(log))
    }

    fn add_group(
        &mut self,
        position: usize,
        descriptor: &AnaGroupDescriptor,
        nsids: &[u8],
        max_group: u32,
    ) -> Result<(), AnaError> {
        let id = descriptor.group.get();
        if id == 0 || id > max_group {
            return Err(AnaError::GroupId { group: id, max_group });
        }
        if self.groups.iter().any(|group| group.id == id) {
            return Err(AnaError::GroupTwice(id));
        }
        let state = AnaState::from_wire(descriptor.state)
            .ok_or(AnaError::State { group: id, state: descriptor.state & 0xf })?;
        self.groups.push(AnaGroup { id, state, change_count: descriptor.change_count.get() });
        let (nsids, _) = nsids.as_chunks::<4>();
        for nsid in nsids.iter().copied().map(u32::from_le_bytes) {
            if let Some(other) = self.namespaces.insert(nsid, position) {
                let other = self.groups[other].id;
                return Err(AnaError::NamespaceTwice { nsid: NamespaceId(nsid), group: id, other });
            }
        }
        Ok(())
    }
}

/// What a part of a page is.
enum Parsed {
    Log(AnaLog),
    /// At least this many bytes of the page are needed.
    Needs(usize),
}

/// Why the log could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnaError {
    /// Get Log Page failed.
    Refused(Status),
    /// It changed during every attempt.
    Unstable,
    /// The controller sent less than was asked for.
    Short,
    /// The page is longer than 1 MiB.
    TooLong,
    /// A group has a number that there cannot be.
    GroupId {
        /// ANAGRPID.
        group: u32,
        /// ANAGRPMAX of the controller.
        max_group: u32,
    },
    /// A group is there twice.
    GroupTwice(u32),
    /// A group has a state that does not exist.
    State {
        /// ANAGRPID.
        group: u32,
        /// The state.
        state: u8,
    },
    /// A namespace is in two groups, or in one twice.
    NamespaceTwice {
        /// The namespace.
        nsid: NamespaceId,
        /// The second group.
        group: u32,
        /// The first group.
        other: u32,
    },
}

impl fmt::Display for AnaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status) => write!(f, "Get Log Page failed: {status}"),
            Self::Unstable => write!(f, "it changed during each of {MAX_ATTEMPTS} attempts"),
            Self::Short => write!(f, "the page is incomplete"),
            Self::TooLong => write!(f, "the page is longer than {MAX_PAGE_LEN} bytes"),
            Self::GroupId { group, max_group } => {
                write!(
                    f,
                    "group {group} is not between 1 and the controller's ANAGRPMAX {max_group}"
                )
            }
            Self::GroupTwice(group) => write!(f, "group {group} is there twice"),
            Self::State { group, state } => {
                write!(f, "group {group} has the state {state:x}h, which does not exist")
            }
            Self::NamespaceTwice { nsid, group, other } => {
                write!(f, "namespace {nsid} is in group {other} and in group {group}")
            }
        }
    }
}

impl std::error::Error for AnaError {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The page from the bytes that are here on.
    Page,
    /// The header again: a page that was read in pieces may have changed between them.
    Again,
    Done,
}

/// One reading of the log.
#[derive(Debug)]
pub struct AnaReader {
    max_group: u32,
    step: Step,
    requested: bool,
    attempts: u32,
    bytes: Vec<u8>,
    log: AnaLog,
}

impl AnaReader {
    /// A reading of this controller's log; `None` when it reports no ANA.
    #[must_use]
    pub fn new(controller: &ControllerInfo) -> Option<Self> {
        controller.reports_ana().then(|| Self {
            max_group: controller.raw.anagrpmax.get(),
            step: Step::Page,
            requested: false,
            attempts: 0,
            bytes: Vec::new(),
            log: AnaLog::default(),
        })
    }

    /// The next command, one at a time. Each one unmasks the event of the page, so that a change after it is told.
    pub fn poll_request(&mut self) -> Option<AdminRequest> {
        if self.requested {
            return None;
        }
        let (offset, len) = match self.step {
            Step::Page => (self.bytes.len(), CHUNK_LEN),
            Step::Again => (0, 16),
            Step::Done => return None,
        };
        self.requested = true;
        let offset = u64::try_from(offset).unwrap_or(u64::MAX);
        let sqe = command::get_log_page(lid::ANA, NamespaceId(0), offset, len, false);
        Some(AdminRequest { sqe, receive_len: len })
    }

    /// Takes the completion of the command that was asked for.
    ///
    /// # Errors
    /// When the log cannot be read, or contradicts itself.
    pub fn handle_completion(&mut self, cqe: &Cqe, data: &[u8]) -> Result<(), AnaError> {
        self.requested = false;
        if !cqe.status.is_success() {
            return Err(AnaError::Refused(cqe.status));
        }
        match self.step {
            Step::Page => {
                let pieces = !self.bytes.is_empty();
                self.bytes.extend_from_slice(data);
                match AnaLog::parse(&self.bytes, self.max_group)? {
                    Parsed::Log(log) => {
                        self.log = log;
                        self.step = if pieces { Step::Again } else { Step::Done };
                    }
                    Parsed::Needs(_) if data.is_empty() => return Err(AnaError::Short),
                    Parsed::Needs(len) if len > MAX_PAGE_LEN => return Err(AnaError::TooLong),
                    Parsed::Needs(_) => {}
                }
            }
            Step::Again => {
                let (header, _) =
                    AnaLogHeader::ref_from_prefix(data).map_err(|_| AnaError::Short)?;
                if header.change_count.get() == self.log.change_count {
                    self.step = Step::Done;
                } else {
                    self.attempts += 1;
                    if self.attempts == MAX_ATTEMPTS {
                        return Err(AnaError::Unstable);
                    }
                    self.bytes.clear();
                    self.step = Step::Page;
                }
            }
            Step::Done => {}
        }
        Ok(())
    }

    /// The log, once, when it was read.
    pub fn poll_done(&mut self) -> Option<AnaLog> {
        (self.step == Step::Done).then(|| std::mem::take(&mut self.log))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::super::info::tests::controller_page;
    use super::*;

    const MAX_GROUP: u32 = 4096;

    /// A page with these groups: number, state and namespaces.
    fn page(change_count: u64, groups: &[(u32, u8, &[u32])]) -> Vec<u8> {
        let header = AnaLogHeader {
            change_count: change_count.into(),
            groups: u16::try_from(groups.len()).unwrap().into(),
            ..AnaLogHeader::default()
        };
        let mut page = header.as_bytes().to_vec();
        for (group, state, nsids) in groups {
            let descriptor = AnaGroupDescriptor {
                group: (*group).into(),
                namespaces: u32::try_from(nsids.len()).unwrap().into(),
                state: *state,
                ..AnaGroupDescriptor::default()
            };
            page.extend_from_slice(descriptor.as_bytes());
            page.extend(nsids.iter().flat_map(|nsid| nsid.to_le_bytes()));
        }
        page
    }

    fn reader() -> AnaReader {
        let mut page = controller_page(1);
        page[76] = 0x0b;
        page[344..348].copy_from_slice(&MAX_GROUP.to_le_bytes());
        AnaReader::new(&ControllerInfo::parse(&page).unwrap()).unwrap()
    }

    /// Reads the page that `page` gives for the number of commands sent so far.
    fn read(mut page: impl FnMut(usize) -> Vec<u8>) -> Result<(AnaLog, usize), AnaError> {
        let mut reader = reader();
        let mut commands = 0;
        loop {
            if let Some(log) = reader.poll_done() {
                return Ok((log, commands));
            }
            let request = reader.poll_request().expect("a reader that is not done asks");
            let mut bytes = page(commands);
            commands += 1;
            let offset = usize::try_from(request.sqe.cdw12.get()).unwrap();
            let len = usize::try_from(request.receive_len).unwrap();
            bytes.resize(bytes.len().max(offset + len), 0);
            reader.handle_completion(&Cqe::default(), &bytes[offset..offset + len])?;
        }
    }

    #[test]
    fn a_short_page_takes_one_command() {
        let bytes = page(7, &[(1, 1, &[1, 3]), (9, 2, &[2]), (10, 0xf, &[])]);
        let (log, commands) = read(|_| bytes.clone()).unwrap();
        assert_eq!((commands, log.change_count, log.groups.len()), (1, 7, 3));
        let states = [1, 2, 3, 4].map(|nsid| log.state(NamespaceId(nsid)));
        let (best, good) = (Some(AnaState::Optimized), Some(AnaState::NonOptimized));
        assert_eq!(states, [best, good, best, None]);
        assert_eq!(log.group(NamespaceId(2)).unwrap().id, 9);
    }

    #[test]
    fn a_long_page_is_read_in_pieces_until_it_stands_still() {
        let nsids: Vec<u32> = (1..=3000).collect();
        // Three pieces and the header, which has another count; then the same again.
        let count = |commands: usize| if commands < 3 { 5 } else { 6 };
        let (log, commands) = read(|at| page(count(at), &[(1, 3, &nsids)])).unwrap();
        assert_eq!((log.change_count, commands), (6, 8));
        assert_eq!(log.state(NamespaceId(3000)), Some(AnaState::Inaccessible));
        let mut moving = 0;
        let unstable = read(|_| {
            moving += 1;
            page(moving, &[(1, 3, &nsids)])
        });
        assert_eq!(unstable.unwrap_err(), AnaError::Unstable);
    }

    #[test]
    fn pages_that_contradict_themselves() {
        for (bytes, error, text) in [
            (
                page(1, &[(0, 1, &[1])]),
                AnaError::GroupId { group: 0, max_group: MAX_GROUP },
                "group 0 is not between 1 and the controller's ANAGRPMAX 4096",
            ),
            (
                page(1, &[(4097, 1, &[1])]),
                AnaError::GroupId { group: 4097, max_group: MAX_GROUP },
                "group 4097 is not between 1 and the controller's ANAGRPMAX 4096",
            ),
            (
                page(1, &[(1, 1, &[1]), (1, 2, &[2])]),
                AnaError::GroupTwice(1),
                "group 1 is there twice",
            ),
            (
                page(1, &[(3, 5, &[1])]),
                AnaError::State { group: 3, state: 5 },
                "group 3 has the state 5h, which does not exist",
            ),
            (
                page(1, &[(1, 1, &[1]), (2, 2, &[1])]),
                AnaError::NamespaceTwice { nsid: NamespaceId(1), group: 2, other: 1 },
                "namespace 1 is in group 1 and in group 2",
            ),
        ] {
            assert_eq!(read(|_| bytes.clone()).unwrap_err(), error);
            assert_eq!(error.to_string(), text);
        }
        let mut endless = page(1, &[(1, 1, &[])]);
        endless[16 + 4..16 + 8].fill(0xff);
        assert_eq!(read(|_| endless.clone()).unwrap_err(), AnaError::TooLong);
    }

    #[test]
    fn counts_that_go_back() {
        let log = |change_count| AnaLog { change_count, ..AnaLog::default() };
        for (new, old, older) in
            [(1, 2, true), (2, 2, false), (3, 2, false), (0, 2, false), (1, u64::MAX, false)]
        {
            assert_eq!(log(new).is_older_than(&log(old)), older, "{new} after {old}");
        }
    }

    #[test]
    fn controllers_without_ana_have_no_log() {
        let info = ControllerInfo::parse(&controller_page(1)).unwrap();
        assert!(AnaReader::new(&info).is_none());
        let mut reader = reader();
        reader.poll_request().unwrap();
        let refused = Cqe { status: Status::INVALID_LOG_PAGE, ..Cqe::default() };
        let error = reader.handle_completion(&refused, &[]).unwrap_err();
        assert_eq!(error, AnaError::Refused(Status::INVALID_LOG_PAGE));
    }

    proptest! {
        #[test]
        fn no_page_is_read_wrong(bytes in prop::collection::vec(any::<u8>(), 0..600), groups in 0..5u8) {
            let mut bytes = bytes;
            if let [_, _, _, _, _, _, _, _, low, high, ..] = &mut bytes[..] {
                (*low, *high) = (groups, 0);
            }
            if let Ok(Parsed::Log(log)) = AnaLog::parse(&bytes, MAX_GROUP) {
                prop_assert_eq!(log.groups.len(), usize::from(groups));
                prop_assert!(log.namespaces.values().all(|&at| at < log.groups.len()));
            }
        }
    }
}
