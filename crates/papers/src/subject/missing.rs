//! What a series needs, and whether this machine has it.

use std::path::Path;

use crate::run::{Options, Protocol};

/// Why this machine does not have what a series needs; `None` if it has it.
#[must_use]
pub fn why(need: &str, options: &Options<'_>) -> Option<String> {
    match need {
        "spdk" => spdk(options.spdk.as_deref(), Protocol::NvmeTcp),
        "spdk-iscsi" => spdk(options.spdk.as_deref(), Protocol::Iscsi),
        "tgt" => {
            tgt(super::tgt::program("tgtd").is_some() && super::tgt::program("tgtadm").is_some())
        }
        "nvmet" => nvmet(options.nvmet.is_some()),
        "toe" => Some(with_stand_in(
            "a NIC with a TCP offload engine and its driver (t4_tom)",
            "the kernel's TCP, in all other series",
        )),
        "iscsi-offload" => Some(with_stand_in(
            "a NIC with iSCSI offload and the kernel's iSCSI target (cxgbit)",
            "Raceline's iSCSI target, in software,",
        )),
        "iwarp" => Some(with_stand_in(
            "an iWARP NIC with its driver (iw_cxgb4)",
            "Raceline over RDMA, in the series `rdma-poll` where --rdma names a device,",
        )),
        "rdma" => options.rdma.find().err(),
        "net-admin" => match rustix::process::geteuid().is_root() {
            true => None,
            false => Some("the right to make network namespaces: run as root".to_owned()),
        },
        other => Some(format!("`{other}`, of which this program knows nothing")),
    }
}

/// What is missing, and what stands in for it.
fn with_stand_in(what: &str, stand_in: &str) -> String {
    format!("{what}; {stand_in} stands in for it")
}

/// SPDK's target, whose way of working Raceline's has: cores that poll.
fn spdk(folder: Option<&Path>, protocol: Protocol) -> Option<String> {
    let what = match folder {
        None => "SPDK's target: name the folder in which SPDK was built with --spdk DIR".to_owned(),
        Some(folder) => {
            let program = super::spdk::program(folder, protocol);
            if program.is_file() {
                return None;
            }
            format!("there is no {}: build SPDK there, or name another folder", program.display())
        }
    };
    Some(with_stand_in(&what, "Raceline's target with cores that poll"))
}

/// tgt, whose daemon needs the rights of root.
fn tgt(is_installed: bool) -> Option<String> {
    if is_installed && rustix::process::geteuid().is_root() {
        return None;
    }
    let what = if is_installed {
        "the right to run tgt's daemon: run as root"
    } else {
        "tgt: install its package (Debian: tgt)"
    };
    Some(with_stand_in(what, "no other iSCSI target"))
}

/// The kernel's target, which is configured by its user: that changes the system.
fn nvmet(is_named: bool) -> Option<String> {
    if is_named {
        return None;
    }
    let why = kernel_module("nvmet_tcp", "CONFIG_NVME_TARGET_TCP");
    let what = format!("the kernel's NVMe/TCP target: {why}");
    Some(with_stand_in(&what, "the series `handoff`"))
}

/// Why a kernel module is not in use.
fn kernel_module(module: &str, option: &str) -> String {
    if Path::new("/sys/module").join(module).is_dir() {
        return format!(
            "the module {module} is there; export a namespace with it, and name it with --nvmet"
        );
    }
    if !Path::new("/proc/modules").exists() {
        return format!("this kernel has no modules and was built without {option}");
    }
    format!("the module {module} is not loaded: modprobe {}", module.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_has_what_stands_in() {
        let none = spdk(None, Protocol::NvmeTcp).unwrap();
        assert!(
            none.contains("--spdk DIR") && none.contains("cores that poll stands in"),
            "{none}"
        );
        let folder = tempfile::tempdir().unwrap();
        let other = spdk(Some(folder.path()), Protocol::NvmeTcp).unwrap();
        assert!(other.contains("build/bin/nvmf_tgt: build SPDK there"), "{other}");
        std::fs::create_dir_all(folder.path().join("build/bin")).unwrap();
        std::fs::write(super::super::spdk::program(folder.path(), Protocol::NvmeTcp), "").unwrap();
        assert_eq!(spdk(Some(folder.path()), Protocol::NvmeTcp), None);
        let iscsi = spdk(Some(folder.path()), Protocol::Iscsi).unwrap();
        assert!(iscsi.contains("build/bin/iscsi_tgt"), "{iscsi}");
        let kernel = nvmet(false).unwrap();
        assert!(kernel.contains("`handoff` stands in"), "{kernel}");
        assert_eq!(nvmet(true), None);
        assert!(tgt(false).unwrap().contains("install its package"));
    }
}
