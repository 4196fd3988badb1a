//! Objects under small ids that are told apart from the ids of their predecessors.

/// Bits of an id that are the index; the others are the generation, but for the topmost, which is 0.
const INDEX_BITS: u32 = 20;

/// The bits of an id.
const ID_MASK: u32 = u32::MAX >> 1;

/// Most objects in one slab.
pub(crate) const SLAB_CAPACITY: usize = 1 << INDEX_BITS;

/// Objects by id. An id is never given again until its slot has been used 2048 times, so a stale id finds
/// nothing rather than another object.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    id: u32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab::new()
    }
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new() }
    }

    /// Adds an object; gives it back when there are [`SLAB_CAPACITY`] already.
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, T> {
        if let Some(index) = self.free.pop() {
            let entry = &mut self.entries[index as usize];
            entry.value = Some(value);
            return Ok(entry.id);
        }
        if self.entries.len() == SLAB_CAPACITY {
            return Err(value);
        }
        let Ok(id) = u32::try_from(self.entries.len()) else { return Err(value) };
        self.entries.push(Entry { id, value: Some(value) });
        Ok(id)
    }

    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.entries.get(index(id)).filter(|entry| entry.id == id)?.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.entries.get_mut(index(id)).filter(|entry| entry.id == id)?.value.as_mut()
    }

    /// Takes an object out; its id becomes stale.
    pub(crate) fn remove(&mut self, id: u32) -> Option<T> {
        let entry = self.entries.get_mut(index(id)).filter(|entry| entry.id == id)?;
        let value = entry.value.take()?;
        entry.id = id.wrapping_add(1 << INDEX_BITS) & ID_MASK;
        self.free.push(id % (1 << INDEX_BITS));
        Some(value)
    }

    /// How many objects there are.
    pub(crate) fn live(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// All objects.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries.iter_mut().filter_map(|entry| entry.value.as_mut())
    }

    /// The ids of all objects.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> {
        self.entries.iter().filter(|entry| entry.value.is_some()).map(|entry| entry.id)
    }
}

/// The place that an id names, whatever the id's generation.
pub(crate) fn index(id: u32) -> usize {
    (id % (1 << INDEX_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_id_finds_nothing() {
        let mut slab = Slab::new();
        let first = slab.insert("a").unwrap();
        let other = slab.insert("b").unwrap();
        assert_eq!(slab.remove(first), Some("a"));
        let second = slab.insert("c").unwrap();
        assert_ne!(first, second);
        assert!(slab.get(first).is_none() && slab.get_mut(first).is_none());
        assert_eq!(slab.remove(first), None);
        assert_eq!((slab.get(second), slab.get(other)), (Some(&"c"), Some(&"b")));
        assert_eq!(slab.ids().collect::<Vec<_>>(), [second, other]);
        for _ in 0..10_000 {
            let id = slab.insert("d").unwrap();
            assert_eq!(id & !ID_MASK, 0);
            slab.remove(id);
        }
        assert_eq!((slab.entries.len(), slab.free.len()), (3, 1));
    }
}
