//! The C interface as a caller may misuse it, and as it is meant.

#![allow(unsafe_code, reason = "it is an interface for C")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../host/tests/common/served.rs"]
mod served;

use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

use raceline::*;
use raceline_target::Target;
use served::BLOCK;

const NSID: u32 = served::NS.0;
/// As [`served::NQN`].
const NQN: &CStr = c"nqn.2026-01.io.raceline:served";

/// A target, and its port in words.
fn serve() -> (Target, CString) {
    let (target, address) = served::serve("127.0.0.1:0".parse().unwrap());
    (target, CString::new(address.port().to_string()).unwrap())
}

/// The text of the last failure, which must hold these words.
#[track_caller]
fn error(words: &str) {
    // SAFETY: the library's own text, valid until the next failure.
    let text = unsafe { CStr::from_ptr(raceline_error_text()) }.to_str().unwrap();
    assert!(text.contains(words), "\"{text}\" does not say \"{words}\"");
}

/// A configuration for a target at this port.
fn config(port: &CStr) -> raceline_config {
    let mut config = MaybeUninit::<raceline_config>::uninit();
    // SAFETY: room for one.
    let code = unsafe { raceline_config_init(config.as_mut_ptr(), size_of::<raceline_config>()) };
    assert_eq!(code, RACELINE_OK);
    // SAFETY: filled in just now.
    let mut config = unsafe { config.assume_init() };
    config.traddr = c"127.0.0.1".as_ptr();
    config.trsvcid = port.as_ptr();
    config.nqn = NQN.as_ptr();
    config
}

fn connect(config: &raceline_config) -> Result<*mut raceline_host, i32> {
    let mut host = null_mut();
    // SAFETY: both live across the call.
    let code = unsafe { raceline_connect(config, &raw mut host) };
    assert_eq!(host.is_null(), code != RACELINE_OK);
    if code == RACELINE_OK { Ok(host) } else { Err(code) }
}

fn open(host: *mut raceline_host) -> *mut raceline_queues {
    let mut queues = null_mut();
    // SAFETY: a handle of this test, or one that is refused.
    let code = unsafe { raceline_queues_open(host, null(), &raw mut queues) };
    assert_eq!(code, RACELINE_OK);
    queues
}

/// Waits for one completion.
fn wait(queues: *mut raceline_queues) -> raceline_completion {
    let mut done = raceline_completion::default();
    // SAFETY: a handle of this test, and room for one.
    let count = unsafe { raceline_wait(queues, &raw mut done, 1, 1, 20_000_000_000) };
    assert_eq!(count, 1);
    done
}

