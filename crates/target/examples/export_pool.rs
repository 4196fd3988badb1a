//! Exports a pool in memory on loopback until its standard input ends: hosts make namespaces of it.
//!
//! ```text
//! cargo run --release -p raceline-target --example export_pool -- [SIZE] [ADDR:PORT]
//! nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2026-01.io.raceline:example
//! nvme create-ns /dev/nvme0 --nsze=65536 --ncap=65536 --flbas=0
//! nvme attach-ns /dev/nvme0 --namespace-id=1 --controllers=1
//! ```

use std::error::Error;
use std::io::Read;
use std::sync::Arc;

use raceline_proto::nvme::Nqn;
use raceline_target::{
    HostAccess, PoolConfig, PoolMap, PoolStore, SubsystemConfig, Target, TargetConfig,
};

/// Keeps no map: a pool in memory ends with its process.
struct Nowhere;

impl PoolStore for Nowhere {
    fn save(&self, _subsystem: &Nqn, map: &PoolMap) -> std::io::Result<()> {
        println!("{} namespaces", map.namespaces.len());
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let size = args.next().unwrap_or_else(|| "256M".into());
    let address = args.next().unwrap_or_else(|| "127.0.0.1:4420".into());

    let nqn = Nqn::new("nqn.2026-01.io.raceline:example")?;
    let identity = raceline_bdev::Identity::of_this_machine();
    let bdev = raceline_bdev::open(&format!("ram:{size}").parse()?, &identity)?;

    let target = Target::start(TargetConfig::default())?;
    target.add_subsystem(SubsystemConfig::new(nqn.clone()))?;
    target.set_pool(
        &nqn,
        PoolConfig {
            bdev,
            map: PoolMap::new(PoolMap::DEFAULT_UNIT_BYTES),
            store: Arc::new(Nowhere),
            managers: HostAccess::Any,
        },
    )?;
    let address = target.add_listener(address.parse()?)?;
    println!("{nqn} with a pool of {size} on {address}; end of input stops it");

    std::io::stdin().read_to_end(&mut Vec::new())?;
    target.shutdown()?;
    Ok(())
}
