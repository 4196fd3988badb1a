//! What the operational keys of a login come to, for the end that answers and for the end that offers (RFC 7143,
//! 6.2 and section 13).

use crate::keys::{Key, KeySet};
use crate::pdu::{DEFAULT_DATA_SEGMENT_LEN, MAX_DATA_SEGMENT_LEN};
use crate::text::{Text, answer, boolean, list, number, yes_or_no};

/// The parameters of a connection and its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// SessionType is Discovery.
    pub discovery: bool,
    /// HeaderDigest is CRC32C.
    pub header_digest: bool,
    /// DataDigest is CRC32C.
    pub data_digest: bool,
    /// InitialR2T: no unsolicited Data-Out.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength of this end, in bytes.
    pub max_data_segment_len: u32,
    /// MaxRecvDataSegmentLength of the peer, in bytes.
    pub peer_max_data_segment_len: u32,
    /// MaxBurstLength in bytes.
    pub max_burst_len: u32,
    /// FirstBurstLength in bytes, at most MaxBurstLength.
    pub first_burst_len: u32,
    /// MaxOutstandingR2T.
    pub max_outstanding_r2t: u16,
    /// DefaultTime2Wait in seconds.
    pub time2wait_s: u16,
    /// DefaultTime2Retain in seconds.
    pub time2retain_s: u16,
}

impl Default for Parameters {
    /// The defaults of section 13: they hold for a key that nobody names.
    fn default() -> Self {
        Self {
            discovery: false,
            header_digest: false,
            data_digest: false,
            initial_r2t: true,
            immediate_data: true,
            max_data_segment_len: DEFAULT_DATA_SEGMENT_LEN,
            peer_max_data_segment_len: DEFAULT_DATA_SEGMENT_LEN,
            max_burst_len: 262_144,
            first_burst_len: 65_536,
            max_outstanding_r2t: 1,
            time2wait_s: 2,
            time2retain_s: 20,
        }
    }
}

/// What an end wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// CRC32C is acceptable as header digest.
    pub header_digest: bool,
    /// CRC32C is acceptable as data digest.
    pub data_digest: bool,
    /// No digest is acceptable. An initiator that wants digests for certain says false.
    pub no_header_digest: bool,
    /// As `no_header_digest`, for data digests.
    pub no_data_digest: bool,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength to declare, in bytes.
    pub max_data_segment_len: u32,
    /// MaxBurstLength at most, in bytes.
    pub max_burst_len: u32,
    /// FirstBurstLength at most, in bytes.
    pub first_burst_len: u32,
    /// MaxOutstandingR2T at most.
    pub max_outstanding_r2t: u16,
    /// DefaultTime2Wait at least, in seconds.
    pub time2wait_s: u16,
}

/// Range of the keys that are lengths (13.12 to 13.14).
const LENGTHS: std::ops::RangeInclusive<u32> = 512..=MAX_DATA_SEGMENT_LEN;

/// The value of a numerical key that is within its range.
fn ranged(key: Key, value: &str) -> Option<u32> {
    let range = match key {
        Key::MaxRecvDataSegmentLength | Key::MaxBurstLength | Key::FirstBurstLength => LENGTHS,
        Key::MaxConnections | Key::MaxOutstandingR2t => 1..=65_535,
        Key::DefaultTime2Wait | Key::DefaultTime2Retain => 0..=3600,
        Key::ErrorRecoveryLevel => 0..=2,
        Key::IScsiProtocolLevel => 0..=31,
        Key::TargetPortalGroupTag => 0..=65_535,
        _ => return None,
    };
    number(value).filter(|number| range.contains(number))
}

