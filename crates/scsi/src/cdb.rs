//! Command descriptor blocks, parsed into commands that know nothing of a logical unit (SPC-5, 4.2; SBC-4, clause 5).
//!
//! One table has all commands: parsing, what reservations leave of them, and the reports of supported commands come
//! from it. Reserved bits are ignored, because initiators set some of them; fields of features that are not there
//! (protection information, auto contingent allegiance) are refused.

mod table;

pub use table::{Access, COMMANDS, Feature, Row, find_row, rows_of};

use crate::sense::Sense;

/// Blocks of the medium, as a CDB names them: they may be outside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Medium {
    /// The first block.
    pub lba: u64,
    /// How many; 0 is none, except where the command says otherwise.
    pub blocks: u32,
    /// Force unit access: from or on stable media.
    pub fua: bool,
    /// The byte of the CDB where LOGICAL BLOCK ADDRESS begins, for sense data.
    pub lba_byte: u8,
    /// The byte of the CDB where TRANSFER LENGTH begins, for sense data.
    pub length_byte: u8,
}

/// What Verify compares the blocks with (BYTCHK).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteCheck {
    /// Nothing: that they can be read is enough (00b).
    Readable,
    /// The data (01b).
    Data,
    /// Each of them with the one block of the data (11b).
    OneBlock,
}

/// The values that Mode Sense asks for (PC).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageControl {
    /// Those in force.
    Current,
    /// A mask of the bits that Mode Select can change.
    Changeable,
    /// Those in force after a start.
    Default,
    /// Saved ones, which there are not.
    Saved,
}

/// Mode Sense (6) or (10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeSense {
    /// It is the one of ten bytes, whose header is longer.
    pub ten: bool,
    /// DBD: no block descriptor.
    pub no_block_descriptors: bool,
    /// LLBAA: block descriptors may be the long ones.
    pub long_lba: bool,
    /// Which values.
    pub control: PageControl,
    /// PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// ALLOCATION LENGTH.
    pub allocation: u32,
}

/// Mode Select (6) or (10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeSelect {
    /// It is the one of ten bytes, whose header is longer.
    pub ten: bool,
    /// PARAMETER LIST LENGTH.
    pub length: u16,
}

/// What Report Supported Operation Codes asks for (REPORTING OPTIONS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportOpcodes {
    /// All commands (000b).
    All,
    /// One command without service actions (001b).
    Opcode(u8),
    /// One command with a service action (010b).
    ServiceAction(u8, u16),
    /// One command, with the service action if it has any (011b).
    Either(u8, u16),
}

/// What Persistent Reserve In asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReserveInAction {
    /// READ KEYS.
    Keys,
    /// READ RESERVATION.
    Reservation,
    /// REPORT CAPABILITIES.
    Capabilities,
    /// READ FULL STATUS.
    FullStatus,
}

/// What Persistent Reserve Out does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReserveOutAction {
    /// REGISTER.
    Register,
    /// RESERVE.
    Reserve,
    /// RELEASE.
    Release,
    /// CLEAR.
    Clear,
    /// PREEMPT.
    Preempt,
    /// PREEMPT AND ABORT.
    PreemptAndAbort,
    /// REGISTER AND IGNORE EXISTING KEY.
    RegisterAndIgnore,
}

/// Persistent Reserve Out, before its parameter list has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveOut {
    /// What it does.
    pub action: ReserveOutAction,
    /// SCOPE, bits 7:4, and TYPE, bits 3:0, unchecked: only some actions use them.
    pub scope_and_type: u8,
    /// PARAMETER LIST LENGTH.
    pub length: u32,
}

