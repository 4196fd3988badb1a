//! Landlock: the files, folders, devices and TCP ports that are left.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, Compatible as _, LandlockStatus, NetPort,
    PathBeneath, PathFd, PathFdError, Ruleset, RulesetAttr as _, RulesetCreated,
    RulesetCreatedAttr as _, Scope, make_bitflags,
};

use crate::{Missing, Policy, SandboxError};

/// The newest version of the interface that this code was tested with: Linux 6.15.
const TESTED: ABI = ABI::V7;

/// What a rule permits. Nothing permits to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read files and list folders.
    Read,
    /// Also write files and devices, and send commands (ioctl(2)) to devices.
    Use,
    /// Also make and remove files and sockets.
    Keep,
}

impl Access {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
        let uses = read | make_bitflags!(AccessFs::{WriteFile | Truncate | IoctlDev});
        match self {
            Self::Read => read,
            Self::Use => uses,
            Self::Keep => uses | make_bitflags!(AccessFs::{MakeReg | MakeSock | RemoveFile}),
        }
    }
}

/// A file, or a folder with all that is and will be beneath it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Where it is. The kernel remembers what is there now, and not the name.
    pub path: PathBuf,
    /// What is permitted there.
    pub access: Access,
    /// Whether it is no error if nothing is there.
    pub may_be_missing: bool,
}

impl Rule {
    /// A rule for what has to be there.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, access: Access) -> Self {
        Self { path: path.into(), access, may_be_missing: false }
    }

    /// A rule for what counts only if it is there.
    #[must_use]
    pub fn if_there(path: impl Into<PathBuf>, access: Access) -> Self {
        Self { may_be_missing: true, ..Self::new(path, access) }
    }
}

/// What versions of the interface brought, and what is therefore not restricted before.
const STEPS: [(ABI, &str); 4] = [
    (
        ABI::V3,
        "truncating files that may only be read (O_TRUNC) is not restricted before Linux 6.2",
    ),
    (ABI::V4, "TCP ports are not restricted before Linux 6.7"),
    (ABI::V5, "ioctl(2) on devices that may only be read is not restricted before Linux 6.10"),
    (ABI::V6, "signals and abstract sockets are not restricted before Linux 6.12"),
];

/// Restricts the calling thread.
pub(crate) fn restrict(policy: &Policy, missing: &mut Missing) -> Result<(), SandboxError> {
    let mut scopes = BitFlags::from(Scope::Signal);
    if !policy.abstract_sockets {
        scopes |= Scope::AbstractUnixSocket;
    }
    let mut ruleset =
        Ruleset::default().handle_access(AccessFs::from_all(TESTED))?.scope(scopes)?;
    if policy.listens.is_some() {
        ruleset = ruleset.handle_access(AccessNet::BindTcp)?;
    }
    if !policy.connects {
        ruleset = ruleset.handle_access(AccessNet::ConnectTcp)?;
    }
    let mut created = ruleset.create()?;
    for rule in &policy.files {
        created = add(created, rule)?;
    }
    for &port in policy.listens.iter().flatten() {
        created = created.add_rule(NetPort::new(port, AccessNet::BindTcp))?;
    }
    let status = created.restrict_self()?;
    match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => {
            let later = STEPS.iter().filter(|(abi, _)| effective_abi < *abi);
            missing.details.extend(later.map(|(_, text)| format!("Landlock: {text}")));
        }
        LandlockStatus::NotEnabled => missing.parts.push(
            "this kernel has Landlock and does not use it: begin its parameter lsm= with landlock"
                .to_owned(),
        ),
        LandlockStatus::NotImplemented => missing.parts.push(
            "this kernel has no Landlock (Linux 5.13 with CONFIG_SECURITY_LANDLOCK), so files are not restricted"
                .to_owned(),
        ),
    }
    Ok(())
}

fn add(created: RulesetCreated, rule: &Rule) -> Result<RulesetCreated, SandboxError> {
    let node = match PathFd::new(&rule.path) {
        Ok(node) => node,
        Err(PathFdError::OpenCall { source, .. })
            if rule.may_be_missing && source.kind() == std::io::ErrorKind::NotFound =>
        {
            return Ok(created);
        }
        Err(PathFdError::OpenCall { source, path, .. }) => {
            return Err(SandboxError::Path { path, source });
        }
        Err(other) => {
            let source = std::io::Error::other(other.to_string());
            return Err(SandboxError::Path { path: rule.path.clone(), source });
        }
    };
    let mut rights = rule.access.rights();
    if !is_folder(&rule.path) {
        rights &= AccessFs::from_file(TESTED);
    }
    // What this kernel does not know is left out of the rule, as it is left out of what is restricted.
    let beneath =
        PathBeneath::new(node, rights).set_compatibility(landlock::CompatLevel::BestEffort);
    Ok(created.add_rule(beneath)?)
}

fn is_folder(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_dir())
}
