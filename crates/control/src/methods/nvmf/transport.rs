//! `nvmf_create_transport`, `nvmf_get_transports`.

use raceline_proto::controller::MAX_RDMA_IN_CAPSULE_BYTES;
use raceline_target::{SHARED_RECEIVES, TargetConfig};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{RpcError, code};
use crate::manager::nvmf::{RdmaLimits, RdmaOptions, RdmaShown, TransportOptions};
use crate::method::{Call, Registry, States};
use crate::params::refuse;

pub(super) fn register(registry: &mut Registry) {
    registry.change("nvmf_create_transport", States::Runtime, create);
    registry.alias("nvmf_transport_create", "nvmf_create_transport");
    registry.read("nvmf_get_transports", States::Runtime, get);
    registry.alias("get_nvmf_transports", "nvmf_get_transports");
}

/// SPDK's decoder is relaxed: parameters of other transports are ignored, and named in the log. Some of the
/// other options tune SPDK's own buffers; they are kept and shown, and change nothing that a host can see.
#[derive(Clone, Serialize, Deserialize)]
struct Create {
    trtype: String,
    #[serde(skip_serializing)]
    tgt_name: Option<String>,
    max_queue_depth: Option<u16>,
    max_io_qpairs_per_ctrlr: Option<u16>,
    /// Sent by clients before SPDK 20.04; it counts the admin queue.
    #[serde(skip_serializing)]
    max_qpairs_per_ctrlr: Option<u16>,
    in_capsule_data_size: Option<u32>,
    max_io_size: Option<u32>,
    #[serde(default, rename = "io_unit_size", skip_serializing)]
    _io_unit_size: Option<u32>,
    max_aq_depth: Option<u16>,
    #[serde(default, rename = "num_shared_buffers", skip_serializing)]
    _num_shared_buffers: Option<u32>,
    #[serde(default, rename = "buf_cache_size", skip_serializing)]
    _buf_cache_size: Option<u32>,
    #[serde(default)]
    iobuf_small_cache_size: u32,
    #[serde(default)]
    iobuf_large_cache_size: u32,
    #[serde(default)]
    dif_insert_or_strip: bool,
    #[serde(default)]
    zcopy: bool,
    #[serde(default = "Create::c2h_success")]
    c2h_success: bool,
    #[serde(default)]
    sock_priority: u32,
    #[serde(default = "Create::abort_timeout_sec")]
    abort_timeout_sec: u32,
    #[serde(default)]
    ack_timeout: u32,
    /// The default of RDMA is another one than TCP's.
    data_wr_pool_size: Option<u32>,
    /// Of RDMA only. The first three have no effect: they are kept and shown.
    #[serde(skip_serializing)]
    num_cqe: Option<i32>,
    #[serde(skip_serializing)]
    acceptor_backlog: Option<i32>,
    #[serde(skip_serializing)]
    no_wr_batching: Option<bool>,
    #[serde(skip_serializing)]
    max_srq_depth: Option<u32>,
    #[serde(skip_serializing)]
    no_srq: Option<bool>,
    #[serde(default)]
    disable_command_passthru: bool,
    kas: Option<u16>,
    min_kato: Option<u32>,
}

impl Create {
    fn c2h_success() -> bool {
        true
    }
    fn abort_timeout_sec() -> u32 {
        1
    }
}

/// The greatest socket priority that needs no privilege is 6; SPDK takes 0 to 16.
const MAX_SOCK_PRIORITY: u32 = 16;

