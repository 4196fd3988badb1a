//! Reservations of a namespace: who may do what, and what each command makes of a state (Base 2.0, 8.19).
#![allow(clippy::unwrap_used)] // a test

use proptest::prelude::*;
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::reservation::{NoticeKind, ReservationType};
use raceline_proto::nvme::{HostId, HostNqn, Nqn, Sqe, Status};
use raceline_proto::reservation::{
    AccessGroup, AcquireAction, Held, MAX_REGISTRANTS, Notice, Outcome, Persistence,
    RegisterAction, ReleaseAction, ReservationCommand, Reservations, ReservingHost, Role, Who,
    access_group, parse_report, parse_reservation, put_report,
};

use ReservationType::{
    ExclusiveAccess as EA, ExclusiveAccessAllRegistrants as EAAR,
    ExclusiveAccessRegistrantsOnly as EARO, WriteExclusive as WE,
    WriteExclusiveAllRegistrants as WEAR, WriteExclusiveRegistrantsOnly as WERO,
};

const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();
const INVALID: Status = Status::INVALID_FIELD.dnr();

fn host(number: u8) -> ReservingHost {
    let name = Nqn::new(&format!("nqn.2026-01.io.raceline:h{number}")).unwrap();
    ReservingHost { id: HostId([number; 16]), name: HostNqn::Named(name) }
}

/// The key with which a host registers in these tests.
fn key(number: u8) -> u64 {
    0xa000 + u64::from(number)
}

fn register(new: u64) -> ReservationCommand {
    change(RegisterAction::Register, 0, new, false)
}

fn change(action: RegisterAction, current: u64, new: u64, ignore: bool) -> ReservationCommand {
    let persistence = Persistence::Keep;
    ReservationCommand::Register { action, current, new, ignore_existing: ignore, persistence }
}

fn acquire(current: u64, kind: ReservationType) -> ReservationCommand {
    let action = AcquireAction::Acquire;
    ReservationCommand::Acquire { action, current, preempted: 0, kind }
}

fn preempt(current: u64, preempted: u64, kind: ReservationType) -> ReservationCommand {
    ReservationCommand::Acquire { action: AcquireAction::Preempt, current, preempted, kind }
}

fn release(current: u64, kind: ReservationType) -> ReservationCommand {
    let action = ReleaseAction::Release;
    ReservationCommand::Release { action, current, rtype: kind.to_wire() }
}

fn clear(current: u64) -> ReservationCommand {
    ReservationCommand::Release { action: ReleaseAction::Clear, current, rtype: 0 }
}

/// A namespace on which commands are executed one after the other.
#[derive(Clone, Debug, Default)]
struct Bed(Reservations);

impl Bed {
    /// Hosts 1 to `hosts` are registered with [`key`], and host 1 holds the namespace.
    fn held(hosts: u8, kind: ReservationType) -> Self {
        let mut bed = Self::registered(hosts);
        bed.ok(1, &acquire(key(1), kind));
        bed
    }

    fn registered(hosts: u8) -> Self {
        let mut bed = Self::default();
        (1..=hosts).for_each(|number| drop(bed.ok(number, &register(key(number)))));
        bed
    }

    #[track_caller]
    fn ok(&mut self, number: u8, command: &ReservationCommand) -> Outcome {
        let outcome = self.0.apply(&host(number), command).unwrap();
        if let Some(next) = &outcome.next {
            assert_ne!(*next, self.0);
            self.0 = next.clone();
        }
        outcome
    }

    #[track_caller]
    fn refused(&self, number: u8, command: &ReservationCommand) -> Status {
        self.0.apply(&host(number), command).unwrap_err()
    }

    /// The numbers of the hosts that are registered.
    fn registrants(&self) -> Vec<u8> {
        self.0.registrants.iter().map(|registrant| registrant.id.0[0]).collect()
    }

    fn holder(&self) -> Option<(ReservationType, u8)> {
        self.0.held.map(|held| (held.kind, held.holder.0[0]))
    }
}

fn told(outcome: &Outcome) -> Vec<(u8, NoticeKind)> {
    outcome.notices.iter().map(|Notice { to, kind }| (to.0[0], *kind)).collect()
}

// ------------------------------------------------------------------------------- who may do what

