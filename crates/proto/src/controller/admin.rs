//! The commands of an admin queue: admin and Fabrics commands, one match each.

use std::time::Instant;

use super::management::MANAGEMENT_COMMANDS;
use super::sgl::{is_odd_and_empty, sgl_transfer};
use super::{AdminOutcome, Controller, ErrorEntry, IoCounters, Tolerance};
use crate::nvme::authentication;
use crate::nvme::identify::cns;
use crate::nvme::opcode::{admin, fabrics};
use crate::nvme::property::PropertyAccess;
use crate::nvme::registration::Registration;
use crate::nvme::{CommandId, ControllerId, Direction, HostNqn, QueueId, Sqe, Status, Transfer};

/// What the driver knows and a controller does not, for the command in progress.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The counters of the subsystem, for the SMART log.
    pub counters: IoCounters,
    /// The controllers of the subsystem and their hosts, for a command that
    /// [`asks_for_controllers`].
    pub controllers: Vec<(ControllerId, HostNqn)>,
}

/// How many bytes go which way with an authentication command, on every queue.
///
/// # Errors
/// The status to complete it with: its words or its SGL are wrong.
pub fn authentication_transfer(sqe: &Sqe) -> Result<Transfer, Status> {
    authentication::check_words(sqe)?;
    let direction = Direction::of_code(sqe.fctype()).ok_or(Status::INVALID_OPCODE.dnr())?;
    sgl_transfer(sqe, direction, authentication::MAX_MESSAGE_BYTES)
}

/// Whether a command of the admin queue is about the other controllers of its subsystem.
#[must_use]
pub fn asks_for_controllers(sqe: &Sqe) -> bool {
    let [cns, ..] = sqe.cdw10.get().to_le_bytes();
    sqe.opc == admin::IDENTIFY && matches!(cns, cns::NAMESPACE_CONTROLLERS | cns::CONTROLLERS)
}

/// The admin commands that exist, for the effects log and for the early refusal of unknown ones.
pub(crate) const ADMIN_COMMANDS: [u8; 7] = [
    admin::GET_LOG_PAGE,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::KEEP_ALIVE,
];

impl Controller {
    /// How many bytes go which way with a command of the admin queue. The driver also passes a failure to
    /// [`Controller::record_error`].
    ///
    /// # Errors
    /// The status to complete it with: the command does not exist, or its SGL is wrong, or it
    /// asks for more than MDTS.
    pub fn transfer(&self, sqe: &Sqe) -> Result<Transfer, Status> {
        let code = match sqe.opc {
            fabrics::OPCODE => match sqe.fctype() {
                fctype @ (fabrics::PROPERTY_SET | fabrics::PROPERTY_GET) => fctype,
                // a queue connects once
                fabrics::CONNECT => return Err(Status::COMMAND_SEQUENCE_ERROR.dnr()),
                _ => return Err(Status::INVALID_OPCODE.dnr()),
            },
            opcode if ADMIN_COMMANDS.contains(&opcode) => opcode,
            opcode if MANAGEMENT_COMMANDS.contains(&opcode) && self.pool().is_some() => opcode,
            admin::CROSS_CONTROLLER_RESET if self.resets_others() => admin::CROSS_CONTROLLER_RESET,
            admin::GET_LBA_STATUS if self.knows_lba_status() => admin::GET_LBA_STATUS,
            opcode @ admin::DISCOVERY_INFORMATION_MANAGEMENT if self.is_central() => opcode,
            _ => return Err(Status::INVALID_OPCODE.dnr()),
        };
        let direction = Direction::of_code(code).ok_or(Status::INVALID_OPCODE.dnr())?;
        sgl_transfer(sqe, direction, self.kind.limits().max_io_bytes)
    }

    /// Executes a command for which [`Controller::transfer`] gave the length of `data` (what the
    /// host sent) or of `reply` (zeroed; what the host gets on success).
    pub fn handle_admin(
        &mut self,
        now: Instant,
        sqe: &Sqe,
        data: &[u8],
        reply: &mut [u8],
        facts: &Facts,
    ) -> AdminOutcome {
        self.keep_alive.command_seen(now);
        if is_odd_and_empty(sqe) {
            self.tolerances.note(Tolerance::DescriptorType);
        }
        let result = if sqe.opc == fabrics::OPCODE {
            self.handle_fabrics(now, sqe)
        } else {
            self.handle_ready(now, sqe, data, reply, facts)
        };
        result.unwrap_or_else(|status| {
            self.record_error(ErrorEntry {
                sqid: QueueId::ADMIN,
                cid: sqe.command_id(),
                status,
                nsid: sqe.namespace_id(),
                lba: 0,
            });
            AdminOutcome::status(status)
        })
    }

