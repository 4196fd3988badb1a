//! The secrets by which hosts and the target of a run prove themselves.

use raceline_host::{CredentialStore, Credentials};
use raceline_proto::nvme::Nqn;
use raceline_target::{Algorithms, DhGroup, DhchapSecret, Hash, Keys};

const HOST: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const CONTROLLER: &str = "DHHC-1:01:E9an7+T0aHqRy+bPTH8/JfJNfoQRYRy4P0Phxj+FxT10jwKd:";

fn secret(text: &str) -> Result<DhchapSecret, String> {
    DhchapSecret::parse(text).map_err(|error| error.to_string())
}

/// The name of a host.
pub(crate) fn host_nqn(index: usize) -> Result<Nqn, String> {
    let name = format!("nqn.2025-01.io.raceline:sim-host-{index}");
    Nqn::new(&name).map_err(|error| error.to_string())
}

/// Without arithmetic of a group: simulations look for wrong orders of events, not for wrong numbers.
pub(crate) fn algorithms() -> Algorithms {
    Algorithms { hashes: Hash::ALL.to_vec(), groups: vec![DhGroup::Null] }
}

/// What a host knows.
pub(crate) fn credentials() -> Result<CredentialStore, String> {
    let (secret, controller) = (secret(HOST)?, secret(CONTROLLER)?);
    Ok(CredentialStore::without_thread(Credentials {
        secret,
        controller_secret: Some(controller),
        algorithms: algorithms(),
    }))
}

/// What the target knows of each host.
pub(crate) fn keys() -> Result<Keys, String> {
    Ok(Keys::new(secret(HOST)?, Some(secret(CONTROLLER)?)))
}
