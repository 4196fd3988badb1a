//! TCP and RDMA listen at one address and port, as on converged networks: each is added, changed and removed alone.

use std::net::SocketAddr;
use std::sync::Arc;

use raceline_proto::controller::Transport;
use raceline_proto::nvme::Status;
use raceline_proto::nvme::ana::AnaState;
use raceline_proto::nvme::discovery::DiscoveryEntry;
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::{Nqn, Sqe};
use raceline_proto::rdma::TRTYPE_RDMA;
use raceline_rdma::fake::NetworkConfig;
use raceline_reactor::StreamProvider;
use raceline_target::{SubsystemConfig, Target, TargetError};
use zerocopy::FromBytes;

use super::host::{Fabric, Host};
use super::{DATA, nobody_is_left, write_and_read};
use crate::common::{
    RawHost, Wants, block_sqe, config, eventually, namespace, nqn, ram, status, subsystem,
};

const BS: u32 = 512;

/// A target whose subsystem reports ANA and listens for both transports at one address, which has a port of the kernel's.
fn both(fabric: &Fabric) -> (Target, SocketAddr, Arc<dyn StreamProvider>) {
    let config = config(1);
    let streams = fabric.streams(&config) as Arc<dyn StreamProvider>;
    let target = Target::start(config).unwrap();
    target.add_subsystem(SubsystemConfig { ana_reporting: true, ..subsystem() }).unwrap();
    target.add_namespace(&nqn(), namespace(ram("16M"))).unwrap();
    let at = target.add_subsystem_listener(&nqn(), "127.0.0.1:0".parse().unwrap()).unwrap();
    let rdma = target.add_subsystem_listener_with(&nqn(), at, Some(Arc::clone(&streams)));
    assert_eq!(rdma.unwrap(), at);
    (target, at, streams)
}

fn tcp_host(at: SocketAddr) -> (RawHost, RawHost) {
    let (admin, cntlid) = RawHost::admin(at, Wants::default());
    (admin, RawHost::io(at, cntlid, 1, Wants::default()))
}

#[test]
fn each_transport_has_its_own_listener_at_one_address() {
    let fabric = Fabric::new(NetworkConfig::default());
    let (target, at, streams) = both(&fabric);
    let again = target.add_subsystem_listener_with(&nqn(), at, Some(streams));
    assert!(matches!(again, Err(TargetError::ListenerExists { .. })), "{again:?}");
    let again = target.add_subsystem_listener(&nqn(), at);
    assert!(matches!(again, Err(TargetError::ListenerExists { .. })), "{again:?}");
    assert_eq!(target.listeners(), [(at, false), (at, false)]);

    let (_tcp_admin, mut tcp) = tcp_host(at);
    let mut host = Host::new(&fabric, at);
    let (rdma_admin, cntlid) = host.admin(&nqn(), 0);
    let queue = host.io(cntlid, 1, 32);
    write_and_read(&mut host, queue, 0, 8192);
    assert!(status(&tcp.read(1, 0, 8, BS)).is_success());
    let by_address = target.by_address();
    let queues = |is_rdma| by_address.get(&(at, is_rdma)).map(|it| it.queues);
    assert_eq!((queues(false), queues(true)), (Some(2), Some(2)), "{by_address:?}");

    // Both are in the Discovery log, with numbers of their own.
    let (log_admin, _) = host.admin(&Nqn::discovery(), 0);
    let len = 4096;
    let words = (0x70 | (len / 4 - 1) << 16).into();
    let log = Sqe { opc: admin::GET_LOG_PAGE, cdw10: words, ..Sqe::default() };
    assert!(host.command(log_admin, &log, DATA, len).status.is_success());
    let page = host.get(DATA, len);
    assert_eq!(page[8], 2, "records");
    let entries =
        page[1024..3072].chunks(1024).map(|it| DiscoveryEntry::ref_from_bytes(it).unwrap());
    let port = at.port().to_string();
    let (mut types, mut ports) = (Vec::new(), Vec::new());
    for entry in entries {
        assert!(entry.trsvcid.starts_with(port.as_bytes()));
        types.push(entry.trtype);
        ports.push(entry.portid.get());
    }
    types.sort_unstable();
    assert_eq!(types, [TRTYPE_RDMA, 3]);
    assert_ne!(ports[0], ports[1]);
    host.close(log_admin);
    host.close(queue);
    host.close(rdma_admin);
    drop((tcp, _tcp_admin));
    nobody_is_left(&target);
    target.shutdown().unwrap();
    fabric.end();
}

