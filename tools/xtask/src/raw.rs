//! A few hand-made PDUs over a plain socket, which no well-behaved host would send.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use socket2::{Domain, Socket, Type};

/// PDU types that are awaited here.
pub(crate) const C2H_TERM_REQ: u8 = 3;

/// Length of ICReq and ICResp.
const IC_LEN: u8 = 128;
/// Length of a TermReq's header.
const TERM_LEN: u8 = 24;
/// Time for any answer.
const ANSWER: Duration = Duration::from_secs(5);

/// A connection that has sent nothing yet.
pub(crate) fn open(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("cannot connect")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    Ok(stream)
}

/// The same from a given loopback address.
pub(crate) fn open_from(source: Ipv4Addr, port: u16) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((source, 0)).into())?;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    socket.connect_timeout(&to.into(), ANSWER)?;
    Ok(socket.into())
}

/// Common header: type, flags 0, HLEN, PDO 0, PLEN.
pub(crate) fn header(kind: u8, hlen: u8, plen: u32) -> Vec<u8> {
    let mut pdu = vec![kind, 0, hlen, 0];
    pdu.extend(plen.to_le_bytes());
    pdu
}

/// ICReq without digests or other options.
pub(crate) fn ic_req() -> Vec<u8> {
    let mut pdu = header(0, IC_LEN, u32::from(IC_LEN));
    pdu.resize(usize::from(IC_LEN), 0);
    pdu
}

/// H2CTermReq: "invalid PDU header field" at offset 4 of the header that is given.
pub(crate) fn h2c_term_req(offender: &[u8]) -> Result<Vec<u8>> {
    let plen = u32::from(TERM_LEN) + u32::try_from(offender.len())?;
    let mut pdu = header(2, TERM_LEN, plen);
    pdu.extend(1_u16.to_le_bytes());
    pdu.extend(4_u32.to_le_bytes());
    pdu.resize(usize::from(TERM_LEN), 0);
    pdu.extend(offender);
    Ok(pdu)
}

/// A connection on which ICReq was answered; returns the ICResp too.
pub(crate) fn negotiated(port: u16) -> Result<(TcpStream, Vec<u8>)> {
    let mut stream = open(port)?;
    stream.write_all(&ic_req())?;
    let pdu = read_pdu(&mut stream).context("no ICResp")?;
    ensure!(pdu[0] == 1, "PDU type {} instead of ICResp", pdu[0]);
    Ok((stream, pdu))
}

/// Reads one PDU.
pub(crate) fn read_pdu(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut pdu = vec![0; 8];
    stream.read_exact(&mut pdu)?;
    let plen = u32::from_le_bytes([pdu[4], pdu[5], pdu[6], pdu[7]]);
    ensure!((8..=1 << 20).contains(&plen), "a PDU of {plen} bytes");
    pdu.resize(usize::try_from(plen)?, 0);
    stream.read_exact(&mut pdu[8..])?;
    Ok(pdu)
}

/// Expects a C2HTermReq; returns its fatal error status.
pub(crate) fn expect_term_req(stream: &mut TcpStream) -> Result<u16> {
    let pdu = read_pdu(stream).context("no C2HTermReq")?;
    ensure!(pdu[0] == C2H_TERM_REQ, "PDU type {} instead of C2HTermReq", pdu[0]);
    ensure!(pdu.len() > usize::from(TERM_LEN), "C2HTermReq of {} bytes", pdu.len());
    Ok(u16::from_le_bytes([pdu[8], pdu[9]]))
}

/// How long the peer takes to close; bytes that it sends in the meantime are dropped.
pub(crate) fn time_to_close(stream: &mut TcpStream, limit: Duration) -> Result<Duration> {
    let started = Instant::now();
    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
    let mut sink = [0; 4096];
    while started.elapsed() < limit {
        match stream.read(&mut sink) {
            Ok(0) => return Ok(started.elapsed()),
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                return Ok(started.elapsed());
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(_) => {}
            Err(e) => return Err(e.into()),
        }
    }
    bail!("still open after {limit:?}")
}

/// Holds `count` silent connections from 127.0.0.2, for 20 s.
pub(crate) fn hold_idle(port: u16, count: usize) -> Result<()> {
    let mut held = Vec::new();
    for _ in 0..count {
        // The target may refuse or close most of them: that is its choice.
        if let Ok(stream) = open_from(Ipv4Addr::new(127, 0, 0, 2), port) {
            held.push(stream);
        }
    }
    println!("holding {} of {count}", held.len());
    std::thread::sleep(Duration::from_secs(20));
    Ok(())
}
