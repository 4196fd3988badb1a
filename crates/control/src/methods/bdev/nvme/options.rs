//! `bdev_nvme_set_options`: defaults for controllers that are attached later.

use raceline_auth::Algorithms;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::paths::{self, PolicyOptions};
use super::refuse_because;
use crate::error::RpcError;
use crate::manager::Manager;
use crate::manager::catalogue::{self, Key, Section};
use crate::manager::options::algorithms;
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_nvme_set_options", States::Both, set);
    registry.alias("set_bdev_nvme_options", "bdev_nvme_set_options");
}

fn key() -> Key {
    Key::new(&["bdev-nvme-options"])
}

/// The longest acknowledgement timeout, as log2 of milliseconds: SPDK's bound.
const MAX_ACK_EXPONENT: u8 = 31;

/// The options with a meaning here, and options of SPDK's driver without one: its polling, its queues, its
/// memory. The latter are kept, so that the saved configuration is the one that was set.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Options {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) keep_alive_timeout_ms: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ctrlr_loss_timeout_sec: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reconnect_delay_sec: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action_on_timeout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_admin_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arbitration_burst: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    low_priority_weight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    medium_priority_weight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    high_priority_weight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nvme_adminq_poll_period_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nvme_ioq_poll_period_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    io_queue_requests: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_cmd_submit: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none", alias = "retry_count")]
    transport_retry_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bdev_retry_count: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transport_ack_timeout: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fast_io_fail_timeout_sec: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) disable_auto_failback: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    generate_uuids: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport_tos: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nvme_error_stat: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rdma_srq_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) io_path_stat: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_accel_sequence: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rdma_max_cq_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rdma_cm_event_timeout_ms: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dhchap_digests: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dhchap_dhgroups: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rdma_umr_per_io: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tcp_connect_timeout_ms: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    enable_flush: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) multipath_opts: Option<PolicyOptions>,
}

impl Options {
    /// The current options.
    pub(super) fn current(manager: &Manager) -> Self {
        let model = manager.model();
        Self::from_kept(model.catalogue.get(&key()).map(|entry| &entry.params))
    }

    fn from_kept(params: Option<&Value>) -> Self {
        params.and_then(|params| serde_json::from_value(params.clone()).ok()).unwrap_or_default()
    }

    /// The hash functions and groups with which controllers are authenticated.
    pub(super) fn algorithms(&self) -> Result<Algorithms, RpcError> {
        let (digests, dhgroups) = (self.dhchap_digests.as_deref(), self.dhchap_dhgroups.as_deref());
        algorithms(digests, dhgroups).map_err(RpcError::invalid_params)
    }
}

fn set(call: &Call<'_>, params: Options) -> Result<bool, RpcError> {
    let action = params.action_on_timeout.as_deref();
    refuse_because(&[(
        "action_on_timeout",
        action.is_some_and(|it| !matches!(it, "none" | "reset")),
        "a command that takes too long ends its connection, which is made again: `reset` says so",
    )])?;
    params.multipath_opts.unwrap_or_default().check_defaults()?;
    if params.transport_ack_timeout.is_some_and(|exponent| exponent > MAX_ACK_EXPONENT) {
        let detail = format!(
            "transport_ack_timeout is a power of two of milliseconds: 0 to {MAX_ACK_EXPONENT}"
        );
        return Err(RpcError::errno(libc::EINVAL).because(detail));
    }
    params.algorithms()?;
    if params.timeout_us.unwrap_or(0) == 0 && params.timeout_admin_us.unwrap_or(0) != 0 {
        let detail = "timeout_admin_us needs timeout_us";
        return Err(RpcError::errno(libc::EINVAL).because(detail));
    }
    let (loss, delay) = (params.ctrlr_loss_timeout_sec, params.reconnect_delay_sec);
    let backoff = super::backoff(loss.unwrap_or(0), delay.unwrap_or(0))?;
    paths::check_fast_fail(params.fast_io_fail_timeout_sec.unwrap_or(0), &backoff)?;
    call.manager.change(|change| {
        if !change.model().controllers.is_empty() {
            let text = "RPC not permitted with nvme controllers already attached";
            return Err(RpcError::new(-libc::EPERM, text));
        }
        // Options that are not named keep their values.
        let before = change.model().catalogue.get(&key()).map(|entry| entry.params.clone());
        let policy = Options::from_kept(before.as_ref()).multipath_opts.unwrap_or_default();
        let multipath_opts = params.multipath_opts.map(|given| given.or(policy));
        let params = Options { multipath_opts, ..params };
        let mut entry = catalogue::Entry::new(Section::Bdev, "bdev_nvme_set_options", &params)?;
        if let (Some(Value::Object(before)), Some(after)) = (before, entry.params.as_object_mut()) {
            let named = std::mem::take(after);
            *after = before.into_iter().chain(named).collect::<Map<_, _>>();
        }
        change.put(key(), entry);
        Ok(true)
    })
}
