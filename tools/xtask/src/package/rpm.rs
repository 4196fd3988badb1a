//! The RPM package: the files of the Debian package in RPM's form, version 4 (lead, signature, header, cpio).

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};

use super::archive::{Entry, gzip};
use super::deb::{DEFAULTS, MAINTAINER, PROGRAM, glibc};

/// Scripts of `packaging/rpm/`, with the tags of their text and of their shell.
const SCRIPTS: [(&str, u32, u32); 3] =
    [("post", 1024, 1086), ("preun", 1025, 1087), ("postun", 1026, 1088)];
/// Files that Debian has elsewhere.
const MOVED: [(&str, &str); 1] =
    [("usr/share/zsh/vendor-completions/_raceline", "usr/share/zsh/site-functions/_raceline")];
/// What NVMe/RDMA needs.
const SUGGESTS: [&str; 2] = ["libibverbs", "librdmacm"];
/// A file that keeps what an administrator has changed: `%config(noreplace)`.
const CONFIG_NOREPLACE: u32 = 1 | 1 << 4;
/// `%doc`.
const DOCUMENT: u32 = 1 << 1;
/// Kinds of versions in a dependency: at most; exactly; of rpm itself; of a script; found by a program.
const LESS_EQUAL: u32 = 0x02 | 0x08;
const EQUAL: u32 = 0x08;
const OF_RPM: u32 = 1 << 24;
const OF_SCRIPT: u32 = 1 << 8;
/// The tag of the regions of the signature and of the header.
const SIGNATURE_REGION: u32 = 62;
const HEADER_REGION: u32 = 63;

/// A value of a header.
enum Value {
    Short(Vec<u16>),
    Long(Vec<u32>),
    Text(String),
    Texts(Vec<String>),
    /// A text that could be translated.
    Plain(String),
}

impl Value {
    fn kind(&self) -> u32 {
        match self {
            Self::Short(_) => 3,
            Self::Long(_) => 4,
            Self::Text(_) => 6,
            Self::Texts(_) => 8,
            Self::Plain(_) => 9,
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::Short(all) => all.len(),
            Self::Long(all) => all.len(),
            Self::Texts(all) => all.len(),
            Self::Text(_) | Self::Plain(_) => 1,
        }
    }

    /// The bytes, at this place of the data, with what aligns them.
    fn put(&self, data: &mut Vec<u8>) -> usize {
        let align = match self {
            Self::Short(_) => 2,
            Self::Long(_) => 4,
            _ => 1,
        };
        data.resize(data.len().next_multiple_of(align), 0);
        let at = data.len();
        match self {
            Self::Short(all) => all.iter().for_each(|value| data.extend(value.to_be_bytes())),
            Self::Long(all) => all.iter().for_each(|value| data.extend(value.to_be_bytes())),
            Self::Text(text) | Self::Plain(text) => {
                data.extend(text.bytes());
                data.push(0);
            }
            Self::Texts(all) => {
                for text in all {
                    data.extend(text.bytes());
                    data.push(0);
                }
            }
        }
        at
    }
}

/// A header of these values, the region first; its data end with the region's own entry.
fn header(region: u32, values: &mut [(u32, Value)]) -> Result<Vec<u8>> {
    values.sort_by_key(|(tag, _)| *tag);
    let (mut index, mut data) = (Vec::new(), Vec::new());
    let entry = |tag: u32, kind: u32, at: u32, count: u32| -> Vec<u8> {
        [tag, kind, at, count].into_iter().flat_map(u32::to_be_bytes).collect()
    };
    for (tag, value) in values.iter() {
        let at = u32::try_from(value.put(&mut data))?;
        index.extend(entry(*tag, value.kind(), at, u32::try_from(value.count())?));
    }
    let count = u32::try_from(values.len() + 1)?;
    let trailer = u32::try_from(data.len())?;
    // Its place is counted backwards from itself over the whole index.
    data.extend(entry(region, 7, (count * 16).wrapping_neg(), 16));
    let mut bytes = vec![0x8e, 0xad, 0xe8, 0x01, 0, 0, 0, 0];
    bytes.extend(count.to_be_bytes());
    bytes.extend(u32::try_from(data.len())?.to_be_bytes());
    bytes.extend(entry(region, 7, trailer, 16));
    bytes.extend(index);
    bytes.extend(data);
    Ok(bytes)
}

