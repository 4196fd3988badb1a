//! Values of options: each parses into a type that has only valid values, or names a valid value.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use raceline_bdev::ByteSize;
use raceline_host::Transport;
use raceline_proto::nvme::{HostId, Nqn};
use raceline_reactor::socket::Interface;
use raceline_reactor::{Backend, Mode};
use raceline_target::{
    MIN_PASS_BYTES, MIN_ZERO_COPY_BYTES, PlacementPolicy, SubsystemConfig, TargetConfig, Weight,
    ZeroCopySend,
};
use uuid::Uuid;

use super::manage::WeightChoice;

/// The port that is registered for NVMe over TCP.
pub(crate) const DEFAULT_PORT: u16 = 4420;
/// The port of an iSCSI portal (RFC 7143, 4.2.7.1).
pub(crate) const DEFAULT_ISCSI_PORT: u16 = 3260;

/// Help for the values of `--accel`.
pub(crate) const ACCEL_HELP: &str = "\
Which engine does which operation on data: ENGINE for all that it can do, or OP=ENGINE; several with
commas between, of which the last counts [default: software]

  software      the CPU
  dsa           Intel DSA, through work queues that are set up for user space
  dsa_emulated  a thread that behaves as a DSA: to try it out, no faster than the CPU

Digests are the operations crc32c and copy_crc32c; without data digests nothing is done by engines.";

/// Longest time in an option: a year.
const LONGEST: f64 = 365.0 * 86_400.0;

/// Most cores in a list; larger numbers are typing errors.
const CORES_MAX: usize = 1024;

/// `--mode`: the behaviour of an idle core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ModeChoice {
    /// Look for work without a pause: lowest latency, the core is always busy
    Poll,
    /// Look for work for a moment, then sleep
    #[default]
    Adaptive,
    /// Sleep at once
    Interrupt,
}

impl From<ModeChoice> for Mode {
    fn from(choice: ModeChoice) -> Self {
        match choice {
            ModeChoice::Poll => Self::Poll,
            ModeChoice::Adaptive => Self::default(),
            ModeChoice::Interrupt => Self::Interrupt,
        }
    }
}

/// `--io`: the interface of the kernel for I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum IoChoice {
    /// io_uring, or epoll where io_uring is not permitted
    #[default]
    Auto,
    /// io_uring
    Uring,
    /// epoll
    Epoll,
}

impl From<IoChoice> for Backend {
    fn from(choice: IoChoice) -> Self {
        match choice {
            IoChoice::Auto => Self::Auto,
            IoChoice::Uring => Self::Uring,
            IoChoice::Epoll => Self::Epoll,
        }
    }
}

/// `--placement`: the core for a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PlacementChoice {
    /// The one with the fewest connections
    #[default]
    Balanced,
    /// The one that has the connections of the same receive queue of the network device
    Napi,
    /// The one whose CPU processed the connection's first packets
    Cpu,
    /// The one that has the connections with the same mark of the packet filter (SO_MARK)
    Mark,
}

impl From<PlacementChoice> for PlacementPolicy {
    fn from(choice: PlacementChoice) -> Self {
        match choice {
            PlacementChoice::Balanced => Self::Balanced,
            PlacementChoice::Napi => Self::Napi,
            PlacementChoice::Cpu => Self::Cpu,
            PlacementChoice::Mark => Self::Mark,
        }
    }
}

/// `--profile` of a target: options that go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TargetProfile {
    /// Queues of a network device for this target alone
    Adq,
}

/// `--reuseport`: how the kernel chooses among the listeners of the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReuseportChoice {
    /// By the CPU that processed the request for the connection
    Cpu,
}

/// `--zero-copy`: the connections that send without a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ZeroCopyChoice {
    /// None
    #[default]
    Off,
    /// Those of other machines
    Auto,
    /// All, each until the kernel says that it copies in any case
    On,
}