    /// The host has given a new command the identifier of an event request: it no longer knows the
    /// request, so the controller does not answer it. Says whether the request was held.
    pub fn forget_event_request(&mut self, cid: CommandId) -> bool {
        self.events.forget(cid)
    }

    /// Fabrics commands work whether or not the controller is ready.
    fn handle_fabrics(&mut self, now: Instant, sqe: &Sqe) -> Result<AdminOutcome, Status> {
        self.transfer(sqe)?;
        let access = PropertyAccess::parse(sqe).ok_or(Status::INVALID_FIELD.dnr())?;
        if sqe.fctype() == fabrics::PROPERTY_GET {
            let [d0, d1, d2, d3, d4, d5, d6, d7] = self.registers.get(access)?.to_le_bytes();
            return Ok(AdminOutcome::Complete {
                status: Status::SUCCESS,
                dw0: u32::from_le_bytes([d0, d1, d2, d3]),
                dw1: u32::from_le_bytes([d4, d5, d6, d7]),
            });
        }
        if self.abandoned {
            return Err(Status::ABORTED_SQ_DELETION);
        }
        let change = self.registers.set(access)?;
        self.configuration_changed(now, change);
        Ok(AdminOutcome::success(0))
    }

    /// Admin commands work while CSTS.RDY is 1.
    fn handle_ready(
        &mut self,
        now: Instant,
        sqe: &Sqe,
        data: &[u8],
        reply: &mut [u8],
        facts: &Facts,
    ) -> Result<AdminOutcome, Status> {
        if self.abandoned {
            return Err(Status::ABORTED_SQ_DELETION);
        }
        if !self.is_ready() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        match sqe.opc {
            admin::IDENTIFY => {
                self.identify(sqe, reply, &facts.controllers).map(|()| AdminOutcome::success(0))
            }
            admin::GET_LOG_PAGE => {
                let page = self.get_log_page(now, sqe, reply, &facts.counters);
                page.map(|()| AdminOutcome::success(0))
            }
            admin::GET_FEATURES | admin::SET_FEATURES if self.is_reservation_feature(sqe) => {
                self.reservation_feature(sqe)
            }
            admin::GET_FEATURES | admin::SET_FEATURES if self.is_protection_feature(sqe) => {
                self.protection_feature(sqe)
            }
            admin::GET_FEATURES => self.get_features(sqe, reply).map(AdminOutcome::success),
            admin::SET_FEATURES => self.set_features(sqe, data).map(AdminOutcome::success),
            admin::ASYNC_EVENT_REQUEST => self
                .events
                .request(sqe.command_id(), &mut self.actions)
                .map(|()| AdminOutcome::Held),
            admin::ABORT => Ok(self.abort(sqe)),
            admin::CROSS_CONTROLLER_RESET if self.resets_others() => self.cross_reset(sqe),
            admin::GET_LBA_STATUS if self.knows_lba_status() => self.lba_status(sqe, reply),
            admin::DISCOVERY_INFORMATION_MANAGEMENT if self.is_central() => {
                Registration::parse(sqe.cdw10.get(), data)
                    .map(|registration| AdminOutcome::Register(registration.into()))
            }
            opcode if MANAGEMENT_COMMANDS.contains(&opcode) => {
                self.parse_management(sqe, data).map(|command| AdminOutcome::Manage(command.into()))
            }
            // its arrival is what counts
            admin::KEEP_ALIVE => Ok(AdminOutcome::success(0)),
            _ => Err(Status::INVALID_OPCODE.dnr()),
        }
    }

    /// Abort (Base 2.0, 5.1): event requests wait here, all other commands with the driver.
    fn abort(&mut self, sqe: &Sqe) -> AdminOutcome {
        let [s0, s1, c0, c1] = sqe.cdw10.get().to_le_bytes();
        let sqid = QueueId(u16::from_le_bytes([s0, s1]));
        let cid = CommandId(u16::from_le_bytes([c0, c1]));
        if sqid.is_admin() && self.events.abort(cid, &mut self.actions) {
            return AdminOutcome::success(0);
        }
        AdminOutcome::Abort { sqid, cid }
    }
}
