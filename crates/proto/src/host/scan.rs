//! Reading a controller's active namespaces: the list, then each namespace.

use std::collections::VecDeque;
use std::fmt;

use super::info::{InfoError, NamespaceInfo};
use super::{AdminRequest, command};
use crate::nvme::identify::{IDENTIFY_LEN, cns};
use crate::nvme::{Cqe, NamespaceId, Status};

/// Most namespaces that this host reads; it ignores further ones.
pub const MAX_NAMESPACES: usize = 1024;

/// NVMe 1.3, the first version with namespace descriptors.
const VERSION_1_3: u32 = 0x0001_0300;
const REQUEST_LEN: u32 = 4096;

/// Why the namespaces could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanError {
    /// An Identify command failed.
    Refused {
        /// Which structure.
        cns: u8,
        /// Of which namespace, 0 for the list.
        nsid: NamespaceId,
        /// Why.
        status: Status,
    },
    /// A structure is malformed.
    Info(NamespaceId, InfoError),
    /// The list of namespaces does not ascend.
    ListOrder,
}

impl fmt::Display for ScanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { cns, nsid, status } => {
                write!(f, "identify {cns:02x}h of namespace {nsid} failed: {status}")
            }
            Self::Info(nsid, error) => write!(f, "namespace {nsid}: {error}"),
            Self::ListOrder => write!(f, "the list of active namespaces does not ascend"),
        }
    }
}

impl std::error::Error for ScanError {}

/// What the next completion answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The list of those above this NSID.
    List(NamespaceId),
    Namespace(NamespaceId),
    Descriptors(NamespaceId),
    Done,
}

/// One pass over a controller's namespaces.
///
/// Namespaces that this host cannot use (metadata, odd block sizes) and those that vanish during
/// the pass are left out.
#[derive(Debug)]
pub struct NamespaceScan {
    step: Step,
    requested: bool,
    /// NN and version of the controller.
    namespace_count: u32,
    version: u32,
    waiting: VecDeque<NamespaceId>,
    found: Vec<NamespaceInfo>,
}

impl NamespaceScan {
    /// A pass over a controller with this NN and version.
    #[must_use]
    pub fn new(namespace_count: u32, version: u32) -> Self {
        Self {
            step: Step::List(NamespaceId(0)),
            requested: false,
            namespace_count,
            version,
            waiting: VecDeque::new(),
            found: Vec::new(),
        }
    }

    /// The next command; one at a time.
    pub fn poll_request(&mut self) -> Option<AdminRequest> {
        if self.requested {
            return None;
        }
        let (cns, nsid) = match self.step {
            Step::List(after) => (cns::ACTIVE_NAMESPACES, after),
            Step::Namespace(nsid) => (cns::NAMESPACE, nsid),
            Step::Descriptors(nsid) => (cns::NAMESPACE_DESCRIPTORS, nsid),
            Step::Done => return None,
        };
        self.requested = true;
        Some(AdminRequest { sqe: command::identify(cns, nsid), receive_len: REQUEST_LEN })
    }

    /// Takes the completion of the command that was asked for.
    ///
    /// # Errors
    /// When the scan cannot go on.
    pub fn handle_completion(&mut self, cqe: &Cqe, data: &[u8]) -> Result<(), ScanError> {
        self.requested = false;
        let ok = cqe.status.is_success();
        match self.step {
            Step::List(after) if ok => self.take_list(after, data)?,
            // Controllers older than the list refuse it; their namespaces are numbered from 1.
            Step::List(after) if cqe.status.is_dnr() && after.0 == 0 => {
                self.waiting
                    .extend((1..=self.namespace_count).take(MAX_NAMESPACES).map(NamespaceId));
                self.next_namespace();
            }
            Step::List(nsid) => {
                let cns = cns::ACTIVE_NAMESPACES;
                return Err(ScanError::Refused { cns, nsid, status: cqe.status });
            }
            Step::Namespace(nsid) => self.take_namespace(nsid, cqe.status, data)?,
            Step::Descriptors(_) => {
                // A namespace without descriptors is still usable.
                if let (true, Some(info)) = (ok, self.found.last_mut()) {
                    info.add_descriptors(&data[..data.len().min(IDENTIFY_LEN)]);
                }
                self.next_namespace();
            }
            Step::Done => {}
        }
        Ok(())
    }

    /// The namespaces, once all have been read.
    pub fn poll_done(&mut self) -> Option<Vec<NamespaceInfo>> {
        (self.step == Step::Done).then(|| std::mem::take(&mut self.found))
    }

    fn take_list(&mut self, after: NamespaceId, data: &[u8]) -> Result<(), ScanError> {
        let mut last = after;
        let (entries, _) = data.as_chunks::<4>();
        let mut full = !entries.is_empty();
        for entry in entries {
            let nsid = NamespaceId(u32::from_le_bytes(*entry));
            if nsid.0 == 0 {
                full = false;
                break;
            }
            if nsid <= last || !nsid.is_valid() {
                return Err(ScanError::ListOrder);
            }
            last = nsid;
            if self.waiting.len() < MAX_NAMESPACES {
                self.waiting.push_back(nsid);
            }
        }
        if full && self.waiting.len() < MAX_NAMESPACES {
            self.step = Step::List(last);
        } else {
            self.next_namespace();
        }
        Ok(())
    }

