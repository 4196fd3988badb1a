//! Prints docs/RPC.md; `cargo xtask rpc-docs` writes it.

use raceline_control::method::Registry;
use raceline_control::reference;

fn main() {
    print!("{}", reference::page(&Registry::new()));
}
