//! The files of a namespace and of a logical unit: that in which its reservations persist through a power loss (PTPL,
//! APTPL), and that which is there as long as a host has write protected a namespace.
//!
//! The members are those of SPDK's `ptpl_file`, so that a file of SPDK's target can be taken over. Added are the name of
//! each host, the names of an I_T nexus of iSCSI that is registered like a host, and a checksum. A new state is written to a file beside, synced, renamed over the old one, and
//! the directory is synced: a crash leaves the one state or the other.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use raceline_proto::nvme::reservation::ReservationType;
use raceline_proto::nvme::{HostId, HostNqn, Nqn};
use raceline_proto::reservation::{
    Held, MAX_REGISTRANTS, Nexus, Port, Registrant, Reservations, Who,
};
use raceline_target::{ProtectionStore, ReservationStore, check_iscsi_name};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Only the owner may read the file.
const FILE_MODE: u32 = 0o600;
/// What follows the name of the file while a new state is written.
const UNFINISHED: &str = ".new";

/// Why reservations cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReservationFileError {
    /// The system refuses.
    #[error("cannot {action} {file}: {error}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file.
        file: String,
        /// Why it failed.
        error: io::Error,
    },
    /// The content is not one that was written.
    #[error(
        "{file}, which keeps reservations, is damaged: {problem}. Hosts could do what a lost reservation forbids, so \
         the namespace or LUN is not exported. Restore the file, or remove it to give all registrations up"
    )]
    Damaged {
        /// The file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    ptpl: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rtype: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crkey: Option<u64>,
    bdev_uuid: Uuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    holder_uuid: Option<Uuid>,
    #[serde(default)]
    registrants: Vec<Entry>,
    /// CRC32C of the file without this member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<u32>,
}

/// A registrant.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    rkey: u64,
    host_uuid: Uuid,
    /// The empty text is a host without a name; absent in files of SPDK.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hostnqn: Option<String>,
    /// Not a host but an I_T nexus of iSCSI. `host_uuid` is derived of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    iscsi: Option<NexusEntry>,
}

/// An I_T nexus: initiator port and target port.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NexusEntry {
    initiator: String,
    /// 12 hexadecimal digits.
    isid: String,
    target: String,
    portal_group: u16,
}

/// The file operations that keep a state; tests simulate them. Each gives the errors of the system.
pub(crate) trait Folder: Send + Sync {
    /// Where it is.
    fn path(&self) -> &Path;
    /// All bytes of a file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// Makes a file of these bytes, which are durable when this returns. Its name is not.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Gives a file another name, and replaces the file of that name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes names durable.
    fn sync_names(&self) -> io::Result<()>;
}

/// A directory of the file system.
struct RealFolder {
    path: PathBuf,
    directory: File,
}

impl RealFolder {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), directory: File::open(path)? })
    }

    fn create(&self, name: &str) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(FILE_MODE);
        options.open(self.path.join(name))
    }
}

impl Folder for RealFolder {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.path.join(name))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = self.create(name)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.directory.sync_all()
    }
}

/// The reservations of one namespace or logical unit in a file.
pub struct ReservationFile {
    folder: Arc<dyn Folder>,
    name: String,
    /// The namespace's, or the device's of a logical unit.
    uuid: Uuid,
}

impl ReservationFile {
    /// A file of an existing directory. Other programs may use the directory, too.
    ///
    /// # Errors
    /// When the path names no file, or files cannot be made in its directory.
    pub fn open(path: &Path, uuid: Uuid) -> Result<Self, ReservationFileError> {
        let (folder, name) = folder_of(path)?;
        Ok(Self::on(folder, name, uuid))
    }

    /// A file in a folder of any kind.
    pub(crate) fn on(folder: Arc<dyn Folder>, name: String, uuid: Uuid) -> Self {
        Self { folder, name, uuid }
    }

    fn unfinished(&self) -> String {
        format!("{}{UNFINISHED}", self.name)
    }

    fn path(&self) -> String {
        self.folder.path().join(&self.name).display().to_string()
    }

    /// The reservations that were kept last; none, if there is no file.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, or is that of another namespace.
    pub fn load(&self) -> Result<Reservations, ReservationFileError> {
        let bytes = match self.folder.read(&self.name) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Reservations::default());
            }
            Err(error) => {
                return Err(ReservationFileError::Io { action: "read", file: self.path(), error });
            }
        };
        decode(&bytes, self.uuid)
            .map_err(|problem| ReservationFileError::Damaged { file: self.path(), problem })
    }
}

