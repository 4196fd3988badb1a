//! Copies one block device to another, with many requests in flight on one core.
//!
//! `cargo run --release -p raceline-bdev --example bdev_copy -- FROM TO`, where both are devices
//! such as `ram:64M`, `/dev/nvme0n1,readonly` or `file:/tmp/copy.img,size=64M`.

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Instant;

use raceline_bdev::{
    BdevError, Channel, DeviceSpec, Done, Identity, Op, Request, SharedBdev, open,
};
use raceline_reactor::{
    Completion, Context, IoBuf, Payload, PoolConfig, Reactor, ReactorConfig, Service,
};

/// How much one request moves; every block size divides it.
const PIECE_BYTES: usize = 128 << 10;

/// How many pieces are under way at a time.
const DEPTH: usize = 16;

/// Which channel a completion belongs to.
const FROM: u16 = 1;
const TO: u16 = 2;

/// The tag of the flush at the end; pieces are tagged with their offset.
const FLUSH: u64 = u64::MAX;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = arguments.as_slice() else {
        eprintln!("usage: bdev_copy FROM TO, e.g. bdev_copy ram:64M file:/tmp/copy.img,size=64M");
        return ExitCode::from(2);
    };
    match run(from, to) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("bdev_copy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(from: &str, to: &str) -> Result<String, Box<dyn std::error::Error>> {
    let identity = Identity::of_this_machine();
    let from = open(&from.parse::<DeviceSpec>()?, &identity)?;
    let to = open(&to.parse::<DeviceSpec>()?, &identity)?;
    let (source, target) = (from.info(), to.info());
    let bytes = source.block_count * u64::from(source.block_size);
    let room = target.block_count * u64::from(target.block_size);
    if room < bytes || !bytes.is_multiple_of(target.block_size.into()) {
        let message = format!(
            "{bytes} bytes of {} do not fit {} ({room} bytes in blocks of {})",
            source.name, target.name, target.block_size
        );
        return Err(message.into());
    }

    let pool = PoolConfig::new(&[(PIECE_BYTES, DEPTH)]);
    let config = ReactorConfig { pool, name: "copy".into(), ..ReactorConfig::default() };
    let (sender, result) = mpsc::channel();
    let start = Instant::now();
    let reactor = Reactor::spawn(config, move |cx| Copy::new(cx, &from, &to, bytes, sender))?;
    reactor.join()?;
    result.recv()?.map_err(|(offset, error)| format!("at byte {offset}: {error:?}"))?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(format!("{bytes} bytes in {seconds:.3} s, {:.2} GB/s", bytes as f64 / 1e9 / seconds))
}

/// The first error and where it happened, or success.
type CopyResult = Result<(), (u64, BdevError)>;

/// The work of one core.
struct Copy {
    from: Box<dyn Channel>,
    to: Box<dyn Channel>,
    bytes: u64,
    /// Where the next piece starts.
    next: u64,
    in_flight: usize,
    flushed: bool,
    result: CopyResult,
    report: mpsc::Sender<CopyResult>,
    finished: bool,
    done: Vec<Done>,
}

impl Copy {
    fn new(
        cx: &mut Context<'_>,
        from: &SharedBdev,
        to: &SharedBdev,
        bytes: u64,
        report: mpsc::Sender<CopyResult>,
    ) -> std::io::Result<Self> {
        let mut copy = Self {
            from: from.open_channel(cx, FROM)?,
            to: to.open_channel(cx, TO)?,
            bytes,
            next: 0,
            in_flight: 0,
            flushed: false,
            result: Ok(()),
            report,
            finished: false,
            done: Vec::with_capacity(DEPTH),
        };
        for _ in 0..DEPTH {
            let buf = cx.pool.take(PIECE_BYTES).ok_or(std::io::ErrorKind::OutOfMemory)?;
            copy.in_flight += 1;
            copy.read_next(cx, buf);
        }
        copy.progress(cx);
        Ok(copy)
    }

    /// Reads the next piece into a buffer, or puts the buffer away.
    fn read_next(&mut self, cx: &mut Context<'_>, mut buf: IoBuf) {
        let left = self.bytes - self.next;
        if left == 0 || self.result.is_err() {
            self.in_flight -= 1;
            return;
        }
        let len = usize::try_from(left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        buf.set_len(len);
        let op = Op::Read { offset: self.next, len, buf: Some(buf) };
        let request = Request { tag: self.next, op };
        self.next += len as u64;
        self.from.submit(cx, request, &mut self.done);
    }

    /// Takes what has finished one step further: read, written, and at last flushed.
    fn progress(&mut self, cx: &mut Context<'_>) {
        while let Some(Done { tag, result, payload }) = self.done.pop() {
            if let Err(error) = result {
                self.result = self.result.and(Err((tag, error)));
            }
            match (payload, result) {
                (Some(Payload::Buf(buf, _)), Ok(())) => {
                    let op = Op::Write { offset: tag, data: buf.share(), fua: false };
                    self.to.submit(cx, Request { tag, op }, &mut self.done);
                }
                (Some(Payload::Shared(data, _)), Ok(())) => match data.try_unique() {
                    Ok(buf) => self.read_next(cx, buf),
                    Err(_) => unreachable!("the device lets go of what it has written"),
                },
                _ => self.in_flight -= 1,
            }
        }
        if self.in_flight > 0 || self.finished {
            return;
        }
        if !self.flushed && self.result.is_ok() {
            self.flushed = true;
            self.in_flight = 1;
            self.to.submit(cx, Request { tag: FLUSH, op: Op::Flush }, &mut self.done);
            return self.progress(cx);
        }
        self.from.close(cx);
        self.to.close(cx);
        self.finished = true;
        // The receiver is gone only if the program is ending anyway.
        let _ = self.report.send(self.result);
    }
}

impl Service for Copy {
    type Message = ();

    fn handle_message(&mut self, _cx: &mut Context<'_>, (): ()) {}

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let channel = if completion.token.owner == FROM { &mut self.from } else { &mut self.to };
        channel.handle_completion(cx, completion, &mut self.done);
        self.progress(cx);
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        self.from.flush(cx, &mut self.done);
        self.to.flush(cx, &mut self.done);
        self.progress(cx);
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}
