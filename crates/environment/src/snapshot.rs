//! Everything that is read of a machine, together.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::cpu::Cpu;
use crate::drives::{self, Drive};
use crate::idle::Idle;
use crate::interface::{self, Interface};
use crate::kernel::Kernel;
use crate::memory::Memory;
use crate::network::Network;
use crate::now::Now;
use crate::platform::Platform;
use crate::programs;
use crate::reading::Reading;
use crate::services::Services;
use crate::system::System;

/// The version of the layout of [`Environment`] in JSON.
pub const SCHEMA: u32 = 1;

/// A machine and its system, as a measurement found them.
///
/// In JSON, a value that could not be read is `{"unread": "the reason"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// The version of this layout, [`SCHEMA`].
    pub schema: u32,
    /// When it was read, in seconds since 1970, UTC.
    pub read_unix_s: u64,
    /// Raceline's version.
    pub raceline: String,
    /// A number that stands for the host's name: the same for records of one host.
    pub host: Reading<String>,
    /// What the system runs on.
    pub platform: Platform,
    /// The processor.
    pub cpu: Cpu,
    /// How deep it sleeps.
    pub idle: Idle,
    /// The memory.
    pub memory: Memory,
    /// The kernel.
    pub kernel: Kernel,
    /// The network stack.
    pub network: Network,
    /// The interface that was asked for.
    pub interface: Reading<Interface>,
    /// The block devices.
    pub drives: Reading<Vec<Drive>>,
    /// Services.
    pub services: Services,
    /// Versions of programs.
    pub programs: BTreeMap<String, Reading<String>>,
    /// What changes by itself.
    pub now: Now,
}

impl Environment {
    /// Reads this machine, with an interface if one is named. It changes nothing, and needs no privileges:
    /// a value that only root may read has that as the reason why it is missing.
    #[must_use]
    pub fn read(interface: Option<&str>) -> Self {
        Self::read_of(&System::here(), interface)
    }

    /// Reads a machine.
    #[must_use]
    pub fn read_of(system: &System, asked: Option<&str>) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            schema: SCHEMA,
            read_unix_s: since.as_secs(),
            raceline: env!("CARGO_PKG_VERSION").to_owned(),
            host: system.text("/proc/sys/kernel/hostname").map(|name| digest(&name)),
            platform: Platform::read(system),
            cpu: Cpu::read(system),
            idle: Idle::read(system),
            memory: Memory::read(system),
            kernel: Kernel::read(system),
            network: Network::read(system),
            interface: match asked {
                Some(name) => Interface::read(system, name),
                None => interface::names(system).then(|names| {
                    let names = names.join(", ");
                    Reading::unread(format!("no interface was asked for; there are: {names}"))
                }),
            },
            drives: drives::read(system),
            services: Services::read(system),
            programs: programs::read(system),
            now: Now::read(system),
        }
    }
}

/// FNV-1a with 64 bits, so that a record does not tell the host's name.
fn digest(name: &str) -> String {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", name.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
}
