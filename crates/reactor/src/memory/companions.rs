//! What else belongs to the core of a pool: its users find there what another user of the core has made before.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::rc::{Rc, Weak};

/// Values of one core, of any kind. A value stays for as long as somebody else has it.
#[derive(Default)]
pub struct Companions {
    values: RefCell<Vec<Weak<dyn Any>>>,
}

impl Companions {
    /// The first value of a kind that suits, in the order in which they were added.
    pub fn find<T: Any>(&self, suits: impl Fn(&T) -> bool) -> Option<Rc<T>> {
        let values = self.values.borrow();
        let mut of_kind =
            values.iter().filter_map(Weak::upgrade).filter_map(|it| it.downcast().ok());
        of_kind.find(|value| suits(value))
    }

    /// Adds a value, and forgets those that nobody has any longer.
    pub fn add<T: Any>(&self, value: &Rc<T>) {
        let value: Weak<T> = Rc::downgrade(value);
        let mut values = self.values.borrow_mut();
        values.retain(|other| other.strong_count() > 0);
        values.push(value);
    }
}

impl fmt::Debug for Companions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Companions({})", self.values.borrow().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_kind_while_somebody_has_it() {
        let all = Companions::default();
        let (one, two, text) = (Rc::new(1_u32), Rc::new(2_u32), Rc::new("two"));
        all.add(&one);
        all.add(&two);
        all.add(&text);
        assert!(Rc::ptr_eq(&all.find(|_: &u32| true).unwrap(), &one));
        assert!(Rc::ptr_eq(&all.find(|&number: &u32| number == 2).unwrap(), &two));
        assert_eq!(all.find(|_: &&str| true), Some(Rc::new("two")));
        assert_eq!(all.find(|_: &u64| true), None);
        drop(one);
        assert!(Rc::ptr_eq(&all.find(|_: &u32| true).unwrap(), &two));
        drop(two);
        assert_eq!(all.find(|_: &u32| true), None);
        all.add(&Rc::new(3_u32));
        assert_eq!(all.values.borrow().len(), 2, "the text, and the one that is forgotten next");
    }
}
