//! Sockets that the service manager has made and listens on before this program starts (socket activation).
//!
//! The RPC socket and those of the HTTP server can come so. A listener of NVMe/TCP or iSCSI belongs to the configuration, which
//! only the daemon knows.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use listenfd::ListenFd;

use crate::cli::serve::ServeArgs;
use crate::failure::Failure;

/// A socket that was passed.
enum Passed {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// Takes all sockets that were passed, and gives each to what listens at its address.
pub(crate) fn take_sockets(args: &ServeArgs) -> Result<(), Failure> {
    let mut passed = ListenFd::from_env();
    for index in 0..passed.len() {
        match take(&mut passed, index)? {
            Passed::Unix(socket) => give_rpc(args, socket)?,
            Passed::Tcp(socket) => give_http(args, socket)?,
        }
    }
    Ok(())
}

fn take(passed: &mut ListenFd, index: usize) -> Result<Passed, Failure> {
    let unusable = |why: &str| {
        Failure::runtime(format!(
            "socket {} of those that the service manager has passed is of no use ({why}): let its unit have only \
             ListenStream= with the RPC socket of -r and addresses of --http, --metrics and --ui",
            index + 1
        ))
    };
    let socket = match passed.take_unix_listener(index) {
        Ok(Some(socket)) => Passed::Unix(socket),
        _ => match passed.take_tcp_listener(index) {
            Ok(Some(socket)) => Passed::Tcp(socket),
            Ok(None) => return Err(unusable("it is not there")),
            Err(error) => return Err(unusable(&error.to_string())),
        },
    };
    let fd = match &socket {
        Passed::Unix(socket) => socket.as_fd(),
        Passed::Tcp(socket) => socket.as_fd(),
    };
    match rustix::net::sockopt::socket_acceptconn(fd) {
        Ok(true) => Ok(socket),
        Ok(false) => Err(unusable("it does not listen")),
        Err(error) => Err(unusable(&error.to_string())),
    }
}

fn give_rpc(args: &ServeArgs, socket: UnixListener) -> Result<(), Failure> {
    let address = socket.local_addr().map_err(Failure::runtime)?;
    let path = address.as_pathname();
    if !path.is_some_and(|path| is_same(path, &args.socket)) {
        let own = args.socket.display();
        return Err(Failure::usage(match path {
            Some(path) => format!(
                "the service manager listens at {}, and the RPC socket is to be {own}: give ListenStream= and -r the \
                 same path",
                path.display()
            ),
            None => format!(
                "the service manager has passed a Unix socket without a path, and the RPC socket is to be {own}: \
                 give ListenStream= that path"
            ),
        }));
    }
    raceline_control::server::bring_socket(&args.socket, OwnedFd::from(socket));
    Ok(())
}

fn give_http(args: &ServeArgs, socket: TcpListener) -> Result<(), Failure> {
    let address = socket.local_addr().map_err(Failure::runtime)?;
    let served: Vec<SocketAddr> =
        [args.http.http, args.http.metrics, args.http.ui].into_iter().flatten().collect();
    if !served.contains(&address) {
        return Err(Failure::usage(format!(
            "the service manager listens at {address}, which is not an address of --http, --metrics or --ui: name it \
             there, or take it out of the socket unit. Listeners for hosts are made by `raceline port add`"
        )));
    }
    raceline_http::bring_socket(address, OwnedFd::from(socket));
    Ok(())
}

/// Whether two paths name the same place of a folder, where the file itself may be missing.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let folder = path.parent()?.canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    one == other || place(one).is_some_and(|found| place(other) == Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_the_same_where_they_lead_to_the_same_folder() {
        let directory = tempfile::tempdir().unwrap();
        let (real, link) = (directory.path().join("real"), directory.path().join("link"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(is_same(&real.join("rpc.sock"), &link.join("rpc.sock")));
        assert!(!is_same(&real.join("rpc.sock"), &real.join("other.sock")));
        assert!(!is_same(&real.join("rpc.sock"), Path::new("/nowhere/rpc.sock")));
    }
}
