//! Reservations: who may do what, who is told what, and what is reported.

mod common;

use common::{Disk, hex, nexus, request};
use raceline_proto::nvme::reservation::ReservationType as Kind;
use raceline_scsi::cdb::{COMMANDS, ReserveOut, ReserveOutAction as Action};
use raceline_scsi::reservation::{
    MAX_REGISTRANTS, Registrant, ReserveOutParameters, transport_id, type_from_wire, type_to_wire,
};
use raceline_scsi::{
    Change, DataDirection, LunState, Outcome, Parameters, Plan, Refusal, Refused, Sense,
    UnitAttention, Whom,
};

/// A logical unit whose state changes by commands of I_T nexuses, which are numbers here.
#[derive(Default)]
struct Unit {
    state: LunState,
}

fn out(action: Action, kind: u8, key: u64, action_key: u64) -> Change {
    let command = ReserveOut { action, scope_and_type: kind, length: 24 };
    Change::ReserveOut(command, ReserveOutParameters { key, action_key, persist: false })
}

impl Unit {
    /// With these I_T nexuses registered, each with its number as key.
    fn with(registered: &[u8]) -> Self {
        let mut unit = Self::default();
        for number in registered {
            unit.go(*number, &out(Action::Register, 0, 0, (*number).into())).expect("it may");
        }
        unit
    }

    fn go(&mut self, from: u8, change: &Change) -> Result<Outcome, Refusal> {
        let outcome = self.state.apply(&nexus(from), change)?;
        if let Some(next) = &outcome.next {
            self.state = next.clone();
        }
        Ok(outcome)
    }

    fn told(&mut self, from: u8, change: &Change) -> Vec<(u8, UnitAttention)> {
        let outcome = self.go(from, change).expect("it may");
        let number = |whom: &Whom| match whom {
            Whom::Nexus(nexus) => nexus.isid[5],
            other => panic!("{other:?}"),
        };
        outcome.told.iter().map(|(whom, attention)| (number(whom), *attention)).collect()
    }

    fn holder(&self) -> Option<(u8, Kind)> {
        let held = self.state.reservations.held?;
        let mut registrants = self.state.reservations.registrants.iter();
        let holder = registrants.find(|one| one.id == held.holder).and_then(Registrant::as_nexus);
        Some((holder.map_or(0, |nexus| nexus.isid[5]), held.kind))
    }

    fn registered(&self) -> Vec<(u8, u64)> {
        let registrants = self.state.reservations.registrants.iter();
        let nexus = |one: &Registrant| one.as_nexus().expect("no host is registered").clone();
        registrants.map(|one| (nexus(one).isid[5], one.key)).collect()
    }

    fn generation(&self) -> u32 {
        self.state.reservations.generation
    }
}

const NO_CHANGE: Outcome =
    Outcome { next: None, told: Vec::new(), notices: Vec::new(), aborted: Vec::new() };

#[test]
fn types_are_numbered_as_in_the_standard() {
    let numbers = Kind::ALL.map(type_to_wire);
    assert_eq!(numbers, [1, 3, 5, 6, 7, 8]);
    for number in 0..=255 {
        let kind = type_from_wire(number);
        assert_eq!(kind.is_some(), numbers.contains(&number));
        assert!(kind.is_none_or(|kind| type_to_wire(kind) == number));
    }
}

