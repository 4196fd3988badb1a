//! `iobuf_*`: I/O buffers.

use raceline_target::QueueTotals;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::RpcError;
use crate::manager::catalogue::{Entry, Section};
use crate::manager::options::{BufferOptions, option_key};
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

/// SPDK's lower bounds.
const MIN_SMALL_COUNT: u64 = 64;
const MIN_LARGE_COUNT: u64 = 8;
const MIN_SMALL_BYTES: u32 = 4096;
const MIN_LARGE_BYTES: u32 = 8192;
/// Buffers are allocated at the start: 64 GiB of the default sizes is a mistake.
const MAX_COUNT: u64 = 1 << 19;

pub(super) fn register(registry: &mut Registry) {
    registry.change("iobuf_set_options", States::Startup, set_options);
    registry.read("iobuf_get_stats", States::Runtime, get_stats);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetOptions {
    small_pool_count: Option<u64>,
    large_pool_count: Option<u64>,
    small_bufsize: Option<u32>,
    large_bufsize: Option<u32>,
    enable_numa: Option<bool>,
}

fn set_options(call: &Call<'_>, params: SetOptions) -> Result<bool, RpcError> {
    let old = call.manager.model().buffer_options().unwrap_or_default();
    let options = BufferOptions {
        small_pool_count: params.small_pool_count.unwrap_or(old.small_pool_count),
        large_pool_count: params.large_pool_count.unwrap_or(old.large_pool_count),
        small_bufsize: params.small_bufsize.unwrap_or(old.small_bufsize),
        large_bufsize: params.large_bufsize.unwrap_or(old.large_bufsize),
        enable_numa: params.enable_numa.unwrap_or(old.enable_numa),
    };
    let counts = (MIN_SMALL_COUNT..=MAX_COUNT).contains(&options.small_pool_count)
        && (MIN_LARGE_COUNT..=MAX_COUNT).contains(&options.large_pool_count);
    if !counts || options.small_bufsize < MIN_SMALL_BYTES || options.large_bufsize < MIN_LARGE_BYTES
    {
        let detail = format!(
            "small_pool_count must be {MIN_SMALL_COUNT} to {MAX_COUNT}, large_pool_count \
             {MIN_LARGE_COUNT} to {MAX_COUNT}, small_bufsize at least {MIN_SMALL_BYTES}, \
             large_bufsize at least {MIN_LARGE_BYTES}"
        );
        return Err(RpcError::errno(libc::EINVAL).because(detail));
    }
    call.manager.change(|change| {
        let entry = Entry::new(Section::Iobuf, "iobuf_set_options", &options)?;
        change.put(option_key("iobuf"), entry);
        Ok(true)
    })
}

/// Each core has its own buffers, without a cache in front. `retry` counts commands that found no buffer of
/// sufficient size when they came.
fn get_stats(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let cores = call.manager.cores();
    let mut totals = QueueTotals::default();
    for group in cores.iter().flat_map(|cores| cores.poll_groups()) {
        totals.add(&group.totals);
    }
    let pool = |main: u64, retry: u64| json!({ "cache": 0, "main": main, "retry": retry, "cache_size": 0 });
    let QueueTotals { small_buffers, large_buffers, buffer_waits, small_buffer_waits, .. } = totals;
    Ok(vec![json!({
        "module": "nvmf_TCP",
        "small_pool": pool(small_buffers, small_buffer_waits),
        "large_pool": pool(large_buffers, buffer_waits.saturating_sub(small_buffer_waits)),
    })])
}
