//! Discovery of work queues, against directories that look like the driver's.

use std::fs;
use std::path::Path;

use raceline_dsa::DsaEngine;
use raceline_dsa::descriptor::DeviceOperation;
use raceline_dsa::discover::{DiscoverError, Mode, Roots, discover, nearest, node_of_core};
use tempfile::TempDir;

struct Machine {
    directory: TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { directory: TempDir::new().expect("a directory") };
        fs::create_dir_all(machine.bus()).expect("the bus");
        fs::create_dir_all(machine.roots().dev.join("dsa")).expect("the devices");
        machine
    }

    fn roots(&self) -> Roots {
        let path = self.directory.path();
        Roots { sysfs: path.join("sys"), dev: path.join("dev") }
    }

    fn bus(&self) -> std::path::PathBuf {
        self.roots().sysfs.join("bus/dsa/devices")
    }

    fn write(directory: &Path, attributes: &[(&str, &str)]) {
        fs::create_dir_all(directory).expect("a directory");
        for (name, value) in attributes {
            fs::write(directory.join(name), format!("{value}\n")).expect("an attribute");
        }
    }

    fn device(&self, name: &str, node: &str) {
        let attributes = [
            ("state", "enabled"),
            ("pasid_enabled", "1"),
            ("numa_node", node),
            ("max_batch_size", "1024"),
            ("max_transfer_size", "2147483648"),
            ("gen_cap", "0x40915f0107"),
        ];
        Self::write(&self.bus().join(name), &attributes);
    }

    fn queue(&self, name: &str, mode: &str) {
        let attributes = [
            ("state", "enabled"),
            ("type", "user"),
            ("mode", mode),
            ("size", "16"),
            ("threshold", if mode == "shared" { "15" } else { "0" }),
            ("block_on_fault", "0"),
            ("max_batch_size", "32"),
            ("max_transfer_size", "2097152"),
        ];
        Self::write(&self.bus().join(name), &attributes);
        fs::write(self.roots().dev.join("dsa").join(name), "").expect("a device");
    }

    fn set(&self, name: &str, attribute: &str, value: &str) {
        Self::write(&self.bus().join(name), &[(attribute, value)]);
    }

    fn refusal(&self) -> String {
        discover(&self.roots()).expect_err("nothing is usable").to_string()
    }
}

#[test]
fn what_is_configured_is_found() {
    let machine = Machine::new();
    machine.device("dsa0", "0");
    machine.queue("wq0.0", "shared");
    machine.queue("wq0.10", "dedicated");
    machine.queue("wq0.9", "dedicated");
    machine.set("wq0.9", "block_on_fault", "1");
    machine.set("dsa0", "gen_cap", "0x40915f0103");
    // An analytics accelerator (IAX) sits on the same bus; its queues are not ours.
    machine.device("iax1", "0");
    machine.queue("wq1.0", "shared");
    // Neither a device nor a queue.
    Machine::write(&machine.bus().join("engine0.0"), &[("group_id", "0")]);

    let queues = discover(&machine.roots()).expect("queues");
    let names: Vec<_> = queues.iter().map(|queue| queue.name.as_str()).collect();
    assert_eq!(names, ["wq0.0", "wq0.9", "wq0.10"]);
    let shared = &queues[0];
    // User space may fill a shared queue up to the threshold.
    assert_eq!((shared.mode, shared.depth), (Mode::Shared, 15));
    assert_eq!((shared.batch_max, shared.transfer_bytes_max), (32, 2_097_152));
    assert_eq!(shared.path, machine.roots().dev.join("dsa/wq0.0"));
    assert_eq!(shared.numa_node, Some(0));
    assert!(!shared.cache_control && !shared.block_on_fault && shared.missing.is_empty());
    assert_eq!((queues[1].mode, queues[1].depth), (Mode::Dedicated, 16));
    assert!(queues[1].block_on_fault);
    let engine = DsaEngine::discover(machine.roots(), 2).expect("an engine");
    assert_eq!(engine.work_queues(), queues);
}

