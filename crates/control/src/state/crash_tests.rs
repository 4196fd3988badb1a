//! Power is cut after every operation of long random histories; nothing acknowledged is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::error::StateError;
use super::format::GroupBuilder;
use super::journal::Journal;
use super::sim::{Image, Random, SimDisk};
use super::{Call, Configuration, Recovered, SubsystemConfig};

/// Histories of a run; `RACELINE_STATE_SEEDS` sets another number, `RACELINE_STATE_SEED` one seed.
const SEEDS: u64 = 12;
/// Steps of a history.
const STEPS: usize = 60;
/// Different ways to lose power after one operation.
const CRASHES_PER_POINT: usize = 3;

/// What has been done, and how much of it was acknowledged.
#[derive(Clone, Default)]
struct History {
    /// Every change since the beginning, in order.
    changes: Vec<Value>,
    /// So many were acknowledged.
    acknowledged: usize,
    /// Crashes that were looked at, and what they showed.
    seen: Seen,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    crashes: usize,
    cut_off: usize,
    unacknowledged_kept: usize,
    during_recovery: usize,
}

type Model = BTreeMap<String, String>;

/// What changes add up to.
fn fold<'a>(model: &mut Model, changes: impl IntoIterator<Item = &'a Value>) {
    for change in changes {
        let key = change["key"].as_str().unwrap().to_owned();
        match change["value"].as_str() {
            Some(value) => {
                model.insert(key, value.to_owned());
            }
            None => {
                model.remove(&key);
            }
        }
    }
}

fn configuration(model: &Model) -> Configuration {
    let call = |(key, value): (&String, &String)| Call {
        method: "put".to_owned(),
        params: Some(json!({ "key": key, "value": value })),
    };
    let config = model.iter().map(call).collect();
    let subsystem = SubsystemConfig { subsystem: "test".into(), config };
    Configuration { subsystems: vec![subsystem], identity: json!({ "entries": model.len() }) }
}

/// The model that a directory was found to hold.
fn model_of(recovered: &Recovered) -> Model {
    let mut model = Model::new();
    let calls = recovered.configuration.subsystems.iter().flat_map(|subsystem| &subsystem.config);
    let params: Vec<Value> = calls.filter_map(|call| call.params.clone()).collect();
    fold(&mut model, &params);
    fold(&mut model, &recovered.changes);
    model
}

fn open(image: Image) -> Result<(SimDisk, Journal, Recovered), StateError> {
    let disk = SimDisk::new(image);
    let (journal, recovered) = Journal::open(Arc::new(disk.clone()))?;
    Ok((disk, journal, recovered))
}

/// Whether what was found is what a crash may leave.
fn judge(history: &History, recovered: &Recovered) -> Result<usize, String> {
    let found = usize::try_from(recovered.sequence).unwrap();
    // One group is in flight at a time, so it is there whole or not at all.
    if found != history.acknowledged && found != history.changes.len() {
        return Err(format!(
            "{found} changes are there, of {} acknowledged and {} made",
            history.acknowledged,
            history.changes.len()
        ));
    }
    let mut expected = Model::new();
    fold(&mut expected, &history.changes[..found]);
    if model_of(recovered) != expected {
        return Err(format!("the state is not that after change {found}"));
    }
    Ok(found)
}

/// Cuts power in several ways, also while the directory is opened after it.
fn check(history: &mut History, image: &Image, random: &mut Random) -> Result<(), String> {
    for _ in 0..CRASHES_PER_POINT {
        let crashed = image.crash(random);
        // While it is opened, too.
        let recovering = SimDisk::new(crashed.clone());
        let images = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&images);
        recovering.observe(move |image| keep.lock().unwrap().push(image.clone()));
        let (_, recovered) =
            Journal::open(Arc::new(recovering.clone())).map_err(|error| error.to_string())?;
        let found = judge(history, &recovered)?;
        history.seen.crashes += 1;
        history.seen.cut_off += recovered.notes.len();
        history.seen.unacknowledged_kept += usize::from(found > history.acknowledged);
        for image in images.lock().unwrap().drain(..) {
            let (_, _, recovered) =
                open(image.crash(random)).map_err(|error| format!("opened twice: {error}"))?;
            judge(history, &recovered).map_err(|error| format!("opened twice: {error}"))?;
            history.seen.during_recovery += 1;
        }
        // What has been shown once stays.
        let again = recovering.image().crash(random);
        let (_, _, again) = open(again).map_err(|error| format!("opened again: {error}"))?;
        if again.sequence != recovered.sequence {
            return Err(format!("change {} was shown and is gone", recovered.sequence));
        }
    }
    Ok(())
}

