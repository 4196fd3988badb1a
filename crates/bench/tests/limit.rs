//! The bare pair moves every byte it should, in every shape, mode and tuning.

use std::time::Duration;

use raceline_bench::limit::{Fixed, Limit, LimitConfig, LimitError, Mode, Prefetch, fill_region};
use raceline_reactor::HugePages;
use raceline_tls::Suite;

const MEMORY_BYTES: usize = 4 << 20;
const RAMP: Duration = Duration::from_millis(2);
const TIME: Duration = Duration::from_millis(20);

fn config() -> LimitConfig {
    LimitConfig {
        io_bytes: 4096,
        write: false,
        depth: 4,
        connections: 1,
        memory_bytes: MEMORY_BYTES,
        pages: HugePages::None,
        // The machine of a test may have one core for both sides.
        mode: Mode::Blocking,
        target_core: None,
        host_core: None,
        fixed: Fixed::default(),
        tls: None,
        seed: 7,
    }
}

/// Runs two windows and gives the region after them. The limit itself checks that both sides counted the
/// same commands and bytes.
fn run(config: &LimitConfig) -> Vec<u8> {
    let region = fill_region(MEMORY_BYTES, config.pages, 3).expect("memory");
    let mut limit = Limit::start(config, region).expect("a pair");
    for _ in 0..2 {
        let measured = limit.run(RAMP, TIME).unwrap_or_else(|error| panic!("{config:?}: {error}"));
        let outstanding = (config.depth * config.connections) as u64;
        assert!(measured.total >= outstanding, "{config:?}: {measured:?}");
        assert!(measured.commands <= measured.total && measured.time >= TIME);
    }
    limit.stop().expect("the region comes back").to_vec()
}

#[test]
fn every_shape_in_both_modes() {
    for mode in [Mode::Blocking, Mode::Polled] {
        for write in [false, true] {
            // In the capsule; with one R2T; with data in three pieces.
            for io_bytes in [512, 4096, 16 << 10, 300 << 10] {
                for connections in [1, 3] {
                    run(&LimitConfig { io_bytes, write, mode, connections, ..config() });
                }
            }
        }
    }
}

#[test]
fn receives_and_sends_that_split_headers_anywhere() {
    for write in [false, true] {
        for io_bytes in [4096, 16 << 10] {
            for (receive, buffer_each) in [(131, false), (131, true), (1000, false), (5000, true)] {
                let fixed = Fixed {
                    receive_bytes: Some(receive),
                    chunk: Some(3),
                    prefetch: Some(Prefetch::Lines),
                    buffer_each,
                    staged: buffer_each,
                    work: Duration::from_nanos(100),
                };
                run(&LimitConfig { write, io_bytes, depth: 33, fixed, ..config() });
            }
        }
    }
}

#[test]
fn calibration_tries_everything_and_counts_right() {
    for (write, io_bytes) in [(false, 4096), (true, 4096), (true, 16 << 10), (false, 64 << 10)] {
        let config = LimitConfig {
            write,
            io_bytes,
            mode: Mode::Polled,
            connections: 2,
            tls: Some(Suite::Aes128GcmSha256),
            ..config()
        };
        let region = fill_region(MEMORY_BYTES, config.pages, 3).unwrap();
        let mut limit = Limit::start(&config, region).unwrap();
        limit.calibrate().unwrap();
        limit.run(RAMP, TIME).unwrap();
        if !write && io_bytes == 64 << 10 {
            limit.calibrate_with_tls().unwrap();
            assert!(limit.tls_tuning().tls && !limit.tuning().tls);
            limit.run_with_tls(RAMP, TIME).unwrap();
        }
        if !write && io_bytes == 4096 {
            limit.calibrate_with_digests().unwrap();
            assert!(limit.digest_tuning().digest && !limit.tuning().digest);
            limit.run_with_digests(RAMP, TIME).unwrap();
        }
    }
}

#[test]
fn written_data_lands_where_the_commands_say() {
    for io_bytes in [4096, 64 << 10] {
        let before = fill_region(MEMORY_BYTES, HugePages::None, 3).unwrap().to_vec();
        let config = LimitConfig { io_bytes, write: true, depth: 1, ..config() };
        let after = run(&config);
        // Every command writes the same payload; each place holds it or its earlier content.
        let mut written: Vec<&[u8]> = Vec::new();
        for (new, old) in after.chunks(io_bytes).zip(before.chunks(io_bytes)) {
            if new != old {
                written.push(new);
            }
        }
        assert!(!written.is_empty());
        assert!(written.iter().all(|place| *place == written[0]), "torn at {io_bytes}");
    }
}

#[test]
fn reading_leaves_the_region_alone() {
    let before = fill_region(MEMORY_BYTES, HugePages::None, 3).unwrap().to_vec();
    assert!(run(&config()) == before);
}