/// For each type: may a registrant that does not hold it read, and write; may a stranger read, and write. The
/// holder may always do both.
const MATRIX: [(ReservationType, [bool; 2], [bool; 2]); 6] = [
    (WE, [true, false], [true, false]),
    (EA, [false, false], [false, false]),
    (WERO, [true, true], [true, false]),
    (EARO, [true, true], [false, false]),
    // Every registrant holds these.
    (WEAR, [true, true], [true, false]),
    (EAAR, [true, true], [false, false]),
];

#[test]
fn each_type_lets_each_host_do_what_the_specification_says() {
    let groups = [AccessGroup::Read, AccessGroup::Write];
    for (kind, registrant, stranger) in MATRIX {
        let bed = Bed::held(2, kind);
        for (number, may) in [(1, [true; 2]), (2, registrant), (3, stranger)] {
            for (group, may) in groups.into_iter().zip(may) {
                let expected = if may { Ok(()) } else { Err(CONFLICT) };
                assert_eq!(
                    bed.0.admit(&host(number), group),
                    expected,
                    "{kind:?} {number} {group:?}"
                );
            }
            assert_eq!(bed.0.admit(&host(number), AccessGroup::Exempt), Ok(()));
        }
        let expected = if kind.is_held_by_all() { Role::Holder } else { Role::Registrant };
        assert_eq!(bed.0.role(&host(2)), expected, "{kind:?}");
        assert_eq!((bed.0.role(&host(1)), bed.0.role(&host(3))), (Role::Holder, Role::Stranger));
    }
    // Registrations alone forbid nothing.
    let bed = Bed::registered(2);
    for (number, group) in (1..=3).flat_map(|number| groups.map(|group| (number, group))) {
        assert_eq!(bed.0.admit(&host(number), group), Ok(()));
    }
}

#[test]
fn every_opcode_has_its_group() {
    let reads = [io::READ, io::COMPARE, io::VERIFY];
    let exempt = [
        io::RESERVATION_REGISTER,
        io::RESERVATION_REPORT,
        io::RESERVATION_ACQUIRE,
        io::RESERVATION_RELEASE,
    ];
    for opcode in 0..=u8::MAX {
        let expected = match opcode {
            opcode if reads.contains(&opcode) => AccessGroup::Read,
            opcode if exempt.contains(&opcode) => AccessGroup::Exempt,
            // also what does not exist
            _ => AccessGroup::Write,
        };
        assert_eq!(access_group(opcode), expected, "{opcode:#04x}");
    }
}

#[test]
fn reservation_commands_of_other_hosts() {
    for kind in ReservationType::ALL {
        for other in ReservationType::ALL {
            let same = kind == other && kind.is_held_by_all();
            let bed = Bed::held(2, kind);
            let answer = bed.0.apply(&host(2), &acquire(key(2), other));
            let expected = if same { Ok(Outcome::default()) } else { Err(CONFLICT) };
            assert_eq!(answer, expected, "{kind:?}, then {other:?}");
        }
        let mut bed = Bed::held(2, kind);
        assert_eq!(bed.refused(3, &acquire(key(3), kind)), CONFLICT);
        assert_eq!(bed.refused(3, &preempt(key(3), key(1), kind)), CONFLICT);
        assert_eq!(bed.refused(3, &release(key(3), kind)), CONFLICT);
        assert_eq!(bed.refused(3, &clear(key(3))), CONFLICT);
        // A wrong key is no authority.
        for command in [acquire(9, kind), preempt(9, key(1), kind), release(9, kind), clear(9)] {
            assert_eq!(bed.refused(1, &command), CONFLICT, "{command:?}");
        }
        bed.ok(3, &register(key(3)));
        bed.ok(2, &clear(key(2)));
        assert_eq!((bed.registrants(), bed.holder()), (vec![], None));
    }
}

// ---------------------------------------------------------------------------------- registrations

