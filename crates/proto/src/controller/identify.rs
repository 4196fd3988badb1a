//! Identify: what the controller and its namespaces report about themselves (Base 2.0, 5.17).

use zerocopy::{Immutable, IntoBytes};

use super::copy::copy_limits;
use super::event::MAX_EVENT_REQUESTS;
use super::snapshot::Transport;
use super::subsystem::{Namespace, Pool, Subsystem};
use super::{
    ANA_TRANSITION_SECONDS, Controller, ERROR_LOG_ENTRIES, MAX_ABORTS, MAX_CROSS_RESETS,
    rdma_in_capsule_bytes,
};
use crate::nvme::identify::{
    ANACAP, AOCS_ALLOCATED, CDFS_FORMAT_0, CDFS_FORMAT_2, CMIC_ANA, CMIC_MULTI_CONTROLLER,
    CMIC_MULTI_PORT, CNTRLTYPE_DISCOVERY, CNTRLTYPE_IO, CQES, CSI_NVM, CTRATT_HOST_ID_128,
    CTRATT_TRAFFIC_BASED_KEEP_ALIVE, CommandSets, ControllerList, DLFEAT_READS_ZEROES,
    DLFEAT_WRITE_ZEROES_DEALLOCATES, FRMW_ONE_SLOT, FRMW_SLOT1_READ_ONLY, FUSES_COMPARE_AND_WRITE,
    IDENTIFY_LEN, IdentifyController, IdentifyNamespace, IdentifyNamespaceIndependent,
    IdentifyNvmController, LPA_EFFECTS, LPA_EXTENDED, LbaFormat, NIDT_CSI, NIDT_EUI64, NIDT_NGUID,
    NIDT_UUID, NMIC_SHARED, NSATTR_WRITE_PROTECTED, NSFEAT_GRANULARITY, NSTAT_READY, NWPC,
    NamespaceDescriptorHeader, NamespaceList, OACS_FORMAT, OACS_LBA_STATUS,
    OACS_NAMESPACE_MANAGEMENT, ONCS_COMPARE, ONCS_COPY, ONCS_DATASET_MANAGEMENT, ONCS_RESERVATIONS,
    ONCS_VERIFY, ONCS_WRITE_UNCORRECTABLE, ONCS_WRITE_ZEROES, SGLS_KEYED, SGLS_OFFSET,
    SGLS_SUPPORTED, SGLS_TRANSPORT, SQES, VWC_NO_BROADCAST_FLUSH, VWC_PRESENT, ascii_field, cns,
};
use crate::nvme::property::VERSION_1_4;
use crate::nvme::{ControllerId, HostNqn, NamespaceId, Nqn, Sqe, Status};
use crate::rdma::MAX_DESCRIPTORS;

/// IORCSZ: a response capsule is one completion, in 16 bytes.
const IORCSZ: u32 = 1;
/// MSDBD: one SGL descriptor per command.
const MSDBD: u8 = 1;