#[test]
fn ana_states_are_of_one_transport() {
    let fabric = Fabric::new(NetworkConfig::default());
    let (target, at, _) = both(&fabric);
    let (_tcp_admin, mut tcp) = tcp_host(at);
    let mut host = Host::new(&fabric, at);
    let (_, cntlid) = host.admin(&nqn(), 0);
    let queue = host.io(cntlid, 1, 32);
    let set = |transport, state| target.set_ana_state(&nqn(), (transport, at), None, state);
    for closed in [Transport::Rdma, Transport::Tcp] {
        set(closed, AnaState::Inaccessible).unwrap();
        let cqe = host.command(queue, &block_sqe(io::READ, 1, 0, 8), DATA, 4096);
        let of = |status: Status| status.same_code(Status::ANA_INACCESSIBLE);
        let is_refused = (of(cqe.status), of(status(&tcp.read(1, 0, 8, BS))));
        assert_eq!(is_refused, (closed == Transport::Rdma, closed == Transport::Tcp), "{closed:?}");
        for transport in [Transport::Rdma, Transport::Tcp] {
            let states = target.ana_states(&nqn(), (transport, at)).unwrap();
            let is_closed = states == [(1, AnaState::Inaccessible)];
            assert_eq!(is_closed, transport == closed, "{transport:?}: {states:?}");
        }
        set(closed, AnaState::Optimized).unwrap();
    }
    let unsaid = target.set_ana_state(&nqn(), at, None, AnaState::Inaccessible).unwrap_err();
    assert!(matches!(unsaid, TargetError::TwoListeners(_)), "{unsaid}");
    assert!(unsaid.to_string().contains("name the transport"), "{unsaid}");
    target.shutdown().unwrap();
}

#[test]
fn each_transport_leaves_alone() {
    for (gone, whole) in
        [Transport::Rdma, Transport::Tcp].into_iter().flat_map(|it| [(it, false), (it, true)])
    {
        let fabric = Fabric::new(NetworkConfig::default());
        let (target, at, streams) = both(&fabric);
        let (_tcp_admin, mut tcp) = tcp_host(at);
        let mut host = Host::new(&fabric, at);
        let (_, cntlid) = host.admin(&nqn(), 0);
        let queue = host.io(cntlid, 1, 32);
        let unsaid = target.remove_listener(at).unwrap_err();
        assert!(matches!(unsaid, TargetError::TwoListeners(_)), "{unsaid}");
        let unsaid = target.remove_subsystem_listener(&nqn(), at).unwrap_err();
        assert!(matches!(unsaid, TargetError::TwoListeners(_)), "{unsaid}");
        match whole {
            true => target.remove_listener((gone, at)).unwrap(),
            false => target.remove_subsystem_listener(&nqn(), (gone, at)).unwrap(),
        }
        if gone == Transport::Rdma {
            host.until("the loss of both queues", |host| (host.losses.len() == 2).then_some(()));
            assert!(status(&tcp.read(1, 0, 8, BS)).is_success());
            tcp_host(at);
            assert!(Host::new(&fabric, at).dial(raceline_proto::nvme::QueueId::ADMIN, 32).is_err());
        } else {
            tcp.until_closed();
            eventually("nobody listens for TCP", || !crate::common::is_reachable(at));
            write_and_read(&mut host, queue, 0, 8192);
            let mut other = Host::new(&fabric, at);
            other.admin(&nqn(), 0);
        }
        let again = target.remove_listener((gone, at));
        assert!(matches!(again, Err(TargetError::NoListener(_))), "{again:?}");
        // It comes back beside the other.
        let streams = (gone == Transport::Rdma).then_some(streams);
        target.add_subsystem_listener_with(&nqn(), at, streams).unwrap();
        write_by_either(&fabric, at);
        target.shutdown().unwrap();
    }
}

fn write_by_either(fabric: &Fabric, at: SocketAddr) {
    let (_admin, mut tcp) = tcp_host(at);
    assert!(status(&tcp.read(1, 0, 8, BS)).is_success());
    let mut host = Host::new(fabric, at);
    let (_, cntlid) = host.admin(&nqn(), 0);
    let queue = host.io(cntlid, 1, 32);
    write_and_read(&mut host, queue, 64, 4096);
}
