//! `iscsi_set_options`, `iscsi_get_options`, `iscsi_set_discovery_auth`.

use std::ops::RangeInclusive;

use serde::Deserialize;
use serde_json::Value;

use super::{invalid, policy};
use crate::error::{RpcError, code};
use crate::manager::iscsi::IscsiOptions;
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

/// SPDK's ranges.
const SECONDS_OF_NOP: RangeInclusive<i64> = 0..=60;
const SECONDS_OF_TIMEOUT: RangeInclusive<i64> = 0..=86_400;
const SESSIONS: RangeInclusive<i64> = 1..=65_535;
const QUEUE_DEPTH: RangeInclusive<i64> = 1..=256;
const SECONDS_TO_WAIT: RangeInclusive<i64> = 0..=3600;
const FIRST_BURST: RangeInclusive<i64> = 512..=16_777_215;
const RECOVERY_LEVEL: RangeInclusive<i64> = 0..=2;

pub(super) fn register(registry: &mut Registry) {
    registry.change("iscsi_set_options", States::Startup, set);
    registry.read("iscsi_get_options", States::Runtime, get);
    registry.change("iscsi_set_discovery_auth", States::Runtime, set_discovery_auth);
}

/// Unknown parameters are ignored, and named in the log: older releases of SPDK had more.
#[derive(Deserialize)]
struct Set {
    auth_file: Option<String>,
    node_base: Option<String>,
    nop_timeout: Option<i32>,
    nop_in_interval: Option<i32>,
    #[serde(default)]
    disable_chap: bool,
    #[serde(default)]
    require_chap: bool,
    #[serde(default)]
    mutual_chap: bool,
    #[serde(default)]
    chap_group: i32,
    max_sessions: Option<u32>,
    max_queue_depth: Option<u32>,
    max_connections_per_session: Option<u32>,
    default_time2wait: Option<u32>,
    default_time2retain: Option<u32>,
    first_burst_length: Option<u32>,
    immediate_data: Option<bool>,
    error_recovery_level: Option<u32>,
    allow_duplicated_isid: Option<bool>,
    max_large_datain_per_connection: Option<u32>,
    max_r2t_per_connection: Option<u32>,
    pdu_pool_size: Option<u32>,
    immediate_data_pool_size: Option<u32>,
    data_out_pool_size: Option<u32>,
    /// Of releases before 20.01.
    min_connections_per_session: Option<u32>,
}

fn set(call: &Call<'_>, params: Set) -> Result<bool, RpcError> {
    let options = options(&params)?;
    call.manager.change(|change| change.set_iscsi_options(options)).map_err(invalid)?;
    Ok(true)
}

fn options(params: &Set) -> Result<IscsiOptions, RpcError> {
    if params.auth_file.as_deref().is_some_and(|file| !file.is_empty()) {
        let error = RpcError::unsupported("auth_file");
        return Err(error.because("give the secrets by iscsi_create_auth_group"));
    }
    check_ranges(params)?;
    let defaults = IscsiOptions::default();
    let Set { disable_chap, require_chap, mutual_chap, chap_group, .. } = *params;
    let discovery_auth = policy(disable_chap, require_chap, mutual_chap, chap_group);
    let mut kept = defaults.kept.clone();
    let numbers = [
        ("max_connections_per_session", params.max_connections_per_session),
        ("error_recovery_level", params.error_recovery_level),
        ("max_large_datain_per_connection", params.max_large_datain_per_connection),
        ("max_r2t_per_connection", params.max_r2t_per_connection),
        ("pdu_pool_size", params.pdu_pool_size),
        ("immediate_data_pool_size", params.immediate_data_pool_size),
        ("data_out_pool_size", params.data_out_pool_size),
        ("min_connections_per_session", params.min_connections_per_session),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            kept[name] = number.into();
        }
    }
    if let Some(allow) = params.allow_duplicated_isid {
        kept["allow_duplicated_isid"] = allow.into();
    }
    // All are within their ranges by now.
    let short = |given: Option<u32>, default: u16| {
        given.map_or(default, |given| u16::try_from(given).unwrap_or(u16::MAX))
    };
    let seconds = |given: Option<i32>, default: u32| {
        given.map_or(default, |given| u32::try_from(given).unwrap_or(0))
    };
    Ok(IscsiOptions {
        node_base: params.node_base.clone().unwrap_or(defaults.node_base),
        nop_timeout: seconds(params.nop_timeout, defaults.nop_timeout),
        nop_in_interval: seconds(params.nop_in_interval, defaults.nop_in_interval),
        max_sessions: params.max_sessions.unwrap_or(defaults.max_sessions),
        max_queue_depth: short(params.max_queue_depth, defaults.max_queue_depth),
        default_time2wait: short(params.default_time2wait, defaults.default_time2wait),
        default_time2retain: short(params.default_time2retain, defaults.default_time2retain),
        first_burst_length: params.first_burst_length.unwrap_or(defaults.first_burst_length),
        immediate_data: params.immediate_data.unwrap_or(defaults.immediate_data),
        discovery_auth: discovery_auth.map_err(RpcError::invalid_params)?,
        kept,
    })
}

/// Refuses values out of SPDK's ranges; the error names the value and the range.
fn check_ranges(params: &Set) -> Result<(), RpcError> {
    let values = [
        ("nop_timeout", params.nop_timeout.map(i64::from), SECONDS_OF_TIMEOUT),
        ("nop_in_interval", params.nop_in_interval.map(i64::from), SECONDS_OF_NOP),
        ("max_sessions", params.max_sessions.map(i64::from), SESSIONS),
        ("max_queue_depth", params.max_queue_depth.map(i64::from), QUEUE_DEPTH),
        ("default_time2wait", params.default_time2wait.map(i64::from), SECONDS_TO_WAIT),
        ("default_time2retain", params.default_time2retain.map(i64::from), SECONDS_TO_WAIT),
        ("first_burst_length", params.first_burst_length.map(i64::from), FIRST_BURST),
        ("error_recovery_level", params.error_recovery_level.map(i64::from), RECOVERY_LEVEL),
    ];
    let wrong = values
        .into_iter()
        .find(|(_, value, range)| value.is_some_and(|value| !range.contains(&value)));
    match wrong {
        Some((name, _, range)) => {
            let text = format!("{name} must be {} to {}", range.start(), range.end());
            Err(RpcError::invalid_params(text))
        }
        None => Ok(()),
    }
}

fn get(call: &Call<'_>, _params: NoParams) -> Result<Value, RpcError> {
    Ok(call.manager.model().iscsi.options.params())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetDiscoveryAuth {
    #[serde(default)]
    disable_chap: bool,
    #[serde(default)]
    require_chap: bool,
    #[serde(default)]
    mutual_chap: bool,
    #[serde(default)]
    chap_group: i32,
}

fn set_discovery_auth(call: &Call<'_>, params: SetDiscoveryAuth) -> Result<bool, RpcError> {
    let SetDiscoveryAuth { disable_chap, require_chap, mutual_chap, chap_group } = params;
    let discovery_auth = policy(disable_chap, require_chap, mutual_chap, chap_group);
    let discovery_auth = discovery_auth.map_err(|error| {
        RpcError::new(code::INVALID_PARAMS, "Invalid combination of CHAP params").because(error)
    })?;
    let set = |change: &mut crate::manager::Change<'_>| {
        let options = change.model().iscsi.options.clone();
        change.set_iscsi_options(IscsiOptions { discovery_auth, ..options })
    };
    call.manager.change(set).map_err(invalid)?;
    Ok(true)
}
