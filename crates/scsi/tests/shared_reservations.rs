//! One registry for I_T nexuses of iSCSI and hosts of NVMe: what each may do beside the other, who is told what, and what
//! the reports of each protocol show.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Disk, nexus};
use raceline_proto::nvme::reservation::{NoticeKind, ReservationType};
use raceline_proto::nvme::{HostId, HostNqn, Nqn, Status};
use raceline_proto::reservation::{
    AccessGroup, AcquireAction, Notice, Persistence, RegisterAction, Registrant, ReleaseAction,
    ReservationCommand, ReservingHost, put_report,
};
use raceline_scsi::cdb::{ReserveOut, ReserveOutAction as Action};
use raceline_scsi::reservation::{ReserveOutParameters, host_transport_id, type_to_wire};
use raceline_scsi::{Change, LunState, Refusal, UnitAttention, Whom};

/// Whoever sends commands: I_T nexuses and hosts have numbers, which are their keys as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Party {
    Nexus(u8),
    Host(u8),
}

use Party::{Host, Nexus};

fn host(number: u8) -> ReservingHost {
    let name = Nqn::new(&format!("nqn.2026-01.org.example:h{number}")).unwrap();
    ReservingHost { id: HostId([number; 16]), name: HostNqn::Named(name) }
}

/// What a command does, in both protocols.
#[derive(Clone, Copy, Debug)]
enum Step {
    Register,
    Unregister,
    Acquire(ReservationType),
    Preempt { key: u8, kind: ReservationType, abort: bool },
    Release(ReservationType),
    Clear,
}

impl Step {
    fn of_nexus(self, own: u8) -> Change {
        let (action, kind, key, action_key) = match self {
            Self::Register => (Action::Register, None, 0, own),
            Self::Unregister => (Action::Register, None, own, 0),
            Self::Acquire(kind) => (Action::Reserve, Some(kind), own, 0),
            Self::Preempt { key, kind, abort: false } => (Action::Preempt, Some(kind), own, key),
            Self::Preempt { key, kind, abort: true } => {
                (Action::PreemptAndAbort, Some(kind), own, key)
            }
            Self::Release(kind) => (Action::Release, Some(kind), own, 0),
            Self::Clear => (Action::Clear, None, own, 0),
        };
        let scope_and_type = kind.map_or(0, type_to_wire);
        let command = ReserveOut { action, scope_and_type, length: 24 };
        let (key, action_key) = (key.into(), action_key.into());
        Change::ReserveOut(command, ReserveOutParameters { key, action_key, persist: false })
    }

    fn of_host(self, own: u8) -> ReservationCommand {
        let current = u64::from(own);
        let register = |action, new| ReservationCommand::Register {
            action,
            current,
            new,
            ignore_existing: false,
            persistence: Persistence::Keep,
        };
        let acquire = |action, key: u8, kind| ReservationCommand::Acquire {
            action,
            current,
            preempted: key.into(),
            kind,
        };
        match self {
            Self::Register => register(RegisterAction::Register, current),
            Self::Unregister => register(RegisterAction::Unregister, 0),
            Self::Acquire(kind) => acquire(AcquireAction::Acquire, 0, kind),
            Self::Preempt { key, kind, abort: false } => acquire(AcquireAction::Preempt, key, kind),
            Self::Preempt { key, kind, abort: true } => {
                acquire(AcquireAction::PreemptAndAbort, key, kind)
            }
            Self::Release(kind) => ReservationCommand::Release {
                action: ReleaseAction::Release,
                current,
                rtype: kind.to_wire(),
            },
            Self::Clear => {
                ReservationCommand::Release { action: ReleaseAction::Clear, current, rtype: 0 }
            }
        }
    }
}

/// What a step has made others know.
#[derive(Debug, Default, PartialEq, Eq)]
struct Effects {
    /// In the words of NVMe, also where an I_T nexus gets a unit attention.
    told: Vec<(Party, NoticeKind)>,
    aborted: Vec<Party>,
}

