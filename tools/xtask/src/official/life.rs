//! The life of a target as an official client scripts it, from its start to its end.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Client, Release};
use crate::raceline::{Tree, host, iops, perf_job};
use crate::serve::Serve;
use crate::step::Checks;

const NQN: &str = "nqn.2016-06.io.spdk:cnode1";
const OTHER_NQN: &str = "nqn.2016-06.io.spdk:cnode2";
const FRIEND: &str = "nqn.2014-08.org.nvmexpress:friend";

/// A part of the life: its name, the methods that it needs, and its checks.
type Part<'a> = (&'static str, &'static [&'static str], fn(&mut Life<'a>) -> Result<()>);

/// All work of one release on one daemon.
pub(super) struct Life<'a> {
    tree: &'a Tree,
    release: &'a Release,
    program: &'a Path,
    dir: PathBuf,
    daemon: Serve,
    methods: Vec<String>,
}

/// Runs all parts; each part is a check, and needs the parts before it.
pub(super) fn run<'a>(
    tree: &'a Tree,
    release: &'a Release,
    program: &'a Path,
    checks: &mut Checks,
) {
    let name = |part: &str| format!("{}-{part}", release.version);
    let mut life = match Life::begin(tree, release, program) {
        Ok(life) => life,
        Err(error) => return checks.not_ok(&name("begin"), &format!("{error:#}")),
    };
    let parts: [Part<'a>; 18] = [
        ("start", &[], Life::start),
        ("bdevs", &["bdev_aio_create", "bdev_split_create"], Life::bdevs),
        ("export", &[], Life::export),
        ("input-output", &["bdev_get_iostat"], Life::input_output),
        ("hosts", &[], Life::hosts),
        ("keys", &["keyring_file_add_key", "nvmf_subsystem_set_keys"], Life::keys),
        ("controllers", &["nvmf_subsystem_get_controllers"], Life::controllers),
        ("visibility", &["nvmf_ns_add_host"], Life::visibility),
        ("referrals", &["nvmf_discovery_add_referral"], Life::referrals),
        ("discovery", &["bdev_nvme_start_discovery"], Life::discovery),
        ("multicast-dns", &["bdev_nvme_start_mdns_discovery"], Life::multicast_dns),
        ("injected-errors", &["bdev_nvme_add_error_injection"], Life::injected_errors),
        ("iscsi", &["iscsi_create_target_node"], Life::iscsi),
        ("disks", &["vhost_create_blk_controller"], Life::disks),
        ("errors", &[], Life::errors),
        ("script-and-batch", &[], Life::scripts),
        ("save-and-load", &["framework_get_config"], Life::save_and_load),
        ("deletes", &[], Life::deletes),
    ];
    for (part, needs, action) in parts {
        match needs.iter().find(|method| !life.has(method)) {
            Some(method) => checks.skip(&name(part), &format!("this daemon has no {method}")),
            None => checks.run(&name(part), || action(&mut life).and_then(|()| life.healthy())),
        }
    }
    checks.run(&name("end"), || life.end());
}

/// The arguments with which a host verb reaches a listener on 127.0.0.1.
pub(super) fn address(port: &str, nqn: &str) -> Vec<String> {
    ["-a", "127.0.0.1", "-s", port, "-n", nqn].map(str::to_owned).to_vec()
}

