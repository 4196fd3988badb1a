//! Operations on files and on NVMe devices.

use std::fs::File;
use std::io;
use std::sync::Arc;

use raceline_reactor::io::AllocateMode;
use raceline_reactor::nvme::NvmeFormat;
use raceline_reactor::{IoBuf, Outcome, Token};

use crate::bed::Bed;
use crate::common::{errno, pattern, temporary_file};

pub(crate) fn file_reads_and_writes(mut bed: Bed) {
    let file = bed.io.register_file(temporary_file());
    let bytes = pattern(60_000, 5);
    bed.write_file(file, &bytes, 4096, true).unwrap();
    bed.write_file(file, b"start", 1, false).unwrap();
    let token = bed.token();
    bed.io.sync(file, token);
    bed.synced(token).unwrap();
    assert_eq!(&bed.read_file(file, 60_000, 4096).unwrap()[..], &bytes);
    assert_eq!(&bed.read_file(file, 7, 0).unwrap()[..], b"\0start\0");
    let end = bed.read_file(file, 100, 64_050).unwrap_err();
    assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    assert!(bed.read_file(file, 100, 1 << 40).is_err());

    // Many at once, completing in any order.
    let mut tokens = Vec::new();
    for block in 0..16u32 {
        let token = bed.token();
        let mut buf = bed.pool.take(4096).unwrap();
        buf.copy_from_slice(&pattern(4096, block));
        bed.io.write(file, buf.share(), u64::from(block) * 4096, block % 2 == 0, token);
        tokens.push(token);
    }
    for token in tokens {
        let Outcome::Written(Ok(()), _) = bed.wait_for(token) else { panic!("write") };
    }
    for block in 0..16u32 {
        let buf = bed.read_file(file, 4096, u64::from(block) * 4096).unwrap();
        assert_eq!(&buf[..], pattern(4096, block));
    }
    bed.io.close_file(file);
}

pub(crate) fn files_use_a_pool_that_was_lent(mut bed: Bed) {
    let pool = bed.pool.clone();
    bed.io.lend_pool(&pool);
    let file = bed.io.register_file(temporary_file());
    let bytes = pattern(9000, 3);
    bed.write_file(file, &bytes, 100, false).unwrap();
    // Memory from elsewhere is as good.
    let token = bed.token();
    bed.io.read(file, IoBuf::heap(9000), 100, token);
    let Outcome::Read(Ok(()), mut buf) = bed.wait_for(token) else { panic!("read") };
    assert_eq!(&buf[..], &bytes);
    buf[..5].copy_from_slice(b"other");
    let token = bed.token();
    bed.io.write(file, buf.share(), 100, true, token);
    let Outcome::Written(Ok(()), _) = bed.wait_for(token) else { panic!("write") };
    assert_eq!(&bed.read_file(file, 5, 100).unwrap()[..], b"other");
    bed.io.close_file(file);
    file_reads_and_writes(bed);
}

pub(crate) fn file_ranges_are_released_and_zeroed(mut bed: Bed) {
    use std::os::unix::fs::MetadataExt;
    let inner = temporary_file();
    let file = bed.io.register_file(inner.clone());
    bed.write_file(file, &[0xff; 65536], 0, false).unwrap();
    for mode in [AllocateMode::PunchHole, AllocateMode::ZeroRange] {
        let start = if mode == AllocateMode::PunchHole { 4096 } else { 32768 };
        let token = bed.token();
        bed.io.allocate(file, mode, start, 8192, token);
        match bed.synced(token) {
            Ok(()) => {}
            // Not every file system can do both.
            Err(error) if errno(&error) == libc::EOPNOTSUPP => {
                eprintln!("SKIPPED: {mode:?}: {error}");
                continue;
            }
            Err(error) => panic!("{mode:?}: {error}"),
        }
        let contents = bed.read_file(file, 65536, 0).unwrap();
        let start = usize::try_from(start).unwrap();
        assert!(contents[start..start + 8192].iter().all(|&byte| byte == 0), "{mode:?}");
        assert_eq!((contents[start - 1], contents[start + 8192]), (0xff, 0xff));
        assert_eq!(inner.metadata().unwrap().len(), 65536);
        if mode == AllocateMode::PunchHole {
            assert!(inner.metadata().unwrap().blocks() <= (65536 - 8192) / 512);
        }
    }
}

