//! Which commands come next: reads, writes, swaps, changes of reservations, and cuts of sessions.

use std::collections::BTreeSet;

use raceline_host::Data;
use raceline_proto::nvme::Sqe;
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::reservation::{EXTENDED_DATA, ReservationType};
use raceline_proto::reservation::{Notice, Registrant, Reservations, parse_reservation};
use raceline_reactor::IoBuf;
use raceline_scsi::cdb::{ReserveOut, ReserveOutAction};
use raceline_scsi::reservation::{ReserveOutParameters, type_to_wire};
use raceline_scsi::{Change, LunState, UnitAttention};

use super::oracle::{Kind, Party};
use super::{
    BLOCK, BLOCKS, DEPTH, MAX_BLOCKS, Next, REPORT, Reserving, Run, SESSIONS, What, contents,
};

/// What a command for the reservations makes of a state, as both protocols say it.
type Made = Option<raceline_proto::reservation::Outcome>;

impl Run {
    fn below(&mut self, limit: u64) -> usize {
        usize::try_from(self.random.below(limit)).unwrap_or(0)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.random.below(count) == 0
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Sends one more command of somebody; false: nobody takes one.
    pub(super) fn issue(&mut self) -> Result<bool, String> {
        let first = self.below(1 + SESSIONS as u64);
        let mut parties = (0..=SESSIONS).map(|place| (place + first) % (SESSIONS + 1));
        let Some(from) = parties.find(|from| self.takes(*from)) else {
            return Ok(false);
        };
        self.issued += 1;
        match self.random.below(100) {
            0..10 if self.reserving.is_none() => self.change(from)?,
            10..12 if self.reserving.is_none() && self.takes(0) => self.report(false),
            12..15 if from > 0 && self.cut.is_empty() => self.cut(from - 1)?,
            15..45 => self.job(from, Kind::Read)?,
            45..75 => self.job(from, Kind::Write)?,
            _ => {
                let block = self.random.below(BLOCKS);
                let landings = self.target.landings();
                let found = landings.iter().rev().find(|landing| landing.block == block);
                let found = found.map_or(0, |landing| landing.write);
                let old = if self.one_in(8) { u64::MAX } else { found };
                self.job_at(from, Kind::Swap { old }, (block, 1))?;
            }
        }
        Ok(true)
    }

    fn takes(&self, from: usize) -> bool {
        match from {
            0 => self.host.outstanding < 2 * DEPTH,
            _ => {
                let session = &self.sessions[from - 1];
                let lives = |id: &u64| !self.may_vanish.contains(id);
                session.takes() && session.outstanding().filter(lives).count() < DEPTH
            }
        }
    }

    // ------------------------------------------------------------------------------ data

    fn job(&mut self, from: usize, kind: Kind) -> Result<(), String> {
        let count = 1 + self.random.below(MAX_BLOCKS);
        let block = self.random.below(BLOCKS - count + 1);
        self.job_at(from, kind, (block, count))
    }

    fn job_at(&mut self, from: usize, kind: Kind, range: (u64, u64)) -> Result<(), String> {
        let id = self.take_id();
        let landed = self.target.landings().len();
        let job = self.oracle.job(&self.parties[from], (id, kind), range, landed);
        if from == 0 {
            let queue = self.below(2);
            self.host.send(&job, queue)?;
        } else {
            let solicited = self.one_in(2);
            let len = usize::try_from(job.count).unwrap_or(1) * BLOCK;
            let read = u32::try_from(len).unwrap_or(0);
            let session = &mut self.sessions[from - 1];
            let (block, count) = (job.block.to_be_bytes()[7], job.count.to_be_bytes()[7]);
            let mut cdb = [0; 16];
            match job.kind {
                Kind::Read => {
                    (cdb[0], cdb[9], cdb[13]) = (0x88, block, count);
                    session.send(id, &cdb, read, Vec::new(), false);
                }
                Kind::Write => {
                    (cdb[0], cdb[9], cdb[13]) = (0x8a, block, count);
                    session.send(id, &cdb, 0, contents(id, len), solicited);
                }
                Kind::Swap { old } => {
                    (cdb[0], cdb[9], cdb[13]) = (0x89, block, 1);
                    let both = [contents(old, BLOCK), contents(id, BLOCK)].concat();
                    session.send(id, &cdb, 0, both, solicited);
                }
            }
        }
        self.jobs.insert(id, job);
        Ok(())
    }

    // ---------------------------------------------------------------------- reservations

    /// Sends a change of reservations.
    fn change(&mut self, from: usize) -> Result<(), String> {
        let id = self.take_id();
        let state = self.oracle.state().clone();
        let kind = ReservationType::ALL[self.below(6)];
        // Few keys, so that they meet.
        let keys = [1 + self.random.below(2), 1 + self.random.below(2)];
        let action = self.random.below(16);
        let (cdb, list, made) = match &self.parties[from] {
            Party::Host(host) => {
                let (sqe, data) = command_of_host(action, kind, keys);
                let command =
                    parse_reservation(&sqe, &data).map_err(|status| status.to_string())?;
                let made = state.apply(host, &command).ok();
                let data = Data::Write(IoBuf::from_slice(&data).share());
                self.host.reserve(id, sqe, data)?;
                ([0; 10], Vec::new(), made)
            }
            Party::Nexus(nexus) => {
                let (change, cdb, list) = command_of_session(action, kind, keys);
                let unit = LunState { reservations: state.clone(), ..LunState::default() };
                let made = unit.apply(nexus, &change).ok().map(|outcome| {
                    let told = outcome.told.iter().filter_map(|(whom, attention)| {
                        let raceline_scsi::Whom::Nexus(nexus) = whom else { return None };
                        Some(Notice { to: nexus.host_id(), kind: notice_of(*attention)? })
                    });
                    raceline_proto::reservation::Outcome {
                        next: outcome.next.map(|next| next.reservations),
                        notices: told.chain(outcome.notices.iter().copied()).collect(),
                        aborted: outcome.aborted,
                    }
                });
                self.sessions[from - 1].send(id, &cdb, 0, list.clone(), false);
                (cdb, list, made)
            }
        };
        let next = self.expect(&state, made);
        self.reserving = Some(Reserving { from, id, what: What::Change { cdb, list, next } });
        Ok(())
    }

    /// What a change makes can show from now on.
    fn expect(&mut self, state: &Reservations, made: Made) -> Option<Next> {
        let made = made?;
        for notice in &made.notices {
            for (party, told) in self.parties[1..].iter().zip(&mut self.attentions) {
                let Party::Nexus(nexus) = party else { continue };
                if nexus.host_id() == notice.to {
                    let sense = UnitAttention::from(notice.kind).sense();
                    let [asc, ascq] = sense.code.to_be_bytes();
                    told.insert((asc, ascq));
                }
            }
        }
        let next = made.next.unwrap_or_else(|| state.clone());
        // Without a reservation, those who were preempted go on.
        let is_reserved = next.held.is_some();
        let fenced = self.jobs.values().filter(|job| {
            is_reserved && job.kind != Kind::Read && is_among(&job.party, &made.aborted)
        });
        let fenced = fenced.map(|job| job.id).collect();
        self.oracle.expect(next);
        Some(Next { aborted: made.aborted, fenced })
    }

    /// A unit attention has come instead of the answer to a change.
    pub(super) fn send_again(&mut self, index: usize) -> Result<(), String> {
        let id = self.take_id();
        let Some(Reserving { id: before, what: What::Change { cdb, list, .. }, .. }) =
            &mut self.reserving
        else {
            return Err("a unit attention for nothing".into());
        };
        *before = id;
        self.sessions[index].send(id, cdb, 0, list.clone(), false);
        Ok(())
    }

    /// Has the host ask for a Reservation Report.
    pub(super) fn report(&mut self, after_cut: bool) {
        let id = self.take_id();
        let dwords = u32::try_from(REPORT / 4 - 1).unwrap_or(0);
        let sqe = Sqe {
            opc: io::RESERVATION_REPORT,
            nsid: 1.into(),
            cdw10: dwords.into(),
            cdw11: EXTENDED_DATA.into(),
            ..Sqe::default()
        };
        let sent = self.host.reserve(id, sqe, Data::Read(IoBuf::heap(REPORT)));
        debug_assert!(sent.is_ok(), "its queues are deeper than what it has under way");
        self.reserving = Some(Reserving { from: 0, id, what: What::Report { after_cut } });
    }

    // ------------------------------------------------------------------------------ cuts

    /// Cuts a session and begins it anew. The target may know nothing of the cut: then the login ends the old session.
    fn cut(&mut self, index: usize) -> Result<(), String> {
        let successor = self.new_session(index)?;
        let old = std::mem::replace(&mut self.sessions[index], successor);
        let ids: Vec<u64> = old.outstanding().collect();
        let lost: BTreeSet<u64> = ids.iter().copied().collect();
        self.jobs.retain(|id, _| !lost.contains(id));
        self.oracle.counts.lost += ids.len() as u64;
        if let Some(reserving) = &self.reserving
            && reserving.from == index + 1
        {
            if let What::Change { next: Some(next), .. } = &reserving.what {
                let aborted = next.aborted.clone();
                self.let_vanish(&aborted);
            }
            if let Some(reserving) = &mut self.reserving {
                reserving.what = What::Unknown;
            }
        }
        self.cut.insert(index, ids);
        if self.one_in(2) {
            old.cut();
        } else {
            self.left.push(old);
        }
        Ok(())
    }
}

fn is_among(party: &Party, registrants: &[Registrant]) -> bool {
    registrants.iter().any(|registrant| match party {
        Party::Host(host) => registrant.is(host),
        Party::Nexus(nexus) => registrant.as_nexus() == Some(nexus),
    })
}

fn notice_of(attention: UnitAttention) -> Option<raceline_proto::nvme::reservation::NoticeKind> {
    use raceline_proto::nvme::reservation::NoticeKind as Notice;
    let all =
        [Notice::RegistrationPreempted, Notice::ReservationReleased, Notice::ReservationPreempted];
    all.into_iter().find(|kind| UnitAttention::from(*kind) == attention)
}

/// A command of NVMe and its data.
fn command_of_host(action: u64, kind: ReservationType, keys: [u64; 2]) -> (Sqe, Vec<u8>) {
    let rtype = u32::from(kind.to_wire()) << 8;
    let (opc, cdw10) = match action {
        0..5 => (io::RESERVATION_REGISTER, 8 | 2), // IEKEY, Replace
        5 => (io::RESERVATION_REGISTER, 1),
        6..10 => (io::RESERVATION_ACQUIRE, rtype),
        10..12 => (io::RESERVATION_ACQUIRE, rtype | 1),
        12..14 => (io::RESERVATION_ACQUIRE, rtype | 2),
        14 => (io::RESERVATION_RELEASE, rtype),
        _ => (io::RESERVATION_RELEASE, rtype | 1),
    };
    let len = if opc == io::RESERVATION_RELEASE { 8 } else { 16 };
    let data = [keys[0].to_le_bytes(), keys[1].to_le_bytes()].concat();
    let sqe = Sqe { opc, nsid: 1.into(), cdw10: cdw10.into(), ..Sqe::default() };
    (sqe, data[..len].to_vec())
}

/// The same of SCSI: what it means, its CDB and its parameters.
fn command_of_session(
    action: u64,
    kind: ReservationType,
    [key, mut action_key]: [u64; 2],
) -> (Change, [u8; 10], Vec<u8>) {
    let (service, action) = match action {
        0..5 => (6, ReserveOutAction::RegisterAndIgnore),
        5 => {
            action_key = 0;
            (0, ReserveOutAction::Register)
        }
        6..10 => (1, ReserveOutAction::Reserve),
        10..12 => (4, ReserveOutAction::Preempt),
        12..14 => (5, ReserveOutAction::PreemptAndAbort),
        14 => (2, ReserveOutAction::Release),
        _ => (3, ReserveOutAction::Clear),
    };
    let scope_and_type = type_to_wire(kind);
    let mut cdb = [0; 10];
    (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, service, scope_and_type, 24);
    let mut list = vec![0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&action_key.to_be_bytes());
    let command = ReserveOut { action, scope_and_type, length: 24 };
    let parameters = ReserveOutParameters { key, action_key, persist: false };
    (Change::ReserveOut(command, parameters), cdb, list)
}
