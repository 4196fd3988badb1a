//! A path that can be cut: it passes TCP connections on to a port of this machine.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;

/// Passes connections on until it is cut, or dropped.
pub(crate) struct Relay {
    /// Where it listens on 127.0.0.1.
    pub(crate) port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_cut: AtomicBool,
    /// What it has passed on, in both directions.
    bytes: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

impl Shared {
    fn open(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Relay {
    /// One to a port of 127.0.0.1.
    pub(crate) fn start(to: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if accepting.is_cut.load(Ordering::SeqCst) {
                    return;
                }
                // A connection that cannot be passed on is closed.
                if let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, to)) {
                    let _ = pass(&accepting, near, far);
                }
            }
        });
        Ok(Self { port, shared })
    }

    /// Bytes that it has passed on.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::SeqCst)
    }

    /// Closes all connections, and takes no more.
    pub(crate) fn cut(&self) {
        self.shared.is_cut.store(true, Ordering::SeqCst);
        // The listener goes with the thread that accepts, which this wakes.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        for stream in self.shared.open().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
    }
}

fn pass(shared: &Arc<Shared>, near: TcpStream, far: TcpStream) -> std::io::Result<()> {
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let mut open = shared.open();
    // What comes between the end and this must not stay.
    if shared.is_cut.load(Ordering::SeqCst) {
        return Ok(());
    }
    open.extend([near.try_clone()?, far.try_clone()?]);
    drop(open);
    for (from, to) in [(near.try_clone()?, far.try_clone()?), (far, near)] {
        let shared = Arc::clone(shared);
        std::thread::spawn(move || copy(&shared, from, to));
    }
    Ok(())
}

fn copy(shared: &Shared, mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let length_bytes = u64::try_from(length).unwrap_or(0);
        shared.bytes.fetch_add(length_bytes, Ordering::SeqCst);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    for end in [from, to] {
        let _ = end.shutdown(Shutdown::Both);
    }
}
