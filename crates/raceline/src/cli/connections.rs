//! Arguments about the connections of a target, for every verb that is one.

use std::time::Duration;

use raceline_target::{ConnectionOptions, PlacementPolicy};

use super::values::{self, PlacementChoice, ReuseportChoice, TargetProfile, ZeroCopyChoice};

/// Which core serves a connection, how it is polled, and how its bytes leave.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ConnectionArgs {
    /// Which core gets a new connection [default: balanced]
    #[arg(long, value_enum, value_name = "HOW")]
    pub(crate) placement: Option<PlacementChoice>,

    /// Listen on every core, and let the kernel choose the listener of a new connection (SO_REUSEPORT with
    /// a BPF program); needs cores to run on
    #[arg(long, value_enum, value_name = "HOW", conflicts_with = "placement", requires = "cores")]
    pub(crate) reuseport: Option<ReuseportChoice>,

    /// How long to look for packets in the network device's queue before waiting for an interrupt
    #[arg(long, value_name = "MICROSECONDS", value_parser = values::busy_poll)]
    pub(crate) busy_poll: Option<Duration>,

    /// Priority of what is sent, for the kernel's queueing disciplines (SO_PRIORITY); above 6 it needs
    /// CAP_NET_ADMIN [default: 0]
    #[arg(long, value_name = "N", value_parser = values::sock_priority)]
    pub(crate) sock_priority: Option<u32>,

    /// Which connections send large reads from memory without a copy (io_uring only) [default: off]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub(crate) zero_copy: Option<ZeroCopyChoice>,

    /// Fewest bytes of a read that --zero-copy is for [default: 16k]
    #[arg(long, value_name = "SIZE", value_parser = values::zero_copy_bytes)]
    pub(crate) zero_copy_bytes: Option<u32>,

    /// Tell the kernel with each send whether more bytes follow (MSG_MORE, MSG_EOR)
    #[arg(long)]
    pub(crate) send_flags: bool,

    /// Move I/O queues from a core that is busy for 85 % of the time to one that has time, one a second; with
    /// balanced placement only
    #[arg(long)]
    pub(crate) balance: bool,

    /// How long devices may take for the commands of a lost connection: what hosts that lose a path are told to
    /// wait (CQT) [default: 5]
    #[arg(long, value_name = "TIME", value_parser = values::quiesce_time)]
    pub(crate) quiesce_time: Option<Duration>,

    /// Connections follow the queues of the network device, as `raceline adq` sets them up: placement by
    /// queue, priority 1 and 50 us of busy polling, where no option says otherwise
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) profile: Option<TargetProfile>,
}

impl ConnectionArgs {
    /// The options that were given.
    pub(crate) fn options(&self) -> ConnectionOptions {
        let by_cpu = self.reuseport.map(|ReuseportChoice::Cpu| PlacementPolicy::Listener);
        ConnectionOptions {
            placement: by_cpu.or(self.placement.map(Into::into)),
            busy_poll: self.busy_poll,
            socket_priority: self.sock_priority,
            zero_copy: self.zero_copy.map(Into::into),
            zero_copy_bytes: self.zero_copy_bytes,
            send_flags: self.send_flags,
            quiesce_time: self.quiesce_time,
            follows_device_queues: self.profile.is_some(),
            balances: self.balance,
        }
    }
}
