//! What is told to the kernel, and what is refused before.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use raceline_bdev::{DeviceSpec, Identity};
use raceline_reactor::{Completion, Service};

use super::*;

fn config(spec: &str) -> DiskConfig {
    let device =
        raceline_bdev::open(&spec.parse::<DeviceSpec>().unwrap(), &Identity::of_this_machine());
    DiskConfig::new(device.unwrap(), Mark::of(spec))
}

#[test]
fn marks_tell_devices_apart_and_are_known_as_ours() {
    let (one, other) = (Mark::of("nqn.2026-01.io.x:a 1"), Mark::of("nqn.2026-01.io.x:a 2"));
    assert_eq!(one, Mark::of("nqn.2026-01.io.x:a 1"));
    assert_ne!(one, other);
    assert!(Mark::is_ours(one.0) && Mark::is_ours(other.0));
    assert!(!Mark::is_ours(0) && !Mark::is_ours(1 << 48));
}

#[test]
fn a_disk_is_like_its_device() {
    let config = config("ram:64M,bs=4096");
    let mut device = config.device.info();
    let ram = params(&device, 64 << 10, false);
    assert_eq!((ram.logical_shift, ram.sectors, ram.max_sectors), (12, 131_072, 128));
    assert_eq!(ram.attributes, 0);
    assert_eq!(ram.max_zeroes_sectors, 2 << 20);
    device.volatile_write_cache = true;
    device.deallocate = false;
    let cached = params(&device, 64 << 10, false);
    assert_eq!(cached.attributes, attribute::VOLATILE_CACHE | attribute::FUA);
    assert_eq!(cached.max_discard_sectors, 0);
    let read_only = params(&device, 64 << 10, true);
    assert_eq!(read_only.attributes & attribute::READ_ONLY, attribute::READ_ONLY);
    assert_eq!(read_only.max_zeroes_sectors, 0);
}

#[test]
fn only_what_outlives_a_process_is_recovered() {
    let config = config("ram:1M");
    let mut device = config.device.info();
    let recovery = feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;
    let copied = Err(Reason::Kernel);
    assert_eq!(asked(&config, &device, false, copied).features & recovery, 0);
    device.reads_in_place = false;
    let info = asked(&config, &device, true, copied);
    let pages = feature::AUTO_BUF_REG | feature::USER_COPY;
    assert_eq!(info.features & pages, 0);
    assert_eq!(asked(&config, &device, true, Ok(())).features, info.features | pages);
    assert_eq!(info.features & recovery, recovery);
    assert_eq!(info.features & feature::UPDATE_SIZE, feature::UPDATE_SIZE);
    assert_eq!((info.id, info.queues, info.depth), (u32::MAX, 1, DEFAULT_DEPTH));
    let own = i32::try_from(std::process::id()).unwrap();
    let live = DeviceInfo { state: state::LIVE, pid: own, ..info };
    assert!(!is_orphan(&live));
    let killed = DeviceInfo { pid: i32::MAX, ..live };
    assert!(is_orphan(&killed) && outlives(&killed));
    let quiesced = DeviceInfo { state: state::QUIESCED, ..live };
    assert!(is_orphan(&quiesced) && outlives(&quiesced));
    let ending = DeviceInfo { state: state::DEAD, ..live };
    assert!(!is_orphan(&ending));
    let dead = DeviceInfo { state: state::DEAD, ..killed };
    assert!(is_orphan(&dead) && !outlives(&dead));
}

#[test]
fn a_disk_goes_on_only_with_a_device_that_fits() {
    let before = params(&config("ram:64M").device.info(), 4096, false);
    assert!(fits(&before, &before).is_ok());
    let larger = Params { sectors: before.sectors + 8, ..before };
    assert!(fits(&before, &larger).is_ok());
    assert!(fits(&larger, &before).unwrap_err().contains("sectors"));
    let blocks = Params { logical_shift: 12, ..before };
    assert!(fits(&before, &blocks).unwrap_err().contains("4096"));
    let read_only = Params { attributes: attribute::READ_ONLY, ..before };
    assert!(fits(&before, &read_only).unwrap_err().contains("written"));
    assert!(fits(&read_only, &before).is_ok());
}

