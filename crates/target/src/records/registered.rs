//! What has registered with a centralized discovery controller (TP8010): a table that commands change, without the rest
//! of the target.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use raceline_proto::nvme::discovery::{
    DiscoveryEntry, SUBTYPE_CURRENT_DISCOVERY, SUBTYPE_NVM, SUBTYPE_REFERRAL,
};
use raceline_proto::nvme::identify::ascii_field;
use raceline_proto::nvme::registration::{
    EntityKind, Registration, RegistrationTask, is_same_entry,
};
use raceline_proto::nvme::{HostNqn, Nqn, Status};

/// The largest number of hosts and discovery controllers that can be registered.
pub const MAX_REGISTERED: usize = 1024;
/// The largest number of their entries: each takes 1 KiB.
pub const MAX_REGISTERED_ENTRIES: usize = 16_384;

/// What has registered.
#[derive(Clone, Default)]
pub(crate) struct Registered {
    entities: BTreeMap<(EntityKind, Nqn), Entity>,
    /// What the discovery log lists of it.
    listed: Arc<[DiscoveryEntry]>,
}

/// A host or a discovery controller that has registered.
#[derive(Clone)]
pub(crate) struct Entity {
    /// The host that has registered it, and alone may change it.
    owner: HostNqn,
    name: String,
    version: String,
    entries: Vec<DiscoveryEntry>,
}

/// A host or a discovery controller that has registered.
#[derive(Clone, Debug)]
pub struct RegisteredInfo {
    /// What it is.
    pub kind: EntityKind,
    /// Its NQN.
    pub nqn: Nqn,
    /// With which NQN it was connected when it registered.
    pub host: HostNqn,
    /// Its name for people.
    pub name: String,
    /// Its version for people.
    pub version: String,
    /// Where it is, or what it lists.
    pub entries: Vec<DiscoveryEntry>,
}

impl Registered {
    /// What the discovery log lists.
    pub(crate) fn listed(&self) -> Arc<[DiscoveryEntry]> {
        Arc::clone(&self.listed)
    }

    /// All of it, for people.
    pub(crate) fn show(&self) -> Vec<RegisteredInfo> {
        let info = |((kind, nqn), entity): (&(EntityKind, Nqn), &Entity)| RegisteredInfo {
            kind: *kind,
            nqn: nqn.clone(),
            host: entity.owner.clone(),
            name: entity.name.clone(),
            version: entity.version.clone(),
            entries: entity.entries.clone(),
        };
        self.entities.iter().map(info).collect()
    }

    /// Forgets what has registered under this NQN; gives whether something had.
    pub(crate) fn forget(&mut self, nqn: &Nqn) -> bool {
        let before = self.entities.len();
        self.entities.retain(|(_, other), _| other != nqn);
        self.list();
        self.entities.len() != before
    }

    /// Changes it as a host wants that is connected from `peer`.
    ///
    /// # Errors
    /// The status for the host; then nothing has changed.
    pub(crate) fn change(
        &mut self,
        host: &HostNqn,
        peer: IpAddr,
        wish: &Registration,
    ) -> Result<(), Status> {
        change(&mut self.entities, host, peer, wish)?;
        self.list();
        Ok(())
    }

    fn list(&mut self) {
        // A host's entry says where the host is, which is nothing to connect to.
        let listed = self.entities.iter().filter(|((kind, _), _)| *kind != EntityKind::Host);
        self.listed = listed.flat_map(|(_, entity)| &entity.entries).copied().collect();
    }
}

