//! Requests, and what they mean for an export.

use super::export::{ExportFacts, MAX_REQUEST_BYTES};
use super::negotiation::Agreement;
use super::wire::{self, Errno, REQUEST_LEN, REQUEST_MAGIC, command, flag};

/// A request as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Command flags.
    pub flags: u16,
    /// The command.
    pub command: u16,
    /// The client's name for it, which the reply repeats.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// How many bytes.
    pub length: u32,
}

impl Request {
    /// Reads a request; `None` if it does not begin with the magic number: then nothing behind it can be
    /// believed.
    #[must_use]
    pub fn parse(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        let (magic, rest) = wire::split_u32(bytes)?;
        let (flags, rest) = wire::split_u16(rest)?;
        let (command, rest) = wire::split_u16(rest)?;
        let (cookie, rest) = wire::split_u64(rest)?;
        let (offset, rest) = wire::split_u64(rest)?;
        let (length, _) = wire::split_u32(rest)?;
        (magic == REQUEST_MAGIC).then_some(Self { flags, command, cookie, offset, length })
    }

    /// Bytes of payload that follow it.
    fn payload_len(&self) -> u32 {
        if self.command == command::WRITE { self.length } else { 0 }
    }
}

/// What is to be done. Ranges are inside the export and whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Read.
    Read {
        /// First byte.
        offset: u64,
        /// How many bytes, at least one block.
        len: usize,
    },
    /// Write the payload that follows.
    Write {
        /// First byte.
        offset: u64,
        /// How many bytes, at least one block.
        len: usize,
        /// Durable before it completes.
        fua: bool,
    },
    /// Make completed writes durable.
    Flush,
    /// Release.
    Trim {
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// Durable before it completes.
        fua: bool,
    },
    /// Zero.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// Durable before it completes.
        fua: bool,
        /// The range may be released, if it then reads zeroes.
        may_release: bool,
        /// Fail rather than write zeroes as data.
        fast: bool,
    },
    /// Nothing: the data are in memory already.
    Cache,
    /// Tell what is allocated.
    BlockStatus {
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// One extent is enough.
        one: bool,
    },
    /// End the connection when everything else is answered.
    Disconnect,
}

impl Plan {
    /// Whether it changes what the export has.
    #[must_use]
    pub fn changes(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Trim { .. } | Self::WriteZeroes { .. })
    }
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What the client is told.
    pub error: Errno,
    /// For people.
    pub text: &'static str,
    /// Bytes of payload that follow the request, and are to be thrown away.
    pub skip: u32,
    /// The connection ends after the reply.
    pub fatal: bool,
}