#[test]
fn registering_needs_the_key_that_is_registered() {
    let mut unit = Unit::default();
    let register = |key, new| out(Action::Register, 0, key, new);
    assert_eq!(unit.go(1, &register(9, 1)), Err(Refusal::Conflict), "not registered: 0");
    assert_eq!(unit.go(1, &register(0, 0)), Ok(NO_CHANGE), "nothing to give up");
    unit.go(1, &register(0, 1)).unwrap();
    assert_eq!(unit.go(1, &register(0, 2)), Err(Refusal::Conflict));
    unit.go(1, &register(1, 2)).unwrap();
    assert_eq!((unit.registered(), unit.generation()), (vec![(1, 2)], 2));
    unit.go(1, &register(2, 0)).unwrap();
    assert_eq!((unit.registered(), unit.generation()), (vec![], 3));

    let ignore = |new| out(Action::RegisterAndIgnore, 0, 77, new);
    assert_eq!(unit.go(1, &ignore(0)), Ok(NO_CHANGE));
    unit.go(1, &ignore(5)).unwrap();
    unit.go(1, &ignore(6)).unwrap();
    assert_eq!(unit.registered(), [(1, 6)]);
    unit.go(1, &ignore(0)).unwrap();
    assert_eq!(unit.registered(), []);
}

#[test]
fn there_is_room_for_so_many() {
    let mut unit = Unit::default();
    for number in 0..MAX_REGISTRANTS {
        let number = u8::try_from(number).unwrap();
        unit.go(number, &out(Action::Register, 0, 0, 1)).unwrap();
    }
    let refused = unit.go(200, &out(Action::Register, 0, 0, 1));
    assert_eq!(refused, Err(Sense::NO_REGISTRATION_RESOURCES.into()));
}

#[test]
fn everything_but_registering_needs_a_registration_and_its_key() {
    for action in
        [Action::Reserve, Action::Release, Action::Clear, Action::Preempt, Action::PreemptAndAbort]
    {
        let mut unit = Unit::with(&[1]);
        assert_eq!(unit.go(2, &out(action, 1, 0, 1)), Err(Refusal::Conflict), "{action:?}");
        assert_eq!(unit.go(1, &out(action, 1, 2, 1)), Err(Refusal::Conflict), "{action:?}");
    }
}

#[test]
fn reserving_is_for_one_type_and_repeats() {
    let mut unit = Unit::with(&[1, 2]);
    for bad in [0x00, 0x02, 0x04, 0x09, 0x0f] {
        let refused = unit.go(1, &out(Action::Reserve, bad, 1, 0));
        assert_eq!(refused, Err(Sense::bad_cdb_bit(2, 3).into()), "{bad:02x}");
    }
    let refused = unit.go(1, &out(Action::Reserve, 0x11, 1, 0));
    assert_eq!(refused, Err(Sense::bad_cdb_bit(2, 7).into()), "another scope");
    let generation = unit.generation();
    unit.go(1, &out(Action::Reserve, 5, 1, 0)).unwrap();
    assert_eq!(unit.holder(), Some((1, Kind::WriteExclusiveRegistrantsOnly)));
    assert_eq!(unit.go(1, &out(Action::Reserve, 5, 1, 0)), Ok(NO_CHANGE), "again");
    assert_eq!(unit.go(1, &out(Action::Reserve, 6, 1, 0)), Err(Refusal::Conflict));
    assert_eq!(unit.go(2, &out(Action::Reserve, 5, 2, 0)), Err(Refusal::Conflict));
    assert_eq!(unit.generation(), generation, "no registration has changed");
    // where all hold it, all may repeat it
    let mut unit = Unit::with(&[1, 2]);
    unit.go(1, &out(Action::Reserve, 8, 1, 0)).unwrap();
    assert_eq!(unit.go(2, &out(Action::Reserve, 8, 2, 0)), Ok(NO_CHANGE));
}

