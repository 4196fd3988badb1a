//! What the caller says about the controller to connect to, and about the connections.

#![allow(unsafe_code)]

use std::ffi::c_char;
use std::mem::offset_of;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use raceline_bdev::Identity;
use raceline_host::{HostConfig, I10Config, MultipathConfig, PathAddress, Policy, Transport};
use raceline_proto::nvme::{HostId, Nqn};
use uuid::Uuid;

use crate::boundary::{check, guard, text};
use crate::status::{Failure, RACELINE_CANNOT_CONNECT, RACELINE_OK};

/// The port that is registered for NVMe/TCP, and for NVMe/RDMA.
const DEFAULT_PORT: u16 = 4420;

/// Flag of raceline_config: a CRC32C protects the headers of PDUs.
pub const RACELINE_HEADER_DIGEST: u32 = 1;
/// Flag of raceline_config: a CRC32C protects the data of PDUs.
pub const RACELINE_DATA_DIGEST: u32 = 2;
/// Flag of raceline_config: each queue gathers commands before it sends them together.
///
/// A queue sends its waiting commands when there are 16, when they have 64 KiB of data, or when the first
/// has waited for 50 us. A command on a queue that has nothing in flight is not held back.
pub const RACELINE_I10: u32 = 4;

/// Flag of raceline_config: operations stay with a path that is as good as the first when the first is back.
pub const RACELINE_NO_FAILBACK: u32 = 8;

/// A controller, and how to connect to it. raceline_config_init() fills in everything but traddr and nqn,
/// which the caller must set.
///
/// The texts end with a 0 byte, have at most 4096 bytes and are UTF-8. They belong to the caller:
/// raceline_connect() reads them, and no call needs them after that one has returned.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raceline_config {
    /// Bytes of this structure: sizeof(raceline_config). raceline_config_init() sets it.
    pub size: usize,
    /// Address of the target, or a name that the system resolves; the first address of a name is used.
    pub traddr: *const c_char,
    /// Port of the target, in decimal digits; NULL: 4420.
    pub trsvcid: *const c_char,
    /// NQN of the subsystem.
    pub nqn: *const c_char,
    /// NQN of this host. NULL: the one in /etc/nvme/hostnqn; without that file, one that is made from
    /// the identity of this machine and stays the same.
    pub hostnqn: *const c_char,
    /// UUID that identifies this host together with hostnqn. NULL: the one in /etc/nvme/hostid, if this
    /// host uses the NQN in /etc/nvme/hostnqn; otherwise one that is made from the NQN.
    pub hostid: *const c_char,
    /// Any of RACELINE_HEADER_DIGEST | RACELINE_DATA_DIGEST | RACELINE_I10 | RACELINE_NO_FAILBACK.
    pub flags: u32,
    /// I/O queues that the library asks the controller for, for all raceline_queues_open() of this host
    /// together. They take all operations; when nr_write_queues is not 0, they take only reads.
    pub nr_io_queues: u16,
    /// Further I/O queues, for operations that are not reads.
    pub nr_write_queues: u16,
    /// Further I/O queues, for operations with RACELINE_POLLED.
    pub nr_poll_queues: u16,
    /// Entries of each I/O queue, from 2 to 4096. A queue has at most one command less outstanding. A
    /// controller that allows fewer entries reduces the number.
    pub queue_size: u16,
    /// Keep alive timeout in milliseconds; 0: no keep alive.
    pub keep_alive_ms: u32,
    /// Milliseconds after which the library gives up the connection of a command that has no completion;
    /// 0: commands have no time limit.
    pub command_timeout_ms: u32,
    /// Milliseconds that each of three steps may take: the connection, the answer to ICReq (which RDMA has not), and
    /// the answer to Connect.
    pub connect_timeout_ms: u32,
    /// Seconds for which the library tries to reconnect a lost controller before it gives the controller
    /// up. -1: it never gives up. 0: it does not reconnect.
    pub ctrl_loss_tmo_s: i32,
    /// Seconds without a connected path after which operations fail; -1: they wait until all paths are given up. It has
    /// a meaning with paths or path_policy.
    pub fast_io_fail_tmo_s: i32,
    /// Further paths to the same subsystem, ADDR[:PORT][,SOURCE] with spaces between them. SOURCE is the address of this
    /// machine to connect from. A path that is not of `trtype` has tcp:// or rdma:// before it. NULL: one path.
    pub paths: *const c_char,
    /// Which path an operation takes: active-passive, round-robin, queue-depth or numa. NULL: active-passive if there
    /// are paths; without paths, an operation whose connection is lost ends with RACELINE_UNKNOWN_FATE.
    pub path_policy: *const c_char,
    /// Milliseconds between attempts to reconnect a lost path. 0: 100 at first, and doubled up to 10,000.
    pub reconnect_delay_ms: u32,
    /// What carries the queues: "tcp" or "rdma", in capitals or not; NULL: tcp. RDMA needs the libraries libibverbs and
    /// librdmacm, which the library loads at the first raceline_connect() over RDMA. It has no digests.
    pub trtype: *const c_char,
}

