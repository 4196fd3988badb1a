//! A TCP echo server as a [`Service`] on one reactor: `cargo run --example echo -- 127.0.0.1:7777`.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;

use raceline_reactor::io::{ListenerId, RecvBuffers, SocketId};
use raceline_reactor::{
    Completion, Context, Outcome, Payload, PoolConfig, Reactor, ReactorConfig, SendBatch, Service,
    Socket, Token,
};

/// Connections served at once; the pool has one buffer for each.
pub(crate) const MAX_CONNECTIONS: usize = 256;

/// Bytes received at once.
pub(crate) const BUFFER_SIZE: usize = 64 << 10;

/// What other threads may tell the server.
#[derive(Debug)]
pub(crate) enum Message {
    /// Tells where it listens.
    Address(mpsc::Sender<SocketAddr>),
    /// Closes everything and ends.
    Stop,
}

/// The server: its listener and its connections.
#[derive(Debug)]
pub(crate) struct Echo {
    listener: ListenerId,
    address: SocketAddr,
    connections: Vec<Slot>,
    open: usize,
    stopping: bool,
}

/// A place for a connection, and how many have had it.
#[derive(Debug, Default)]
struct Slot {
    generation: u16,
    connection: Option<Connection>,
}

#[derive(Debug)]
struct Connection {
    socket: SocketId,
    /// Not in flight; in flight it is with the `Io`.
    batch: Option<Box<SendBatch>>,
}

/// The token of the listener.
const LISTENER: Token = Token { owner: 0, generation: 0, index: u32::MAX };

impl Echo {
    /// Starts to listen.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub(crate) fn new(cx: &mut Context<'_>, address: SocketAddr) -> io::Result<Echo> {
        let (listener, address) = cx.io.listen(address, LISTENER)?;
        let connections = std::iter::repeat_with(Slot::default).take(MAX_CONNECTIONS).collect();
        Ok(Echo { listener, address, connections, open: 0, stopping: false })
    }

    fn accept(&mut self, cx: &mut Context<'_>, socket: Socket) {
        let slots = (0u32..).zip(&mut self.connections);
        // A connection too many is closed by dropping its socket.
        let Some((index, slot)) = slots.into_iter().find(|(_, slot)| slot.connection.is_none())
        else {
            return;
        };
        let Ok(socket) = cx.io.adopt(socket) else { return };
        slot.connection = Some(Connection { socket, batch: Some(SendBatch::new(0, 1)) });
        self.open += 1;
        let token = Token { owner: 0, generation: slot.generation, index };
        self.receive(cx, token);
    }

    /// The connection a token names, unless it is gone.
    fn connection(&mut self, token: Token) -> Option<&mut Connection> {
        let slot = self.connections.get_mut(token.index as usize)?;
        slot.connection.as_mut().filter(|_| slot.generation == token.generation)
    }

    fn receive(&mut self, cx: &mut Context<'_>, token: Token) {
        let Some(connection) = self.connection(token) else { return };
        let Some(staging) = cx.pool.take(BUFFER_SIZE) else { return self.close(cx, token) };
        let staging_range = 0..staging.len();
        cx.io.recv(connection.socket, RecvBuffers { payload: None, staging, staging_range }, token);
    }

    fn echo(&mut self, cx: &mut Context<'_>, token: Token, buffers: RecvBuffers, count: usize) {
        let Some(connection) = self.connection(token) else { return };
        let Some(mut batch) = connection.batch.take() else { return };
        batch.push_payload(Payload::Buf(buffers.staging, 0..count));
        cx.io.send(connection.socket, batch, token);
    }

    fn close(&mut self, cx: &mut Context<'_>, token: Token) {
        let Some(slot) = self.connections.get_mut(token.index as usize) else { return };
        if slot.generation == token.generation
            && let Some(connection) = slot.connection.take()
        {
            cx.io.close(connection.socket, false);
            slot.generation = slot.generation.wrapping_add(1);
            self.open -= 1;
        }
    }

    fn stop(&mut self, cx: &mut Context<'_>) {
        self.stopping = true;
        cx.io.close_listener(self.listener);
        for index in 0u32.. {
            let Some(slot) = self.connections.get(index as usize) else { break };
            let token = Token { owner: 0, generation: slot.generation, index };
            self.close(cx, token);
        }
    }
}

impl Service for Echo {
    type Message = Message;

    fn handle_message(&mut self, cx: &mut Context<'_>, message: Message) {
        match message {
            // The thread that asked may have gone.
            Message::Address(reply) => drop(reply.send(self.address)),
            Message::Stop => self.stop(cx),
        }
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let token = completion.token;
        match completion.outcome {
            Outcome::Accepted(Ok((socket, _))) if !self.stopping => self.accept(cx, socket),
            Outcome::Received(Ok(count), buffers) if count > 0 => {
                self.echo(cx, token, buffers, count)
            }
            Outcome::Sent(Ok(()), mut batch) => {
                batch.clear();
                if let Some(connection) = self.connection(token) {
                    connection.batch = Some(batch);
                    self.receive(cx, token);
                }
            }
            // The end of the stream, or a broken connection.
            Outcome::Received(..) | Outcome::Sent(..) => self.close(cx, token),
            _ => {}
        }
    }

    fn flush(&mut self, _cx: &mut Context<'_>) {}

    fn is_finished(&self) -> bool {
        self.stopping && self.open == 0
    }
}

/// A core with the buffers that the server needs.
pub(crate) fn config() -> ReactorConfig {
    let pool = PoolConfig::new(&[(BUFFER_SIZE, MAX_CONNECTIONS)]);
    ReactorConfig { pool, name: "echo".to_owned(), ..ReactorConfig::default() }
}

#[allow(dead_code, reason = "tests use the server only")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7777".to_owned());
    let address: SocketAddr = address.parse()?;
    let reactor = Reactor::spawn(config(), move |cx| Echo::new(cx, address))?;
    let (reply, listening) = mpsc::channel();
    reactor.sender().send(Message::Address(reply))?;
    println!("echoing on {} ({:?}); Enter stops", listening.recv()?, reactor.backend());
    io::stdin().read_line(&mut String::new())?;
    reactor.sender().send(Message::Stop)?;
    println!("{:?}", reactor.stats().snapshot());
    Ok(reactor.join()?)
}
