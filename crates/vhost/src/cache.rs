//! Whether writes may stay in a cache until a flush: what the guest has chosen, and how long that is remembered.
//!
//! A guest that has turned its cache off sends no flushes, so a server that takes the cache for on loses its data. Front
//! ends say the choice once (SET_CONFIG), and remember it over everything: QEMU repeats features at each start of the rings,
//! shows the choice to the next guest after a reset, and tells a server that was started anew nothing of it. So:
//!
//! * nothing but SET_CONFIG changes a choice: neither features nor a reset do;
//! * a front end that reads the configuration space before it starts a ring is one that begins, and is told of a cache;
//! * the choice is noted in the memory for requests in flight, which a front end brings along to the next server;
//! * who neither reads nor brings it may have chosen anything: each write is on stable media before it completes.

use crate::config::feature;

/// The choice of one front end, while it is connected.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// Writes may be cached; `None` while that is not known.
    choice: Option<bool>,
    /// The guest knows how to flush; `None` until it has said what it knows.
    flushes: Option<bool>,
    /// A ring was started.
    started: bool,
}

impl Cache {
    /// Whether a write may complete before it is on stable media.
    pub(crate) fn is_on(&self) -> bool {
        // 5.2.5: who does not know FLUSH, has no cache.
        self.choice == Some(true) && self.flushes != Some(false)
    }

    /// What is known of the choice, for the server after this one.
    pub(crate) fn choice(&self) -> Option<bool> {
        self.choice
    }

    pub(crate) fn handle_features(&mut self, features: u64) {
        self.flushes = Some(features & feature::FLUSH != 0);
    }

    /// A ring is about to be served.
    pub(crate) fn handle_start(&mut self) {
        self.started = true;
    }

    /// The front end reads the configuration space.
    pub(crate) fn handle_read(&mut self) {
        if !self.started {
            self.choice.get_or_insert(true);
        }
    }

    /// The guest chooses.
    pub(crate) fn handle_choice(&mut self, on: bool) {
        self.choice = Some(on);
    }

    /// The front end brings what a server has noted.
    pub(crate) fn handle_note(&mut self, noted: Option<bool>) {
        self.choice = match (self.choice, noted) {
            // It may remember either.
            (Some(known), Some(noted)) => Some(known && noted),
            (known, noted) => known.or(noted),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = feature::FLUSH | feature::CONFIG_WCE;

    #[test]
    fn a_choice_lasts_over_features_and_guests() {
        let mut cache = Cache::default();
        assert!(!cache.is_on(), "nothing is known");
        cache.handle_read();
        assert!(cache.is_on());
        for features in [ALL, feature::CONFIG_WCE, ALL] {
            cache.handle_features(features);
            cache.handle_start();
            assert_eq!(
                cache.is_on(),
                features == ALL,
                "firmware does not flush, the system after it does"
            );
        }
        cache.handle_choice(false);
        cache.handle_features(0);
        cache.handle_features(ALL);
        cache.handle_read();
        assert!(!cache.is_on());
        cache.handle_choice(true);
        assert!(cache.is_on());
    }

    #[test]
    fn who_comes_back_is_asked_for_what_was_noted() {
        for (noted, reads, is_on) in [
            (Some(false), false, false),
            (Some(false), true, false),
            (Some(true), false, true),
            (Some(true), true, true),
            (None, false, false),
            (None, true, true),
        ] {
            let mut cache = Cache::default();
            if reads {
                cache.handle_read();
            }
            cache.handle_features(ALL);
            cache.handle_note(noted);
            cache.handle_start();
            assert_eq!(cache.is_on(), is_on, "{noted:?} {reads}");
            cache.handle_read();
            assert_eq!(cache.is_on(), is_on, "a late read is of one who remembers");
        }
    }
}
