//! Namespace write protection: Get and Set Features of Namespace Write Protection Config (Base 2.0, 5.27.1.28 and
//! 8.12). The driver changes it, because it has to be kept, and holds for all controllers.

use super::{AdminOutcome, Controller};
use crate::nvme::feature::{
    CAPABILITY_CHANGEABLE, CAPABILITY_NAMESPACE_SPECIFIC, Select, WriteProtection, feature_id, fid,
    save,
};
use crate::nvme::opcode::admin;
use crate::nvme::{Sqe, Status};

impl Controller {
    /// Whether Get or Set Features is about write protection, which only [`Self::protection_feature`] knows.
    pub(super) fn is_protection_feature(&self, sqe: &Sqe) -> bool {
        feature_id(sqe) == fid::WRITE_PROTECTION && self.subsystem().is_some()
    }

    /// Get or Set Features of Namespace Write Protection Config, which belongs to a namespace.
    pub(super) fn protection_feature(&self, sqe: &Sqe) -> Result<AdminOutcome, Status> {
        let nsid = sqe.namespace_id();
        if sqe.opc == admin::SET_FEATURES {
            if save(sqe) {
                return Err(Status::FEATURE_NOT_SAVEABLE.dnr());
            }
            let namespace = self.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
            self.ana_refusal(nsid).map_or(Ok(()), Err)?;
            self.reservation_admits(nsid)?;
            let protection = WriteProtection::from_wire(sqe.cdw11.get() & 0b111);
            let protection = protection.ok_or(Status::INVALID_FIELD.dnr())?;
            return match namespace.protection {
                now if now == protection => Ok(AdminOutcome::success(0)),
                WriteProtection::UntilPowerCycle => Err(Status::FEATURE_NOT_CHANGEABLE.dnr()),
                _ => Ok(AdminOutcome::Protect { nsid, protection }),
            };
        }
        match Select::parse(sqe).ok_or(Status::INVALID_FIELD.dnr())? {
            Select::Capabilities => {
                let capabilities = CAPABILITY_CHANGEABLE | CAPABILITY_NAMESPACE_SPECIFIC;
                return Ok(AdminOutcome::success(capabilities));
            }
            Select::Default | Select::Saved => return Ok(AdminOutcome::success(0)),
            Select::Current => {}
        }
        let namespace = self.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.dnr())?;
        self.ana_refusal(nsid).map_or(Ok(()), Err)?;
        Ok(AdminOutcome::success(namespace.protection.to_wire()))
    }
}
