//! A peer that posts what it likes.

use raceline_proto::nvme::{QueueId, Sqe};
use raceline_proto::rdma::{KeyedBlock, QueueRequest};
use raceline_rdma::fake::{FakeDevice, Network};
use raceline_rdma::verbs::{
    Access, Completion, ConnectionId, DomainId, Event, Operation, PairConfig, Provider, RecvWork,
    Region, SendWork,
};

use super::support::{Pair, READ, address, io};

/// A read of one block that moves nothing.
pub(crate) fn command(cid: u16) -> Sqe {
    let sgl1 = KeyedBlock::default().descriptor(false);
    Sqe { cid: cid.into(), flags: Sqe::PSDT_SGL, sgl1, ..io(READ, 0, 1) }
}

/// A peer that posts what it likes.
pub(crate) struct Raw {
    pub(crate) device: FakeDevice,
    pub(crate) memory: Region,
}

impl Raw {
    pub(crate) fn new(network: &Network) -> Self {
        let mut device = network.add_device();
        let memory = device.register(DomainId::OWN, 4096, Access::HOST_DATA).unwrap();
        Self { device, memory }
    }

    /// Connects as a host, with as many receives. `pair` goes on meanwhile.
    pub(crate) fn connect(&mut self, pair: &mut Pair, receives: u32) -> ConnectionId {
        self.connect_as(pair, QueueId(3), receives)
    }

    pub(crate) fn connect_as(
        &mut self,
        pair: &mut Pair,
        qid: QueueId,
        receives: u32,
    ) -> ConnectionId {
        self.try_connect(pair, qid, receives).expect("the target refuses the queue")
    }

    /// The same; `None`: the target refuses the queue.
    pub(crate) fn try_connect(
        &mut self,
        pair: &mut Pair,
        qid: QueueId,
        receives: u32,
    ) -> Option<ConnectionId> {
        let id = self.device.resolve(address(), None).unwrap();
        while self.device.next_event().is_none() {
            assert!(pair.step(), "resolving stands still");
        }
        let config = PairConfig {
            domain: DomainId::OWN,
            sends: 128,
            receives: 64,
            shares_receives: false,
            inline_bytes: 64,
        };
        self.device.create_pair(id, &config).unwrap();
        for n in 0..receives {
            let work = RecvWork { id: n.into(), local: self.memory.slice(2048 + n * 16, 16) };
            self.device.post_recv(id, &[work]).unwrap();
        }
        let request = QueueRequest { qid, receives: 16, entries: 16, cntlid: None };
        self.device.connect(id, &request.to_bytes(), 4).unwrap();
        loop {
            match self.device.next_event() {
                Some(Event::Established { .. }) => return Some(id),
                Some(Event::Rejected { .. }) => {
                    self.device.destroy(id);
                    return None;
                }
                Some(other) => panic!("{other:?}"),
                None => assert!(pair.step(), "connecting stands still"),
            }
        }
    }

    pub(crate) fn send(&mut self, id: ConnectionId, message: &[u8]) {
        self.device.write(&self.memory, 0, message);
        let len = u32::try_from(message.len()).unwrap();
        let work = SendWork {
            id: 1,
            operation: Operation::Send { invalidate: None },
            local: self.memory.slice(0, len),
            signalled: true,
            inline: len <= 64,
        };
        self.device.post_raw(id, work).unwrap();
    }

    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        let mut completions = Vec::with_capacity(64);
        self.device.poll(&mut completions);
        completions
    }

    pub(crate) fn leave(mut self, id: ConnectionId) {
        self.device.destroy(id);
        self.device.deregister(self.memory);
    }
}
