//! Get Features and Set Features (Base 2.0, 5.15 and 5.27).
//!
//! No feature can be saved; each applies to the whole controller.

use super::Controller;
use super::event::Events;
use crate::nvme::feature::{
    CAPABILITY_CHANGEABLE, COMMAND_SET_INDEX, COPY_FORMAT_2_ENABLED, HOST_BEHAVIOR_LEN,
    QueueCounts, Select, feature_id, fid, save,
};
use crate::nvme::{NamespaceId, Sqe, Status};

/// Temperature Threshold THSEL: over temperature.
const THSEL_OVER: u32 = 0;
/// Temperature Threshold THSEL: under temperature.
const THSEL_UNDER: u32 = 1;
/// Temperature Threshold TMPSEL: the composite temperature, the only one that there is.
const TMPSEL_COMPOSITE: u32 = 0;
/// Temperature Threshold TMPSEL of Set Features: every temperature.
const TMPSEL_ALL: u32 = 0xf;
/// Error Recovery bit 16, DULBE: only for namespaces that report it in NSFEAT; none does.
const DULBE: u32 = 1 << 16;
/// Power Management bits 4:0, PS: power state 0 is the only one.
const POWER_STATE: u32 = 0x1f;
/// Power Management bits 7:5, WH.
const WORKLOAD_HINT: u32 = 0xe0;
/// Write Atomicity Normal bit 0, DN.
const DISABLE_NORMAL: u32 = 1;
/// Host Identifier bit 0, EXHID: the 128-bit form.
const EXHID: u32 = 1;
/// Volatile Write Cache bit 0, WCE.
const WRITE_CACHE_ENABLED: u32 = 1;

/// The values that have no effect here but must be kept.
#[derive(Debug)]
pub(crate) struct Features {
    pub(super) arbitration: u32,
    pub(super) power_management: u32,
    pub(super) over_temperature: u16,
    pub(super) under_temperature: u16,
    pub(super) error_recovery: u32,
    pub(super) write_atomicity: u32,
    /// ACRE: the host waits for CRDT before it retries.
    pub(super) waits_before_retry: bool,
    /// CDFE: Copy takes source ranges that name their namespaces.
    pub(super) copies_across: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            arbitration: 0,
            power_management: 0,
            // never exceeded
            over_temperature: u16::MAX,
            under_temperature: 0,
            error_recovery: 0,
            write_atomicity: 0,
            waits_before_retry: false,
            copies_across: false,
        }
    }
}

