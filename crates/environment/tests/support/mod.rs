//! Recorded machines, unpacked into folders.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use raceline_environment::System;
use tempfile::TempDir;

/// A machine, and the folder that it lies in until this is dropped.
pub(crate) struct Machine {
    pub(crate) system: System,
    _folder: TempDir,
}

/// Unpacks recordings one over the other. In a recording, `== PATH` begins a file, whose text follows; and
/// `== PATH -> TARGET` is a symbolic link.
pub(crate) fn machine(recordings: &[&str]) -> Machine {
    let folder = tempfile::tempdir().expect("a folder for the machine");
    for recording in recordings {
        unpack(folder.path(), recording);
    }
    Machine { system: System::recorded(folder.path()), _folder: folder }
}

fn unpack(root: &Path, recording: &str) {
    for entry in format!("\n{recording}").split("\n== ").skip(1) {
        let (head, text) = entry.split_once('\n').unwrap_or((entry, ""));
        let (path, target) = head.split_once(" -> ").unwrap_or((head, ""));
        let file = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap_or(root)).expect("its folders");
        if target.is_empty() {
            fs::write(file, format!("{text}\n")).expect("its files");
        } else {
            symlink(target, file).expect("its links");
        }
    }
}
