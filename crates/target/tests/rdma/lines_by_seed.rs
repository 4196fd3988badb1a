//! Sequences of the byte streams by seeds, for a bounded time.

use super::lines::{Seen, run};

/// Inputs, unless `RACELINE_RDMA_SEQUENCES` says otherwise.
const INPUTS: u64 = 1500;

/// Bytes that follow from a seed.
fn input(seed: u64) -> Vec<u8> {
    let words = crate::common::pattern(seed + 1, 1002);
    let len = 20 + usize::from(u16::from_le_bytes([words[0], words[1]])) % 980;
    words[2..].iter().copied().take(len).collect()
}

#[test]
fn byte_streams_end_over_a_device_that_does_anything() {
    let count = std::env::var("RACELINE_RDMA_SEQUENCES").map_or(INPUTS, |n| n.parse().unwrap());
    let mut all = Seen::default();
    for seed in 0..count {
        let data = input(seed);
        let Ok(seen) = std::panic::catch_unwind(|| run(&data)) else { panic!("seed {seed}") };
        all.commands += seen.commands;
        all.successes += seen.successes;
        all.losses += seen.losses;
        all.kept += seen.kept;
    }
    println!("{all:?}");
    let enough = all.commands > 3000 && all.successes > 1000 && all.losses > 200 && all.kept > 50;
    assert!(enough || count < INPUTS, "{all:?}");
}

/// The corpus of the fuzz target: the names say what happens.
#[test]
fn seeds_of_the_fuzz_target_do_what_they_say() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/rdma_queues");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if !name.starts_with("line_") {
            continue;
        }
        let data = std::fs::read(entry.path()).unwrap();
        assert_eq!(data[0] % 3, 2, "{name}");
        let Seen { commands, successes, losses, kept } = run(&data[1..]);
        assert!(commands > 0 && successes > 0, "{name}");
        match &name[..] {
            "line_reads_and_writes" => assert_eq!((losses, kept), (0, 0), "{name}"),
            "line_reads_in_place" => assert!(kept > 0, "{name}"),
            "line_lost_amid_commands" => assert!(losses > 0, "{name}"),
            other => panic!("{other} is not known here"),
        }
        count += 1;
    }
    assert_eq!(count, 3, "seeds");
}