#[test]
fn registering_replacing_and_unregistering() {
    use RegisterAction::{Register, Replace, Unregister};
    let mut bed = Bed::default();
    assert_eq!(bed.refused(1, &register(0)), INVALID);
    bed.ok(1, &register(5));
    assert_eq!(bed.0.generation, 1);
    bed.ok(1, &register(5));
    assert_eq!(bed.0.generation, 2, "each success counts");
    assert_eq!(bed.refused(1, &register(6)), CONFLICT);
    assert_eq!(bed.refused(1, &change(Replace, 4, 6, false)), CONFLICT);
    assert_eq!(bed.refused(1, &change(Replace, 5, 0, false)), INVALID);
    bed.ok(1, &change(Replace, 5, 6, false));
    bed.ok(1, &change(Replace, 0, 7, true));
    assert_eq!(bed.0.registrants[0].key, 7);
    assert_eq!(bed.refused(1, &change(Unregister, 6, 0, false)), CONFLICT);
    bed.ok(1, &change(Unregister, 7, 0, false));
    assert_eq!((bed.registrants(), bed.0.generation), (vec![], 5));
    assert_eq!(bed.refused(1, &change(Unregister, 7, 0, true)), CONFLICT);
    assert_eq!(bed.refused(1, &change(Replace, 0, 8, false)), CONFLICT);
    bed.ok(1, &change(Replace, 0, 8, true));
    bed.ok(1, &change(Unregister, 0, 0, true));
    bed.ok(1, &change(Register, 0, 9, true));
    assert_eq!(bed.0.registrants[0].key, 9);
}

#[test]
fn a_registration_is_that_of_identifier_and_name() {
    let mut bed = Bed::held(1, EA);
    let thief = ReservingHost { name: host(2).name, ..host(1) };
    assert_eq!(bed.0.role(&thief), Role::Stranger);
    assert_eq!(bed.0.apply(&thief, &register(key(1))), Err(CONFLICT), "the identifier is taken");
    assert_eq!(bed.0.apply(&thief, &release(key(1), EA)), Err(CONFLICT));
    assert_eq!(bed.0.admit(&thief, AccessGroup::Read), Err(CONFLICT));
    // A state that was kept without names: the first that registers again gives its name.
    bed.0.registrants[0].who = Who::Host(None);
    assert_eq!(bed.0.role(&thief), Role::Holder);
    bed.ok(1, &register(key(1)));
    assert_eq!(bed.0.role(&thief), Role::Stranger);
    // The identifier 0 says that the host is like no other.
    let nobody = ReservingHost { id: HostId::default(), ..host(1) };
    assert_eq!(bed.0.apply(&nobody, &register(1)), Err(Status::COMMAND_SEQUENCE_ERROR.dnr()));
}

#[test]
fn the_number_of_registrants_is_bounded() {
    let last = u8::try_from(MAX_REGISTRANTS).unwrap();
    let mut bed = Bed::registered(last);
    assert_eq!(bed.refused(last + 1, &register(1)), Status::INTERNAL.dnr());
    bed.ok(1, &register(key(1)));
    bed.ok(1, &change(RegisterAction::Unregister, key(1), 0, false));
    bed.ok(last + 1, &register(1));
}

#[test]
fn the_holder_gives_its_registration_up() {
    for kind in ReservationType::ALL {
        let mut bed = Bed::held(2, kind);
        let unregister = |number| change(RegisterAction::Unregister, key(number), 0, false);
        let outcome = bed.ok(1, &unregister(1));
        let expected = match kind {
            WE | EA => vec![],
            WERO | EARO => vec![(2, NoticeKind::ReservationReleased)],
            WEAR | EAAR => {
                assert!(bed.holder().is_some(), "the other registrant holds it");
                assert_eq!(bed.0.role(&host(2)), Role::Holder);
                bed.ok(2, &unregister(2));
                vec![]
            }
        };
        assert_eq!(told(&outcome), expected, "{kind:?}");
        assert_eq!(bed.holder(), None, "{kind:?}");
    }
}

#[test]
fn the_key_of_the_holder_changes_with_its_registration() {
    let mut bed = Bed::held(2, WE);
    bed.ok(1, &change(RegisterAction::Replace, key(1), 77, false));
    assert_eq!(bed.refused(2, &preempt(key(2), key(1), WE)), CONFLICT, "nobody has that key");
    bed.ok(2, &preempt(key(2), 77, WE));
    assert_eq!((bed.registrants(), bed.holder()), (vec![2], Some((WE, 2))));
}

// ----------------------------------------------------------------------- acquiring and preempting

#[test]
fn acquiring_again_changes_nothing() {
    let mut bed = Bed::held(1, WERO);
    let before = bed.0.clone();
    assert_eq!(bed.ok(1, &acquire(key(1), WERO)), Outcome::default());
    assert_eq!(bed.refused(1, &acquire(key(1), WE)), CONFLICT, "another type");
    assert_eq!(bed.0, before);
    assert_eq!(bed.0.generation, 1, "acquiring does not count");
}

