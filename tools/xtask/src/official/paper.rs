//! The commands of the paper on application device queues, line by line, by `raceline rpc`.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::raceline::{Tree, perf_job};
use crate::serve::Serve;
use crate::step::Checks;

const NQN: &str = "nqn.2021-01.io.spdk:NVMe0";

/// Before the drives: options, start, transport, as the paper's table prints them.
const BEFORE: [&str; 5] = [
    "nvmf_set_config -r 10000 -s transport",
    "bdev_nvme_set_options -n 4 -t 0 -a none -p 100000",
    "sock_impl_set_options --enable-placement_id -i posix --enable-zerocopy-send",
    "framework_start_init",
    "nvmf_create_transport -t tcp -q 128 -m 64 -c 4096 -i 131072 -u 131072 -a 128 -n 4096 -b 32 -y 1",
];
/// After the drives. The address is not the paper's; port 0 is a free one.
const AFTER: [&str; 3] = [
    "nvmf_create_subsystem nqn.2021-01.io.spdk:NVMe0 -s SPDK00000000000000 -a",
    "nvmf_subsystem_allow_any_host nqn.2021-01.io.spdk:NVMe0",
    "nvmf_subsystem_add_listener -t tcp -a 127.0.0.1 -s 0 nqn.2021-01.io.spdk:NVMe0",
];
/// Drives of the paper's machine.
const DRIVES: usize = 6;

/// Runs the commands, and checks the objects that they made.
pub(super) fn run(tree: &Tree, checks: &mut Checks) {
    let begin = || -> Result<(Serve, Value)> {
        let dir = tree.scratch("spdk-client-paper")?;
        let daemon = Serve::start(tree, &dir, &["--wait-for-rpc"])?;
        let listed = daemon.call(tree, &["rpc_get_methods"])?;
        Ok((daemon, listed))
    };
    let (mut daemon, listed) = match begin() {
        Ok(begun) => begun,
        Err(error) => return checks.not_ok("paper-commands", &format!("{error:#}")),
    };
    let has = |method: &str| listed.as_array().is_some_and(|all| all.iter().any(|m| m == method));
    let lines = BEFORE.iter().chain(&AFTER).filter_map(|line| line.split(' ').next());
    let missing: Vec<&str> = lines.filter(|method| !has(method)).collect();
    if !missing.is_empty() {
        return checks
            .skip("paper-commands", &format!("not in this daemon: {}", missing.join(", ")));
    }
    checks.run("paper-commands", || {
        commands(tree, &daemon)?;
        effects(tree, &daemon)?;
        daemon.healthy()?;
        daemon.stop()
    });
}

fn line(tree: &Tree, daemon: &Serve, line: &str) -> Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let ended = daemon.rpc(tree, &words)?.limit(60).check();
    Ok(ended.with_context(|| line.to_owned())?.stdout)
}

fn commands(tree: &Tree, daemon: &Serve) -> Result<()> {
    for text in BEFORE {
        line(tree, daemon, text)?;
    }
    // The paper attaches PCIe drives here; these are devices in memory with the same names.
    for drive in 0..DRIVES {
        let name = format!("Nvme{drive}n1");
        let printed = line(tree, daemon, &format!("bdev_malloc_create -b {name} 16 512"))?;
        ensure!(printed.trim() == name, "printed {printed:?}");
    }
    for text in AFTER {
        line(tree, daemon, text)?;
    }
    for drive in 0..DRIVES {
        line(tree, daemon, &format!("nvmf_subsystem_add_ns {NQN} Nvme{drive}n1"))?;
    }
    Ok(())
}

fn effects(tree: &Tree, daemon: &Serve) -> Result<()> {
    let transport = &daemon.call(tree, &["nvmf_get_transports"])?[0];
    for (name, value) in [
        ("max_queue_depth", 128),
        ("max_io_qpairs_per_ctrlr", 64),
        ("in_capsule_data_size", 4096),
        ("max_io_size", 131_072),
        ("max_aq_depth", 128),
        ("sock_priority", 1),
    ] {
        ensure!(transport[name] == value, "{name} is {}", transport[name]);
    }
    let sock = daemon.call(tree, &["sock_impl_get_options", "-i", "posix"])?;
    ensure!(sock["enable_placement_id"] == 1, "placement: {sock}");
    let subsystem = &daemon.call(tree, &["nvmf_get_subsystems", NQN])?[0];
    ensure!(subsystem["allow_any_host"] == true, "{subsystem}");
    ensure!(subsystem["serial_number"] == "SPDK00000000000000", "{subsystem}");
    let namespaces = subsystem["namespaces"].as_array().map_or(0, Vec::len);
    ensure!(namespaces == DRIVES, "{namespaces} namespaces");
    let port = super::life::port_of(subsystem)?;
    let address = super::life::address(&port, NQN);
    for drive in 1..=DRIVES {
        let namespace = drive.to_string();
        let words = ["--rw", "randwrite", "--bs", "4k", "--iodepth", "8", "--runtime", "1"];
        let more = ["--ramp_time", "0", "--verify", "--namespace", &namespace];
        let job: Value = perf_job(tree, &address, &[&words[..], &more[..]].concat())?;
        ensure!(crate::raceline::iops(&job) > 10.0, "namespace {drive}");
    }
    Ok(())
}
