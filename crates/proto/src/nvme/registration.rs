//! Discovery Information Management: how hosts and direct discovery controllers (DDC) register with a centralized
//! discovery controller (CDC) (TP8010).

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::discovery::DiscoveryEntry;
use super::wire::wire;
use super::{Nqn, Status};

wire! {
    /// What the data of the command begin with.
    pub struct RegistrationHeader[1024] {
        /// TDL: length of all data in bytes.
        pub tdl: U32,
        /// Reserved.
        pub reserved_4: [u8; 4],
        /// NUMENT: entries that follow.
        pub nument: U64,
        /// ENTFMT: 1 basic, 2 extended.
        pub entfmt: U16,
        /// ETYPE: 1 host, 2 DDC, 3 CDC.
        pub etype: U16,
        /// PORTLCL: the entries are of the port of this connection only.
        pub portlcl: u8,
        /// Reserved.
        pub reserved_21: u8,
        /// EKTYPE: which fields tell entries apart; always [`ENTRY_KEY`].
        pub ektype: U16,
        /// EID: the NQN of what registers, zero padded.
        pub eid: [u8; 256],
        /// ENAME: its name for people.
        pub ename: [u8; 256],
        /// EVER: its version for people.
        pub ever: [u8; 64],
        /// Reserved.
        pub reserved_600: [u8; 424],
    }
}

wire! {
    /// What follows a [`DiscoveryEntry`] in the extended format.
    pub struct EntryExtension[8] {
        /// TEL: length of the whole entry in bytes, a multiple of 4.
        pub tel: U32,
        /// NUMEXAT: attributes that follow.
        pub numexat: U16,
        /// Reserved.
        pub reserved_6: [u8; 2],
    }
}

/// EKTYPE: transport, address family, subsystem type, service, NQN and address tell entries apart.
pub const ENTRY_KEY: u16 = 0x5f;
/// The largest number of entries that one command can have here.
pub const MAX_ENTRIES: usize = 64;

const FORMAT_BASIC: u16 = 1;
const FORMAT_EXTENDED: u16 = 2;
/// EXATTYPE and EXATLEN.
const ATTRIBUTE_HEADER: usize = 4;
/// EXATTYPE: the symbolic name of a host.
const SYMBOLIC_NAME: u16 = 2;
/// Why data are refused.
const BAD: Status = Status::INVALID_DISCOVERY_INFORMATION.dnr();

/// TAS, bits 3:0 of CDW10.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationTask {
    /// The entries are all that the entity has.
    Register,
    /// These entries go; without entries, the entity.
    Deregister,
    /// These entries are new or replace those with the same key.
    Update,
}

/// What registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntityKind {
    /// A host.
    Host,
    /// A direct discovery controller: the one of a target.
    Direct,
    /// Another centralized discovery controller.
    Centralized,
}

/// What one command registers.
#[derive(Clone, PartialEq, Eq)]
pub struct Registration {
    /// What is to be done.
    pub task: RegistrationTask,
    /// What registers.
    pub kind: EntityKind,
    /// EID.
    pub entity: Nqn,
    /// ENAME, or the symbolic name of a host that has one.
    pub name: String,
    /// EVER.
    pub version: String,
    /// The entries, without their attributes.
    pub entries: Vec<DiscoveryEntry>,
}

impl fmt::Debug for Registration {
    /// In one line: an entry has 1024 bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, kind, entity, name, version, entries } = self;
        let count = entries.len();
        write!(f, "{task:?} {kind:?} {entity} ({name:?} {version:?}), {count} entries")
    }
}