#[test]
fn preempting_the_holder_takes_the_reservation() {
    for (before, after) in [(WE, WE), (WE, EA), (EARO, WERO)] {
        let mut bed = Bed::held(4, before);
        // Host 4 has the holder's key.
        bed.ok(4, &change(RegisterAction::Replace, key(4), key(1), false));
        let generation = bed.0.generation;
        let outcome = bed.ok(2, &preempt(key(2), key(1), after));
        assert_eq!((bed.registrants(), bed.holder()), (vec![2, 3], Some((after, 2))));
        assert_eq!(bed.0.generation, generation + 1);
        let gone = NoticeKind::RegistrationPreempted;
        let mut expected = vec![(1, gone), (4, gone)];
        if before != after {
            expected.push((3, NoticeKind::ReservationReleased));
        }
        assert_eq!(told(&outcome), expected, "{before:?} to {after:?}");
        assert!(outcome.aborted.is_empty(), "nobody asked for it");
    }
}

#[test]
fn a_holder_preempts_itself_for_another_type() {
    let mut bed = Bed::held(2, WE);
    let outcome = bed.ok(1, &preempt(key(1), key(1), EA));
    assert_eq!((bed.registrants(), bed.holder()), (vec![1, 2], Some((EA, 1))));
    assert_eq!(told(&outcome), [(2, NoticeKind::ReservationReleased)]);
}

#[test]
fn preempting_others_removes_their_registrations_only() {
    for kind in [None, Some(WE), Some(EAAR)] {
        let mut bed = kind.map_or_else(|| Bed::registered(3), |kind| Bed::held(3, kind));
        let holder = bed.holder();
        let outcome = bed.ok(2, &preempt(key(2), key(3), WERO));
        assert_eq!((bed.registrants(), bed.holder()), (vec![1, 2], holder), "{kind:?}");
        assert_eq!(told(&outcome), [(3, NoticeKind::RegistrationPreempted)]);
        assert_eq!(bed.refused(2, &preempt(key(2), key(3), WERO)), CONFLICT, "it is gone");
    }
    for kind in [None, Some(WE), Some(EARO)] {
        let bed = kind.map_or_else(|| Bed::registered(3), |kind| Bed::held(3, kind));
        assert_eq!(bed.refused(2, &preempt(key(2), 0, WE)), INVALID, "{kind:?}");
    }
}

#[test]
fn key_0_preempts_all_registrants_that_hold_together() {
    for (before, after) in [(WEAR, WEAR), (WEAR, EA), (EAAR, WERO)] {
        let mut bed = Bed::held(3, before);
        let outcome = bed.ok(2, &preempt(key(2), 0, after));
        assert_eq!((bed.registrants(), bed.holder()), (vec![2], Some((after, 2))));
        let gone = NoticeKind::RegistrationPreempted;
        assert_eq!(told(&outcome), [(1, gone), (3, gone)]);
    }
}

#[test]
fn preempt_and_abort_names_the_hosts_whose_commands_end() {
    let mut bed = Bed::held(3, WE);
    let command = ReservationCommand::Acquire {
        action: AcquireAction::PreemptAndAbort,
        current: key(2),
        preempted: key(1),
        kind: WE,
    };
    let outcome = bed.ok(2, &command);
    assert_eq!(outcome.aborted.iter().map(|host| host.id.0[0]).collect::<Vec<_>>(), [1]);
    assert_eq!(bed.holder(), Some((WE, 2)));
}

// -------------------------------------------------------------------------- releasing and clearing

#[test]
fn releasing() {
    for kind in ReservationType::ALL {
        let mut bed = Bed::held(2, kind);
        let other = if kind == WE { EA } else { WE };
        assert_eq!(bed.refused(1, &release(key(1), other)), INVALID, "another type");
        if !kind.is_held_by_all() {
            assert_eq!(bed.ok(2, &release(key(2), kind)), Outcome::default(), "it holds nothing");
        }
        let generation = bed.0.generation;
        let outcome = bed.ok(1, &release(key(1), kind));
        let expected: &[_] = match kind {
            WE | EA => &[],
            _ => &[(2, NoticeKind::ReservationReleased)],
        };
        assert_eq!(told(&outcome), expected, "{kind:?}");
        assert_eq!((bed.registrants(), bed.holder()), (vec![1, 2], None));
        assert_eq!(bed.0.generation, generation, "releasing does not count");
        assert_eq!(bed.ok(1, &release(key(1), kind)), Outcome::default(), "there is none");
    }
}

