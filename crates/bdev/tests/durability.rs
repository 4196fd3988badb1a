//! Flushes, durable writes and their failures, with the kernel's part played by a script.
#![allow(clippy::unwrap_used, reason = "a test program")]

mod common;

use std::path::Path;

use common::{Script, bytes_of, open, read, shared, write};
use raceline_bdev::{BdevError, Op, SharedBdev};

const BLOCK: u64 = 4096;

/// A file of 64 KiB; nothing reaches it, as the script only pretends.
fn device(directory: &Path) -> SharedBdev {
    open(&format!("file:{}/disk,size=64k,buffered,bs=4096", directory.display())).unwrap()
}

fn with_script(test: impl FnOnce(&SharedBdev, Script)) {
    let directory = tempfile::tempdir().unwrap();
    let device = device(directory.path());
    let script = Script::new(&*device);
    test(&device, script);
}

fn durable(offset: u64) -> Op {
    Op::Write { offset, data: shared(&[1; 4096]), fua: true }
}

#[test]
fn flushes_that_come_during_a_flush_share_the_next_one() {
    with_script(|_, mut script| {
        script.submit(1, Op::Flush);
        for tag in 2..=5 {
            script.submit(tag, Op::Flush);
        }
        assert_eq!(script.io.started.len(), 1, "one in flight");
        assert_eq!(script.complete(None), "sync");
        assert_eq!(script.results(), [(1, Ok(()))], "the first covers nothing that came later");
        script.submit(6, Op::Flush);
        assert_eq!(script.io.started.len(), 1);
        assert_eq!(script.complete(None), "sync");
        assert_eq!(script.results(), [(2, Ok(())), (3, Ok(())), (4, Ok(())), (5, Ok(()))]);
        assert_eq!(script.complete(None), "sync");
        assert_eq!(script.results(), [(6, Ok(()))]);
        script.close();
    });
}

#[test]
fn durable_writes_are_durable_and_others_are_not() {
    with_script(|_, mut script| {
        script.submit(1, write(BLOCK, &[7; 4096]));
        script.submit(2, durable(2 * BLOCK));
        assert_eq!(script.complete(None), "write 4096+4096");
        assert_eq!(script.complete(None), "write durable 8192+4096");
        let data = bytes_of(&script.done[0]);
        assert_eq!(data, [7; 4096], "the buffer comes back");
        assert_eq!(script.results(), [(1, Ok(())), (2, Ok(()))]);
        script.close();
    });
}

#[test]
fn a_failed_flush_fails_every_later_one_on_all_cores_until_reset() {
    with_script(|device, mut one| {
        let mut two = Script::new(&**device);
        one.submit(1, Op::Flush);
        one.submit(2, Op::Flush);
        two.submit(3, Op::Flush);
        two.submit(4, durable(0));
        assert!(!device.write_fault());
        one.complete(Some(libc::EIO));
        assert!(device.write_fault());
        let fault = Err(BdevError::WriteFault);
        assert_eq!(one.results(), [(1, fault), (2, fault)], "also the flush that waited");
        assert!(one.io.started.is_empty(), "no second try");

        // What was in flight elsewhere may have missed the data that failed here.
        two.complete(None);
        two.complete(None);
        assert_eq!(two.results(), [(3, fault), (4, fault)]);
        for script in [&mut one, &mut two] {
            script.submit(5, Op::Flush);
            script.submit(6, durable(0));
            let zero = Op::WriteZeroes { offset: 0, len: BLOCK, deallocate: true, fua: true };
            script.submit(7, zero);
            assert!(script.io.started.is_empty(), "refused without asking the kernel");
            assert!(script.done[1].payload.is_some(), "the buffer comes back");
            assert_eq!(script.results(), [(5, fault), (6, fault), (7, fault)]);
        }

        // Reads and plain writes go on.
        two.submit(8, read(0, 4096));
        two.submit(9, write(0, &[0; 4096]));
        two.complete(None);
        two.complete(None);
        assert_eq!(two.results(), [(8, Ok(())), (9, Ok(()))]);

        device.reset_write_fault();
        assert!(!device.write_fault());
        one.submit(10, Op::Flush);
        one.complete(None);
        assert_eq!(one.results(), [(10, Ok(()))]);
        one.close();
        two.close();
    });
}

