//! Commands in flight: identifiers with generations, so that a stale completion matches no command.

use crate::nvme::CommandId;

/// Most commands that a table can hold. CIDs have 16 bits; at least 4 are left for generations.
pub const MAX_SLOTS: u16 = 1 << 12;

/// The commands of one queue that have not completed.
///
/// A command's CID is its slot in the low bits and the slot's generation above: an identifier
/// that was used before does not match the slot's next command, so no command completes twice. Nothing
/// is allocated after [`Self::new`]. An entry can be filled in and read where it lies, because
/// moving it in and out would cost more than all other work of the table.
#[derive(Debug)]
pub struct CommandTable<T> {
    slots: Box<[Slot<T>]>,
    /// Unused slots; the slot freed last is used first, while it is in the cache.
    free: Vec<u16>,
    /// The bits of a CID that name the slot.
    slot_mask: u16,
}

#[derive(Debug)]
struct Slot<T> {
    /// The name of its command, or of the next one: slot and generation.
    cid: CommandId,
    live: bool,
    /// In a slot without a command: the remains of the last one.
    entry: T,
}

impl<T: Default> CommandTable<T> {
    /// A table for at least `commands` commands: the next power of two of slots.
    ///
    /// # Panics
    /// When `commands` is 0 or more than [`MAX_SLOTS`].
    #[must_use]
    pub fn new(commands: u16) -> Self {
        assert!((1..=MAX_SLOTS).contains(&commands), "{commands} commands in a table");
        let count = commands.next_power_of_two();
        let slot = |slot| Slot { cid: CommandId(slot), live: false, entry: T::default() };
        let slots = (0..count).map(slot).collect();
        Self { slots, free: (0..count).rev().collect(), slot_mask: count - 1 }
    }

    /// Number of slots, a power of two.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Commands in the table.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is no command.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts a command in and names it.
    ///
    /// # Errors
    /// Gives the entry back when the table is full.
    pub fn insert(&mut self, entry: T) -> Result<CommandId, T> {
        let Some(slot) = self.free.pop() else { return Err(entry) };
        let slot = &mut self.slots[usize::from(slot)];
        debug_assert!(!slot.live);
        (slot.live, slot.entry) = (true, entry);
        Ok(slot.cid)
    }

    /// [`Self::insert`], but `fill` writes the entry over the remains of the slot's last command.
    /// `None` when the table is full.
    #[inline(always)]
    pub fn insert_with(&mut self, fill: impl FnOnce(&mut T)) -> Option<CommandId> {
        let slot = &mut self.slots[usize::from(self.free.pop()?)];
        debug_assert!(!slot.live);
        slot.live = true;
        fill(&mut slot.entry);
        Some(slot.cid)
    }

    /// The command of this name, if it is still in flight.
    #[must_use]
    #[inline]
    pub fn get(&self, cid: CommandId) -> Option<&T> {
        let slot = &self.slots[self.index(cid)];
        (slot.cid == cid && slot.live).then_some(&slot.entry)
    }

    /// [`Self::get`], to change the command.
    #[must_use]
    #[inline]
    pub fn get_mut(&mut self, cid: CommandId) -> Option<&mut T> {
        let slot = &mut self.slots[self.index(cid)];
        (slot.cid == cid && slot.live).then_some(&mut slot.entry)
    }

    /// Takes the command out, once; its name is stale from now on.
    #[must_use]
    pub fn remove(&mut self, cid: CommandId) -> Option<T> {
        self.remove_if(cid, |entry| Some(std::mem::take(entry)))
    }

    /// [`Self::remove`], if `end` gives something: `end` takes from the entry what it needs, and
    /// the rest stays until the slot is used again.
    #[inline]
    pub fn remove_if<R>(
        &mut self,
        cid: CommandId,
        end: impl FnOnce(&mut T) -> Option<R>,
    ) -> Option<R> {
        let index = self.index(cid);
        let slot = &mut self.slots[index];
        if slot.cid != cid || !slot.live {
            return None;
        }
        let result = end(&mut slot.entry)?;
        slot.live = false;
        // The bits above the slot's count up by one, and wrap around.
        slot.cid = CommandId(cid.0.wrapping_add(self.slot_mask + 1));
        self.free.push(cid.0 & self.slot_mask);
        Some(result)
    }

    /// The names of all commands in flight, by slot.
    pub fn ids(&self) -> impl Iterator<Item = CommandId> {
        self.slots.iter().filter(|slot| slot.live).map(|slot| slot.cid)
    }

    fn index(&self, cid: CommandId) -> usize {
        usize::from(cid.0 & self.slot_mask)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_used_once() {
        let mut table = CommandTable::new(4);
        let first = table.insert('a').unwrap();
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let second = table.insert('b').unwrap();
        assert_eq!(second.0 & 3, first.0 & 3, "the hot slot is used again");
        assert_ne!(second, first);
        assert_eq!((table.get(first), table.get(second)), (None, Some(&'b')));
    }

    #[test]
    fn a_full_table_gives_the_entry_back() {
        let mut table = CommandTable::new(3);
        assert_eq!(table.capacity(), 4);
        for entry in 0..4 {
            table.insert(entry).unwrap();
        }
        assert_eq!(table.insert(9), Err(9));
        assert_eq!(table.ids().count(), 4);
    }

    #[test]
    #[should_panic(expected = "commands in a table")]
    fn the_size_is_checked() {
        let _ = CommandTable::<()>::new(MAX_SLOTS + 1);
    }

    proptest! {
        /// Against a plain map: every live name finds its own entry, every other name nothing.
        #[test]
        fn matches_a_map(
            commands in 1u16..=64,
            steps in prop::collection::vec((any::<bool>(), any::<u16>()), 1..400),
        ) {
            let mut table = CommandTable::new(commands);
            let mut model: HashMap<u16, u32> = HashMap::new();
            let mut live: Vec<u16> = Vec::new();
            let mut retired: Vec<u16> = Vec::new();
            for (number, (insert, pick)) in (0u32..).zip(steps) {
                if insert {
                    match table.insert(number) {
                        Ok(cid) => {
                            prop_assert!(model.insert(cid.0, number).is_none());
                            live.push(cid.0);
                        }
                        Err(_) => prop_assert_eq!(model.len(), table.capacity()),
                    }
                } else if let Some(index) = usize::from(pick).checked_rem(live.len()) {
                    let cid = live.swap_remove(index);
                    prop_assert_eq!(table.remove(CommandId(cid)), model.remove(&cid));
                    retired.push(cid);
                }
                prop_assert_eq!(table.len(), model.len());
                prop_assert_eq!(table.get(CommandId(pick)).copied(), model.get(&pick).copied());
                for &cid in retired.iter().filter(|cid| !model.contains_key(cid)) {
                    prop_assert_eq!(table.get_mut(CommandId(cid)), None);
                }
            }
        }
    }
}
