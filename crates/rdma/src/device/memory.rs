//! Registered memory of a real device, and the protection domains in which it is.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::{NonNull, null_mut};

use super::layout::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, MemoryRegion, VerbsContext,
};
use super::library::Functions;
use super::{last_error, removal};
use crate::foreign::Foreign;
use crate::verbs::{Access, DomainId, ProviderError, Region};

/// Memory begins at pages, so that no other data lie in what a peer may reach.
const PAGE: usize = 4096;

/// What a call says that gives an error number, or sets one.
fn said_by(failed: c_int) -> io::Error {
    if failed < 0 { io::Error::last_os_error() } else { io::Error::from_raw_os_error(failed) }
}

#[derive(Debug)]
struct Allocation {
    start: NonNull<u8>,
    layout: Layout,
    registration: *mut MemoryRegion,
}

/// All memory that is registered, by its local key.
#[derive(Debug)]
pub(super) struct Memory {
    functions: &'static Functions,
    context: *mut VerbsContext,
    domains: BTreeMap<DomainId, *mut c_void>,
    next_domain: u32,
    /// Domains that the device has, at most.
    most_domains: u32,
    allocations: HashMap<u32, Allocation>,
    foreign: HashMap<u32, (Foreign, *mut MemoryRegion)>,
}

impl Memory {
    pub(super) fn new(functions: &'static Functions) -> Self {
        Self {
            functions,
            context: null_mut(),
            domains: BTreeMap::new(),
            next_domain: DomainId::OWN.0,
            most_domains: 0,
            allocations: HashMap::new(),
            foreign: HashMap::new(),
        }
    }

    /// The device has this context.
    pub(super) fn set_context(&mut self, context: *mut VerbsContext) {
        self.context = context;
    }

    /// The device has so many domains, for all processes together.
    pub(super) fn set_most_domains(&mut self, most: u32) {
        self.most_domains = most;
    }

    /// Makes a domain. The first is [`DomainId::OWN`].
    pub(super) fn open_domain(&mut self) -> Result<DomainId, ProviderError> {
        let what = "allocating a protection domain";
        // SAFETY: the context is alive.
        let made = unsafe { (self.functions.ibv_alloc_pd)(self.context) };
        if made.is_null() {
            let error = io::Error::last_os_error();
            let why = format!(
                "{error}; the RDMA device has {} at most (max_pd of ibv_devinfo -v), and each target takes one on each core",
                self.most_domains
            );
            return Err(ProviderError::new(what, why).of_kind(error.kind()));
        }
        let domain = DomainId(self.next_domain);
        self.next_domain += 1;
        self.domains.insert(domain, made);
        Ok(domain)
    }

    /// Ends a domain. Nothing is left in it that the device knows of.
    pub(super) fn close_domain(&mut self, domain: DomainId) {
        let Some(made) = self.domains.remove(&domain) else { return };
        // SAFETY: alive until here, and nobody has it any longer: it is out of the table.
        let failed = unsafe { (self.functions.ibv_dealloc_pd)(made) };
        if failed != 0 && !self.is_answer_of_removed(failed) {
            // The device keeps what it could not end, until it is closed. Nothing else gets into that domain.
            tracing::warn!(error = %said_by(failed), "an RDMA device keeps a protection domain");
        }
    }

    /// Ends all domains. No queue pair and no registration is left.
    pub(super) fn close_domains(&mut self) {
        let all: Vec<DomainId> = self.domains.keys().copied().collect();
        all.into_iter().for_each(|domain| self.close_domain(domain));
    }

    /// What the libraries know a domain by.
    pub(super) fn domain(&self, domain: DomainId) -> Result<*mut c_void, ProviderError> {
        let known = self.domains.get(&domain).copied();
        known.ok_or_else(|| ProviderError::new("using a protection domain", "it is closed"))
    }

    /// The kernel ends all that a device has when that is removed, and answers so from then on.
    fn is_answer_of_removed(&self, failed: c_int) -> bool {
        matches!(said_by(failed).raw_os_error(), Some(libc::EIO | libc::ENODEV))
            && removal::is_noted(self.context)
    }

