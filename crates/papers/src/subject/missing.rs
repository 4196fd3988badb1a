//! What a series needs, and whether this machine has it.

use std::path::Path;

use crate::run::Options;

/// Why this machine does not have what a series needs; `None` if it has it.
#[must_use]
pub fn why(need: &str, options: &Options<'_>) -> Option<String> {
    match need {
        "spdk" => match &options.spdk {
            None => Some(
                "SPDK's target: name the folder in which SPDK was built with --spdk DIR".to_owned(),
            ),
            Some(folder) => {
                let program = super::spdk::program(folder);
                (!program.is_file()).then(|| format!("there is no {}", program.display()))
            }
        },
        "nvmet" => kernel_module("nvmet_tcp", "CONFIG_NVME_TARGET_TCP").map(|why| {
            format!("the kernel's NVMe/TCP target: {why}; the series `handoff` stands in for it")
        }),
        "toe" => Some("a NIC with a TCP offload engine and its driver (t4_tom)".to_owned()),
        "iscsi-offload" => {
            Some("a NIC with iSCSI offload and the kernel's iSCSI target (cxgbit)".to_owned())
        }
        "iwarp" => Some("an iWARP NIC with its driver (iw_cxgb4)".to_owned()),
        "net-admin" => match rustix::process::geteuid().is_root() {
            true => None,
            false => Some("the right to make network namespaces: run as root".to_owned()),
        },
        other => Some(format!("`{other}`, of which this program knows nothing")),
    }
}

/// Why a kernel module is not in use.
fn kernel_module(module: &str, option: &str) -> Option<String> {
    if Path::new("/sys/module").join(module).is_dir() {
        // Its configuration changes the system: it is measured as a target by address.
        return Some(format!(
            "the module {module} is there; export a namespace with it, and name it with --target"
        ));
    }
    if !Path::new("/proc/modules").exists() {
        return Some(format!("this kernel has no modules and was built without {option}"));
    }
    Some(format!("the module {module} is not loaded: modprobe {}", module.replace('_', "-")))
}