/// A number of a key whose range fits into 16 bits.
fn short(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

/// The end that answers offers: the target.
#[derive(Clone, Debug)]
pub struct Responder {
    wishes: Wishes,
    /// What has been negotiated so far.
    pub parameters: Parameters,
    seen: KeySet,
    declared: bool,
}

impl Responder {
    /// Before the first offer.
    #[must_use]
    pub fn new(wishes: Wishes) -> Self {
        Self { wishes, parameters: Parameters::default(), seen: KeySet::default(), declared: false }
    }

    /// Whether a key has not come before in this login; remembers it.
    pub fn is_first(&mut self, key: Key) -> bool {
        self.seen.insert(key)
    }

    /// Answers the offer of an operational key. A value that is outside its range is answered with Reject, and
    /// the default stays.
    pub fn answer(&mut self, key: Key, value: &str, text: &mut Text) {
        if self.parameters.discovery && key.needs_normal_session() {
            text.push(key.name(), answer::IRRELEVANT);
            return;
        }
        match key {
            Key::HeaderDigest | Key::DataDigest => self.answer_digest(key, value, text),
            Key::InitialR2t
            | Key::ImmediateData
            | Key::DataPduInOrder
            | Key::DataSequenceInOrder => {
                self.answer_boolean(key, value, text);
            }
            Key::IfMarker | Key::OfMarker => text.push(key.name(), answer::NO),
            Key::IfMarkInt | Key::OfMarkInt => text.push(key.name(), answer::REJECT),
            Key::TaskReporting => {
                let known = list(value).any(|offer| offer == "RFC3720");
                text.push(key.name(), if known { "RFC3720" } else { answer::REJECT });
            }
            _ => match ranged(key, value) {
                Some(offer) => self.answer_number(key, offer, text),
                None => text.push(key.name(), answer::REJECT),
            },
        }
    }

    fn answer_digest(&mut self, key: Key, value: &str, text: &mut Text) {
        let (crc, none) = if key == Key::HeaderDigest {
            (self.wishes.header_digest, self.wishes.no_header_digest)
        } else {
            (self.wishes.data_digest, self.wishes.no_data_digest)
        };
        let chosen = list(value).find(|&offer| match offer {
            "CRC32C" => crc,
            answer::NONE => none,
            _ => false,
        });
        let on = chosen == Some("CRC32C");
        if key == Key::HeaderDigest {
            self.parameters.header_digest = on;
        } else {
            self.parameters.data_digest = on;
        }
        text.push(key.name(), chosen.unwrap_or(answer::REJECT));
    }

    fn answer_boolean(&mut self, key: Key, value: &str, text: &mut Text) {
        let Some(offer) = boolean(value) else {
            text.push(key.name(), answer::REJECT);
            return;
        };
        let result = match key {
            Key::InitialR2t => {
                self.parameters.initial_r2t = offer || self.wishes.initial_r2t;
                self.parameters.initial_r2t
            }
            Key::ImmediateData => {
                self.parameters.immediate_data = offer && self.wishes.immediate_data;
                self.parameters.immediate_data
            }
            _ => true, // the orders: OR of the offer and Yes
        };
        text.push(key.name(), yes_or_no(result));
    }

    fn answer_number(&mut self, key: Key, offer: u32, text: &mut Text) {
        let parameters = &mut self.parameters;
        let result = match key {
            Key::MaxRecvDataSegmentLength => {
                parameters.peer_max_data_segment_len = offer;
                self.declare(text);
                return;
            }
            Key::MaxBurstLength => {
                parameters.max_burst_len = offer.min(self.wishes.max_burst_len);
                parameters.max_burst_len
            }
            Key::FirstBurstLength => {
                parameters.first_burst_len = offer.min(self.wishes.first_burst_len);
                parameters.first_burst_len
            }
            Key::MaxOutstandingR2t => {
                let result = short(offer).min(self.wishes.max_outstanding_r2t);
                parameters.max_outstanding_r2t = result;
                u32::from(result)
            }
            Key::DefaultTime2Wait => {
                parameters.time2wait_s = short(offer).max(self.wishes.time2wait_s);
                u32::from(parameters.time2wait_s)
            }
            // No state outlives a connection.
            Key::DefaultTime2Retain => {
                parameters.time2retain_s = 0;
                0
            }
            Key::MaxConnections => 1,
            Key::ErrorRecoveryLevel => 0,
            Key::IScsiProtocolLevel => offer.min(1),
            _ => {
                text.push(key.name(), answer::REJECT);
                return;
            }
        };
        text.push_number(key.name(), result);
    }

    /// Declares MaxRecvDataSegmentLength of this end, once: the last chance is the text with which the login leaves the
    /// operational stage.
    pub fn declare(&mut self, text: &mut Text) {
        if !self.declared {
            self.declared = true;
            self.parameters.max_data_segment_len = self.wishes.max_data_segment_len;
            text.push_number(
                Key::MaxRecvDataSegmentLength.name(),
                self.wishes.max_data_segment_len,
            );
        }
    }

    /// What holds in the full feature phase.
    #[must_use]
    pub fn result(&self) -> Parameters {
        let parameters = self.parameters;
        let first_burst_len = parameters.first_burst_len.min(parameters.max_burst_len);
        Parameters { first_burst_len, ..parameters }
    }
}

/// The end that makes offers: the initiator.
#[derive(Clone, Debug)]
pub struct Offerer {
    wishes: Wishes,
    /// What has been negotiated so far.
    pub parameters: Parameters,
    offered: KeySet,
    answered: KeySet,
}

impl Offerer {
    /// Before the first offer.
    #[must_use]
    pub fn new(wishes: Wishes, discovery: bool) -> Self {
        let parameters = Parameters { discovery, ..Parameters::default() };
        Self { wishes, parameters, offered: KeySet::default(), answered: KeySet::default() }
    }

    /// Appends all offers.
    pub fn offer(&mut self, text: &mut Text) {
        let wishes = self.wishes;
        let digest = |on: bool, off: bool| match (on, off) {
            (true, true) => "CRC32C,None",
            (true, false) => "CRC32C",
            (false, _) => answer::NONE,
        };
        let mut push = |key: Key, value: &str| {
            self.offered.insert(key);
            text.push(key.name(), value);
        };
        push(Key::HeaderDigest, digest(wishes.header_digest, wishes.no_header_digest));
        push(Key::DataDigest, digest(wishes.data_digest, wishes.no_data_digest));
        push(Key::MaxRecvDataSegmentLength, &wishes.max_data_segment_len.to_string());
        push(Key::DefaultTime2Wait, &wishes.time2wait_s.to_string());
        push(Key::DefaultTime2Retain, "0");
        push(Key::ErrorRecoveryLevel, "0");
        if !self.parameters.discovery {
            push(Key::MaxConnections, "1");
            push(Key::InitialR2t, yes_or_no(wishes.initial_r2t));
            push(Key::ImmediateData, yes_or_no(wishes.immediate_data));
            push(Key::MaxBurstLength, &wishes.max_burst_len.to_string());
            push(Key::FirstBurstLength, &wishes.first_burst_len.to_string());
            push(Key::MaxOutstandingR2t, &wishes.max_outstanding_r2t.to_string());
            push(Key::DataPduInOrder, answer::YES);
            push(Key::DataSequenceInOrder, answer::YES);
        }
        self.parameters.max_data_segment_len = wishes.max_data_segment_len;
    }

    /// Takes the target's answer to an offer, or an offer of the target's own, whose answer is appended to `text`.
    /// Gives whether the value is one that the offer allows.
    pub fn take(&mut self, key: Key, value: &str, text: &mut Text) -> bool {
        if !self.answered.insert(key) {
            return false;
        }
        if key == Key::MaxRecvDataSegmentLength {
            let declared = ranged(key, value);
            self.parameters.peer_max_data_segment_len = declared.unwrap_or_default();
            return declared.is_some();
        }
        if !self.offered.contains(key) {
            return self.take_offer(key, value, text);
        }
        if matches!(value, answer::REJECT | answer::IRRELEVANT | answer::NOT_UNDERSTOOD) {
            // The default holds. For a digest that is None, which must be acceptable.
            return match key {
                Key::HeaderDigest => self.wishes.no_header_digest,
                Key::DataDigest => self.wishes.no_data_digest,
                Key::MaxConnections | Key::ErrorRecoveryLevel => true,
                _ => value != answer::REJECT,
            };
        }
        self.take_answer(key, value)
    }

    fn take_answer(&mut self, key: Key, value: &str) -> bool {
        let wishes = self.wishes;
        let parameters = &mut self.parameters;
        let digest = |on: bool, off: bool| match value {
            "CRC32C" => on.then_some(true),
            answer::NONE => (off || !on).then_some(false),
            _ => None,
        };
        match key {
            Key::HeaderDigest => digest(wishes.header_digest, wishes.no_header_digest)
                .map(|on| parameters.header_digest = on)
                .is_some(),
            Key::DataDigest => digest(wishes.data_digest, wishes.no_data_digest)
                .map(|on| parameters.data_digest = on)
                .is_some(),
            Key::InitialR2t => boolean(value)
                .filter(|&result| result || !wishes.initial_r2t)
                .map(|result| parameters.initial_r2t = result)
                .is_some(),
            Key::ImmediateData => boolean(value)
                .filter(|&result| !result || wishes.immediate_data)
                .map(|result| parameters.immediate_data = result)
                .is_some(),
            Key::DataPduInOrder | Key::DataSequenceInOrder => value == answer::YES,
            _ => ranged(key, value).is_some_and(|result| self.take_number(key, result)),
        }
    }

    fn take_number(&mut self, key: Key, result: u32) -> bool {
        let wishes = self.wishes;
        let parameters = &mut self.parameters;
        match key {
            Key::MaxBurstLength => {
                parameters.max_burst_len = result;
                result <= wishes.max_burst_len
            }
            Key::FirstBurstLength => {
                parameters.first_burst_len = result;
                result <= wishes.first_burst_len
            }
            Key::MaxOutstandingR2t => {
                parameters.max_outstanding_r2t = short(result);
                result <= u32::from(wishes.max_outstanding_r2t)
            }
            Key::DefaultTime2Wait => {
                parameters.time2wait_s = short(result);
                result >= u32::from(wishes.time2wait_s)
            }
            Key::DefaultTime2Retain => {
                parameters.time2retain_s = short(result);
                result == 0
            }
            Key::MaxConnections => result == 1,
            Key::ErrorRecoveryLevel => result == 0,
            _ => false,
        }
    }

    /// An offer that a target makes by itself.
    fn take_offer(&mut self, key: Key, value: &str, text: &mut Text) -> bool {
        match key {
            Key::TargetAlias | Key::TargetPortalGroupTag | Key::TargetAddress => return true,
            Key::InitiatorName | Key::InitiatorAlias | Key::SendTargets | Key::SessionType => {
                return false;
            }
            _ => {}
        }
        let mut responder = Responder::new(self.wishes);
        responder.parameters = self.parameters;
        responder.answer(key, value, text);
        self.parameters = responder.parameters;
        true
    }

    /// What holds in the full feature phase.
    #[must_use]
    pub fn result(&self) -> Parameters {
        let parameters = self.parameters;
        let first_burst_len = parameters.first_burst_len.min(parameters.max_burst_len);
        Parameters { first_burst_len, ..parameters }
    }
}
