//! What may have happened to one device that two protocols use: every landing of a write is known, and judged.
//!
//! A write names itself: all its bytes are its number. The device records which number lands where, in its order. So for
//! each answer it is known what was on a block while its command was under way.

use std::collections::BTreeSet;

use raceline_proto::reservation::{AccessGroup, Nexus, Reservations, ReservingHost};

use crate::device::Landing;

/// Who sends commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Party {
    /// The host of NVMe.
    Host(ReservingHost),
    /// A session of iSCSI.
    Nexus(Nexus),
}

impl Party {
    fn may(&self, state: &Reservations, group: AccessGroup) -> bool {
        let rights = match self {
            Self::Host(host) => state.rights(host),
            Self::Nexus(nexus) => state.rights_of_nexus(nexus),
        };
        rights.allow(group)
    }

    fn is_registered(&self, state: &Reservations) -> bool {
        state.registrants.iter().any(|registrant| match self {
            Self::Host(host) => registrant.is(host),
            Self::Nexus(nexus) => registrant.as_nexus() == Some(nexus),
        })
    }
}

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    /// COMPARE AND WRITE, or a fused Compare and Write, of one block: only if this write is there.
    Swap {
        old: u64,
    },
}

/// A command that touches data.
#[derive(Clone, Debug)]
pub(super) struct Job {
    /// The number of its write; commands that only read have one as well.
    pub(super) id: u64,
    pub(super) party: Party,
    pub(super) block: u64,
    pub(super) count: u64,
    pub(super) kind: Kind,
    /// When it was sent: how many writes had landed, and which state of the reservations was answered.
    landed: usize,
    version: usize,
}

/// How a job has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Success, with the blocks that it has read.
    Done(Vec<u64>),
    /// A swap has found another block.
    Miscompare,
    /// Reservation Conflict.
    Conflict,
    /// Aborted because its party was preempted.
    Preempted,
    /// It was not executed, because the initiator was told something else.
    NotExecuted,
}

/// What is known of a run.
#[derive(Default)]
pub(super) struct Oracle {
    /// The states of the reservations, in their order.
    versions: Vec<Reservations>,
    /// The last that was answered.
    answered: usize,
    /// Numbers of writes that must never land.
    never: BTreeSet<u64>,
    /// Numbers of writes that must not land at this place or later, and why.
    fenced: Vec<(u64, usize, &'static str)>,
    pub(super) counts: Counts,
}

/// What has been seen, so that a test knows that something was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads that were judged.
    pub reads: u64,
    /// Writes that have landed and were answered.
    pub writes: u64,
    /// Swaps that have succeeded.
    pub swaps: u64,
    /// Swaps that have found another block.
    pub miscompares: u64,
    /// Reservation conflicts of commands with data.
    pub conflicts: u64,
    /// Commands that a preemption has ended.
    pub preempted: u64,
    /// Changes of reservations that were answered with success.
    pub changes: u64,
    /// Sessions that were begun anew.
    pub reinstatements: u64,
    /// Commands of sessions that were lost, whose fate is open.
    pub lost: u64,
}

impl Oracle {
    pub(super) fn new() -> Self {
        Self { versions: vec![Reservations::default()], ..Self::default() }
    }

    /// The state that was answered last.
    pub(super) fn state(&self) -> &Reservations {
        &self.versions[self.answered]
    }

    pub(super) fn job(
        &self,
        party: &Party,
        (id, kind): (u64, Kind),
        (block, count): (u64, u64),
        landed: usize,
    ) -> Job {
        let (party, version) = (party.clone(), self.answered);
        Job { id, party, block, count, kind, landed, version }
    }

    // ------------------------------------------------------------------------ reservations

    /// A command was sent that makes this state, which may show from now on.
    pub(super) fn expect(&mut self, next: Reservations) {
        self.versions.push(next);
    }

    /// It was answered with success: the new state shows.
    pub(super) fn settle(&mut self) {
        self.answered = self.versions.len() - 1;
    }

    /// The session that sent it is gone, and the state is this one. Gives whether that can be.
    pub(super) fn settle_as(&mut self, is_it: impl Fn(&Reservations) -> bool) -> bool {
        let last = self.versions.len() - 1;
        let found = (self.answered..=last).find(|place| is_it(&self.versions[*place]));
        let Some(found) = found else { return false };
        if found < last {
            // Commands that ended meanwhile were judged by both.
            let state = self.versions[found].clone();
            self.versions.push(state);
        }
        self.settle();
        true
    }

