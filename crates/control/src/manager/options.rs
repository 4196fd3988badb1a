//! Options that are set before any object exists: sockets, buffers, discovery. They are read when a
//! transport is made, from the calls that the catalogue keeps.

use std::fmt;

use raceline_auth::{Algorithms, DhGroup, Hash};
use raceline_reactor::Backend;
use raceline_target::{
    DiscoveryFilter, MIN_ZERO_COPY_BYTES, PlacementPolicy, TargetConfig, ZeroCopySend,
};
use raceline_tls::Ktls;
use serde::{Deserialize, Serialize};

use super::Model;
use super::catalogue::Key;

/// The kinds of sockets by SPDK's names, and the backend that does their I/O here.
pub const SOCKET_KINDS: [(&str, Backend); 2] =
    [("posix", Backend::Auto), ("uring", Backend::Uring)];

/// SPDK's sockets with TLS. There are none here. Their options are kept, because every configuration that SPDK saves has
/// them, and one of them is obeyed.
pub(crate) const TLS_KIND: &str = "ssl";

/// The smallest number of I/O buffers of each size that a core works with.
const MIN_BUFFERS_PER_CORE: usize = 4;

/// The key of an option.
#[must_use]
pub fn option_key(name: &str) -> Key {
    Key::new(&["option", name])
}

/// Options of one kind of sockets, by SPDK's names. The kernel owns the sizes of buffers here and tunes
/// them itself. Placement, quick acknowledgements and the sends of targets without a copy are obeyed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOptions {
    /// The kind.
    pub impl_name: String,
    /// SO_RCVBUF.
    pub recv_buf_size: u32,
    /// SO_SNDBUF.
    pub send_buf_size: u32,
    /// Receives are gathered in a buffer in user space.
    pub enable_recv_pipe: bool,
    /// TCP_QUICKACK.
    pub enable_quickack: bool,
    /// 0: no; 1: by the receive queue's NAPI id; 2: by the CPU of the packets; 3: as 1, and SPDK's hosts mark
    /// what they send.
    pub enable_placement_id: u32,
    /// Targets send large reads from memory to other machines without a copy.
    pub enable_zerocopy_send_server: bool,
    /// MSG_ZEROCOPY of hosts.
    pub enable_zerocopy_send_client: bool,
    /// Bytes below which a send of a target is copied; 0: [`raceline_target::DEFAULT_ZERO_COPY_BYTES`].
    pub zerocopy_threshold: u32,
    /// TLS version.
    pub tls_version: u32,
    /// The kernel makes the records of TLS, where it can change their keys. Obeyed for [`TLS_KIND`].
    pub enable_ktls: bool,
}

impl SocketOptions {
    /// SPDK's defaults, except that targets copy what they send unless they are told otherwise.
    #[must_use]
    pub fn new(impl_name: &str) -> Self {
        Self {
            impl_name: impl_name.to_owned(),
            recv_buf_size: 2 << 20,
            send_buf_size: 2 << 20,
            enable_recv_pipe: true,
            enable_quickack: false,
            enable_placement_id: 0,
            enable_zerocopy_send_server: false,
            enable_zerocopy_send_client: false,
            zerocopy_threshold: 0,
            tls_version: 0,
            enable_ktls: false,
        }
    }
}

impl SocketOptions {
    /// Copies what a target obeys into its configuration.
    fn apply(&self, config: &mut TargetConfig) {
        config.placement = match self.enable_placement_id {
            0 => PlacementPolicy::Balanced,
            2 => PlacementPolicy::Cpu,
            _ => PlacementPolicy::Napi,
        };
        config.quick_ack = self.enable_quickack;
        if self.enable_zerocopy_send_server {
            config.zero_copy = ZeroCopySend::Auto;
        }
        if self.zerocopy_threshold != 0 {
            config.zero_copy_bytes = self.zerocopy_threshold.max(MIN_ZERO_COPY_BYTES);
        }
    }
}

