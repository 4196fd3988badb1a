//! Registered memory of a simulated device: protection domains, keys, ranges, permissions.

use crate::foreign::Foreign;
use crate::verbs::{Access, DomainId, Region};

/// Bytes between the addresses of two registrations, so that an address past the end is nobody's.
const GAP: u64 = 1 << 16;
/// The keys of windows begin here.
const WINDOWS: u32 = 1 << 31;
/// The keys of memory of others begin here.
const FOREIGN: u32 = 1 << 30;

#[derive(Debug)]
struct Registration {
    domain: DomainId,
    key: u32,
    address: u64,
    bytes: Vec<u8>,
    access: Access,
}

/// A key for a part of a registration.
#[derive(Clone, Copy, Debug)]
struct Window {
    key: u32,
    region: u32,
    address: u64,
    len: u32,
    access: Access,
}

/// All memory of a device. The upper bits of a key say where its registration is, the lowest eight how often that place
/// was used.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Those that are open, but for [`DomainId::OWN`], which always is.
    domains: Vec<DomainId>,
    last_domain: u32,
    registrations: Vec<Option<Registration>>,
    windows: Vec<Window>,
    foreign: Vec<(u32, Foreign)>,
    free: Vec<u32>,
    uses: u32,
    next_address: u64,
    next_window: u32,
    next_foreign: u32,
}

impl Memory {
    pub(super) fn open_domain(&mut self) -> DomainId {
        self.last_domain += 1;
        self.domains.push(DomainId(self.last_domain));
        DomainId(self.last_domain)
    }

    /// Gives whether it was there, and nothing was registered in it.
    pub(super) fn close_domain(&mut self, domain: DomainId) -> bool {
        let place = self.domains.iter().position(|known| *known == domain);
        let is_known = place.map(|place| self.domains.swap_remove(place)).is_some();
        is_known && !self.registrations.iter().flatten().any(|own| own.domain == domain)
    }

    pub(super) fn has_domain(&self, domain: DomainId) -> bool {
        domain == DomainId::OWN || self.domains.contains(&domain)
    }

    /// Domains, but for [`DomainId::OWN`].
    pub(super) fn domains(&self) -> usize {
        self.domains.len()
    }

    pub(super) fn register(&mut self, domain: DomainId, len: u32, access: Access) -> Region {
        let place = self.free.pop().unwrap_or_else(|| {
            self.registrations.push(None);
            u32::try_from(self.registrations.len() - 1).unwrap_or(0)
        });
        self.uses += 1;
        let key = (place + 1) << 8 | (self.uses & 0xff);
        self.next_address += GAP;
        let address = self.next_address;
        self.next_address += u64::from(len);
        let bytes = vec![0; index(len)];
        self.registrations[index(place)] =
            Some(Registration { domain, key, address, bytes, access });
        Region { address, len, lkey: key, rkey: key }
    }

    /// Gives whether it was there.
    pub(super) fn deregister(&mut self, region: &Region) -> bool {
        let Some(place) = self.place(region.lkey) else { return false };
        self.registrations[index(place)] = None;
        self.windows.retain(|window| window.region != region.lkey);
        self.free.push(place);
        true
    }

    pub(super) fn register_foreign(&mut self, memory: Foreign) -> u32 {
        self.next_foreign += 1;
        let key = FOREIGN | self.next_foreign;
        self.foreign.push((key, memory));
        key
    }

    /// Gives whether it was there.
    pub(super) fn deregister_foreign(&mut self, key: u32) -> bool {
        let place = self.foreign.iter().position(|(known, _)| *known == key);
        place.map(|place| self.foreign.swap_remove(place)).is_some()
    }

    /// All registrations, with what is in them. Memory of others has one key for both uses, as attackers guess it.
    pub(super) fn all(&self) -> Vec<(Region, Vec<u8>)> {
        let own = self.registrations.iter().flatten().map(|own| {
            let len = u32::try_from(own.bytes.len()).unwrap_or(u32::MAX);
            let region = Region { address: own.address, len, lkey: own.key, rkey: own.key };
            (region, own.bytes.clone())
        });
        let foreign = self.foreign.iter().filter_map(|(key, memory)| {
            let (address, len) = (memory.address(), u32::try_from(memory.len()).ok()?);
            let region = Region { address, len, lkey: *key, rkey: *key };
            Some((region, memory.copy(address, len)?))
        });
        own.chain(foreign).collect()
    }

    /// Bytes of its own registrations.
    pub(super) fn registered(&self) -> usize {
        self.registrations.iter().flatten().map(|own| own.bytes.len()).sum()
    }

    pub(super) fn live(&self) -> usize {
        self.registrations.iter().flatten().count() + self.foreign.len()
    }

    pub(super) fn bind(&mut self, region: &Region, offset: u32, len: u32, access: Access) -> u32 {
        let part = region.slice(offset, len);
        self.next_window += 1;
        let key = WINDOWS | self.next_window;
        let window = Window { key, region: region.lkey, address: part.address, len, access };
        self.windows.push(window);
        key
    }

