//! Both protocols on one device: a host of NVMe and two sessions of iSCSI read, write, compare and write, and reserve the
//! same blocks; sessions are cut and begun anew.
//!
//! The production initiator and host drive the production target. All commands that touch data are judged by what has
//! landed on the device while they were under way ([`oracle`]), and by the reservations that could show meanwhile.
//! Changes of reservations are sent one at a time, so their outcome is known; a report tells what became of one whose
//! session was cut.

mod host;
mod issue;
mod oracle;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use raceline_proto::nvme::{HostId, HostNqn, Status};
use raceline_proto::reservation::{
    Nexus, Port, Registrant, Reservations, ReservingHost, put_report,
};
use raceline_reactor::sim::Random;
use raceline_reactor::{SimConfig, SimWorld};
use raceline_target::{QosLimits, TargetConfig};

use crate::control::{ISCSI_INITIATOR, ISCSI_TARGET, SimTarget};
use crate::plan::Plan;
use crate::secrets;
use host::Host;
use oracle::{Job, Kind, Oracle, Party, Verdict};
use session::{Session, isid};

pub use oracle::Counts;

const BLOCK: usize = 512;
const BLOCKS: u64 = 8;
const MAX_BLOCKS: u64 = 4;
/// Commands of a run.
const COMMANDS: u64 = 240;
/// Most commands of the host or of a session that are under way.
const DEPTH: usize = 6;
/// Sessions; each of an I_T nexus of its own.
const SESSIONS: usize = 2;
/// Virtual time in which a part of a run must be done.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a Reservation Report.
const REPORT: usize = 1024;
const UNIT_ATTENTION: u8 = 6;
const NEXUS_LOSS: (u8, u8) = (0x29, 0x07);

/// What a run has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// What was judged.
    pub counts: Counts,
    /// A hash over everything that happened.
    pub fingerprint: u64,
}

/// Runs a seed.
///
/// # Errors
/// When something happened that may not happen; says what.
pub fn run(seed: u64) -> Result<Seen, String> {
    let mut run = Run::start(seed)?;
    run.until("all are connected", Run::all_ready)?;
    run.issue_until = COMMANDS;
    run.until("all commands are done", |run| run.issued >= COMMANDS && run.is_quiet())?;
    // What is left was ended by a preemption, without an answer.
    let rest = run.world.elapsed() + Duration::from_secs(1);
    run.until("nothing is left", |run| run.world.elapsed() >= rest)?;
    run.oracle.finish(&run.target.landings())?;
    run.end()
}

/// In every third run the host and the sessions share limits, so that commands of either wait.
fn limits(random: &mut Random) -> Option<QosLimits> {
    (random.below(3) == 0).then(|| QosLimits {
        rw_ios_per_sec: 100 + random.below(2000),
        w_bytes_per_sec: (64 << 10) + random.below(4 << 20),
        burst: Duration::from_millis(random.below(20)),
        ..QosLimits::default()
    })
}

/// A change of reservations, or a report of them, that is under way.
struct Reserving {
    /// Who has sent it: 0 is the host, others are sessions.
    from: usize,
    id: u64,
    what: What,
}

enum What {
    /// A change: the command, to be sent again after a unit attention, and what it makes of the state; `None`: it is
    /// refused.
    Change { cdb: [u8; 10], list: Vec<u8>, next: Option<Next> },
    /// A report, which has to show the state. `after_cut`: the state that is shown decides what became of a change.
    Report { after_cut: bool },
    /// The session that has sent it was cut.
    Unknown,
}

/// What a change makes of the state.
struct Next {
    /// The preempted, whose commands end before it is answered.
    aborted: Vec<Registrant>,
    /// Their writes that were under way when it was sent, if the new state lets them write no more.
    fenced: Vec<u64>,
}

struct Run {
    world: SimWorld,
    target: SimTarget,
    iscsi: SocketAddr,
    random: Random,
    host: Host,
    sessions: Vec<Session>,
    /// Sessions that were begun anew while their connection was there.
    left: Vec<Session>,
    parties: Vec<Party>,
    digests: bool,
    oracle: Oracle,
    jobs: BTreeMap<u64, Job>,
    /// Jobs that a preemption may have ended without an answer.
    may_vanish: BTreeSet<u64>,
    /// Numbers of writes of a session that was cut, until its successor is there.
    cut: BTreeMap<usize, Vec<u64>>,
    /// Unit attentions that a session may be given: ASC and ASCQ.
    attentions: Vec<BTreeSet<(u8, u8)>>,
    reserving: Option<Reserving>,
    next_id: u64,
    issued: u64,
    issue_until: u64,
}

