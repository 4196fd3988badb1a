//! Serves devices by iSCSI, and the same devices by NVMe/TCP, on loopback until its standard input ends.
//!
//! ```text
//! cargo run --release -p raceline-target --example iscsi -- [ADDR:PORT] [DEVICE]...
//! iscsi-ls -s iscsi://127.0.0.1:3260
//! ```

use std::error::Error;
use std::io::Read;

use raceline_bdev::{Identity, SharedBdev};
use raceline_proto::nvme::Nqn;
use raceline_target::{
    InitiatorGroupConfig, LunConfig, NamespaceConfig, PortalGroupConfig, PortalMap,
    SubsystemConfig, Target, TargetConfig, TargetNodeConfig,
};

const IQN: &str = "iqn.2026-01.io.raceline:example";

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:3260".into());
    let mut specs: Vec<String> = args.collect();
    if specs.is_empty() {
        specs.push("ram:64M".into());
    }
    let identity = Identity::of_this_machine();
    let devices: Vec<SharedBdev> = specs
        .iter()
        .map(|spec| Ok(raceline_bdev::open(&spec.parse()?, &identity)?))
        .collect::<Result<_, Box<dyn Error>>>()?;

    let config =
        TargetConfig { mode: raceline_reactor::Mode::Interrupt, ..TargetConfig::default() };
    let target = Target::start(config)?;
    let iscsi = target.iscsi();
    iscsi.set_initiator_group(InitiatorGroupConfig::any(1))?;
    let group =
        PortalGroupConfig { wait: true, ..PortalGroupConfig::new(1, vec![address.parse()?]) };
    iscsi.add_portal_group(group)?;
    let maps = vec![PortalMap { portal_group: 1, initiator_group: 1 }];
    let luns: Vec<LunConfig> = devices.iter().cloned().map(LunConfig::new).collect();
    let node = TargetNodeConfig { maps, luns, ..TargetNodeConfig::new(IQN) };
    iscsi.add_target_node(node)?;
    let portals = iscsi.start_portal_group(1)?;

    let nqn = Nqn::new("nqn.2026-01.io.raceline:example")?;
    target.add_subsystem(SubsystemConfig::new(nqn.clone()))?;
    for device in devices {
        target.add_namespace(&nqn, NamespaceConfig::new(device))?;
    }
    let nvme = target.add_listener("127.0.0.1:0".parse()?)?;
    println!("{IQN} on {portals:?}, {nqn} on {nvme}; end of input stops it");

    std::io::stdin().read_to_end(&mut Vec::new())?;
    target.shutdown()?;
    Ok(())
}
