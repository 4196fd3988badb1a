//! The kernel's multipath over two listeners of `raceline serve`, whose ANA states change and which go and come.

use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{NQN, Part, free_port, guest, script, watch};
use crate::raceline::Tree;
use crate::serve::Serve;
use crate::step::Outcome;

/// The size of the namespace, in MiB.
const NAMESPACE_MIB: u64 = 64;

/// A daemon with two listeners, and the calls to it.
struct Paths<'a> {
    tree: &'a Tree,
    daemon: Serve,
    ports: [u16; 2],
}

/// Runs the guest's script.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let dir = tree.scratch("interop-paths")?;
    let ports = [free_port()?, free_port()?];
    let state = dir.join("state").display().to_string();
    let daemon = Serve::start(tree, &dir, &["--state-dir", &state])?;
    let paths = Paths { tree, daemon, ports };
    paths.set_up()?;
    let mut guest = guest(tree, image, Part::Paths)
        .args(["-e", &format!("PORT_A={}", ports[0])])
        .args(["-e", &format!("PORT_B={}", ports[1])])
        .args([image, &script(tree, Part::Paths)])
        .start()?;
    let outcome = watch(&mut guest, |request| paths.request(request));
    let health = paths.daemon.stop();
    std::fs::remove_dir_all(&dir)?;
    let outcome = outcome?;
    health.context("the daemon after the guest's checks")?;
    Ok(outcome)
}

impl Paths<'_> {
    fn rpc(&self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.daemon.rpc(self.tree, &words)?.limit(60).check()?;
        Ok(())
    }

    fn set_up(&self) -> Result<()> {
        self.rpc("nvmf_create_transport -t tcp")?;
        self.rpc(&format!("bdev_malloc_create -b shared {NAMESPACE_MIB} 512"))?;
        self.rpc(&format!("nvmf_create_subsystem {NQN} -a -r"))?;
        self.rpc(&format!("nvmf_subsystem_add_ns {NQN} shared"))?;
        self.ports.iter().try_for_each(|port| self.listener("add", *port, ""))
    }

    fn listener(&self, what: &str, port: u16, more: &str) -> Result<()> {
        let address = format!("-t tcp -a 127.0.0.1 -s {port}");
        match what {
            "add" | "remove" => {
                self.rpc(&format!("nvmf_subsystem_{what}_listener {NQN} {address}"))
            }
            _ => self.rpc(&format!("nvmf_subsystem_listener_set_ana_state {NQN} {address} {more}")),
        }
    }

    fn request(&self, request: &str) -> Result<()> {
        let (word, argument) = request.split_once(' ').unwrap_or((request, ""));
        let port = match argument {
            "a" => self.ports[0],
            "b" => self.ports[1],
            group if word == "move" => {
                return self.rpc(&format!("nvmf_subsystem_set_ns_ana_group {NQN} 1 {group}"));
            }
            other => bail!("the guest asks for '{word}' of '{other}'"),
        };
        match word {
            "cut" => self.listener("remove", port, ""),
            "mend" => self.listener("add", port, ""),
            "optimized" | "non_optimized" | "inaccessible" => {
                self.listener("state", port, &format!("-n {word}"))
            }
            other => bail!("the guest asks for '{other}'"),
        }
    }
}
