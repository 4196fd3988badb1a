//! The server's side of the fixed newstyle negotiation.

use super::export::ExportFacts;
use super::wire::{
    self, BASE_ALLOCATION, BASE_ALLOCATION_ID, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, NBD_MAGIC,
    OPTION_LEN, OPTION_MAGIC, OPTION_REPLY_MAGIC, info, option, option_reply,
};

/// Options of one connection: more than any client needs.
pub const MAX_OPTIONS: u32 = 128;

/// Most bytes of data of an option that are looked at: a name has at most 4,096.
const MAX_OPTION_DATA: u32 = 8 << 10;

/// Most bytes of data of an option that are thrown away.
const MAX_SKIPPED: u32 = 1 << 20;

/// Most characters of a name that are shown to people.
const MAX_SHOWN: usize = 64;

/// Bytes of zeroes that end the answer to EXPORT_NAME.
const EXPORT_NAME_ZEROES: usize = 124;

/// What client and server have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Which export it is.
    pub export: usize,
    /// Replies with data are structured.
    pub structured: bool,
    /// The context `base:allocation` was chosen.
    pub allocation: bool,
}

/// Whether clients may, or have to, begin TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsPolicy {
    /// There is no TLS.
    #[default]
    None,
    /// A client may begin it.
    Allowed,
    /// Without it, a client learns nothing and gets nothing (section "Required mode").
    Required,
}

/// How far the negotiation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The client has to send more.
    Goes,
    /// TLS begins once the client has the answer; [`Negotiation::secured`] goes on.
    StartsTls,
    /// Requests follow.
    Begins(Agreement),
    /// The client has ended it in order: the connection is closed when it has the answer.
    Ends,
    /// The client has broken the protocol: the connection is closed.
    Broken(Refused),
}

/// Why a client does not get what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It has set handshake flags that it was not offered.
    #[error("it answers with the flags {0:#x}, of which not all were offered")]
    Flags(u32),
    /// An option does not begin with the magic number.
    #[error("an option begins with {0:#018x} instead of IHAVEOPT")]
    Magic(u64),
    /// An option is longer than what is thrown away, or than the name of an export.
    #[error("option {0} has {1} bytes of data, which are too many")]
    TooLong(u32, u32),
    /// It sends options without end.
    #[error("it has sent {MAX_OPTIONS} options and begins nothing")]
    TooMany,
    /// TLS is required, and the client has not begun it.
    #[error("it asks for an export without TLS, which is required: begin TLS by NBD_OPT_STARTTLS")]
    NoTls,
    /// Bytes have come behind STARTTLS before its answer has gone: somebody may have put them there.
    #[error("it sends {0} bytes in the clear behind STARTTLS")]
    PlainBehindStartTls(usize),
    /// There is no export of this name, which is cut off after 64 characters.
    #[error("it asks for the export {0:?}, which is not there")]
    Unknown(String),
    /// The export has large blocks, and the client has asked for all but how large they are (INFO).
    #[error("it does not ask for the block size, which is {0} bytes")]
    BlockSize(u32),
}

impl Refused {
    fn unknown(name: &[u8]) -> Self {
        Self::Unknown(String::from_utf8_lossy(name).chars().take(MAX_SHOWN).collect())
    }
}

/// The state of a negotiation. It holds at most one option.
#[derive(Debug)]
pub struct Negotiation {
    /// Bytes of what has not come whole: the client's flags, or an option.
    pending: Vec<u8>,
    has_flags: bool,
    no_zeroes: bool,
    /// Bytes of an option that is too long, to be thrown away.
    skip: u32,
    options: u32,
    structured: bool,
    /// The export for which `base:allocation` was chosen.
    allocation: Option<usize>,
    tls: TlsPolicy,
    /// What comes now comes by TLS.
    is_secure: bool,
    /// What the last answer has refused.
    told: Option<Refused>,
}

