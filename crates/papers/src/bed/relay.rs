//! A relay between host and target that limits rate and adds delay, where the kernel cannot.
//!
//! It stands in for a slow or long link. Both directions have the whole rate, and all connections share it. It passes on
//! bytes and not packets: it cannot lose any, the TCP connections on its two sides are short, and each byte is copied
//! twice more.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::link::Shape;
use super::neighbour::is_pause;
use super::{Bed, in_host_ns};
use crate::record::StandIn;

/// Connections at the same time; a target has one for each queue.
pub const CONNECTIONS_MAX: usize = 512;
/// Bytes that travel as one piece. Small, so that a large command does not keep back a small one for long.
const PIECE: usize = 16 << 10;
/// Pieces of one connection and direction that are under way at most. Then the sender is stopped, as by a full queue.
const PIECES_MAX: usize = 1024;
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How often a blocked thread looks whether it is to end.
const TICK: Duration = Duration::from_millis(100);

/// A relay at work. Dropping it closes its connections.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shape: Shape,
    stop: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Relay {
    /// Listens in the host's namespace, and passes on to the target's listener at `target`.
    ///
    /// # Errors
    /// When the limits are out of range or include a loss of packets, or the relay cannot listen.
    pub fn start(bed: &dyn Bed, target: SocketAddr, shape: Shape) -> io::Result<Self> {
        let invalid = |text: String| io::Error::new(ErrorKind::InvalidInput, text);
        shape.check().map_err(invalid)?;
        if shape.loss_percent.is_some() {
            return Err(io::Error::new(
                ErrorKind::Unsupported,
                "a relay passes on bytes of TCP, and cannot lose packets: that takes a kernel with sch_netem",
            ));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let relay_stop = Arc::clone(&stop);
        let (address, acceptor) = in_host_ns(bed, move || {
            let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            let ways = [Way::new(&shape), Way::new(&shape)];
            // Threads inherit the namespace.
            let builder = std::thread::Builder::new().name("relay".to_owned());
            let acceptor = builder.spawn(move || accept(&listener, target, &ways, &relay_stop))?;
            io::Result::Ok((address, acceptor))
        })??;
        Ok(Self { address, shape, stop, acceptor: Some(acceptor) })
    }

    /// Where hosts connect instead of at the target.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it stands in for.
    #[must_use]
    pub fn stand_in(&self) -> StandIn {
        StandIn {
            of: format!("a link with {}", self.shape),
            by: "a relay in user space that limits the rate and delays bytes".to_owned(),
            effect: "Each byte is copied twice more on this machine. The TCP connections are short: their windows and \
                     acknowledgements do not feel the delay."
                .to_owned(),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(acceptor) = self.acceptor.take() {
            // It does not panic; if it did, nothing more can be done here.
            let _ = acceptor.join();
        }
    }
}

/// One direction of the link.
#[derive(Clone, Debug)]
struct Way {
    bits_per_s: Option<u64>,
    delay: Duration,
    /// When the link has sent all that it was given.
    free: Arc<Mutex<Instant>>,
}

impl Way {
    fn new(shape: &Shape) -> Self {
        Self {
            bits_per_s: shape.bits_per_s,
            delay: shape.delay.unwrap_or_default(),
            free: Arc::new(Mutex::new(Instant::now())),
        }
    }

    /// When bytes that come at `now` arrive at the other end.
    fn arrival(&self, bytes: usize, now: Instant) -> Instant {
        let Some(rate) = self.bits_per_s else { return now + self.delay };
        let time = Duration::from_secs_f64(bytes as f64 * 8.0 / rate as f64);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = (*free).max(now) + time;
        *free + self.delay
    }
}

/// Bytes and when they arrive.
type Piece = (Instant, Vec<u8>);

fn accept(listener: &TcpListener, target: SocketAddr, ways: &[Way; 2], stop: &Arc<AtomicBool>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        threads.retain(|thread| !thread.is_finished());
        match listener.accept() {
            Ok((near, _)) if threads.len() < CONNECTIONS_MAX * 4 => {
                // A connection that cannot be passed on is closed: its host sees it, and says so.
                if let Ok(started) = join(near, target, ways, stop) {
                    threads.extend(started);
                }
            }
            Ok(_) => {
                tracing::warn!("the relay has {CONNECTIONS_MAX} connections, and refuses more")
            }
            Err(error) if is_pause(&error) => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => {
                tracing::warn!(%error, "the relay accepts no connection");
                std::thread::sleep(TICK);
            }
        }
    }
    for thread in threads {
        // See `Relay::drop`.
        let _ = thread.join();
    }
}

/// Connects to the target and starts the four threads of a connection.
fn join(
    near: TcpStream,
    target: SocketAddr,
    ways: &[Way; 2],
    stop: &Arc<AtomicBool>,
) -> io::Result<Vec<JoinHandle<()>>> {
    let far = TcpStream::connect_timeout(&target, CONNECT_LIMIT)?;
    for stream in [&near, &far] {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TICK))?;
        stream.set_write_timeout(Some(TICK))?;
    }
    let mut threads = Vec::with_capacity(4);
    let directions = [(&near, &far, &ways[0]), (&far, &near, &ways[1])];
    for (from, to, way) in directions {
        let (sender, receiver) = sync_channel(PIECES_MAX);
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        let (way, reader_stop, writer_stop) = (way.clone(), Arc::clone(stop), Arc::clone(stop));
        let named = || std::thread::Builder::new().name("relay".to_owned());
        threads.push(named().spawn(move || take(from, &way, &sender, &reader_stop))?);
        threads.push(named().spawn(move || give(to, &receiver, &writer_stop))?);
    }
    Ok(threads)
}

