//! Tests of the order in which parts of a core get the buffers of one size.

use std::collections::{BTreeMap, VecDeque};

use raceline_proto::nvme::{HostNqn, Nqn};

use super::*;
use crate::path::shares::{CREDIT_BYTES, Owner};

const LARGE: usize = 128 << 10;

fn nqn(text: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.org.example:{text}")).unwrap()
}

fn owner(host: usize) -> Owner {
    Owner::Host(nqn("s"), HostNqn::Named(nqn(&host.to_string())))
}

fn weight(number: u16) -> Weight {
    Weight::new(number).unwrap()
}

/// Commands are (host, number).
type Command = (usize, u32);

/// Hosts of these (weight, bytes of a command), the first of which has `most` times as many commands in line. Each
/// command that gets a buffer comes again. Gives how many commands of each host got one.
fn compete(hosts: &[(u16, usize)], most: u32, buffers: usize) -> Vec<u64> {
    let (mut shares, mut line) = (Shares::default(), Line::<Command>::default());
    let ids: Vec<ShareId> = (0..)
        .zip(hosts)
        .map(|(host, &(number, _))| shares.join(owner(host), weight(number)))
        .collect();
    for (host, &(_, bytes)) in hosts.iter().enumerate() {
        let count = if host == 0 { 16 * most } else { 16 };
        (0..count).for_each(|number| line.push((host, number), bytes, Some(ids[host])));
    }
    let mut served = vec![0; hosts.len()];
    for _ in 0..buffers {
        let (host, number) = line.front().unwrap();
        assert!(line.pop(&shares));
        served[host] += 1;
        line.push((host, number), hosts[host].1, Some(ids[host]));
    }
    served
}

#[test]
fn buffers_go_by_weights_whatever_the_number_of_commands() {
    for (light, heavy) in [(100, 100), (100, 300), (100, 1000), (1, 10), (30, 10_000)] {
        for most in [1, 16] {
            for (first, second) in [(light, heavy), (heavy, light)] {
                let served = compete(&[(first, LARGE), (second, LARGE)], most, 100_000);
                let shared = u64::from(first) + u64::from(second);
                let wanted = [first, second].map(|own| 100_000 * u64::from(own) / shared);
                for (got, wanted) in served.iter().zip(wanted) {
                    let off = got.abs_diff(wanted);
                    assert!(
                        off <= 2,
                        "{served:?} by {first} : {second}, {most} times the commands"
                    );
                }
            }
        }
    }
}

#[test]
fn larger_commands_get_fewer_buffers() {
    let served = compete(&[(100, LARGE), (100, LARGE / 4)], 1, 50_000);
    let bytes = [served[0] * charge_of(131_072) as u64, served[1] * charge_of(32_768) as u64];
    assert!(bytes[0].abs_diff(bytes[1]) <= 2 * charge_of(131_072) as u64, "{served:?}");
}

#[test]
fn without_parts_it_is_first_come_first_served() {
    let (shares, mut line) = (Shares::default(), Line::<Command>::default());
    (0..100).for_each(|number| line.push((number as usize % 3, number), LARGE, None));
    for number in 0..100 {
        assert_eq!(line.front(), Some((number as usize % 3, number)));
        assert!(line.pop(&shares));
    }
    assert!(line.is_empty() && !line.pop(&shares));
    assert_eq!(line.clock, Clock::default(), "no clock goes on");
    assert_eq!(line.plain.clock, Clock::default());
}

#[test]
fn commands_without_a_part_count_as_one_host() {
    let mut shares = Shares::default();
    let host = shares.join(owner(0), weight(300));
    let mut line = Line::<Command>::default();
    (0..400).for_each(|number| line.push((0, number), LARGE, Some(host)));
    (0..400).for_each(|number| line.push((1, number), LARGE, None));
    let mut served = [0_u32; 2];
    for _ in 0..400 {
        served[line.front().unwrap().0] += 1;
        line.pop(&shares);
    }
    assert!(served[0].abs_diff(300) <= 1, "{served:?}");
    assert_eq!(line.len(), 400);
}

