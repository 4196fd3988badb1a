//! A noisy neighbour: bulk TCP streams from the target's namespace to the host's, beside what is measured.
//!
//! The streams take bandwidth, queues and processor time. A rate keeps the processor time equal where ways are
//! compared. On the measured link, connections are made again until the streams are spread over the link's queues.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raceline_reactor::Socket;

use super::veth::{QueueSet, Side, Veth};

/// The most streams.
pub const STREAMS_MAX: usize = 256;
/// Bytes of one write.
const CHUNK: usize = 64 << 10;
/// How long a connection may take, and how long a stream that is to end may hang.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a blocked stream looks whether it is to end.
const TICK: Duration = Duration::from_millis(100);
/// Connections that are made at most for one stream, to find a queue without a stream. That all miss the last of 4
/// queues has a probability below one in ten thousand.
const ATTEMPTS: usize = 32;

/// What the neighbour does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NeighbourOptions {
    /// Its TCP connections.
    pub streams: usize,
    /// The link, and so the queues, that it uses.
    pub queues: QueueSet,
    /// Bytes per second of all streams together; `None`: as many as possible.
    pub bytes_per_s: Option<u64>,
}

/// What the neighbour did.
#[derive(Clone, Debug, PartialEq)]
pub struct NeighbourReport {
    /// Bytes that arrived.
    pub bytes: u64,
    /// The time in which they did.
    pub time: Duration,
    /// The number of streams that arrived at each receive queue of the host, by NAPI id; empty if GRO is off.
    pub streams_by_napi: BTreeMap<u32, usize>,
}

impl NeighbourReport {
    /// Throughput in Gbit/s.
    #[must_use]
    pub fn gbit_per_s(&self) -> f64 {
        let seconds = self.time.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 * 8.0 / seconds / 1e9 } else { 0.0 }
    }
}

/// A neighbour at work. Dropping it ends it.
#[derive(Debug)]
pub struct Neighbour {
    stop: Arc<AtomicBool>,
    bytes: Arc<AtomicU64>,
    began: Instant,
    streams_by_napi: BTreeMap<u32, usize>,
    threads: Vec<JoinHandle<()>>,
}

impl Neighbour {
    /// Connects all streams and starts them.
    ///
    /// # Errors
    /// When the number of streams or the rate is out of range, or a connection fails.
    pub fn start(bed: &Veth, options: &NeighbourOptions) -> io::Result<Self> {
        let invalid = |text: String| Err(io::Error::new(ErrorKind::InvalidInput, text));
        if !(1..=STREAMS_MAX).contains(&options.streams) {
            return invalid(format!("{} streams: use 1 to {STREAMS_MAX}", options.streams));
        }
        if options.bytes_per_s == Some(0) {
            return invalid("a neighbour with a rate of 0: leave it out instead".to_owned());
        }
        let (pairs, streams_by_napi) = connect(bed, options)?;
        let mut neighbour = Self {
            stop: Arc::default(),
            bytes: Arc::default(),
            began: Instant::now(),
            streams_by_napi,
            threads: Vec::new(),
        };
        let share = options.bytes_per_s.map(|rate| (rate / options.streams as u64).max(1));
        for (source, sink) in pairs {
            for stream in [&source, &sink] {
                stream.set_read_timeout(Some(TICK))?;
                stream.set_write_timeout(Some(TICK))?;
            }
            let stop = Arc::clone(&neighbour.stop);
            neighbour.spawn(move || pour(source, share, &stop))?;
            let (stop, bytes) = (Arc::clone(&neighbour.stop), Arc::clone(&neighbour.bytes));
            neighbour.spawn(move || drain(sink, &stop, &bytes))?;
        }
        Ok(neighbour)
    }

    /// What it has done so far.
    #[must_use]
    pub fn report(&self) -> NeighbourReport {
        NeighbourReport {
            bytes: self.bytes.load(Ordering::Relaxed),
            time: self.began.elapsed(),
            streams_by_napi: self.streams_by_napi.clone(),
        }
    }

    /// Ends it, and gives what it did.
    #[must_use]
    pub fn stop(mut self) -> NeighbourReport {
        let report = self.report();
        self.end();
        report
    }

    fn spawn(&mut self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let builder = std::thread::Builder::new().name("neighbour".to_owned());
        self.threads.push(builder.spawn(work)?);
        Ok(())
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The threads do not panic; if one did, the others still end.
            let _ = thread.join();
        }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.end();
    }
}

/// The pairs of source and sink, and how many streams arrive at each queue.
type Connected = (Vec<(TcpStream, TcpStream)>, BTreeMap<u32, usize>);

