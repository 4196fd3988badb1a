//! One connection: bounded headers, bodies and times; and the way from a request to its route.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body as _, Incoming};
use hyper::header;
use hyper::http::request;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use raceline_control::role::Role;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep};

use crate::answer::{Answer, answer, text, with};
use crate::guard::unauthorized;
use crate::metrics::text::{Form, Names};
use crate::places::Place;
use crate::server::Shared;
use crate::{Page, Parts, health, metrics, rpc};

/// The largest head of a request.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// The most headers.
const MAX_HEADERS: usize = 64;
/// How long a client that is refused may take to read why.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(100);

/// Sent when all places are taken.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 22\r\nContent-Type: text/plain\r\n\
    Retry-After: 1\r\nConnection: close\r\n\r\nToo many connections.\n";

/// Serves a client until it goes away or breaks a rule.
pub(crate) async fn serve(
    stream: TcpStream,
    shared: &Arc<Shared>,
    place: &Arc<Place>,
    parts: Parts,
    local: SocketAddr,
) {
    // A client that is gone already needs no answer.
    let Ok(peer) = stream.peer_addr() else { return };
    let ends = Ends { peer: peer.ip(), is_loopback: local.ip().to_canonical().is_loopback() };
    // Answers are whole: nothing is gained by waiting for more.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let shared = Arc::clone(shared);
        async move {
            let answering = Answering::new(&shared, place);
            let answered = respond(&shared, parts, ends, request, &answering.is_over).await;
            let answered = answered.unwrap_or_else(|refused| refused);
            shared.counts.answered(answered.status());
            Ok::<_, Infallible>(answered)
        }
    });
    let stream = Impatient::new(stream, shared.patience, Arc::clone(place));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.patience)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!("HTTP connection ended: {error}");
    }
}

/// Tells a client that all places are taken.
pub(crate) async fn refuse(mut stream: TcpStream) {
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, stream.write_all(TOO_MANY)).await;
}

/// The two ends of a connection, as far as rights depend on them.
#[derive(Clone, Copy)]
struct Ends {
    peer: IpAddr,
    /// The server listens for this machine alone.
    is_loopback: bool,
}

/// What a request is for.
enum Route<'a> {
    Alive,
    Ready,
    Rpc,
    Metrics,
    Page(&'a Page),
}

impl Route<'_> {
    /// The methods that it answers, as the header Allow has them.
    fn allows(&self) -> &'static str {
        match self {
            Self::Rpc => "POST",
            _ => "GET, HEAD",
        }
    }

    fn takes(&self, method: &Method) -> bool {
        match self {
            Self::Rpc => method == Method::POST,
            _ => method == Method::GET || method == Method::HEAD,
        }
    }

    fn needs_role(&self) -> bool {
        !matches!(self, Self::Alive | Self::Ready)
    }
}

/// The route of a path. `/` is a page for those who read, and where SPDK's clients post.
fn route<'a>(shared: &'a Shared, parts: Parts, method: &Method, path: &str) -> Option<Route<'a>> {
    match path {
        "/healthz" => return Some(Route::Alive),
        "/readyz" => return Some(Route::Ready),
        "/metrics" if parts.metrics => return Some(Route::Metrics),
        "/rpc" if parts.rpc => return Some(Route::Rpc),
        "/" if parts.rpc && (method == Method::POST || !parts.page) => return Some(Route::Rpc),
        _ => {}
    }
    let page = shared.pages.iter().find(|page| parts.page && page.path == path);
    page.map(Route::Page)
}

/// The paths of [`route`], for people; pages have links themselves.
fn paths(parts: Parts) -> String {
    let all = [
        (parts.page, "/"),
        (parts.rpc, "/rpc (POST)"),
        (parts.metrics, "/metrics"),
        (true, "/healthz"),
        (true, "/readyz"),
    ];
    let served: Vec<&str> =
        all.into_iter().filter(|(is_served, _)| *is_served).map(|(_, path)| path).collect();
    served.join(", ")
}

/// A request that is being answered. It is dropped with its answer, or earlier when the client goes away.
struct Answering<'a> {
    shared: &'a Shared,
    place: &'a Place,
    /// Whether nobody waits for the answer any more.
    is_over: Arc<AtomicBool>,
}

