//! Tests of the way back, without a daemon.

use serde_json::Value;

use super::super::catalogue::{Entry, Section};
use super::*;
use crate::manager::catalogue::Key;

fn put(parts: &[&str], value: i32) -> Record {
    let entry = Entry { section: Section::Nvmf, method: "m".to_owned(), params: value.into() };
    Record::Put { key: Key::new(parts), entry }
}

fn pairs(catalogue: &Catalogue) -> Vec<(String, Value)> {
    let mut pairs: Vec<(String, Value)> = catalogue
        .entries()
        .map(|(key, entry)| (format!("{key:?}"), entry.params.clone()))
        .collect();
    pairs.sort_by(|a, b| a.0.cmp(&b.0));
    pairs
}

#[test]
fn undoing_the_records_of_any_change_gives_what_was_before() {
    // A linear congruential generator (Knuth, MMIX) is random enough to choose records.
    let mut state = 33_u64;
    let mut below = move |limit: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let mut catalogue = Catalogue::default();
    let mut without_effect = 0;
    for _ in 0..500 {
        let before = pairs(&catalogue);
        let records: Vec<Record> = (0..=below(3))
            .map(|_| {
                let (outer, inner) = (below(3).to_string(), below(3).to_string());
                let parts = ["s", &outer, "n", &inner];
                let parts = if below(2) == 0 { &parts[..2] } else { &parts[..] };
                match below(3) {
                    0 => Record::Remove { key: Key::new(parts) },
                    _ => put(parts, i32::try_from(below(2)).unwrap()),
                }
            })
            .collect();
        let LookedBack { effects, undo } = look_back(&catalogue, &records);
        records.into_iter().for_each(|record| catalogue.apply(record));
        if effects.is_empty() {
            without_effect += 1;
            assert_eq!(pairs(&catalogue), before);
        }
        let mut back = catalogue.clone();
        undo.into_iter().for_each(|record| back.apply(record));
        assert_eq!(pairs(&back), before, "{effects:?}");
    }
    assert!((1..400).contains(&without_effect), "{without_effect}");
}

#[test]
fn a_change_that_is_too_large_is_kept_without_the_way_back() {
    let history = History::default();
    let entry = Entry {
        section: Section::Bdev,
        method: "m".to_owned(),
        params: "x".repeat(MOST_BYTES).into(),
    };
    let key = Key::new(&["bdev", "large"]);
    let note = |effect: &str, undo| {
        history.note(LookedBack { effects: vec![effect.to_owned()], undo: vec![undo] }, 0)
    };
    note("~ bdev / large", Record::Put { key, entry });
    note("+ x", Record::Remove { key: Key::new(&["x"]) });
    assert_eq!(history.way_back(None).unwrap().0, 2);
    assert_eq!(history.way_back(Some(1)).unwrap_err(), NoWayBack::TooLarge(1));
}
