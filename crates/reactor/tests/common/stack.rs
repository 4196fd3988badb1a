//! A provider with a stack of its own, for tests: connections are memory, and nothing has a descriptor.
#![allow(unreachable_pub, reason = "shared by tests")]
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{ByteStream, SendBatch, Socket, Source, StreamListener, StreamProvider};

/// Bytes that one direction of a connection holds.
const HELD: usize = 100_000;

/// The network of such connections.
#[derive(Clone, Debug, Default)]
pub struct Stack {
    inner: Arc<Mutex<Network>>,
}

#[derive(Debug, Default)]
struct Network {
    listeners: BTreeMap<SocketAddr, VecDeque<Socket>>,
    ports: u16,
}

#[derive(Debug, Default)]
struct Direction {
    bytes: VecDeque<u8>,
    /// No more will be written.
    ended: bool,
    /// The reader is gone.
    deaf: bool,
    reset: bool,
}

struct Stream {
    input: Arc<Mutex<Direction>>,
    output: Arc<Mutex<Direction>>,
}

struct Listener {
    stack: Stack,
    address: SocketAddr,
    is_stopped: bool,
}

impl Network {
    fn port(&mut self) -> u16 {
        self.ports += 1;
        40_000 + self.ports
    }
}

impl StreamProvider for Stack {
    fn accepted(&self, _: Socket) -> io::Result<Socket> {
        Err(io::Error::other("the kernel has accepted it"))
    }

    fn connected(&self, _: Socket) -> io::Result<Socket> {
        Err(io::Error::other("the kernel has connected it"))
    }

    fn listen(&self, mut address: SocketAddr) -> Option<io::Result<Box<dyn StreamListener>>> {
        let mut network = self.inner.lock().unwrap();
        if address.port() == 0 {
            address.set_port(network.port());
        }
        if network.listeners.contains_key(&address) {
            return Some(Err(io::ErrorKind::AddrInUse.into()));
        }
        network.listeners.insert(address, VecDeque::new());
        Some(Ok(Box::new(Listener { stack: self.clone(), address, is_stopped: false })))
    }

    fn connect(&self, address: SocketAddr, _: Option<IpAddr>) -> Option<io::Result<Socket>> {
        let mut network = self.inner.lock().unwrap();
        let local = SocketAddr::new(address.ip(), network.port());
        let Some(waiting) = network.listeners.get_mut(&address) else {
            return Some(Err(io::Error::from_raw_os_error(111)));
        };
        let (one, two) = (Arc::<Mutex<Direction>>::default(), Arc::default());
        let near = Stream { input: Arc::clone(&one), output: Arc::clone(&two) };
        let far = Stream { input: two, output: one };
        waiting.push_back(Socket::provided(Box::new(far), address, local));
        Some(Ok(Socket::provided(Box::new(near), local, address)))
    }
}

impl StreamListener for Listener {
    fn accept(&mut self) -> io::Result<Socket> {
        let mut network = self.stack.inner.lock().unwrap();
        let waiting = network.listeners.get_mut(&self.address);
        waiting.and_then(VecDeque::pop_front).ok_or(io::ErrorKind::WouldBlock.into())
    }

    fn local_address(&self) -> SocketAddr {
        self.address
    }

    fn source(&self) -> Source<'_> {
        Source::polled()
    }

    fn stop(&mut self) {
        if !std::mem::replace(&mut self.is_stopped, true) {
            let waiting = self.stack.inner.lock().unwrap().listeners.remove(&self.address);
            drop(waiting);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ByteStream for Stream {
    fn receive(&mut self, into: &mut RecvBuffers) -> io::Result<usize> {
        let mut input = self.input.lock().unwrap();
        if input.reset {
            return Err(io::Error::from_raw_os_error(104));
        }
        let (front, _) = input.bytes.as_slices();
        match into.put(0, front) {
            0 if input.ended => Ok(0),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => {
                input.bytes.drain(..count);
                Ok(count)
            }
        }
    }

    fn transmit(&mut self, batch: &mut SendBatch) -> io::Result<usize> {
        let mut output = self.output.lock().unwrap();
        if output.deaf || output.reset {
            return Err(io::Error::from_raw_os_error(32));
        }
        let mut bytes = vec![0; HELD.saturating_sub(output.bytes.len()).min(batch.len())];
        match batch.copy_unsent(&mut bytes) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => {
                output.bytes.extend(&bytes[..count]);
                Ok(count)
            }
        }
    }

    fn unread(&mut self) -> usize {
        self.input.lock().unwrap().bytes.len()
    }

    fn source(&self) -> Source<'_> {
        Source::polled()
    }

    fn close(&mut self, reset: bool) {
        let unread = !self.input.lock().unwrap().bytes.is_empty();
        let mut output = self.output.lock().unwrap();
        output.reset |= reset || unread;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut input = self.input.lock().unwrap();
        input.deaf = true;
        input.bytes.clear();
        drop(input);
        self.output.lock().unwrap().ended = true;
    }
}