impl Negotiation {
    /// Begins one: appends what the server says first.
    #[must_use]
    pub fn new(tls: TlsPolicy, out: &mut Vec<u8>) -> Self {
        out.extend(NBD_MAGIC.to_be_bytes());
        out.extend(OPTION_MAGIC.to_be_bytes());
        out.extend((FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        Self {
            pending: Vec::new(),
            has_flags: false,
            no_zeroes: false,
            skip: 0,
            options: 0,
            structured: false,
            allocation: None,
            tls,
            is_secure: false,
            told: None,
        }
    }

    /// Goes on by TLS. What was agreed on in the clear is forgotten, as whoever is between both could have said it.
    pub fn secured(&mut self) {
        self.is_secure = true;
        self.structured = false;
        self.allocation = None;
    }

    /// What an answer has refused since this was asked before. The client may ask for something else.
    pub fn take_told(&mut self) -> Option<Refused> {
        self.told.take()
    }

    /// Takes bytes of the client, and appends answers; gives how many of the bytes it has taken. It takes all of them
    /// while [`Progress::Goes`].
    pub fn handle(
        &mut self,
        exports: &[ExportFacts],
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> (usize, Progress) {
        let mut rest = input;
        loop {
            let taken = |rest: &[u8]| input.len() - rest.len();
            let skipped =
                usize::try_from(self.skip).map_or(rest.len(), |skip| skip.min(rest.len()));
            rest = &rest[skipped..];
            self.skip -= u32::try_from(skipped).unwrap_or(self.skip);
            if self.skip > 0 {
                return (taken(rest), Progress::Goes);
            }
            let wanted = match self.wanted() {
                Ok(wanted) => wanted,
                Err(refused) => return (taken(rest), Progress::Broken(refused)),
            };
            if let Some(missing @ 1..) = wanted.checked_sub(self.pending.len()) {
                let (now, later) = rest.split_at(rest.len().min(missing));
                self.pending.extend_from_slice(now);
                rest = later;
                if now.len() < missing {
                    return (taken(rest), Progress::Goes);
                }
                // What came may want more, or be refused.
                continue;
            }
            let whole = std::mem::take(&mut self.pending);
            match self.handle_whole(exports, &whole, out) {
                Progress::Goes => {}
                progress => return (taken(rest), progress),
            }
        }
    }

    /// How many bytes decide what follows: the client's flags, an option's magic number, its header, all of it. It
    /// never asks for bytes past one that is refused, so that a refusal does not depend on how the bytes were cut.
    fn wanted(&self) -> Result<usize, Refused> {
        if !self.has_flags {
            return Ok(size_of::<u32>());
        }
        let Some((magic, rest)) = wire::split_u64(&self.pending) else {
            return Ok(size_of::<u64>());
        };
        if magic != OPTION_MAGIC {
            return Err(Refused::Magic(magic));
        }
        let Some((kind, rest)) = wire::split_u32(rest) else { return Ok(OPTION_LEN) };
        let Some((len, _)) = wire::split_u32(rest) else { return Ok(OPTION_LEN) };
        if len > MAX_SKIPPED {
            return Err(Refused::TooLong(kind, len));
        }
        // What is too long is answered, and thrown away.
        let data = if len > MAX_OPTION_DATA { 0 } else { usize::try_from(len).unwrap_or(0) };
        Ok(OPTION_LEN + data)
    }

    fn handle_whole(
        &mut self,
        exports: &[ExportFacts],
        whole: &[u8],
        out: &mut Vec<u8>,
    ) -> Progress {
        if !self.has_flags {
            let flags = wire::split_u32(whole).map_or(0, |(flags, _)| flags);
            if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
                return Progress::Broken(Refused::Flags(flags));
            }
            self.has_flags = true;
            self.no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
            return Progress::Goes;
        }
        let (header, data) = whole.split_at(OPTION_LEN);
        let (kind, len) = wire::split_u32(&header[8..])
            .and_then(|(kind, rest)| Some((kind, wire::split_u32(rest)?.0)))
            .unwrap_or((0, 0));
        self.options += 1;
        if self.options > MAX_OPTIONS {
            return Progress::Broken(Refused::TooMany);
        }
        if self.lacks_tls(kind) {
            if kind == option::EXPORT_NAME {
                return Progress::Broken(Refused::NoTls);
            }
            self.skip = if len > MAX_OPTION_DATA { len } else { 0 };
            self.told = Some(Refused::NoTls);
            let text = b"TLS is required: begin it by NBD_OPT_STARTTLS";
            return answer(out, kind, option_reply::ERR_TLS_REQD, text);
        }
        if len > MAX_OPTION_DATA {
            if kind == option::EXPORT_NAME {
                return Progress::Broken(Refused::TooLong(kind, len));
            }
            self.skip = len;
            return answer(out, kind, option_reply::ERR_TOO_BIG, b"the option has too many data");
        }
        self.handle_option(exports, kind, data, out)
    }

    /// Whether an option has to wait for TLS.
    fn lacks_tls(&self, kind: u32) -> bool {
        let is_free = matches!(kind, option::STARTTLS | option::ABORT);
        self.tls == TlsPolicy::Required && !self.is_secure && !is_free
    }

    fn start_tls(&self, data: &[u8], out: &mut Vec<u8>) -> Progress {
        let kind = option::STARTTLS;
        if self.tls == TlsPolicy::None {
            return answer(out, kind, option_reply::ERR_UNSUP, b"the server has no TLS");
        }
        if self.is_secure {
            return invalid(out, kind, "this connection has TLS already");
        }
        if !data.is_empty() {
            return invalid(out, kind, "the option has no data");
        }
        answer(out, kind, option_reply::ACK, b"");
        Progress::StartsTls
    }

    fn handle_option(
        &mut self,
        exports: &[ExportFacts],
        kind: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Progress {
        match kind {
            option::EXPORT_NAME => self.export_name(exports, data, out),
            option::ABORT => {
                answer(out, kind, option_reply::ACK, b"");
                Progress::Ends
            }
            option::STARTTLS => self.start_tls(data, out),
            option::LIST if data.is_empty() => {
                for export in exports {
                    let name_len = u32::try_from(export.name.len()).unwrap_or(0);
                    let name = [&name_len.to_be_bytes(), export.name.as_bytes()].concat();
                    let data = [&name, export.description.as_bytes()].concat();
                    answer(out, kind, option_reply::SERVER, &data);
                }
                answer(out, kind, option_reply::ACK, b"")
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                answer(out, kind, option_reply::ACK, b"")
            }
            option::LIST | option::STRUCTURED_REPLY => invalid(out, kind, "the option has no data"),
            option::INFO | option::GO => self.info(exports, kind, data, out),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(exports, kind, data, out)
            }
            _ => {
                answer(out, kind, option_reply::ERR_UNSUP, b"the server does not have this option")
            }
        }
    }

    fn agreement(&self, export: usize) -> Agreement {
        let allocation = self.allocation == Some(export);
        Agreement { export, structured: self.structured, allocation }
    }

    fn export_name(&self, exports: &[ExportFacts], name: &[u8], out: &mut Vec<u8>) -> Progress {
        let Some((index, export)) = find(exports, name) else {
            return Progress::Broken(Refused::unknown(name));
        };
        out.extend(export.bytes.to_be_bytes());
        out.extend(export.flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; EXPORT_NAME_ZEROES]);
        }
        Progress::Begins(self.agreement(index))
    }

