//! Authentication Send and Receive, and the messages of DH-HMAC-CHAP that they carry (Base 2.0, 8.13).
//!
//! Numbers in messages are little-endian, keys and public values of groups are big-endian byte strings.

use super::command::{SglDescriptor, Sqe};
use super::opcode::fabrics;
use super::status::Status;

/// The longest message: a reply with two responses of 64 bytes and a public value of ffdhe8192, rounded up to
/// the size of the buffers that hosts use.
pub const MAX_MESSAGE_BYTES: u32 = 4096;
/// SECP of NVMe's own protocols.
const SECP_NVME: u8 = 0xe9;
/// SPSP0 and SPSP1 of authentication.
const SPSP: u8 = 0x01;

/// AUTH_TYPE of messages that all protocols have.
const TYPE_COMMON: u8 = 0x00;
/// AUTH_TYPE of the messages of DH-HMAC-CHAP.
const TYPE_DHCHAP: u8 = 0x01;
/// AUTHID of DH-HMAC-CHAP in a protocol descriptor.
const PROTOCOL_DHCHAP: u8 = 0x01;

const ID_NEGOTIATE: u8 = 0x00;
const ID_CHALLENGE: u8 = 0x01;
const ID_REPLY: u8 = 0x02;
const ID_SUCCESS1: u8 = 0x03;
const ID_SUCCESS2: u8 = 0x04;
const ID_FAILURE2: u8 = 0xf0;
const ID_FAILURE1: u8 = 0xf1;

/// Bytes of the messages before their lists and values.
const NEGOTIATE_HEAD: usize = 8;
const DESCRIPTOR_LEN: usize = 64;
const HEAD: usize = 16;
const FAILURE_LEN: usize = 8;
/// Most identifiers in each list of a protocol descriptor.
const MAX_IDS: usize = 30;
/// Reason code of every failure: authentication failed.
const REASON_FAILED: u8 = 0x01;

/// Builds an Authentication Send of `len` bytes, which go in the capsule.
#[must_use]
pub fn authentication_send(len: u32) -> Sqe {
    command(fabrics::AUTHENTICATION_SEND, len, SglDescriptor::in_capsule(len))
}

/// Builds an Authentication Receive of at most `len` bytes.
#[must_use]
pub fn authentication_receive(len: u32) -> Sqe {
    command(fabrics::AUTHENTICATION_RECEIVE, len, SglDescriptor::transport(len))
}

fn command(fctype: u8, len: u32, sgl1: SglDescriptor) -> Sqe {
    Sqe {
        opc: fabrics::OPCODE,
        flags: Sqe::PSDT_SGL,
        nsid: u32::from(fctype).into(),
        sgl1,
        cdw10: u32::from_le_bytes([0, SPSP, SPSP, SECP_NVME]).into(),
        cdw11: len.into(),
        ..Sqe::default()
    }
}

/// Whether a command is Authentication Send or Authentication Receive.
#[must_use]
pub fn is_authentication(sqe: &Sqe) -> bool {
    sqe.opc == fabrics::OPCODE
        && matches!(sqe.fctype(), fabrics::AUTHENTICATION_SEND | fabrics::AUTHENTICATION_RECEIVE)
}

/// Checks the words of an authentication command, and that its length is that of its data.
///
/// # Errors
/// Invalid Field: another security protocol, a length of 0, above [`MAX_MESSAGE_BYTES`], or unlike the SGL's.
pub fn check_words(sqe: &Sqe) -> Result<(), Status> {
    let [_, spsp0, spsp1, secp] = sqe.cdw10.get().to_le_bytes();
    let len = sqe.cdw11.get();
    let known = spsp0 == SPSP && spsp1 == SPSP && secp == SECP_NVME;
    if known && (1..=MAX_MESSAGE_BYTES).contains(&len) && len == sqe.sgl1.length.get() {
        Ok(())
    } else {
        Err(Status::INVALID_FIELD.dnr())
    }
}

/// Why an authentication failed, as the peer is told (Reason Code Explanation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Explanation {
    /// 01h: a response is not that of the shared secret.
    Failed,
    /// 02h: no protocol that both support.
    ProtocolNotUsable,
    /// 03h: the secure channel that is asked for cannot be had.
    SecureChannelMismatch,
    /// 04h: no hash function that both allow.
    HashNotUsable,
    /// 05h: no group that both allow.
    GroupNotUsable,
    /// 06h: a field of a message is wrong.
    IncorrectPayload,
    /// 07h: the message is not the one that is due.
    IncorrectMessage,
    /// Any other code.
    Other(u8),
}