fn party(registrant: &Registrant) -> Party {
    registrant.as_nexus().map_or(Host(registrant.id.0[0]), |nexus| Nexus(nexus.isid[5]))
}

/// The state of a device, as both protocols see it.
#[derive(Default)]
struct Device(LunState);

impl Device {
    /// With these registered.
    fn with(registered: &[Party]) -> Self {
        let mut device = Self::default();
        for one in registered {
            assert_eq!(device.go(*one, Step::Register), Some(Effects::default()), "{one:?}");
        }
        device
    }

    /// `None`: Reservation Conflict.
    fn go(&mut self, from: Party, step: Step) -> Option<Effects> {
        let before: Vec<Registrant> = self.0.reservations.registrants.clone();
        let of_notice = |notice: &Notice| {
            let found = before.iter().find(|one| one.id == notice.to);
            (party(found.expect("only registrants are told")), notice.kind)
        };
        let (told, aborted) = match from {
            Nexus(number) => {
                let outcome = match self.0.apply(&nexus(number), &step.of_nexus(number)) {
                    Ok(outcome) => outcome,
                    Err(Refusal::Conflict) => return None,
                    Err(other) => panic!("{other:?}"),
                };
                self.0 = outcome.next.unwrap_or_else(|| self.0.clone());
                let attentions = outcome.told.iter().map(|(whom, attention)| {
                    let Whom::Nexus(one) = whom else { panic!("{whom:?}") };
                    (Nexus(one.isid[5]), notice_of(*attention))
                });
                let told = attentions.chain(outcome.notices.iter().map(of_notice)).collect();
                (told, outcome.aborted)
            }
            Host(number) => {
                let outcome = match self.0.reservations.apply(&host(number), &step.of_host(number))
                {
                    Ok(outcome) => outcome,
                    Err(status) if status == Status::RESERVATION_CONFLICT.dnr() => return None,
                    Err(other) => panic!("{other:?}"),
                };
                if let Some(next) = outcome.next {
                    self.0.reservations = next;
                }
                (outcome.notices.iter().map(of_notice).collect(), outcome.aborted)
            }
        };
        Some(Effects { told, aborted: aborted.iter().map(party).collect() })
    }

    fn may(&self, who: Party, group: AccessGroup) -> bool {
        match who {
            Nexus(number) => self.0.admission(&nexus(number)).admits(Some(group)),
            Host(number) => self.0.reservations.admit(&host(number), group).is_ok(),
        }
    }

    fn registered(&self) -> Vec<Party> {
        self.0.reservations.registrants.iter().map(party).collect()
    }

    fn holders(&self) -> Vec<Party> {
        let state = &self.0.reservations;
        state.registrants.iter().filter(|one| state.holds(one)).map(party).collect()
    }
}

fn notice_of(attention: UnitAttention) -> NoticeKind {
    let all = [
        NoticeKind::RegistrationPreempted,
        NoticeKind::ReservationReleased,
        NoticeKind::ReservationPreempted,
    ];
    all.into_iter().find(|kind| UnitAttention::from(*kind) == attention).expect("of reservations")
}

/// A holder, a registrant and a stranger, each of either protocol.
const CASTS: [[Party; 3]; 8] = [
    [Nexus(1), Nexus(2), Nexus(3)],
    [Nexus(1), Nexus(2), Host(3)],
    [Nexus(1), Host(2), Nexus(3)],
    [Nexus(1), Host(2), Host(3)],
    [Host(1), Nexus(2), Nexus(3)],
    [Host(1), Nexus(2), Host(3)],
    [Host(1), Host(2), Nexus(3)],
    [Host(1), Host(2), Host(3)],
];

