//! Devices that hosts divide into namespaces: `nvmf_subsystem_{add,remove,get}_pool`. SPDK has none.

use serde_json::{Value, json};

use crate::error::RpcError;
use crate::manager::nvmf::PoolParams;
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.change("nvmf_subsystem_add_pool", States::Runtime, add);
    registry.change("nvmf_subsystem_remove_pool", States::Runtime, remove);
    registry.read("nvmf_subsystem_get_pool", States::Runtime, get);
}

fn add(call: &Call<'_>, params: PoolParams) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name.clone());
    super::check_target(call.manager, &target)?;
    let nqn = super::nqn(&params.nqn)?;
    let pool = params.pool().map_err(super::invalid)?;
    call.manager.change(|change| change.add_pool(&target, &nqn, pool)).map_err(super::invalid)?;
    Ok(true)
}

fn remove(call: &Call<'_>, params: super::subsystem::Query) -> Result<bool, RpcError> {
    let (target, nqn) = params.names(call)?;
    call.manager.change(|change| change.remove_pool(&target, &nqn)).map_err(super::invalid)?;
    Ok(true)
}

/// A list with the pool of a subsystem; empty if it has none.
fn get(call: &Call<'_>, params: super::subsystem::Query) -> Result<Vec<Value>, RpcError> {
    let model = call.manager.model();
    let (target, nqn) = params.find(&model)?;
    let Some(pool) = target.subsystems.get(&nqn).and_then(|it| it.pool.as_ref()) else {
        return Ok(Vec::new());
    };
    let described = serde_json::to_value(PoolParams::of(&nqn, pool));
    let mut described = described.map_err(RpcError::invalid_params)?;
    let units = pool.map.namespaces.iter().map(|ns| ns.units.end - ns.units.start);
    let used_bytes = units.sum::<u64>() * pool.map.unit_bytes;
    if let Some(members) = described.as_object_mut() {
        if let Some(bdev) = model.bdevs.find(&pool.bdev_name) {
            let info = bdev.device.info();
            let bytes = info.block_count.saturating_mul(info.block_size.into());
            let total_bytes = bytes / pool.map.unit_bytes * pool.map.unit_bytes;
            let free_bytes = total_bytes.saturating_sub(used_bytes);
            members.insert("total_bytes".to_owned(), total_bytes.into());
            members.insert("free_bytes".to_owned(), free_bytes.into());
        }
        for name in ["managers", "namespaces"] {
            members.entry(name).or_insert(json!([]));
        }
        if let Some(reason) = &pool.missing {
            members.insert("missing".to_owned(), reason.as_str().into());
        }
    }
    Ok(vec![described])
}