impl From<ZeroCopyChoice> for ZeroCopySend {
    fn from(choice: ZeroCopyChoice) -> Self {
        match choice {
            ZeroCopyChoice::Off => Self::Off,
            ZeroCopyChoice::Auto => Self::Auto,
            ZeroCopyChoice::On => Self::On,
        }
    }
}

/// `-o`: the form of output, for users or for programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people; nvme-cli calls it normal
    #[default]
    #[value(alias = "normal")]
    Table,
    /// For programs
    Json,
}

/// Longest busy poll: while one connection polls, the others of its core wait.
const BUSY_POLL_MAX_US: u64 = 10_000;

/// Cores, in the order given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CoreList(pub(crate) Vec<usize>);

/// The name of a subsystem or a host: an NQN, or another name that users and other targets choose.
pub(crate) fn nqn(text: &str) -> Result<Nqn, String> {
    Nqn::new(text).map_err(|error| error.to_string())
}

/// A key for TLS: a number is the serial number of a key of the kernel.
pub(crate) fn tls_key(given: PathBuf) -> PathBuf {
    match given.to_str().is_some_and(is_serial) {
        true => PathBuf::from(format!("kernel:{}", given.display())),
        false => given,
    }
}

/// Whether a text is a number as nvme-cli writes that of a key, decimal or with 0x.
pub(crate) fn is_serial(text: &str) -> bool {
    let is_hex = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    match text.strip_prefix("0x") {
        Some(digits) => !digits.is_empty() && is_hex(digits),
        None => !text.is_empty() && is_number(text),
    }
}

/// The name of a network interface.
pub(crate) fn interface(text: &str) -> Result<Interface, String> {
    Interface::named(text).ok_or_else(|| {
        format!(
            "an interface has a name of 1 to {} letters, as `ip link` shows it",
            Interface::NAME_MAX
        )
    })
}

/// `-t`, as in nvme-cli.
pub(crate) fn transport(text: &str) -> Result<Transport, String> {
    let other = match text.to_ascii_lowercase().as_str() {
        "tcp" => return Ok(Transport::Tcp),
        "rdma" => return Ok(Transport::Rdma),
        "fc" | "loop" | "pcie" => "nvme-cli knows it, and Raceline does not",
        _ => "it is no transport of nvme-cli",
    };
    Err(format!("{other}: write -t tcp or -t rdma; without -t it is tcp"))
}

/// A host identifier: a UUID that is not all zeroes.
pub(crate) fn host_id(text: &str) -> Result<HostId, String> {
    let uuid = Uuid::try_parse(text).ok().filter(|uuid| !uuid.is_nil());
    let uuid = uuid.ok_or("a host identifier is a UUID other than zero")?;
    Ok(HostId(*uuid.as_bytes()))
}

/// `0,2-4`.
pub(crate) fn core_list(text: &str) -> Result<CoreList, String> {
    let number = |text: &str| {
        text.parse::<usize>().map_err(|_| "a list of cores is written 0,2-4".to_owned())
    };
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(format!("{part} runs backwards: write {last}-{first}"));
        }
        if last >= CORES_MAX {
            return Err(format!("there is no core {last}"));
        }
        for core in first..=last {
            if cores.contains(&core) {
                return Err(format!("core {core} is there twice"));
            }
            cores.push(core);
        }
    }
    Ok(CoreList(cores))
}

impl fmt::Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cores: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&cores.join(","))
    }
}

/// `192.0.2.1:4420`, `[2001:db8::1]:4420`, or without a port.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    address_or(text, DEFAULT_PORT)
}

/// Where an export listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    pub(crate) address: SocketAddr,
    /// For NVMe/RDMA, not for NVMe/TCP.
    pub(crate) is_rdma: bool,
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_rdma { "rdma://" } else { "" };
        write!(f, "{scheme}{}", self.address)
    }
}

/// An address for TCP, or one for RDMA with `rdma://` before it.
pub(crate) fn listen(text: &str) -> Result<Listen, String> {
    match text.strip_prefix("rdma://") {
        Some(address) => Ok(Listen { address: listen_address(address)?, is_rdma: true }),
        None => Ok(Listen { address: listen_address(text)?, is_rdma: false }),
    }
}

