//! Operations of files begin and end.

use super::UringIo;
use super::ops::Kind;
use crate::io::socket::not_usable;
use crate::io::{FileId, Outcome, Token};

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
}
