//! The configuration: the calls that would make it again, in their order, without calls that were undone.
//!
//! Every change is a few [`Record`]s. The catalogue is the sum of all records: the configuration that is
//! saved, and the state that a restart restores. An entry owns every entry whose key begins with its own:
//! removing a subsystem removes its namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::ManagerError;
use super::nvmf::{RDMA, RDMA_SCHEME};

/// The parts of a configuration, by SPDK's names; in the order in which they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// Drives behind Intel VMD: the kernel drives them.
    Vmd,
    /// Keys.
    Keyring,
    /// I/O buffers.
    Iobuf,
    /// Sockets.
    Sock,
    /// Block devices.
    Bdev,
    /// Acceleration.
    Accel,
    /// Scheduling of cores.
    Scheduler,
    /// File system devices: not here.
    Fsdev,
    /// NVMe over Fabrics.
    Nvmf,
    /// iSCSI.
    Iscsi,
    /// Disks of virtual machines.
    #[serde(rename = "vhost_blk")]
    VhostBlk,
    /// Disks of the kernel.
    Ublk,
    /// Disks of the kernel's NBD client.
    Nbd,
    /// Targets over vfio-user: not here.
    #[serde(rename = "vfio_user_target")]
    VfioUserTarget,
}

impl Section {
    /// All of them, in order.
    pub const ALL: [Self; 14] = [
        Self::Vmd,
        Self::Keyring,
        Self::Iobuf,
        Self::Sock,
        Self::Accel,
        Self::Bdev,
        Self::Scheduler,
        Self::Fsdev,
        Self::Nvmf,
        Self::Iscsi,
        Self::VhostBlk,
        Self::Ublk,
        Self::Nbd,
        Self::VfioUserTarget,
    ];

    /// SPDK's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vmd => "vmd",
            Self::Keyring => "keyring",
            Self::Iobuf => "iobuf",
            Self::Sock => "sock",
            Self::Bdev => "bdev",
            Self::Accel => "accel",
            Self::Scheduler => "scheduler",
            Self::Fsdev => "fsdev",
            Self::Nvmf => "nvmf",
            Self::Iscsi => "iscsi",
            Self::VhostBlk => "vhost_blk",
            Self::Ublk => "ublk",
            Self::Nbd => "nbd",
            Self::VfioUserTarget => "vfio_user_target",
        }
    }

    /// The section of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.name() == name)
    }

    /// Whether it belongs to a part of SPDK that is not here, so that its settings have no effect.
    #[must_use]
    pub fn is_absent(self) -> bool {
        matches!(self, Self::Vmd | Self::Fsdev | Self::VfioUserTarget)
    }

    /// Whether clients are shown it only where it has calls: most daemons have no disks, and what is absent has none.
    #[must_use]
    pub fn is_shown_with_calls(self) -> bool {
        self.is_absent() || matches!(self, Self::VhostBlk | Self::Ublk | Self::Nbd)
    }

    /// The sections that must come before it.
    #[must_use]
    pub fn depends_on(self) -> &'static [Self] {
        match self {
            Self::Vmd | Self::Keyring | Self::Iobuf | Self::Scheduler => &[],
            Self::Fsdev | Self::VfioUserTarget => &[],
            Self::Sock => &[Self::Iobuf],
            Self::Accel => &[Self::Iobuf, Self::Keyring],
            Self::Bdev => &[Self::Accel, Self::Iobuf, Self::Sock, Self::Keyring],
            Self::Nvmf => &[Self::Bdev, Self::Keyring, Self::Sock],
            Self::Iscsi => &[Self::Bdev, Self::Sock],
            Self::VhostBlk | Self::Ublk | Self::Nbd => &[Self::Bdev],
        }
    }
}

/// The name of an entry: parts from the outermost to the innermost.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key(Vec<String>);

impl Key {
    /// A key of these parts.
    #[must_use]
    pub fn new(parts: &[&str]) -> Self {
        Self(parts.iter().map(|part| (*part).to_owned()).collect())
    }

    /// Its parts.
    pub(crate) fn parts(&self) -> &[String] {
        &self.0
    }

    /// The part that is the address of a listener or of a referral.
    fn address_part(&mut self) -> Option<&mut String> {
        match self.0.as_mut_slice() {
            [.., kind, address] if kind == "listener" => Some(address),
            [_, _, kind, address, _] if kind == "referral" => Some(address),
            _ => None,
        }
    }

