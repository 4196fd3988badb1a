//! `accel_*`: which engine does which operation, and counts of what the engines did.

use raceline_accel::{Framework, Injection, InjectionKind, OpCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{RpcError, code};
use crate::manager::catalogue::{Entry, Section};
use crate::manager::options::option_key;
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

pub(super) fn register(registry: &mut Registry) {
    registry.read("accel_get_module_info", States::Runtime, module_info);
    registry.read("accel_get_opc_assignments", States::Runtime, assignments);
    registry.change("accel_assign_opc", States::Startup, assign);
    registry.change("accel_set_driver", States::Startup, set_driver);
    registry.change("accel_set_options", States::Startup, set_options);
    registry.read("accel_get_stats", States::Runtime, statistics);
    registry.change("accel_error_inject_error", States::Runtime, inject);
}

fn framework<'a>(call: &'a Call<'_>) -> &'a Framework {
    &call.manager.config().accel
}

fn module_info(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let modules = framework(call).modules().into_iter().filter(|module| module.available);
    let describe = |module: raceline_accel::ModuleInfo| {
        let operations: Vec<&str> = module.operations.iter().map(OpCode::name).collect();
        json!({ "module": module.name, "supported ops": operations })
    };
    Ok(modules.map(describe).collect())
}

fn assignments(call: &Call<'_>, _params: NoParams) -> Result<Map<String, Value>, RpcError> {
    let assignments = framework(call).assignments().into_iter();
    Ok(assignments.map(|(code, engine)| (code.name().to_owned(), engine.into())).collect())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetDriver {
    name: Option<String>,
}

/// A driver does several of SPDK's operations as one. There is only the software driver, which is also in
/// effect when none is set.
fn set_driver(_call: &Call<'_>, params: SetDriver) -> Result<bool, RpcError> {
    match params.name.as_deref() {
        None | Some("software") => Ok(true),
        Some(other) => {
            let detail = format!("driver `{}`: there is only software", other.escape_debug());
            Err(RpcError::errno(libc::ENODEV).because(detail))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Assign {
    opname: String,
    module: String,
}

fn assign(call: &Call<'_>, params: Assign) -> Result<bool, RpcError> {
    let invalid = |text: &'static str, detail: String| {
        RpcError::new(code::INVALID_PARAMS, text).because(detail)
    };
    let operation: OpCode =
        params.opname.parse().map_err(|error: raceline_accel::UnknownOpCode| {
            invalid("spdk_json_decode_object failed", error.to_string())
        })?;
    call.manager.change(|change| {
        let assigned = change.manager().config().accel.assign(operation, &params.module);
        assigned.map_err(|error| invalid("error assigning opcode", error.to_string()))?;
        let kept = json!({ "opname": operation.name(), "module": params.module });
        let entry = Entry::new(Section::Accel, "accel_assign_opc", &kept)?;
        change.put(option_key(&format!("accel-{}", operation.name())), entry);
        Ok(true)
    })
}

/// Sizes of pools that this program does not have: operations live in slots of their channel. The options
/// are kept for clients that ask for them, without effect.
#[derive(Clone, serde::Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    small_cache_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    large_cache_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence_count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    buf_count: Option<u32>,
}

fn set_options(call: &Call<'_>, params: SetOptions) -> Result<bool, RpcError> {
    call.manager.change(|change| {
        let entry = Entry::new(Section::Accel, "accel_set_options", &params)?;
        change.put(option_key("accel"), entry);
        Ok(true)
    })
}

/// SPDK's counts, and counts that exist only here.
fn statistics(call: &Call<'_>, _params: NoParams) -> Result<Value, RpcError> {
    let framework = framework(call);
    let statistics = framework.statistics();
    let operations = framework.assignments().map(|(code, engine)| {
        let counts = statistics.of(code);
        json!({
            "opcode": code.name(),
            "module_name": engine,
            "executed": counts.executed,
            "failed": counts.failed,
            "num_bytes": counts.bytes,
            "fallbacks": counts.fallbacks,
        })
    });
    let outstanding: u64 = OpCode::ALL.iter().map(|code| statistics.of(*code).in_flight).sum();
    Ok(json!({
        "sequence_executed": 0,
        "sequence_failed": 0,
        "sequence_outstanding": 0,
        "task_outstanding": outstanding,
        "operations": operations,
        "retry_task": statistics.full,
        "retry_sequence": 0,
        "retry_iobuf": 0,
        "retry_bufdesc": 0,
        "timed_out": statistics.timed_out,
        "quarantined": statistics.quarantined,
        "leaked": statistics.leaked,
        "bogus": statistics.bogus,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Inject {
    opcode: String,
    r#type: String,
    count: Option<u64>,
    interval: Option<u64>,
    /// Errors have kinds here, but no numbers.
    errcode: Option<i32>,
}

fn inject(call: &Call<'_>, params: Inject) -> Result<bool, RpcError> {
    let operation: OpCode = params
        .opcode
        .parse()
        .map_err(|error: raceline_accel::UnknownOpCode| RpcError::invalid_params(error))?;
    crate::params::refuse(&[("errcode", params.errcode.is_some())])?;
    let rule = |kind| Injection {
        kind,
        interval: params.interval.unwrap_or(1),
        count: params.count.filter(|count| *count != 0).unwrap_or(u64::MAX),
    };
    let injection = match params.r#type.as_str() {
        "disable" => None,
        "corrupt" => Some(rule(InjectionKind::Corrupt)),
        "failure" => Some(rule(InjectionKind::Fail)),
        other => {
            let detail =
                format!("type `{}` is none of disable, corrupt, failure", other.escape_debug());
            return Err(RpcError::invalid_params(detail));
        }
    };
    framework(call).inject(operation, injection);
    Ok(true)
}
