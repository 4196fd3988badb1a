//! The events of a stream do not depend on how it is cut: every split point, one byte at a time,
//! random pieces, payload received straight into place.
#![allow(clippy::unwrap_used)] // a test

mod tcp_support;

use raceline_proto::nvme::{CommandId, Cqe, Direction};
use raceline_proto::tcp::{
    ControllerQueue, Event, FatalError, HostEvent, HostQueue, HostQueueConfig, R2tGrant, Violation,
};
use tcp_support::{READ, Random, WRITE, append, controller_config, host_config, sqe};

/// All combinations of digests.
const DIGESTS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

/// What a driver saw: events in words, data of one PDU joined.
#[derive(Debug, Default, PartialEq, Eq)]
struct Trace {
    events: Vec<String>,
    data: Vec<u8>,
}

impl Trace {
    /// Notes an event that is not data.
    fn event(&mut self, event: String) {
        let data = std::mem::take(&mut self.data);
        self.events.push(format!("{data:?} {event}"));
    }
}

/// A queue in a state that a stream continues from.
trait End {
    /// Receives until `receive` gives nothing.
    fn drain(&mut self, input: &[u8], trace: &mut Trace) -> Result<(), FatalError>;
    /// Takes payload without `receive`; gives how many bytes.
    fn direct(&mut self, bytes: &[u8], trace: &mut Trace) -> usize;
}

macro_rules! end {
    ($queue:ident, $event:ident, $answer:expr) => {
        impl End for $queue {
            fn drain(&mut self, mut input: &[u8], trace: &mut Trace) -> Result<(), FatalError> {
                let mut last_left = input.len();
                while let Some(event) = self.receive(&mut input)? {
                    assert!(input.len() <= last_left);
                    last_left = input.len();
                    match event {
                        $event::Data { bytes, .. } => {
                            assert!(!bytes.is_empty());
                            trace.data.extend(bytes);
                        }
                        event => {
                            trace.event(format!("{event:?}"));
                            $answer(self, &event);
                        }
                    }
                }
                assert!(input.is_empty());
                Ok(())
            }

            fn direct(&mut self, bytes: &[u8], trace: &mut Trace) -> usize {
                let Some(wanted) = self.payload_wanted() else { return 0 };
                let len = bytes.len().min(usize::try_from(wanted.len).unwrap());
                trace.data.extend(&bytes[..len]);
                self.payload_received(len);
                len
            }
        }
    };
}

end!(ControllerQueue, Event, |queue: &mut ControllerQueue, event: &Event<'_>| {
    if let Event::Connected(_) = event {
        queue.ic_resp(&mut Vec::new());
        send_r2ts(queue, &mut Vec::new());
    }
});
end!(HostQueue, HostEvent, |queue: &mut HostQueue, event: &HostEvent<'_>| {
    if let HostEvent::Connected(_) = event {
        send_commands(queue);
    }
});

/// The R2Ts that the host's script answers.
fn send_r2ts(queue: &mut ControllerQueue, out: &mut Vec<u8>) {
    queue.r2t(1, CommandId(1), 0, 40, out);
    queue.r2t(2, CommandId(2), 100, 8, out);
}

/// The commands that the controller's script serves.
fn send_commands(queue: &mut HostQueue) {
    let out = &mut Vec::new();
    queue.command(&sqe(READ, 1), Direction::ControllerToHost, 60, false, out);
    queue.command(&sqe(READ, 2), Direction::ControllerToHost, 8, false, out);
    queue.command(&sqe(WRITE, 3), Direction::HostToController, 80, false, out);
    queue.command(&sqe(0, 4), Direction::None, 0, false, out);
}

/// Feeds `bytes` in pieces whose lengths `next` gives (at least 1).
fn feed(
    end: &mut impl End,
    mut bytes: &[u8],
    direct: bool,
    mut next: impl FnMut() -> usize,
) -> (Trace, Option<FatalError>) {
    let mut trace = Trace::default();
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(next().min(bytes.len()));
        bytes = rest;
        let mut result = end.drain(piece, &mut trace);
        if direct && result.is_ok() {
            bytes = &bytes[end.direct(bytes, &mut trace)..];
            result = end.drain(&[], &mut trace);
        }
        if let Err(error) = result {
            return (trace, Some(error));
        }
    }
    (trace, None)
}

fn new_host(pda: u8, hdgst: bool, ddgst: bool) -> HostQueue {
    HostQueue::new(HostQueueConfig { hpda: pda, hdgst, ddgst, ..host_config() })
}

