//! What devices say they can do, and cannot: they are known by the numbers of their vendors, since a device may have any name
//! (rules of udev and `rdma link add` give them).

use std::path::Path;

/// Broadcom, of `bnxt_re`: a SEND that invalidates fails with `IBV_WC_LOC_QP_OP_ERR`.
const BROADCOM: u32 = 0x14e4;
/// Soft RoCE, of kernels of the last years and of older ones: it refuses to invalidate what a host has registered.
const SOFT_ROCE: [u32; 2] = [0xff_ffff, 0];
/// Soft iWARP.
const SOFT_IWARP: u32 = 0x62_6d74;
/// How the names of such devices begin, where nobody has given them others.
const NAMES: [&str; 3] = ["bnxt_re", "rxe", "i40iw"];
/// Where the kernel lists RDMA devices.
pub(super) const SYSFS: &str = "/sys/class/infiniband";

/// Whether a device that says it can invalidate keys of the peer with a SEND fails, or confuses hosts, when it does.
pub(super) fn fails_to_invalidate(vendor: u32, name: &str, sysfs: &Path) -> bool {
    vendor == BROADCOM
        || SOFT_ROCE.contains(&vendor)
        || NAMES.iter().any(|known| name.starts_with(known))
        || vendor != SOFT_IWARP && is_software(name, sysfs)
}

/// Whether a device may lose the receive of a message that has come in part when the queue pair fails. Soft RoCE does, and
/// kernels before 6.5 do not tell of the last receive of its queue pairs.
pub(super) fn loses_receives(vendor: u32, name: &str, sysfs: &Path) -> bool {
    SOFT_ROCE.contains(&vendor) || name.starts_with("rxe") || is_software(name, sysfs)
}

/// Whether no hardware is behind a device. Without the list, nothing is known.
pub(super) fn is_software(name: &str, sysfs: &Path) -> bool {
    let device = sysfs.join(name);
    !name.is_empty() && device.is_dir() && !device.join("device").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MELLANOX: u32 = 0x02c9;

    #[test]
    fn a_device_is_known_whatever_its_name_is() {
        let nowhere = Path::new("/nowhere");
        for (vendor, name, fails) in [
            (BROADCOM, "rocep1s0f0", true),
            (0xff_ffff, "storage0", true),
            (0, "storage0", true),
            (MELLANOX, "rxe0", true),
            (MELLANOX, "mlx5_0", false),
            (SOFT_IWARP, "siw0", false),
        ] {
            assert_eq!(fails_to_invalidate(vendor, name, nowhere), fails, "{vendor:x} {name}");
            let is_soft_roce = fails && vendor != BROADCOM;
            assert_eq!(loses_receives(vendor, name, nowhere), is_soft_roce, "{vendor:x} {name}");
        }
    }

    #[test]
    fn a_device_without_hardware_is_soft_roce() {
        let sysfs = std::env::temp_dir().join(format!("raceline-quirks-{}", std::process::id()));
        std::fs::create_dir_all(sysfs.join("soft")).unwrap();
        std::fs::create_dir_all(sysfs.join("hard/device")).unwrap();
        let fails = |vendor, name| fails_to_invalidate(vendor, name, &sysfs);
        let found = [
            fails(MELLANOX, "soft"),
            fails(MELLANOX, "hard"),
            fails(MELLANOX, "hidden"),
            fails(SOFT_IWARP, "soft"),
        ];
        std::fs::remove_dir_all(&sysfs).unwrap();
        assert_eq!(found, [true, false, false, false]);
    }
}
