//! The kernel's host on `raceline serve`: it manages namespaces of a pool, and is told of changes.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::{NQN, Part, free_port, guest, script, watch};
use crate::raceline::Tree;
use crate::serve::Serve;
use crate::step::Outcome;

/// The size of the pool; the guest's script knows it.
const POOL_BYTES: u64 = 256 << 20;

/// The guest reaches this machine's loopback at this address.
const ADDRESS_IN_GUEST: &str = "10.0.2.2";

/// A daemon with a state directory, and the calls to it.
struct Managed<'a> {
    tree: &'a Tree,
    dir: &'a Path,
    daemon: Option<Serve>,
    /// The ports of the subsystem with the pool, and of another target.
    ports: [String; 2],
}

/// Runs the guest's script.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let dir = tree.scratch("interop-manage")?;
    let ports = [free_port()?.to_string(), free_port()?.to_string()];
    let mut managed = Managed { tree, dir: &dir, daemon: None, ports };
    managed.start()?;
    managed.set_up()?;
    let mut guest = guest(tree, image, Part::Manage)
        .args(["-e", &format!("PORT={}", managed.ports[0])])
        .args(["-e", &format!("OTHER_PORT={}", managed.ports[1])])
        .args([image, &script(tree, Part::Manage)])
        .start()?;
    let outcome = watch(&mut guest, |request| managed.request(request));
    let health = managed.daemon.take().context("no daemon")?.stop();
    std::fs::remove_dir_all(&dir)?;
    let outcome = outcome?;
    health.context("the daemon after the guest's checks")?;
    Ok(outcome)
}

impl Managed<'_> {
    fn start(&mut self) -> Result<()> {
        let state = self.dir.join("state").display().to_string();
        self.daemon = Some(Serve::start(self.tree, self.dir, &["--state-dir", &state])?);
        Ok(())
    }

    fn rpc(&self, line: &str) -> Result<()> {
        let daemon = self.daemon.as_ref().context("no daemon")?;
        let words: Vec<&str> = line.split_whitespace().collect();
        daemon.rpc(self.tree, &words)?.limit(60).check()?;
        Ok(())
    }

    fn listen(&self, nqn: &str, port: &str, more: &str) -> Result<()> {
        self.rpc(&format!("nvmf_subsystem_add_listener {nqn} -t tcp -a 127.0.0.1 -s {port} {more}"))
    }

    fn set_up(&self) -> Result<()> {
        let file = self.dir.join("pool.img");
        std::fs::File::create(&file)?.set_len(POOL_BYTES)?;
        self.rpc("nvmf_create_transport -t tcp")?;
        self.rpc(&format!("bdev_uring_create {} pool 512", file.display()))?;
        self.rpc(&format!("nvmf_create_subsystem {NQN} -a"))?;
        self.rpc(&format!("nvmf_subsystem_add_pool nqn={NQN} bdev_name=pool"))?;
        self.listen(NQN, &self.ports[0], "")?;
        self.rpc("bdev_malloc_create -b guest 4 512")
    }

    fn request(&mut self, request: &str) -> Result<()> {
        match request {
            "restart" => {
                self.daemon.take().context("no daemon")?.kill();
                self.start()
            }
            "add-ns" => self.rpc(&format!("nvmf_subsystem_add_ns {NQN} guest -n 20")),
            "remove-ns" => self.rpc(&format!("nvmf_subsystem_remove_ns {NQN} 20")),
            "add-subsystem" => {
                self.rpc(&format!("nvmf_create_subsystem {NQN}-two -a"))?;
                self.listen(&format!("{NQN}-two"), &self.ports[0], "")
            }
            "central" => self.rpc("nvmf_discovery_set_central enable=true"),
            "registered" => self.check_registered(true),
            "deregistered" => self.check_registered(false),
            "add-referral" => self.refer(),
            other => bail!("the guest asks for '{other}'"),
        }
    }

    /// Whether the guest, and nobody else, has registered as a host.
    fn check_registered(&self, is_wanted: bool) -> Result<()> {
        let daemon = self.daemon.as_ref().context("no daemon")?;
        let shown = daemon.call(self.tree, &["nvmf_discovery_get_registrations"])?;
        let registered = shown["registered"].as_array().context("no list")?;
        let hosts = registered.iter().filter(|entity| entity["kind"] == "host").count();
        ensure!(
            registered.len() == hosts && hosts == usize::from(is_wanted),
            "registered are {registered:?}"
        );
        Ok(())
    }

    /// Makes another target of the daemon, on a port of its own, and a referral to it. Hosts are told
    /// the address over which they have connected.
    fn refer(&self) -> Result<()> {
        let (nqn, port) = (format!("{NQN}-other"), &self.ports[1]);
        self.rpc("nvmf_create_target -n other")?;
        self.rpc("nvmf_create_transport -t tcp -g other")?;
        self.rpc("bdev_malloc_create -b elsewhere 4 512")?;
        self.rpc(&format!("nvmf_create_subsystem {nqn} -a -t other"))?;
        self.rpc(&format!("nvmf_subsystem_add_ns {nqn} elsewhere -t other"))?;
        self.listen(&nqn, port, "-p other")?;
        self.rpc(&format!(
            "nvmf_discovery_add_referral -t tcp -a {ADDRESS_IN_GUEST} -f ipv4 -s {port}"
        ))
    }
}