impl Explanation {
    /// From the wire.
    #[must_use]
    pub fn from_wire(code: u8) -> Self {
        match code {
            0x01 => Self::Failed,
            0x02 => Self::ProtocolNotUsable,
            0x03 => Self::SecureChannelMismatch,
            0x04 => Self::HashNotUsable,
            0x05 => Self::GroupNotUsable,
            0x06 => Self::IncorrectPayload,
            0x07 => Self::IncorrectMessage,
            other => Self::Other(other),
        }
    }

    /// As on the wire.
    #[must_use]
    pub fn to_wire(self) -> u8 {
        match self {
            Self::Failed => 0x01,
            Self::ProtocolNotUsable => 0x02,
            Self::SecureChannelMismatch => 0x03,
            Self::HashNotUsable => 0x04,
            Self::GroupNotUsable => 0x05,
            Self::IncorrectPayload => 0x06,
            Self::IncorrectMessage => 0x07,
            Self::Other(code) => code,
        }
    }
}

/// AUTH_Negotiate: what the host offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// T_ID.
    pub t_id: u16,
    /// SC_C: which secure channel is to be made after the authentication; 0: none.
    pub sc_c: u8,
    /// Identifiers of hash functions and of groups; `None`: no DH-HMAC-CHAP among the protocols.
    pub dhchap: Option<(Vec<u8>, Vec<u8>)>,
}

/// DH-HMAC-CHAP_Challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// T_ID.
    pub t_id: u16,
    /// HashID.
    pub hash: u8,
    /// DHgID.
    pub group: u8,
    /// SEQNUM S1.
    pub seqnum: u32,
    /// C1: as long as the hash's output.
    pub challenge: Vec<u8>,
    /// The controller's public value; empty with the NULL group.
    pub public: Vec<u8>,
}

/// DH-HMAC-CHAP_Reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// T_ID.
    pub t_id: u16,
    /// R1.
    pub response: Vec<u8>,
    /// SEQNUM S2 and C2, if the controller has to prove itself, too. With an S2 of 0 it does not: C2 is only a part of the
    /// key of the secure channel that is made after the authentication.
    pub challenge: Option<(u32, Vec<u8>)>,
    /// The host's public value; empty with the NULL group.
    pub public: Vec<u8>,
}

/// A message of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMessage {
    /// AUTH_Negotiate.
    Negotiate(Negotiate),
    /// DH-HMAC-CHAP_Reply.
    Reply(Reply),
    /// DH-HMAC-CHAP_Success2.
    Success2 {
        /// T_ID.
        t_id: u16,
    },
    /// AUTH_Failure2.
    Failure2 {
        /// T_ID.
        t_id: u16,
        /// Why.
        explanation: Explanation,
    },
}

/// A message of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerMessage {
    /// DH-HMAC-CHAP_Challenge.
    Challenge(Challenge),
    /// DH-HMAC-CHAP_Success1.
    Success1 {
        /// T_ID.
        t_id: u16,
        /// R2, if the host sent a challenge.
        response: Option<Vec<u8>>,
        /// HL: the output length of the hash, also without a response.
        hash_len: u8,
    },
    /// AUTH_Failure1.
    Failure1 {
        /// T_ID.
        t_id: u16,
        /// Why.
        explanation: Explanation,
    },
}

/// Takes fields from the front of a message; a message that is too short has an incorrect payload.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Explanation> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Explanation::IncorrectPayload)?;
        self.0 = rest;
        Ok(head)
    }

    fn u8(&mut self) -> Result<u8, Explanation> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16, Explanation> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32, Explanation> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn end(&self) -> Result<(), Explanation> {
        if self.0.is_empty() { Ok(()) } else { Err(Explanation::IncorrectPayload) }
    }
}

/// Output length of a hash by HL; other lengths do not exist.
fn hash_len(hl: u8) -> Result<usize, Explanation> {
    if matches!(hl, 32 | 48 | 64) { Ok(hl.into()) } else { Err(Explanation::IncorrectPayload) }
}

/// T_ID of a message that may be wrong otherwise; 0 if it is too short to have one.
#[must_use]
pub fn transaction_of(message: &[u8]) -> u16 {
    match message {
        [_, _, _, _, low, high, ..] => u16::from_le_bytes([*low, *high]),
        _ => 0,
    }
}

