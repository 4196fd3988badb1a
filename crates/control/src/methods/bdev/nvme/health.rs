//! `bdev_nvme_get_controller_health_info`: the SMART log of a controller.

use raceline_proto::nvme::log::SmartLog;
use serde_json::{Map, Value, json};
use zerocopy::FromBytes as _;

use super::Name;
use crate::error::RpcError;
use crate::manager::controllers::link::Link;
use crate::method::{Call, Registry, States};

/// 0 degrees Celsius in kelvins, rounded to the degree.
const FREEZING_KELVIN: u16 = 273;

pub(super) fn register(registry: &mut Registry) {
    registry.read("bdev_nvme_get_controller_health_info", States::Runtime, get);
}

fn get(call: &Call<'_>, Name { name }: Name) -> Result<Value, RpcError> {
    // The lock is not held while the controller answers.
    let found = call.manager.model().controllers.get(&name).cloned();
    let controller = found.ok_or_else(|| {
        RpcError::internal("Device not found").because(format!("there is no controller `{name}`"))
    })?;
    let link = &controller.link;
    let failed = |detail: String| RpcError::internal("Internal error.").because(detail);
    let page = link.health().map_err(failed)?;
    let (log, _) = SmartLog::ref_from_prefix(&page)
        .map_err(|_| failed(format!("the log page has {} bytes", page.len())))?;
    Ok(describe(link, log))
}

fn describe(link: &Link, log: &SmartLog) -> Value {
    let celsius = |kelvin: u16| kelvin.saturating_sub(FREEZING_KELVIN);
    let number = |wide: u128| u64::try_from(wide).unwrap_or(u64::MAX);
    let mut text = Map::new();
    let mut put = |name: &str, value: Value| drop(text.insert(name.to_owned(), value));
    let about = link.controller_data();
    for name in ["model_number", "serial_number", "firmware_revision"] {
        put(name, about[name].clone());
    }
    put("traddr", link.trid()["traddr"].clone());
    put("critical_warning", log.critical_warning.into());
    put("temperature_celsius", celsius(log.composite_temperature.get()).into());
    put("available_spare_percentage", log.available_spare.into());
    put("available_spare_threshold_percentage", log.available_spare_threshold.into());
    put("percentage_used", log.percentage_used.into());
    for (name, wide) in [
        ("data_units_read", log.data_units_read),
        ("data_units_written", log.data_units_written),
        ("host_read_commands", log.host_read_commands),
        ("host_write_commands", log.host_write_commands),
        ("controller_busy_time", log.controller_busy_time),
        ("power_cycles", log.power_cycles),
        ("power_on_hours", log.power_on_hours),
        ("unsafe_shutdowns", log.unsafe_shutdowns),
        ("media_errors", log.media_errors),
        ("num_err_log_entries", log.error_log_entries),
    ] {
        put(name, number(wide.get()).into());
    }
    put("warning_temperature_time_minutes", log.warning_temperature_time.get().into());
    let critical = log.critical_temperature_time.get();
    put("critical_composite_temperature_time_minutes", critical.into());
    let sensors = log.temperature_sensors.iter().filter(|kelvin| kelvin.get() != 0);
    let sensors: Vec<u16> = sensors.map(|kelvin| celsius(kelvin.get())).collect();
    if !sensors.is_empty() {
        // SPDK repeats one member for each sensor; JSON readers would see only one of them.
        put("temperature_sensor_celsius", json!(sensors));
    }
    text.into()
}