/// The file's name.
pub(super) fn name(version: &str) -> Result<String> {
    Ok(format!("raceline-{version}-1.{}.rpm", arch()?.0))
}

/// The package, with its version and the licence of all that it contains.
pub(super) fn package(
    (version, licence): (&str, &str),
    files: &[Entry],
    time_s: u64,
) -> Result<Vec<u8>> {
    let files = moved(files);
    let plain = cpio(&files, time_s)?;
    let payload = gzip(&plain)?;
    let header = main_header((version, licence), &files, &payload, time_s)?;
    let size = u32::try_from(header.len() + payload.len())?;
    let mut signature = self::header(
        SIGNATURE_REGION,
        &mut [
            (273, Value::Text(digest(&header))),
            (1000, Value::Long(vec![size])),
            (1007, Value::Long(vec![u32::try_from(plain.len())?])),
        ],
    )?;
    signature.resize(signature.len().next_multiple_of(8), 0);
    let mut package = lead(version)?;
    package.extend(signature);
    package.extend(header);
    package.extend(payload);
    Ok(package)
}

/// The files and their folders of our own, by path, where RPM's distributions have them.
fn moved(files: &[Entry]) -> Vec<Entry> {
    let mut all: Vec<Entry> = files.to_vec();
    for entry in &mut all {
        if let Some((_, to)) = MOVED.iter().find(|(from, _)| *from == entry.path) {
            (*to).clone_into(&mut entry.path);
        }
    }
    let own: BTreeSet<String> = all
        .iter()
        .flat_map(|entry| {
            let path = entry.path.clone();
            path.match_indices('/').map(|(at, _)| path[..=at].to_owned()).collect::<Vec<_>>()
        })
        .filter(|folder| folder.contains("raceline"))
        .filter(|folder| !all.iter().any(|entry| entry.path == *folder))
        .collect();
    all.extend(own.iter().map(|folder| Entry::folder(folder)));
    all.sort_by(|a, b| a.path.trim_end_matches('/').cmp(b.path.trim_end_matches('/')));
    all
}