#[test]
fn the_access_matrix_holds_across_protocols() {
    for [holder, registrant, stranger] in CASTS {
        for kind in ReservationType::ALL {
            let mut device = Device::with(&[holder, registrant]);
            device.go(holder, Step::Acquire(kind)).unwrap();
            let favours = kind.favours_registrants();
            let reads = kind.lets_others_read();
            for (who, expected) in [
                (holder, (true, true)),
                (registrant, (favours || reads, favours)),
                (stranger, (reads, false)),
            ] {
                let found =
                    (device.may(who, AccessGroup::Read), device.may(who, AccessGroup::Write));
                assert_eq!(found, expected, "{who:?} beside {holder:?} with {kind:?}");
            }
        }
    }
}

#[test]
fn only_registrants_with_their_key_change_what_others_hold() {
    let kind = ReservationType::WriteExclusive;
    for [holder, registrant, stranger] in CASTS {
        let mut device = Device::with(&[holder, registrant]);
        device.go(holder, Step::Acquire(kind)).unwrap();
        let before = device.0.clone();
        for step in [
            Step::Acquire(kind),
            Step::Release(kind),
            Step::Clear,
            Step::Preempt { key: 1, kind, abort: true },
        ] {
            assert_eq!(device.go(stranger, step), None, "{step:?} of {stranger:?}");
        }
        assert_eq!(device.go(registrant, Step::Acquire(kind)), None, "{registrant:?}");
        assert_eq!(device.go(registrant, Step::Release(kind)), Some(Effects::default()));
        assert_eq!(device.0, before);
        assert_eq!(device.go(stranger, Step::Register), Some(Effects::default()));
        assert_eq!(device.registered(), [holder, registrant, stranger]);
        assert_eq!(device.0.reservations.generation, before.reservations.generation + 1);
    }
}

#[test]
fn preemption_crosses_protocols() {
    let kind = ReservationType::ExclusiveAccessRegistrantsOnly;
    for [holder, taker, witness] in CASTS {
        for abort in [false, true] {
            let mut device = Device::with(&[holder, taker, witness]);
            device.go(holder, Step::Acquire(ReservationType::ExclusiveAccess)).unwrap();
            let effects = device.go(taker, Step::Preempt { key: 1, kind, abort }).unwrap();
            let mut told = effects.told;
            told.sort_by_key(|(_, kind)| kind.to_wire());
            let expected = [
                (holder, NoticeKind::RegistrationPreempted),
                (witness, NoticeKind::ReservationReleased),
            ];
            assert_eq!(told, expected, "{holder:?} by {taker:?}");
            assert_eq!(effects.aborted, if abort { vec![holder] } else { vec![] });
            assert_eq!(device.registered(), [taker, witness]);
            assert_eq!(device.holders(), [taker]);
            assert!(!device.may(holder, AccessGroup::Read));
            assert!(device.may(witness, AccessGroup::Write));
        }
    }
}

#[test]
fn release_clear_and_the_last_of_all_registrants_are_told_to_both() {
    let released = NoticeKind::ReservationReleased;
    let only = ReservationType::WriteExclusiveRegistrantsOnly;
    let all = ReservationType::ExclusiveAccessAllRegistrants;
    for [holder, other, third] in CASTS {
        let mut device = Device::with(&[holder, other, third]);
        let as_set = |effects: Effects| {
            let mut told = effects.told;
            told.sort_by_key(|(who, _)| match who {
                Nexus(number) | Host(number) => *number,
            });
            told
        };
        for step in [Step::Release(only), Step::Unregister] {
            device.go(holder, Step::Acquire(only)).unwrap();
            let told = as_set(device.go(holder, step).unwrap());
            assert_eq!(told, [(other, released), (third, released)], "{step:?} of {holder:?}");
        }
        device.go(other, Step::Acquire(all)).unwrap();
        assert_eq!(device.holders(), [other, third]);
        assert_eq!(device.go(other, Step::Unregister), Some(Effects::default()));
        assert_eq!(device.holders(), [third], "all registrants hold it, and one is left");
        device.go(holder, Step::Register).unwrap();
        let told = as_set(device.go(third, Step::Clear).unwrap());
        assert_eq!(told, [(holder, NoticeKind::ReservationPreempted)]);
        assert!(device.registered().is_empty() && device.holders().is_empty());
    }
}

