//! Applying and reverting on machines of every kind, with a failure or a death at every change.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use raceline_adq::apply::apply;
use raceline_adq::error::{Error, Result};
use raceline_adq::facts::{Facts, Sysctl};
use raceline_adq::journal::{Disk, Journal, Store};
use raceline_adq::judge::judge;
use raceline_adq::plan::{Plan, Profile, Request, Role, plan};
use raceline_adq::revert::{Fate, revert};
use raceline_adq::show::{Condition, show};
use support::{Accident, Fake, facts};

const DEVICES: [&str; 7] =
    ["ice-out-of-tree", "ice-in-tree", "mlx5", "gve", "ena", "virtio", "veth"];

fn plan_for(facts: &Facts) -> Plan {
    let listeners = ["192.0.2.1:4420", "[2001:db8::1]:4420"].map(|text| text.parse().unwrap());
    let request = Request {
        listeners: listeners.to_vec(),
        role: Role::Target,
        queues: None,
        profile: Profile::Adq,
    };
    plan(facts, &request).unwrap()
}

/// What must be as before: everything except the numbers of interrupts, which the driver chooses anew.
fn comparable(facts: &Facts) -> Facts {
    let mut facts = facts.clone();
    facts.interrupts.iter_mut().for_each(|irq| irq.number = 0);
    facts
}

fn run(fake: &mut Fake, plan: &Plan, store: &mut dyn Store) -> Result<Journal> {
    let facts = raceline_adq::facts::read::read(fake, "eth0").unwrap();
    apply(fake, &facts, plan, store, None, &mut |_, _| true)
}

/// A folder in memory where there is one: journals are written through to the disk, thousands of times.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

