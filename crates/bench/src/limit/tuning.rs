//! The choices that decide the speed of the pair, and the values that `auto` tries for each.

use std::fmt;
use std::time::Duration;

use super::wire::{COMMAND_BYTES, Shape};
use super::{LimitConfig, Mode};

/// All choices for a window that need no new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How sockets with something to read are found.
    pub look: Look,
    /// The most bytes of one receive on the side that receives payload.
    pub receive_bytes: usize,
    /// The most PDUs in one send of the target.
    pub target_chunk: usize,
    /// The most PDUs in one send of the host.
    pub host_chunk: usize,
    /// The most bytes in one send.
    pub send_bytes: usize,
    /// Whether the host sends large payloads without a copy.
    pub by_reference: bool,
    /// How long the target leaves its sockets alone after a pass that received something, so that the next
    /// pass receives more.
    pub target_pause: Duration,
    /// The same for the host.
    pub host_pause: Duration,
    /// The parts of a payload that are read before it is sent.
    pub prefetch: Prefetch,
    /// Where received payload lands.
    pub landing: Landing,
    /// Whether payload is copied and digested before it is sent, and checked where it lands. Not an
    /// alternative for `auto`: the caller decides it.
    pub digest: bool,
    /// Whether all bytes go in records of TLS. Not an alternative for `auto`, either.
    pub tls: bool,
}

/// How sockets with something to read are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// By a receive on each socket.
    Scan,
    /// By epoll(7).
    Epoll,
}

/// The parts of a payload that are read before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// Nothing.
    Off,
    /// A byte of each page, which loads its address translation.
    Pages,
    /// A byte of each cache line.
    Lines,
    /// The first lines of each page, when the command comes, without waiting for them.
    Ahead,
}

/// Where received payload lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// Over the previous payload: caches stay warm.
    Reused,
    /// In memory for all commands in flight, in the order of arrival, including headers.
    PerCommand,
    /// In a buffer of its command: received there, or copied from staging memory if it came together with
    /// other PDUs; on the host only.
    Placed,
    /// The same, but copied into the region past the cache; on the target only.
    Streamed,
    /// Received directly in the region; on the target only.
    Direct,
}

/// No limit on the PDUs or bytes of a send.
pub const ALL: usize = usize::MAX;

/// Sizes of receives that `auto` tries; the first is for headers between payload received elsewhere.
const RECEIVE_BYTES: [usize; 7] =
    [1 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20];
/// PDUs per send that `auto` tries.
const CHUNKS: [usize; 5] = [ALL, 32, 16, 8, 4];
/// Bytes per send that `auto` tries.
const SEND_BYTES: [usize; 4] = [ALL, 256 << 10, 64 << 10, 32 << 10];
/// Smallest payload that may be sent without a copy.
const BY_REFERENCE_BYTES_MIN: usize = 64 << 10;
/// Pauses that `auto` tries, in microseconds, from this number of commands in flight on.
const PAUSES_US: [u64; 5] = [0, 1, 2, 4, 8];
const PAUSE_IN_FLIGHT_MIN: usize = 8;
/// Buffers for all commands in flight are tried up to this size.
pub(super) const PER_COMMAND_BYTES_MAX: usize = 256 << 20;

/// The choices that the user has fixed; `auto` tries the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fixed {
    /// The most bytes of one receive.
    pub receive_bytes: Option<usize>,
    /// The most PDUs in one send, on both sides.
    pub chunk: Option<usize>,
    /// The parts of a payload that are read before it is sent.
    pub prefetch: Option<Prefetch>,
    /// Each command in flight has a buffer of its own on the host, as in real programs, and the data of
    /// reads end in it. Otherwise all writes send one buffer, and the data of reads land as they come,
    /// including headers, possibly over earlier data: caches hold both.
    pub buffer_each: bool,
    /// The data of writes come through staging memory and are copied into the region, as in a target that
    /// must not leave half a block behind when a connection ends during a write; this shows the cost.
    /// Otherwise large writes may be received directly in the region.
    pub staged: bool,
    /// Each side works for this time on each command, like a side that looks it up and checks it; this
    /// shows the cost.
    pub work: Duration,
}

impl Tuning {
    /// The start of the search: usually good choices.
    pub(super) fn start(config: &LimitConfig) -> Self {
        let many = config.connections > 8;
        let epoll = many || (config.mode == Mode::Blocking && config.connections > 1);
        let chunk = config.fixed.chunk.unwrap_or(ALL);
        let r2t = Shape::of(config.write, config.io_bytes) == Shape::ReadyToTransfer;
        Self {
            look: if epoll { Look::Epoll } else { Look::Scan },
            receive_bytes: config.fixed.receive_bytes.unwrap_or(64 << 10),
            target_chunk: chunk,
            host_chunk: chunk,
            send_bytes: ALL,
            by_reference: false,
            target_pause: Duration::ZERO,
            host_pause: Duration::ZERO,
            prefetch: config.fixed.prefetch.unwrap_or(Prefetch::Off),
            landing: match config.fixed.buffer_each {
                _ if r2t && !config.fixed.staged => Landing::Direct,
                true if !config.write => Landing::Placed,
                _ => Landing::Reused,
            },
            digest: false,
            tls: false,
        }
    }