#[test]
fn clearing_removes_all_and_tells_all() {
    let mut bed = Bed::held(3, WE);
    let outcome = bed.ok(2, &clear(key(2)));
    let kind = NoticeKind::ReservationPreempted;
    assert_eq!(told(&outcome), [(1, kind), (3, kind)]);
    assert_eq!((bed.registrants(), bed.holder(), bed.0.generation), (vec![], None, 4));
}

#[test]
fn persistence_needs_a_place() {
    let command = |persistence| ReservationCommand::Register {
        action: RegisterAction::Register,
        current: 0,
        new: 5,
        ignore_existing: false,
        persistence,
    };
    let mut bed = Bed::default();
    assert_eq!(bed.refused(1, &command(Persistence::On)), INVALID);
    assert_eq!(bed.refused(1, &ReservationCommand::Persist(true)), INVALID);
    bed.ok(1, &command(Persistence::Off));
    let mut bed = Bed(Reservations { can_persist: true, ..Reservations::default() });
    for (command, persists) in [
        (command(Persistence::On), true),
        (command(Persistence::Keep), true),
        (command(Persistence::Off), false),
        (ReservationCommand::Persist(true), true),
        (ReservationCommand::Persist(false), false),
    ] {
        bed.ok(1, &command);
        assert_eq!(bed.0.persists, persists, "{command:?}");
    }
}

// -------------------------------------------------------------------------------------- on the wire

fn sqe(opc: u8, cdw10: u32) -> Sqe {
    Sqe { opc, cdw10: cdw10.into(), ..Sqe::default() }
}

#[test]
fn commands_are_read_from_words_and_data() {
    let mut keys = 0x1122_u64.to_le_bytes().to_vec();
    keys.extend(0x3344_u64.to_le_bytes());
    let parse = |opc, cdw10, data: &[u8]| parse_reservation(&sqe(opc, cdw10), data);
    let (register, acquire, release) =
        (io::RESERVATION_REGISTER, io::RESERVATION_ACQUIRE, io::RESERVATION_RELEASE);
    let read = parse(register, 0xc000_000a, &keys).unwrap();
    let expected = ReservationCommand::Register {
        action: RegisterAction::Replace,
        current: 0x1122,
        new: 0x3344,
        ignore_existing: true,
        persistence: Persistence::On,
    };
    assert_eq!(read, expected);
    let read = parse(acquire, 0x0502, &keys).unwrap();
    let expected = ReservationCommand::Acquire {
        action: AcquireAction::PreemptAndAbort,
        current: 0x1122,
        preempted: 0x3344,
        kind: WEAR,
    };
    assert_eq!(read, expected);
    let read = parse(release, 0x0601, &keys[..8]).unwrap();
    let action = ReleaseAction::Clear;
    assert_eq!(read, ReservationCommand::Release { action, current: 0x1122, rtype: 6 });
    for (opc, wrong) in [
        (register, vec![3, 7]),
        (acquire, vec![0x0103, 0x0000, 0x0700, 0xff00, 0x0108]),
        (release, vec![0x0102, 0x0108]),
    ] {
        for cdw10 in wrong {
            assert_eq!(parse(opc, cdw10, &keys), Err(INVALID), "{opc:#x} {cdw10:#x}");
        }
        let cdw10 = if opc == acquire { 0x0100 } else { 0 };
        for len in 0..if opc == release { 8 } else { 16 } {
            let status = parse(opc, cdw10, &keys[..len]);
            assert_eq!(status, Err(Status::DATA_SGL_LENGTH_INVALID.dnr()), "{opc:#x} {len}");
        }
    }
    // As Linux of some versions sends it: the reserved value of CPTPL.
    assert!(parse(register, 1 << 30, &keys).is_ok());
}

