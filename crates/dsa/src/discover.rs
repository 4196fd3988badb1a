//! Finds the DSA work queues that this process may use, as the idxd driver shows them in sysfs.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::descriptor::DeviceOperation;

/// Where the kernel shows its devices; other places for tests.
#[derive(Clone, Debug)]
pub struct Roots {
    /// `/sys`
    pub sysfs: PathBuf,
    /// `/dev`
    pub dev: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sysfs: PathBuf::from("/sys"), dev: PathBuf::from("/dev") }
    }
}

/// How descriptors reach a work queue (DSA specification 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One process has it, and counts what is in it: a descriptor beyond the queue's size is lost without an
    /// answer (3.3.2).
    Dedicated,
    /// Many processes submit, and each is told whether its descriptor was taken (3.3.1).
    Shared,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dedicated => "dedicated",
            Self::Shared => "shared",
        })
    }
}

/// A work queue that is enabled for user space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkQueue {
    /// As the driver names it: `wq0.1`.
    pub name: String,
    /// Its character device: `/dev/dsa/wq0.1`.
    pub path: PathBuf,
    /// Dedicated or shared.
    pub mode: Mode,
    /// How many descriptors it holds; for a shared one, how many through this portal (threshold).
    pub depth: usize,
    /// The most descriptors of a batch; fewer than two where there are no batches.
    pub batch_max: usize,
    /// The most bytes of one descriptor.
    pub transfer_bytes_max: u64,
    /// Descriptors may ask the device to wait for pages.
    pub block_on_fault: bool,
    /// Descriptors may direct their writes to the cache.
    pub cache_control: bool,
    /// The node whose memory and cores are near, if the machine has nodes.
    pub numa_node: Option<u32>,
    /// Operations that the queue does not execute.
    pub missing: Vec<DeviceOperation>,
}

/// Why no work queue can be used, with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoverError {
    /// There is no DSA bus in sysfs.
    NoDriver(PathBuf),
    /// The bus has no DSA device.
    NoDevice(PathBuf),
    /// There are work queues or devices, and none can be used: each one's reason.
    NoneUsable(Vec<Refusal>),
}

/// Why one device or work queue cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `dsa0` or `dsa0/wq0.1`.
    pub name: String,
    /// What is wrong, and what to do.
    pub reason: String,
}

impl fmt::Display for DiscoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver(path) => write!(
                f,
                "no DSA: {} does not exist; it takes a CPU with Intel DSA, a kernel with \
                 CONFIG_INTEL_IDXD and CONFIG_INTEL_IDXD_SVM, and the module (modprobe idxd)",
                path.display()
            ),
            Self::NoDevice(path) => write!(
                f,
                "no DSA: the idxd driver shows no device dsaN in {}; is DSA enabled in the \
                 firmware, and the IOMMU on (intel_iommu=on,sm_on)?",
                path.display()
            ),
            Self::NoneUsable(refusals) => {
                f.write_str("no DSA work queue can be used:")?;
                for refusal in refusals {
                    write!(f, " {}: {};", refusal.name, refusal.reason)?;
                }
                f.write_str(
                    " a usable one is made by: accel-config config-wq dsa0/wq0.0 --group-id=0 \
                     --mode=shared --wq-size=16 --threshold=15 --type=user --driver-name=user \
                     --name=raceline --priority=10; accel-config config-engine dsa0/engine0.0 \
                     --group-id=0; accel-config enable-device dsa0; accel-config enable-wq \
                     dsa0/wq0.0",
                )
            }
        }
    }
}

impl std::error::Error for DiscoverError {}

