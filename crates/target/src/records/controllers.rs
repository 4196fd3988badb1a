//! The controllers of all subsystems: their numbers, what tells them from earlier ones of the same number, and how
//! many each host has.

use std::collections::{BTreeMap, HashMap, VecDeque, btree_map, hash_map};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use raceline_proto::nvme::cross_reset::ControllerInstance;
use raceline_proto::nvme::{ControllerId, HostNqn, Nqn};

use crate::records::names::Place;

/// Parts of the numbers of a subsystem, of which successive runs of a target use one after the other.
const RUN_PARTS: u16 = 8;
/// Fewest numbers of a subsystem that are divided into such parts.
const RUN_NUMBERS_MIN: u16 = 1024;

/// Controllers that have ended and are remembered as ended.
const MAX_ENDED: usize = 4096;

/// Controllers, by subsystem and by host.
pub(crate) struct Controllers {
    /// The controllers of each subsystem that has any.
    subsystems: HashMap<Nqn, Numbers>,
    /// Number of controllers of each host that has any, in all subsystems.
    hosts: HashMap<HostNqn, usize>,
    /// Controllers that have ended with all that they had started, the oldest first.
    ended: VecDeque<(Nqn, HostNqn, ControllerInstance)>,
    /// Controllers that one host may have.
    max_per_host: usize,
    /// How long the number of a controller that was lost is not given out again.
    quiesce_time: Duration,
    /// Which run of the target this is.
    run: Option<u64>,
    /// Numbers made for simulated runs, so far.
    simulated: u64,
}

/// The controllers of one subsystem.
#[derive(Default)]
struct Numbers {
    used: BTreeMap<u16, Entry>,
    /// Numbers of lost controllers that are not given out again before a time.
    resting: BTreeMap<u16, Instant>,
    /// The number that was given out last.
    last: u16,
    /// How often the numbers were gone through: the uniquifier of the controllers that come now. A number comes once
    /// in each round.
    round: u8,
    /// The subsystem is gone: forget it with its last controller.
    gone: bool,
}

struct Entry {
    place: Place,
    host: HostNqn,
    instance: ControllerInstance,
    /// It counts among those of its host.
    counted: bool,
}

/// A controller that is to get a number.
pub(crate) struct NewController<'a> {
    /// Its admin queue.
    pub(crate) place: Place,
    pub(crate) subsystem: &'a Nqn,
    pub(crate) host: &'a HostNqn,
    /// The numbers that it may have.
    pub(crate) ids: &'a RangeInclusive<u16>,
    /// The host has proved who it is, or need not.
    pub(crate) is_proven: bool,
}

/// Why there is no controller number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoController {
    /// All numbers are in use, or were until a short time ago.
    Exhausted,
    /// The host has as many controllers as it may.
    HostLimit,
}

/// What is known of a controller that a host names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is there, or has not come to its end.
    Live(Place),
    /// It has ended with all that it had started.
    Ended,
    /// Nothing: the host has no such controller, or it is one of another target, or of an earlier run, or has ended
    /// long ago.
    Unknown,
}

impl Controllers {
    pub(crate) fn new(max_per_host: usize, quiesce_time: Duration, run: Option<u64>) -> Self {
        Self {
            subsystems: HashMap::new(),
            hosts: HashMap::new(),
            ended: VecDeque::new(),
            max_per_host,
            quiesce_time,
            run,
            simulated: 0,
        }
    }

    /// Gives a controller one of the numbers that it may have. A number is reused only after it was given back, all
    /// higher free ones were used, and the time to quiesce is over if it was lost. While the host has not proved who it
    /// is, the controller does not count as one of its own: strangers must not use up what a host may have. `random` is
    /// the instance's number; `None`: the next of a fixed series.
    pub(crate) fn add(
        &mut self,
        new: &NewController<'_>,
        random: Option<u64>,
        now: Instant,
    ) -> Result<ControllerInstance, NoController> {
        let NewController { place, subsystem, host, ids, is_proven } = *new;
        if self.has_most(host) {
            return Err(NoController::HostLimit);
        }
        let cirn = random.unwrap_or_else(|| {
            self.simulated += 1;
            self.simulated
        });
        let ids = &numbers_of_run(ids, self.run);
        let numbers = self.subsystems.entry(subsystem.clone()).or_default();
        numbers.resting.retain(|_, until| *until > now);
        // An earlier subsystem of that name may have had other numbers.
        let last = numbers.last.clamp(ids.start() - 1, *ids.end());
        let mut next = (last + 1..=*ids.end()).chain(*ids.start()..=last);
        let is_free =
            |id: &u16| !numbers.used.contains_key(id) && !numbers.resting.contains_key(id);
        let id = next.find(is_free).ok_or(NoController::Exhausted)?;
        if id <= numbers.last {
            numbers.round = numbers.round.wrapping_add(1);
        }
        let instance = ControllerInstance { cntlid: ControllerId(id), ciu: numbers.round, cirn };
        numbers.used.insert(id, Entry { place, host: host.clone(), instance, counted: is_proven });
        numbers.last = id;
        numbers.gone = false;
        if is_proven {
            *self.hosts.entry(host.clone()).or_default() += 1;
        }
        Ok(instance)
    }