#[test]
fn a_report_has_the_layout_of_the_specification() {
    let mut bed = Bed(Reservations { can_persist: true, ..Reservations::default() });
    bed.ok(1, &register(0x0102_0304_0506_0708));
    bed.ok(2, &register(key(2)));
    bed.ok(2, &acquire(key(2), EARO));
    bed.ok(2, &ReservationCommand::Persist(true));
    let mut page = vec![0; 64 + 2 * 64 + 8];
    put_report(&bed.0, &mut page);
    assert_eq!(page[..10], [2, 0, 0, 0, 4, 2, 0, 0, 0, 1]);
    assert!(page[10..64].iter().all(|byte| *byte == 0));
    let [first, second] = [&page[64..128], &page[128..192]];
    assert_eq!(first[..3], [0xff, 0xff, 0]);
    assert_eq!(first[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(first[16..32], [1; 16]);
    assert_eq!((second[..3].to_vec(), &second[16..32]), (vec![0xff, 0xff, 1], &[2_u8; 16][..]));
    assert!(page[192..].iter().all(|byte| *byte == 0));
    // Every shorter length has the beginning of it, with the count of all registrants.
    for len in 0..page.len() {
        let mut short = vec![0; len];
        put_report(&bed.0, &mut short);
        assert_eq!(short, page[..len]);
    }
    let mut command = sqe(io::RESERVATION_REPORT, 63);
    assert_eq!(parse_report(&command, 4096), Err(Status::HOST_ID_INCONSISTENT.dnr()));
    command.cdw11 = 1.into();
    assert_eq!(parse_report(&command, 256), Ok(256));
    assert_eq!(parse_report(&command, 255), Err(Status::DATA_SGL_LENGTH_INVALID.dnr()));
    command.cdw10 = u32::MAX.into();
    assert!(parse_report(&command, 1 << 20).is_err());
}

// ---------------------------------------------------------------------------------------- at random

fn any_command() -> impl Strategy<Value = ReservationCommand> {
    // Few keys, so that they meet.
    let keys = || 0..5_u64;
    let kind = || proptest::sample::select(ReservationType::ALL.to_vec());
    let registers =
        (0..3_usize, keys(), keys(), any::<bool>(), 0..3_usize).prop_map(|(a, c, n, ignore, p)| {
            use RegisterAction::{Register, Replace, Unregister};
            ReservationCommand::Register {
                action: [Register, Unregister, Replace][a],
                current: c,
                new: n,
                ignore_existing: ignore,
                persistence: [Persistence::Keep, Persistence::Off, Persistence::On][p],
            }
        });
    let acquires =
        (0..3_usize, keys(), keys(), kind()).prop_map(|(a, current, preempted, kind)| {
            use AcquireAction::{Acquire, Preempt, PreemptAndAbort};
            let action = [Acquire, Preempt, PreemptAndAbort][a];
            ReservationCommand::Acquire { action, current, preempted, kind }
        });
    let releases = (any::<bool>(), keys(), 0..8_u8).prop_map(|(clears, current, rtype)| {
        let action = if clears { ReleaseAction::Clear } else { ReleaseAction::Release };
        ReservationCommand::Release { action, current, rtype }
    });
    let persist = any::<bool>().prop_map(ReservationCommand::Persist);
    prop_oneof![6 => registers, 6 => acquires, 2 => releases, 1 => persist]
}

proptest! {
    #[test]
    fn rules_that_hold_after_any_commands(
        commands in proptest::collection::vec((1..5_u8, any_command()), 1..60)
    ) {
        let mut state = Reservations { can_persist: true, ..Reservations::default() };
        for (number, command) in commands {
            let Ok(outcome) = state.apply(&host(number), &command) else { continue };
            let was_held = state.held.is_some();
            let next = outcome.next.clone().unwrap_or_else(|| state.clone());
            // The holder is registered, and each host at most once.
            if let Some(Held { kind, holder }) = next.held {
                let is_there = next.registrants.iter().any(|r| r.id == holder);
                prop_assert!(is_there || kind.is_held_by_all() && !next.registrants.is_empty());
            }
            let mut ids: Vec<_> = next.registrants.iter().map(|r| r.id.0).collect();
            ids.sort_unstable();
            ids.dedup();
            prop_assert_eq!(ids.len(), next.registrants.len());
            prop_assert!(next.registrants.iter().all(|r| r.key != 0));
            // Somebody can always read and write.
            let all = (1..6).map(host).any(|host| next.rights(&host).writes);
            prop_assert!(all);
            // Nobody is told of its own doing, and who loses its registration to another is told.
            prop_assert!(outcome.notices.iter().all(|notice| notice.to != host(number).id));
            for gone in state.registrants.iter().filter(|r| !next.registrants.contains(r)) {
                let replaced = next.registrants.iter().any(|r| r.id == gone.id);
                if !replaced && gone.id != host(number).id {
                    prop_assert!(outcome.notices.iter().any(|notice| notice.to == gone.id));
                }
            }
            // Nothing but acquiring, preempting included, reserves.
            if !was_held && next.held.is_some() {
                let acquires = matches!(command, ReservationCommand::Acquire {
                    action: AcquireAction::Acquire, ..
                });
                prop_assert!(acquires);
            }
            state = next;
        }
    }
}