impl Registration {
    /// Reads a command.
    ///
    /// # Errors
    /// The status to complete it with: the task is unknown, or the data contradict themselves.
    pub fn parse(cdw10: u32, data: &[u8]) -> Result<Self, Status> {
        let task = match cdw10 & 0xf {
            0 => RegistrationTask::Register,
            1 => RegistrationTask::Deregister,
            2 => RegistrationTask::Update,
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        let total = data.first_chunk::<4>().map(|it| u32::from_le_bytes(*it)).ok_or(BAD)?;
        let data = data.get(..usize::try_from(total).map_err(|_| BAD)?).ok_or(BAD)?;
        let (header, rest) = RegistrationHeader::read_from_prefix(data).map_err(|_| BAD)?;
        if header.ektype.get() != ENTRY_KEY {
            return Err(BAD);
        }
        let kind = match header.etype.get() {
            1 => EntityKind::Host,
            2 => EntityKind::Direct,
            3 => EntityKind::Centralized,
            _ => return Err(BAD),
        };
        let count = usize::try_from(header.nument.get()).map_err(|_| BAD)?;
        if count > MAX_ENTRIES {
            return Err(Status::INSUFFICIENT_DISCOVERY_RESOURCES.dnr());
        }
        let entity = Nqn::from_field(&header.eid).map_err(|_| BAD)?;
        let mut registration = Self {
            task,
            kind,
            entity,
            name: printable(&header.ename),
            version: printable(&header.ever),
            entries: Vec::with_capacity(count),
        };
        match header.entfmt.get() {
            FORMAT_BASIC => registration.read_basic(count, rest)?,
            FORMAT_EXTENDED => registration.read_extended(count, rest)?,
            _ => return Err(BAD),
        }
        Ok(registration)
    }

    fn read_basic(&mut self, count: usize, mut rest: &[u8]) -> Result<(), Status> {
        for _ in 0..count {
            let (entry, after) = DiscoveryEntry::read_from_prefix(rest).map_err(|_| BAD)?;
            self.take(entry)?;
            rest = after;
        }
        Ok(())
    }

    fn read_extended(&mut self, count: usize, mut rest: &[u8]) -> Result<(), Status> {
        for _ in 0..count {
            let (entry, tail) = DiscoveryEntry::read_from_prefix(rest).map_err(|_| BAD)?;
            let (extension, _) = EntryExtension::read_from_prefix(tail).map_err(|_| BAD)?;
            let length = usize::try_from(extension.tel.get()).map_err(|_| BAD)?;
            let attributes = rest
                .get(..length)
                .and_then(|whole| whole.get(DiscoveryEntry::LEN + EntryExtension::LEN..));
            let attributes = attributes.filter(|_| length.is_multiple_of(4)).ok_or(BAD)?;
            self.read_attributes(extension.numexat.get(), attributes)?;
            self.take(entry)?;
            (_, rest) = rest.split_at(length);
        }
        Ok(())
    }

    /// Attributes of kinds that are not known are passed over.
    fn read_attributes(&mut self, count: u16, mut rest: &[u8]) -> Result<(), Status> {
        for _ in 0..count {
            let (head, after) = rest.split_first_chunk::<ATTRIBUTE_HEADER>().ok_or(BAD)?;
            let [t0, t1, l0, l1] = *head;
            let length = usize::from(u16::from_le_bytes([l0, l1]));
            let value = after.get(..length).ok_or(BAD)?;
            if u16::from_le_bytes([t0, t1]) == SYMBOLIC_NAME && self.kind == EntityKind::Host {
                self.name = printable(value);
            }
            // A value is padded to a multiple of 4 bytes; the padding of the last one may be left out.
            rest = after.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(())
    }

    fn take(&mut self, mut entry: DiscoveryEntry) -> Result<(), Status> {
        let name = Nqn::from_field(&entry.subnqn).map_err(|_| BAD)?;
        let (address, service) = entry.address().ok_or(BAD)?;
        let is_printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_printable(address) || !is_printable(service) {
            return Err(BAD);
        }
        if self.kind == EntityKind::Host && name != self.entity {
            return Err(BAD);
        }
        // What was behind the end of a text goes.
        entry.subnqn = name.to_field();
        self.entries.push(entry);
        Ok(())
    }

    /// CDW10 and the data of the command, in the basic format.
    #[must_use]
    pub fn encode(&self) -> (u32, Vec<u8>) {
        let length = RegistrationHeader::LEN + self.entries.len() * DiscoveryEntry::LEN;
        let mut header = RegistrationHeader {
            tdl: u32::try_from(length).unwrap_or(u32::MAX).into(),
            nument: (self.entries.len() as u64).into(),
            entfmt: FORMAT_BASIC.into(),
            etype: (match self.kind {
                EntityKind::Host => 1,
                EntityKind::Direct => 2,
                EntityKind::Centralized => 3,
            })
            .into(),
            ektype: ENTRY_KEY.into(),
            eid: self.entity.to_field(),
            ..RegistrationHeader::default()
        };
        fill(&mut header.ename, &self.name);
        fill(&mut header.ever, &self.version);
        let mut data = header.as_bytes().to_vec();
        for entry in &self.entries {
            data.extend_from_slice(entry.as_bytes());
        }
        let task = match self.task {
            RegistrationTask::Register => 0,
            RegistrationTask::Deregister => 1,
            RegistrationTask::Update => 2,
        };
        (task, data)
    }
}

/// Whether two entries have the same key ([`ENTRY_KEY`]).
#[must_use]
pub fn is_same_entry(one: &DiscoveryEntry, other: &DiscoveryEntry) -> bool {
    let fixed = |entry: &DiscoveryEntry| (entry.trtype, entry.adrfam, entry.subtype, entry.subnqn);
    fixed(one) == fixed(other) && one.address() == other.address()
}

/// The text of a field up to its padding, with a question mark for what cannot be printed.
fn printable(field: &[u8]) -> String {
    let used = field.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(used);
    let shown = |c: char| if c.is_control() { '?' } else { c };
    text.trim_end_matches(' ').chars().map(shown).collect()
}

/// Writes as many whole characters as there is room for, and zeroes after them.
fn fill(field: &mut [u8], text: &str) {
    let end = text.floor_char_boundary(field.len());
    let (used, _) = text.split_at(end);
    for (place, byte) in field.iter_mut().zip(used.bytes()) {
        *place = byte;
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::nvme::discovery::{SUBTYPE_NVM, TRTYPE_TCP};
    use crate::nvme::identify::ascii_field;

    fn entry(nqn: &str, port: &str) -> DiscoveryEntry {
        DiscoveryEntry {
            trtype: TRTYPE_TCP,
            adrfam: 1,
            subtype: SUBTYPE_NVM,
            trsvcid: ascii_field(port),
            traddr: ascii_field("192.0.2.1"),
            subnqn: Nqn::new(nqn).unwrap().to_field(),
            ..DiscoveryEntry::default()
        }
    }

    fn direct() -> Registration {
        Registration {
            task: RegistrationTask::Update,
            kind: EntityKind::Direct,
            entity: Nqn::new("nqn.2026-01.test:shelf").unwrap(),
            name: "shelf".into(),
            version: "1".into(),
            entries: vec![entry("nqn.2026-01.test:a", "4420"), entry("nqn.2026-01.test:b", "4421")],
        }
    }

    /// A host's registration in the extended format, put together by hand.
    fn host_data() -> Vec<u8> {
        let mut data = vec![0; 1024 + 1024 + 8];
        data[8] = 1;
        data[16] = 2;
        data[18] = 1;
        data[22] = 0x5f;
        data[24..][..15].copy_from_slice(b"nqn.2026-01.t:h");
        data[280..][..4].copy_from_slice(b"box1");
        data[536..][..5].copy_from_slice(b"6.\x0712");
        let at = 1024;
        (data[at], data[at + 1]) = (3, 1);
        data[at + 256..][..15].copy_from_slice(b"nqn.2026-01.t:h");
        data[at + 1028] = 2;
        data.extend_from_slice(&[1, 0, 16, 0]);
        data.extend_from_slice(&[7; 16]);
        data.extend_from_slice(&[2, 0, 8, 0]);
        data.extend_from_slice(b"lab    \0");
        let entry = u32::try_from(data.len() - at).unwrap();
        data[at + 1024..][..4].copy_from_slice(&entry.to_le_bytes());
        let total = u32::try_from(data.len()).unwrap();
        data[..4].copy_from_slice(&total.to_le_bytes());
        data
    }

    #[test]
    fn offsets() {
        assert_eq!(offset_of!(RegistrationHeader, ektype), 22);
        assert_eq!(offset_of!(RegistrationHeader, eid), 24);
        assert_eq!(offset_of!(RegistrationHeader, ename), 280);
        assert_eq!(offset_of!(RegistrationHeader, ever), 536);
    }

    #[test]
    fn what_is_encoded_is_read() {
        let direct = direct();
        let (cdw10, data) = direct.encode();
        assert_eq!((cdw10, data.len()), (2, 3072));
        assert_eq!(Registration::parse(cdw10, &data), Ok(direct));
    }

    #[test]
    fn a_host_registers_in_the_extended_format() {
        let host = Registration::parse(0, &host_data()).unwrap();
        assert_eq!((host.task, host.kind), (RegistrationTask::Register, EntityKind::Host));
        assert_eq!(host.entity.as_str(), "nqn.2026-01.t:h");
        assert_eq!((host.name.as_str(), host.version.as_str()), ("lab", "6.?12"));
        assert_eq!(host.entries.len(), 1);
        assert_eq!(host.entries[0].address(), Some(("", "")));
    }

    #[test]
    fn data_that_contradict_themselves_are_refused() {
        let good = host_data();
        let refused = |what: &str, change: &dyn Fn(&mut Vec<u8>)| {
            let mut data = good.clone();
            change(&mut data);
            assert_eq!(Registration::parse(0, &data), Err(BAD), "{what}");
        };
        refused("TDL behind the end", &|data| data[0] += 4);
        refused("TDL within the header", &|data| data[..4].copy_from_slice(&[255, 3, 0, 0]));
        refused("more entries than data", &|data| data[8] = 2);
        refused("an unknown format", &|data| data[16] = 3);
        refused("an unknown kind", &|data| data[18] = 4);
        refused("another key", &|data| data[22] = 0);
        refused("no name", &|data| data[24] = 0);
        refused("another host's entry", &|data| data[1024 + 256] = b'x');
        refused("a control character", &|data| data[1024 + 512] = 7);
        refused("TEL behind the end", &|data| data[2048] += 4);
        refused("TEL within the entry", &|data| data[2048..][..4].copy_from_slice(&[8, 0, 0, 0]));
        refused("TEL not a multiple of 4", &|data| data[2048] -= 2);
        refused("more attributes than data", &|data| data[2048 + 4] = 3);
        refused("an attribute behind the end", &|data| data[2048 + 8 + 2] = 200);
        let mut many = good.clone();
        many[8] = 65;
        let full = Status::INSUFFICIENT_DISCOVERY_RESOURCES.dnr();
        assert_eq!(Registration::parse(0, &many), Err(full));
        assert_eq!(Registration::parse(3, &good), Err(Status::INVALID_FIELD.dnr()));
    }

    #[test]
    fn no_data_are_read_beyond_their_end() {
        for (cdw10, data) in [(0, host_data()), direct().encode()] {
            for end in 0..data.len() {
                assert!(Registration::parse(cdw10, &data[..end]).is_err());
                // The same with a TDL that is right.
                let mut short = data[..end].to_vec();
                if let Some(tdl) = short.first_chunk_mut::<4>() {
                    *tdl = u32::try_from(end).unwrap().to_le_bytes();
                }
                let _ = Registration::parse(cdw10, &short);
            }
        }
    }

    #[test]
    fn a_key_leaves_out_what_may_change() {
        let one = entry("nqn.2026-01.test:a", "4420");
        assert!(is_same_entry(&one, &DiscoveryEntry { treq: 3, asqsz: 7.into(), ..one }));
        assert!(!is_same_entry(&one, &entry("nqn.2026-01.test:a", "4421")));
        assert!(!is_same_entry(&one, &entry("nqn.2026-01.test:b", "4420")));
    }
}