#[test]
fn releasing_tells_the_others_where_they_lose_something() {
    for kind in Kind::ALL {
        let number = type_to_wire(kind);
        let mut unit = Unit::with(&[1, 2, 3]);
        unit.go(1, &out(Action::Reserve, number, 1, 0)).unwrap();
        let wrong = if number == 1 { 3 } else { 1 };
        let refused = unit.go(1, &out(Action::Release, wrong, 1, 0));
        assert_eq!(refused, Err(Sense::INVALID_RELEASE.into()));
        if !kind.is_held_by_all() {
            assert_eq!(unit.go(2, &out(Action::Release, number, 2, 0)), Ok(NO_CHANGE));
        }
        let told = unit.told(1, &out(Action::Release, number, 1, 0));
        let released = UnitAttention::ReservationsReleased;
        let expected =
            if kind.favours_registrants() { vec![(2, released), (3, released)] } else { vec![] };
        assert_eq!(told, expected, "{kind:?}");
        assert_eq!(unit.holder(), None);
        assert_eq!(unit.go(1, &out(Action::Release, number, 1, 0)), Ok(NO_CHANGE), "nothing held");
    }
}

#[test]
fn a_holder_that_gives_up_its_registration_is_not_told_of_it() {
    for kind in Kind::ALL {
        let mut unit = Unit::with(&[1, 2]);
        unit.go(1, &out(Action::Reserve, type_to_wire(kind), 1, 0)).unwrap();
        let told = unit.told(1, &out(Action::Register, 0, 1, 0));
        if kind.is_held_by_all() {
            assert_eq!((told, unit.holder().map(|held| held.1)), (vec![], Some(kind)));
            assert_eq!(unit.told(2, &out(Action::Register, 0, 2, 0)), [], "nobody is left");
        } else {
            let released = (2, UnitAttention::ReservationsReleased);
            let expected = if kind.favours_registrants() { vec![released] } else { vec![] };
            assert_eq!(told, expected, "{kind:?}");
        }
        assert_eq!(unit.holder(), None);
    }
}

#[test]
fn clearing_tells_all_others() {
    let mut unit = Unit::with(&[1, 2, 3]);
    unit.go(2, &out(Action::Reserve, 3, 2, 0)).unwrap();
    let generation = unit.generation();
    let told = unit.told(1, &out(Action::Clear, 0, 1, 0));
    let preempted = UnitAttention::ReservationsPreempted;
    assert_eq!(told, [(2, preempted), (3, preempted)]);
    assert_eq!((unit.holder(), unit.registered()), (None, vec![]));
    assert_eq!(unit.generation(), generation + 1);
}

#[test]
fn preempting_the_holder_takes_its_reservation() {
    let mut unit = Unit::with(&[1, 2, 3]);
    unit.go(1, &out(Action::Reserve, 5, 1, 0)).unwrap();
    let told = unit.told(2, &out(Action::Preempt, 6, 2, 1));
    let expected =
        [(1, UnitAttention::RegistrationsPreempted), (3, UnitAttention::ReservationsReleased)];
    assert_eq!(told, expected, "the type is another one: 3 has lost what it had");
    assert_eq!(unit.holder(), Some((2, Kind::ExclusiveAccessRegistrantsOnly)));
    assert_eq!((unit.registered(), unit.generation()), (vec![(2, 2), (3, 3)], 4));
    let told = unit.told(3, &out(Action::Preempt, 6, 3, 2));
    assert_eq!(told, [(2, UnitAttention::RegistrationsPreempted)], "the same type");
    // the holder changes the type by preempting itself
    assert_eq!(unit.told(3, &out(Action::Preempt, 1, 3, 3)), []);
    assert_eq!(unit.holder(), Some((3, Kind::WriteExclusive)));
    assert_eq!(unit.registered(), [(3, 3)]);
}

