//! `raceline read` and `raceline write`: blocks of a namespace to and from files and pipes.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use raceline_host::NamespaceInfo;
use serde_json::json;

use crate::cli::host::{ReadArgs, WriteArgs};
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::remote::RemoteDisk;
use crate::signals::Interrupt;

/// Bytes between two checks of the file, the signals and the progress; the host library divides them into
/// the commands that the controller needs.
const CHUNK_BYTES: u32 = 4 << 20;

/// Smaller transfers end before a user could read a progress bar.
const PROGRESS_FROM_BYTES: u64 = 64 << 20;

/// Copies blocks to a file or to standard output.
pub(crate) fn read(args: &ReadArgs) -> Result<(), Failure> {
    let to_stdout = is_standard(&args.file);
    if to_stdout && io::stdout().is_terminal() {
        return Err(Failure::usage(
            "blocks are not text: name a file, or redirect standard output",
        ));
    }
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let disk = RemoteDisk::connect(&args.connect, args.namespace)?;
    let namespace = disk.info().clone();
    let range = Range::new(&disk, args.slba, args.blocks)?;
    // Opened last, so that a failed connection leaves an existing file alone.
    let mut output: Box<dyn Write> = if to_stdout {
        Box::new(io::stdout().lock())
    } else {
        let file = File::create(&args.file);
        Box::new(file.map_err(|error| file_failure("create", &args.file, &error))?)
    };

    let chunk = chunk_blocks(&namespace);
    let mut buffer = vec![0; bytes_of(chunk, &namespace)];
    let bar = progress(range.blocks.saturating_mul(u64::from(namespace.block_size)));
    let mut done = 0;
    while done < range.blocks {
        stop_if(&interrupt)?;
        let blocks = chunk.min(range.blocks - done);
        let part = &mut buffer[..bytes_of(blocks, &namespace)];
        disk.read(range.slba + done, part)?;
        output.write_all(part).map_err(|error| file_failure("write", &args.file, &error))?;
        done += blocks;
        bar.inc(blocks * u64::from(namespace.block_size));
    }
    output.flush().map_err(|error| file_failure("write", &args.file, &error))?;
    bar.finish_and_clear();
    disk.disconnect();
    summary("read", args.connect.address.output, range.slba, done, &namespace, to_stdout);
    Ok(())
}

/// Copies a file or standard input to blocks.
pub(crate) fn write(args: &WriteArgs) -> Result<(), Failure> {
    let from_stdin = is_standard(&args.file);
    if from_stdin && io::stdin().is_terminal() {
        return Err(Failure::usage("nothing to write: name a file, or redirect standard input"));
    }
    // Opened first, so that a missing file causes no connection.
    let (mut input, known_bytes): (Box<dyn Read>, Option<u64>) = if from_stdin {
        (Box::new(io::stdin().lock()), None)
    } else {
        let file =
            File::open(&args.file).map_err(|error| file_failure("open", &args.file, &error))?;
        let metadata = file.metadata().map_err(|error| file_failure("open", &args.file, &error))?;
        if metadata.is_dir() {
            return Err(Failure::usage(format!("{} is a directory", args.file.display())));
        }
        (Box::new(file), metadata.is_file().then_some(metadata.len()))
    };
    let interrupt = Interrupt::catch().map_err(Failure::runtime)?;
    let disk = RemoteDisk::connect(&args.connect, args.namespace)?;
    let namespace = disk.info().clone();
    if namespace.read_only {
        return Err(Failure::runtime(format!("{} is write protected", disk.name())));
    }
    let wanted = input_blocks(args.blocks, known_bytes, &namespace)?;
    let limit = Range::new(&disk, args.slba, wanted.unwrap_or(1))?;
    let room = namespace.block_count - limit.slba;

    let chunk = chunk_blocks(&namespace);
    let mut buffer = vec![0; bytes_of(chunk, &namespace)];
    let bar =
        progress(wanted.map_or(0, |blocks| blocks.saturating_mul(u64::from(namespace.block_size))));
    let mut done = 0;
    while wanted.is_none_or(|wanted| done < wanted) {
        stop_if(&interrupt)?;
        let blocks = wanted.map_or(chunk, |wanted| chunk.min(wanted - done));
        let part = &mut buffer[..bytes_of(blocks, &namespace)];
        let len =
            fill(&mut *input, part).map_err(|error| file_failure("read", &args.file, &error))?;
        if len == 0 && wanted.is_none() && done > 0 {
            break;
        }
        check_part(len, part.len(), done, wanted, &namespace)?;
        let blocks = blocks_in(len, &namespace);
        if blocks > room - done {
            let at = namespace.block_count;
            return Err(Failure::runtime(format!(
                "the data reach beyond the last block of the namespace, {}: {done} blocks were written",
                at.saturating_sub(1)
            )));
        }
        disk.write(args.slba + done, &part[..len])?;
        done += blocks;
        bar.inc(blocks * u64::from(namespace.block_size));
    }
    // When this verb succeeds, the data are on stable media, not in a cache.
    disk.flush()?;
    bar.finish_and_clear();
    disk.disconnect();
    if wanted.is_some()
        && known_bytes.is_none()
        && fill(&mut *input, &mut [0]).is_ok_and(|len| len > 0)
    {
        return Err(Failure::runtime(format!(
            "there are more data than --blocks {done}: the rest was not written"
        )));
    }
    summary("written", args.connect.address.output, args.slba, done, &namespace, false);
    Ok(())
}

