//! Whose the folders of a daemon are: root starts none in those of another user, whose daemon could not open what root's leaves.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::cli::serve::ServeArgs;
use crate::failure::Failure;

/// The user of the packaged service.
const SERVICE: &str = "raceline";
/// The user that stands for all whom a container does not have, if the file of the kernel cannot be read.
const NOBODY: u32 = 65534;
/// The bit of a folder in which each user has files of their own.
const STICKY: u32 = 0o1000;
/// Where the names of users are. Others than its own, such as those of a directory service, are called by number.
const USERS: &str = "/etc/passwd";

/// Refuses to run as root where a folder belongs to another user: root may write there, and the locks, the state and the socket
/// that it leaves would be root's.
pub(crate) fn check(args: &ServeArgs) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    // What is root's already has a daemon of root, which this one follows.
    if args.take_over && is_roots(&args.socket) {
        return Ok(());
    }
    let folders = args.state_dir.clone().into_iter().chain(Some(folder_of(&args.socket)));
    match folders.into_iter().find_map(|folder| owner_of(&folder).map(|owner| (folder, owner))) {
        None => Ok(()),
        Some((folder, owner)) => Err(Failure::runtime(refusal(&folder, &owner, args.take_over))),
    }
}

/// The folder of a socket.
fn folder_of(socket: &Path) -> PathBuf {
    match socket.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => ".".into(),
    }
}

/// A user who is not root.
#[derive(Debug, PartialEq, Eq)]
struct Owner {
    uid: u32,
    gid: u32,
    name: Option<String>,
}

/// Whether a file is there, and root's.
fn is_roots(file: &Path) -> bool {
    std::fs::symlink_metadata(file).is_ok_and(|info| info.uid() == 0)
}

/// Whose folder it is; `None`: root's, everybody's, of no user of this container, or it is not there yet.
fn owner_of(folder: &Path) -> Option<Owner> {
    let info = std::fs::metadata(folder).ok()?;
    if info.uid() == 0 || info.mode() & STICKY != 0 || info.uid() == no_user() {
        return None;
    }
    let users = std::fs::read_to_string(USERS).unwrap_or_default();
    Some(Owner { uid: info.uid(), gid: info.gid(), name: name_in(&users, info.uid()) })
}

/// Who owns the files of users whom a container does not have; outside of one, nobody.
fn no_user() -> u32 {
    let is_whole = std::fs::read_to_string("/proc/self/uid_map")
        .is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    if is_whole {
        return 0;
    }
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    overflow.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(NOBODY)
}

/// The name of a user in a file of the form of passwd(5).
fn name_in(users: &str, uid: u32) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// What was wrong, and the ways out.
fn refusal(folder: &Path, owner: &Owner, is_take_over: bool) -> String {
    let folder = folder.display();
    let (user, prefix) = match &owner.name {
        Some(name) => (name.clone(), format!("runuser -u {name} --")),
        None => {
            let Owner { uid, gid, .. } = owner;
            let prefix = format!("setpriv --reuid {uid} --regid {gid} --clear-groups --");
            (uid.to_string(), prefix)
        }
    };
    let service = match (user == SERVICE, is_take_over) {
        (false, _) => "",
        (true, false) => "start the packaged service (systemctl start raceline), or ",
        (true, true) => "have the packaged service do it (systemctl reload raceline), or ",
    };
    format!(
        "{folder} belongs to user {user}, and this process runs as root, whose files there would keep a daemon of that user from \
         starting: {service}run this as that user ({prefix} raceline serve ...), name folders of root's with --state-dir and -r, \
         or give this one to root (chown root {folder})"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_the_name_of_the_file_and_else_a_number() {
        let users = "root:x:0:0:root:/root:/bin/sh\n\nbroken\nraceline:x:997:996::/:/bin/false\n";
        assert_eq!(name_in(users, 997).as_deref(), Some("raceline"));
        assert_eq!(name_in(users, 996), None);
        let owner =
            |name: Option<&str>| Owner { uid: 997, gid: 996, name: name.map(str::to_owned) };
        let folder = Path::new("/var/lib/raceline");
        for (name, is_take_over, words, others) in [
            (
                Some("raceline"),
                false,
                ["systemctl start raceline", "runuser -u raceline -- raceline"],
                "reload",
            ),
            (
                Some("raceline"),
                true,
                ["systemctl reload raceline", "runuser -u raceline -- raceline"],
                "start",
            ),
            (Some("eve"), false, ["to user eve", "runuser -u eve -- raceline serve"], "systemctl"),
            (
                None,
                false,
                ["to user 997", "setpriv --reuid 997 --regid 996 --clear-groups --"],
                "systemctl",
            ),
        ] {
            let text = refusal(folder, &owner(name), is_take_over);
            let wanted = words.iter().all(|word| text.contains(word));
            assert!(wanted && !text.contains(&format!("{others} raceline")), "{text}");
        }
    }

    #[test]
    fn a_socket_without_a_folder_lies_here() {
        assert_eq!(folder_of(Path::new("rpc.sock")), Path::new("."));
        assert_eq!(folder_of(Path::new("/run/raceline/rpc.sock")), Path::new("/run/raceline"));
    }
}
