//! Answers, with the headers that each has.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

/// What is sent to a client.
pub(crate) type Answer = Response<Full<Bytes>>;

const TEXT: &str = "text/plain; charset=utf-8";
pub(crate) const JSON: &str = "application/json";

/// Nothing that is not a page may load anything.
const NO_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

/// An answer with a body.
pub(crate) fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CONTENT_SECURITY_POLICY, NO_POLICY),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// A sentence, with a line end.
pub(crate) fn text(status: StatusCode, text: &str) -> Answer {
    answer(status, TEXT, format!("{text}\n"))
}

/// The answer with one more header.
pub(crate) fn with(mut answer: Answer, name: HeaderName, value: &'static str) -> Answer {
    answer.headers_mut().insert(name, HeaderValue::from_static(value));
    answer
}
