//! Arguments of `raceline perf` about queues: their maps, and how commands are gathered on them.

use std::time::Duration;

use raceline_host::gather::{DEFAULT_BYTES, DEFAULT_DELAY, DEFAULT_REQUESTS, MAX_DELAY};
use raceline_host::{HostPlacement, I10Config};

use super::values;

/// Options for the queues of commands, and for the times at which commands are sent.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct QueueArgs {
    /// More I/O queues, for commands other than reads; those of -i are for reads then
    #[arg(short = 'W', long = "nr-write-queues", value_name = "QUEUES", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=1024))]
    #[arg(help_heading = "Connection")]
    pub(crate) write: u16,

    /// More I/O queues, for the commands of --hipri
    #[arg(short = 'P', long = "nr-poll-queues", value_name = "QUEUES", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u16).range(0..=1024))]
    #[arg(help_heading = "Connection")]
    pub(crate) poll: u16,

    /// Commands take the poll queues, and cores poll: no thread is woken for a completion
    #[arg(long)]
    #[arg(help_heading = "Connection")]
    pub(crate) hipri: bool,

    /// Print which queue each core uses for what, as the controller grants them, and run nothing
    #[arg(long)]
    #[arg(help_heading = "Connection")]
    pub(crate) show_maps: bool,

    /// Let commands wait for others, so that one send carries several; a limit on commands, bytes and time
    ///
    /// A command leaves when REQUESTS commands wait, or BYTES of data, or when the first has waited for
    /// MICROSECONDS; at once when nothing is in flight on its queue. Omitted parts have their defaults:
    /// 16,64k,50.
    #[arg(long, value_name = "REQUESTS[,BYTES[,MICROSECONDS]]", value_parser = i10)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "")]
    #[arg(help_heading = "Connection")]
    pub(crate) i10: Option<I10Config>,

    /// Which connections a core keeps: each queue connects again, from another port, until it has one
    /// of these, up to 16 times
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    #[arg(help_heading = "Connection")]
    pub(crate) placement: HostPlacementChoice,

    /// Tell the kernel with each send whether more bytes follow (MSG_MORE, MSG_EOR)
    #[arg(long)]
    #[arg(help_heading = "Connection")]
    pub(crate) send_flags: bool,
}

/// How many queues a remote controller is asked for, and of how many entries: options of `connect` and `connect-all`, and
/// members of files of connections. 0 is the same as none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct QueueNumbers {
    /// I/O queues, one for each core that serves the disk; without --cores, as many threads that float
    #[arg(short = 'i', long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    #[arg(help_heading = "Connection")]
    pub(crate) nr_io_queues: Option<u16>,

    /// More I/O queues, for commands other than reads; those of -i are for reads then
    #[arg(short = 'W', long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    #[arg(help_heading = "Connection")]
    pub(crate) nr_write_queues: Option<u16>,

    /// More I/O queues, one for each of the first N cores: they take its reads and writes, and it polls for their ends
    #[arg(short = 'P', long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    #[arg(help_heading = "Connection")]
    pub(crate) nr_poll_queues: Option<u16>,

    /// Entries of each I/O queue, 2 to 4096 [default: 128]
    #[arg(short = 'Q', long, value_name = "N", value_parser = queue_size)]
    #[arg(help_heading = "Connection")]
    pub(crate) queue_size: Option<u16>,
}

impl QueueNumbers {
    /// Those that were given and are not 0, with their names.
    pub(crate) fn given(&self) -> impl Iterator<Item = (&'static str, u16)> {
        let all = [
            ("nr_io_queues", self.nr_io_queues),
            ("nr_write_queues", self.nr_write_queues),
            ("nr_poll_queues", self.nr_poll_queues),
            ("queue_size", self.queue_size),
        ];
        all.into_iter().filter_map(|(name, number)| Some((name, number.filter(|it| *it > 0)?)))
    }

    /// The number of this name, unless it is 0.
    pub(crate) fn number(&self, name: &str) -> Option<u16> {
        self.given().find(|(known, _)| *known == name).map(|(_, number)| number)
    }
}

fn queue_size(text: &str) -> Result<u16, String> {
    let entries = text.parse().ok().filter(|entries| *entries == 0 || (2..=4096).contains(entries));
    entries.ok_or_else(|| "a queue has 2 to 4096 entries".to_owned())
}

/// `--placement` of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HostPlacementChoice {
    /// All
    #[default]
    Any,
    /// Those of the receive queue, by its NAPI id, that the core's first connection has
    Napi,
    /// Those whose packets the core's own CPU processes
    Cpu,
}

impl From<HostPlacementChoice> for HostPlacement {
    fn from(choice: HostPlacementChoice) -> Self {
        match choice {
            HostPlacementChoice::Any => Self::Any,
            HostPlacementChoice::Napi => Self::Napi,
            HostPlacementChoice::Cpu => Self::Cpu,
        }
    }
}

impl QueueArgs {
    /// Whether I/O queues are divided by purpose.
    pub(crate) fn are_mapped(&self) -> bool {
        self.write > 0 || self.poll > 0
    }
}

/// `16,64k,50`; parts may be omitted from the end on.
pub(crate) fn i10(text: &str) -> Result<I10Config, String> {
    let wrong = |what: &str, part: &str| {
        format!("`{part}` is no {what}: REQUESTS,BYTES,MICROSECONDS, e.g. 16,64k,50")
    };
    let mut parts = text.split(',').map(str::trim);
    let mut next = || parts.next().filter(|part| !part.is_empty());
    let requests = match next() {
        None => DEFAULT_REQUESTS,
        Some(part) => part.parse().ok().filter(|&n| n > 0).ok_or_else(|| wrong("number", part))?,
    };
    let bytes = match next() {
        None => DEFAULT_BYTES,
        Some(part) => values::io_size(part)?,
    };
    let delay = match next() {
        None => DEFAULT_DELAY,
        Some(part) => {
            let us = part.parse().map_err(|_| wrong("number of microseconds", part))?;
            Duration::from_micros(us)
        }
    };
    if let Some(part) = parts.next() {
        return Err(wrong("part of it", part));
    }
    if delay > MAX_DELAY {
        return Err(format!("a command may wait {} us at most", MAX_DELAY.as_micros()));
    }
    Ok(I10Config { requests, bytes, delay })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_i10_may_be_left_out() {
        let us = Duration::from_micros;
        let config = |requests, bytes, delay| Ok(I10Config { requests, bytes, delay: us(delay) });
        assert_eq!(i10(""), config(16, 65536, 50));
        assert_eq!(i10("8"), config(8, 65536, 50));
        assert_eq!(i10("8,32k"), config(8, 32768, 50));
        assert_eq!(i10("8,32k,100"), config(8, 32768, 100));
        assert_eq!(i10("8,,100"), config(8, 65536, 100));
        let form = "REQUESTS,BYTES,MICROSECONDS, e.g. 16,64k,50";
        assert_eq!(i10("0"), Err(format!("`0` is no number: {form}")));
        assert_eq!(i10("1,4k,x"), Err(format!("`x` is no number of microseconds: {form}")));
        assert_eq!(i10("1,4k,5,6"), Err(format!("`6` is no part of it: {form}")));
        assert_eq!(i10("1,4k,100001"), Err("a command may wait 100000 us at most".to_owned()));
    }
}
