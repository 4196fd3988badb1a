//! JSON-RPC 2.0 over one value: a request or a batch in, the text of the answer out.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::codec::SplitError;
use crate::error::{RpcError, code};
use crate::manager::Manager;
use crate::method::{Access, Registry};
use crate::role::Peer;

/// Executes requests of clients.
pub struct Dispatcher<'a> {
    /// The methods.
    pub registry: &'a Registry,
    /// The manager on which they work.
    pub manager: &'a Manager,
    /// The client.
    pub peer: Peer,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow)]
    method: &'a RawValue,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
}

/// Keeps `null` as a value, instead of treating it as absent.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

#[derive(Serialize)]
struct Response<'a> {
    jsonrpc: &'static str,
    id: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RpcError>,
}

impl Dispatcher<'_> {
    /// Answers one value, with a line end; `None` when it asks for no answer. All its changes are durable
    /// when this returns.
    #[must_use]
    pub fn answer(&self, value: &[u8]) -> Option<String> {
        let Ok(text) = std::str::from_utf8(value) else {
            return Some(line(None, &refusal(code::PARSE_ERROR, "Parse error")) + "\n");
        };
        let text = text.trim();
        let is_batch = text.starts_with('[');
        let mut answers = if is_batch {
            match serde_json::from_str::<Vec<&RawValue>>(text) {
                Ok(parts) if !parts.is_empty() => {
                    parts.into_iter().map(|part| self.execute(part.get())).collect()
                }
                _ => return Some(line(None, &invalid_request()) + "\n"),
            }
        } else {
            vec![self.execute(text)]
        };
        self.make_durable(&mut answers);
        let lines: Vec<String> = answers
            .iter()
            // As in SPDK, a result without an id is not answered, but a failure is.
            .filter(|answer| answer.result.is_err() || answer.id.is_some())
            .map(|answer| line(answer.id, &answer.result))
            .collect();
        match (is_batch, lines.is_empty()) {
            (_, true) => None,
            (false, false) => Some(lines.concat() + "\n"),
            (true, false) => Some(format!("[{}]\n", lines.join(","))),
        }
    }

    fn execute<'a>(&self, text: &'a str) -> Answer<'a> {
        let Request { id, params, method, .. } = match parse(text) {
            Ok(request) => request,
            Err(id) => return Answer { id, changes: false, result: invalid_request() },
        };
        let Ok(name) = serde_json::from_str::<Cow<'_, str>>(method.get()) else {
            return Answer { id: None, changes: false, result: invalid_request() };
        };
        let method = self.registry.get(&name);
        let changes = method.is_some_and(|method| method.access == Access::Change);
        let result = self.registry.call(self.manager, self.peer, &name, params);
        Answer { id, changes, result }
    }

    /// Waits once for all changes of a batch, together with changes of other connections.
    fn make_durable(&self, answers: &mut [Answer<'_>]) {
        if !answers.iter().any(|answer| answer.changes && answer.result.is_ok()) {
            return;
        }
        if let Err(error) = self.manager.wait_durable() {
            for answer in answers.iter_mut().filter(|answer| answer.changes) {
                answer.result = Err(RpcError::errno(libc::EIO)
                    .because(format!("the change is made, but a restart may lose it: {error}")));
            }
        }
    }
}

struct Answer<'a> {
    id: Option<&'a RawValue>,
    /// Whether the method changes something.
    changes: bool,
    result: Result<Value, RpcError>,
}

/// The answer to a stream that cannot be read any further, with a line end.
#[must_use]
pub fn broken_stream(error: SplitError) -> String {
    let refused = RpcError::new(code::PARSE_ERROR, "Parse error").because(error);
    line(None, &Err(refused)) + "\n"
}

/// An answer that belongs to no request, with a line end.
#[must_use]
pub fn refused(error: &RpcError) -> String {
    line(None, &Err(error.clone())) + "\n"
}

/// The rules of a request beyond JSON's grammar. As in SPDK, an answer names the request's id only if the
/// id is valid.
fn parse(text: &str) -> Result<Request<'_>, Option<&RawValue>> {
    if !text.starts_with('{') {
        return Err(None);
    }
    let request: Request<'_> = serde_json::from_str(text).map_err(|_| None)?;
    let version = request.jsonrpc.is_none_or(|version| {
        serde_json::from_str::<Cow<'_, str>>(version.get()).is_ok_and(|text| text == "2.0")
    });
    let id = request.id.is_none_or(|id| {
        id.get().starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit())
    });
    if !version || !id || !request.method.get().starts_with('"') {
        return Err(None);
    }
    let params = request.params.is_none_or(|params| params.get().starts_with(['{', '[']));
    if params { Ok(request) } else { Err(request.id) }
}

fn refusal(code: i32, message: &'static str) -> Result<Value, RpcError> {
    Err(RpcError::new(code, message))
}

fn invalid_request() -> Result<Value, RpcError> {
    refusal(code::INVALID_REQUEST, "Invalid request")
}

fn line(id: Option<&RawValue>, result: &Result<Value, RpcError>) -> String {
    let response =
        Response { jsonrpc: "2.0", id, result: result.as_ref().ok(), error: result.as_ref().err() };
    // Values and numbers that were parsed can always be written.
    serde_json::to_string(&response).unwrap_or_else(|_| {
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Internal error"}}"#.into()
    })
}
