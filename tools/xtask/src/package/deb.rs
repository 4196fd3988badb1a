//! The Debian package: its files, its control file, and what it does when it is installed and removed.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::archive::{Entry, ar, gzip, tar};
use super::supply::Supply;
use super::{arch, pages};
use crate::child::Task;

/// Where the program is installed.
pub(super) const PROGRAM: &str = "usr/bin/raceline";
/// Who the packages are of.
pub(super) const MAINTAINER: &str = "Raceline authors <raceline@localhost>";
/// The file with options that an administrator changes.
pub(super) const DEFAULTS: &str = "etc/default/raceline";
/// The folder with a file for each disk of `raceline-disk@.service` and `raceline-ublk@.service`.
const DISKS: &str = "etc/raceline/disks/";
/// The folder of documents.
pub(super) const DOCUMENTS: &str = "usr/share/doc/raceline";
/// Completions: the shell, and where its file goes.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/raceline"),
    ("zsh", "usr/share/zsh/vendor-completions/_raceline"),
    ("fish", "usr/share/fish/vendor_completions.d/raceline.fish"),
];
/// Files of `packaging/`, and where they go.
pub(super) const PACKAGING: [(&str, &str); 10] = [
    ("raceline.service", "usr/lib/systemd/system/raceline.service"),
    ("raceline.socket", "usr/lib/systemd/system/raceline.socket"),
    ("raceline-disk@.service", "usr/lib/systemd/system/raceline-disk@.service"),
    ("raceline-ublk@.service", "usr/lib/systemd/system/raceline-ublk@.service"),
    ("raceline-rdma.conf", "usr/share/raceline/systemd/rdma.conf"),
    ("raceline.sysusers", "usr/lib/sysusers.d/raceline.conf"),
    ("raceline.tmpfiles", "usr/lib/tmpfiles.d/raceline.conf"),
    ("raceline.default", DEFAULTS),
    ("grafana/raceline.json", "usr/share/raceline/grafana/raceline.json"),
    ("prometheus/raceline.rules.yml", "usr/share/raceline/prometheus/raceline.rules.yml"),
];
/// Scripts of `packaging/deb/`.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// The files that the package installs. The program itself writes its manual pages and completions.
pub(super) fn files(
    root: &Path,
    program: &Path,
    (supply, sbom): (&Supply, &[u8]),
    out: &Path,
) -> Result<Vec<Entry>> {
    let mut files = vec![Entry::file(PROGRAM, 0o755, std::fs::read(program)?)];
    let pages = out.join("man");
    Task::new(program).args(["man", &pages.to_string_lossy()]).limit(60).check()?;
    for page in std::fs::read_dir(&pages)? {
        let page = page?;
        let path = format!("usr/share/man/man1/{}.gz", page.file_name().to_string_lossy());
        files.push(Entry::file(&path, 0o644, gzip(&std::fs::read(page.path())?)?));
    }
    std::fs::remove_dir_all(&pages)?;
    for (shell, path) in COMPLETIONS {
        let ended = Task::new(program).args(["completions", shell]).limit(60).check()?;
        files.push(Entry::file(path, 0o644, ended.stdout));
    }
    for (name, path) in PACKAGING {
        let file = root.join("packaging").join(name);
        let text = std::fs::read(&file).with_context(|| file.display().to_string())?;
        files.push(Entry::file(path, 0o644, text));
    }
    files.push(Entry::folder(DISKS));
    let document = |name: &str| format!("{DOCUMENTS}/{name}");
    let changes = std::fs::read(root.join("CHANGELOG.md"))?;
    files.push(Entry::file(&document("changelog.gz"), 0o644, gzip(&changes)?));
    files.push(Entry::file(&document("copyright"), 0o644, supply.copyright()));
    let texts = supply.texts(root)?;
    files.push(Entry::file(&document("licences.txt.gz"), 0o644, gzip(texts.as_bytes())?));
    files.push(Entry::file(&document("sbom.cdx.json.gz"), 0o644, gzip(sbom)?));
    files.extend(pages::files(root)?);
    Ok(files)
}

/// The package.
pub(super) fn package(version: &str, files: &[Entry], time_s: u64) -> Result<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/deb");
    let size: usize = files.iter().map(|file| file.bytes.len().div_ceil(1024)).sum();
    let program = files.iter().find(|file| file.path == PROGRAM).context("no program")?;
    let control = control(version, size, &glibc(&program.bytes)?)?;
    let mut entries = vec![
        Entry::file("control", 0o644, control),
        Entry::file("conffiles", 0o644, format!("/{DEFAULTS}\n")),
    ];
    for script in SCRIPTS {
        let file = root.join(script);
        let text = std::fs::read(&file).with_context(|| file.display().to_string())?;
        entries.push(Entry::file(script, 0o755, text));
    }
    let meta = gzip(&tar("./", &entries, time_s)?)?;
    let data = gzip(&tar("./", files, time_s)?)?;
    let members: [(&str, &[u8]); 3] =
        [("debian-binary", b"2.0\n"), ("control.tar.gz", &meta), ("data.tar.gz", &data)];
    Ok(ar(&members, time_s))
}

fn control(version: &str, size_kib: usize, glibc: &str) -> Result<String> {
    let arch = arch()?;
    Ok(format!(
        "Package: raceline\n\
         Version: {version}\n\
         Architecture: {arch}\n\
         Maintainer: {MAINTAINER}\n\
         Installed-Size: {size_kib}\n\
         Depends: libc6 (>= {glibc}), libgcc-s1 (>= 4.2), systemd | systemd-standalone-sysusers | systemd-sysusers\n\
         Suggests: nvme-cli, ethtool, libibverbs1, librdmacm1t64 | librdmacm1, ibverbs-providers\n\
         Section: admin\n\
         Priority: optional\n\
         Description: NVMe/TCP, NVMe/RDMA and iSCSI target and host in user space\n \
         Exports memory, files and block devices over NVMe/TCP, NVMe/RDMA and iSCSI,\n \
         and uses what others export. It needs no hugepages, no DPDK and no kernel\n \
         modules, and uses no CPU time when idle. Clients of SPDK's JSON-RPC\n \
         configure it. NVMe/RDMA needs the libraries of rdma-core.\n"
    ))
}

/// The oldest glibc that has all functions that the program needs, from the versions of its symbols.
pub(super) fn glibc(program: &[u8]) -> Result<String> {
    const MARK: &[u8] = b"GLIBC_2.";
    let mut newest = None;
    for at in program.windows(MARK.len()).enumerate().filter(|(_, w)| *w == MARK).map(|(at, _)| at)
    {
        let rest = &program[at + MARK.len()..];
        let digits: String = rest
            .iter()
            .take(3)
            .take_while(|byte| byte.is_ascii_digit())
            .map(|byte| char::from(*byte))
            .collect();
        newest = newest.max(digits.parse::<u32>().ok());
    }
    ensure!(newest.is_some(), "the program says of no symbol which glibc has it");
    Ok(format!("2.{}", newest.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_counts() {
        assert_eq!(glibc(b"x\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.17\0").unwrap(), "2.34");
        assert!(glibc(b"static").is_err());
    }
}
