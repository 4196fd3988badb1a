//! Devices that count the requests they get, that grow, and that fail on purpose.

use std::num::NonZeroU8;
use std::sync::Arc;

use crate::common::{RawHost, Wants, block_sqe, config, eventually, pattern, ram, start, status};
use raceline_bdev::{
    Bdev, BdevError, BdevInfo, Channel, Done, HistogramShape, Identity, InjectBdev, Injected,
    Injection, NamedBdev, OpKind, Request, SharedBdev,
};
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{Direction, Status};
use raceline_reactor::{Completion, Context};

const BS: u32 = 512;

fn named(device: SharedBdev) -> Arc<NamedBdev> {
    Arc::new(NamedBdev::new(device, "device".into(), None))
}

#[test]
fn what_hosts_do_is_counted_with_the_device() {
    let device = named(ram("1M"));
    let (target, address) = start(config(2), vec![device.clone()]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queues: Vec<_> =
        (1..=2).map(|qid| RawHost::io(address, cntlid, qid, Wants::default())).collect();
    let stats = device.stats().unwrap();
    for (i, queue) in queues.iter_mut().enumerate() {
        // The large one comes by R2T, the small one in its capsule.
        for len in [512, 65536] {
            let data = pattern(i as u64, len);
            assert!(status(&queue.write(1, 0, &data, BS)).is_success());
        }
        assert!(status(&queue.read(1, 0, 8, BS)).is_success());
        assert!(status(&queue.plain_command(block_sqe(io::FLUSH, 1, 0, 1))).is_success());
    }
    let count = |kind| {
        let totals = stats.totals();
        (totals.of(kind).operations, totals.of(kind).bytes)
    };
    assert_eq!(count(OpKind::Write), (4, 2 * (512 + 65536)));
    assert_eq!(count(OpKind::Read), (2, 2 * 4096));
    assert_eq!(count(OpKind::Flush), (2, 0));
    assert_eq!(stats.totals().failures, 0);
    assert_eq!(stats.per_core().len(), 2);

    stats.start_histogram(HistogramShape::default(), Some(OpKind::Read));
    for _ in 0..5 {
        assert!(status(&queues[0].read(1, 0, 8, BS)).is_success());
    }
    let histogram = stats.histogram().unwrap();
    assert_eq!(histogram.counts.iter().sum::<u64>(), 5);
    assert!(stats.totals().of(OpKind::Read).latency_ns > 0, "the clock was looked at");
    target.shutdown().unwrap();
    assert_eq!(count(OpKind::Read), (7, 7 * 4096), "counts survive the channels");
}

#[test]
fn depth_is_known_while_somebody_wants_it() {
    let (held, control) = InjectBdev::new(ram("1M"));
    let device = named(Arc::new(held));
    let (target, address) = start(config(1), vec![device.clone()]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let stats = device.stats().unwrap();
    stats.want_depth(true);
    control.inject(OpKind::Read, Injection { what: Injected::Held, count: 3, depth: 0 });
    for _ in 0..3 {
        queue.submit(block_sqe(io::READ, 1, 0, 8), Direction::ControllerToHost, 8 * BS);
    }
    eventually("three requests are held", || stats.in_flight() == 3);
    control.resume();
    eventually("they are let go", || stats.in_flight() == 0);
    assert_eq!(stats.totals().of(OpKind::Read).operations, 3);
    target.shutdown().unwrap();
}

#[test]
fn a_host_sees_what_was_ordered() {
    let (tampered, control) = InjectBdev::new(ram("1M"));
    let device = named(Arc::new(tampered));
    let (target, address) = start(config(1), vec![device.clone()]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let once = |what| Injection { what, count: 1, depth: 0 };
    control.inject(OpKind::Read, once(Injected::Status { sct: 2, sc: 0x86 }));
    let answer = status(&queue.read(1, 0, 1, BS));
    assert!(answer.same_code(Status::ACCESS_DENIED), "{answer}");
    assert!(status(&queue.read(1, 0, 1, BS)).is_success());
    let bits = NonZeroU8::new(1).unwrap();
    control.inject(OpKind::Write, once(Injected::Corrupt { offset: 3, bits }));
    let data = pattern(1, 512);
    assert!(status(&queue.write(1, 9, &data, BS)).is_success());
    let answer = queue.read(1, 9, 1, BS);
    let differing: Vec<_> = (0..512).filter(|i| answer.data[*i] != data[*i]).collect();
    assert_eq!(differing, [3]);
    assert_eq!(device.stats().unwrap().totals().failures, 1);
    target.shutdown().unwrap();
}

#[test]
fn a_device_that_grew_shows_it() {
    let spec = "null:1M".parse().unwrap();
    let device = named(raceline_bdev::open(&spec, &Identity::from_seed(b"grows")).unwrap());
    let (target, address) = start(config(1), vec![device.clone()]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    device.resize(4096).unwrap();
    assert!(
        status(&queue.read(1, 4095, 1, BS)).same_code(Status::LBA_OUT_OF_RANGE),
        "not told yet"
    );
    target.refresh_sizes().unwrap();
    assert!(status(&queue.read(1, 4095, 1, BS)).is_success());
    target.shutdown().unwrap();
}

/// Takes writes at once, and fails them.
struct Broken(BdevInfo);

struct BrokenChannel;

impl Bdev for Broken {
    fn info(&self) -> BdevInfo {
        self.0.clone()
    }

    fn open_channel(&self, _: &mut Context<'_>, _: u16) -> std::io::Result<Box<dyn Channel>> {
        Ok(Box::new(BrokenChannel))
    }
}

impl Channel for BrokenChannel {
    fn writes_now(&self) -> bool {
        true
    }

    fn write_now(&mut self, _: u64, _: &[u8]) -> Result<(), BdevError> {
        Err(BdevError::WriteFault)
    }

    /// Only for data that did not come together with their header.
    fn submit(&mut self, _: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        done.push(Done { tag: request.tag, result: Err(BdevError::WriteFault), payload: None });
    }

    fn handle_completion(&mut self, _: &mut Context<'_>, _: Completion, _: &mut Vec<Done>) {}

    fn close(&mut self, _: &mut Context<'_>) {}
}

#[test]
fn writes_that_fail_at_once_are_answered_and_counted_and_free_their_identifiers() {
    let broken = Arc::new(Broken(ram("1M").info()));
    let (target, address) = start(config(1), vec![broken, ram("1M")]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    // More rounds than the queue has entries; the bytes behind each failing write are a command again.
    for round in 0..40 {
        let data = pattern(round, 512);
        let writes = [1, 2].map(|nsid| (block_sqe(io::WRITE, nsid, 8, 1), &data[..]));
        let [failing, working] = queue.submit_all(&writes)[..] else { panic!("two commands") };
        assert_eq!(status(&queue.wait(failing, &[])), Status::WRITE_FAULT.dnr());
        assert!(status(&queue.wait(working, &[])).is_success());
        assert_eq!(queue.read(2, 8, 1, BS).data, data);
    }
    let totals = target.stats().subsystems[0].1;
    assert_eq!((totals.errors, totals.media_errors), (40, 40));
    assert_eq!((totals.writes, totals.written_bytes), (40, 40 * 512));
    target.shutdown().unwrap();
}

/// Finishes every request twice, and the one before it once more.
struct Stutterer(SharedBdev);

struct StutteringChannel {
    inner: Box<dyn Channel>,
    last_tag: Option<u64>,
}

impl Bdev for Stutterer {
    /// Reads need a request, and land in buffers.
    fn info(&self) -> BdevInfo {
        BdevInfo { reads_in_place: false, ..self.0.info() }
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> std::io::Result<Box<dyn Channel>> {
        let inner = self.0.open_channel(cx, owner)?;
        Ok(Box::new(StutteringChannel { inner, last_tag: None }))
    }
}

impl Channel for StutteringChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let again = |tag| Done { tag, result: Err(BdevError::Internal), payload: None };
        let tag = request.tag;
        done.extend(self.last_tag.replace(tag).map(again));
        self.inner.submit(cx, request, done);
        done.push(again(tag));
    }

    fn handle_completion(&mut self, _: &mut Context<'_>, _: Completion, _: &mut Vec<Done>) {}

    fn close(&mut self, cx: &mut Context<'_>) {
        self.inner.close(cx);
    }
}

#[test]
fn a_request_that_finishes_twice_completes_its_command_once() {
    let (target, address) = start(config(1), vec![Arc::new(Stutterer(ram("1M")))]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    // More rounds than the queue has entries: none of them is lost, and none is used twice.
    for round in 0..40 {
        let data = [0, 1, 2, 3].map(|number| pattern(round * 4 + number, 512));
        let writes: Vec<_> = (0..)
            .zip(&data)
            .map(|(number, data)| (block_sqe(io::WRITE, 1, number, 1), &data[..]))
            .collect();
        for cid in queue.submit_all(&writes) {
            assert!(status(&queue.wait(cid, &[])).is_success());
        }
        for (number, data) in (0..).zip(&data) {
            let answer = queue.read(1, number, 1, BS);
            assert!(status(&answer).is_success());
            assert_eq!(&answer.data, data);
        }
    }
    let totals = target.stats().subsystems[0].1;
    assert_eq!((totals.reads_buffered, totals.writes_buffered), (160, 160));
    assert_eq!((totals.reads, totals.writes, totals.errors), (160, 160, 0));
    target.shutdown().unwrap();
}
