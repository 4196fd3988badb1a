//! Sockets in use that one core gives up and another one adopts.

use raceline_reactor::{EpollIo, Outcome};

use crate::bed::Bed;

pub(crate) fn a_socket_in_use_is_given_up_whole(mut bed: Bed) {
    let (one, two) = bed.raw_pair();
    let ends = (two.local_address(), two.peer_address());
    let (one, two) = (bed.io.adopt(one).unwrap(), bed.io.adopt(two).unwrap());
    bed.send_bytes(one, b"first");
    assert_eq!(bed.recv_exactly(two, 5), b"first");
    // Not while something is in flight.
    let token = bed.start_recv(two, 0, 100);
    assert!(bed.io.release(two, ends).is_none());
    bed.send_bytes(one, b"second");
    let (result, _) = bed.recv_result(token);
    assert_eq!(result.unwrap(), 6);
    // What comes when nobody receives waits for the next core.
    bed.send_bytes(one, b"third");
    let released = bed.io.release(two, ends).unwrap();
    assert_eq!((released.local_address(), released.peer_address()), ends);
    assert!(bed.io.release(two, ends).is_none(), "it is gone");
    let token = bed.start_recv(two, 0, 100);
    assert!(
        matches!(bed.wait_for(token), Outcome::Received(Err(_), _)),
        "its old name names nothing"
    );
    bed.io.close(two, false);
    let thread = std::thread::spawn(move || {
        let mut bed = Bed::new(Box::new(EpollIo::new().unwrap()));
        let two = bed.io.adopt(released).unwrap();
        let bytes = bed.recv_exactly(two, 5);
        bed.send_bytes(two, &bytes);
        let released = bed.io.release(two, ends).unwrap();
        drop(bed);
        released
    });
    assert_eq!(bed.recv_exactly(one, 5), b"third");
    // And back, many times.
    let mut released = thread.join().unwrap();
    for turn in 0..40_u8 {
        let two = bed.io.adopt(released).unwrap();
        bed.send_bytes(one, &[turn; 9]);
        assert_eq!(bed.recv_exactly(two, 9), [turn; 9]);
        bed.send_bytes(two, &[turn; 3]);
        assert_eq!(bed.recv_exactly(one, 3), [turn; 3]);
        released = bed.io.release(two, ends).unwrap();
    }
    // Dropped between two cores, it ends.
    drop(released);
    assert!(bed.recv(one, 0, 1).map_or(true, |bytes| bytes.is_empty()));
}
