//! A network namespace without a name: it ends with the last thread in it and the last descriptor of it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

/// A thread's own network namespace.
const OF_THREAD: &str = "/proc/thread-self/ns/net";

/// A network namespace. The kernel removes it, with all links in it, when this value and all threads in it are gone,
/// however the process ends.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// Makes an empty one, whose loopback device is down.
    ///
    /// # Errors
    /// When the kernel refuses, e.g. to a user without CAP_SYS_ADMIN.
    pub fn make() -> io::Result<Self> {
        on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            File::open(OF_THREAD).map(Self)
        })
    }

    /// Opens one that has a file, such as those of `ip netns`.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &str) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// Moves the calling thread into the namespace. Threads and processes that it starts are in it, too.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enter(&self) -> io::Result<()> {
        Ok(setns(&self.0, CloneFlags::CLONE_NEWNET)?)
    }

    /// Runs `work` on a thread of its own in the namespace.
    ///
    /// # Errors
    /// When the namespace cannot be entered, or `work` fails or panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_thread(|| {
            self.enter()?;
            work()
        })
    }

    /// As [`Self::run`], and /sys shows the links of the namespace.
    ///
    /// # Errors
    /// As [`Self::run`]; also when /sys cannot be mounted.
    pub fn run_with_sysfs<T: Send>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        on_thread(|| {
            self.enter()?;
            // This mount namespace ends with the thread.
            unshare(CloneFlags::CLONE_NEWNS)?;
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
            mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none)?;
            work()
        })
    }

    /// A path for other programs, valid while this value is.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

/// Runs `work` on a thread that ends with it, since a thread's namespaces may change only so.
fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().name("namespace".to_owned()).spawn_scoped(scope, work)?;
        let panicked = |_| Err(io::Error::other("a thread in a network namespace panicked"));
        thread.join().unwrap_or_else(panicked)
    })
}