/// All work queues that can be used, in the order of their names.
///
/// # Errors
///
/// When there is none: what is missing, per device and queue.
pub fn discover(roots: &Roots) -> Result<Vec<WorkQueue>, DiscoverError> {
    let bus = roots.sysfs.join("bus/dsa/devices");
    let mut names: Vec<String> = match fs::read_dir(&bus) {
        Ok(entries) => {
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
        }
        Err(_) => return Err(DiscoverError::NoDriver(bus)),
    };
    names.sort_by_key(|name| numbers(name));
    let devices: Vec<Device> = names.iter().filter_map(|name| Device::read(&bus, name)).collect();
    if devices.is_empty() {
        return Err(DiscoverError::NoDevice(bus));
    }
    let mut usable = Vec::new();
    let mut refusals = Vec::new();
    for device in &devices {
        if let Err(reason) = device.check() {
            refusals.push(Refusal { name: device.name.clone(), reason });
            continue;
        }
        let prefix = format!("wq{}.", device.number);
        let queues: Vec<_> = names.iter().filter(|name| name.starts_with(&prefix)).collect();
        if queues.is_empty() {
            let reason = "it has no work queues".to_owned();
            refusals.push(Refusal { name: device.name.clone(), reason });
        }
        for name in queues {
            match work_queue(roots, &bus, device, name) {
                Ok(queue) => usable.push(queue),
                Err(reason) => {
                    refusals.push(Refusal { name: format!("{}/{name}", device.name), reason });
                }
            }
        }
    }
    if usable.is_empty() { Err(DiscoverError::NoneUsable(refusals)) } else { Ok(usable) }
}

/// The places of the queues in the order in which a core on `node` should try them: near ones
/// first.
#[must_use]
pub fn nearest(queues: &[WorkQueue], node: Option<u32>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..queues.len()).collect();
    order.sort_by_key(|index| match (queues[*index].numa_node, node) {
        (Some(queue), Some(node)) => u8::from(queue != node),
        _ => 0,
    });
    order
}

/// The NUMA node of a core, if the machine says.
#[must_use]
pub fn node_of_core(roots: &Roots, core: usize) -> Option<u32> {
    let path = roots.sysfs.join(format!("devices/system/cpu/cpu{core}"));
    fs::read_dir(path)
        .ok()?
        .find_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix("node")?.parse().ok())
}

/// A device `dsaN`.
struct Device {
    name: String,
    number: u32,
    path: PathBuf,
    general_capabilities: u64,
}

/// Cache Control Support (Memory) in GENCAP (DSA specification 9.2.2).
const GENCAP_CACHE_CONTROL: u64 = 1 << 2;

impl Device {
    fn read(bus: &Path, name: &str) -> Option<Self> {
        let number = name.strip_prefix("dsa")?.parse().ok()?;
        let path = bus.join(name);
        // On kernels that do not show it, no optional flags are used.
        let general_capabilities = attribute(&path, "gen_cap")
            .and_then(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok())
            .unwrap_or(0);
        Some(Self { name: name.to_owned(), number, path, general_capabilities })
    }

    fn check(&self) -> Result<(), String> {
        match attribute(&self.path, "state").as_deref() {
            Some("enabled") => {}
            state => {
                return Err(format!(
                    "its state is {}, not enabled (accel-config enable-device {})",
                    state.unwrap_or("unknown"),
                    self.name
                ));
            }
        }
        match attribute(&self.path, "pasid_enabled").as_deref() {
            Some("0") => Err("it has no user PASID; boot with intel_iommu=on,sm_on and a kernel \
                              with CONFIG_INTEL_IDXD_SVM"
                .to_owned()),
            _ => Ok(()),
        }
    }
}

