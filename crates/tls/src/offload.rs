//! Who makes the records of a connection after its handshake: this crate, or the kernel.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::str::FromStr;

use raceline_auth::SecretBytes;
use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{ByteStream as _, SendBatch, Transport};

use crate::error::TlsError;
use crate::kernel::{self, Direction};
use crate::record::{ALERT, DATA_MAX, HANDSHAKE, Suite};
use crate::session::{OWN_KEY_UPDATE, Opened, Session};

/// Whether the kernel makes the records after a handshake (kTLS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ktls {
    /// Never.
    #[default]
    Off,
    /// Where the kernel can do all that records need, which includes another key for a long connection (Linux 6.14).
    Auto,
    /// Always. A connection for which the kernel refuses ends, and so does one that needs another key if the kernel
    /// cannot change keys.
    On,
}

impl FromStr for Ktls {
    type Err = String;

    fn from_str(text: &str) -> Result<Ktls, String> {
        match text {
            "off" => Ok(Ktls::Off),
            "auto" => Ok(Ktls::Auto),
            "on" => Ok(Ktls::On),
            _ => Err("on, off or auto".to_owned()),
        }
    }
}

impl fmt::Display for Ktls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ktls::Off => "off",
            Ktls::Auto => "auto",
            Ktls::On => "on",
        })
    }
}

/// Whether the kernel makes the records, as it was decided for this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    ktls: Ktls,
}

impl Offload {
    /// Decides it by a connection of this process with itself. A process that gives up connections does it before.
    ///
    /// # Errors
    /// With [`Ktls::On`], when the kernel cannot make the records.
    pub fn decide(wanted: Ktls) -> Result<Offload, TlsError> {
        let suites = [Suite::Aes128GcmSha256, Suite::Aes256GcmSha384];
        let ktls = match wanted {
            Ktls::Off => Ktls::Off,
            Ktls::On => {
                let tried = suites.into_iter().try_for_each(|suite| try_out(suite, false));
                tried.map_err(|error| TlsError::NoKernel(error.to_string()))?;
                Ktls::On
            }
            Ktls::Auto => match suites.into_iter().try_for_each(|suite| try_out(suite, true)) {
                Ok(()) => Ktls::Auto,
                Err(error) => {
                    tracing::info!(%error, "records of TLS are made in user space, as the kernel's cannot be used");
                    Ktls::Off
                }
            },
        };
        Ok(Offload { ktls })
    }
}

/// Gives a connection keys of a suite in both directions; twice if keys have to change.
fn try_out(suite: Suite, change: bool) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let secret = SecretBytes::new(&[0; 48][..suite.secret_len()]);
    let mut session = Session::new(suite, secret.clone(), secret);
    let socket = stream.as_fd();
    kernel::attach(socket)?;
    for round in 0..=usize::from(change) {
        if round > 0 {
            session.take_next_key();
        }
        kernel::set_keys(socket, Direction::Send, &session.keys_to_send())?;
        if round == 0 {
            kernel::set_keys(socket, Direction::Receive, &session.keys_to_receive())?;
        }
    }
    Ok(())
}

/// Who makes or opens the records of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maker {
    /// This crate.
    Us,
    /// This crate, until the direction is between two records.
    UsUntilBoundary,
    Kernel,
}

/// The kernel's part in one connection.
#[derive(Debug)]
pub(crate) struct Kernel {
    send: Maker,
    receive: Maker,
    required: bool,
    attached: bool,
    /// Room for a record that is no data, made when one comes.
    record: Vec<u8>,
}

impl Kernel {
    /// After a handshake.
    pub(crate) fn new(offload: Offload) -> Kernel {
        let maker = if offload.ktls == Ktls::Off { Maker::Us } else { Maker::UsUntilBoundary };
        let required = offload.ktls == Ktls::On;
        Kernel { send: maker, receive: maker, required, attached: false, record: Vec::new() }
    }

    /// Whether the kernel makes the records. The caller owes no sealed bytes: the kernel may take over now.
    pub(crate) fn sends(
        &mut self,
        transport: &Transport,
        session: &Session,
    ) -> Result<bool, TlsError> {
        if self.send == Maker::UsUntilBoundary {
            self.send = self.hand_over(transport, |socket| {
                kernel::set_keys(socket, Direction::Send, &session.keys_to_send())
            })?;
        }
        Ok(self.send == Maker::Kernel)
    }

    /// Whether the kernel makes the records already.
    pub(crate) fn sends_already(&self) -> bool {
        self.send == Maker::Kernel
    }

    /// Whether the kernel makes the records, or is about to.
    pub(crate) fn will_send(&self) -> bool {
        self.send != Maker::Us
    }

    /// Whether the kernel opens the records from the next boundary on: what is read until then should end there.
    pub(crate) fn waits_for_boundary(&self) -> bool {
        self.receive == Maker::UsUntilBoundary
    }