#[test]
fn every_device_is_given_back_exactly() {
    for device in DEVICES {
        let (folder, before) = (folder(), facts(device));
        let mut fake = Fake::new(before.clone());
        let plan = plan_for(&before);
        let mut store = Disk::new(folder.path(), "eth0");
        let journal = run(&mut fake, &plan, &mut store).unwrap();
        assert!(journal.complete, "{device}");
        assert_ne!(comparable(&fake.facts), comparable(&before), "{device}: nothing was set");
        let shown = show(&fake, &journal).unwrap();
        assert!(shown.is_in_place(), "{device}: {shown:#?}");
        let second = run(&mut fake, &plan, &mut store).unwrap_err();
        assert!(second.to_string().contains("is applied already"), "{second}");
        let reverted = revert(&mut fake, &mut store, false).unwrap().unwrap();
        assert_eq!(reverted.failures().count(), 0, "{device}: {reverted:#?}");
        assert_eq!(comparable(&fake.facts), comparable(&before), "{device}");
        assert!(
            revert(&mut fake, &mut store, false).unwrap().is_none(),
            "{device}: nothing is left"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

/// The number of changes of a recipe that goes well.
fn changes(before: &Facts) -> usize {
    let (folder, mut fake) = (folder(), Fake::new(before.clone()));
    run(&mut fake, &plan_for(before), &mut Disk::new(folder.path(), "eth0")).unwrap();
    fake.changes
}

#[test]
fn a_failure_at_any_change_gives_everything_back() {
    for device in DEVICES {
        let before = facts(device);
        let plan = plan_for(&before);
        for at in 0..changes(&before) {
            for accident in [Accident::Refuse(at), Accident::Ignore(at)] {
                let (folder, mut fake) = (folder(), Fake::new(before.clone()));
                fake.accident = Some(accident);
                let mut store = Disk::new(folder.path(), "eth0");
                let result = run(&mut fake, &plan, &mut store);
                let name = format!("{device}, {accident:?}");
                // A lost write of a value that is there already does no harm.
                if result.is_ok() && matches!(accident, Accident::Ignore(_)) {
                    revert(&mut fake, &mut store, false).unwrap();
                } else {
                    let error = result.unwrap_err();
                    assert!(matches!(error, Error::RolledBack { .. }), "{name}: {error}");
                }
                assert_eq!(comparable(&fake.facts), comparable(&before), "{name}");
                assert!(store.load().unwrap().is_none(), "{name}: the journal is still there");
            }
        }
    }
}

#[test]
fn a_death_at_any_change_is_reverted_later() {
    for device in DEVICES {
        let before = facts(device);
        let plan = plan_for(&before);
        for at in 0..changes(&before) {
            for accident in [Accident::DieBefore(at), Accident::DieAfter(at)] {
                let (folder, mut fake) = (folder(), Fake::new(before.clone()));
                fake.accident = Some(accident);
                let mut store = Disk::new(folder.path(), "eth0");
                let died = catch_unwind(AssertUnwindSafe(|| run(&mut fake, &plan, &mut store)));
                assert!(died.is_err(), "{device}, {accident:?}: the program lives");
                let journal = store.load().unwrap().unwrap();
                assert!(!journal.complete);
                let shown = show(&fake, &journal).unwrap();
                assert!(!shown.is_in_place(), "{device}, {accident:?}: {shown:#?}");
                let again = run(&mut fake, &plan, &mut store).unwrap_err();
                assert!(again.to_string().contains("was broken off"), "{again}");
                fake.accident = None;
                let reverted = revert(&mut fake, &mut store, false).unwrap().unwrap();
                assert_eq!(reverted.failures().count(), 0, "{device}, {accident:?}: {reverted:#?}");
                assert_eq!(comparable(&fake.facts), comparable(&before), "{device}, {accident:?}");
            }
        }
    }
}

/// A revert that dies is taken up by the next one.
#[test]
fn a_death_during_the_revert_is_no_harm() {
    for device in ["ice-out-of-tree", "mlx5", "veth"] {
        let before = facts(device);
        let plan = plan_for(&before);
        for at in 0..200 {
            let (folder, mut fake) = (folder(), Fake::new(before.clone()));
            let mut store = Disk::new(folder.path(), "eth0");
            run(&mut fake, &plan, &mut store).unwrap();
            fake.accident = Some(Accident::DieAfter(fake.changes + at));
            let died = catch_unwind(AssertUnwindSafe(|| revert(&mut fake, &mut store, false)));
            fake.accident = None;
            revert(&mut fake, &mut store, false).unwrap();
            assert_eq!(comparable(&fake.facts), comparable(&before), "{device}, {at}");
            if died.is_ok() {
                assert!(at > 5, "{device}: the revert has {at} changes");
                break;
            }
        }
    }
}

#[test]
fn what_others_changed_is_left_unless_forced() {
    for force in [false, true] {
        let (folder, before) = (folder(), facts("mlx5"));
        let mut fake = Fake::new(before.clone());
        let mut store = Disk::new(folder.path(), "eth0");
        let journal = run(&mut fake, &plan_for(&before), &mut store).unwrap();
        fake.facts.coalescing.as_mut().unwrap().rx_usecs = Some(20);
        let key = "net.core.rmem_max";
        fake.facts
            .sysctls
            .insert(key.to_owned(), Sysctl { value: "212992".into(), writable: true });
        let shown = show(&fake, &journal).unwrap();
        let condition =
            |name: &str| shown.settings.iter().find(|line| line.setting == name).unwrap().condition;
        assert_eq!(condition("receive moderation"), Condition::Changed);
        assert_eq!((condition(key), shown.is_in_place()), (Condition::Lost, false));
        let reverted = revert(&mut fake, &mut store, force).unwrap().unwrap();
        let fate = reverted
            .settings
            .iter()
            .find(|(setting, _)| setting.to_string() == "receive moderation");
        let usecs = fake.facts.coalescing.unwrap().rx_usecs;
        if force {
            assert_eq!(comparable(&fake.facts), comparable(&before));
        } else {
            let (before, set) = ("adaptive-rx on rx-usecs 8", "adaptive-rx off rx-usecs 0");
            let now = "adaptive-rx off rx-usecs 20";
            let left = Fate::Left { before: before.into(), set: set.into(), now: now.into() };
            assert_eq!((&fate.unwrap().1, usecs), (&left, Some(20)));
        }
    }
}

/// A reset of the device takes traffic classes and what hangs on them.
#[test]
fn a_device_that_lost_its_classes_is_put_in_order() {
    let (folder, before) = (folder(), facts("ice-out-of-tree"));
    let mut fake = Fake::new(before.clone());
    let mut store = Disk::new(folder.path(), "eth0");
    let journal = run(&mut fake, &plan_for(&before), &mut store).unwrap();
    fake.facts.qdiscs = before.qdiscs.clone();
    fake.facts.filters.clear();
    fake.facts.xps_rxqs.iter_mut().for_each(|map| *map = "0".to_owned());
    fake.facts.interrupts.iter_mut().for_each(|irq| irq.affinity = "3".to_owned());
    let shown = show(&fake, &journal).unwrap();
    let lost = shown.settings.iter().filter(|line| line.condition == Condition::Lost).count();
    assert!(lost >= 5, "{shown:#?}");
    let reverted = revert(&mut fake, &mut store, false).unwrap().unwrap();
    assert_eq!(reverted.failures().count(), 0, "{reverted:#?}");
    assert_eq!(comparable(&fake.facts), comparable(&before));
}

#[test]
fn an_interface_is_found_under_its_new_name_and_missed_when_gone() {
    let before = facts("ice-in-tree");
    let (folder, mut fake) = (folder(), Fake::new(before.clone()));
    let mut store = Disk::new(folder.path(), "eth0");
    let journal = run(&mut fake, &plan_for(&before), &mut store).unwrap();
    fake.facts.interface = "lan0".to_owned();
    // Another interface has the old name now, and is left alone.
    fake.others.push(("eth0".to_owned(), 9));
    assert_eq!(show(&fake, &journal).unwrap().interface.as_deref(), Some("lan0"));
    let reverted = revert(&mut fake, &mut store, false).unwrap().unwrap();
    assert_eq!((reverted.interface.as_deref(), reverted.failures().count()), (Some("lan0"), 0));
    fake.facts.interface = "eth0".to_owned();
    assert_eq!(comparable(&fake.facts), comparable(&before));

    fake.others.truncate(1);
    run(&mut fake, &plan_for(&before), &mut store).unwrap();
    fake.exists = false;
    let reverted = revert(&mut fake, &mut store, false).unwrap().unwrap();
    assert_eq!((&reverted.interface, reverted.failures().count()), (&None, 0));
    assert!(reverted.settings.iter().any(|(_, fate)| matches!(fate, Fate::Gone(_))));
    assert_eq!(fake.facts.sysctls, before.sysctls);
    assert_eq!(fake.facts.services, before.services);
}

/// An interface that goes or gets a new name during `apply`: what is left of it is given back.
#[test]
fn an_interface_that_goes_in_the_middle_is_dealt_with() {
    for device in ["ice-out-of-tree", "mlx5", "veth"] {
        let before = facts(device);
        let plan = plan_for(&before);
        for at in 0..changes(&before) {
            for accident in [Accident::Vanish(at), Accident::Rename(at)] {
                let (folder, mut fake) = (folder(), Fake::new(before.clone()));
                fake.accident = Some(accident);
                let mut store = Disk::new(folder.path(), "eth0");
                let name = format!("{device}, {accident:?}");
                let error = run(&mut fake, &plan, &mut store).unwrap_err();
                assert!(matches!(error, Error::RolledBack { .. }), "{name}: {error}");
                assert!(store.load().unwrap().is_none(), "{name}: the journal is still there");
                assert_eq!(fake.facts.sysctls, before.sysctls, "{name}");
                assert_eq!(fake.facts.services, before.services, "{name}");
                if accident == Accident::Rename(at) {
                    fake.facts.interface = "eth0".to_owned();
                    assert_eq!(comparable(&fake.facts), comparable(&before), "{name}");
                }
            }
        }
    }
}

/// Two interfaces share sysctls: these go back when the last recipe goes.
#[test]
fn what_two_recipes_share_stays_until_the_last_revert() {
    let (folder, before) = (folder(), facts("mlx5"));
    let mut fake = Fake::new(before.clone());
    let mut first = Disk::new(folder.path(), "eth0");
    run(&mut fake, &plan_for(&before), &mut first).unwrap();
    // The same machine with another device.
    let device = facts("virtio");
    let mut other = Fake::new(Facts {
        sysctls: fake.facts.sysctls.clone(),
        services: fake.facts.services.clone(),
        ..device.clone()
    });
    let mut second = Disk::new(folder.path(), "eth1");
    let plan = plan_for(&other.facts);
    run(&mut other, &plan, &mut second).unwrap();
    let reverted = revert(&mut fake, &mut first, false).unwrap().unwrap();
    let handed = Fate::HandedOver { interface: "eth0".to_owned() };
    assert!(reverted.settings.iter().any(|(_, fate)| *fate == handed), "{reverted:#?}");
    assert_eq!(fake.facts.services["irqbalance"], "inactive");
    revert(&mut other, &mut second, false).unwrap();
    assert_eq!(other.facts.services, before.services);
    assert_eq!(other.facts.sysctls, before.sysctls);
    assert_eq!(comparable(&other.facts).xps_rxqs, device.xps_rxqs);
}

/// What is wrong, the SSH connection, and what the refusal must say.
type Spoil<'a> = (&'a dyn Fn(&mut Fake), Option<&'a str>, &'a str);

/// What is refused changes nothing.
#[test]
fn refusals_say_why_and_change_nothing() {
    let refuse = |device: &str, spoil: &dyn Fn(&mut Fake), ssh: Option<&str>| {
        let (folder, mut fake) = (folder(), Fake::new(facts(device)));
        spoil(&mut fake);
        let facts = raceline_adq::facts::read::read(&fake, "eth0").unwrap();
        let plan = plan_for(&facts);
        let mut store = Disk::new(folder.path(), "eth0");
        let error = apply(&mut fake, &facts, &plan, &mut store, ssh, &mut |_, _| true).unwrap_err();
        assert_eq!(fake.changes, 0, "{error}");
        assert!(store.load().unwrap().is_none(), "{error}");
        error.to_string()
    };
    let ice = "ice-out-of-tree";
    let spoils: [Spoil<'_>; 9] = [
        (&|fake| fake.user = (1000, "0"), None, "needs root: run it with sudo"),
        (&|fake| fake.user.1 = "00000000a80425fb", None, "root without CAP_NET_ADMIN"),
        (&|fake| fake.facts.made_of = Some("bond".into()), None, "eth0 is a bond"),
        (&|fake| fake.facts.master = Some("bond0".into()), None, "eth0 is part of bond0"),
        (&|fake| fake.facts.qdiscs[0].handle = "1:".into(), None, "root queueing discipline mq"),
        (&|_| (), Some("198.51.100.7 50000 192.0.2.1 4420"), "port of this SSH connection"),
        (
            &|fake| fake.facts.missing_programs = vec!["tc".into()],
            None,
            "the program tc is not installed: install the package iproute2",
        ),
        (
            &|fake| fake.facts.features.get_mut("l2-fwd-offload").unwrap().on = true,
            None,
            "l2-fwd-offload on",
        ),
        (
            &|fake| {
                fake.facts.qdiscs.push(raceline_adq::facts::Qdisc {
                    kind: "ingress".into(),
                    handle: "ffff:".into(),
                    ..Default::default()
                });
            },
            None,
            "excludes clsact",
        ),
    ];
    for (spoil, ssh, wanted) in spoils {
        let text = refuse(ice, spoil, ssh);
        assert!(text.contains(wanted), "{text}");
    }
}

#[test]
fn an_interruption_gives_everything_back() {
    let (folder, before) = (folder(), facts("mlx5"));
    let mut fake = Fake::new(before.clone());
    let mut store = Disk::new(folder.path(), "eth0");
    let plan = plan_for(&before);
    let mut left = 6;
    let error = apply(&mut fake, &before, &plan, &mut store, None, &mut |_, _| {
        left -= 1;
        left > 0
    });
    assert!(error.unwrap_err().to_string().contains("it was interrupted"));
    assert_eq!(comparable(&fake.facts), comparable(&before));
}

/// A store on a disk that is full after some saves.
struct Full {
    disk: Disk,
    saves: usize,
}

impl Full {
    fn take(&mut self) -> Result<()> {
        let path = self.disk.path().to_owned();
        let full = || Error::Journal { path, reason: "No space left on device".to_owned() };
        self.saves = self.saves.checked_sub(1).ok_or_else(full)?;
        Ok(())
    }
}

impl Store for Full {
    fn path(&self) -> &Path {
        self.disk.path()
    }
    fn create(&mut self, journal: &Journal) -> Result<()> {
        self.take()?;
        self.disk.create(journal)
    }
    fn save(&mut self, journal: &Journal) -> Result<()> {
        self.take()?;
        self.disk.save(journal)
    }
    fn load(&self) -> Result<Option<Journal>> {
        self.disk.load()
    }
    fn remove(&mut self) -> Result<()> {
        self.disk.remove()
    }
    fn others(&self) -> Vec<(Journal, Box<dyn Store>)> {
        self.disk.others()
    }
}

#[test]
fn a_full_disk_changes_nothing_or_gives_everything_back() {
    let before = facts("ice-in-tree");
    let plan = plan_for(&before);
    for saves in 0.. {
        let (folder, mut fake) = (folder(), Fake::new(before.clone()));
        let mut store = Full { disk: Disk::new(folder.path(), "eth0"), saves };
        let result = run(&mut fake, &plan, &mut store);
        if result.is_ok() {
            assert!(saves > 20, "{saves}");
            break;
        }
        assert!(result.unwrap_err().to_string().contains("No space left"), "{saves}");
        assert!(saves > 0 || fake.changes == 0);
        assert_eq!(comparable(&fake.facts), comparable(&before), "{saves}");
        assert!(store.load().unwrap().is_none(), "{saves}");
    }
}

#[test]
fn broken_journals_are_named() {
    let folder = folder();
    let store = Disk::new(folder.path(), "eth0");
    std::fs::write(store.path(), "{\"version\": 1").unwrap();
    let error = store.load().unwrap_err().to_string();
    assert!(error.contains("eth0.json") && error.contains("is not a journal"), "{error}");
    let lock = store.lock(Duration::ZERO).unwrap();
    let wait = Duration::from_millis(30);
    let error = Disk::new(folder.path(), "eth1").lock(wait).unwrap_err().to_string();
    assert!(error.contains("another raceline adq is at work"), "{error}");
    drop(lock);
    store.lock(Duration::ZERO).unwrap();
}

#[test]
fn another_network_namespace_is_refused() {
    let (folder, before) = (folder(), facts("veth"));
    let mut fake = Fake::new(before.clone());
    let mut store = Disk::new(folder.path(), "eth0");
    run(&mut fake, &plan_for(&before), &mut store).unwrap();
    fake.facts.network_namespace = "net:[1]".to_owned();
    let error = revert(&mut fake, &mut store, false).unwrap_err().to_string();
    assert!(error.contains("was applied in the network namespace net:[4026532177]"), "{error}");
    revert(&mut fake, &mut store, true).unwrap();
}

/// What a target with a profile says about the devices of its listeners.
#[test]
fn listeners_are_judged_by_their_devices() {
    let listeners = ["192.0.2.1:4420", "0.0.0.0:4420", "127.0.0.1:4420", "192.0.2.9:4420"]
        .map(|text| text.parse().unwrap());
    let mut fake = Fake::new(facts("mlx5"));
    let lines = judge(&fake, &listeners).unwrap();
    assert!(lines[0].starts_with("0.0.0.0:4420 stands for all addresses"), "{lines:#?}");
    assert!(lines[1].contains("the loopback, which has no receive queues"), "{lines:#?}");
    assert_eq!(lines[2], "no interface here has the address of 192.0.2.9:4420");
    assert_eq!(
        lines[3],
        "eth0 (mlx5_core) has no traffic classes: a table of queues and rules take their place"
    );
    let wanted = "eth0 (mlx5_core) is not set up: `raceline adq apply eth0 --listener 192.0.2.1:4420` makes ";
    assert!(lines[4].starts_with(wanted), "{lines:#?}");
    let request = Request { listeners: vec![listeners[0]], ..Request::default() };
    let plan = plan(&fake.facts.clone(), &request).unwrap();
    let folder = folder();
    run(&mut fake, &plan, &mut Disk::new(folder.path(), "eth0")).unwrap();
    let lines = judge(&fake, &listeners[..1]).unwrap();
    assert_eq!(lines.len(), 1, "{lines:#?}");
}
