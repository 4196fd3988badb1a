//! Checks of the processor.

use super::{Subject, joined};
use crate::check::{Area, Check, Severity};
use crate::reading::Reading;

/// A wake-up that takes longer than this, in microseconds, shows in the latency of single commands.
const DEEP_SLEEP_US: u64 = 10;

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    vec![
        model(subject),
        governor(subject),
        energy(subject),
        turbo(subject),
        smt(subject),
        sleep(subject),
        halt_poll(subject),
        isolated(subject),
        mitigations(subject),
        throttles(subject),
    ]
}

fn model(subject: &Subject<'_>) -> Check {
    let cpu = &subject.environment.cpu;
    let count = |reading: &Reading<u32>| reading.get().map_or("?".to_owned(), |n| n.to_string());
    let value = format!(
        "{}, {} sockets, {} cores, {} CPUs, microcode {}",
        cpu.model,
        count(&cpu.sockets),
        count(&cpu.cores),
        count(&cpu.cpus),
        cpu.microcode
    );
    let why = "Model and microcode decide what an instruction and a system call cost.";
    Check::new(Area::Processor, "cpu-model", "model", why).is(Severity::Info, value)
}

fn governor(subject: &Subject<'_>) -> Check {
    let why = "Other governors raise the frequency only after milliseconds of load, so results at part load \
               depend on what ran before.";
    let check = Check::new(Area::Processor, "cpu-governor", "frequency governor", why);
    match &subject.environment.cpu.governors {
        Reading::Read(found) => {
            let good = found.iter().all(|governor| governor == "performance");
            check
                .good_or(good, Severity::Warning, joined(found))
                .fix("cpupower frequency-set -g performance")
        }
        // Guests do not set their frequency.
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn energy(subject: &Subject<'_>) -> Check {
    let why = "The processor itself chooses lower frequencies and slower wake-ups unless it is told to prefer \
               performance.";
    let check = Check::new(Area::Processor, "cpu-energy", "energy preference", why);
    match &subject.environment.cpu.energy_preferences {
        Reading::Read(found) => {
            let good = found.iter().all(|preference| preference == "performance");
            check
                .good_or(good, Severity::Warning, joined(found))
                .fix("x86_energy_perf_policy --all performance")
        }
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn turbo(subject: &Subject<'_>) -> Check {
    let cpu = &subject.environment.cpu;
    let why = "With turbo, the frequency depends on the temperature and on how many cores work: ratios of \
               variants are steadier without it.";
    let value = match &cpu.turbo {
        Reading::Read(true) => "on".to_owned(),
        Reading::Read(false) => "off".to_owned(),
        Reading::Unread { unread } => unread.clone(),
    };
    let check = Check::new(Area::Processor, "cpu-turbo", "turbo", why).is(Severity::Info, value);
    match (cpu.turbo.get(), cpu.frequency_driver.text()) {
        (Some(true), Some(driver)) if driver.starts_with("intel_") => {
            check.hint("echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo")
        }
        (Some(true), _) => check.hint("echo 0 > /sys/devices/system/cpu/cpufreq/boost"),
        _ => check,
    }
}

fn smt(subject: &Subject<'_>) -> Check {
    let cpu = &subject.environment.cpu;
    let why = "Two threads on one core take 20 to 40 % of each other's speed: give Raceline one CPU of each \
               pair, or turn SMT off.";
    let check = Check::new(Area::Processor, "cpu-smt", "SMT", why);
    match (&cpu.smt, cpu.siblings.value()) {
        (Reading::Read(true), siblings) => check
            .is(
                Severity::Warning,
                format!("on; CPUs of one core: {}", joined(siblings.into_iter().flatten().take(4))),
            )
            .fix("# Choose CPUs of different cores with --cores, or:")
            .fix("echo off > /sys/devices/system/cpu/smt/control"),
        (Reading::Read(false), _) => check.is(Severity::Ok, format!("off ({})", cpu.smt_control)),
        (unread @ Reading::Unread { .. }, _) => {
            check.is(Severity::Info, unread.reason().unwrap_or_default())
        }
    }
}

fn sleep(subject: &Subject<'_>) -> Check {
    let idle = &subject.environment.idle;
    let why = "A core that sleeps takes this long to wake up, which adds to the latency of each command that \
               finds it asleep. Cores that poll do not sleep.";
    let cost = subject.costs.map(|costs| {
        format!(
            "waking a sleeping thread takes {:.1} us (median), {:.1} us (99 %)",
            costs.wake_up_us, costs.wake_up_p99_us
        )
    });
    let check = Check::new(Area::Processor, "cpu-sleep", "C-states", why);
    let check = match (&idle.states, idle.deepest()) {
        (Reading::Read(_), Some(state)) => check
            .good_or(
                state.latency_us <= DEEP_SLEEP_US,
                Severity::Warning,
                format!("deepest: {}, wakes up in {} us", state.name, state.latency_us),
            )
            .fix(format!("cpupower idle-set -D {DEEP_SLEEP_US}"))
            .fix("# To undo it: cpupower idle-set -E"),
        (Reading::Read(_), None) => check.is(Severity::Ok, "all turned off"),
        (unread, _) => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    };
    check.cost(cost)
}

fn halt_poll(subject: &Subject<'_>) -> Check {
    let environment = subject.environment;
    let why = "An idle guest that halts at once leaves the CPU to the hypervisor, and takes 5 to 50 us to \
               come back. Polling before it halts avoids that.";
    let check = Check::new(Area::Processor, "cpu-halt-poll", "polling before a guest halts", why);
    match (environment.platform.virtual_machine.get(), &environment.idle.halt_poll_ns) {
        (Some(true), Reading::Read(ns)) => {
            let driver = environment.idle.driver.text().unwrap_or("no idle driver");
            check
                .good_or(*ns > 0, Severity::Warning, format!("{ns} ns ({driver})"))
                .fix("echo 200000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns")
        }
        (Some(true), unread) => check
            .is(Severity::Info, unread.reason().unwrap_or_default())
            .hint("modprobe cpuidle_haltpoll"),
        (Some(false), _) => check.is(Severity::Ok, "no virtual machine"),
        (None, _) => check.is(Severity::Info, "not known whether this is a virtual machine"),
    }
}

fn isolated(subject: &Subject<'_>) -> Check {
    let cpu = &subject.environment.cpu;
    let why = "Ticks and other threads interrupt a core 100 to 1000 times per second for microseconds, which \
               the 99.99th percentile shows.";
    let list = |reading: &Reading<String>| match reading.text() {
        Some("") | None => "none".to_owned(),
        Some(list) => list.to_owned(),
    };
    let value =
        format!("isolated: {}, without ticks: {}", list(&cpu.isolated), list(&cpu.nohz_full));
    Check::new(Area::Processor, "cpu-isolated", "isolated CPUs", why)
        .is(Severity::Info, value)
        .hint("# On the kernel's command line, for CPUs 2 to 5: isolcpus=2-5 nohz_full=2-5 rcu_nocbs=2-5")
}

fn mitigations(subject: &Subject<'_>) -> Check {
    let why = "Mitigations of the processor's weaknesses make system calls and interrupts dearer, by 10 to \
               100 %. Compare only results that have the same.";
    let cost =
        subject.costs.map(|costs| format!("a system call takes {:.0} ns", costs.system_call_ns));
    let check = Check::new(Area::Processor, "cpu-mitigations", "mitigations", why);
    let check = match &subject.environment.cpu.mitigations {
        Reading::Read(found) => {
            let count = |word: &str| found.values().filter(|state| state.starts_with(word)).count();
            let active = found.iter().filter(|(_, state)| state.starts_with("Mitigation"));
            check.is(
                Severity::Info,
                format!(
                    "{} on ({}), {} weaknesses left open",
                    count("Mitigation"),
                    joined(active.map(|(name, _)| name)),
                    count("Vulnerable")
                ),
            )
        }
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    };
    check.cost(cost)
}

fn throttles(subject: &Subject<'_>) -> Check {
    let why = "A processor that is too hot runs slower, and the results drift.";
    let check = Check::new(Area::Processor, "cpu-throttles", "slowed down by heat", why);
    match &subject.environment.now.thermal_throttles {
        Reading::Read(count) => check
            .good_or(*count == 0, Severity::Warning, format!("{count} times since the start"))
            .fix("# Look at cooling and at the firmware's power limits; the counts must not grow during a run"),
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}
