//! `cargo xtask setup`: the external programs that some steps need, and how to get them.

use std::path::Path;

use anyhow::Result;

use crate::child::{Task, has_program};
use crate::step::Outcome;

/// A program, the Debian package that has it, and the steps that need it.
struct Need {
    program: &'static str,
    package: &'static str,
    steps: &'static str,
}

/// Where Debian has the modules of its Python.
const PYTHON_MODULES: &str = "/usr/lib/python3/dist-packages";

/// All external programs; `missing_for` looks for the first word of `steps`.
const NEEDS: &[Need] = &[
    Need { program: "qemu-system-x86_64", package: "qemu-system-x86", steps: "kernel" },
    Need { program: "cpio", package: "cpio", steps: "kernel" },
    Need { program: "mkfs.ext4", package: "e2fsprogs", steps: "kernel" },
    Need { program: "xz", package: "xz-utils", steps: "kernel" },
    Need { program: "zstd", package: "zstd", steps: "kernel" },
    Need { program: "dpkg-deb", package: "dpkg", steps: "kernel" },
    Need { program: "grub-mkimage", package: "grub-pc-bin", steps: "vhost" },
    Need { program: "gcc", package: "gcc", steps: "cloud-hypervisor" },
    Need { program: "objcopy", package: "binutils", steps: "cloud-hypervisor" },
    Need { program: "tshark", package: "tshark", steps: "tshark" },
    Need { program: "iscsi-inq", package: "libiscsi-bin", steps: "tshark" },
    Need { program: "iscsi-test-cu", package: "libiscsi-bin", steps: "iscsi-test-cu" },
    Need { program: "valgrind", package: "valgrind", steps: "cost" },
    Need { program: "ip", package: "iproute2", steps: "placement" },
    Need { program: "python3", package: "python3-venv", steps: "spdk-client" },
    Need { program: "iscsi-ls", package: "libiscsi-bin", steps: "spdk-client" },
    Need { program: "fio", package: "fio", steps: "fio-engine" },
    Need { program: "cc", package: "gcc libc6-dev", steps: "fio-engine" },
    Need { program: "ethtool", package: "ethtool", steps: "placement" },
    Need { program: "python3-zeroconf", package: "python3-zeroconf", steps: "tests" },
    Need { program: "prometheus", package: "prometheus", steps: "tests" },
    Need { program: "dpkg-deb", package: "dpkg", steps: "packages" },
    Need { program: "strip", package: "binutils", steps: "packages" },
    Need { program: "systemd-sysusers", package: "systemd", steps: "packages" },
    Need { program: "rpm", package: "rpm", steps: "packages" },
    Need { program: "systemd-socket-activate", package: "systemd", steps: "tests" },
    Need { program: "faketime", package: "faketime", steps: "tests" },
    Need {
        program: "mmdebstrap",
        package: "mmdebstrap debian-archive-keyring",
        steps: "clean-roots",
    },
    Need { program: "systemd-nspawn", package: "systemd-container", steps: "clean-roots" },
    Need { program: "chromium", package: "chromium fonts-liberation", steps: "papers-report" },
    Need { program: "qemu-img", package: "qemu-utils", steps: "nbd" },
    Need { program: "qemu-io", package: "qemu-utils", steps: "nbd" },
    Need { program: "nbdcopy", package: "libnbd-bin", steps: "nbd" },
    Need { program: "nbdsh", package: "python3-libnbd", steps: "nbd" },
    Need { program: "fio", package: "fio", steps: "nbd" },
    Need { program: "openssl", package: "openssl", steps: "nbd" },
];

fn missing() -> Vec<&'static Need> {
    NEEDS.iter().filter(|need| !is_there(need.program)).collect()
}

/// Whether a program is there, or a module of Debian's Python.
fn is_there(program: &str) -> bool {
    match program.strip_prefix("python3-") {
        Some(module) => Path::new(PYTHON_MODULES).join(module).is_dir(),
        None => has_program(program),
    }
}

/// The reason why a group of steps ("packages", "kernel", "tshark", "cost", "placement", "spdk-client",
/// "iscsi-test-cu", "fio-engine", "papers-report") cannot run on this machine, if there is one.
pub(crate) fn missing_for(steps: &str) -> Option<String> {
    let programs: Vec<&str> =
        missing().iter().filter(|need| need.steps == steps).map(|need| need.program).collect();
    if programs.is_empty() {
        return None;
    }
    Some(format!("missing: {} (cargo xtask setup)", programs.join(", ")))
}

/// Whether this process is root; image building and capturing need it.
pub(crate) fn is_root() -> bool {
    let ended = Task::new("id").args(["-u"]).run();
    ended.is_ok_and(|ended| ended.stdout.trim() == "0")
}

/// Whether this is a run of CI, which must not skip a step whose programs could be installed.
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// The result of a step whose packages are missing: skipped, but a failure in CI as root on Debian.
pub(crate) fn cannot(why: &str) -> Result<Outcome> {
    if is_ci() && is_root() && Path::new("/etc/debian_version").exists() {
        anyhow::bail!("{why} (CI runs as root, so this is no reason to skip)");
    }
    Ok(Outcome::Skipped(why.to_owned()))
}

/// Installs the missing packages, or says how to.
pub(crate) fn run() -> Result<Outcome> {
    let missing = missing();
    if missing.is_empty() {
        return Ok(Outcome::Passed("nothing to install".to_owned()));
    }
    let mut packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    packages.sort_unstable();
    packages.dedup();
    let packages = packages.join(" ");
    let mut steps: Vec<&str> = missing.iter().map(|need| need.steps).collect();
    steps.sort_unstable();
    steps.dedup();
    let steps = steps.join(" and ");
    if !has_program("apt-get") {
        let why =
            format!("no apt-get here: the {steps} steps will be skipped; they need {packages}");
        println!("{why}");
        return Ok(Outcome::Skipped(why));
    }
    let install = format!("apt-get install -y --no-install-recommends {packages}");
    if !is_root() {
        println!(
            "Run this, or the {steps} steps will be skipped:\n\n    sudo sh -c 'apt-get update && {install}'\n"
        );
        return Ok(Outcome::Skipped(format!("not root, so not installed: {packages}")));
    }
    println!("installing {packages}");
    let script = format!("apt-get -q update && {install}");
    let ended = Task::new("sh")
        .args(["-c", &script])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .limit(600)
        .run()?;
    if !ended.success() {
        println!("{}", ended.tail(15));
        return cannot(&format!("apt-get failed ({}): {packages}", ended.why()));
    }
    Ok(Outcome::Passed(format!("installed {packages}")))
}