    /// Counts a controller of another process, under the number that it has. Gives `false` if that is in use.
    pub(crate) fn restore(
        &mut self,
        new: &NewController<'_>,
        instance: ControllerInstance,
    ) -> bool {
        let NewController { place, subsystem, host, .. } = *new;
        let numbers = self.subsystems.entry(subsystem.clone()).or_default();
        let entry = Entry { place, host: host.clone(), instance, counted: true };
        match numbers.used.entry(instance.cntlid.0) {
            btree_map::Entry::Occupied(_) => return false,
            btree_map::Entry::Vacant(free) => free.insert(entry),
        };
        *self.hosts.entry(host.clone()).or_default() += 1;
        true
    }

    /// The host of a controller has proved who it is: the controller counts as one of its own from here on, unless
    /// (`false`) the host has as many as it may.
    pub(crate) fn prove(&mut self, id: ControllerId, subsystem: &Nqn) -> bool {
        let Some(entry) = self.entry(id, subsystem) else { return false };
        if entry.counted {
            return true;
        }
        let host = entry.host.clone();
        if self.has_most(&host) {
            return false;
        }
        *self.hosts.entry(host).or_default() += 1;
        let numbers = self.subsystems.get_mut(subsystem);
        if let Some(entry) = numbers.and_then(|numbers| numbers.used.get_mut(&id.0)) {
            entry.counted = true;
        }
        true
    }

    /// The association is torn down completely; `lost`: now, when its host has not shut the controller down.
    pub(crate) fn remove(&mut self, id: ControllerId, subsystem: &Nqn, lost: Option<Instant>) {
        let Some(numbers) = self.subsystems.get_mut(subsystem) else { return };
        let Some(entry) = numbers.used.remove(&id.0) else { return };
        if let Some(now) = lost {
            numbers.resting.insert(id.0, now + self.quiesce_time);
        }
        if numbers.gone && numbers.used.is_empty() {
            self.subsystems.remove(subsystem);
        }
        if entry.counted
            && let hash_map::Entry::Occupied(mut count) = self.hosts.entry(entry.host.clone())
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        // Strangers must not have those of others forgotten.
        if entry.counted {
            if self.ended.len() == MAX_ENDED {
                self.ended.pop_front();
            }
            self.ended.push_back((subsystem.clone(), entry.host, entry.instance));
        }
    }

    /// The subsystem is gone; its remaining controllers are closing.
    pub(crate) fn forget(&mut self, subsystem: &Nqn) {
        if let hash_map::Entry::Occupied(mut numbers) = self.subsystems.entry(subsystem.clone()) {
            numbers.get_mut().gone = true;
            if numbers.get().used.is_empty() {
                numbers.remove();
            }
        }
    }

    /// Whether any subsystem has a controller of this number.
    pub(crate) fn has_any(&self, id: ControllerId) -> bool {
        self.subsystems.values().any(|numbers| numbers.used.contains_key(&id.0))
    }

    /// Where a subsystem's controller lives.
    pub(crate) fn place(&self, id: ControllerId, subsystem: &Nqn) -> Option<Place> {
        self.entry(id, subsystem).map(|entry| entry.place)
    }

    /// What is known of a controller that a host names: a host knows its own only.
    pub(crate) fn find(
        &self,
        subsystem: &Nqn,
        host: &HostNqn,
        instance: ControllerInstance,
    ) -> Found {
        let is_named =
            |entry: &&Entry| entry.instance == instance && entry.host == *host && entry.counted;
        if let Some(entry) = self.entry(instance.cntlid, subsystem).filter(is_named) {
            return Found::Live(entry.place);
        }
        let has_ended =
            self.ended.iter().rev().any(|(of, its_host, ended)| {
                *ended == instance && of == subsystem && its_host == host
            });
        if has_ended { Found::Ended } else { Found::Unknown }
    }

