//! The same workload on devices in memory, on files by a reactor, and on files by a ring.

use std::io::Write as _;

use raceline_reactor::HugePages;

use super::*;
use crate::gap::filled_ram;

fn job() -> LocalJob {
    LocalJob {
        mode: RwMode::RandRead,
        mixed_read_percent: 50,
        io_bytes: 4096,
        depth: 4,
        rate_iops: None,
        ramp: Duration::from_millis(5),
        time: Duration::from_millis(50),
        seed: 1,
    }
}

fn file(mib: usize) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![7; mib << 20]).unwrap();
    file.as_file().sync_all().unwrap();
    file
}

/// How long the runs of [`measured`] are.
const TIMES: [Duration; 4] = [
    Duration::from_millis(50),
    Duration::from_millis(500),
    Duration::from_secs(5),
    Duration::from_secs(30),
];

/// The result of the first run in which enough commands ended: a busy machine may leave a short one no time for any, and
/// longer ones follow.
fn measured(
    mut run: impl FnMut(Duration) -> JobResult,
    is_enough: impl Fn(&JobResult) -> bool,
) -> JobResult {
    let mut found = None;
    for time in TIMES {
        let result = run(time);
        let ends = is_enough(&result);
        found = Some(result);
        if ends {
            break;
        }
    }
    found.unwrap()
}

#[test]
fn a_device_in_memory_is_read_and_written() {
    let device = filled_ram(1 << 20, HugePages::None, 1).unwrap();
    let local = &Local::start(&device, None, &job()).unwrap();
    let run = |mode| move |time| local.run(LocalJob { mode, time, ..job() }).unwrap();
    let read = measured(run(RwMode::RandRead), |it| it.read.count() > 0);
    assert!(read.read.count() > 0 && read.write.count() == 0, "{}", read.read.count());
    assert!(TIMES.contains(&read.measured), "{:?}", read.measured);
    let both = |it: &JobResult| it.read.count() > 0 && it.write.count() > 0;
    assert!(both(&measured(run(RwMode::RandReadWrite), both)));
    let paced = local.run(LocalJob { rate_iops: Some(2000), ..job() }).unwrap();
    // 2000 per second for 50 ms, and what a busy machine missed.
    assert!((99..=101).contains(&(paced.read.count() + paced.missed)), "{paced:?}");
    let error = local.run(LocalJob { io_bytes: 100, ..job() }).unwrap_err();
    assert!(error.to_string().contains("multiple of 512"), "{error}");
    let error = local.run(LocalJob { io_bytes: 2 << 20, ..job() }).unwrap_err();
    assert!(matches!(error, LocalError::Workload(_)), "{error}");
}

#[test]
fn a_file_is_driven_by_a_ring() {
    let file = file(1);
    let mut ring = match Ring::open(file.path(), false, &job()) {
        Ok(ring) => ring,
        // File systems without O_DIRECT, and containers without io_uring.
        Err(error) => return println!("SKIPPED: nothing to test here: {error}"),
    };
    let run = |time| ring.run(&LocalJob { time, ..job() }, &|| false).unwrap();
    let read = measured(run, |it| it.read.count() > 0);
    assert!(read.read.count() > 0 && read.write.count() == 0);
    let stopped = ring.run(&LocalJob { time: Duration::from_secs(60), ..job() }, &|| true);
    assert!(stopped.unwrap().measured < Duration::from_secs(30));
    let deeper = ring.run(&LocalJob { depth: 64, ..job() }, &|| false).unwrap_err();
    assert!(deeper.to_string().contains("another job"), "{deeper}");
    let write = LocalJob { mode: RwMode::RandWrite, ..job() };
    let mut ring = Ring::open(file.path(), false, &write).unwrap();
    let run = |time| ring.run(&LocalJob { time, ..write }, &|| false).unwrap();
    let written = measured(run, |it| it.write.count() > 0);
    assert!(written.write.count() > 0 && written.read.count() == 0);
}

#[test]
fn a_file_without_polled_completions_is_named() {
    let file = file(1);
    let mut ring = match Ring::open(file.path(), true, &job()) {
        Ok(ring) => ring,
        Err(error) => return println!("SKIPPED: nothing to test here: {error}"),
    };
    match ring.run(&LocalJob { time: Duration::from_secs(1), ..job() }, &|| false) {
        // A drive with poll queues.
        Ok(result) => assert!(result.read.count() > 0),
        Err(error) => {
            assert!(matches!(error, LocalError::Ring(RingError::NoPolling { .. })), "{error}");
            assert!(error.to_string().contains("poll_queues"), "{error}");
        }
    }
}

#[test]
fn files_that_are_not_there_are_named() {
    let nowhere = std::path::Path::new("/nowhere/file");
    let Err(error) = Ring::open(nowhere, false, &job()) else { panic!("/nowhere/file exists") };
    assert!(error.to_string().contains("cannot open /nowhere/file"), "{error}");
}
