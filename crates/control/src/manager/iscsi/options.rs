//! The common options of iSCSI, by SPDK's names.

use std::time::Duration;

use raceline_target::{ChapPolicy, IscsiSettings};
use serde_json::{Value, json};

use super::{Iscsi, entry, joined, policy_params, refused};
use crate::manager::options::option_key;
use crate::manager::{Change, ManagerError};

/// The options of `iscsi_set_options` that have a meaning here, by SPDK's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IscsiOptions {
    /// What the names of target nodes begin with that are given without a type.
    pub node_base: String,
    /// Seconds that the answer to a NOP-In may take; 0: any time.
    pub nop_timeout: u32,
    /// Seconds of silence after which the target sends a NOP-In; 0: never.
    pub nop_in_interval: u32,
    /// Sessions of all target nodes.
    pub max_sessions: u32,
    /// Commands that a session may have outstanding at most.
    pub max_queue_depth: u16,
    /// DefaultTime2Wait in seconds.
    pub default_time2wait: u16,
    /// DefaultTime2Retain in seconds.
    pub default_time2retain: u16,
    /// FirstBurstLength in bytes.
    pub first_burst_length: u32,
    /// ImmediateData.
    pub immediate_data: bool,
    /// How discovery sessions authenticate.
    pub discovery_auth: ChapPolicy,
    /// Options that are kept and given back, and change nothing.
    pub kept: Value,
}

/// SPDK's defaults, except for FirstBurstLength, which is that of the target: SPDK's 8192 bytes make the initiator of a
/// larger write ask first.
impl Default for IscsiOptions {
    fn default() -> Self {
        Self {
            node_base: "iqn.2016-06.io.spdk".to_owned(),
            nop_timeout: 60,
            nop_in_interval: 30,
            max_sessions: 128,
            max_queue_depth: 64,
            default_time2wait: 2,
            default_time2retain: 20,
            first_burst_length: IscsiSettings::default().first_burst_bytes,
            immediate_data: true,
            discovery_auth: ChapPolicy::default(),
            kept: json!({
                "max_connections_per_session": 2,
                "error_recovery_level": 0,
                "allow_duplicated_isid": false,
                "max_large_datain_per_connection": 64,
                "max_r2t_per_connection": 4,
                "pdu_pool_size": 36_864,
                "immediate_data_pool_size": 16_384,
                "data_out_pool_size": 2048,
            }),
        }
    }
}

impl IscsiOptions {
    /// All options by SPDK's names.
    #[must_use]
    pub fn params(&self) -> Value {
        let own = json!({
            "node_base": self.node_base,
            "max_sessions": self.max_sessions,
            "max_queue_depth": self.max_queue_depth,
            "default_time2wait": self.default_time2wait,
            "default_time2retain": self.default_time2retain,
            "first_burst_length": self.first_burst_length,
            "immediate_data": self.immediate_data,
            "nop_timeout": self.nop_timeout,
            "nop_in_interval": self.nop_in_interval,
        });
        joined(joined(own, policy_params(self.discovery_auth)), self.kept.clone())
    }

    /// As the target has them.
    #[must_use]
    pub fn settings(&self) -> IscsiSettings {
        let defaults = IscsiSettings::default();
        // Without a limit for the answer, silence says nothing.
        let pings = self.nop_in_interval > 0 && self.nop_timeout > 0;
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        IscsiSettings {
            nop_in_interval: pings.then(|| seconds(self.nop_in_interval)),
            nop_timeout: seconds(self.nop_timeout.max(1)),
            max_sessions: usize::try_from(self.max_sessions).unwrap_or(usize::MAX),
            first_burst_bytes: self.first_burst_length,
            max_burst_bytes: defaults.max_burst_bytes.max(self.first_burst_length),
            immediate_data: self.immediate_data,
            time2wait_seconds: self.default_time2wait,
            time2retain_seconds: self.default_time2retain,
            discovery_auth: self.discovery_auth,
            ..defaults
        }
    }
}

impl Iscsi {
    /// Commands that a session of a target node may have outstanding, of those that were asked for: as in SPDK, what is
    /// out of range is the most that the options allow.
    pub(super) fn queue_depth(&self, wanted: i32) -> u16 {
        let most = self.options.max_queue_depth;
        u16::try_from(wanted).ok().filter(|wanted| (1..=most).contains(wanted)).unwrap_or(most)
    }
}

impl Change<'_> {
    /// Sets the common options.
    ///
    /// # Errors
    /// When one is out of its range, or a core does not answer.
    pub fn set_iscsi_options(&mut self, options: IscsiOptions) -> Result<(), ManagerError> {
        let settings = options.settings();
        settings.check().map_err(refused)?;
        self.on_iscsi_cores(|cores| cores.set_settings(settings))?;
        self.put(option_key("iscsi_set_options"), entry("iscsi_set_options", options.params()));
        self.model_mut().iscsi.options = options;
        Ok(())
    }
}