    /// INFO and GO.
    fn info(
        &mut self,
        exports: &[ExportFacts],
        kind: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Progress {
        let Some((name, wanted)) = parse_info(data) else {
            return invalid(out, kind, "the lengths in the option do not fit its data");
        };
        let Some((index, export)) = find(exports, name) else {
            return self.unknown(name, out, kind);
        };
        let wants = |what: u16| wanted.chunks_exact(2).any(|it| it == what.to_be_bytes());
        // A client that does not ask for the block size takes 512 bytes for one. Who only looks is told to ask. Who begins is let in,
        // as by EXPORT_NAME: nbd-client does not ask and has an option for the size. A request that is no whole block is refused.
        if kind == option::INFO && !wants(info::BLOCK_SIZE) && export.block_bytes > 512 {
            self.told = Some(Refused::BlockSize(export.block_bytes));
            let text = "requests have to be whole blocks: ask for NBD_INFO_BLOCK_SIZE";
            return answer(out, kind, option_reply::ERR_BLOCK_SIZE_REQD, text.as_bytes());
        }
        let mut tell = |what: u16, data: &[u8]| {
            let data = [&what.to_be_bytes(), data].concat();
            answer(out, kind, option_reply::INFO, &data);
        };
        let flags = export.flags(self.structured).to_be_bytes();
        tell(info::EXPORT, &[&export.bytes.to_be_bytes()[..], &flags].concat());
        tell(info::BLOCK_SIZE, export.block_sizes().map(u32::to_be_bytes).as_flattened());
        if wants(info::NAME) {
            tell(info::NAME, export.name.as_bytes());
        }
        if wants(info::DESCRIPTION) && !export.description.is_empty() {
            tell(info::DESCRIPTION, export.description.as_bytes());
        }
        answer(out, kind, option_reply::ACK, b"");
        if kind == option::GO { Progress::Begins(self.agreement(index)) } else { Progress::Goes }
    }

    fn unknown(&mut self, name: &[u8], out: &mut Vec<u8>, kind: u32) -> Progress {
        self.told = Some(Refused::unknown(name));
        answer(out, kind, option_reply::ERR_UNKNOWN, b"there is no such export")
    }

    /// LIST_META_CONTEXT and SET_META_CONTEXT.
    fn meta_context(
        &mut self,
        exports: &[ExportFacts],
        kind: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> Progress {
        let is_set = kind == option::SET_META_CONTEXT;
        if is_set {
            self.allocation = None;
            if !self.structured {
                return invalid(out, kind, "structured replies have to be negotiated before");
            }
        }
        let Some((name, queries)) = parse_meta_context(data) else {
            return invalid(out, kind, "the lengths in the option do not fit its data");
        };
        let Some((index, export)) = find(exports, name) else {
            return self.unknown(name, out, kind);
        };
        let names_it =
            |query: &&[u8]| *query == BASE_ALLOCATION.as_bytes() || (!is_set && *query == b"base:");
        let lists_all = !is_set && queries.is_empty();
        if export.knows_holes && (lists_all || queries.iter().any(names_it)) {
            let id = if is_set { BASE_ALLOCATION_ID } else { 0 };
            let data = [&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()].concat();
            answer(out, kind, option_reply::META_CONTEXT, &data);
            if is_set {
                self.allocation = Some(index);
            }
        }
        answer(out, kind, option_reply::ACK, b"")
    }
}

/// The export of a name; the empty name is the first.
fn find<'a>(exports: &'a [ExportFacts], name: &[u8]) -> Option<(usize, &'a ExportFacts)> {
    let is_it = |export: &ExportFacts| name.is_empty() || export.name.as_bytes() == name;
    exports.iter().enumerate().find(|(_, export)| is_it(export))
}

/// The name, and the kinds of information as they came.
fn parse_info(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, rest) = split_counted(data)?;
    let (count, wanted) = wire::split_u16(rest)?;
    (wanted.len() == 2 * usize::from(count)).then_some((name, wanted))
}

