//! What follows a handshake, without I/O: records of data, changes of keys, alerts and tickets (RFC 8446, 4.6, 5, 6).

use std::fmt;

use raceline_auth::SecretBytes;

use crate::error::TlsError;
use crate::record::{
    ALERT, APPLICATION_DATA, DATA_MAX, HANDSHAKE, HEADER, OVERHEAD, Opener, Sealer, Suite,
    TrafficKeys, opened_max, record_len,
};

/// A KeyUpdate with update_not_requested: the peer looks after its own keys.
pub(crate) const OWN_KEY_UPDATE: [u8; 5] = [KEY_UPDATE, 0, 0, 1, 0];

/// Records without data in a row, after which a peer is given up.
const EMPTY_MAX: u32 = 32;
/// Most bytes of a message after the handshake. The largest is a ticket.
const MESSAGE_MAX: usize = 16 << 10;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// Both directions of a connection after its handshake.
pub struct Session {
    sealer: Sealer,
    opener: Opener,
    /// A part of a message, whose rest is in the next record.
    message: Vec<u8>,
    /// Records in a row that brought no data.
    empty: u32,
    /// The peer has asked for another key of ours, and it is not made yet.
    key_asked: bool,
    /// How often the peer has changed its key.
    generation: u64,
    closed: bool,
    /// Why nothing is opened any more: a record that is missing must not go unnoticed.
    failed: Option<TlsError>,
}

/// What a record was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Data: as many bytes, which lie at this place of the memory in which the record was opened.
    Data {
        /// Where they begin.
        start: usize,
        /// How many there are.
        len: usize,
    },
    /// Nothing for the owner of the connection.
    Nothing,
    /// The peer sends nothing more.
    Closed,
}

impl Session {
    pub(crate) fn new(suite: Suite, send: SecretBytes, receive: SecretBytes) -> Session {
        Session {
            sealer: Sealer::new(suite, send),
            opener: Opener::new(suite, receive),
            message: Vec::new(),
            empty: 0,
            key_asked: false,
            generation: 0,
            closed: false,
            failed: None,
        }
    }

    /// Two ends with keys that anyone knows, for tests of what follows a handshake.
    #[doc(hidden)]
    #[must_use]
    pub fn pair(suite: Suite) -> (Session, Session) {
        let secret = |byte| SecretBytes::new(&[byte; 48][..suite.secret_len()]);
        (Session::new(suite, secret(1), secret(2)), Session::new(suite, secret(2), secret(1)))
    }

    /// Makes a record of any type at the front of `out`, for tests of peers that misbehave. Gives its length.
    ///
    /// # Panics
    /// If `out` has less than `sealed_max(content.len())` bytes.
    #[doc(hidden)]
    pub fn seal_any(&mut self, kind: u8, out: &mut [u8], content: &[u8]) -> usize {
        let sealed = self.sealer.seal(kind, out, |room| {
            room[..content.len()].copy_from_slice(content);
            content.len()
        });
        // As its own peer, so that the next record has the key that this one announces.
        if kind == HANDSHAKE && matches!(content, [KEY_UPDATE, 0, 0, 1, 0 | 1]) {
            self.sealer.change_key();
        }
        sealed
    }

    /// Memory that [`Self::seal`] needs for a record of `len` bytes, with the changes of keys before it.
    #[must_use]
    pub const fn sealed_max(len: usize) -> usize {
        len + OVERHEAD + KEY_UPDATE_RECORD
    }

