//! A target with one subsystem, and a host that talks to one controller of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_proto::controller::{
    Action, AdminOutcome, Association, Channel, ConnectError, ConnectRequest, Controller, Facts,
    HostAccess, Limits, ListenerInfo, MAX_NSID, Namespace, Role, Security, Subsystem,
    TargetSnapshot, Transport, Visibility, connect_transfer, find_subsystem, parse_connect,
};
use raceline_proto::nvme::cross_reset::ControllerInstance;
use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::feature::WriteProtection;
use raceline_proto::nvme::log::GetLogPage;
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::property::{
    CC, CSTS, Configuration, ControllerStatus, PropertyAccess, PropertySize,
};
use raceline_proto::nvme::{
    CommandId, ControllerId, Direction, HostId, NamespaceId, Nqn, QueueId, SglDescriptor, Sqe,
    Status,
};
use zerocopy::IntoBytes;

pub(crate) const SUBNQN: &str = "nqn.2026-01.org.raceline:subsystem";
pub(crate) const OTHER_SUBNQN: &str = "nqn.2026-01.org.raceline:other";
pub(crate) const HOSTNQN: &str =
    "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427";
pub(crate) const OTHER_HOSTNQN: &str = "nqn.2026-01.org.raceline:another-host";
pub(crate) const CNTLID: ControllerId = ControllerId(7);
pub(crate) const INSTANCE: ControllerInstance =
    ControllerInstance { cntlid: CNTLID, ciu: 0x21, cirn: 0x1122_3344_5566_7788 };
/// The listener that connections come by.
pub(crate) const PORT: u16 = 1;
pub(crate) const HOSTID: HostId = HostId([0x5a; 16]);

pub(crate) fn nqn(name: &str) -> Nqn {
    Nqn::new(name).unwrap()
}

pub(crate) fn namespace(nsid: u32) -> Namespace {
    let id = u8::try_from(nsid % 251 + 1).unwrap();
    Namespace {
        nsid: NamespaceId(nsid),
        block_size: 512,
        block_count: 2048,
        physical_block_size: 4096,
        io_boundary_bytes: 0,
        uuid: [id; 16],
        nguid: [id | 0x80; 16],
        eui64: [0; 8],
        visibility: Visibility::All,
        shared: true,
        pool_bytes: None,
        volatile_write_cache: false,
        read_only: false,
        protection: WriteProtection::None,
        deallocate: true,
        deallocate_zeroes: true,
        knows_holes: false,
        uncorrectable: false,
        ana_group: 0,
    }
}

pub(crate) fn subsystem() -> Subsystem {
    Subsystem {
        nqn: nqn(SUBNQN),
        serial: "RL0001".into(),
        model: "Raceline".into(),
        firmware: "0.1".into(),
        hosts: HostAccess::List(vec![nqn(HOSTNQN)]),
        security: Security::PLAIN,
        host_security: vec![],
        ports: vec![],
        max_nsid: MAX_NSID,
        namespaces: vec![namespace(1), namespace(2)],
        pool: None,
        limits: Limits::DEFAULT,
        ana: None,
        reservations: None,
    }
    .validated()
    .unwrap()
}

pub(crate) fn listener(address: &str, port_id: u16) -> ListenerInfo {
    ListenerInfo {
        address: address.parse().unwrap(),
        port_id,
        open: true,
        security: Security::PLAIN,
        concatenates: false,
        transport: Transport::Tcp,
    }
}

/// What the target offers, with that subsystem.
pub(crate) fn snapshot(generation: u64, subsystem: Subsystem) -> Arc<TargetSnapshot> {
    Arc::new(TargetSnapshot {
        generation,
        subsystems: vec![Arc::new(subsystem)],
        listeners: vec![listener("192.0.2.1:4420", PORT)],
        ..TargetSnapshot::default()
    })
}

/// A Connect as on the wire.
#[derive(Clone)]
pub(crate) struct Connect {
    pub(crate) words: ConnectWords,
    pub(crate) data: ConnectData,
}