fn connect(bed: &Veth, options: &NeighbourOptions) -> io::Result<Connected> {
    let address = bed.address(Side::Host, options.queues);
    let listener = bed.namespace(Side::Host).run(|| TcpListener::bind((address, 0)))?;
    let address = listener.local_addr()?;
    let ids = bed.state(Side::Host, options.queues)?.napi_ids;
    let mut by_napi: BTreeMap<u32, usize> = BTreeMap::new();
    let mut pairs = Vec::with_capacity(options.streams);
    for number in 0..options.streams {
        // Every queue has this many streams before one gets another.
        let full = number.checked_div(ids.len()).unwrap_or(usize::MAX);
        let mut attempt = 1;
        loop {
            let connect = || TcpStream::connect_timeout(&address, PATIENCE);
            let mut source = bed.namespace(Side::Target).run(connect)?;
            // The connection is in the listener's queue, so this does not wait.
            let (mut sink, _) = listener.accept()?;
            // A socket knows the queue of a packet with data.
            source.write_all(&[0])?;
            sink.set_read_timeout(Some(PATIENCE))?;
            sink.read_exact(&mut [0])?;
            let id = napi_id(&sink)?;
            let taken = id.and_then(|id| by_napi.get(&id)).copied().unwrap_or(0);
            if id.is_none() || taken <= full || attempt == ATTEMPTS {
                if let Some(id) = id {
                    *by_napi.entry(id).or_default() += 1;
                }
                pairs.push((source, sink));
                break;
            }
            attempt += 1;
        }
    }
    Ok((pairs, by_napi))
}

/// The receive queue from which the last packet came.
fn napi_id(stream: &TcpStream) -> io::Result<Option<u32>> {
    let socket = Socket::from_fd(stream.try_clone()?.into())?;
    let id = socket.incoming_napi_id().map(u32::from);
    stream.set_nonblocking(false)?;
    Ok(id)
}

/// Sends until it is to stop.
fn pour(mut stream: TcpStream, bytes_per_s: Option<u64>, stop: &AtomicBool) {
    let (chunk, began) = (vec![0x5a; CHUNK], Instant::now());
    let mut sent: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        if let Some(rate) = bytes_per_s {
            let due = Duration::from_secs_f64(sent as f64 / rate as f64);
            let early = due.saturating_sub(began.elapsed());
            if !early.is_zero() {
                std::thread::sleep(early.min(TICK));
                continue;
            }
        }
        match stream.write(&chunk) {
            Ok(written) => sent += written as u64,
            Err(error) if is_pause(&error) => {}
            Err(_) => return,
        }
    }
}

/// Receives until it is to stop, or the other end is gone.
fn drain(mut stream: TcpStream, stop: &AtomicBool, bytes: &AtomicU64) {
    let mut chunk = vec![0; CHUNK];
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut chunk) {
            Ok(0) => return,
            Ok(received) => {
                bytes.fetch_add(received as u64, Ordering::Relaxed);
            }
            Err(error) if is_pause(&error) => {}
            Err(_) => return,
        }
    }
}

/// Whether a call has only waited for [`TICK`], or was interrupted.
pub(super) fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::link::LinkOptions;
    use crate::bed::veth::VethError;

    fn bed() -> Option<Veth> {
        match Veth::make(&LinkOptions::default()) {
            Ok(bed) => Some(bed),
            Err(VethError::Refused(error)) => {
                println!("SKIPPED: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_neighbour_uses_the_named_queues_at_its_rate() {
        let Some(bed) = bed() else { return };
        for queues in [QueueSet::Shared, QueueSet::Own] {
            let options = NeighbourOptions { streams: 4, queues, bytes_per_s: Some(20_000_000) };
            let neighbour = Neighbour::start(&bed, &options).unwrap();
            std::thread::sleep(Duration::from_millis(500));
            let report = neighbour.stop();
            let ids = bed.state(Side::Host, queues).unwrap().napi_ids;
            let used: Vec<u32> = report.streams_by_napi.keys().copied().collect();
            assert_eq!(used, ids, "{queues:?}: {report:?}");
            let rate = report.bytes as f64 / report.time.as_secs_f64();
            assert!((5e6..24e6).contains(&rate), "{queues:?}: {rate} bytes per second");
        }
        let shared = bed.state(Side::Host, QueueSet::Shared).unwrap().napi_ids;
        let own = bed.state(Side::Host, QueueSet::Own).unwrap().napi_ids;
        assert!(shared.iter().all(|id| !own.contains(id)), "{shared:?} {own:?}");
    }

    #[test]
    fn wrong_options_are_refused() {
        let Some(bed) = bed() else { return };
        let options = NeighbourOptions { streams: 0, queues: QueueSet::Own, bytes_per_s: None };
        let refused = |options| Neighbour::start(&bed, &options).unwrap_err().to_string();
        assert!(refused(options).contains("1 to 256"));
        assert!(
            refused(NeighbourOptions { streams: 1, bytes_per_s: Some(0), ..options })
                .contains("rate of 0")
        );
    }
}
