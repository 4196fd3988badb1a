//! What a host of either transport does with its queue: the module above has the queue itself.

use std::net::SocketAddr;

use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::opcode::{admin, fabrics, io};
use raceline_proto::nvme::{CommandId, ControllerId, Cqe, Direction, HostId, Nqn, QueueId, Sqe};
use raceline_proto::tcp::TermReq;
use zerocopy::IntoBytes;

use super::RawHost;
use super::basics::{Answer, Heard, Wants, block_sqe, host_nqn, nqn};

impl RawHost {
    /// An admin queue whose controller is enabled; gives its number.
    pub fn admin(address: SocketAddr, wants: Wants) -> (Self, ControllerId) {
        let mut host = Self::open(address, wants);
        let cqe = host.connect(QueueId::ADMIN, 32, ControllerId::DYNAMIC);
        assert!(cqe.status.is_success(), "{}", cqe.status);
        let cntlid = ControllerId(u16::try_from(cqe.dw0 & 0xffff).unwrap());
        assert!(host.set_property(0x14, 0x0046_0001).status.is_success());
        assert_eq!(host.get_property(0x1c) & 1, 1, "CSTS.RDY");
        (host, cntlid)
    }

    /// An I/O queue of a controller.
    pub fn io(address: SocketAddr, cntlid: ControllerId, qid: u16, wants: Wants) -> Self {
        let mut host = Self::open(address, wants);
        let cqe = host.connect(QueueId(qid), 128, cntlid);
        assert!(cqe.status.is_success(), "{}", cqe.status);
        host
    }

    pub fn connect(&mut self, qid: QueueId, entries: u16, cntlid: ControllerId) -> Cqe {
        self.connect_as(qid, entries, cntlid, &nqn(), &host_nqn(), 0)
    }

    pub fn connect_as(
        &mut self,
        qid: QueueId,
        entries: u16,
        cntlid: ControllerId,
        subnqn: &Nqn,
        hostnqn: &Nqn,
        kato: u32,
    ) -> Cqe {
        let words = ConnectWords { recfmt: 0, qid, sqsize: entries - 1, cattr: 4, kato };
        let data = ConnectData::new(HostId([7; 16]), cntlid, subnqn, hostnqn);
        self.connect_with(words, &data)
    }

    pub fn connect_with(&mut self, words: ConnectWords, data: &ConnectData) -> Cqe {
        self.write_command(words.to_sqe(), data.as_bytes(), true).cqe
    }

    pub fn set_property(&mut self, offset: u32, value: u64) -> Cqe {
        let sqe = Sqe {
            opc: fabrics::OPCODE,
            nsid: u32::from(fabrics::PROPERTY_SET).into(),
            cdw11: offset.into(),
            cdw12: u32::try_from(value & 0xffff_ffff).unwrap().into(),
            ..Sqe::default()
        };
        self.plain_command(sqe).cqe
    }

    pub fn get_property(&mut self, offset: u32) -> u32 {
        let sqe = Sqe {
            opc: fabrics::OPCODE,
            nsid: u32::from(fabrics::PROPERTY_GET).into(),
            cdw11: offset.into(),
            ..Sqe::default()
        };
        let answer = self.plain_command(sqe);
        assert!(answer.cqe.status.is_success(), "{}", answer.cqe.status);
        answer.cqe.dw0
    }

    // ------------------------------------------------------------------ commands

    pub fn plain_command(&mut self, sqe: Sqe) -> Answer {
        let cid = self.submit(sqe, Direction::None, 0);
        self.wait(cid, &[])
    }

    pub fn read_command(&mut self, sqe: Sqe, len: u32) -> Answer {
        let cid = self.submit(sqe, Direction::ControllerToHost, len);
        self.wait(cid, &[])
    }

    pub fn write_command(&mut self, sqe: Sqe, data: &[u8], in_capsule: bool) -> Answer {
        let cid = if in_capsule {
            self.submit_in_capsule(sqe, data)
        } else {
            self.submit_write(sqe, data)
        };
        self.wait(cid, data)
    }

    pub fn read(&mut self, nsid: u32, slba: u64, blocks: u32, block_size: u32) -> Answer {
        self.read_command(block_sqe(io::READ, nsid, slba, blocks), blocks * block_size)
    }

    pub fn write(&mut self, nsid: u32, slba: u64, data: &[u8], block_size: u32) -> Answer {
        let blocks = u32::try_from(data.len()).unwrap() / block_size;
        let in_capsule = data.len() <= 8192;
        self.write_command(block_sqe(io::WRITE, nsid, slba, blocks), data, in_capsule)
    }

    pub fn identify_controller(&mut self) -> Vec<u8> {
        let sqe = Sqe { opc: admin::IDENTIFY, cdw10: 1.into(), ..Sqe::default() };
        let answer = self.read_command(sqe, 4096);
        assert!(answer.cqe.status.is_success(), "{}", answer.cqe.status);
        answer.data
    }

    /// Waits for the end of a command; sends `data` when the target asks for it.
    pub fn wait(&mut self, cid: CommandId, data: &[u8]) -> Answer {
        let mut received = Vec::new();
        // What has come while others were waited for.
        let is_own = |heard: &mut Heard| match heard {
            Heard::Response(cqe) => cqe.cid == cid,
            Heard::Data { cid: of, .. } | Heard::DataEnd { cid: of, .. } => *of == cid,
            Heard::SendData(grant) => grant.cid == cid && !data.is_empty(),
            _ => false,
        };
        let mut early = self.heard.extract_if(.., is_own).collect::<Vec<_>>().into_iter();
        loop {
            match early.next().unwrap_or_else(|| self.listen()) {
                Heard::Response(cqe) if cqe.cid == cid => return Answer { cqe, data: received },
                Heard::Data { cid: of, offset, bytes } if of == cid => {
                    let end = offset as usize + bytes.len();
                    received.resize(received.len().max(end), 0);
                    received[offset as usize..end].copy_from_slice(&bytes);
                }
                Heard::DataEnd { cid: of, bytes, ddgst, success } if of == cid => {
                    if let Some(ddgst) = ddgst {
                        assert_eq!(ddgst, raceline_accel::crc32c(&received[bytes]), "data digest");
                    }
                    if success {
                        let cqe = Cqe { cid, ..Cqe::default() };
                        return Answer { cqe, data: received };
                    }
                }
                Heard::SendData(grant) if grant.cid == cid => self.send_data(&grant, data),
                other => self.heard.push(other),
            }
            if let Some(Heard::Closed | Heard::Terminated(_)) = self.heard.last() {
                panic!("the connection ended while {cid} was outstanding: {:?}", self.heard);
            }
        }
    }

    /// Reads until the target closes; gives the TermReq that came before, if any.
    pub fn until_closed(&mut self) -> Option<TermReq> {
        let mut term = None;
        loop {
            match self.listen() {
                Heard::Closed => return term,
                Heard::Terminated(info) => term = Some(info),
                _ => {}
            }
        }
    }
}