/// The queue, or why it cannot be used.
fn work_queue(roots: &Roots, bus: &Path, device: &Device, name: &str) -> Result<WorkQueue, String> {
    let path = bus.join(name);
    let full_name = format!("{}/{name}", device.name);
    match attribute(&path, "state").as_deref() {
        Some("enabled") => {}
        state => {
            let state = state.unwrap_or("unknown");
            return Err(format!(
                "its state is {state}, not enabled (accel-config enable-wq {full_name})"
            ));
        }
    }
    match attribute(&path, "type").as_deref() {
        Some("user") => {}
        kind => {
            return Err(format!(
                "its type is {}, not user (accel-config config-wq {full_name} --type=user \
                 --driver-name=user)",
                kind.unwrap_or("unknown")
            ));
        }
    }
    let (mode, depth) = mode_and_depth(&path, &full_name)?;
    let cdev = roots.dev.join("dsa").join(name);
    if !cdev.exists() {
        return Err(format!("{} does not exist; is udev running?", cdev.display()));
    }
    let limit = |attribute| -> Result<u64, String> {
        number(&path, attribute).or_else(|_| number(&device.path, attribute))
    };
    let allowed = attribute(&path, "op_config")
        .or_else(|| attribute(&device.path, "op_cap"))
        .and_then(|text| OperationMask::from_str(&text).ok());
    let missing: Vec<_> = allowed.map_or_else(Vec::new, |mask| {
        DeviceOperation::ALL.into_iter().filter(|operation| !mask.has(*operation)).collect()
    });
    // A device without batches does not show it; a kernel that wants no batches takes the bit away.
    let batch_max = match limit("max_batch_size") {
        Ok(limit) if !missing.contains(&DeviceOperation::Batch) => limit,
        _ => 0,
    };
    Ok(WorkQueue {
        name: name.to_owned(),
        path: cdev,
        mode,
        depth,
        batch_max: usize::try_from(batch_max).unwrap_or(usize::MAX),
        transfer_bytes_max: limit("max_transfer_size")?,
        block_on_fault: attribute(&path, "block_on_fault").as_deref() == Some("1"),
        cache_control: device.general_capabilities & GENCAP_CACHE_CONTROL != 0,
        numa_node: attribute(&device.path, "numa_node").and_then(|text| text.parse().ok()),
        missing,
    })
}

/// How a queue is submitted to, and how many descriptors user space may have in it.
fn mode_and_depth(path: &Path, full_name: &str) -> Result<(Mode, usize), String> {
    let size: usize = number(path, "size")?;
    let (mode, depth) = match attribute(path, "mode").as_deref() {
        Some("dedicated") => (Mode::Dedicated, size),
        // The threshold limits user space; 0 where the attribute is missing.
        Some("shared") => match number(path, "threshold").unwrap_or(0) {
            0 => (Mode::Shared, size),
            threshold => (Mode::Shared, size.min(threshold)),
        },
        mode => return Err(format!("its mode is {}", mode.unwrap_or("unknown"))),
    };
    if depth == 0 {
        let how = format!("accel-config config-wq {full_name} --wq-size=16");
        return Err(format!("it holds no descriptors ({how})"));
    }
    Ok((mode, depth))
}

/// Bits of a work queue's `op_config` or a device's `op_cap`, one per operation code: 32-bit words
/// in hexadecimal, the highest first, separated by commas. Older kernels: four 64-bit words in
/// order, separated by spaces.
struct OperationMask([u32; 8]);

impl OperationMask {
    fn has(&self, operation: DeviceOperation) -> bool {
        let code = usize::from(operation as u8);
        self.0[code / 32] & (1 << (code % 32)) != 0
    }
}

impl FromStr for OperationMask {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut mask = [0; 8];
        if text.contains(' ') {
            for (word, pair) in text.split(' ').zip(mask.as_chunks_mut::<2>().0) {
                let [a, b, c, d, e, f, g, h] =
                    u64::from_str_radix(word.trim_start_matches("0x"), 16)?.to_le_bytes();
                *pair = [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])];
            }
        } else {
            for (word, slot) in text.rsplit(',').zip(&mut mask) {
                *slot = u32::from_str_radix(word, 16)?;
            }
        }
        Ok(Self(mask))
    }
}

/// An attribute's text without its line end.
fn attribute(directory: &Path, name: &str) -> Option<String> {
    fs::read_to_string(directory.join(name)).ok().map(|text| text.trim().to_owned())
}

/// An attribute's number.
fn number<T: FromStr>(directory: &Path, name: &str) -> Result<T, String> {
    let text = attribute(directory, name)
        .ok_or_else(|| format!("{} cannot be read", directory.join(name).display()))?;
    text.parse().map_err(|_| format!("its {name} is no number: {text:?}"))
}

/// The numbers in a name, so that wq0.10 sorts behind wq0.9.
fn numbers(name: &str) -> (String, Vec<u64>) {
    let word = name.chars().take_while(|c| !c.is_ascii_digit()).collect();
    let digits = name.split(|c: char| !c.is_ascii_digit());
    (word, digits.filter_map(|text| text.parse().ok()).collect())
}
