//! What a series needs, and whether this machine has it.

use std::path::Path;

use crate::run::{Options, Protocol};

/// What stands in for the others' targets over RDMA.
const OURS_OVER_RDMA: &str = "Raceline over RDMA, in the series `rdma-poll`,";

/// Why this machine does not have what a series needs; `None` if it has it.
#[must_use]
pub fn why(need: &str, options: &Options<'_>) -> Option<String> {
    match need {
        "spdk" => spdk(options.spdk.as_deref(), Protocol::NvmeTcp),
        "spdk-iscsi" => spdk(options.spdk.as_deref(), Protocol::Iscsi),
        "spdk-rdma" => spdk(options.spdk.as_deref(), Protocol::NvmeRdma),
        "tgt" => {
            tgt(super::tgt::program("tgtd").is_some() && super::tgt::program("tgtadm").is_some())
        }
        "nvmet" => nvmet(options.nvmet.is_some()),
        "nvmet-rdma" => nvmet_rdma(options.nvmet_rdma.is_some()),
        "toe" => Some(with_stand_in(
            "a NIC with a TCP offload engine and its driver (t4_tom)",
            "the kernel's TCP, in all other series (CH-F1 and CH-F2 have models of it besides),",
        )),
        "iscsi-offload" => Some(with_stand_in(
            "a NIC with iSCSI offload and the kernel's iSCSI target (cxgbit)",
            "Raceline's iSCSI target, in software (CH-F1 and CH-F2 have models of it besides),",
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
    let (with_rdma, stand_in) = match protocol {
        Protocol::NvmeRdma => (" --with-rdma", OURS_OVER_RDMA),
        Protocol::NvmeTcp | Protocol::Iscsi => ("", "Raceline's target with cores that poll"),
    };
    let what = match folder {
        None => format!(
            "SPDK's target: name the folder in which SPDK was built{with_rdma} with --spdk DIR"
        ),
        Some(folder) => {
            let program = super::spdk::program(folder, protocol);
            if program.is_file() {
                return None;
            }
            format!(
                "there is no {}: build SPDK{with_rdma} there, or name another folder",
                program.display()
            )
        }
    };
    Some(with_stand_in(&what, stand_in))
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
    let why = kernel_module("nvmet_tcp", "CONFIG_NVME_TARGET_TCP", "--nvmet", Path::new("/"));
    let what = format!("the kernel's NVMe/TCP target: {why}");
    Some(with_stand_in(&what, "the series `handoff`"))
}

/// The same over RDMA.
fn nvmet_rdma(is_named: bool) -> Option<String> {
    if is_named {
        return None;
    }
    let option = "--nvmet-rdma ADDR:PORT,NQN";
    let why = kernel_module("nvmet_rdma", "CONFIG_NVME_TARGET_RDMA", option, Path::new("/"));
    Some(with_stand_in(&format!("the kernel's NVMe/RDMA target: {why}"), OURS_OVER_RDMA))
}

/// Why a kernel module is not in use. A target on another machine needs none here, so each reason names the option.
fn kernel_module(module: &str, config: &str, option: &str, root: &Path) -> String {
    let name = module.replace('_', "-");
    if root.join("sys/module").join(module).is_dir() {
        return format!(
            "the module {module} is there; export a namespace with it, and name it with {option}"
        );
    }
    if !root.join("proc/modules").exists() {
        return format!(
            "this kernel has no modules and was built without {config}; name a target on another machine with {option}"
        );
    }
    format!(
        "the module {module} is not loaded: modprobe {name}, export a namespace with it, and name it with {option}"
    )
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

    #[test]
    fn what_is_missing_over_rdma_says_what_to_do() {
        let rdma = |folder| spdk(folder, Protocol::NvmeRdma);
        let none = rdma(None).unwrap();
        assert!(none.contains("built --with-rdma with --spdk DIR"), "{none}");
        assert!(none.ends_with("in the series `rdma-poll`, stands in for it"), "{none}");
        let folder = tempfile::tempdir().unwrap();
        let other = rdma(Some(folder.path())).unwrap();
        assert!(other.contains("build/bin/nvmf_tgt: build SPDK --with-rdma there"), "{other}");
        std::fs::create_dir_all(folder.path().join("build/bin")).unwrap();
        std::fs::write(super::super::spdk::program(folder.path(), Protocol::NvmeRdma), "").unwrap();
        assert_eq!(rdma(Some(folder.path())), None);
        let kernel = nvmet_rdma(false).unwrap();
        assert!(kernel.starts_with("the kernel's NVMe/RDMA target: "), "{kernel}");
        assert!(kernel.contains("--nvmet-rdma ADDR:PORT,NQN;"), "{kernel}");
        assert!(kernel.ends_with("in the series `rdma-poll`, stands in for it"), "{kernel}");
        assert_eq!(nvmet_rdma(true), None);
    }

    #[test]
    fn a_module_is_there_or_to_be_loaded_or_not_of_this_kernel() {
        let root = tempfile::tempdir().unwrap();
        let why = || kernel_module("nvmet_rdma", "CONFIG_X", "--option", root.path());
        assert!(why().contains("built without CONFIG_X; name a target on another"), "{}", why());
        std::fs::create_dir_all(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/modules"), "").unwrap();
        assert!(why().contains("not loaded: modprobe nvmet-rdma, export"), "{}", why());
        std::fs::create_dir_all(root.path().join("sys/module/nvmet_rdma")).unwrap();
        assert!(why().contains("is there; export a namespace"), "{}", why());
        assert!(why().ends_with("name it with --option"), "{}", why());
    }
}
