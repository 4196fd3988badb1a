//! Which of several paths a command takes.

use super::{Access, PathId, Policy};

/// A path that could take a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) id: PathId,
    /// Optimized or not; other paths are no candidates.
    pub(super) access: Access,
    /// Commands outstanding on this path's queue.
    pub(super) outstanding: usize,
    /// How far its network device is from this core; the same for all paths unless the policy wants to know.
    pub(super) distance: u32,
}

/// The policy, and what it remembers.
#[derive(Debug)]
pub(super) struct Selector {
    pub(super) policy: Policy,
    pub(super) failback: bool,
    /// The path that is taken before others that are as good.
    pub(super) preferred: Option<PathId>,
    current: Option<PathId>,
    /// Commands that the current path still gets in a round.
    left: u32,
}

impl Selector {
    pub(super) fn new(policy: Policy, failback: bool) -> Self {
        Self { policy, failback, preferred: None, current: None, left: 0 }
    }

    /// Whether it changes from path to path while all of them are as good.
    pub(super) fn takes_turns(&self) -> bool {
        matches!(self.policy, Policy::RoundRobin { .. } | Policy::QueueDepth)
    }

    /// The path for the next command. Candidates are in the order of paths.
    pub(super) fn choose(&mut self, candidates: &[Candidate]) -> Option<PathId> {
        let is_optimized = |candidate: &&Candidate| candidate.access == Access::Optimized;
        let best = if candidates.iter().any(|candidate| is_optimized(&candidate)) {
            Access::Optimized
        } else {
            Access::NonOptimized
        };
        let good = candidates.iter().filter(|candidate| candidate.access == best);
        let chosen = match self.policy {
            Policy::ActivePassive | Policy::Numa => self.active(good),
            Policy::RoundRobin { min_io } => self.next_in_round(good, min_io.max(1)),
            // The first of those with the least.
            Policy::QueueDepth => good.min_by_key(|candidate| candidate.outstanding),
        }?;
        self.current = Some(chosen.id);
        Some(chosen.id)
    }

