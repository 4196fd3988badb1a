//! Checks of what the system runs on, and of what else runs there.

use super::Subject;
use crate::check::{Area, Check, Severity};
use crate::reading::Reading;

/// The most that the hypervisor may take, and that other programs may use, in percent of all CPUs.
const STOLEN_PERCENT: f64 = 1.0;
const BUSY_PERCENT: f64 = 5.0;

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    vec![
        machine(subject),
        firmware(subject),
        stolen(subject),
        load(subject),
        quota(subject),
        iommu(subject),
    ]
}

fn machine(subject: &Subject<'_>) -> Check {
    let platform = &subject.environment.platform;
    let kind = match platform.virtual_machine.get() {
        Some(true) => "virtual machine",
        Some(false) => "no virtual machine",
        None => "not known whether virtual",
    };
    let container = match platform.container.text() {
        Some("none") => "no container".to_owned(),
        Some(name) => format!("{name} container"),
        None => "not known whether in a container".to_owned(),
    };
    let why = "In a virtual machine, the hypervisor moves and stops CPUs; settings of the hardware are its \
               owner's. In a container, settings of the kernel are those of the system around it.";
    Check::new(Area::Platform, "platform-kind", "kind", why)
        .is(Severity::Info, format!("{kind}, {container}"))
}

fn firmware(subject: &Subject<'_>) -> Check {
    let platform = &subject.environment.platform;
    let why = "Firmware decides on power profile, sub-NUMA clusters, prefetchers and direct cache access, \
               which the system does not show. Write them down beside the results.";
    let value = match (&platform.product, &platform.firmware) {
        (Reading::Read(product), firmware) => format!("{product}, firmware {firmware}"),
        (Reading::Unread { unread }, _) => unread.clone(),
    };
    Check::new(Area::Platform, "platform-firmware", "firmware", why).is(Severity::Info, value)
}

fn stolen(subject: &Subject<'_>) -> Check {
    let why = "Time that the hypervisor gives to others is missing in the middle of commands. Results with \
               more than 1 % of it are not valid.";
    let check = Check::new(Area::Platform, "platform-stolen", "time stolen by the hypervisor", why);
    let measured = subject.costs.map(|costs| &costs.stolen_percent);
    match (measured, &subject.environment.now.stolen_percent) {
        (Some(Reading::Read(now)), _) => check
            .good_or(
                *now < STOLEN_PERCENT,
                Severity::Fail,
                format!("{now:.1} % over half a second"),
            )
            .fix("# Ask the owner of the machine for CPUs of your own"),
        (_, Reading::Read(ever)) => check
            .good_or(
                *ever < STOLEN_PERCENT,
                Severity::Warning,
                format!("{ever:.1} % since the start"),
            )
            .fix(
                "# Ask the owner of the machine for CPUs of your own; --measure says how it is now",
            ),
        (_, unread) => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn load(subject: &Subject<'_>) -> Check {
    let now = &subject.environment.now;
    let why = "Other programs take CPUs, caches and memory from what is measured. Results beside more than \
               5 % of other load are not valid.";
    let check = Check::new(Area::Platform, "platform-load", "other load", why);
    if let Some(Reading::Read(busy)) = subject.costs.map(|costs| &costs.busy_percent) {
        return check
            .good_or(
                *busy < BUSY_PERCENT,
                Severity::Fail,
                format!("CPUs were busy for {busy:.1} % of half a second"),
            )
            .fix("# Stop what runs, or wait until it has ended: top -b -n 1 | head -20");
    }
    match (&now.load, &now.cpu_pressure_percent) {
        (_, Reading::Read(waiting)) => check
            .good_or(
                *waiting < BUSY_PERCENT,
                Severity::Warning,
                format!("threads waited for a CPU in {waiting:.1} % of the last minute"),
            )
            .fix("# Stop what runs, or wait until it has ended: top -b -n 1 | head -20"),
        (Reading::Read(load), _) => check.is(Severity::Info, format!("load {load:.2}")),
        (unread, _) => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn quota(subject: &Subject<'_>) -> Check {
    let environment = subject.environment;
    let why = "A control group that has used up its time is stopped until the next period, up to 100 ms \
               later.";
    let check = Check::new(Area::Platform, "platform-quota", "CPU quota", why);
    match &environment.platform.cpu_quota {
        Reading::Read(text) if text.starts_with("max") => check.is(Severity::Ok, "none"),
        Reading::Read(text) => {
            let times = environment.now.quota_throttles.get().unwrap_or(0);
            check
                .is(
                    if times > 0 { Severity::Fail } else { Severity::Warning },
                    format!("{text} (quota and period in us), used up {times} times"),
                )
                .fix("# Start the container without a CPU limit, or with a set of CPUs (cpuset) instead")
        }
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn iommu(subject: &Subject<'_>) -> Check {
    let why = "An IOMMU that translates addresses costs each buffer that a NIC or a drive uses.";
    let value = match &subject.environment.platform.iommu {
        Reading::Read(true) => "on".to_owned(),
        Reading::Read(false) => "none".to_owned(),
        Reading::Unread { unread } => unread.clone(),
    };
    Check::new(Area::Platform, "platform-iommu", "IOMMU", why).is(Severity::Info, value).hint(
        "# Addresses of devices are not translated with iommu=pt on the kernel's command line",
    )
}