    // -------------------------------------------------------------------------- judgements

    /// Judges the answer to a job; `landings`: all so far.
    pub(super) fn judge(
        &mut self,
        job: &Job,
        verdict: &Verdict,
        landings: &[Landing],
    ) -> Result<(), String> {
        let group = if job.kind == Kind::Read { AccessGroup::Read } else { AccessGroup::Write };
        let versions = &self.versions[job.version..];
        let permitted = versions.iter().any(|state| job.party.may(state, group));
        let denied = versions.iter().any(|state| !job.party.may(state, group));
        let preempted = versions
            .windows(2)
            .any(|pair| job.party.is_registered(&pair[0]) && !job.party.is_registered(&pair[1]));
        let say = |what: &str| Err(format!("{what}: {job:?} ended with {verdict:?}"));
        match verdict {
            Verdict::Done(_) | Verdict::Miscompare if !permitted => {
                return say("a reservation was not obeyed");
            }
            Verdict::Conflict if !denied => return say("a conflict without a reservation"),
            Verdict::Preempted if !preempted => return say("aborted without a preemption"),
            _ => {}
        }
        match verdict {
            Verdict::Done(blocks) => self.judge_success(job, blocks, landings),
            Verdict::Miscompare => {
                self.counts.miscompares += 1;
                self.never.insert(job.id);
                let Kind::Swap { old } = job.kind else { return say("nothing was compared") };
                if states(landings, job).any(|state| state != old) {
                    Ok(())
                } else {
                    say("the block was as expected all the time")
                }
            }
            Verdict::Conflict | Verdict::Preempted | Verdict::NotExecuted => {
                match verdict {
                    Verdict::Conflict => self.counts.conflicts += 1,
                    Verdict::Preempted => self.counts.preempted += 1,
                    _ => {}
                }
                self.never.insert(job.id);
                Ok(())
            }
        }
    }

    fn judge_success(
        &mut self,
        job: &Job,
        blocks: &[u64],
        landings: &[Landing],
    ) -> Result<(), String> {
        let blocks_of_job = job.block..job.block + job.count;
        if job.kind == Kind::Read {
            self.counts.reads += 1;
            for (block, found) in blocks_of_job.zip(blocks) {
                let of_block = Job { block, ..job.clone() };
                if !states(landings, &of_block).any(|state| state == *found) {
                    return Err(format!("{job:?} found {found} on block {block}"));
                }
            }
            return Ok(());
        }
        for block in blocks_of_job {
            let own = landings[job.landed..]
                .iter()
                .filter(|landing| **landing == Landing { block, write: job.id });
            if own.count() != 1 {
                return Err(format!("{job:?} was acknowledged and is not on block {block} once"));
            }
        }
        if let Kind::Swap { old } = job.kind {
            self.counts.swaps += 1;
            let is_own = |landing: &&Landing| landing.write == job.id;
            let before = landings.iter().take_while(|landing| !is_own(landing));
            let before = before.filter(|landing| landing.block == job.block).last();
            let before = before.map_or(0, |landing| landing.write);
            if before != old {
                return Err(format!("{job:?} has overwritten {before}"));
            }
        } else {
            self.counts.writes += 1;
        }
        Ok(())
    }

    /// Nothing of these writes may land from this place on.
    pub(super) fn fence(
        &mut self,
        ids: impl IntoIterator<Item = u64>,
        at: usize,
        why: &'static str,
    ) {
        self.fenced.extend(ids.into_iter().map(|id| (id, at, why)));
    }

    /// Judges what has landed in all.
    pub(super) fn finish(&self, landings: &[Landing]) -> Result<(), String> {
        for (place, landing) in landings.iter().enumerate() {
            if self.never.contains(&landing.write) {
                return Err(format!("{landing:?} is of a command that was refused"));
            }
            let late = self.fenced.iter().find(|(id, at, _)| *id == landing.write && place >= *at);
            if let Some((_, at, why)) = late {
                return Err(format!("{landing:?} came at {place}, after {at}: {why}"));
            }
        }
        Ok(())
    }
}

/// What was on the block of a job while it was under way: 0 is a block that was never written.
fn states<'a>(landings: &'a [Landing], job: &Job) -> impl Iterator<Item = u64> + 'a {
    let (block, landed) = (job.block, job.landed.min(landings.len()));
    let on_block = move |landing: &&Landing| landing.block == block;
    let first = landings[..landed].iter().rev().find(on_block).map_or(0, |landing| landing.write);
    let later = landings[landed..].iter().filter(on_block).map(|landing| landing.write);
    std::iter::once(first).chain(later)
}

