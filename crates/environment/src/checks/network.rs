//! Checks of TCP's settings.

use super::Subject;
use crate::check::{Area, Check, Role, Severity};
use crate::reading::Reading;

/// A receive or send buffer of a socket smaller than this, in bytes, limits a fast connection.
const SMALL_BUFFER_BYTES: u64 = 4 << 20;
/// Buffers as the ADQ papers have them, in bytes: hosts 16 MiB, targets 32 MiB.
const HOST_BUFFER_BYTES: u64 = 16 << 20;
const TARGET_BUFFER_BYTES: u64 = 32 << 20;
/// Connections that come at once, which a listener's queue must hold.
const CONNECTIONS: u64 = 1024;
/// Packets for one CPU that wait at once.
const PACKETS: u64 = 1000;

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    vec![
        congestion(subject),
        buffers(subject, Role::Host),
        buffers(subject, Role::Target),
        memory(subject),
        listeners(subject),
        backlog(subject),
        busy_poll(subject),
        busy_poll_waits(subject),
        tracking(subject),
        sent_again(subject),
        idle_restart(subject),
        multipath(subject),
    ]
}

fn unknown(check: Check, subject: &Subject<'_>, name: &str) -> Check {
    let reading = subject.environment.network.settings.get(name);
    let reason = reading.and_then(|reading| reading.reason()).unwrap_or("it has no number");
    check.is(Severity::Info, reason)
}

fn congestion(subject: &Subject<'_>) -> Check {
    let name = "net.ipv4.tcp_congestion_control";
    let why = "BBR sends by timers, on loopback and on virtual links as well: it measures itself and not the \
               program.";
    let check = Check::new(Area::Network, "net-congestion", "congestion control", why);
    match subject.environment.network.setting(name) {
        Some(control) => check
            .good_or(!control.starts_with("bbr"), Severity::Warning, control)
            .fix(format!("sysctl -w {name}=cubic")),
        None => unknown(check, subject, name),
    }
}

/// The buffers that a socket may have, against what each role needs.
fn buffers(subject: &Subject<'_>, role: Role) -> Check {
    let network = &subject.environment.network;
    let why = "A connection can have no more under way than its buffers hold: with too small ones, throughput \
               is a matter of the round trip, and writes of several commands wait for each other.";
    let (wanted, id, title, fix, roles): (_, _, _, _, &'static [Role]) = match role {
        Role::Host => (
            HOST_BUFFER_BYTES,
            "net-buffers-host",
            "socket buffers of a host",
            ["net.ipv4.tcp_rmem='8192 87380 16777216'", "net.ipv4.tcp_wmem='8192 65536 16777216'"],
            &[Role::Host],
        ),
        Role::Target => (
            TARGET_BUFFER_BYTES,
            "net-buffers-target",
            "socket buffers of a target",
            [
                "net.ipv4.tcp_rmem='8192 1048576 33554432'",
                "net.ipv4.tcp_wmem='8192 1048576 33554432'",
            ],
            &[Role::Target],
        ),
    };
    let check = Check::new(Area::Network, id, title, why).only(roles);
    let most = |name: &str| network.numbers(name).get(2).copied();
    let (Some(receive), Some(send)) = (most("net.ipv4.tcp_rmem"), most("net.ipv4.tcp_wmem")) else {
        return unknown(check, subject, "net.ipv4.tcp_rmem");
    };
    let smaller = receive.min(send);
    let severity = match smaller {
        0..SMALL_BUFFER_BYTES => Severity::Warning,
        size if size < wanted => Severity::Info,
        _ => Severity::Ok,
    };
    let value = format!(
        "receive up to {} KiB, send up to {} KiB; the ADQ papers use {} KiB",
        receive >> 10,
        send >> 10,
        wanted >> 10
    );
    check
        .is(severity, value)
        .hint(format!("sysctl -w {}", fix[0]))
        .hint(format!("sysctl -w {}", fix[1]))
}