    /// The name of an entry as this version has it. Earlier ones named listeners and referrals for RDMA by their address
    /// alone, which those for TCP can have as well.
    fn renewed(mut self, entry: &Entry) -> Self {
        let members = ["listen_address", "address"];
        let address = members.iter().find_map(|member| entry.params.get(member));
        let is_rdma = address.and_then(|it| it.get("trtype")).is_some_and(|it| it == RDMA);
        if is_rdma
            && let Some(part) = self.address_part()
            && !part.starts_with(RDMA_SCHEME)
        {
            part.insert_str(0, RDMA_SCHEME);
        }
        self
    }

    /// The name that an entry for RDMA has now which an earlier version gave this name.
    fn for_rdma(&self) -> Option<Self> {
        let mut key = self.clone();
        key.address_part()?.insert_str(0, RDMA_SCHEME);
        Some(key)
    }

    fn begins_with(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" / "))
    }
}

/// One call that makes a part of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The section to which it belongs.
    pub section: Section,
    /// The method.
    pub method: String,
    /// Its parameters with every identity filled in, so that the same call makes the same object again.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub params: Value,
}

impl Entry {
    /// A call with these parameters.
    ///
    /// # Errors
    /// When the parameters cannot be JSON, which is a bug of this program.
    pub fn new(
        section: Section,
        method: &str,
        params: &impl Serialize,
    ) -> Result<Self, ManagerError> {
        let params = serde_json::to_value(params)
            .map_err(|error| ManagerError::Invalid(format!("{method} cannot be kept: {error}")))?;
        Ok(Self { section, method: method.to_owned(), params })
    }

    /// The device that it stands on, from the parameter by which stacked devices name it.
    #[must_use]
    pub fn base_name(&self) -> Option<&str> {
        let members = ["base_bdev_name", "base_bdev", "base_name"];
        members.iter().find_map(|member| self.params.get(member)?.as_str())
    }
}

/// One step of a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Record {
    /// Makes an entry, or replaces it in its place.
    Put {
        /// Its name.
        key: Key,
        /// The entry.
        entry: Entry,
    },
    /// Removes an entry and all entries that it owns.
    Remove {
        /// Its name.
        key: Key,
    },
}

/// The configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalogue {
    entries: BTreeMap<Key, (u64, Entry)>,
    order: BTreeMap<u64, Key>,
    /// The entries that stand on a device, by its name: thousands of devices arrive one by one, and each
    /// arrival looks for them.
    on_base: BTreeMap<String, BTreeSet<u64>>,
    last: u64,
    /// The sum of the digests of all entries.
    digest: u64,
}

impl Catalogue {
    /// Applies a record.
    pub fn apply(&mut self, record: Record) {
        match record {
            Record::Put { key, entry } => self.put(key.renewed(&entry), entry),
            // An earlier version recorded so that it removed what is for RDMA: then there was no listener for TCP. (Of two
            // referrals to one place, that for TCP goes.)
            Record::Remove { key } => match self.get(&key) {
                None => self.remove(&key.for_rdma().unwrap_or(key)),
                Some(_) => self.remove(&key),
            },
        }
    }

    /// All entries in the order in which they were made.
    pub fn entries(&self) -> impl Iterator<Item = (&Key, &Entry)> {
        self.order.values().filter_map(|key| Some((key, &self.entries.get(key)?.1)))
    }

    /// The entries of one section in an order in which they can be made.
    pub fn section(&self, section: Section) -> impl Iterator<Item = &Entry> {
        self.in_order(section).map(|(_, entry)| entry)
    }

    /// The entries of one section and their names, in an order in which they can be made: that in which they were made,
    /// but for iSCSI that of their kinds. There an entry may have come to need one that was made later.
    pub fn in_order(&self, section: Section) -> impl Iterator<Item = (&Key, &Entry)> {
        let of_section = self.entries().filter(move |(_, entry)| entry.section == section);
        let mut found: Vec<(&Key, &Entry)> = of_section.collect();
        if section == Section::Iscsi {
            found.sort_by_key(|(_, entry)| iscsi_rank(&entry.method));
        }
        found.into_iter()
    }

    /// The entries that stand on a device of this name, in their order.
    pub fn standing_on(&self, base: &str) -> impl Iterator<Item = &Entry> {
        let places = self.on_base.get(base).into_iter().flatten();
        places.filter_map(|place| Some(&self.entries.get(self.order.get(place)?)?.1))
    }

