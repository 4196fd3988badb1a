//! What a socket is told before its first packet.

use raceline_reactor::Outcome;
use raceline_reactor::socket::{ConnectOptions, ListenOptions};

use crate::bed::Bed;

pub(crate) fn a_connection_has_its_priority_from_the_start(mut bed: Bed) {
    let (token, accept) = (bed.token(), bed.token());
    let options = ListenOptions { priority: 3, ..ListenOptions::default() };
    let any = "127.0.0.1:0".parse().unwrap();
    let (listener, address) = bed.io.listen_with(any, options, accept).unwrap();
    bed.io.connect_with(
        address,
        ConnectOptions { priority: 6, ..ConnectOptions::default() },
        token,
    );
    let one = match bed.wait_for(token) {
        Outcome::Connected(result) => result.unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(one.priority().unwrap(), Some(6));
    assert_eq!(bed.accepted(accept).priority().unwrap(), Some(0));
    bed.io.close_listener(listener);
    let refused = ConnectOptions { priority: u32::MAX, ..ConnectOptions::default() };
    bed.io.connect_with(address, refused, token);
    match bed.wait_for(token) {
        Outcome::Connected(Err(error)) => {
            assert!(error.to_string().starts_with("socket priority 4294967295"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}