/// Blocks that lie inside a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    slba: u64,
    blocks: u64,
}

impl Range {
    fn new(disk: &RemoteDisk, slba: u64, blocks: u64) -> Result<Self, Failure> {
        Self::within((disk.name(), disk.info().block_count), slba, blocks)
    }

    /// The same for a disk of this name and number of blocks.
    fn within((name, count): (String, u64), slba: u64, blocks: u64) -> Result<Self, Failure> {
        let end = slba.checked_add(blocks);
        if end.is_some_and(|end| end <= count) {
            return Ok(Self { slba, blocks });
        }
        Err(Failure::usage(format!(
            "{name} has {count} blocks: {blocks} from --slba {slba} on reach beyond it"
        )))
    }
}

/// The number of blocks for the input, if it can be known; a regular file is checked before anything is
/// written.
fn input_blocks(
    blocks: Option<u64>,
    known_bytes: Option<u64>,
    namespace: &NamespaceInfo,
) -> Result<Option<u64>, Failure> {
    let Some(bytes) = known_bytes else { return Ok(blocks) };
    let block_size = u64::from(namespace.block_size);
    if bytes == 0 {
        return Err(Failure::usage("the file is empty: there is nothing to write"));
    }
    if !bytes.is_multiple_of(block_size) {
        return Err(partial_block(bytes, block_size));
    }
    let found = bytes / block_size;
    match blocks {
        Some(wanted) if wanted != found => Err(Failure::usage(format!(
            "the file has {found} blocks of {block_size} bytes and --blocks says {wanted}: nothing was written"
        ))),
        _ => Ok(Some(found)),
    }
}

fn partial_block(bytes: u64, block_size: u64) -> Failure {
    let whole = bytes.div_ceil(block_size) * block_size;
    Failure::usage(format!(
        "the file has {bytes} bytes, which is not a multiple of the block size {block_size}: nothing was \
         written; pad it with truncate -s {whole}"
    ))
}

/// Checks that a pipe has given a whole number of blocks, and enough of them.
fn check_part(
    len: usize,
    expected: usize,
    done: u64,
    wanted: Option<u64>,
    namespace: &NamespaceInfo,
) -> Result<(), Failure> {
    let block_size = usize::try_from(namespace.block_size).unwrap_or(usize::MAX);
    if !len.is_multiple_of(block_size) {
        let rest = len % block_size;
        return Err(Failure::runtime(format!(
            "the data end {rest} bytes into a block of {block_size}: {done} blocks were written, the rest was not"
        )));
    }
    match wanted {
        Some(wanted) if len < expected => Err(Failure::runtime(format!(
            "the data end before --blocks {wanted}: {done} blocks were written, the rest was not"
        ))),
        None if len == 0 => Err(Failure::usage("there are no data to write")),
        _ => Ok(()),
    }
}

/// Reads until the buffer is full or the data end.
fn fill(input: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match input.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

fn stop_if(interrupt: &Interrupt) -> Result<(), Failure> {
    interrupt.requested().map_or(Ok(()), |signal| Err(Failure::signal(signal)))
}

fn chunk_blocks(namespace: &NamespaceInfo) -> u64 {
    u64::from((CHUNK_BYTES / namespace.block_size).max(1))
}

fn bytes_of(blocks: u64, namespace: &NamespaceInfo) -> usize {
    usize::try_from(blocks.saturating_mul(u64::from(namespace.block_size))).unwrap_or(usize::MAX)
}

fn blocks_in(len: usize, namespace: &NamespaceInfo) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX) / u64::from(namespace.block_size)
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn file_failure(action: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::runtime(format!("cannot {action} {}: {error}", path.display()))
}

