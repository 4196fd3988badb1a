//! Identify: golden offsets, and the values that make hosts accept a controller.

use raceline_proto::controller::{Limits, MAX_NSID};
use raceline_proto::nvme::Status;
use raceline_proto::nvme::identify::{
    IdentifyController, IdentifyNamespace, IdentifyNamespaceIndependent, cns,
};
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{Nqn, SglDescriptor, Sqe};
use zerocopy::FromBytes;

use super::support::{CNTLID, Host, SUBNQN, namespace, snapshot, subsystem};

fn u16_at(data: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(data[offset..offset + 2].try_into().unwrap())
}

fn u32_at(data: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(data[offset..offset + 4].try_into().unwrap())
}

fn u64_at(data: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(data[offset..offset + 8].try_into().unwrap())
}

fn controller() -> Vec<u8> {
    Host::ready().identify(cns::CONTROLLER, 0).ok().data
}

#[test]
fn cntlid_is_that_of_connect() {
    assert_eq!(u16_at(&controller(), 78), CNTLID.0);
}

#[test]
fn kas_is_not_0() {
    assert_eq!(u16_at(&controller(), 320), 10);
}

#[test]
fn capsules_are_what_the_transport_takes() {
    let data = controller();
    assert_eq!(u32_at(&data, 1792), (8192 + 64) / 16, "IOCCSZ");
    assert_eq!(u32_at(&data, 1796), 1, "IORCSZ");
    assert_eq!(u16_at(&data, 1800), 0, "ICDOFF");
    assert_eq!(data[1803], 1, "MSDBD");
    let mut bare = subsystem();
    bare.limits.in_capsule_bytes = 0;
    let data = Host::ready_with(bare).identify(cns::CONTROLLER, 0).ok().data;
    assert_eq!(u32_at(&data, 1792), 4, "IOCCSZ without in-capsule data");
}

#[test]
fn sgls_has_support_and_offset() {
    let sgls = u32_at(&controller(), 536);
    assert_eq!(sgls & 0b11, 1);
    assert_eq!(sgls >> 20 & 1, 1, "offset");
    assert_eq!(sgls >> 2 & 1, 0, "keyed");
}

#[test]
fn maxcmd_is_the_queue_size() {
    assert_eq!(u16_at(&controller(), 514), 128);
}

#[test]
fn entry_sizes_are_64_and_16() {
    let data = controller();
    assert_eq!((data[512], data[513]), (0x66, 0x44));
}

#[test]
fn nn_and_mnan_are_positive_and_equal() {
    let data = controller();
    assert_eq!((u32_at(&data, 516), u32_at(&data, 540)), (MAX_NSID, MAX_NSID));
    const { assert!(MAX_NSID <= 1024) };
}

#[test]
fn subnqn_is_that_of_connect() {
    let data = controller();
    let field = data[768..1024].try_into().unwrap();
    assert_eq!(Nqn::from_field(&field).unwrap().as_str(), SUBNQN);
}

#[test]
fn texts_are_space_padded() {
    let data = controller();
    assert_eq!(&data[4..24], b"RL0001              ");
    assert_eq!(&data[24..64], b"Raceline                                ");
    assert_eq!(&data[64..72], b"0.1     ");
}

#[test]
fn version_is_1_4_and_its_fields_are_there() {
    let data = controller();
    assert_eq!(u32_at(&data, 80), 0x0001_0400, "VER");
    assert_eq!(data[111], 1, "CNTRLTYPE");
    assert!(data[112..128].iter().all(|&b| b == 0), "FGUID");
}

#[test]
fn mdts_is_never_unlimited() {
    assert_eq!(controller()[77], 5, "128 KiB");
    for (bytes, mdts) in [(8192, 1), (65536, 4), (1 << 20, 8), (1 << 25, 13)] {
        assert_eq!(Limits { max_io_bytes: bytes, ..Limits::DEFAULT }.mdts(), mdts);
    }
    let mut unlimited = subsystem();
    unlimited.limits.max_io_bytes = 4096;
    assert!(unlimited.validated().is_err());
}

