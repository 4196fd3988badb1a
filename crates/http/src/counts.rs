//! What the server counts of itself.

use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;

use crate::places::Places;

/// A count that threads share.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Classes of answers.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// All counts, and the places for connections.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    answers: [Count; CLASSES.len()],
    /// Connections that were too many.
    pub(crate) refused: Count,
    /// Requests with a token that is wrong or cannot be read.
    pub(crate) wrong_tokens: Count,
    /// How long the last answer to a scraper took to make.
    pub(crate) scrape_ns: Count,
    pub(crate) places: Places,
}

impl Counts {
    pub(crate) fn answered(&self, status: StatusCode) {
        let class = usize::from(status.as_u16() / 100).clamp(1, CLASSES.len());
        self.answers[class - 1].add_one();
    }

    /// Answers by their class.
    pub(crate) fn answers(&self) -> Vec<(&'static str, u64)> {
        CLASSES.into_iter().zip(self.answers.iter().map(Count::get)).collect()
    }

    /// Connections now.
    pub(crate) fn connections(&self) -> usize {
        self.places.taken()
    }
}
