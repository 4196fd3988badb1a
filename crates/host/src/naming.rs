//! This machine's names as a host, which stay the same from start to start.

use std::path::Path;

use raceline_bdev::Identity;
use raceline_proto::nvme::{HostId, Nqn};
use uuid::Uuid;

/// What NQNs made of a UUID begin with (Base 2.0, 4.5).
const NQN_UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// Where nvme-cli keeps the names of this machine as a host.
const NVME_DIR: &str = "/etc/nvme";

/// This machine as a host: its NQN and the identifier that goes with it. A name that is not given is taken
/// from nvme-cli's configuration, else derived from the machine's identity.
#[must_use]
pub fn host(identity: &Identity, nqn: Option<&Nqn>, hostid: Option<HostId>) -> (Nqn, HostId) {
    host_from(Path::new(NVME_DIR), identity, nqn, hostid)
}

fn host_from(
    dir: &Path,
    identity: &Identity,
    nqn: Option<&Nqn>,
    hostid: Option<HostId>,
) -> (Nqn, HostId) {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    let configured = read("hostnqn").and_then(|text| Nqn::new(text.trim()).ok());
    let nqn = nqn.cloned().or(configured.clone()).unwrap_or_else(|| {
        let uuid = identity.derive("host", b"");
        Nqn::new(&format!("{NQN_UUID_PREFIX}{uuid}")).expect("a prefix and a UUID are an NQN")
    });
    // A target refuses one host NQN with two identifiers, so the configured identifier goes with
    // the configured NQN only; any other NQN has its own.
    let own = || configured.as_ref() == Some(&nqn);
    let configured_id = || read("hostid").and_then(|text| Uuid::try_parse(text.trim()).ok());
    let id =
        hostid.or_else(|| own().then(configured_id).flatten().map(|id| HostId(*id.as_bytes())));
    let id = id.unwrap_or_else(|| {
        let uuid = nqn.as_str().strip_prefix(NQN_UUID_PREFIX);
        let uuid = uuid.and_then(|text| Uuid::try_parse(text).ok()).filter(|uuid| !uuid.is_nil());
        HostId(
            *uuid.unwrap_or_else(|| identity.derive("hostid", nqn.as_str().as_bytes())).as_bytes(),
        )
    });
    (nqn, id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_who_it_is_configured_to_be() {
        let dir = std::env::temp_dir().join(format!("raceline-naming-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let identity = Identity::from_seed(b"m");
        let id = Uuid::from_u128(7);
        // Nothing configured: a UUID name, and the same UUID as identifier.
        let (nqn, hostid) = host_from(&dir, &identity, None, None);
        let uuid = Uuid::from_bytes(hostid.0);
        assert_eq!(nqn.as_str(), format!("{NQN_UUID_PREFIX}{uuid}"));
        // Configured: both from the files.
        std::fs::write(dir.join("hostnqn"), "nqn.2014-08.org.example:me\n").unwrap();
        std::fs::write(dir.join("hostid"), format!("{id}\n")).unwrap();
        let (configured, hostid) = host_from(&dir, &identity, None, None);
        assert_eq!((configured.as_str(), hostid.0), ("nqn.2014-08.org.example:me", *id.as_bytes()));
        // Another name has another identifier, unless it is given.
        let other = Nqn::new("nqn.2014-08.org.example:other").unwrap();
        let (_, hostid) = host_from(&dir, &identity, Some(&other), None);
        assert!(hostid.0 != *id.as_bytes() && hostid.0 != [0; 16]);
        let (_, hostid) = host_from(&dir, &identity, Some(&other), Some(HostId([1; 16])));
        assert_eq!(hostid.0, [1; 16]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