    fn take_namespace(
        &mut self,
        nsid: NamespaceId,
        status: Status,
        data: &[u8],
    ) -> Result<(), ScanError> {
        if !status.is_success() {
            // Gone since the list was read, or never there.
            if status.same_code(Status::INVALID_NAMESPACE) {
                self.next_namespace();
                return Ok(());
            }
            return Err(ScanError::Refused { cns: cns::NAMESPACE, nsid, status });
        }
        match NamespaceInfo::parse(nsid, data) {
            Ok(Some(info)) => {
                self.found.push(info);
                if self.version >= VERSION_1_3 {
                    self.step = Step::Descriptors(nsid);
                } else {
                    self.next_namespace();
                }
            }
            Err(error @ InfoError::Short) => return Err(ScanError::Info(nsid, error)),
            Ok(None) | Err(_) => self.next_namespace(),
        }
        Ok(())
    }

    fn next_namespace(&mut self) {
        self.step = self.waiting.pop_front().map_or(Step::Done, Step::Namespace);
    }
}

#[cfg(test)]
mod tests {
    use super::super::info::tests::namespace_page;
    use super::*;

    fn list(ids: &[u32]) -> [u8; IDENTIFY_LEN] {
        let mut page = [0; IDENTIFY_LEN];
        for (place, id) in page.as_chunks_mut::<4>().0.iter_mut().zip(ids) {
            *place = id.to_le_bytes();
        }
        page
    }

    fn refused(status: Status) -> Cqe {
        Cqe { status, ..Cqe::default() }
    }

    /// Drives a scan against a controller given as a function.
    fn run(
        mut scan: NamespaceScan,
        mut controller: impl FnMut(u8, u32) -> Result<[u8; IDENTIFY_LEN], Status>,
    ) -> Result<Vec<NamespaceInfo>, ScanError> {
        loop {
            if let Some(found) = scan.poll_done() {
                return Ok(found);
            }
            let request = scan.poll_request().expect("a scan that is not done wants something");
            assert_eq!(scan.poll_request(), None, "one at a time");
            let [cns, ..] = request.sqe.cdw10.get().to_le_bytes();
            match controller(cns, request.sqe.nsid.get()) {
                Ok(page) => scan.handle_completion(&Cqe::default(), &page)?,
                Err(status) => scan.handle_completion(&refused(status), &[])?,
            }
        }
    }

    #[test]
    fn reads_lists_namespaces_and_descriptors() {
        let found = run(NamespaceScan::new(9, 0x0001_0400), |cns, nsid| match cns {
            0x02 => Ok(list(&[2, 5, 9])),
            0x00 if nsid == 5 => Err(Status::INVALID_NAMESPACE.dnr()),
            0x00 => Ok(namespace_page(u64::from(nsid))),
            _ => {
                let mut page = [0; IDENTIFY_LEN];
                page[..2].copy_from_slice(&[3, 16]);
                page[4..20].fill(nsid.to_le_bytes()[0]);
                Ok(page)
            }
        })
        .unwrap();
        let ids: Vec<_> =
            found.iter().map(|info| (info.nsid.0, info.block_count, info.uuid[0])).collect();
        assert_eq!(ids, [(2, 2, 2), (9, 9, 9)]);
    }

    #[test]
    fn a_full_list_is_continued() {
        let ids: Vec<u32> = (1..=1024).collect();
        let found = run(NamespaceScan::new(2000, 0x0001_0200), |cns, nsid| match (cns, nsid) {
            (0x02, 0) => Ok(list(&ids)),
            (0x02, _) => panic!("more than MAX_NAMESPACES"),
            _ => Ok(namespace_page(1)),
        });
        assert_eq!(found.unwrap().len(), MAX_NAMESPACES);
    }

    #[test]
    fn without_a_list_namespaces_are_sequential() {
        let found = run(NamespaceScan::new(3, 0x0001_0000), |cns, _| match cns {
            0x02 => Err(Status::INVALID_FIELD.dnr()),
            _ => Ok(namespace_page(1)),
        });
        assert_eq!(found.unwrap().len(), 3);
    }

    #[test]
    fn a_list_that_goes_back_is_refused() {
        let result = run(NamespaceScan::new(3, 0x0001_0400), |_, _| Ok(list(&[3, 2])));
        assert_eq!(result, Err(ScanError::ListOrder));
        let result = run(NamespaceScan::new(3, 0x0001_0400), |_, _| Err(Status::INTERNAL));
        assert!(matches!(result, Err(ScanError::Refused { cns: 2, .. })));
    }
}
