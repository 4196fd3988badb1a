//! Sockets whose hosts have not shown who they are: how many there may be, and which one gives way to a new one.
//!
//! A socket is *early* until its Connect has completed and, where its host has to authenticate, until it has. Silent
//! sockets would keep real hosts out if the caps only refused newcomers. So at the cap of all, the oldest socket of the
//! most crowded source gives way to one of a source that has fewer: a crowd of many sources shares the places evenly
//! with everyone else, and among sources with as many sockets the oldest one goes. At the cap of its source, the oldest
//! socket gives way if it is not new.
//!
//! A source is *known* while it has a connection that is not early. Its host may connect all its queues at once, so a
//! part of its early sockets does not count when crowds are compared: strangers with a socket each do not keep them out.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::changes::config::PreConnectLimits;
use crate::records::names::Place;

/// A socket of less than this age does not give way to another one of its source: a real host needs this time at most
/// where nothing is lost.
const PATIENCE: Duration = Duration::from_millis(500);

/// Of the sockets that a source may have, the part that does not count as a crowd if the source is known.
const KNOWN_PART: usize = 4;

/// Where a socket comes from, as it is counted: an IPv4 address, or the 64 bits of an IPv6 address that one customer
/// of a provider gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source(u64);

impl Source {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self(u32::from(v4).into()),
            IpAddr::V6(v6) => {
                let [prefix @ .., _, _, _, _, _, _, _, _] = v6.octets();
                let prefix = u64::from_be_bytes(prefix);
                // Not among the IPv4 addresses: ::/32 is reserved, except for the loopback address.
                Self(if prefix == 0 { u64::MAX } else { prefix })
            }
        }
    }

    /// As a number.
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// Names an early socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    source: Source,
    number: u64,
}

/// Why a socket is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowded {
    /// Too many sockets are early, and none gives way.
    Total,
    /// Too many of them from this source, and none gives way.
    Source,
}

/// The early sockets of a target.
pub(crate) struct Early {
    total_max: usize,
    per_source_max: usize,
    /// The sockets of each source that has any, the oldest first.
    sources: HashMap<Source, VecDeque<Guest>>,
    /// Connections of each source that are not early any more.
    known: HashMap<Source, usize>,
    total: usize,
    last: u64,
}

struct Guest {
    number: u64,
    since: Instant,
    /// Its connection, once a core has it.
    place: Option<Place>,
}

impl Early {
    pub(crate) fn new(limits: &PreConnectLimits) -> Self {
        let (total_max, per_source_max) = (limits.total, limits.per_source);
        let (sources, known) = (HashMap::new(), HashMap::new());
        Self { total_max, per_source_max, sources, known, total: 0, last: 0 }
    }

    /// Counts a socket, or refuses it. Gives the connection that has to be closed for it.
    pub(crate) fn enter(
        &mut self,
        address: IpAddr,
        now: Instant,
    ) -> Result<(Ticket, Option<Place>), Crowded> {
        let source = Source::of(address);
        let own = self.sources.get(&source).map_or(0, VecDeque::len);
        let displaced = if own >= self.per_source_max {
            Some(self.displace(source, now, PATIENCE).ok_or(Crowded::Source)?)
        } else if self.total >= self.total_max {
            let crowd = self.crowd(self.counted(source, own));
            let displaced = crowd.and_then(|crowd| self.displace(crowd, now, Duration::ZERO));
            Some(displaced.ok_or(Crowded::Total)?)
        } else {
            None
        };
        self.last += 1;
        let number = self.last;
        let guest = Guest { number, since: now, place: None };
        self.sources.entry(source).or_default().push_back(guest);
        self.total += 1;
        Ok((Ticket { source, number }, displaced))
    }

    /// Sockets of a source that has `count` of them, as crowds are compared.
    fn counted(&self, source: Source, count: usize) -> usize {
        let free =
            if self.known.contains_key(&source) { self.per_source_max / KNOWN_PART } else { 0 };
        count.saturating_sub(free)
    }

    /// The source with the most sockets, and the oldest one among those with as many, if it has more than `own`.
    fn crowd(&self, own: usize) -> Option<Source> {
        let rank = |source: &Source, guests: &VecDeque<Guest>| {
            let oldest = guests.front().map_or(u64::MAX, |guest| guest.number);
            (self.counted(*source, guests.len()), Reverse(oldest))
        };
        let ranked = self.sources.iter().map(|(source, guests)| (rank(source, guests), *source));
        let ((count, _), source) = ranked.max_by_key(|(rank, _)| *rank)?;
        (count > own).then_some(source)
    }

    /// The oldest socket of a source gives way, if it has this age and a core has it.
    fn displace(&mut self, source: Source, now: Instant, age: Duration) -> Option<Place> {
        let oldest = self.sources.get(&source)?.front()?;
        let is_old = now.saturating_duration_since(oldest.since) >= age;
        let (number, place) = (oldest.number, oldest.place.filter(|_| is_old));
        place?;
        self.leave(Ticket { source, number });
        place
    }

    /// A core has made the connection.
    pub(crate) fn settle(&mut self, ticket: Ticket, place: Place) {
        if let Some(guest) = self.find(ticket) {
            guest.place = Some(place);
        }
    }

    fn find(&mut self, ticket: Ticket) -> Option<&mut Guest> {
        let guests = self.sources.get_mut(&ticket.source)?;
        let at = guests.binary_search_by_key(&ticket.number, |guest| guest.number).ok()?;
        guests.get_mut(at)
    }

