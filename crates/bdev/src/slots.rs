//! A table of operations in flight: an index and a generation name each, and stale names fail.

/// The most operations one channel may have in flight; an index stays below the wrappers' bit.
const MAX_SLOTS: usize = 1 << 20;

/// Values in numbered slots that are reused; grows to the largest number ever in flight and
/// then allocates no more.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u16,
    value: Option<T>,
}

/// The name of one life of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) index: u32,
    pub(crate) generation: u16,
}

impl<T> Slots<T> {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { slots: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity) }
    }

    /// Puts a value into a free slot.
    ///
    /// # Panics
    /// With more than [`MAX_SLOTS`] values: the callers' queues are bounded far below.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Key { index, generation: slot.generation };
        }
        assert!(self.slots.len() < MAX_SLOTS, "more than {MAX_SLOTS} operations in one channel");
        let index = u32::try_from(self.slots.len()).unwrap_or_else(|_| unreachable!());
        self.slots.push(Slot { generation: 0, value: Some(value) });
        Key { index, generation: 0 }
    }

    /// Takes the value out and ends this life of the slot; `None` if the key is stale.
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation != key.generation {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(value)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_key_finds_nothing() {
        let mut slots = Slots::with_capacity(2);
        let a = slots.insert('a');
        let b = slots.insert('b');
        assert_eq!(slots.remove(a), Some('a'));
        assert_eq!(slots.remove(a), None);
        let c = slots.insert('c');
        assert_eq!(c.index, a.index, "the slot is reused");
        assert_eq!(slots.remove(a), None, "in another life");
        assert_eq!(slots.remove(c), Some('c'));
        assert!(!slots.is_empty());
        assert_eq!(slots.remove(b), Some('b'));
        assert!(slots.is_empty());
        assert_eq!(slots.remove(Key { index: 9, generation: 0 }), None);
    }
}