/// Bytes of the first raceline_config that programs were built with: it ended before `trtype`. Programs that were built
/// with it still run, and what it has not has its default value.
const FIRST_CONFIG_BYTES: usize = offset_of!(raceline_config, trtype);

impl Default for raceline_config {
    fn default() -> Self {
        let name = std::ptr::null();
        Self {
            size: size_of::<Self>(),
            traddr: name,
            trsvcid: name,
            nqn: name,
            hostnqn: name,
            hostid: name,
            flags: 0,
            nr_io_queues: 1,
            nr_write_queues: 0,
            nr_poll_queues: 0,
            queue_size: raceline_host::config::DEFAULT_IO_ENTRIES,
            keep_alive_ms: raceline_host::config::DEFAULT_KATO_MS,
            command_timeout_ms: 30_000,
            connect_timeout_ms: 10_000,
            ctrl_loss_tmo_s: 600,
            fast_io_fail_tmo_s: -1,
            paths: name,
            path_policy: name,
            reconnect_delay_ms: 0,
            trtype: name,
        }
    }
}

/// Fills a configuration with default values. `size` is sizeof(raceline_config) of the caller.
///
/// The values are one I/O queue of 128 entries, a keep alive timeout of 5 s, a command timeout of 30 s, a
/// connect timeout of 10 s, and 600 s for reconnecting. All texts become NULL. RACELINE_INVALID
/// means that the caller's header does not fit this library.
///
/// # Safety
/// `config` is valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_config_init(config: *mut raceline_config, size: usize) -> i32 {
    guard(|| {
        check(config, "config")?;
        let size = known_bytes::<raceline_config>("config", size, FIRST_CONFIG_BYTES)?;
        let default = raceline_config { size, ..Default::default() };
        // SAFETY: not null and aligned, and the caller promises at least `size` bytes.
        unsafe {
            (&raw const default).cast::<u8>().copy_to_nonoverlapping(config.cast::<u8>(), size);
        }
        Ok(RACELINE_OK)
    })
}

/// How many bytes of a caller's structure of `size` bytes this library uses. A caller whose header is older has a
/// structure of at least `first` bytes: of that, these are used.
fn known_bytes<T>(name: &str, size: usize, first: usize) -> Result<usize, Failure> {
    if size < first {
        return Err(too_small(name, size, first));
    }
    Ok(if size < size_of::<T>() { first } else { size_of::<T>() })
}

/// A copy of a structure of the caller's, which begins with its own size in bytes. A size below that of this
/// library's `T` is refused.
///
/// # Safety
/// `pointer` is null, not aligned, or valid for reads of a `usize` and of as many bytes as that `usize` says.
pub(crate) unsafe fn sized<T: Copy>(pointer: *const T, name: &str) -> Result<T, Failure> {
    check(pointer, name)?;
    // SAFETY: not null, aligned, and begins with its size, as the caller promises.
    known_bytes::<T>(name, unsafe { pointer.cast::<usize>().read() }, size_of::<T>())?;
    // SAFETY: the caller promises as many bytes as the size says, which is at least that of a `T`.
    Ok(unsafe { *pointer })
}

