//! Get Log Page (Base 2.0, 5.16).

use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use super::admin::ADMIN_COMMANDS;
use super::event::EventKind;
use super::{Controller, Kind, Subsystem};
use crate::nvme::identify::{CSI_NVM, ascii_field};
use crate::nvme::log::{
    EFFECT_CONTENT_CHANGE, EFFECT_INVENTORY_CHANGE, EFFECT_NAMESPACE_CHANGE, EFFECT_SUPPORTED,
    EffectsLog, FirmwareLog, GetLogPage, SmartLog, lid,
};
use crate::nvme::opcode::{admin, io};
use crate::nvme::{NamespaceId, Sqe, Status};

/// A data unit of the SMART log: a thousand times 512 bytes.
const DATA_UNIT_BYTES: u64 = 512 * 1000;

/// The driver's counters for the SMART log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounters {
    /// Read and Compare commands completed.
    pub read_commands: u64,
    /// Write commands completed.
    pub write_commands: u64,
    /// Bytes of those reads and compares.
    pub read_bytes: u64,
    /// Bytes of those writes.
    pub written_bytes: u64,
    /// Commands that failed because of the medium.
    pub media_errors: u64,
    /// Time with at least one I/O command outstanding.
    pub busy: Duration,
}

impl Controller {
    /// Fills `reply`, which may be longer than the log asked for: the rest stays zero.
    pub(crate) fn get_log_page(
        &mut self,
        now: Instant,
        sqe: &Sqe,
        reply: &mut [u8],
        counters: &IoCounters,
    ) -> Result<(), Status> {
        let command = GetLogPage::parse(sqe);
        if !command.offset.is_multiple_of(4) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        // the requested length must fit the length in the SGL
        let reply = usize::try_from(command.len_bytes)
            .ok()
            .and_then(|len| reply.get_mut(..len))
            .ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())?;
        match (command.lid, &mut self.kind) {
            (lid::DISCOVERY, Kind::Discovery(service)) => {
                let current = service.log.read(command.offset, reply)?;
                if !command.retain_event {
                    let kind = EventKind::Discovery;
                    self.events.log_read(kind, current, &mut self.actions);
                }
                Ok(())
            }
            (lid::ERROR, Kind::Io { .. }) => copy_page(&self.errors.page(), command.offset, reply),
            (lid::SMART, Kind::Io { .. }) => {
                let nsid = sqe.namespace_id();
                if nsid.0 != 0 && nsid != NamespaceId::BROADCAST {
                    // LPA bit 0 is clear: the log is that of the controller
                    return Err(Status::INVALID_FIELD.dnr());
                }
                let page = self.smart_log(now, counters);
                copy_page(page.as_bytes(), command.offset, reply)
            }
            (lid::FIRMWARE, Kind::Io { whole: subsystem, .. }) => {
                copy_page(firmware_log(subsystem).as_bytes(), command.offset, reply)
            }
            (lid::CHANGED_NAMESPACES, Kind::Io { .. }) => {
                copy_page(self.changed.page().as_bytes(), command.offset, reply)?;
                if !command.retain_event {
                    self.changed.clear();
                    let kind = EventKind::Namespaces;
                    self.events.log_read(kind, true, &mut self.actions);
                }
                Ok(())
            }
            (lid::ANA, Kind::Io { whole, .. }) if whole.ana.is_some() => {
                copy_page(self.ana_page(command.offset, command.lsp)?, command.offset, reply)?;
                if !command.retain_event {
                    // What was read from the beginning on shows all changes so far.
                    let complete = command.offset == 0;
                    self.events.log_read(EventKind::Ana, complete, &mut self.actions);
                }
                Ok(())
            }
            (lid::CROSS_CONTROLLER_RESET, Kind::Io { .. }) => {
                copy_page(&self.cross_reset_page(), command.offset, reply)?;
                self.cross_reset_page_read(&command);
                Ok(())
            }
            (lid::RESERVATION_NOTIFICATION, Kind::Io { whole, .. })
                if whole.reservations.is_some() =>
            {
                self.reservation_notification(command.offset, command.retain_event, reply)
            }
            // CSI: of the only I/O command set
            (lid::EFFECTS, Kind::Io { .. }) if command.csi == CSI_NVM => {
                let reservations = self.subsystem().is_some_and(|s| s.reservations.is_some());
                let mut page = effects_log(self.pool().is_some(), reservations);
                self.put_effects(&mut page);
                copy_page(page.as_bytes(), command.offset, reply)
            }
            _ => Err(Status::INVALID_LOG_PAGE.dnr()),
        }
    }

    /// The effects of commands that depend on what devices can do.
    fn put_effects(&self, page: &mut EffectsLog) {
        if self.knows_lba_status() {
            page.acs[usize::from(admin::GET_LBA_STATUS)] = EFFECT_SUPPORTED.into();
        }
        if self.subsystem().is_some_and(|subsystem| subsystem.takes_uncorrectable()) {
            let changes = EFFECT_SUPPORTED | EFFECT_CONTENT_CHANGE;
            page.iocs[usize::from(io::WRITE_UNCORRECTABLE)] = changes.into();
        }
    }

    /// There is no sensor and no wear: temperature 0 is "not reported", the spare is complete.
    fn smart_log(&self, now: Instant, counters: &IoCounters) -> SmartLog {
        let units = |bytes: u64| u128::from(bytes.div_ceil(DATA_UNIT_BYTES));
        let powered = now.saturating_duration_since(self.created);
        SmartLog {
            available_spare: 100,
            data_units_read: units(counters.read_bytes).into(),
            data_units_written: units(counters.written_bytes).into(),
            host_read_commands: u128::from(counters.read_commands).into(),
            host_write_commands: u128::from(counters.write_commands).into(),
            controller_busy_time: u128::from(counters.busy.as_secs() / 60).into(),
            power_on_hours: u128::from(powered.as_secs() / 3600).into(),
            media_errors: u128::from(counters.media_errors).into(),
            error_log_entries: u128::from(self.errors.count()).into(),
            ..SmartLog::default()
        }
    }
}