    /// Makes a record of data at the front of `out`. `fill` writes the data into the memory that it gets, at most
    /// [`DATA_MAX`] bytes, and gives their number. Gives the number of bytes for the peer, and of data.
    ///
    /// # Panics
    /// If `out` has less than `sealed_max(1)` bytes.
    pub fn seal(
        &mut self,
        out: &mut [u8],
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> (usize, usize) {
        let before = self.change_key(out);
        let mut data = 0;
        let sealed = self.sealer.seal(APPLICATION_DATA, &mut out[before..], |room| {
            data = fill(room);
            data
        });
        (before + sealed, data)
    }

    /// Whether [`Self::answer`] has anything to say.
    #[must_use]
    pub fn owes_answer(&self) -> bool {
        self.key_asked
    }

    /// Makes what the peer has asked for, at the front of `out`, which has `sealed_max(1)` bytes. Gives its length.
    pub fn answer(&mut self, out: &mut [u8]) -> usize {
        self.change_key(out)
    }

    /// A KeyUpdate, if the peer has asked for it or the key is worn.
    fn change_key(&mut self, out: &mut [u8]) -> usize {
        if !self.owes_key() {
            return 0;
        }
        let message = OWN_KEY_UPDATE;
        let sealed = self.sealer.seal(HANDSHAKE, &mut out[..KEY_UPDATE_RECORD], |room| {
            room[..message.len()].copy_from_slice(&message);
            message.len()
        });
        self.take_next_key();
        sealed
    }

    /// Whether a KeyUpdate has to stand before the next data.
    pub(crate) fn owes_key(&self) -> bool {
        self.key_asked || self.sealer.is_worn()
    }

    /// Our KeyUpdate is sealed: turns to the key that follows it.
    pub(crate) fn take_next_key(&mut self) {
        self.key_asked = false;
        self.sealer.change_key();
    }

    /// What the kernel needs to make the records from here on.
    pub(crate) fn keys_to_send(&self) -> TrafficKeys {
        self.sealer.traffic_keys()
    }

    /// What the kernel needs to open the records from here on.
    pub(crate) fn keys_to_receive(&self) -> TrafficKeys {
        self.opener.traffic_keys()
    }

    /// The kernel has made at most as many records.
    pub(crate) fn skip_sent(&mut self, records: u64) {
        self.sealer.skip(records);
    }

    /// Takes the content of a record that the kernel has opened. The next key of the peer may begin with it: then
    /// [`Self::keys_to_receive`] gives that one, and `true` is the second value.
    pub(crate) fn take_opened(
        &mut self,
        kind: u8,
        content: &[u8],
    ) -> Result<(Opened, bool), TlsError> {
        if let Some(over) = self.over() {
            return over.map(|opened| (opened, false));
        }
        let before = self.generation;
        let result = self.take(kind, 0, content);
        self.settle(result).map(|opened| (opened, self.generation != before))
    }

    /// The kernel has opened data.
    pub(crate) fn take_data(&mut self) -> Result<(), TlsError> {
        if !self.message.is_empty() {
            return Err(TlsError::UnexpectedRecord(APPLICATION_DATA));
        }
        self.empty = 0;
        Ok(())
    }

    /// Makes the last record, at the front of `out`, which has `sealed_max(1)` bytes: close_notify, or the alert of an
    /// error.
    pub fn close(&mut self, error: Option<&TlsError>, out: &mut [u8]) -> usize {
        let alert = match error {
            None => [1, 0],
            Some(error) => match error.alert() {
                Some(description) => [2, description],
                None => return 0,
            },
        };
        self.sealer.seal(ALERT, &mut out[..alert.len() + OVERHEAD], |room| {
            room.copy_from_slice(&alert);
            alert.len()
        })
    }

    /// How long the record is, header included, that begins with these bytes; `None`: more are needed to know.
    ///
    /// # Errors
    /// When no such record may come.
    pub fn record_len(&self, bytes: &[u8]) -> Result<Option<usize>, TlsError> {
        record_len(bytes)
    }

    /// Opens a whole record where it lies.
    ///
    /// # Errors
    /// When the connection has to end. No other record is opened after an error.
    pub fn open(&mut self, record: &mut [u8]) -> Result<Opened, TlsError> {
        if let Some(over) = self.over() {
            return over;
        }
        let result = match self.opener.open(record) {
            Ok((kind, len)) => self.take(kind, HEADER, &record[HEADER..HEADER + len]),
            Err(error) => Err(error),
        };
        self.settle(result)
    }

    /// Opens a whole record into the front of `out`, which has the room that [`Self::opened_max`] says.
    ///
    /// # Errors
    /// As [`Self::open`]. What `out` then holds is not authentic.
    pub fn open_into(&mut self, record: &[u8], out: &mut [u8]) -> Result<Opened, TlsError> {
        if let Some(over) = self.over() {
            return over;
        }
        let result = match self.opener.open_into(record, out) {
            Ok((kind, len)) => self.take(kind, 0, &out[..len]),
            Err(error) => Err(error),
        };
        self.settle(result)
    }

    /// Bytes that [`Self::open_into`] may write for a record of `len` bytes, at least 17 of them behind its header.
    #[must_use]
    pub fn opened_max(len: usize) -> usize {
        opened_max(len)
    }

    /// What every record is after the end.
    fn over(&self) -> Option<Result<Opened, TlsError>> {
        match &self.failed {
            Some(error) => Some(Err(error.clone())),
            None => self.closed.then_some(Ok(Opened::Closed)),
        }
    }

    fn settle(&mut self, result: Result<Opened, TlsError>) -> Result<Opened, TlsError> {
        self.failed = result.as_ref().err().cloned();
        result
    }

    /// Takes the content of a record, which begins at `start` of the memory that it was opened in.
    fn take(&mut self, kind: u8, start: usize, content: &[u8]) -> Result<Opened, TlsError> {
        if kind == APPLICATION_DATA && !content.is_empty() {
            if !self.message.is_empty() {
                return Err(TlsError::UnexpectedRecord(kind));
            }
            self.empty = 0;
            return Ok(Opened::Data { start, len: content.len() });
        }
        self.empty += 1;
        if self.empty > EMPTY_MAX {
            return Err(TlsError::Flood);
        }
        match kind {
            APPLICATION_DATA if self.message.is_empty() => Ok(Opened::Nothing),
            ALERT => self.handle_alert(content),
            HANDSHAKE if !content.is_empty() => self.handle_messages(content),
            _ => Err(TlsError::UnexpectedRecord(kind)),
        }
    }

    fn handle_alert(&mut self, content: &[u8]) -> Result<Opened, TlsError> {
        match content {
            // close_notify, and user_canceled, which close_notify follows
            [_, 0] => {
                self.closed = true;
                Ok(Opened::Closed)
            }
            [_, 90] => Ok(Opened::Nothing),
            [_, description] => Err(TlsError::Alert(*description)),
            _ => Err(TlsError::Malformed("alert")),
        }
    }

    fn handle_messages(&mut self, content: &[u8]) -> Result<Opened, TlsError> {
        self.message.extend_from_slice(content);
        while let [kind, a, b, c, rest @ ..] = &self.message[..] {
            let kind = *kind;
            let len = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            if len > MESSAGE_MAX {
                return Err(TlsError::Malformed("message"));
            }
            if rest.len() < len {
                break;
            }
            let last = rest.len() == len;
            match (kind, &rest[..len]) {
                // A ticket would be for a resumption, which nobody here asks for.
                (NEW_SESSION_TICKET, _) => {}
                // The next key is that of the next record (RFC 8446, 5.1).
                (KEY_UPDATE, [request @ 0..=1]) if last => {
                    self.key_asked |= *request == 1;
                    self.opener.change_key();
                    self.generation += 1;
                }
                (KEY_UPDATE, _) => return Err(TlsError::Malformed("KeyUpdate")),
                _ => return Err(TlsError::UnexpectedMessage(kind)),
            }
            self.message.drain(..4 + len);
        }
        Ok(Opened::Nothing)
    }
}

/// Bytes of the record of a KeyUpdate.
const KEY_UPDATE_RECORD: usize = 5 + OVERHEAD;
const _: () = assert!(KEY_UPDATE_RECORD < DATA_MAX);

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("closed", &self.closed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Session, Session) {
        let (one, other) = (SecretBytes::new(&[1; 32]), SecretBytes::new(&[2; 32]));
        let suite = Suite::Aes128GcmSha256;
        (Session::new(suite, one.clone(), other.clone()), Session::new(suite, other, one))
    }