impl HostMessage {
    /// Reads what an Authentication Send brought, exactly.
    ///
    /// # Errors
    /// What to tell the host in AUTH_Failure1.
    pub fn parse(bytes: &[u8]) -> Result<Self, Explanation> {
        let mut reader = Reader(bytes);
        let (auth_type, id) = (reader.u8()?, reader.u8()?);
        reader.take(2)?;
        let t_id = reader.u16()?;
        let message = match (auth_type, id) {
            (TYPE_COMMON, ID_NEGOTIATE) => Self::Negotiate(parse_negotiate(t_id, &mut reader)?),
            (TYPE_DHCHAP, ID_REPLY) => Self::Reply(parse_reply(t_id, &mut reader)?),
            (TYPE_DHCHAP, ID_SUCCESS2) => {
                reader.take(HEAD - 6)?;
                Self::Success2 { t_id }
            }
            (TYPE_COMMON, ID_FAILURE2) => {
                let explanation = parse_failure(&mut reader)?;
                Self::Failure2 { t_id, explanation }
            }
            _ => return Err(Explanation::IncorrectMessage),
        };
        reader.end()?;
        Ok(message)
    }

    /// The message as on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Negotiate(negotiate) => negotiate.to_bytes(),
            Self::Reply(reply) => reply.to_bytes(),
            Self::Success2 { t_id } => {
                let mut out = head(TYPE_DHCHAP, ID_SUCCESS2, *t_id);
                out.resize(HEAD, 0);
                out
            }
            Self::Failure2 { t_id, explanation } => failure(ID_FAILURE2, *t_id, *explanation),
        }
    }
}

impl ControllerMessage {
    /// Reads what an Authentication Receive brought. The buffer may be longer than the message.
    ///
    /// # Errors
    /// What to tell the controller in AUTH_Failure2.
    pub fn parse(bytes: &[u8]) -> Result<Self, Explanation> {
        let mut reader = Reader(bytes);
        let (auth_type, id) = (reader.u8()?, reader.u8()?);
        reader.take(2)?;
        let t_id = reader.u16()?;
        match (auth_type, id) {
            (TYPE_DHCHAP, ID_CHALLENGE) => parse_challenge(t_id, &mut reader).map(Self::Challenge),
            (TYPE_DHCHAP, ID_SUCCESS1) => {
                let hl = reader.u8()?;
                let len = hash_len(hl)?;
                reader.u8()?;
                let rvalid = reader.u8()?;
                reader.take(7)?;
                let response = match rvalid {
                    0 => None,
                    1 => Some(reader.take(len)?.to_vec()),
                    _ => return Err(Explanation::IncorrectPayload),
                };
                Ok(Self::Success1 { t_id, response, hash_len: hl })
            }
            (TYPE_COMMON, ID_FAILURE1) => {
                let explanation = parse_failure(&mut reader)?;
                Ok(Self::Failure1 { t_id, explanation })
            }
            _ => Err(Explanation::IncorrectMessage),
        }
    }

    /// The message as on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Challenge(challenge) => challenge.to_bytes(),
            Self::Success1 { t_id, response, hash_len } => {
                let mut out = head(TYPE_DHCHAP, ID_SUCCESS1, *t_id);
                out.extend([*hash_len, 0, u8::from(response.is_some())]);
                out.resize(HEAD, 0);
                out.extend(response.iter().flatten());
                out
            }
            Self::Failure1 { t_id, explanation } => failure(ID_FAILURE1, *t_id, *explanation),
        }
    }
}

fn head(auth_type: u8, id: u8, t_id: u16) -> Vec<u8> {
    let [low, high] = t_id.to_le_bytes();
    vec![auth_type, id, 0, 0, low, high]
}

fn failure(id: u8, t_id: u16, explanation: Explanation) -> Vec<u8> {
    let mut out = head(TYPE_COMMON, id, t_id);
    out.extend([REASON_FAILED, explanation.to_wire()]);
    debug_assert_eq!(out.len(), FAILURE_LEN);
    out
}

fn parse_failure(reader: &mut Reader<'_>) -> Result<Explanation, Explanation> {
    let (reason, explanation) = (reader.u8()?, reader.u8()?);
    if reason != REASON_FAILED {
        return Err(Explanation::IncorrectPayload);
    }
    Ok(Explanation::from_wire(explanation))
}