#[test]
fn a_new_weight_holds_for_commands_that_wait_already() {
    let mut shares = Shares::default();
    let ids = [0, 1].map(|host| shares.join(owner(host), weight(100)));
    let mut line = Line::<Command>::default();
    for (host, id) in ids.iter().enumerate() {
        (0..1000).for_each(|number| line.push((host, number), LARGE, Some(*id)));
    }
    assert_eq!(shares.join(owner(1), weight(1000)), ids[1]);
    let mut served = [0_u32; 2];
    for _ in 0..880 {
        served[line.front().unwrap().0] += 1;
        line.pop(&shares);
    }
    assert!(served[0].abs_diff(80) <= 1, "{served:?}");
}

#[test]
fn who_had_nothing_in_line_catches_up_with_a_bounded_part() {
    let mut shares = Shares::default();
    let [busy, silent] = [0, 1].map(|host| shares.join(owner(host), weight(100)));
    let mut line = Line::<Command>::default();
    (0..2000).for_each(|number| line.push((0, number), LARGE, Some(busy)));
    line.push((1, 0), LARGE, Some(silent));
    (0..1000).for_each(|_| assert!(line.pop(&shares)));
    assert_eq!(line.front().unwrap().0, 0);
    (0..100).for_each(|number| line.push((1, number), LARGE, Some(silent)));
    let mut alone = 0;
    while line.front().unwrap().0 == 1 {
        alone += 1;
        line.pop(&shares);
    }
    // Commands of 132 KiB that begin within 512 KiB, and within what the busy host was served last.
    assert_eq!(alone, 5);
}

#[test]
fn a_host_that_leaves_takes_its_clock_with_it() {
    let mut shares = Shares::default();
    let [steady, slow] =
        [(0, 100), (1, 1)].map(|(host, own)| shares.join(owner(host), weight(own)));
    let mut line = Line::<Command>::default();
    (0..100).for_each(|number| line.push((0, number), LARGE, Some(steady)));
    (0..3).for_each(|number| line.push((1, number), LARGE, Some(slow)));
    // The host of weight 1 has had its part for long.
    (0..3).for_each(|_| assert!(line.pop(&shares)));
    line.retain(|(host, _)| host == 0);
    assert!(shares.leave(slow));
    line.forget(slow);
    let next = shares.join(owner(2), weight(100));
    assert_eq!(next, slow, "the place is used again");
    (0..10).for_each(|number| line.push((2, number), LARGE, Some(next)));
    let mut served = [0; 3];
    for _ in 0..10 {
        served[line.front().unwrap().0] += 1;
        line.pop(&shares);
    }
    assert!(served[2] >= 5, "{served:?}");
}

#[test]
fn commands_go_along_when_their_connection_changes_its_part() {
    let mut shares = Shares::default();
    let ids = [0, 1].map(|host| shares.join(owner(host), weight(100)));
    let mut line = Line::<Command>::default();
    (0..6).for_each(|number| line.push((0, number), LARGE, None));
    // Weights begin: the even ones are of one connection, the odd ones of another.
    line.regroup(|(_, number)| number % 2 == 0, Some(ids[0]));
    line.regroup(|(_, number)| number % 2 == 1, Some(ids[1]));
    let mut order = Vec::new();
    (0..3).for_each(|_| {
        order.push(line.front().unwrap().1);
        line.pop(&shares);
    });
    assert_eq!(order, [0, 1, 2]);
    // Weights end.
    line.regroup(|(_, number)| number % 2 == 1, None);
    line.regroup(|(_, number)| number % 2 == 0, None);
    for id in ids {
        assert!(shares.leave(id));
        line.forget(id);
    }
    assert_eq!(line.len(), 3);
    for number in [3, 5, 4] {
        assert_eq!(line.front().unwrap().1, number);
        line.pop(&shares);
    }
    assert!(line.is_empty());
}

