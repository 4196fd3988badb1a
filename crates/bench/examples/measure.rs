//! Measures 4 KiB random reads of a remote namespace at depth 32 for five seconds.
//!
//! ```text
//! cargo run --release -p raceline-bench --example measure -- 127.0.0.1:4420 NQN
//! ```

use std::error::Error;
use std::time::Duration;

use raceline_bench::RwMode;
use raceline_bench::engine::{EngineConfig, run};
use raceline_host::HostConfig;
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_reactor::{Backend, Mode};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(address), Some(subnqn)) = (arguments.next(), arguments.next()) else {
        return Err("usage: measure ADDRESS:PORT NQN".into());
    };
    let hostnqn = Nqn::new("nqn.2014-08.org.nvmexpress:uuid:7d2ab6ae-8f2c-4f6e-8a55-5b6e3c1d9f20")?;
    let hostid = HostId(*b"raceline-measure");
    let config = EngineConfig {
        host: HostConfig::new(address.parse()?, Nqn::new(&subnqn)?, hostnqn, hostid),
        accel: None,
        nsid: NamespaceId(1),
        mode: RwMode::RandRead,
        mixed_read_percent: 100,
        io_bytes: 4096,
        depth: 32,
        offset_bytes: 0,
        size_bytes: None,
        seed: 1,
        verify: false,
        rate_iops: None,
        ramp: Duration::from_secs(1),
        runtime: Duration::from_secs(5),
        polled: false,
        cores: Vec::new(),
        reactor_mode: Mode::default(),
        backend: Backend::Auto,
    };
    let outcome = run(&config, &mut |_| true)?;
    if let Some(error) = outcome.error {
        return Err(format!("{error:?}").into());
    }
    let count = f64::from(u32::try_from(outcome.read.count())?);
    println!("{:.0} reads/s", count / outcome.measured.as_secs_f64());
    Ok(())
}
