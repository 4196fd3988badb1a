//! Namespace Management, Namespace Attachment and Format NVM: changes that a host asks for to the
//! namespaces in its subsystem's pool (Base 2.0, 5.18, 5.19 and 5.14).
//!
//! This module checks only the form. The driver checks the command against the pool and the namespaces
//! and executes it: that takes time, and concerns other controllers too.

use zerocopy::FromBytes;

use super::Controller;
use super::subsystem::{Namespace, Pool};
use crate::nvme::feature::WriteProtection;
use crate::nvme::identify::{ControllerList, IdentifyNamespace, NMIC_SHARED};
use crate::nvme::opcode::admin;
use crate::nvme::{ControllerId, NamespaceId, Sqe, Status};

/// The admin commands that exist where there is a pool.
pub(crate) const MANAGEMENT_COMMANDS: [u8; 3] =
    [admin::NAMESPACE_MANAGEMENT, admin::NAMESPACE_ATTACHMENT, admin::FORMAT_NVM];

/// SEL of Namespace Management and Namespace Attachment, CDW10 bits 3:0.
const SELECT: u32 = 0xf;
/// SEL: create a namespace, or attach it.
const CREATE_OR_ATTACH: u32 = 0;
/// SEL: delete a namespace, or detach it.
const DELETE_OR_DETACH: u32 = 1;
/// Format NVM bits 7:5, PI: protection information.
const FORMAT_PROTECTION: u32 = 0b111 << 5;
/// FLBAS bits 3:0: LBA format. The other bits ask for metadata, or for more formats than exist.
const FLBAS_FORMAT: u8 = 0xf;

/// A change that a host asks for to the namespaces of its subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagementCommand {
    /// Make a namespace, attached to no controller. The result is its NSID.
    Create {
        /// Its size in blocks, at least 1.
        block_count: u64,
        /// Its block size, one of [`Pool::block_sizes`].
        block_size: u32,
        /// Several hosts may be attached to it.
        shared: bool,
    },
    /// Delete a namespace of the pool; [`NamespaceId::BROADCAST`]: all of them.
    Delete {
        /// Which.
        nsid: NamespaceId,
    },
    /// Attach a namespace of the pool to controllers.
    Attach {
        /// Which.
        nsid: NamespaceId,
        /// To which, at least one.
        controllers: Vec<ControllerId>,
    },
    /// Detach a namespace of the pool from controllers.
    Detach {
        /// Which.
        nsid: NamespaceId,
        /// From which, at least one.
        controllers: Vec<ControllerId>,
    },
    /// Make all blocks of a namespace of the pool zero, with this block size;
    /// [`NamespaceId::BROADCAST`]: of all that are attached to the controller.
    Format {
        /// Which.
        nsid: NamespaceId,
        /// Its block size from now on, one of [`Pool::block_sizes`].
        block_size: u32,
    },
}

impl Controller {
    /// The pool, when this host may manage it.
    pub(crate) fn pool(&self) -> Option<&Pool> {
        let pool = self.whole()?.pool.as_ref();
        pool.filter(|pool| pool.managers.admits(&self.hostnqn))
    }

