//! `notify_*`: the last events.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::RpcError;
use crate::manager::notify::EventKind;
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

pub(super) fn register(registry: &mut Registry) {
    registry.read("notify_get_types", States::Runtime, get_types);
    registry.alias("get_notification_types", "notify_get_types");
    registry.read("notify_get_notifications", States::Runtime, get_notifications);
    registry.alias("get_notifications", "notify_get_notifications");
}

fn get_types(_call: &Call<'_>, _params: NoParams) -> Result<Vec<&'static str>, RpcError> {
    Ok(EventKind::ALL.iter().map(|kind| kind.name()).collect())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetNotifications {
    #[serde(default)]
    id: u64,
    #[serde(default)]
    max: Option<u64>,
}

fn get_notifications(call: &Call<'_>, params: GetNotifications) -> Result<Vec<Value>, RpcError> {
    let max = params.max.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX));
    let model = call.manager.model();
    let events = model.events.since(params.id).take(max);
    Ok(events
        .map(|(id, kind, context)| json!({ "type": kind.name(), "ctx": context, "id": id }))
        .collect())
}