#[test]
fn reserve_of_spc_2_keeps_hosts_out() {
    let mut device = Device::default();
    let reserved = device.0.apply(&nexus(1), &Change::Reserve).unwrap().next.unwrap();
    device.0 = reserved;
    for group in [AccessGroup::Read, AccessGroup::Write] {
        assert!(device.may(Nexus(1), group) && !device.may(Nexus(2), group));
        assert!(!device.may(Host(1), group));
    }
    assert!(device.may(Host(1), AccessGroup::Exempt), "a report is always answered");
    assert_eq!(device.go(Host(1), Step::Register), None);
    device.0 = device.0.apply(&nexus(1), &Change::NexusLost).unwrap().next.unwrap();
    device.go(Host(1), Step::Register).unwrap();
    assert_eq!(device.0.apply(&nexus(1), &Change::Reserve), Err(Refusal::Conflict));
}

#[test]
fn nobody_is_registered_by_an_identifier_alone() {
    let mut device = Device::with(&[Nexus(1)]);
    device.go(Nexus(1), Step::Acquire(ReservationType::ExclusiveAccess)).unwrap();
    // A host that has computed the identifier of the I_T nexus, and its key.
    let thief = ReservingHost { id: nexus(1).host_id(), ..host(1) };
    let state = &device.0.reservations;
    assert!(state.admit(&thief, AccessGroup::Read).is_err());
    for step in [Step::Register, Step::Clear, Step::Release(ReservationType::ExclusiveAccess)] {
        let refused = state.apply(&thief, &step.of_host(1));
        assert_eq!(refused, Err(Status::RESERVATION_CONFLICT.dnr()), "{step:?}");
    }
    // Nor an I_T nexus by that of a host.
    let mut other = Device::default();
    let registered = other.0.reservations.apply(&thief, &Step::Register.of_host(1)).unwrap();
    other.0.reservations = registered.next.unwrap();
    assert_eq!(other.go(Nexus(1), Step::Register), None);
}

#[test]
fn each_report_shows_the_registrants_of_both() {
    let mut device = Device::with(&[Nexus(1), Host(2)]);
    device.go(Host(2), Step::Acquire(ReservationType::WriteExclusive)).unwrap();
    // Reservation Report: the derived identifier of the I_T nexus.
    let mut bytes = vec![0; 64 * 3];
    put_report(&device.0.reservations, &mut bytes);
    assert_eq!((bytes[4], bytes[5]), (1, 2), "RTYPE, and two registrants");
    let (first, second) = (&bytes[64..128], &bytes[128..192]);
    assert_eq!((first[2], first[8], &first[16..32]), (0, 1, &nexus(1).host_id().0[..]));
    assert_eq!((second[2], second[8], &second[16..32]), (1, 2, &[2; 16][..]));
    // Persistent Reserve In: keys, the holder's key, and the host under its name.
    let mut disk = Disk::new();
    disk.state = device.0.clone();
    let mut report = |action| disk.data(&[0x5e, action, 0, 0, 0, 0, 0, 0x10, 0, 0]);
    let keys = report(0);
    assert_eq!((keys[15], keys[23], keys.len()), (1, 2, 24));
    let held = report(1);
    assert_eq!((held[15], held[21]), (2, 1));
    let full = report(3);
    let id = host_transport_id(HostId([2; 16]), Some(&host(2).name));
    let of_host = &full[8 + 24 + 48..];
    assert_eq!((of_host[7], of_host[12], of_host[13]), (2, 1, 1), "key, R_HOLDER, type");
    assert_eq!(of_host[18..20], [0, 0], "no target port of SCSI");
    assert_eq!(of_host[24..], id);
    assert_eq!(id[0], 0x4f);
    let text = b"nqn.2026-01.org.example:h2,h,0x02020202020202020202020202020202\0";
    assert_eq!(&id[4..4 + text.len()], text);
    assert_eq!(id.len() % 4, 0);
}