impl Features {
    /// The threshold that CDW11 of Get Features names.
    fn temperature(&self, cdw11: u32) -> Result<u16, Status> {
        match (cdw11 >> 16 & 0xf, cdw11 >> 20 & 0b11) {
            (TMPSEL_COMPOSITE, THSEL_OVER) => Ok(self.over_temperature),
            (TMPSEL_COMPOSITE, THSEL_UNDER) => Ok(self.under_temperature),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    /// Sets the threshold that CDW11 of Set Features names to its bits 15:0.
    fn set_temperature(&mut self, cdw11: u32) -> Result<(), Status> {
        let [t0, t1, ..] = cdw11.to_le_bytes();
        let threshold = match (cdw11 >> 16 & 0xf, cdw11 >> 20 & 0b11) {
            (TMPSEL_COMPOSITE | TMPSEL_ALL, THSEL_OVER) => &mut self.over_temperature,
            (TMPSEL_COMPOSITE | TMPSEL_ALL, THSEL_UNDER) => &mut self.under_temperature,
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        *threshold = u16::from_le_bytes([t0, t1]);
        Ok(())
    }
}

impl Controller {
    /// Whether the host has enabled source ranges of Copy that name their namespaces ([`CopyCommand::across`]).
    ///
    /// [`CopyCommand::across`]: super::CopyCommand::across
    #[must_use]
    pub fn enables_copy_across(&self) -> bool {
        self.features.copies_across
    }

    /// Whether the feature exists, and Set Features may change it.
    fn feature_is_changeable(&self, fid: u8) -> Result<bool, Status> {
        let changeable = match (fid, self.subsystem()) {
            (fid::ASYNC_EVENT_CONFIG | fid::KEEP_ALIVE_TIMER, _) => true,
            (
                fid::ARBITRATION
                | fid::POWER_MANAGEMENT
                | fid::TEMPERATURE_THRESHOLD
                | fid::ERROR_RECOVERY
                | fid::NUMBER_OF_QUEUES
                | fid::WRITE_ATOMICITY
                | fid::HOST_BEHAVIOR
                | fid::COMMAND_SET_PROFILE,
                Some(_),
            ) => true,
            (fid::HOST_IDENTIFIER, Some(_)) => false,
            (fid::VOLATILE_WRITE_CACHE, Some(subsystem))
                if subsystem.has_volatile_write_cache() =>
            {
                false
            }
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        Ok(changeable)
    }

    /// Features of namespaces need a group whose namespaces are accessible (Base 2.0, figure 93).
    fn ana_allows(&self, fid: u8, nsid: NamespaceId) -> Result<(), Status> {
        match (fid, self.ana_refusal(nsid)) {
            (fid::ERROR_RECOVERY | fid::WRITE_ATOMICITY, Some(status)) => Err(status),
            _ => Ok(()),
        }
    }

    /// Returns DW0.
    pub(crate) fn get_features(&self, sqe: &Sqe, reply: &mut [u8]) -> Result<u32, Status> {
        let fid = feature_id(sqe);
        let changeable = self.feature_is_changeable(fid)?;
        self.ana_allows(fid, sqe.namespace_id())?;
        match Select::parse(sqe).ok_or(Status::INVALID_FIELD.dnr())? {
            Select::Capabilities if changeable => Ok(CAPABILITY_CHANGEABLE),
            Select::Capabilities => Ok(0),
            // nothing is ever saved: the saved value is the default
            Select::Default | Select::Saved => self.default_feature(fid, sqe.cdw11.get()),
            Select::Current => self.current_feature(fid, sqe.cdw11.get(), reply),
        }
    }

    fn current_feature(&self, fid: u8, cdw11: u32, reply: &mut [u8]) -> Result<u32, Status> {
        let features = &self.features;
        Ok(match fid {
            fid::ARBITRATION => features.arbitration,
            fid::POWER_MANAGEMENT => features.power_management,
            fid::TEMPERATURE_THRESHOLD => features.temperature(cdw11)?.into(),
            fid::ERROR_RECOVERY => features.error_recovery,
            fid::VOLATILE_WRITE_CACHE => WRITE_CACHE_ENABLED,
            fid::NUMBER_OF_QUEUES => queue_counts(self.queues.granted()),
            fid::WRITE_ATOMICITY => features.write_atomicity,
            fid::ASYNC_EVENT_CONFIG => self.events.config(),
            fid::KEEP_ALIVE_TIMER => self.keep_alive.kato_ms(),
            fid::HOST_BEHAVIOR => {
                let Some((page, _)) = reply.split_first_chunk_mut::<HOST_BEHAVIOR_LEN>() else {
                    return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
                };
                page[0] = features.waits_before_retry.into();
                let formats = if features.copies_across { COPY_FORMAT_2_ENABLED } else { 0 };
                [page[4], page[5]] = formats.to_le_bytes();
                0
            }
            // the only combination, whichever way it was selected
            fid::COMMAND_SET_PROFILE => 0,
            fid::HOST_IDENTIFIER => {
                if cdw11 & EXHID == 0 {
                    return Err(Status::HOST_ID_INCONSISTENT.dnr());
                }
                let Some((place, _)) = reply.split_first_chunk_mut() else {
                    return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
                };
                *place = self.hostid.0;
                0
            }
            _ => return Err(Status::INVALID_FIELD.dnr()),
        })
    }

    fn default_feature(&self, fid: u8, cdw11: u32) -> Result<u32, Status> {
        let features = Features::default();
        Ok(match fid {
            fid::ARBITRATION => features.arbitration,
            fid::POWER_MANAGEMENT => features.power_management,
            fid::TEMPERATURE_THRESHOLD => features.temperature(cdw11)?.into(),
            fid::ERROR_RECOVERY => features.error_recovery,
            fid::VOLATILE_WRITE_CACHE => WRITE_CACHE_ENABLED,
            fid::NUMBER_OF_QUEUES => queue_counts(self.queues.limit()),
            fid::WRITE_ATOMICITY => features.write_atomicity,
            fid::ASYNC_EVENT_CONFIG => Events::DEFAULT_CONFIG,
            _ => 0,
        })
    }

    /// Returns DW0.
    pub(crate) fn set_features(&mut self, sqe: &Sqe, data: &[u8]) -> Result<u32, Status> {
        let fid = feature_id(sqe);
        self.feature_is_changeable(fid)?;
        self.ana_allows(fid, sqe.namespace_id())?;
        if save(sqe) {
            return Err(Status::FEATURE_NOT_SAVEABLE.dnr());
        }
        let nsid = sqe.namespace_id();
        if nsid.0 != 0 && nsid != NamespaceId::BROADCAST {
            return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC.dnr());
        }
        let value = sqe.cdw11.get();
        match fid {
            fid::ARBITRATION => self.features.arbitration = value,
            fid::POWER_MANAGEMENT if value & POWER_STATE == 0 => {
                self.features.power_management = value & WORKLOAD_HINT;
            }
            fid::TEMPERATURE_THRESHOLD => self.features.set_temperature(value)?,
            fid::ERROR_RECOVERY if value & DULBE == 0 => {
                self.features.error_recovery = value & 0xffff;
            }
            // it cannot be turned off
            fid::VOLATILE_WRITE_CACHE if value & WRITE_CACHE_ENABLED == 0 => {
                return Err(Status::FEATURE_NOT_CHANGEABLE.dnr());
            }
            fid::VOLATILE_WRITE_CACHE => {}
            fid::NUMBER_OF_QUEUES => return self.set_number_of_queues(value),
            fid::WRITE_ATOMICITY => self.features.write_atomicity = value & DISABLE_NORMAL,
            fid::ASYNC_EVENT_CONFIG => self.events.set_config(value)?,
            // the other behaviours concern formats that no namespace has
            fid::HOST_BEHAVIOR => {
                let Some(page) = data.first_chunk::<HOST_BEHAVIOR_LEN>() else {
                    return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
                };
                let [acre @ (0 | 1), _, _, _, c0, c1, ..] = *page else {
                    return Err(Status::INVALID_FIELD.dnr());
                };
                self.features.waits_before_retry = acre == 1;
                // A host that enables formats which no namespace has gets the one that there is.
                let formats = u16::from_le_bytes([c0, c1]);
                self.features.copies_across = formats & COPY_FORMAT_2_ENABLED != 0;
            }
            fid::KEEP_ALIVE_TIMER => self.keep_alive.set_kato_ms(value),
            fid::COMMAND_SET_PROFILE if value & COMMAND_SET_INDEX == 0 => {}
            fid::COMMAND_SET_PROFILE => return Err(Status::COMMAND_SETS_REJECTED.dnr()),
            // over fabrics, Connect sets it
            fid::HOST_IDENTIFIER => return Err(Status::COMMAND_SEQUENCE_ERROR.dnr()),
            _ => return Err(Status::INVALID_FIELD.dnr()),
        }
        Ok(0)
    }

    /// Number of Queues: a queue is a pair, so the lesser number counts (Base 2.0, 5.27.1.5).
    fn set_number_of_queues(&mut self, value: u32) -> Result<u32, Status> {
        if !self.queues.is_empty() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        let asked = QueueCounts::from_dword(value);
        match u16::try_from(asked.submission.max(asked.completion)) {
            // FFFFh on the wire, 65536 queues, is not allowed
            Err(_) => Err(Status::INVALID_FIELD.dnr()),
            Ok(_) => {
                let pairs = asked.submission.min(asked.completion);
                self.queues.grant(u16::try_from(pairs).unwrap_or(u16::MAX));
                Ok(queue_counts(self.queues.granted()))
            }
        }
    }
}

fn queue_counts(pairs: u16) -> u32 {
    QueueCounts { submission: pairs.into(), completion: pairs.into() }.to_dword()
}