    /// Gives whether there was such a key that can be ended.
    pub(super) fn unbind(&mut self, key: u32) -> bool {
        let place = self.windows.iter().position(|window| window.key == key);
        place.map(|place| self.windows.swap_remove(place)).is_some()
    }

    /// The same, because the peer of a queue pair of a domain asks for it.
    pub(super) fn invalidate(&mut self, domain: DomainId, key: u32) -> bool {
        let window = self.windows.iter().find(|window| window.key == key);
        let region = window.and_then(|window| self.registration(window.region));
        region.is_some_and(|region| region.domain == domain) && self.unbind(key)
    }

    fn place(&self, key: u32) -> Option<u32> {
        let place = (key >> 8).checked_sub(1)?;
        let registration = self.registrations.get(index(place))?.as_ref()?;
        (registration.key == key).then_some(place)
    }

    fn registration(&self, key: u32) -> Option<&Registration> {
        self.registrations[index(self.place(key)?)].as_ref()
    }

    /// The memory at an address by a key of this end, for a queue pair of a domain.
    pub(super) fn local(
        &mut self,
        domain: DomainId,
        key: u32,
        address: u64,
        len: u32,
        write: bool,
    ) -> Option<&mut [u8]> {
        let allowed =
            |own: &Registration| own.domain == domain && (!write || own.access.local_write);
        self.range(key, address, len, allowed)
    }

    /// A copy of the bytes at an address by a key of this end, for a queue pair of a domain.
    pub(super) fn peek(
        &self,
        domain: DomainId,
        key: u32,
        address: u64,
        len: u32,
    ) -> Option<Vec<u8>> {
        if key & FOREIGN != 0 {
            if domain != DomainId::OWN {
                return None;
            }
            let (_, memory) = self.foreign.iter().find(|(known, _)| *known == key)?;
            return memory.copy(address, len);
        }
        let registration = self.registration(key).filter(|own| own.domain == domain)?;
        let start = usize::try_from(address.checked_sub(registration.address)?).ok()?;
        let bytes = registration.bytes.get(start..start.checked_add(index(len))?)?;
        Some(bytes.to_vec())
    }

    /// Whether this end's memory is open to writes of the peer.
    pub(super) fn is_open_to_writes(&self, key: u32) -> bool {
        self.registration(key).is_some_and(|registration| registration.access.remote_write)
    }

    /// The memory at an address by a key that the peer of a queue pair of a domain has.
    pub(super) fn remote(
        &mut self,
        domain: DomainId,
        key: u32,
        address: u64,
        len: u32,
        write: bool,
    ) -> Option<&mut [u8]> {
        let allowed =
            |access: &Access| if write { access.remote_write } else { access.remote_read };
        if key & WINDOWS == 0 {
            let allowed = |own: &Registration| own.domain == domain && allowed(&own.access);
            return self.range(key, address, len, allowed);
        }
        let window = *self.windows.iter().find(|window| window.key == key)?;
        let start = address.checked_sub(window.address)?;
        let fits = start.checked_add(len.into()).is_some_and(|end| end <= window.len.into());
        if !fits || !allowed(&window.access) {
            return None;
        }
        self.range(window.region, address, len, |own| own.domain == domain)
    }

    fn range(
        &mut self,
        key: u32,
        address: u64,
        len: u32,
        allowed: impl Fn(&Registration) -> bool,
    ) -> Option<&mut [u8]> {
        let place = self.place(key)?;
        let registration = self.registrations[index(place)].as_mut()?;
        if !allowed(registration) {
            return None;
        }
        let start = usize::try_from(address.checked_sub(registration.address)?).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        registration.bytes.get_mut(start..end)
    }

    /// The bytes of a registration from an offset on.
    ///
    /// # Panics
    /// When it has ended, or is shorter: bugs of the caller that would be wild reads with a device.
    fn bytes(&self, region: &Region, offset: u32, len: usize) -> &[u8] {
        let Some(registration) = self.registration(region.lkey) else {
            unreachable!("memory is touched after its registration has ended")
        };
        &registration.bytes[index(offset)..index(offset) + len]
    }

    pub(super) fn copy_out(&self, region: &Region, offset: u32, into: &mut [u8]) {
        into.copy_from_slice(self.bytes(region, offset, into.len()));
    }

    pub(super) fn copy_in(&mut self, region: &Region, offset: u32, bytes: &[u8]) {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.lend(region, offset, len).copy_from_slice(bytes);
    }

    /// A part of a registration.
    ///
    /// # Panics
    /// When it is no part, or the registration has ended.
    pub(super) fn lend(&mut self, region: &Region, offset: u32, len: u32) -> &mut [u8] {
        let place = self.range(region.lkey, region.address + u64::from(offset), len, |_| true);
        let Some(place) = place else {
            unreachable!("memory is touched outside its registration or after its end")
        };
        place
    }
}

