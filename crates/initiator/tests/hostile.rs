//! Targets that break the protocol: the session ends, nothing panics, and data that come afterwards are right.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Core, LIMIT, config};
use raceline_initiator::{SessionConfig, TaskError};

const BLOCK: usize = 512;
const NO_TAG: u32 = u32::MAX;

/// A PDU as it came.
struct Pdu {
    header: [u8; 48],
    data: Vec<u8>,
}

impl Pdu {
    fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut header = [0; 48];
        stream.read_exact(&mut header).ok()?;
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut data = vec![0; len.next_multiple_of(4)];
        stream.read_exact(&mut data).ok()?;
        data.truncate(len);
        Some(Self { header, data })
    }

    fn opcode(&self) -> u8 {
        self.header[0] & 0x3f
    }

    fn tag(&self) -> u32 {
        be(&self.header, 16)
    }
}

fn be(header: &[u8; 48], at: usize) -> u32 {
    u32::from_be_bytes(header[at..at + 4].try_into().unwrap())
}

/// A PDU to send: its header with numbers at offsets, and its data.
fn pdu(opcode: u8, flags: u8, tag: u32, numbers: &[(usize, u32)], data: &[u8]) -> Vec<u8> {
    let mut header = [0; 48];
    (header[0], header[1]) = (opcode, flags);
    header[5..8].copy_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes()[1..]);
    header[16..20].copy_from_slice(&tag.to_be_bytes());
    for &(at, number) in numbers {
        header[at..at + 4].copy_from_slice(&number.to_be_bytes());
    }
    let mut bytes = header.to_vec();
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// What the target answers to the first command of a connection, given its tag.
type Answer = fn(tag: u32) -> Vec<u8>;

/// A target that answers the first command of its first connection wrongly, and reads of later ones with bytes 5Ah.
struct Hostile {
    address: SocketAddr,
    thread: JoinHandle<()>,
    is_ending: Arc<AtomicBool>,
}

