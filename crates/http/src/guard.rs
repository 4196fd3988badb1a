//! Who may do what: the Host and Origin of a request, and its token.
//!
//! A browser sends what a page of another site asks for, to any address that the page's name leads to (DNS rebinding).
//! So a request has to be for an address, `localhost` or a name that the operator has given, and its Origin has to be
//! the same place.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{StatusCode, Uri, Version};
use raceline_control::role::Role;
use tokio::sync::Semaphore;

use crate::answer::{Answer, text, with};
use crate::attempts::Attempts;
use crate::token::Token;

/// How long the answer to a wrong token takes, so that those who guess from many addresses are slow as well.
const WRONG_TOKEN_DELAY: Duration = Duration::from_millis(500);
/// Wrong tokens that are answered at a time; further ones are told to wait, so that those who guess hold few places.
const WRONG_TOKENS_AT_ONCE: usize = 4;

/// What a client may do; `None` in its place: only ask for health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) role: Option<Role>,
}

/// The rules of a server.
pub(crate) struct Guard {
    token: Option<Token>,
    read_token: Option<Token>,
    names: Vec<String>,
    slowed: Semaphore,
    attempts: Mutex<Attempts>,
}

/// What the header Authorization holds.
enum Credentials {
    None,
    Bearer(Vec<u8>),
    /// The password; any user name will do.
    Basic(Vec<u8>),
    Unreadable,
}

impl Guard {
    pub(crate) fn new(token: Option<Token>, read_token: Option<Token>, names: Vec<String>) -> Self {
        let slowed = Semaphore::new(WRONG_TOKENS_AT_ONCE);
        Self { token, read_token, names, slowed, attempts: Mutex::default() }
    }

