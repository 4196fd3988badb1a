//! The NVMe end: one controller with two queues, by the production host.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use raceline_host::{
    BlockRange, Command, CommandError, Controller, ControllerEvent, Data, HostConfig, IoQueueEvent,
    IoQueueSet,
};
use raceline_proto::nvme::{NamespaceId, Nqn, Sqe, Status};
use raceline_proto::reservation::ReservingHost;
use raceline_reactor::{BufferPool, Context, Io as _, IoBuf, PoolConfig, SimIo, Token, Wait};

use super::oracle::{Job, Kind};
use super::{BLOCK, contents};
use crate::secrets;

const QUEUES: u16 = 2;
/// Index of the first I/O queue in tokens; the controller has two below.
const FIRST_QUEUE_INDEX: u32 = 2;
const POOL: &[(usize, usize)] = &[(128 << 10, 2)];
/// Of the name of a command: it is the Compare of a fused operation.
const COMPARE: u64 = 1 << 63;

/// A command that has ended.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) id: u64,
    /// The status; of a fused operation, that of the half which has made both fail.
    pub(super) status: Status,
    pub(super) data: Vec<u8>,
}

/// The host.
pub(super) struct Host {
    io: SimIo,
    pool: BufferPool,
    controller: Controller,
    queues: IoQueueSet,
    pub(super) outstanding: usize,
    /// Fused operations of which not both halves have ended.
    swaps: BTreeSet<u64>,
    /// How the Compares of fused operations have ended whose Write has not.
    compared: BTreeMap<u64, Status>,
    /// And the Writes whose Compare has not.
    written: BTreeMap<u64, Status>,
    pub(super) answers: Vec<Answer>,
    awake: bool,
}

impl Host {
    pub(super) fn start(
        mut io: SimIo,
        address: SocketAddr,
        subnqn: &Nqn,
        who: &ReservingHost,
    ) -> Result<Self, String> {
        let pool = BufferPool::new(&PoolConfig::new(POOL)).map_err(|error| error.to_string())?;
        let config = HostConfig {
            io_queues: QUEUES,
            io_entries: 32,
            ..HostConfig::new(address, subnqn.clone(), secrets::host_nqn(0)?, who.id)
        };
        let token = Token { owner: 0, generation: 0, index: 0 };
        let queues =
            IoQueueSet::new(&config, 1..=QUEUES, Token { index: FIRST_QUEUE_INDEX, ..token });
        let now = io.now();
        let mut cx = Context { io: &mut io, pool: &pool, now };
        let controller = Controller::connect(&mut cx, config, token);
        Ok(Self {
            io,
            pool,
            controller,
            queues,
            outstanding: 0,
            swaps: BTreeSet::new(),
            compared: BTreeMap::new(),
            written: BTreeMap::new(),
            answers: Vec::new(),
            awake: true,
        })
    }

    pub(super) fn is_ready(&self) -> bool {
        self.controller.association().is_some() && self.queues.is_ready()
    }

    /// Sends a job by one of its queues.
    pub(super) fn send(&mut self, job: &Job, queue: usize) -> Result<(), String> {
        let nsid = NamespaceId(1);
        let range = u32::try_from(job.count).ok();
        let range = range.and_then(|count| BlockRange::new(job.block, count));
        let range = range.ok_or("an impossible range")?;
        let len = usize::try_from(job.count).unwrap_or(1) * BLOCK;
        let write =
            Command::write(nsid, range, IoBuf::from_slice(&contents(job.id, len)).share(), false);
        let mut batch = VecDeque::new();
        match job.kind {
            Kind::Read => batch.push_back((Command::read(nsid, range, IoBuf::heap(len)), job.id)),
            Kind::Write => batch.push_back((write, job.id)),
            Kind::Swap { old } => {
                let old = IoBuf::from_slice(&contents(old, len)).share();
                let (mut compare, mut write) = (Command::compare(nsid, range, old), write);
                compare.sqe.flags |= 0b01;
                write.sqe.flags |= 0b10;
                self.swaps.insert(job.id);
                batch.push_back((compare, job.id | COMPARE));
                batch.push_back((write, job.id));
            }
        }
        self.submit(queue, batch)
    }

    /// Sends a reservation command, with what it sends or reads.
    pub(super) fn reserve(&mut self, id: u64, sqe: Sqe, data: Data) -> Result<(), String> {
        self.submit(0, VecDeque::from([(Command::new(sqe, data), id)]))
    }

    fn submit(&mut self, queue: usize, mut batch: VecDeque<(Command, u64)>) -> Result<(), String> {
        self.outstanding += batch.len();
        self.awake = true;
        let now = self.io.now();
        let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
        let submitted = self.queues.submit_batch(&mut cx, queue, &mut batch);
        submitted.map_err(|rejected| format!("{rejected:?}"))
    }

    /// One turn of its loop. True: it had work.
    pub(super) fn turn(&mut self) -> Result<bool, String> {
        if !self.io.has_completions() && !std::mem::take(&mut self.awake) {
            return Ok(false);
        }
        let mut completions = Vec::new();
        self.io.poll(Wait::No, &mut completions).map_err(|error| error.to_string())?;
        let now = self.io.now();
        let Self { io, pool, controller, queues, .. } = self;
        let mut cx = Context { io, pool, now };
        for completion in completions {
            if completion.token.index < FIRST_QUEUE_INDEX {
                controller.handle_completion(&mut cx, completion);
            } else {
                queues.handle_completion(&mut cx, completion);
            }
        }
        while let Some(event) = controller.poll_event() {
            match event {
                ControllerEvent::Up(association) => queues.handle_up(&mut cx, &association),
                ControllerEvent::Down(error) => return Err(format!("the host is lost: {error}")),
                _ => {}
            }
        }
        while let Some(event) = queues.poll_event() {
            if let IoQueueEvent::Lost { error, .. } = event {
                return Err(format!("a queue is lost: {error}"));
            }
        }
        while controller.poll_done().is_some() {}
        let mut done = Vec::new();
        while let Some((_, one)) = queues.poll_done() {
            done.push(one);
        }
        controller.flush(&mut cx);
        queues.flush(&mut cx);
        for one in done {
            self.outstanding -= 1;
            let status = match one.result {
                Ok(_) => Status::SUCCESS,
                Err(CommandError::Status(status)) => status,
                Err(error) => return Err(format!("{}: {error}", one.summary)),
            };
            let data = one.data.into_read().map(|buf| buf.to_vec()).unwrap_or_default();
            self.end(one.user, status, data);
        }
        Ok(true)
    }

    /// A command has ended; a fused operation has when both halves have.
    fn end(&mut self, user: u64, status: Status, data: Vec<u8>) {
        let id = user & !COMPARE;
        if !self.swaps.contains(&id) {
            return self.answers.push(Answer { id, status, data });
        }
        let (own, other) = match user & COMPARE {
            0 => (&mut self.written, &mut self.compared),
            _ => (&mut self.compared, &mut self.written),
        };
        let Some(first) = other.remove(&id) else {
            own.insert(id, status);
            return;
        };
        self.swaps.remove(&id);
        let (compare, write) = if user & COMPARE == 0 { (first, status) } else { (status, first) };
        let follows =
            [Status::ABORTED_FAILED_FUSED, Status::ABORTED_FAILED_FUSED.dnr()].contains(&compare);
        let status = if compare.is_success() || follows { write } else { compare };
        self.answers.push(Answer { id, status, data });
    }
}