/// A progress bar on standard error, if that is a terminal and the work is long.
fn progress(bytes: u64) -> ProgressBar {
    if bytes < PROGRESS_FROM_BYTES {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr());
    let style =
        "{wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar
}

fn summary(
    what: &str,
    output: OutputFormat,
    slba: u64,
    blocks: u64,
    namespace: &NamespaceInfo,
    to_stderr: bool,
) {
    let text = match output {
        OutputFormat::Table => format!(
            "{what}: {blocks} blocks of {} bytes from LBA {slba} of namespace {}",
            namespace.block_size, namespace.nsid
        ),
        OutputFormat::Json => json!({
            "operation": what,
            "nsid": namespace.nsid.0,
            "slba": slba,
            "blocks": blocks,
            "block_size": namespace.block_size,
            "bytes": blocks.saturating_mul(u64::from(namespace.block_size)),
        })
        .to_string(),
    };
    // Standard output may be the destination of the data.
    if to_stderr {
        tracing::info!("{text}");
    } else {
        println!("{text}");
    }
}

#[cfg(test)]
mod tests {
    use raceline_proto::nvme::NamespaceId;

    use super::*;

    fn namespace() -> NamespaceInfo {
        NamespaceInfo {
            nsid: NamespaceId(1),
            block_count: 100,
            capacity_blocks: 100,
            used_blocks: 0,
            block_size: 512,
            physical_block_size: 512,
            read_only: false,
            deallocate_zeroes: false,
            shared: true,
            nguid: [0; 16],
            eui64: [0; 8],
            uuid: [0; 16],
        }
    }

    #[test]
    fn ranges_stay_inside() {
        let within = |slba, blocks| Range::within(("namespace 1".to_owned(), 100), slba, blocks);
        assert!(within(0, 100).is_ok());
        assert!(within(99, 1).is_ok());
        for (slba, blocks) in [(0, 101), (100, 1), (u64::MAX, 1), (1, u64::MAX)] {
            let failure = within(slba, blocks).unwrap_err();
            assert!(failure.message.starts_with("namespace 1 has 100 blocks:"), "{failure}");
            assert_eq!(failure.code, 2);
        }
    }

    #[test]
    fn files_are_checked_before_anything_is_written() {
        let check =
            |blocks, bytes| input_blocks(blocks, bytes, &namespace()).map_err(|f| f.message);
        assert_eq!(check(None, Some(1024)), Ok(Some(2)));
        assert_eq!(check(Some(2), Some(1024)), Ok(Some(2)));
        assert_eq!(check(Some(3), None), Ok(Some(3)));
        assert_eq!(check(None, None), Ok(None));
        assert_eq!(
            check(None, Some(1000)).unwrap_err(),
            "the file has 1000 bytes, which is not a multiple of the block size 512: nothing was written; \
             pad it with truncate -s 1024"
        );
        assert!(check(Some(3), Some(1024)).unwrap_err().contains("--blocks says 3"));
        assert!(check(None, Some(0)).unwrap_err().contains("empty"));
    }

    #[test]
    fn pipes_are_checked_as_they_come() {
        let check = |len, done, wanted| {
            check_part(len, 1024, done, wanted, &namespace()).map_err(|failure| failure.message)
        };
        assert_eq!(check(1024, 0, None), Ok(()));
        assert_eq!(check(512, 0, None), Ok(()));
        assert_eq!(
            check(700, 4, None).unwrap_err(),
            "the data end 188 bytes into a block of 512: 4 blocks were written, the rest was not"
        );
        assert!(check(512, 4, Some(6)).unwrap_err().starts_with("the data end before --blocks 6"));
        assert!(check(0, 0, None).unwrap_err().contains("no data"));
    }

    #[test]
    fn short_reads_are_joined() {
        struct Dribble(u8);
        impl Read for Dribble {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                if self.0 == 5 {
                    return Ok(0);
                }
                self.0 += 1;
                buffer[0] = self.0;
                Ok(1)
            }
        }
        let mut buffer = [0; 4];
        assert_eq!(fill(&mut Dribble(0), &mut buffer).unwrap(), 4);
        assert_eq!(buffer, [1, 2, 3, 4]);
        assert_eq!(fill(&mut Dribble(3), &mut buffer).unwrap(), 2);
    }
}
