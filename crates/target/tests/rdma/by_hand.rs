//! A host that writes its capsules by hand: identifiers of commands that are under way are used again.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use raceline_bdev::{DelayBdev, Delays};
use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::opcode::{admin, fabrics, io};
use raceline_proto::nvme::{ControllerId, HostId, QueueId, Sqe, Status};
use raceline_proto::rdma::{KeyedBlock, QueueRequest};
use raceline_rdma::fake::{FakeDevice, NetworkConfig};
use raceline_rdma::verbs::{
    Access, ConnectionId, DomainId, Event, Operation, Provider, RecvWork, Region, SendWork,
};
use raceline_target::RdmaConfig;
use zerocopy::IntoBytes;

use super::bad_input::ask;
use super::host::Fabric;
use crate::common::{block_sqe, config, eventually, host_nqn, namespace, nqn, ram};

/// Receives of a queue, each of which takes one response.
const RECEIVES: u64 = 32;
/// Where they are, behind the data of commands.
const RESPONSES: u32 = 8192;
/// The identifiers of requests that send; receives have smaller ones.
const SENDS: u64 = 1000;

/// A response: which command, how it ended, and its first word.
type Answer = (u16, Status, u32);

/// One queue.
struct ByHand {
    device: FakeDevice,
    memory: Region,
    id: ConnectionId,
}

impl ByHand {
    /// A queue whose Connect has succeeded; gives the controller.
    fn connect(fabric: &Fabric, qid: QueueId, cntlid: ControllerId) -> (Self, ControllerId) {
        let mut device = fabric.network.add_device();
        let memory = device.register(DomainId::OWN, 16384, Access::HOST_DATA).unwrap();
        let request = QueueRequest { qid, receives: 32, entries: 32, cntlid: None };
        let address = "127.0.0.1:4420".parse().unwrap();
        let (id, answer) = ask(&mut device, address, &request.to_bytes());
        assert!(matches!(answer, Event::Established { .. }), "{answer:?}");
        let mut queue = Self { device, memory, id };
        (0..RECEIVES).for_each(|n| queue.post_receive(n));
        let data = ConnectData::new(HostId([7; 16]), cntlid, &nqn(), &host_nqn());
        queue.device.write(&queue.memory, 4096, data.as_bytes());
        let words = ConnectWords { qid, sqsize: 31, ..ConnectWords::default() };
        queue.send(1, words.to_sqe(), 1024);
        let answers = queue.answers(1);
        let [(1, Status::SUCCESS, word)] = answers[..] else { panic!("Connect: {answers:?}") };
        (queue, ControllerId(u16::try_from(word & 0xffff).unwrap()))
    }

    fn post_receive(&mut self, n: u64) {
        let at = RESPONSES + 16 * u32::try_from(n).unwrap();
        let work = RecvWork { id: n, local: self.memory.slice(at, 16) };
        self.device.post_recv(self.id, &[work]).unwrap();
    }

    /// A command with so many bytes of data.
    fn send(&mut self, cid: u16, sqe: Sqe, len: u32) {
        let block = KeyedBlock { address: self.memory.address + 4096, len, key: self.memory.rkey };
        let block = if len == 0 { KeyedBlock::default() } else { block };
        let sgl1 = block.descriptor(false);
        let sqe = Sqe { cid: cid.into(), flags: Sqe::PSDT_SGL, sgl1, ..sqe };
        self.device.write(&self.memory, 0, sqe.as_bytes());
        let operation = Operation::Send { invalidate: None };
        let local = self.memory.slice(0, 64);
        let work = SendWork { id: SENDS, operation, local, signalled: true, inline: true };
        self.device.post_raw(self.id, work).unwrap();
    }

    /// The next responses.
    fn answers(&mut self, count: usize) -> Vec<Answer> {
        let mut answers = Vec::new();
        let mut done = Vec::with_capacity(64);
        eventually("the commands are answered", || {
            done.clear();
            self.device.poll(&mut done);
            for done in done.iter().filter(|done| done.id != SENDS) {
                let mut cqe = [0; 16];
                let at = RESPONSES + 16 * u32::try_from(done.id).unwrap();
                self.device.read(&self.memory, at, &mut cqe);
                let half = |at: usize| u16::from_le_bytes([cqe[at], cqe[at + 1]]);
                let word = u32::from(half(0)) | u32::from(half(2)) << 16;
                answers.push((half(12), Status::from_wire(half(14)), word));
                self.post_receive(done.id);
            }
            answers.len() >= count
        });
        answers
    }

    /// Sends these commands, and takes so many responses.
    fn exchange(&mut self, commands: &[(u16, Sqe)], answers: usize) -> Vec<Answer> {
        commands.iter().for_each(|(cid, sqe)| self.send(*cid, *sqe, 0));
        self.answers(answers)
    }

    fn leave(mut self) {
        self.device.destroy(self.id);
        self.device.deregister(self.memory);
    }
}

fn property(fctype: u8, offset: u32, value: u32) -> Sqe {
    Sqe {
        opc: fabrics::OPCODE,
        nsid: u32::from(fctype).into(),
        cdw11: offset.into(),
        cdw12: value.into(),
        ..Sqe::default()
    }
}

