//! The folders of an attempt, and system calls by number.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use libc::c_long;
use raceline_sandbox::Missing;

/// A folder with three folders: one that the policy permits to use, one to read, and one that it does not name.
pub(crate) struct Place {
    folder: PathBuf,
    _kept: Option<(tempfile::TempDir, UnixListener)>,
}

impl Place {
    pub(crate) fn new() -> Self {
        let kept = tempfile::tempdir().unwrap();
        let folder = kept.path().canonicalize().unwrap();
        for name in ["inside", "read-only", "outside"] {
            fs::create_dir(folder.join(name)).unwrap();
            fs::write(folder.join(name).join("file"), "text").unwrap();
        }
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        fs::write(folder.join("port"), port.to_string()).unwrap();
        let mut place = Self { folder, _kept: None };
        place._kept = Some((kept, UnixListener::bind_addr(&place.abstract_name()).unwrap()));
        place
    }

    /// The name of a socket of a process outside.
    pub(crate) fn abstract_name(&self) -> SocketAddr {
        SocketAddr::from_abstract_name(self.folder.to_str().unwrap()).unwrap()
    }

    pub(crate) fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), _kept: None }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn inside(&self) -> PathBuf {
        self.folder.join("inside")
    }

    pub(crate) fn read_only(&self) -> PathBuf {
        self.folder.join("read-only")
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.folder.join("outside")
    }

    /// The one port that may be listened on. To be read before the sandbox.
    pub(crate) fn port(&self) -> u16 {
        static PORT: std::sync::OnceLock<u16> = std::sync::OnceLock::new();
        let read = || fs::read_to_string(self.folder.join("port")).unwrap().parse().unwrap();
        *PORT.get_or_init(read)
    }
}

/// Makes a system call by its number. Calls here get numbers and null pointers only.
pub(crate) fn call(number: c_long, arguments: [u64; 6]) -> io::Result<()> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: every caller passes numbers, null pointers, or pointers to memory that it owns and the call only reads.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A constant of the C library as an argument.
pub(crate) fn bits(constant: i32) -> u64 {
    u64::from(constant.cast_unsigned())
}

/// Whether nothing but the sandbox refuses what a child tries: root with all capabilities, and no filter from outside.
pub(crate) fn is_unrestricted() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim().to_owned()
    };
    let all = field("CapEff:").trim_start_matches('0').len() >= 10;
    all && field("Seccomp:") == "0" && field("NoNewPrivs:") == "0"
}

/// Whether an attempt is about something that this kernel cannot restrict.
pub(crate) fn needs_more(name: &str, missing: &Missing) -> bool {
    if !missing.parts.is_empty() {
        return true;
    }
    let lacks = |what: &str| missing.details.iter().any(|detail| detail.contains(what));
    (name.contains("port") && lacks("TCP ports"))
        || (name.contains("abstract") && lacks("abstract"))
}