#[test]
fn wrong_limits_are_refused_with_a_reason() {
    let good = config("ram:64M");
    check_config(&good).unwrap();
    let many = DiskConfig { cores: vec![None; 64], depth: 4096, ..good.clone() };
    for (bad, text) in [
        (DiskConfig { depth: 0, ..good.clone() }, "1 to 4096"),
        (DiskConfig { depth: 4097, ..good.clone() }, "1 to 4096"),
        (DiskConfig { max_io_bytes: 0, ..good.clone() }, "4 KiB"),
        (DiskConfig { max_io_bytes: 5000, ..good.clone() }, "4 KiB"),
        (DiskConfig { max_io_bytes: 8 << 20, ..good.clone() }, "4 KiB"),
        (DiskConfig { cores: Vec::new(), ..good.clone() }, "cores"),
        (many, "MiB of memory"),
    ] {
        let refused = check_config(&bad).unwrap_err().to_string();
        assert!(refused.contains(text), "{refused}");
    }
}

/// The state of a disk of process `pid`, as the kernel shows it.
fn shown(state: u16, pid: i32) -> DeviceInfo {
    let config = config("ram:1M");
    DeviceInfo { state, pid, ..asked(&config, &config.device.info(), false, Err(Reason::Kernel)) }
}

#[test]
fn a_process_that_follows_waits_until_the_kernel_has_seen_the_end_of_the_former_one() {
    let long = Duration::from_secs(600);
    let mut shows = vec![shown(state::QUIESCED, i32::MAX); 1];
    shows.resize(3, shown(state::LIVE, i32::MAX));
    assert_eq!(wait_for_end(0, long, || Ok(shows.pop().unwrap())).unwrap(), Found::Left);
    assert!(shows.is_empty(), "it did not look until then");
    let own = i32::try_from(std::process::id()).unwrap();
    let mut shows = vec![shown(state::LIVE, own), shown(state::LIVE, i32::MAX)];
    assert_eq!(wait_for_end(0, long, || Ok(shows.pop().unwrap())).unwrap(), Found::Served);
}

#[test]
fn only_enodev_says_that_a_disk_was_removed_during_the_wait() {
    let long = Duration::from_secs(600);
    let wait = |errno: i32| {
        let mut looks = 0;
        wait_for_end(7, long, || {
            looks += 1;
            match looks {
                1 => Ok(shown(state::LIVE, i32::MAX)),
                _ => Err(io::Error::from_raw_os_error(errno)),
            }
        })
    };
    assert_eq!(wait(ENODEV).unwrap(), Found::Removed);
    let (eperm, eintr) = (1, 4);
    for errno in [eperm, eintr, EBUSY] {
        let error = wait(errno).unwrap_err();
        let DiskError::Command { command, id: 7, source } = &error else { panic!("{error:?}") };
        assert_eq!((*command, source.raw_os_error()), (Command::GetInfo.name(), Some(errno)));
    }
}

#[test]
fn a_disk_that_the_kernel_does_not_let_go_of_ends_the_wait_with_a_reason() {
    let wait = Duration::from_millis(50);
    let start = Instant::now();
    let error = wait_for_end(7, wait, || Ok(shown(state::LIVE, i32::MAX))).unwrap_err();
    assert!(start.elapsed() >= wait);
    assert!(matches!(error, DiskError::Unseen { id: 7, pid: i32::MAX }), "{error:?}");
    let text = error.to_string();
    for part in
        ["/dev/ublkb7", "2147483647", "60 s", "container", "restart of the machine", "--ublk-id"]
    {
        assert!(text.contains(part), "{text}");
    }
}

/// A core whose commands the kernel keeps: it ends only where it is told to, and not even then if it `hangs`.
struct Waiter {
    hangs: bool,
    is_over: bool,
}

impl Service for Waiter {
    type Message = Message;

    fn handle_message(&mut self, _cx: &mut Context<'_>, message: Message) {
        let ends = match message {
            Message::Abandon => !self.hangs,
            Message::Ends => true,
            Message::Open | Message::Fetch | Message::Resized(_) | Message::Leave => false,
        };
        self.is_over |= ends;
    }

