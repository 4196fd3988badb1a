//! `bdev_delay_*`: a device that delays requests, and by how much.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use raceline_bdev::{DelayBdev, DelayControl, Delays, Latency, OpKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::Name;
use super::stacked::{self, Stacked};
use crate::error::{RpcError, code};
use crate::manager::bdevs::{Details, Entry};
use crate::manager::catalogue::Key;
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_delay_create", States::Runtime, create);
    registry.change("bdev_delay_delete", States::Runtime, delete);
    registry.change("bdev_delay_update_latency", States::Runtime, update_latency);
}

/// All latencies in microseconds.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    name: String,
    base_bdev_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<Uuid>,
    avg_read_latency: u64,
    p99_read_latency: u64,
    avg_write_latency: u64,
    p99_write_latency: u64,
}

struct Delayed {
    control: DelayControl,
    name: String,
    base: String,
}

impl Details for Delayed {
    fn driver_specific(&self) -> Value {
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let read = self.control.get(OpKind::Read);
        let write = self.control.get(OpKind::Write);
        json!({ "delay": {
            "name": self.name,
            "base_bdev_name": self.base,
            "avg_read_latency": micros(read.average),
            "p99_read_latency": micros(read.p99),
            "avg_write_latency": micros(write.average),
            "p99_write_latency": micros(write.p99),
        } })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Stacked for Create {
    const METHOD: &'static str = "bdev_delay_create";
    const MODULE: &'static str = "delay";

    fn base(&self) -> &str {
        &self.base_bdev_name
    }

    fn key(&self) -> Key {
        Key::new(&["bdev", &self.name])
    }

    fn make(&self, base: &Entry) -> Result<Vec<Entry>, RpcError> {
        super::check_levels(base)?;
        let device = DelayBdev::new(base.device.clone(), Delays::all(Duration::ZERO));
        let control = device.control();
        let latency = |average, p99| Latency {
            average: Duration::from_micros(average),
            p99: Duration::from_micros(p99),
        };
        control.set(OpKind::Read, latency(self.avg_read_latency, self.p99_read_latency));
        control.set(OpKind::Write, latency(self.avg_write_latency, self.p99_write_latency));
        let details = Delayed { control, name: self.name.clone(), base: base.name.clone() };
        let uuid = super::uuid_on(base, Self::MODULE, self.uuid);
        Ok(vec![
            Entry::with_uuid(&self.name, uuid, Self::MODULE, "delay", Arc::new(device))
                .described_by(details),
        ])
    }
}

fn create(call: &Call<'_>, params: Create) -> Result<String, RpcError> {
    for (average, p99, kind) in [
        (params.avg_read_latency, params.p99_read_latency, "read"),
        (params.avg_write_latency, params.p99_write_latency, "write"),
    ] {
        if average > p99 {
            let detail = format!("avg_{kind}_latency must not be more than p99_{kind}_latency");
            return Err(RpcError::errno(libc::EINVAL).because(detail));
        }
    }
    stacked::create(call, &params)?;
    Ok(params.name)
}

fn delete(call: &Call<'_>, Name { name }: Name) -> Result<bool, RpcError> {
    stacked::delete::<Create>(call, &name, Key::new(&["bdev", &name]))
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LatencyType {
    AvgRead,
    P99Read,
    AvgWrite,
    P99Write,
}

impl LatencyType {
    /// The parameter of [`Create`] that this latency has.
    const fn member(self) -> &'static str {
        match self {
            Self::AvgRead => "avg_read_latency",
            Self::P99Read => "p99_read_latency",
            Self::AvgWrite => "avg_write_latency",
            Self::P99Write => "p99_write_latency",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UpdateLatency {
    delay_bdev_name: String,
    latency_type: LatencyType,
    latency_us: u64,
}

fn update_latency(call: &Call<'_>, params: UpdateLatency) -> Result<bool, RpcError> {
    let UpdateLatency { delay_bdev_name: name, latency_type, latency_us } = params;
    call.manager.change(|change| {
        // SPDK answers the same for a device of another kind.
        let missing = || RpcError::new(code::INVALID_PARAMS, "The requested bdev does not exist.");
        let bdev = change.model().bdevs.find(&name).cloned().ok_or_else(missing)?;
        let Some(Delayed { control, .. }) = bdev.details.as_any().downcast_ref() else {
            return Err(missing().because(format!("`{name}` is a {} device", bdev.module)));
        };
        let kind = match latency_type {
            LatencyType::AvgRead | LatencyType::P99Read => OpKind::Read,
            LatencyType::AvgWrite | LatencyType::P99Write => OpKind::Write,
        };
        let mut latency = control.get(kind);
        match latency_type {
            LatencyType::AvgRead | LatencyType::AvgWrite => &mut latency.average,
            LatencyType::P99Read | LatencyType::P99Write => &mut latency.p99,
        }
        .clone_from(&Duration::from_micros(latency_us));
        control.set(kind, latency);
        if let Some(key) = bdev.key.clone() {
            let kept = change.model().catalogue.get(&key).cloned();
            if let Some(mut entry) = kept {
                entry.params[latency_type.member()] = latency_us.into();
                change.put(key, entry);
            }
        }
        Ok(true)
    })
}
