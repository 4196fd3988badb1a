//! A device that counts what is to be durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use raceline_bdev::{Bdev, BdevInfo, Channel, DeviceSpec, Done, Identity, Op, Request, SharedBdev};
use raceline_reactor::{Completion, Context};

/// The device.
pub(crate) struct Spy {
    base: SharedBdev,
    /// Writes that were to be on stable media before they completed.
    pub(crate) durable: Arc<AtomicUsize>,
}

impl Spy {
    pub(crate) fn new(device: &str) -> Self {
        let spec: DeviceSpec = device.parse().unwrap();
        let base = raceline_bdev::open(&spec, &Identity::from_seed(b"spy")).unwrap();
        Self { base, durable: Arc::default() }
    }
}

struct SpyChannel(Box<dyn Channel>, Arc<AtomicUsize>);

impl Bdev for Spy {
    fn info(&self) -> BdevInfo {
        self.base.info()
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> std::io::Result<Box<dyn Channel>> {
        let base = self.base.open_channel(cx, owner)?;
        Ok(Box::new(SpyChannel(base, Arc::clone(&self.durable))))
    }
}

impl Channel for SpyChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        if let Op::Write { fua: true, .. } | Op::WriteZeroes { fua: true, .. } = &request.op {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        self.0.submit(cx, request, done);
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    ) {
        self.0.handle_completion(cx, completion, done);
    }

    fn flush(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        self.0.flush(cx, done);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.0.close(cx);
    }
}