fn parse_negotiate(t_id: u16, reader: &mut Reader<'_>) -> Result<Negotiate, Explanation> {
    let (sc_c, napd) = (reader.u8()?, reader.u8()?);
    if napd == 0 {
        return Err(Explanation::IncorrectPayload);
    }
    let mut dhchap = None;
    for _ in 0..napd {
        let mut descriptor = Reader(reader.take(DESCRIPTOR_LEN)?);
        let (protocol, _) = (descriptor.u8()?, descriptor.u8()?);
        let (hashes, groups) = (usize::from(descriptor.u8()?), usize::from(descriptor.u8()?));
        if protocol != PROTOCOL_DHCHAP || dhchap.is_some() {
            continue;
        }
        if hashes > MAX_IDS || groups > MAX_IDS {
            return Err(Explanation::IncorrectPayload);
        }
        let (hash_ids, group_ids) = (descriptor.take(MAX_IDS)?, descriptor.take(MAX_IDS)?);
        dhchap = Some((hash_ids[..hashes].to_vec(), group_ids[..groups].to_vec()));
    }
    Ok(Negotiate { t_id, sc_c, dhchap })
}

fn parse_challenge(t_id: u16, reader: &mut Reader<'_>) -> Result<Challenge, Explanation> {
    let len = hash_len(reader.u8()?)?;
    reader.u8()?;
    let (hash, group) = (reader.u8()?, reader.u8()?);
    let public_len = reader.u16()?.into();
    let seqnum = reader.u32()?;
    let challenge = reader.take(len)?.to_vec();
    let public = reader.take(public_len)?.to_vec();
    Ok(Challenge { t_id, hash, group, seqnum, challenge, public })
}

fn parse_reply(t_id: u16, reader: &mut Reader<'_>) -> Result<Reply, Explanation> {
    let len = hash_len(reader.u8()?)?;
    reader.u8()?;
    let cvalid = reader.u8()?;
    reader.u8()?;
    let public_len = usize::from(reader.u16()?);
    let seqnum = reader.u32()?;
    let response = reader.take(len)?.to_vec();
    let challenge = reader.take(len)?.to_vec();
    let public = reader.take(public_len)?.to_vec();
    let challenge = match cvalid {
        0 => None,
        1 => Some((seqnum, challenge)),
        _ => return Err(Explanation::IncorrectPayload),
    };
    if !public_len.is_multiple_of(4) {
        return Err(Explanation::IncorrectPayload);
    }
    Ok(Reply { t_id, response, challenge, public })
}

fn byte(len: usize) -> u8 {
    u8::try_from(len).unwrap_or(u8::MAX)
}

impl Negotiate {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = head(TYPE_COMMON, ID_NEGOTIATE, self.t_id);
        out.extend([self.sc_c, 1]);
        if let Some((hashes, groups)) = &self.dhchap {
            let (hashes, groups) =
                (&hashes[..hashes.len().min(MAX_IDS)], &groups[..groups.len().min(MAX_IDS)]);
            out.extend([PROTOCOL_DHCHAP, 0, byte(hashes.len()), byte(groups.len())]);
            out.extend(hashes);
            out.resize(NEGOTIATE_HEAD + 4 + MAX_IDS, 0);
            out.extend(groups);
        }
        out.resize(NEGOTIATE_HEAD + DESCRIPTOR_LEN, 0);
        out
    }
}

impl Challenge {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = head(TYPE_DHCHAP, ID_CHALLENGE, self.t_id);
        out.extend([byte(self.challenge.len()), 0, self.hash, self.group]);
        out.extend(u16::try_from(self.public.len()).unwrap_or(u16::MAX).to_le_bytes());
        out.extend(self.seqnum.to_le_bytes());
        out.extend(&self.challenge);
        out.extend(&self.public);
        out
    }
}

impl Reply {
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = head(TYPE_DHCHAP, ID_REPLY, self.t_id);
        out.extend([byte(self.response.len()), 0, u8::from(self.challenge.is_some()), 0]);
        out.extend(u16::try_from(self.public.len()).unwrap_or(u16::MAX).to_le_bytes());
        let seqnum = self.challenge.as_ref().map_or(0, |(seqnum, _)| *seqnum);
        out.extend(seqnum.to_le_bytes());
        out.extend(&self.response);
        match &self.challenge {
            Some((_, challenge)) => out.extend(challenge),
            None => out.resize(out.len() + self.response.len(), 0),
        }
        out.extend(&self.public);
        out
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn host_messages() -> Vec<HostMessage> {
        let negotiate = Negotiate { t_id: 0x1234, sc_c: 0, dhchap: Some((vec![1, 2], vec![0, 5])) };
        let reply = |challenge, public: usize| {
            HostMessage::Reply(Reply {
                t_id: 7,
                response: vec![9; 48],
                challenge,
                public: vec![3; public],
            })
        };
        vec![
            HostMessage::Negotiate(negotiate),
            reply(None, 0),
            reply(Some((5, vec![8; 48])), 256),
            reply(Some((0, vec![8; 48])), 256),
            HostMessage::Success2 { t_id: 7 },
            HostMessage::Failure2 { t_id: 7, explanation: Explanation::Failed },
        ]
    }