/// One history. Gives what was seen, or the first violation.
fn run(seed: u64, steps: usize, prepare: impl Fn(&mut Image)) -> Result<Seen, String> {
    let mut random = Random(seed);
    let history = Arc::new(Mutex::new(History::default()));
    let violation = Arc::new(Mutex::new(None));
    let mut image = Image::default();
    prepare(&mut image);
    let watch = |disk: &SimDisk, mut random: Random| {
        let (history, violation) = (Arc::clone(&history), Arc::clone(&violation));
        disk.observe(move |image| {
            let mut violation = violation.lock().unwrap();
            if violation.is_none() {
                *violation = check(&mut history.lock().unwrap(), image, &mut random).err();
            }
        });
    };
    let mut disk = SimDisk::new(image);
    watch(&disk, random.clone());
    let opened = Journal::open(Arc::new(disk.clone())).map_err(|error| error.to_string())?;
    let (mut journal, mut model) = (opened.0, Model::new());
    for _ in 0..steps {
        match random.below(12) {
            0 => {
                journal.reserve(4096 * 3).map_err(|error| error.to_string())?;
            }
            1 => {
                journal.rotate(0).map_err(|(_, error)| error.to_string())?;
                let sequence = journal.next_sequence() - 1;
                let written = journal.checkpointer().write(sequence, configuration(&model));
                written.map_err(|error| error.to_string())?;
            }
            2 => {
                let crashed = disk.image().crash(&mut random);
                let opened = open(crashed).map_err(|error| error.to_string())?;
                let (fresh, recovered) = (opened.0, opened.2);
                journal = opened.1;
                disk = fresh;
                let mut history = history.lock().unwrap();
                let found = judge(&history, &recovered)?;
                history.changes.truncate(found);
                history.acknowledged = found;
                model = model_of(&recovered);
                drop(history);
                prepare(&mut disk.image());
                watch(&disk, random.clone());
            }
            _ => {
                let group: Vec<Value> =
                    (0..=random.below(4)).map(|_| random_change(&mut random)).collect();
                let mut builder = GroupBuilder::default();
                for change in &group {
                    builder.push(&serde_json::to_vec(change).unwrap(), 1);
                }
                history.lock().unwrap().changes.extend(group.iter().cloned());
                journal.append(&builder).map_err(|error| format!("{error:?}"))?;
                fold(&mut model, &group);
                let mut history = history.lock().unwrap();
                history.acknowledged = history.changes.len();
            }
        }
        if let Some(violation) = violation.lock().unwrap().take() {
            return Err(violation);
        }
    }
    let seen = history.lock().unwrap().seen.clone();
    Ok(seen)
}