#[test]
fn data_go_there_and_back() {
    let (target, port) = serve();
    let host = connect(&config(&port)).unwrap();
    let mut nsids = [0; 4];
    let mut ns = MaybeUninit::<raceline_namespace>::uninit();
    // SAFETY: handles of this test; memory that lives until the completion has come.
    unsafe {
        assert_eq!(raceline_namespace_ids(host, nsids.as_mut_ptr(), 4), 1);
        assert_eq!(nsids, [NSID, 0, 0, 0]);
        let size = size_of::<raceline_namespace>();
        assert_eq!(raceline_namespace_info(host, NSID, ns.as_mut_ptr(), size), RACELINE_OK);
        let ns = ns.assume_init();
        assert_eq!((ns.block_size, ns.block_count), (512, 32_768));
        assert_eq!(ns.flags & RACELINE_NAMESPACE_WRITE_ZEROES, RACELINE_NAMESPACE_WRITE_ZEROES);
        let queues = open(host);
        // More than one command may carry, at an odd address.
        let data: Vec<u8> = (0..1025 * BLOCK).map(|index| (index / 5).to_le_bytes()[0]).collect();
        let (out, len) = (data.as_ptr().cast::<c_void>(), 1024 * BLOCK);
        let code = raceline_write(queues, NSID, 8, out.add(1), len, RACELINE_FUA, 1);
        assert_eq!(code, RACELINE_OK);
        assert_eq!(raceline_send(queues), RACELINE_OK);
        assert_eq!((wait(queues).result, raceline_room(queues) > 0), (RACELINE_OK, true));
        let mut back = vec![0u8; len + 3];
        let to = back.as_mut_ptr().add(3).cast();
        assert_eq!(raceline_read(queues, NSID, 8, to, len, 0, 2), RACELINE_OK);
        assert_eq!(wait(queues).user, 2);
        assert!(back[3..] == data[1..=len]);
        assert_eq!(raceline_compare(queues, NSID, 9, out, BLOCK, 0, 3), RACELINE_OK);
        let done = wait(queues);
        assert_eq!((done.result, done.status & 0x7ff), (RACELINE_COMMAND_FAILED, 0x285));
        assert_eq!((done.opcode, done.nsid, done.slba, done.block_count), (5, NSID, 9, 1));
        let mut text = [1; 20];
        let whole = raceline_completion_text(&raw const done, text.as_mut_ptr(), text.len());
        assert!(whole > 40, "{whole}");
        let text = CStr::from_ptr(text.as_ptr()).to_str().unwrap();
        assert_eq!(text, "Compare of namespac");
        assert_eq!(raceline_write_zeroes(queues, NSID, 8, 2, 0, 4), RACELINE_OK);
        assert_eq!(wait(queues).result, RACELINE_OK);
        let range = raceline_range { slba: 10, block_count: 2, reserved: 0 };
        assert_eq!(raceline_deallocate(queues, NSID, &raw const range, 1, 0, 5), RACELINE_OK);
        assert_eq!(wait(queues).result, RACELINE_OK);
        assert_eq!(raceline_flush(queues, NSID, 0, 6), RACELINE_OK);
        assert_eq!(wait(queues).user, 6);
        let to = back.as_mut_ptr().cast();
        assert_eq!(raceline_read(queues, NSID, 8, to, 4 * BLOCK, 0, 7), RACELINE_OK);
        assert_eq!((wait(queues).user, back[..4 * BLOCK].iter().any(|&b| b > 0)), (7, false));
        assert_eq!(raceline_queues_close(queues), RACELINE_OK);
        assert_eq!(raceline_disconnect(host), RACELINE_OK);
    }
    target.shutdown().unwrap();
}

#[test]
fn wrong_pointers_and_sizes_are_named() {
    let (target, port) = serve();
    let host = connect(&config(&port)).unwrap();
    let queues = open(host);
    let mut data = [0u64; 64];
    let (memory, odd) =
        (data.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut::<raceline_host>(1));
    // SAFETY: what is not valid is refused before it is used: that is what is tested.
    unsafe {
        assert_eq!(raceline_config_init(null_mut(), 1000), RACELINE_INVALID);
        error("config is null");
        let mut small = config(&port);
        assert_eq!(raceline_config_init(&raw mut small, 8), RACELINE_INVALID);
        error("build with the header");
        small.size = 8;
        assert_eq!(connect(&small).unwrap_err(), RACELINE_INVALID);
        assert_eq!(raceline_connect(&config(&port), null_mut()), RACELINE_INVALID);
        error("host is null");
        assert_eq!(raceline_disconnect(odd), RACELINE_INVALID);
        error("host is not aligned");
        assert_eq!(raceline_disconnect(queues.cast()), RACELINE_INVALID);
        error("host is no such handle");
        assert_eq!(raceline_queues_close(null_mut()), RACELINE_INVALID);
        assert_eq!(raceline_read(queues, NSID, 0, null_mut(), 512, 0, 0), RACELINE_INVALID);
        error("data is null");
        assert_eq!(raceline_read(queues, NSID, 0, memory, 511, 0, 0), RACELINE_INVALID);
        error("511 bytes are not one or more whole blocks of 512 bytes");
        assert_eq!(raceline_read(queues, NSID, 0, memory, usize::MAX, 0, 0), RACELINE_INVALID);
        assert_eq!(raceline_read(queues, 9, 0, memory, 512, 0, 0), RACELINE_INVALID);
        error("there is no namespace 9");
        assert_eq!(raceline_read(queues, NSID, 0, memory, 512, 64, 0), RACELINE_INVALID);
        error("flags 0x40");
        assert_eq!(raceline_deallocate(queues, NSID, null(), 1, 0, 0), RACELINE_INVALID);
        assert_eq!(raceline_poll(queues, null_mut(), 1), RACELINE_INVALID);
        let mut done = raceline_completion::default();
        assert_eq!(raceline_poll(queues, &raw mut done, 0), RACELINE_INVALID);
        assert_eq!(raceline_poll(queues, &raw mut done, 1), 0);
        assert_eq!(raceline_completion_text(null(), null_mut(), 0), RACELINE_INVALID);
        assert_eq!(raceline_namespace_info(host, 5, null_mut(), 1000), RACELINE_INVALID);
        error("has no namespace 5; it has: 1");
        assert_eq!(raceline_buffer_free(memory), RACELINE_INVALID);
        let buffer = raceline_buffer_alloc(5000);
        assert_eq!(buffer.addr() % 4096, 0);
        assert_eq!((raceline_buffer_free(buffer), raceline_buffer_free(buffer)), (0, -1));
        // A closed handle is told apart from then on.
        assert_eq!(raceline_queues_close(queues), RACELINE_OK);
        assert_eq!(raceline_queues_close(queues), RACELINE_CLOSED);
        error("queues was closed");
        assert_eq!(raceline_read(queues, NSID, 0, memory, 512, 0, 0), RACELINE_CLOSED);
        assert_eq!(raceline_disconnect(host), RACELINE_OK);
        assert_eq!(raceline_disconnect(host), RACELINE_CLOSED);
        let mut queues = null_mut();
        assert_eq!(raceline_queues_open(host, null(), &raw mut queues), RACELINE_CLOSED);
    }
    target.shutdown().unwrap();
}

