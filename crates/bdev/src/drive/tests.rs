//! Drives in a directory that looks like sysfs.

use std::os::unix::fs::symlink;

use tempfile::TempDir;

use super::*;

const ADDRESS: &str = "0000:00:04.0";

/// A machine with one PCI device.
struct Machine {
    root: TempDir,
    device: PathBuf,
}

impl Machine {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/bus/pci/devices").join(ADDRESS);
        let machine = Self { root, device };
        machine.write("", &[("class", "0x010802"), ("vendor", "0x1b36")]);
        machine
    }

    /// The same with the kernel's driver and a controller.
    fn with_controller() -> Self {
        let machine = Self::new();
        machine.bind("nvme");
        machine.write(
            "nvme/nvme3",
            &[
                ("state", "live"),
                ("model", "QEMU NVMe Ctrl   "),
                ("serial", "one"),
                ("firmware_rev", "7.2.22"),
                ("subsysnqn", "nqn.2019-08.org.qemu:one"),
                ("cntlid", "0"),
            ],
        );
        machine
    }

    fn write(&self, directory: &str, attributes: &[(&str, &str)]) {
        let directory = self.device.join(directory);
        for (name, text) in attributes {
            let path = directory.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    fn bind(&self, driver: &str) {
        let driver = self.root.path().join("sys/bus/pci/drivers").join(driver);
        fs::create_dir_all(&driver).unwrap();
        symlink(driver, self.device.join("driver")).unwrap();
    }

    /// A namespace below the controller, and the disk to which its name leads.
    fn namespace(&self, name: &str, disk: &str, nsid: &str, sectors: &str) {
        self.write(&format!("nvme/nvme3/{name}"), &[("nsid", nsid)]);
        let head = self.root.path().join("sys/class/block").join(disk);
        fs::create_dir_all(head.join("queue")).unwrap();
        fs::write(head.join("size"), sectors).unwrap();
        fs::write(head.join("queue/logical_block_size"), "4096\n").unwrap();
    }

    fn drives(&self) -> Drives {
        Drives::new(self.root.path().join("sys"), self.root.path().join("dev"))
    }

    fn find(&self) -> Result<Drive, DriveError> {
        self.drives().find(ADDRESS.parse().unwrap())
    }

    fn refusal(&self) -> (i32, String) {
        let error = self.find().unwrap_err();
        (error.errno(), error.to_string())
    }
}

#[test]
fn a_drive_and_its_namespaces_are_found() {
    let machine = Machine::with_controller();
    machine.namespace("nvme3n1", "nvme3n1", "1", "2048");
    machine.namespace("nvme3n2", "nvme3n2", "12", "4096");
    let uuid = "6ba7b810-9dad-41d1-80b4-00c04fd430c8";
    machine.write("nvme/nvme3/nvme3n2", &[("uuid", uuid)]);
    for other in ["nvme3n1p1", "ng3n1", "hwmon4", "power"] {
        machine.write(&format!("nvme/nvme3/{other}"), &[("nsid", "7")]);
    }
    let drive = machine.find().unwrap();
    assert_eq!((drive.controller.as_str(), drive.state.as_str()), ("nvme3", "live"));
    assert_eq!((drive.model.as_str(), drive.serial.as_str()), ("QEMU NVMe Ctrl", "one"));
    assert_eq!((drive.vendor, drive.firmware.as_str()), (0x1b36, "7.2.22"));
    let numbers: Vec<u32> = drive.namespaces.iter().map(|namespace| namespace.nsid).collect();
    assert_eq!(numbers, [1, 12]);
    let [one, two] = &drive.namespaces[..] else { unreachable!() };
    assert_eq!((one.block.as_deref(), one.sectors, one.uuid), (Some("nvme3n1"), 2048, None));
    assert_eq!((two.block_size, two.uuid), (4096, Some(uuid.parse().unwrap())));
    assert_ne!(one.instance, two.instance);
    let path = machine.drives().path(one, IoPath::Block).unwrap();
    assert!(path.ends_with("dev/nvme3n1"), "{}", path.display());
}

/// With several controllers in a subsystem, what lies below one of them is a hidden path.
#[test]
fn a_path_leads_to_the_disk_of_its_subsystem() {
    let machine = Machine::with_controller();
    machine.namespace("nvme0c3n5", "nvme0n5", "2", "2048");
    let drive = machine.find().unwrap();
    assert_eq!(drive.namespaces[0].block.as_deref(), Some("nvme0n5"));
    assert_eq!(drive.namespaces[0].nsid, 2);
}

#[test]
fn drives_are_listed_and_what_they_hold_is_known() {
    let machine = Machine::with_controller();
    machine.namespace("nvme3n1", "nvme3n1", "1", "2048");
    // A device of another kind is none; a drive of no driver is one.
    let devices = machine.device.parent().unwrap();
    for (address, class) in [("0000:00:05.0", "0x020000"), ("0000:00:02.0", NVME_CLASS)] {
        fs::create_dir_all(devices.join(address)).unwrap();
        fs::write(devices.join(address).join("class"), class).unwrap();
    }
    let addresses = ["0000:00:02.0", ADDRESS].map(|address| address.parse().unwrap());
    assert_eq!(machine.drives().addresses(), addresses);

    let udev = machine.root.path().join("udev");
    let contents = || {
        let drives = machine.drives().with_udev(&udev);
        drives.contents(&machine.find().unwrap())
    };
    let disk = machine.root.path().join("sys/class/block/nvme3n1");
    fs::write(disk.join("dev"), "259:4\n").unwrap();
    assert_eq!(contents(), None);
    fs::create_dir_all(&udev).unwrap();
    for (known, found) in [
        ("E:ID_MODEL=x\nE:ID_SERIAL=y\n", None),
        ("E:ID_MODEL=x\nE:ID_FS_TYPE=LVM2_member\n", Some("udev has found LVM2_member on nvme3n1")),
        ("E:ID_PART_TABLE_TYPE=gpt\n", Some("udev has found gpt on nvme3n1")),
    ] {
        fs::write(udev.join("b259:4"), known).unwrap();
        assert_eq!(contents().as_deref(), found);
    }
    fs::remove_file(udev.join("b259:4")).unwrap();
    fs::create_dir_all(disk.join("nvme3n1p2")).unwrap();
    fs::write(disk.join("nvme3n1p2/partition"), "2\n").unwrap();
    assert_eq!(contents().as_deref(), Some("nvme3n1 has a partition, nvme3n1p2"));
}

#[test]
fn names_of_disks() {
    for (name, disk) in [
        ("nvme0n1", Some("nvme0n1")),
        ("nvme10c2n33", Some("nvme10n33")),
        ("nvme0", None),
        ("nvme0n", None),
        ("nvmen1", None),
        ("nvme0cn1", None),
        ("nvme0n1p1", None),
        ("ng0n1", None),
        ("nvme-subsys0", None),
    ] {
        assert_eq!(disk_of(name).as_deref(), disk, "{name}");
    }
}

#[test]
fn what_is_not_there_is_named() {
    let machine = Machine::new();
    let gone = "0000:00:05.0".parse().unwrap();
    let error = machine.drives().find(gone).unwrap_err();
    assert_eq!(error.errno(), libc::ENODEV);
    assert!(error.to_string().contains("no PCI device at 0000:00:05.0: lspci -D"), "{error}");

    let (errno, text) = machine.refusal();
    assert_eq!(errno, libc::EBUSY);
    assert!(text.contains("bound to no driver, not to the kernel's nvme driver"), "{text}");
    assert!(text.contains("here: echo nvme > "), "{text}");

    machine.bind("nvme");
    assert!(machine.refusal().1.contains("dmesg"), "{:?}", machine.refusal());
    fs::create_dir(machine.device.join("nvme")).unwrap();
    assert_eq!(machine.refusal().0, libc::ENODEV);

    machine.write("", &[("class", "0x020000")]);
    assert!(machine.refusal().1.contains("is no NVMe drive (class 0x020000)"));
}

#[test]
fn a_drive_of_another_driver_is_refused_with_the_way_back() {
    let machine = Machine::new();
    machine.bind("vfio-pci");
    let (errno, text) = machine.refusal();
    assert_eq!(errno, libc::EBUSY);
    let unbind = "echo 0000:00:04.0 > /sys/bus/pci/drivers/vfio-pci/unbind; echo nvme > ";
    assert!(text.contains("is bound to vfio-pci,") && text.contains(unbind), "{text}");
}

#[test]
fn a_namespace_that_cannot_be_used_is_named() {
    let machine = Machine::with_controller();
    machine.namespace("nvme3n1", "nvme3n1", "1", "0");
    machine.namespace("nvme3n2", "nvme3n2", "2", "2048");
    let drive = machine.find().unwrap();
    let identity = Identity::from_seed(b"test");
    let open = |nsid| match machine.drives().open(&drive, nsid, &identity, IoPath::Block) {
        Ok(_) => panic!("namespace {nsid} was opened"),
        Err(error) => error.to_string(),
    };
    assert!(open(1).contains("has no block device that can be used"), "{}", open(1));
    assert!(open(3).contains("has no namespace 3"), "{}", open(3));
    // There is no node for it.
    assert!(open(2).starts_with("namespace 2 of the drive at 0000:00:04.0: `"), "{}", open(2));
    assert!(open(2).contains("there is no such device"), "{}", open(2));
}

#[test]
fn admin_commands_name_the_node() {
    let machine = Machine::with_controller();
    let drive = machine.find().unwrap();
    let error = machine.drives().health(&drive).unwrap_err();
    assert_eq!(error.errno(), libc::ENOENT);
    let text = error.to_string();
    assert!(
        text.contains("cannot read its health through") && text.contains("dev/nvme3"),
        "{text}"
    );
}