impl Run {
    fn start(seed: u64) -> Result<Self, String> {
        let mut random = Random::new(seed ^ 0x5ca1);
        let network = SimConfig {
            max_delay: Duration::from_micros(1 + random.below(300)),
            max_chunk: if random.below(2) == 0 { usize::MAX } else { 700 },
            ..SimConfig::default()
        };
        let plan = Plan {
            target_cores: 1 + random.below(3),
            target: TargetConfig {
                in_capsule_bytes: if random.below(2) == 0 { 8 << 10 } else { 512 },
                large_buffers_per_core: 4 + usize::try_from(random.below(60)).unwrap_or(0),
                small_buffers_per_core: 64,
                ..TargetConfig::default()
            },
            network,
            block_sizes: vec![512],
            block_count: BLOCKS,
            device_delay: Duration::from_micros(random.below(2000)),
            copy_reads: true,
            reauthenticate_after: None,
            limits: limits(&mut random),
            weight: None,
            ..Plan::new(seed, 1).without_faults()
        };
        let world = SimWorld::new(seed, plan.network.clone());
        let mut target = SimTarget::start(&world, &plan)?;
        let iscsi = target.export_by_iscsi()?;
        let who =
            ReservingHost { id: HostId([9; 16]), name: HostNqn::Named(secrets::host_nqn(0)?) };
        let host = Host::start(world.io(), target.addresses[0], &target.nqn, &who)?;
        let nexuses = (0..SESSIONS).map(|index| Party::Nexus(nexus(index)));
        let parties = std::iter::once(Party::Host(who)).chain(nexuses).collect();
        let mut run = Self {
            world,
            target,
            iscsi,
            digests: random.below(2) == 0,
            random,
            host,
            sessions: Vec::new(),
            left: Vec::new(),
            parties,
            oracle: Oracle::new(),
            jobs: BTreeMap::new(),
            may_vanish: BTreeSet::new(),
            cut: BTreeMap::new(),
            attentions: vec![BTreeSet::new(); SESSIONS],
            reserving: None,
            next_id: 1,
            issued: 0,
            issue_until: 0,
        };
        for index in 0..SESSIONS {
            let session = run.new_session(index)?;
            run.sessions.push(session);
        }
        Ok(run)
    }

    fn new_session(&self, index: usize) -> Result<Session, String> {
        let names = (ISCSI_INITIATOR, ISCSI_TARGET, number(index));
        Session::start(self.world.io(), self.iscsi, names, self.digests)
    }

    fn all_ready(&self) -> bool {
        self.host.is_ready() && self.sessions.iter().all(|session| session.is_ready)
    }

    /// Whether nothing is under way but what a preemption may have ended.
    fn is_quiet(&self) -> bool {
        self.all_ready()
            && self.reserving.is_none()
            && self.cut.is_empty()
            && self.jobs.keys().all(|id| self.may_vanish.contains(id))
    }

