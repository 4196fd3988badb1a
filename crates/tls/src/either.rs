//! A connection that is TLS or in the clear, as its first byte says: where authentications make keys for TLS.

use std::io;
use std::os::fd::BorrowedFd;

use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{ByteStream, Interest, SendBatch, Source, Transport};

use crate::handshake::{Credentials, HANDSHAKE, Handshake};
use crate::offload::Offload;
use crate::stream::TlsStream;

/// See the module.
pub(crate) struct EitherStream {
    /// The connection, until it is TLS.
    plain: Option<Transport>,
    tls: Option<Box<TlsStream>>,
    /// What TLS needs, until the first byte is there.
    undecided: Option<(Credentials, Offload)>,
}

impl EitherStream {
    /// Around a fresh connection.
    pub(crate) fn new(
        transport: Transport,
        credentials: Credentials,
        offload: Offload,
    ) -> EitherStream {
        EitherStream { plain: Some(transport), tls: None, undecided: Some((credentials, offload)) }
    }

    /// Looks at the first byte, once.
    fn decide(&mut self) -> io::Result<()> {
        let (Some(transport), Some(_)) = (&self.plain, &self.undecided) else { return Ok(()) };
        let first = transport.peek()?;
        let Some((credentials, offload)) = self.undecided.take() else { return Ok(()) };
        if first == Some(HANDSHAKE) {
            let handshake = Handshake::served_by(credentials);
            let stream = self.plain.take().map(|plain| TlsStream::new(plain, handshake, offload));
            self.tls = stream.map(Box::new);
        }
        Ok(())
    }

    fn stream(&self) -> &dyn ByteStream {
        match (&self.tls, &self.plain) {
            (Some(stream), _) => &**stream,
            (None, plain) => plain.as_ref().expect("the connection is in one of the two"),
        }
    }

    fn stream_mut(&mut self) -> &mut dyn ByteStream {
        match (&mut self.tls, &mut self.plain) {
            (Some(stream), _) => &mut **stream,
            (None, plain) => plain.as_mut().expect("the connection is in one of the two"),
        }
    }
}

impl ByteStream for EitherStream {
    fn advance(&mut self) -> io::Result<()> {
        self.decide()?;
        self.stream_mut().advance()
    }

    fn receive(&mut self, into: &mut RecvBuffers) -> io::Result<usize> {
        self.decide()?;
        self.stream_mut().receive(into)
    }

    /// The peer has the first word.
    fn transmit(&mut self, batch: &mut SendBatch) -> io::Result<usize> {
        self.decide()?;
        self.stream_mut().transmit(batch)
    }

    fn unread(&mut self) -> usize {
        self.stream_mut().unread()
    }

    fn interest(&self, waiting: Interest) -> Interest {
        match self.undecided {
            Some(_) => Interest::READ,
            None => self.stream().interest(waiting),
        }
    }

    fn source(&self) -> Source<'_> {
        self.stream().source()
    }

    fn kernel_socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream().kernel_socket()
    }

    fn peer_identity(&self) -> Option<&str> {
        self.stream().peer_identity()
    }

    fn close(&mut self, reset: bool) {
        self.stream_mut().close(reset);
    }
}
