//! The verbs of nvme-cli, over this program's own host: no kernel driver, no device file, no root.

pub(crate) mod blocks;
pub(crate) mod connect_all;
mod decode;
mod device;
mod fields;
pub(crate) mod files;
pub(crate) mod identify;
pub(crate) mod list;
pub(crate) mod log;
pub(crate) mod namespaces;
mod unopened;
mod unused;

use std::time::Duration;

use serde_json::Value;

use crate::cli::nvme::{DeviceArgs, NvmeFormat};
use crate::failure::Failure;
use crate::shell;

/// How long a controller may need until it is back after a reset.
const RESET_TIMEOUT: Duration = Duration::from_secs(60);

/// Prints a data structure in the form that was asked for.
fn output(
    format: NvmeFormat,
    data: &[u8],
    normal: impl FnOnce(&[u8]) -> String,
    document: impl FnOnce(&[u8]) -> Value,
) -> Result<(), Failure> {
    match format {
        NvmeFormat::Normal => shell::print(normal(data).as_bytes()),
        NvmeFormat::Json => shell::print(format!("{:#}\n", document(data)).as_bytes()),
        NvmeFormat::Binary => shell::print(data),
    }
}

/// Prints what was done.
fn say(args: &DeviceArgs, sentence: &str, document: &Value) -> Result<(), Failure> {
    let text = match args.named.format() {
        NvmeFormat::Json => format!("{document:#}\n"),
        NvmeFormat::Normal | NvmeFormat::Binary => format!("{sentence}\n"),
    };
    shell::print(text.as_bytes())
}

/// Refuses `-o binary` where there are no bytes to print.
fn refuse_binary(args: &DeviceArgs, verb: &str) -> Result<(), Failure> {
    match args.named.format() {
        NvmeFormat::Binary => {
            Err(Failure::usage(format!("{verb} has no binary output: use -o normal or -o json")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
