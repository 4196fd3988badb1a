//! What a static program does by itself because it can load nothing: it looks names up in files and DNS, which its C library
//! has built in.
#![allow(unsafe_code)]
// The second one is a switch of the crate getrandom.
#![allow(unexpected_cfgs)]

#[cfg(all(target_feature = "crt-static", target_env = "gnu"))]
use std::ffi::{c_char, c_int};

/// What an error about a name ends with: it may be known to the machine all the same.
pub(crate) const HINT: &str = if cfg!(target_feature = "crt-static") {
    " (this static program looks in /etc/hosts and asks the servers of /etc/resolv.conf, and knows no other way: give the \
     address in numbers)"
} else {
    ""
};

// getrandom looks the system call of its name up as a program with libraries does, finds nothing in a static one, and reads
// /dev/urandom instead, which the sandbox of an export and an empty root do not have.
const _: () = assert!(
    !cfg!(target_feature = "crt-static") || cfg!(getrandom_backend = "linux_getrandom"),
    "a static program also needs --cfg getrandom_backend=\"linux_getrandom\": cargo xtask package --static has it"
);

/// What the C library looks up, and the ways that it has built in.
#[cfg(all(target_feature = "crt-static", target_env = "gnu"))]
const WAYS: [(&std::ffi::CStr, &std::ffi::CStr); 3] =
    [(c"hosts", c"files dns"), (c"passwd", c"files"), (c"group", c"files")];

#[cfg(all(target_feature = "crt-static", target_env = "gnu"))]
unsafe extern "C" {
    /// Puts its own choice in the place of /etc/nsswitch.conf, `nss.h`.
    fn __nss_configure_lookup(database: *const c_char, ways: *const c_char) -> c_int;
}

/// Keeps a static program from the modules of /etc/nsswitch.conf (mDNS, systemd, LDAP): they are libraries and bring the
/// machine's C library with them, of another version than the program's, which may end it. In other programs nothing
/// happens. Called before there is a second thread.
pub(crate) fn use_built_in_ways() {
    #[cfg(all(target_feature = "crt-static", target_env = "gnu"))]
    for (database, ways) in WAYS {
        // SAFETY: both are texts of C that last for ever, and the function keeps nothing else. No other thread looks
        // anything up meanwhile.
        let refused = unsafe { __nss_configure_lookup(database.as_ptr(), ways.as_ptr()) } != 0;
        assert!(!refused, "the C library does not have {ways:?}");
    }
}
