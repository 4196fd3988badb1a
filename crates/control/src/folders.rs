//! Folders for what has to be there after a crash.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Makes a folder, and those above it, if they are missing; their names are durable then. What a folder has is lost with
/// its name if the machine loses power before that is on disk.
///
/// # Errors
/// Those of mkdir(2), open(2) and fsync(2).
pub(crate) fn make_durable(path: &Path, mode: u32) -> io::Result<()> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.is_dir();
    let missing: Vec<&Path> = path.ancestors().skip(1).take_while(is_missing).collect();
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    // Whoever has made it before may not have come so far.
    for folder in missing.into_iter().rev().chain([path]) {
        match File::open(holder_of(folder)) {
            Ok(holder) => holder.sync_all()?,
            // Names may be made there, but not read.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The folder that has this one's name.
fn holder_of(folder: &Path) -> PathBuf {
    match folder.parent() {
        Some(parent) if parent.as_os_str().is_empty() => ".".into(),
        Some(parent) => parent.to_owned(),
        None => folder.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn folders_are_made_where_they_are_missing() {
        // One that is named as seen from here.
        let root = tempfile::tempdir_in(".").unwrap();
        let near = Path::new(root.path().file_name().unwrap());
        make_durable(&near.join("x/y"), 0o700).unwrap();
        assert!(root.path().join("x/y").is_dir());
        let path = root.path().join("a/b/c");
        for _ in 0..2 {
            make_durable(&path, 0o700).unwrap();
        }
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        make_durable(&file, 0o700).unwrap_err();
        make_durable(&file.join("below"), 0o700).unwrap_err();
        assert_eq!(holder_of(Path::new("state")), Path::new("."));
        assert_eq!(holder_of(Path::new("/var/lib")), Path::new("/var"));
    }
}
