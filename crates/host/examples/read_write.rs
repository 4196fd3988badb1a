//! Writes a block of a remote namespace, reads it back and flushes:
//! `cargo run -p raceline-host --example read_write -- 127.0.0.1:4420 NQN`.
//!
//! It overwrites block 0 of namespace 1.

use std::error::Error;
use std::net::SocketAddr;

use raceline_host::HostConfig;
use raceline_host::blocking::Host;
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(address), Some(subnqn)) = (arguments.next(), arguments.next()) else {
        return Err("usage: read_write ADDRESS:PORT NQN".into());
    };
    let address: SocketAddr = address.parse()?;
    let hostnqn = Nqn::new("nqn.2014-08.org.nvmexpress:uuid:2f7a0e5c-6f0d-4a53-9d0c-6b1b1f7a3f10")?;
    let hostid = HostId(*b"raceline-example");

    let host = Host::connect(HostConfig::new(address, Nqn::new(&subnqn)?, hostnqn, hostid))?;
    let nsid = NamespaceId(1);
    let Some(namespace) = host.namespace(nsid) else {
        return Err("the subsystem has no namespace 1".into());
    };
    println!(
        "{} ({}): namespace 1 has {} blocks of {} bytes",
        host.controller().model,
        host.controller().serial,
        namespace.block_count,
        namespace.block_size,
    );

    let block: Vec<u8> = (0u8..=255).cycle().take(usize::try_from(namespace.block_size)?).collect();
    host.write(nsid, 0, &block, false)?;
    host.flush(nsid)?;
    let mut back = vec![0; block.len()];
    host.read(nsid, 0, &mut back)?;
    if back != block {
        return Err("block 0 is not what was written".into());
    }
    println!("block 0 written, flushed and read back");
    host.disconnect();
    Ok(())
}