impl Controller {
    /// `controllers` are those of the subsystem, for the lists of controllers.
    pub(crate) fn identify(
        &self,
        sqe: &Sqe,
        reply: &mut [u8],
        controllers: &[(ControllerId, HostNqn)],
    ) -> Result<(), Status> {
        let Some((page, _)) = reply.split_first_chunk_mut::<IDENTIFY_LEN>() else {
            return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
        };
        let [cns, _, c0, c1] = sqe.cdw10.get().to_le_bytes();
        let from = ControllerId(u16::from_le_bytes([c0, c1]));
        let [.., csi] = sqe.cdw11.get().to_le_bytes();
        let nsid = sqe.namespace_id();
        // every namespace is one of the NVM command set
        let cns = match cns {
            cns::COMMAND_SET_ACTIVE_NAMESPACES if csi == CSI_NVM => cns::ACTIVE_NAMESPACES,
            cns::COMMAND_SET_ALLOCATED_NAMESPACES if csi == CSI_NVM => cns::ALLOCATED_NAMESPACES,
            cns => cns,
        };
        match (cns, self.subsystem()) {
            (cns::CONTROLLER, _) => put(page, &self.identify_controller()),
            (cns::NAMESPACE, Some(_)) => match self.pool() {
                // the common properties of all namespaces that the pool could hold
                Some(pool) if nsid == NamespaceId::BROADCAST => put(page, &identify_pool(pool)),
                _ => {
                    if let Some(namespace) = self.valid_namespace(nsid)? {
                        put(page, &self.identify_namespace(namespace));
                    }
                }
            },
            (cns::ACTIVE_NAMESPACES, Some(subsystem)) => {
                put(page, &namespace_list(subsystem.namespaces.iter(), nsid)?);
            }
            (cns::ALLOCATED_NAMESPACES, Some(_)) if self.pool().is_some() => {
                put(page, &namespace_list(self.allocated_namespaces(), nsid)?);
            }
            (cns::ALLOCATED_NAMESPACE, Some(_)) if self.pool().is_some() => {
                self.valid_namespace(nsid)?;
                if let Some(namespace) = self.allocated_namespaces().find(|ns| ns.nsid == nsid) {
                    put(page, &self.identify_namespace(namespace));
                }
            }
            (cns::NAMESPACE_CONTROLLERS, Some(_)) if self.pool().is_some() => {
                let namespace = self.allocated_namespaces().find(|ns| ns.nsid == nsid);
                let visibility = &namespace.ok_or(Status::INVALID_NAMESPACE.dnr())?.visibility;
                let attached = controllers.iter().filter(|(_, host)| visibility.includes(host));
                put(page, &controller_list(attached, from));
            }
            (cns::CONTROLLERS, Some(_)) if self.pool().is_some() => {
                put(page, &controller_list(controllers.iter(), from));
            }
            (cns::NAMESPACE_DESCRIPTORS, Some(_)) => {
                put_descriptors(page, self.active_namespace(nsid)?);
            }
            // no field of it applies: no metadata, no protection information
            (cns::COMMAND_SET_NAMESPACE, Some(_)) if csi == CSI_NVM => {
                self.valid_namespace(nsid)?;
            }
            // Verify is as long as a transfer; the others have no limit but their own
            (cns::COMMAND_SET_CONTROLLER, Some(_)) if csi == CSI_NVM => {
                let vsl = self.kind.limits().mdts();
                let namespaces = self.subsystem().map_or(&[][..], |s| &s.namespaces);
                let knows_holes = namespaces.iter().any(|namespace| namespace.knows_holes);
                let aocs = if knows_holes { AOCS_ALLOCATED } else { 0 }.into();
                put(page, &IdentifyNvmController { vsl, aocs, ..IdentifyNvmController::default() });
            }
            (cns::COMMAND_SET_ALLOCATED_NAMESPACE, Some(_))
                if csi == CSI_NVM && self.pool().is_some() =>
            {
                self.valid_namespace(nsid)?;
            }
            (cns::COMMAND_SETS, Some(_))
                if from == ControllerId::DYNAMIC || from == self.instance.cntlid =>
            {
                put(page, &command_sets());
            }
            (cns::INDEPENDENT_NAMESPACE, Some(_)) => {
                if let Some(namespace) = self.valid_namespace(nsid)? {
                    let rescap = self.rescap(namespace.nsid);
                    put(page, &identify_independent(namespace, rescap));
                }
            }
            _ => return Err(Status::INVALID_FIELD.dnr()),
        }
        Ok(())
    }

    /// A valid NSID without a namespace is inactive: the structure is all zero (Base 2.0, 5.17).
    fn valid_namespace(&self, nsid: NamespaceId) -> Result<Option<&Namespace>, Status> {
        let most = self.subsystem().map_or(0, |subsystem| subsystem.max_nsid);
        if nsid.0 == 0 || nsid.0 > most {
            return Err(Status::INVALID_NAMESPACE.dnr());
        }
        Ok(self.namespace(nsid))
    }

    /// The namespaces that a host which manages the pool knows of: its own and those of the pool.
    fn allocated_namespaces(&self) -> impl Iterator<Item = &Namespace> {
        let all = self.whole().into_iter().flat_map(|subsystem| &subsystem.namespaces);
        all.filter(|ns| ns.pool_bytes.is_some() || ns.visibility.includes(&self.hostnqn))
    }

