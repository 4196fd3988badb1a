//! Local NVMe drives: a directory with the form of sysfs, whose disks are loop devices.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use raceline_bdev::Drives;
use raceline_control::manager::ManagerConfig;
use serde_json::{Value, json};
use support::{Kept, eventually, ok};
use tempfile::TempDir;

const NQN: &str = "nqn.2026-01.io.raceline:drives";
const ADDRESS: &str = "0000:00:04.0";
const UUID: &str = "6ba7b810-9dad-41d1-80b4-00c04fd430c8";

/// A loop device on a file of 8 MiB, detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None`, with a message, if loop devices are not permitted.
    fn new(file: &Path) -> Option<Self> {
        File::create(file).unwrap().set_len(8 << 20).unwrap();
        let ended = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        if !ended.status.success() {
            eprintln!("SKIPPED: no loop device: {}", String::from_utf8_lossy(&ended.stderr));
            return None;
        }
        Some(Self(String::from_utf8(ended.stdout).unwrap().trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let ended = Command::new("losetup").arg("--detach").arg(&self.0).status();
        if !ended.is_ok_and(|status| status.success()) {
            eprintln!("{} stays", self.0.display());
        }
    }
}

/// A machine with one drive of two namespaces, 1 and 12.
struct Machine {
    root: TempDir,
    disks: [Loop; 2],
}

impl Machine {
    fn new() -> Option<Self> {
        let root = tempfile::tempdir().unwrap();
        let disks = [Loop::new(&root.path().join("one"))?, Loop::new(&root.path().join("two"))?];
        let machine = Self { root, disks };
        let driver = machine.root.path().join("sys/bus/pci/drivers/nvme");
        fs::create_dir_all(&driver).unwrap();
        fs::create_dir_all(machine.device()).unwrap();
        fs::create_dir_all(machine.root.path().join("dev")).unwrap();
        symlink(driver, machine.device().join("driver")).unwrap();
        machine.write(&machine.device(), &[("class", "0x010802"), ("vendor", "0x1b36")]);
        machine.write(
            &machine.controller(),
            &[("state", "live"), ("model", "Emulated"), ("serial", "S1"), ("cntlid", "3")],
        );
        for (name, nsid, disk) in
            [("nvme7n1", "1", &machine.disks[0]), ("nvme7n2", "12", &machine.disks[1])]
        {
            machine.write(&machine.controller().join(name), &[("nsid", nsid)]);
            let block = machine.root.path().join("sys/class/block").join(name);
            machine.write(&block, &[("size", "16384"), ("queue/logical_block_size", "512")]);
            symlink(&disk.0, machine.root.path().join("dev").join(name)).unwrap();
        }
        machine.write(&machine.controller().join("nvme7n2"), &[("uuid", UUID)]);
        Some(machine)
    }

    fn device(&self) -> PathBuf {
        self.root.path().join("sys/bus/pci/devices").join(ADDRESS)
    }

    fn controller(&self) -> PathBuf {
        self.device().join("nvme/nvme7")
    }

    fn write(&self, directory: &Path, attributes: &[(&str, &str)]) {
        for (name, text) in attributes {
            let path = directory.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    fn start(&self, dir: &Path) -> Kept {
        let path = |name: &str| self.root.path().join(name);
        let drives = Drives::new(path("sys"), path("dev"));
        Kept::start_with(dir, ManagerConfig { drives, ..ManagerConfig::default() })
    }

    /// A daemon that has the drive attached and exports its namespaces.
    fn start_exporting(&self, dir: &Path) -> Kept {
        let daemon = self.start(dir);
        ok(daemon.call("bdev_nvme_attach_controller", attach(ADDRESS)));
        export(&daemon);
        daemon
    }

    /// Opens the second namespace exclusively, as another program would.
    fn hold_second(&self) -> File {
        let options = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).to_owned();
        options.open(&self.disks[1].0).unwrap()
    }

    fn unplug(&self, part: &Path) {
        fs::rename(part, self.root.path().join("away")).unwrap();
    }

    fn plug(&self, part: &Path) {
        fs::rename(self.root.path().join("away"), part).unwrap();
    }
}

fn attach(traddr: &str) -> Value {
    json!({ "name": "Nvme0", "trtype": "PCIe", "traddr": traddr })
}

fn bdevs(daemon: &Kept) -> Vec<String> {
    let list = ok(daemon.call("bdev_get_bdevs", Value::Null));
    list.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap().to_owned()).collect()
}

fn controllers(daemon: &Kept) -> Vec<Value> {
    ok(daemon.call("bdev_nvme_get_controllers", Value::Null)).as_array().unwrap().clone()
}

/// The state of the controller and its number.
fn controller(daemon: &Kept) -> (String, u64) {
    let listed = &controllers(daemon)[0]["ctrlrs"][0];
    (listed["state"].as_str().unwrap().to_owned(), listed["cntlid"].as_u64().unwrap())
}

fn export(daemon: &Kept) {
    ok(daemon.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    ok(daemon.call("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true })));
    for name in ["Nvme0n1", "Nvme0n12"] {
        let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": name } });
        ok(daemon.call("nvmf_subsystem_add_ns", namespace));
    }
}

/// Why namespaces of the subsystem are missing.
fn missing(daemon: &Kept) -> Vec<Option<String>> {
    let listed = ok(daemon.call("nvmf_get_subsystems", json!({ "nqn": NQN })));
    let namespaces = listed[0]["namespaces"].as_array().unwrap().clone();
    namespaces.iter().map(|it| it["missing"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_drive_is_attached_described_and_detached() {
    let Some(machine) = Machine::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let daemon = machine.start(dir.path());
    let names = ok(daemon.call("bdev_nvme_attach_controller", attach("00:04.0")));
    assert_eq!(names, json!(["Nvme0n1", "Nvme0n12"]));
    let listed = ok(daemon.call("bdev_get_bdevs", json!({ "name": "Nvme0n12" })))[0].take();
    assert_eq!(
        (&listed["uuid"], &listed["num_blocks"], &listed["block_size"], &listed["product_name"]),
        (&json!(UUID), &json!(16384), &json!(512), &json!("NVMe disk"))
    );
    let shown = &listed["driver_specific"]["nvme"][0];
    assert_eq!(shown["pci_address"], ADDRESS);
    assert_eq!(shown["trid"], json!({ "trtype": "PCIe", "traddr": ADDRESS }));
    assert_eq!((&shown["ns_data"]["id"], &shown["io_path"]), (&json!(12), &json!("block")));
    assert!(shown["device"].as_str().unwrap().ends_with("dev/nvme7n2"), "{shown}");
    // The drive itself cannot be asked here: these are the kernel's data.
    assert_eq!(shown["ctrlr_data"]["model_number"], "Emulated");
    assert_eq!(shown["ctrlr_data"]["vendor_id"], "0x1b36");
    assert_eq!(controller(&daemon), ("enabled".to_owned(), 3));
    for method in ["bdev_nvme_reset_controller", "bdev_nvme_get_controller_health_info"] {
        let error = daemon.call(method, json!({ "name": "Nvme0" })).unwrap_err();
        assert!(error.contains("dev/nvme7: No such file"), "{error}");
    }

    let other = json!({ "name": "other", "trtype": "pcie", "traddr": "0000.00.04.0" });
    let error = daemon.call("bdev_nvme_attach_controller", other).unwrap_err();
    assert!(error.contains("is attached already, as `Nvme0`"), "{error}");
    let error = daemon.call("bdev_nvme_attach_controller", attach(ADDRESS)).unwrap_err();
    assert!(error.contains("already exists with the specified network path"), "{error}");
    let elsewhere = json!({ "name": "Nvme0", "trtype": "PCIe", "traddr": "0000:00:05.0" });
    daemon.call("bdev_nvme_detach_controller", elsewhere).unwrap_err();
    ok(daemon.call("bdev_nvme_detach_controller", attach("0000.00.04.0")));
    assert_eq!((bdevs(&daemon).len(), controllers(&daemon).len()), (0, 0));
    // It is free again, and is attached a second time.
    ok(daemon.call("bdev_nvme_attach_controller", attach(ADDRESS)));
    daemon.kill();
}

#[test]
fn what_cannot_be_attached_is_refused_whole() {
    let Some(machine) = Machine::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let daemon = machine.start(dir.path());
    let with = |more: Value| {
        let mut params = attach(ADDRESS);
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    for (params, text) in [
        (attach("4"), "`4` is no PCI address"),
        (attach("0000:00:05.0"), "there is no PCI device at 0000:00:05.0"),
        (with(json!({ "trsvcid": "4420" })), "trsvcid"),
        (with(json!({ "hdgst": true })), "hdgst"),
        (with(json!({ "serial": "S2" })), "has the serial number `S1`, and not `S2`"),
        (with(json!({ "max_bdevs": 0 })), "max_bdevs"),
        (with(json!({ "io_path": "other" })), "Invalid parameters"),
        (with(json!({ "io_path": "passthrough" })), "the kernel has no generic device for it"),
    ] {
        let error = daemon.call("bdev_nvme_attach_controller", params).unwrap_err();
        assert!(error.contains(text), "{error}");
    }
    // While another program has one of its namespaces, none is taken.
    let holder = machine.hold_second();
    let error = daemon.call("bdev_nvme_attach_controller", attach(ADDRESS)).unwrap_err();
    assert!(error.contains("namespace 12 of the drive at 0000:00:04.0"), "{error}");
    assert!(error.contains("is in use"), "{error}");
    assert_eq!((bdevs(&daemon).len(), controllers(&daemon).len()), (0, 0));
    drop(holder);
    ok(daemon.call("bdev_nvme_attach_controller", with(json!({ "max_bdevs": 1 }))));
    assert_eq!(bdevs(&daemon), ["Nvme0n1"]);
    daemon.kill();
}

#[test]
fn namespaces_and_drives_come_and_go() {
    let Some(machine) = Machine::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let daemon = machine.start_exporting(dir.path());
    let before = daemon.picture();
    let second = machine.controller().join("nvme7n2");
    machine.unplug(&second);
    eventually("namespace 12 is gone", || bdevs(&daemon) == ["Nvme0n1"]);
    let reasons = missing(&daemon);
    assert_eq!(reasons[0], None);
    assert!(reasons[1].as_ref().unwrap().contains("its device has gone"), "{reasons:?}");
    // The drive is back, but another program has opened its namespace first.
    let holder = machine.hold_second();
    machine.plug(&second);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(bdevs(&daemon), ["Nvme0n1"]);
    drop(holder);
    // It becomes a device first, and then a namespace again.
    eventually("namespace 12 is back", || missing(&daemon) == [None, None]);
    assert_eq!(bdevs(&daemon), ["Nvme0n1", "Nvme0n12"]);

    let device = machine.device();
    machine.unplug(&device);
    eventually("the drive is gone", || bdevs(&daemon).is_empty());
    assert_eq!(controller(&daemon).0, "failed");
    assert!(missing(&daemon).iter().all(Option::is_some));
    machine.plug(&device);
    eventually("the drive is back", || missing(&daemon) == [None, None]);
    assert_eq!(controller(&daemon).0, "enabled");
    // During a reset its disks stay.
    machine.write(&machine.controller(), &[("state", "resetting")]);
    eventually("it resets", || controller(&daemon).0 == "resetting");
    assert_eq!(bdevs(&daemon).len(), 2);
    machine.write(&machine.controller(), &[("state", "live")]);
    eventually("it is live", || controller(&daemon).0 == "enabled");
    assert_eq!(daemon.picture(), before);

    // Another program has formatted it: writes to the old device would go to the wrong places.
    let events = || ok(daemon.call("notify_get_notifications", json!({ "id": 0 })));
    let made = || {
        let events = events();
        let of = |event: &&Value| event["type"] == "bdev_register" && event["ctx"] == "Nvme0n1";
        events.as_array().unwrap().iter().filter(of).count()
    };
    let times = made();
    let block = machine.root.path().join("sys/class/block/nvme7n1");
    machine.write(&block, &[("queue/logical_block_size", "4096")]);
    eventually("it is opened again", || made() == times + 1 && missing(&daemon) == [None, None]);
    daemon.kill();
}

#[test]
fn a_start_does_without_a_drive_and_takes_no_other_for_it() {
    let Some(machine) = Machine::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let daemon = machine.start_exporting(dir.path());
    let before = daemon.picture();
    daemon.kill();
    let daemon = machine.start(dir.path());
    assert_eq!(daemon.picture(), before);
    daemon.kill();

    let device = machine.device();
    machine.unplug(&device);
    let daemon = machine.start(dir.path());
    assert_eq!(daemon.picture()["config"], before["config"]);
    let reasons = missing(&daemon);
    let text = "no PCI device at 0000:00:04.0";
    assert!(reasons.iter().all(|reason| reason.as_ref().unwrap().contains(text)), "{reasons:?}");
    machine.plug(&device);
    machine.write(&machine.controller(), &[("serial", "S2")]);
    let why = || {
        let listed = ok(daemon.call("bdev_get_missing", Value::Null));
        listed[0]["reason"].as_str().unwrap_or_default().to_owned()
    };
    eventually("another drive is refused", || why().contains("another drive is in that place"));
    assert_eq!(bdevs(&daemon).len(), 0);
    machine.write(&machine.controller(), &[("serial", "S1")]);
    eventually("the drive is back", || missing(&daemon) == [None, None]);
    assert_eq!(daemon.picture(), before);
    daemon.kill();
}

fn set_hotplug(daemon: &Kept, enable: bool) {
    let params = json!({ "enable": enable, "period_us": 20_000 });
    ok(daemon.call("bdev_nvme_set_hotplug", params));
}

/// Waits for as long as it would take to take a plugged-in drive.
fn let_time_pass() {
    std::thread::sleep(Duration::from_millis(3500));
}

fn names(daemon: &Kept) -> Vec<String> {
    let name = |it: &Value| it["name"].as_str().unwrap().to_owned();
    controllers(daemon).iter().map(name).collect()
}

fn hotplug_entry(daemon: &Kept) -> Value {
    let config = ok(daemon.call("framework_get_config", json!({ "name": "bdev" })));
    let of = |call: &&Value| call["method"] == "bdev_nvme_set_hotplug";
    config.as_array().unwrap().iter().find(of).unwrap()["params"].clone()
}

/// A machine to which the drive is plugged in only after a daemon watches.
fn unplugged() -> Option<Machine> {
    let machine = Machine::new()?;
    machine.unplug(&machine.device());
    Some(machine)
}

#[test]
fn a_drive_that_is_plugged_in_is_attached_and_comes_back_as_the_same() {
    let Some(machine) = unplugged() else { return };
    let (dir, device) = (tempfile::tempdir().unwrap(), machine.device());
    let daemon = machine.start(dir.path());
    set_hotplug(&daemon, true);
    assert_eq!(hotplug_entry(&daemon), json!({ "enable": true, "period_us": 20_000 }));
    machine.plug(&device);
    eventually("it is attached", || bdevs(&daemon) == ["HotInNvme0n1", "HotInNvme0n12"]);
    assert_eq!(names(&daemon), ["HotInNvme0"]);
    let entry = json!({ "enable": true, "period_us": 20_000, "drives": ["S1"] });
    // What is there is noted down a moment later.
    eventually("it is noted down", || hotplug_entry(&daemon) == entry);
    ok(daemon.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    ok(daemon.call("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true })));
    let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": "HotInNvme0n12" } });
    ok(daemon.call("nvmf_subsystem_add_ns", namespace));
    let before = daemon.picture();

    machine.unplug(&device);
    eventually("the controller is gone", || names(&daemon).is_empty());
    assert!(bdevs(&daemon).is_empty());
    let reasons = missing(&daemon);
    assert!(reasons[0].as_ref().unwrap().contains("its device has gone"), "{reasons:?}");
    machine.plug(&device);
    eventually("it is back", || missing(&daemon) == [None]);
    assert_eq!(daemon.picture(), before);

    // A number is given only once.
    let other = json!({ "enable": true, "drives": ["S0", "S1"] });
    let error = daemon.call("bdev_nvme_set_hotplug", other).unwrap_err();
    assert!(error.contains("drives have numbers already, in this order: S1"), "{error}");

    // After turning off, no new drive is taken, and a taken drive is still followed.
    set_hotplug(&daemon, false);
    machine.unplug(&device);
    eventually("the controller is gone again", || names(&daemon).is_empty());
    daemon.kill();
    let daemon = machine.start(dir.path());
    assert!(missing(&daemon)[0].as_ref().unwrap().contains("`S1` is not plugged in"));
    machine.plug(&device);
    eventually("it is back after a restart", || missing(&daemon) == [None]);
    assert_eq!(names(&daemon), ["HotInNvme0"]);
    daemon.kill();
}

#[test]
fn a_drive_that_is_there_already_is_never_taken() {
    let Some(machine) = Machine::new() else { return };
    let (dir, device) = (tempfile::tempdir().unwrap(), machine.device());
    let daemon = machine.start(dir.path());
    set_hotplug(&daemon, true);
    let_time_pass();
    machine.unplug(&device);
    std::thread::sleep(Duration::from_millis(200));
    machine.plug(&device);
    let_time_pass();
    assert!(names(&daemon).is_empty());
    // A client may attach it, and detach it: it is left alone again.
    ok(daemon.call("bdev_nvme_attach_controller", attach(ADDRESS)));
    ok(daemon.call("bdev_nvme_detach_controller", json!({ "name": "Nvme0" })));
    let_time_pass();
    assert!(names(&daemon).is_empty());
    daemon.kill();
}

#[test]
fn a_drive_in_use_or_with_partitions_is_not_taken() {
    let Some(machine) = unplugged() else { return };
    let (dir, device) = (tempfile::tempdir().unwrap(), machine.device());
    let daemon = machine.start(dir.path());
    set_hotplug(&daemon, true);
    let holder = machine.hold_second();
    machine.plug(&device);
    let_time_pass();
    assert!(names(&daemon).is_empty());
    drop(holder);
    let_time_pass();
    assert!(names(&daemon).is_empty(), "it is tried once");
    // No device that was opened meanwhile is still held.
    let options = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).to_owned();
    drop(options.open(&machine.disks[0].0).unwrap());

    let replug = || {
        machine.unplug(&device);
        std::thread::sleep(Duration::from_millis(200));
        machine.plug(&device);
    };
    let part = machine.root.path().join("sys/class/block/nvme7n1/nvme7n1p1");
    machine.write(&part, &[("partition", "1")]);
    replug();
    let_time_pass();
    assert!(names(&daemon).is_empty());
    fs::remove_dir_all(&part).unwrap();
    replug();
    eventually("it is attached", || names(&daemon) == ["HotInNvme0"]);

    // A drive that a client has detached is left alone, also after a restart.
    ok(daemon.call("bdev_nvme_detach_controller", json!({ "name": "HotInNvme0" })));
    assert_eq!(hotplug_entry(&daemon)["detached"], json!(["S1"]));
    replug();
    let_time_pass();
    assert!(names(&daemon).is_empty());
    daemon.kill();
    machine.unplug(&device);
    let daemon = machine.start(dir.path());
    machine.plug(&device);
    let_time_pass();
    assert!(names(&daemon).is_empty());
    ok(daemon.call("bdev_nvme_attach_controller", attach(ADDRESS)));
    daemon.kill();
}
