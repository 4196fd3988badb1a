//! A client that can also do what no client may.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use raceline_bdev::{DeviceSpec, DiskTotals, Identity, SharedBdev};
use raceline_nbd::{Endpoint, Export, Server, ServerConfig, ServerError};
use raceline_reactor::Backend;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server with one export, `disk`, at a socket in a folder of its own.
pub(crate) struct Bed {
    server: Option<Server>,
    pub(crate) device: SharedBdev,
    dir: tempfile::TempDir,
}

impl Bed {
    pub(crate) fn start(device: &str, backend: Backend) -> Self {
        Self::start_with(device, |config| config.backend = backend)
    }

    pub(crate) fn start_with(device: &str, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let spec = device.replace("DIR", dir.path().to_str().unwrap());
        let spec: DeviceSpec = spec.parse().unwrap();
        let device = raceline_bdev::open(&spec, &Identity::from_seed(b"test")).unwrap();
        let export = Export {
            name: "disk".into(),
            description: String::new(),
            device: device.clone(),
            read_only: false,
        };
        let endpoint = Endpoint::Unix(dir.path().join("nbd.sock"));
        let mut config = ServerConfig::new(vec![export], vec![endpoint]);
        change(&mut config);
        Self { server: Some(Server::start(&config).unwrap()), device, dir }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("nbd.sock")
    }

    /// The first place where it listens.
    pub(crate) fn listening(&self) -> Endpoint {
        self.server.as_ref().unwrap().listening().remove(0)
    }

    /// What it has done.
    pub(crate) fn totals(&self) -> DiskTotals {
        self.server.as_ref().unwrap().totals()
    }

    /// A file in its folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A connection over which nothing was said.
    pub(crate) fn raw(&self) -> UnixStream {
        connect(&self.path())
    }

    /// A connection that has begun transmission.
    pub(crate) fn client(&self, structured: bool) -> Client {
        Client::begin(self.raw(), structured, &go())
    }

    /// The same for a client that does not ask for block sizes, as nbd-client.
    pub(crate) fn careless_client(&self) -> Client {
        Client::begin(self.raw(), false, &option(7, &[0; 6]))
    }

    /// A connection that negotiates nothing.
    pub(crate) fn connect(&self) -> Result<UnixStream, ServerError> {
        let stream = self.server.as_ref().unwrap().connect().map(UnixStream::from)?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Ok(stream)
    }

    /// As [`Bed::connect`], for requests.
    pub(crate) fn agreed(&self) -> Client {
        let stream = self.connect().unwrap();
        Client { stream, flags: 0, bytes: 0, contexts: 0, cookie: 0 }
    }

    pub(crate) fn stop(&mut self) {
        self.server.take().unwrap().stop();
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

fn connect(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(crate) fn option(kind: u32, data: &[u8]) -> Vec<u8> {
    let len = u32::try_from(data.len()).unwrap();
    [b"IHAVEOPT".as_slice(), &kind.to_be_bytes(), &len.to_be_bytes(), data].concat()
}

/// GO for the default export, with block sizes.
pub(crate) fn go() -> Vec<u8> {
    option(7, &[0, 0, 0, 0, 0, 1, 0, 3])
}

pub(crate) fn request(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// A reply: its error, and its data or the payload of its chunk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
    pub(crate) chunk: Option<u16>,
    pub(crate) data: Vec<u8>,
}

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    pub(crate) flags: u16,
    pub(crate) bytes: u64,
    pub(crate) contexts: usize,
    cookie: u64,
}

impl Client {
    fn begin(mut stream: UnixStream, structured: bool, go: &[u8]) -> Self {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        let mut client = Self { stream, flags: 0, bytes: 0, contexts: 0, cookie: 0 };
        if structured {
            client.stream.write_all(&option(8, b"")).unwrap();
            assert_eq!(client.option_reply().0, 1);
            let mut context = vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 15];
            context.extend(b"base:allocation");
            client.stream.write_all(&option(10, &context)).unwrap();
            while client.option_reply().0 != 1 {
                client.contexts += 1;
            }
        }
        client.stream.write_all(go).unwrap();
        loop {
            let (kind, data) = client.option_reply();
            match kind {
                1 => return client,
                3 if data[..2] == [0, 0] => {
                    client.bytes = u64::from_be_bytes(data[2..10].try_into().unwrap());
                    client.flags = u16::from_be_bytes(data[10..12].try_into().unwrap());
                }
                3 => {}
                _ => panic!("{kind:#x}: {}", String::from_utf8_lossy(&data)),
            }
        }
    }

    fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let mut header = [0; 20];
        self.stream.read_exact(&mut header).unwrap();
        let len = u32::from_be_bytes(header[16..].try_into().unwrap());
        let mut data = vec![0; len.try_into().unwrap()];
        self.stream.read_exact(&mut data).unwrap();
        (u32::from_be_bytes(header[12..16].try_into().unwrap()), data)
    }