/// [`Registered::change`], without the list.
fn change(
    registered: &mut BTreeMap<(EntityKind, Nqn), Entity>,
    host: &HostNqn,
    peer: IpAddr,
    wish: &Registration,
) -> Result<(), Status> {
    if wish.kind == EntityKind::Host && *host != HostNqn::Named(wish.entity.clone()) {
        // Nobody registers for another host.
        return Err(Status::INVALID_DISCOVERY_INFORMATION.dnr());
    }
    let key = (wish.kind, wish.entity.clone());
    let known = registered.get(&key);
    if known.is_some_and(|known| known.owner != *host) {
        return Err(Status::INVALID_DISCOVERY_INFORMATION.dnr());
    }
    let wanted: Vec<DiscoveryEntry> = wish
        .entries
        .iter()
        .map(|entry| usable(*entry, wish.kind, peer))
        .collect::<Result<_, _>>()?;
    let mut entries = known.map(|known| known.entries.clone()).unwrap_or_default();
    match wish.task {
        RegistrationTask::Deregister => {
            if known.is_none() {
                return Err(Status::INVALID_DISCOVERY_INFORMATION.dnr());
            }
            entries.retain(|entry| !wanted.iter().any(|gone| is_same_entry(entry, gone)));
            if wanted.is_empty() || entries.is_empty() {
                registered.remove(&key);
                return Ok(());
            }
        }
        RegistrationTask::Register => entries.clear(),
        RegistrationTask::Update => {}
    }
    if wish.task != RegistrationTask::Deregister {
        for entry in wanted {
            entries.retain(|known| !is_same_entry(known, &entry));
            entries.push(entry);
        }
    }
    let others = registered.iter().filter(|(other, _)| **other != key);
    let total = others.map(|(_, entity)| entity.entries.len()).sum::<usize>() + entries.len();
    if total > MAX_REGISTERED_ENTRIES || (known.is_none() && registered.len() >= MAX_REGISTERED) {
        return Err(Status::INSUFFICIENT_DISCOVERY_RESOURCES.dnr());
    }
    let (name, version) = (wish.name.clone(), wish.version.clone());
    registered.insert(key, Entity { owner: host.clone(), name, version, entries });
    Ok(())
}