    /// Checks the form of a command; the subsystem has this pool.
    pub(crate) fn parse_management(
        &self,
        sqe: &Sqe,
        data: &[u8],
    ) -> Result<ManagementCommand, Status> {
        let Some(pool) = self.pool() else { return Err(Status::INVALID_OPCODE.dnr()) };
        let nsid = sqe.namespace_id();
        match (sqe.opc, sqe.cdw10.get() & SELECT) {
            (admin::FORMAT_NVM, _) => {
                self.check_managed(nsid, true)?;
                Ok(ManagementCommand::Format { nsid, block_size: parse_format(sqe, pool)? })
            }
            (admin::NAMESPACE_MANAGEMENT, CREATE_OR_ATTACH) => parse_create(sqe, data, pool),
            (admin::NAMESPACE_MANAGEMENT, DELETE_OR_DETACH) => {
                self.check_managed(nsid, true)?;
                Ok(ManagementCommand::Delete { nsid })
            }
            (admin::NAMESPACE_ATTACHMENT, select @ (CREATE_OR_ATTACH | DELETE_OR_DETACH)) => {
                self.check_managed(nsid, false)?;
                let controllers = parse_controllers(data)?;
                Ok(if select == CREATE_OR_ATTACH {
                    ManagementCommand::Attach { nsid, controllers }
                } else {
                    ManagementCommand::Detach { nsid, controllers }
                })
            }
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    /// Whether the NSID is that of a namespace in the pool, or, with `all`, names all of them.
    fn check_managed(&self, nsid: NamespaceId, all: bool) -> Result<(), Status> {
        if all && nsid == NamespaceId::BROADCAST {
            return Ok(());
        }
        match self.whole().and_then(|subsystem| subsystem.namespace(nsid)) {
            Some(namespace) if all && namespace.protection != WriteProtection::None => {
                Err(Status::NAMESPACE_WRITE_PROTECTED.dnr())
            }
            Some(Namespace { pool_bytes: Some(_), .. }) => {
                self.ana_refusal(nsid).map_or(Ok(()), Err)?;
                self.reservation_admits(nsid)
            }
            // it exists, but hosts may not change it
            Some(_) => Err(Status::INVALID_FIELD.dnr()),
            None => Err(Status::INVALID_NAMESPACE.dnr()),
        }
    }
}

/// The data of Create have the layout of Identify Namespace.
fn parse_create(sqe: &Sqe, data: &[u8], pool: &Pool) -> Result<ManagementCommand, Status> {
    let [.., csi] = sqe.cdw11.get().to_le_bytes();
    let wanted = IdentifyNamespace::ref_from_bytes(data)
        .map_err(|_| Status::DATA_SGL_LENGTH_INVALID.dnr())?;
    let (block_count, capacity) = (wanted.nsze.get(), wanted.ncap.get());
    let groups =
        [wanted.anagrpid.get(), u32::from(wanted.nvmsetid.get()), u32::from(wanted.endgid.get())];
    if csi != 0
        || block_count == 0
        || capacity > block_count
        || wanted.dps != 0
        || wanted.nmic & !NMIC_SHARED != 0
        || groups != [0; 3]
    {
        return Err(Status::INVALID_FIELD.dnr());
    }
    if capacity != block_count {
        return Err(Status::THIN_PROVISIONING_NOT_SUPPORTED.dnr());
    }
    if wanted.flbas & !FLBAS_FORMAT != 0 {
        return Err(Status::INVALID_FORMAT.dnr());
    }
    let block_size = block_size(pool, wanted.flbas.into())?;
    let shared = wanted.nmic & NMIC_SHARED != 0;
    Ok(ManagementCommand::Create { block_count, block_size, shared })
}

/// LBAF in bits 3:0 and 13:12; SES in bits 11:9, of which 2, cryptographic erase, is not supported.
/// MSET (bit 4) and PIL (bit 8) have no meaning without metadata.
fn parse_format(sqe: &Sqe, pool: &Pool) -> Result<u32, Status> {
    let word = sqe.cdw10.get();
    if word & FORMAT_PROTECTION != 0 || word >> 9 & 0b111 > 1 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    block_size(pool, word & 0xf | (word >> 12 & 0b11) << 4)
}

fn block_size(pool: &Pool, format: u32) -> Result<u32, Status> {
    let place = usize::try_from(format).unwrap_or(usize::MAX);
    pool.block_sizes.get(place).copied().ok_or(Status::INVALID_FORMAT.dnr())
}

fn parse_controllers(data: &[u8]) -> Result<Vec<ControllerId>, Status> {
    let list =
        ControllerList::ref_from_bytes(data).map_err(|_| Status::DATA_SGL_LENGTH_INVALID.dnr())?;
    let ids =
        list.ids.get(..list.count.get().into()).ok_or(Status::CONTROLLER_LIST_INVALID.dnr())?;
    let ids: Vec<ControllerId> = ids.iter().map(|id| ControllerId(id.get())).collect();
    if ids.is_empty() || !ids.is_sorted_by(|a, b| a < b) {
        return Err(Status::CONTROLLER_LIST_INVALID.dnr());
    }
    Ok(ids)
}
