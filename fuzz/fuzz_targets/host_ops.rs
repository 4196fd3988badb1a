//! Whatever a controller answers, bring-up, scan and discovery end, and stale CIDs match no command.
//! Input: which machine, then answers: a flags byte, DW0 and DW1, status, and a piece of page.
#![no_main]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use raceline_proto::host::{
    AdminRequest, BringUp, BringUpConfig, CommandTable, DiscoveryReader, NamespaceScan,
};
use raceline_proto::nvme::{CommandId, ControllerId, Cqe, Status};

/// A run with more answers than this has entered a loop.
const MAX_ANSWERS: usize = 100_000;

/// Answers from the input; when it ends, every command is refused.
struct Answers<'a> {
    input: &'a [u8],
    given: usize,
}

impl Answers<'_> {
    fn next(&mut self, request: &AdminRequest) -> (Cqe, Vec<u8>) {
        self.given += 1;
        assert!(self.given < MAX_ANSWERS, "an endless conversation");
        let len = usize::try_from(request.receive_len).unwrap();
        assert!(len <= 4096, "every controller takes 4096 bytes");
        let Some((head, rest)) = self.input.split_first_chunk::<12>() else {
            return (Cqe { status: Status::INTERNAL.dnr(), ..Cqe::default() }, vec![0; len]);
        };
        let [flags, size, s0, s1, dw0 @ .., d4, d5, d6, d7] = *head;
        let failed = flags & 0b111 == 0b111;
        let status =
            if failed { Status::from_wire(u16::from_le_bytes([s0, s1])) } else { Status::SUCCESS };
        let cqe = Cqe {
            dw0: u32::from_le_bytes(dw0),
            dw1: u32::from_le_bytes([d4, d5, d6, d7]),
            status,
            ..Cqe::default()
        };
        // A piece of page at its beginning, or where the interesting fields of Identify are.
        let (piece, rest) = rest.split_at(rest.len().min(size.into()));
        self.input = rest;
        let mut page = if flags & 8 == 0 { valid_page(flags) } else { vec![0; 4096] };
        let start = [0, 76, 320, 512, 1792, 1024][usize::from(flags >> 4) % 6];
        page[start..start + piece.len()].copy_from_slice(piece);
        page.truncate(if flags & 0x80 == 0 { len } else { usize::from(size).min(len) });
        (cqe, page)
    }
}

/// A page that passes as Identify Controller and as Identify Namespace, so that the conversation
/// goes on.
fn valid_page(flags: u8) -> Vec<u8> {
    let mut page = vec![0; 4096];
    page[..4].copy_from_slice(&[1, 0, 0, 0]);
    page[8] = flags;
    page[78] = 1;
    page[76] = 8;
    page[93] = 1;
    page[130] = 9;
    page[320] = 10;
    page[344] = 255;
    page[516] = 4;
    page[536] = 1;
    page[1792] = 4;
    page[1796] = 1;
    page
}

fn bring_up(setup: u8, answers: &mut Answers<'_>) {
    let config = BringUpConfig {
        cntlid: ControllerId(1),
        discovery: setup & 1 != 0,
        keep_alive: setup & 2 != 0,
        io_queues: u16::from(setup >> 2),
        ana: true,
        rdma: false,
    };
    let mut bring_up = BringUp::new(config);
    let mut now = Instant::now();
    loop {
        if let Some(up) = bring_up.poll_done() {
            assert!(up.io_queues <= config.io_queues && up.max_entries > 0);
            assert_eq!(up.controller.cntlid, config.cntlid);
            for namespace in up.namespaces {
                assert!(namespace.nsid.is_valid() && namespace.block_size >= 512);
                assert!(namespace.size_bytes() >= namespace.block_count);
            }
            return;
        }
        let Some(request) = bring_up.poll_request(now) else {
            let at = bring_up.poll_timeout().expect("waits for an answer or for the time");
            assert!(at > now);
            now = at;
            continue;
        };
        assert!(bring_up.poll_request(now).is_none(), "one at a time");
        let (cqe, data) = answers.next(&request);
        now += Duration::from_micros(50);
        if bring_up.handle_completion(now, &cqe, &data).is_err() {
            return;
        }
    }
}

fn scan(setup: u8, answers: &mut Answers<'_>) {
    let mut scan = NamespaceScan::new(u32::from(setup) << 4, u32::from(setup) << 12);
    while scan.poll_done().is_none() {
        let request = scan.poll_request().expect("asks until it is done");
        let (cqe, data) = answers.next(&request);
        if scan.handle_completion(&cqe, &data).is_err() {
            return;
        }
    }
}

fn discover(answers: &mut Answers<'_>) {
    let mut reader = DiscoveryReader::new();
    loop {
        if let Some(log) = reader.poll_done() {
            for record in log.records {
                assert!(!record.subnqn.contains(char::is_control));
            }
            return;
        }
        let request = reader.poll_request().expect("asks until it is done");
        let (cqe, data) = answers.next(&request);
        if reader.handle_completion(&cqe, &data).is_err() {
            return;
        }
    }
}

/// Each byte pair inserts a command, or completes the CID that it names.
fn table(setup: u8, input: &[u8]) {
    let mut table = CommandTable::new(u16::from(setup) + 1);
    let mut model: HashMap<u16, usize> = HashMap::new();
    let (steps, _) = input.as_chunks::<2>();
    for (number, step) in steps.iter().enumerate() {
        let cid = u16::from_le_bytes(*step);
        if let Some(entry) = table.remove(CommandId(cid)) {
            assert_eq!(model.remove(&cid), Some(entry));
            assert_eq!(table.remove(CommandId(cid)), None);
        } else {
            assert!(!model.contains_key(&cid));
            match table.insert(number) {
                Ok(cid) => assert_eq!(model.insert(cid.0, number), None),
                Err(_) => assert_eq!(table.len(), table.capacity()),
            }
        }
        assert_eq!(table.len(), model.len());
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&[which, setup], input)) = data.split_first_chunk::<2>() else { return };
    let mut answers = Answers { input, given: 0 };
    match which & 3 {
        0 => bring_up(setup, &mut answers),
        1 => scan(setup, &mut answers),
        2 => discover(&mut answers),
        _ => table(setup, input),
    }
});