impl ReservationStore for ReservationFile {
    /// If the last step fails, the sync of the directory, a power loss may leave either state.
    fn save(&self, reservations: Option<&Reservations>) -> io::Result<()> {
        let Some(reservations) = reservations else {
            return match self.folder.remove(&self.name) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => self.folder.sync_names(),
            };
        };
        let bytes = encode(reservations, self.uuid)?;
        let unfinished = self.unfinished();
        self.folder.write(&unfinished, &bytes)?;
        self.folder.rename(&unfinished, &self.name)?;
        self.folder.sync_names()
    }
}

/// The folder and the name of a file. Whether files can be made there is known before a host asks, and no unfinished
/// file stays.
fn folder_of(path: &Path) -> Result<(Arc<dyn Folder>, String), ReservationFileError> {
    let file = path.display().to_string();
    let failed = |action| {
        let file = file.clone();
        move |error| ReservationFileError::Io { action, file, error }
    };
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| io::Error::other("the path does not end in a name"));
    let name = name.map_err(failed("use"))?.to_owned();
    let directory = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    };
    let folder = RealFolder::open(directory).map_err(failed("open the directory of"))?;
    // Not synced: a start opens the files of all namespaces.
    let unfinished = format!("{name}{UNFINISHED}");
    let tried = folder.create(&unfinished).and_then(|_| folder.remove(&unfinished));
    let tried = tried.map_err(|error| match error.kind() {
        // The sandbox of a daemon.
        io::ErrorKind::PermissionDenied => io::Error::new(
            error.kind(),
            format!(
                "{error}; a daemon makes files in its state directory only, unless it was started with --sandbox off"
            ),
        ),
        _ => error,
    });
    tried.map_err(failed("make a file beside"))?;
    Ok((Arc::new(folder), name))
}

/// The file that is there as long as a namespace is write protected.
pub struct ProtectionFile {
    folder: Arc<dyn Folder>,
    name: String,
}

impl ProtectionFile {
    /// A file of an existing directory.
    ///
    /// # Errors
    /// As [`ReservationFile::open`].
    pub fn open(path: &Path) -> Result<Self, ReservationFileError> {
        let (folder, name) = folder_of(path)?;
        Ok(Self { folder, name })
    }

    /// A file in a folder of any kind.
    #[cfg(test)]
    pub(crate) fn on(folder: Arc<dyn Folder>, name: String) -> Self {
        Self { folder, name }
    }

    /// Whether the namespace is write protected. What the file holds does not matter.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn is_protected(&self) -> Result<bool, ReservationFileError> {
        match self.folder.read(&self.name) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => {
                let file = self.folder.path().join(&self.name).display().to_string();
                Err(ReservationFileError::Io { action: "read", file, error })
            }
        }
    }
}

impl ProtectionStore for ProtectionFile {
    fn save(&self, is_protected: bool) -> io::Result<()> {
        if is_protected {
            self.folder.write(&self.name, b"A host has write protected this namespace.\n")?;
        } else if let Err(error) = self.folder.remove(&self.name)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        self.folder.sync_names()
    }
}

fn checksum(content: &Content) -> io::Result<u32> {
    Ok(raceline_crc32c::crc32c(&serde_json::to_vec(content)?))
}

