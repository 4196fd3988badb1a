//! Finding the discovery controllers that announce themselves.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mdns_sd::{Metrics, Receiver, ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent};

use crate::MdnsError;
use crate::service::{KEY_NQN, KEY_TRANSPORT, Records, SERVICE_DOMAIN, Service, instance_of};

/// The largest number of services that are known at a time.
pub const MAX_SERVICES: usize = 256;

/// The largest number of records that the library may hold: each of [`MAX_SERVICES`] has about five.
const MAX_CACHED_RECORDS: i64 = 4096;
/// How often the number of records is looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a search that has failed is left alone.
const RESTART_PAUSE: Duration = Duration::from_millis(500);
/// The least time between two warnings of one kind.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Finds services while it exists.
pub struct Browser {
    search: Search,
    services: BTreeMap<String, Service>,
    checked_at: Instant,
    warned_at: Option<Instant>,
}

/// A search of the library, with a thread of its own.
struct Search {
    daemon: ServiceDaemon,
    events: Receiver<ServiceEvent>,
    /// The answer with the number of records, if one is on its way.
    metrics: Option<Receiver<Metrics>>,
}

impl Search {
    fn start() -> Result<Self, MdnsError> {
        let daemon = ServiceDaemon::new()?;
        let events = daemon.browse(SERVICE_DOMAIN)?;
        Ok(Self { daemon, events, metrics: None })
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        // Nothing was announced, so nobody has to wait for the end.
        let _ = crate::shut_down(&self.daemon);
    }
}

impl Browser {
    /// Begins to look for services.
    ///
    /// # Errors
    /// When the interfaces cannot be listed, or there is no thread or no socket for it.
    pub fn start() -> Result<Self, MdnsError> {
        crate::check_access()?;
        let (services, checked_at) = (BTreeMap::new(), Instant::now());
        Ok(Self { search: Search::start()?, services, checked_at, warned_at: None })
    }

    /// Waits until a service comes, changes or goes, but no longer than `timeout`; gives whether one did.
    ///
    /// A service goes when it says so, or when its records expire. The caller has to call this in a loop: what the
    /// network says waits meanwhile.
    ///
    /// # Errors
    /// When the search has ended and cannot be started again.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, MdnsError> {
        if self.check_records()? {
            return Ok(true);
        }
        let deadline = Instant::now() + timeout;
        let mut has_changed = false;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.search.events.recv_timeout(left) {
                Ok(event) => has_changed |= self.take(event),
                // The time is over, or the library's thread has ended.
                Err(_) if self.search.events.is_disconnected() => {
                    self.restart("its thread has ended")?;
                    return Ok(true);
                }
                Err(_) => return Ok(has_changed),
            }
            if (has_changed && self.search.events.is_empty()) || left.is_zero() {
                return Ok(has_changed);
            }
        }
    }

    /// The services that are announced now, by name.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    /// Takes an event; gives whether the services have changed.
    fn take(&mut self, event: ServiceEvent) -> bool {
        match event {
            ServiceEvent::ServiceResolved(resolved) => self.resolved(&resolved),
            ServiceEvent::ServiceRemoved(_, full_name) => instance_of(&full_name)
                .is_some_and(|instance| self.services.remove(instance).is_some()),
            _ => false,
        }
    }

    fn resolved(&mut self, resolved: &ResolvedService) -> bool {
        let records = Records {
            full_name: &resolved.fullname,
            port: resolved.port,
            addresses: resolved.addresses.iter().map(ScopedIp::to_ip_addr).collect(),
            transport: resolved.get_property_val(KEY_TRANSPORT).flatten(),
            nqn: resolved.get_property_val(KEY_NQN).map(Option::unwrap_or_default),
        };
        let service = match records.service() {
            Ok(service) => service,
            Err(reason) => {
                let name = resolved.fullname.escape_debug();
                tracing::debug!("multicast DNS: {name} is not used: {reason}");
                // It may have been usable before.
                let known = instance_of(&resolved.fullname);
                return known.is_some_and(|instance| self.services.remove(instance).is_some());
            }
        };
        if let Some(known) = self.services.get_mut(&service.instance) {
            let differs = *known != service;
            *known = service;
            return differs;
        }
        if self.services.len() >= MAX_SERVICES {
            self.warn(&format!(
                "more than {MAX_SERVICES} discovery controllers announce themselves: the others are left out"
            ));
            return false;
        }
        self.services.insert(service.instance.clone(), service);
        true
    }

    /// Starts the search anew when the library holds too many records; gives whether it did. It has no limit itself.
    fn check_records(&mut self) -> Result<bool, MdnsError> {
        if let Some(metrics) = self.search.metrics.as_ref().and_then(|it| it.try_recv().ok()) {
            self.search.metrics = None;
            let cached = metrics.iter().filter(|(name, _)| name.starts_with("cached-"));
            if cached.map(|(_, count)| *count).sum::<i64>() > MAX_CACHED_RECORDS {
                self.restart("the network has sent more records than can be believed")?;
                return Ok(true);
            }
        }
        if self.checked_at.elapsed() >= CHECK_INTERVAL && self.search.metrics.is_none() {
            self.checked_at = Instant::now();
            // If it is too busy to answer, it is asked again.
            self.search.metrics = self.search.daemon.get_metrics().ok();
        }
        Ok(false)
    }

    fn restart(&mut self, reason: &str) -> Result<(), MdnsError> {
        self.warn(&format!("the search for discovery controllers begins anew: {reason}"));
        self.services.clear();
        // The reason may come back at once.
        std::thread::sleep(RESTART_PAUSE);
        self.search = Search::start()?;
        Ok(())
    }

    fn warn(&mut self, text: &str) {
        if self.warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL) {
            self.warned_at = Some(Instant::now());
            tracing::warn!("multicast DNS: {text}");
        }
    }
}