#[test]
fn optional_support_is_what_is_implemented() {
    let data = controller();
    assert_eq!(data[76], 0b11, "CMIC: ports and controllers, no ANA");
    assert_eq!(u32_at(&data, 92), 1 << 8 | 1 << 20, "OAES: namespaces, resets of others");
    assert_eq!(u32_at(&data, 96), 1 << 6 | 1, "CTRATT: TBKAS, 128-bit host identifier");
    assert_eq!(u16_at(&data, 256), 0, "OACS");
    assert_eq!((data[258], data[259]), (3, 3), "ACL, AERL");
    assert_eq!(data[260], 0b0011, "FRMW: one slot, read-only");
    assert_eq!(data[261], 0b110, "LPA: effects, extended data");
    assert_eq!(data[262], 63, "ELPE");
    assert_eq!(data[263], 0, "NPSS");
    assert_eq!(u16_at(&data, 520), 0x18d, "ONCS: Compare, DSM, Write Zeroes, Verify, Copy");
    assert_eq!(u16_at(&data, 522), 1, "FUSES");
    assert_eq!((u16_at(&data, 526), u16_at(&data, 528)), (0, 0), "AWUN, AWUPF");
    assert_eq!(u16_at(&data, 532), 0, "ACWU: one block");
    assert_eq!(u16_at(&data, 534), 0b101, "CDFS: formats 0 and 2");
    assert_eq!(data[531], 0b11, "NWPC: on, and until a power cycle");
    assert_eq!(u32_at(&data, 328), 0, "SANICAP: no Sanitize");
    assert_eq!(u16_at(&data, 1804), 0, "OFCS: no Disconnect");
}

#[test]
fn vwc_is_present_when_any_namespace_has_a_volatile_cache() {
    assert_eq!(controller()[525], 0b100);
    let mut volatile = subsystem();
    volatile.namespaces[1].volatile_write_cache = true;
    let mut host = Host::ready_with(volatile);
    assert_eq!(host.identify(cns::CONTROLLER, 0).ok().data[525], 0b101);
    // recomputed when the namespaces change
    host.controller.handle_snapshot(snapshot(2, subsystem()));
    assert_eq!(host.identify(cns::CONTROLLER, 0).ok().data[525], 0b100);
}

#[test]
fn discovery_controller_says_so() {
    let mut host = Host::discovery(&snapshot(1, subsystem()), 0, "192.0.2.1:8009");
    let data = host.identify(cns::CONTROLLER, 0).ok().data;
    let identify = IdentifyController::read_from_bytes(&data).unwrap();
    assert_eq!(data[111], 2, "CNTRLTYPE");
    assert_eq!(identify.cntlid.get(), CNTLID.0);
    assert_eq!(identify.oaes.get(), 1 << 31);
    assert_eq!(Nqn::from_field(&identify.subnqn).unwrap(), Nqn::discovery());
    assert_eq!(identify.sgls.get() & 0b11, 1);
    assert_ne!(identify.maxcmd.get(), 0);
    assert_eq!(identify.nn.get(), 0);
    for other in [cns::NAMESPACE, cns::ACTIVE_NAMESPACES, cns::NAMESPACE_DESCRIPTORS, 0x06] {
        assert_eq!(host.identify(other, 1).status, Status::INVALID_FIELD.dnr());
    }
}

/// NOIOB, in logical blocks, and at most what a command may move.
#[test]
fn a_boundary_of_fast_commands() {
    let mut special = subsystem();
    let max_io_bytes = special.limits.max_io_bytes;
    special.namespaces[0].io_boundary_bytes = 32 << 10;
    special.namespaces[1].block_size = 4096;
    special.namespaces[1].io_boundary_bytes = u64::MAX;
    let mut host = Host::ready_with(special);
    let mut boundary = |nsid| u16_at(&host.identify(cns::NAMESPACE, nsid).ok().data, 46);
    assert_eq!(boundary(1), 64);
    assert_eq!(u32::from(boundary(2)), max_io_bytes / 4096);
    let mut host = Host::ready_with(subsystem());
    assert_eq!(u16_at(&host.identify(cns::NAMESPACE, 1).ok().data, 46), 0, "none is said");
}

