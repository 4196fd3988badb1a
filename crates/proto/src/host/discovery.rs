//! Reading the discovery log: header, records, header again, until both headers agree.

use std::fmt;

use zerocopy::FromBytes;

use super::{AdminRequest, command};
use crate::nvme::discovery::{DiscoveryEntry, DiscoveryHeader, TRTYPE_TCP};
use crate::nvme::log::lid;
use crate::nvme::{Cqe, NamespaceId, Status};
use crate::rdma::{TRTYPE_RDMA, Tsas};

/// Bytes of the header and of each record.
const RECORD_LEN: usize = DiscoveryEntry::LEN;
/// Bytes asked for at a time; every controller takes a transfer of 4 KiB.
const CHUNK_LEN: u32 = 4096;
/// Most records that this host reads.
pub const MAX_RECORDS: u64 = 4096;
/// How many times a log that changes during reading is read.
pub const MAX_ATTEMPTS: u32 = 10;

/// A subsystem, or another discovery service, and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryRecord {
    /// TRTYPE: 3 is TCP, 1 RDMA.
    pub trtype: u8,
    /// ADRFAM: 1 IPv4, 2 IPv6.
    pub adrfam: u8,
    /// SUBTYPE: 1 referral, 2 NVM subsystem, 3 the discovery subsystem asked.
    pub subtype: u8,
    /// TREQ: bits 1:0 say whether a secure channel is required (1) or not (2).
    pub treq: u8,
    /// PORTID.
    pub portid: u16,
    /// CNTLID: FFFFh is the dynamic controller model.
    pub cntlid: u16,
    /// ASQSZ: most entries of the admin queue.
    pub asqsz: u16,
    /// EFLAGS.
    pub eflags: u16,
    /// TRSVCID: the port.
    pub trsvcid: String,
    /// SUBNQN.
    pub subnqn: String,
    /// TRADDR.
    pub traddr: String,
    /// SECTYPE of a TCP record: 0 none, 2 TLS 1.3. Of another record it is 0.
    pub sectype: u8,
    /// What an RDMA record says of the connections that it takes.
    pub rdma: Option<RdmaSubtype>,
}

/// The parts of TSAS of an RDMA record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaSubtype {
    /// QPTYPE: 1 is reliable connected.
    pub qptype: u8,
    /// PRTYPE: 1 none, 2 InfiniBand, 3 RoCE, 4 RoCE version 2, 5 iWARP.
    pub prtype: u8,
    /// CMS: 1 is RDMA_CM.
    pub cms: u8,
}

impl RdmaSubtype {
    /// Whether a host can connect there with a reliable queue pair and RDMA_CM.
    #[must_use]
    pub fn is_usable(self) -> bool {
        let Self { qptype, prtype, cms } = self;
        Tsas { qptype, prtype, cms, ..Tsas::default() }.is_usable()
    }
}

impl DiscoveryRecord {
    /// Reads a record.
    #[must_use]
    pub fn parse(record: &DiscoveryEntry) -> Self {
        // ASCII, padded with spaces or zeroes; text from the network is displayed, so no controls.
        let text = |field: &[u8]| -> String {
            let len = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
            let clean = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
            String::from_utf8_lossy(&field[..len])
                .trim_end_matches(' ')
                .chars()
                .map(clean)
                .collect()
        };
        Self {
            trtype: record.trtype,
            adrfam: record.adrfam,
            subtype: record.subtype,
            treq: record.treq,
            portid: record.portid.get(),
            cntlid: record.cntlid.get(),
            asqsz: record.asqsz.get(),
            eflags: record.eflags.get(),
            trsvcid: text(&record.trsvcid),
            subnqn: text(&record.subnqn),
            traddr: text(&record.traddr),
            sectype: if record.trtype == TRTYPE_TCP { record.tsas[0] } else { 0 },
            rdma: (record.trtype == TRTYPE_RDMA).then(|| {
                let [qptype, prtype, cms, ..] = record.tsas;
                RdmaSubtype { qptype, prtype, cms }
            }),
        }
    }
}

/// One state of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryLog {
    /// GENCTR: the state's number.
    pub generation: u64,
    /// The records.
    pub records: Vec<DiscoveryRecord>,
}

/// Why the log could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscoveryError {
    /// Get Log Page failed.
    Refused(Status),
    /// It changed during every attempt.
    Unstable,
    /// RECFMT is not 0.
    Format(u16),
    /// More than [`MAX_RECORDS`].
    TooMany(u64),
    /// The controller sent less than was asked for.
    Short,
}

