//! Identify: what the controller and its namespaces say about themselves (Base 2.0, 5.17).

use zerocopy::{Immutable, IntoBytes};

use super::event::MAX_EVENT_REQUESTS;
use super::keep_alive::KAS;
use super::subsystem::{MAX_NSID, Namespace, Subsystem};
use super::{Controller, ERROR_LOG_ENTRIES, MAX_ABORTS};
use crate::nvme::identify::{
    CMIC_MULTI_CONTROLLER, CMIC_MULTI_PORT, CNTRLTYPE_DISCOVERY, CNTRLTYPE_IO, CQES,
    CTRATT_HOST_ID_128, CTRATT_TRAFFIC_BASED_KEEP_ALIVE, DLFEAT_READS_ZEROES,
    DLFEAT_WRITE_ZEROES_DEALLOCATES, FRMW_ONE_SLOT, FRMW_SLOT1_READ_ONLY, FUSES_COMPARE_AND_WRITE,
    IDENTIFY_LEN, IdentifyController, IdentifyNamespace, IdentifyNamespaceIndependent,
    IdentifyNvmController, LPA_EFFECTS, LPA_EXTENDED, NIDT_NGUID, NIDT_UUID, NMIC_SHARED,
    NSATTR_WRITE_PROTECTED, NSFEAT_GRANULARITY, NSTAT_READY, NamespaceDescriptorHeader,
    NamespaceList, ONCS_COMPARE, ONCS_DATASET_MANAGEMENT, ONCS_WRITE_ZEROES, SGLS_OFFSET,
    SGLS_SUPPORTED, SGLS_TRANSPORT, SQES, VWC_NO_BROADCAST_FLUSH, VWC_PRESENT, ascii_field, cns,
};
use crate::nvme::property::VERSION_1_4;
use crate::nvme::{NamespaceId, Nqn, Sqe, Status};

/// CSI of the NVM command set.
const CSI_NVM: u8 = 0;
/// IORCSZ: a response capsule is one completion, in 16 bytes.
const IORCSZ: u32 = 1;
/// MSDBD: one SGL descriptor per command.
const MSDBD: u8 = 1;

impl Controller {
    pub(crate) fn identify(&self, sqe: &Sqe, reply: &mut [u8]) -> Result<(), Status> {
        let Some((page, _)) = reply.split_first_chunk_mut::<IDENTIFY_LEN>() else {
            return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
        };
        let [cns, ..] = sqe.cdw10.get().to_le_bytes();
        let [.., csi] = sqe.cdw11.get().to_le_bytes();
        let nsid = sqe.namespace_id();
        match (cns, self.subsystem()) {
            (cns::CONTROLLER, _) => put(page, &self.identify_controller()),
            (cns::NAMESPACE, Some(_)) => {
                if let Some(namespace) = self.allocated_namespace(nsid)? {
                    put(page, &identify_namespace(namespace));
                }
            }
            (cns::ACTIVE_NAMESPACES, Some(subsystem)) => {
                put(page, &active_namespaces(subsystem, nsid)?);
            }
            (cns::NAMESPACE_DESCRIPTORS, Some(_)) => {
                put_descriptors(page, self.active_namespace(nsid)?);
            }
            // no field of it applies: no metadata, no protection information
            (cns::COMMAND_SET_NAMESPACE, Some(_)) if csi == CSI_NVM => {
                self.allocated_namespace(nsid)?;
            }
            // no limit but those of the commands themselves
            (cns::COMMAND_SET_CONTROLLER, Some(_)) if csi == CSI_NVM => {
                put(page, &IdentifyNvmController::default());
            }
            (cns::INDEPENDENT_NAMESPACE, Some(_)) => {
                if let Some(namespace) = self.allocated_namespace(nsid)? {
                    put(page, &identify_independent(namespace));
                }
            }
            _ => return Err(Status::INVALID_FIELD.dnr()),
        }
        Ok(())
    }

    /// A valid NSID without a namespace is inactive: the structure is all zero (Base 2.0, 5.17).
    fn allocated_namespace(&self, nsid: NamespaceId) -> Result<Option<&Namespace>, Status> {
        if nsid.0 == 0 || nsid.0 > MAX_NSID {
            return Err(Status::INVALID_NAMESPACE.dnr());
        }
        Ok(self.namespace(nsid))
    }

    fn active_namespace(&self, nsid: NamespaceId) -> Result<&Namespace, Status> {
        self.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.dnr())
    }

    fn identify_controller(&self) -> IdentifyController {
        let limits = self.kind.limits();
        let common = IdentifyController {
            mdts: limits.mdts(),
            cntlid: self.cntlid.0.into(),
            ver: VERSION_1_4.into(),
            oaes: self.events.supported().into(),
            ctratt: (CTRATT_HOST_ID_128 | CTRATT_TRAFFIC_BASED_KEEP_ALIVE).into(),
            acl: MAX_ABORTS - 1,
            aerl: zero_based(MAX_EVENT_REQUESTS),
            frmw: FRMW_SLOT1_READ_ONLY | FRMW_ONE_SLOT,
            kas: KAS.into(),
            sqes: SQES,
            cqes: CQES,
            maxcmd: limits.max_queue_entries.into(),
            sgls: (SGLS_SUPPORTED | SGLS_OFFSET | SGLS_TRANSPORT).into(),
            ioccsz: ((limits.in_capsule_bytes + 64) / 16).into(),
            iorcsz: IORCSZ.into(),
            msdbd: MSDBD,
            ..IdentifyController::default()
        };
        match self.subsystem() {
            Some(subsystem) => identify_io_controller(common, subsystem),
            None => IdentifyController {
                sn: ascii_field("discovery"),
                mn: ascii_field(DISCOVERY_MODEL),
                fr: ascii_field(env!("CARGO_PKG_VERSION")),
                cntrltype: CNTRLTYPE_DISCOVERY,
                lpa: LPA_EXTENDED,
                subnqn: Nqn::discovery().to_field(),
                ..common
            },
        }
    }
}

