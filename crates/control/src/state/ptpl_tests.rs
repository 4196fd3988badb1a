//! The file that keeps reservations, on a disk that loses power after every operation.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use raceline_proto::nvme::reservation::ReservationType;
use raceline_proto::nvme::{HostId, HostNqn, Nqn};
use raceline_proto::reservation::{Held, Nexus, Port, Registrant, Reservations};
use raceline_target::{ProtectionStore as _, ReservationStore as _};
use uuid::Uuid;

use super::disk::Disk;
use super::sim::{Image, Random, SimDisk};
use crate::ptpl::{Folder, ProtectionFile, ReservationFile};

const UUID: Uuid = Uuid::from_u128(0x1234_5678);
/// Saves of a history.
const STEPS: usize = 40;
/// Different ways to lose power after one operation.
const CRASHES: usize = 6;

impl Folder for SimDisk {
    fn path(&self) -> &Path {
        Disk::path(self)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        Disk::read(self, name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let file = Disk::create(self, name)?;
        file.write_at(0, bytes)?;
        file.sync()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Disk::rename(self, from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Disk::remove(self, name)
    }

    fn sync_names(&self) -> io::Result<()> {
        Disk::sync_names(self)
    }
}

/// A state that persists.
fn random_state(random: &mut Random) -> Reservations {
    let registrants: Vec<Registrant> = (1..=u8::try_from(random.below(6)).unwrap())
        .map(|number| {
            let key = random.next() | 1;
            if random.one_in(2) {
                let nexus = Nexus {
                    initiator: format!("iqn.2026-01.io.raceline:i{number}"),
                    isid: [number; 6],
                    target: "iqn.2026-01.io.raceline:disk".to_owned(),
                    port: Port { group: 1, relative: 0 },
                };
                return Registrant::nexus(nexus, key);
            }
            let name = Nqn::new(&format!("nqn.2026-01.io.raceline:h{number}")).unwrap();
            Registrant::host(HostId([number; 16]), Some(HostNqn::Named(name)), key)
        })
        .collect();
    let held = registrants
        .first()
        .filter(|_| !random.one_in(3))
        .map(|first| Held { kind: ReservationType::ALL[random.below(6)], holder: first.id });
    Reservations { registrants, held, persists: true, ..Reservations::default() }
}

fn on(disk: &SimDisk) -> ReservationFile {
    ReservationFile::on(Arc::new(disk.clone()), "ns.json".to_owned(), UUID)
}

/// Power is cut after every operation of a history: the state is the one that was answered last, or the one
/// that was being kept.
#[test]
fn a_power_cut_at_any_point_leaves_a_state_whole() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let disk = SimDisk::default();
        let states = Arc::new(Mutex::new((Reservations::default(), Reservations::default())));
        let crashes = Arc::new(Mutex::new(0));
        let (seen, counted, mut cut) = (states.clone(), crashes.clone(), Random(seed ^ 0x55));
        disk.observe(move |image: &Image| {
            for _ in 0..CRASHES {
                let found = on(&SimDisk::new(image.crash(&mut cut))).load().unwrap();
                let (kept, coming) = &*seen.lock().unwrap();
                assert!(found == *kept || found == *coming, "seed {seed}: {found:?}");
                *counted.lock().unwrap() += 1;
            }
        });
        for _ in 0..STEPS {
            let next = (!random.one_in(8)).then(|| random_state(&mut random));
            states.lock().unwrap().1 = next.clone().unwrap_or_default();
            on(&disk).save(next.as_ref()).unwrap();
            let mut states = states.lock().unwrap();
            states.0 = states.1.clone();
            let crashed = SimDisk::new(disk.image().crash(&mut random));
            assert_eq!(on(&crashed).load().unwrap(), states.0, "seed {seed}: what was kept");
        }
        assert!(*crashes.lock().unwrap() > STEPS * CRASHES, "seed {seed}: too few crashes");
    }
}

#[test]
fn a_disk_that_cannot_keep_a_state_says_so() {
    let disk = SimDisk::default();
    let state = random_state(&mut Random(1));
    on(&disk).save(Some(&state)).unwrap();
    disk.image().faults.failing_sync = true;
    on(&disk).save(Some(&random_state(&mut Random(2)))).unwrap_err();
    assert_eq!(on(&disk).load().unwrap(), state);
}

#[test]
fn write_protection_that_was_answered_survives_a_power_cut() {
    let mut random = Random(5);
    let disk = SimDisk::default();
    let on = |disk: &SimDisk| ProtectionFile::on(Arc::new(disk.clone()), "ns".to_owned());
    for _ in 0..STEPS {
        let wanted = random.one_in(2);
        on(&disk).save(wanted).unwrap();
        for _ in 0..CRASHES {
            let crashed = SimDisk::new(disk.image().crash(&mut random));
            assert_eq!(on(&crashed).is_protected().unwrap(), wanted);
        }
    }
}