impl Connect {
    pub(crate) fn admin(subnqn: &str) -> Self {
        let data = ConnectData::new(HOSTID, ControllerId::DYNAMIC, &nqn(subnqn), &nqn(HOSTNQN));
        Self { words: ConnectWords { sqsize: 31, kato: 5000, ..ConnectWords::default() }, data }
    }

    pub(crate) fn io(qid: u16) -> Self {
        let data = ConnectData::new(HOSTID, CNTLID, &nqn(SUBNQN), &nqn(HOSTNQN));
        let words =
            ConnectWords { qid: QueueId(qid), sqsize: 127, kato: 0, ..ConnectWords::default() };
        Self { words, data }
    }

    pub(crate) fn parse(&self) -> Result<ConnectRequest, ConnectError> {
        let sqe = self.words.to_sqe();
        assert_eq!(connect_transfer(&sqe).unwrap().len, 1024);
        parse_connect(&sqe, self.data.as_bytes())
    }

    /// All checks that come before there is a controller.
    pub(crate) fn admit(&self, snapshot: &TargetSnapshot) -> Result<Role, ConnectError> {
        find_subsystem(snapshot, &self.parse()?, (PORT, Channel::Plain))
    }
}

/// A host's snapshot of one controller.
pub(crate) struct Host {
    pub(crate) controller: Controller,
    pub(crate) now: Instant,
    pub(crate) facts: Facts,
    pub(crate) start: Instant,
    next_cid: u16,
}

/// What the host got for a command.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) dw0: u32,
    pub(crate) dw1: u32,
    pub(crate) data: Vec<u8>,
}

impl Answer {
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.status, Status::SUCCESS);
        self
    }
}

impl Host {
    /// Connected, not enabled.
    pub(crate) fn connect_to(
        connect: &Connect,
        snapshot: &Arc<TargetSnapshot>,
        local: &str,
    ) -> Self {
        let start = Instant::now();
        let association = Association {
            instance: INSTANCE,
            request: connect.parse().unwrap(),
            role: connect.admit(snapshot).unwrap(),
            snapshot: Arc::clone(snapshot),
            local_address: local.parse::<SocketAddr>().unwrap(),
            port_id: PORT,
            security: Security::PLAIN,
        };
        let controller = Controller::new(association, start);
        Self { controller, now: start, start, facts: Facts::default(), next_cid: 100 }
    }

    pub(crate) fn connected() -> Self {
        Self::connect_to(&Connect::admin(SUBNQN), &snapshot(1, subsystem()), "192.0.2.1:4420")
    }

    /// Connected and enabled.
    pub(crate) fn ready() -> Self {
        Self::ready_with(subsystem())
    }

    pub(crate) fn ready_with(subsystem: Subsystem) -> Self {
        let mut host =
            Self::connect_to(&Connect::admin(SUBNQN), &snapshot(1, subsystem), "192.0.2.1:4420");
        host.enable();
        host
    }

    /// A discovery controller, enabled.
    pub(crate) fn discovery(snapshot: &Arc<TargetSnapshot>, kato_ms: u32, local: &str) -> Self {
        let mut connect = Connect::admin(Nqn::discovery().as_str());
        connect.words.kato = kato_ms;
        let mut host = Self::connect_to(&connect, snapshot, local);
        host.enable();
        host
    }

    pub(crate) fn enable(&mut self) {
        self.set_cc(Configuration::ENABLED).ok();
        assert!(self.controller.is_ready());
    }

    /// A command of the admin queue, as the target's driver does it.
    pub(crate) fn submit(&mut self, sqe: &Sqe) -> Result<AdminOutcome, Status> {
        Ok(self.submit_for_reply(sqe)?.0)
    }

    fn submit_for_reply(&mut self, sqe: &Sqe) -> Result<(AdminOutcome, Vec<u8>), Status> {
        self.submit_with(sqe, &[])
    }