#[test]
fn preempting_others_leaves_the_reservation() {
    let mut unit = Unit::with(&[1, 2, 3]);
    // no reservation: the type is of no interest
    let told = unit.told(1, &out(Action::Preempt, 0, 1, 3));
    assert_eq!(told, [(3, UnitAttention::RegistrationsPreempted)]);
    unit.go(1, &out(Action::Reserve, 1, 1, 0)).unwrap();
    unit.told(1, &out(Action::Preempt, 1, 1, 2));
    assert_eq!((unit.registered(), unit.holder()), (vec![(1, 1)], Some((1, Kind::WriteExclusive))));
    assert_eq!(unit.go(1, &out(Action::Preempt, 1, 1, 9)), Err(Refusal::Conflict), "no such key");
    let zero = unit.go(1, &out(Action::Preempt, 1, 1, 0));
    assert_eq!(zero, Err(Sense::bad_parameter(8).into()));
    // where all hold it, 0 is all of them
    let mut unit = Unit::with(&[1, 2, 3]);
    unit.go(1, &out(Action::Reserve, 7, 1, 0)).unwrap();
    let told = unit.told(2, &out(Action::Preempt, 3, 2, 0));
    let preempted = UnitAttention::RegistrationsPreempted;
    assert_eq!(told, [(1, preempted), (3, preempted)]);
    assert_eq!(unit.holder(), Some((2, Kind::ExclusiveAccess)));
}

#[test]
fn preempt_and_abort_names_whose_commands_end() {
    for (action, aborted) in
        [(Action::Preempt, vec![]), (Action::PreemptAndAbort, vec![nexus(2), nexus(3)])]
    {
        let mut unit = Unit::default();
        for (number, key) in [(1, 1), (2, 7), (3, 7)] {
            unit.go(number, &out(Action::Register, 0, 0, key)).unwrap();
        }
        let outcome = unit.go(1, &out(action, 1, 1, 7)).unwrap();
        let found: Vec<_> = outcome.aborted.iter().filter_map(Registrant::as_nexus).collect();
        assert_eq!(found, aborted.iter().collect::<Vec<_>>());
    }
}

// ------------------------------------------------------------------- what each may do

/// What reservations leave of a command: for the types WE and EA from a nexus that does not hold it; from a registrant
/// where registrants may; from others where registrants may (WE, EA). As in the tables of SPC-5 (79) and SBC-4 (13).
fn conflicts(name: &str) -> &'static str {
    const EXEMPT: &[&str] = &[
        "TEST UNIT READY",
        "REQUEST SENSE",
        "INQUIRY",
        "REPORT LUNS",
        "READ CAPACITY (10)",
        "READ CAPACITY (16)",
        "REPORT TARGET PORT GROUPS",
        // they have conflicts of their own
        "RESERVE (6)",
        "RESERVE (10)",
        "RELEASE (6)",
        "RELEASE (10)",
        // with the fields that the test leaves 0
        "PREVENT ALLOW MEDIUM REMOVAL",
    ];
    const READS: &[&str] = &[
        "READ (6)",
        "READ (10)",
        "READ (12)",
        "READ (16)",
        "VERIFY (10)",
        "VERIFY (12)",
        "VERIFY (16)",
        "PRE-FETCH (10)",
        "PRE-FETCH (16)",
        "READ DEFECT DATA (10)",
        "READ DEFECT DATA (12)",
        "MODE SENSE (6)",
        "MODE SENSE (10)",
        "GET LBA STATUS (16)",
        "REPORT SUPPORTED OPERATION CODES",
        "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
    ];
    match name {
        _ if EXEMPT.contains(&name) || name.starts_with("PERSISTENT RESERVE") => "",
        _ if READS.contains(&name) => "reads",
        _ => "writes",
    }
}

/// Whether a command gets past the reservations.
fn is_admitted(disk: &mut Disk, cdb: &[u8]) -> bool {
    let plan = disk.plan(&request(cdb, DataDirection::None, 0));
    !matches!(plan, Plan::Refuse(Refused { why: Refusal::Conflict, .. }))
}

