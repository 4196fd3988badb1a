//! Places for connections. When all are taken, the connection that has been idle for the longest time gives way.
//!
//! A connection is idle while no request of it is answered: before the first head is whole, and between requests. So a
//! client that holds connections without requests keeps nobody out. One with requests has half of the places at most, until
//! they are answered: for as long as a body may take to come, or a call may wait. Others find the other half. Clients behind
//! one proxy are one client here.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Instant;

use tokio::sync::Notify;

use crate::attempts::network;
use crate::{MAX_CONNECTIONS, MAX_CONNECTIONS_OF_ADDRESS};

/// All places.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<Vec<Arc<Place>>>);

/// The place of one connection.
#[derive(Debug)]
pub(crate) struct Place {
    /// The address of the client, or all that it may have.
    network: IpAddr,
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
    /// Takes a place for a client at this address; `None` if all others are busy, or those of its address are and have their
    /// share.
    pub(crate) fn take(&self, address: IpAddr) -> Option<Taken<'_>> {
        let network = network(address);
        let mut all = lock(&self.0);
        let own = all.iter().filter(|place| place.network == network).count();
        let has_share = own >= MAX_CONNECTIONS_OF_ADDRESS;
        if has_share || all.len() >= MAX_CONNECTIONS {
            let idle = all.iter().enumerate();
            let idle = idle.filter(|(_, place)| !has_share || place.network == network);
            let idle = idle.filter_map(|(at, place)| Some((place.idle_since()?, at)));
            let (_, longest) = idle.min()?;
            all.swap_remove(longest).given_away.notify_one();
        }
        let state = State { is_answering: false, is_sending: false, last: Instant::now() };
        let (state, given_away) = (Mutex::new(state), Notify::new());
        let place = Arc::new(Place { network, state, given_away });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    /// Takes places for busy connections as long as there are any.
    fn take_all(places: &Places, address: IpAddr) -> Vec<Taken<'_>> {
        let taken = std::iter::from_fn(|| places.take(address));
        taken.inspect(|taken| taken.place.set_answering(true)).collect()
    }

    #[test]
    fn one_address_has_half_of_the_places() {
        let places = Places::default();
        let mut first = take_all(&places, address(1));
        assert_eq!(first.len(), MAX_CONNECTIONS_OF_ADDRESS);
        // All addresses of a network of IPv6 count as one, and those of IPv4 are the same in both forms.
        assert!(places.take("::ffff:192.0.2.1".parse().unwrap()).is_none());
        let second = take_all(&places, "2001:db8::1".parse().unwrap());
        assert_eq!((second.len(), places.taken()), (MAX_CONNECTIONS_OF_ADDRESS, MAX_CONNECTIONS));
        assert!(places.take("2001:db8::2".parse().unwrap()).is_none());
        assert!(places.take(address(3)).is_none(), "all are busy");
        drop(second);
        // An idle one of its own gives way, and no idle one of another address, while it has its share.
        let other = places.take(address(3)).unwrap();
        assert!(places.take(address(1)).is_none());
        first[0].place.set_answering(false);
        let newest = places.take(address(1)).unwrap();
        assert_eq!(places.taken(), MAX_CONNECTIONS_OF_ADDRESS + 1);
        first.remove(0);
        assert_eq!(
            places.taken(),
            MAX_CONNECTIONS_OF_ADDRESS + 1,
            "the place was given away before"
        );
        drop((newest, other));
    }

    #[test]
    fn without_a_place_the_longest_idle_one_gives_way_whosever_it_is() {
        let places = Places::default();
        let idle = places.take(address(1)).unwrap();
        let busy: Vec<_> =
            [2, 3].into_iter().flat_map(|it| take_all(&places, address(it))).collect();
        assert_eq!((busy.len(), places.taken()), (MAX_CONNECTIONS, MAX_CONNECTIONS));
        drop(idle);
        assert_eq!(places.taken(), MAX_CONNECTIONS);
    }
}