impl<'a> Answering<'a> {
    fn new(shared: &'a Shared, place: &'a Place) -> Self {
        shared.answering.fetch_add(1, Ordering::Relaxed);
        place.set_answering(true);
        Self { shared, place, is_over: Arc::default() }
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.place.set_answering(false);
        self.shared.answering.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answer to a request, or why there is none.
async fn respond(
    shared: &Arc<Shared>,
    parts: Parts,
    ends: Ends,
    request: Request<Incoming>,
    is_over: &Arc<AtomicBool>,
) -> Result<Answer, Answer> {
    let (head, body) = request.into_parts();
    let guard = &shared.guard;
    let place = guard.check_place(head.version, &head.uri, &head.headers);
    place.map_err(|(status, why)| text(status, why))?;
    let caller = guard.check_token(&head.headers, ends.peer, ends.is_loopback).await;
    let caller = caller.inspect_err(|_| shared.counts.wrong_tokens.add_one())?;
    let route = route(shared, parts, &head.method, head.uri.path());
    let role = match &route {
        Some(route) if !route.needs_role() => Role::ReadOnly,
        _ => caller.role.ok_or_else(|| {
            unauthorized(&head.headers, "This needs a token: see --http-token of raceline serve.")
        })?,
    };
    let Some(route) = route else {
        let paths = paths(parts);
        let answer =
            format!("There is nothing at this path here. These paths are served: {paths}.");
        return Err(text(StatusCode::NOT_FOUND, &answer));
    };
    if !route.takes(&head.method) {
        let refused = text(StatusCode::METHOD_NOT_ALLOWED, "This path has no such method.");
        return Err(with(refused, header::ALLOW, route.allows()));
    }
    match route {
        Route::Alive => Ok(health::alive(&shared.manager)),
        Route::Ready => Ok(health::ready(&shared.manager)),
        Route::Page(page) => Ok(with(
            answer(StatusCode::OK, page.content_type, page.body),
            header::CONTENT_SECURITY_POLICY,
            page.policy,
        )),
        Route::Metrics => metrics(shared, &head).await,
        Route::Rpc => {
            let body = read(body, shared.patience).await?;
            let (shared, is_over) = (Arc::clone(shared), Arc::clone(is_over));
            let is_gone = move || is_over.load(Ordering::Relaxed);
            let calling = Arc::clone(&shared.calling);
            let call = move || rpc::call(&shared.manager, &shared.registry, role, &body, &is_gone);
            blocking(&calling, call).await
        }
    }
}

/// Answers a scraper.
async fn metrics(shared: &Arc<Shared>, head: &request::Parts) -> Result<Answer, Answer> {
    let accept = head.headers.get_all(header::ACCEPT).iter();
    let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
    let form = Form::preferred(&accept.join(","));
    let names = Names::of_query(head.uri.query().unwrap_or_default()).ok_or_else(|| {
        let sentence = "The one option of /metrics is ?names=ceph-nvmeof.";
        text(StatusCode::BAD_REQUEST, sentence)
    })?;
    let one_at_a_time = Arc::clone(&shared.scraping).acquire_owned().await;
    let shared = Arc::clone(shared);
    blocking(&Arc::clone(&shared.calling), move || {
        // A scrape of a client that is gone is one, too.
        let _one_at_a_time = one_at_a_time;
        let began = Instant::now();
        let text = metrics::write(&shared.manager, &shared.counts, form, names);
        let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        shared.counts.scrape_ns.set(took);
        answer(StatusCode::OK, form.content_type(), text)
    })
    .await
}

/// Reads the body of a request.
async fn read(body: Incoming, patience: Duration) -> Result<Vec<u8>, Answer> {
    let too_large = || {
        let sentence = format!("A request has at most {} bytes.", rpc::MAX_BODY_BYTES);
        // What is left of the body is not read.
        with(text(StatusCode::PAYLOAD_TOO_LARGE, &sentence), header::CONNECTION, "close")
    };
    if body.size_hint().lower() > rpc::MAX_BODY_BYTES as u64 {
        return Err(too_large());
    }
    let all = Limited::new(body, rpc::MAX_BODY_BYTES).collect();
    match tokio::time::timeout(patience, all).await {
        Ok(Ok(body)) => Ok(body.to_bytes().to_vec()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(text(StatusCode::BAD_REQUEST, "The body of the request is broken.")),
        Err(_) => {
            let slow = text(StatusCode::REQUEST_TIMEOUT, "The body of the request has not come.");
            Err(with(slow, header::CONNECTION, "close"))
        }
    }
}

/// Runs what may block, once there is a place for it, which it has until it ends. Where its client goes away, so that this
/// future is dropped, work that has begun goes on: without a place of its own, any amount of it could gather. A panic ends
/// its request, not the server.
async fn blocking(
    places: &Arc<Semaphore>,
    work: impl FnOnce() -> Answer + Send + 'static,
) -> Result<Answer, Answer> {
    // It is never closed.
    let place = Arc::clone(places).acquire_owned().await;
    let work = move || {
        let _place = place;
        work()
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| {
        let sentence = "The request has failed inside: see the log.";
        text(StatusCode::INTERNAL_SERVER_ERROR, sentence)
    })
}

/// A stream that fails when its peer takes nothing for too long.
struct Impatient {
    stream: TcpStream,
    patience: Duration,
    place: Arc<Place>,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn new(stream: TcpStream, patience: Duration, place: Arc<Place>) -> Self {
        Self { stream, patience, place, stalled: None }
    }

    /// Passes on the outcome of a write, and watches the time while there is none.
    fn watch<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            if self.stalled.take().is_some() {
                self.place.set_sending(false);
            }
            return written;
        }
        self.place.set_sending(true);
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(patience)));
        stalled.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, buffer);
        self.watch(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.watch(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Polls once.
    async fn begin(work: &mut (impl Future<Output = Result<Answer, Answer>> + Unpin)) {
        let begun = tokio::time::timeout(Duration::ZERO, work).await;
        assert!(begun.is_err(), "it is done already");
    }

    #[test]
    fn work_for_clients_that_are_gone_does_not_gather() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let places = Arc::new(Semaphore::new(1));
            let (end, ended) = mpsc::channel::<()>();
            let begun = Arc::new(AtomicBool::new(false));
            let mut first = Box::pin(blocking(&places, move || {
                ended.recv().unwrap();
                text(StatusCode::OK, "first")
            }));
            begin(&mut first).await;
            // Its client goes.
            drop(first);
            for _ in 0..100 {
                let begun = Arc::clone(&begun);
                let mut more = Box::pin(blocking(&places, move || {
                    begun.store(true, Ordering::Relaxed);
                    text(StatusCode::OK, "more")
                }));
                begin(&mut more).await;
            }
            end.send(()).unwrap();
            let last = blocking(&places, || text(StatusCode::OK, "last")).await;
            assert_eq!(last.unwrap().status(), StatusCode::OK);
            assert!(!begun.load(Ordering::Relaxed), "work without a place was kept");
            assert_eq!(places.available_permits(), 1);
        });
    }
}
