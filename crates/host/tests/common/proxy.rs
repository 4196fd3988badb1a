//! A TCP proxy that flips one bit in each PDU of a kind, at one offset after the other.

use std::io::{BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// Data of the PDUs that are spoiled.
pub const DATA_BYTES: usize = 4096;
/// Their data and digests.
pub const PROTECTED_BYTES: usize = DATA_BYTES + 4;

/// PDU types (NVMe/TCP Transport 1.0, 3.6.1).
pub const CAPSULE_CMD: u8 = 0x04;
pub const H2C_DATA: u8 = 0x06;
pub const C2H_DATA: u8 = 0x07;
const NONE: u8 = 0xff;

/// A proxy before a target, on threads that end with their connections or with the process.
pub struct Proxy {
    pub address: SocketAddr,
    sweep: Arc<Sweep>,
}

/// What is spoiled next.
struct Sweep {
    pdu_type: AtomicU8,
    /// The byte whose bit is flipped next, from the begin of the data.
    next: AtomicUsize,
}

impl Proxy {
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sweep = Arc::new(Sweep {
            pdu_type: AtomicU8::new(NONE),
            next: AtomicUsize::new(PROTECTED_BYTES),
        });
        let shared = Arc::clone(&sweep);
        std::thread::spawn(move || {
            for host in listener.incoming() {
                let (host, target) = (host.unwrap(), TcpStream::connect(target).unwrap());
                let back = (target.try_clone().unwrap(), host.try_clone().unwrap());
                for (from, to) in [(host, target), back] {
                    let sweep = Arc::clone(&shared);
                    std::thread::spawn(move || {
                        to.set_nodelay(true).unwrap();
                        forward(&from, &to, &sweep);
                        // Either end may be gone already.
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
            }
        });
        Self { address, sweep }
    }

    /// From now on, PDUs of this type with [`DATA_BYTES`] and a digest are spoiled, each at the next
    /// byte, until every byte has been.
    pub fn spoil(&self, pdu_type: u8) {
        self.sweep.next.store(0, Ordering::Release);
        self.sweep.pdu_type.store(pdu_type, Ordering::Release);
    }

    /// Whether every byte has been.
    pub fn is_through(&self) -> bool {
        self.sweep.next.load(Ordering::Acquire) >= PROTECTED_BYTES
    }
}

/// Moves PDUs until one end closes.
fn forward(from: &TcpStream, mut to: &TcpStream, sweep: &Sweep) {
    let mut from = BufReader::with_capacity(64 << 10, from);
    let mut pdu = vec![0; 8];
    loop {
        pdu.resize(8, 0);
        if from.read_exact(&mut pdu).is_err() {
            return;
        }
        let plen = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]) as usize;
        assert!((8..=1 << 20).contains(&plen), "a PDU of {plen} bytes");
        pdu.resize(plen, 0);
        if from.read_exact(&mut pdu[8..]).is_err() {
            return;
        }
        let begin = usize::from(pdu[3]);
        if pdu[0] == sweep.pdu_type.load(Ordering::Acquire) && plen == begin + PROTECTED_BYTES {
            let offset = sweep.next.fetch_add(1, Ordering::AcqRel);
            if offset < PROTECTED_BYTES {
                pdu[begin + offset] ^= 1 << (offset * 5 % 8);
            }
        }
        if to.write_all(&pdu).is_err() {
            return;
        }
    }
}
