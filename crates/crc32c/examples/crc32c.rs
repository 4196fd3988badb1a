//! Prints the CRC32C of files (or of standard input) and how fast it was computed.
//!
//! `cargo run --release -p raceline-crc32c --example crc32c -- [FILE...]`
//!
//! The rate counts the digest alone, over pieces of 128 KiB that are warm in the cache.

use std::fs::File;
use std::io::{self, Read};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use raceline_crc32c::Crc32c;

/// How much is read at a time: a common largest transfer of one NVMe command.
const PIECE_BYTES: usize = 128 * 1024;

fn main() -> ExitCode {
    let paths: Vec<_> = std::env::args_os().skip(1).collect();
    if paths.is_empty() {
        return report("-", digest(io::stdin().lock()));
    }
    let mut code = ExitCode::SUCCESS;
    for path in paths {
        let name = path.display().to_string();
        if report(&name, File::open(&path).and_then(digest)) != ExitCode::SUCCESS {
            code = ExitCode::FAILURE;
        }
    }
    code
}

struct Summary {
    crc: u32,
    bytes: u64,
    busy: Duration,
}

fn digest(mut source: impl Read) -> io::Result<Summary> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut digest = Crc32c::new();
    let mut summary = Summary { crc: 0, bytes: 0, busy: Duration::ZERO };
    loop {
        let count = match source.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let start = Instant::now();
        digest.update(&piece[..count]);
        summary.busy += start.elapsed();
        summary.bytes += count as u64;
    }
    summary.crc = digest.finalize();
    Ok(summary)
}

fn report(name: &str, result: io::Result<Summary>) -> ExitCode {
    match result {
        Ok(Summary { crc, bytes, busy }) => {
            let seconds = busy.as_secs_f64().max(f64::MIN_POSITIVE);
            println!("{crc:08x}  {name}  {bytes} bytes, {:.1} GB/s", bytes as f64 / 1e9 / seconds);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("crc32c: {name}: {error}");
            ExitCode::FAILURE
        }
    }
}
