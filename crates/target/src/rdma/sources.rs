//! What the connections of each source have of a listener's memory for data, so that no host has all of it.

use std::net::SocketAddr;

use crate::records::early::Source;

/// The place of a source in [`Sources`].
pub(super) type SourceId = usize;

/// Bytes of buffers in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// For data from hosts.
    pub(super) fetched: u64,
    /// For data to hosts.
    pub(super) given: u64,
}

/// A source with connections.
#[derive(Debug)]
struct Entry {
    source: Source,
    /// Connections; 0: the place is free.
    connections: u32,
    held: Held,
}

/// All sources that have connections of a listener. There are never more than connections.
#[derive(Debug, Default)]
pub(super) struct Sources {
    all: Vec<Entry>,
}

impl Sources {
    /// A connection of this address comes.
    pub(super) fn enter(&mut self, address: SocketAddr) -> SourceId {
        let source = Source::of(address.ip());
        let known = |entry: &Entry| entry.connections > 0 && entry.source == source;
        if let Some(at) = self.all.iter().position(known) {
            self.all[at].connections += 1;
            return at;
        }
        let entry = Entry { source, connections: 1, held: Held::default() };
        match self.all.iter().position(|entry| entry.connections == 0) {
            Some(at) => {
                self.all[at] = entry;
                at
            }
            None => {
                self.all.push(entry);
                self.all.len() - 1
            }
        }
    }

    /// A connection of the source goes. It has given all buffers back.
    pub(super) fn leave(&mut self, at: SourceId) {
        self.all[at].connections -= 1;
    }

    /// What the connections of the source have.
    pub(super) fn held(&mut self, at: SourceId) -> &mut Held {
        &mut self.all[at].held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_one_source_count_together() {
        let address = |last: u8, port| SocketAddr::from(([192, 0, 2, last], port));
        let mut sources = Sources::default();
        let first = sources.enter(address(1, 1000));
        let second = sources.enter(address(2, 1000));
        assert_ne!(first, second);
        assert_eq!(sources.enter(address(1, 2000)), first);
        sources.held(first).given += 4096;
        assert_eq!(sources.held(second).given, 0);
        sources.held(first).given -= 4096;
        sources.leave(first);
        assert_eq!(sources.enter(address(1, 3000)), first, "it still has a connection");
        sources.leave(first);
        sources.leave(first);
        assert_eq!(sources.enter(address(3, 1000)), first, "the place is free");
        assert_eq!(sources.all.len(), 2);
    }
}