/// A flush that was under way during the failure proves nothing, though all is well again.
#[test]
fn a_reset_does_not_whitewash_a_flush_from_before() {
    with_script(|device, mut one| {
        let mut two = Script::new(&**device);
        two.submit(1, Op::Flush);
        two.submit(2, Op::Flush);
        one.submit(3, Op::Flush);
        one.complete(Some(libc::EIO));
        device.reset_write_fault();
        two.complete(None);
        assert_eq!(two.results(), [(1, Err(BdevError::WriteFault))]);
        two.complete(None);
        assert_eq!(two.results(), [(2, Ok(()))], "started after the reset");
        assert!(!device.write_fault());
        one.close();
        two.close();
    });
}

#[test]
fn a_failed_durable_write_is_a_failed_flush() {
    with_script(|device, mut script| {
        script.submit(1, durable(0));
        script.complete(Some(libc::EIO));
        script.submit(2, Op::Flush);
        assert_eq!(
            script.results(),
            [(1, Err(BdevError::WriteFault)), (2, Err(BdevError::WriteFault))]
        );
        assert!(device.write_fault());
        script.close();
    });
}

#[test]
fn a_failed_plain_write_concerns_only_itself() {
    with_script(|device, mut script| {
        script.submit(1, write(0, &[0; 4096]));
        script.complete(Some(libc::EIO));
        script.submit(2, write(0, &[0; 4096]));
        script.complete(Some(libc::ENOSPC));
        script.submit(3, Op::Flush);
        script.complete(None);
        let expected = [(1, Err(BdevError::WriteFault)), (2, Err(BdevError::NoSpace)), (3, Ok(()))];
        assert_eq!(script.results(), expected);
        assert!(!device.write_fault());
        script.close();
    });
}

/// With a page cache, a flush that finds no space has lost acknowledged writes.
#[test]
fn a_flush_without_space_is_a_write_fault() {
    with_script(|device, mut script| {
        script.submit(1, Op::Flush);
        script.complete(Some(libc::ENOSPC));
        assert_eq!(script.results(), [(1, Err(BdevError::WriteFault))]);
        assert!(device.write_fault());
        script.close();
    });
}

#[test]
fn zeroing_takes_what_the_file_system_has() {
    with_script(|_, mut script| {
        let zero =
            |deallocate, fua| Op::WriteZeroes { offset: BLOCK, len: 2 * BLOCK, deallocate, fua };
        script.submit(1, zero(true, false));
        assert_eq!(script.complete(None), "PunchHole 4096+8192");
        script.submit(2, zero(false, true));
        assert_eq!(script.complete(None), "ZeroRange 4096+8192");
        assert_eq!(script.results(), [(1, Ok(()))], "durable zeroes are not done before the sync");
        assert_eq!(script.complete(None), "sync");
        assert_eq!(script.results(), [(2, Ok(()))]);

        // Neither works: zeroes are written, and the next request knows.
        script.submit(3, zero(true, true));
        assert_eq!(script.complete(Some(libc::EOPNOTSUPP)), "PunchHole 4096+8192");
        assert_eq!(script.complete(Some(libc::EOPNOTSUPP)), "ZeroRange 4096+8192");
        assert_eq!(script.complete(None), "write 4096+8192");
        assert_eq!(script.complete(None), "sync");
        script.submit(4, zero(false, false));
        assert_eq!(script.complete(None), "write 4096+8192");
        assert_eq!(script.results(), [(3, Ok(())), (4, Ok(()))]);
        script.submit(5, Op::Deallocate { offset: 0, len: BLOCK });
        assert_eq!(script.results(), [(5, Err(BdevError::NotSupported))]);
        script.close();
    });
}

#[test]
fn copies_are_durable_after_a_sync_and_given_up_where_they_cannot_be() {
    with_script(|_, mut script| {
        let copy = |fua| Op::Copy { from: 0, to: 2 * BLOCK, len: BLOCK, fua };
        let call = "Copy { from: 0, to: 8192, len: 4096 }";
        script.submit(1, copy(false));
        assert_eq!(script.complete(None), call);
        assert_eq!(script.results(), [(1, Ok(()))]);
        script.submit(2, copy(true));
        assert_eq!(script.complete(None), call);
        assert_eq!(script.results(), [], "not durable yet");
        assert_eq!(script.complete(None), "sync");
        assert_eq!(script.results(), [(2, Ok(()))]);
        // What fails is tried by the caller, piece by piece; a full disk is full for it, too.
        // The next one is the file system's again.
        for (errno, expected) in [
            (libc::ENOSPC, BdevError::NoSpace),
            (libc::EIO, BdevError::NotSupported),
            (libc::EINVAL, BdevError::NotSupported),
            (libc::ETXTBSY, BdevError::NotSupported),
        ] {
            script.submit(3, copy(false));
            assert_eq!(script.complete(Some(errno)), call);
            assert_eq!(script.results(), [(3, Err(expected))]);
        }
        script.submit(4, copy(false));
        assert_eq!(script.complete(None), call);
        assert_eq!(script.results(), [(4, Ok(()))]);
        script.close();
    });
}

