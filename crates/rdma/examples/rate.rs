//! How many commands per second of CPU time each end of a queue does, and both with the simulated network between them.
//!
//! What an end does is its protocol and its calls of the device: posting and polling.
//!
//! `cargo run --release -p raceline-rdma --example rate [SECONDS]`

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use raceline_proto::nvme::{Cqe, QueueId, Sqe};
use raceline_proto::rdma::{CapsuleLimits, GrantLimits, KeyedBlock, QueueRequest};
use raceline_rdma::fake::{FakeDevice, Network, NetworkConfig};
use raceline_rdma::verbs::{Access, ConnectionId, DomainId, Provider, Region};
use raceline_rdma::{
    ConnectConfig, HostEvent, HostPort, HostPortEvent, HostTransfer, PortConfig, TargetEvent,
    TargetPort, TargetPortEvent,
};

/// Entries of the queue.
const ENTRIES: u16 = 128;
/// Bytes of a read: little, because copies are not what is counted.
const BYTES: u32 = 16;

fn port_config() -> PortConfig {
    PortConfig {
        grant: GrantLimits { admin_entries: 32, io_entries: ENTRIES, io_queues: 8, reads: 16 },
        io: CapsuleLimits { in_capsule_bytes: 0, descriptors: 0, transfer_bytes: 4096 },
        shared_receives: 256,
        connections: 8,
        stuck_after: Duration::from_secs(30),
        establish_within: Duration::from_secs(10),
        drain_within: Duration::from_secs(1),
    }
}

/// Answers every command with the same bytes; gives how many.
fn serve(port: &mut TargetPort<FakeDevice>, data: &Region, now: Instant) {
    port.poll(now);
    while let Some((id, event)) = port.poll_event() {
        if let TargetPortEvent::Queue(TargetEvent::Command { token, sqe, .. }) = event
            && let Some(queue) = port.queue(id)
        {
            let cqe = Cqe { cid: sqe.command_id(), ..Cqe::default() };
            queue.respond(token, cqe, Some(data.slice(0, BYTES)), 0);
        }
    }
    port.settle(now);
}

/// CPU time of the parts of a round.
#[derive(Default)]
struct Spent {
    host: Duration,
    network: Duration,
    target: Duration,
}

/// The CPU time since the last call.
fn lap(since: &mut Duration) -> Duration {
    let now = cpu_time();
    now.saturating_sub(std::mem::replace(since, now))
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3);
    let address = SocketAddr::from(([192, 0, 2, 1], 4420));
    let network = Network::new(NetworkConfig::default());
    let (mut device, mut host_device) = (network.add_device(), network.add_device());
    let registered = (
        device.register(DomainId::OWN, 4096, Access::LOCAL),
        host_device.register(DomainId::OWN, 4096, Access::HOST_DATA),
    );
    let (Ok(data), Ok(memory)) = registered else { return println!("no memory") };
    if device.listen(address).is_err() {
        return println!("no listener");
    }
    let mut target = TargetPort::new(device, port_config());
    let mut host = HostPort::new(host_device);
    let start = Instant::now();
    let entries = u32::from(ENTRIES);
    let request = QueueRequest { qid: QueueId(1), receives: ENTRIES, entries, cntlid: None };
    let config =
        ConnectConfig { address, source: None, domain: DomainId::OWN, request, capsule_len: 64 };
    if let Err(error) = host.connect(config, start) {
        return println!("{error}");
    }
    let block = KeyedBlock { address: memory.address, len: BYTES, key: memory.rkey };
    let sqe = Sqe { opc: 2, ..Sqe::default() };
    let (mut live, mut completed): (Option<ConnectionId>, u64) = (None, 0);
    let (mut spent, mut since) = (Spent::default(), cpu_time());
    while start.elapsed() < Duration::from_secs(seconds) {
        for _ in 0..64 {
            host.poll(start);
            while let Some((id, event)) = host.poll_event() {
                match event {
                    HostPortEvent::Connected => live = Some(id),
                    HostPortEvent::Queue(HostEvent::Completed { .. }) => completed += 1,
                    other => return println!("{other:?}"),
                }
            }
            if let Some((queue, provider)) = live.and_then(|id| host.queue(id)) {
                let transfer = HostTransfer::Keyed { block, invalidate: false };
                while queue.submit(provider, &sqe, transfer).is_ok() {}
            }
            host.poll(start);
            spent.host += lap(&mut since);
            while network.step() {}
            spent.network += lap(&mut since);
            serve(&mut target, &data, start);
            spent.target += lap(&mut since);
            while network.step() {}
            spent.network += lap(&mut since);
        }
    }
    let rate = |time: Duration| u128::from(completed) * 1_000_000_000 / time.as_nanos().max(1);
    let Spent { host, network, target, .. } = spent;
    println!("commands per second of CPU time:");
    println!("{:>9} the target's end", rate(target));
    println!("{:>9} the host's end", rate(host));
    println!("{:>9} both ends and the network between them", rate(host + network + target));
}

/// The time that this thread was on a CPU: other programs may have taken the rest.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