/// What a line of commands should do, and what it may not do, in a run of random events.
struct Model {
    shares: Shares,
    line: Line<Command>,
    /// The part and the weight of each host; `None`: it has no connection.
    hosts: Vec<Option<(ShareId, u16)>>,
    waiting: BTreeMap<usize, VecDeque<u32>>,
    /// What other hosts were served since the host got a buffer, or had nothing in line.
    passed: Vec<u64>,
    /// The weight by which each host was charged last.
    charged: Vec<u16>,
    next: u32,
}

impl Model {
    fn share(&self, host: usize) -> Option<ShareId> {
        self.hosts[host].map(|(share, _)| share)
    }

    fn come(&mut self, host: usize) {
        let share = self.share(host);
        // The last host has no part, as an admin queue.
        if share.is_some() || host + 1 == self.hosts.len() {
            self.line.push((host, self.next), LARGE, share);
            self.waiting.entry(host).or_default().push_back(self.next);
            self.next += 1;
        }
    }

    fn serve(&mut self) {
        let front = self.line.front();
        assert_eq!(front.is_none(), self.waiting.values().all(VecDeque::is_empty));
        let Some((host, number)) = front else { return };
        assert!(self.line.pop(&self.shares));
        let expected = self.waiting.get_mut(&host).and_then(VecDeque::pop_front);
        assert_eq!(expected, Some(number), "first come, first served within a host");
        self.charged[host] = self.hosts[host].map_or(100, |(_, own)| own);
        for (other, queue) in &self.waiting {
            let wait = &mut self.passed[*other];
            *wait = if queue.is_empty() { 0 } else { *wait + charge_of(131_072) as u64 };
        }
        self.passed[host] = 0;
    }

    fn drop_host(&mut self, host: usize) {
        self.line.retain(|(of, _)| of != host);
        self.waiting.remove(&host);
        self.passed[host] = 0;
    }

    fn leave(&mut self, host: usize) {
        self.drop_host(host);
        self.charged[host] = 100;
        if let Some((share, _)) = self.hosts[host].take()
            && self.shares.leave(share)
        {
            self.line.forget(share);
        }
    }

    fn join(&mut self, host: usize, own: u16) {
        let share = self.shares.join(owner(host), weight(own));
        if let Some((before, _)) = self.hosts[host].replace((share, own)) {
            assert_eq!(before, share);
            assert!(!self.shares.leave(before));
        }
    }

    /// What others, whose weights are at most the default one, may be served before a host with something in line gets its
    /// next buffer. Each of them may be behind by the credit, then goes on as far as the clock of the host has gone with
    /// one command, and may begin one command more.
    fn most(&self, host: usize) -> u64 {
        let command = charge_of(131_072) as u64;
        let ahead = command * 100 / u64::from(self.charged[host]);
        (self.hosts.len() as u64 - 1) * (CREDIT_BYTES + ahead + command)
    }
}

#[test]
fn nobody_starves_and_nothing_is_lost_whatever_comes_and_goes() {
    const WEIGHTS: [u16; 4] = [1, 50, 100, 100];
    for seed in 1..200_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut below = move |most: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % most
        };
        let hosts = 2 + usize::try_from(below(6)).unwrap();
        let mut model = Model {
            shares: Shares::default(),
            line: Line::default(),
            hosts: vec![None; hosts],
            waiting: BTreeMap::new(),
            passed: vec![0; hosts],
            charged: vec![100; hosts],
            next: 0,
        };
        for _ in 0..2000 {
            let host = usize::try_from(below(hosts as u64)).unwrap();
            let own = WEIGHTS[usize::try_from(below(4)).unwrap()];
            match below(40) {
                0 => model.leave(host),
                1 => model.drop_host(host),
                2 if host + 1 < hosts => model.join(host, own),
                3..20 => model.come(host),
                _ => model.serve(),
            }
            let count: usize = model.waiting.values().map(VecDeque::len).sum();
            assert_eq!((model.line.len(), model.line.is_empty()), (count, count == 0));
            for (host, &passed) in model.passed.iter().enumerate() {
                assert!(passed <= model.most(host), "seed {seed}: {passed} past host {host}");
            }
        }
        while !model.line.is_empty() {
            model.serve();
        }
    }
}
