//! `log_*`: how much is logged.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::RpcError;
use crate::logging::{FLAGS, LogLevel};
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

/// SPDK's flag for all flags.
const ALL: &str = "all";

pub(super) fn register(registry: &mut Registry) {
    registry.change("log_set_print_level", States::Both, set_print_level);
    registry.alias("set_log_print_level", "log_set_print_level");
    registry.read("log_get_print_level", States::Both, get_print_level);
    registry.alias("get_log_print_level", "log_get_print_level");
    registry.change("log_set_level", States::Both, set_level);
    registry.alias("set_log_level", "log_set_level");
    registry.read("log_get_level", States::Both, get_level);
    registry.alias("get_log_level", "log_get_level");
    registry.change("log_set_flag", States::Both, set_flag);
    registry.alias("set_log_flag", "log_set_flag");
    registry.change("log_clear_flag", States::Both, clear_flag);
    registry.alias("clear_log_flag", "log_clear_flag");
    registry.read("log_get_flags", States::Both, get_flags);
    registry.alias("get_log_flags", "log_get_flags");
    registry.change("log_enable_timestamps", States::Runtime, enable_timestamps);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Level {
    level: LogLevel,
}

fn set_print_level(call: &Call<'_>, params: Level) -> Result<bool, RpcError> {
    call.manager.config().logging.change(|settings| settings.print_level = params.level);
    Ok(true)
}

fn get_print_level(call: &Call<'_>, _params: NoParams) -> Result<LogLevel, RpcError> {
    Ok(call.manager.config().logging.settings().print_level)
}

fn set_level(call: &Call<'_>, params: Level) -> Result<bool, RpcError> {
    call.manager.config().logging.change(|settings| settings.level = params.level);
    Ok(true)
}

fn get_level(call: &Call<'_>, _params: NoParams) -> Result<LogLevel, RpcError> {
    Ok(call.manager.config().logging.settings().level)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Flag {
    flag: String,
}

/// The flags for which a name stands.
fn flags(name: &str) -> Result<Vec<&'static str>, RpcError> {
    let meant: Vec<&str> =
        FLAGS.iter().map(|(flag, _)| *flag).filter(|flag| name == ALL || name == *flag).collect();
    if meant.is_empty() {
        let known: Vec<&str> = FLAGS.iter().map(|(flag, _)| *flag).collect();
        let detail = format!("there is no flag `{}`: {}", name.escape_debug(), known.join(", "));
        return Err(RpcError::invalid_params(detail));
    }
    Ok(meant)
}

fn set_flag(call: &Call<'_>, params: Flag) -> Result<bool, RpcError> {
    let flags = flags(&params.flag)?;
    call.manager.config().logging.change(|settings| settings.flags.extend(flags));
    Ok(true)
}

fn clear_flag(call: &Call<'_>, params: Flag) -> Result<bool, RpcError> {
    let flags = flags(&params.flag)?;
    call.manager
        .config()
        .logging
        .change(|settings| settings.flags.retain(|flag| !flags.contains(flag)));
    Ok(true)
}

fn get_flags(call: &Call<'_>, _params: NoParams) -> Result<Map<String, Value>, RpcError> {
    let set = call.manager.config().logging.settings().flags;
    Ok(FLAGS.iter().map(|(flag, _)| ((*flag).to_owned(), set.contains(flag).into())).collect())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Timestamps {
    enabled: bool,
}

fn enable_timestamps(call: &Call<'_>, params: Timestamps) -> Result<bool, RpcError> {
    call.manager.config().logging.show_time(params.enabled);
    Ok(true)
}
