//! Arguments of `raceline bench bed`.

use std::time::Duration;

use raceline_papers::bed::link::{LinkOptions, Shape};

use crate::cli::values::{self, OutputFormat};

/// Arguments of `bench bed`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
The bed is two network namespaces, raceline-target (192.0.2.1) and raceline-host (192.0.2.2), joined by a veth pair \
with several queues. With GRO on, each queue has a NAPI id, as a queue of a network device has. It takes root.

Example: raceline bench bed up
         ip netns exec raceline-target raceline export ram:1G -l 192.0.2.1:4420 --insecure --allow-any-host")]
pub(crate) struct BedArgs {
    #[command(subcommand)]
    pub(crate) action: BedAction,

    /// For people or for programs
    #[arg(short = 'o', long, value_enum, value_name = "FORMAT", default_value_t, global = true)]
    pub(crate) output: OutputFormat,
}

/// What to do.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum BedAction {
    /// Make the bed
    Up(UpArgs),
    /// Remove the bed, or what is left of one
    Down,
    /// Show the settings of both ends of the link, as the kernel has them now
    Show,
}

/// The settings of the link.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct UpArgs {
    /// Queues in each direction
    #[arg(long, value_name = "N", default_value_t = 4)]
    queues: u32,

    /// Largest packet, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,

    /// Receivers do not join packets (GRO off): then the queues have no NAPI ids
    #[arg(long)]
    no_gro: bool,

    /// Packets are larger than the MTU until they arrive: such packets bypass GRO
    #[arg(long)]
    tso: bool,

    /// Mbit/s that the link carries in each direction [default: no limit]
    #[arg(long, value_name = "MBIT")]
    rate: Option<u64>,

    /// How long a packet takes in each direction; needs sch_netem [default: no delay]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    delay: Option<Duration>,

    /// Percentage of packets that are lost; needs sch_netem [default: none]
    #[arg(long, value_name = "PERCENT")]
    loss: Option<f64>,
}

impl UpArgs {
    /// The same as options of a link.
    pub(crate) fn options(&self) -> LinkOptions {
        LinkOptions {
            queues: self.queues,
            mtu: self.mtu,
            gro: !self.no_gro,
            tso: self.tso,
            shape: Shape {
                bits_per_s: self.rate.map(|rate| rate.saturating_mul(1_000_000)),
                delay: self.delay,
                loss_percent: self.loss,
            },
        }
    }
}