    fn active_namespace(&self, nsid: NamespaceId) -> Result<&Namespace, Status> {
        self.namespace(nsid).ok_or(Status::INVALID_NAMESPACE.dnr())
    }

    fn identify_namespace(&self, namespace: &Namespace) -> IdentifyNamespace {
        let identify = identify_namespace(namespace, self.pool(), self.kind.limits().max_io_bytes);
        let identify = IdentifyNamespace { rescap: self.rescap(namespace.nsid), ..identify };
        match self.ana_refusal(namespace.nsid) {
            Some(_) => IdentifyNamespace { nuse: 0.into(), ..identify },
            None => identify,
        }
    }

    fn identify_controller(&self) -> IdentifyController {
        let limits = self.kind.limits();
        let common = IdentifyController {
            mdts: limits.mdts(),
            cntlid: self.instance.cntlid.0.into(),
            ver: VERSION_1_4.into(),
            oaes: self.events.supported().into(),
            ctratt: (CTRATT_HOST_ID_128 | CTRATT_TRAFFIC_BASED_KEEP_ALIVE).into(),
            acl: MAX_ABORTS - 1,
            aerl: zero_based(MAX_EVENT_REQUESTS),
            frmw: FRMW_SLOT1_READ_ONLY | FRMW_ONE_SLOT,
            kas: limits.keep_alive_granularity.into(),
            sqes: SQES,
            cqes: CQES,
            maxcmd: limits.max_queue_entries.into(),
            sgls: (SGLS_SUPPORTED | SGLS_OFFSET | SGLS_TRANSPORT).into(),
            ioccsz: ((limits.in_capsule_bytes + 64) / 16).into(),
            iorcsz: IORCSZ.into(),
            msdbd: MSDBD,
            ..IdentifyController::default()
        };
        let common = match self.transport {
            Transport::Tcp => common,
            Transport::Rdma => IdentifyController {
                sgls: (SGLS_SUPPORTED | SGLS_KEYED | SGLS_OFFSET).into(),
                ioccsz: ((rdma_in_capsule_bytes(limits.in_capsule_bytes) + 64) / 16).into(),
                msdbd: MAX_DESCRIPTORS,
                ..common
            },
        };
        match self.subsystem() {
            Some(subsystem) => {
                let controller = identify_io_controller(common, subsystem);
                let lba_status = if self.knows_lba_status() { OACS_LBA_STATUS } else { 0 };
                let controller = IdentifyController {
                    oacs: lba_status.into(),
                    ciu: self.instance.ciu,
                    cirn: self.instance.cirn.into(),
                    ccrl: MAX_CROSS_RESETS,
                    cqt: limits.quiesce_ms.into(),
                    ..controller
                };
                self.pool().map_or(controller, |pool| IdentifyController {
                    oacs: (lba_status | OACS_FORMAT | OACS_NAMESPACE_MANAGEMENT).into(),
                    tnvmcap: u128::from(pool.total_bytes).into(),
                    unvmcap: u128::from(pool.free_bytes).into(),
                    ..controller
                })
            }
            None => IdentifyController {
                sn: ascii_field("discovery"),
                mn: ascii_field(DISCOVERY_MODEL),
                fr: ascii_field(env!("CARGO_PKG_VERSION")),
                cntrltype: CNTRLTYPE_DISCOVERY,
                dctype: if self.is_central() { DCTYPE_CENTRALIZED } else { DCTYPE_NOT_REPORTED },
                lpa: LPA_EXTENDED,
                subnqn: Nqn::discovery().to_field(),
                ..common
            },
        }
    }
}

/// DCTYPE: nothing is said of what kind of discovery controller it is.
const DCTYPE_NOT_REPORTED: u8 = 0;
/// DCTYPE: a centralized discovery controller.
const DCTYPE_CENTRALIZED: u8 = 2;
/// Model number of discovery controllers.
const DISCOVERY_MODEL: &str = "Raceline";