#[test]
fn an_identifier_in_use_is_refused_over_rdma() {
    let fabric = Fabric::new(NetworkConfig::default());
    let config = config(1);
    let streams = fabric.streams_of(RdmaConfig::of(&config));
    let slow = DelayBdev::new(ram("1M"), Delays::all(Duration::from_millis(300)));
    let (target, _, _) = fabric.target_of(config, streams, Arc::new(slow));
    let (mut admin, cntlid) = ByHand::connect(&fabric, QueueId::ADMIN, ControllerId::DYNAMIC);
    let enable = property(fabrics::PROPERTY_SET, 0x14, 0x0046_0001);
    assert_eq!(admin.exchange(&[(2, enable)], 1), [(2, Status::SUCCESS, 0)]);
    let (mut queue, _) = ByHand::connect(&fabric, QueueId(1), cntlid);
    (0..2).for_each(|_| queue.send(5, block_sqe(io::READ, 1, 0, 1), 512));
    let answers = queue.answers(2);
    assert!(answers[0].0 == 5 && answers[0].1.same_code(Status::CID_CONFLICT), "{answers:?}");
    assert_eq!((answers[1].0, answers[1].1), (5, Status::SUCCESS), "the first one goes on");
    queue.leave();
    admin.leave();
    eventually("they are gone", || target.stats().controllers == 0);
    target.shutdown().unwrap();
    fabric.end();
}

#[test]
fn a_command_takes_the_place_of_an_event_request_over_rdma() {
    let fabric = Fabric::new(NetworkConfig::default());
    let (target, _, _) = fabric.target(config(1));
    let (mut admin, _) = ByHand::connect(&fabric, QueueId::ADMIN, ControllerId::DYNAMIC);
    let enable = property(fabrics::PROPERTY_SET, 0x14, 0x0046_0001);
    assert_eq!(admin.exchange(&[(2, enable)], 1), [(2, Status::SUCCESS, 0)]);
    let aer = Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::default() };
    let csts = property(fabrics::PROPERTY_GET, 0x1c, 0);
    assert_eq!(admin.exchange(&[(5, aer), (5, csts)], 1), [(5, Status::SUCCESS, 1)]);
    let set_events =
        Sqe { opc: admin::SET_FEATURES, cdw10: 0x0b.into(), cdw11: 0x100.into(), ..Sqe::default() };
    let requests = [(6, aer), (6, aer), (7, aer), (8, aer), (9, aer), (6, set_events)];
    assert_eq!(admin.exchange(&requests, 1), [(6, Status::SUCCESS, 0)]);
    target.add_namespace(&nqn(), namespace(ram("1M"))).unwrap();
    assert_eq!(admin.answers(1), [(7, Status::SUCCESS, 0x0004_0002)], "6 is forgotten");
    admin.leave();
    eventually("it is gone", || target.stats().controllers == 0);
    target.shutdown().unwrap();
    fabric.end();
}

/// Warnings and errors of the whole program.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Line(String);
        impl tracing::field::Visit for Line {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
                self.0 += &format!("{field}={value:?} ");
            }
        }
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// The answer of the event request goes to the command that came with it. The log says whose fault that is, in one line.
#[test]
fn a_host_that_does_not_wait_for_the_answer_of_an_event_request_loses_its_queue() {
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).expect("the only one");
    let fabric = Fabric::new(NetworkConfig::default());
    let (target, _, _) = fabric.target(config(1));
    let (mut admin, _) = ByHand::connect(&fabric, QueueId::ADMIN, ControllerId::DYNAMIC);
    admin.device.set_address([192, 0, 2, 7].into());
    let enable = property(fabrics::PROPERTY_SET, 0x14, 0x0046_0001);
    assert_eq!(admin.exchange(&[(2, enable)], 1), [(2, Status::SUCCESS, 0)]);
    let aer = Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::default() };
    // A controller holds four, and answers the next one at once.
    (10..14).for_each(|cid| admin.send(cid, aer, 0));
    let csts = property(fabrics::PROPERTY_GET, 0x1c, 0);
    let mut at = 0;
    let both = [aer, csts].map(|sqe| {
        let sgl1 = KeyedBlock::default().descriptor(false);
        let sqe = Sqe { cid: 5.into(), flags: Sqe::PSDT_SGL, sgl1, ..sqe };
        admin.device.write(&admin.memory, at, sqe.as_bytes());
        let local = admin.memory.slice(at, 64);
        at += 64;
        let operation = Operation::Send { invalidate: None };
        SendWork { id: SENDS, operation, local, signalled: true, inline: true }
    });
    admin.device.post_send(admin.id, &both).unwrap();
    eventually("the queue ends", || {
        matches!(admin.device.next_event(), Some(Event::Disconnected(_)))
    });
    let of = |words: &str| {
        let lines = log.0.lock().unwrap();
        lines.iter().filter(|line| line.contains(words)).cloned().collect::<Vec<_>>()
    };
    let told = "the identifier of an event request again";
    eventually("the log says why", || !of(told).is_empty());
    admin.leave();
    eventually("it is gone", || target.stats().controllers == 0);
    target.shutdown().unwrap();
    fabric.end();
    let lines = of(told);
    assert!(lines.len() == 1 && lines[0].starts_with("WARN"), "{lines:?}");
    assert!(lines[0].contains("192.0.2.7"), "{lines:?}");
    assert_eq!(of("cannot carry"), Vec::<String>::new(), "it is no fault of the target");
}