    /// The entry of that name.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key).map(|(_, entry)| entry)
    }

    /// The entry of that name and those that it owns, in the order in which they were made.
    pub(super) fn owned(&self, key: &Key) -> Vec<(&Key, &Entry)> {
        let from_here = self.entries.range(key.clone()..);
        let mut owned: Vec<_> = from_here.take_while(|(owned, _)| owned.begins_with(key)).collect();
        owned.sort_by_key(|(_, (place, _))| *place);
        owned.into_iter().map(|(key, (_, entry))| (key, entry)).collect()
    }

    /// A number that tells configurations apart: the same for the same entries in any order, in all releases.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn put(&mut self, key: Key, entry: Entry) {
        let place = self.entries.get(&key).map_or(self.last + 1, |(place, _)| *place);
        self.last = self.last.max(place);
        self.leave_base(&key);
        if let Some(base) = entry.base_name() {
            self.on_base.entry(base.to_owned()).or_default().insert(place);
        }
        self.order.insert(place, key.clone());
        self.digest = self.digest.wrapping_add(digest_of(&key, &entry));
        if let Some((_, before)) = self.entries.get(&key) {
            self.digest = self.digest.wrapping_sub(digest_of(&key, before));
        }
        self.entries.insert(key, (place, entry));
    }

    fn leave_base(&mut self, key: &Key) {
        let Some((place, entry)) = self.entries.get(key) else { return };
        let Some(base) = entry.base_name() else { return };
        if let Some(places) = self.on_base.get_mut(base) {
            places.remove(place);
            if places.is_empty() {
                self.on_base.remove(base);
            }
        }
    }

    fn remove(&mut self, key: &Key) {
        let owned: Vec<Key> = self.owned(key).into_iter().map(|(owned, _)| owned.clone()).collect();
        for key in owned {
            self.leave_base(&key);
            if let Some((place, entry)) = self.entries.remove(&key) {
                self.order.remove(&place);
                self.digest = self.digest.wrapping_sub(digest_of(&key, &entry));
            }
        }
    }
}

