//! The checker: every block is a register, and every value that was read must have an explanation.
//!
//! Each nonzero value is written once, so a history of a register is linearizable exactly if its
//! values can be put in an order (Gibbons and Korach, Testing shared memories, 1997). Two moments are
//! known of a value: `first`, the earliest time by which it must have been there
//! (an operation that shows it has ended), and `last`, the latest time at which it must have been
//! still there or yet to come (an operation that shows it has begun). A value must come before
//! another if its `first` is before the other's `last`; the history is wrong if two values must
//! each come before the other.
//!
//! Zeroes are written many times, so each write and read of zeroes is a value of its own.

use std::collections::BTreeMap;

use crate::content::{Place, WriteId};

/// A moment of a run: operations begin and end at different moments.
pub type Moment = u64;

/// Not yet, or at an unknown time.
const NEVER: Moment = Moment::MAX;
/// Values of one block from which the model forgets those that can no longer be read.
const MAX_VALUES: usize = 48;

/// The fate of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has happened.
    Done,
    /// It has not happened and never will.
    Refused,
    /// It may have happened, but it cannot happen any more.
    Maybe,
    /// It may have happened, and it may still happen, until [`Model::settle`].
    Unknown,
}

/// The contents of all namespaces as the hosts know them.
#[derive(Debug)]
pub struct Model {
    namespaces: Vec<Vec<Register>>,
    now: Moment,
    /// Which write replaced the value of another by a fused Compare and Write.
    replaced: BTreeMap<(Place, WriteId), WriteId>,
}

#[derive(Debug)]
struct Register {
    values: Vec<Value>,
    zeroings: Vec<Value>,
    /// Reads of zeroes.
    zero_reads: Vec<(Moment, Moment)>,
}

/// A write to one block.
#[derive(Clone, Copy, Debug)]
struct Value {
    write: WriteId,
    begun: Moment,
    /// It cannot happen later than this.
    latest: Moment,
    /// It has happened for certain.
    happened: bool,
    refused: bool,
    first: Moment,
    last: Moment,
    /// The value that a fused Compare and Write replaces.
    replaces: Option<WriteId>,
}

impl Value {
    fn new(write: WriteId, begun: Moment) -> Self {
        Self {
            write,
            begun,
            latest: NEVER,
            happened: false,
            refused: false,
            first: NEVER,
            last: begun,
            replaces: None,
        }
    }

    /// Whether the writes must each come before the other.
    fn contradicts(&self, (first, last): (Moment, Moment)) -> bool {
        self.happened && self.first < last && first < self.last
    }
}

impl Model {
    /// Zeroed namespaces with these numbers of blocks.
    #[must_use]
    pub fn new(block_counts: &[u64]) -> Self {
        let register = || Register {
            values: Vec::new(),
            zeroings: vec![Value {
                latest: 0,
                first: 0,
                happened: true,
                ..Value::new(WriteId::ZEROES, 0)
            }],
            zero_reads: Vec::new(),
        };
        let namespace = |&count: &u64| (0..count).map(|_| register()).collect();
        let namespaces = block_counts.iter().map(namespace).collect();
        Self { namespaces, now: 0, replaced: BTreeMap::new() }
    }

    /// The next moment.
    pub fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    fn register(&mut self, place: Place) -> Result<&mut Register, String> {
        let namespace = self.namespaces.get_mut(place.namespace);
        let index = usize::try_from(place.lba).unwrap_or(usize::MAX);
        namespace
            .and_then(|blocks| blocks.get_mut(index))
            .ok_or_else(|| format!("{place} is outside of the model"))
    }

    /// A write has been submitted. `replaces`: by a fused Compare and Write, this value.
    ///
    /// # Errors
    /// When the place does not exist.
    pub fn begin_write(
        &mut self,
        place: Place,
        write: WriteId,
        begun: Moment,
        replaces: Option<WriteId>,
    ) -> Result<(), String> {
        let register = self.register(place)?;
        let value = Value { replaces, ..Value::new(write, begun) };
        register.list(write).push(value);
        Ok(())
    }

