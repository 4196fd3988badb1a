//! A device in memory that behaves like a file: every read needs a request and a buffer.

use raceline_bdev::{Bdev, BdevInfo, Channel, Done, Request, SharedBdev};
use raceline_reactor::{Completion, Context};

/// The device.
pub(crate) struct AskedBdev(pub(crate) SharedBdev);

impl Bdev for AskedBdev {
    fn info(&self) -> BdevInfo {
        BdevInfo { reads_in_place: false, copies_data: false, ..self.0.info() }
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> std::io::Result<Box<dyn Channel>> {
        Ok(Box::new(AskedChannel(self.0.open_channel(cx, owner)?)))
    }
}

/// Requests only; all other methods keep their defaults, as for files.
struct AskedChannel(Box<dyn Channel>);

impl Channel for AskedChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
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

    fn close(&mut self, cx: &mut Context<'_>) {
        self.0.close(cx);
    }
}