pub(crate) fn encode(reservations: &Reservations, uuid: Uuid) -> io::Result<Vec<u8>> {
    let key_of = |id: HostId| {
        let mut registrants = reservations.registrants.iter();
        registrants.find(|registrant| registrant.id == id).map(|registrant| registrant.key)
    };
    let held = reservations.held;
    let content = Content {
        ptpl: reservations.persists,
        rtype: held.map(|held| held.kind.to_wire()),
        crkey: held.and_then(|held| key_of(held.holder)),
        bdev_uuid: uuid,
        holder_uuid: held.map(|held| Uuid::from_bytes(held.holder.0)),
        registrants: reservations.registrants.iter().map(Entry::of).collect(),
        crc32c: None,
    };
    let crc32c = Some(checksum(&content)?);
    let mut bytes = serde_json::to_vec_pretty(&Content { crc32c, ..content })?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// [`decode`], of whichever namespace it is.
pub(crate) fn decode_any(bytes: &[u8]) -> Result<Reservations, String> {
    let content: Content = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    decode(bytes, content.bdev_uuid)
}

/// What is wrong is given as text.
fn decode(bytes: &[u8], uuid: Uuid) -> Result<Reservations, String> {
    let mut content: Content =
        serde_json::from_slice(bytes).map_err(|error| format!("it is not as expected: {error}"))?;
    if let Some(expected) = content.crc32c.take() {
        let found = checksum(&content).map_err(|error| error.to_string())?;
        if found != expected {
            return Err(format!("its checksum is {found:08x} and not {expected:08x}"));
        }
    }
    if content.bdev_uuid != uuid {
        return Err(format!("it is that of namespace {} and not of {uuid}", content.bdev_uuid));
    }
    if content.registrants.len() > MAX_REGISTRANTS {
        return Err(format!("it has more than {MAX_REGISTRANTS} registrants"));
    }
    let mut registrants: Vec<Registrant> = Vec::with_capacity(content.registrants.len());
    for entry in content.registrants {
        let registrant = entry.registrant()?;
        if registrants.iter().any(|other| other.id == registrant.id) {
            return Err(format!("host {} is registered twice", entry.host_uuid));
        }
        registrants.push(registrant);
    }
    let held = match (content.rtype, content.holder_uuid) {
        (None | Some(0), _) => None,
        (Some(rtype), holder) => {
            let kind = ReservationType::from_wire(rtype);
            let kind = kind.ok_or_else(|| format!("there is no reservation type {rtype}"))?;
            let holder = holder.map(|holder| HostId(holder.into_bytes()));
            let is_held = match holder {
                _ if kind.is_held_by_all() => !registrants.is_empty(),
                Some(holder) => registrants.iter().any(|registrant| registrant.id == holder),
                None => false,
            };
            if !is_held {
                return Err("the holder of the reservation is not registered".to_owned());
            }
            Some(Held { kind, holder: holder.unwrap_or_default() })
        }
    };
    let persists = content.ptpl;
    Ok(Reservations { registrants, held, persists, ..Reservations::default() })
}

impl Entry {
    fn of(registrant: &Registrant) -> Self {
        Self {
            rkey: registrant.key,
            host_uuid: Uuid::from_bytes(registrant.id.0),
            hostnqn: match &registrant.who {
                Who::Host(Some(HostNqn::Named(name))) => Some(name.as_str().to_owned()),
                Who::Host(Some(HostNqn::Unnamed)) => Some(String::new()),
                Who::Host(None) | Who::Nexus(_) => None,
            },
            iscsi: registrant.as_nexus().map(NexusEntry::of),
        }
    }

    fn registrant(&self) -> Result<Registrant, String> {
        if self.rkey == 0 || self.host_uuid.is_nil() {
            return Err("a registrant has key 0 or host identifier 0".to_owned());
        }
        if let Some(nexus) = &self.iscsi {
            let registrant = Registrant::nexus(nexus.nexus()?, self.rkey);
            let is_derived = registrant.id.0 == *self.host_uuid.as_bytes();
            return if is_derived && self.hostnqn.is_none() {
                Ok(registrant)
            } else {
                Err(format!("{} is not the identifier of {}", self.host_uuid, nexus.initiator))
            };
        }
        let name = match self.hostnqn.as_deref() {
            None => None,
            Some("") => Some(HostNqn::Unnamed),
            Some(name) => {
                let name =
                    Nqn::new(name).map_err(|error| format!("the name of a host: {error}"))?;
                Some(HostNqn::Named(name))
            }
        };
        Ok(Registrant::host(HostId(self.host_uuid.into_bytes()), name, self.rkey))
    }
}

impl NexusEntry {
    fn of(nexus: &Nexus) -> Self {
        Self {
            initiator: nexus.initiator.clone(),
            isid: nexus.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
            target: nexus.target.clone(),
            portal_group: nexus.port.group,
        }
    }

    fn nexus(&self) -> Result<Nexus, String> {
        for name in [&self.initiator, &self.target] {
            check_iscsi_name(name).map_err(|error| error.to_string())?;
        }
        let is_hex = self.isid.len() == 12 && self.isid.bytes().all(|b| b.is_ascii_hexdigit());
        let isid = u64::from_str_radix(&self.isid, 16).ok().filter(|_| is_hex);
        let isid = isid.ok_or_else(|| format!("`{}` is not an ISID", self.isid))?;
        let [_, _, isid @ ..] = isid.to_be_bytes();
        Ok(Nexus {
            initiator: self.initiator.clone(),
            isid,
            target: self.target.clone(),
            // Where the target port is now is known when the unit is exported.
            port: Port { group: self.portal_group, relative: 0 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: Uuid = Uuid::from_u128(0x1234_5678);

    fn registrant(number: u8, key: u64) -> Registrant {
        let name = Nqn::new(&format!("nqn.2026-01.io.raceline:h{number}")).unwrap();
        Registrant::host(HostId([number; 16]), Some(HostNqn::Named(name)), key)
    }

    fn nexus(number: u8, key: u64) -> Registrant {
        let nexus = Nexus {
            initiator: format!("iqn.2026-01.io.raceline:i{number}"),
            isid: [0x80, 0, 0, 0, 0, number],
            target: "iqn.2026-01.io.raceline:disk".to_owned(),
            port: Port { group: 1, relative: 0 },
        };
        Registrant::nexus(nexus, key)
    }

    #[test]
    fn a_flipped_byte_is_noticed_or_changes_nothing() {
        let state = Reservations {
            registrants: vec![registrant(1, 0xdead), registrant(2, 0xbeef), nexus(3, 0xcafe)],
            held: Some(Held { kind: ReservationType::WriteExclusive, holder: HostId([2; 16]) }),
            persists: true,
            ..Reservations::default()
        };
        let bytes = encode(&state, UUID).unwrap();
        assert_eq!(decode(&bytes, UUID), Ok(state.clone()));
        for place in 0..bytes.len() {
            for bit in 0..8 {
                let mut bytes = bytes.clone();
                bytes[place] ^= 1 << bit;
                if let Ok(found) = decode(&bytes, UUID) {
                    assert_eq!(found, state, "bit {bit} of byte {place}");
                }
            }
        }
        for len in 0..bytes.len() - 1 {
            assert!(decode(&bytes[..len], UUID).is_err(), "cut off after {len} bytes");
        }
    }

    #[test]
    fn a_file_of_spdk_is_taken_over() {
        let file = format!(
            r#"{{"ptpl": true, "rtype": 1, "crkey": 43, "bdev_uuid": "{UUID}",
                 "holder_uuid": "02020202-0202-0202-0202-020202020202",
                 "registrants": [
                   {{"rkey": 42, "host_uuid": "01010101-0101-0101-0101-010101010101"}},
                   {{"rkey": 43, "host_uuid": "02020202-0202-0202-0202-020202020202"}}]}}"#
        );
        let state = decode(file.as_bytes(), UUID).unwrap();
        assert_eq!(state.registrants.len(), 2);
        assert_eq!(state.registrants[1].who, Who::Host(None));
        assert!(state.holds(&state.registrants[1]) && !state.holds(&state.registrants[0]));
    }

    #[test]
    fn what_cannot_be_a_state_is_refused() {
        let host = "01010101-0101-0101-0101-010101010101";
        let wrong = [
            (format!(r#"{{"ptpl":true,"bdev_uuid":"{host}"}}"#), "and not of"),
            (format!(r#"{{"ptpl":true,"rtype":9,"bdev_uuid":"{UUID}"}}"#), "no reservation type 9"),
            (format!(r#"{{"ptpl":true,"rtype":1,"bdev_uuid":"{UUID}"}}"#), "is not registered"),
            (
                format!(
                    r#"{{"ptpl":true,"bdev_uuid":"{UUID}","registrants":[
                        {{"rkey":1,"host_uuid":"{host}"}},{{"rkey":2,"host_uuid":"{host}"}}]}}"#
                ),
                "registered twice",
            ),
            (
                format!(
                    r#"{{"ptpl":true,"bdev_uuid":"{UUID}",
                        "registrants":[{{"rkey":0,"host_uuid":"{host}"}}]}}"#
                ),
                "key 0",
            ),
            (
                format!(
                    r#"{{"ptpl":true,"bdev_uuid":"{UUID}","registrants":[
                        {{"rkey":1,"host_uuid":"{host}","iscsi":{{"initiator":"iqn.2026-01.a:b",
                          "isid":"800000000001","target":"iqn.2026-01.a:c","portal_group":1}}}}]}}"#
                ),
                "is not the identifier of iqn.2026-01.a:b",
            ),
            (
                format!(
                    r#"{{"ptpl":true,"bdev_uuid":"{UUID}","registrants":[
                        {{"rkey":1,"host_uuid":"{host}","iscsi":{{"initiator":"iqn.2026-01.a:b",
                          "isid":"8000000001","target":"iqn.2026-01.a:c","portal_group":1}}}}]}}"#
                ),
                "`8000000001` is not an ISID",
            ),
        ];
        for (file, problem) in wrong {
            let error = decode(file.as_bytes(), UUID).unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }
}
