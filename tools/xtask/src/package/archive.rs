//! Archives that depend on nothing but their contents: tar (ustar), gzip, ar.

use std::io::Write as _;

use anyhow::{Result, ensure};
use flate2::{Compression, GzBuilder};

/// A file, or a folder, of an archive.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Its path, without a slash at the beginning; that of a folder ends with one.
    pub(super) path: String,
    /// Its permissions.
    pub(super) mode: u32,
    /// Its user and group.
    pub(super) owner: u32,
    /// Its content; that of a symbolic link is where it leads.
    pub(super) bytes: Vec<u8>,
    /// Whether it is a symbolic link.
    pub(super) is_link: bool,
}

impl Entry {
    /// A file of root.
    pub(super) fn file(path: &str, mode: u32, bytes: impl Into<Vec<u8>>) -> Self {
        Self { path: path.to_owned(), mode, owner: 0, bytes: bytes.into(), is_link: false }
    }

    /// A folder of root.
    pub(super) fn folder(path: &str) -> Self {
        Self::file(path, 0o755, Vec::new())
    }

    fn kind(&self) -> u8 {
        match () {
            () if self.is_link => b'2',
            () if self.path.ends_with('/') => b'5',
            () => b'0',
        }
    }
}

/// An archive of these entries, sorted, with the folders above them; `prefix` stands before each path.
pub(super) fn tar(prefix: &str, entries: &[Entry], time_s: u64) -> Result<Vec<u8>> {
    let mut all: Vec<Entry> = entries.to_vec();
    for entry in entries {
        for (at, _) in entry.path.trim_end_matches('/').match_indices('/') {
            let folder = &entry.path[..=at];
            if !all.iter().any(|entry| entry.path == folder) {
                all.push(Entry::folder(folder));
            }
        }
    }
    all.sort_by(|a, b| a.path.cmp(&b.path));
    let mut archive = Vec::new();
    for entry in &all {
        let content: &[u8] = if entry.is_link { &[] } else { &entry.bytes };
        archive.extend(header(prefix, entry, content.len(), time_s)?);
        archive.extend(content);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    // Two empty blocks end it.
    archive.resize(archive.len() + 1024, 0);
    Ok(archive)
}

/// One header, POSIX.1-1988 (ustar).
fn header(prefix: &str, entry: &Entry, size: usize, time_s: u64) -> Result<[u8; 512]> {
    let mut block = [0_u8; 512];
    let mut put = |at: usize, length: usize, text: &[u8]| -> Result<()> {
        ensure!(text.len() <= length, "{} is too long for a header", entry.path);
        block[at..at + text.len()].copy_from_slice(text);
        Ok(())
    };
    let octal = |value: u64, digits: usize| format!("{value:0digits$o}\0").into_bytes();
    put(0, 100, format!("{prefix}{}", entry.path).as_bytes())?;
    put(100, 8, &octal(entry.mode.into(), 7))?;
    put(108, 8, &octal(entry.owner.into(), 7))?;
    put(116, 8, &octal(entry.owner.into(), 7))?;
    put(124, 12, &octal(size as u64, 11))?;
    put(136, 12, &octal(time_s, 11))?;
    put(148, 8, b"        ")?;
    put(156, 1, &[entry.kind()])?;
    if entry.is_link {
        put(157, 100, &entry.bytes)?;
    }
    put(257, 8, b"ustar\x0000")?;
    if entry.owner == 0 {
        put(265, 32, b"root")?;
        put(297, 32, b"root")?;
    }
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

/// The bytes compressed, without a time or a name.
pub(super) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::default());
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}

/// An archive as `ar` writes it, which is what a Debian package is.
pub(super) fn ar(members: &[(&str, &[u8])], time_s: u64) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, bytes) in members {
        let size = bytes.len();
        archive.extend(
            format!("{name:<16}{time_s:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, "100644").bytes(),
        );
        archive.extend(*bytes);
        if size % 2 == 1 {
            archive.push(b'\n');
        }
    }
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_come_before_what_they_hold_and_order_does_not_count() {
        let files = [Entry::file("usr/bin/b", 0o755, "b"), Entry::file("etc/a", 0o644, "a")];
        let archive = tar("./", &files, 7).unwrap();
        let reversed: Vec<Entry> = files.iter().rev().cloned().collect();
        assert_eq!(archive, tar("./", &reversed, 7).unwrap());
        let names: Vec<&str> =
            ["./etc/", "./etc/a", "./usr/", "./usr/bin/", "./usr/bin/b"].to_vec();
        let text = String::from_utf8_lossy(&archive);
        let places: Vec<usize> =
            names.iter().map(|name| text.find(&format!("{name}\0")).unwrap()).collect();
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!(archive.len() % 512, 0);
        assert!(tar("", &[Entry::file(&"x".repeat(101), 0o644, "")], 0).is_err());
    }
}