/// A copy of the caller's configuration. What the caller's header has not has its default value.
///
/// # Safety
/// As [`sized`].
pub(crate) unsafe fn sized_config(
    pointer: *const raceline_config,
) -> Result<raceline_config, Failure> {
    check(pointer, "config")?;
    // SAFETY: not null, aligned, and begins with its size, as the caller promises.
    let size = unsafe { pointer.cast::<usize>().read() };
    let size = known_bytes::<raceline_config>("config", size, FIRST_CONFIG_BYTES)?;
    let mut copy = raceline_config::default();
    // SAFETY: the caller promises at least `size` bytes; the copy has as many, and any bytes are one.
    unsafe {
        pointer.cast::<u8>().copy_to_nonoverlapping((&raw mut copy).cast::<u8>(), size);
    }
    Ok(copy)
}

impl raceline_config {
    /// The same as the host library's configuration.
    ///
    /// # Safety
    /// Each text is null or ends with a 0 byte.
    pub(crate) unsafe fn parse(&self) -> Result<HostConfig, Failure> {
        const { assert!(offset_of!(raceline_config, size) == 0) };
        // SAFETY: as the caller promises.
        let texts = unsafe {
            [
                text(self.traddr, "traddr")?,
                text(self.trsvcid, "trsvcid")?,
                text(self.nqn, "nqn")?,
                text(self.hostnqn, "hostnqn")?,
                text(self.hostid, "hostid")?,
                text(self.paths, "paths")?,
                text(self.path_policy, "path_policy")?,
                text(self.trtype, "trtype")?,
            ]
        };
        let [traddr, trsvcid, nqn, hostnqn, hostid, paths, policy, trtype] = texts;
        let trtype = trtype.map_or(Ok(Transport::Tcp), |text| transport("trtype", text))?;
        let traddr =
            traddr.ok_or_else(|| Failure::invalid("traddr is null: where is the target?"))?;
        let nqn = nqn.ok_or_else(|| Failure::invalid("nqn is null: which subsystem?"))?;
        let nqn = parse_nqn("nqn", nqn)?;
        let hostnqn = hostnqn.map(|text| parse_nqn("hostnqn", text)).transpose()?;
        let hostid = hostid.map(parse_hostid).transpose()?;
        let port = trsvcid.map_or(Ok(DEFAULT_PORT), |text| {
            text.parse().map_err(|_| Failure::invalid(format!("trsvcid \"{text}\" is no port")))
        })?;
        if !(2..=raceline_host::config::MAX_ENTRIES).contains(&self.queue_size) {
            let text = format!("queue_size is {}: 2 to 4096 are possible", self.queue_size);
            return Err(Failure::invalid(text));
        }
        let (hostnqn, hostid) =
            raceline_host::naming::host(&Identity::of_this_machine(), hostnqn.as_ref(), hostid);
        let ms = |ms: u32| Duration::from_millis(u64::from(ms));
        let mut config = HostConfig::new(resolve(traddr, port)?, nqn, hostnqn, hostid);
        config.transport = trtype;
        config.header_digest = self.flags & RACELINE_HEADER_DIGEST != 0;
        config.data_digest = self.flags & RACELINE_DATA_DIGEST != 0;
        config.i10 = (self.flags & RACELINE_I10 != 0).then(I10Config::default);
        config.io_queues = self.nr_io_queues;
        config.write_queues = self.nr_write_queues;
        config.poll_queues = self.nr_poll_queues;
        config.io_entries = self.queue_size;
        config.kato_ms = self.keep_alive_ms;
        config.command_timeout = (self.command_timeout_ms > 0).then(|| ms(self.command_timeout_ms));
        config.connect_timeout = ms(self.connect_timeout_ms.max(1));
        config.backoff.give_up_after =
            u64::try_from(self.ctrl_loss_tmo_s).ok().map(Duration::from_secs);
        if self.reconnect_delay_ms > 0 {
            let delay = ms(self.reconnect_delay_ms);
            (config.backoff.first, config.backoff.longest) = (delay, delay);
        }
        self.set_paths(&mut config, paths, policy)?;
        check_digests(&config)?;
        Ok(config)
    }

