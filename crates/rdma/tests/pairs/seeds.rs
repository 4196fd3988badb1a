//! Many seeds: reads and writes of every kind, checked, while the network fails in every way.

use std::time::Duration;

use raceline_proto::rdma::WorkStatus;
use raceline_rdma::fake::{Faults, NetworkConfig, Profile};
use raceline_rdma::{Loss, PortConfig};

use super::support::{Dice, Pair, port_config};

/// Seeds without being asked for more (`RACELINE_RDMA_SEEDS`).
const SEEDS: u64 = 300;
/// Commands of each.
const COMMANDS: u64 = 120;

fn config(seed: u64) -> NetworkConfig {
    let mut dice = Dice::new(seed ^ 0x5eed);
    let mut rare = |most: u32| if dice.below(3) == 0 { 1 + dice.below(most) + most / 4 } else { 0 };
    let faults = Faults {
        lost_peer: rare(400),
        refused_post: rare(400),
        stale: rare(8),
        lost_accept: rare(8),
        lost_word: rare(8),
        cut: rare(2000),
        cut_message: rare(800),
        removal: 0,
    };
    // Each of these runs ends with the device of one end.
    let ends = Faults { removal: 1 + dice.below(1500), ..Faults::default() };
    let pick = |dice: &mut Dice, among: &[u8]| {
        among[usize::try_from(dice.below(u32::try_from(among.len()).unwrap())).unwrap()]
    };
    let (reads_begun, reads_answered) =
        (pick(&mut dice, &[1, 2, 16]), pick(&mut dice, &[1, 3, 16]));
    NetworkConfig {
        seed,
        profile: if seed.is_multiple_of(2) { Profile::Roce } else { Profile::Iwarp },
        delay: Duration::from_micros([0, 5, 100, 3000][usize::try_from(seed / 2 % 4).unwrap()]),
        reuses_numbers: seed.is_multiple_of(7),
        reads_begun,
        reads_answered,
        invalidates: dice.below(3) > 0,
        // A response needs 16 bytes, a command 64.
        inline_bytes: [0, 15, 16, 63, 64][usize::try_from(dice.below(5)).unwrap()],
        faults: match seed % 40 {
            // One of each profile.
            4 | 27 => ends,
            _ if seed.is_multiple_of(5) => Faults::default(),
            _ => faults,
        },
        ..NetworkConfig::default()
    }
}

/// One seed; gives commands that completed and commands that were lost.
fn run(seed: u64) -> (u64, u64) {
    let config = config(seed);
    // None, fewer than three queues of 16 entries need, and enough.
    let shared_receives = [0, 40, 64][usize::try_from(seed / 8 % 3).unwrap()];
    let port = PortConfig { shared_receives, ..port_config() };
    let mut pair = Pair::new(config, port);
    let mut steps = 0u64;
    let ends_with_device = config.faults.removal > 0;
    while ends_with_device || pair.host.completed + pair.host.ended < COMMANDS {
        if pair.host.port.is_device_gone() || pair.target.port.is_device_gone() {
            assert!(ends_with_device, "a device has failed");
            break;
        }
        steps += 1;
        assert!(steps < 400_000, "{} commands in so many steps", pair.host.completed);
        let connections = pair.host.live.len() + pair.host.connecting;
        if connections < 3 && pair.dice.below(8) == 0 {
            let now = pair.now();
            let qid = 1 + u16::try_from(pair.dice.below(8)).unwrap();
            let connecting = pair.host.connect(qid, now);
            // Without its device, a host connects no more.
            assert!(connecting.is_some() || ends_with_device, "a host does not connect");
        }
        if pair.dice.below(2) == 0 {
            pair.host.submit(&mut pair.dice);
        }
        if !pair.step() {
            // Nothing is under way: time passes, up to a deadline of somebody.
            pair.network.advance_to(pair.network.now() + Duration::from_millis(200));
            pair.check_deadlines();
        }
        if pair.dice.below(400) == 0 && !pair.host.live.is_empty() {
            let (connection, now) = (pair.host.live[0], pair.now());
            pair.host.port.close(connection, now);
        }
    }
    let (target, host) = pair.end();
    assert!(target.executed >= host.completed);
    // No fault makes a device fail what it cannot do: that is asked of it by mistake.
    let mistake = |loss: &Loss| matches!(loss, Loss::Work(_, WorkStatus::LOC_QP_OP_ERR));
    assert!(!target.losses.iter().any(|(_, loss)| mistake(loss)), "{:?}", target.losses);
    (host.completed, host.ended)
}

/// Runs seeds, and says which one failed.
fn run_all(seeds: std::ops::Range<u64>) -> (u64, u64) {
    let mut total = (0, 0);
    for seed in seeds {
        let result = std::panic::catch_unwind(|| run(seed));
        let Ok((completed, ended)) = result else { panic!("seed {seed} has failed") };
        total = (total.0 + completed, total.1 + ended);
    }
    total
}

#[test]
fn what_is_written_is_read_under_any_faults() {
    let first = std::env::var("RACELINE_RDMA_SEED").ok().and_then(|text| text.parse().ok());
    let seeds = std::env::var("RACELINE_RDMA_SEEDS").ok().and_then(|text| text.parse().ok());
    let (first, count): (u64, u64) = (first.unwrap_or(0), seeds.unwrap_or(SEEDS));
    let (completed, ended) = run_all(first..first + count);
    println!("{count} seeds: {completed} commands completed, {ended} were lost");
    if count >= SEEDS {
        assert!(ended > 100, "the faults have lost {ended} commands only");
        assert!(completed > count * COMMANDS / 2, "{completed} commands completed");
    }
}

#[test]
fn a_seed_always_does_the_same() {
    assert_eq!(run(7), run(7));
    assert_eq!(run(12), run(12));
}
