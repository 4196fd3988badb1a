//! The developer's entry point, `cargo xtask`: its verbs, and the steps of `cargo xtask test`.

mod asan;
mod bench;
mod capi;
mod child;
mod cli;
mod cloud_hypervisor;
mod cost;
mod cuts;
mod distance;
mod fio;
mod fuzz;
mod interop;
mod lint;
mod modules;
mod nbd;
mod netns;
mod node;
mod official;
mod origin;
mod package;
mod packaging;
mod page;
mod papers;
mod placement;
mod python;
mod quiet;
mod raceline;
mod raw;
mod rdma;
mod report;
mod rpc_docs;
mod serve;
mod setup;
mod spdk;
mod step;
mod take_over;
mod test_cu;
mod unit;
mod wire;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::child::Task;
use crate::interop::{Kernel, Part, Peer};
use crate::raceline::Tree;
use crate::step::{Outcome, Step, Which};

/// Seeds of `cargo xtask sim` within `cargo xtask test`.
const SIM_SEEDS: u64 = 200;
/// Time for one run of the simulator, in seconds.
const SIM_LIMIT_S: u64 = 1200;
/// Seeds above which a run of the simulator is a campaign.
const SIM_MANY: u64 = 1000;
/// Time for a campaign, in seconds: a week.
const CAMPAIGN_LIMIT_S: u64 = 7 * 24 * 3600;
/// Time that each fuzz target gets unless `--seconds` says otherwise.
const FUZZ_SECONDS: u64 = 30;
/// The same within `cargo xtask test`, which is to end within an hour: the corpus, and little beyond it.
const FUZZ_SECONDS_OF_TEST: u64 = 6;

