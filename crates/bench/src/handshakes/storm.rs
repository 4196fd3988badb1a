//! A thread that connects over TLS at a fixed rate.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raceline_reactor::affinity::pin_to_core;
use raceline_tls::{ClientPsk, DATA_MAX, Handshake, Session};

use crate::histogram::Latencies;

/// How long a step of a handshake may take.
const STEP_LIMIT: Duration = Duration::from_secs(5);
/// The least precedence on a core.
const NICE: i32 = 19;

/// What has become of the handshakes of one run.
#[derive(Clone, Debug)]
pub struct Storms {
    /// Handshakes that both ends have finished.
    pub done: u64,
    /// Those that have failed.
    pub failed: u64,
    /// From the connection to the last message of the host.
    pub latencies: Latencies,
    /// How long the thread has run.
    pub time: Duration,
    /// Why the first one has failed.
    pub why: Option<String>,
}

impl Default for Storms {
    fn default() -> Self {
        let (latencies, time) = (Latencies::new(), Duration::ZERO);
        Self { done: 0, failed: 0, latencies, time, why: None }
    }
}

impl Storms {
    /// Finished handshakes per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.done as f64 / self.time.as_secs_f64() }
    }
}

/// The running thread.
pub(super) struct Storm {
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<Storms>,
}

impl Storm {
    /// Starts it on a core.
    pub(super) fn start(
        address: SocketAddr,
        psk: ClientPsk,
        rate: u32,
        core: usize,
    ) -> io::Result<Self> {
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let thread = std::thread::Builder::new().name("handshakes".to_owned());
        let thread = thread.spawn(move || {
            let mut storms = Storms::default();
            // Without these the figures of the host would say less. The thread goes on.
            let prepared = pin_to_core(core)
                .and_then(|()| rustix::process::nice(NICE).map(|_| ()).map_err(io::Error::from));
            storms.why = prepared.err().map(|error| error.to_string());
            run(address, &psk, rate, &stop, &mut storms);
            storms
        })?;
        Ok(Self { stopping, thread })
    }

    /// Ends it.
    pub(super) fn stop(self) -> Storms {
        self.stopping.store(true, Ordering::Relaxed);
        // A thread that panicked has reported it on standard error.
        self.thread.join().unwrap_or_default()
    }
}

fn run(
    address: SocketAddr,
    psk: &ClientPsk,
    rate: u32,
    stopping: &AtomicBool,
    storms: &mut Storms,
) {
    let begun = Instant::now();
    let interval = Duration::from_secs(1) / rate;
    let mut due = begun;
    while !stopping.load(Ordering::Relaxed) {
        match one(address, psk) {
            Ok(latency) => {
                storms.done += 1;
                storms.latencies.record(latency);
            }
            Err(error) => {
                storms.failed += 1;
                storms.why.get_or_insert_with(|| error.to_string());
            }
        }
        due += interval;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    storms.time = begun.elapsed();
}

/// One connection: a handshake, the end of TLS, and the target's end, which shows that it has finished as well.
fn one(address: SocketAddr, psk: &ClientPsk) -> io::Result<Duration> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect_timeout(&address, STEP_LIMIT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STEP_LIMIT))?;
    let mut handshake = Handshake::client(psk)?;
    let mut session = loop {
        stream.write_all(&handshake.take_output())?;
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(established) = handshake.handle(&piece[..count])? {
            break established.session;
        }
    };
    let latency = begun.elapsed();
    let mut last = handshake.take_output();
    let mut record = [0; Session::sealed_max(1)];
    let len = session.close(None, &mut record);
    last.extend_from_slice(&record[..len]);
    stream.write_all(&last)?;
    let mut rest = Vec::new();
    // A target that has not believed the last message sends an alert, and then ends the connection as well.
    io::Read::by_ref(&mut stream).take(DATA_MAX as u64).read_to_end(&mut rest)?;
    match session.record_len(&rest)? {
        Some(len) if len == rest.len() => {
            session.open(&mut rest).map(|_| latency).map_err(Into::into)
        }
        Some(_) => Err(io::Error::other("the target has sent more than the end of TLS")),
        None => Ok(latency),
    }
}