#[test]
fn every_command_of_every_role_under_every_type() {
    for kind in Kind::ALL {
        let mut unit = Unit::with(&[1, 2]);
        unit.go(1, &out(Action::Reserve, type_to_wire(kind), 1, 0)).unwrap();
        for number in [1, 2, 3] {
            let mut disk = Disk::new();
            disk.state = unit.state.clone();
            disk.admission = unit.state.admission(&nexus(number));
            for row in COMMANDS {
                let does = conflicts(row.name);
                let excludes_reads = matches!(
                    kind,
                    Kind::ExclusiveAccess
                        | Kind::ExclusiveAccessRegistrantsOnly
                        | Kind::ExclusiveAccessAllRegistrants
                );
                let is_inside = number == 1
                    || number == 2 && !matches!(kind, Kind::WriteExclusive | Kind::ExclusiveAccess);
                let expected = match does {
                    "" => true,
                    "reads" => is_inside || !excludes_reads,
                    _ => is_inside,
                };
                let cdb = [row.opcode, row.service_action.unwrap_or(0)];
                let got = is_admitted(&mut disk, &cdb);
                assert_eq!(got, expected, "{} by {number} under {kind:?}", row.name);
            }
        }
    }
}

#[test]
fn starting_and_allowing_are_exempt_and_their_opposites_write() {
    let mut unit = Unit::with(&[1]);
    unit.go(1, &out(Action::Reserve, 1, 1, 0)).unwrap();
    let mut disk = Disk::new();
    disk.admission = unit.state.admission(&nexus(2));
    for (cdb, expected) in [
        ([0x1b, 0, 0, 0, 0x01], true),
        ([0x1b, 0, 0, 0, 0x00], false),
        ([0x1b, 0, 0, 0, 0x11], false),
        ([0x1e, 0, 0, 0, 0x00], true),
        ([0x1e, 0, 0, 0, 0x01], false),
    ] {
        assert_eq!(is_admitted(&mut disk, &cdb), expected, "{cdb:02x?}");
    }
}

#[test]
fn reserve_leaves_others_four_commands() {
    let mut unit = Unit::default();
    unit.go(1, &Change::Reserve).unwrap();
    assert_eq!(unit.go(1, &Change::Reserve), Ok(NO_CHANGE), "again");
    assert_eq!(unit.go(2, &Change::Reserve), Err(Refusal::Conflict));
    assert_eq!(unit.go(2, &Change::Release), Ok(NO_CHANGE), "not its own");
    let mut disk = Disk::new();
    disk.state = unit.state.clone();
    for row in COMMANDS {
        let cdb = [row.opcode, row.service_action.unwrap_or(0)];
        disk.admission = unit.state.admission(&nexus(2));
        let always = ["INQUIRY", "REQUEST SENSE", "REPORT LUNS", "RELEASE (6)", "RELEASE (10)"];
        assert_eq!(is_admitted(&mut disk, &cdb), always.contains(&row.name), "{}", row.name);
        // its holder does all, but persistent reservations
        disk.admission = unit.state.admission(&nexus(1));
        let is_persistent = row.name.starts_with("PERSISTENT RESERVE");
        assert_eq!(is_admitted(&mut disk, &cdb), !is_persistent, "{}", row.name);
    }
    let refused = unit.go(1, &out(Action::Register, 0, 0, 1));
    assert_eq!(refused, Err(Refusal::Conflict));
    unit.go(1, &Change::Release).unwrap();
    unit.go(2, &Change::Reserve).unwrap();
}

#[test]
fn reserve_ends_with_its_nexus_or_a_reset() {
    for (from, change, ends) in [
        (1, Change::NexusLost, true),
        (2, Change::NexusLost, false),
        (2, Change::Reset(UnitAttention::LunReset), true),
    ] {
        let mut unit = Unit::with(&[]);
        unit.go(1, &Change::Reserve).unwrap();
        let outcome = unit.go(from, &change).unwrap();
        assert_eq!(unit.state.reservations.reserved_by.is_none(), ends, "{change:?}");
        let is_told = outcome.told == [(Whom::Others, UnitAttention::LunReset)];
        assert_eq!(is_told, matches!(change, Change::Reset(_)));
    }
    let told = Unit::with(&[1]).go(1, &Change::Tell(UnitAttention::CapacityChanged)).unwrap();
    assert_eq!((told.next, told.told), (None, vec![(Whom::All, UnitAttention::CapacityChanged)]));
    // persistent ones survive both
    let mut unit = Unit::with(&[1]);
    unit.go(1, &out(Action::Reserve, 1, 1, 0)).unwrap();
    let before = unit.state.clone();
    unit.go(1, &Change::NexusLost).unwrap();
    unit.go(1, &Change::Reset(UnitAttention::LunReset)).unwrap();
    assert_eq!(unit.state, before);
}