/// Raceline's checks and tools.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install the Debian packages that some steps need, or say how, and fetch fio's headers.
    Setup,
    /// Run every check, or only those asked for, and sum up.
    Test {
        /// Leave out the emulated machines, fuzz, host-cuts, page and fio-engine.
        #[arg(long)]
        quick: bool,
        /// Also run the steps on request, which `--list` marks.
        #[arg(long, conflicts_with = "quick")]
        all: bool,
        /// Run only these steps (a name, or what names begin with: kernel, kernel-6.1).
        #[arg(long, value_delimiter = ',', value_name = "STEP")]
        only: Vec<String>,
        /// List the steps.
        #[arg(long)]
        list: bool,
    },
    /// Check formatting, clippy, and this repository's own rules.
    Lint,
    /// Run the fuzz targets, each for a bounded time.
    Fuzz {
        /// One target; all of them by default.
        target: Option<String>,
        /// Seconds for each.
        #[arg(long, default_value_t = FUZZ_SECONDS)]
        seconds: u64,
        /// Run the target once, with the input in this file, as a failure left it.
        #[arg(long, value_name = "FILE", requires = "target", conflicts_with = "seconds")]
        repeat: Option<PathBuf>,
    },
    /// Run the tests in which engines own memory under AddressSanitizer.
    Asan,
    /// Run seeded simulations.
    Sim {
        /// How many seeds.
        #[arg(long, conflicts_with = "seed")]
        seeds: Option<u64>,
        /// Just this seed, as a failure printed it.
        #[arg(long)]
        seed: Option<u64>,
        /// Further arguments of the simulator.
        #[arg(last = true)]
        rest: Vec<String>,
    },
    /// Count instructions per I/O and compare them with the budget.
    Cost(cost::Options),
    /// Measure what docs/PERFORMANCE.md reports, and print its table.
    Bench(bench::Options),
    /// Measure our target and host beside SPDK's, built elsewhere.
    Spdk(spdk::Options),
    /// Write the figures and plots of docs/PERFORMANCE.md from measured JSON.
    Report(report::Options),
    /// Write the header of libraceline and build its shared library.
    Capi,
    /// Build the fio engine, target/release/libraceline_fio.so.
    Fio,
    /// Build the Debian package, the OCI image and the bill of materials from the release build.
    Package(package::Options),
    /// Write the facts of RustSec's advisories, against which supply-chain checks the crates, from a clone of its database.
    Advisories {
        /// A clone of https://github.com/rustsec/advisory-db.
        #[arg(long, value_name = "CLONE")]
        from: PathBuf,
    },
    /// Write docs/RPC.md from the methods that the daemon has.
    RpcDocs,
    /// Cut the paths of our host to two daemons, and print after which times reads and writes went on.
    Cuts(cuts::Options),
    /// Run libiscsi's conformance tests of iSCSI and SCSI on a target of ours.
    TestCu(test_cu::Options),
    /// Run one emulated machine's checks.
    Interop {
        /// Kernel inside the guest.
        #[arg(long, value_enum, default_value = "6.12")]
        kernel: Kernel,
        /// The work of the guest.
        #[arg(long, value_enum, default_value = "host")]
        part: Part,
        /// The target of the kernel's host.
        #[arg(long, value_enum, default_value = "raceline")]
        peer: Peer,
    },
    /// Hold silent connections (a part of the cli step).
    #[command(hide = true)]
    HoldIdle {
        /// Port on 127.0.0.1.
        port: u16,
        /// How many.
        count: usize,
    },
    /// Answer reads by blocked threads (the limit of the idle section of bench).
    #[command(hide = true)]
    AnswerBlocking {
        /// Connections to accept.
        connections: usize,
        /// Memory to read from.
        memory_bytes: usize,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// False when a check failed and the failure has been printed.
fn run(verb: Verb) -> Result<bool> {
    child::end_children_on_signals()?;
    let tree = Tree::find()?;
    let one = |name, action: step::Action<'_>| step::run(vec![step(name, "", true, action)], &[]);
    let done = |()| true;
    Ok(match verb {
        Verb::Setup => {
            println!("{}", text(&setup::run()?));
            println!("{}", text(&fio::prepare(&tree)?));
            true
        }
        Verb::Test { list: true, .. } => {
            for step in steps(&tree) {
                let mark = if step.on_request { " (on request)" } else { "" };
                println!("{:<22} {}{mark}", step.name, step.about);
            }
            true
        }
        Verb::Test { quick, all, only, .. } => {
            let which = match (quick, all) {
                (true, _) => Which::Quick,
                (false, true) => Which::All,
                (false, false) => Which::Usual,
            };
            if only.is_empty() {
                tree.build_together();
            }
            let all = steps(&tree);
            let left = step::left_on_request(&all, &only, which);
            step::run(step::select(all, &only, which)?, &left)
        }
        Verb::Lint => {
            let only = ["format", "clippy", "tidy"].map(str::to_owned);
            step::run(step::select(steps(&tree), &only, Which::Usual)?, &[])
        }
        Verb::Fuzz { target: Some(name), repeat: Some(input), .. } => {
            one("fuzz", Box::new(|| fuzz::repeat(&tree, &name, &input)))
        }
        Verb::Fuzz { target, seconds, .. } => {
            let build = fuzz::Build::Fast;
            one("fuzz", Box::new(|| fuzz::run(&tree, target.as_deref(), seconds, build)))
        }
        Verb::Asan => one("asan", Box::new(|| asan::run(&tree))),
        Verb::Sim { seeds, seed, rest } => {
            let mut words = rest;
            words.extend(seeds.into_iter().flat_map(|n| ["--seeds".to_owned(), n.to_string()]));
            words.extend(seed.into_iter().flat_map(|n| ["--seed".to_owned(), n.to_string()]));
            simulate(&tree, &words)?;
            true
        }
        Verb::Cost(options) => one("cost", Box::new(|| cost::run(&tree, &options))),
        Verb::Bench(options) => bench::run(&tree, &options).map(done)?,
        Verb::Spdk(options) => spdk::run(&tree, &options)?,
        Verb::Report(options) => report::run(&tree.root, &options).map(done)?,
        Verb::Capi => one("capi", Box::new(|| capi::build(&tree))),
        Verb::Fio => one("fio", Box::new(|| fio::build_and_tell(&tree))),
        Verb::TestCu(options) => one("iscsi-test-cu", Box::new(|| test_cu::run(&tree, &options))),
        Verb::Cuts(options) => one("host-cuts", Box::new(|| cuts::run(&tree, &options))),
        Verb::Package(options) => package::build(&tree, &options).map(done)?,
        Verb::Advisories { from } => package::write_advisories(&tree, &from).map(done)?,
        Verb::RpcDocs => rpc_docs::write(&tree).map(done)?,
        Verb::Interop { kernel, part, peer } => {
            one("interop", Box::new(|| interop::run(&tree, kernel, part, peer)))
        }
        Verb::HoldIdle { port, count } => raw::hold_idle(port, count).map(done)?,
        Verb::AnswerBlocking { connections, memory_bytes } => {
            bench::answer_blocking(connections, memory_bytes).map(done)?
        }
    })
}

fn text(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Passed(text) | Outcome::Skipped(text) => text,
    }
}