#[test]
fn namespace_fields() {
    let mut special = subsystem();
    special.namespaces[1].read_only = true;
    special.namespaces[1].block_size = 4096;
    special.namespaces[1].deallocate_zeroes = false;
    let mut host = Host::ready_with(special);
    let data = host.identify(cns::NAMESPACE, 1).ok().data;
    assert_eq!([0, 8, 16].map(|offset| u64_at(&data, offset)), [2048; 3], "NSZE, NCAP, NUSE");
    assert_eq!(data[24], 1 << 4, "NSFEAT: OPTPERF");
    assert_eq!(data[26], 0, "FLBAS");
    assert_eq!(data[30], 1, "NMIC: shared");
    assert_eq!(data[33], 0b1001, "DLFEAT: zeroes, Write Zeroes may deallocate");
    assert_eq!(u16_at(&data, 36), 0, "NAWUPF");
    assert_eq!(
        (u16_at(&data, 74), u32_at(&data, 76), data[80]),
        (2048, 32_768, 127),
        "MSSRL, MCL, MSRC"
    );
    for (offset, name) in [(64, "NPWG"), (66, "NPWA"), (68, "NPDG"), (70, "NPDA"), (72, "NOWS")] {
        assert_eq!(u16_at(&data, offset), 7, "{name}");
    }
    assert_eq!(data[99], 0, "NSATTR");
    assert_eq!(data[104..120], namespace(1).nguid);
    assert_eq!(data[130], 9, "LBADS");
    let data = host.identify(cns::NAMESPACE, 2).ok().data;
    assert_eq!(data[99], 1, "NSATTR: write protected");
    assert_eq!(data[24], 0, "NSFEAT");
    assert_eq!(data[33], 0, "DLFEAT: not known");
    assert_eq!(data[130], 12, "LBADS");
    let identify = IdentifyNamespace::read_from_bytes(&data).unwrap();
    assert_eq!(identify.block_size(), Some(4096));
}

#[test]
fn inactive_namespaces_are_zero_and_invalid_ones_an_error() {
    let mut host = Host::ready();
    for cns in [cns::NAMESPACE, cns::COMMAND_SET_NAMESPACE, cns::INDEPENDENT_NAMESPACE] {
        for nsid in [3, MAX_NSID] {
            assert!(host.identify(cns, nsid).ok().data.iter().all(|&b| b == 0));
        }
        for nsid in [0, MAX_NSID + 1, u32::MAX] {
            let status = host.identify(cns, nsid).status;
            assert_eq!(status, Status::INVALID_NAMESPACE.dnr(), "{cns:#x} {nsid}");
        }
    }
}

#[test]
fn active_list_has_the_namespaces_after_nsid() {
    let mut sparse = subsystem();
    sparse.namespaces = [1, 5, 1024].map(namespace).to_vec();
    let mut host = Host::ready_with(sparse);
    let list = |host: &mut Host, after| {
        let data = host.identify(cns::ACTIVE_NAMESPACES, after).ok().data;
        [0, 4, 8, 12].map(|offset| u32_at(&data, offset))
    };
    assert_eq!(list(&mut host, 0), [1, 5, 1024, 0]);
    assert_eq!(list(&mut host, 1), [5, 1024, 0, 0]);
    assert_eq!(list(&mut host, 4), [5, 1024, 0, 0]);
    assert_eq!(list(&mut host, 1024), [0; 4]);
    assert_eq!(list(&mut host, 0xffff_fffd), [0; 4]);
    for nsid in [0xffff_fffe, 0xffff_ffff] {
        let status = host.identify(cns::ACTIVE_NAMESPACES, nsid).status;
        assert_eq!(status, Status::INVALID_NAMESPACE.dnr());
    }
    let mut full = subsystem();
    full.namespaces = (1..=1024).map(namespace).collect();
    let data = Host::ready_with(full).identify(cns::ACTIVE_NAMESPACES, 0).ok().data;
    assert_eq!((u32_at(&data, 0), u32_at(&data, 4092)), (1, 1024));
}

#[test]
fn descriptors_are_nguid_uuid_and_command_set() {
    let mut host = Host::ready();
    let data = host.identify(cns::NAMESPACE_DESCRIPTORS, 2).ok().data;
    assert_eq!(data[0..4], [2, 16, 0, 0]);
    assert_eq!(data[4..20], namespace(2).nguid);
    assert_eq!(data[20..24], [3, 16, 0, 0]);
    assert_eq!(data[24..40], namespace(2).uuid);
    assert_eq!(data[40..45], [4, 1, 0, 0, 0], "the NVM command set");
    assert!(data[45..].iter().all(|&b| b == 0));
    for nsid in [0, 3, u32::MAX] {
        let status = host.identify(cns::NAMESPACE_DESCRIPTORS, nsid).status;
        assert_eq!(status, Status::INVALID_NAMESPACE.dnr());
    }
    let mut anonymous = subsystem();
    anonymous.namespaces[0].nguid = [0; 16];
    let data = Host::ready_with(anonymous).identify(cns::NAMESPACE_DESCRIPTORS, 1).ok().data;
    assert_eq!(data[0..4], [3, 16, 0, 0], "an identifier of zeroes is left out");
}

