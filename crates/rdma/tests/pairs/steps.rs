//! The same scenario, ended at every one of its steps: by the host, by the target, by the network, by a device.

use std::time::Duration;

use raceline_rdma::Loss;
use raceline_rdma::fake::{Faults, NetworkConfig, Profile};

use super::support::{Pair, port_config};

/// Who ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Host,
    Target,
    Network,
    HostDevice,
    TargetDevice,
}

fn scenario(profile: Profile) -> Pair {
    let config = NetworkConfig {
        seed: 5,
        profile,
        delay: Duration::from_micros(50),
        reads_begun: 2,
        ..NetworkConfig::default()
    };
    let mut pair = Pair::new(config, port_config());
    let now = pair.now();
    pair.host.connect(1, now).unwrap();
    pair.host.connect(2, now).unwrap();
    pair
}

/// One step, with commands whenever there is a queue. Gives whether the scenario goes on.
fn step(pair: &mut Pair) -> bool {
    if pair.host.completed + pair.host.ended < 20 {
        pair.host.submit(&mut pair.dice);
    }
    pair.step() && pair.host.completed + pair.host.ended < 30
}

fn end_at(profile: Profile, end: End, at: usize) -> bool {
    let mut pair = scenario(profile);
    for _ in 0..at {
        if !step(&mut pair) {
            return false;
        }
    }
    let now = pair.now();
    match end {
        End::Host => {
            if let Some(&connection) = pair.host.live.first() {
                pair.host.port.close(connection, now);
            }
        }
        End::Target => {
            for connection in pair.target.accepted.clone() {
                pair.target.port.close(connection, now);
            }
        }
        End::Network => pair.network.cut_all(),
        End::HostDevice => {
            let Pair { network, host, .. } = &mut pair;
            network.remove(host.port.provider());
        }
        End::TargetDevice => {
            let Pair { network, target, .. } = &mut pair;
            network.remove(target.port.provider());
        }
    }
    pair.settle(Duration::from_secs(15));
    if end == End::TargetDevice {
        // A post may have been refused before the event came.
        let expected = |loss: &Loss| matches!(loss, Loss::DeviceRemoved | Loss::Refused(_));
        let losses = &pair.target.losses;
        assert!(losses.iter().all(|(_, loss)| expected(loss)), "{losses:?}");
    }
    pair.end();
    true
}

#[test]
fn an_end_at_any_step_leaves_nothing() {
    for profile in [Profile::Roce, Profile::Iwarp] {
        for end in [End::Host, End::Target, End::Network, End::HostDevice, End::TargetDevice] {
            let mut at = 0;
            loop {
                let goes_on = std::panic::catch_unwind(|| end_at(profile, end, at));
                let Ok(goes_on) = goes_on else { panic!("{profile:?} {end:?} at step {at}") };
                if !goes_on {
                    break;
                }
                at += 1;
            }
            assert!(at > 100, "{profile:?} {end:?}: the scenario has {at} steps");
        }
    }
}

#[test]
fn a_post_that_is_refused_in_part_ends_its_queue_only() {
    let faults = Faults { refused_post: 40, ..Faults::default() };
    let config = NetworkConfig { seed: 9, faults, ..NetworkConfig::default() };
    let mut pair = Pair::new(config, port_config());
    pair.connect(&[1, 2, 3, 4]);
    let mut steps = 0;
    while pair.host.losses.is_empty() {
        pair.host.submit(&mut pair.dice);
        pair.step();
        steps += 1;
        assert!(steps < 100_000);
    }
    pair.network.stop_faults();
    let lost = pair.host.losses.len() + pair.target.losses.len();
    pair.settle(Duration::from_secs(2));
    assert!(pair.host.live.len() >= 4 - lost, "others live on");
    pair.end();
}