    /// A record with any content.
    fn record(session: &mut Session, kind: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![0; content.len() + OVERHEAD];
        session.sealer.seal(kind, &mut out, |room| {
            room.copy_from_slice(content);
            content.len()
        });
        out
    }

    fn data(session: &mut Session, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![0; Session::sealed_max(bytes.len())];
        let (len, taken) = session.seal(&mut out, |room| {
            room[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        });
        assert_eq!(taken, bytes.len());
        out.truncate(len);
        out
    }

    #[test]
    fn keys_change_when_the_peer_asks() {
        let (mut peer, mut own) = pair();
        for round in 0..3 {
            let mut update = record(&mut peer, HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 1]);
            peer.sealer.change_key();
            assert_eq!(own.open(&mut update), Ok(Opened::Nothing));
            assert!(own.owes_answer());
            let len = "later".len();
            let mut later = data(&mut peer, b"later");
            assert_eq!(own.open(&mut later), Ok(Opened::Data { start: HEADER, len }), "{round}");
            // The answer stands before the next data.
            let mut sent = data(&mut own, b"answer");
            let first = peer.record_len(&sent).unwrap().unwrap();
            assert_eq!(first, KEY_UPDATE_RECORD);
            assert_eq!(peer.open(&mut sent[..first]), Ok(Opened::Nothing));
            assert!(!peer.owes_answer() && !own.owes_answer());
            let len = "answer".len();
            assert_eq!(peer.open(&mut sent[first..]), Ok(Opened::Data { start: HEADER, len }));
        }
    }