#[test]
fn a_file_system_that_never_copies_is_asked_once() {
    for errno in [libc::EXDEV, libc::EOPNOTSUPP, libc::ENOSYS] {
        with_script(|device, mut script| {
            let copy = || Op::Copy { from: 0, to: 2 * BLOCK, len: BLOCK, fua: false };
            script.submit(1, copy());
            script.complete(Some(errno));
            assert_eq!(script.results(), [(1, Err(BdevError::NotSupported))], "{errno}");
            script.submit(2, copy());
            assert_eq!(script.results(), [(2, Err(BdevError::NotSupported))], "{errno}");
            assert!(script.io.started.is_empty(), "{errno}: it was asked again");
            let mut other = Script::new(&**device);
            other.submit(3, copy());
            assert_eq!(other.results(), [(3, Err(BdevError::NotSupported))], "another core");
            script.close();
            other.close();
        });
    }
}

#[test]
fn zeroes_are_written_in_bounded_pieces() {
    with_script(|_, mut script| {
        let zero = |len| Op::WriteZeroes { offset: 0, len, deallocate: false, fua: false };
        script.submit(1, zero((256 << 10) + BLOCK));
        script.complete(Some(libc::EOPNOTSUPP));
        let mut pieces = Vec::new();
        while !script.io.started.is_empty() {
            let common::Started::Write { data, .. } = &script.io.started[0].1 else {
                panic!("{:?}", script.io.started)
            };
            assert!(data.iter().all(|&byte| byte == 0));
            pieces.push(script.complete(None));
        }
        assert_eq!(pieces, ["write 0+131072", "write 131072+131072", "write 262144+4096"]);
        assert_eq!(script.results(), [(1, Ok(()))]);

        // An error ends it.
        script.submit(2, zero(256 << 10));
        script.complete(None);
        script.complete(Some(libc::ENOSPC));
        assert_eq!(script.results(), [(2, Err(BdevError::NoSpace))]);
        script.close();
    });
}

#[test]
fn long_ranges_are_released_piece_by_piece() {
    with_script(|_, mut script| {
        script.submit(1, Op::Deallocate { offset: BLOCK, len: (2 << 30) + BLOCK });
        let pieces: Vec<_> = (0..3).map(|_| script.complete(None)).collect();
        assert_eq!(
            pieces,
            [
                "PunchHole 4096+1073741824",
                "PunchHole 1073745920+1073741824",
                "PunchHole 2147487744+4096"
            ]
        );
        assert_eq!(script.results(), [(1, Ok(()))]);
        // Releasing is advice: what the file system cannot do after all is left undone.
        script.submit(2, Op::Deallocate { offset: 0, len: BLOCK });
        script.complete(Some(libc::EOPNOTSUPP));
        assert_eq!(script.results(), [(2, Ok(()))]);
        script.close();
    });
}

#[test]
fn a_busy_kernel_is_asked_again_a_few_times() {
    with_script(|_, mut script| {
        script.submit(1, read(0, 4096));
        script.submit(2, write(0, &[9; 4096]));
        script.complete(Some(libc::EAGAIN));
        script.complete(Some(libc::EAGAIN));
        assert_eq!(script.results(), []);
        assert_eq!(script.complete(None), "read 0+4096");
        assert_eq!(script.complete(None), "write 0+4096");
        assert_eq!(script.results(), [(1, Ok(())), (2, Ok(()))]);
        script.submit(3, read(0, 4096));
        let tries = std::iter::from_fn(|| {
            (!script.io.started.is_empty()).then(|| script.complete(Some(libc::EAGAIN)))
        });
        assert_eq!(tries.take(100).count(), 5);
        assert!(script.done[0].payload.is_some(), "the buffer comes back");
        assert_eq!(script.results(), [(3, Err(BdevError::Transient))]);
        script.close();
    });
}

