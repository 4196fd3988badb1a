//! Disks of systemd's units: the folder of each unit, and what is believed of a note there.
//!
//! The user of a unit may write to its folder, and is another one than root. So a note of another user is believed only as far as
//! that user could have done by itself what the note asks for.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::registry::Note;

/// Where systemd makes the folders of services; only root makes folders there.
pub(super) const RUN: &str = "/run";
/// How the name of a unit's folder begins (`RuntimeDirectory=` of raceline-disk@.service).
const FOLDER: &str = "raceline-disk-";
/// By which systemd names the folders of a service, with colons between them.
const VARIABLE: &str = "RUNTIME_DIRECTORY";
/// A unit whose disk systemd makes again after each end (`Restart=always`).
const UBLK: &str = "raceline-ublk@";
/// A unit whose disk systemd makes again after a failure.
const DISK: &str = "raceline-disk@";
/// Most bytes of a note that are read.
const MAX_NOTE_BYTES: u64 = 64 << 10;

/// The folder of the unit that this process runs in.
pub(super) fn own_folder() -> Option<PathBuf> {
    own_folder_in(&std::env::var_os(VARIABLE)?, Path::new(RUN))
}

fn own_folder_in(folders: &OsStr, run: &Path) -> Option<PathBuf> {
    let folders = folders.as_bytes().split(|byte| *byte == b':');
    let mut folders = folders.map(|folder| Path::new(OsStr::from_bytes(folder)));
    folders.find(|folder| folder.parent() == Some(run) && is_of_unit(folder)).map(Path::to_owned)
}

fn is_of_unit(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.as_bytes().starts_with(FOLDER.as_bytes()))
}

/// The folders of units that this user may look into, each with its user: for root those of all users.
pub(super) fn folders(run: &Path, uid: u32) -> Vec<(PathBuf, u32)> {
    let Ok(found) = fs::read_dir(run) else { return Vec::new() };
    let paths = found.filter_map(Result::ok).map(|found| found.path());
    let folder = |path: PathBuf| {
        let found = fs::symlink_metadata(&path).ok()?;
        let is_of_one_user = found.is_dir() && found.mode() & 0o022 == 0;
        let is_meant = is_of_one_user && (uid == 0 || found.uid() == uid);
        is_meant.then(|| (path, found.uid()))
    };
    paths.filter(|path| is_of_unit(path)).filter_map(folder).collect()
}

/// Opens a note of this user. Its folder may be another user's, who may put a link, a pipe or a file of others there.
pub(super) fn open_note(path: &Path, owner: u32) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    if !found.is_file() || found.uid() != owner {
        let text = format!("{} is no file of user {owner}", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(file)
}

/// What stands in a note of a unit's folder, if it can be: the name has the number of the process, and no other user than root has
/// a disk below /dev.
pub(super) fn read_note(file: &File, path: &Path, owner: u32) -> Option<Note> {
    let mut text = String::new();
    file.take(MAX_NOTE_BYTES).read_to_string(&mut text).ok()?;
    let note: Note = serde_json::from_str(&text).ok()?;
    let entry = &note.entry;
    let is_named = path.file_name() == Some(OsStr::new(&format!("disk-{}.json", entry.pid)));
    let is_device = entry.kind == "ublk" || entry.places.iter().any(|it| it.starts_with("/dev/"));
    (is_named && (owner == 0 || !is_device)).then_some(note)
}

/// Asks a process to end if it belongs to this user.
///
/// # Errors
/// `PermissionDenied` when the process belongs to somebody else; those of the kernel.
pub(super) fn terminate(pid: Pid, owner: u32) -> io::Result<()> {
    // From here on it is this process, whoever gets its number after it.
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
    if !belongs_to(&status, owner) {
        let text =
            format!("it does not belong to user {owner}, who has noted it down: it is left alone");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    pidfd_send_signal(process, Signal::TERM)?;
    Ok(())
}

/// Whether all users of a process (real, effective, saved, of files) are this one, by the text of proc_pid_status(5).
fn belongs_to(status: &str, owner: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    let users: Vec<&str> = line.split_whitespace().collect();
    users.len() == 4 && users.iter().all(|user| user.parse() == Ok(owner))
}

/// The packaged unit that a process runs in, by what the kernel says.
pub(super) fn unit_of(pid: u32) -> Option<String> {
    unit_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// The same from the text of /proc/PID/cgroup: `0::/system.slice/.../raceline-disk@NAME.service`.
fn unit_in(groups: &str) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let is_systemd = controllers.is_empty() || controllers == "name=systemd";
        let unit = path.split('/').find(|part| {
            part.ends_with(".service") && (part.starts_with(DISK) || part.starts_with(UBLK))
        })?;
        is_systemd.then(|| unit.to_owned())
    })
}

