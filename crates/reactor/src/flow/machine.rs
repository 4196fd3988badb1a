//! What caches the processor has: read from sysfs, or said by an operator.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::OnceLock;

/// The caches of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The second-level cache, in bytes.
    pub l2_bytes: usize,
    /// The last-level cache that the core shares with others, in bytes.
    pub llc_bytes: usize,
    /// How many CPUs share it.
    pub llc_cores: usize,
}

/// Where the kernel describes the CPUs.
const CPUS: &str = "/sys/devices/system/cpu";

static CURRENT: OnceLock<Machine> = OnceLock::new();

impl Machine {
    /// The machine of the lab pages, assumed where sysfs says nothing.
    pub const ASSUMED: Machine = Machine { l2_bytes: 1 << 20, llc_bytes: 32 << 20, llc_cores: 8 };

    /// The machine of this process: what [`Self::set_current`] was given, else what sysfs says of the
    /// first CPU.
    #[must_use]
    pub fn current() -> Machine {
        *CURRENT.get_or_init(|| {
            let machine = Machine::read(Path::new(CPUS));
            tracing::info!("caches: {machine}, as {CPUS} says");
            machine
        })
    }

    /// Sets the caches that this process takes for its own. To be called before the first
    /// [`Self::current`]; true if it was.
    pub fn set_current(self) -> bool {
        tracing::info!("caches: {self}, as was said");
        CURRENT.set(self).is_ok()
    }

    /// What a folder as `/sys/devices/system/cpu` says; [`Self::ASSUMED`] where it says nothing.
    #[must_use]
    pub fn read(cpus: &Path) -> Machine {
        let mut machine = Machine::ASSUMED;
        let mut last_level = 0;
        for index in 0..16 {
            let folder = cpus.join(format!("cpu0/cache/index{index}"));
            let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
            let Ok(level) = text("level").trim().parse::<u32>() else { continue };
            let Some(bytes) = parse_size(text("size").trim()) else { continue };
            if text("type").trim() == "Instruction" || bytes == 0 {
                continue;
            }
            if level == 2 {
                machine.l2_bytes = bytes;
            }
            if level >= 2 && level > last_level {
                last_level = level;
                machine.llc_bytes = bytes;
                machine.llc_cores = count_cpus(text("shared_cpu_list").trim()).max(1);
            }
        }
        machine
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { l2_bytes, llc_bytes, llc_cores } = self;
        write!(f, "l2={}k,llc={}k,cores={llc_cores}", l2_bytes >> 10, llc_bytes >> 10)
    }
}

impl FromStr for Machine {
    type Err = String;

    /// As `l2=1m,llc=32m,cores=8`; what is not named stays as it is on this machine.
    fn from_str(text: &str) -> Result<Machine, String> {
        let mut machine = Machine::read(Path::new(CPUS));
        for part in text.split(',') {
            let wrong = || {
                format!("`{part}` is none of l2=SIZE, llc=SIZE, cores=COUNT (for example llc=32m)")
            };
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            match key {
                "l2" => machine.l2_bytes = positive_size(value).ok_or_else(wrong)?,
                "llc" => machine.llc_bytes = positive_size(value).ok_or_else(wrong)?,
                "cores" => {
                    let cores = value.parse().ok().filter(|cores| *cores > 0);
                    machine.llc_cores = cores.ok_or_else(wrong)?;
                }
                _ => return Err(wrong()),
            }
        }
        Ok(machine)
    }
}

fn positive_size(text: &str) -> Option<usize> {
    parse_size(text).filter(|bytes| *bytes > 0)
}

/// `512K`, `32m` or plain bytes.
fn parse_size(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

/// How many CPUs a list such as `0-3,8` names.
fn count_cpus(list: &str) -> usize {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        Some((last + 1).saturating_sub(first))
    };
    list.split(',').filter_map(count).sum()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn cache(root: &Path, index: usize, files: [(&str, &str); 4]) {
        let folder = root.join(format!("cpu0/cache/index{index}"));
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn caches_are_read_as_the_kernel_shows_them() {
        let root = std::env::temp_dir().join(format!("raceline-caches-{}", std::process::id()));
        let of = |level, kind, size, list| {
            [("level", level), ("type", kind), ("size", size), ("shared_cpu_list", list)]
        };
        cache(&root, 0, of("1", "Data", "48K", "0,16"));
        cache(&root, 1, of("1", "Instruction", "32K", "0,16"));
        cache(&root, 2, of("2", "Unified", "2048K", "0,16"));
        cache(&root, 3, of("3", "Unified", "107520K", "0-55,112-167"));
        let machine = Machine::read(&root);
        fs::remove_dir_all(&root).unwrap();
        let expected = Machine { l2_bytes: 2 << 20, llc_bytes: 105 << 20, llc_cores: 112 };
        assert_eq!(machine, expected);
        assert_eq!(Machine::read(&root), Machine::ASSUMED, "a kernel that says nothing");
    }

    #[test]
    fn an_operator_says_what_sysfs_does_not() {
        let machine: Machine = "l2=512k,llc=64m,cores=4".parse().unwrap();
        assert_eq!(machine, Machine { l2_bytes: 512 << 10, llc_bytes: 64 << 20, llc_cores: 4 });
        assert_eq!(machine.to_string(), "l2=512k,llc=65536k,cores=4");
        assert_eq!(machine.to_string().parse::<Machine>(), Ok(machine));
        for wrong in ["", "llc", "llc=0", "l3=1m", "cores=0", "l2=1x", "l2=99999999999999g"] {
            let error = wrong.parse::<Machine>().unwrap_err();
            assert!(error.contains("llc=32m"), "{error}");
        }
    }
}