    /// Sets the fate of the write that began at `begun`.
    ///
    /// # Errors
    /// The contradiction, if there is one.
    pub fn end_write(
        &mut self,
        place: Place,
        write: WriteId,
        begun: Moment,
        fate: Fate,
    ) -> Result<(), String> {
        let now = self.now;
        let register = self.register(place)?;
        let list = register.list(write);
        let Some(index) = list.iter().position(|v| v.write == write && v.begun == begun) else {
            return Err(format!("{place}: {write} ends without having begun"));
        };
        let value = &mut list[index];
        match fate {
            Fate::Unknown => return Ok(()),
            Fate::Refused if value.happened => {
                return Err(format!("{place}: {write} was refused, but it has been read"));
            }
            Fate::Refused if write == WriteId::ZEROES => {
                list.swap_remove(index);
                return Ok(());
            }
            Fate::Refused => value.refused = true,
            Fate::Maybe => {}
            Fate::Done => {
                value.happened = true;
                value.first = value.first.min(now);
            }
        }
        let value = &mut list[index];
        value.latest = value.latest.min(now);
        let value = *value;
        if fate != Fate::Done {
            return Ok(());
        }
        register.check(place, value)?;
        self.check_replaced(place, value)
    }

    /// A write whose fate was unknown cannot happen any more.
    ///
    /// # Errors
    /// When the place does not exist.
    pub fn settle(&mut self, place: Place, write: WriteId, begun: Moment) -> Result<(), String> {
        self.end_write(place, write, begun, Fate::Maybe)
    }

    /// A read, or an equal Compare, that began at `begun` and ends now, has shown this value.
    ///
    /// When that value could not be there; says why.
    pub fn saw(&mut self, place: Place, write: WriteId, begun: Moment) -> Result<(), String> {
        let now = self.now;
        let register = self.register(place)?;
        if write == WriteId::ZEROES {
            return register.saw_zeroes(place, begun, now);
        }
        let Some(value) = register.values.iter_mut().find(|value| value.write == write) else {
            return Err(format!("{place} shows {write}, which is long gone or was never here"));
        };
        if value.refused {
            return Err(format!("{place} shows {write}, which was refused"));
        }
        value.happened = true;
        value.first = value.first.min(now).min(value.latest);
        value.last = value.last.max(begun);
        let value = *value;
        register.check(place, value)?;
        self.check_replaced(place, value)
    }

    /// A value can have been replaced by one fused Compare and Write only.
    fn check_replaced(&mut self, place: Place, value: Value) -> Result<(), String> {
        let Some(old) = value.replaces.filter(|&old| old != WriteId::ZEROES) else { return Ok(()) };
        let winner = *self.replaced.entry((place, old)).or_insert(value.write);
        if winner == value.write {
            return Ok(());
        }
        let loser = value.write;
        Err(format!("{place}: {winner} and {loser} have both compared and replaced {old}"))
    }

    /// Whether a command from `begun` to now could have found this value.
    ///
    /// # Errors
    /// When the place does not exist.
    pub fn could_be(
        &mut self,
        place: Place,
        write: WriteId,
        begun: Moment,
    ) -> Result<bool, String> {
        Ok(self.candidates(place, begun)?.contains(&write))
    }

    /// All values that a command from `begun` to now could have found.
    ///
    /// # Errors
    /// When the place does not exist.
    pub fn candidates(&mut self, place: Place, begun: Moment) -> Result<Vec<WriteId>, String> {
        let now = self.now;
        let register = self.register(place)?;
        let all = register.values.iter().chain(&register.zeroings);
        let possible = all.filter(|value| {
            !value.refused && value.begun <= now && !register.superseded(value.latest, begun)
        });
        let mut found: Vec<WriteId> = possible.map(|value| value.write).collect();
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Forgets the values that no command that begins at `oldest` or later can find.
    ///
    /// # Errors
    /// When the place does not exist.
    pub fn forget(&mut self, place: Place, oldest: Moment) -> Result<(), String> {
        let register = self.register(place)?;
        if register.values.len() + register.zeroings.len() > MAX_VALUES {
            register.forget(oldest);
        }
        Ok(())
    }
}

impl Register {
    fn list(&mut self, write: WriteId) -> &mut Vec<Value> {
        if write == WriteId::ZEROES { &mut self.zeroings } else { &mut self.values }
    }

    /// Whether a write certainly happened after `after` and before `before`.
    fn superseded(&self, after: Moment, before: Moment) -> bool {
        let mut all = self.values.iter().chain(&self.zeroings);
        all.any(|value| value.happened && value.begun > after && value.first < before)
    }

