//! Error injection: makes operations fail, or their results wrong, as tests of callers need it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::operation::OpCode;

/// What to do to operations of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// What happens to an operation that is hit.
    pub kind: InjectionKind,
    /// One operation in this many is hit; 0 is taken for 1.
    pub interval: u64,
    /// How many are hit before it stops by itself; `u64::MAX` is without end.
    pub count: u64,
}

/// What happens to an operation that is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectionKind {
    /// Its result is wrong: another digest, another byte, another answer.
    Corrupt,
    /// It fails with [`crate::AccelError::Injected`].
    Fail,
}

/// The injections of all operations, shared by all cores.
#[derive(Debug, Default)]
pub(crate) struct Injections {
    rules: [Rule; OpCode::COUNT],
}

#[derive(Debug, Default)]
struct Rule {
    active: AtomicBool,
    fails: AtomicBool,
    interval: AtomicU64,
    /// Operations since it was set, and how many more are to be hit.
    seen: AtomicU64,
    left: AtomicU64,
}

impl Injections {
    /// Replaces the injection of an operation; `None` ends it.
    pub(crate) fn set(&self, code: OpCode, injection: Option<Injection>) {
        let rule = &self.rules[code.index()];
        rule.active.store(false, Ordering::Release);
        if let Some(injection) = injection {
            rule.fails.store(injection.kind == InjectionKind::Fail, Ordering::Relaxed);
            rule.interval.store(injection.interval.max(1), Ordering::Relaxed);
            rule.seen.store(0, Ordering::Relaxed);
            rule.left.store(injection.count, Ordering::Relaxed);
            rule.active.store(injection.count > 0, Ordering::Release);
        }
    }

    /// True if something may happen to operations of this kind.
    #[inline(always)]
    pub(crate) fn is_active(&self, code: OpCode) -> bool {
        self.rules[code.index()].active.load(Ordering::Relaxed)
    }

    /// What happens to the operation that completes now.
    #[inline]
    pub(crate) fn next(&self, code: OpCode) -> Option<InjectionKind> {
        let rule = &self.rules[code.index()];
        if rule.active.load(Ordering::Acquire) { rule.hit() } else { None }
    }
}

impl Rule {
    #[cold]
    fn hit(&self) -> Option<InjectionKind> {
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        if !seen.is_multiple_of(self.interval.load(Ordering::Relaxed).max(1)) {
            return None;
        }
        let less = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(1) => self.active.store(false, Ordering::Relaxed),
            Ok(_) => {}
            Err(_) => return None,
        }
        let fails = self.fails.load(Ordering::Relaxed);
        Some(if fails { InjectionKind::Fail } else { InjectionKind::Corrupt })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nth_is_hit_until_the_count_is_used_up() {
        let injections = Injections::default();
        let hits = |n: usize| -> Vec<usize> {
            (1..=n).filter(|_| injections.next(OpCode::Copy).is_some()).count();
            Vec::new()
        };
        assert!(hits(5).is_empty());
        let rule = Injection { kind: InjectionKind::Fail, interval: 3, count: 2 };
        injections.set(OpCode::Copy, Some(rule));
        let hit: Vec<usize> =
            (1..=20).filter(|_| injections.next(OpCode::Copy).is_some()).collect();
        assert_eq!(hit, [3, 6]);
        assert_eq!(injections.next(OpCode::Fill), None);
        let rule = Injection { kind: InjectionKind::Corrupt, interval: 0, count: u64::MAX };
        injections.set(OpCode::Copy, Some(rule));
        assert!((0..9).all(|_| injections.next(OpCode::Copy) == Some(InjectionKind::Corrupt)));
        injections.set(OpCode::Copy, None);
        assert_eq!(injections.next(OpCode::Copy), None);
    }
}
