//! The counters that every PDU of a target carries: StatSN, ExpCmdSN, MaxCmdSN (RFC 7143, 4.2.2).

use crate::serial;

/// The counters of a connection, and of its session: there is one connection per session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// StatSN of the next PDU that carries a status.
    pub(super) stat_sn: u32,
    /// ExpCmdSN: the CmdSN that comes next.
    pub(super) exp_cmd_sn: u32,
    /// MaxCmdSN: the last CmdSN that may come.
    pub(super) max_cmd_sn: u32,
}

/// Whether a request is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sequence {
    /// In order: it is executed.
    Next,
    /// Outside the window, or behind a gap: it is dropped without a word (4.2.2.1).
    Dropped,
}

impl Window {
    /// At the first Login Request: the next command has its CmdSN, and the window holds one command.
    pub(super) fn at_login(cmd_sn: u32) -> Self {
        Self { stat_sn: 0, exp_cmd_sn: cmd_sn, max_cmd_sn: cmd_sn }
    }

    /// Opens the window for `depth` commands.
    pub(super) fn open(&mut self, depth: u16) {
        self.max_cmd_sn = self.exp_cmd_sn.wrapping_add(u32::from(depth)).wrapping_sub(1);
    }

    /// Judges a request's CmdSN and counts it.
    #[inline]
    pub(super) fn take(&mut self, immediate: bool, cmd_sn: u32) -> Sequence {
        if immediate {
            return Sequence::Next;
        }
        if cmd_sn != self.exp_cmd_sn || !serial::at_most(cmd_sn, self.max_cmd_sn) {
            return Sequence::Dropped;
        }
        self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
        Sequence::Next
    }

    /// Counts a command that never came: it was aborted (11.5.1).
    pub(super) fn skip(&mut self) {
        self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
        self.max_cmd_sn = self.max_cmd_sn.wrapping_add(1);
    }

    /// A request that was counted is done: another one may come.
    #[inline]
    pub(super) fn give_back(&mut self, immediate: bool) {
        if !immediate {
            self.max_cmd_sn = self.max_cmd_sn.wrapping_add(1);
        }
    }

    /// StatSN for a PDU that carries a status.
    #[inline]
    pub(super) fn next_stat_sn(&mut self) -> u32 {
        let stat_sn = self.stat_sn;
        self.stat_sn = stat_sn.wrapping_add(1);
        stat_sn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_only_the_next_command_inside_the_window() {
        let mut window = Window::at_login(u32::MAX - 1);
        window.open(2);
        assert_eq!(window.max_cmd_sn, u32::MAX);
        assert_eq!(window.take(false, u32::MAX), Sequence::Dropped, "behind a gap");
        assert_eq!(window.take(false, u32::MAX - 2), Sequence::Dropped, "a repetition");
        assert_eq!(window.take(true, 77), Sequence::Next, "immediate");
        assert_eq!(window.take(false, u32::MAX - 1), Sequence::Next);
        assert_eq!(window.take(false, u32::MAX), Sequence::Next);
        assert_eq!(window.take(false, 0), Sequence::Dropped, "the window is closed");
        window.give_back(false);
        assert_eq!(window.take(false, 0), Sequence::Next);
        window.give_back(true);
        assert_eq!(window.take(false, 1), Sequence::Dropped, "an immediate request had no place");
    }
}
