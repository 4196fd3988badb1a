//! Bytes that mean nothing, and PDUs with a few wrong bytes: no end may panic, and neither may take memory without
//! bound. Every case has a seed, which a failure prints.

mod common;

use common::disk::Setup;
use common::stream::{RAW, run_initiator, run_target};
use common::{Pair, Random, config};

/// What both ends said in a session with all kinds of PDUs.
fn recorded() -> Pair {
    let mut pair = Pair::new(config(), Setup::default(), 64);
    pair.log_in();
    pair.login_to_target = pair.sent_to_target.len();
    pair.login_to_host = pair.sent_to_host.len();
    pair.host.immediate_limit = 512;
    pair.host.unsolicited = true;
    pair.host.write(0, 1, &[0x11; 4096], &mut pair.to_target);
    pair.host.unsolicited = false;
    pair.host.write(1, 9, &[0x22; 4096], &mut pair.to_target);
    pair.host.read(2, 0, 16, &mut pair.to_target);
    pair.run_well();
    pair.host.read(3, 99, 1, &mut pair.to_target);
    pair.host.initiator.ping(&mut pair.to_target);
    pair.disk.target.ping(&mut pair.to_host);
    pair.run_well();
    pair.host.initiator.send_targets("", &mut pair.to_target);
    pair.run_well();
    pair
}

/// Changes up to four bytes, cuts something out or repeats something.
fn mutate(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(8) {
            0 => drop(bytes.drain(at..(at + 1 + random.below(64)).min(bytes.len()))),
            1 => {
                let piece = bytes[at..(at + 1 + random.below(96)).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            2 => bytes[at] = 0xff,
            3 => bytes[at] = 0,
            _ => bytes[at] ^= 1 << random.below(8),
        }
    }
    bytes
}

/// A setup byte and a stream for a seed: mostly something recorded with a few wrong bytes.
fn case(recorded: &[u8], seed: u64) -> (u8, Vec<u8>) {
    let mut random = Random(seed);
    let stream = if seed.is_multiple_of(16) {
        let len = random.below(3000);
        random.bytes(len)
    } else {
        mutate(recorded, &mut random)
    };
    let [.., bits] = random.next().to_be_bytes();
    (bits, stream)
}

#[test]
fn a_target_survives_wrong_bytes() {
    let pair = recorded();
    for seed in 1..=3000 {
        println!("seed {seed}");
        let (bits, stream) = case(&pair.sent_to_target, seed);
        run_target(bits | RAW, &stream);
        run_target(bits & !RAW, stream.get(pair.login_to_target..).unwrap_or_default());
    }
}

#[test]
fn an_initiator_survives_wrong_bytes() {
    let pair = recorded();
    for seed in 1..=3000 {
        println!("seed {seed}");
        let (bits, stream) = case(&pair.sent_to_host, seed);
        run_initiator(bits | RAW, &stream);
        run_initiator(bits & !RAW, stream.get(pair.login_to_host..).unwrap_or_default());
    }
}