impl fmt::Display for DiscoveryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status) => write!(f, "Get Log Page failed: {status}"),
            Self::Unstable => write!(f, "it changed during each of {MAX_ATTEMPTS} attempts"),
            Self::Format(recfmt) => write!(f, "unknown record format {recfmt}"),
            Self::TooMany(records) => {
                write!(f, "it has {records} records, more than {MAX_RECORDS}")
            }
            Self::Short => write!(f, "the page is incomplete"),
        }
    }
}

impl std::error::Error for DiscoveryError {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Header,
    /// Records from this number on.
    Records(u64),
    /// The header again.
    Again,
    Done,
}

/// One reading of the log.
#[derive(Debug)]
pub struct DiscoveryReader {
    step: Step,
    requested: bool,
    attempts: u32,
    header: Header,
    records: Vec<DiscoveryRecord>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    generation: u64,
    record_count: u64,
}

impl Header {
    fn parse(data: &[u8]) -> Result<Self, DiscoveryError> {
        let (header, _) =
            DiscoveryHeader::ref_from_prefix(data).map_err(|_| DiscoveryError::Short)?;
        let recfmt = header.recfmt.get();
        if recfmt != 0 {
            return Err(DiscoveryError::Format(recfmt));
        }
        let record_count = header.numrec.get();
        if record_count > MAX_RECORDS {
            return Err(DiscoveryError::TooMany(record_count));
        }
        Ok(Self { generation: header.genctr.get(), record_count })
    }
}

impl Default for DiscoveryReader {
    fn default() -> Self {
        Self::new()
    }
}

impl DiscoveryReader {
    /// A reading.
    #[must_use]
    pub fn new() -> Self {
        Self {
            step: Step::Header,
            requested: false,
            attempts: 0,
            header: Header::default(),
            records: Vec::new(),
        }
    }

    /// The next command, one at a time.
    pub fn poll_request(&mut self) -> Option<AdminRequest> {
        if self.requested {
            return None;
        }
        let (offset, len, retain) = match self.step {
            Step::Header => (0, 1024, true),
            Step::Records(from) => {
                let left = (self.header.record_count - from).min(u64::from(CHUNK_LEN) / 1024);
                let len = u32::try_from(left * 1024).unwrap_or(CHUNK_LEN);
                ((from + 1) * 1024, len, true)
            }
            // The last read unmasks the event of the page (Base 2.0, 5.2.2).
            Step::Again => (0, 1024, false),
            Step::Done => return None,
        };
        self.requested = true;
        let sqe = command::get_log_page(lid::DISCOVERY, NamespaceId(0), offset, len, retain);
        Some(AdminRequest { sqe, receive_len: len })
    }