#[test]
fn reserve_and_registrations_exclude_each_other() {
    let mut unit = Unit::with(&[1, 2]);
    for number in [1, 2, 3] {
        assert_eq!(unit.go(number, &Change::Reserve), Err(Refusal::Conflict), "{number}");
        assert_eq!(unit.go(number, &Change::Release), Err(Refusal::Conflict), "{number}");
    }
    // who has by a persistent reservation what it asks for gets it, and nothing changes (CRH)
    unit.go(1, &out(Action::Reserve, 1, 1, 0)).unwrap();
    assert_eq!(unit.go(1, &Change::Reserve), Ok(NO_CHANGE));
    assert_eq!(unit.go(1, &Change::Release), Ok(NO_CHANGE));
    assert_eq!(unit.go(2, &Change::Reserve), Err(Refusal::Conflict));
    let mut unit = Unit::with(&[1, 2]);
    unit.go(1, &out(Action::Reserve, 5, 1, 0)).unwrap();
    assert_eq!(unit.go(2, &Change::Reserve), Ok(NO_CHANGE));
    assert_eq!(unit.go(3, &Change::Reserve), Err(Refusal::Conflict));
}

// ---------------------------------------------------------------------- parameters and reports

#[test]
fn parameters_are_24_bytes() {
    let list = hex("0102030405060708 1112131415161718 00000000 01 000000");
    let command = |action| ReserveOut { action, scope_and_type: 0, length: 24 };
    let parse = |action, list: &[u8]| ReserveOutParameters::parse(&command(action), list);
    let expected = ReserveOutParameters {
        key: 0x0102_0304_0506_0708,
        action_key: 0x1112_1314_1516_1718,
        persist: true,
    };
    assert_eq!(parse(Action::Register, &list), Ok(expected));
    let reserve = ReserveOutParameters { persist: false, ..expected };
    assert_eq!(parse(Action::Reserve, &list), Ok(reserve), "APTPL is for registering");
    for len in [0, 23, 25] {
        let mut list = list.clone();
        list.resize(len, 0);
        assert_eq!(parse(Action::Register, &list), Err(Sense::PARAMETER_LIST_LENGTH));
    }
    for flag in [0x08, 0x04] {
        let mut list = list.clone();
        list[20] = flag;
        let sense = parse(Action::RegisterAndIgnore, &list).unwrap_err();
        assert_eq!((sense.code, sense.field.map(|field| field.byte)), (0x2600, Some(20)));
        assert!(parse(Action::Clear, &list).is_ok());
    }
}

#[test]
fn persistence_needs_a_place() {
    let mut unit = Unit::default();
    let register = |persist| {
        let command = ReserveOut { action: Action::Register, scope_and_type: 0, length: 24 };
        let parameters = ReserveOutParameters { key: 0, action_key: 1, persist };
        Change::ReserveOut(command, parameters)
    };
    let Err(Refusal::Check(sense)) = unit.go(1, &register(true)) else { panic!() };
    assert_eq!(sense.code, 0x2600);
    unit.state.reservations.can_persist = true;
    unit.go(1, &register(true)).unwrap();
    assert!(unit.state.reservations.persists);
    unit.go(2, &register(false)).unwrap();
    assert!(!unit.state.reservations.persists, "the last one decides");
}

