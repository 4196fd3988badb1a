//! JSON-RPC 2.0 over one value: a request or a batch in, the text of the answer out.

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::allowance::{Allowance, MOST_ANSWER_BYTES, MOST_CALLS};
use crate::codec::SplitError;
use crate::error::{RpcError, code};
use crate::manager::Manager;
use crate::manager::journal::JournalError;
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
        self.answer_while(value, &|| false)
    }

    /// The same for a client that may go away meanwhile. Its changes are made all the same, but what only reads is for
    /// nobody then, and is not done. No call waits for long once the client is gone.
    #[must_use]
    pub fn answer_while(&self, value: &[u8], is_gone: &dyn Fn() -> bool) -> Option<String> {
        let Ok(text) = std::str::from_utf8(value) else {
            return Some(refused(&RpcError::new(code::PARSE_ERROR, "Parse error")));
        };
        let text = text.trim();
        let is_batch = text.starts_with('[');
        let calls = match is_batch {
            true => match calls_of(text) {
                Ok(calls) => calls,
                Err(error) => return Some(refused(&error)),
            },
            false => vec![text],
        };
        let (allowance, mut answers) = (Allowance::new(is_gone), Answers::new(is_batch));
        for call in calls {
            let (id, (changes, result)) = match (parse(call), answers.has_room()) {
                (Err(id), _) => (id, (false, Err(invalid_request()))),
                (Ok(call), Err(full)) => (call.id, (false, Err(full))),
                (Ok(call), Ok(())) => (call.id, self.execute(&call, &allowance)),
            };
            answers.add(id, changes, &result);
        }
        if answers.have_changes()
            && let Err(error) = self.manager.wait_durable()
        {
            answers = answers.not_durable(&error);
        }
        answers.text()
    }

    /// Makes a call. Gives whether its method changes something, and the result.
    fn execute(
        &self,
        request: &Request<'_>,
        allowance: &Allowance<'_>,
    ) -> (bool, Result<Value, RpcError>) {
        let Request { params, method, .. } = request;
        let Ok(name) = serde_json::from_str::<Cow<'_, str>>(method.get()) else {
            return (false, Err(invalid_request()));
        };
        let method = self.registry.get(&name);
        let changes = method.is_some_and(|method| method.access == Access::Change);
        if !changes && allowance.is_gone() {
            return (false, Err(RpcError::internal("The client is gone")));
        }
        (changes, self.registry.call_within(allowance, self.manager, self.peer, &name, *params))
    }
}

/// The calls of a batch.
fn calls_of(text: &str) -> Result<Vec<&str>, RpcError> {
    let calls: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| invalid_request())?;
    match calls.len() {
        0 => Err(invalid_request()),
        1..=MOST_CALLS => Ok(calls.into_iter().map(RawValue::get).collect()),
        count => Err(invalid_request().because(format!(
            "the batch has {count} calls, and one batch may have {MOST_CALLS}: none was made; send \
             several batches"
        ))),
    }
}

/// The answers to the calls of a request, as text: they are written as they come, so that no large values are kept.
struct Answers<'a> {
    is_batch: bool,
    text: String,
    calls: Vec<Answered<'a>>,
}

/// A call that was answered.
struct Answered<'a> {
    id: Option<&'a RawValue>,
    /// Whether it has changed something.
    has_changed: bool,
    /// Where its answer is; empty if it asks for none.
    text: Range<usize>,
}

impl<'a> Answers<'a> {
    fn new(is_batch: bool) -> Self {
        Self { is_batch, text: String::new(), calls: Vec::new() }
    }

    /// Whether a further call may be made.
    fn has_room(&self) -> Result<(), RpcError> {
        let bytes = self.text.len();
        if bytes < MOST_ANSWER_BYTES {
            return Ok(());
        }
        Err(RpcError::internal("Answer too large").because(format!(
            "the calls of this batch before this one are answered with {bytes} bytes, and after \
             {MOST_ANSWER_BYTES} no further call of a batch is made: send this one anew, in a smaller batch"
        )))
    }

    fn add(&mut self, id: Option<&'a RawValue>, changes: bool, result: &Result<Value, RpcError>) {
        // As in SPDK, a result without an id is not answered, but a failure is.
        let is_answered = result.is_err() || id.is_some();
        let text = if is_answered { line(id, result) } else { String::new() };
        self.add_text(id, changes && result.is_ok(), &text);
    }

    fn add_text(&mut self, id: Option<&'a RawValue>, has_changed: bool, text: &str) {
        if self.is_batch && !text.is_empty() {
            self.text.push(if self.text.is_empty() { '[' } else { ',' });
        }
        let from = self.text.len();
        self.text.push_str(text);
        self.calls.push(Answered { id, has_changed, text: from..self.text.len() });
    }

    fn have_changes(&self) -> bool {
        self.calls.iter().any(|call| call.has_changed)
    }

    /// The same, when what was changed is not kept.
    fn not_durable(self, error: &JournalError) -> Self {
        let text = format!("the change is made, but a restart may lose it: {error}");
        let failed = Err(RpcError::errno(libc::EIO).because(text));
        let mut again = Self::new(self.is_batch);
        for Answered { id, has_changed, text } in self.calls {
            match has_changed {
                true => again.add(id, true, &failed),
                false => again.add_text(id, false, &self.text[text]),
            }
        }
        again
    }

    /// The whole answer with a line end, if one was asked for.
    fn text(self) -> Option<String> {
        let mut text = self.text;
        if text.is_empty() {
            return None;
        }
        text.push_str(if self.is_batch { "]\n" } else { "\n" });
        Some(text)
    }
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

fn invalid_request() -> RpcError {
    RpcError::new(code::INVALID_REQUEST, "Invalid request")
}

fn line(id: Option<&RawValue>, result: &Result<Value, RpcError>) -> String {
    let response =
        Response { jsonrpc: "2.0", id, result: result.as_ref().ok(), error: result.as_ref().err() };
    // Values and numbers that were parsed can always be written.
    serde_json::to_string(&response).unwrap_or_else(|_| {
        r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"Internal error"}}"#.into()
    })
}
