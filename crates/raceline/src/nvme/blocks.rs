//! `raceline flush`, `dsm`, `write-zeroes` and `compare`: commands on the blocks of a namespace.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Instant;

use raceline_host::{CommandError, HostError, NamespaceInfo};
use raceline_proto::nvme::Status;
use serde_json::json;

use super::device::Device;
use super::{refuse_binary, say};
use crate::cli::nvme::{CompareArgs, DsmArgs, NamespaceArgs, ZeroesArgs};
use crate::failure::Failure;

/// The most data of a Compare.
const MAX_COMPARE_BYTES: u64 = 64 << 20;
/// Ranges of a Dataset Management command.
const MAX_RANGES: usize = 256;

/// `raceline flush`.
pub(crate) fn flush(args: &NamespaceArgs) -> Result<(), Failure> {
    refuse_binary(&args.device, "flush")?;
    let (device, namespace) = open(args)?;
    device.host().flush(namespace.nsid).map_err(|error| crate::remote::failure(&error))?;
    device.disconnect();
    say(&args.device, "NVMe Flush: success", &json!({ "nsid": namespace.nsid.0 }))
}

/// `raceline dsm`.
pub(crate) fn dsm(args: &DsmArgs) -> Result<(), Failure> {
    refuse_binary(&args.namespace.device, "dsm")?;
    if !args.ad {
        return Err(Failure::usage(
            "dsm deallocates, which loses what is in the ranges: add --ad if that is what you want",
        ));
    }
    if args.slbs.len() != args.blocks.len() || args.slbs.len() > MAX_RANGES {
        let text = "--slbs and --blocks have to name the same number of ranges, at most 256";
        return Err(Failure::usage(text));
    }
    let ranges: Vec<(u64, u32)> =
        args.slbs.iter().copied().zip(args.blocks.iter().copied()).collect();
    let (device, namespace) = open(&args.namespace)?;
    for (slba, count) in &ranges {
        check_range(&namespace, *slba, u64::from(*count))?;
    }
    device
        .host()
        .deallocate(namespace.nsid, &ranges)
        .map_err(|error| crate::remote::failure(&error))?;
    device.disconnect();
    say(
        &args.namespace.device,
        "NVMe DSM: success",
        &json!({ "nsid": namespace.nsid.0, "ranges": ranges.len() }),
    )
}

/// `raceline write-zeroes`.
pub(crate) fn write_zeroes(args: &ZeroesArgs) -> Result<(), Failure> {
    refuse_binary(&args.namespace.device, "write-zeroes")?;
    let (device, namespace) = open(&args.namespace)?;
    let count = args
        .block_count
        .checked_add(1)
        .ok_or_else(|| Failure::usage("--block-count is too large"))?;
    check_range(&namespace, args.start_block, count)?;
    let done = device.host().write_zeroes(namespace.nsid, args.start_block, count, args.deac);
    done.map_err(|error| crate::remote::failure(&error))?;
    device.disconnect();
    let document = json!({ "nsid": namespace.nsid.0, "slba": args.start_block, "blocks": count });
    say(&args.namespace.device, "NVME Write Zeroes Success", &document)
}

/// `raceline compare`.
pub(crate) fn compare(args: &CompareArgs) -> Result<(), Failure> {
    refuse_binary(&args.namespace.device, "compare")?;
    let (device, namespace) = open(&args.namespace)?;
    let block = u64::from(namespace.block_size);
    let blocks = args.block_count.map(|count| (u64::from(count) + 1) * block);
    let wanted = match (args.data_size, blocks) {
        (Some(size), Some(blocks)) if size != blocks => {
            let text = format!(
                "--data-size {size} are not the {blocks} bytes of --block-count, which is the number of blocks less one"
            );
            return Err(Failure::usage(text));
        }
        (size, blocks) => size.or(blocks),
    };
    let data = data(&args.data, wanted)?;
    if data.is_empty() || !(data.len() as u64).is_multiple_of(block) {
        let text = format!(
            "{} bytes of data are not a whole number of blocks of {block} bytes, at least one",
            data.len()
        );
        return Err(Failure::usage(text));
    }
    check_range(&namespace, args.start_block, data.len() as u64 / block)?;
    let started = Instant::now();
    let result = device.host().compare(namespace.nsid, args.start_block, &data);
    let took_us = started.elapsed().as_micros();
    device.disconnect();
    match result {
        Ok(()) => {
            let mut document = json!({ "equal": true, "bytes": data.len() });
            let mut sentence = "compare: Success".to_owned();
            if args.latency {
                document["latency_us"] = u64::try_from(took_us).unwrap_or(u64::MAX).into();
                sentence.insert_str(0, &format!(" latency: compare: {took_us} us\n"));
            }
            say(&args.namespace.device, &sentence, &document)
        }
        Err(error) if is_difference(&error) => Err(Failure::mismatch(format!("compare: {error}"))),
        Err(error) => Err(crate::remote::failure(&error)),
    }
}

fn is_difference(error: &HostError) -> bool {
    matches!(error, HostError::Command(failure)
        if matches!(failure.error, CommandError::Status(status) if status.same_code(Status::COMPARE_FAILURE)))
}

/// The data: all that is there, or so many bytes.
fn data(path: &Path, wanted: Option<u64>) -> Result<Vec<u8>, Failure> {
    let shown =
        if path == Path::new("-") { "standard input".into() } else { path.display().to_string() };
    let failed = |error: io::Error| Failure::usage(format!("{shown}: {error}"));
    let input: Box<dyn io::Read> = match path == Path::new("-") {
        true => Box::new(io::stdin().lock()),
        false => Box::new(File::open(path).map_err(failed)?),
    };
    let most = wanted.unwrap_or(MAX_COMPARE_BYTES + 1);
    if most > MAX_COMPARE_BYTES + 1 {
        return Err(Failure::usage("compare takes at most 64 MiB at a time"));
    }
    let mut data = Vec::new();
    input.take(most).read_to_end(&mut data).map_err(failed)?;
    let len = data.len() as u64;
    if len > MAX_COMPARE_BYTES {
        return Err(Failure::usage("compare takes at most 64 MiB at a time"));
    }
    if let Some(wanted) = wanted.filter(|wanted| *wanted > len) {
        return Err(Failure::usage(format!(
            "{shown} has {len} bytes, and {wanted} are to be compared"
        )));
    }
    Ok(data)
}

/// The connection, and the namespace that is meant.
fn open(args: &NamespaceArgs) -> Result<(Device, NamespaceInfo), Failure> {
    let device = Device::connect(&args.device)?;
    let nsid = device.namespace(args.namespace_id)?;
    let info = device.info(nsid)?;
    Ok((device, info))
}

/// Refuses blocks that the namespace does not have.
fn check_range(namespace: &NamespaceInfo, slba: u64, count: u64) -> Result<(), Failure> {
    let end = slba.checked_add(count);
    if end.is_some_and(|end| end <= namespace.block_count) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{count} blocks from block {slba} on end beyond namespace {}, which has {}",
        namespace.nsid, namespace.block_count
    )))
}
