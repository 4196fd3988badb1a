//! Network namespaces of a step: made under names of this process, removed with it.

use anyhow::Result;

use crate::child::{Task, at_interrupt};

/// Namespaces that are removed with this value, and with them the links that end there.
pub(crate) struct Namespaces(Vec<String>);

impl Namespaces {
    /// Makes one for each of these ends; the inner error says why this machine does not allow it.
    pub(crate) fn make(ends: &[&str]) -> Result<Result<Self, String>> {
        let name = |end: &&str| format!("raceline-{}-{end}", std::process::id());
        // From here on, dropping the value removes what has been made, however this function ends.
        let made = Self(ends.iter().map(name).collect());
        let names = made.0.clone();
        at_interrupt(move || names.iter().for_each(|name| remove(name)));
        for name in &made.0 {
            let ended = ip(&["netns", "add", name]).run()?;
            if !ended.success() {
                return Ok(Err(format!("no network namespaces: {}", ended.output.trim())));
            }
        }
        Ok(Ok(made))
    }

    /// The name of the namespace of the end with this index.
    pub(crate) fn name(&self, index: usize) -> &str {
        &self.0[index]
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| remove(name));
    }
}

/// Removes a namespace, and the end of a link in it, if there is one.
fn remove(namespace: &str) {
    // It may fail: the namespace may never have been made, or be gone already.
    let _ = ip(&["netns", "delete", namespace]).limit(10).run();
}

/// The program `ip`.
pub(crate) fn ip(words: &[&str]) -> Task {
    Task::new("ip").args(words)
}