/// Windows with and without digests in turn; the host's side checks every digest.
fn run_with_digests(config: &LimitConfig) {
    let region = fill_region(MEMORY_BYTES, config.pages, 3).expect("memory");
    let mut limit = Limit::start(config, region).expect("a pair");
    for _ in 0..2 {
        let plain = limit.run(RAMP, TIME).expect("a window without digests");
        let digest = limit
            .run_with_digests(RAMP, TIME)
            .unwrap_or_else(|error| panic!("{config:?}: {error}"));
        assert!(digest.total >= (config.depth * config.connections) as u64);
        let polled = config.mode == Mode::Polled;
        assert_eq!((plain.core_ns().is_some(), digest.core_ns().is_some()), (polled, polled));
    }
    limit.stop().expect("the region comes back");
}

#[test]
fn digests_are_sent_and_checked() {
    for mode in [Mode::Blocking, Mode::Polled] {
        for io_bytes in [512, 4096, 300 << 10] {
            for connections in [1, 3] {
                run_with_digests(&LimitConfig { io_bytes, mode, connections, ..config() });
            }
        }
    }
    for receive in [131, 5000] {
        let fixed = Fixed { receive_bytes: Some(receive), chunk: Some(3), ..Fixed::default() };
        run_with_digests(&LimitConfig { depth: 33, fixed, ..config() });
    }
}

#[test]
fn digests_of_writes_are_refused() {
    let region = fill_region(MEMORY_BYTES, HugePages::None, 3).unwrap();
    let mut limit = Limit::start(&LimitConfig { write: true, ..config() }, region).unwrap();
    let error = limit.run_with_digests(RAMP, TIME).unwrap_err().to_string();
    assert_eq!(error, "digests are measured with reads: leave out writes");
    assert!(limit.calibrate_with_digests().is_err());
}

/// Windows with and without records of TLS in turn; what is written lands where it belongs.
#[test]
fn records_carry_every_shape() {
    let run = |config: &LimitConfig| {
        let region = fill_region(MEMORY_BYTES, config.pages, 3).expect("memory");
        let mut limit = Limit::start(config, region).expect("a pair");
        for _ in 0..2 {
            limit.run(RAMP, TIME).expect("a window without records");
            let tls = limit.run_with_tls(RAMP, TIME);
            let tls = tls.unwrap_or_else(|error| panic!("{config:?}: {error}"));
            assert!(tls.total >= (config.depth * config.connections) as u64);
        }
        limit.stop().expect("the region comes back").to_vec()
    };
    for (mode, suite) in
        [(Mode::Blocking, Suite::Aes128GcmSha256), (Mode::Polled, Suite::Aes256GcmSha384)]
    {
        let tls = Some(suite);
        for write in [false, true] {
            for io_bytes in [512, 4096, 16 << 10, 300 << 10] {
                for (connections, buffer_each) in [(1, false), (3, true)] {
                    let fixed = Fixed { buffer_each, staged: buffer_each, ..Fixed::default() };
                    run(&LimitConfig {
                        io_bytes,
                        write,
                        mode,
                        connections,
                        fixed,
                        tls,
                        ..config()
                    });
                }
            }
        }
    }
    // Every command writes the same payload, and no place is torn.
    let io_bytes = 64 << 10;
    let tls = Some(Suite::Aes128GcmSha256);
    let before = fill_region(MEMORY_BYTES, HugePages::None, 3).unwrap().to_vec();
    let after = run(&LimitConfig { io_bytes, write: true, depth: 1, tls, ..config() });
    let places = after.chunks(io_bytes).zip(before.chunks(io_bytes));
    let written: Vec<&[u8]> = places.filter(|(new, old)| new != old).map(|(new, _)| new).collect();
    assert!(!written.is_empty() && written.iter().all(|place| *place == written[0]));
}

#[test]
fn records_need_a_suite() {
    let region = fill_region(MEMORY_BYTES, HugePages::None, 3).unwrap();
    let mut limit = Limit::start(&config(), region).unwrap();
    assert!(limit.run_with_tls(RAMP, TIME).is_err() && limit.calibrate_with_tls().is_err());
}

#[test]
fn what_cannot_be_is_said() {
    let small = LimitConfig { memory_bytes: 4095, ..config() };
    let Err(LimitError::Invalid(message)) = small.check() else { panic!() };
    assert_eq!(message, "4095 bytes of memory have no room for a command of 4096");

    let region = fill_region(MEMORY_BYTES, HugePages::None, 3).unwrap();
    let far = LimitConfig { host_core: Some(5000), ..config() };
    let error = Limit::start(&far, region).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot start the thread of the host's side: core 5000 cannot be used"),
        "{error}"
    );
}