    #[test]
    fn tickets_are_ignored_in_pieces_too() {
        let (mut peer, mut own) = pair();
        let ticket = [&[NEW_SESSION_TICKET, 0, 0, 9][..], &[7; 9]].concat();
        let two = [&ticket[..], &ticket[..]].concat();
        for pieces in [vec![&two[..]], vec![&two[..1], &two[1..20], &two[20..]]] {
            for piece in pieces {
                let mut record = record(&mut peer, HANDSHAKE, piece);
                assert_eq!(own.open(&mut record), Ok(Opened::Nothing));
            }
        }
        // Data do not come in the middle of a message.
        let mut begun = record(&mut peer, HANDSHAKE, &ticket[..5]);
        assert_eq!(own.open(&mut begun), Ok(Opened::Nothing));
        let mut inside = data(&mut peer, b"data");
        assert_eq!(own.open(&mut inside), Err(TlsError::UnexpectedRecord(APPLICATION_DATA)));
    }

    #[test]
    fn what_has_no_place_ends_the_connection() {
        for (kind, content, error) in [
            (20, &[1][..], TlsError::UnexpectedRecord(20)),
            (24, &[1], TlsError::UnexpectedRecord(24)),
            (HANDSHAKE, &[], TlsError::UnexpectedRecord(HANDSHAKE)),
            // ClientHello and CertificateRequest: no renegotiation, no certificates.
            (HANDSHAKE, &[1, 0, 0, 0], TlsError::UnexpectedMessage(1)),
            (HANDSHAKE, &[13, 0, 0, 0], TlsError::UnexpectedMessage(13)),
            (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 2], TlsError::Malformed("KeyUpdate")),
            (HANDSHAKE, &[KEY_UPDATE, 0, 0, 0], TlsError::Malformed("KeyUpdate")),
            // A key changes at the end of a record.
            (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0, 4], TlsError::Malformed("KeyUpdate")),
            (HANDSHAKE, &[4, 255, 255, 255], TlsError::Malformed("message")),
            (ALERT, &[2, 40], TlsError::Alert(40)),
            (ALERT, &[1], TlsError::Malformed("alert")),
        ] {
            let (mut peer, mut own) = pair();
            let mut record = record(&mut peer, kind, content);
            assert_eq!(own.open(&mut record), Err(error), "{kind} {content:?}");
        }
        // Nothing but padding.
        let (mut peer, mut own) = pair();
        let mut padding = record(&mut peer, 0, &[0; 30]);
        assert_eq!(own.open(&mut padding), Err(TlsError::UnexpectedRecord(0)));
    }

    #[test]
    fn padding_is_no_data() {
        let (mut peer, mut own) = pair();
        let mut padded = record(&mut peer, 0, &[b'a', b'b', APPLICATION_DATA, 0, 0, 0]);
        assert_eq!(own.open(&mut padded), Ok(Opened::Data { start: HEADER, len: 2 }));
        assert_eq!(&padded[HEADER..HEADER + 2], b"ab");
    }

    #[test]
    fn endless_changes_of_keys_are_given_up() {
        let (mut peer, mut own) = pair();
        for count in 0.. {
            let mut update = record(&mut peer, HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 1]);
            peer.sealer.change_key();
            match own.open(&mut update) {
                Ok(_) => assert!(count < EMPTY_MAX),
                Err(error) => {
                    assert_eq!((error, count), (TlsError::Flood, EMPTY_MAX));
                    break;
                }
            }
        }
    }
}