fn index(place: u32) -> usize {
    usize::try_from(place).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn memory_of_others_is_read_by_this_end_only() {
        let mut memory = Memory::default();
        let bytes: Arc<Vec<u8>> = Arc::new((0..200).collect());
        let foreign = Foreign::of_bytes(&bytes);
        let at = foreign.address();
        let key = memory.register_foreign(foreign);
        assert_eq!((memory.live(), Arc::strong_count(&bytes)), (1, 2), "it is kept");
        assert_eq!(memory.peek(DomainId::OWN, key, at + 190, 10), Some((190..200).collect()));
        for (address, len) in [(at + 190, 11), (at - 1, 2), (at, u32::MAX), (u64::MAX, 2)] {
            assert_eq!(memory.peek(DomainId::OWN, key, address, len), None, "{address:x} {len}");
        }
        let own = memory.register(DomainId::OWN, 64, Access::HOST_DATA);
        assert_eq!(memory.peek(DomainId::OWN, own.lkey, at, 1), None, "another's key");
        assert_eq!(memory.peek(DomainId::OWN, key, own.address, 1), None, "another's address");
        assert!(
            memory.local(DomainId::OWN, key, at, 1, true).is_none(),
            "no receive and no RDMA READ writes it"
        );
        for write in [false, true] {
            assert!(
                memory.remote(DomainId::OWN, key, at, 1, write).is_none(),
                "the peer does not reach it"
            );
        }
        assert!(memory.deregister_foreign(key) && !memory.deregister_foreign(key));
        assert_eq!((memory.peek(DomainId::OWN, key, at, 1), Arc::strong_count(&bytes)), (None, 1));
    }

    #[test]
    fn keys_ranges_and_permissions_are_checked() {
        let mut memory = Memory::default();
        let host = memory.register(DomainId::OWN, 4096, Access::HOST_DATA);
        let local = memory.register(DomainId::OWN, 4096, Access::LOCAL);
        assert!(memory.remote(DomainId::OWN, host.rkey, host.address, 4096, true).is_some());
        for (address, len) in
            [(host.address, 4097), (host.address - 1, 1), (host.address + 4096, 1), (u64::MAX, 2)]
        {
            assert!(
                memory.remote(DomainId::OWN, host.rkey, address, len, false).is_none(),
                "{address:x} {len}"
            );
        }
        assert!(
            memory.remote(DomainId::OWN, local.rkey, local.address, 1, false).is_none(),
            "not for the peer"
        );
        assert!(
            memory.remote(DomainId::OWN, host.rkey, local.address, 1, false).is_none(),
            "another's address"
        );
        assert!(memory.local(DomainId::OWN, local.lkey, local.address, 4096, true).is_some());
        let read_only = Access { remote_read: true, ..Access::default() };
        let window = memory.bind(&host, 512, 512, read_only);
        assert!(memory.remote(DomainId::OWN, window, host.address + 512, 512, false).is_some());
        assert!(memory.remote(DomainId::OWN, window, host.address + 512, 513, false).is_none());
        assert!(
            memory.remote(DomainId::OWN, window, host.address + 512, 1, true).is_none(),
            "it is for reading"
        );
        assert!(memory.unbind(window) && !memory.unbind(window));
        assert!(memory.remote(DomainId::OWN, window, host.address + 512, 1, false).is_none());
        assert!(memory.deregister(&host) && !memory.deregister(&host));
        assert!(memory.remote(DomainId::OWN, host.rkey, host.address, 1, false).is_none());
        let again = memory.register(DomainId::OWN, 4096, Access::HOST_DATA);
        assert_ne!(again.rkey, host.rkey, "a key is not used again soon");
    }

    #[test]
    fn a_key_opens_nothing_in_another_domain() {
        let mut memory = Memory::default();
        let [one, other] = [(); 2].map(|()| memory.open_domain());
        let region = memory.register(one, 4096, Access::HOST_DATA);
        let (key, at) = (region.rkey, region.address);
        let window = memory.bind(&region, 0, 512, Access::HOST_DATA);
        for domain in [other, DomainId::OWN] {
            for write in [false, true] {
                assert!(memory.remote(domain, key, at, 1, write).is_none(), "{domain:?} {write}");
                assert!(memory.remote(domain, window, at, 1, write).is_none(), "{domain:?}");
                assert!(memory.local(domain, key, at, 1, write).is_none(), "{domain:?} {write}");
            }
            assert_eq!(memory.peek(domain, key, at, 1), None, "{domain:?}");
            assert!(!memory.invalidate(domain, window), "{domain:?}");
        }
        assert!(memory.remote(one, key, at, 4096, true).is_some());
        assert!(memory.remote(one, window, at, 512, true).is_some());
        assert!(memory.local(one, key, at, 4096, true).is_some());
        assert!(memory.invalidate(one, window) && memory.peek(one, key, at, 1).is_some());
        assert!(memory.close_domain(other) && !memory.close_domain(other), "once");
        assert!(!memory.close_domain(one), "there is memory in it");
        assert_eq!(memory.domains(), 0);
    }
}
