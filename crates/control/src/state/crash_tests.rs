//! Power is cut after every operation of long random histories; no acknowledged change is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::change_log::ChangeLog;
use super::disk::Disk;
use super::error::StateError;
use super::format::{BLOCK_BYTES, GroupBuilder};
use super::sim::{Image, Random, SimDisk};
use super::{Call, Configuration, Recovered, SubsystemConfig};

/// Histories of a run; `RACELINE_STATE_SEEDS` sets another number, `RACELINE_STATE_SEED` a single seed.
const SEEDS: u64 = 12;
/// Steps of a history.
const STEPS: usize = 60;
/// Different ways to lose power after one operation.
const CRASHES_PER_POINT: usize = 3;

/// The changes made so far, and how many of them were acknowledged.
#[derive(Clone, Default)]
struct History {
    /// Every change since the beginning, in order.
    changes: Vec<Value>,
    /// The number of changes that were acknowledged.
    acknowledged: usize,
    /// Whether room is being prepared now.
    preparing: bool,
    /// Statistics of the crashes that were checked.
    statistics: Statistics,
}

#[derive(Clone, Debug, Default)]
struct Statistics {
    crashes: usize,
    cut_off: usize,
    unacknowledged_kept: usize,
    during_recovery: usize,
    /// Crashes while zeroes were being written, and crashes with zeroes behind the last group.
    preparing: usize,
    zeroes_behind: usize,
}

type Model = BTreeMap<String, String>;

/// The sum of changes.
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

/// The model that a recovered directory holds.
fn model_of(recovered: &Recovered) -> Model {
    let mut model = Model::new();
    let calls = recovered.configuration.subsystems.iter().flat_map(|subsystem| &subsystem.config);
    let params: Vec<Value> = calls.filter_map(|call| call.params.clone()).collect();
    fold(&mut model, &params);
    fold(&mut model, &recovered.changes);
    model
}

fn open(image: Image) -> Result<(SimDisk, ChangeLog, Recovered), StateError> {
    let disk = SimDisk::new(image);
    let (log, recovered) = ChangeLog::open(Arc::new(disk.clone()))?;
    Ok((disk, log, recovered))
}

/// Checks that the recovered state is one that a crash may leave.
fn judge(history: &History, recovered: &Recovered) -> Result<usize, String> {
    let found = usize::try_from(recovered.sequence).unwrap();
    // One group is in flight at a time, and a crash keeps it whole or not at all.
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

/// Cuts power in several ways, also during the recovery that follows.
fn check(history: &mut History, image: &Image, random: &mut Random) -> Result<(), String> {
    for _ in 0..CRASHES_PER_POINT {
        let crashed = image.crash(random);
        history.statistics.preparing += usize::from(history.preparing);
        history.statistics.zeroes_behind += usize::from(ends_in_zeroes(&crashed));
        // Power is also cut during recovery.
        let recovering = SimDisk::new(crashed.clone());
        let images = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&images);
        recovering.observe(move |image| keep.lock().unwrap().push(image.clone()));
        let (_, recovered) =
            ChangeLog::open(Arc::new(recovering.clone())).map_err(|error| error.to_string())?;
        let found = judge(history, &recovered)?;
        history.statistics.crashes += 1;
        history.statistics.cut_off += recovered.notes.len();
        history.statistics.unacknowledged_kept += usize::from(found > history.acknowledged);
        for image in images.lock().unwrap().drain(..) {
            let (_, _, recovered) =
                open(image.crash(random)).map_err(|error| format!("opened twice: {error}"))?;
            judge(history, &recovered).map_err(|error| format!("opened twice: {error}"))?;
            history.statistics.during_recovery += 1;
        }
        // A change that one recovery has shown stays.
        let again = recovering.image().crash(random);
        let (_, _, again) = open(again).map_err(|error| format!("opened again: {error}"))?;
        if again.sequence != recovered.sequence {
            return Err(format!("change {} was shown and is gone", recovered.sequence));
        }
    }
    Ok(())
}

