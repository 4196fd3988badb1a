//! Places for connections. When all are taken, the connection that has been idle for the longest time gives way.
//!
//! A connection is idle while no request of it is answered: before the first head is whole, and between requests. So a
//! client that holds connections without requests keeps nobody out. One with requests in all places does, until they are
//! answered: for as long as a body may take to come, or a call may wait.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Instant;

use tokio::sync::Notify;

use crate::MAX_CONNECTIONS;

/// All places.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<Vec<Arc<Place>>>);

/// The place of one connection.
#[derive(Debug)]
pub(crate) struct Place {
    state: Mutex<State>,
    /// Another connection has the place.
    given_away: Notify,
}

#[derive(Debug)]
struct State {
    is_answering: bool,
    is_sending: bool,
    /// When it last answered or sent anything, or began.
    last: Instant,
}

/// A place that is taken until this is dropped.
pub(crate) struct Taken<'a> {
    places: &'a Places,
    pub(crate) place: Arc<Place>,
}

impl Places {
    /// Takes a place; `None` if all others are busy.
    pub(crate) fn take(&self) -> Option<Taken<'_>> {
        let mut all = lock(&self.0);
        if all.len() >= MAX_CONNECTIONS {
            let idle = all.iter().enumerate();
            let idle = idle.filter_map(|(at, place)| Some((place.idle_since()?, at)));
            let (_, longest) = idle.min()?;
            all.swap_remove(longest).given_away.notify_one();
        }
        let state = State { is_answering: false, is_sending: false, last: Instant::now() };
        let place = Arc::new(Place { state: Mutex::new(state), given_away: Notify::new() });
        all.push(Arc::clone(&place));
        Some(Taken { places: self, place })
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        lock(&self.0).len()
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        lock(&self.places.0).retain(|place| !Arc::ptr_eq(place, &self.place));
    }
}

impl Place {
    /// Notes whether a request is being answered.
    pub(crate) fn set_answering(&self, is_answering: bool) {
        let mut state = lock(&self.state);
        (state.is_answering, state.last) = (is_answering, Instant::now());
    }

    /// Notes whether the socket is full with an answer.
    pub(crate) fn set_sending(&self, is_sending: bool) {
        let mut state = lock(&self.state);
        (state.is_sending, state.last) = (is_sending, Instant::now());
    }

    fn idle_since(&self) -> Option<Instant> {
        let state = lock(&self.state);
        (!state.is_answering && !state.is_sending).then_some(state.last)
    }

    /// Does the work of the connection; `None` once the place is given away.
    pub(crate) async fn hold<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let (mut given_away, mut work) = (pin!(self.given_away.notified()), pin!(work));
        poll_fn(|context| match given_away.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => work.as_mut().poll(context).map(Some),
        })
        .await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