    /// A subsystem's controllers and their hosts, by ascending number.
    pub(crate) fn of(&self, subsystem: &Nqn) -> Vec<(ControllerId, HostNqn)> {
        let numbers = self.subsystems.get(subsystem).into_iter();
        let entries = numbers.flat_map(|numbers| &numbers.used);
        entries.map(|(&id, entry)| (ControllerId(id), entry.host.clone())).collect()
    }

    /// All controllers.
    pub(crate) fn len(&self) -> usize {
        self.subsystems.values().map(|numbers| numbers.used.len()).sum()
    }

    fn entry(&self, id: ControllerId, subsystem: &Nqn) -> Option<&Entry> {
        self.subsystems.get(subsystem)?.used.get(&id.0)
    }

    /// Whether a host has as many controllers as it may.
    fn has_most(&self, host: &HostNqn) -> bool {
        self.hosts.get(host).is_some_and(|count| *count >= self.max_per_host)
    }
}

/// The numbers that a run of the target gives out. The requests of an earlier run can still be at devices, and hosts
/// may still hold its controllers for connected: so no two of eight successive runs have a number in common, if there
/// are enough of them.
fn numbers_of_run(ids: &RangeInclusive<u16>, run: Option<u64>) -> RangeInclusive<u16> {
    let count = ids.end().saturating_sub(*ids.start()).saturating_add(1);
    let Some(run) = run.filter(|_| count >= RUN_NUMBERS_MIN) else { return ids.clone() };
    let part_len = count / RUN_PARTS;
    let part = u16::try_from(run % u64::from(RUN_PARTS)).unwrap_or(0);
    let first = ids.start() + part * part_len;
    first..=first + (part_len - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::names::ConnKey;

    const QUIESCE: Duration = Duration::from_secs(5);
    const ALL: RangeInclusive<u16> = 1..=0xffef;

    struct World {
        controllers: Controllers,
        now: Instant,
        nqn: Nqn,
        host: HostNqn,
    }

    impl World {
        fn new(max_per_host: usize) -> Self {
            Self {
                controllers: Controllers::new(max_per_host, QUIESCE, None),
                now: Instant::now(),
                nqn: Nqn::new("nqn.2026-01.io.raceline:s").unwrap(),
                host: HostNqn::Named(Nqn::new("nqn.2026-01.io.raceline:h").unwrap()),
            }
        }

        fn add_in(
            &mut self,
            ids: &RangeInclusive<u16>,
            is_proven: bool,
        ) -> Result<ControllerInstance, NoController> {
            let place = Place { core: 0, key: ConnKey { index: 0, generation: 0 } };
            let (nqn, host) = (self.nqn.clone(), self.host.clone());
            let new = NewController { place, subsystem: &nqn, host: &host, ids, is_proven };
            self.controllers.add(&new, None, self.now)
        }

        fn add(&mut self, is_proven: bool) -> Result<ControllerInstance, NoController> {
            self.add_in(&ALL, is_proven)
        }

        fn remove(&mut self, instance: ControllerInstance, lost: bool) {
            let lost = lost.then_some(self.now);
            self.controllers.remove(instance.cntlid, &self.nqn.clone(), lost);
        }

        fn find(&self, instance: ControllerInstance) -> Found {
            self.controllers.find(&self.nqn, &self.host, instance)
        }
    }

    #[test]
    fn a_number_is_not_reused_before_all_others() {
        let mut world = World::new(64);
        let first = world.add(true).unwrap();
        world.remove(first, false);
        let second = world.add(true).unwrap();
        assert_ne!(first, second);
        assert!(world.controllers.place(second.cntlid, &world.nqn).is_some());
        let other = Nqn::new("nqn.2026-01.io.raceline:other").unwrap();
        assert!(world.controllers.place(second.cntlid, &other).is_none());
    }

    #[test]
    fn the_number_of_a_lost_controller_rests() {
        let mut world = World::new(64);
        let ids = 7..=8;
        let [lost, shut_down] = [(); 2].map(|()| world.add_in(&ids, true).unwrap());
        assert_eq!(world.add_in(&ids, true), Err(NoController::Exhausted));
        world.remove(shut_down, false);
        let again = world.add_in(&ids, true).unwrap();
        assert_eq!(again.cntlid, shut_down.cntlid);
        assert_ne!(again.ciu, shut_down.ciu, "another instance of the number");
        world.remove(lost, true);
        world.now += QUIESCE - Duration::from_millis(1);
        assert_eq!(world.add_in(&ids, true), Err(NoController::Exhausted));
        world.now += Duration::from_millis(1);
        let again = world.add_in(&ids, true).unwrap();
        assert_eq!(again.cntlid, lost.cntlid);
        assert_ne!(again.ciu, lost.ciu);
    }

    #[test]
    fn a_host_finds_its_own_controllers_by_all_that_names_them() {
        let mut world = World::new(64);
        let (one, two) = (world.add(true).unwrap(), world.add(true).unwrap());
        assert!(matches!(world.find(one), Found::Live(_)));
        let wrong = |instance: ControllerInstance| {
            [
                ControllerInstance { cntlid: ControllerId(instance.cntlid.0 + 7), ..instance },
                ControllerInstance { ciu: instance.ciu + 1, ..instance },
                ControllerInstance { cirn: instance.cirn + 100, ..instance },
                ControllerInstance { cntlid: two.cntlid, ..instance },
            ]
        };
        assert!(wrong(one).into_iter().all(|wrong| world.find(wrong) == Found::Unknown));
        world.remove(one, true);
        assert_eq!(world.find(one), Found::Ended);
        assert!(wrong(one).into_iter().all(|wrong| world.find(wrong) == Found::Unknown));
        let own = std::mem::replace(&mut world.host, HostNqn::Unnamed);
        assert_eq!([world.find(one), world.find(two)], [Found::Unknown; 2], "another host");
        world.host = own;
        let stranger = world.add(false).unwrap();
        assert_eq!(world.find(stranger), Found::Unknown, "it has not proved who it is");
        for _ in 0..MAX_ENDED {
            let next = world.add(true).unwrap();
            world.remove(next, false);
        }
        assert_eq!(world.find(one), Found::Unknown, "too long ago");
    }

    #[test]
    fn successive_runs_have_no_number_in_common() {
        for ids in [ALL, 1..=1024, 5000..=7777] {
            let parts: Vec<_> = (0..8).map(|run| numbers_of_run(&ids, Some(run))).collect();
            for (place, part) in parts.iter().enumerate() {
                assert!(part.clone().count() >= 128, "{part:?}");
                assert!(ids.contains(part.start()) && ids.contains(part.end()));
                let before = parts[..place].iter();
                assert!(before.clone().all(|b| b.end() < part.start()), "{parts:?}");
            }
            assert_eq!(numbers_of_run(&ids, Some(8 + 3)), parts[3]);
            assert_eq!(numbers_of_run(&ids, None), ids);
        }
        assert_eq!(numbers_of_run(&(40..=41), Some(3)), 40..=41, "too few to divide");
    }

    #[test]
    fn one_host_has_at_most_its_share() {
        let mut world = World::new(2);
        // Strangers who use its name take nothing from it.
        let strangers = [(); 5].map(|()| world.add(false).unwrap());
        let own = world.add(true).unwrap();
        let nqn = world.nqn.clone();
        assert!(world.controllers.prove(strangers[0].cntlid, &nqn));
        assert!(world.controllers.prove(strangers[0].cntlid, &nqn), "it counts once");
        assert!(!world.controllers.prove(strangers[1].cntlid, &nqn));
        assert_eq!(world.add(true), Err(NoController::HostLimit));
        strangers[1..].iter().for_each(|stranger| world.remove(*stranger, false));
        assert_eq!(world.add(true), Err(NoController::HostLimit));
        world.remove(own, false);
        world.add(true).unwrap();
    }

    #[test]
    fn numbers_are_those_of_the_subsystem() {
        let mut world = World::new(64);
        for name in ["nqn.2026-01.io.raceline:a", "nqn.2026-01.io.raceline:b"] {
            world.nqn = Nqn::new(name).unwrap();
            let ids = 7..=9;
            let added = [(); 3].map(|()| world.add_in(&ids, true).unwrap());
            assert_eq!(added.map(|instance| instance.cntlid.0), [7, 8, 9]);
            assert_eq!(world.add_in(&ids, true), Err(NoController::Exhausted));
            world.remove(added[1], false);
            assert_eq!(world.add_in(&ids, true).unwrap().cntlid.0, 8);
            assert_eq!(world.controllers.of(&world.nqn).len(), 3);
        }
        assert_eq!(world.controllers.len(), 6);
    }
}
