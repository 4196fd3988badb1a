//! A disk whose controller was given up: how long its process stays, and what it says.
//!
//! Every request of such a disk gets an error. A process that ended at once would take that from whoever uses the disk: the kernel
//! keeps the requests of a block device without a process until the next one comes, and a virtual machine waits for its disk to
//! come back. So the process stays while the disk is used, and ends once nobody uses it.

/// Who uses a disk that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InUse {
    /// Where and by whom: words that can begin a sentence.
    pub(super) by: String,
    /// What lets go of the disk: the beginning of a sentence, too.
    pub(super) remedy: &'static str,
}

/// What a process is to do about its disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The controller was not given up.
    GoesOn,
    /// It was, and the disk is used: stay. What people are to be told, once.
    Stays(Option<Said>),
    /// It was, and nobody uses the disk: end with this error.
    Ends(String),
}

/// What people are told of a disk that stays.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// For the log.
    pub(super) log: String,
    /// For the state of a unit, which systemd shows in a line.
    pub(super) status: String,
}

/// What was seen of the loss of a controller.
#[derive(Debug, Default)]
pub(super) struct Loss {
    is_told: bool,
}

impl Loss {
    /// Says what to do. `lost` is what was given up and why, and `user` looks who uses the disk, at once if somebody did before.
    pub(super) fn judge(
        &mut self,
        lost: Option<String>,
        user: impl FnOnce(bool) -> Option<InUse>,
    ) -> Verdict {
        let Some(lost) = lost else { return Verdict::GoesOn };
        let Some(InUse { by, remedy }) = user(self.is_told) else {
            return Verdict::Ends(format!(
                "{lost}, and every request fails: this process ends. The same command line makes the disk anew once the \
                 controller can be reached; with --ctrl-loss-tmo -1, I/O waits for it instead"
            ));
        };
        let said = Said {
            log: format!(
                "{lost}, and every request fails. {by}, so this process stays and answers with errors. {remedy}: then this \
                 process ends with exit code 1, and its unit, or the same command line, makes the disk anew once the controller \
                 can be reached. With --ctrl-loss-tmo -1, I/O waits for the controller instead"
            ),
            status: format!(
                "The controller was given up, and every request fails. {by}. {remedy}: then the unit makes the disk anew"
            ),
        };
        Verdict::Stays((!std::mem::replace(&mut self.is_told, true)).then_some(said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost() -> Option<String> {
        Some("disk1: the controller was given up (no path)".to_owned())
    }

    fn mount(_at_once: bool) -> Option<InUse> {
        let by = "/dev/ublkb1 is in use by a mount".to_owned();
        Some(InUse { by, remedy: "Unmount it" })
    }

    #[test]
    fn a_disk_with_its_controller_goes_on_and_nobody_is_looked_for() {
        let mut loss = Loss::default();
        let look = |_| panic!("it looks who uses the disk");
        assert_eq!(loss.judge(None, look), Verdict::GoesOn);
    }

    #[test]
    fn a_disk_that_was_given_up_stays_while_it_is_used_and_says_so_once() {
        let mut loss = Loss::default();
        let Verdict::Stays(Some(Said { log, status })) = loss.judge(lost(), mount) else {
            panic!("it does not stay, or nobody is told");
        };
        for part in ["disk1: the controller was given up (no path)", "--ctrl-loss-tmo -1"] {
            assert!(log.contains(part), "{log}");
        }
        for part in ["every request fails", "/dev/ublkb1 is in use by a mount", "Unmount it: then"]
        {
            assert!(log.contains(part) && status.contains(part), "{log}\n{status}");
        }
        assert!(!status.contains('\n'), "{status}");
        assert_eq!(loss.judge(lost(), mount), Verdict::Stays(None));
        // Nobody uses it any more.
        let Verdict::Ends(why) = loss.judge(lost(), |_| None) else { panic!("it stays") };
        assert!(why.contains("this process ends") && why.contains("makes the disk anew"), "{why}");
    }

    #[test]
    fn a_disk_that_nobody_uses_ends_when_it_is_given_up() {
        let verdict = Loss::default().judge(lost(), |_| None);
        assert!(
            matches!(&verdict, Verdict::Ends(why) if why.starts_with("disk1: ")),
            "{verdict:?}"
        );
    }
}
