//! Gives the cores the model: all of it when they start, and each change.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_bdev::SharedBdev;
use raceline_proto::controller::HostAccess;
use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_target::{
    HostDemands, NamespaceConfig, SubsystemConfig, Target, TargetConfig, TargetError, Throttle,
    Visibility,
};

use super::pool::pool_config;
use super::reservations::{Places, places_of};
use super::{Namespace, Subsystem, SubsystemOptions, TransportOptions};
use crate::manager::{Manager, ManagerError, Model, qos};

/// How long readers of a target may hold it while it is being stopped.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// The part of a transport's options that the cores need.
pub(super) fn target_config(options: &TransportOptions, manager: &Manager) -> TargetConfig {
    let first_generation = manager.first_generation();
    let manager = manager.config();
    TargetConfig {
        cores: manager.cores.clone(),
        accel: Some(manager.accel.clone()),
        socket_priority: options.sock_priority,
        max_io_bytes: options.max_io_size,
        in_capsule_bytes: options.in_capsule_data_size,
        // One entry of a queue is always empty, so the requested depth needs one more.
        max_queue_entries: options.max_queue_depth.saturating_add(1),
        max_io_queues: options.max_io_qpairs_per_ctrlr,
        max_admin_entries: options.max_aq_depth,
        keep_alive_granularity: options.kas,
        min_keep_alive_ms: options.min_kato,
        c2h_success: options.c2h_success,
        ack_timeout: (options.ack_timeout != 0)
            .then(|| Duration::from_millis(options.ack_timeout.into())),
        first_generation,
        run: manager.run,
        ..TargetConfig::default()
    }
}

pub(super) fn subsystem_config(
    nqn: &Nqn,
    options: &SubsystemOptions,
    hosts: &[Nqn],
) -> SubsystemConfig {
    SubsystemConfig {
        serial: options.serial_number.clone(),
        model: options.model_number.clone(),
        hosts: access(options.allow_any_host, hosts),
        max_namespaces: options.max_namespaces,
        controller_ids: options.min_cntlid..=options.max_cntlid,
        ana_reporting: options.ana_reporting,
        security: options.security,
        ..SubsystemConfig::new(nqn.clone())
    }
}

fn access(any: bool, hosts: &[Nqn]) -> HostAccess {
    if any { HostAccess::Any } else { HostAccess::List(hosts.to_vec()) }
}

pub(super) fn namespace_config(
    nsid: u32,
    namespace: &Namespace,
    bdev: SharedBdev,
    (reservations, protection): Places,
    throttle: Option<Throttle>,
) -> NamespaceConfig {
    NamespaceConfig {
        throttle,
        nsid: Some(NamespaceId(nsid)),
        uuid: Some(*namespace.uuid.as_bytes()),
        nguid: namespace.nguid,
        eui64: (namespace.eui64 != [0; 8]).then_some(namespace.eui64),
        visibility: match &namespace.hosts {
            None => Visibility::All,
            Some(hosts) => Visibility::Hosts(hosts.as_slice().into()),
        },
        ana_group: namespace.anagrpid,
        reservations,
        protection,
        ..NamespaceConfig::new(bdev)
    }
}

/// Gives new cores everything that the model has.
pub(super) fn populate(
    manager: &Manager,
    cores: &Target,
    name: &str,
    model: &Model,
) -> Result<(), ManagerError> {
    let target = model.nvmf.target(name)?;
    let options = &model.target_options;
    cores.set_retry_delays(options.retry_delays)?;
    cores.set_algorithms(options.algorithms.clone())?;
    cores.set_discovery_filter(target.filter.unwrap_or(options.filter).into())?;
    for (nqn, subsystem) in &target.subsystems {
        let Subsystem { options, hosts, namespaces, .. } = subsystem;
        // The list of hosts is kept beside `allow_any_host` and counts when that is turned off.
        cores.add_subsystem(subsystem_config(nqn, options, &[]))?;
        for host in hosts {
            let (keys, security) = (host.keys.for_target(), host.demands(options));
            cores.add_host_with(nqn, &host.nqn, HostDemands { keys, security })?;
        }
        for (nsid, namespace) in namespaces.iter().filter(|(_, ns)| ns.missing.is_none()) {
            let bdev = model.bdev(&namespace.bdev_name)?;
            let places = places_of(manager, nqn, namespace)?;
            let throttle = qos::throttle(cores, Some(bdev.limits))?;
            let device = Arc::clone(&bdev.device);
            let config = namespace_config(*nsid, namespace, device, places, throttle);
            cores.add_namespace(nqn, config)?;
        }
        let limits = qos::throttle(cores, Some(subsystem.limits))?;
        if limits.is_some() {
            cores.set_subsystem_limits(nqn, limits)?;
        }
        for (host, weight) in &subsystem.weights {
            cores.set_host_weight(nqn, host, Some(*weight))?;
        }
        if let Some(pool) = subsystem.pool.as_ref().filter(|pool| pool.missing.is_none()) {
            let bdev = model.bdev(&pool.bdev_name)?;
            cores.set_pool(nqn, pool_config(manager, name, pool, Arc::clone(&bdev.device)))?;
        }
    }
    qos::show_host_limits(cores, &target.host_limits)?;
    if target.is_central {
        cores.set_central(true)?;
    }
    for referral in &target.referrals {
        cores.add_referral(referral.to_target()?)?;
    }
    Ok(())
}

/// Stops cores that receive nothing new any more. Blocks until commands in flight have finished.
///
/// # Errors
/// When a core does not end in time.
pub(crate) fn stop(mut cores: Arc<Target>) -> Result<(), TargetError> {
    let give_up = Instant::now() + RELEASE_TIMEOUT;
    loop {
        match Arc::try_unwrap(cores) {
            Ok(target) => return target.shutdown(),
            // Another thread is reading its counters, which is short.
            Err(shared) if Instant::now() < give_up => cores = shared,
            Err(_) => return Err(TargetError::Unresponsive(0)),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
