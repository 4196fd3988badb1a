//! What copies may have brought: a copy's value in a block has the contents that its source had while the copy ran.
//!
//! The model knows a copy by its [`WriteId`], as it knows a write. Which contents that is depends on when the copy read
//! its source. So each copied block has a set of possible contents, and a read says which one it was. Contents tell where
//! they were written first. They come into a block by one copy at most: the hosts make no other ([`Copies::may_begin`]).
//! Zeroes are an exception, as they are in the model.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::Operation;
use crate::content::{Content, Place, WriteId, identify, is};
use crate::model::{Fate, Model, Moment};

/// All copies of a run.
#[derive(Debug, Default)]
pub struct Copies {
    /// By the block that was written, and the copy.
    brought: BTreeMap<(Place, WriteId), Brought>,
    /// The blocks of copies that may still happen.
    open: BTreeSet<Place>,
}

/// One block of a copy.
#[derive(Debug)]
struct Brought {
    source: Place,
    begun: Moment,
    /// The contents that it may have; `None` while the copy may still happen.
    contents: Option<BTreeSet<Content>>,
    /// What a read has shown.
    shown: Option<Content>,
}

impl Copies {
    /// Whether a copy may begin: it shares no block with one that may still happen, and brings no contents into a block
    /// that were there or came there before.
    ///
    /// # Errors
    /// When a place does not exist.
    pub fn may_begin(&self, copy: &Operation, model: &mut Model) -> Result<bool, String> {
        let now = model.tick();
        for (place, source) in copy.places().zip(copy.source_places()) {
            if self.open.contains(&place) || self.open.contains(&source) {
                return Ok(false);
            }
            for contents in self.contents(source, now, model)? {
                if !contents.is_zeroes() && self.had(place, contents) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether these contents may ever have been in this block.
    fn had(&self, place: Place, contents: Content) -> bool {
        contents.origin == place
            || self.of(place).any(|(_, brought)| match &brought.contents {
                Some(all) => all.contains(&contents),
                None => true,
            })
    }

    fn of(&self, place: Place) -> impl Iterator<Item = (WriteId, &Brought)> {
        let all = self.brought.range((place, WriteId::ZEROES)..=(place, WriteId(u64::MAX)));
        all.map(|(&(_, copy), brought)| (copy, brought))
    }

    /// A copy begins.
    pub fn begin(&mut self, copy: &Operation) {
        for (place, source) in copy.places().zip(copy.source_places()) {
            let brought = Brought { source, begun: copy.begun, contents: None, shown: None };
            self.brought.insert((place, copy.write), brought);
            self.open.extend([place, source]);
        }
    }

    /// When the oldest copy began that may still happen: what its source had since then, it may bring.
    #[must_use]
    pub fn oldest_open(&self) -> Moment {
        let open = self.brought.values().filter(|brought| brought.contents.is_none());
        open.map(|brought| brought.begun).min().unwrap_or(Moment::MAX)
    }

    /// A copy has ended, or cannot happen any more. Gives for each of its blocks whether it may have brought zeroes.
    ///
    /// # Errors
    /// When the copy is not known.
    pub fn end(
        &mut self,
        (copy, places): (WriteId, &[Place]),
        fate: Fate,
        model: &mut Model,
    ) -> Result<Vec<bool>, String> {
        let mut zeroes = Vec::new();
        for &place in places {
            let unknown = || format!("{place}: {copy} is no copy");
            let brought = self.brought.get(&(place, copy)).ok_or_else(unknown)?;
            let (source, begun) = (brought.source, brought.begun);
            let contents = self.contents(source, begun, model)?;
            zeroes.push(contents.iter().any(Content::is_zeroes));
            if fate == Fate::Unknown {
                continue;
            }
            let brought = self.brought.get_mut(&(place, copy)).ok_or_else(unknown)?;
            brought.contents = Some(contents);
            self.open.remove(&place);
            self.open.remove(&source);
        }
        Ok(zeroes)
    }

    /// All contents that a command from `begun` to now could have found in a block.
    ///
    /// # Errors
    /// When the place does not exist.
    pub fn contents(
        &self,
        place: Place,
        begun: Moment,
        model: &mut Model,
    ) -> Result<BTreeSet<Content>, String> {
        let mut found = BTreeSet::new();
        for write in model.candidates(place, begun)? {
            found.extend(self.contents_of(place, write, model)?);
        }
        Ok(found)
    }

    /// The possible contents of one value of a block.
    fn contents_of(
        &self,
        place: Place,
        write: WriteId,
        model: &mut Model,
    ) -> Result<BTreeSet<Content>, String> {
        let Some(brought) = self.brought.get(&(place, write)) else {
            return Ok(BTreeSet::from([Content::new(place, write)]));
        };
        match (brought.shown, &brought.contents) {
            (Some(shown), _) => Ok(BTreeSet::from([shown])),
            (None, Some(contents)) => Ok(contents.clone()),
            // No block of an open copy belongs to another open one.
            (None, None) => self.contents(brought.source, brought.begun, model),
        }
    }

    /// The contents of a value, if there is one possibility only; never zeroes of a copy.
    #[must_use]
    pub fn only_content(&self, place: Place, write: WriteId) -> Option<Content> {
        let Some(brought) = self.brought.get(&(place, write)) else {
            return Some(Content::new(place, write));
        };
        let all = brought.contents.as_ref().filter(|all| all.len() == 1);
        let only = brought.shown.or_else(|| all.and_then(|all| all.first().copied()));
        only.filter(|only| !only.is_zeroes())
    }

    /// Which value of a block has these bytes. A copy's value is known from then on.
    ///
    /// # Errors
    /// When a copy shows two contents.
    pub fn identify(
        &mut self,
        block: &[u8],
        place: Place,
        model: &mut Model,
    ) -> Result<Option<WriteId>, String> {
        if let Some(write) = identify(block, place) {
            return Ok(Some(write));
        }
        let copies: Vec<WriteId> = self.of(place).map(|(copy, _)| copy).collect();
        for copy in copies {
            let possible = self.contents_of(place, copy, model)?;
            let mut written = possible.into_iter().filter(|contents| !contents.is_zeroes());
            let Some(shown) = written.find(|it| is(block, it.origin, it.write)) else { continue };
            if let Some(brought) = self.brought.get_mut(&(place, copy)) {
                brought.shown = Some(shown);
            }
            return Ok(Some(copy));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Kind;
    use crate::content::fill;

    const SOURCE: Place = Place { namespace: 0, lba: 1 };
    const TARGET: Place = Place { namespace: 1, lba: 5 };

    struct World {
        model: Model,
        copies: Copies,
    }

    impl World {
        fn new() -> Self {
            Self { model: Model::new(&[8, 8]), copies: Copies::default() }
        }

        fn write(&mut self, place: Place, id: u64) {
            let begun = self.model.tick();
            self.model.begin_write(place, WriteId(id), begun, None).unwrap();
            self.model.tick();
            self.model.end_write(place, WriteId(id), begun, Fate::Done).unwrap();
        }

        fn copy(&mut self, id: u64) -> Operation {
            let mut copy = Operation::new(Kind::Copy, 1, vec![(5, 1)], WriteId(id));
            copy.sources = vec![(0, 1, 1)];
            assert!(self.copies.may_begin(&copy, &mut self.model).unwrap());
            copy.begun = self.model.tick();
            self.model.begin_write(TARGET, copy.write, copy.begun, None).unwrap();
            self.copies.begin(&copy);
            copy
        }

        fn end(&mut self, copy: &Operation) {
            self.model.tick();
            self.copies.end((copy.write, &[TARGET]), Fate::Done, &mut self.model).unwrap();
            self.model.end_write(TARGET, copy.write, copy.begun, Fate::Done).unwrap();
        }

        /// What a block is that was first written by `id` at the source, and is read at the target.
        fn read(&mut self, id: u64) -> Option<WriteId> {
            let mut block = [0; 512];
            fill(&mut block, SOURCE, WriteId(id));
            self.copies.identify(&block, TARGET, &mut self.model).unwrap()
        }
    }

    #[test]
    fn a_copy_brings_what_was_there_while_it_ran_and_nothing_else() {
        let mut world = World::new();
        world.write(SOURCE, 1);
        world.write(SOURCE, 2);
        let copy = world.copy(10);
        world.write(SOURCE, 3);
        world.end(&copy);
        world.write(SOURCE, 4);
        assert_eq!(world.read(1), None, "overwritten before");
        assert_eq!(world.read(4), None, "written afterwards");
        assert_eq!(world.read(3), Some(WriteId(10)));
        assert_eq!(world.read(2), None, "it was the other one");
    }

    #[test]
    fn what_an_open_copy_may_have_found_is_not_forgotten() {
        let mut world = World::new();
        world.write(SOURCE, 1);
        let copy = world.copy(100);
        for id in 2..=90 {
            world.write(SOURCE, id);
            let oldest = world.model.tick().min(world.copies.oldest_open());
            world.model.forget(SOURCE, oldest).unwrap();
        }
        assert_eq!(world.copies.oldest_open(), copy.begun);
        assert_eq!(world.read(1), Some(WriteId(100)));
        world.end(&copy);
        assert_eq!(world.copies.oldest_open(), Moment::MAX);
    }

    #[test]
    fn what_may_be_there_already_is_not_copied_again() {
        let mut world = World::new();
        world.write(SOURCE, 1);
        let copy = world.copy(10);
        let again = Operation { write: WriteId(11), ..copy.clone() };
        assert!(!world.copies.may_begin(&again, &mut world.model).unwrap(), "one is under way");
        world.end(&copy);
        assert!(!world.copies.may_begin(&again, &mut world.model).unwrap(), "it is there");
        world.write(SOURCE, 2);
        let second = world.copy(12);
        world.end(&second);
        assert_eq!(world.read(2), Some(WriteId(12)));
        assert_eq!(world.read(1), Some(WriteId(10)), "an old value, which the model refuses");
        let begun = world.model.tick();
        world.model.saw(TARGET, WriteId(12), begun).unwrap();
        world.model.saw(TARGET, WriteId(10), begun).unwrap_err();
    }
}