    /// Whether the kernel opens the records. The caller has no bytes that are not opened: the kernel may take over now.
    pub(crate) fn receives(
        &mut self,
        transport: &Transport,
        session: &Session,
    ) -> Result<bool, TlsError> {
        if self.receive == Maker::UsUntilBoundary {
            self.receive = self.hand_over(transport, |socket| {
                kernel::set_keys(socket, Direction::Receive, &session.keys_to_receive())?;
                kernel::expect_no_padding(socket);
                Ok(())
            })?;
        }
        Ok(self.receive == Maker::Kernel)
    }

    fn hand_over(
        &mut self,
        transport: &Transport,
        set_keys: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> Result<Maker, TlsError> {
        // The simulation has no kernel.
        let Some(socket) = transport.kernel_socket() else { return Ok(Maker::Us) };
        let attached = if self.attached { Ok(()) } else { kernel::attach(socket) };
        self.attached |= attached.is_ok();
        match attached.and_then(|()| set_keys(socket)) {
            Ok(()) => Ok(Maker::Kernel),
            Err(error) if self.required => Err(TlsError::NoKernel(error.to_string())),
            Err(error) => {
                tracing::debug!(%error, "the kernel does not take the records of this connection over");
                Ok(Maker::Us)
            }
        }
    }

    /// Sends from the front of the batch; the kernel makes the records.
    pub(crate) fn transmit(
        &self,
        transport: &mut Transport,
        session: &mut Session,
        batch: &mut SendBatch,
    ) -> io::Result<usize> {
        self.answer(transport, session)?;
        let sent = transport.transmit(batch)?;
        session.skip_sent((sent / DATA_MAX) as u64 + 1);
        Ok(sent)
    }

    /// Sends a KeyUpdate if one is due, and gives the kernel the key that follows it.
    pub(crate) fn answer(&self, transport: &Transport, session: &mut Session) -> io::Result<()> {
        let Some(socket) = transport.kernel_socket().filter(|_| session.owes_key()) else {
            return Ok(());
        };
        kernel::send_record(socket, HANDSHAKE, &OWN_KEY_UPDATE)?;
        session.take_next_key();
        kernel::set_keys(socket, Direction::Send, &session.keys_to_send())
            .map_err(|_| TlsError::KernelKey("this end needs another key").into())
    }

    /// Sends an alert, if there is room for it.
    pub(crate) fn alert(&self, transport: &Transport, alert: [u8; 2]) {
        if let Some(socket) = transport.kernel_socket() {
            let _ = kernel::send_record(socket, ALERT, &alert);
        }
    }

    /// Receives data that the kernel has opened; `None`: the peer sends nothing more.
    pub(crate) fn receive(
        &mut self,
        transport: &mut Transport,
        session: &mut Session,
        into: &mut RecvBuffers,
    ) -> io::Result<Option<usize>> {
        loop {
            match transport.receive(into) {
                Ok(0) => return Err(TlsError::CutOff.into()),
                Ok(count) => {
                    session.take_data()?;
                    return Ok(Some(count));
                }
                // The next record is no data.
                Err(error) if error.raw_os_error() == Some(libc::EIO) => {
                    if self.receive_record(transport, session)? == Opened::Closed {
                        return Ok(None);
                    }
                    if self.sends_already() {
                        match self.answer(transport, session) {
                            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                                return Err(error);
                            }
                            _ => {}
                        }
                    }
                }
                Err(error) => return Err(meaning(error)),
            }
        }
    }

    fn receive_record(
        &mut self,
        transport: &Transport,
        session: &mut Session,
    ) -> io::Result<Opened> {
        let Some(socket) = transport.kernel_socket() else { return Ok(Opened::Nothing) };
        self.record.resize(DATA_MAX, 0);
        let (kind, len) = kernel::receive_record(socket, &mut self.record).map_err(meaning)?;
        let (opened, next_key) = session.take_opened(kind, &self.record[..len])?;
        if next_key {
            kernel::set_keys(socket, Direction::Receive, &session.keys_to_receive())
                .map_err(|_| TlsError::KernelKey("the peer uses another key"))?;
        }
        Ok(opened)
    }
}

/// What an error of the kernel says of a record.
fn meaning(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EBADMSG) => TlsError::NotAuthentic.into(),
        Some(libc::EMSGSIZE) => TlsError::TooLong(DATA_MAX + 257).into(),
        Some(libc::EINVAL) => TlsError::Malformed("record").into(),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_it() {
        for ktls in [Ktls::Off, Ktls::Auto, Ktls::On] {
            assert_eq!(ktls.to_string().parse(), Ok(ktls));
        }
        assert_eq!("yes".parse::<Ktls>(), Err("on, off or auto".to_owned()));
    }

    /// Whatever this machine's kernel has, `auto` finds a way, and `on` says what is missing.
    #[test]
    fn a_kernel_without_tls_is_no_obstacle_to_auto() {
        let module = try_out(Suite::Aes128GcmSha256, false);
        assert!(Offload::decide(Ktls::Auto).is_ok());
        match (module, Offload::decide(Ktls::On)) {
            (Ok(()), Ok(offload)) => assert_eq!(offload.ktls, Ktls::On),
            (Err(_), Err(error @ TlsError::NoKernel(_))) => {
                assert!(error.to_string().contains("modprobe tls"), "{error}");
            }
            (module, decided) => panic!("{module:?}, {decided:?}"),
        }
    }
}
