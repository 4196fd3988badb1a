//! How the link of a test bed is set, and what was read back.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// The most queues of a link. The kernel allows more; no bed needs them.
pub const QUEUES_MAX: u32 = 64;
/// The range of MTUs.
pub const MTU_RANGE: std::ops::RangeInclusive<u32> = 1280..=65_000;

/// The wished settings of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkOptions {
    /// Queues in each direction.
    pub queues: u32,
    /// Largest packet in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Whether received packets are joined (GRO). Only with it the queues are polled as a network device's are, and
    /// have NAPI ids.
    pub gro: bool,
    /// Whether packets are larger than the MTU until they arrive (TSO, GSO). Such packets bypass GRO.
    pub tso: bool,
    /// The limits of the link, in both directions.
    pub shape: Shape,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self { queues: 4, mtu: 1500, gro: true, tso: false, shape: Shape::default() }
    }
}

impl LinkOptions {
    /// Says what is wrong with the settings.
    ///
    /// # Errors
    /// When a value is out of its range; the text says which range that is.
    pub fn check(&self) -> Result<(), String> {
        let Self { queues, mtu, shape, .. } = self;
        if !(1..=QUEUES_MAX).contains(queues) {
            return Err(format!("{queues} queues: use 1 to {QUEUES_MAX}"));
        }
        if !MTU_RANGE.contains(mtu) {
            let (least, most) = (MTU_RANGE.start(), MTU_RANGE.end());
            return Err(format!("an MTU of {mtu}: use {least} to {most}"));
        }
        shape.check()
    }
}

/// The limits of a link. None of them is a link that is as fast as the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shape {
    /// Bits per second.
    pub bits_per_s: Option<u64>,
    /// How long each packet takes, in each direction.
    pub delay: Option<Duration>,
    /// Packets that are lost, in percent.
    pub loss_percent: Option<f64>,
}

impl Shape {
    /// Whether the link has no limit.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Says what is wrong with the limits.
    ///
    /// # Errors
    /// When a value is out of its range; the text says which range that is.
    pub fn check(&self) -> Result<(), String> {
        if let Some(rate) = self.bits_per_s
            && !(1_000_000..=1_000_000_000_000).contains(&rate)
        {
            return Err(format!("a rate of {rate} bit/s: use 1 Mbit/s to 1 Tbit/s"));
        }
        if let Some(delay) = self.delay
            && delay > Duration::from_secs(1)
        {
            return Err(format!("a delay of {delay:?}: use 1 s at most"));
        }
        if let Some(loss) = self.loss_percent
            && !(0.0..=50.0).contains(&loss)
        {
            return Err(format!("a loss of {loss} %: use 0 to 50 %"));
        }
        Ok(())
    }

    /// Whether a token bucket is enough for it; else it takes `netem`.
    pub(super) fn is_rate_only(&self) -> bool {
        self.delay.is_none() && self.loss_percent.is_none()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut limits = Vec::new();
        if let Some(rate) = self.bits_per_s {
            limits.push(format!("{} Mbit/s", rate / 1_000_000));
        }
        if let Some(delay) = self.delay {
            limits.push(format!("{delay:?} each way"));
        }
        if let Some(loss) = self.loss_percent {
            limits.push(format!("{loss} % lost"));
        }
        if limits.is_empty() {
            limits.push("no limit".to_owned());
        }
        f.write_str(&limits.join(", "))
    }
}

/// The settings of one end of a link, as read back from the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LinkState {
    /// Name of the link in its namespace.
    pub name: String,
    /// Bytes.
    pub mtu: u32,
    /// Receive queues.
    pub rx_queues: u32,
    /// Send queues.
    pub tx_queues: u32,
    /// Whether received packets are joined.
    pub gro: bool,
    /// Whether packets are larger than the MTU until they arrive.
    pub tso: bool,
    /// The queues' NAPI ids, ascending with the queue; none if GRO is off.
    pub napi_ids: Vec<u32>,
    /// Send queues that the CPUs use (XPS): a mask for each queue, as the kernel writes it.
    pub xps_cpus: Vec<String>,
    /// The queueing discipline, e.g. `noqueue`, `tbf`.
    pub qdisc: String,
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = |on| if on { "on" } else { "off" };
        write!(
            f,
            "{}: MTU {}, {} rx and {} tx queues, GRO {}, TSO {}, {} NAPI ids, qdisc {}",
            self.name,
            self.mtu,
            self.rx_queues,
            self.tx_queues,
            on(self.gro),
            on(self.tso),
            self.napi_ids.len(),
            self.qdisc
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_say_the_range() {
        let wrong = |change: fn(&mut LinkOptions)| {
            let mut options = LinkOptions::default();
            change(&mut options);
            options.check().unwrap_err()
        };
        assert!(LinkOptions::default().check().is_ok());
        assert!(wrong(|options| options.queues = 0).contains("1 to 64"));
        assert!(wrong(|options| options.mtu = 100).contains("1280"));
        assert!(wrong(|options| options.shape.bits_per_s = Some(1)).contains("1 Mbit/s"));
        assert!(wrong(|options| options.shape.loss_percent = Some(f64::NAN)).contains("50 %"));
        assert!(wrong(|options| options.shape.delay = Some(Duration::MAX)).contains("1 s"));
    }

    #[test]
    fn limits_are_shown() {
        assert_eq!(Shape::default().to_string(), "no limit");
        let shape = Shape {
            bits_per_s: Some(1_000_000_000),
            delay: Some(Duration::from_micros(250)),
            loss_percent: Some(0.5),
        };
        assert_eq!(shape.to_string(), "1000 Mbit/s, 250µs each way, 0.5 % lost");
    }
}