    /// Lets time pass until `done` holds.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let deadline = self.world.elapsed() + PATIENCE;
        loop {
            while self.turn()? {}
            self.target.look_after_reservations()?;
            while self.turn()? {}
            if done(self) {
                return Ok(());
            }
            if self.world.elapsed() > deadline || !self.world.step() {
                let jobs = self.jobs.values().filter(|job| !self.may_vanish.contains(&job.id));
                let jobs: Vec<_> = jobs.collect();
                return Err(format!("it takes too long until {what}: {jobs:?}"));
            }
        }
    }

    fn turn(&mut self) -> Result<bool, String> {
        let cores = self.target.cores.len() as u64;
        let first = usize::try_from(self.random.below(cores)).unwrap_or(0);
        let mut busy = self.target.turn_and_settle(first)?;
        busy |= self.host.turn()?;
        for index in 0..SESSIONS {
            busy |= self.sessions[index].turn()?;
            if self.sessions[index].is_ready {
                self.note_successor(index);
            }
            for answer in std::mem::take(&mut self.sessions[index].answers) {
                self.handle_session(index, answer)?;
            }
        }
        for answer in std::mem::take(&mut self.host.answers) {
            self.handle_host(answer)?;
        }
        while self.issued < self.issue_until && self.issue()? {
            busy = true;
        }
        Ok(busy)
    }

    /// The session that takes the place of one that was cut is there: nothing of the old one lands any more.
    fn note_successor(&mut self, index: usize) {
        let Some(ids) = self.cut.remove(&index) else { return };
        self.oracle.counts.reinstatements += 1;
        let landed = self.target.landings().len();
        self.oracle.fence(ids, landed, "its session was over");
        if let Some(reserving) = &self.reserving
            && reserving.from == index + 1
            && matches!(reserving.what, What::Unknown)
        {
            // What became of its change is asked for by the host.
            self.reserving = None;
            self.report(true);
        }
    }

    // -------------------------------------------------------------------------- answers

    fn handle_host(&mut self, answer: host::Answer) -> Result<(), String> {
        if self.reserving.as_ref().is_some_and(|one| one.from == 0 && one.id == answer.id) {
            let is_refused = !answer.status.is_success();
            return self.reserved(is_refused, &answer.data);
        }
        let job = self.jobs.remove(&answer.id).ok_or("an answer to nothing")?;
        let verdict = match answer.status {
            Status::SUCCESS => Verdict::Done(numbers(&answer.data)?),
            status
                if status == Status::COMPARE_FAILURE || status == Status::COMPARE_FAILURE.dnr() =>
            {
                Verdict::Miscompare
            }
            status if status == Status::RESERVATION_CONFLICT.dnr() => Verdict::Conflict,
            status if status == Status::ABORTED_BY_PREEMPT.dnr() => Verdict::Preempted,
            status => return Err(format!("{job:?} ended with {status}")),
        };
        self.oracle.judge(&job, &verdict, &self.target.landings())
    }

    fn handle_session(&mut self, index: usize, answer: session::Answer) -> Result<(), String> {
        let is_attention = answer.sense.is_some_and(|(key, ..)| key == UNIT_ATTENTION);
        if let Some((UNIT_ATTENTION, asc, ascq)) = answer.sense {
            let expected = self.attentions[index].remove(&(asc, ascq));
            if !expected && (asc, ascq) != NEXUS_LOSS {
                return Err(format!(
                    "session {index} is told {asc:02x}/{ascq:02x} without a reason"
                ));
            }
        }
        if self.reserving.as_ref().is_some_and(|one| one.from == index + 1 && one.id == answer.id) {
            if is_attention {
                return self.send_again(index);
            }
            return self.reserved(answer.status != 0, &[]);
        }
        let job = self.jobs.remove(&answer.id).ok_or("an answer to nothing")?;
        let verdict = match (answer.status, answer.sense) {
            (0, _) => Verdict::Done(numbers(&answer.data_of_read(&job))?),
            (0x18, _) => Verdict::Conflict,
            (2, Some((0x0e, 0x1d, 0))) => Verdict::Miscompare,
            (2, _) if is_attention => Verdict::NotExecuted,
            _ => return Err(format!("{job:?} ended with {answer:?}")),
        };
        self.oracle.judge(&job, &verdict, &self.target.landings())
    }

    /// A change of reservations, or a report, was answered.
    fn reserved(&mut self, is_refused: bool, data: &[u8]) -> Result<(), String> {
        let Some(Reserving { from, what, .. }) = self.reserving.take() else { return Ok(()) };
        match what {
            What::Report { after_cut: false } => {
                if data == report_of(self.oracle.state()) {
                    return Ok(());
                }
                Err(format!("a report does not show {:?}", self.oracle.state()))
            }
            What::Report { after_cut: true } => {
                if self.oracle.settle_as(|state| data == report_of(state)) {
                    return Ok(());
                }
                Err("a change of a session that was cut has made something else".into())
            }
            What::Change { next, .. } if next.is_none() != is_refused => {
                Err(format!("a change by {from} was refused: {is_refused}, and should not be"))
            }
            What::Change { next: None, .. } | What::Unknown => Ok(()),
            What::Change { next: Some(next), .. } => {
                self.oracle.counts.changes += 1;
                self.oracle.settle();
                let landed = self.target.landings().len();
                self.oracle.fence(next.fenced, landed, "PREEMPT AND ABORT was answered");
                self.let_vanish(&next.aborted);
                Ok(())
            }
        }
    }

    /// Commands of these that are under way may have no answer.
    fn let_vanish(&mut self, aborted: &[Registrant]) {
        let nexuses: Vec<&Nexus> = aborted.iter().filter_map(Registrant::as_nexus).collect();
        let jobs = self.jobs.values().filter(|job| match &job.party {
            Party::Nexus(nexus) => nexuses.contains(&nexus),
            Party::Host(_) => false,
        });
        self.may_vanish.extend(jobs.map(|job| job.id));
    }

    fn end(mut self) -> Result<Seen, String> {
        for session in self.sessions.iter_mut().chain(&mut self.left) {
            session.close();
        }
        let fingerprint = self.world.fingerprint();
        self.target.begin_shutdown()?;
        let deadline = self.world.elapsed() + PATIENCE;
        while !self.target.is_stopped() {
            let busy = self.target.turn(0)?;
            if self.world.elapsed() > deadline || !(busy || self.world.step()) {
                return Err("the target does not stop".into());
            }
        }
        Ok(Seen { counts: self.oracle.counts, fingerprint })
    }
}

impl session::Answer {
    /// The data, if the job reads any.
    fn data_of_read(&self, job: &Job) -> Vec<u8> {
        if job.kind == Kind::Read { self.data.clone() } else { Vec::new() }
    }
}

/// The number in the ISID of a session.
fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(0) + 1
}

fn nexus(index: usize) -> Nexus {
    Nexus {
        initiator: ISCSI_INITIATOR.to_owned(),
        isid: isid(number(index)).0,
        target: ISCSI_TARGET.to_owned(),
        port: Port { group: 1, relative: 1 },
    }
}

/// The content of a write: its number all over.
fn contents(id: u64, len: usize) -> Vec<u8> {
    id.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// The number of the write in each block.
fn numbers(data: &[u8]) -> Result<Vec<u64>, String> {
    let number = |block: &[u8]| {
        let id = u64::from_le_bytes(*block.first_chunk()?);
        (block == contents(id, block.len())).then_some(id)
    };
    let numbers = data.chunks(BLOCK).map(|block| number(block).ok_or("a torn block".to_owned()));
    numbers.collect()
}

fn report_of(state: &Reservations) -> Vec<u8> {
    let mut page = vec![0; REPORT];
    put_report(state, &mut page);
    page
}