    /// Ends a registration. Whether the device does not reach the memory any longer.
    fn end(&self, registration: *mut MemoryRegion) -> bool {
        // SAFETY: the registration is alive, and ends here.
        let failed = unsafe { (self.functions.ibv_dereg_mr)(registration) };
        failed == 0 || self.is_answer_of_removed(failed)
    }

    pub(super) fn register(
        &mut self,
        domain: DomainId,
        len: u32,
        access: Access,
    ) -> Result<Region, ProviderError> {
        let what = "registering memory";
        let domain = self.domain(domain)?;
        let bytes = usize::try_from(len).unwrap_or(usize::MAX).max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(bytes, PAGE)
            .map_err(|error| ProviderError::new(what, error.to_string()))?;
        // SAFETY: the layout has a size above 0.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            return Err(ProviderError::new(what, format!("no memory for {bytes} bytes")));
        };
        let mut flags = if access.local_write { ACCESS_LOCAL_WRITE } else { 0 };
        flags |= if access.remote_read { ACCESS_REMOTE_READ } else { 0 };
        // Verbs allow remote writes only together with local ones.
        flags |= if access.remote_write { ACCESS_REMOTE_WRITE | ACCESS_LOCAL_WRITE } else { 0 };
        // SAFETY: the domain is alive, and the memory is until its registration has ended.
        let registration = unsafe {
            (self.functions.ibv_reg_mr)(domain, start.as_ptr().cast(), layout.size(), flags)
        };
        if registration.is_null() {
            let error = last_error(what);
            // SAFETY: allocated above with this layout.
            unsafe { dealloc(start.as_ptr(), layout) };
            return Err(error);
        }
        // SAFETY: the library gave a registration.
        let (lkey, rkey) = unsafe { ((*registration).lkey, (*registration).rkey) };
        let address = u64::try_from(start.as_ptr().addr()).unwrap_or(0);
        self.allocations.insert(lkey, Allocation { start, layout, registration });
        Ok(Region { address, len, lkey, rkey })
    }

    pub(super) fn deregister(&mut self, region: &Region) {
        if let Some(allocation) = self.allocations.remove(&region.lkey) {
            self.free(&allocation);
        }
    }

    pub(super) fn register_foreign(&mut self, memory: Foreign) -> Result<u32, ProviderError> {
        let domain = self.domain(DomainId::OWN)?;
        let start = memory.start().as_ptr().cast();
        // SAFETY: the domain is alive, and so is the memory: `memory` is kept until the registration has ended. Without
        // permissions the device only reads it.
        let registration = unsafe { (self.functions.ibv_reg_mr)(domain, start, memory.len(), 0) };
        if registration.is_null() {
            return Err(last_error("registering memory of others"));
        }
        // SAFETY: the library gave a registration.
        let lkey = unsafe { (*registration).lkey };
        self.foreign.insert(lkey, (memory, registration));
        Ok(lkey)
    }

    pub(super) fn deregister_foreign(&mut self, lkey: u32) {
        if let Some(foreign) = self.foreign.remove(&lkey) {
            self.end_foreign(foreign);
        }
    }

    fn end_foreign(&self, (memory, registration): (Foreign, *mut MemoryRegion)) {
        if !self.end(registration) {
            // The device may still read it: it stays where it is.
            std::mem::forget(memory);
        }
    }

    pub(super) fn clear(&mut self) {
        for (_, foreign) in std::mem::take(&mut self.foreign) {
            self.end_foreign(foreign);
        }
        for (_, allocation) in std::mem::take(&mut self.allocations) {
            self.free(&allocation);
        }
    }

    fn free(&self, allocation: &Allocation) {
        if !self.end(allocation.registration) {
            // The device may still reach it: it is never used for anything else.
            return;
        }
        // SAFETY: allocated with this layout, and no device reaches it any longer.
        unsafe { dealloc(allocation.start.as_ptr(), allocation.layout) };
    }

    /// The place of a part of a region.
    ///
    /// # Panics
    /// When it is no part of memory that is registered: that is a bug of the caller.
    fn place(&self, region: &Region, offset: u32, len: usize) -> *mut u8 {
        let Some(allocation) = self.allocations.get(&region.lkey) else {
            unreachable!("memory is touched after its registration has ended")
        };
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= allocation.layout.size()), "{offset} + {len}");
        // SAFETY: within the allocation.
        unsafe { allocation.start.as_ptr().add(offset) }
    }

    pub(super) fn read(&self, region: &Region, offset: u32, into: &mut [u8]) {
        let from = self.place(region, offset, into.len());
        // SAFETY: `place` has checked the range; a slice of the caller is not within it: memory is lent by `fill` only.
        unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }

    pub(super) fn fill(
        &mut self,
        region: &Region,
        offset: u32,
        len: u32,
        fill: &mut dyn FnMut(&mut [u8]),
    ) {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let place = self.place(region, offset, len);
        // SAFETY: `place` has checked the range, which was zeroed when it was allocated. Nobody else here has a reference
        // into it: memory is lent by this method only, and to one at a time. Its owner lends no part that a request of a
        // device may write meanwhile.
        fill(unsafe { std::slice::from_raw_parts_mut(place, len) });
    }

    pub(super) fn write(&mut self, region: &Region, offset: u32, bytes: &[u8]) {
        let to = self.place(region, offset, bytes.len());
        // SAFETY: as in `read`.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::RdmaDevice;
    use super::super::stub::{open, stub};
    use super::*;
    use crate::verbs::{PairConfig, Provider};

    /// Memory that says by its count whether anybody still has it.
    fn foreign(held: &Arc<Vec<u8>>) -> Foreign {
        let start = NonNull::new(held.as_ptr().cast_mut()).unwrap();
        // SAFETY: the vector is the owner's, and never changed.
        unsafe { Foreign::new(start, held.len(), Arc::clone(held) as _) }
    }

    #[test]
    fn memory_of_a_device_that_is_gone_is_freed() {
        for (answer, is_gone, is_freed) in [
            (0, false, true),
            (libc::EIO, false, false),
            (libc::EBUSY, true, false),
            (libc::EIO, true, true),
            (libc::ENODEV, true, true),
        ] {
            let held = Arc::new(vec![0; 4096]);
            let mut device = open();
            device.memory.register_foreign(foreign(&held)).unwrap();
            stub(|stub| stub.dereg = answer);
            if is_gone {
                removal::note(device.context);
            }
            drop(device);
            let is_held = Arc::strong_count(&held) > 1;
            assert_eq!(!is_held, is_freed, "{answer} of a device that is gone: {is_gone}");
        }
    }

    #[test]
    fn a_domain_is_deallocated_after_what_is_in_it() {
        stub(|stub| stub.inline = 64);
        let contents = || stub(|stub| stub.contents.values().copied().collect::<Vec<_>>());
        let mut device = open();
        assert_eq!(contents(), [0], "its own");
        let [one, other] = [(); 2].map(|()| device.open_domain().unwrap());
        assert!(one != other && one != DomainId::OWN && other != DomainId::OWN);
        let pair_in = |device: &mut RdmaDevice, domain| {
            let id = device.create_id().unwrap();
            let connection = device.connections.add(id);
            let (sends, receives, inline_bytes) = (8, 8, 0);
            let config =
                PairConfig { domain, sends, receives, shares_receives: false, inline_bytes };
            device.make_pair(connection, &config).map(|_| connection)
        };
        let pair = pair_in(&mut device, one).unwrap();
        let region = device.register(one, 4096, Access::HOST_DATA).unwrap();
        device.register(other, 4096, Access::LOCAL).unwrap();
        let mut all = contents();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
        device.destroy(pair);
        device.deregister(region);
        device.close_domain(one);
        assert_eq!(contents().len(), 2);
        let error = device.register(one, 4096, Access::LOCAL).unwrap_err().to_string();
        assert!(error.contains("protection domain"), "{error}");
        assert!(pair_in(&mut device, one).is_err());
        // The rest ends with the device, in the right order.
        pair_in(&mut device, other).unwrap();
        drop(device);
        assert_eq!(contents(), [0; 0]);
    }

    #[test]
    fn a_device_without_further_domains_says_how_many_it_has() {
        let mut device = open();
        stub(|stub| stub.domains = 1);
        let error = device.open_domain().unwrap_err().to_string();
        for word in ["protection domain", "4 at most", "max_pd", "each target"] {
            assert!(error.contains(word), "{error}");
        }
        assert!(device.register(DomainId::OWN, 64, Access::LOCAL).is_ok(), "the device works");
    }
}
