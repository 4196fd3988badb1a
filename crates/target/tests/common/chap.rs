//! A host that authenticates, and a target that demands it.

use std::net::SocketAddr;

use raceline_auth::{
    Algorithms, AuthenticationError, Concatenation, DhGroup, DhchapSecret, Hash, Initiator,
    InitiatorConfig, InitiatorStep, Keys, Names,
};
use raceline_proto::nvme::authentication::{authentication_receive, authentication_send};
use raceline_proto::nvme::{ControllerId, QueueId, Status};
use raceline_target::{HostAccess, SubsystemConfig, Target, TargetConfig};

use super::{
    Answer, RawHost, Wants, config, eventually, host_nqn, listen, namespace, nqn, ram, status,
    subsystem,
};

/// ATR in DW0 of Connect's response.
pub const ATR: u32 = 1 << 17;

pub fn secret() -> DhchapSecret {
    DhchapSecret::generate(Some(Hash::Sha256)).unwrap()
}

/// A target whose one host has these keys.
pub fn guarded(keys: Keys) -> (Target, SocketAddr) {
    guarded_by(config(2), keys)
}

pub fn guarded_by(config: TargetConfig, keys: Keys) -> (Target, SocketAddr) {
    let target = Target::start(config).unwrap();
    let hosts = HostAccess::List(vec![host_nqn()]);
    target.add_subsystem(SubsystemConfig { hosts, ..subsystem() }).unwrap();
    target.add_namespace(&nqn(), namespace(ram("1M"))).unwrap();
    target.set_host_keys(&nqn(), &host_nqn(), Some(keys)).unwrap();
    let address = listen(&target);
    (target, address)
}

pub fn initiator(secret: &DhchapSecret, controller: Option<&DhchapSecret>) -> InitiatorConfig {
    InitiatorConfig {
        names: Names { host: host_nqn(), subsystem: nqn() },
        secret: secret.clone(),
        controller_secret: controller.cloned(),
        algorithms: Algorithms { hashes: vec![Hash::Sha384], groups: vec![DhGroup::Ffdhe2048] },
        concatenation: Concatenation::None,
    }
}

pub fn send(host: &mut RawHost, message: &[u8]) -> Status {
    let sqe = authentication_send(u32::try_from(message.len()).unwrap());
    status(&host.write_command(sqe, message, true))
}

pub fn receive(host: &mut RawHost, len: u32) -> Answer {
    host.read_command(authentication_receive(len), len)
}

/// Authenticates on a queue.
pub fn authenticate(
    host: &mut RawHost,
    config: &InitiatorConfig,
) -> Result<(), AuthenticationError> {
    let mut initiator = Initiator::new(config.clone(), 3);
    loop {
        match initiator.poll_step().unwrap() {
            InitiatorStep::Send(message) => {
                assert_eq!(send(host, &message), Status::SUCCESS);
                initiator.handle_sent();
            }
            InitiatorStep::Receive => {
                let answer = receive(host, 4096);
                assert_eq!(status(&answer), Status::SUCCESS);
                initiator.handle_received(&answer.data);
            }
            InitiatorStep::Compute(work) => initiator.handle_finished(work.run()),
            InitiatorStep::Done => return Ok(()),
            InitiatorStep::Failed(error) => return Err(error),
        }
    }
}

/// A connected queue that has not authenticated; gives the controller's number.
pub fn connect(address: SocketAddr, qid: u16, cntlid: ControllerId) -> (RawHost, ControllerId) {
    let mut host = RawHost::open(address, Wants::default());
    let cqe = host.connect(QueueId(qid), 32, cntlid);
    assert!(cqe.status.is_success(), "{}", cqe.status);
    assert_eq!(cqe.dw0 & ATR, ATR, "the controller asks for authentication");
    (host, ControllerId(u16::try_from(cqe.dw0 & 0xffff).unwrap()))
}

pub fn enable(host: &mut RawHost) {
    assert!(host.set_property(0x14, 0x0046_0001).status.is_success());
    assert_eq!(host.get_property(0x1c) & 1, 1, "CSTS.RDY");
}

pub fn all_closed(target: &Target) {
    eventually("every connection is gone", || {
        let stats = target.stats();
        stats.connections.iter().sum::<usize>() == 0 && stats.pre_connect == 0
    });
}
