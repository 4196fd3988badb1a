//! What part of the file system this process may open, if it has given up the rest.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The paths at and beneath which devices can be opened; unset: all paths.
static PERMITTED: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// How many of them a message names.
const MAX_NAMED: usize = 8;

/// Says that the kernel refuses this process, for good, every device and file of data that is not at or beneath one
/// of these paths (Landlock). The errors of devices outside then say so, and what to do. Only the first call counts.
pub fn confine_to(paths: Vec<PathBuf>) {
    // A second sandbox can only be narrower, and its errors would name the first: no program enters two.
    let _ = PERMITTED.set(paths);
}

/// Why a path was refused, and what to do, if it is because this process is confined.
pub(crate) fn refusal(path: &Path, error: &io::Error) -> Option<String> {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return None;
    }
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    refusal_of(PERMITTED.get()?, &path)
}

fn refusal_of(permitted: &[PathBuf], path: &Path) -> Option<String> {
    if permitted.iter().any(|root| path.starts_with(root)) {
        return None;
    }
    let mut options = String::new();
    let named = permitted.iter().take(MAX_NAMED).map(PathBuf::as_path);
    for root in named.chain([path]) {
        let _ = write!(options, " --confine {}", root.display());
    }
    let more = if permitted.len() > MAX_NAMED { " and the others that it has now" } else { "" };
    Some(format!(
        "it is outside of what this daemon may open since its start: restart raceline serve with{options}{more}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_is_refused_with_the_options_that_permit_it() {
        let permitted = ["/dev", "/srv/volumes"].map(PathBuf::from);
        for inside in ["/dev/nvme0n1", "/dev", "/srv/volumes/a/b"] {
            assert_eq!(refusal_of(&permitted, Path::new(inside)), None, "{inside}");
        }
        // The beginning of a name is not a folder.
        for outside in ["/etc/shadow", "/srv/volumes2/a", "/srv"] {
            let text = refusal_of(&permitted, Path::new(outside)).unwrap();
            let options = format!(" --confine /dev --confine /srv/volumes --confine {outside}");
            assert!(text.ends_with(&options), "{text}");
        }
    }

    #[test]
    fn a_message_names_few_of_many() {
        let many: Vec<PathBuf> = (0..100).map(|n| format!("/disks/{n}").into()).collect();
        let text = refusal_of(&many, Path::new("/x")).unwrap();
        assert_eq!(text.matches("--confine").count(), MAX_NAMED + 1, "{text}");
        assert!(text.ends_with("--confine /x and the others that it has now"), "{text}");
    }

    #[test]
    fn other_errors_have_other_reasons() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(refusal(Path::new("/x"), &missing), None);
    }
}
