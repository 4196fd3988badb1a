//! Calls on files that have no operation in a ring: copies inside a file, and the search for holes.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// A call on a file that may take long: a thread beside the core makes it ([`crate::Io::call_file`]).
#[derive(Debug, PartialEq, Eq)]
pub enum FileCall {
    /// Copies bytes inside the file; the ranges do not overlap (copy_file_range(2)). A file system that knows how
    /// has both ranges share their blocks. Its error says whether the file system never copies within this file
    /// (`EXDEV`, `EOPNOTSUPP`, `ENOSYS`), or has not copied these ranges.
    Copy {
        /// First byte that is read.
        from: u64,
        /// First byte that is written.
        to: u64,
        /// How many bytes.
        len: u64,
    },
    /// Looks which parts of a range hold data (lseek(2) with SEEK_DATA and SEEK_HOLE).
    FindData {
        /// The range, in bytes.
        range: Range<u64>,
        /// Ends the search when it has found this many parts.
        most: usize,
        /// The parts, in ascending order. Filled in by the call.
        found: Vec<Range<u64>>,
    },
}

impl FileCall {
    /// Makes the system calls, and blocks.
    pub(crate) fn run(&mut self, file: &File) -> io::Result<()> {
        match self {
            Self::Copy { from, to, len } => copy(file, *from, *to, *len),
            Self::FindData { range, most, found } => find_data(file, range.clone(), *most, found),
        }
    }
}

fn copy(file: &File, mut from: u64, mut to: u64, mut len: u64) -> io::Result<()> {
    while len > 0 {
        // The call takes a usize; a part is what it has copied.
        let most = usize::try_from(len).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(file, Some(&mut from), file, Some(&mut to), most) {
            // The source lies behind the end of the file.
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(copied) => len = len.saturating_sub(copied as u64),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn find_data(
    file: &File,
    range: Range<u64>,
    most: usize,
    found: &mut Vec<Range<u64>>,
) -> io::Result<()> {
    let mut at = range.start;
    while at < range.end && found.len() < most {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) if data < range.end => data,
            // There is none before the end of the range, or of the file.
            Ok(_) | Err(Errno::NXIO) => break,
            Err(error) => return Err(seek_error(error)),
        };
        let hole = rustix::fs::seek(file, SeekFrom::Hole(data)).map_err(seek_error)?;
        // Another thread may have released the data meanwhile.
        if hole > data {
            found.push(data..hole.min(range.end));
        }
        at = hole.max(data + 1);
    }
    Ok(())
}

fn seek_error(error: Errno) -> io::Error {
    match error {
        Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS => io::ErrorKind::Unsupported.into(),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt as _;

    use super::*;

    const UNIT: u64 = 64 << 10;
    const UNIT_LEN: usize = 64 << 10;

    /// A sparse file with data in the second and the fourth of eight units.
    fn sparse() -> File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = File::from(rustix::fs::memfd_create("sparse", flags).unwrap());
        file.set_len(8 * UNIT).unwrap();
        for (unit, byte) in [(1, 7), (3, 9)] {
            file.write_all_at(&[byte; UNIT_LEN], unit * UNIT).unwrap();
        }
        file
    }

    fn search(file: &File, range: Range<u64>, most: usize) -> Vec<Range<u64>> {
        let mut call = FileCall::FindData { range, most, found: Vec::new() };
        call.run(file).unwrap();
        let FileCall::FindData { found, .. } = call else { unreachable!() };
        found
    }

    #[test]
    fn data_is_found_within_the_range_and_up_to_the_count() {
        let file = sparse();
        let all = [UNIT..2 * UNIT, 3 * UNIT..4 * UNIT];
        assert_eq!(search(&file, 0..8 * UNIT, 9), all);
        assert_eq!(search(&file, 0..8 * UNIT, 1), all[..1]);
        assert_eq!(
            search(&file, UNIT + 512..3 * UNIT + 512, 9),
            [UNIT + 512..2 * UNIT, 3 * UNIT..3 * UNIT + 512]
        );
        assert_eq!(search(&file, 4 * UNIT..8 * UNIT, 9), []);
        assert_eq!(search(&file, 0..0, 9), []);
    }

    #[test]
    fn a_copy_is_whole_or_says_why_not() {
        let file = sparse();
        let run = |from, to, len| FileCall::Copy { from, to, len }.run(&file);
        // Two units of which the first is a hole, over one that has data.
        run(0, 3 * UNIT, 2 * UNIT).unwrap();
        let mut read = vec![0; 2 * UNIT_LEN];
        file.read_exact_at(&mut read, 3 * UNIT).unwrap();
        assert!(read[..UNIT_LEN].iter().all(|&byte| byte == 0));
        assert!(read[UNIT_LEN..].iter().all(|&byte| byte == 7));
        assert_eq!(run(8 * UNIT, 0, UNIT).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        // Ranges that overlap; others are copied afterwards.
        assert_eq!(run(0, UNIT / 2, UNIT).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        run(0, 3 * UNIT, 2 * UNIT).unwrap();
        assert_eq!(run(0, UNIT, 0).ok(), Some(()));
    }
}