    fn handle_completion(&mut self, _cx: &mut Context<'_>, _completion: Completion) {}

    fn flush(&mut self, _cx: &mut Context<'_>) {}

    fn is_finished(&self) -> bool {
        self.is_over
    }
}

/// The cores of a disk of two queues; the second one may hang.
fn cores(name: &str, hangs: bool) -> Cores<Message> {
    let config =
        ReactorConfig { name: name.to_owned(), backend: Backend::Epoll, ..Default::default() };
    let mut cores = Cores::default();
    cores
        .start(&config, [None, None], |place| {
            let hangs = hangs && place == 1;
            move |_: &mut Context<'_>| Ok(Waiter { hangs, is_over: false })
        })
        .unwrap();
    cores
}

/// How many threads of this process have names that begin so.
fn threads(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().filter_map(Result::ok);
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|found| found.starts_with(name)).count()
}

/// Waits until no thread has a name that begins so: one that was joined may still be listed.
fn assert_no_threads(name: &str) {
    let until = Instant::now() + Duration::from_secs(10);
    while threads(name) > 0 {
        assert!(Instant::now() < until, "{} threads are left", threads(name));
        std::thread::sleep(LOOK_INTERVAL);
    }
}

#[test]
fn nothing_is_left_of_a_recovery_that_fails() {
    let short = Duration::from_millis(50);
    let (taken_back, told) = (Told::default(), Told::default());
    let interrupted = || Err(io::ErrorKind::Interrupted.into());
    let ended = |told: &Told, command: &dyn Fn(&dyn Fn() -> bool) -> io::Result<()>| {
        let begun = cores("ublk-fails", false);
        assert_eq!(threads("ublk-fails"), 2);
        let end = |_: &Cores<Message>| recovery::end(7, told, short, command);
        let error = recovery::finish((7, PATIENCE), (begun, Ok(())), end).map(drop).unwrap_err();
        assert_no_threads("ublk-fails");
        error
    };
    let error = ended(&taken_back, &|worth| {
        assert!(worth());
        taken_back.ended.store(true, Ordering::Release);
        assert!(!worth(), "the kernel has taken back what it waits for");
        interrupted()
    });
    assert!(matches!(error, DiskError::TakenBack(7)), "{error:?}");
    let error = ended(&told, &|worth| {
        while worth() {
            std::thread::sleep(LOOK_INTERVAL);
        }
        interrupted()
    });
    assert!(matches!(error, DiskError::Unended(7)), "{error:?}");
    let error = ended(&told, &|_| Err(io::Error::from_raw_os_error(EBUSY)));
    let is_command = matches!(&error, DiskError::Command { id: 7, source, .. }
        if source.raw_os_error() == Some(EBUSY));
    assert!(is_command, "{error:?}");
    // The second core did not start.
    let begun = Err(DiskError::Core(io::ErrorKind::OutOfMemory.into()));
    let end = |_: &Cores<Message>| -> Result<(), DiskError> { panic!("the kernel is not asked") };
    let failed = recovery::finish((7, PATIENCE), (cores("ublk-fails", false), begun), end);
    assert!(matches!(failed.map(drop), Err(DiskError::Core(_))));
    assert_no_threads("ublk-fails");
}

#[test]
fn a_recovery_that_succeeds_keeps_its_cores() {
    let end = |_: &Cores<Message>| {
        recovery::end(7, &Told::default(), PATIENCE, |worth| {
            assert!(worth());
            Ok(())
        })
    };
    let (kept, ()) =
        recovery::finish((7, PATIENCE), (cores("ublk-goes-on", false), Ok(())), end).unwrap();
    assert!(kept.is_running());
    kept.tell(|| Message::Ends);
    kept.join();
}

#[test]
fn threads_that_do_not_end_after_a_recovery_are_told() {
    let cores = cores("ublk-hangs", true);
    let senders = cores.senders();
    let failed = recovery::finish(
        (7, Duration::from_millis(100)),
        (cores, Err(DiskError::TakenBack(7))),
        |_| Ok(()),
    );
    let error = failed.map(drop).unwrap_err();
    assert!(matches!(error, DiskError::Stuck { id: 7, count: 1, .. }), "{error:?}");
    let text = error.to_string();
    for part in [&DiskError::TakenBack(7).to_string()[..], "/dev/ublkc7", "has to end before"] {
        assert!(text.contains(part), "{text}");
    }
    for core in senders {
        let _ = core.send(Message::Ends);
    }
    assert_no_threads("ublk-hangs");
}

#[test]
fn what_is_no_disk_of_ours_is_no_orphan() {
    for path in ["", "/dev/sda", "/dev/ublkb", "/dev/ublkbx", "/dev/ublkb4000000000"] {
        assert!(!remove_orphan(path).unwrap(), "{path}");
    }
}

#[test]
fn a_machine_without_the_driver_says_what_to_do() {
    match check() {
        Ok(()) => eprintln!("SKIPPED: this machine has the driver"),
        Err(error) => {
            let text = error.to_string();
            let hints = ["modprobe ublk_drv", "io_uring_setup", "root"];
            assert!(hints.iter().any(|hint| text.contains(hint)), "{text}");
        }
    }
}