    /// Checks where a request is for, and where it comes from.
    pub(crate) fn check_place(
        &self,
        version: Version,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), (StatusCode, &'static str)> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().unwrap_or_default(),
            // No browser sends this.
            (None, None) if version < Version::HTTP_11 && uri.host().is_none() => return Ok(()),
            _ => return Err((StatusCode::BAD_REQUEST, "A request needs one Host header.")),
        };
        let absolute = uri.authority().map(hyper::http::uri::Authority::as_str);
        if !self.is_own(host) || absolute.is_some_and(|authority| !self.is_own(authority)) {
            return Err((
                StatusCode::MISDIRECTED_REQUEST,
                "The Host of this request is not a name of this server: use its address, or start raceline serve with \
                 --http-name NAME.",
            ));
        }
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let is_same = |origin: &str| {
            let place = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            place.is_some_and(|place| place.eq_ignore_ascii_case(host))
        };
        if !origins.all(|origin| origin.to_str().is_ok_and(is_same)) {
            return Err((StatusCode::FORBIDDEN, "Pages of other sites may not use this server."));
        }
        Ok(())
    }

    /// Whether a Host is an address or a known name, with any port.
    fn is_own(&self, host: &str) -> bool {
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        if let Some(rest) = host.strip_prefix('[') {
            let Some((address, port)) = rest.split_once(']') else { return false };
            let port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
            return port && matches!(address.parse(), Ok(IpAddr::V6(_)));
        }
        let name = match host.rsplit_once(':') {
            Some((name, port)) if is_port(port) => name,
            Some(_) => return false,
            None => host,
        };
        matches!(name.parse(), Ok(IpAddr::V4(_)))
            || name.eq_ignore_ascii_case("localhost")
            || self.names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// What a client may do by its token. On loopback, a client without one may look.
    pub(crate) async fn check_token(
        &self,
        headers: &HeaderMap,
        peer: IpAddr,
        is_loopback: bool,
    ) -> Result<Caller, Answer> {
        let presented = match credentials(headers) {
            Credentials::None => {
                return Ok(Caller { role: is_loopback.then_some(Role::ReadOnly) });
            }
            Credentials::Bearer(token) | Credentials::Basic(token) => token,
            Credentials::Unreadable => {
                return Err(text(
                    StatusCode::BAD_REQUEST,
                    "The Authorization header is neither Bearer TOKEN nor Basic with a user and a password.",
                ));
            }
        };
        // Both are compared, so that the time tells nothing.
        let is = |token: &Option<Token>| token.as_ref().is_some_and(|token| token.is(&presented));
        let (may_change, may_read) = (is(&self.token), is(&self.read_token));
        match (may_change, may_read) {
            (true, _) => Ok(Caller { role: Some(Role::Admin) }),
            (false, true) => Ok(Caller { role: Some(Role::ReadOnly) }),
            (false, false) => {
                let wait = self.attempts(|attempts| {
                    let now = Instant::now();
                    let wait = attempts.wait(peer, now);
                    if wait.is_none() {
                        attempts.note(peer, now);
                    }
                    wait
                });
                let refused = self.slow_down(headers).await;
                Err(wait.map_or(refused, too_many))
            }
        }
    }

    fn attempts<T>(&self, f: impl FnOnce(&mut Attempts) -> T) -> T {
        f(&mut self.attempts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn slow_down(&self, headers: &HeaderMap) -> Answer {
        let Ok(_one_of_few) = self.slowed.try_acquire() else {
            let wait = text(StatusCode::TOO_MANY_REQUESTS, "Too many wrong tokens: wait a second.");
            return with(wait, header::RETRY_AFTER, "1");
        };
        tokio::time::sleep(WRONG_TOKEN_DELAY).await;
        unauthorized(headers, "The token is wrong.")
    }
}

/// Says that a token is needed. A browser asks its user for a password only if Basic is offered.
pub(crate) fn unauthorized(headers: &HeaderMap, sentence: &str) -> Answer {
    let refused = text(StatusCode::UNAUTHORIZED, sentence);
    let challenge = match credentials(headers) {
        Credentials::Bearer(_) => "Bearer",
        _ => "Basic realm=\"raceline\", charset=\"UTF-8\"",
    };
    with(refused, header::WWW_AUTHENTICATE, challenge)
}

/// Tells a client to wait for that long, in whole seconds.
fn too_many(wait: Duration) -> Answer {
    let seconds = (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1);
    let sentence =
        format!("Too many wrong tokens have come from this address: try again in {seconds} s.");
    let mut answer = text(StatusCode::TOO_MANY_REQUESTS, &sentence);
    answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    answer
}

fn credentials(headers: &HeaderMap) -> Credentials {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let value = match (all.next(), all.next()) {
        (None, _) => return Credentials::None,
        (Some(value), None) => value.as_bytes(),
        _ => return Credentials::Unreadable,
    };
    let Some(space) = value.iter().position(|byte| *byte == b' ') else {
        return Credentials::Unreadable;
    };
    let (scheme, rest) = value.split_at(space);
    let rest = rest.trim_ascii();
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Credentials::Bearer(rest.to_vec());
    }
    let decoded = STANDARD.decode(rest).ok().filter(|_| scheme.eq_ignore_ascii_case(b"basic"));
    let Some(decoded) = decoded else { return Credentials::Unreadable };
    match decoded.iter().position(|byte| *byte == b':') {
        Some(colon) => Credentials::Basic(decoded[colon + 1..].to_vec()),
        None => Credentials::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(hosts: &[&str], origin: Option<&str>, uri: &str) -> StatusCode {
        let guard = Guard::new(None, None, vec!["Store1.example".to_owned()]);
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, host.parse().unwrap());
        }
        if let Some(origin) = origin {
            headers.append(header::ORIGIN, origin.parse().unwrap());
        }
        let checked = guard.check_place(Version::HTTP_11, &uri.parse().unwrap(), &headers);
        checked.map_or_else(|(status, _)| status, |()| StatusCode::OK)
    }

    #[test]
    fn addresses_and_known_names_are_own() {
        for host in
            ["127.0.0.1", "10.0.0.7:9009", "[::1]:80", "[fe80::1]", "localhost:1", "STORE1.example"]
        {
            assert_eq!(place(&[host], None, "/"), 200, "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:9009",
            "127.0.0.1.evil.example",
            "::1",
            "[::1",
            "[::1]x",
            "",
            "a:b",
            "[127.0.0.1]",
            "localhost:80:80",
            "0x7f.1",
        ] {
            assert_eq!(place(&[host], None, "/"), 421, "{host}");
        }
        assert_eq!(place(&[], None, "/"), 400);
        assert_eq!(place(&["localhost", "localhost"], None, "/"), 400);
        assert_eq!(place(&["localhost"], None, "http://evil.example/"), 421);
        assert_eq!(place(&["localhost"], None, "http://localhost/"), 200);
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        for (origin, expected) in [
            ("http://127.0.0.1:9009", 200),
            ("https://127.0.0.1:9009", 200),
            ("http://127.0.0.1:9010", 403),
            ("http://evil.example", 403),
            ("null", 403),
            ("", 403),
        ] {
            assert_eq!(place(&["127.0.0.1:9009"], Some(origin), "/rpc"), expected, "{origin}");
        }
    }

    #[test]
    fn credentials_are_read_or_refused() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            values.iter().for_each(|value| {
                headers.append(header::AUTHORIZATION, value.parse().unwrap());
            });
            match credentials(&headers) {
                Credentials::None => "none".to_owned(),
                Credentials::Bearer(token) => {
                    format!("bearer {}", String::from_utf8(token).unwrap())
                }
                Credentials::Basic(token) => format!("basic {}", String::from_utf8(token).unwrap()),
                Credentials::Unreadable => "unreadable".to_owned(),
            }
        };
        assert_eq!(read(&[]), "none");
        assert_eq!(read(&["Bearer abc"]), "bearer abc");
        assert_eq!(read(&["bearer  abc "]), "bearer abc");
        // user:pass:word
        assert_eq!(read(&["Basic dXNlcjpwYXNzOndvcmQ="]), "basic pass:word");
        for wrong in ["Bearer", "Basic", "Basic !", "Basic dXNlcg==", "Digest abc", ""] {
            assert_eq!(read(&[wrong]), "unreadable", "{wrong}");
        }
        assert_eq!(read(&["Bearer a", "Bearer b"]), "unreadable");
    }
}