fn step<'a>(
    name: &'static str,
    about: &'static str,
    quick: bool,
    action: step::Action<'a>,
) -> Step<'a> {
    Step { name, about, quick, beside: false, on_request: false, action }
}

fn on_request<'a>(name: &'static str, about: &'static str, action: step::Action<'a>) -> Step<'a> {
    Step { on_request: true, ..step(name, about, false, action) }
}

/// Every step of `cargo xtask test`, in order.
fn steps(tree: &Tree) -> Vec<Step<'_>> {
    let root = &tree.root;
    let mut steps = vec![
        step("setup", "programs from outside", true, Box::new(setup::run)),
        step("format", "cargo fmt --check", true, Box::new(|| lint::format(root))),
        step("tidy", "this repository's own rules", true, Box::new(|| lint::tidy(root))),
        step("clippy", "cargo clippy, warnings denied", true, Box::new(|| lint::clippy(root))),
        step("rpc-docs", "docs/RPC.md says what is", true, Box::new(|| rpc_docs::check(tree))),
        step("c-header", "raceline.h says what is", true, Box::new(|| capi::check_header(root))),
        step(
            "supply-chain",
            "licences, origins, versions and advisories of crates",
            true,
            Box::new(|| package::run_supply_chain(tree)),
        ),
        step("service", "systemd judges the service", true, Box::new(|| packaging::run(tree))),
        step("unit", "cargo test --workspace", true, Box::new(|| unit::run(tree))),
        step(
            "build",
            "cargo build --release",
            true,
            Box::new(|| tree.binary().map(|_| Outcome::Passed(String::new()))),
        ),
        step(
            "sim",
            "seeded simulations",
            true,
            Box::new(|| {
                simulate(tree, &["--proofs".to_owned()])?;
                simulate(tree, &["--seeds".to_owned(), SIM_SEEDS.to_string()])
            }),
        ),
        step(
            "cost",
            "instructions per I/O against the budget",
            true,
            Box::new(|| cost::run(tree, &cost::Options::default())),
        ),
        step(
            "cli",
            "the program, end to end and with bad input",
            true,
            Box::new(|| cli::run(tree)),
        ),
        step(
            "capi",
            "libraceline: its symbols, and the example in C",
            true,
            Box::new(|| capi::run(tree)),
        ),
    ];
    steps.push(step(
        "placement",
        "connections over a link with receive queues",
        true,
        Box::new(|| placement::run(tree)),
    ));
    // From here on two at a time: an emulated machine uses one core, and the others wait for the most part. The longest
    // begins first.
    let build = fuzz::Build::Short;
    let action = Box::new(move || fuzz::run(tree, None, FUZZ_SECONDS_OF_TEST, build));
    let fuzz = step("fuzz", "every fuzz target for a short time", false, action);
    steps.push(Step { beside: true, ..fuzz });
    steps.extend(wire_steps(tree).map(|step| Step { beside: true, ..step }));
    steps.extend(kernel_steps(tree));
    steps.extend(waiting_steps(tree).map(|step| Step { beside: true, ..step }));
    steps.extend(rdma_steps(tree));
    steps
}