/// Model number of discovery controllers.
const DISCOVERY_MODEL: &str = "Raceline";

fn identify_io_controller(common: IdentifyController, subsystem: &Subsystem) -> IdentifyController {
    let volatile = if subsystem.has_volatile_write_cache() { VWC_PRESENT } else { 0 };
    IdentifyController {
        sn: ascii_field(&subsystem.serial),
        mn: ascii_field(&subsystem.model),
        fr: ascii_field(&subsystem.firmware),
        cmic: CMIC_MULTI_PORT | CMIC_MULTI_CONTROLLER,
        cntrltype: CNTRLTYPE_IO,
        lpa: LPA_EFFECTS | LPA_EXTENDED,
        elpe: zero_based(ERROR_LOG_ENTRIES),
        nn: MAX_NSID.into(),
        mnan: MAX_NSID.into(),
        oncs: (ONCS_COMPARE | ONCS_DATASET_MANAGEMENT | ONCS_WRITE_ZEROES).into(),
        fuses: FUSES_COMPARE_AND_WRITE.into(),
        vwc: volatile | VWC_NO_BROADCAST_FLUSH,
        subnqn: subsystem.nqn.to_field(),
        ..common
    }
}

/// Atomicity fields stay 0 with NSFEAT bit 1 clear: one block is what we promise (AWUPF 0).
fn identify_namespace(namespace: &Namespace) -> IdentifyNamespace {
    let blocks = namespace.block_count;
    let granularity = granularity(namespace);
    let mut identify = IdentifyNamespace {
        nsze: blocks.into(),
        ncap: blocks.into(),
        nuse: blocks.into(),
        nsfeat: if granularity > 0 { NSFEAT_GRANULARITY } else { 0 },
        nmic: NMIC_SHARED,
        dlfeat: dlfeat(namespace),
        npwg: granularity.into(),
        npwa: granularity.into(),
        npdg: granularity.into(),
        npda: granularity.into(),
        nows: granularity.into(),
        nsattr: nsattr(namespace),
        nguid: namespace.nguid,
        ..IdentifyNamespace::default()
    };
    // at most 31: it is the logarithm of 32 bits
    identify.lbaf[0].lbads = namespace.block_size.max(1).ilog2().to_le_bytes()[0];
    identify
}

fn identify_independent(namespace: &Namespace) -> IdentifyNamespaceIndependent {
    IdentifyNamespaceIndependent {
        nmic: NMIC_SHARED,
        nsattr: nsattr(namespace),
        nstat: NSTAT_READY,
        ..IdentifyNamespaceIndependent::default()
    }
}

fn nsattr(namespace: &Namespace) -> u8 {
    if namespace.read_only { NSATTR_WRITE_PROTECTED } else { 0 }
}

/// What deallocated blocks read is only said when it is known.
fn dlfeat(namespace: &Namespace) -> u8 {
    if namespace.deallocate && namespace.deallocate_zeroes {
        DLFEAT_READS_ZEROES | DLFEAT_WRITE_ZEROES_DEALLOCATES
    } else {
        0
    }
}

/// The physical block in logical blocks, 0's based.
fn granularity(namespace: &Namespace) -> u16 {
    let blocks = namespace.physical_block_size / namespace.block_size.max(1);
    u16::try_from(blocks.saturating_sub(1)).unwrap_or(u16::MAX)
}

fn active_namespaces(subsystem: &Subsystem, after: NamespaceId) -> Result<NamespaceList, Status> {
    if after.0 >= NamespaceId::BROADCAST.0 - 1 {
        return Err(Status::INVALID_NAMESPACE.dnr());
    }
    let mut list = NamespaceList::default();
    let greater =
        subsystem.namespaces.iter().map(|namespace| namespace.nsid).filter(|&n| n > after);
    for (place, nsid) in list.nsids.iter_mut().zip(greater) {
        *place = nsid.0.into();
    }
    Ok(list)
}

fn put_descriptors(page: &mut [u8; IDENTIFY_LEN], namespace: &Namespace) {
    let mut rest: &mut [u8] = page;
    for (nidt, id) in [(NIDT_NGUID, &namespace.nguid), (NIDT_UUID, &namespace.uuid)] {
        // an identifier of zeroes is none
        if id.iter().all(|&byte| byte == 0) {
            continue;
        }
        let header = NamespaceDescriptorHeader::new(nidt, zero_based(id.len()) + 1);
        let (descriptor, after) = rest.split_at_mut(NamespaceDescriptorHeader::LEN + id.len());
        let (head, body) = descriptor.split_at_mut(NamespaceDescriptorHeader::LEN);
        head.copy_from_slice(header.as_bytes());
        body.copy_from_slice(id);
        rest = after;
    }
}

fn put(page: &mut [u8; IDENTIFY_LEN], structure: &(impl IntoBytes + Immutable)) {
    page.copy_from_slice(structure.as_bytes());
}

/// A count of at most 256 as a 0's based byte.
fn zero_based(count: usize) -> u8 {
    u8::try_from(count.saturating_sub(1)).unwrap_or(u8::MAX)
}
