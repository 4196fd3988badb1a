//! Exports a RAM disk on loopback until its standard input ends.
//!
//! ```text
//! cargo run --release -p raceline-target --example export_ram -- [SIZE] [ADDR:PORT]
//! nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2026-01.io.raceline:example
//! ```

use std::error::Error;
use std::io::Read;

use raceline_proto::nvme::Nqn;
use raceline_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let size = args.next().unwrap_or_else(|| "64M".into());
    let address = args.next().unwrap_or_else(|| "127.0.0.1:4420".into());

    let nqn = Nqn::new("nqn.2026-01.io.raceline:example")?;
    let identity = raceline_bdev::Identity::of_this_machine();
    let bdev = raceline_bdev::open(&format!("ram:{size}").parse()?, &identity)?;

    let target = Target::start(TargetConfig::default())?;
    let serial = "EXAMPLE1".into();
    target.add_subsystem(SubsystemConfig { serial, ..SubsystemConfig::new(nqn.clone()) })?;
    let nsid = target.add_namespace(&nqn, NamespaceConfig::new(bdev))?;
    let address = target.add_listener(address.parse()?)?;
    println!("{nqn} namespace {nsid} on {address}; end of input stops it");

    std::io::stdin().read_to_end(&mut Vec::new())?;
    target.shutdown()?;
    Ok(())
}