impl Hostile {
    fn start(wrong: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_ending = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_ending);
        let thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            serve(stream, Some(wrong));
            // A session may not come again, and on a busy machine it may be lost several times.
            listener.set_nonblocking(true).unwrap();
            while !ends.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        stream.set_nonblocking(false).unwrap();
                        serve(stream, None);
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        Self { address, thread, is_ending }
    }

    /// Ends it, once its last connection has ended.
    fn end(self) {
        self.is_ending.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Serves one connection to its end.
fn serve(mut stream: TcpStream, mut wrong: Option<Answer>) {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let answers_pings = wrong.is_none();
    let mut stat_sn = 1;
    while let Some(request) = Pdu::read(&mut stream) {
        let window = |cmd_sn: u32| [(28, cmd_sn), (32, cmd_sn.wrapping_add(64))];
        let cmd_sn = be(&request.header, 24);
        let answer = match request.opcode() {
            // Login: into the full feature phase at once, with the defaults.
            0x03 => {
                let text = b"TargetPortalGroupTag=1\0MaxRecvDataSegmentLength=8192\0";
                let [expected, most] = window(cmd_sn);
                let mut bytes =
                    pdu(0x23, 0x87, request.tag(), &[(24, stat_sn), expected, most], text);
                bytes[8..14].copy_from_slice(&request.header[8..14]);
                bytes[15] = 1; // TSIH
                stat_sn += 1;
                bytes
            }
            0x01 => match wrong.take() {
                Some(wrong) => wrong(request.tag()),
                None => {
                    let len = be(&request.header, 20) as usize;
                    let [expected, most] = window(cmd_sn.wrapping_add(1));
                    let numbers = [(20, NO_TAG), (24, stat_sn), expected, most];
                    stat_sn += 1;
                    pdu(0x25, 0x81, request.tag(), &numbers, &vec![0x5a; len])
                }
            },
            0x00 if answers_pings && request.tag() != NO_TAG => {
                let [expected, most] = window(cmd_sn);
                let numbers = [(20, NO_TAG), (24, stat_sn), expected, most];
                stat_sn += 1;
                pdu(0x20, 0x80, request.tag(), &numbers, &[])
            }
            0x06 => {
                let [expected, most] = window(cmd_sn);
                pdu(0x26, 0x80, request.tag(), &[(24, stat_sn), expected, most], &[])
            }
            _ => {
                assert!(request.data.len() <= 1 << 20);
                Vec::new()
            }
        };
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

/// The first connection is lost for this reason, and the read is right on the second.
#[track_caller]
fn read_survives(wrong: Answer) {
    let hostile = Hostile::start(wrong);
    let mut core = Core::ready(config(hostile.address));
    core.read(0, 4, 1);
    let done = core.take_done(1);
    assert_eq!(done.result, Ok(2048), "{:?}", core.events);
    assert!(
        matches!(done.data, raceline_initiator::TaskData::Read(buf) if buf[..] == [0x5a; 2048])
    );
    assert!(core.lost().unwrap().contains("violates the protocol"), "{:?}", core.events);
    core.close();
    hostile.end();
}

fn data_in(tag: u32, data_sn: u32, offset: u32, data: &[u8]) -> Vec<u8> {
    let numbers = [(20, NO_TAG), (24, 2), (28, 2), (32, 66), (36, data_sn), (40, offset)];
    pdu(0x25, 0x81, tag, &numbers, data)
}

#[test]
fn data_out_of_order_beyond_the_command_or_for_nobody_end_the_session() {
    read_survives(|tag| data_in(tag, 1, 0, &[0; BLOCK]));
    read_survives(|tag| data_in(tag, 0, 512, &[0; BLOCK]));
    read_survives(|tag| data_in(tag, 0, 0, &[0; 5 * BLOCK]));
    read_survives(|tag| data_in(tag, 0, u32::MAX - 100, &[0; BLOCK]));
    read_survives(|tag| data_in(tag ^ 1, 0, 0, &[0; BLOCK]));
}

#[test]
fn requests_for_data_of_a_read_and_answers_to_nothing_end_the_session() {
    read_survives(|tag| {
        pdu(0x31, 0x80, tag, &[(20, 7), (24, 2), (28, 2), (32, 66), (44, 512)], &[])
    });
    // Status for an unknown tag, a status number that is not next, and sense that is longer than its PDU.
    read_survives(|tag| pdu(0x21, 0x80, tag ^ 2, &[(24, 2), (28, 2), (32, 66)], &[]));
    read_survives(|tag| pdu(0x21, 0x80, tag, &[(24, 9), (28, 2), (32, 66)], &[]));
    read_survives(|tag| pdu(0x21, 0x80, tag, &[(24, 2), (28, 2), (32, 66)], &[0xff, 0xff, 1, 2]));
    read_survives(|tag| pdu(0x22, 0x80, tag, &[(24, 2), (28, 2), (32, 66)], &[]));
    read_survives(|tag| pdu(0x3f, 0x80, tag, &[(24, 2), (28, 2), (32, 66)], &[0; 48]));
    read_survives(|_| vec![0x11; 48]);
    // More data than may come in a PDU.
    read_survives(|tag| {
        let mut bytes = data_in(tag, 0, 0, &[0; BLOCK]);
        bytes[5] = 0xff;
        bytes
    });
}

#[test]
fn success_with_too_few_data_is_an_error_of_the_command() {
    for wrong in [
        // No data and no residual; a residual of all.
        (|tag| pdu(0x21, 0x80, tag, &[(24, 2), (28, 2), (32, 66)], &[])) as Answer,
        |tag| pdu(0x21, 0x82, tag, &[(24, 2), (28, 2), (32, 66), (44, 2048)], &[]),
        |tag| pdu(0x21, 0x82, tag, &[(24, 2), (28, 2), (32, 66), (44, u32::MAX)], &[]),
        |tag| data_in(tag, 0, 0, &[1; BLOCK]),
    ] {
        let hostile = Hostile::start(wrong);
        let mut core = Core::ready(config(hostile.address));
        core.read(0, 4, 1);
        let done = core.take_done(1);
        assert!(
            matches!(done.result, Err(TaskError::Short { len: 2048, .. })),
            "{:?}",
            done.result
        );
        core.close();
        drop(core);
        hostile.end();
    }
}

#[test]
fn data_that_a_write_does_not_have_are_not_sent() {
    for (offset, len) in [(0, 4096), (2048, 512), (u32::MAX, 512), (512, 512), (0, 0)] {
        let wrong: Answer = match (offset, len) {
            (0, 4096) => |tag| r2t(tag, 0, 4096),
            (2048, 512) => |tag| r2t(tag, 2048, 512),
            (u32::MAX, 512) => |tag| r2t(tag, u32::MAX, 512),
            (512, 512) => |tag| r2t(tag, 512, 512),
            _ => |tag| r2t(tag, 0, 0),
        };
        let hostile = Hostile::start(wrong);
        let once = SessionConfig {
            backoff: raceline_initiator::BackoffConfig::NEVER,
            ..config(hostile.address)
        };
        let mut core = Core::ready(once);
        core.write(0, &[9; 2048], 1);
        assert_eq!(core.take_done(1).result, Err(TaskError::UnknownFate), "{offset}, {len}");
        assert!(core.lost().unwrap().contains("violates the protocol"), "{:?}", core.events);
        drop(core);
        hostile.end();
    }
}

fn r2t(tag: u32, offset: u32, len: u32) -> Vec<u8> {
    let numbers = [(20, 7), (24, 2), (28, 2), (32, 66), (40, offset), (44, len)];
    pdu(0x31, 0x80, tag, &numbers, &[])
}

#[test]
fn a_silent_target_is_given_up_and_its_reads_go_elsewhere() {
    let hostile = Hostile::start(|_| Vec::new());
    let pinged =
        SessionConfig { ping_interval: Duration::from_millis(100), ..config(hostile.address) };
    let mut core = Core::ready(pinged);
    core.read(0, 4, 1);
    assert_eq!(core.take_done(1).result, Ok(2048));
    assert!(core.lost().unwrap().contains("ping"), "{:?}", core.events);
    core.close();
    hostile.end();
}

#[test]
fn a_task_without_an_answer_is_aborted_and_costs_the_session_if_that_does_not_help() {
    let hostile = Hostile::start(|_| Vec::new());
    let hasty = SessionConfig {
        task_timeout: Duration::from_millis(200),
        ping_interval: Duration::ZERO,
        ..config(hostile.address)
    };
    let mut core = Core::ready(hasty);
    core.read(0, 4, 1);
    let done = core.take_done(1);
    assert!(matches!(done.result, Err(TaskError::Timeout)), "{done:?}");
    assert!(core.lost().unwrap().contains("does not end it"), "{:?}", core.events);
    core.close();
    hostile.end();
}