/// GENCAP bit 2 is Cache Control Support (Memory) (9.2.2).
#[test]
fn capabilities_are_read() {
    let machine = Machine::new();
    machine.device("dsa0", "-1");
    machine.queue("wq0.0", "dedicated");
    // Operations 3 (copy) and 16 (CRC) only, as a kernel since 6.0 shows them.
    let words = "00000000,00000000,00000000,00000000,00000000,00000000,00000000,00010008";
    machine.set("wq0.0", "op_config", words);
    let queue = discover(&machine.roots()).expect("a queue").remove(0);
    assert!(queue.cache_control);
    assert_eq!(queue.numa_node, None);
    let has = |operation| !queue.missing.contains(&operation);
    let kept: Vec<_> = DeviceOperation::ALL.into_iter().filter(|&code| has(code)).collect();
    assert_eq!(kept, [DeviceOperation::MemoryMove, DeviceOperation::CrcGeneration]);
    assert_eq!(queue.batch_max, 0, "batches are an operation, too");
    // As an older kernel shows the device's.
    fs::remove_file(machine.bus().join("wq0.0/op_config")).expect("it is there");
    machine.set("dsa0", "op_cap", "0x303ff 0x0 0x0 0x0");
    let queue = discover(&machine.roots()).expect("a queue").remove(0);
    assert_eq!((queue.missing.as_slice(), queue.batch_max), (&[][..], 32));
    // Rubbish is no reason to do without.
    machine.set("dsa0", "op_cap", "?");
    machine.set("dsa0", "gen_cap", "?");
    let queue = discover(&machine.roots()).expect("a queue").remove(0);
    assert!(queue.missing.is_empty() && !queue.cache_control);
}

#[test]
fn the_nearest_queue_comes_first() {
    let machine = Machine::new();
    for (device, node) in [("0", "0"), ("2", "1"), ("4", "-1")] {
        machine.device(&format!("dsa{device}"), node);
        machine.queue(&format!("wq{device}.0"), "shared");
    }
    let cpu = machine.roots().sysfs.join("devices/system/cpu/cpu3");
    fs::create_dir_all(cpu.join("node1")).expect("a core");
    fs::create_dir_all(cpu.join("cache")).expect("a core");
    assert_eq!(node_of_core(&machine.roots(), 3), Some(1));
    assert_eq!(node_of_core(&machine.roots(), 4), None);
    let queues = discover(&machine.roots()).expect("queues");
    let order = |node| {
        let names = nearest(&queues, node).into_iter();
        names.map(|index| queues[index].name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(order(Some(1)), ["wq2.0", "wq4.0", "wq0.0"]);
    assert_eq!(order(Some(0)), ["wq0.0", "wq4.0", "wq2.0"]);
    assert_eq!(order(None), ["wq0.0", "wq2.0", "wq4.0"]);
}

#[test]
fn nothing_there_says_what_it_takes() {
    let machine = Machine::new();
    let text = machine.refusal();
    assert!(text.contains("no device dsaN") && text.contains("sm_on"), "{text}");
    fs::remove_dir(machine.bus()).expect("it is there");
    let error = discover(&machine.roots()).expect_err("no bus");
    assert!(matches!(error, DiscoverError::NoDriver(_)));
    let text = error.to_string();
    assert!(text.contains("CONFIG_INTEL_IDXD") && text.contains("modprobe idxd"), "{text}");
}

#[test]
fn what_is_wrong_is_said_with_what_to_do() {
    let wrong: [(&str, &str, &str, &str); 9] = [
        ("dsa0", "state", "disabled", "accel-config enable-device dsa0"),
        ("dsa0", "pasid_enabled", "0", "intel_iommu=on,sm_on"),
        ("wq0.0", "state", "disabled", "accel-config enable-wq dsa0/wq0.0"),
        ("wq0.0", "type", "kernel", "--type=user"),
        ("wq0.0", "mode", "other", "its mode is other"),
        ("wq0.0", "size", "0", "--wq-size=16"),
        ("wq0.0", "size", "many", "its size is no number: \"many\""),
        ("wq0.0", "max_transfer_size", "?", "max_transfer_size is no number"),
        ("wq0.0", "size", "-1", "its size is no number"),
    ];
    for (name, attribute, value, expected) in wrong {
        let machine = Machine::new();
        machine.device("dsa0", "0");
        machine.queue("wq0.0", "shared");
        machine.set(name, attribute, value);
        if value == "?" {
            machine.set("dsa0", attribute, value);
        }
        let text = machine.refusal();
        assert!(text.contains(expected) && text.contains(name), "{attribute}={value}: {text}");
        assert!(text.contains("accel-config config-wq dsa0/wq0.0 --group-id=0"), "{text}");
    }
    let machine = Machine::new();
    machine.device("dsa0", "0");
    assert!(machine.refusal().contains("dsa0: it has no work queues"));
    machine.queue("wq0.0", "shared");
    fs::remove_file(machine.roots().dev.join("dsa/wq0.0")).expect("it is there");
    assert!(machine.refusal().contains("dsa/wq0.0 does not exist"));
}

/// One bad queue does not hide a good one.
#[test]
fn the_usable_ones_are_used() {
    let machine = Machine::new();
    machine.device("dsa0", "0");
    machine.queue("wq0.0", "shared");
    machine.queue("wq0.1", "dedicated");
    machine.set("wq0.0", "state", "disabled");
    machine.device("dsa2", "1");
    machine.set("dsa2", "state", "disabled");
    let queues = discover(&machine.roots()).expect("a queue");
    assert_eq!(queues.len(), 1);
    assert_eq!(queues[0].name, "wq0.1");
}