/// A command whose fields are valid for any disk of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Test Unit Ready.
    TestUnitReady,
    /// Request Sense.
    RequestSense {
        /// DESC: in descriptor format.
        descriptors: bool,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Inquiry.
    Inquiry {
        /// The vital product data page; `None`: the standard data.
        page: Option<u8>,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Mode Sense.
    ModeSense(ModeSense),
    /// Mode Select.
    ModeSelect(ModeSelect),
    /// Reserve (6) and (10).
    Reserve,
    /// Release (6) and (10).
    Release,
    /// Start Stop Unit.
    StartStopUnit {
        /// What is in the write cache goes to the medium: the unit stops, and NO_FLUSH is not set.
        flush: bool,
    },
    /// Prevent Allow Medium Removal, which has no effect: the medium cannot be removed.
    PreventAllowMediumRemoval,
    /// Read Capacity (10).
    ReadCapacity10,
    /// Read Capacity (16).
    ReadCapacity16 {
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Read.
    Read(Medium),
    /// Write.
    Write(Medium),
    /// Write and Verify; never [`ByteCheck::OneBlock`].
    WriteAndVerify(Medium, ByteCheck),
    /// Verify.
    Verify(Medium, ByteCheck),
    /// Or Write (16).
    OrWrite(Medium),
    /// Compare and Write: as many blocks to compare as to write.
    CompareAndWrite(Medium),
    /// Pre-fetch; 0 blocks: to the end.
    PreFetch(Medium),
    /// Synchronize Cache; 0 blocks: to the end.
    SynchronizeCache(Medium),
    /// Write Same; 0 blocks are refused (WSNZ).
    WriteSame {
        /// The blocks.
        medium: Medium,
        /// UNMAP: the blocks may be deallocated if they then read as the data.
        unmap: bool,
        /// NDOB: there are no data, and zeroes are written.
        no_data: bool,
    },
    /// Unmap.
    Unmap {
        /// PARAMETER LIST LENGTH.
        length: u16,
    },
    /// Get LBA Status (16).
    GetLbaStatus {
        /// STARTING LOGICAL BLOCK ADDRESS.
        lba: u64,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Read Defect Data (10) and (12).
    ReadDefectData {
        /// It is the one of twelve bytes, whose header is longer.
        twelve: bool,
        /// REQ_PLIST, REQ_GLIST and DEFECT LIST FORMAT, which the header repeats.
        lists_and_format: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Report LUNs.
    ReportLuns {
        /// SELECT REPORT, 00h to 02h.
        select: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Report Target Port Groups.
    ReportTargetPortGroups {
        /// PARAMETER DATA FORMAT is 001b: with the extended header.
        extended: bool,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Report Supported Operation Codes.
    ReportOpcodes {
        /// Which.
        which: ReportOpcodes,
        /// RCTD: with timeouts.
        timeouts: bool,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Report Supported Task Management Functions.
    ReportTaskManagement {
        /// REPD: in the long form.
        extended: bool,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Persistent Reserve In.
    PersistentReserveIn {
        /// What it asks for.
        action: ReserveInAction,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Persistent Reserve Out.
    PersistentReserveOut(ReserveOut),
    /// Extended Copy (LID1).
    ExtendedCopy {
        /// PARAMETER LIST LENGTH.
        length: u32,
    },
    /// Receive Copy Status (LID1).
    ReceiveCopyStatus {
        /// LIST IDENTIFIER.
        id: u8,
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
    /// Receive Copy Operating Parameters.
    CopyOperatingParameters {
        /// ALLOCATION LENGTH.
        allocation: u32,
    },
}

/// The fields of a CDB by their offsets.
#[derive(Clone, Copy)]
pub(crate) struct Cdb<'a>(pub(crate) &'a [u8; 16]);

impl Cdb<'_> {
    fn u16(self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    fn u32(self, at: usize) -> u32 {
        (u32::from(self.u16(at)) << 16) | u32::from(self.u16(at + 2))
    }

    fn u64(self, at: usize) -> u64 {
        (u64::from(self.u32(at)) << 32) | u64::from(self.u32(at + 4))
    }

    fn bit(self, byte: usize, bit: u8) -> bool {
        self.0[byte] & (1 << bit) != 0
    }

    /// Fails if a field of byte 1, bits 7:5, asks for protection information.
    fn refuse_protection(self) -> Result<(), Sense> {
        if self.0[1] >> 5 == 0 { Ok(()) } else { Err(Sense::bad_cdb_bit(1, 7)) }
    }

    /// LOGICAL BLOCK ADDRESS and the length of the forms with 10, 12 and 16 bytes.
    fn medium(self, len: usize) -> Medium {
        let fua = self.bit(1, 3);
        match len {
            10 => Medium {
                lba: self.u32(2).into(),
                blocks: self.u16(7).into(),
                fua,
                lba_byte: 2,
                length_byte: 7,
            },
            12 => Medium {
                lba: self.u32(2).into(),
                blocks: self.u32(6),
                fua,
                lba_byte: 2,
                length_byte: 6,
            },
            _ => {
                Medium { lba: self.u64(2), blocks: self.u32(10), fua, lba_byte: 2, length_byte: 10 }
            }
        }
    }

    /// The form with 6 bytes: 21 bits of address, and 0 is 256 blocks.
    fn medium_6(self) -> Medium {
        let lba = (u64::from(self.0[1] & 0x1f) << 16) | u64::from(self.u16(2));
        let blocks = if self.0[4] == 0 { 256 } else { self.0[4].into() };
        Medium { lba, blocks, fua: false, lba_byte: 1, length_byte: 4 }
    }

    /// BYTCHK.
    fn byte_check(self) -> Result<ByteCheck, Sense> {
        match (self.0[1] >> 1) & 0b11 {
            0 => Ok(ByteCheck::Readable),
            1 => Ok(ByteCheck::Data),
            3 => Ok(ByteCheck::OneBlock),
            _ => Err(Sense::bad_cdb_bit(1, 2)),
        }
    }
}

impl Command {
    /// Parses a CDB whose command is known.
    ///
    /// # Errors
    /// ILLEGAL REQUEST, with the place of the field.
    pub fn parse(row: &Row, bytes: &[u8; 16]) -> Result<Self, Sense> {
        // NACA, in the CONTROL byte: auto contingent allegiance is not supported (NORMACA is 0)
        let control = row.cdb_len() - 1;
        if bytes[control] & 0x04 != 0 {
            return Err(Sense::bad_cdb_bit(u16::try_from(control).expect("below 16"), 2));
        }
        (row.parse)(Cdb(bytes), row.cdb_len())
    }
}
