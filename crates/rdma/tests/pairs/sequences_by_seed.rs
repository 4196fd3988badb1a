//! Sequences by seeds, for a bounded time.

use super::sequences::{Seen, run_host, run_target};
use super::support::Dice;

/// Inputs of each end, unless `RACELINE_RDMA_SEQUENCES` says otherwise.
const INPUTS: u64 = 3000;

fn inputs(run: fn(&[u8]) -> Seen) -> Seen {
    let mut all = Seen::default();
    let count = std::env::var("RACELINE_RDMA_SEQUENCES").map_or(INPUTS, |n| n.parse().unwrap());
    for seed in 0..count {
        let mut dice = Dice::new(seed);
        let len = 20 + dice.below(900);
        let data: Vec<u8> = (0..len).map(|_| dice.below(256).to_le_bytes()[0]).collect();
        let ended = std::panic::catch_unwind(|| run(&data));
        let Ok(seen) = ended else { panic!("seed {seed}") };
        all.commands += seen.commands;
        all.successes += seen.successes;
        all.losses += seen.losses;
    }
    all
}

#[test]
fn the_targets_end_over_a_device_that_does_anything() {
    let seen = inputs(run_target);
    assert!(seen.commands > 10_000 && seen.successes > 500 && seen.losses > 1000, "{seen:?}");
}

#[test]
fn the_hosts_end_over_a_device_that_does_anything() {
    let seen = inputs(run_host);
    assert!(seen.commands > 5000 && seen.successes > 3000 && seen.losses > 2000, "{seen:?}");
}

/// The corpus of the fuzz target: the names say what happens.
#[test]
fn seeds_of_the_fuzz_target_do_what_they_say() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/rdma_queues");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (name, data) = (entry.file_name().into_string().unwrap(), entry.path());
        if name.starts_with("line_") {
            // The target's byte streams, whose tests know them.
            continue;
        }
        let data = std::fs::read(data).unwrap();
        let run = match data[0] % 3 {
            0 => run_target,
            1 => run_host,
            _ => panic!("{name} is for byte streams"),
        };
        let Seen { commands, successes, losses } = run(&data[1..]);
        let expected = match &name[..] {
            "target_reads_and_writes_own_receives"
            | "target_reads_and_writes_shared_receives"
            | "target_reads_and_writes_iwarp" => (4, 2, 0),
            "target_in_capsule" | "target_wrong_key" | "target_refused_post" => (1, 0, 0),
            "target_list" => (1, 1, 0),
            "target_removed_amid_reads" => (2, 0, 2),
            "target_disconnected_amid_reads" => (1, 0, 1),
            "target_short_capsule" => (0, 0, 0),
            "target_one_identifier_twice" => (2, 0, 0),
            "host_commands_of_each_kind" => (5, 5, 0),
            "host_response_before_its_capsule_has_left" => (1, 1, 0),
            "host_disconnected_with_a_response" => (2, 1, 1),
            "host_device_removed" | "host_refused_post" => (2, 0, 2),
            "host_response_to_nothing" | "host_short_response" => (1, 0, 1),
            other => panic!("{other} is not known here"),
        };
        assert_eq!((commands, successes, losses), expected, "{name}");
        count += 1;
    }
    assert_eq!(count, 18, "seeds");
}