#[cfg(test)]
mod tests {
    use raceline_proto::nvme::reservation::ReservationType;
    use raceline_proto::nvme::{HostId, HostNqn};
    use raceline_proto::reservation::{Held, Registrant};

    use super::*;

    fn host(number: u8) -> ReservingHost {
        ReservingHost { id: HostId([number; 16]), name: HostNqn::Unnamed }
    }

    fn landing(block: u64, write: u64) -> Landing {
        Landing { block, write }
    }

    fn job(oracle: &Oracle, id: u64, kind: Kind, landed: usize) -> Job {
        oracle.job(&Party::Host(host(1)), (id, kind), (3, 1), landed)
    }

    #[test]
    fn a_read_is_judged_by_what_was_there_meanwhile() {
        let mut oracle = Oracle::new();
        let landings = [landing(3, 7), landing(4, 8), landing(3, 9), landing(3, 10)];
        let read = job(&oracle, 1, Kind::Read, 2);
        for (found, is_right) in [(7, true), (9, true), (10, true), (0, false), (8, false)] {
            let judged = oracle.judge(&read, &Verdict::Done(vec![found]), &landings);
            assert_eq!(judged.is_ok(), is_right, "{found}");
        }
    }

    #[test]
    fn a_write_that_is_lost_doubled_or_refused_and_there_is_found() {
        let mut oracle = Oracle::new();
        let write = job(&oracle, 7, Kind::Write, 0);
        let done = Verdict::Done(Vec::new());
        assert!(oracle.judge(&write, &done, &[landing(3, 7)]).is_ok());
        assert!(oracle.judge(&write, &done, &[landing(4, 7)]).is_err());
        assert!(oracle.judge(&write, &done, &[landing(3, 7), landing(3, 7)]).is_err());
        let refused = job(&oracle, 8, Kind::Write, 0);
        oracle.judge(&refused, &Verdict::NotExecuted, &[]).unwrap();
        assert!(oracle.finish(&[landing(3, 7)]).is_ok());
        assert!(oracle.finish(&[landing(3, 8)]).is_err());
        oracle.fence([7], 1, "its session was over");
        assert!(oracle.finish(&[landing(3, 7)]).is_ok());
        assert!(oracle.finish(&[landing(3, 9), landing(3, 7)]).is_err());
    }

    #[test]
    fn a_swap_that_overwrites_something_else_is_found() {
        let mut oracle = Oracle::new();
        let swap = job(&oracle, 9, Kind::Swap { old: 7 }, 1);
        let done = Verdict::Done(Vec::new());
        let fine = [landing(3, 7), landing(4, 8), landing(3, 9)];
        assert!(oracle.judge(&swap, &done, &fine).is_ok());
        let torn = [landing(3, 7), landing(3, 8), landing(3, 9)];
        assert!(oracle.judge(&swap, &done, &torn).is_err());
        assert!(oracle.judge(&swap, &Verdict::Miscompare, &fine[..2]).is_err());
        assert!(oracle.judge(&swap, &Verdict::Miscompare, &torn[..2]).is_ok());
    }

    #[test]
    fn a_reservation_that_is_not_obeyed_is_found() {
        let mut oracle = Oracle::new();
        let before = job(&oracle, 7, Kind::Write, 0);
        let mut held = Reservations::default();
        held.registrants.push(Registrant::host(HostId([2; 16]), None, 1));
        let kind = ReservationType::WriteExclusive;
        held.held = Some(Held { kind, holder: HostId([2; 16]) });
        oracle.expect(held);
        let done = Verdict::Done(Vec::new());
        assert!(oracle.judge(&before, &done, &[landing(3, 7)]).is_ok(), "both are possible");
        assert!(oracle.judge(&before, &Verdict::Conflict, &[]).is_ok());
        assert!(oracle.judge(&before, &Verdict::Preempted, &[]).is_err());
        oracle.settle();
        let after = job(&oracle, 8, Kind::Write, 0);
        assert!(oracle.judge(&after, &done, &[landing(3, 8)]).is_err());
        assert!(oracle.judge(&after, &Verdict::Conflict, &[]).is_ok());
        let read = job(&oracle, 9, Kind::Read, 0);
        assert!(oracle.judge(&read, &Verdict::Conflict, &[]).is_err());
    }
}