    #[test]
    fn messages_of_hosts_are_read_as_written_and_exactly() {
        for message in host_messages() {
            let bytes = message.to_bytes();
            assert_eq!(HostMessage::parse(&bytes), Ok(message.clone()));
            let mut longer = bytes.clone();
            longer.push(0);
            assert_eq!(HostMessage::parse(&longer), Err(Explanation::IncorrectPayload));
            for len in 0..bytes.len() {
                assert_eq!(HostMessage::parse(&bytes[..len]), Err(Explanation::IncorrectPayload));
            }
        }
    }

    #[test]
    fn messages_of_controllers_are_read_as_written_from_a_longer_buffer() {
        let challenge = Challenge {
            t_id: 7,
            hash: 2,
            group: 1,
            seqnum: 0x0102_0304,
            challenge: vec![4; 48],
            public: vec![6; 256],
        };
        for message in [
            ControllerMessage::Challenge(challenge),
            ControllerMessage::Success1 { t_id: 7, response: None, hash_len: 32 },
            ControllerMessage::Success1 { t_id: 7, response: Some(vec![1; 64]), hash_len: 64 },
            ControllerMessage::Failure1 { t_id: 7, explanation: Explanation::Other(0x77) },
        ] {
            let mut bytes = message.to_bytes();
            for len in 0..bytes.len() {
                assert!(ControllerMessage::parse(&bytes[..len]).is_err(), "{message:?} {len}");
            }
            bytes.resize(4096, 0);
            assert_eq!(ControllerMessage::parse(&bytes), Ok(message));
        }
    }

    #[test]
    fn layout() {
        let messages = host_messages();
        let negotiate = messages[0].to_bytes();
        assert_eq!(negotiate.len(), 72);
        assert_eq!(negotiate[..14], [0, 0, 0, 0, 0x34, 0x12, 0, 1, 1, 0, 2, 2, 1, 2]);
        assert_eq!(negotiate[42..44], [0, 5]);
        let reply = messages[2].to_bytes();
        assert_eq!(reply.len(), 16 + 2 * 48 + 256);
        assert_eq!(reply[..16], [1, 2, 0, 0, 7, 0, 48, 0, 1, 0, 0, 1, 5, 0, 0, 0]);
        assert_eq!(messages[3].to_bytes()[8..16], [1, 0, 0, 1, 0, 0, 0, 0], "CVALID and no number");
        assert_eq!(messages[4].to_bytes().len(), 16);
        assert_eq!(messages[5].to_bytes(), [0, 0xf0, 0, 0, 7, 0, 1, 1]);
        let send = authentication_send(72);
        let bytes = send.as_bytes();
        assert_eq!((bytes[0], bytes[4]), (0x7f, 5));
        assert_eq!(bytes[40..48], [0, 1, 1, 0xe9, 72, 0, 0, 0]);
        assert_eq!(check_words(&send), Ok(()));
        let longer = Sqe { cdw11: 73.into(), ..send };
        assert_eq!(check_words(&longer), Err(Status::INVALID_FIELD.dnr()));
    }

    #[test]
    fn wrong_fields_are_refused() {
        let messages = host_messages();
        let refuse = |message: &HostMessage, at: usize, value: u8, why| {
            let mut bytes = message.to_bytes();
            bytes[at] = value;
            assert_eq!(HostMessage::parse(&bytes), Err(why), "byte {at} = {value}");
        };
        use Explanation::{IncorrectMessage, IncorrectPayload};
        refuse(&messages[0], 7, 0, IncorrectPayload); // no protocol
        refuse(&messages[0], 7, 2, IncorrectPayload); // more than there are
        refuse(&messages[0], 10, 31, IncorrectPayload); // more identifiers than fit
        refuse(&messages[0], 11, 31, IncorrectPayload);
        refuse(&messages[0], 1, 9, IncorrectMessage);
        refuse(&messages[2], 6, 47, IncorrectPayload); // no hash has this length
        refuse(&messages[2], 8, 2, IncorrectPayload); // CVALID
        refuse(&messages[2], 10, 2, IncorrectPayload); // DHVLEN
        refuse(&messages[5], 6, 2, IncorrectPayload); // reason code
    }
}