/// What the unit tests do in part over the simulated network of RDMA.
fn rdma_steps(tree: &Tree) -> [Step<'_>; 2] {
    let seeds = step(
        "rdma-seeds",
        "10,000 seeds of both ends over RDMA, under faults, and 100,000 sequences",
        false,
        Box::new(|| rdma::run_seeds(tree)),
    );
    let iwarp = step(
        "rdma-iwarp",
        "all suites over RDMA once more, by iWARP",
        false,
        Box::new(|| rdma::run_iwarp(tree)),
    );
    [seeds, iwarp].map(|step| Step { on_request: true, ..step })
}

/// The steps about what goes over a wire, and what happens when it is cut.
fn wire_steps(tree: &Tree) -> [Step<'_>; 2] {
    [
        step(
            "tshark",
            "a capture of every PDU type, dissected",
            true,
            Box::new(|| wire::run(tree)),
        ),
        step(
            "host-cuts",
            "our host over two daemons, of whose paths one is cut",
            false,
            Box::new(|| cuts::run_default(tree)),
        ),
    ]
}

/// The steps in which a program that is not ours judges, and which do not mind another step beside them.
fn waiting_steps(tree: &Tree) -> impl Iterator<Item = Step<'_>> {
    [
        step(
            "clean-roots",
            "the package in clean roots of Debian 12 and 13",
            false,
            Box::new(|| package::run_in_roots(tree)),
        ),
        step(
            "papers-report",
            "the report about the papers' experiments, in a browser",
            true,
            Box::new(|| papers::run(tree)),
        ),
        step("page", "the page of a daemon, in a browser", false, Box::new(|| page::run(tree))),
        step(
            "fio-engine",
            "Debian's fio over our engine, with verify",
            false,
            Box::new(|| fio::run(tree)),
        ),
        step(
            "spdk-client",
            "SPDK's own clients drive a daemon",
            true,
            Box::new(|| official::run(tree)),
        ),
        step(
            "packages",
            "packages, made twice, installed, upgraded and removed",
            true,
            Box::new(|| package::run(tree)),
        ),
        on_request(
            "take-over",
            "a hundred take-overs of a daemon with 64 connections, and their pauses",
            Box::new(|| take_over::run(tree)),
        ),
        on_request(
            "reproducible",
            "packages of two builds in different folders are equal",
            Box::new(|| package::run_reproducible(tree)),
        ),
        on_request(
            "cloud-hypervisor",
            "a machine of cloud-hypervisor on vhost-user disks, whose server is killed",
            Box::new(|| cloud_hypervisor::run(tree)),
        ),
        on_request(
            "static-binary",
            "the static program, in a root that holds nothing else",
            Box::new(|| package::run_static_binary(tree)),
        ),
        step(
            "nbd",
            "QEMU's tools, libnbd's and fio on disks that connect makes",
            true,
            Box::new(|| nbd::run(tree)),
        ),
        step(
            "iscsi-test-cu",
            "libiscsi's conformance tests of iSCSI and SCSI",
            true,
            Box::new(|| test_cu::run_default(tree)),
        ),
    ]
    .into_iter()
}