/// What a request means for an export.
///
/// # Errors
/// With what the client is to be told.
pub fn plan(facts: &ExportFacts, agreed: &Agreement, request: &Request) -> Result<Plan, Refusal> {
    let skip = request.payload_len();
    let refuse = |error, text| Refusal { error, text, skip, fatal: skip > MAX_REQUEST_BYTES };
    let known = known_flags(request.command);
    if request.flags & !known != 0 {
        return Err(refuse(Errno::Inval, "the command does not have these flags"));
    }
    let fua = request.flags & flag::FUA != 0;
    let (offset, length) = (request.offset, u64::from(request.length));
    let is_write =
        matches!(request.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
    if is_write && facts.read_only {
        return Err(refuse(Errno::Perm, "the export is read-only"));
    }
    match request.command {
        command::DISC => return Ok(Plan::Disconnect),
        command::FLUSH if offset == 0 && length == 0 => return Ok(Plan::Flush),
        command::FLUSH => return Err(refuse(Errno::Inval, "a flush has no range")),
        _ => check_range(facts, request).map_err(|(error, text)| refuse(error, text))?,
    }
    let data_len = || {
        let len = usize::try_from(request.length).ok();
        let len = len.filter(|_| request.length <= MAX_REQUEST_BYTES);
        len.ok_or_else(|| refuse(Errno::Inval, "a request has at most 32 MiB of data"))
    };
    match request.command {
        command::READ => Ok(Plan::Read { offset, len: data_len()? }),
        command::WRITE => Ok(Plan::Write { offset, len: data_len()?, fua }),
        command::TRIM if facts.trims => Ok(Plan::Trim { offset, len: length, fua }),
        command::TRIM => Err(refuse(Errno::NotSup, "the device releases nothing")),
        command::WRITE_ZEROES => {
            let may_release = request.flags & flag::NO_HOLE == 0 && facts.fast_zero;
            let fast = request.flags & flag::FAST_ZERO != 0;
            if fast && !may_release {
                return Err(refuse(Errno::NotSup, "zeroing is no faster than writing"));
            }
            Ok(Plan::WriteZeroes { offset, len: length, fua, may_release, fast })
        }
        command::CACHE if facts.in_memory => Ok(Plan::Cache),
        command::CACHE => Err(refuse(Errno::NotSup, "the device has no cache to fill")),
        command::BLOCK_STATUS if agreed.allocation => {
            Ok(Plan::BlockStatus { offset, len: length, one: request.flags & flag::REQ_ONE != 0 })
        }
        command::BLOCK_STATUS => {
            Err(refuse(Errno::Inval, "no metadata context was chosen for the export"))
        }
        _ => Err(refuse(Errno::Inval, "the command is unknown")),
    }
}

/// The flags that a command may have. FUA is taken with every command, as the protocol asks.
fn known_flags(command: u16) -> u16 {
    flag::FUA
        | match command {
            command::READ => flag::DF,
            command::WRITE_ZEROES => flag::NO_HOLE | flag::FAST_ZERO,
            command::BLOCK_STATUS => flag::REQ_ONE,
            _ => 0,
        }
}

fn check_range(facts: &ExportFacts, request: &Request) -> Result<(), (Errno, &'static str)> {
    let (offset, length) = (request.offset, u64::from(request.length));
    let block = u64::from(facts.block_bytes);
    if length == 0 {
        return Err((Errno::Inval, "the range is empty"));
    }
    if !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
        return Err((Errno::Inval, "the range is not whole blocks of the export"));
    }
    if offset.checked_add(length).is_none_or(|end| end > facts.bytes) {
        let is_write = matches!(request.command, command::WRITE | command::WRITE_ZEROES);
        let error = if is_write { Errno::NoSpc } else { Errno::Inval };
        return Err((error, "the range is beyond the end of the export"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> ExportFacts {
        ExportFacts {
            name: "x".to_owned(),
            description: String::new(),
            bytes: 1 << 40,
            block_bytes: 512,
            preferred_bytes: 4096,
            read_only: false,
            trims: true,
            fast_zero: true,
            in_memory: true,
            knows_holes: true,
        }
    }

    fn request(command: u16, flags: u16, offset: u64, length: u32) -> Request {
        Request { flags, command, cookie: 7, offset, length }
    }

    fn planned(facts: &ExportFacts, request: Request) -> Result<Plan, (Errno, u32, bool)> {
        let agreed = Agreement { export: 0, structured: true, allocation: true };
        plan(facts, &agreed, &request).map_err(|it| (it.error, it.skip, it.fatal))
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        let mut bytes = [0; REQUEST_LEN];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&[0, 1, 0, 1]);
        bytes[8..16].copy_from_slice(&9_u64.to_be_bytes());
        bytes[16..24].copy_from_slice(&512_u64.to_be_bytes());
        bytes[24..].copy_from_slice(&1024_u32.to_be_bytes());
        let expected = Request { flags: 1, command: 1, cookie: 9, offset: 512, length: 1024 };
        assert_eq!(Request::parse(&bytes), Some(expected));
        bytes[3] ^= 1;
        assert_eq!(Request::parse(&bytes), None);
    }

    #[test]
    fn what_is_outside_or_no_whole_block_is_refused() {
        let facts = facts();
        let end = facts.bytes;
        let read = |offset, length| planned(&facts, request(command::READ, 0, offset, length));
        assert_eq!(read(end - 512, 512), Ok(Plan::Read { offset: end - 512, len: 512 }));
        for (offset, length) in [
            (end - 512, 1024),
            (end, 512),
            (u64::MAX - 511, 512),
            (1, 512),
            (0, 511),
            (0, 0),
            (0, MAX_REQUEST_BYTES + 512),
        ] {
            assert_eq!(read(offset, length), Err((Errno::Inval, 0, false)), "{offset} {length}");
        }
        let write = |offset, length| planned(&facts, request(command::WRITE, 1, offset, length));
        assert_eq!(write(0, 512), Ok(Plan::Write { offset: 0, len: 512, fua: true }));
        assert_eq!(write(end, 512), Err((Errno::NoSpc, 512, false)));
        assert_eq!(write(3, 100), Err((Errno::Inval, 100, false)));
        assert_eq!(write(0, u32::MAX - 511), Err((Errno::Inval, u32::MAX - 511, true)));
    }

    #[test]
    fn what_an_export_cannot_do_is_refused() {
        let all = facts();
        let zeroes = |facts: &ExportFacts, flags| {
            planned(facts, request(command::WRITE_ZEROES, flags, 0, 1 << 31))
        };
        let plan = |fua, may_release, fast| {
            Ok(Plan::WriteZeroes { offset: 0, len: 1 << 31, fua, may_release, fast })
        };
        assert_eq!(zeroes(&all, 0), plan(false, true, false));
        assert_eq!(zeroes(&all, flag::FUA | flag::FAST_ZERO), plan(true, true, true));
        assert_eq!(zeroes(&all, flag::NO_HOLE), plan(false, false, false));
        let not_supported = Err((Errno::NotSup, 0, false));
        assert_eq!(zeroes(&all, flag::NO_HOLE | flag::FAST_ZERO), not_supported);
        let plain = ExportFacts { fast_zero: false, trims: false, in_memory: false, ..facts() };
        assert_eq!(zeroes(&plain, flag::FAST_ZERO), not_supported);
        assert_eq!(planned(&plain, request(command::TRIM, 0, 0, 512)), not_supported);
        assert_eq!(planned(&plain, request(command::CACHE, 0, 0, 512)), not_supported);
        let read_only = ExportFacts { read_only: true, ..facts() };
        for (command, skip) in
            [(command::WRITE, 512), (command::TRIM, 0), (command::WRITE_ZEROES, 0)]
        {
            let refused = planned(&read_only, request(command, 0, 0, 512));
            assert_eq!(refused, Err((Errno::Perm, skip, false)));
        }
        assert!(planned(&read_only, request(command::FLUSH, 0, 0, 0)).is_ok());
    }

    #[test]
    fn unknown_commands_and_flags_are_refused() {
        let all = facts();
        for (command, flags) in [
            (8, 0),
            (999, 0),
            (command::READ, flag::NO_HOLE),
            (command::READ, 1 << 5),
            (command::FLUSH, flag::DF),
            (command::TRIM, flag::REQ_ONE),
        ] {
            let refused = planned(&all, request(command, flags, 0, 512));
            assert_eq!(refused, Err((Errno::Inval, 0, false)), "{command} {flags}");
        }
        assert_eq!(
            planned(&all, request(command::WRITE, flag::DF, 0, 512)),
            Err((Errno::Inval, 512, false))
        );
        assert_eq!(
            planned(&all, request(command::FLUSH, 0, 512, 0)),
            Err((Errno::Inval, 0, false))
        );
        let agreed = Agreement { export: 0, structured: true, allocation: false };
        let status = request(command::BLOCK_STATUS, flag::REQ_ONE, 0, 512);
        assert_eq!(plan(&all, &agreed, &status).unwrap_err().error, Errno::Inval);
        let agreed = Agreement { allocation: true, ..agreed };
        let one = Plan::BlockStatus { offset: 0, len: 512, one: true };
        assert_eq!(plan(&all, &agreed, &status), Ok(one));
    }
}