fn create(call: &Call<'_>, params: Create) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name.clone());
    super::check_target(call.manager, &target)?;
    if params.trtype.eq_ignore_ascii_case("rdma") {
        return create_rdma(call, &target, &params);
    }
    if !params.trtype.eq_ignore_ascii_case("tcp") {
        let text = format!("Invalid transport type '{}'", params.trtype);
        return Err(RpcError::new(code::INVALID_PARAMS, text));
    }
    refuse(&[
        ("dif_insert_or_strip", params.dif_insert_or_strip),
        ("disable_command_passthru", params.disable_command_passthru),
    ])?;
    check_ranges(&params)?;
    let usual = TransportOptions::default();
    let io_queues = io_queues(params.max_io_qpairs_per_ctrlr, params.max_qpairs_per_ctrlr)?
        .unwrap_or(usual.max_io_qpairs_per_ctrlr);
    let existing = call.manager.model().nvmf.target(&target)?.has_tcp();
    if existing {
        let text = format!("Transport type '{}' already exists", params.trtype);
        return Err(RpcError::internal(text));
    }
    let max_io_size = params.max_io_size.unwrap_or(usual.max_io_size);
    let in_capsule = params.in_capsule_data_size.unwrap_or(usual.in_capsule_data_size);
    let options = TransportOptions {
        max_queue_depth: params.max_queue_depth.unwrap_or(usual.max_queue_depth),
        max_io_qpairs_per_ctrlr: io_queues,
        in_capsule_data_size: in_capsule.min(max_io_size),
        max_io_size,
        max_aq_depth: params.max_aq_depth.unwrap_or(usual.max_aq_depth),
        sock_priority: params.sock_priority,
        ack_timeout: params.ack_timeout,
        c2h_success: params.c2h_success,
        kas: params.kas.unwrap_or(usual.kas),
        min_kato: params.min_kato.unwrap_or(usual.min_kato),
    };
    let params = Create {
        trtype: "TCP".to_owned(),
        max_queue_depth: Some(options.max_queue_depth),
        max_io_qpairs_per_ctrlr: Some(io_queues),
        in_capsule_data_size: Some(in_capsule),
        max_io_size: Some(max_io_size),
        max_aq_depth: Some(options.max_aq_depth),
        data_wr_pool_size: Some(params.data_wr_pool_size.unwrap_or(0)),
        kas: Some(options.kas),
        min_kato: Some(options.min_kato),
        ..params
    };
    let kept = serde_json::to_value(&params).unwrap_or_default();
    call.manager
        .change(|change| change.create_transport(&target, options, kept))
        .map_err(|error| RpcError::internal("Failed to create transport.").because(error))?;
    Ok(true)
}

/// The cores of a target have one set of limits for TCP and RDMA. Only the receives of RDMA, and how data are read, have
/// parameters of their own.
fn create_rdma(call: &Call<'_>, target: &str, params: &Create) -> Result<bool, RpcError> {
    check_ranges(params)?;
    let io_queues = io_queues(params.max_io_qpairs_per_ctrlr, params.max_qpairs_per_ctrlr)?;
    refuse(&[
        ("dif_insert_or_strip", params.dif_insert_or_strip),
        ("disable_command_passthru", params.disable_command_passthru),
    ])?;
    if call.manager.rdma_options(target).is_some() {
        let text = format!("Transport type '{}' already exists", params.trtype);
        return Err(RpcError::internal(text));
    }
    let options = RdmaOptions {
        limits: RdmaLimits {
            max_queue_depth: params.max_queue_depth,
            max_io_qpairs_per_ctrlr: io_queues,
            in_capsule_data_size: params.in_capsule_data_size,
            max_io_size: params.max_io_size,
            max_aq_depth: params.max_aq_depth,
            kas: params.kas,
            min_kato: params.min_kato,
        },
        max_srq_depth: params.max_srq_depth.unwrap_or(SHARED_RECEIVES),
        no_srq: params.no_srq.unwrap_or(false),
        zcopy: params.zcopy,
        shown: rdma_shown(params),
    };
    call.manager
        .change(|change| change.create_rdma_transport(target, options))
        .map_err(|error| RpcError::internal("Failed to create transport.").because(error))?;
    Ok(true)
}

/// What the call says that changes nothing for RDMA.
fn rdma_shown(params: &Create) -> RdmaShown {
    let usual = RdmaShown::default();
    RdmaShown {
        num_cqe: params.num_cqe.unwrap_or(usual.num_cqe),
        // As in SPDK, 0 and less stand for the default.
        acceptor_backlog: params
            .acceptor_backlog
            .filter(|backlog| *backlog > 0)
            .unwrap_or(usual.acceptor_backlog),
        no_wr_batching: params.no_wr_batching.unwrap_or(usual.no_wr_batching),
        abort_timeout_sec: params.abort_timeout_sec,
        ack_timeout: params.ack_timeout,
        data_wr_pool_size: params.data_wr_pool_size.unwrap_or(usual.data_wr_pool_size),
        iobuf_small_cache_size: params.iobuf_small_cache_size,
        iobuf_large_cache_size: params.iobuf_large_cache_size,
    }
}

