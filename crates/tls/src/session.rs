//! What follows a handshake, without I/O: records of data, changes of keys, alerts and tickets (RFC 8446, 4.6, 5, 6).

use std::fmt;

use raceline_auth::SecretBytes;

use crate::error::TlsError;
use crate::record::{
    ALERT, APPLICATION_DATA, DATA_MAX, HANDSHAKE, HEADER, OVERHEAD, Opener, Sealer, Suite,
    record_len,
};

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
    closed: bool,
}

/// What a record was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Data: as many bytes, which lie at this place in the record.
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
            closed: false,
        }
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
        if !self.key_asked && !self.sealer.is_worn() {
            return 0;
        }
        self.key_asked = false;
        // update_not_requested: the peer looks after its own keys.
        let message = [KEY_UPDATE, 0, 0, 1, 0];
        let sealed = self.sealer.seal(HANDSHAKE, &mut out[..KEY_UPDATE_RECORD], |room| {
            room[..message.len()].copy_from_slice(&message);
            message.len()
        });
        self.sealer.change_key();
        sealed
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
    /// When the connection has to end.
    pub fn open(&mut self, record: &mut [u8]) -> Result<Opened, TlsError> {
        if self.closed {
            return Ok(Opened::Closed);
        }
        let (kind, len) = self.opener.open(record)?;
        if kind == APPLICATION_DATA && len > 0 {
            if !self.message.is_empty() {
                return Err(TlsError::UnexpectedRecord(kind));
            }
            self.empty = 0;
            return Ok(Opened::Data { start: HEADER, len });
        }
        self.empty += 1;
        if self.empty > EMPTY_MAX {
            return Err(TlsError::Flood);
        }
        let content = &record[HEADER..HEADER + len];
        match kind {
            APPLICATION_DATA if self.message.is_empty() => Ok(Opened::Nothing),
            ALERT => self.handle_alert(content),
            HANDSHAKE if len > 0 => self.handle_messages(content),
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