/// The mode with the kind of file, as `stat` gives it.
fn mode(entry: &Entry) -> u16 {
    let kind = if entry.path.ends_with('/') { 0o040_000 } else { 0o100_000 };
    u16::try_from(kind | entry.mode & 0o7777).unwrap_or_default()
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn arch() -> Result<(&'static str, u16)> {
    match std::env::consts::ARCH {
        "x86_64" => Ok(("x86_64", 1)),
        "aarch64" => Ok(("aarch64", 19)),
        other => anyhow::bail!("no package for {other}"),
    }
}

/// 96 bytes that old programs know a package by.
fn lead(version: &str) -> Result<Vec<u8>> {
    let mut bytes = vec![0xed, 0xab, 0xee, 0xdb, 3, 0, 0, 0];
    bytes.extend(arch()?.1.to_be_bytes());
    let mut name = format!("raceline-{version}-1").into_bytes();
    name.resize(66, 0);
    bytes.extend(name);
    // Linux, and a signature that is a header.
    bytes.extend([0, 1, 0, 5]);
    bytes.resize(96, 0);
    Ok(bytes)
}

fn main_header(
    (version, licence): (&str, &str),
    files: &[Entry],
    payload: &[u8],
    time_s: u64,
) -> Result<Vec<u8>> {
    let text = |text: &str| Value::Text(text.to_owned());
    let plain = |text: &str| Value::Plain(text.to_owned());
    let size: usize = files.iter().map(|file| file.bytes.len()).sum();
    let mut values = vec![
        (100, Value::Texts(vec!["C".to_owned()])),
        (1000, text("raceline")),
        (1001, text(version)),
        (1002, text("1")),
        (1004, plain("NVMe/TCP, NVMe/RDMA and iSCSI target and host in user space")),
        (
            1005,
            plain(
                "Exports memory, files and block devices over NVMe/TCP, NVMe/RDMA and iSCSI, and\n\
                 uses what others export. It needs no hugepages, no DPDK and no kernel modules,\n\
                 and uses no CPU time when idle. Clients of SPDK's JSON-RPC configure it.\n\
                 NVMe/RDMA needs the libraries of rdma-core.",
            ),
        ),
        (1006, Value::Long(vec![u32::try_from(time_s)?])),
        (1007, text("localhost")),
        (1009, Value::Long(vec![u32::try_from(size)?])),
        (1014, text(licence)),
        (1015, text(MAINTAINER)),
        (1016, plain("System Environment/Daemons")),
        (1021, text("linux")),
        (1022, text(arch()?.0)),
        (1044, text(&format!("raceline-{version}-1.src.rpm"))),
        (1064, text("4.14.0")),
        (1080, Value::Long(vec![u32::try_from(time_s)?])),
        (1081, Value::Texts(vec![format!("{MAINTAINER} - {version}-1")])),
        (
            1082,
            Value::Texts(vec!["- /usr/share/doc/raceline/changelog.gz has all changes".to_owned()]),
        ),
        (1124, text("cpio")),
        (1125, text("gzip")),
        (1126, text("9")),
        (5062, text("utf-8")),
        (5092, Value::Texts(vec![digest(payload)])),
        (5093, Value::Long(vec![8])),
    ];
    values.extend(file_values(files, time_s)?);
    values.extend(dependencies(version, files)?);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/rpm");
    for (name, script, shell) in SCRIPTS {
        let file = folder.join(name);
        let script_text =
            std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        values.push((script, Value::Text(script_text)));
        values.push((shell, text("/bin/sh")));
    }
    header(HEADER_REGION, &mut values)
}

/// What the header says of each file.
fn file_values(files: &[Entry], time_s: u64) -> Result<Vec<(u32, Value)>> {
    let count = files.len();
    let time = u32::try_from(time_s)?;
    let each = |value: u32| Value::Long(vec![value; count]);
    let every = |text: &str| Value::Texts(vec![text.to_owned(); count]);
    let (mut folders, mut places, mut names) = (Vec::<String>::new(), Vec::new(), Vec::new());
    for file in files {
        let path = format!("/{}", file.path.trim_end_matches('/'));
        let (folder, name) = path.rsplit_once('/').context("a path without a folder")?;
        let folder = format!("{folder}/");
        let place = folders.iter().position(|known| *known == folder).unwrap_or_else(|| {
            folders.push(folder);
            folders.len() - 1
        });
        places.push(u32::try_from(place)?);
        names.push(name.to_owned());
    }
    let sizes: Result<Vec<u32>, _> = files.iter().map(|f| u32::try_from(f.bytes.len())).collect();
    let digests = files.iter().map(|file| match file.path.ends_with('/') {
        true => String::new(),
        false => digest(&file.bytes),
    });
    let flags = files.iter().map(|file| match file.path.as_str() {
        DEFAULTS => CONFIG_NOREPLACE,
        path if path.starts_with("usr/share/doc/") || path.starts_with("usr/share/man/") => {
            if path.ends_with('/') { 0 } else { DOCUMENT }
        }
        _ => 0,
    });
    Ok(vec![
        (1028, Value::Long(sizes?)),
        (1030, Value::Short(files.iter().map(mode).collect())),
        (1033, Value::Short(vec![0; count])),
        (1034, each(time)),
        (1035, Value::Texts(digests.collect())),
        (1036, every("")),
        (1037, Value::Long(flags.collect())),
        (1039, every("root")),
        (1040, every("root")),
        (1045, each(u32::MAX)),
        (1095, each(1)),
        (1096, Value::Long((1..).take(count).collect())),
        (1097, every("")),
        (1116, Value::Long(places)),
        (1117, Value::Texts(names)),
        (1118, Value::Texts(folders)),
        (5011, Value::Long(vec![8])),
    ])
}

/// What it provides and needs.
fn dependencies(version: &str, files: &[Entry]) -> Result<Vec<(u32, Value)>> {
    let program = files.iter().find(|file| file.path == PROGRAM).context("no program")?;
    let libc = format!("libc.so.6(GLIBC_{})(64bit)", glibc(&program.bytes)?);
    let needs = [
        ("/bin/sh", "", OF_SCRIPT),
        ("libc.so.6()(64bit)", "", 0),
        (libc.as_str(), "", 0),
        ("libgcc_s.so.1()(64bit)", "", 0),
        ("rpmlib(CompressedFileNames)", "3.0.4-1", OF_RPM | LESS_EQUAL),
        ("rpmlib(FileDigests)", "4.6.0-1", OF_RPM | LESS_EQUAL),
        ("rpmlib(PayloadFilesHavePrefix)", "4.0-1", OF_RPM | LESS_EQUAL),
        ("systemd", "", 0),
    ];
    let texts = |texts: Vec<&str>| Value::Texts(texts.into_iter().map(str::to_owned).collect());
    let own = format!("{version}-1");
    Ok(vec![
        (1047, texts(vec!["raceline"])),
        (1112, Value::Long(vec![EQUAL])),
        (1113, texts(vec![&own])),
        (1048, Value::Long(needs.iter().map(|need| need.2).collect())),
        (1049, texts(needs.iter().map(|need| need.0).collect())),
        (1050, texts(needs.iter().map(|need| need.1).collect())),
        (5049, texts(SUGGESTS.to_vec())),
        (5050, texts(vec![""; SUGGESTS.len()])),
        (5051, Value::Long(vec![0; SUGGESTS.len()])),
    ])
}

/// The files as `cpio -H newc` has them.
fn cpio(files: &[Entry], time_s: u64) -> Result<Vec<u8>> {
    let mut archive = Vec::new();
    let mut put = |number: usize, mode: u32, name: &str, bytes: &[u8]| -> Result<()> {
        let time = u32::try_from(time_s)?;
        let fields = [
            u32::try_from(number)?,
            mode,
            0,
            0,
            1,
            time,
            u32::try_from(bytes.len())?,
            0,
            0,
            0,
            0,
            u32::try_from(name.len() + 1)?,
            0,
        ];
        archive.extend(b"070701");
        fields.iter().for_each(|field| archive.extend(format!("{field:08x}").bytes()));
        archive.extend(name.bytes());
        archive.push(0);
        archive.resize(archive.len().next_multiple_of(4), 0);
        archive.extend(bytes);
        archive.resize(archive.len().next_multiple_of(4), 0);
        Ok(())
    };
    for (index, file) in files.iter().enumerate() {
        ensure!(!file.is_link, "{}: links are not put into the RPM package", file.path);
        let name = format!("./{}", file.path.trim_end_matches('/'));
        put(index + 1, mode(file).into(), &name, &file.bytes)?;
    }
    put(0, 0, "TRAILER!!!", &[])?;
    Ok(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_aligned_and_the_region_frames_them() {
        let mut values = [(1002, Value::Long(vec![7])), (1000, Value::Text("a".to_owned()))];
        let bytes = header(HEADER_REGION, &mut values).unwrap();
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(8), word(12)), (3, 24));
        // The region; the text at 0; the number at 4.
        assert_eq!((word(16), word(24)), (HEADER_REGION, 8));
        assert_eq!((word(32), word(40)), (1000, 0));
        assert_eq!((word(48), word(56)), (1002, 4));
        assert_eq!(word(64 + 4), 7);
        assert_eq!(i32::from_be_bytes(bytes[80..84].try_into().unwrap()), -48);
    }

    #[test]
    fn folders_of_our_own_are_in_the_package_once() {
        let files = [
            Entry::file("usr/share/raceline/a/b", 0o644, "x"),
            Entry::file("usr/bin/raceline", 0o755, "x"),
        ];
        let paths: Vec<String> = moved(&files).into_iter().map(|entry| entry.path).collect();
        let expected = [
            "usr/bin/raceline",
            "usr/share/raceline/",
            "usr/share/raceline/a/",
            "usr/share/raceline/a/b",
        ];
        assert_eq!(paths, expected);
    }
}