fn memory(subject: &Subject<'_>) -> Check {
    /// Of all memory, TCP may have a sixteenth at least.
    const SHARE: u64 = 16;
    /// The setting counts pages of 4 KiB.
    const PAGE_KIB: u64 = 4;
    let name = "net.ipv4.tcp_mem";
    let why = "Above the second number TCP shrinks the buffers of all sockets, and above the third it drops \
               data. The numbers are pages, and not bytes.";
    let check = Check::new(Area::Network, "net-memory", "memory of TCP", why);
    let (Some(&most), Some(total)) = (
        subject.environment.network.numbers(name).get(2),
        subject.environment.memory.total_kib.get(),
    ) else {
        return unknown(check, subject, name);
    };
    let limit_kib = most.saturating_mul(PAGE_KIB);
    let pages = total / 4 / PAGE_KIB;
    let (low, middle) = (pages / 2, pages / 4 * 3);
    check
        .good_or(
            limit_kib >= total / SHARE,
            Severity::Warning,
            format!("at most {} MiB of {} MiB", limit_kib >> 10, total >> 10),
        )
        .fix("# A quarter of the memory:")
        .fix(format!("sysctl -w {name}='{low} {middle} {pages}'"))
}

fn listeners(subject: &Subject<'_>) -> Check {
    let environment = subject.environment;
    let why = "Hosts open all of their queues at once. A connection that finds the listener's queue full is \
               tried again after 1 s.";
    let check =
        Check::new(Area::Network, "net-listen", "queue of a listener", why).only(&[Role::Target]);
    let first = |name: &str| environment.network.numbers(name).first().copied();
    let (Some(accepted), Some(opening)) =
        (first("net.core.somaxconn"), first("net.ipv4.tcp_max_syn_backlog"))
    else {
        return unknown(check, subject, "net.core.somaxconn");
    };
    let dropped = match environment.now.listen_drops.get() {
        Some(0) | None => String::new(),
        Some(count) => format!("; {count} connections were refused since the start"),
    };
    check
        .good_or(
            accepted.min(opening) >= CONNECTIONS,
            Severity::Warning,
            format!("{accepted} connections, {opening} half open ones{dropped}"),
        )
        .fix("sysctl -w net.core.somaxconn=4096")
        .fix("sysctl -w net.ipv4.tcp_max_syn_backlog=16384")
}

fn backlog(subject: &Subject<'_>) -> Check {
    let environment = subject.environment;
    let name = "net.core.netdev_max_backlog";
    let why = "Packets on loopback and on virtual links wait in a queue of the CPU. When it is full they are \
               dropped, and TCP waits 200 ms and more for them.";
    let check = Check::new(Area::Network, "net-backlog", "queue of packets of a CPU", why);
    let Some(&packets) = environment.network.numbers(name).first() else {
        return unknown(check, subject, name);
    };
    let count = |reading: &Reading<u64>| reading.get().unwrap_or(0);
    let (dropped, left) =
        (count(&environment.now.backlog_drops), count(&environment.now.budget_exhausted));
    let bad = dropped > 0 || packets < PACKETS;
    check
        .good_or(
            !bad,
            Severity::Warning,
            format!(
                "{packets} packets; since the start {dropped} dropped, {left} turns ended early"
            ),
        )
        .fix(format!("sysctl -w {name}=8192"))
        .fix("# The number of dropped packets must not grow during a run: /proc/net/softnet_stat")
}

fn busy_poll(subject: &Subject<'_>) -> Check {
    let network = &subject.environment.network;
    let why = "Sockets that poll the device's queue themselves need no interrupt. Raceline sets that for its \
               own sockets; the global setting makes every program do so.";
    let check = Check::new(Area::Network, "net-busy-poll", "busy polling of all sockets", why);
    let both = (network.setting("net.core.busy_read"), network.setting("net.core.busy_poll"));
    match both {
        (Some(read), Some(poll)) => check.is(
            Severity::Info,
            format!("receive {read} us, poll and epoll {poll} us; the ADQ papers set 1 and 0, or 1 and 1"),
        ),
        _ => unknown(check, subject, "net.core.busy_read"),
    }
}

/// Linux 6.9: settings of epoll instances (EPIOCSPARAMS) and rings (IORING_REGISTER_NAPI).
const WAITS_SINCE: (u32, u32) = (6, 9);
/// Linux 6.13: settings of single NAPI instances (netlink family netdev, napi-set).
const QUEUES_SINCE: (u32, u32) = (6, 13);

