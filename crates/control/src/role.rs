//! The caller and its rights: credentials of the socket's peer, mapped to a role.

/// What a peer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Look.
    ReadOnly,
    /// Look and change.
    Admin,
}

/// How a call comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// By the Unix socket: the kernel says who it is.
    Socket,
    /// By HTTP: a token says what it may do.
    Http,
}

impl Via {
    /// Its name in the log.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Http => "http",
        }
    }
}

/// The caller: the process at the other end of a connection, as the kernel reports it, or whoever has a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// How it has come.
    pub via: Via,
    /// User; by HTTP, the user that the daemon runs as.
    pub uid: u32,
    /// Process; 0 if the kernel does not report it.
    pub pid: i32,
    /// Its rights.
    pub role: Role,
    /// Whether it is this program, which makes its configuration again.
    pub is_internal: bool,
}

impl Peer {
    /// This program itself, for a configuration file or its own restart.
    #[must_use]
    pub fn this_process() -> Self {
        let pid = i32::try_from(std::process::id()).unwrap_or(0);
        let uid = rustix::process::geteuid().as_raw();
        Self { via: Via::Socket, uid, pid, role: Role::Admin, is_internal: true }
    }

    /// A client by HTTP, whose token has been checked.
    #[must_use]
    pub fn by_http(role: Role) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { via: Via::Http, uid, pid: 0, role, is_internal: false }
    }
}

/// The users that are admins: root, the user that the daemon runs as, and the named users. Any other user
/// that the mode of the socket admits may only read.
#[derive(Clone, Debug, Default)]
pub struct Roles {
    admins: Vec<u32>,
}

impl Roles {
    /// Roles with these admins beside root and this process's user.
    #[must_use]
    pub fn new(admins: Vec<u32>) -> Self {
        Self { admins }
    }

    /// The role of a user.
    #[must_use]
    pub fn of(&self, uid: u32) -> Role {
        let own = rustix::process::geteuid().as_raw();
        if uid == 0 || uid == own || self.admins.contains(&uid) {
            Role::Admin
        } else {
            Role::ReadOnly
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_may_only_look() {
        let own = rustix::process::geteuid().as_raw();
        let other = own.wrapping_add(1000).max(1000);
        let roles = Roles::new(vec![other]);
        assert_eq!(roles.of(0), Role::Admin);
        assert_eq!(roles.of(own), Role::Admin);
        assert_eq!(roles.of(other), Role::Admin);
        assert_eq!(roles.of(other + 1), Role::ReadOnly);
    }
}