/// One slot, which holds the running firmware.
fn firmware_log(subsystem: &Subsystem) -> FirmwareLog {
    let mut page = FirmwareLog { afi: 1, ..FirmwareLog::default() };
    page.frs[0] = ascii_field(&subsystem.firmware);
    page
}

/// No command has effects that a host must prepare for. CSE and CCC stay 0: otherwise Linux freezes
/// its queues around such commands.
fn effects_log(has_pool: bool, has_reservations: bool) -> EffectsLog {
    let mut page = EffectsLog::default();
    if has_reservations {
        for opcode in [
            io::RESERVATION_REGISTER,
            io::RESERVATION_REPORT,
            io::RESERVATION_ACQUIRE,
            io::RESERVATION_RELEASE,
        ] {
            page.iocs[usize::from(opcode)] = EFFECT_SUPPORTED.into();
        }
    }
    if has_pool {
        let inventory = EFFECT_SUPPORTED | EFFECT_INVENTORY_CHANGE;
        page.acs[usize::from(admin::NAMESPACE_MANAGEMENT)] = inventory.into();
        page.acs[usize::from(admin::NAMESPACE_ATTACHMENT)] = inventory.into();
        let format = EFFECT_SUPPORTED | EFFECT_CONTENT_CHANGE | EFFECT_NAMESPACE_CHANGE;
        page.acs[usize::from(admin::FORMAT_NVM)] = format.into();
    }
    for opcode in ADMIN_COMMANDS.into_iter().chain([admin::CROSS_CONTROLLER_RESET]) {
        page.acs[usize::from(opcode)] = EFFECT_SUPPORTED.into();
    }
    for opcode in [io::FLUSH, io::READ, io::COMPARE, io::VERIFY] {
        page.iocs[usize::from(opcode)] = EFFECT_SUPPORTED.into();
    }
    for opcode in [io::WRITE, io::WRITE_ZEROES, io::DATASET_MANAGEMENT, io::COPY] {
        page.iocs[usize::from(opcode)] = (EFFECT_SUPPORTED | EFFECT_CONTENT_CHANGE).into();
    }
    page
}

/// Copies the page from an offset on; past its end the reply stays zero. An offset past
/// the end is an error (Base 2.0, figure 199).
pub(super) fn copy_page(page: &[u8], offset: u64, reply: &mut [u8]) -> Result<(), Status> {
    let rest = usize::try_from(offset)
        .ok()
        .and_then(|offset| page.get(offset..))
        .ok_or(Status::INVALID_FIELD.dnr())?;
    for (place, byte) in reply.iter_mut().zip(rest) {
        *place = *byte;
    }
    Ok(())
}