/// Receives, and notes when the bytes arrive at the other end.
fn take(mut from: TcpStream, way: &Way, pieces: &SyncSender<Piece>, stop: &AtomicBool) {
    let mut buffer = vec![0; PIECE];
    while !stop.load(Ordering::Relaxed) {
        let received = match from.read(&mut buffer) {
            // The writer's channel ends with this thread: it then closes its direction.
            Ok(0) => return,
            Ok(received) => received,
            Err(error) if is_pause(&error) => continue,
            Err(_) => return,
        };
        let mut piece = (way.arrival(received, Instant::now()), buffer[..received].to_vec());
        loop {
            match pieces.try_send(piece) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) if !stop.load(Ordering::Relaxed) => {
                    piece = back;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return,
            }
        }
    }
}

/// Sends what has arrived.
fn give(mut to: TcpStream, pieces: &Receiver<Piece>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let (arrival, piece) = match pieces.recv_timeout(TICK) {
            Ok(piece) => piece,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        std::thread::sleep(arrival.saturating_duration_since(Instant::now()));
        let mut left = &piece[..];
        while !left.is_empty() && !stop.load(Ordering::Relaxed) {
            match to.write(left) {
                Ok(written) => left = &left[written..],
                Err(error) if is_pause(&error) => {}
                Err(_) => {
                    // The reader of the other direction then sees the end, too.
                    let _ = to.shutdown(Shutdown::Both);
                    return;
                }
            }
        }
    }
    // The other end may be gone already.
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::Loopback;

    /// A target that sends back what it receives.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().take(2) {
                let mut stream = stream.unwrap();
                std::thread::spawn(move || io::copy(&mut stream.try_clone().unwrap(), &mut stream));
            }
        });
        address
    }

    fn connect(relay: &Relay) -> TcpStream {
        let stream = TcpStream::connect(relay.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    #[test]
    fn bytes_take_the_delay_both_ways_and_the_end_is_passed_on() {
        let delay = Duration::from_millis(30);
        let shape = Shape { delay: Some(delay), ..Shape::default() };
        let relay = Relay::start(&Loopback, echo(), shape).unwrap();
        let mut stream = connect(&relay);
        let began = Instant::now();
        stream.write_all(b"there and back").unwrap();
        let mut back = [0; 14];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"there and back");
        let took = began.elapsed();
        assert!(took >= delay * 2, "{took:?}");
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut back).unwrap(), 0);
    }

    #[test]
    fn the_rate_is_kept_and_no_byte_changes() {
        // 1 MB at 20 Mbit/s takes 0.4 s; both directions at the same time.
        let shape = Shape { bits_per_s: Some(20_000_000), ..Shape::default() };
        let relay = Relay::start(&Loopback, echo(), shape).unwrap();
        let mut stream = connect(&relay);
        let data: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
        let began = Instant::now();
        let mut writer = stream.try_clone().unwrap();
        let sent = data.clone();
        let sender = std::thread::spawn(move || writer.write_all(&sent).unwrap());
        let mut back = vec![0; data.len()];
        stream.read_exact(&mut back).unwrap();
        sender.join().unwrap();
        assert!(back == data, "bytes have changed");
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(400), "{took:?}");
    }

    #[test]
    fn loss_is_refused() {
        let shape = Shape { loss_percent: Some(1.0), ..Shape::default() };
        let error = Relay::start(&Loopback, echo(), shape).unwrap_err();
        assert!(error.to_string().contains("sch_netem"), "{error}");
    }
}