#[test]
fn what_keeps_a_connection_from_being_made_is_said() {
    let (target, port) = serve();
    let refused = |change: &dyn Fn(&mut raceline_config)| {
        let mut config = config(&port);
        change(&mut config);
        connect(&config).unwrap_err()
    };
    assert_eq!(refused(&|config| config.traddr = null()), RACELINE_INVALID);
    error("traddr is null: where is the target?");
    assert_eq!(refused(&|config| config.nqn = c"".as_ptr()), RACELINE_INVALID);
    error("nqn \"\": a name has at least 1 byte");
    assert_eq!(refused(&|config| config.trsvcid = c"http".as_ptr()), RACELINE_INVALID);
    error("trsvcid \"http\" is no port");
    assert_eq!(refused(&|config| config.hostid = c"me".as_ptr()), RACELINE_INVALID);
    error("hostid \"me\" is no UUID");
    assert_eq!(refused(&|config| config.queue_size = 1), RACELINE_INVALID);
    assert_eq!(
        refused(&|config| config.nqn = c"nqn.2026-01.io.raceline:x".as_ptr()),
        RACELINE_REFUSED
    );
    error("(subsystem NQN)");
    let unknown = c"no-such-name.invalid";
    assert_eq!(refused(&|config| config.traddr = unknown.as_ptr()), RACELINE_CANNOT_CONNECT);
    error("cannot find the address");
    target.shutdown().unwrap();
    assert_eq!(connect(&config(&port)).unwrap_err(), RACELINE_CANNOT_CONNECT);
    error("nothing listens there");
}

#[test]
fn rdma_is_a_transport_as_tcp_is() {
    let refused = |trtype: &CStr, change: &dyn Fn(&mut raceline_config)| {
        let mut config = config(c"4420");
        config.trtype = trtype.as_ptr();
        change(&mut config);
        connect(&config).unwrap_err()
    };
    assert_eq!(refused(c"fc", &|_| {}), RACELINE_INVALID);
    error("trtype \"fc\" is no transport of this library: it has tcp and rdma");
    for flag in [RACELINE_HEADER_DIGEST, RACELINE_DATA_DIGEST] {
        assert_eq!(refused(c"RDMA", &|config| config.flags = flag), RACELINE_INVALID);
        error("RDMA has no digests: leave RACELINE_HEADER_DIGEST");
    }
    let paths = |paths: &'static CStr| {
        refused(c"tcp", &|config| {
            config.flags = RACELINE_DATA_DIGEST;
            config.paths = paths.as_ptr();
        })
    };
    assert_eq!(paths(c"tcp://127.0.0.1 rdma://127.0.0.1:77"), RACELINE_INVALID);
    error("have all paths over tcp");
    assert_eq!(paths(c"loop://127.0.0.1"), RACELINE_INVALID);
    error("paths: transport \"loop\" is no transport");
    // Either the libraries are not here, or no adapter has this address.
    assert_eq!(refused(c"RDMA", &|_| {}), RACELINE_CANNOT_CONNECT);
    // SAFETY: the library's own text, valid until the next failure.
    let text = unsafe { CStr::from_ptr(raceline_error_text()) }.to_str().unwrap();
    assert!(text.contains("cannot connect to 127.0.0.1:4420 over RDMA"), "{text}");
    let says = ["install Debian's packages libibverbs1, librdmacm1", "RDMA device"];
    assert!(says.iter().any(|words| text.contains(words)), "{text}");
    // TCP in capitals, as SPDK writes it.
    let (target, port) = serve();
    let mut config = config(&port);
    config.trtype = c"TCP".as_ptr();
    let host = connect(&config).unwrap();
    // SAFETY: a handle of this test.
    assert_eq!(unsafe { raceline_disconnect(host) }, RACELINE_OK);
    target.shutdown().unwrap();
}

