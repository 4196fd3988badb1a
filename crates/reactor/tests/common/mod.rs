//! What tests of an `Io` look at and compare.
#![allow(clippy::unwrap_used, reason = "a test program")]
#![allow(unreachable_pub, reason = "shared by tests")]

use std::fs::File;
use std::io;
use std::sync::Arc;

use raceline_reactor::io::RecvBuffers;

/// The bytes that a receive has put into its buffers, in stream order.
pub fn received(buffers: &RecvBuffers, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some((buf, range)) = &buffers.payload {
        bytes.extend_from_slice(&buf[range.clone()]);
    }
    bytes.extend_from_slice(&buffers.staging[buffers.staging_range.clone()]);
    bytes.truncate(count);
    bytes
}

/// Bytes that differ from their neighbours at every distance that matters.
pub fn pattern(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(len).collect()
}

pub fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

pub fn temporary_file() -> Arc<File> {
    let path = std::env::temp_dir();
    let name = format!("raceline-io-{}-{:?}", std::process::id(), std::thread::current().id());
    let path = path.join(name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"));
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    Arc::new(file)
}