/// The port of a subsystem's first listener.
pub(super) fn port_of(subsystem: &Value) -> Result<String> {
    let port = subsystem["listen_addresses"][0]["trsvcid"].as_str();
    Ok(port.with_context(|| format!("no port in {subsystem}"))?.to_owned())
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

impl<'a> Life<'a> {
    fn begin(tree: &'a Tree, release: &'a Release, program: &'a Path) -> Result<Self> {
        let dir = tree.scratch(&format!("spdk-client-{}", release.version))?;
        let daemon = Serve::start(tree, &dir, &["--wait-for-rpc", "--mdns"])?;
        let listed = daemon.call(tree, &["rpc_get_methods"])?;
        Ok(Self { tree, release, program, dir, daemon, methods: strings(&listed) })
    }

    pub(super) fn client(&self) -> Client<'_> {
        Client { program: self.program, socket: &self.daemon.socket }
    }

    /// The version of the client.
    pub(super) fn version(&self) -> &str {
        self.release.version
    }

    fn has(&self, method: &str) -> bool {
        self.methods.iter().any(|known| known == method)
    }

    fn healthy(&mut self) -> Result<()> {
        self.daemon.healthy()
    }

    fn subsystem(&self, nqn: &str) -> Result<Value> {
        let all = self.client().json(&["nvmf_get_subsystems"])?;
        let found = all.as_array().into_iter().flatten().find(|one| one["nqn"] == nqn);
        found.cloned().with_context(|| format!("{nqn} is not listed"))
    }

    fn address(&self) -> Result<Vec<String>> {
        Ok(address(&port_of(&self.subsystem(NQN)?)?, NQN))
    }

    /// Verifying I/O for a second on a namespace.
    fn verify(&self, namespace: &str, more: &[&str]) -> Result<()> {
        let words = ["--rw", "randwrite", "--bs", "4k", "--iodepth", "8", "--runtime", "1"];
        let rest = ["--ramp_time", "0", "--verify", "--namespace", namespace];
        let words = [&words[..], &rest[..], more].concat();
        let job = perf_job(self.tree, &self.address()?, &words)?;
        ensure!(iops(&job) > 10.0, "{} I/Os per second", iops(&job));
        Ok(())
    }

    fn any_host(&self, allow: bool) -> Result<()> {
        let options = if allow { self.release.any_host } else { self.release.no_host };
        let words = [&["nvmf_subsystem_allow_any_host", NQN][..], options].concat();
        self.client().run(&words).map(drop)
    }

    /// Calls that are allowed only before the start, the start, and their refusal after it.
    fn start(&mut self) -> Result<()> {
        let client = self.client();
        let now = strings(&client.json(&["rpc_get_methods", "-c"])?);
        ensure!(now.iter().any(|name| name == "framework_start_init"), "{now:?}");
        ensure!(!now.iter().any(|name| name == "nvmf_create_subsystem"), "{now:?}");
        let early = "Method may only be called after framework is initialized using \
                     framework_start_init RPC.";
        client.refused(&["nvmf_create_subsystem", NQN], -1, early)?;
        if self.has("bdev_set_options") {
            client.run(&["bdev_set_options", "-p", "65535", "-c", "256"])?;
        }
        client.run(&["framework_start_init"])?;
        client.run(&["framework_wait_init"])?;
        let version = client.json(&["spdk_get_version"])?;
        ensure!(version["fields"]["major"].is_u64(), "{version}");
        let mut words = vec!["nvmf_create_transport", "-t", "TCP", "-q", "128", "-m", "64"];
        words.extend(["-c", "4096", "-i", "131072", "-a", "128", "-y", "1"]);
        if self.release.old_transport {
            words.extend(["-u", "131072", "-n", "4096", "-b", "32"]);
        }
        client.run(&words)?;
        client.refused(
            &["nvmf_create_transport", "-t", "TCP"],
            -32603,
            "Transport type 'TCP' already exists",
        )?;
        let transports = client.json(&["nvmf_get_transports"])?;
        ensure!(transports[0]["trtype"] == "TCP" && transports[0]["max_io_qpairs_per_ctrlr"] == 64);
        Ok(())
    }

    /// Devices of every kind, made, described, and stacked.
    fn bdevs(&mut self) -> Result<()> {
        let client = self.client();
        let file = self.dir.join("aio.img");
        std::fs::File::create(&file)?.set_len(16 << 20)?;
        let file = file.to_string_lossy().into_owned();
        client.prints(&["bdev_malloc_create", "-b", "M0", "16", "512"], "M0")?;
        client.prints(&["bdev_malloc_create", "16", "4096"], "Malloc0")?;
        client.prints(&["bdev_null_create", "Null0", "1024", "512"], "Null0")?;
        client.prints(&["bdev_aio_create", &file, "Aio0", "512"], "Aio0")?;
        client.prints(&["bdev_split_create", "Malloc0", "2"], "Malloc0p0 Malloc0p1")?;
        // SPDK answers `true` here, not a name.
        client.prints(&["bdev_error_create", "Malloc0p1"], "true")?;
        let delay = ["-b", "Malloc0p0", "-d", "Slow0", "-r", "1", "-t", "1", "-w", "1", "-n", "1"];
        client.prints(&[&["bdev_delay_create"], &delay[..]].concat(), "Slow0")?;
        let m0 = &client.json(&["bdev_get_bdevs", "-b", "M0"])?[0];
        ensure!(m0["num_blocks"] == 32_768 && m0["block_size"] == 512, "{m0}");
        ensure!(m0["product_name"] == "Malloc disk", "{m0}");
        let names: Vec<String> = client
            .json(&["bdev_get_bdevs"])?
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|bdev| bdev["name"].as_str().map(str::to_owned))
            .collect();
        for name in ["M0", "Malloc0", "Null0", "Aio0", "Malloc0p0", "EE_Malloc0p1", "Slow0"] {
            ensure!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
        }
        client.refused(&["bdev_malloc_create", "-b", "M0", "16", "512"], -17, "File exists")?;
        client.refused(&["bdev_get_bdevs", "-b", "none"], -19, "No such device")
    }

    /// A subsystem with a namespace and a listener; I/O succeeds.
    fn export(&mut self) -> Result<()> {
        let client = self.client();
        if !self.has("bdev_split_create") {
            client.prints(&["bdev_malloc_create", "-b", "M0", "16", "512"], "M0")?;
        }
        client.run(&["nvmf_create_subsystem", NQN, "-s", "SPDK00000000000001", "-m", "8", "-a"])?;
        client.run(&["nvmf_subsystem_add_ns", NQN, "M0"])?;
        let listen = ["-t", "tcp", "-a", "127.0.0.1", "-s", "0", "-f", "ipv4"];
        client.run(&[&["nvmf_subsystem_add_listener", NQN], &listen[..]].concat())?;
        let subsystem = self.subsystem(NQN)?;
        ensure!(subsystem["serial_number"] == "SPDK00000000000001", "{subsystem}");
        ensure!(subsystem["max_namespaces"] == 8, "{subsystem}");
        let namespace = &subsystem["namespaces"][0];
        ensure!(namespace["nsid"] == 1 && namespace["bdev_name"] == "M0", "{namespace}");
        let listener = &client.json(&["nvmf_subsystem_get_listeners", NQN])?[0];
        ensure!(listener["address"]["trtype"] == "TCP", "{listener}");
        self.verify("1", &[])
    }

    /// The statistics hold the bytes read and written.
    fn input_output(&mut self) -> Result<()> {
        let client = self.client();
        let count = |stats: &Value, name: &str| stats["bdevs"][0][name].as_u64().unwrap_or(0);
        let words = match self.release.version {
            "26.9" => ["bdev_get_iostat", "--names", "M0"],
            _ => ["bdev_get_iostat", "-b", "M0"],
        };
        let before = client.json(&words)?;
        self.verify("1", &[])?;
        let after = client.json(&words)?;
        ensure!(count(&after, "num_write_ops") > count(&before, "num_write_ops"), "{after}");
        ensure!(count(&after, "num_read_ops") > count(&before, "num_read_ops"), "{after}");
        let stats = client.json(&["nvmf_get_stats"])?;
        ensure!(
            stats["poll_groups"].as_array().is_some_and(|groups| !groups.is_empty()),
            "{stats}"
        );
        Ok(())
    }

    /// A host that is not on the list cannot connect.
    fn hosts(&mut self) -> Result<()> {
        self.any_host(false)?;
        ensure!(self.verify("1", &["-q", FRIEND]).is_err(), "a stranger got in");
        self.client().run(&["nvmf_subsystem_add_host", NQN, FRIEND])?;
        self.verify("1", &["-q", FRIEND])?;
        ensure!(self.subsystem(NQN)?["hosts"][0]["nqn"] == FRIEND, "the host is not listed");
        self.client().run(&["nvmf_subsystem_remove_host", NQN, FRIEND])?;
        ensure!(self.verify("1", &["-q", FRIEND]).is_err(), "a removed host got in");
        self.any_host(true)?;
        self.verify("1", &[])
    }

    /// Keys by name: hosts prove themselves by them, and they change.
    fn keys(&mut self) -> Result<()> {
        let client = self.client();
        let file = |name: &str| self.dir.join(name).to_string_lossy().into_owned();
        for name in ["key0", "key1"] {
            let text = self.tree.raceline(["key", "gen", name, "--state-dir", &file("state")])?;
            text.check()?;
            let path = self.dir.join("state/keys").join(name);
            client.run(&["keyring_file_add_key", name, &path.to_string_lossy()])?;
        }
        let key =
            |name: &str| self.dir.join("state/keys").join(name).to_string_lossy().into_owned();
        let listed = client.json(&["keyring_get_keys"])?;
        ensure!(listed[0]["name"] == "key0" && listed[0]["path"] == key("key0"), "{listed}");
        ensure!(listed[0]["removed"] == false && listed[0]["refcnt"] == 1, "{listed}");
        client.refused(&["keyring_file_add_key", "key0", &key("key1")], -17, "File exists")?;
        client.refused(&["keyring_file_add_key", "key2", "key2"], -1, "Operation not permitted")?;
        client.refused(
            &["keyring_file_add_key", "key2", &file("none")],
            -2,
            "No such file or directory",
        )?;
        self.any_host(false)?;
        let set = ["nvmf_subsystem_add_host", NQN, FRIEND, "--dhchap-key"];
        client.run(&[&set[..], &["key0", "--dhchap-ctrlr-key", "key1"]].concat())?;
        let host = &self.subsystem(NQN)?["hosts"][0];
        ensure!(host["dhchap_key"] == "key0" && host["dhchap_ctrlr_key"] == "key1", "{host}");
        self.verify("1", &["-q", FRIEND, "-S", &key("key0"), "-C", &key("key1")])?;
        ensure!(self.verify("1", &["-q", FRIEND]).is_err(), "a host got in without a proof");
        let wrong = self.verify("1", &["-q", FRIEND, "-S", &key("key1")]);
        ensure!(wrong.is_err(), "a host got in by another key");
        client.run(&["nvmf_subsystem_set_keys", NQN, FRIEND, "--dhchap-key", "key1"])?;
        self.verify("1", &["-q", FRIEND, "-S", &key("key1")])?;
        client.run(&["keyring_file_remove_key", "key1"])?;
        let listed = client.json(&["keyring_get_keys"])?;
        let removed = listed.as_array().into_iter().flatten().find(|key| key["name"] == "key1");
        ensure!(removed.is_some_and(|key| key["removed"] == true), "{listed}");
        let removed = self.verify("1", &["-q", FRIEND, "-S", &key("key1")]);
        ensure!(removed.is_err(), "a host got in by a key that was removed");
        client.run(&["nvmf_subsystem_remove_host", NQN, FRIEND])?;
        client.run(&["keyring_file_remove_key", "key0"])?;
        let listed = client.json(&["keyring_get_keys"])?;
        ensure!(listed.as_array().is_some_and(Vec::is_empty), "{listed}");
        self.any_host(true)
    }

    /// Controllers are listed while they are connected.
    fn controllers(&mut self) -> Result<()> {
        let mut words = vec!["perf".to_owned()];
        words.extend(self.address()?);
        let load = "--rw randread --bs 4k --iodepth 1 --runtime 600 --rate_iops 20";
        words.extend(load.split(' ').map(str::to_owned));
        words.extend(["-q".to_owned(), FRIEND.to_owned()]);
        let task = self.tree.raceline(words.iter().map(String::as_str))?.limit(700);
        let mut load = task.start()?;
        let seen = (0..100).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            let listed = self.client().json(&["nvmf_subsystem_get_controllers", NQN]).ok()?;
            (!listed.as_array()?.is_empty()).then_some(listed)
        });
        let pairs = self.client().json(&["nvmf_subsystem_get_qpairs", NQN]);
        load.end();
        let seen = seen.context("no controller was listed")?;
        ensure!(seen[0]["hostnqn"] == FRIEND, "{seen}");
        let pairs = pairs?;
        ensure!(pairs.as_array().is_some_and(|pairs| pairs.len() >= 2), "{pairs}");
        Ok(())
    }

    /// A namespace that only named hosts see.
    fn visibility(&mut self) -> Result<()> {
        let client = self.client();
        client.run(&["bdev_malloc_create", "-b", "Hidden", "8", "512"])?;
        client.run(&["nvmf_subsystem_add_ns", NQN, "Hidden", "-n", "5", "--no-auto-visible"])?;
        ensure!(self.verify("5", &["-q", FRIEND]).is_err(), "a hidden namespace is seen");
        client.run(&["nvmf_ns_add_host", NQN, "5", FRIEND])?;
        self.verify("5", &["-q", FRIEND])?;
        client.run(&["nvmf_ns_remove_host", NQN, "5", FRIEND])?;
        ensure!(self.verify("5", &["-q", FRIEND]).is_err(), "a namespace hidden again is seen");
        client.run(&["nvmf_subsystem_remove_ns", NQN, "5"])?;
        client.run(&["bdev_malloc_delete", "Hidden"]).map(drop)
    }

    /// Referrals are added and removed.
    fn referrals(&mut self) -> Result<()> {
        let client = self.client();
        let at = ["-t", "tcp", "-a", "192.0.2.1", "-f", "ipv4", "-s", "8009"];
        client.run(&[&["nvmf_discovery_add_referral"], &at[..]].concat())?;
        let listed = client.json(&["nvmf_discovery_get_referrals"])?;
        ensure!(listed[0]["address"]["traddr"] == "192.0.2.1", "{listed}");
        client.run(&[&["nvmf_discovery_remove_referral"], &at[..]].concat())?;
        let listed = client.json(&["nvmf_discovery_get_referrals"])?;
        ensure!(listed.as_array().is_some_and(Vec::is_empty), "{listed}");
        Ok(())
    }

    /// A subsystem of this daemon, found by discovery and attached as any other.
    fn discovery(&mut self) -> Result<()> {
        let client = self.client();
        let uuid = "7f4c1d5e-33b6-4a8f-9a54-6f1f5f8d2f01";
        let at = ["-t", "tcp", "-a", "127.0.0.1", "-f", "ipv4", "-s"];
        client.run(&["bdev_malloc_create", "-b", "Found", "8", "512"])?;
        client.run(&["nvmf_create_subsystem", OTHER_NQN, "-a"])?;
        client.run(&["nvmf_subsystem_add_ns", OTHER_NQN, "Found", "-u", uuid])?;
        client.run(&[&["nvmf_subsystem_add_listener", OTHER_NQN], &at[..], &["0"]].concat())?;
        let port = port_of(&self.subsystem(OTHER_NQN)?)?;
        let start = ["bdev_nvme_start_discovery", "-b", "D", "-w"];
        client.run(&[&start[..], &at[..], &[&port]].concat())?;
        let found = client.json(&["bdev_get_bdevs", "-b", uuid])?;
        ensure!(found[0]["product_name"] == "NVMe disk", "{found}");
        let shown = client.json(&["bdev_nvme_get_discovery_info"])?;
        ensure!(shown[0]["name"] == "D" && shown[0]["trid"]["trsvcid"] == port, "{shown}");
        client.run(&["bdev_nvme_stop_discovery", "-b", "D"])?;
        client.refused(&["bdev_get_bdevs", "-b", uuid], -19, "No such device")?;
        client.run(&["nvmf_delete_subsystem", OTHER_NQN])?;
        client.run(&["bdev_malloc_delete", "Found"]).map(drop)
    }

    /// Announcements and a search begin and end; nothing here can be reached by other machines.
    fn multicast_dns(&mut self) -> Result<()> {
        let client = self.client();
        client.run(&["nvmf_publish_mdns_prr"])?;
        client.refused(&["nvmf_publish_mdns_prr"], -17, "File exists")?;
        client.run(&["nvmf_stop_mdns_prr"])?;
        let start = ["bdev_nvme_start_mdns_discovery", "-b", "M", "-s", "_nvme-disc._tcp"];
        client.run(&start)?;
        client.refused(&start, -17, "File exists")?;
        let shown = client.json(&["bdev_nvme_get_mdns_discovery_info"])?;
        let is_it = shown[0]["name"] == "M" && shown[0]["svcname"] == "_nvme-disc._tcp";
        ensure!(is_it && shown[0]["referrals"].is_array(), "{shown}");
        client.run(&["bdev_nvme_stop_mdns_discovery", "-b", "M"])?;
        let shown = client.json(&["bdev_nvme_get_mdns_discovery_info"])?;
        ensure!(shown.as_array().is_some_and(Vec::is_empty), "{shown}");
        Ok(())
    }

    /// An error for the commands of a controller that leads to this daemon.
    fn injected_errors(&mut self) -> Result<()> {
        let client = self.client();
        let at = ["-t", "tcp", "-a", "127.0.0.1", "-f", "ipv4", "-s"];
        client.run(&["bdev_malloc_create", "-b", "Far", "8", "512"])?;
        client.run(&["nvmf_create_subsystem", OTHER_NQN, "-a"])?;
        // A device has one name, and its UUID is one: the namespace has another than the device behind it.
        let uuid = "9b1d6a2e-5c0f-4c6b-8f5e-2a7d3c4b5a69";
        client.run(&["nvmf_subsystem_add_ns", OTHER_NQN, "Far", "-u", uuid])?;
        client.run(&[&["nvmf_subsystem_add_listener", OTHER_NQN], &at[..], &["0"]].concat())?;
        let port = port_of(&self.subsystem(OTHER_NQN)?)?;
        let attach = ["bdev_nvme_attach_controller", "-b", "I", "-n", OTHER_NQN];
        client.run(&[&attach[..], &at[..], &[&port]].concat())?;
        let health = ["bdev_nvme_get_controller_health_info", "-c", "I"];
        client.run(&health)?;
        let which = ["-n", "I", "-t", "admin", "-o", "2"];
        let error = ["-s", "-w", "1000", "-e", "1", "-u", "0", "-c", "6"];
        client.run(&[&["bdev_nvme_add_error_injection"], &which[..], &error[..]].concat())?;
        client.refused(&health, -32603, "Internal error.")?;
        client.run(&health)?;
        client.run(&[&["bdev_nvme_remove_error_injection"], &which[..]].concat())?;
        client.run(&["bdev_nvme_detach_controller", "I"])?;
        client.run(&["nvmf_delete_subsystem", OTHER_NQN])?;
        client.run(&["bdev_malloc_delete", "Far"]).map(drop)
    }

    /// Codes and texts of refused calls, which change nothing.
    fn errors(&mut self) -> Result<()> {
        let client = self.client();
        let before = client.run(&["nvmf_get_subsystems"])?;
        let invalid = "Invalid parameters";
        client.refused(&["nvmf_delete_subsystem", OTHER_NQN], -32602, invalid)?;
        client.refused(&["nvmf_subsystem_add_ns", NQN, "none"], -32602, invalid)?;
        client.refused(&["nvmf_subsystem_remove_ns", NQN, "77"], -32602, invalid)?;
        client.refused(&["nvmf_subsystem_add_ns", OTHER_NQN, "M0"], -32602, invalid)?;
        client.refused(&["bdev_malloc_delete", "none"], -19, "No such device")?;
        let ended = self.daemon.rpc(self.tree, &["no_such_method"])?.run()?;
        ensure!(
            ended.output.contains("Method not found (JSON-RPC error -32601)"),
            "{}",
            ended.output
        );
        ensure!(ended.status.and_then(|status| status.code()) == Some(1), "{}", ended.why());
        ensure!(
            client.run(&["nvmf_get_subsystems"])? == before,
            "a refused call changed something"
        );
        Ok(())
    }

    /// Many commands at once: as a script, and where the release can, as a batch.
    fn scripts(&mut self) -> Result<()> {
        let file = self.dir.join("script");
        let script =
            "# a comment\nbdev_malloc_create -b S0 4 512\n\nbdev_malloc_create -b S1 4 512\n";
        std::fs::write(&file, script)?;
        let ended = self.client().fed(&[], &file)?;
        ensure!(ended.stdout == "S0\nS1\n", "{:?}", ended.stdout);
        let script = "bdev_malloc_delete S0\nbdev_malloc_delete S1\n";
        std::fs::write(&file, script)?;
        let batch: &[&str] = if self.release.version == "26.9" { &["-b"] } else { &[] };
        self.client().fed(batch, &file)?;
        self.client().refused(&["bdev_get_bdevs", "-b", "S1"], -19, "No such device")
    }

    /// A saved configuration makes the same target of a fresh daemon.
    fn save_and_load(&mut self) -> Result<()> {
        let saved = self.client().run(&["save_config"])?;
        let file = self.dir.join("config.json");
        std::fs::write(&file, &saved)?;
        let subsystems = self.client().run(&["nvmf_get_subsystems"])?;
        let fresh =
            Serve::start(self.tree, &self.tree.scratch("spdk-client-load")?, &["--wait-for-rpc"])?;
        // Both daemons cannot listen on the same port at once.
        std::mem::replace(&mut self.daemon, fresh).stop()?;
        let ended = self.client().fed(&["load_config"], &file)?;
        ensure!(!ended.stdout.contains("skipped"), "{}", ended.stdout);
        let again = self.client().run(&["save_config"])?;
        ensure!(again == saved, "the configuration changed:\n{}", first_difference(&saved, &again));
        let loaded = self.client().run(&["nvmf_get_subsystems"])?;
        ensure!(loaded == subsystems, "{}", first_difference(&subsystems, &loaded));
        self.verify("1", &[])
    }

    /// Every object that was made can be deleted, and is then gone.
    fn deletes(&mut self) -> Result<()> {
        let client = self.client();
        let port = port_of(&self.subsystem(NQN)?)?;
        client.run(&["nvmf_create_subsystem", OTHER_NQN, "-a"])?;
        client.run(&["nvmf_subsystem_remove_ns", NQN, "1"])?;
        ensure!(host(self.tree, "identify", &self.address()?, &["--namespace", "1"]).is_err());
        let listen = ["-t", "tcp", "-a", "127.0.0.1", "-s", &port, "-f", "ipv4"];
        client.run(&[&["nvmf_subsystem_remove_listener", NQN], &listen[..]].concat())?;
        ensure!(host(self.tree, "identify", &address(&port, NQN), &[]).is_err(), "still listens");
        client.run(&["nvmf_delete_subsystem", NQN])?;
        client.run(&["nvmf_delete_subsystem", OTHER_NQN])?;
        let left = client.json(&["nvmf_get_subsystems"])?;
        ensure!(left.as_array().is_some_and(|all| all.len() == 1), "{left}");
        if self.has("bdev_split_create") {
            client.run(&["bdev_delay_delete", "Slow0"])?;
            client.run(&["bdev_error_delete", "EE_Malloc0p1"])?;
            client.run(&["bdev_split_delete", "Malloc0"])?;
            client.run(&["bdev_aio_delete", "Aio0"])?;
            client.run(&["bdev_null_delete", "Null0"])?;
            client.run(&["bdev_malloc_delete", "Malloc0"])?;
        }
        client.run(&["bdev_malloc_delete", "M0"])?;
        let left = client.json(&["bdev_get_bdevs"])?;
        ensure!(left.as_array().is_some_and(Vec::is_empty), "{left}");
        Ok(())
    }

    fn end(self) -> Result<()> {
        if !self.has("spdk_kill_instance") {
            return self.daemon.stop();
        }
        self.client().run(&["spdk_kill_instance", "SIGTERM"])?;
        self.daemon.ended()
    }
}

/// The first line in which two texts differ.
fn first_difference(one: &str, other: &str) -> String {
    let lines = one.lines().zip(other.lines()).find(|(one, other)| one != other);
    let shown = lines.map(|(one, other)| format!("{one}\n{other}"));
    shown.unwrap_or_else(|| format!("{} and {} lines", one.lines().count(), other.lines().count()))
}
