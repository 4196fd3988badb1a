//! Does I/Os of one shape in memory, for `cargo xtask cost` to count their instructions.

mod asked;
mod device;
mod host;
mod memory_io;
mod shape;
mod world;

use anyhow::Result;
use clap::Parser;
use raceline_reactor::flow::Machine;

use crate::shape::Case;
use crate::world::World;

/// Does I/Os of one shape between the production host (or initiator) and the production target, in memory.
#[derive(Parser)]
#[command(name = "cost")]
struct Arguments {
    /// Side and shape, such as target-4k-read-32.
    #[arg(required_unless_present = "list")]
    case: Option<Case>,
    /// Name the cases.
    #[arg(long)]
    list: bool,
}

/// Caches that hold every device of a case: whether copies go past them must not depend on this machine.
const CACHES: Machine = Machine { llc_bytes: 1 << 30, ..Machine::ASSUMED };

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    CACHES.set_current();
    match arguments.case {
        Some(case) => {
            let rounds = case.shape.count / case.shape.depth;
            println!("{}", World::start(case)?.run(rounds)?);
        }
        None => Case::all().for_each(|case| println!("{}", case.name())),
    }
    Ok(())
}
