//! The listeners of discovery services, announced by multicast DNS.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use raceline_mdns::Publisher;
use serde_json::json;

use super::catalogue::{Entry, Key, Section};
use super::nvmf::{DEFAULT_TARGET, ListenAddress, Published};
use super::threads::End;
use super::{Change, Manager, ManagerError, Model};

/// How often the listeners are compared with what is announced.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

fn key(target: &str) -> Key {
    Key::new(&["nvmf", target, "mdns"])
}

impl Change<'_> {
    /// Announces the listeners of a target's discovery service from now on.
    ///
    /// # Errors
    /// When there is no such target, or it is announced already.
    pub fn publish(&mut self, target: &str) -> Result<(), ManagerError> {
        let mut model = self.model_mut();
        let found = model.nvmf.targets.get_mut(target);
        let found = found.ok_or_else(|| ManagerError::missing("target", target))?;
        // What the command line asks for may be asked for by a call, too.
        if std::mem::replace(&mut found.published, Published::ByCall) == Published::ByCall {
            return Err(ManagerError::exists("announcement of target", target));
        }
        drop(model);
        let params = match target {
            DEFAULT_TARGET => json!({}),
            target => json!({ "tgt_name": target }),
        };
        let method = "nvmf_publish_mdns_prr".to_owned();
        self.put(key(target), Entry { section: Section::Nvmf, method, params });
        Ok(())
    }

    /// Announces them no more; gives whether they were announced.
    ///
    /// # Errors
    /// When there is no such target.
    pub fn unpublish(&mut self, target: &str) -> Result<bool, ManagerError> {
        let mut model = self.model_mut();
        let found = model.nvmf.targets.get_mut(target);
        let found = found.ok_or_else(|| ManagerError::missing("target", target))?;
        let before = std::mem::replace(&mut found.published, Published::No);
        drop(model);
        if before == Published::ByCall {
            self.remove(key(target));
        }
        Ok(before != Published::No)
    }
}

impl Model {
    /// The names under which these listeners are announced.
    pub(super) fn own_instances(&self) -> BTreeSet<String> {
        self.published().into_iter().map(raceline_mdns::instance_name).collect()
    }

    /// The listeners that should be announced.
    fn published(&self) -> BTreeSet<SocketAddr> {
        let published =
            self.nvmf.targets.values().filter(|target| target.published != Published::No);
        let listeners = published.flat_map(|target| &target.discovery_listeners);
        // What is announced is for NVMe/TCP.
        let listeners = listeners.filter(|address: &&ListenAddress| !address.is_rdma());
        listeners.filter_map(|address| address.socket().ok()).collect()
    }
}

impl Manager {
    /// Begins to announce what should be, if anything should. Does nothing when it has begun.
    pub fn follow_published(&self) {
        let Some(manager) = self.threads.shared.get().cloned() else { return };
        {
            let mut model = self.model_mut();
            let is_wanted = model.nvmf.targets.values().any(|it| it.published != Published::No);
            if !is_wanted || std::mem::replace(&mut model.publishes, true) {
                return;
            }
        }
        let end = Arc::clone(&self.threads.end);
        if let Err(error) = self.threads.spawn("mdns-publish", move || follow(&manager, &end)) {
            tracing::error!("listeners are not announced: no thread: {error}");
            self.model_mut().publishes = false;
        }
    }
}

/// Announces listeners until the manager ends.
fn follow(manager: &Weak<Manager>, end: &End) {
    let (mut publisher, mut problem) = (None, None);
    loop {
        let Some(manager) = manager.upgrade() else { return };
        let listeners = manager.model().published();
        drop(manager);
        let announced = announce(&mut publisher, &listeners).err().map(|error| error.to_string());
        if announced != problem {
            if let Some(error) = &announced {
                tracing::warn!("listeners are not announced: {error}");
            }
            problem = announced;
        }
        if end.wait(LOOK_INTERVAL) {
            return;
        }
    }
}

fn announce(
    publisher: &mut Option<Publisher>,
    listeners: &BTreeSet<SocketAddr>,
) -> Result<(), raceline_mdns::MdnsError> {
    if listeners.is_empty() {
        *publisher = None;
        return Ok(());
    }
    let current = match publisher {
        Some(current) => current,
        None => publisher.insert(Publisher::start()?),
    };
    let announced = current.announce(listeners);
    if announced.is_err() {
        // Its thread may have ended: it begins anew.
        *publisher = None;
    }
    announced
}