/// FNV-1a (64 bits) of an entry and its name, as JSON. As where entries are compared, the order of members is nothing.
fn digest_of(key: &Key, entry: &Entry) -> u64 {
    let mut entry = entry.clone();
    entry.params.sort_all_objects();
    // Earlier versions named no protocol, and there are digests of theirs. The entry has it.
    let mut key = key.clone();
    if let Some(part) = key.address_part()
        && let Some(address) = part.strip_prefix(RDMA_SCHEME)
    {
        *part = address.to_owned();
    }
    // Names and values that were parsed can always be written.
    let text = serde_json::to_vec(&(&key, &entry)).unwrap_or_default();
    text.iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The place of a kind of entries of iSCSI: the order in which SPDK saves them.
fn iscsi_rank(method: &str) -> usize {
    const ORDER: [&str; 4] = [
        "iscsi_set_options",
        "iscsi_create_portal_group",
        "iscsi_create_initiator_group",
        "iscsi_create_target_node",
    ];
    ORDER.iter().position(|kind| *kind == method).unwrap_or(ORDER.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(parts: &[&str], value: i32) -> Record {
        let entry = Entry { section: Section::Nvmf, method: "m".to_owned(), params: value.into() };
        Record::Put { key: Key::new(parts), entry }
    }

    fn values(catalogue: &Catalogue) -> Vec<i64> {
        catalogue.entries().filter_map(|(_, entry)| entry.params.as_i64()).collect()
    }

    #[test]
    fn an_entry_keeps_its_place_and_takes_what_it_owns_with_it() {
        let mut catalogue = Catalogue::default();
        for record in [
            put(&["subsystem", "a"], 1),
            put(&["bdev", "x"], 2),
            put(&["subsystem", "a", "namespace", "1"], 3),
            put(&["subsystem", "ab"], 4),
            put(&["bdev", "x"], 5),
        ] {
            catalogue.apply(record);
        }
        assert_eq!(values(&catalogue), [1, 5, 3, 4]);
        catalogue.apply(Record::Remove { key: Key::new(&["subsystem", "a"]) });
        assert_eq!(values(&catalogue), [5, 4]);
        catalogue.apply(Record::Remove { key: Key::new(&["nothing"]) });
        catalogue.apply(put(&["subsystem", "a"], 6));
        assert_eq!(values(&catalogue), [5, 4, 6]);
        assert_eq!(catalogue.len(), 3);
    }

    /// What an earlier version has recorded of listeners for RDMA is read as this version records it.
    #[test]
    fn listeners_for_rdma_have_names_of_their_own() {
        let listener = |name: &str, trtype: &str| {
            let address = serde_json::json!({ "trtype": trtype, "traddr": "192.0.2.1" });
            let params = serde_json::json!({ "listen_address": address });
            let entry = Entry { section: Section::Nvmf, method: "m".to_owned(), params };
            Record::Put { key: Key::new(&["subsystem", "a", "listener", name]), entry }
        };
        let names = |catalogue: &Catalogue| -> Vec<String> {
            catalogue.entries().map(|(key, _)| key.parts()[3].clone()).collect()
        };
        let (plain, own) = ("192.0.2.1:4420", "rdma://192.0.2.1:4420");
        let removal =
            |name| Record::Remove { key: Key::new(&["subsystem", "a", "listener", name]) };
        let of_before = [listener(plain, "RDMA"), removal(plain), listener(plain, "RDMA")];
        let mut catalogue = Catalogue::default();
        of_before.into_iter().for_each(|record| catalogue.apply(record));
        assert_eq!(names(&catalogue), [own]);
        catalogue.apply(listener(plain, "TCP"));
        assert_eq!(names(&catalogue), [own, plain]);
        let mut other = catalogue.clone();
        other.apply(removal(plain));
        assert_eq!(names(&other), [own]);
        other.apply(removal(plain));
        assert_eq!(names(&other), [""; 0]);
        catalogue.apply(removal(own));
        assert_eq!(names(&catalogue), [plain]);
    }

    #[test]
    fn what_stands_on_a_device_is_found_by_its_name() {
        let on = |parts: &[&str], base: &str| {
            let params = serde_json::json!({ "base_bdev_name": base, "name": parts[1] });
            let entry = Entry { section: Section::Bdev, method: "m".to_owned(), params };
            Record::Put { key: Key::new(parts), entry }
        };
        let mut catalogue = Catalogue::default();
        for (name, base) in [("x", "a"), ("y", "b"), ("z", "a")] {
            catalogue.apply(on(&["bdev", name], base));
        }
        let names = |catalogue: &Catalogue, base: &str| -> Vec<String> {
            catalogue.standing_on(base).map(|entry| entry.params["name"].to_string()).collect()
        };
        assert_eq!(names(&catalogue, "a"), ["\"x\"", "\"z\""]);
        catalogue.apply(on(&["bdev", "x"], "b"));
        catalogue.apply(Record::Remove { key: Key::new(&["bdev", "z"]) });
        assert_eq!((names(&catalogue, "a").len(), names(&catalogue, "b").len()), (0, 2));
        assert_eq!(names(&catalogue, "b"), ["\"x\"", "\"y\""]);
        assert_eq!(catalogue.on_base.len(), 1);
    }

    #[test]
    fn the_digest_depends_on_all_entries_and_on_nothing_else() {
        let of = |records: &[&Record]| {
            let mut catalogue = Catalogue::default();
            records.iter().for_each(|record| catalogue.apply((*record).clone()));
            catalogue.digest()
        };
        let (a, b, inner) = (put(&["a"], 1), put(&["b"], 1), put(&["a", "n"], 1));
        let (other, removal) = (put(&["a"], 2), Record::Remove { key: Key::new(&["a"]) });
        assert_eq!(of(&[&a, &b]), of(&[&b, &other, &a]));
        assert_eq!(of(&[&a, &inner, &b, &removal]), of(&[&b]));
        assert_eq!(of(&[&a, &removal]), of(&[]));
        let different = [of(&[]), of(&[&a]), of(&[&b]), of(&[&other])];
        let distinct: BTreeSet<u64> = different.into_iter().collect();
        assert_eq!(distinct.len(), different.len());
        // Nor does it depend on the order of members.
        let params = |text: &str| {
            let params = serde_json::from_str(text).unwrap();
            let entry = Entry { section: Section::Bdev, method: "m".to_owned(), params };
            Record::Put { key: Key::new(&["bdev", "x"]), entry }
        };
        let one = params(r#"{"a":1,"b":[{"c":1,"d":2}]}"#);
        let same = params(r#"{"b":[{"d":2,"c":1}],"a":1}"#);
        assert_eq!(one, same);
        assert_eq!(of(&[&one]), of(&[&same]));
        assert_ne!(of(&[&one]), of(&[&params(r#"{"a":1,"b":[{"c":2,"d":1}]}"#)]));
        // Files hold it.
        assert_eq!(of(&[&put(&["bdev", "x"], 1)]), 0x2fc4_3f63_fbae_39af);
    }

    #[test]
    fn records_are_json() {
        let record = put(&["bdev", "x"], 1);
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(
            text,
            r#"{"put":{"key":["bdev","x"],"entry":{"section":"nvmf","method":"m","params":1}}}"#
        );
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }

    #[test]
    fn sections_come_after_what_they_need() {
        for (index, section) in Section::ALL.into_iter().enumerate() {
            assert!(section.depends_on().iter().all(|s| Section::ALL[..index].contains(s)));
            assert_eq!(Section::from_name(section.name()), Some(section));
        }
    }
}
