//! Statistics of devices: counters, latency histograms, queue depth.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use raceline_bdev::{
    DEFAULT_GRANULARITY, DeviceStats, Histogram, HistogramShape, IoTotals, OpKind,
};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::{RpcError, code};
use crate::manager::bdevs::Entry;
use crate::manager::sampling::Sampling;
use crate::method::{Call, Registry, States};

/// Times are in nanoseconds: SPDK's clients divide by this.
const TICK_RATE: u64 = 1_000_000_000;
const NS_PER_US: u64 = 1_000;
/// Ends of a histogram by default, as in SPDK: 1 us and 2 min.
const MIN_NS: u64 = 1_000;
const MAX_NS: u64 = 120_000_000_000;

pub(super) fn register(registry: &mut Registry) {
    registry.read("bdev_get_iostat", States::Runtime, get_iostat);
    registry.alias("get_bdevs_iostat", "bdev_get_iostat");
    registry.change("bdev_reset_iostat", States::Runtime, reset_iostat);
    registry.change("bdev_enable_histogram", States::Runtime, enable_histogram);
    registry.alias("enable_bdev_histogram", "bdev_enable_histogram");
    registry.read("bdev_get_histogram", States::Runtime, get_histogram);
    registry.alias("get_bdev_histogram", "bdev_get_histogram");
    registry.read("bdev_get_histogram_borders", States::Runtime, get_histogram_borders);
    registry.change("bdev_set_qd_sampling_period", States::Runtime, set_sampling);
    registry.alias("set_bdev_qd_sampling_period", "bdev_set_qd_sampling_period");
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reset {
    All,
    Maxmin,
    Error,
    #[default]
    None,
}

impl Reset {
    fn apply(self, stats: &DeviceStats) {
        match self {
            Self::All => stats.reset(),
            Self::Maxmin => stats.reset_extremes(),
            Self::Error => stats.reset_failures(),
            Self::None => {}
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetIostat {
    names: Option<Vec<String>>,
    /// The name that older clients use.
    name: Option<String>,
    #[serde(default)]
    per_channel: bool,
    #[serde(default)]
    reset_mode: Reset,
}

fn get_iostat(call: &Call<'_>, params: GetIostat) -> Result<Value, RpcError> {
    let names = params.names.or(params.name.map(|name| vec![name]));
    let model = call.manager.model();
    let bdevs: Vec<&Entry> = match &names {
        None => model.bdevs.iter().collect(),
        Some(names) => {
            let find = |name: &String| model.bdev(name);
            names.iter().map(find).collect::<Result<_, _>>()?
        }
    };
    let mut answer = Map::new();
    answer.insert("tick_rate".into(), TICK_RATE.into());
    answer.insert("ticks".into(), now_ns().into());
    if params.per_channel {
        let [bdev] = bdevs[..] else {
            let detail = "per_channel needs the name of one device";
            return Err(RpcError::errno(libc::EINVAL).because(detail));
        };
        answer.insert("name".into(), bdev.name.clone().into());
        let channels = bdev.stats.per_core().into_iter().map(|(number, totals)| {
            let mut channel = Map::new();
            channel.insert("thread_id".into(), (number + 1).into());
            describe(&mut channel, &totals);
            Value::from(channel)
        });
        answer.insert("channels".into(), channels.collect());
    } else {
        let described = bdevs.iter().map(|bdev| describe_bdev(bdev));
        answer.insert("bdevs".into(), described.collect());
    }
    bdevs.iter().for_each(|bdev| params.reset_mode.apply(&bdev.stats));
    Ok(answer.into())
}

fn describe_bdev(bdev: &Entry) -> Value {
    let mut text = Map::new();
    text.insert("name".into(), bdev.name.clone().into());
    describe(&mut text, &bdev.stats.totals());
    if let Some(sampling) = &bdev.sampling {
        text.insert("queue_depth_polling_period".into(), sampling.period_us().into());
        text.insert("queue_depth".into(), sampling.depth().into());
        text.insert("io_time".into(), sampling.busy_us().into());
        text.insert("weighted_io_time".into(), sampling.weighted_us().into());
    }
    text.into()
}

/// The counters by SPDK's names. A Copy that the device does itself counts as a copy; one that reads and writes
/// counts as a write.
fn describe(text: &mut Map<String, Value>, totals: &IoTotals) {
    let kinds = [
        ("read", "read", totals.of(OpKind::Read)),
        ("written", "write", totals.of(OpKind::Write)),
        ("unmapped", "unmap", totals.of(OpKind::Deallocate)),
        ("copied", "copy", totals.of(OpKind::Copy)),
    ];
    for (done, kind, totals) in kinds {
        text.insert(format!("bytes_{done}"), totals.bytes.into());
        text.insert(format!("num_{kind}_ops"), totals.operations.into());
    }
    for (_, kind, totals) in kinds {
        let shortest = if totals.operations == 0 { 0 } else { totals.min_latency_ns };
        let shortest = if shortest == u64::MAX { 0 } else { shortest };
        text.insert(format!("{kind}_latency_ticks"), totals.latency_ns.into());
        text.insert(format!("max_{kind}_latency_ticks"), totals.max_latency_ns.into());
        text.insert(format!("min_{kind}_latency_ticks"), shortest.into());
    }
    let failed = (totals.failures > 0).then(|| json!({ "failed": totals.failures }));
    text.insert("io_error".into(), failed.unwrap_or_else(|| json!({})));
}

/// Of a clock that nobody sets: clients divide what has been done by how much it has advanced.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let [seconds, nanoseconds] =
        [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResetIostat {
    name: Option<String>,
    mode: Option<Reset>,
}

fn reset_iostat(call: &Call<'_>, params: ResetIostat) -> Result<bool, RpcError> {
    let mode = params.mode.unwrap_or(Reset::All);
    let model = call.manager.model();
    match &params.name {
        Some(name) => {
            mode.apply(&model.bdev(name)?.stats);
        }
        None => model.bdevs.iter().for_each(|bdev| mode.apply(&bdev.stats)),
    }
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EnableHistogram {
    name: String,
    enable: bool,
    /// One kind of requests, by SPDK's name.
    opc: Option<String>,
    granularity: Option<u8>,
    min_nsec: Option<u64>,
    max_nsec: Option<u64>,
}

fn enable_histogram(call: &Call<'_>, params: EnableHistogram) -> Result<bool, RpcError> {
    let model = call.manager.model();
    let bdev = model.bdev(&params.name)?;
    let kind = match params.opc.as_deref() {
        None => None,
        Some("read") => Some(OpKind::Read),
        Some("write") => Some(OpKind::Write),
        Some("flush") => Some(OpKind::Flush),
        Some("unmap") => Some(OpKind::Deallocate),
        Some("write_zeroes") => Some(OpKind::WriteZeroes),
        Some("copy") => Some(OpKind::Copy),
        Some(other) => {
            let detail = format!("`{other}`: use read, write, flush, unmap, write_zeroes or copy");
            return Err(RpcError::internal("Invalid Io type").because(detail));
        }
    };
    if !params.enable {
        bdev.stats.stop_histogram();
        return Ok(true);
    }
    let granularity = params.granularity.unwrap_or(DEFAULT_GRANULARITY);
    let (min, max) = (params.min_nsec.unwrap_or(MIN_NS), params.max_nsec.unwrap_or(MAX_NS));
    let shape = HistogramShape::new(granularity, min, max).ok_or_else(|| {
        RpcError::errno(libc::EINVAL).because(format!(
            "no histogram of granularity {granularity} from {min} to {max} ns: use a granularity \
             up to 13, and a min_nsec below max_nsec"
        ))
    })?;
    bdev.stats.start_histogram(shape, kind);
    Ok(true)
}

fn histogram_of(call: &Call<'_>, name: &str) -> Result<Histogram, RpcError> {
    let model = call.manager.model();
    let bdev = model.bdev(name)?;
    bdev.stats.histogram().ok_or_else(|| {
        RpcError::new(code::INTERNAL_ERROR, RpcError::errno(libc::EFAULT).message)
            .because(format!("`{name}` has no histogram: bdev_enable_histogram starts one"))
    })
}

fn get_histogram(call: &Call<'_>, super::Name { name }: super::Name) -> Result<Value, RpcError> {
    Ok(describe_histogram(&histogram_of(call, &name)?))
}

/// A histogram as SPDK's tools decode it: counts in base64, each of 8 bytes, little endian.
pub(in crate::methods) fn describe_histogram(Histogram { shape, counts }: &Histogram) -> Value {
    let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
    let (min_range, max_range) = shape.ranges();
    json!({
        "histogram": BASE64.encode(bytes),
        "granularity": shape.granularity(),
        // The old name of the same.
        "bucket_shift": shape.granularity(),
        "min_range": min_range,
        "max_range": max_range,
        "tsc_rate": TICK_RATE,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetBorders {
    name: String,
    /// In microseconds, ascending.
    borders: Vec<u64>,
}

fn get_histogram_borders(call: &Call<'_>, params: GetBorders) -> Result<Value, RpcError> {
    if !params.borders.is_sorted() {
        return Err(RpcError::invalid_params("borders must ascend"));
    }
    let histogram = histogram_of(call, &params.name)?;
    let borders = params.borders.iter().map(|border| border.saturating_mul(NS_PER_US));
    Ok(json!({ "borders_count": histogram.up_to(&borders.collect::<Vec<_>>()) }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetSampling {
    name: String,
    /// In microseconds; 0 ends it.
    period: u64,
}

fn set_sampling(
    call: &Call<'_>,
    SetSampling { name, period }: SetSampling,
) -> Result<bool, RpcError> {
    call.manager.change(|change| {
        let bdev = change.model().bdev(&name)?.clone();
        // The old sampling first: dropped later, it would turn off the new one.
        change.model_mut().bdevs.set_sampling(&name, None);
        drop(bdev.sampling);
        if period > 0 {
            let sampling = Sampling::start(&bdev.stats, period);
            let sampling = sampling.map_err(|error| {
                RpcError::errno(libc::EAGAIN).because(format!("no thread for it: {error}"))
            })?;
            change.model_mut().bdevs.set_sampling(&name, Some(sampling));
        }
        Ok(true)
    })
}
