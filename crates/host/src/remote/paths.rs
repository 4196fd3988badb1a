//! The paths of a remote controller: what they are, and how they come and go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::admin_link::LinkPath;
use crate::config::{Association, HostConfig};
use crate::error::HostError;
use crate::multipath::{MultipathConfig, PathCounters, PathId};

use super::{RemoteController, RemoteState};

/// How long a reset waits until the associations are given up, which takes a turn of a thread.
const RESET_TIMEOUT: Duration = Duration::from_secs(10);

/// One path to a remote controller's subsystem.
#[derive(Clone, Debug)]
pub struct RemotePath {
    /// Its name.
    pub id: PathId,
    /// How it was connected.
    pub config: Arc<HostConfig>,
    /// Its state.
    pub state: RemoteState,
    /// While it is up.
    pub association: Option<Association>,
    /// What it has done, as far as that is counted ([`RemoteController::count_paths`]).
    pub counters: Arc<PathCounters>,
}

impl RemotePath {
    fn of(path: &LinkPath) -> Self {
        let state = match (&path.failed, &path.association) {
            (Some(error), _) => RemoteState::Failed(error.clone()),
            (None, Some(_)) => RemoteState::Up,
            (None, None) => RemoteState::Reconnecting,
        };
        Self {
            id: path.id,
            config: Arc::clone(&path.config),
            state,
            association: path.association.clone(),
            counters: Arc::clone(&path.counters),
        }
    }
}

impl RemoteController {
    /// Its paths, in the order in which they were added.
    #[must_use]
    pub fn paths(&self) -> Vec<RemotePath> {
        self.remote.admin.state().get().paths.iter().map(RemotePath::of).collect()
    }

    /// Connects another path to the same subsystem, and waits until it is up.
    ///
    /// # Errors
    /// When the path cannot be connected, leads to other namespaces or exists, or the controller was connected without
    /// [`HostConfig::multipath`].
    pub fn add_path(&self, config: HostConfig) -> Result<PathId, HostError> {
        let own = &self.remote.config;
        if own.multipath.is_none() && own.more_paths.is_empty() {
            let text = "the controller was connected for one path only".to_owned();
            return Err(HostError::Invalid(text));
        }
        let config = HostConfig {
            io_queues: own.io_queues,
            write_queues: own.write_queues,
            poll_queues: own.poll_queues,
            multipath: own.paths()[0].multipath.clone(),
            more_paths: Vec::new(),
            ..config
        };
        self.remote.admin.add_path(config)
    }

    /// Shuts a path down in order, without waiting for it. With the last path, the controller ends.
    pub fn remove_path(&self, path: PathId) {
        self.remote.admin.remove_path(path);
    }

    /// Shuts a path down until [`Self::enable_path`].
    pub fn disable_path(&self, path: PathId) {
        self.remote.admin.disable_path(path);
    }

    /// The paths that are shut down until they are enabled.
    #[must_use]
    pub fn disabled_paths(&self) -> Vec<RemotePath> {
        let paths = self.remote.admin.state().get().disabled;
        paths.iter().map(RemotePath::of).collect()
    }

    /// Connects a path again that was disabled. It gets a new name.
    pub fn enable_path(&self, path: PathId) {
        self.remote.admin.enable_path(path);
    }

    /// As [`Self::reset`], of one path.
    pub fn reset_path(&self, path: PathId) {
        self.reset_paths(Some(path));
    }

    /// Resets all paths, or one, and waits until what was up is given up: until then, who asks for the state is told of
    /// the association that is to go.
    pub(super) fn reset_paths(&self, only: Option<PathId>) {
        let state = self.remote.admin.state();
        let mut before = state.get().paths;
        before.retain(|path| only.is_none_or(|only| only == path.id));
        let mut version = self.wait_change(0, Duration::ZERO);
        self.remote.admin.reset(only);
        let is_up = || {
            let now = state.get().paths;
            before.iter().any(|old| now.iter().any(|new| new.id == old.id && is_same(old, new)))
        };
        let end = Instant::now() + RESET_TIMEOUT;
        while is_up() && Instant::now() < end {
            version = self.wait_change(version, end.saturating_duration_since(Instant::now()));
        }
    }

    /// Which path commands take.
    #[must_use]
    pub fn multipath(&self) -> MultipathConfig {
        let routing = self.remote.admin.state().get().routing;
        let own = || self.remote.config.paths()[0].multipath.clone();
        routing.options.or_else(own).unwrap_or_default()
    }

    /// Changes which path commands take, from now on.
    pub fn set_multipath(&self, options: MultipathConfig) {
        self.remote.admin.change_routing(|routing| routing.options = Some(options));
    }

    /// The path that is taken before others that are as good, if one was named.
    #[must_use]
    pub fn preferred_path(&self) -> Option<PathId> {
        self.remote.admin.state().get().routing.preferred
    }

    /// Names the path that is taken before others that are as good by their ANA states.
    pub fn prefer_path(&self, path: Option<PathId>) {
        self.remote.admin.change_routing(|routing| routing.preferred = path);
    }

    /// Counts the commands of each path from now on, or not any more.
    pub fn count_paths(&self, counts: bool) {
        self.remote.admin.change_routing(|routing| routing.counts_paths = counts);
    }

    /// Whether the commands of each path are counted.
    #[must_use]
    pub fn counts_paths(&self) -> bool {
        self.remote.admin.state().get().routing.counts_paths
    }
}

/// Whether a path has the association that it had.
fn is_same(old: &LinkPath, new: &LinkPath) -> bool {
    old.association.as_ref().zip(new.association.as_ref()).is_some_and(|(old, new)| new.is(old))
}
