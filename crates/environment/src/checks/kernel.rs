//! Checks of the kernel.

use super::{Subject, joined};
use crate::check::{Area, Check, Severity};
use crate::reading::Reading;

/// Clocks that a program reads without a system call.
const FAST_CLOCKS: [&str; 4] =
    ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"];

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    vec![
        release(subject),
        preemption(subject),
        accounting(subject),
        clock(subject),
        ring(subject),
        modules(subject),
    ]
}

fn release(subject: &Subject<'_>) -> Check {
    let kernel = &subject.environment.kernel;
    let why = "The path of a command leads through the kernel's TCP twice: releases differ, and so do options \
               on the command line.";
    let value = format!("{}; command line: {}", kernel.release, kernel.command_line);
    Check::new(Area::Kernel, "kernel-release", "release", why).is(Severity::Info, value)
}

fn preemption(subject: &Subject<'_>) -> Check {
    let kernel = &subject.environment.kernel;
    let why = "Ticks and preemption interrupt threads. Compare only results that have the same.";
    let hz = match &kernel.hz {
        Reading::Read(hz) => format!("{hz} ticks/s"),
        Reading::Unread { unread } => format!("ticks: {unread}"),
    };
    Check::new(Area::Kernel, "kernel-preemption", "preemption", why)
        .is(Severity::Info, format!("{}, {hz}", kernel.preemption))
}

fn accounting(subject: &Subject<'_>) -> Check {
    let why = "Without it, the time that a core receives packets counts as time of the thread that was \
               interrupted, and CPU per I/O of a process includes work for others.";
    let check = Check::new(Area::Kernel, "kernel-interrupt-time", "interrupt time kept apart", why);
    match &subject.environment.kernel.interrupt_time_counted {
        Reading::Read(true) => check.is(Severity::Ok, "yes"),
        Reading::Read(false) => {
            check.is(Severity::Info, "no (CONFIG_IRQ_TIME_ACCOUNTING is not set)")
        }
        Reading::Unread { unread } => check.is(Severity::Info, unread),
    }
}

fn clock(subject: &Subject<'_>) -> Check {
    let why = "Each latency needs two readings of the clock. A slow clock costs a system call and about 1 us \
               for each.";
    let cost =
        subject.costs.map(|costs| format!("reading the clock takes {:.0} ns", costs.clock_ns));
    let check = Check::new(Area::Kernel, "kernel-clock", "clock", why);
    let check = match &subject.environment.kernel.clock_source {
        Reading::Read(name) => check
            .good_or(FAST_CLOCKS.contains(&name.as_str()), Severity::Fail, name)
            .fix("echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource")
            .fix("# If that is refused, the kernel found the TSC not to be steady: dmesg | grep -i tsc"),
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    };
    check.cost(cost)
}

fn ring(subject: &Subject<'_>) -> Check {
    let kernel = &subject.environment.kernel;
    let why = "Without io_uring, Raceline uses epoll: more system calls for each command, no polling of \
               drives, and another engine than the one that is to be measured.";
    let check = Check::new(Area::Kernel, "kernel-io-uring", "io_uring", why);
    match (&kernel.io_uring, &kernel.io_uring_disabled) {
        (Reading::Read(state), _) if state == "works" => check.is(Severity::Ok, state),
        (_, Reading::Read(mode)) if *mode > 0 => check
            .is(Severity::Fail, format!("forbidden (kernel.io_uring_disabled is {mode})"))
            .fix("sysctl -w kernel.io_uring_disabled=0"),
        (Reading::Read(state), _) => check
            .is(Severity::Fail, state)
            .fix("# In a container: start it with a seccomp profile that allows io_uring")
            .fix("docker run --security-opt seccomp=unconfined ..."),
        (_, Reading::Read(_)) => check.is(Severity::Ok, "allowed"),
        (_, unread) => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn modules(subject: &Subject<'_>) -> Check {
    let kernel = &subject.environment.kernel;
    let why = "The kernel's own host and target, traffic classes and test beds need modules. Raceline itself \
               needs none.";
    let check = Check::new(Area::Kernel, "kernel-modules", "modules", why);
    let of = |state: &str| {
        let same = kernel.modules.iter().filter(|(_, found)| found.text() == Some(state));
        joined(same.map(|(name, _)| name))
    };
    let unknown = kernel.modules.values().filter(|found| found.value().is_none()).count();
    let unknown =
        if unknown == 0 { String::new() } else { format!("; not known: {unknown} others") };
    let loads = match kernel.loads_modules.get() {
        Some(false) => "; this kernel loads no modules",
        _ => "",
    };
    check.is(
        Severity::Info,
        format!(
            "loaded: {}; built in: {}; can be loaded: {}{unknown}{loads}",
            of("loaded"),
            of("built in"),
            of("can be loaded"),
        ),
    )
}