#[test]
fn command_set_structures_are_zero() {
    let mut host = Host::ready();
    assert!(host.identify(cns::COMMAND_SET_NAMESPACE, 1).ok().data.iter().all(|&b| b == 0));
    let limits = host.identify(cns::COMMAND_SET_CONTROLLER, 0).ok().data;
    assert_eq!(limits[0], 5, "VSL: as MDTS");
    assert!(limits[1..].iter().all(|&b| b == 0));
    // CSI 2, zoned
    let sqe = Sqe {
        nsid: 1.into(),
        cdw10: 0x06.into(),
        cdw11: (2 << 24).into(),
        ..Host::admin(admin::IDENTIFY, 4096)
    };
    assert_eq!(host.command(&sqe).status, Status::INVALID_FIELD.dnr());
}

fn with_csi(cns: u8, nsid: u32, csi: u32) -> Sqe {
    Sqe {
        nsid: nsid.into(),
        cdw10: u32::from(cns).into(),
        cdw11: (csi << 24).into(),
        ..Host::admin(admin::IDENTIFY, 4096)
    }
}

#[test]
fn lists_of_a_command_set_have_its_namespaces() {
    let mut host = Host::ready();
    let list = host.command(&with_csi(cns::COMMAND_SET_ACTIVE_NAMESPACES, 1, 0)).ok().data;
    assert_eq!([0, 4].map(|offset| u32_at(&list, offset)), [2, 0]);
    assert_eq!(list, host.identify(cns::ACTIVE_NAMESPACES, 1).ok().data);
    for (nsid, csi, status) in [
        (u32::MAX, 0, Status::INVALID_NAMESPACE.dnr()),
        (0, 1, Status::INVALID_FIELD.dnr()),
        (0, 2, Status::INVALID_FIELD.dnr()),
    ] {
        let sqe = with_csi(cns::COMMAND_SET_ACTIVE_NAMESPACES, nsid, csi);
        assert_eq!(host.command(&sqe).status, status, "{nsid:#x} {csi}");
    }
}

#[test]
fn the_only_combination_of_command_sets_is_nvm() {
    let mut host = Host::ready();
    let with_controller =
        |id: u16| Sqe { cdw10: (0x1c | u32::from(id) << 16).into(), ..with_csi(0x1c, 0, 0) };
    for id in [u16::MAX, CNTLID.0] {
        let data = host.command(&with_controller(id)).ok().data;
        assert_eq!(u64_at(&data, 0), 1, "bit 0 of the first vector: NVM");
        assert!(data[8..].iter().all(|&b| b == 0));
    }
    let other = host.command(&with_controller(CNTLID.0 + 1));
    assert_eq!(other.status, Status::INVALID_FIELD.dnr());
    let mut discovery = Host::discovery(&snapshot(1, subsystem()), 0, "192.0.2.1:8009");
    let status = discovery.command(&with_controller(u16::MAX)).status;
    assert_eq!(status, Status::INVALID_FIELD.dnr());
}

#[test]
fn independent_namespace_structure() {
    let data = Host::ready().identify(cns::INDEPENDENT_NAMESPACE, 1).ok().data;
    let identify = IdentifyNamespaceIndependent::read_from_bytes(&data).unwrap();
    assert_eq!((identify.nmic, identify.nsattr, identify.nstat), (1, 0, 1));
}

#[test]
fn other_structures_are_invalid_fields() {
    let mut host = Host::ready();
    for cns in [0x04, 0x09, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x1a, 0x1b, 0x1d, 0xff]
    {
        assert_eq!(host.identify(cns, 1).status, Status::INVALID_FIELD.dnr(), "{cns:#x}");
    }
}

#[test]
fn transfer_length_is_not_the_structure_size() {
    let mut host = Host::ready();
    let identify = |host: &mut Host, len| {
        let sqe =
            Sqe { cdw10: u32::from(cns::CONTROLLER).into(), ..Host::admin(admin::IDENTIFY, len) };
        host.command(&sqe)
    };
    let data = identify(&mut host, 65536).ok().data;
    assert_eq!(data.len(), 65536);
    assert_eq!(data[..4096], controller());
    assert!(data[4096..].iter().all(|&b| b == 0));
    for len in [0, 4092] {
        assert_eq!(identify(&mut host, len).status, Status::DATA_SGL_LENGTH_INVALID.dnr());
    }
    for len in [128 * 1024 + 4, u32::MAX] {
        assert_eq!(identify(&mut host, len).status, Status::INVALID_FIELD.dnr(), "MDTS");
    }
}

#[test]
fn replies_do_not_fit_into_the_capsule() {
    let mut host = Host::ready();
    let mut sqe = Host::admin(admin::IDENTIFY, 4096);
    sqe.sgl1 = SglDescriptor::in_capsule(4096);
    assert_eq!(host.command(&sqe).status, Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr());
    sqe.sgl1.kind = 0x40;
    assert_eq!(host.command(&sqe).status, Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr());
}