/// Numbers and sizes of I/O buffers, by SPDK's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferOptions {
    /// Number of small buffers of all cores.
    pub small_pool_count: u64,
    /// Number of large buffers of all cores.
    pub large_pool_count: u64,
    /// Size of a small buffer; ignored in favour of the target's own sizes.
    pub small_bufsize: u32,
    /// Size of a large buffer; ignored in favour of the transport's largest transfer.
    pub large_bufsize: u32,
    /// Whether the memory is near each core.
    pub enable_numa: bool,
}

impl Default for BufferOptions {
    /// SPDK's defaults.
    fn default() -> Self {
        Self {
            small_pool_count: 8192,
            large_pool_count: 1024,
            small_bufsize: 8192,
            large_bufsize: 135_168,
            enable_numa: false,
        }
    }
}

/// Options of a target itself, from `nvmf_set_config` and `nvmf_set_crdt`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetOptions {
    /// What the Discovery log leaves out.
    pub filter: FilterOptions,
    /// The cores that serve connections; empty: all.
    pub cores: Vec<usize>,
    /// CRDT1 to 3.
    pub retry_delays: [u16; 3],
    /// The hash functions and groups with which hosts may authenticate.
    pub algorithms: Algorithms,
}

/// The hash functions and groups of these names, in our order of preference; `None`: all but the NULL group.
///
/// # Errors
/// When there is no such name, or none is given.
pub fn algorithms(
    digests: Option<&[String]>,
    dhgroups: Option<&[String]>,
) -> Result<Algorithms, String> {
    let mut all = Algorithms::default();
    if let Some(names) = digests {
        let named = names.iter().map(|name| name.parse()).collect::<Result<Vec<Hash>, _>>();
        let named = named.map_err(|error| format!("dhchap_digests: {error}"))?;
        all.hashes.retain(|hash| named.contains(hash));
    }
    if let Some(names) = dhgroups {
        let named = names.iter().map(|name| name.parse()).collect::<Result<Vec<DhGroup>, _>>();
        let named = named.map_err(|error| format!("dhchap_dhgroups: {error}"))?;
        // Last, because it keeps no secret from those who have recorded the messages and get the key later.
        all.groups.push(DhGroup::Null);
        all.groups.retain(|group| named.contains(group));
    }
    if all.hashes.is_empty() || all.groups.is_empty() {
        return Err("dhchap_digests and dhchap_dhgroups: name at least one of each".to_owned());
    }
    Ok(all)
}

/// Which listeners the Discovery log shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterOptions {
    /// Listeners of the transport that the host used; there is only one transport.
    pub transport: bool,
    /// Listeners at the address that the host used.
    pub address: bool,
    /// Listeners at the port that the host used.
    pub svcid: bool,
}

impl fmt::Display for FilterOptions {
    /// In SPDK's words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts =
            [(self.transport, "transport"), (self.address, "address"), (self.svcid, "svcid")];
        let set: Vec<&str> = parts.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
        f.write_str(&if set.is_empty() { "match_any".to_owned() } else { set.join(",") })
    }
}

impl From<FilterOptions> for DiscoveryFilter {
    fn from(options: FilterOptions) -> Self {
        Self { address: options.address, service: options.svcid }
    }
}

impl Model {
    /// The options of a kind of sockets: as set, or SPDK's defaults.
    #[must_use]
    pub fn socket_options(&self, kind: &str) -> SocketOptions {
        let set = self.catalogue.get(&option_key(&format!("sock-{kind}")));
        let set = set.and_then(|entry| serde_json::from_value(entry.params.clone()).ok());
        set.unwrap_or_else(|| SocketOptions::new(kind))
    }

    /// Whether the kernel makes the records of TLS.
    pub(crate) fn ktls(&self) -> Ktls {
        if self.socket_options(TLS_KIND).enable_ktls { Ktls::Auto } else { Ktls::Off }
    }