    fn saw_zeroes(&mut self, place: Place, begun: Moment, now: Moment) -> Result<(), String> {
        let possible = |value: &&Value| value.begun <= now && !self.superseded(value.latest, begun);
        if !self.zeroings.iter().any(|value| possible(&value)) {
            return Err(format!("{place} shows zeroes, which were overwritten or never written"));
        }
        self.zero_reads.push((begun, now));
        match self.values.iter().find(|value| value.contradicts((now, begun))) {
            Some(value) => {
                Err(format!("{place} shows zeroes between two moments of {}", value.write))
            }
            None => Ok(()),
        }
    }

    /// Compares the moments of a value with those of all others.
    fn check(&self, place: Place, value: Value) -> Result<(), String> {
        let zeroes = value.write == WriteId::ZEROES;
        let moments = if zeroes { (value.first, value.begun) } else { (value.first, value.last) };
        let mut others = self.values.iter().filter(|other| other.write != value.write);
        if let Some(other) = others.find(|other| other.contradicts(moments)) {
            let (one, two) = (value.write, other.write);
            return Err(format!(
                "{place}: {one} must be both before and after {two} (known from {} to {}, and \
                 from {} to {})",
                value.first, value.last, other.first, other.last
            ));
        }
        if zeroes {
            return Ok(());
        }
        let zeroings = self.zeroings.iter().filter(|zeroing| zeroing.happened);
        let zeroings = zeroings.map(|zeroing| (zeroing.first, zeroing.begun));
        let reads = self.zero_reads.iter().map(|&(begun, ended)| (ended, begun));
        if zeroings.chain(reads).any(|zeroes| value.contradicts(zeroes)) {
            let write = value.write;
            return Err(format!("{place} shows {write} again, after zeroes"));
        }
        Ok(())
    }

