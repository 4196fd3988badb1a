//! Calls by POST: one value of JSON-RPC in, its answer out, as SPDK's rpc_http_proxy.py has it.

use hyper::StatusCode;
use raceline_control::codec::{Bounds, SplitError, Splitter};
use raceline_control::manager::Manager;
use raceline_control::method::Registry;
use raceline_control::request::{self, Dispatcher};
use raceline_control::role::{Peer, Role};

use crate::answer::{Answer, JSON, answer};

/// The largest body: the largest request, and a line end.
pub(crate) const MAX_BODY_BYTES: usize = Bounds::REQUEST.bytes + 2;

/// Executes the value of a body, for a client that may go away meanwhile. It may block.
pub(crate) fn call(
    manager: &Manager,
    registry: &Registry,
    role: Role,
    body: &[u8],
    is_gone: &dyn Fn() -> bool,
) -> Answer {
    match one_value(body) {
        Ok(value) => {
            let dispatcher = Dispatcher { registry, manager, peer: Peer::by_http(role) };
            match dispatcher.answer_while(&value, is_gone) {
                Some(text) => answer(StatusCode::OK, JSON, text),
                None => answer(StatusCode::NO_CONTENT, JSON, ""),
            }
        }
        // JSON-RPC has its own errors; HTTP only carries them.
        Err(error) => answer(StatusCode::OK, JSON, request::broken_stream(error)),
    }
}

/// The one value that a body holds.
fn one_value(body: &[u8]) -> Result<Vec<u8>, SplitError> {
    let mut splitter = Splitter::new(Bounds::REQUEST);
    splitter.push(body);
    // The end of a number shows in what follows.
    splitter.push(b"\n");
    let ends_early = SplitError::Syntax { offset: body.len() };
    let value = splitter.next_value()?.ok_or(ends_early)?;
    match splitter.is_inside() {
        false => Ok(value),
        true => Err(SplitError::Syntax { offset: value.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_holds_one_value() {
        assert_eq!(one_value(b" {\"a\":[1]} \r\n").unwrap(), b"{\"a\":[1]}");
        assert_eq!(one_value(b"[1,2]").unwrap(), b"[1,2]");
        assert_eq!(one_value(b"12").unwrap(), b"12");
        for (broken, offset) in [(&b""[..], 0), (b"{\"a\":1", 6), (b"{} {}", 2), (b"{x}", 1)] {
            assert_eq!(one_value(broken), Err(SplitError::Syntax { offset }), "{broken:?}");
        }
    }
}