/// How people end a disk.
pub(super) fn ends(place: &str, unit: Option<&str>) -> String {
    match unit {
        Some(unit) => format!("`systemctl stop {}` ends it", quoted(unit)),
        None => format!("`raceline disconnect -d {place}` ends it"),
    }
}

/// What becomes of a unit after `raceline disconnect` has ended its disk.
pub(super) fn afterwards(unit: &str) -> String {
    let shown = quoted(unit);
    if unit.starts_with(UBLK) {
        format!(
            "systemd makes the disk of {shown} again at once: `systemctl stop {shown}` ends it for good"
        )
    } else {
        format!(
            "{shown} has ended with its disk: `systemctl start {shown}` makes it again, as the next start of the machine does; \
             `systemctl disable {shown}` ends it for good"
        )
    }
}

/// A name of a unit as the shell takes it: systemd writes `\x2d` for some letters.
fn quoted(unit: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@-_.:".contains(c);
    let unit = crate::table::printable(unit);
    if unit.chars().all(is_plain) { unit } else { format!("'{}'", unit.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_has_a_folder_of_its_own() {
        let own = |folders: &str| own_folder_in(OsStr::new(folders), Path::new(RUN));
        let folder = PathBuf::from("/run/raceline-disk-disk0");
        assert_eq!(own("/run/raceline-disk-disk0"), Some(folder.clone()));
        assert_eq!(own("/run/other:/run/raceline-disk-disk0"), Some(folder));
        for other in ["", "/run/raceline-disks", "/run/user/7/raceline-disk-x", "raceline-disk-x"] {
            assert_eq!(own(other), None, "{other}");
        }
    }

    #[test]
    fn the_kernel_says_which_unit_it_is() {
        let ublk = "0::/system.slice/system-raceline\\x2dublk.slice/raceline-ublk@disk1.service\n";
        assert_eq!(unit_in(ublk).as_deref(), Some("raceline-ublk@disk1.service"));
        let old = "4:memory:/raceline-disk@no.service\n1:name=systemd:/system.slice/raceline-disk@a.service\n";
        assert_eq!(unit_in(old).as_deref(), Some("raceline-disk@a.service"));
        for other in ["", "0::/\n", "0::/system.slice/cron.service\n", "0::/user.slice/a.scope\n"] {
            assert_eq!(unit_in(other), None, "{other}");
        }
        let unit = Some(r"raceline-disk@a\x2db.service");
        assert_eq!(ends("/x", unit), r"`systemctl stop 'raceline-disk@a\x2db.service'` ends it");
        assert!(ends("/x", None).contains("`raceline disconnect -d /x`"));
        let text = afterwards("raceline-ublk@a.service");
        assert!(
            text.contains("`systemctl stop raceline-ublk@a.service` ends it for good"),
            "{text}"
        );
        let text = afterwards("raceline-disk@a.service");
        assert!(text.contains("`systemctl disable raceline-disk@a.service` ends it"), "{text}");
    }

    #[test]
    fn a_process_belongs_to_one_user_only() {
        let status = |users: &str| format!("Name:\tx\nUid:\t{users}\nGid:\t7\t7\t7\t7\n");
        assert!(belongs_to(&status("7\t7\t7\t7"), 7));
        for other in ["7\t0\t7\t7", "0\t7\t7\t7", "7\t7\t0\t7", "7\t7\t7", "", "x\t7\t7\t7\t7"] {
            assert!(!belongs_to(&status(other), 7), "{other}");
        }
        assert!(!belongs_to("", 7));
    }
}
