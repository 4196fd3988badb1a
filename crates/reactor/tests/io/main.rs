//! What every back end of [`Io`] must do: one suite, run against each.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bed;
#[path = "../common/mod.rs"]
mod common;
mod departure;
#[path = "../common/encrypted.rs"]
mod encrypted;
mod files;
mod kept;
mod options;
mod ownership;
mod provided;
#[path = "../common/scramble.rs"]
mod scramble;
#[path = "../common/stack.rs"]
mod stack;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bed::Bed;
use common::{errno, open_descriptors, pattern, received, temporary_file};
use departure::{
    a_back_end_that_ends_amid_a_kept_send_is_bounded, a_close_keeps_what_the_kernel_still_reads,
    flagged_batches_arrive_whole, regions_leave_without_a_copy_and_are_kept_meanwhile,
    what_should_have_been_followed_leaves_soon,
};
use files::{
    file_errors, file_ranges_are_released_and_zeroed, file_reads_and_writes,
    files_close_after_their_operations, files_use_a_pool_that_was_lent,
    nvme_commands_go_piece_by_piece,
};
use kept::kept_payloads_arrive_and_come_back;
use options::a_connection_has_its_priority_from_the_start;
use ownership::a_socket_in_use_is_given_up_whole;
use provided::{
    a_closed_listener_takes_no_more, a_handshake_that_stalls_costs_nothing,
    a_peer_that_is_killed_ends_its_connection, a_peer_that_sends_single_bytes_is_understood,
    a_spinning_core_asks_whether_to_try, a_wrong_key_ends_both_ends,
    kinds_of_sockets_live_side_by_side, listeners_that_answer_by_themselves_stay_in_line,
    what_is_cut_off_does_not_end_well, what_was_sent_arrives_whole,
};
use raceline_reactor::flow::SocketClass;
use raceline_reactor::io::FileId;
use raceline_reactor::io::RecvBuffers;
use raceline_reactor::socket::BufferSizes;
use raceline_reactor::{
    EpollIo, HugePages, IoBuf, Outcome, Payload, Region, RegionHandle, SendBatch, Token, UringIo,
    Wait,
};