/// Refuses values out of range; the error names the value and the range.
fn check_ranges(params: &Create) -> Result<(), RpcError> {
    let depths = TargetConfig::ADMIN_ENTRIES;
    let wrong = [
        (params.sock_priority > MAX_SOCK_PRIORITY, "sock_priority must be 0 to 16".to_owned()),
        (
            params.max_aq_depth.is_some_and(|depth| !depths.contains(&depth)),
            format!("max_aq_depth must be {} to {}", depths.start(), depths.end()),
        ),
        (params.kas == Some(0), "kas must be at least 1, in units of 100 ms".to_owned()),
        (params.min_kato == Some(0), "min_kato must be at least 1, in milliseconds".to_owned()),
    ];
    match wrong.into_iter().find(|(is_wrong, _)| *is_wrong) {
        Some((_, text)) => Err(RpcError::invalid_params(text)),
        None => Ok(()),
    }
}

/// I/O queues of a controller, from the present parameter or the old one, which counts the admin queue.
fn io_queues(now: Option<u16>, old: Option<u16>) -> Result<Option<u16>, RpcError> {
    let of_old = match old {
        None => None,
        Some(all @ 2..) => Some(all - 1),
        Some(_) => {
            let text = "max_qpairs_per_ctrlr must be at least 2: it counts the admin queue";
            return Err(RpcError::invalid_params(text));
        }
    };
    match (now, of_old) {
        (Some(now), Some(of_old)) if now != of_old => {
            let text = format!(
                "max_qpairs_per_ctrlr asks for {of_old} I/O queues, as it counts the admin queue, and \
                 max_io_qpairs_per_ctrlr for {now}: give one of them"
            );
            Err(RpcError::invalid_params(text))
        }
        (now, of_old) => Ok(now.or(of_old)),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    trtype: Option<String>,
    tgt_name: Option<String>,
}

fn get(call: &Call<'_>, params: Get) -> Result<Vec<Value>, RpcError> {
    let name = super::target_name(params.tgt_name);
    super::check_target(call.manager, &name)?;
    let tcp = call.manager.transport_params(&name);
    let mut transports: Vec<Value> = tcp.into_iter().collect();
    let all = call.manager.model().nvmf.target(&name)?.transport().cloned();
    if let Some((rdma, all)) = call.manager.rdma_options(&name).zip(all) {
        transports.push(rdma_transport(&all, &rdma));
    }
    let Some(trtype) = params.trtype else { return Ok(transports) };
    let is_named = |transport: &Value| {
        transport["trtype"].as_str().is_some_and(|text| text.eq_ignore_ascii_case(&trtype))
    };
    transports.retain(is_named);
    if transports.is_empty() && !trtype.eq_ignore_ascii_case("tcp") {
        return Err(RpcError::errno(libc::ENODEV)
            .because(format!("there is no transport `{}`", trtype.escape_debug())));
    }
    Ok(transports)
}

/// The transport RDMA with the parameters that SPDK shows of it; the limits are those of all transports of the target.
fn rdma_transport(all: &TransportOptions, rdma: &RdmaOptions) -> Value {
    let RdmaOptions { max_srq_depth, no_srq, zcopy, shown, .. } = *rdma;
    let mut transport = json!({
        "trtype": "RDMA",
        "max_queue_depth": all.max_queue_depth,
        "max_io_qpairs_per_ctrlr": all.max_io_qpairs_per_ctrlr,
        "in_capsule_data_size": all.in_capsule_data_size.min(MAX_RDMA_IN_CAPSULE_BYTES),
        "max_io_size": all.max_io_size,
        "max_aq_depth": all.max_aq_depth,
        "iobuf_small_cache_size": shown.iobuf_small_cache_size,
        "iobuf_large_cache_size": shown.iobuf_large_cache_size,
        "dif_insert_or_strip": false,
        "zcopy": zcopy,
        "max_srq_depth": max_srq_depth,
        "no_srq": no_srq,
        "acceptor_backlog": shown.acceptor_backlog,
        "no_wr_batching": shown.no_wr_batching,
        "abort_timeout_sec": shown.abort_timeout_sec,
        "ack_timeout": shown.ack_timeout,
        "data_wr_pool_size": shown.data_wr_pool_size,
        "disable_command_passthru": false,
        "kas": all.kas,
        "min_kato": all.min_kato,
    });
    if no_srq {
        transport["num_cqe"] = shown.num_cqe.into();
    }
    transport
}