/// Both ends' streams, of every PDU type, with CPDA as given.
fn scripts(pda: u8, hdgst: bool, ddgst: bool) -> (Vec<u8>, Vec<u8>) {
    let mut random = Random(7);
    let mut host = new_host(pda, hdgst, ddgst);
    let mut controller = ControllerQueue::new(controller_config());
    let (mut to_controller, mut to_host) = (Vec::new(), Vec::new());
    host.ic_req(&mut to_controller);
    controller.drain(&to_controller, &mut Trace::default()).unwrap();
    // The queue under test sends its own PDUs; these two queues only make the script.
    let mut controller = ControllerQueue::new(controller_config());
    controller.receive(&mut &to_controller[..]).unwrap();
    controller.ic_resp(&mut to_host);
    to_host[10] = pda;
    host.receive(&mut &to_host[..]).unwrap();

    let out = &mut to_controller;
    let mut write = |cid, len: usize, out: &mut Vec<u8>| {
        let direction = Direction::HostToController;
        host.command(&sqe(WRITE, cid), direction, u32::try_from(len).unwrap(), true, out);
        append(out, &random.bytes(len), ddgst);
    };
    write(5, 512, out);
    write(6, 4, out);
    let grants = [(1, 0x9, 0, 40), (2, 0xa, 100, 8)].map(|(cid, ttag, offset, len)| R2tGrant {
        cid: CommandId(cid),
        ttag,
        offset,
        len,
    });
    for (grant, offset, len, last) in
        [(0, 0, 16, false), (1, 100, 8, true), (0, 16, 20, false), (0, 36, 4, true)]
    {
        host.h2c_data(&grants[grant], offset, len, last, out);
        append(out, &random.bytes(usize::try_from(len).unwrap()), ddgst);
    }
    host.command(&sqe(0, 7), Direction::None, 0, false, out);
    host.term_req(&FatalError::new(Violation::DatalZero), out);

    let out = &mut to_host;
    for (cid, offset, len, last, success) in
        [(1, 0, 20, false, false), (2, 0, 8, true, true), (1, 20, 40, true, false)]
    {
        controller.c2h_data(CommandId(cid), offset, len, last, success, out);
        append(out, &random.bytes(usize::try_from(len).unwrap()), ddgst);
    }
    controller.r2t(1, CommandId(3), 0, 80, out);
    for cid in [1, 4, 3] {
        controller.response(&Cqe { cid: CommandId(cid), ..Cqe::default() }, out);
    }
    controller.term_req(&FatalError::new(Violation::DatalZero), out);
    (to_controller, to_host)
}

/// Feeds a stream in all ways; the events are always the same.
fn check<E: End>(bytes: &[u8], new: impl Fn() -> E, events: usize, fails: bool) {
    let expected = feed(&mut new(), bytes, false, || bytes.len());
    assert_eq!(expected.0.events.len(), events, "{expected:#?}");
    assert_eq!(expected.1.is_some(), fails, "{expected:#?}");
    let mut random = Random(3);
    for direct in [false, true] {
        for at in 1..bytes.len() {
            let mut pieces = [at, bytes.len()].into_iter();
            let got = feed(&mut new(), bytes, direct, || pieces.next().unwrap_or(1));
            assert_eq!(got, expected, "split at {at}, direct {direct}");
        }
        for piece in 1..160 {
            let got = feed(&mut new(), bytes, direct, || piece);
            assert_eq!(got, expected, "pieces of {piece}, direct {direct}");
        }
        for round in 0..100 {
            let max = 1 + random.below(200);
            let got = feed(&mut new(), bytes, direct, || 1 + random.below(max));
            assert_eq!(got, expected, "random {round}, direct {direct}");
        }
    }
}

#[test]
fn streams_of_every_type_in_all_pieces() {
    for (hdgst, ddgst) in DIGESTS {
        for pda in [0, 2, 7, 31] {
            let (to_controller, to_host) = scripts(pda, hdgst, ddgst);
            // ICReq, 2 x (command, end), 4 ends of H2CData, command, TermReq
            check(&to_controller, || ControllerQueue::new(controller_config()), 11, false);
            // ICResp, 3 ends of C2HData, R2T, 3 responses, TermReq
            let new = || {
                let mut host = new_host(pda, hdgst, ddgst);
                host.ic_req(&mut Vec::new());
                host
            };
            check(&to_host, new, 9, false);
        }
    }
}

#[test]
fn errors_come_at_the_same_place() {
    let (to_controller, to_host) = scripts(0, true, true);
    let host = || {
        let mut host = new_host(0, true, true);
        host.ic_req(&mut Vec::new());
        host
    };
    let controller = || ControllerQueue::new(controller_config());
    // Every byte after the initialization is corrupted in turn. In headers all corruptions are errors, thanks
    // to the header digest, and all give the same events however they arrive.
    let mut errors = 0;
    for at in 128..to_controller.len() {
        let mut bytes = to_controller.clone();
        bytes[at] ^= 0x10;
        let expected = feed(&mut controller(), &bytes, false, || bytes.len());
        errors += usize::from(expected.1.is_some());
        for piece in [1, 5, 100] {
            assert_eq!(feed(&mut controller(), &bytes, true, || piece), expected, "at {at}");
        }
    }
    assert!(errors >= 3 * (72 + 4) + 4 * (24 + 4), "{errors}");
    let mut errors = 0;
    for at in 128..to_host.len() {
        let mut bytes = to_host.clone();
        bytes[at] ^= 0x10;
        let expected = feed(&mut host(), &bytes, false, || bytes.len());
        errors += usize::from(expected.1.is_some());
        for piece in [1, 5, 100] {
            assert_eq!(feed(&mut host(), &bytes, true, || piece), expected, "at {at}");
        }
    }
    assert!(errors >= 7 * (24 + 4), "{errors}");
}

#[test]
fn a_wrong_data_digest_is_not_an_error() {
    let (mut to_controller, _) = scripts(0, false, true);
    let at = 128 + 72 + 512;
    to_controller[at..at + 4].copy_from_slice(&[1, 2, 3, 4]);
    let mut queue = ControllerQueue::new(controller_config());
    let (trace, error) = feed(&mut queue, &to_controller, false, || usize::MAX);
    assert_eq!(error, None);
    assert!(trace.events[2].contains(&format!("ddgst: Some({})", 0x0403_0201)), "{trace:#?}");
    assert_eq!(trace.events.len(), 11);
}