/// Whether there are zeroes behind the last group of the newest segment.
fn ends_in_zeroes(image: &Image) -> bool {
    let name = image.names().into_iter().rfind(|name| name.ends_with(".log"));
    let bytes = name.map(|name| Disk::read(&SimDisk::new(image.clone()), &name).unwrap());
    let bytes = bytes.unwrap_or_default();
    bytes.len() > BLOCK_BYTES && bytes[bytes.len() - BLOCK_BYTES..].iter().all(|byte| *byte == 0)
}

/// Reserves room, and prepares it as the committer does.
fn prepare_room(log: &mut ChangeLog, bytes: u64) -> Result<(), String> {
    log.reserve(bytes).map_err(|error| error.to_string())?;
    log.write_ahead().map_err(|error| error.to_string())
}

/// Runs one history. Gives its statistics, or the first violation.
fn run(seed: u64, steps: usize, prepare: impl Fn(&mut Image)) -> Result<Statistics, String> {
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
    let opened = ChangeLog::open(Arc::new(disk.clone())).map_err(|error| error.to_string())?;
    let (mut log, mut model) = (opened.0, Model::new());
    for _ in 0..steps {
        disk.image().faults.no_room_to_zero = random.one_in(4);
        match random.below(12) {
            0 => {
                // Far ahead, as a large change needs it.
                log.reserve(300 << 10).map_err(|error| error.to_string())?;
            }
            1 => {
                log.rotate(0).map_err(|(_, error)| error.to_string())?;
                let sequence = log.next_sequence() - 1;
                let written = log.checkpointer().write(sequence, configuration(&model));
                written.map_err(|error| error.to_string())?;
            }
            2 => {
                let crashed = disk.image().crash(&mut random);
                let opened = open(crashed).map_err(|error| error.to_string())?;
                let (fresh, recovered) = (opened.0, opened.2);
                log = opened.1;
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
            step => {
                // Some groups find no prepared room.
                if step > 4 {
                    history.lock().unwrap().preparing = true;
                    prepare_room(&mut log, 4096 * 3)?;
                    history.lock().unwrap().preparing = false;
                }
                let group: Vec<Value> =
                    (0..=random.below(4)).map(|_| random_change(&mut random)).collect();
                let mut builder = GroupBuilder::default();
                for change in &group {
                    builder.push(&serde_json::to_vec(change).unwrap(), 1);
                }
                history.lock().unwrap().changes.extend(group.iter().cloned());
                log.append(&builder).map_err(|error| format!("{error:?}"))?;
                fold(&mut model, &group);
                let mut history = history.lock().unwrap();
                history.acknowledged = history.changes.len();
            }
        }
        if let Some(violation) = violation.lock().unwrap().take() {
            return Err(violation);
        }
    }
    let statistics = history.lock().unwrap().statistics.clone();
    Ok(statistics)
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
    let mut total = Statistics::default();
    for seed in seeds.clone() {
        match run(seed, STEPS, |_| {}) {
            Ok(statistics) => {
                total.crashes += statistics.crashes;
                total.cut_off += statistics.cut_off;
                total.unacknowledged_kept += statistics.unacknowledged_kept;
                total.during_recovery += statistics.during_recovery;
                total.preparing += statistics.preparing;
                total.zeroes_behind += statistics.zeroes_behind;
            }
            Err(violation) => panic!("RACELINE_STATE_SEED={seed}: {violation}"),
        }
    }
    println!("{total:?}");
    if seeds == (0..SEEDS) {
        // With fewer crashes the test would mean nothing.
        assert!(total.crashes >= 1000 && total.during_recovery >= 1000, "{total:?}");
        assert!(total.cut_off >= 100 && total.unacknowledged_kept >= 100, "{total:?}");
        assert!(total.preparing >= 1000 && total.zeroes_behind >= 1000, "{total:?}");
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
    let (mut log, _) = ChangeLog::open(Arc::new(disk.clone())).unwrap();
    let (mut random, mut model) = (Random(7), Model::new());
    for round in 0..4 {
        for _ in 0..4 {
            let change = random_change(&mut random);
            let mut builder = GroupBuilder::default();
            builder.push(&serde_json::to_vec(&change).unwrap(), 1);
            log.append(&builder).unwrap();
            fold(&mut model, [&change]);
        }
        if round < 3 {
            log.rotate(0).unwrap();
            let sequence = log.next_sequence() - 1;
            log.checkpointer().write(sequence, configuration(&model)).unwrap();
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
    // Exactly the remedy in the message.
    image.take_away(newest);
    let (_, _, recovered) = open(image).unwrap();
    assert_eq!(recovered.sequence, 16);
    assert_eq!(model_of(&recovered), model);
}

#[test]
fn damage_in_the_log_is_named_and_nothing_is_started() {
    let (image, _) = sample();
    let name = "changes-000000000013.log";
    // In any block except those of the last group.
    let (_, log, _) = open(image.clone()).unwrap();
    let end = usize::try_from(log.segment_bytes()).unwrap();
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
    let error = ChangeLog::open(Arc::new(disk)).err().unwrap().to_string();
    assert!(error.contains("is needed here"), "{error}");
}

#[test]
fn the_log_goes_on_when_a_checkpoint_finds_no_room() {
    let (image, mut model) = sample();
    let (disk, mut log, _) = open(image).unwrap();
    disk.image().faults.no_room = true;
    let (can_go_on, error) = log.rotate(4096).unwrap_err();
    assert!(can_go_on, "{error}");
    let change = json!({ "key": "after", "value": "x" });
    let mut builder = GroupBuilder::default();
    builder.push(&serde_json::to_vec(&change).unwrap(), 1);
    log.append(&builder).unwrap();
    fold(&mut model, [&change]);
    let (_, _, recovered) = open(disk.image().crash(&mut Random(1))).unwrap();
    assert_eq!(model_of(&recovered), model);
}

/// The number of changes for which a disk of this size has room.
fn changes_that_fit(room_bytes: usize, no_reserving: bool, no_zeroes: bool) -> usize {
    let mut image = Image::default();
    image.faults.room_bytes = Some(room_bytes);
    image.faults.no_reserving = no_reserving;
    image.faults.no_zeroes = no_zeroes;
    let (disk, mut log, _) = open(image).unwrap();
    let mut group = GroupBuilder::default();
    group.push(br#"{"key":"k","value":"v"}"#, 1);
    for count in 0.. {
        let refused = log.reserve(BLOCK_BYTES as u64).err();
        log.write_ahead().unwrap();
        // If the disk cannot reserve, it is found to be full only when the group is written.
        if refused.is_some() || log.append(&group).is_err() {
            let (_, _, recovered) = open(disk.image().crash(&mut Random(1))).unwrap();
            assert_eq!(recovered.changes.len(), count);
            return count;
        }
    }
    unreachable!("a disk without an end")
}

#[test]
fn zeroes_take_no_room_from_changes() {
    const MIB: usize = 1 << 20;
    for room_bytes in [MIB / 4, MIB + 20_000, MIB + 70_000, 3 * MIB / 2, 2 * MIB + 300_000] {
        for no_reserving in [false, true] {
            let without = changes_that_fit(room_bytes, no_reserving, true);
            assert!(without > room_bytes / BLOCK_BYTES - 4, "{without} in {room_bytes}");
            let with = changes_that_fit(room_bytes, no_reserving, false);
            assert_eq!(with, without, "room {room_bytes}, no_reserving {no_reserving}");
        }
    }
}

#[test]
fn a_log_without_zeroes_goes_on_with_them() {
    let (image, mut model) = sample();
    let name = "changes-000000000013.log";
    let (disk, mut log, recovered) = open(image).unwrap();
    assert!(recovered.notes.is_empty() && !ends_in_zeroes(&disk.image()));
    prepare_room(&mut log, BLOCK_BYTES as u64).unwrap();
    let size = disk.image().size(name);
    assert!(ends_in_zeroes(&disk.image()));
    let mut group = GroupBuilder::default();
    let change = json!({ "key": "after", "value": "x" });
    group.push(&serde_json::to_vec(&change).unwrap(), 1);
    log.append(&group).unwrap();
    fold(&mut model, [&change]);
    assert_eq!(disk.image().size(name), size, "a group that overwrites");
    let (disk, _, recovered) = open(disk.image().crash(&mut Random(5))).unwrap();
    // Zeroes are not reported as a leftover, and they are gone.
    assert!(recovered.notes.is_empty(), "{:?}", recovered.notes);
    assert_eq!(model_of(&recovered), model);
    assert!(disk.image().size(name) < size);
}