/// The address of an iSCSI portal: `192.0.2.1:3260`, `[2001:db8::1]:3260`, or either without the port.
pub(crate) fn portal_address(text: &str) -> Result<SocketAddr, String> {
    address_or(text, DEFAULT_ISCSI_PORT)
}

fn address_or(text: &str, default_port: u16) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    if let Some(address) = bare.and_then(|bare| bare.parse::<Ipv6Addr>().ok()) {
        return Ok(SocketAddr::new(address.into(), default_port));
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, default_port));
    }
    Err(format!(
        "an address of this machine is written 192.0.2.1:{default_port} or [2001:db8::1]:{default_port}; names are not \
         looked up"
    ))
}

/// A size in bytes: `4096`, `128k`, `1G`.
pub(crate) fn size(text: &str) -> Result<ByteSize, String> {
    text.parse::<ByteSize>().map_err(|error| error.to_string())
}

/// The largest transfer of a command: 4k times a power of two, up to 16M.
pub(crate) fn max_io_size(text: &str) -> Result<u32, String> {
    let ByteSize(bytes) = size(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| bytes.is_power_of_two() && (4096..=16 << 20).contains(bytes))
        .ok_or_else(|| "the largest transfer is a power of two from 4k to 16M".to_owned())
}

/// The largest write that travels inside its command.
pub(crate) fn in_capsule(text: &str) -> Result<u32, String> {
    let ByteSize(bytes) = size(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| bytes.is_multiple_of(16) && *bytes <= 1 << 20)
        .ok_or_else(|| "in-capsule data is a multiple of 16 bytes, at most 1M".to_owned())
}

/// The bytes that a connection moves in a pass.
pub(crate) fn pass_bytes(text: &str) -> Result<u32, String> {
    let ByteSize(bytes) = size(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes >= MIN_PASS_BYTES)
        .ok_or_else(|| "a pass has from 4k to 3G bytes".to_owned())
}

/// A host's weight.
pub(crate) fn weight(text: &str) -> Result<WeightChoice, String> {
    if text == "none" {
        return Ok(WeightChoice(None));
    }
    let weight = text.parse().ok().and_then(Weight::new);
    let weight = weight.ok_or_else(|| format!("a weight from 1 to {}, or none", Weight::MAX))?;
    Ok(WeightChoice(Some(weight.get())))
}

/// Fewest bytes of a read that leaves without a copy.
pub(crate) fn zero_copy_bytes(text: &str) -> Result<u32, String> {
    let ByteSize(bytes) = size(text)?;
    let bytes = u32::try_from(bytes).ok().filter(|bytes| *bytes >= MIN_ZERO_COPY_BYTES);
    bytes.ok_or_else(|| "a size from 4k to 3G".to_owned())
}

/// The size of a command: at least 512 bytes.
pub(crate) fn io_size(text: &str) -> Result<u32, String> {
    let ByteSize(bytes) = size(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| bytes.is_multiple_of(512) && (512..=16 << 20).contains(bytes))
        .ok_or_else(|| "a command moves a multiple of 512 bytes, at most 16M".to_owned())
}