/// Steps in which Linux, in a machine of its own, is the other end: name, kernel, part, and what it shows.
const KERNEL_STEPS: &[(&str, Kernel, Part, &str)] = &[
    ("kernel-6.1-host", Kernel::V6_1, Part::Host, "Linux 6.1 as the host of our target"),
    (
        "kernel-6.1-faults",
        Kernel::V6_1,
        Part::Faults,
        "Linux 6.1: reset, disconnect, killed target",
    ),
    ("kernel-6.1-target", Kernel::V6_1, Part::Target, "our host with Linux 6.1 as the target"),
    ("kernel-6.1-cuts", Kernel::V6_1, Part::Cuts, "Linux 6.1 with two paths, which are cut"),
    (
        "kernel-6.1-rdma",
        Kernel::V6_1,
        Part::Rdma,
        "our host over RDMA with Linux 6.1 as the target, over soft RoCE",
    ),
    (
        "kernel-6.1-rdma-host",
        Kernel::V6_1,
        Part::RdmaHost,
        "Linux 6.1 as the host of our target over RDMA, over soft RoCE",
    ),
    (
        "kernel-6.1-rdma-faults",
        Kernel::V6_1,
        Part::RdmaFaults,
        "Linux 6.1 over RDMA: reset, disconnect, killed target, over soft RoCE",
    ),
    (
        "kernel-6.1-rdma-daemon",
        Kernel::V6_1,
        Part::RdmaDaemon,
        "Linux 6.1 over RDMA and TCP on a daemon in its sandbox, over soft RoCE",
    ),
    (
        "kernel-6.1-rdma-link",
        Kernel::V6_1,
        Part::RdmaLink,
        "Linux 6.1 over RDMA on a daemon in another guest, while their link goes and comes",
    ),
    ("kernel-6.12-host", Kernel::V6_12, Part::Host, "Linux 6.12 as the host of our target"),
    (
        "kernel-6.12-faults",
        Kernel::V6_12,
        Part::Faults,
        "Linux 6.12: reset, disconnect, killed target",
    ),
    ("kernel-6.12-target", Kernel::V6_12, Part::Target, "our host with Linux 6.12 as the target"),
    (
        "kernel-6.12-rdma",
        Kernel::V6_12,
        Part::Rdma,
        "our host over RDMA with Linux 6.12 as the target, over soft RoCE",
    ),
    (
        "kernel-6.12-rdma-host",
        Kernel::V6_12,
        Part::RdmaHost,
        "Linux 6.12 as the host of our target over RDMA, over soft RoCE",
    ),
    (
        "kernel-6.12-rdma-faults",
        Kernel::V6_12,
        Part::RdmaFaults,
        "Linux 6.12 over RDMA: reset, disconnect, killed target, over soft RoCE",
    ),
    (
        "kernel-6.12-manage",
        Kernel::V6_12,
        Part::Manage,
        "Linux 6.12 manages namespaces of a daemon, which is killed",
    ),
    (
        "kernel-6.12-drives",
        Kernel::V6_12,
        Part::Drives,
        "a daemon on a local NVMe drive of Linux 6.12, which is reset and pulled out",
    ),
    (
        "kernel-6.12-auth",
        Kernel::V6_12,
        Part::Auth,
        "Linux 6.12 and we prove ourselves to each other by DH-HMAC-CHAP",
    ),
    (
        "kernel-6.12-tls",
        Kernel::V6_12,
        Part::Tls,
        "Linux 6.12 as the host of our target over TLS, with tlshd",
    ),
    (
        "kernel-6.12-paths",
        Kernel::V6_12,
        Part::Paths,
        "multipath of Linux 6.12 over two listeners, whose states change and which are cut",
    ),
    ("kernel-6.12-cuts", Kernel::V6_12, Part::Cuts, "Linux 6.12 with two paths, which are cut"),
    (
        "kernel-6.12-adq",
        Kernel::V6_12,
        Part::Adq,
        "raceline adq on devices of Linux 6.12: applied, killed, given back",
    ),
    (
        "kernel-6.12-iscsi",
        Kernel::V6_12,
        Part::Iscsi,
        "open-iscsi of Linux 6.12 on a daemon whose LUNs change, and which is killed",
    ),
    (
        "kernel-6.12-disk",
        Kernel::V6_12,
        Part::Disk,
        "the NBD client of Linux 6.12 on a disk that connect makes",
    ),
    (
        "kernel-6.12-vhost",
        Kernel::V6_12,
        Part::Vhost,
        "Linux 6.12 in QEMU on a vhost-user disk, whose server is killed and which grows",
    ),
    (
        "kernel-6.12-ublk",
        Kernel::V6_12,
        Part::Ublk,
        "a block device of Linux 6.12 that connect makes, whose process is killed",
    ),
    ("kernel-6.12-ublk-all", Kernel::V6_12, Part::UblkAll, "the same with all checks, and figures"),
    (
        "kernel-backports-ublk",
        Kernel::Backports,
        Part::UblkAll,
        "the same with the kernel of Debian 13's backports, which also resizes it",
    ),
    (
        "kernel-backports-zero-copy",
        Kernel::Backports,
        Part::ZeroCopy,
        "block devices of that kernel on files, without a copy and with one",
    ),
    (
        "kernel-6.12-takeover",
        Kernel::V6_12,
        Part::Takeover,
        "a daemon that is replaced ten times under the verified I/O of Linux 6.12",
    ),
    (
        "kernel-6.12-xfstests",
        Kernel::V6_12,
        Part::Xfstests,
        "xfstests' quick generic tests on disks by ublk and NBD, with Linux 6.12",
    ),
    (
        "kernel-6.12-moved",
        Kernel::V6_12,
        Part::Moved,
        "20 disks of Linux 6.12's target move into a daemon, and back by nvmetcli",
    ),
    (
        "kernel-6.12-package",
        Kernel::V6_12,
        Part::Package,
        "the package on Debian 13: its units under systemd, a disk of the kernel, a restart",
    ),
    (
        "kernel-6.12-rdma-daemon",
        Kernel::V6_12,
        Part::RdmaDaemon,
        "Linux 6.12 over RDMA and TCP on a daemon in its sandbox, over soft RoCE",
    ),
    (
        "kernel-6.12-rdma-link",
        Kernel::V6_12,
        Part::RdmaLink,
        "Linux 6.12 over RDMA on a daemon in another guest, while their link goes and comes",
    ),
];

