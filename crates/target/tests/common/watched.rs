//! A device that tells a test of each request before it does it.

use std::sync::Arc;

use raceline_bdev::{Bdev, BdevInfo, Channel, Done, Op, Request, SharedBdev};
use raceline_reactor::{Completion, Context, Payload};

/// What is told of each request on its core; a payload that it gives is the end of the request.
type Watch = Arc<dyn Fn(&Op) -> Option<Payload> + Send + Sync>;

/// A device over another one.
struct Watched {
    inner: SharedBdev,
    info: BdevInfo,
    watch: Watch,
}

/// This device, with other facts, whose requests `watch` sees.
pub(crate) fn watched(
    inner: SharedBdev,
    info: BdevInfo,
    watch: impl Fn(&Op) -> Option<Payload> + Send + Sync + 'static,
) -> SharedBdev {
    Arc::new(Watched { inner, info, watch: Arc::new(watch) })
}

impl Bdev for Watched {
    fn info(&self) -> BdevInfo {
        self.info.clone()
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> std::io::Result<Box<dyn Channel>> {
        let inner = self.inner.open_channel(cx, owner)?;
        Ok(Box::new(WatchedChannel { inner, watch: Arc::clone(&self.watch) }))
    }
}

struct WatchedChannel {
    inner: Box<dyn Channel>,
    watch: Watch,
}

impl Channel for WatchedChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        match (self.watch)(&request.op) {
            Some(payload) => {
                done.push(Done { tag: request.tag, result: Ok(()), payload: Some(payload) });
            }
            None => self.inner.submit(cx, request, done),
        }
    }

    /// The devices below are memory, which is never waited for.
    fn handle_completion(&mut self, _: &mut Context<'_>, _: Completion, _: &mut Vec<Done>) {}

    fn close(&mut self, cx: &mut Context<'_>) {
        self.inner.close(cx);
    }
}