    /// The kind of sockets that is used.
    #[must_use]
    pub fn default_socket_kind(&self) -> &'static str {
        let set = self.catalogue.get(&option_key("sock-default"));
        let name = set.and_then(|entry| entry.params["impl_name"].as_str());
        let known = SOCKET_KINDS.into_iter().map(|(known, _)| known);
        known.into_iter().find(|known| Some(*known) == name).unwrap_or(SOCKET_KINDS[0].0)
    }

    /// The options of I/O buffers, if they were set.
    #[must_use]
    pub fn buffer_options(&self) -> Option<BufferOptions> {
        let set = self.catalogue.get(&option_key("iobuf"))?;
        serde_json::from_value(set.params.clone()).ok()
    }

    /// Copies the options that were set into the configuration of a target.
    pub(super) fn apply_options(&self, config: &mut TargetConfig) {
        let kind = self.default_socket_kind();
        self.socket_options(kind).apply(config);
        let backend = SOCKET_KINDS.into_iter().find(|(name, _)| *name == kind);
        config.backend = backend.map_or(Backend::Auto, |(_, backend)| backend);
        if !self.target_options.cores.is_empty() {
            config.cores.clone_from(&self.target_options.cores);
        }
        if let Some(buffers) = self.buffer_options() {
            let cores = config.cores.len().max(1);
            let share = |count: u64| {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                count.div_ceil(cores).max(MIN_BUFFERS_PER_CORE)
            };
            config.small_buffers_per_core = share(buffers.small_pool_count);
            config.large_buffers_per_core = share(buffers.large_pool_count);
        }
    }
}

#[cfg(test)]
mod tests {
    use raceline_target::DEFAULT_ZERO_COPY_BYTES;

    use super::*;

    fn config(options: &SocketOptions) -> TargetConfig {
        let mut config = TargetConfig::default();
        options.apply(&mut config);
        config
    }

    #[test]
    fn options_that_nobody_has_set_are_the_targets_own() {
        let set = config(&SocketOptions::new("posix"));
        assert_eq!(format!("{set:?}"), format!("{:?}", TargetConfig::default()));
    }

    #[test]
    fn a_target_obeys_what_calls_say_about_its_sockets() {
        let places = [0, 1, 2, 3].map(|id| {
            let options = SocketOptions { enable_placement_id: id, ..SocketOptions::new("posix") };
            config(&options).placement
        });
        let napi = PlacementPolicy::Napi;
        assert_eq!(places, [PlacementPolicy::Balanced, napi, PlacementPolicy::Cpu, napi]);
        for (threshold, bytes) in
            [(0, DEFAULT_ZERO_COPY_BYTES), (1, MIN_ZERO_COPY_BYTES), (100_000, 100_000)]
        {
            let set = config(&SocketOptions {
                enable_quickack: true,
                enable_zerocopy_send_server: true,
                zerocopy_threshold: threshold,
                ..SocketOptions::new("posix")
            });
            assert_eq!((set.zero_copy, set.zero_copy_bytes), (ZeroCopySend::Auto, bytes));
            assert!(set.quick_ack);
        }
    }

    #[test]
    fn algorithms_by_name_keep_our_order() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(algorithms(None, None).unwrap(), Algorithms::default());
        let digests = names(&["sha256", "sha512", "sha256"]);
        let groups = names(&["null", "ffdhe8192", "ffdhe3072"]);
        let some = algorithms(Some(&digests), Some(&groups)).unwrap();
        assert_eq!(some.hashes, [Hash::Sha512, Hash::Sha256]);
        assert_eq!(some.groups, [DhGroup::Ffdhe3072, DhGroup::Ffdhe8192, DhGroup::Null]);
        for (digests, groups, part) in [
            (&["md5"][..], &["null"][..], "dhchap_digests"),
            (&["sha256"], &["ffdhe1024"], "dhchap_dhgroups"),
            (&[], &["null"], "at least one"),
            (&["sha256"], &[], "at least one"),
        ] {
            let error = algorithms(Some(&names(digests)), Some(&names(groups))).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