    fn forget(&mut self, oldest: Moment) {
        let gone = |list: &[Value], register: &Self| -> Vec<bool> {
            list.iter().map(|v| v.refused || register.superseded(v.latest, oldest)).collect()
        };
        let (values, zeroings) = (gone(&self.values, self), gone(&self.zeroings, self));
        let mut gone = values.into_iter();
        self.values.retain(|_| !gone.next().unwrap_or(false));
        let mut gone = zeroings.into_iter();
        self.zeroings.retain(|_| !gone.next().unwrap_or(false));
        let first = self.values.iter().map(|value| value.first).min().unwrap_or(NEVER);
        self.zero_reads.retain(|&(begun, _)| begun > first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { namespace: 0, lba: 3 };
    const ONE: WriteId = WriteId(1);
    const TWO: WriteId = WriteId(2);
    const ZEROES: WriteId = WriteId::ZEROES;

    /// A model and the operations on one of its blocks.
    struct Block(Model);

    impl Block {
        fn new() -> Self {
            Self(Model::new(&[8]))
        }

        fn begin(&mut self, write: WriteId) -> Moment {
            let begun = self.0.tick();
            self.0.begin_write(PLACE, write, begun, None).unwrap();
            begun
        }

        fn end(&mut self, write: WriteId, begun: Moment, fate: Fate) -> Result<(), String> {
            self.0.tick();
            self.0.end_write(PLACE, write, begun, fate)
        }

        fn write(&mut self, write: WriteId) {
            let begun = self.begin(write);
            self.end(write, begun, Fate::Done).unwrap();
        }

        fn read(&mut self, write: WriteId) -> Result<(), String> {
            let begun = self.0.tick();
            self.read_from(begun, write)
        }

        fn read_from(&mut self, begun: Moment, write: WriteId) -> Result<(), String> {
            self.0.tick();
            self.0.saw(PLACE, write, begun)
        }
    }

    #[test]
    fn a_read_shows_the_last_write() {
        let mut block = Block::new();
        block.read(ZEROES).unwrap();
        block.write(ONE);
        block.read(ONE).unwrap();
        block.write(TWO);
        block.read(TWO).unwrap();
        block.read(ONE).unwrap_err();
    }

    #[test]
    fn old_zeroes_and_unheard_values_are_wrong() {
        let mut block = Block::new();
        block.write(ONE);
        block.read(TWO).unwrap_err();
        block.read(ZEROES).unwrap_err();
    }

    #[test]
    fn concurrent_writes_happen_in_either_order_but_in_one() {
        let mut block = Block::new();
        let one = block.begin(ONE);
        let two = block.begin(TWO);
        block.read(ONE).unwrap();
        block.read(TWO).unwrap();
        block.end(ONE, one, Fate::Done).unwrap();
        block.end(TWO, two, Fate::Done).unwrap();
        block.read(TWO).unwrap();
        block.read(ONE).unwrap_err();
    }

    #[test]
    fn a_read_during_a_write_shows_either_and_the_new_value_stays() {
        let mut block = Block::new();
        block.write(ONE);
        let read = block.0.tick();
        let two = block.begin(TWO);
        block.read(ONE).unwrap();
        block.read(TWO).unwrap();
        block.read_from(read, ONE).unwrap();
        block.end(TWO, two, Fate::Done).unwrap();
        block.read(ONE).unwrap_err();
    }

    #[test]
    fn an_unknown_fate_lasts_until_it_is_settled() {
        let mut block = Block::new();
        let one = block.begin(ONE);
        block.end(ONE, one, Fate::Unknown).unwrap();
        block.write(TWO);
        block.read(TWO).unwrap();
        block.read(ONE).unwrap();
        block.read(TWO).unwrap_err();

        let mut block = Block::new();
        let one = block.begin(ONE);
        block.end(ONE, one, Fate::Unknown).unwrap();
        block.0.tick();
        block.0.settle(PLACE, ONE, one).unwrap();
        block.write(TWO);
        block.read(TWO).unwrap();
        block.read(ONE).unwrap_err();
    }

    #[test]
    fn what_was_refused_is_never_seen() {
        let mut block = Block::new();
        let one = block.begin(ONE);
        block.end(ONE, one, Fate::Refused).unwrap();
        block.read(ONE).unwrap_err();
        let two = block.begin(TWO);
        block.read(TWO).unwrap();
        block.end(TWO, two, Fate::Refused).unwrap_err();
    }

    #[test]
    fn zeroes_are_a_value_too() {
        let mut block = Block::new();
        block.write(ONE);
        let zeroing = block.begin(ZEROES);
        block.read(ONE).unwrap();
        block.read(ZEROES).unwrap();
        block.read(ONE).unwrap_err();

        let mut block = Block::new();
        block.write(ONE);
        let refused = block.begin(ZEROES);
        block.end(ZEROES, refused, Fate::Refused).unwrap();
        block.read(ZEROES).unwrap_err();
        let _ = zeroing;
    }

    #[test]
    fn candidates_are_what_a_comparison_may_find() {
        let mut block = Block::new();
        block.write(ONE);
        let begun = block.0.tick();
        assert_eq!(block.0.candidates(PLACE, begun), Ok(vec![ONE]));
        let two = block.begin(TWO);
        block.0.tick();
        assert_eq!(block.0.candidates(PLACE, begun), Ok(vec![ONE, TWO]));
        block.end(TWO, two, Fate::Done).unwrap();
        let later = block.0.tick();
        assert_eq!(block.0.candidates(PLACE, begun), Ok(vec![ONE, TWO]));
        assert_eq!(block.0.candidates(PLACE, later), Ok(vec![TWO]));
        assert_eq!(block.0.could_be(PLACE, ONE, later), Ok(false));
    }

    #[test]
    fn a_value_is_replaced_by_one_fused_command() {
        let mut block = Block::new();
        block.write(ONE);
        for (write, fine) in [(TWO, true), (WriteId(3), false)] {
            let begun = block.0.tick();
            block.0.begin_write(PLACE, write, begun, Some(ONE)).unwrap();
            block.0.tick();
            assert_eq!(block.0.end_write(PLACE, write, begun, Fate::Done).is_ok(), fine);
        }
    }

    #[test]
    fn forgetting_changes_no_verdict() {
        let mut block = Block::new();
        for id in 1..=200 {
            block.write(WriteId(id));
            block.read(WriteId(id)).unwrap();
            if id % 7 == 0 {
                block.write(ZEROES);
                block.read(ZEROES).unwrap();
            }
            let oldest = block.0.tick();
            block.0.forget(PLACE, oldest).unwrap();
        }
        assert!(block.0.namespaces[0][3].values.len() <= MAX_VALUES);
        block.read(WriteId(200)).unwrap();
        block.read(WriteId(199)).unwrap_err();
    }
}
