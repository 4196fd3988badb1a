//! TLS as a provider of byte streams for both ends of a connection.
#![allow(unreachable_pub, reason = "shared by tests")]

use std::io;
use std::sync::Arc;

use raceline_auth::{Hash, IdentityVersion, TlsKey};
use raceline_proto::nvme::Nqn;
use raceline_reactor::{Socket, StreamProvider};
use raceline_tls::{ClientPsk, PskTable, TlsAcceptor, TlsConnector};

/// Accepts and connects with one key, which it makes itself.
#[derive(Debug)]
pub struct Encrypted {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Encrypted {
    pub fn new() -> Encrypted {
        let key = TlsKey::generate(Hash::Sha256).unwrap();
        let (host, subsystem) = (Nqn::new("nqn.host").unwrap(), Nqn::new("nqn.sub").unwrap());
        let table = PskTable::new();
        table.insert(&key, &host, &subsystem).unwrap();
        let psk = ClientPsk::new(&key, IdentityVersion::One, &host, &subsystem).unwrap();
        let acceptor = TlsAcceptor::new(Arc::new(table));
        Encrypted { acceptor, connector: TlsConnector::new(psk) }
    }
}

impl StreamProvider for Encrypted {
    fn accepted(&self, socket: Socket) -> io::Result<Socket> {
        self.acceptor.accepted(socket)
    }

    fn connected(&self, socket: Socket) -> io::Result<Socket> {
        self.connector.connected(socket)
    }
}