#[test]
fn a_device_that_is_gone_or_shorter_says_so() {
    with_script(|_, mut script| {
        script.submit(1, read(0, 4096));
        script.complete(Some(libc::ENXIO));
        script.submit(2, write(0, &[0; 4096]));
        script.complete(Some(libc::ENODEV));
        script.submit(3, read(0, 4096));
        script.complete_with(Err(std::io::ErrorKind::UnexpectedEof.into()));
        let gone = Err(BdevError::Gone);
        assert_eq!(script.results(), [(1, gone), (2, gone), (3, Err(BdevError::ReadFault))]);
        script.close();
    });
}

#[test]
fn a_read_only_device_refuses_writes_and_needs_no_flush() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("disk"), [5; 8192]).unwrap();
    let path = directory.path().display();
    let device = open(&format!("file:{path}/disk,buffered,readonly")).unwrap();
    assert!(device.info().read_only && !device.info().deallocate);
    let mut script = Script::new(&*device);
    script.submit(1, write(0, &[0; 512]));
    assert!(script.done[0].payload.is_some());
    script.submit(2, Op::WriteZeroes { offset: 0, len: 512, deallocate: false, fua: false });
    script.submit(3, Op::Deallocate { offset: 0, len: 512 });
    script.submit(4, Op::Flush);
    let refused = Err(BdevError::ReadOnly);
    assert_eq!(script.results(), [(1, refused), (2, refused), (3, refused), (4, Ok(()))]);
    script.close();
}

/// Data in pages of the kernel's requests: the same promises as with buffers of ours.
#[test]
fn moves_keep_what_writes_promise() {
    with_script(|device, mut script| {
        assert!(device.takes_pages());
        let pages = |offset, fua| Op::WritePages { offset, len: 4096, tag: 3, fua };
        script.submit(1, Op::ReadPages { offset: BLOCK, len: 8192, tag: 9 });
        script.submit(2, pages(0, false));
        script.submit(3, pages(BLOCK, true));
        for expected in ["read of 9 4096+8192", "write of 3 0+4096", "write durable of 3 4096+4096"]
        {
            assert_eq!(script.complete(None), expected);
        }
        assert_eq!(script.results(), [(1, Ok(())), (2, Ok(())), (3, Ok(()))]);
        // A kernel that was short of memory for a moment is asked again.
        script.submit(4, pages(0, false));
        script.complete(Some(libc::ENOMEM));
        script.complete(None);
        assert_eq!(script.results(), [(4, Ok(()))]);
        for (errno, read, write) in [
            (libc::EIO, BdevError::ReadFault, BdevError::WriteFault),
            (libc::ENOSPC, BdevError::NoSpace, BdevError::NoSpace),
            (libc::ENODEV, BdevError::Gone, BdevError::Gone),
        ] {
            script.submit(5, Op::ReadPages { offset: 0, len: 4096, tag: 0 });
            script.submit(6, pages(0, false));
            script.complete(Some(errno));
            script.complete(Some(errno));
            assert_eq!(script.results(), [(5, Err(read)), (6, Err(write))], "{errno}");
        }
        script.close();
    });
}

/// Pages that the kernel does not move say nothing of the medium; a durable write that fails does.
#[test]
fn pages_that_are_refused_are_no_fault() {
    with_script(|device, mut script| {
        let pages = |fua| Op::WritePages { offset: 0, len: 4096, tag: 3, fua };
        for errno in [libc::EINVAL, libc::EFAULT, libc::EOPNOTSUPP] {
            script.submit(1, Op::ReadPages { offset: 0, len: 4096, tag: 3 });
            script.submit(2, pages(true));
            script.complete(Some(errno));
            script.complete(Some(errno));
            let refused = Err(BdevError::NotSupported);
            assert_eq!(script.results(), [(1, refused), (2, refused)], "{errno}");
        }
        assert!(!device.write_fault());
        script.submit(3, pages(true));
        script.complete(Some(libc::EIO));
        assert_eq!(script.results(), [(3, Err(BdevError::WriteFault))]);
        assert!(device.write_fault());
        script.submit(4, pages(true));
        assert_eq!(script.results(), [(4, Err(BdevError::WriteFault))], "nothing is started");
        script.close();
    });
}
