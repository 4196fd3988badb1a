//! Namespaces of a daemon's remote controllers that have become no devices of the daemon.

use serde_json::Value;

use crate::table::printable;

/// Such a namespace.
pub(crate) struct Unopened {
    /// The controller of the daemon.
    pub(crate) controller: String,
    pub(crate) nsid: u32,
    /// Why it is no device.
    pub(crate) reason: String,
}

impl Unopened {
    /// What is the matter, without the reason.
    pub(crate) fn what(&self) -> String {
        format!("namespace {} of {} is no device", self.nsid, printable(&self.controller))
    }
}

/// Those of a controller as `bdev_nvme_get_controllers` describes it.
pub(crate) fn unopened(controller: &Value) -> Vec<Unopened> {
    let all = controller["unopened"].as_array().map_or(&[][..], Vec::as_slice);
    let one = |unopened: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let nsid = unopened["nsid"].as_u64().and_then(|nsid| u32::try_from(nsid).ok())?;
        let (controller, reason) = (text(&controller["name"]), text(&unopened["reason"]));
        Some(Unopened { controller, nsid, reason })
    };
    all.iter().filter_map(one).collect()
}