/// Runs tests against a bed that may be missing here.
macro_rules! conformance {
    ($name:ident, $bed:expr, $($test:ident),* $(,)?) => {
        mod $name {
            $(#[test] fn $test() { if let Some(bed) = $bed { super::$test(bed) } })*
        }
    };
}

/// Over every back end, with the kernel's sockets.
macro_rules! everywhere {
    ($($test:ident),* $(,)?) => {
        conformance!(uring, super::uring_bed(), $($test),*);
        conformance!(epoll, Some(super::epoll_bed()), $($test),*);
        conformance!(eager_epoll, Some(super::eager_bed()), $($test),*);
    };
}

/// The same with sockets of a provider that goes over the kernel's.
macro_rules! over_the_kernel {
    ($($test:ident),* $(,)?) => {
        conformance!(
            scrambled_uring, super::uring_bed().map(super::Bed::scrambled), $($test),*
        );
        conformance!(
            scrambled_epoll, Some(super::epoll_bed().scrambled()), $($test),*
        );
        conformance!(
            scrambled_eager_epoll, Some(super::eager_bed().scrambled()), $($test),*
        );
        conformance!(
            encrypted_uring, super::uring_bed().map(super::Bed::encrypted), $($test),*
        );
        conformance!(
            encrypted_epoll, Some(super::epoll_bed().encrypted()), $($test),*
        );
    };
}

/// With the kernel's sockets by way of the seam, and with a provider's that have nothing to wait for.
macro_rules! over_the_seam {
    ($($test:ident),* $(,)?) => {
        conformance!(handed_on_uring, super::uring_bed().map(super::Bed::handed_on), $($test),*);
        conformance!(handed_on_epoll, Some(super::epoll_bed().handed_on()), $($test),*);
        conformance!(polled_uring, super::uring_bed().map(super::Bed::polled), $($test),*);
        conformance!(polled_epoll, Some(super::epoll_bed().polled()), $($test),*);
    };
}

/// The same with those of a provider whose stack has no descriptors.
macro_rules! over_another_stack {
    ($($test:ident),* $(,)?) => {
        conformance!(stack_uring, super::uring_bed().map(super::Bed::stacked), $($test),*);
        conformance!(stack_epoll, Some(super::epoll_bed().stacked()), $($test),*);
        conformance!(stack_eager_epoll, Some(super::eager_bed().stacked()), $($test),*);
    };
}

everywhere!(
    echo_in_every_chunking,
    large_batches_through_small_buffers,
    receive_fills_payload_then_staging,
    sockets_share_the_staging_of_the_core,
    counts_are_exact,
    what_waits_to_be_received_is_known,
    end_of_stream_and_reset,
    close_returns_all_buffers,
    close_while_sending_returns_the_batch,
    kept_payloads_arrive_and_come_back,
    regions_leave_without_a_copy_and_are_kept_meanwhile,
    a_close_keeps_what_the_kernel_still_reads,
    a_back_end_that_ends_amid_a_kept_send_is_bounded,
    flagged_batches_arrive_whole,
    what_should_have_been_followed_leaves_soon,
    misuse_completes_with_an_error,
    connect_refused,
    connect_from_a_source_address,
    a_connection_has_its_priority_from_the_start,
    connect_timing_out_is_cut_off_by_dropping,
    accept_many,
    closed_listeners_refuse,
    ipv6,
    sockets_move_between_cores,
    a_socket_in_use_is_given_up_whole,
    quiet_sockets_are_heard_when_they_speak,
    timers_in_order,
    file_reads_and_writes,
    files_use_a_pool_that_was_lent,
    file_ranges_are_released_and_zeroed,
    file_errors,
    nvme_commands_go_piece_by_piece,
    files_close_after_their_operations,
    woken_from_another_thread,
    waiting_costs_no_processor_time,
    churn_leaks_no_descriptors,
    more_operations_than_the_ring_holds,
    dropped_with_operations_in_flight,
);

over_the_kernel!(
    echo_in_every_chunking,
    large_batches_through_small_buffers,
    receive_fills_payload_then_staging,
    sockets_share_the_staging_of_the_core,
    counts_are_exact,
    what_waits_to_be_received_is_known,
    end_of_stream_and_reset,
    close_returns_all_buffers,
    close_while_sending_returns_the_batch,
    kept_payloads_arrive_and_come_back,
    misuse_completes_with_an_error,
    connect_refused,
    connect_from_a_source_address,
    connect_timing_out_is_cut_off_by_dropping,
    accept_many,
    closed_listeners_refuse,
    ipv6,
    sockets_move_between_cores,
    a_socket_in_use_is_given_up_whole,
    quiet_sockets_are_heard_when_they_speak,
    waiting_costs_no_processor_time,
    churn_leaks_no_descriptors,
    dropped_with_operations_in_flight,
);

over_the_seam!(
    echo_in_every_chunking,
    large_batches_through_small_buffers,
    receive_fills_payload_then_staging,
    counts_are_exact,
    what_waits_to_be_received_is_known,
    end_of_stream_and_reset,
    close_returns_all_buffers,
    close_while_sending_returns_the_batch,
    kept_payloads_arrive_and_come_back,
    quiet_sockets_are_heard_when_they_speak,
    churn_leaks_no_descriptors,
    dropped_with_operations_in_flight,
);

over_another_stack!(
    echo_in_every_chunking,
    large_batches_through_small_buffers,
    receive_fills_payload_then_staging,
    sockets_share_the_staging_of_the_core,
    counts_are_exact,
    what_waits_to_be_received_is_known,
    end_of_stream_and_reset,
    close_returns_all_buffers,
    close_while_sending_returns_the_batch,
    kept_payloads_arrive_and_come_back,
    misuse_completes_with_an_error,
    connect_refused,
    ipv6,
    quiet_sockets_are_heard_when_they_speak,
    churn_leaks_no_descriptors,
    dropped_with_operations_in_flight,
);

conformance!(
    provided_uring,
    super::uring_bed(),
    a_peer_that_sends_single_bytes_is_understood,
    a_peer_that_is_killed_ends_its_connection,
    a_wrong_key_ends_both_ends,
    a_handshake_that_stalls_costs_nothing,
    what_is_cut_off_does_not_end_well,
    what_was_sent_arrives_whole,
    kinds_of_sockets_live_side_by_side,
    a_closed_listener_takes_no_more,
    a_spinning_core_asks_whether_to_try,
    listeners_that_answer_by_themselves_stay_in_line,
);
conformance!(
    provided_epoll,
    Some(super::epoll_bed()),
    a_peer_that_sends_single_bytes_is_understood,
    a_peer_that_is_killed_ends_its_connection,
    a_wrong_key_ends_both_ends,
    a_handshake_that_stalls_costs_nothing,
    what_is_cut_off_does_not_end_well,
    what_was_sent_arrives_whole,
    kinds_of_sockets_live_side_by_side,
    a_closed_listener_takes_no_more,
    a_spinning_core_asks_whether_to_try,
);

fn uring_bed() -> Option<Bed> {
    match UringIo::new() {
        Ok(io) => Some(Bed::new(Box::new(io)).of_ring()),
        Err(error) => {
            eprintln!("SKIPPED: io_uring cannot be used here: {error}");
            None
        }
    }
}

fn epoll_bed() -> Bed {
    Bed::new(Box::new(EpollIo::new().unwrap()))
}

fn eager_bed() -> Bed {
    Bed::new(Box::new(EpollIo::eager().unwrap()))
}

fn echo_in_every_chunking(mut bed: Bed) {
    let (one, two) = bed.pair();
    let message = pattern(300, 1);
    for payload in [0, 1, 7, 100, 299, 300] {
        for staging in [1, 50, 300] {
            bed.send_bytes(one, &message);
            let mut bytes = Vec::new();
            while bytes.len() < message.len() {
                bytes.extend(bed.recv(two, payload, staging).unwrap());
            }
            assert_eq!(bytes, message, "payload {payload} staging {staging}");
            bed.send_bytes(two, &bytes);
            assert_eq!(bed.recv_exactly(one, message.len()), message);
        }
    }
}

fn large_batches_through_small_buffers(mut bed: Bed) {
    const TOTAL: usize = 8 << 20;
    let (one, two) = bed.raw_pair();
    let small = BufferSizes { send: Some(16 << 10), receive: Some(16 << 10) };
    one.set_buffer_sizes(small).unwrap();
    two.set_buffer_sizes(small).unwrap();
    let (one, two) = (bed.io.adopt(one).unwrap(), bed.io.adopt(two).unwrap());

    let region = Arc::new(Region::new(TOTAL, HugePages::Transparent).unwrap());
    region.copy_in(0, &pattern(TOTAL, 2));
    let handle = RegionHandle::new(region);
    let shared = IoBuf::from_slice(&pattern(50_000, 3)).share();
    let available = bed.pool.available_total();
    let mut batch = SendBatch::new(64 << 10, 4096);
    let mut expected = Vec::new();
    let mut offset = 0;
    let mut number = 0u32;
    // Thousands of segments of all kinds, more than one system call takes.
    while expected.len() < TOTAL - (128 << 10) {
        let header = number.to_be_bytes();
        expected.extend(header);
        batch.push_bytes(&header);
        let len = 1 + usize::try_from(number).unwrap() * 37 % 9000;
        let payload = match number % 8 {
            0 if bed.pool.available(0) > 10 => {
                let mut buf = bed.pool.take(100).unwrap();
                buf.copy_from_slice(&pattern(100, number));
                Payload::Buf(buf, 10..100)
            }
            1 => Payload::Shared(shared.clone(), len..2 * len),
            2 => Payload::Zeroes(len * 4),
            _ => {
                let start = offset;
                offset += len as u64;
                Payload::Region(handle.clone(), start..offset)
            }
        };
        let mut copy = vec![0; payload.len()];
        payload.copy_to(&mut copy);
        expected.extend(copy);
        assert!(batch.has_room(0, 1));
        batch.push_payload(payload);
        number += 1;
    }
    assert!(number > 1024);
    assert_eq!(batch.len(), expected.len());
    let send = bed.start_send(one, batch);
    let bytes = bed.recv_exactly(two, expected.len());
    assert!(bytes == expected, "content differs");
    let (result, mut batch) = bed.sent(send);
    result.unwrap();
    assert!(batch.is_empty());
    batch.clear();
    assert_eq!(bed.pool.available_total(), available);
}

fn receive_fills_payload_then_staging(mut bed: Bed) {
    let (one, two) = bed.pair();
    let message = pattern(150, 4);
    bed.send_bytes(one, &message);
    let token = bed.start_recv(two, 100, 200);
    let (result, buffers) = bed.recv_result(token);
    assert_eq!(result.unwrap(), 150);
    let (payload, range) = buffers.payload.unwrap();
    assert_eq!((&payload[..5], &payload[range]), (&[0; 5][..], &message[..100]));
    assert_eq!(buffers.staging_range, 3..203);
    assert_eq!((&buffers.staging[..3], &buffers.staging[3..53]), (&[0; 3][..], &message[100..]));
    assert!(buffers.staging[53..].iter().all(|&byte| byte == 0));
}

/// Sockets take turns with the core's staging memory, give it back or close with it; with and without
/// a wait, whose receives use their own.
fn sockets_share_the_staging_of_the_core(mut bed: Bed) {
    const OWN: usize = 3000;
    const CORE: usize = 20_000;
    for turn in 0..40u8 {
        let pairs: Vec<_> = (0..3).map(|_| bed.pair()).collect();
        let mut receives = Vec::new();
        for &(_, socket) in &pairs {
            bed.io.declare(socket, SocketClass { core_staging: CORE, ..SocketClass::ADMIN });
            let token = bed.token();
            let staging = IoBuf::heap(OWN);
            bed.io.recv(
                socket,
                RecvBuffers { payload: None, staging, staging_range: 0..OWN },
                token,
            );
            receives.push((socket, token, Vec::new()));
        }
        let expected: Vec<Vec<u8>> = (0..3u8)
            .map(|at| (0..50_000u32).map(|i| (i % 251) as u8 ^ at ^ turn).collect())
            .collect();
        for (&(sender, _), bytes) in pairs.iter().zip(&expected) {
            bed.send_bytes(sender, bytes);
        }
        for (at, (socket, token, bytes)) in receives.iter_mut().enumerate() {
            while bytes.len() < expected[at].len() {
                // A spinning core and one that sleeps.
                let outcome = loop {
                    if let Some(outcome) = bed.take(*token) {
                        break outcome;
                    }
                    bed.poll(if turn % 2 == 0 { Wait::No } else { Wait::Yes });
                };
                let Outcome::Received(Ok(count), mut buffers) = outcome else {
                    panic!("{outcome:?}")
                };
                assert!(count > 0 && count <= CORE, "{count}");
                assert_eq!(buffers.staging_range.start, 0);
                bytes.extend_from_slice(&buffers.staging[..count]);
                buffers.staging_range = 0..buffers.staging.len();
                *token = bed.token();
                if turn % 3 > 0 || bytes.len() < expected[at].len() / 2 {
                    bed.io.recv(*socket, buffers, *token);
                } else {
                    break;
                }
            }
            assert!(expected[at].starts_with(bytes), "turn {turn}, socket {at}");
        }
        for (one, two) in pairs {
            bed.io.close(one, true);
            bed.io.close(two, false);
        }
    }
}

fn what_waits_to_be_received_is_known(mut bed: Bed) {
    let (one, two) = bed.pair();
    assert_eq!(bed.io.unread(two), 0);
    bed.send_bytes(one, &pattern(1000, 3));
    while bed.io.unread(two) < 1000 {
        bed.poll(Wait::No);
    }
    assert_eq!(bed.io.unread(two), 1000);
    assert_eq!(bed.recv(two, 0, 400).unwrap().len(), 400);
    assert_eq!(bed.io.unread(two), 600);
    assert_eq!(bed.io.unread(one), 0);
}

fn counts_are_exact(mut bed: Bed) {
    let (one, two) = bed.pair();
    let before = bed.io.counts();
    for message in 1..=3 {
        bed.send_bytes(one, &pattern(100 * message, 4));
        assert_eq!(bed.recv(two, 50, 500).unwrap().len(), 100 * message);
    }
    let counts = bed.io.counts();
    assert_eq!(counts.sends - before.sends, 3);
    assert_eq!(counts.receives - before.receives, 3);
    assert_eq!(counts.sent_bytes - before.sent_bytes, 600);
    assert_eq!(counts.received_bytes - before.received_bytes, 600);
    assert!(counts.system_calls > before.system_calls);

    // The end of a stream brings no bytes.
    bed.io.close(one, false);
    assert_eq!(bed.recv(two, 0, 10).unwrap().len(), 0);
    assert_eq!(bed.io.counts().receives, counts.receives);
}

fn end_of_stream_and_reset(mut bed: Bed) {
    let (one, two) = bed.pair();
    bed.send_bytes(one, b"last words");
    bed.io.close(one, false);
    assert_eq!(bed.recv(two, 0, 4).unwrap(), b"last");
    assert_eq!(bed.recv(two, 3, 100).unwrap(), b" words");
    assert_eq!(bed.recv(two, 3, 100).unwrap(), b"");
    assert_eq!(bed.recv(two, 0, 100).unwrap(), b"");
    bed.io.close(two, false);

    let (one, two) = bed.pair();
    let waiting = bed.start_recv(two, 0, 10);
    bed.poll(Wait::No);
    bed.io.close(one, true);
    assert_eq!(errno(&bed.recv_result(waiting).0.unwrap_err()), libc::ECONNRESET);
    let mut batch = SendBatch::new(10, 1);
    batch.push_bytes(b"to nobody");
    let send = bed.start_send(two, batch);
    assert_eq!(errno(&bed.sent(send).0.unwrap_err()), libc::EPIPE);
    bed.io.close(two, false);
}

fn close_returns_all_buffers(mut bed: Bed) {
    let available = bed.pool.available_total();
    for polls in 0..3 {
        let (one, two) = bed.pair();
        let recv = bed.start_recv(one, 100, 100);
        for _ in 0..polls {
            bed.poll(Wait::No);
        }
        bed.io.close(one, false);
        let (result, _) = bed.recv_result(recv);
        assert_eq!(errno(&result.unwrap_err()), libc::ECANCELED);
        assert_eq!(bed.recv(two, 0, 1).unwrap(), b"");
        bed.io.close(two, false);
        bed.done.clear();
        assert_eq!(bed.pool.available_total(), available);
    }
    // Bytes that have come before the close are not lost, whichever wins.
    for _ in 0..50 {
        let (one, two) = bed.pair();
        let recv = bed.start_recv(one, 0, 100);
        bed.poll(Wait::No);
        bed.send_bytes(two, b"x");
        bed.io.close(one, false);
        match bed.recv_result(recv) {
            (Ok(count), buffers) => assert_eq!(received(&buffers, count), b"x"),
            (Err(error), _) => assert_eq!(errno(&error), libc::ECANCELED),
        }
        bed.io.close(two, false);
    }
    assert_eq!(bed.pool.available_total(), available);
}

fn close_while_sending_returns_the_batch(mut bed: Bed) {
    let available = bed.pool.available_total();
    let (one, two) = bed.pair();
    let mut batch = SendBatch::new(0, 64);
    let buf = bed.pool.take(65536).unwrap().share();
    batch.push_payload(Payload::Zeroes(64 << 20));
    batch.push_payload(Payload::Shared(buf, 0..65536));
    let send = bed.start_send(one, batch);
    for _ in 0..5 {
        bed.poll(Wait::No);
    }
    bed.io.close(one, true);
    let (result, batch) = bed.sent(send);
    assert!(result.is_err());
    drop(batch);
    assert_eq!(bed.pool.available_total(), available);
    // Reset: the peer must not take the rest for a whole stream.
    let end = loop {
        match bed.recv(two, 0, 60_000) {
            Ok(bytes) if !bytes.is_empty() => {}
            end => break end,
        }
    };
    assert_eq!(errno(&end.unwrap_err()), libc::ECONNRESET);
}

fn misuse_completes_with_an_error(mut bed: Bed) {
    let (one, _two) = bed.pair();
    let first = bed.start_recv(one, 0, 10);
    let second = bed.start_recv(one, 0, 10);
    assert!(bed.done.is_empty(), "never delivered from inside the call");
    assert!(bed.recv_result(second).0.is_err());
    bed.io.close(one, false);
    assert!(bed.recv_result(first).0.is_err());
    let late = bed.start_recv(one, 0, 10);
    assert!(bed.recv_result(late).0.is_err());
    let late = bed.start_send(one, SendBatch::new(1, 1));
    assert!(bed.sent(late).0.is_err());
    bed.io.close(one, false);
    assert!(bed.read_file(FileId(77), 10, 0).is_err());
    assert!(bed.write_file(FileId(77), b"x", 0, false).is_err());
}

fn connect_refused(mut bed: Bed) {
    let (listener, address, _) = bed.listen("127.0.0.1:0");
    bed.io.close_listener(listener);
    bed.poll(Wait::No);
    assert_eq!(errno(&bed.connect(address).unwrap_err()), libc::ECONNREFUSED);
}

/// The kernel would take 127.0.0.1, and ::1.
fn connect_from_a_source_address(mut bed: Bed) {
    let source: std::net::IpAddr = "127.0.0.5".parse().unwrap();
    let (listener, address, accept) = bed.listen("0.0.0.0:0");
    let address = SocketAddr::new("127.0.0.1".parse().unwrap(), address.port());
    for _ in 0..3 {
        let one = bed.connect_from(address, Some(source)).unwrap();
        assert_eq!(one.local_address().ip(), source);
        assert_eq!(bed.accepted(accept).peer_address(), one.local_address());
    }
    // An address that this machine does not have (RFC 5737), and one of the other family.
    for (source, text) in [
        ("192.0.2.1", "cannot use the source address 192.0.2.1: this machine does not have it"),
        ("::1", "cannot use the source address ::1: it is of another family than 127.0.0.1"),
    ] {
        let error = bed.connect_from(address, Some(source.parse().unwrap())).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    bed.io.close_listener(listener);
    let (listener, address, accept) = bed.listen("[::1]:0");
    let one = bed.connect_from(address, Some("::1".parse().unwrap())).unwrap();
    assert_eq!(bed.accepted(accept).peer_address(), one.local_address());
    bed.io.close_listener(listener);
}

fn connect_timing_out_is_cut_off_by_dropping(mut bed: Bed) {
    // Addresses for documentation (RFC 5737): no answer, or refused by the system at once.
    let token = bed.token();
    bed.io.connect("192.0.2.1:9".parse().unwrap(), None, token);
    bed.poll(Wait::No);
    let start = Instant::now();
    drop(bed);
    assert!(start.elapsed() < Duration::from_secs(5));
}

fn accept_many(mut bed: Bed) {
    let (listener, address, accept) = bed.listen("127.0.0.1:0");
    let mut pairs = Vec::new();
    let tokens: Vec<Token> = (0..200)
        .map(|_| {
            let token = bed.token();
            bed.io.connect(address, None, token);
            token
        })
        .collect();
    for token in tokens {
        let Outcome::Connected(Ok(socket)) = bed.wait_for(token) else { panic!("connect") };
        pairs.push((socket.local_address(), socket));
    }
    let mut peers: Vec<SocketAddr> =
        (0..200).map(|_| bed.accepted(accept).peer_address()).collect();
    let mut expected: Vec<SocketAddr> = pairs.iter().map(|(address, _)| *address).collect();
    peers.sort();
    expected.sort();
    assert_eq!(peers, expected);
    bed.io.close_listener(listener);
}

fn closed_listeners_refuse(mut bed: Bed) {
    let (listener, address, accept) = bed.listen("127.0.0.1:0");
    bed.poll(Wait::No);
    drop(std::net::TcpStream::connect(address).unwrap());
    bed.accepted(accept);
    bed.io.close_listener(listener);
    assert!(std::net::TcpStream::connect(address).is_err());
    // The same address can be listened on again at once.
    let token = bed.token();
    for _ in 0..10 {
        bed.poll(Wait::No);
    }
    let (listener, again) = bed.io.listen(address, token).unwrap();
    assert_eq!(again, address);
    drop(bed.connect(address).unwrap());
    bed.accepted(token);
    assert!(bed.io.listen(address, accept).is_err(), "in use");
    bed.io.close_listener(listener);
    assert!(bed.take(accept).is_none());
}

fn ipv6(mut bed: Bed) {
    let (_, address, accept) = bed.listen("[::1]:0");
    let one = bed.connect(address).unwrap();
    let two = bed.accepted(accept);
    assert!(one.local_address().is_ipv6() && two.peer_address() == one.local_address());
    let (one, two) = (bed.io.adopt(one).unwrap(), bed.io.adopt(two).unwrap());
    bed.send_bytes(one, b"six");
    assert_eq!(bed.recv_exactly(two, 3), b"six");
}

/// A spinning core tries sockets one way and hears of quiet ones another; whichever way one waits
/// when its data come, they are received, also once the core has gone to sleep.
fn quiet_sockets_are_heard_when_they_speak(mut bed: Bed) {
    const SOCKETS: usize = 40;
    let pairs: Vec<_> = (0..SOCKETS).map(|_| bed.pair()).collect();
    let mut waiting: Vec<_> = pairs.iter().map(|pair| bed.start_recv(pair.1, 0, 16)).collect();
    for round in 0..6 * SOCKETS {
        // From none to more turns than any socket is tried for.
        (0..round % 60).for_each(|_| bed.poll(Wait::No));
        let speaker = round * 7 % SOCKETS;
        let text = [u8::try_from(round % 256).unwrap(); 4];
        let token = bed.token();
        let mut batch = SendBatch::new(16, 1);
        batch.push_bytes(&text);
        bed.io.send(pairs[speaker].0, batch, token);
        assert!(bed.sent(token).0.is_ok());
        let (result, buffers) = bed.recv_result(waiting[speaker]);
        assert_eq!(received(&buffers, result.unwrap()), text, "round {round}");
        waiting[speaker] = bed.start_recv(pairs[speaker].1, 0, 16);
    }
}

fn sockets_move_between_cores(mut bed: Bed) {
    let (one, two) = bed.raw_pair();
    let thread = std::thread::spawn(move || {
        let mut bed = Bed::new(Box::new(EpollIo::new().unwrap()));
        let two = bed.io.adopt(two).unwrap();
        let bytes = bed.recv_exactly(two, 5);
        bed.send_bytes(two, &bytes);
    });
    let one = bed.io.adopt(one).unwrap();
    bed.send_bytes(one, b"there");
    assert_eq!(bed.recv_exactly(one, 5), b"there");
    assert_eq!(bed.recv(one, 0, 1).unwrap(), b"");
    thread.join().unwrap();
}

fn timers_in_order(mut bed: Bed) {
    let start = Instant::now();
    let tokens: Vec<Token> = (0..4).map(|_| bed.token()).collect();
    for (index, ms) in [(2, 20), (0, 0), (3, 20), (1, 5)] {
        bed.io.timer(start + Duration::from_millis(ms), tokens[index]);
    }
    let mut order = Vec::new();
    while order.len() < 4 {
        bed.poll(Wait::Yes);
        for done in bed.done.drain(..) {
            assert!(matches!(done.outcome, Outcome::Timer));
            order.push(done.token);
        }
        assert!(order.len() < 3 || start.elapsed() >= Duration::from_millis(20), "early");
        assert!(bed.io.now() <= Instant::now());
    }
    assert_eq!(order, tokens);
    assert!(start.elapsed() < Duration::from_secs(10));
}

fn woken_from_another_thread(mut bed: Bed) {
    for round in 0..200u64 {
        let waker = bed.io.waker();
        let thread = std::thread::spawn(move || {
            if round % 4 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            waker.wake();
        });
        // Without a wake-up this waits for the watchdog.
        bed.poll(Wait::Yes);
        thread.join().unwrap();
        assert!(bed.done.is_empty());
    }
}

fn waiting_costs_no_processor_time(mut bed: Bed) {
    let (one, _two) = bed.pair();
    bed.start_recv(one, 0, 100);
    let token = bed.token();
    let start = cpu_time();
    bed.io.timer(Instant::now() + Duration::from_millis(300), token);
    let mut polls = 0;
    while bed.take(token).is_none() {
        bed.poll(Wait::Yes);
        polls += 1;
    }
    let used = cpu_time() - start;
    assert!(used < Duration::from_millis(30), "{used:?} of processor time");
    assert!(polls < 10);
}

pub(crate) fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

fn churn_leaks_no_descriptors(mut bed: Bed) {
    let (listener, address, accept) = bed.listen("127.0.0.1:0");
    let available = bed.pool.available_total();
    let mut base = 0;
    for round in 0..1000 {
        let one = bed.connect(address).unwrap();
        let two = bed.accepted(accept);
        let (one, two) = (bed.io.adopt(one).unwrap(), bed.io.adopt(two).unwrap());
        let recv = bed.start_recv(two, 10, 10);
        bed.send_bytes(one, b"hi");
        assert_eq!(bed.recv_result(recv).0.unwrap(), 2);
        let waiting = bed.start_recv(two, 10, 10);
        bed.io.close(two, round % 2 == 0);
        bed.io.close(one, round % 3 == 0);
        // The end of the stream and the close race.
        let (result, _) = bed.recv_result(waiting);
        assert!(matches!(result, Ok(0) | Err(_)), "{result:?}");
        if round == 100 {
            base = open_descriptors();
        }
    }
    bed.poll(Wait::No);
    assert!(bed.done.is_empty());
    assert_eq!(bed.pool.available_total(), available);
    // Other tests of this process come and go with a few descriptors each.
    let now = open_descriptors();
    assert!(now < base + 500, "{base} descriptors became {now}");
    bed.io.close_listener(listener);
}

fn more_operations_than_the_ring_holds(mut bed: Bed) {
    let file = bed.io.register_file(temporary_file());
    bed.write_file(file, &pattern(65536, 6), 0, false).unwrap();
    let shared = IoBuf::from_slice(&pattern(512, 7)).share();
    let count = 10_000;
    let tokens: Vec<Token> = (0..count)
        .map(|_| {
            let token = bed.token();
            bed.io.write(file, shared.clone(), 65536, false, token);
            token
        })
        .collect();
    let mut finished = std::collections::HashSet::new();
    while finished.len() < count {
        bed.poll(Wait::Yes);
        for done in bed.done.drain(..) {
            assert!(matches!(done.outcome, Outcome::Written(Ok(()), _)), "{:?}", done.outcome);
            assert!(finished.insert(done.token), "completed twice");
        }
    }
    assert!(tokens.iter().all(|token| finished.contains(token)));
    assert!(shared.try_unique().is_ok());
}

fn dropped_with_operations_in_flight(mut bed: Bed) {
    let pool = bed.pool.clone();
    let available = pool.available_total();
    let (one, two) = bed.pair();
    bed.listen("127.0.0.1:0");
    let file = bed.io.register_file(temporary_file());
    bed.start_recv(one, 100, 100);
    bed.start_recv(two, 0, 100);
    let token = bed.token();
    bed.io.write(file, pool.take(4096).unwrap().share(), 0, true, token);
    let mut batch = SendBatch::new(0, 4);
    batch.push_payload(Payload::Zeroes(256 << 20));
    batch.push_payload(Payload::Buf(pool.take(4096).unwrap(), 0..4096));
    bed.start_send(one, batch);
    bed.poll(Wait::No);
    let token = bed.token();
    bed.io.sync(file, token);
    drop(bed);
    assert_eq!(pool.available_total(), available);
}