    /// The socket is not early any more, or is gone. One that has given way has left already.
    pub(crate) fn leave(&mut self, ticket: Ticket) {
        let Some(guests) = self.sources.get_mut(&ticket.source) else { return };
        let at = guests.binary_search_by_key(&ticket.number, |guest| guest.number);
        if at.is_ok_and(|at| guests.remove(at).is_some()) {
            self.total -= 1;
        }
        if guests.is_empty() {
            self.sources.remove(&ticket.source);
        }
    }

    /// The socket's host has shown who it is: it is a connection of a known source until [`Self::depart`].
    pub(crate) fn admit(&mut self, ticket: Ticket) {
        self.leave(ticket);
        *self.known.entry(ticket.source).or_default() += 1;
    }

    /// A connection that was admitted is gone.
    pub(crate) fn depart(&mut self, address: IpAddr) {
        let source = Source::of(address);
        if let Some(count) = self.known.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.known.remove(&source);
            }
        }
    }

    /// How many there are.
    pub(crate) fn total(&self) -> usize {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::names::ConnKey;

    fn place(index: u32) -> Place {
        Place { core: 0, key: ConnKey { index, generation: 0 } }
    }

    fn small() -> Early {
        Early::new(&PreConnectLimits { total: 3, per_source: 2, ..PreConnectLimits::default() })
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    #[test]
    fn sockets_are_capped_by_source_and_in_total() {
        let (mut early, now) = (small(), Instant::now());
        let (first, _) = early.enter(address(1), now).unwrap();
        early.enter(address(1), now).unwrap();
        assert_eq!(early.enter(address(1), now), Err(Crowded::Source));
        early.enter(address(2), now).unwrap();
        assert_eq!(early.enter(address(2), now), Err(Crowded::Total));
        early.leave(first);
        early.leave(first);
        assert_eq!(early.total(), 2);
        early.enter(address(2), now).unwrap();
        assert_eq!(early.total(), 3);
    }

    #[test]
    fn the_oldest_of_the_crowd_gives_way() {
        let (mut early, now) = (small(), Instant::now());
        let tickets = [(); 2].map(|()| early.enter(address(1), now).unwrap().0);
        for (ticket, index) in tickets.into_iter().zip(1..) {
            early.settle(ticket, place(index));
        }
        // At the cap of its source, after some time.
        assert_eq!(early.enter(address(1), now), Err(Crowded::Source));
        let (third, displaced) = early.enter(address(1), now + PATIENCE).unwrap();
        assert_eq!(displaced, Some(place(1)));
        assert_eq!(early.total(), 2);
        early.leave(tickets[0]);
        assert_eq!(early.total(), 2, "it has left already");
        // At the cap of all, at once: a source with fewer sockets has precedence, and not one with as many.
        let (_, displaced) = early.enter(address(2), now).unwrap();
        assert_eq!(displaced, None);
        let (_, displaced) = early.enter(address(3), now).unwrap();
        assert_eq!(displaced, Some(place(2)));
        early.settle(third, place(3));
        assert_eq!(early.enter(address(3), now), Err(Crowded::Total));
        assert_eq!(early.enter(address(1), now), Err(Crowded::Total));
        assert_eq!(early.total(), 3);
    }

    #[test]
    fn of_many_strangers_the_oldest_gives_way() {
        let limits = PreConnectLimits { total: 100, per_source: 8, ..PreConnectLimits::default() };
        let (mut early, now) = (Early::new(&limits), Instant::now());
        for number in 0..200u32 {
            let address = IpAddr::from((0x7f01_0000 + number).to_be_bytes());
            let (ticket, displaced) = early.enter(address, now).unwrap();
            early.settle(ticket, place(number));
            assert_eq!(displaced, number.checked_sub(100).map(place), "{number}");
        }
    }

    #[test]
    fn strangers_do_not_keep_the_queues_of_a_known_host_out() {
        let limits = PreConnectLimits { total: 100, per_source: 8, ..PreConnectLimits::default() };
        let (mut early, now, host) = (Early::new(&limits), Instant::now(), address(1));
        let stranger = |number: u32| IpAddr::from((0x7f01_0000 + number).to_be_bytes());
        let enter = |early: &mut Early, address, number| {
            let entered = early.enter(address, now);
            let ticket = entered.map(|(ticket, _)| ticket);
            ticket.iter().for_each(|ticket| early.settle(*ticket, place(number)));
            ticket
        };
        let mut strangers = 0..;
        for number in strangers.by_ref().take(100) {
            enter(&mut early, stranger(number), number).unwrap();
        }
        // A first socket gets a place, and a second one does not: nobody has more than it.
        let admin = enter(&mut early, host, 1000).unwrap();
        assert_eq!(enter(&mut early, host, 1001), Err(Crowded::Total));
        early.admit(admin);
        for number in strangers.by_ref().take(1) {
            enter(&mut early, stranger(number), number).unwrap();
        }
        // Two do not count, and the third is one of a crowd that is no smaller than the others.
        for number in 1002..1005 {
            enter(&mut early, host, number).unwrap();
        }
        assert_eq!(enter(&mut early, host, 1005), Err(Crowded::Total));
        early.depart(host);
        assert_eq!(early.enter(stranger(5000), now).unwrap().1, Some(place(1002)));
        early.depart(host);
    }

    #[test]
    fn a_socket_that_no_core_has_does_not_give_way() {
        let (mut early, now) = (small(), Instant::now());
        let (first, _) = early.enter(address(1), now).unwrap();
        early.enter(address(1), now).unwrap();
        assert_eq!(early.enter(address(1), now + PATIENCE), Err(Crowded::Source));
        early.settle(first, place(1));
        assert_eq!(early.enter(address(1), now + PATIENCE).unwrap().1, Some(place(1)));
    }

    #[test]
    fn addresses_of_one_network_are_one_source() {
        let of = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("::1"), of("0.0.0.0"));
    }
}