pub(crate) fn file_errors(mut bed: Bed) {
    let read_only = Arc::new(File::open("/dev/null").unwrap());
    let file = bed.io.register_file(read_only);
    assert_eq!(errno(&bed.write_file(file, b"x", 0, false).unwrap_err()), libc::EBADF);
    assert_eq!(errno(&bed.write_file(file, b"x", 0, true).unwrap_err()), libc::EBADF);
    assert_eq!(bed.read_file(file, 1, 0).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    let token = bed.token();
    bed.io.allocate(file, AllocateMode::ZeroRange, 0, 4096, token);
    assert!(bed.synced(token).is_err());
    let full = Arc::new(File::options().write(true).open("/dev/full").unwrap());
    let full = bed.io.register_file(full);
    assert_eq!(errno(&bed.write_file(full, b"x", 0, false).unwrap_err()), libc::ENOSPC);
}

/// Linux answers any passthrough command to /dev/null with success, since 6.1, and refuses it for files.
pub(crate) fn nvme_commands_go_piece_by_piece(mut bed: Bed) {
    let format = NvmeFormat {
        nsid: 1,
        block_shift: 9,
        max_transfer_bytes: 1024,
        max_zeroes_bytes: 4096,
        zeroes_deallocate: false,
        dataset_management: true,
    };
    let null = Arc::new(File::options().read(true).write(true).open("/dev/null").unwrap());
    let file = match bed.io.register_nvme(null, format) {
        Ok(file) => file,
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
            // Commands go by rings only.
            if bed.is_ring {
                eprintln!("SKIPPED: the rings of this kernel take no commands of drives: {error}");
            }
            return;
        }
    };
    match bed.read_file(file, 65536, 512) {
        Err(error) if errno(&error) == libc::EOPNOTSUPP => {
            eprintln!("SKIPPED: /dev/null takes no commands: {error}");
        }
        result => drop(result.unwrap()),
    }
    // What no command can say does not reach the kernel.
    assert_eq!(errno(&bed.read_file(file, 4096, 1).unwrap_err()), libc::EINVAL);
    assert_eq!(errno(&bed.write_file(file, &[1; 100], 0, true).unwrap_err()), libc::EINVAL);
    let refused = bed.token();
    bed.io.allocate(file, AllocateMode::PunchHole, 0, 8192, refused);
    assert_eq!(errno(&bed.synced(refused).unwrap_err()), libc::EOPNOTSUPP);
    for mode in [AllocateMode::ZeroRange, AllocateMode::Release] {
        let token = bed.token();
        bed.io.allocate(file, mode, 0, 3 << 20, token);
        if let Err(error) = bed.synced(token) {
            assert_eq!(errno(&error), libc::EOPNOTSUPP);
        }
    }
    let available = bed.pool.available_total();
    let other = bed.io.register_nvme(temporary_file(), format).unwrap();
    let mut tokens = Vec::new();
    for block in 0..16 {
        let token = bed.token();
        let buf = bed.pool.take(4096).unwrap().share();
        bed.io.write(other, buf, block * 4096, block % 2 == 0, token);
        tokens.push(token);
    }
    bed.io.close_file(other);
    for token in tokens {
        let Outcome::Written(Err(error), buf) = bed.wait_for(token) else { panic!("a file") };
        assert_eq!((errno(&error), buf.len()), (libc::EOPNOTSUPP, 4096));
    }
    assert_eq!(bed.pool.available_total(), available);
    let token = bed.token();
    bed.io.sync(other, token);
    assert!(bed.synced(token).is_err(), "a closed file");
}

pub(crate) fn files_close_after_their_operations(mut bed: Bed) {
    let available = bed.pool.available_total();
    let inner = temporary_file();
    let file = bed.io.register_file(inner.clone());
    let tokens: Vec<Token> = (0..10u8)
        .map(|number| {
            let token = bed.token();
            let mut buf = bed.pool.take(4096).unwrap();
            buf.fill(number);
            bed.io.write(file, buf.share(), u64::from(number) * 4096, true, token);
            token
        })
        .collect();
    bed.io.close_file(file);
    for token in tokens {
        let Outcome::Written(Ok(()), _) = bed.wait_for(token) else { panic!("write") };
    }
    assert!(bed.read_file(file, 1, 0).is_err(), "closed");
    assert_eq!(inner.metadata().unwrap().len(), 40960);
    assert_eq!(bed.pool.available_total(), available);
    assert_eq!(Arc::strong_count(&inner), 1);
}
