//! Payloads whose memory the kernel may read after their batch has come back.

use raceline_reactor::flow::{Departure, SocketClass};
use raceline_reactor::{SendBatch, Wait};

use crate::bed::Bed;
use crate::common::pattern;

pub(crate) fn kept_payloads_arrive_and_come_back(mut bed: Bed) {
    const LEN: usize = 65_536;
    let available = bed.pool.available_total();
    let mut buf = bed.pool.take(LEN).unwrap();
    let data = pattern(LEN, 7);
    buf.copy_from_slice(&data);
    let buf = buf.share();
    let batch_of = |count| {
        let mut batch = SendBatch::new(count, 2 * count);
        for _ in 0..count {
            batch.push_bytes(b"h");
            batch.push_kept(buf.clone(), 0..LEN);
        }
        batch
    };
    let class = SocketClass { departure: Departure::ByReference, ..SocketClass::ADMIN };
    let (one, two) = bed.pair();
    bed.io.declare(one, class);
    let send = bed.start_send(one, batch_of(3));
    for _ in 0..3 {
        let came = bed.recv_exactly(two, 1 + LEN);
        assert!(came[0] == b'h' && came[1..] == data);
    }
    let (result, batch) = bed.sent(send);
    result.unwrap();
    drop(batch);
    // The answer acknowledges it, so the end is an orderly one.
    bed.send_bytes(two, b"answer");
    assert_eq!(bed.recv_exactly(one, 6), b"answer");
    bed.io.close(one, false);
    assert!(bed.recv(two, 0, 10).unwrap().is_empty());

    // Closed amid a send that the peer does not take, with a receive under way.
    let (one, two) = bed.pair();
    bed.io.declare(one, class);
    let send = bed.start_send(one, batch_of(1000));
    let receive = bed.start_recv(one, 0, 10);
    for _ in 0..5 {
        bed.poll(Wait::No);
    }
    bed.io.close(one, false);
    assert!(bed.recv_result(receive).0.is_err());
    let (result, batch) = bed.sent(send);
    assert!(result.is_err());
    drop(batch);
    drop(buf);
    assert_eq!(bed.pool.available_total(), available);
    let mut came = 0;
    while let Ok(bytes) = bed.recv(two, 0, 60_000)
        && !bytes.is_empty()
    {
        came += bytes.len();
    }
    assert!(came < 1000 * LEN);
}
