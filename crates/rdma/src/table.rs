//! What belongs to numbers that are mostly near each other: an array, and a map for those that meet in one place of it.

use std::collections::BTreeMap;

/// Values by number. Those whose number's lowest bits no other has are in the array.
#[derive(Debug)]
pub struct Table<T> {
    /// Its length is a power of two.
    near: Vec<Option<(u32, T)>>,
    /// Those whose place in the array is another's.
    apart: BTreeMap<u32, T>,
    len: usize,
}

impl<T> Table<T> {
    /// An empty table, for about so many values at a time.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let places = count.max(1).next_power_of_two();
        Self { near: (0..places).map(|_| None).collect(), apart: BTreeMap::new(), len: 0 }
    }

    #[inline]
    fn place(&self, number: u32) -> usize {
        usize::try_from(number).unwrap_or(0) & (self.near.len() - 1)
    }

    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a number.
    #[inline]
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&T> {
        match &self.near[self.place(number)] {
            Some((here, value)) if *here == number => Some(value),
            _ if self.apart.is_empty() => None,
            _ => self.apart.get(&number),
        }
    }

    /// The same, to change it.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let place = self.place(number);
        match &mut self.near[place] {
            Some((here, value)) if *here == number => Some(value),
            _ if self.apart.is_empty() => None,
            _ => self.apart.get_mut(&number),
        }
    }

    /// Adds a value; gives the one that the number has had.
    #[inline]
    pub fn insert(&mut self, number: u32, value: T) -> Option<T> {
        let before = self.remove(number);
        let place = self.place(number);
        match &mut self.near[place] {
            empty @ None => *empty = Some((number, value)),
            Some(_) => _ = self.apart.insert(number, value),
        }
        self.len += 1;
        before
    }

    /// Takes a value out.
    #[inline]
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let place = self.place(number);
        let near = self.near[place].take_if(|(here, _)| *here == number);
        let value = match near {
            Some((_, value)) => value,
            None if self.apart.is_empty() => return None,
            None => self.apart.remove(&number)?,
        };
        self.len -= 1;
        Some(value)
    }

    /// Takes all out, in no order.
    pub fn drain(&mut self) -> Vec<(u32, T)> {
        self.len = 0;
        let near = self.near.iter_mut().filter_map(Option::take);
        near.chain(std::mem::take(&mut self.apart)).collect()
    }

    /// All numbers, in no order.
    pub fn numbers(&self) -> Vec<u32> {
        let near = self.near.iter().flatten().map(|(number, _)| *number);
        near.chain(self.apart.keys().copied()).collect()
    }

    /// All values, in no order.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let near = self.near.iter_mut().flatten().map(|(_, value)| value);
        near.chain(self.apart.values_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn it_is_a_map() {
        let mut table = Table::new(5);
        let mut map = HashMap::new();
        let mut state = 1_u64;
        for step in 0..20_000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Many numbers meet in the eight places.
            let number = u32::try_from(state >> 33).unwrap() % 40;
            match state >> 62 {
                0 => assert_eq!(table.remove(number), map.remove(&number)),
                1 => assert_eq!(table.insert(number, step), map.insert(number, step)),
                2 => assert_eq!(table.get(number), map.get(&number)),
                _ => assert_eq!(table.get_mut(number), map.get_mut(&number)),
            }
            assert_eq!((table.len(), table.is_empty()), (map.len(), map.is_empty()));
        }
        let mut numbers = table.numbers();
        numbers.sort_unstable();
        let mut keys: Vec<u32> = map.keys().copied().collect();
        keys.sort_unstable();
        assert_eq!(numbers, keys);
        let sum = map.values().map(|&value| u64::from(value)).sum::<u64>();
        assert_eq!(table.values_mut().map(|value| u64::from(*value)).sum::<u64>(), sum);
        let all: HashMap<u32, u32> = table.drain().into_iter().collect();
        assert_eq!((all, table.len(), table.numbers()), (map, 0, Vec::new()));
    }
}
