//! `thread_set_cpumask` and those of `framework_*` that are about cores.

use std::fs::File;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, Mode, OFlags, fcntl_lock, open};
use serde::Deserialize;
use serde_json::{Value, json};

use super::thread::threads;
use crate::cores::{LOCK_DIRECTORY, parse_cores};
use crate::error::{RpcError, code};
use crate::method::{Call, Registry, States};
use crate::params::{NoParams, refuse};

pub(super) fn register(registry: &mut Registry) {
    registry.change("thread_set_cpumask", States::Runtime, set_mask);
    registry.change("framework_monitor_context_switch", States::Runtime, monitor);
    registry.change("framework_enable_cpumask_locks", States::Both, enable_locks);
    registry.change("framework_disable_cpumask_locks", States::Both, disable_locks);
    registry.read("framework_get_pci_devices", States::Runtime, pci_devices);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetMask {
    id: u64,
    cpumask: String,
}

/// A thread has its core for life: a mask that contains the core changes nothing, any other is refused.
fn set_mask(call: &Call<'_>, params: SetMask) -> Result<bool, RpcError> {
    let cores = parse_cores(&params.cpumask).map_err(RpcError::invalid_params)?;
    let threads = threads(call.manager);
    let found = threads.iter().find(|thread| thread.id as u64 == params.id);
    let thread = found.ok_or_else(|| {
        let detail = format!("there is no thread {}: thread_get_stats lists them", params.id);
        RpcError::errno(libc::ENOENT).because(detail)
    })?;
    match thread.cpu {
        Some(cpu) if !cores.contains(&cpu) => Err(RpcError::errno(libc::EINVAL).because(format!(
            "{} stays on core {cpu}, where it was started: choose cores with serve -m",
            thread.name
        ))),
        Some(_) => Ok(true),
        None => Err(RpcError::errno(libc::EINVAL).because(format!(
            "{} is not bound to any core: choose cores with serve -m",
            thread.name
        ))),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Monitor {
    enabled: Option<bool>,
}

/// Context switches are not monitored: `false` is the fact, `true` is refused.
fn monitor(_call: &Call<'_>, params: Monitor) -> Result<Value, RpcError> {
    refuse(&[("enabled", params.enabled == Some(true))])?;
    Ok(json!({ "enabled": false }))
}

fn lock_file(core: usize) -> PathBuf {
    PathBuf::from(format!("{LOCK_DIRECTORY}/spdk_cpu_lock_{core:03}"))
}

/// Locks all cores or none against other programs that use the same locks, SPDK's among them.
fn enable_locks(call: &Call<'_>, _params: NoParams) -> Result<bool, RpcError> {
    let mut held = call.manager.core_locks();
    if !held.is_empty() {
        return Ok(true);
    }
    let mut locks = Vec::new();
    for &core in &call.manager.config().cores {
        let path = lock_file(core);
        let failed = |what: &str, error: rustix::io::Errno| {
            let text = format!("Failed to claim CPU core: {core}");
            let detail = format!("{}: {what}: {error}", path.display());
            RpcError::new(code::INTERNAL_ERROR, text).because(detail)
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR);
        let file = file.map_err(|error| failed("it cannot be opened", error))?;
        let locked = fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
        locked.map_err(|error| failed("another program has it", error))?;
        locks.push(File::from(file));
    }
    *held = locks;
    Ok(true)
}

fn disable_locks(call: &Call<'_>, _params: NoParams) -> Result<bool, RpcError> {
    call.manager.core_locks().clear();
    Ok(true)
}

/// PCI devices that the program itself drives: none, the kernel drives all.
fn pci_devices(_call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::manager::{Manager, ManagerConfig};
    use crate::role::Peer;

    fn call(manager: &Manager, method: &str, params: &Value) -> Result<Value, RpcError> {
        let raw = serde_json::value::to_raw_value(params).unwrap();
        let params = (!params.is_null()).then_some(&*raw);
        Registry::new().call(manager, Peer::this_process(), method, params)
    }

    #[test]
    fn a_thread_has_its_core_for_life() {
        let cores = raceline_reactor::affinity::allowed_cores().unwrap();
        let cores: Vec<usize> = cores.into_iter().take(1).collect();
        let config = ManagerConfig { cores: cores.clone(), ..ManagerConfig::default() };
        let manager = Manager::new(config, Arc::new(Registry::new()));
        manager.start();
        call(&manager, "nvmf_create_transport", &json!({ "trtype": "tcp" })).unwrap();
        let set = |id: u64, mask: String| {
            call(&manager, "thread_set_cpumask", &json!({ "id": id, "cpumask": mask }))
        };
        assert_eq!(set(1, format!("[{}]", cores[0])), Ok(json!(true)));
        assert_eq!(set(1, format!("[{}]", cores[0] + 1)).unwrap_err().code, -libc::EINVAL);
        assert_eq!(set(9, "0x1".to_owned()).unwrap_err().code, -libc::ENOENT);
        assert_eq!(set(1, "none".to_owned()).unwrap_err().code, code::INVALID_PARAMS);
        manager.shut_down().unwrap();
    }

    #[test]
    fn what_cannot_be_is_refused_and_what_is_so_is_taken() {
        let manager = Manager::new(ManagerConfig::default(), Arc::new(Registry::new()));
        let driver = |name: &str| call(&manager, "accel_set_driver", &json!({ "name": name }));
        assert_eq!(driver("software"), Ok(json!(true)));
        assert_eq!(driver("dpdk_cryptodev").unwrap_err().code, -libc::ENODEV);
        manager.start();
        let monitor = |params: &Value| call(&manager, "framework_monitor_context_switch", params);
        assert_eq!(monitor(&json!({})), Ok(json!({ "enabled": false })));
        assert!(monitor(&json!({ "enabled": true })).is_err());
        assert_eq!(call(&manager, "framework_get_pci_devices", &Value::Null), Ok(json!([])));
        // Without pinned cores there is nothing to lock.
        assert_eq!(call(&manager, "framework_enable_cpumask_locks", &Value::Null), Ok(json!(true)));
    }
}