    fn active<'a>(
        &self,
        good: impl Iterator<Item = &'a Candidate> + Clone,
    ) -> Option<&'a Candidate> {
        let of = |id: Option<PathId>| good.clone().find(move |candidate| Some(candidate.id) == id);
        let current = of(self.current);
        if !self.failback && current.is_some() {
            return current;
        }
        // The first of the nearest.
        of(self.preferred).or_else(|| good.clone().min_by_key(|candidate| candidate.distance))
    }

    fn next_in_round<'a>(
        &mut self,
        mut good: impl Iterator<Item = &'a Candidate> + Clone,
        min_io: u32,
    ) -> Option<&'a Candidate> {
        if self.left > 0
            && let Some(same) = good.clone().find(|candidate| Some(candidate.id) == self.current)
        {
            self.left -= 1;
            return Some(same);
        }
        self.left = min_io - 1;
        let after = good.clone().find(|candidate| Some(candidate.id) > self.current);
        after.or_else(|| good.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Access = Access::NonOptimized;
    const BEST: Access = Access::Optimized;

    fn candidates(list: &[(u16, Access, usize)]) -> Vec<Candidate> {
        let candidate = |&(id, access, outstanding)| Candidate {
            id: PathId(id),
            access,
            outstanding,
            distance: 0,
        };
        list.iter().map(candidate).collect()
    }

    fn choose(selector: &mut Selector, list: &[(u16, Access, usize)]) -> Option<u16> {
        selector.choose(&candidates(list)).map(|id| id.0)
    }

    #[test]
    fn one_path_until_it_cannot_be_used() {
        let mut selector = Selector::new(Policy::ActivePassive, true);
        assert_eq!(choose(&mut selector, &[]), None);
        assert_eq!(choose(&mut selector, &[(0, GOOD, 0), (1, GOOD, 0)]), Some(0));
        assert_eq!(choose(&mut selector, &[(1, GOOD, 9), (2, GOOD, 0)]), Some(1));
        assert_eq!(choose(&mut selector, &[(0, GOOD, 0), (1, GOOD, 0)]), Some(0), "it is back");
        assert_eq!(choose(&mut selector, &[(0, GOOD, 0), (1, BEST, 0)]), Some(1));
        selector.preferred = Some(PathId(2));
        assert_eq!(choose(&mut selector, &[(1, BEST, 0), (2, BEST, 0)]), Some(2));
        assert_eq!(choose(&mut selector, &[(1, BEST, 0), (2, GOOD, 0)]), Some(1), "ANA first");
    }

    #[test]
    fn without_failback_commands_stay_where_they_are() {
        let mut selector = Selector::new(Policy::ActivePassive, false);
        assert_eq!(choose(&mut selector, &[(1, BEST, 0)]), Some(1));
        assert_eq!(choose(&mut selector, &[(0, BEST, 0), (1, BEST, 0)]), Some(1));
        assert_eq!(choose(&mut selector, &[(0, BEST, 0), (1, GOOD, 0)]), Some(0));
    }

    #[test]
    fn the_nearest_path_and_the_first_of_those() {
        let near = |list: &[(u16, Access, u32)]| -> Vec<Candidate> {
            let candidate = |&(id, access, distance)| Candidate {
                id: PathId(id),
                access,
                outstanding: 0,
                distance,
            };
            list.iter().map(candidate).collect()
        };
        let mut selector = Selector::new(Policy::Numa, true);
        let mut choose = |list: &[(u16, Access, u32)]| selector.choose(&near(list)).map(|id| id.0);
        assert_eq!(choose(&[(0, BEST, 31), (1, BEST, 10), (2, BEST, 10)]), Some(1));
        assert_eq!(choose(&[(0, BEST, 31), (2, BEST, 10)]), Some(2));
        assert_eq!(choose(&[(0, BEST, 31), (1, GOOD, 10)]), Some(0), "ANA first");
        assert_eq!(choose(&[(0, BEST, 31), (1, BEST, 10)]), Some(1), "it is back");
        assert_eq!(choose(&[(0, BEST, 20), (1, BEST, 20)]), Some(0), "nothing is known");
        selector.preferred = Some(PathId(0));
        assert_eq!(selector.choose(&near(&[(0, BEST, 31), (1, BEST, 10)])), Some(PathId(0)));
        selector.preferred = None;
        selector.failback = false;
        assert_eq!(selector.choose(&near(&[(0, BEST, 31), (1, BEST, 10)])), Some(PathId(0)));
        assert!(!selector.takes_turns());
    }

    #[test]
    fn all_optimized_paths_in_turn() {
        let mut selector = Selector::new(Policy::RoundRobin { min_io: 2 }, true);
        let all = [(0, BEST, 0), (1, GOOD, 0), (2, BEST, 0), (5, BEST, 0)];
        let taken: Vec<u16> = (0..8).map(|_| choose(&mut selector, &all).unwrap()).collect();
        assert_eq!(taken, [0, 0, 2, 2, 5, 5, 0, 0]);
        // The path of the round is gone.
        assert_eq!(choose(&mut selector, &all), Some(2));
        assert_eq!(choose(&mut selector, &[(0, BEST, 0), (5, BEST, 0)]), Some(5));
        let mut selector = Selector::new(Policy::RoundRobin { min_io: 0 }, true);
        let taken: Vec<u16> = (0..3).map(|_| choose(&mut selector, &all).unwrap()).collect();
        assert_eq!(taken, [0, 2, 5]);
    }

    #[test]
    fn the_path_with_the_fewest_commands() {
        let mut selector = Selector::new(Policy::QueueDepth, true);
        let list = [(0, BEST, 3), (1, BEST, 1), (2, BEST, 1), (3, GOOD, 0)];
        assert_eq!(choose(&mut selector, &list), Some(1));
        assert_eq!(choose(&mut selector, &[(3, GOOD, 5), (4, GOOD, 4)]), Some(4));
    }
}