/// A time: `8` seconds, `500ms`, `1.5s`, `2m`, `1h`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || "a time is written 8 (seconds), 500ms, 2m or 1h".to_owned();
    let digits =
        text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let seconds = number.parse::<f64>().map_err(|_| wrong())? * factor;
    if seconds > LONGEST {
        return Err("at most a year".to_owned());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// A time that is not zero.
pub(crate) fn positive_time(text: &str) -> Result<Duration, String> {
    time(text).and_then(|time| {
        if time.is_zero() { Err("must be more than 0".to_owned()) } else { Ok(time) }
    })
}

/// How long to busy poll, in microseconds.
pub(crate) fn busy_poll(text: &str) -> Result<Duration, String> {
    let time_us = text.parse().ok().filter(|time_us| (1..=BUSY_POLL_MAX_US).contains(time_us));
    time_us
        .map(Duration::from_micros)
        .ok_or_else(|| format!("a number of microseconds from 1 to {BUSY_POLL_MAX_US}"))
}

/// How long the commands of a lost association may take: what CQT can say.
pub(crate) fn quiesce_time(text: &str) -> Result<Duration, String> {
    let permitted = TargetConfig::QUIESCE_TIMES;
    time(text).and_then(|time| {
        permitted.contains(&time).then_some(time).ok_or_else(|| "from 1ms to 65s".to_owned())
    })
}

/// The numbers of controllers, from the first to the last.
pub(crate) fn controller_numbers(text: &str) -> Result<(u16, u16), String> {
    let range = text.split_once('-').and_then(|(first, last)| {
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        let all = SubsystemConfig::CONTROLLER_IDS;
        (first <= last && all.contains(&first) && all.contains(&last)).then_some((first, last))
    });
    range.ok_or_else(|| "two numbers from 1 to 65519, as in 1-32759".to_owned())
}

/// A priority of sent packets, as the kernel takes it.
pub(crate) fn sock_priority(text: &str) -> Result<u32, String> {
    let priority = text.parse().ok().filter(|priority| *priority <= i32::MAX.unsigned_abs());
    priority.ok_or_else(|| format!("a number from 0 to {}", i32::MAX))
}

/// A serial number: 1 to 20 printable ASCII characters.
pub(crate) fn serial(text: &str) -> Result<String, String> {
    let printable = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if text.trim().is_empty() || text.len() > 20 || !printable {
        return Err("a serial number has 1 to 20 printable ASCII characters".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores() {
        assert_eq!(core_list("0").unwrap().0, [0]);
        assert_eq!(core_list("4,0-2").unwrap().0, [4, 0, 1, 2]);
        assert_eq!(core_list("4,0-2").unwrap().to_string(), "4,0,1,2");
        let form = "a list of cores is written 0,2-4";
        for (text, message) in [
            ("", form),
            ("a", form),
            ("1-", form),
            ("1,,2", form),
            ("-1", form),
            ("3-1", "3-1 runs backwards: write 1-3"),
            ("0,0-1", "core 0 is there twice"),
            ("0-99999999999", "there is no core 99999999999"),
        ] {
            assert_eq!(core_list(text).unwrap_err(), message, "{text}");
        }
    }

    #[test]
    fn listeners_for_rdma_have_a_scheme() {
        let rdma = listen("rdma://192.0.2.1").unwrap();
        assert_eq!((rdma.address.to_string(), rdma.is_rdma), ("192.0.2.1:4420".to_owned(), true));
        assert_eq!(rdma.to_string(), "rdma://192.0.2.1:4420");
        assert!(listen("rdma://[2001:db8::1]:1").unwrap().is_rdma);
        assert!(!listen("192.0.2.1:1").unwrap().is_rdma);
        for text in ["rdma:192.0.2.1", "rdma://", "rdma://host:1", "tcp://192.0.2.1"] {
            assert!(listen(text).is_err(), "{text}");
        }
    }

    #[test]
    fn listen_addresses() {
        for (text, address) in [
            ("127.0.0.1:0", "127.0.0.1:0"),
            ("127.0.0.1", "127.0.0.1:4420"),
            ("[::1]:1", "[::1]:1"),
            ("[::1]", "[::1]:4420"),
            ("::1", "[::1]:4420"),
            ("0.0.0.0:4420", "0.0.0.0:4420"),
        ] {
            assert_eq!(listen_address(text).unwrap().to_string(), address);
        }
        for text in ["", "localhost:4420", "127.0.0.1:65536", ":4420", "1.2.3:1", "[::1]x"] {
            let message = listen_address(text).unwrap_err();
            assert!(message.starts_with("an address of this machine is written"), "{text}");
        }
    }

    #[test]
    fn sizes_with_limits() {
        assert_eq!(max_io_size("128k"), Ok(131_072));
        assert_eq!(io_size("4k"), Ok(4096));
        assert_eq!(in_capsule("0"), Ok(0));
        for text in ["0", "100k", "2k", "32M", "8G"] {
            assert_eq!(
                max_io_size(text).unwrap_err(),
                "the largest transfer is a power of two from 4k to 16M"
            );
        }
        for (text, number) in [("1", Some(1)), ("10000", Some(10_000)), ("none", None)] {
            assert_eq!(weight(text), Ok(WeightChoice(number)), "{text}");
        }
        for text in ["0", "10001", "-1", "", "half", "1k"] {
            assert_eq!(weight(text).unwrap_err(), "a weight from 1 to 10000, or none", "{text}");
        }
        assert_eq!((pass_bytes("4k"), pass_bytes("3G")), (Ok(4096), Ok(3 << 30)));
        for text in ["0", "4095", "4G"] {
            assert_eq!(pass_bytes(text).unwrap_err(), "a pass has from 4k to 3G bytes");
        }
        for text in ["0", "100", "17M"] {
            assert!(io_size(text).unwrap_err().starts_with("a command moves a multiple of 512"));
        }
        assert!(in_capsule("15").unwrap_err().starts_with("in-capsule data is a multiple of 16"));
        assert!(io_size("4q").unwrap_err().starts_with("`4q` is not a size"));
    }

    #[test]
    fn times() {
        for (text, millis) in
            [("8", 8000), ("1.5", 1500), ("500ms", 500), ("2s", 2000), ("2m", 120_000), ("0", 0)]
        {
            assert_eq!(time(text).unwrap().as_millis(), millis);
        }
        for text in ["", "s", "1d", "-1", "1.2.3", "NaN", "1e9"] {
            assert_eq!(time(text).unwrap_err(), "a time is written 8 (seconds), 500ms, 2m or 1h");
        }
        assert_eq!(time("9999999h").unwrap_err(), "at most a year");
        assert_eq!(positive_time("0ms").unwrap_err(), "must be more than 0");
        assert_eq!((zero_copy_bytes("4k"), zero_copy_bytes("1m")), (Ok(4096), Ok(1 << 20)));
        for text in ["4095", "4G"] {
            assert_eq!(zero_copy_bytes(text).unwrap_err(), "a size from 4k to 3G", "{text}");
        }
        assert_eq!(sock_priority("0"), Ok(0));
        assert_eq!(sock_priority("2147483647"), Ok(2_147_483_647));
        for text in ["-1", "2147483648", "high", ""] {
            assert_eq!(sock_priority(text).unwrap_err(), "a number from 0 to 2147483647");
        }
        assert_eq!(quiesce_time("500ms"), Ok(Duration::from_millis(500)));
        for text in ["0ms", "66", "2m"] {
            assert_eq!(quiesce_time(text).unwrap_err(), "from 1ms to 65s", "{text}");
        }
        assert_eq!(controller_numbers("1-32759"), Ok((1, 32759)));
        for text in ["", "5", "0-5", "9-8", "1-65520", "a-b"] {
            let error = controller_numbers(text).unwrap_err();
            assert_eq!(error, "two numbers from 1 to 65519, as in 1-32759", "{text}");
        }
        assert_eq!(busy_poll("50"), Ok(Duration::from_micros(50)));
        for text in ["", "0", "-1", "50us", "10001"] {
            assert_eq!(busy_poll(text).unwrap_err(), "a number of microseconds from 1 to 10000");
        }
    }

    #[test]
    fn serials_and_host_ids() {
        assert_eq!(serial("RL 1").unwrap(), "RL 1");
        for text in ["", "  ", "123456789012345678901", "a\tb", "\u{e9}"] {
            assert!(serial(text).is_err(), "{text:?}");
        }
        let id = host_id("6ba7b810-9dad-11d1-80b4-00c04fd430c8").unwrap();
        assert_eq!(id.0[..2], [0x6b, 0xa7]);
        assert!(host_id("00000000-0000-0000-0000-000000000000").is_err());
        assert!(host_id("x").is_err());
    }
}