fn report(unit: &Unit, action: u8) -> Vec<u8> {
    let mut disk = Disk::new();
    disk.state = unit.state.clone();
    disk.data(&[0x5e, action, 0, 0, 0, 0, 0, 0x10, 0, 0])
}

#[test]
fn reports() {
    let mut unit = Unit::with(&[1, 2]);
    assert_eq!(report(&unit, 0), hex("00000002 00000010 0000000000000001 0000000000000002"));
    assert_eq!(report(&unit, 1), hex("00000002 00000000"));
    assert_eq!(report(&unit, 2), hex("0008 10 80 ea01 0000"));
    unit.state.reservations.can_persist = true;
    unit.state.reservations.persists = true;
    assert_eq!(report(&unit, 2), hex("0008 11 81 ea01 0000"));
    unit.go(1, &out(Action::Reserve, 6, 1, 0)).unwrap();
    assert_eq!(report(&unit, 1), hex("00000002 00000010 0000000000000001 00000000 00 06 0000"));
    let id = |number: char| {
        // format 01b of iSCSI, 48 bytes: iqn.1994-05.com.example:N,i,0x00023d00000N
        format!(
            "4500 002c 69716e2e313939342d30352e636f6d2e6578616d706c653a3{number}
            2c692c3078 30303032336430303030303{number} 00 00"
        )
    };
    let full = report(&unit, 3);
    let first = &full[8..8 + 24];
    assert_eq!(first, hex("0000000000000001 00000000 01 06 00000000 0001 00000030"));
    assert_eq!(full[..4], [0, 0, 0, 2]);
    assert_eq!(full.len(), 8 + 2 * (24 + 48));
    assert_eq!(transport_id(&nexus(1)), full[32..80]);
    assert_eq!(full[32..36], hex(&id('1'))[..4]);
    assert_eq!(&full[36..79], b"iqn.1994-05.com.example:1,i,0x00023d000001\0");
    let second = &full[80..104];
    assert_eq!(second, hex("0000000000000002 00000000 00 00 00000000 0001 00000030"));
    // where all hold it, no key is told, and each is marked
    let mut unit = Unit::with(&[1, 2]);
    unit.go(1, &out(Action::Reserve, 7, 1, 0)).unwrap();
    assert_eq!(report(&unit, 1), hex("00000002 00000010 0000000000000000 00000000 00 07 0000"));
    let full = report(&unit, 3);
    assert_eq!((full[20], full[92]), (1, 1));
    // lengths are those of the whole report
    let mut disk = Disk::new();
    disk.state = unit.state.clone();
    assert_eq!(disk.data(&[0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0]), hex("00000002 00000010"));
}

#[test]
fn a_transport_identifier_has_at_least_20_bytes_of_name() {
    let mut short = nexus(1);
    short.initiator = "x".to_owned();
    let id = transport_id(&short);
    assert_eq!((id.len(), &id[..4]), (24, &[0x45, 0, 0, 20][..]));
    short.initiator = "x".repeat(223);
    let id = transport_id(&short);
    assert_eq!((id.len() % 4, id.len()), (0, 4 + 244));
}

#[test]
fn from_cdb_to_change() {
    let mut disk = Disk::new();
    let cdb = [0x5f, 0x04, 0x05, 0, 0, 0, 0, 0, 24, 0];
    let plan = disk.plan(&request(&cdb, DataDirection::Out, 24));
    let Plan::Collect { parameters, transfer } = plan else { panic!("{plan:?}") };
    assert_eq!(transfer.bytes, 24);
    let list = hex("0000000000000001 0000000000000002 0000000000000000");
    let change = parameters.decide(&disk.lun, &disk.state, &list).unwrap();
    assert_eq!(change, Some(out(Action::Preempt, 5, 1, 2)));
    assert!(matches!(parameters, Parameters::ReserveOut(_)));
    let short = parameters.decide(&disk.lun, &disk.state, &list[..23]);
    assert_eq!(short, Err(Sense::PARAMETER_LIST_LENGTH));
}