fn kernel_steps(tree: &Tree) -> impl Iterator<Item = Step<'_>> {
    KERNEL_STEPS.iter().map(move |&(name, kernel, part, about)| {
        let action = Box::new(move || interop::run(tree, kernel, part, Peer::Raceline));
        let on_request = is_on_request(kernel, part);
        Step { beside: true, on_request, ..step(name, about, false, action) }
    })
}

/// Whether a step of [`KERNEL_STEPS`] is left out unless it is asked for. The newer kernel shows nearly all that the older one
/// does. The tests of crates/vhost show most of what a guest does.
fn is_on_request(kernel: Kernel, part: Part) -> bool {
    let is_long = matches!(
        part,
        Part::Vhost
            | Part::UblkAll
            | Part::ZeroCopy
            | Part::Takeover
            | Part::Xfstests
            | Part::Moved
            | Part::Package
            | Part::RdmaDaemon
            | Part::RdmaLink
    );
    kernel == Kernel::V6_1 || is_long
}

fn simulate(tree: &Tree, words: &[String]) -> Result<Outcome> {
    // A campaign takes as long as its seeds do, or as `--minutes` says.
    let seeds = words.iter().skip_while(|word| *word != "--seeds").nth(1);
    let many = seeds.and_then(|seeds| seeds.parse().ok()).is_some_and(|n: u64| n > SIM_MANY);
    let limit_s = if many { CAMPAIGN_LIMIT_S } else { SIM_LIMIT_S };
    let program = tree.program("sim")?;
    Task::new(program).args(words).dir(&tree.root).limit(limit_s).echo().check()?;
    Ok(Outcome::Passed(words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual() -> impl Iterator<Item = &'static str> {
        let usual =
            KERNEL_STEPS.iter().filter(|&&(_, kernel, part, _)| !is_on_request(kernel, part));
        usual.map(|&(name, ..)| name)
    }

    #[test]
    fn every_run_has_rdma_in_both_directions_with_one_kernel() {
        let rdma: Vec<&str> = usual().filter(|name| name.contains("-rdma")).collect();
        let wanted = ["kernel-6.12-rdma", "kernel-6.12-rdma-host", "kernel-6.12-rdma-faults"];
        assert_eq!(rdma, wanted);
    }

    #[test]
    fn every_run_has_the_kernels_disks_of_both_kinds() {
        let disks: Vec<&str> = usual()
            .filter(|name| ["-disk", "-ublk"].iter().any(|kind| name.contains(kind)))
            .collect();
        assert_eq!(disks, ["kernel-6.12-disk", "kernel-6.12-ublk"]);
    }
}