/// An entry as it is kept: without an address, it is of the place that it came from.
fn usable(
    mut entry: DiscoveryEntry,
    kind: EntityKind,
    peer: IpAddr,
) -> Result<DiscoveryEntry, Status> {
    if entry.address().is_some_and(|(address, _)| address.is_empty()) {
        entry.traddr = ascii_field(&peer.to_string());
        entry.adrfam = DiscoveryEntry::address_family(peer);
    }
    if kind == EntityKind::Host {
        return Ok(entry);
    }
    entry.subtype = match entry.subtype {
        SUBTYPE_NVM => SUBTYPE_NVM,
        // What is the discovery service itself there is another one here.
        SUBTYPE_REFERRAL | SUBTYPE_CURRENT_DISCOVERY => SUBTYPE_REFERRAL,
        _ => return Err(Status::INVALID_DISCOVERY_INFORMATION.dnr()),
    };
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use raceline_proto::nvme::discovery::TRTYPE_TCP;

    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));
    const BAD: Status = Status::INVALID_DISCOVERY_INFORMATION.dnr();

    fn nqn(name: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-01.test:{name}")).unwrap()
    }

    fn host(name: &str) -> HostNqn {
        HostNqn::Named(nqn(name))
    }

    fn entry(subsystem: &str, address: &str) -> DiscoveryEntry {
        DiscoveryEntry {
            trtype: TRTYPE_TCP,
            adrfam: 1,
            subtype: SUBTYPE_NVM,
            trsvcid: ascii_field("4420"),
            traddr: ascii_field(address),
            subnqn: nqn(subsystem).to_field(),
            ..DiscoveryEntry::default()
        }
    }

    fn wish(task: RegistrationTask, entity: &str, entries: &[DiscoveryEntry]) -> Registration {
        Registration {
            task,
            kind: EntityKind::Direct,
            entity: nqn(entity),
            name: "shelf".into(),
            version: "1".into(),
            entries: entries.to_vec(),
        }
    }

    fn places(registered: &Registered) -> Vec<(Nqn, String)> {
        let listed = registered.listed();
        let place = |entry: &DiscoveryEntry| {
            (Nqn::from_field(&entry.subnqn).unwrap(), entry.address().unwrap().0.to_owned())
        };
        listed.iter().map(place).collect()
    }

    #[test]
    fn entries_come_change_and_go() {
        use RegistrationTask::{Deregister, Register, Update};
        let mut registered = Registered::default();
        let mut then = |task, entries: &[DiscoveryEntry]| {
            registered.change(&host("s"), PEER, &wish(task, "s", entries)).unwrap();
            places(&registered)
        };
        let (a, b) = (entry("a", "192.0.2.1"), entry("b", "192.0.2.1"));
        let (at_a, at_b) = ((nqn("a"), "192.0.2.1".to_owned()), (nqn("b"), "192.0.2.1".to_owned()));
        assert_eq!(then(Register, &[a]), std::slice::from_ref(&at_a));
        assert_eq!(then(Update, &[b, b]), [at_a.clone(), at_b.clone()]);
        assert_eq!(then(Register, &[b]), [at_b]);
        assert_eq!(then(Update, &[a]).len(), 2);
        assert_eq!(then(Deregister, &[b]), [at_a]);
        assert_eq!(then(Deregister, &[]), []);
        assert!(registered.entities.is_empty());
    }

    #[test]
    fn nobody_changes_what_another_has_registered() {
        let mut registered = Registered::default();
        let register = wish(RegistrationTask::Register, "s", &[entry("a", "192.0.2.1")]);
        registered.change(&host("one"), PEER, &register).unwrap();
        for task in
            [RegistrationTask::Register, RegistrationTask::Update, RegistrationTask::Deregister]
        {
            let by_another = wish(task, "s", &[]);
            assert_eq!(registered.change(&host("two"), PEER, &by_another), Err(BAD));
        }
        assert_eq!(places(&registered).len(), 1);
        let mut as_host = wish(RegistrationTask::Register, "three", &[]);
        as_host.kind = EntityKind::Host;
        assert_eq!(registered.change(&host("two"), PEER, &as_host), Err(BAD));
        let unknown = wish(RegistrationTask::Deregister, "none", &[]);
        assert_eq!(registered.change(&host("two"), PEER, &unknown), Err(BAD));
    }

    #[test]
    fn an_entry_without_an_address_is_of_its_sender_and_hosts_are_not_listed() {
        let mut registered = Registered::default();
        let direct = wish(RegistrationTask::Register, "s", &[entry("a", "")]);
        registered.change(&host("s"), PEER, &direct).unwrap();
        assert_eq!(places(&registered), [(nqn("a"), PEER.to_string())]);
        let mut as_host = wish(RegistrationTask::Register, "h", &[entry("h", "")]);
        as_host.kind = EntityKind::Host;
        registered.change(&host("h"), PEER, &as_host).unwrap();
        assert_eq!(registered.entities.len(), 2);
        assert_eq!(places(&registered).len(), 1);
    }

    #[test]
    fn a_service_is_a_referral_and_an_unknown_type_is_refused() {
        let mut registered = Registered::default();
        let mut service = entry("a", "192.0.2.1");
        service.subtype = SUBTYPE_CURRENT_DISCOVERY;
        let register = wish(RegistrationTask::Register, "s", &[service]);
        registered.change(&host("s"), PEER, &register).unwrap();
        assert_eq!(registered.listed()[0].subtype, SUBTYPE_REFERRAL);
        service.subtype = 9;
        let unknown = wish(RegistrationTask::Register, "s", &[service]);
        assert_eq!(registered.change(&host("s"), PEER, &unknown), Err(BAD));
    }

    #[test]
    fn registrations_are_bounded() {
        let full = Err(Status::INSUFFICIENT_DISCOVERY_RESOURCES.dnr());
        let mut registered = Registered::default();
        for number in 0..MAX_REGISTERED {
            let entity = format!("s{number}");
            let one = wish(RegistrationTask::Register, &entity, &[]);
            registered.change(&host("s"), PEER, &one).unwrap();
        }
        let one_more = wish(RegistrationTask::Register, "more", &[]);
        assert_eq!(registered.change(&host("s"), PEER, &one_more), full);
        let many: Vec<_> = (0..MAX_REGISTERED_ENTRIES)
            .map(|number| entry(&number.to_string(), "192.0.2.1"))
            .collect();
        // At once: one after the other takes the time of a comparison for each pair.
        registered.entities.get_mut(&(EntityKind::Direct, nqn("s0"))).unwrap().entries = many;
        for entity in ["s0", "s1"] {
            let update = wish(RegistrationTask::Update, entity, &[entry("one-more", "192.0.2.1")]);
            assert_eq!(registered.change(&host("s"), PEER, &update), full);
        }
        let less = wish(RegistrationTask::Register, "s0", &[]);
        registered.change(&host("s"), PEER, &less).unwrap();
    }
}
