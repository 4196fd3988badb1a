//! Why a program cannot listen somewhere, in words, and what to do: the same for all listeners.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

/// The first port that every user may listen at.
const FIRST_FREE_PORT: u16 = 1024;

/// Why an address cannot be listened on, and what to do. `option` is what chooses another address, such as `-l`; a call by RPC
/// has none.
#[must_use]
pub fn address_trouble(address: SocketAddr, error: &io::Error, option: Option<&str>) -> String {
    let with = option.map(|option| format!(" with {option}")).unwrap_or_default();
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            // Who asks by RPC may have a listener there itself.
            let who = if option.is_some() { "another process" } else { "somebody" };
            format!("{who} listens there: choose another port{with}, or 0 for any free one")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("it is not an address of this machine: choose one of `ip -brief address`{with}")
        }
        io::ErrorKind::PermissionDenied if (1..FIRST_FREE_PORT).contains(&address.port()) => {
            format!("ports below 1024 need CAP_NET_BIND_SERVICE: choose another port{with}")
        }
        _ => error.to_string(),
    }
}

/// Why there is no socket at a path of the file system, and what to do. `option` is what chooses another path.
#[must_use]
pub fn path_trouble(path: &Path, error: &io::Error, option: Option<&str>) -> String {
    let with = option.map(|option| format!(" with {option}")).unwrap_or_default();
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // The folder in which something would have to be made.
    let there = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(folder);
    match error.kind() {
        io::ErrorKind::NotFound => {
            let folder = folder.display();
            format!("there is no folder {folder}: make it, or choose another path{with}")
        }
        io::ErrorKind::PermissionDenied => format!(
            "this process may not make files in {}: run it as a user who may, or choose another path{with}",
            there.display()
        ),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: io::ErrorKind) -> io::Error {
        kind.into()
    }

    #[test]
    fn who_cannot_listen_at_an_address_learns_what_to_do() {
        let low: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let high: SocketAddr = "127.0.0.1:4420".parse().unwrap();
        for (address, kind, option, says) in [
            (
                high,
                io::ErrorKind::AddrInUse,
                Some("-l"),
                "another process listens there: choose another port with -l, or 0 for any free one",
            ),
            (
                high,
                io::ErrorKind::AddrInUse,
                None,
                "somebody listens there: choose another port, or 0 for any free one",
            ),
            (
                high,
                io::ErrorKind::AddrNotAvailable,
                None,
                "it is not an address of this machine: choose one of `ip -brief address`",
            ),
            (
                low,
                io::ErrorKind::PermissionDenied,
                Some("--http"),
                "ports below 1024 need CAP_NET_BIND_SERVICE: choose another port with --http",
            ),
            // A sandbox or a firewall of the kernel has refused it.
            (high, io::ErrorKind::PermissionDenied, None, "permission denied"),
        ] {
            assert_eq!(address_trouble(address, &error(kind), option), says);
        }
    }

    #[test]
    fn who_cannot_listen_at_a_path_learns_which_folder_is_meant() {
        let dir = tempfile::tempdir().unwrap();
        let shown = dir.path().display();
        let path = dir.path().join("none/of/these/a.sock");
        assert_eq!(
            path_trouble(&path, &error(io::ErrorKind::NotFound), Some("--socket")),
            format!(
                "there is no folder {shown}/none/of/these: make it, or choose another path with --socket"
            )
        );
        assert_eq!(
            path_trouble(&path, &error(io::ErrorKind::PermissionDenied), None),
            format!(
                "this process may not make files in {shown}: run it as a user who may, or choose another path"
            )
        );
        let alone =
            path_trouble(Path::new("a.sock"), &error(io::ErrorKind::PermissionDenied), None);
        assert!(alone.contains(" in .: "), "{alone}");
    }
}