    fn set_paths(
        &self,
        config: &mut HostConfig,
        paths: Option<&str>,
        policy: Option<&str>,
    ) -> Result<(), Failure> {
        if paths.is_none() && policy.is_none() {
            return Ok(());
        }
        let policy = policy.map_or(Ok(Policy::default()), |text| {
            text.parse().map_err(|error| Failure::invalid(format!("path_policy: {error}")))
        })?;
        let fast_io_fail = u64::try_from(self.fast_io_fail_tmo_s).ok().map(Duration::from_secs);
        let failback = self.flags & RACELINE_NO_FAILBACK == 0;
        let options = MultipathConfig::with_policy(policy);
        config.multipath = Some(MultipathConfig { fast_io_fail, failback, ..options });
        for path in paths.into_iter().flat_map(str::split_whitespace) {
            config.more_paths.push(parse_path(path, config.transport)?);
        }
        Ok(())
    }
}

/// RDMA has no digests: its links have checksums of their own.
fn check_digests(config: &HostConfig) -> Result<(), Failure> {
    let transports = config.more_paths.iter().map(|path| path.transport);
    let any_rdma = transports.chain([config.transport]).any(|it| it == Transport::Rdma);
    if any_rdma && (config.header_digest || config.data_digest) {
        return Err(Failure::invalid(
            "flags: RDMA has no digests: leave RACELINE_HEADER_DIGEST and RACELINE_DATA_DIGEST out, or have all paths \
             over tcp",
        ));
    }
    Ok(())
}

/// The transport of this name.
fn transport(field: &str, text: &str) -> Result<Transport, Failure> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(Transport::Tcp),
        "rdma" => Ok(Transport::Rdma),
        _ => Err(Failure::invalid(format!(
            "{field} \"{text}\" is no transport of this library: it has tcp and rdma"
        ))),
    }
}

/// `[tcp://|rdma://]ADDR[:PORT][,SOURCE]`; without a transport of its own it has that of the first path.
fn parse_path(path: &str, first: Transport) -> Result<PathAddress, Failure> {
    let wrong = |why: &str| Failure::invalid(format!("paths: \"{path}\" {why}"));
    let (transport, rest) = match path.split_once("://") {
        Some((name, rest)) => (transport("paths: transport", name)?, rest),
        None => (first, path),
    };
    let (place, source) = match rest.split_once(',') {
        Some((place, source)) => (place, Some(source)),
        None => (rest, None),
    };
    let source =
        source.map(|source| source.parse().map_err(|_| wrong("has no source address that is one")));
    let (name, port) = match place.rsplit_once(':') {
        // An IPv6 address without a port has colons of its own.
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            (name, port.parse().map_err(|_| wrong("has no port that is one"))?)
        }
        _ => (place, DEFAULT_PORT),
    };
    Ok(PathAddress { address: resolve(name, port)?, source: source.transpose()?, transport })
}

fn too_small(name: &str, size: usize, needed: usize) -> Failure {
    Failure::invalid(format!(
        "{name} says that it has {size} bytes, of {needed}: initialise it, and build with the \
         header of this library"
    ))
}

fn parse_nqn(name: &str, text: &str) -> Result<Nqn, Failure> {
    Nqn::new(text).map_err(|error| Failure::invalid(format!("{name} \"{text}\": {error}")))
}

fn parse_hostid(text: &str) -> Result<HostId, Failure> {
    let uuid = Uuid::try_parse(text);
    let uuid = uuid.map_err(|_| Failure::invalid(format!("hostid \"{text}\" is no UUID")))?;
    Ok(HostId(*uuid.as_bytes()))
}

/// The first address of a name, or the address that the text itself is.
fn resolve(name: &str, port: u16) -> Result<SocketAddr, Failure> {
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    let unknown = |why: String| Failure {
        code: RACELINE_CANNOT_CONNECT,
        text: format!("cannot find the address of \"{name}\": {why}"),
    };
    let mut found = (bare, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    found.next().ok_or_else(|| unknown("the name has none".to_owned()))
}