    /// Takes the completion of the command that was asked for.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn handle_completion(&mut self, cqe: &Cqe, data: &[u8]) -> Result<(), DiscoveryError> {
        self.requested = false;
        if !cqe.status.is_success() {
            return Err(DiscoveryError::Refused(cqe.status));
        }
        match self.step {
            Step::Header => {
                self.header = Header::parse(data)?;
                self.records.clear();
                self.step = self.step_from(0);
            }
            Step::Records(from) => {
                let (records, _) = data.as_chunks::<RECORD_LEN>();
                let mut next = from;
                for record in records {
                    if next == self.header.record_count {
                        break;
                    }
                    self.records.push(DiscoveryRecord::parse(&zerocopy::transmute!(*record)));
                    next += 1;
                }
                if next == from {
                    return Err(DiscoveryError::Short);
                }
                self.step = self.step_from(next);
            }
            Step::Again if Header::parse(data)? == self.header => self.step = Step::Done,
            Step::Again => {
                self.attempts += 1;
                if self.attempts >= MAX_ATTEMPTS {
                    return Err(DiscoveryError::Unstable);
                }
                self.step = Step::Header;
            }
            Step::Done => {}
        }
        Ok(())
    }

    /// The log, when a reading was stable.
    pub fn poll_done(&mut self) -> Option<DiscoveryLog> {
        (self.step == Step::Done).then(|| DiscoveryLog {
            generation: self.header.generation,
            records: std::mem::take(&mut self.records),
        })
    }

    fn step_from(&self, record: u64) -> Step {
        if record < self.header.record_count { Step::Records(record) } else { Step::Again }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn page(generation: u64, records: u64) -> Vec<u8> {
        let mut page = vec![0; RECORD_LEN];
        page[..8].copy_from_slice(&generation.to_le_bytes());
        page[8..16].copy_from_slice(&records.to_le_bytes());
        for number in 0..records {
            let mut record = vec![0; RECORD_LEN];
            record[..3].copy_from_slice(&[3, 1, 2]);
            record[32..64].fill(b' ');
            record[32..36].copy_from_slice(b"4420");
            let nqn = format!("nqn.2024-01.test:{number}");
            record[256..256 + nqn.len()].copy_from_slice(nqn.as_bytes());
            record[512..521].copy_from_slice(b"127.0.0.1");
            page.extend(record);
        }
        page
    }

    /// Reads a log that is `pages(n)` at the n-th command.
    fn read(mut pages: impl FnMut(u32) -> Vec<u8>) -> Result<DiscoveryLog, DiscoveryError> {
        let mut reader = DiscoveryReader::new();
        for command in 0.. {
            if let Some(log) = reader.poll_done() {
                return Ok(log);
            }
            let request = reader.poll_request().expect("asks until it is done");
            let offset = usize::try_from(request.sqe.cdw12.get()).unwrap();
            let len = usize::try_from(request.receive_len).unwrap();
            assert!(len <= 4096);
            let mut data = pages(command).split_off(offset.min(pages(command).len()));
            data.resize(len, 0);
            reader.handle_completion(&Cqe::default(), &data)?;
        }
        unreachable!()
    }

    #[test]
    fn the_subtype_is_that_of_the_transport() {
        let parse = |trtype, tsas: [u8; 3]| {
            let mut bytes = page(1, 1).split_off(RECORD_LEN);
            bytes[0] = trtype;
            bytes[768..771].copy_from_slice(&tsas);
            DiscoveryRecord::parse(DiscoveryEntry::ref_from_bytes(&bytes).unwrap())
        };
        let tcp = parse(TRTYPE_TCP, [2, 0, 0]);
        assert_eq!((tcp.sectype, tcp.rdma), (2, None));
        let datagrams = parse(TRTYPE_RDMA, [2, 1, 1]);
        assert_eq!(datagrams.sectype, 0, "QPTYPE is no SECTYPE");
        assert_eq!(datagrams.rdma.map(RdmaSubtype::is_usable), Some(false));
        let usable = |tsas| parse(TRTYPE_RDMA, tsas).rdma.is_some_and(RdmaSubtype::is_usable);
        assert!(usable([1, 1, 1]) && usable([1, 5, 1]) && !usable([1, 1, 2]));
    }

    #[test]
    fn reads_all_records() {
        for count in [0, 1, 4, 5, 9] {
            let log = read(|_| page(3, count)).unwrap();
            assert_eq!(log.records.len(), usize::try_from(count).unwrap());
            for (number, record) in log.records.iter().enumerate() {
                assert_eq!(record.subnqn, format!("nqn.2024-01.test:{number}"));
                assert_eq!(
                    (record.trsvcid.as_str(), record.traddr.as_str()),
                    ("4420", "127.0.0.1")
                );
            }
        }
    }

    #[test]
    fn a_change_while_reading_starts_again() {
        // Commands 0..=2 see generation 1 and then 2; from then on it is stable.
        let log = read(|command| if command < 2 { page(1, 2) } else { page(2, 3) }).unwrap();
        assert_eq!((log.generation, log.records.len()), (2, 3));
    }

    #[test]
    fn a_log_that_never_rests_is_given_up() {
        assert_eq!(read(|command| page(command.into(), 1)), Err(DiscoveryError::Unstable));
    }

    #[test]
    fn absurd_headers() {
        assert_eq!(read(|_| page_header(u64::MAX, 0)), Err(DiscoveryError::TooMany(u64::MAX)));
        assert_eq!(read(|_| page_header(1, 7)), Err(DiscoveryError::Format(7)));
    }

    fn page_header(records: u64, recfmt: u16) -> Vec<u8> {
        let mut page = vec![0; RECORD_LEN];
        page[8..16].copy_from_slice(&records.to_le_bytes());
        page[16..18].copy_from_slice(&recfmt.to_le_bytes());
        page
    }

    proptest! {
        #[test]
        fn any_answers_end_without_panic(answers in prop::collection::vec(
            prop::collection::vec(any::<u8>(), 0..5000), 1..20)) {
            let mut reader = DiscoveryReader::new();
            for answer in answers {
                if reader.poll_request().is_none()
                    || reader.handle_completion(&Cqe::default(), &answer).is_err() {
                    break;
                }
            }
        }
    }
}