fn identify_io_controller(common: IdentifyController, subsystem: &Subsystem) -> IdentifyController {
    let volatile = if subsystem.has_volatile_write_cache() { VWC_PRESENT } else { 0 };
    let uncorrectable = if subsystem.takes_uncorrectable() { ONCS_WRITE_UNCORRECTABLE } else { 0 };
    let reservations = if subsystem.reservations.is_some() { ONCS_RESERVATIONS } else { 0 };
    let common =
        if subsystem.ana.is_some() { with_ana(common, subsystem.max_nsid) } else { common };
    IdentifyController {
        sn: ascii_field(&subsystem.serial),
        mn: ascii_field(&subsystem.model),
        fr: ascii_field(&subsystem.firmware),
        cmic: common.cmic | CMIC_MULTI_PORT | CMIC_MULTI_CONTROLLER,
        cntrltype: CNTRLTYPE_IO,
        lpa: LPA_EFFECTS | LPA_EXTENDED,
        elpe: zero_based(ERROR_LOG_ENTRIES),
        crdt: subsystem.limits.retry_delays.map(Into::into),
        nn: subsystem.max_nsid.into(),
        mnan: subsystem.max_nsid.into(),
        oncs: (ONCS_COMPARE
            | ONCS_DATASET_MANAGEMENT
            | ONCS_WRITE_ZEROES
            | ONCS_VERIFY
            | ONCS_COPY
            | uncorrectable
            | reservations)
            .into(),
        cdfs: (CDFS_FORMAT_0 | CDFS_FORMAT_2).into(),
        nwpc: NWPC,
        fuses: FUSES_COMPARE_AND_WRITE.into(),
        vwc: volatile | VWC_NO_BROADCAST_FLUSH,
        subnqn: subsystem.nqn.to_field(),
        ..common
    }
}

/// Every number of a namespace can be that of a group. ANACAP bit 6 stays clear: namespaces can move to
/// another group while they are attached.
fn with_ana(common: IdentifyController, groups: u32) -> IdentifyController {
    IdentifyController {
        cmic: CMIC_ANA,
        anatt: ANA_TRANSITION_SECONDS,
        anacap: ANACAP,
        anagrpmax: groups.into(),
        nanagrpid: groups.into(),
        ..common
    }
}

/// Atomicity fields stay 0 with NSFEAT bit 1 clear: only one block is promised (AWUPF 0).
/// For a namespace of a pool that the host can manage, the formats are those of the pool.
fn identify_namespace(
    namespace: &Namespace,
    pool: Option<&Pool>,
    max_io_bytes: u32,
) -> IdentifyNamespace {
    let blocks = namespace.block_count;
    let granularity = granularity(namespace);
    let (mssrl, mcl, msrc) = copy_limits(namespace.block_size);
    let mut identify = IdentifyNamespace {
        nsze: blocks.into(),
        ncap: blocks.into(),
        nuse: blocks.into(),
        nsfeat: if granularity > 0 { NSFEAT_GRANULARITY } else { 0 },
        nmic: nmic(namespace),
        dlfeat: dlfeat(namespace),
        nvmcap: u128::from(namespace.pool_bytes.unwrap_or(0)).into(),
        npwg: granularity.into(),
        npwa: granularity.into(),
        npdg: granularity.into(),
        npda: granularity.into(),
        nows: granularity.into(),
        mssrl: mssrl.into(),
        mcl: mcl.into(),
        msrc,
        noiob: boundary(namespace, max_io_bytes).into(),
        anagrpid: namespace.ana_group.into(),
        nsattr: nsattr(namespace),
        nguid: namespace.nguid,
        eui64: namespace.eui64,
        ..IdentifyNamespace::default()
    };
    match pool.filter(|_| namespace.pool_bytes.is_some()) {
        Some(pool) => {
            put_formats(&mut identify, &pool.block_sizes);
            let place = pool.block_sizes.iter().position(|&size| size == namespace.block_size);
            identify.flbas = zero_based(place.unwrap_or(0) + 1);
        }
        None => put_formats(&mut identify, &[namespace.block_size]),
    }
    identify
}