    /// Alternatives to these choices for a run, one list for each choice, most important first.
    pub(super) fn alternatives(self, config: &LimitConfig) -> Vec<Vec<Self>> {
        let shape = Shape::of(config.write, config.io_bytes);
        let in_flight = config.depth * config.payload_direction_bytes();
        let mut lists = Vec::new();
        if config.connections > 1 && config.mode == Mode::Polled {
            lists.push([Look::Scan, Look::Epoll].map(|look| Self { look, ..self }).to_vec());
        }
        if config.fixed.receive_bytes.is_none() {
            // Sizes beyond the bytes that can be in flight are all equivalent.
            let useful = RECEIVE_BYTES.iter().position(|&bytes| bytes >= in_flight);
            let elsewhere = shape == Shape::ReadyToTransfer || self.landing == Landing::Placed;
            let first = usize::from(!elsewhere);
            let last = useful.map_or(RECEIVE_BYTES.len() - 1, |last| last.max(first));
            let sizes = &RECEIVE_BYTES[first..=last];
            lists.push(each(sizes, |receive_bytes| Self { receive_bytes, ..self }));
        }
        if config.fixed.chunk.is_none() {
            let chunks: Vec<usize> =
                CHUNKS.into_iter().filter(|&chunk| chunk == ALL || chunk < config.depth).collect();
            lists.push(each(&chunks, |target_chunk| Self { target_chunk, ..self }));
            lists.push(each(&chunks, |host_chunk| Self { host_chunk, ..self }));
        }
        if shape == Shape::ReadyToTransfer && config.io_bytes >= BY_REFERENCE_BYTES_MIN && !self.tls
        {
            lists.push(each(&[false, true], |by_reference| Self { by_reference, ..self }));
        }
        if config.depth * config.connections >= PAUSE_IN_FLIGHT_MIN && config.mode == Mode::Polled {
            let pauses = PAUSES_US.map(Duration::from_micros);
            lists.push(each(&pauses, |target_pause| Self { target_pause, ..self }));
            lists.push(each(&pauses, |host_pause| Self { host_pause, ..self }));
        }
        if in_flight > SEND_BYTES[SEND_BYTES.len() - 1] && shape != Shape::InCapsule {
            lists.push(each(&SEND_BYTES, |send_bytes| Self { send_bytes, ..self }));
        }
        if config.fixed.prefetch.is_none() && shape == Shape::Read {
            let all = [Prefetch::Off, Prefetch::Ahead, Prefetch::Pages, Prefetch::Lines];
            // A copy reads the payload anyway.
            let useful = if self.digest { &all[..2] } else { &all };
            lists.push(each(useful, |prefetch| Self { prefetch, ..self }));
        }
        let landings: &[Landing] = match shape {
            Shape::Read if config.fixed.buffer_each => &[],
            Shape::Read if config.per_command_bytes() <= PER_COMMAND_BYTES_MAX => {
                &[Landing::Reused, Landing::PerCommand]
            }
            Shape::ReadyToTransfer if !config.fixed.staged => {
                &[Landing::Reused, Landing::Streamed, Landing::Direct]
            }
            Shape::ReadyToTransfer | Shape::InCapsule => &[Landing::Reused, Landing::Streamed],
            Shape::Read => &[],
        };
        lists.push(each(landings, |landing| Self { landing, ..self }));
        lists.retain(|list| list.len() > 1);
        lists
    }

    /// The most bytes of one receive on the side that only receives capsules or responses.
    pub(super) fn other_receive_bytes(depth: usize) -> usize {
        (depth * COMMAND_BYTES).next_multiple_of(4096).clamp(4096, 64 << 10)
    }
}

fn each<T: Copy>(values: &[T], with: impl Fn(T) -> Tuning) -> Vec<Tuning> {
    values.iter().copied().map(with).collect()
}

impl fmt::Display for Tuning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: usize| match value {
            ALL => "all".to_owned(),
            value if value.is_multiple_of(1024) => format!("{}k", value / 1024),
            value => value.to_string(),
        };
        write!(
            f,
            "{}, receive {}, chunk {}/{}, pause {}/{} us, send {}{}, prefetch {}, landing {}",
            match self.look {
                Look::Scan => "scan",
                Look::Epoll => "epoll",
            },
            number(self.receive_bytes),
            number(self.target_chunk),
            number(self.host_chunk),
            self.target_pause.as_micros(),
            self.host_pause.as_micros(),
            number(self.send_bytes),
            if self.by_reference { " by reference" } else { "" },
            match self.prefetch {
                Prefetch::Off => "off",
                Prefetch::Pages => "pages",
                Prefetch::Lines => "lines",
                Prefetch::Ahead => "ahead",
            },
            match self.landing {
                Landing::Reused => "reused",
                Landing::PerCommand => "per command",
                Landing::Placed => "placed",
                Landing::Streamed => "streamed",
                Landing::Direct => "direct",
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use raceline_reactor::buffer::HugePages;

    use super::*;

    #[test]
    fn staged_writes_are_never_received_in_the_region() {
        for (staged, io_bytes) in [(false, 16 << 10), (true, 16 << 10), (true, 4096)] {
            let config = LimitConfig {
                io_bytes,
                write: true,
                depth: 32,
                connections: 4,
                memory_bytes: 1 << 20,
                pages: HugePages::None,
                mode: Mode::Polled,
                target_core: None,
                host_core: None,
                fixed: Fixed { staged, ..Fixed::default() },
                tls: None,
                seed: 1,
            };
            let start = Tuning::start(&config);
            let tried = start.alternatives(&config).into_iter().flatten();
            let direct = tried.chain([start]).any(|tuning| tuning.landing == Landing::Direct);
            assert_eq!(direct, !staged, "{io_bytes} bytes");
        }
    }
}