fn random_change(random: &mut Random) -> Value {
    let key = format!("key{}", random.below(9));
    if random.one_in(4) {
        return json!({ "key": key });
    }
    let length = if random.one_in(5) { random.below(9000) } else { random.below(90) };
    let letter = char::from(b'a' + u8::try_from(random.below(26)).unwrap());
    let value = String::from(letter).repeat(length) + &random.next().to_string();
    json!({ "key": key, "value": value })
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn nothing_acknowledged_is_lost_wherever_power_is_cut() {
    let seeds = match variable("RACELINE_STATE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("RACELINE_STATE_SEEDS").unwrap_or(SEEDS),
    };
    let mut total = Seen::default();
    for seed in seeds.clone() {
        match run(seed, STEPS, |_| {}) {
            Ok(seen) => {
                total.crashes += seen.crashes;
                total.cut_off += seen.cut_off;
                total.unacknowledged_kept += seen.unacknowledged_kept;
                total.during_recovery += seen.during_recovery;
            }
            Err(violation) => panic!("RACELINE_STATE_SEED={seed}: {violation}"),
        }
    }
    println!("{total:?}");
    if seeds == (0..SEEDS) {
        // Otherwise the test would have looked at too little to mean anything.
        assert!(total.crashes >= 1000 && total.during_recovery >= 1000, "{total:?}");
        assert!(total.cut_off >= 100 && total.unacknowledged_kept >= 100, "{total:?}");
    }
}

#[test]
fn a_disk_that_only_says_that_it_syncs_is_found_out() {
    let found =
        (0..4).any(|seed| run(seed, STEPS, |image| image.faults.lying_sync = true).is_err());
    assert!(found, "the checks above would not notice if syncs were missing");
}

/// A directory with two configurations and several groups after each.
fn sample() -> (Image, Model) {
    let disk = SimDisk::default();
    let (mut journal, _) = Journal::open(Arc::new(disk.clone())).unwrap();
    let (mut random, mut model) = (Random(7), Model::new());
    for round in 0..4 {
        for _ in 0..4 {
            let change = random_change(&mut random);
            let mut builder = GroupBuilder::default();
            builder.push(&serde_json::to_vec(&change).unwrap(), 1);
            journal.append(&builder).unwrap();
            fold(&mut model, [&change]);
        }
        if round < 3 {
            journal.rotate(0).unwrap();
            let sequence = journal.next_sequence() - 1;
            journal.checkpointer().write(sequence, configuration(&model)).unwrap();
        }
    }
    let image = disk.image().clone();
    (image, model)
}

#[test]
fn the_newest_two_configurations_and_their_log_are_kept() {
    let (image, model) = sample();
    let names = image.names();
    let expected = [
        "changes-000000000009.log",
        "changes-000000000013.log",
        "config-000000000008.json",
        "config-000000000012.json",
    ];
    assert_eq!(names, expected);
    let (_, _, recovered) = open(image).unwrap();
    assert_eq!(recovered.sequence, 16);
    assert!(recovered.configuration.identity["entries"].is_u64());
    assert_eq!(model_of(&recovered), model);
}

#[test]
fn a_damaged_configuration_is_named_and_the_previous_one_takes_its_place() {
    let (mut image, model) = sample();
    let newest = "config-000000000012.json";
    image.flip(newest, image.size(newest) / 2);
    let error = open(image.clone()).err().unwrap().to_string();
    assert!(error.contains("/simulated/config-000000000012.json is damaged at byte"), "{error}");
    assert!(error.contains("config-000000000008.json and the log after it hold"), "{error}");
    // Just what the message says.
    image.take_away(newest);
    let (_, _, recovered) = open(image).unwrap();
    assert_eq!(recovered.sequence, 16);
    assert_eq!(model_of(&recovered), model);
}

#[test]
fn damage_in_the_log_is_named_and_nothing_is_started() {
    let (image, _) = sample();
    let name = "changes-000000000013.log";
    // Everywhere but in the last group.
    let (_, journal, _) = open(image.clone()).unwrap();
    let end = usize::try_from(journal.segment_bytes()).unwrap();
    for offset in (0..end - 3 * 4096).step_by(131) {
        let mut image = image.clone();
        image.flip(name, offset);
        let error = open(image).err().unwrap();
        let StateError::Damaged { file, offset: named, .. } = &error else { panic!("{error}") };
        assert!(file.ends_with(name) && *named <= offset as u64, "{error}");
        assert!(error.to_string().contains("nothing was started"), "{error}");
    }
}

#[test]
fn missing_files_are_named() {
    let (image, _) = sample();
    let mut without_log = image.clone();
    without_log.take_away("changes-000000000009.log");
    without_log.take_away("changes-000000000013.log");
    let error = open(without_log).err().unwrap().to_string();
    assert!(error.contains("the log that begins with change 13 or before is missing"), "{error}");
    let mut without_document = image;
    without_document.take_away("config-000000000008.json");
    without_document.take_away("config-000000000012.json");
    let error = open(without_document).err().unwrap().to_string();
    assert!(error.contains("no config-N.json"), "{error}");
}

#[test]
fn files_of_two_states_are_not_mixed() {
    let (image, _) = sample();
    let (other, _) = sample();
    let name = "changes-000000000013.log";
    let bytes = super::Disk::read(&SimDisk::new(other), name).unwrap();
    let disk = SimDisk::new(image);
    super::Disk::create(&disk, name).unwrap().write_at(0, &bytes).unwrap();
    let error = Journal::open(Arc::new(disk)).err().unwrap().to_string();
    assert!(error.contains("is needed here"), "{error}");
}

#[test]
fn the_log_goes_on_when_a_checkpoint_finds_no_room() {
    let (image, mut model) = sample();
    let (disk, mut journal, _) = open(image).unwrap();
    disk.image().faults.no_room = true;
    let (can_go_on, error) = journal.rotate(4096).unwrap_err();
    assert!(can_go_on, "{error}");
    let change = json!({ "key": "after", "value": "x" });
    let mut builder = GroupBuilder::default();
    builder.push(&serde_json::to_vec(&change).unwrap(), 1);
    journal.append(&builder).unwrap();
    fold(&mut model, [&change]);
    let (_, _, recovered) = open(disk.image().crash(&mut Random(1))).unwrap();
    assert_eq!(model_of(&recovered), model);
}