#[test]
fn a_program_with_the_first_header_still_connects() {
    /// Bytes of the first raceline_config on 64-bit machines, which ended before `trtype`.
    const FIRST: usize = 104;
    const MARK: u8 = 0xa5;
    let (target, port) = serve();
    let mut memory = MaybeUninit::<raceline_config>::uninit();
    // SAFETY: room for a whole one, of which the library is told the first part.
    let code = unsafe {
        memory.as_mut_ptr().cast::<u8>().write_bytes(MARK, size_of::<raceline_config>());
        raceline_config_init(memory.as_mut_ptr(), FIRST)
    };
    assert_eq!(code, RACELINE_OK);
    // SAFETY: filled in just now; any bytes are one.
    let mut old = unsafe { memory.assume_init() };
    assert_eq!((old.size, old.trtype.addr()), (FIRST, usize::from_ne_bytes([MARK; 8])));
    old.traddr = c"127.0.0.1".as_ptr();
    old.trsvcid = port.as_ptr();
    old.nqn = NQN.as_ptr();
    let host = connect(&old).unwrap();
    // SAFETY: a handle of this test.
    assert_eq!(unsafe { raceline_disconnect(host) }, RACELINE_OK);
    old.size = FIRST - 1;
    assert_eq!(connect(&old).unwrap_err(), RACELINE_INVALID);
    error("config says that it has 103 bytes, of 104");
    target.shutdown().unwrap();
}

#[test]
fn two_threads_in_one_group_are_told() {
    let (target, port) = serve();
    let host = connect(&config(&port)).unwrap();
    let queues = open(host);
    let mut buffer = vec![0u8; BLOCK];
    // SAFETY: a handle of this test, and memory that lives until the completion has come.
    let code = unsafe { raceline_read(queues, NSID, 0, buffer.as_mut_ptr().cast(), BLOCK, 0, 1) };
    assert_eq!(code, RACELINE_OK);
    assert_eq!(wait(queues).result, RACELINE_OK);
    let address = queues.expose_provenance();
    let waiting = std::thread::spawn(move || {
        let queues = std::ptr::with_exposed_provenance_mut::<raceline_queues>(address);
        let mut busy = 0;
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let mut done = raceline_completion::default();
        while std::time::Instant::now() < end && busy == 0 {
            // SAFETY: the other thread closes the handle after this one has ended.
            let code = unsafe { raceline_poll(queues, &raw mut done, 1) };
            assert!(code == 0 || code == RACELINE_BUSY, "{code}");
            busy += i32::from(code == RACELINE_BUSY);
        }
        busy
    });
    let mut busy = 0;
    let mut done = raceline_completion::default();
    while !waiting.is_finished() {
        // SAFETY: as above.
        let code = unsafe { raceline_poll(queues, &raw mut done, 1) };
        assert!(code == 0 || code == RACELINE_BUSY, "{code}");
        busy += i32::from(code == RACELINE_BUSY);
    }
    assert!(busy + waiting.join().unwrap() > 0, "two threads were in one group");
    // SAFETY: handles of this test.
    unsafe {
        assert_eq!(raceline_queues_close(queues), RACELINE_OK);
        assert_eq!(raceline_disconnect(host), RACELINE_OK);
    }
    target.shutdown().unwrap();
}