/// What all namespaces of the pool have in common (NVM Command Set 1.0, 4.1.5.1).
fn identify_pool(pool: &Pool) -> IdentifyNamespace {
    let mut identify = IdentifyNamespace { nmic: NMIC_SHARED, ..IdentifyNamespace::default() };
    put_formats(&mut identify, &pool.block_sizes);
    identify
}

fn put_formats(identify: &mut IdentifyNamespace, block_sizes: &[u32]) {
    identify.nlbaf = zero_based(block_sizes.len());
    for (place, size) in identify.lbaf.iter_mut().zip(block_sizes) {
        // at most 31: it is the logarithm of 32 bits
        *place = LbaFormat { lbads: size.max(&1).ilog2().to_le_bytes()[0], ..LbaFormat::default() };
    }
}

fn nmic(namespace: &Namespace) -> u8 {
    if namespace.shared { NMIC_SHARED } else { 0 }
}

fn identify_independent(namespace: &Namespace, rescap: u8) -> IdentifyNamespaceIndependent {
    IdentifyNamespaceIndependent {
        nmic: nmic(namespace),
        rescap,
        anagrpid: namespace.ana_group.into(),
        nsattr: nsattr(namespace),
        nstat: NSTAT_READY,
        ..IdentifyNamespaceIndependent::default()
    }
}

fn nsattr(namespace: &Namespace) -> u8 {
    if namespace.read_only { NSATTR_WRITE_PROTECTED } else { 0 }
}

/// DLFEAT reports what deallocated blocks read only when that is known.
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

/// The boundary of fast commands in logical blocks (NOIOB); 0 is none. Linux limits the length of its
/// commands to this value, so the value does not exceed what one command may move.
fn boundary(namespace: &Namespace, max_io_bytes: u32) -> u16 {
    let bytes = namespace.io_boundary_bytes.min(max_io_bytes.into());
    let blocks = bytes / u64::from(namespace.block_size.max(1));
    u16::try_from(blocks).unwrap_or(u16::MAX)
}

fn namespace_list<'a>(
    namespaces: impl Iterator<Item = &'a Namespace>,
    after: NamespaceId,
) -> Result<NamespaceList, Status> {
    if after.0 >= NamespaceId::BROADCAST.0 - 1 {
        return Err(Status::INVALID_NAMESPACE.dnr());
    }
    let mut list = NamespaceList::default();
    let greater = namespaces.map(|namespace| namespace.nsid).filter(|&n| n > after);
    for (place, nsid) in list.nsids.iter_mut().zip(greater) {
        *place = nsid.0.into();
    }
    Ok(list)
}

/// The only combination: the NVM command set alone.
fn command_sets() -> CommandSets {
    let mut sets = CommandSets::default();
    sets.vectors[0] = (1 << CSI_NVM).into();
    sets
}

/// The controllers from a number on, in ascending order.
fn controller_list<'a>(
    controllers: impl Iterator<Item = &'a (ControllerId, HostNqn)>,
    from: ControllerId,
) -> ControllerList {
    let mut ids: Vec<u16> = controllers.map(|(id, _)| id.0).filter(|&id| id >= from.0).collect();
    ids.sort_unstable();
    let mut list = ControllerList::default();
    let mut count = 0;
    for (place, id) in list.ids.iter_mut().zip(ids) {
        *place = id.into();
        count += 1;
    }
    list.count = count.into();
    list
}

fn put_descriptors(page: &mut [u8; IDENTIFY_LEN], namespace: &Namespace) {
    let mut rest: &mut [u8] = page;
    let ids: [(u8, &[u8]); 4] = [
        (NIDT_EUI64, &namespace.eui64),
        (NIDT_NGUID, &namespace.nguid),
        (NIDT_UUID, &namespace.uuid),
        (NIDT_CSI, &[CSI_NVM]),
    ];
    for (nidt, id) in ids {
        // an identifier of zeroes is none; the NVM command set is 0
        if nidt != NIDT_CSI && id.iter().all(|&byte| byte == 0) {
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