/// The name of the export, and the queries.
fn parse_meta_context(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (name, rest) = split_counted(data)?;
    let (count, mut rest) = wire::split_u32(rest)?;
    let mut queries = Vec::new();
    // Each query takes bytes of `rest`, so that `count` may be any number.
    for _ in 0..count {
        let (query, more) = split_counted(rest)?;
        queries.push(query);
        rest = more;
    }
    rest.is_empty().then_some((name, queries))
}

/// Bytes behind their length, and the rest.
fn split_counted(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = wire::split_u32(data)?;
    rest.split_at_checked(usize::try_from(len).ok()?)
}

fn answer(out: &mut Vec<u8>, kind: u32, reply: u32, data: &[u8]) -> Progress {
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(reply.to_be_bytes());
    out.extend(u32::try_from(data.len()).unwrap_or(0).to_be_bytes());
    out.extend(data);
    Progress::Goes
}

fn invalid(out: &mut Vec<u8>, kind: u32, text: &str) -> Progress {
    answer(out, kind, option_reply::ERR_INVALID, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exports() -> Vec<ExportFacts> {
        let disk = ExportFacts {
            name: "disk".to_owned(),
            description: "a disk".to_owned(),
            bytes: 1 << 20,
            block_bytes: 512,
            preferred_bytes: 4096,
            read_only: false,
            trims: true,
            fast_zero: true,
            in_memory: false,
            knows_holes: true,
        };
        let large = ExportFacts {
            name: "large".to_owned(),
            block_bytes: 4096,
            read_only: true,
            knows_holes: false,
            ..disk.clone()
        };
        vec![disk, large]
    }

    fn option(kind: u32, data: &[u8]) -> Vec<u8> {
        let len = u32::try_from(data.len()).unwrap();
        let header = [&OPTION_MAGIC.to_be_bytes()[..], &kind.to_be_bytes(), &len.to_be_bytes()];
        [&header.concat(), data].concat()
    }

    fn go(kind: u32, name: &str, wanted: &[u16]) -> Vec<u8> {
        let mut data = counted(name);
        data.extend(u16::try_from(wanted.len()).unwrap().to_be_bytes());
        data.extend(wanted.iter().flat_map(|it| it.to_be_bytes()));
        option(kind, &data)
    }

    fn counted(text: &str) -> Vec<u8> {
        [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
    }

    fn context(kind: u32, name: &str, queries: &[&str]) -> Vec<u8> {
        let mut data = counted(name);
        data.extend(u32::try_from(queries.len()).unwrap().to_be_bytes());
        data.extend(queries.iter().flat_map(|query| counted(query)));
        option(kind, &data)
    }

    /// Feeds it whole; gives the replies (type, data) and what has come of it.
    fn talk(messages: &[Vec<u8>]) -> (Vec<(u32, Vec<u8>)>, Progress) {
        talk_under(TlsPolicy::None, messages)
    }

    /// The same where TLS may, or has to be.
    fn talk_under(tls: TlsPolicy, messages: &[Vec<u8>]) -> (Vec<(u32, Vec<u8>)>, Progress) {
        let mut out = Vec::new();
        let mut negotiation = Negotiation::new(tls, &mut out);
        out.clear();
        let input = [vec![0, 0, 0, 3], messages.concat()].concat();
        let (_, progress) = negotiation.handle(&exports(), &input, &mut out);
        let mut replies = Vec::new();
        let mut rest = &out[..];
        while let Some((header, more)) = rest.split_at_checked(20) {
            assert_eq!(header[..8], OPTION_REPLY_MAGIC.to_be_bytes());
            let reply = u32::from_be_bytes(header[12..16].try_into().unwrap());
            let len = u32::from_be_bytes(header[16..].try_into().unwrap());
            let (data, more) = more.split_at(len.try_into().unwrap());
            replies.push((reply, data.to_vec()));
            rest = more;
        }
        (replies, progress)
    }

    fn kinds(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
        replies.iter().map(|(kind, _)| *kind).collect()
    }

    #[test]
    fn tls_begins_where_it_is_allowed_and_nothing_goes_before_it_where_it_is_required() {
        const TLS_REQD: u32 = option_reply::ERR_TLS_REQD;
        let start = option(option::STARTTLS, b"");
        let (replies, progress) = talk_under(TlsPolicy::None, &[start.clone(), option(3, b"")]);
        assert_eq!((kinds(&replies), progress), (vec![1 << 31 | 1, 2, 2, 1], Progress::Goes));
        for policy in [TlsPolicy::Allowed, TlsPolicy::Required] {
            let wrong = option(option::STARTTLS, b"x");
            let (replies, progress) = talk_under(policy, &[wrong, start.clone()]);
            assert_eq!((kinds(&replies), progress), (vec![1 << 31 | 3, 1], Progress::StartsTls));
        }
        let (replies, progress) = talk_under(TlsPolicy::Allowed, &[go(option::GO, "", &[])]);
        assert_eq!((replies.len(), matches!(progress, Progress::Begins(_))), (3, true));

        let long = option(77, &[0; 9000]);
        let asks = [option(3, b""), option(8, b""), go(option::GO, "", &[]), long, start.clone()];
        let (replies, progress) = talk_under(TlsPolicy::Required, &asks);
        assert_eq!(kinds(&replies), [TLS_REQD, TLS_REQD, TLS_REQD, TLS_REQD, 1]);
        assert!(String::from_utf8_lossy(&replies[0].1).contains("TLS is required"));
        assert_eq!(progress, Progress::StartsTls);
        let name = option(option::EXPORT_NAME, b"disk");
        let (replies, progress) = talk_under(TlsPolicy::Required, &[name]);
        assert_eq!((replies.len(), progress), (0, Progress::Broken(Refused::NoTls)));
        let (replies, progress) = talk_under(TlsPolicy::Required, &[option(option::ABORT, b"")]);
        assert_eq!((kinds(&replies), progress), (vec![1], Progress::Ends));
    }

    #[test]
    fn tls_forgets_what_was_agreed_on_in_the_clear() {
        let mut out = Vec::new();
        let mut negotiation = Negotiation::new(TlsPolicy::Allowed, &mut out);
        let context = context(option::SET_META_CONTEXT, "disk", &[BASE_ALLOCATION]);
        let before = [option(8, b""), context, option(option::STARTTLS, b""), vec![7; 5]].concat();
        let input = [vec![0, 0, 0, 3], before].concat();
        let (taken, progress) = negotiation.handle(&exports(), &input, &mut out);
        assert_eq!((taken, progress), (input.len() - 5, Progress::StartsTls), "5 are behind it");
        negotiation.secured();
        out.clear();
        let again = [option(option::STARTTLS, b""), go(option::GO, "disk", &[])].concat();
        let (_, progress) = negotiation.handle(&exports(), &again, &mut out);
        assert_eq!(out[12..16], option_reply::ERR_INVALID.to_be_bytes(), "it has TLS already");
        let agreed = Agreement { export: 0, structured: false, allocation: false };
        assert_eq!(progress, Progress::Begins(agreed));
    }

    #[test]
    fn a_client_chooses_an_export() {
        let messages = [
            option(option::STRUCTURED_REPLY, b""),
            context(option::SET_META_CONTEXT, "disk", &["x:y", BASE_ALLOCATION]),
            go(option::GO, "disk", &[info::BLOCK_SIZE, info::NAME]),
        ];
        let (replies, progress) = talk(&messages);
        let agreed = Agreement { export: 0, structured: true, allocation: true };
        assert_eq!(progress, Progress::Begins(agreed));
        assert_eq!(kinds(&replies), [1, 4, 1, 3, 3, 3, 1]);
        assert_eq!(replies[1].1, b"\0\0\0\x01base:allocation");
        assert_eq!(replies[3].1[..10], *b"\0\0\0\0\0\0\0\x10\0\0");
        assert_eq!(replies[4].1, b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0");
        assert_eq!(replies[5].1, b"\0\x01disk");
        let (_, progress) = talk(&[option(option::ABORT, b"")]);
        assert_eq!(progress, Progress::Ends);
    }

    #[test]
    fn what_cannot_be_is_answered_and_the_negotiation_goes_on() {
        use option_reply::{ERR_BLOCK_SIZE_REQD, ERR_INVALID, ERR_TOO_BIG, ERR_UNKNOWN, ERR_UNSUP};
        for (message, reply) in [
            (option(option::STARTTLS, b""), ERR_UNSUP),
            (option(11, b""), ERR_UNSUP),
            (option(77, b"xxx"), ERR_UNSUP),
            (option(option::LIST, b"x"), ERR_INVALID),
            (option(option::STRUCTURED_REPLY, b"x"), ERR_INVALID),
            (option(option::GO, b""), ERR_INVALID),
            (option(option::GO, &[0xff; 20]), ERR_INVALID),
            (option(option::INFO, &[0, 0, 0, 0, 0, 9]), ERR_INVALID),
            (go(option::GO, "no", &[]), ERR_UNKNOWN),
            (go(option::INFO, "large", &[info::NAME]), ERR_BLOCK_SIZE_REQD),
            (context(option::SET_META_CONTEXT, "disk", &[]), ERR_INVALID),
            (context(option::LIST_META_CONTEXT, "no", &[]), ERR_UNKNOWN),
            (option(option::LIST_META_CONTEXT, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]), ERR_INVALID),
            (option(option::LIST, &[0; 9000]), ERR_TOO_BIG),
        ] {
            let (replies, progress) = talk(&[message.clone(), option(option::LIST, b"")]);
            assert_eq!(kinds(&replies), [reply, 2, 2, 1], "{message:?}");
            assert_eq!(progress, Progress::Goes);
        }
    }

    /// nbd-client asks for no information, and has an option for the block size.
    #[test]
    fn who_begins_without_asking_for_large_blocks_is_let_in_and_told() {
        let (replies, progress) = talk(&[go(option::GO, "large", &[])]);
        assert_eq!(kinds(&replies), [3, 3, 1]);
        assert_eq!(replies[1].1, b"\0\x03\0\0\x10\0\0\0\x10\0\x02\0\0\0");
        let agreed = Agreement { export: 1, structured: false, allocation: false };
        assert_eq!(progress, Progress::Begins(agreed));
    }

    #[test]
    fn contexts_are_listed_for_what_has_them() {
        for (name, query, listed) in [
            ("disk", None, true),
            ("disk", Some("base:"), true),
            ("disk", Some(BASE_ALLOCATION), true),
            ("disk", Some("qemu:"), false),
            ("large", None, false),
        ] {
            let queries: Vec<&str> = query.into_iter().collect();
            let (replies, _) = talk(&[context(option::LIST_META_CONTEXT, name, &queries)]);
            assert_eq!(replies.len() == 2, listed, "{name} {query:?}");
        }
        // A choice is for one export, and ends with the next choice.
        let structured = option(option::STRUCTURED_REPLY, b"");
        let set = context(option::SET_META_CONTEXT, "disk", &[BASE_ALLOCATION]);
        let other = go(option::GO, "large", &[info::BLOCK_SIZE]);
        let (_, progress) = talk(&[structured.clone(), set.clone(), other]);
        let agreed = Agreement { export: 1, structured: true, allocation: false };
        assert_eq!(progress, Progress::Begins(agreed));
        let none = context(option::SET_META_CONTEXT, "disk", &[]);
        let (_, progress) = talk(&[structured, set, none, go(option::GO, "disk", &[])]);
        assert_eq!(progress, Progress::Begins(Agreement { export: 0, ..agreed }));
    }

    #[test]
    fn a_client_that_breaks_the_protocol_is_told_apart() {
        let (_, progress) = talk(&[vec![b'x'; 16]]);
        assert!(matches!(progress, Progress::Broken(Refused::Magic(_))), "{progress:?}");
        let mut long = option(option::LIST, b"");
        long[12..].copy_from_slice(&u32::MAX.to_be_bytes());
        let (_, progress) = talk(&[long]);
        assert_eq!(progress, Progress::Broken(Refused::TooLong(option::LIST, u32::MAX)));
        let endless = vec![option(option::LIST, b""); 200];
        let (replies, progress) = talk(&endless);
        assert_eq!(progress, Progress::Broken(Refused::TooMany));
        assert_eq!(replies.len(), 128 * 3);
        let (_, progress) = talk(&[option(option::EXPORT_NAME, b"no")]);
        assert_eq!(progress, Progress::Broken(Refused::Unknown("no".to_owned())));
        let mut negotiation = Negotiation::new(TlsPolicy::None, &mut Vec::new());
        let (_, progress) = negotiation.handle(&exports(), &[0, 0, 0, 4], &mut Vec::new());
        assert_eq!(progress, Progress::Broken(Refused::Flags(4)));
    }

    #[test]
    fn the_old_way_to_begin_ends_with_zeroes_unless_told_not_to() {
        for (flags, len) in [(3, 10), (1, 134), (0, 134)] {
            let (mut out, mut greeting) = (Vec::new(), Vec::new());
            let mut negotiation = Negotiation::new(TlsPolicy::None, &mut greeting);
            let mut input = vec![0, 0, 0, flags];
            input.extend(option(option::EXPORT_NAME, b"large"));
            input.extend(b"request");
            let (taken, progress) = negotiation.handle(&exports(), &input, &mut out);
            assert_eq!((out.len(), input.len() - taken), (len, 7));
            assert!(matches!(progress, Progress::Begins(Agreement { export: 1, .. })));
        }
    }

    #[test]
    fn a_refusal_comes_with_the_byte_that_it_is_for() {
        let mut long = option(option::LIST, b"");
        long[12..].copy_from_slice(&u32::MAX.to_be_bytes());
        for (bytes, decides) in [(vec![b'x'; 20], 8), (long, OPTION_LEN)] {
            let input = [&[0, 0, 0, 3], &bytes[..], b"more"].concat();
            for piece in 1..=input.len() {
                let mut negotiation = Negotiation::new(TlsPolicy::None, &mut Vec::new());
                let mut sent = 0;
                let progress = loop {
                    let now = &input[sent..input.len().min(sent + piece)];
                    let (taken, progress) = negotiation.handle(&exports(), now, &mut Vec::new());
                    sent += taken;
                    if progress != Progress::Goes {
                        break progress;
                    }
                };
                assert!(matches!(progress, Progress::Broken(_)), "{progress:?}");
                assert_eq!(sent, 4 + decides, "in pieces of {piece}");
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            choice in proptest::collection::vec((0_u32..14, proptest::collection::vec(any::<u8>(), 0..40)), 0..6),
            pieces in proptest::collection::vec(1_usize..50, 1..100),
        ) {
            let exports = exports();
            let mut input = vec![0, 0, 0, 3];
            input.extend(choice.iter().flat_map(|(kind, data)| option(*kind, data)));
            let run = |sizes: &mut dyn Iterator<Item = usize>| {
                let mut out = Vec::new();
                let mut negotiation = Negotiation::new(TlsPolicy::None, &mut out);
                let mut rest = &input[..];
                loop {
                    let now = sizes.next().unwrap_or(usize::MAX).min(rest.len());
                    let (taken, progress) = negotiation.handle(&exports, &rest[..now], &mut out);
                    rest = &rest[taken..];
                    if progress != Progress::Goes || rest.is_empty() {
                        return (out, progress, rest.len());
                    }
                }
            };
            let whole = run(&mut std::iter::empty());
            prop_assert_eq!(run(&mut pieces.iter().copied().cycle()), whole);
        }
    }
}
