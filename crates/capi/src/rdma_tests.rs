//! The interface for C over RDMA, on a simulated network: what a caller's configuration asks for, and data that go there and
//! back.

#![allow(unsafe_code, reason = "it is an interface for C")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../host/tests/common/served_rdma.rs"]
mod served;

use std::ptr::{null, null_mut};

use ::raceline_host::{CallerHost, HostConfig, Transport};

use crate::config::raceline_config;
use crate::handle::Shared;
use crate::host::{raceline_disconnect, raceline_host};
use crate::queues::{
    raceline_completion, raceline_queues, raceline_queues_close, raceline_queues_open,
    raceline_read, raceline_wait, raceline_write,
};
use crate::status::RACELINE_OK;
use served::{BLOCK, NS};

/// What the library makes of a configuration with this transport and these further paths.
fn parsed(trtype: &std::ffi::CStr, paths: &std::ffi::CStr, port: &std::ffi::CStr) -> HostConfig {
    let config = raceline_config {
        traddr: c"127.0.0.1".as_ptr(),
        trsvcid: port.as_ptr(),
        nqn: c"nqn.2026-01.io.raceline:served".as_ptr(),
        trtype: trtype.as_ptr(),
        paths: if paths.is_empty() { null() } else { paths.as_ptr() },
        ..raceline_config::default()
    };
    // SAFETY: the texts end with a 0 byte.
    unsafe { config.parse() }.unwrap()
}

#[test]
fn each_path_has_its_transport() {
    let transports = |trtype, paths| {
        let config = parsed(trtype, paths, c"4420");
        let more: Vec<_> = config.more_paths.iter().map(|path| path.transport).collect();
        (config.transport, more)
    };
    use Transport::{Rdma, Tcp};
    assert_eq!(transports(c"tcp", c""), (Tcp, vec![]));
    assert_eq!(transports(c"RDMA", c"127.0.0.2"), (Rdma, vec![Rdma]));
    let paths = c"tcp://127.0.0.2:77,127.0.0.3 RDMA://[::1] ::2";
    assert_eq!(transports(c"rdma", paths), (Rdma, vec![Tcp, Rdma, Rdma]));
    assert_eq!(transports(c"Tcp", paths), (Tcp, vec![Tcp, Rdma, Tcp]));
    assert_eq!(parsed(c"rdma", paths, c"4420").more_paths[1].address.to_string(), "[::1]:4420");
}

#[test]
fn data_go_there_and_back_over_rdma() {
    let (target, address) = served::serve(served::any_port());
    let port = std::ffi::CString::new(address.port().to_string()).unwrap();
    // As raceline_connect(), with devices of the simulated network.
    let rdma_devices = served::config(address).rdma_devices;
    let config = HostConfig { rdma_devices, ..parsed(c"rdma", c"", &port) };
    let host: *mut raceline_host = Shared::open(CallerHost::connect(config).unwrap()).cast();
    let mut queues: *mut raceline_queues = null_mut();
    // SAFETY: handles of this test; memory that lives until the completion has come.
    unsafe {
        assert_eq!(raceline_queues_open(host, null(), &raw mut queues), RACELINE_OK);
        let wait = |user| {
            let mut done = raceline_completion::default();
            assert_eq!(raceline_wait(queues, &raw mut done, 1, 1, 20_000_000_000), 1);
            assert_eq!((done.user, done.result), (user, RACELINE_OK));
        };
        // In a capsule, and by a key; at an odd address.
        for (user, blocks) in [(1u64, 1usize), (3, 512)] {
            let bytes = blocks * BLOCK;
            let data: Vec<u8> = (0..=bytes).map(|index| (index / 5).to_le_bytes()[0]).collect();
            let out = data.as_ptr().add(1).cast();
            assert_eq!(raceline_write(queues, NS.0, 8, out, bytes, 0, user), RACELINE_OK);
            wait(user);
            let mut back = vec![0u8; bytes + 3];
            let to = back.as_mut_ptr().add(3).cast();
            assert_eq!(raceline_read(queues, NS.0, 8, to, bytes, 0, user + 1), RACELINE_OK);
            wait(user + 1);
            assert!(back[3..] == data[1..], "{blocks} blocks came back changed");
        }
        assert_eq!(raceline_queues_close(queues), RACELINE_OK);
        assert_eq!(raceline_disconnect(host), RACELINE_OK);
    }
    target.shutdown().unwrap();
}
