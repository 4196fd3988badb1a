//! Changed Namespace List, log page 04h (Base 2.0, 5.16.1.5).

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::subsystem::Namespace;
use crate::nvme::NamespaceId;
use crate::nvme::identify::NamespaceList;

/// Most NSIDs that the page can name.
const MAX_CHANGED: usize = 1024;

/// The namespaces that changed since the host last read the page.
#[derive(Debug, Default)]
pub(crate) struct ChangedNamespaces {
    pub(super) nsids: BTreeSet<NamespaceId>,
    pub(super) overflow: bool,
}

impl ChangedNamespaces {
    /// Notes what differs between two lists sorted by NSID; says whether anything does.
    pub(crate) fn compare(&mut self, old: &[Namespace], new: &[Namespace]) -> bool {
        let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
        let mut any = false;
        loop {
            let order = match (old.peek(), new.peek()) {
                (None, None) => return any,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(a), Some(b)) => a.nsid.cmp(&b.nsid),
            };
            let before = if order.is_le() { old.next() } else { None };
            let after = if order.is_ge() { new.next() } else { None };
            if before != after {
                any = true;
                if let Some(namespace) = before.or(after) {
                    self.insert(namespace.nsid);
                }
            }
        }
    }

    fn insert(&mut self, nsid: NamespaceId) {
        if self.nsids.len() < MAX_CHANGED {
            self.nsids.insert(nsid);
        } else if !self.nsids.contains(&nsid) {
            self.overflow = true;
        }
    }

    /// The page. FFFFFFFFh alone stands for more changes than the page can name.
    pub(crate) fn page(&self) -> NamespaceList {
        let mut page = NamespaceList::default();
        if self.overflow {
            page.nsids[0] = NamespaceId::BROADCAST.0.into();
        } else {
            for (place, nsid) in page.nsids.iter_mut().zip(&self.nsids) {
                *place = nsid.0.into();
            }
        }
        page
    }

    /// The host has read it.
    pub(crate) fn clear(&mut self) {
        self.nsids.clear();
        self.overflow = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_is_ffffffff_alone() {
        let mut changed = ChangedNamespaces::default();
        for nsid in 1..=1024 {
            changed.insert(NamespaceId(nsid));
        }
        changed.insert(NamespaceId(7));
        let page = changed.page();
        assert_eq!((page.nsids[0].get(), page.nsids[1023].get()), (1, 1024));
        changed.insert(NamespaceId(1025));
        let page = changed.page();
        assert_eq!(page.nsids[0].get(), u32::MAX);
        assert!(page.nsids[1..].iter().all(|nsid| nsid.get() == 0));
        changed.clear();
        assert_eq!(changed.page(), NamespaceList::default());
    }
}