    /// A command whose data begin with these bytes; the rest is zero.
    pub(crate) fn submit_with(
        &mut self,
        sqe: &Sqe,
        start: &[u8],
    ) -> Result<(AdminOutcome, Vec<u8>), Status> {
        let transfer = self.controller.transfer(sqe)?;
        let len = usize::try_from(transfer.len).unwrap();
        let (mut data, mut reply) = match transfer.direction {
            Direction::None => (vec![], vec![]),
            Direction::HostToController => (vec![0; len], vec![]),
            Direction::ControllerToHost => (vec![], vec![0; len]),
        };
        if !data.is_empty() {
            data[..start.len()].copy_from_slice(start);
        }
        let outcome = self.controller.handle_admin(self.now, sqe, &data, &mut reply, &self.facts);
        Ok((outcome, reply))
    }

    /// A command that is answered at once.
    #[track_caller]
    pub(crate) fn command(&mut self, sqe: &Sqe) -> Answer {
        match self.submit_for_reply(sqe) {
            Ok((AdminOutcome::Complete { status, dw0, dw1 }, data)) => {
                Answer { status, dw0, dw1, data }
            }
            Ok((outcome, _)) => panic!("not answered: {outcome:?}"),
            Err(status) => Answer { status, dw0: 0, dw1: 0, data: vec![] },
        }
    }

    pub(crate) fn admin(opcode: u8, len: u32) -> Sqe {
        Sqe {
            opc: opcode,
            flags: Sqe::PSDT_SGL,
            sgl1: SglDescriptor::transport(len),
            ..Sqe::default()
        }
    }

    pub(crate) fn identify(&mut self, cns: u8, nsid: u32) -> Answer {
        let sqe = Sqe {
            nsid: nsid.into(),
            cdw10: u32::from(cns).into(),
            ..Self::admin(admin::IDENTIFY, 4096)
        };
        self.command(&sqe)
    }

    pub(crate) fn log(&mut self, lid: u8, offset: u64, len: u32, retain_event: bool) -> Answer {
        let mut sqe = Self::admin(admin::GET_LOG_PAGE, len);
        sqe.nsid = u32::MAX.into();
        GetLogPage { lid, lsp: 0, retain_event, len_bytes: len.into(), offset, csi: 0 }
            .write(&mut sqe);
        self.command(&sqe)
    }

    pub(crate) fn get_feature(&mut self, fid: u8, select: u32, cdw11: u32, len: u32) -> Answer {
        let sqe = Sqe {
            cdw10: (u32::from(fid) | select << 8).into(),
            cdw11: cdw11.into(),
            ..Self::admin(admin::GET_FEATURES, len)
        };
        self.command(&sqe)
    }

    pub(crate) fn set_feature(&mut self, fid: u8, cdw11: u32) -> Answer {
        let sqe = Sqe {
            cdw10: u32::from(fid).into(),
            cdw11: cdw11.into(),
            ..Self::admin(admin::SET_FEATURES, 0)
        };
        self.command(&sqe)
    }

    /// An Asynchronous Event Request; its CID.
    pub(crate) fn request_event(&mut self) -> CommandId {
        let cid = CommandId(self.next_cid);
        self.next_cid += 1;
        let sqe = Sqe { cid: cid.0.into(), ..Self::admin(admin::ASYNC_EVENT_REQUEST, 0) };
        assert_eq!(self.submit(&sqe), Ok(AdminOutcome::Held));
        cid
    }

    pub(crate) fn keep_alive(&mut self) -> Answer {
        self.command(&Self::admin(admin::KEEP_ALIVE, 0))
    }

    pub(crate) fn set_cc(&mut self, cc: Configuration) -> Answer {
        self.command(&PropertyAccess::set(CC, cc.0))
    }

    pub(crate) fn property(&mut self, offset: u32, size: PropertySize) -> Answer {
        self.command(&PropertyAccess::get(offset, size))
    }

    pub(crate) fn csts(&mut self) -> ControllerStatus {
        ControllerStatus(self.property(CSTS, PropertySize::Four).ok().dw0)
    }

    pub(crate) fn io_connect(&mut self, connect: &Connect) -> Result<(), ConnectError> {
        self.controller.handle_io_connect(self.now, &connect.parse()?)
    }

    pub(crate) fn advance(&mut self, by: Duration) {
        self.now += by;
        if self.controller.poll_timeout().is_some_and(|at| at <= self.now) {
            self.controller.handle_timeout(self.now);
        }
    }

    pub(crate) fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.controller.poll_action()).collect()
    }
}