    /// Sends a request; gives its cookie.
    pub(crate) fn send(
        &mut self,
        (command, flags): (u16, u16),
        range: (u64, u32),
        data: &[u8],
    ) -> u64 {
        self.cookie += 1;
        let bytes = request(command, flags, self.cookie, range.0, range.1);
        self.stream.write_all(&[&bytes, data].concat()).unwrap();
        self.cookie
    }

    /// More of the data of the request before.
    pub(crate) fn send_rest(&mut self, data: &[u8]) {
        self.stream.write_all(data).unwrap();
    }

    /// The next reply; `read_len` is how many data a simple reply without an error has.
    pub(crate) fn reply(&mut self, read_len: usize) -> io::Result<Reply> {
        let mut magic = [0; 4];
        self.stream.read_exact(&mut magic)?;
        if magic == 0x6744_6698_u32.to_be_bytes() {
            let mut rest = [0; 12];
            self.stream.read_exact(&mut rest)?;
            let error = u32::from_be_bytes(rest[..4].try_into().unwrap());
            let mut data = vec![0; if error == 0 { read_len } else { 0 }];
            self.stream.read_exact(&mut data)?;
            let cookie = u64::from_be_bytes(rest[4..].try_into().unwrap());
            return Ok(Reply { cookie, error, chunk: None, data });
        }
        assert_eq!(magic, 0x668e_33ef_u32.to_be_bytes());
        let mut rest = [0; 16];
        self.stream.read_exact(&mut rest)?;
        assert_eq!(rest[..2], [0, 1], "the only chunk");
        let kind = u16::from_be_bytes(rest[2..4].try_into().unwrap());
        let cookie = u64::from_be_bytes(rest[4..12].try_into().unwrap());
        let len = u32::from_be_bytes(rest[12..].try_into().unwrap());
        let mut data = vec![0; len.try_into().unwrap()];
        self.stream.read_exact(&mut data)?;
        let error = match kind {
            0x8001 => u32::from_be_bytes(data[..4].try_into().unwrap()),
            _ => 0,
        };
        Ok(Reply { cookie, error, chunk: Some(kind), data })
    }

    /// One request and its reply.
    pub(crate) fn call(&mut self, command: (u16, u16), range: (u64, u32), data: &[u8]) -> Reply {
        let cookie = self.send(command, range, data);
        let read_len = if command.0 == 0 { range.1 } else { 0 };
        let reply = self.reply(read_len.try_into().unwrap()).unwrap();
        assert_eq!(reply.cookie, cookie);
        reply
    }

    /// Writes, and expects that it works.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let len = u32::try_from(data.len()).unwrap();
        assert_eq!(self.call((1, 0), (offset, len), data).error, 0);
    }

    /// Reads, and expects that it works.
    pub(crate) fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        let mut reply = self.call((0, 0), (offset, len), b"");
        assert_eq!(reply.error, 0, "{reply:?}");
        if reply.chunk == Some(1) {
            assert_eq!(reply.data[..8], offset.to_be_bytes());
            reply.data.drain(..8);
        }
        reply.data
    }
}
