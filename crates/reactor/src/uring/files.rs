//! Operations of files begin and end.

use std::io;

use super::UringIo;
use super::ops::Kind;
use crate::io::file_op::FileOp;
use crate::io::file_threads::FileWorkers;
use crate::io::socket::not_usable;
use crate::io::{Completion, FileCall, FileId, Outcome, Token};

/// Calls of a core that can be in progress at once: they are rare, and each is short.
const CALLERS: usize = 1;

impl UringIo {
    /// One operation of a file has finished.
    pub(super) fn file_idle(&mut self, file: u32) {
        let Some(slot) = self.files.get_mut(file) else { return };
        slot.in_flight -= 1;
        if slot.closing && slot.in_flight == 0 {
            self.files.remove(file);
        }
    }

    /// Starts a file operation, or gives it back if there is no such file.
    pub(super) fn start_file_op(&mut self, file: FileId, token: Token, kind: Kind) {
        match self.files.get_mut(file.0).filter(|slot| !slot.closing) {
            Some(slot) => {
                slot.in_flight += 1;
                self.start(token, kind);
            }
            None => {
                let outcome = match kind {
                    Kind::Read { buf, .. } => Outcome::Read(Err(not_usable()), buf),
                    Kind::Write { buf, .. } => Outcome::Written(Err(not_usable()), buf),
                    _ => Outcome::Synced(Err(not_usable())),
                };
                self.finish(token, outcome);
            }
        }
    }

    /// Has a thread make a call, or gives it back.
    pub(super) fn start_call(&mut self, file: FileId, token: Token, call: Box<FileCall>) {
        let started = match self.files.get(file.0).filter(|slot| !slot.closing) {
            None => Err((call, not_usable())),
            // A generic device has commands only.
            Some(slot) if slot.nvme.is_some() => Err((call, io::ErrorKind::Unsupported.into())),
            Some(slot) => {
                let file = slot.file.clone();
                match self.open_callers() {
                    Ok(callers) => match callers.start(file, token, FileOp::Call(call)) {
                        Err(FileOp::Call(call)) => Err((call, io::ErrorKind::QuotaExceeded.into())),
                        _ => Ok(()),
                    },
                    Err(error) => Err((call, error)),
                }
            }
        };
        if let Err((call, error)) = started {
            self.finish(token, Outcome::Called(Err(error), call));
        }
    }

    /// The threads that make calls; they start with the first call.
    fn open_callers(&mut self) -> io::Result<&mut FileWorkers> {
        let callers = match self.callers.take() {
            Some(callers) => callers,
            None => FileWorkers::new(self.waker.clone(), CALLERS)?,
        };
        Ok(self.callers.insert(callers))
    }

    /// Takes the calls that have been made.
    #[inline]
    pub(super) fn collect_calls(&mut self, done: &mut Vec<Completion>) {
        if let Some(callers) = &mut self.callers {
            callers.collect(done);
        }
    }
}
