//! How deep the processor sleeps, and how long it takes to wake up.

use serde::{Deserialize, Serialize};

use crate::reading::Reading;
use crate::system::System;

const IDLE: &str = "/sys/devices/system/cpu/cpuidle";
const STATES: &str = "/sys/devices/system/cpu/cpu0/cpuidle";
const HALT_POLL: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
const REQUEST: &str = "/dev/cpu_dma_latency";
/// What /dev/cpu_dma_latency has while no program asks for less: 2000 s.
const NO_REQUEST_US: i32 = 2_000_000_000;

/// The sleep of idle CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    /// The driver that puts CPUs to sleep, e.g. `intel_idle`.
    pub driver: Reading<String>,
    /// What chooses how deep, e.g. `menu`.
    pub governor: Reading<String>,
    /// The states of the first CPU, from shallow to deep.
    pub states: Reading<Vec<State>>,
    /// The longest wake-up that programs allow, in microseconds; `null` while none asks for anything.
    pub allowed_latency_us: Reading<Option<u32>>,
    /// How long an idle guest polls before it halts, in nanoseconds.
    pub halt_poll_ns: Reading<u64>,
}

/// A state of sleep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Its name, e.g. `C6`.
    pub name: String,
    /// How long the CPU takes to wake up, as the driver says, in microseconds.
    pub latency_us: u64,
    /// Whether it is turned off.
    pub disabled: bool,
}

impl Idle {
    /// Reads it.
    #[must_use]
    pub fn read(system: &System) -> Self {
        Self {
            driver: system.text(&format!("{IDLE}/current_driver")),
            governor: system
                .text(&format!("{IDLE}/current_governor"))
                .or(|| system.text(&format!("{IDLE}/current_governor_ro"))),
            states: states(system),
            allowed_latency_us: allowed(system),
            halt_poll_ns: system.number(HALT_POLL),
        }
    }

    /// The deepest state that CPUs go to: enabled, and within the latency that programs allow.
    #[must_use]
    pub fn deepest(&self) -> Option<&State> {
        let limit = self.allowed_latency_us.get().flatten().map_or(u64::MAX, u64::from);
        let used = |state: &&State| !state.disabled && state.latency_us <= limit;
        self.states.value()?.iter().filter(used).max_by_key(|state| state.latency_us)
    }
}

fn states(system: &System) -> Reading<Vec<State>> {
    system.numbered(STATES, "state").then(|numbers| {
        let mut states = Vec::new();
        for number in numbers {
            let path = |name: &str| format!("{STATES}/state{number}/{name}");
            let state = system.text(&path("name")).then(|name| {
                system.number(&path("latency")).then(|latency_us| {
                    let disabled = system.flag(&path("disable"));
                    disabled.map(|disabled| State { name, latency_us, disabled })
                })
            });
            match state {
                Reading::Read(state) => states.push(state),
                Reading::Unread { unread } => return Reading::unread(unread),
            }
        }
        Reading::Read(states)
    })
}

/// The file has one number of 32 bits, in the byte order of the machine. Reading it asks for nothing.
fn allowed(system: &System) -> Reading<Option<u32>> {
    system.bytes(REQUEST).then(|bytes| match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(bytes) => {
            let value = i32::from_ne_bytes(bytes);
            Reading::Read(u32::try_from(value).ok().filter(|_| value < NO_REQUEST_US))
        }
        Err(_) => Reading::unread(format!("{REQUEST} has {} bytes and not 4", bytes.len())),
    })
}