/// Whether the kernel can be told to poll while a program waits, and to hold back interrupts of one queue.
fn busy_poll_waits(subject: &Subject<'_>) -> Check {
    let why = "A core that sleeps looks into no queue unless its epoll instance or its ring is told to. \
               Interrupts stay away while a program polls only if the queue, or the device, defers them.";
    let check = Check::new(Area::Network, "net-busy-poll-waits", "busy polling while waiting", why);
    let release = &subject.environment.kernel.release;
    let Some(version) = release.text().and_then(version) else {
        return check.is(Severity::Info, release.reason().unwrap_or("its release has no number"));
    };
    if version < WAITS_SINCE {
        let text = "not in this kernel (Linux 6.9 has it): only receives busy poll, by --busy-poll";
        return check.is(Severity::Info, text);
    }
    let waits = "epoll instances and rings, by --busy-poll";
    if version < QUEUES_SINCE {
        let text = format!("{waits}; interrupts are deferred by device (one queue: Linux 6.13)");
        return check.is(Severity::Info, text);
    }
    check
        .is(Severity::Info, format!("{waits}; interrupts are deferred by device or by queue"))
        .hint(
            "ynl --family netdev --do napi-set --json '{\"id\": NAPI_ID, \"defer-hard-irqs\": 2, \
         \"gro-flush-timeout\": 50000, \"irq-suspend-timeout\": 20000000}'",
        )
}

/// The first two numbers of a release such as `6.12.0-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

fn tracking(subject: &Subject<'_>) -> Check {
    let environment = subject.environment;
    let why = "Looking up each packet's connection and the firewall's rules takes 0.2 to 1 us for each packet. \
               When the table is full, packets are dropped.";
    let check = Check::new(Area::Network, "net-firewall", "firewall and tracking", why);
    let (count, most) =
        (&environment.now.tracked_connections, &environment.network.tracked_connections_max);
    match (count, most) {
        (Reading::Read(count), Reading::Read(most)) => {
            if *count == 0 {
                return check
                    .is(Severity::Info, "the kernel can track connections and tracks none");
            }
            let full = *count > most / 10 * 9;
            check
                .is(
                    if full { Severity::Fail } else { Severity::Warning },
                    format!("{count} connections tracked of at most {most}"),
                )
                .fix("# Leave the port of NVMe/TCP out of it:")
                .fix("iptables -t raw -A PREROUTING -p tcp --dport 4420 -j NOTRACK")
                .fix("iptables -t raw -A OUTPUT -p tcp --sport 4420 -j NOTRACK")
        }
        _ => match environment.network.firewall_tables.text() {
            Some("") | None => check.is(Severity::Ok, "connections are not tracked"),
            Some(tables) => {
                check.is(Severity::Info, format!("connections are not tracked; tables: {tables}"))
            }
        },
    }
}

fn sent_again(subject: &Subject<'_>) -> Check {
    let why = "A lost segment delays the commands behind it by a round trip or by 200 ms, which the tail of \
               the latencies shows.";
    let check = Check::new(Area::Network, "net-sent-again", "segments sent again", why);
    match &subject.environment.now.segments_sent_again {
        Reading::Read(count) => check
            .is(Severity::Info, format!("{count} since the start; it must not grow during a run")),
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn idle_restart(subject: &Subject<'_>) -> Check {
    let name = "net.ipv4.tcp_slow_start_after_idle";
    let why = "A connection that was idle for a while begins with a small window again, so bursts after a \
               pause take several round trips.";
    let check = Check::new(Area::Network, "net-idle-restart", "slow start after idleness", why);
    match subject.environment.network.setting(name) {
        Some("0") => check.is(Severity::Ok, "off"),
        Some(_) => check.is(Severity::Info, "on").hint(format!("sysctl -w {name}=0")),
        None => unknown(check, subject, name),
    }
}

fn multipath(subject: &Subject<'_>) -> Check {
    let name = "net.mptcp.enabled";
    let why = "Subflows of multipath TCP come by other queues than the connection's: placing connections by \
               their queue does not work with them.";
    let check = Check::new(Area::Network, "net-multipath", "multipath TCP", why);
    match subject.environment.network.setting(name) {
        Some("0") => check.is(Severity::Ok, "off"),
        Some(_) => check.is(Severity::Info, "available; Raceline does not ask for it"),
        None => check.is(Severity::Ok, "not in this kernel"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(version("6.12.0-amd64"), Some((6, 12)));
        assert_eq!(version("6.9-rc1"), Some((6, 9)));
        assert!(version("6.13").unwrap() >= QUEUES_SINCE && version("6.9").unwrap() >= WAITS_SINCE);
        assert!(
            version("6.8.12").unwrap() < WAITS_SINCE && version("6.1.0").unwrap() < WAITS_SINCE
        );
        assert_eq!((version(""), version("next")), (None, None));
    }
}
