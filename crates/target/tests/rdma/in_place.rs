//! Data that the device reads where they are: pools of cores, and regions of namespaces.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use raceline_bdev::{Identity, SharedBdev};
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{CommandId, Sqe};
use raceline_rdma::HostTransfer;
use raceline_rdma::fake::{NetworkConfig, Profile};
use raceline_rdma::verbs::ConnectionId;
use raceline_reactor::Backend;
use raceline_target::{RdmaConfig, Target, TargetConfig};

use super::host::{Fabric, Host};
use super::{BS, DATA, nobody_is_left, write_and_read};
use crate::common::{RawHost, Wants, block_sqe, config, eventually, nqn, pattern, ram, status};

const LENGTHS: [u32; 9] =
    [512, 1024, 4096, 4608, 16 << 10, 20 << 10, 128 << 10, 200 << 10, 1 << 20];

/// A device whose reads go through buffers of the core.
fn file() -> SharedBdev {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!(
        "raceline-in-place-{}-{}",
        std::process::id(),
        COUNT.fetch_add(1, Ordering::Relaxed)
    );
    let path = std::env::temp_dir().join(name);
    std::fs::remove_file(&path).ok();
    std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    let spec = format!("file:{},bs=512,buffered", path.display());
    let device = raceline_bdev::open(&spec.parse().unwrap(), &Identity::of_this_machine()).unwrap();
    // It is open.
    std::fs::remove_file(&path).unwrap();
    device
}

fn in_place(fabric: &Fabric) -> u64 {
    fabric.devices()[0].in_place
}

/// Data of all lengths go there and back; gives how many were read in place.
fn all_lengths(
    config: TargetConfig,
    network: NetworkConfig,
    device: SharedBdev,
    regions: bool,
) -> u64 {
    let fabric = Fabric::new(network);
    let rdma = RdmaConfig { reads_regions: regions, ..RdmaConfig::of(&config) };
    let streams = fabric.streams_of(rdma);
    let (target, tcp, rdma) = fabric.target_of(config, streams, device);
    let mut host = Host::new(&fabric, rdma);
    let (admin, cntlid) = host.admin(&nqn(), 0);
    let queue = host.io(cntlid, 1, 32);
    let before = in_place(&fabric);
    for (n, len) in (0_u64..).zip(LENGTHS) {
        write_and_read(&mut host, queue, n * 2048, len);
    }
    // What a deallocation leaves is read as zeroes also where the device knows the memory.
    let range = [&[0; 4][..], &64_u32.to_le_bytes(), &0_u64.to_le_bytes()].concat();
    let trim = Sqe { cdw11: 4.into(), ..block_sqe(io::DATASET_MANAGEMENT, 1, 0, 1) };
    host.put(DATA, &range);
    assert!(host.command(queue, &trim, DATA, 16).status.is_success());
    let read = block_sqe(io::READ, 1, 0, 64);
    assert!(host.command(queue, &read, DATA, 64 * BS).status.is_success());
    assert!(host.get(DATA, 64 * BS).iter().all(|&byte| byte == 0), "deallocated blocks");
    // Another's writes are seen.
    let (_tcp_admin, cntlid) = RawHost::admin(tcp, Wants::default());
    let mut tcp_queue = RawHost::io(tcp, cntlid, 1, Wants::default());
    let data = pattern(9, 64 * 512);
    assert!(status(&tcp_queue.write(1, 0, &data, BS)).is_success());
    assert!(host.command(queue, &read, DATA, 64 * BS).status.is_success());
    assert!(host.get(DATA, 64 * BS) == data);
    let leased = in_place(&fabric) - before;
    host.close(queue);
    host.close(admin);
    drop((tcp_queue, _tcp_admin));
    nobody_is_left(&target);
    target.shutdown().unwrap();
    fabric.end();
    leased
}

#[test]
fn data_of_every_length_are_read_in_place_or_copied() {
    let reads = u64::try_from(LENGTHS.len()).unwrap() + 2;
    for profile in [Profile::Roce, Profile::Iwarp] {
        let network = NetworkConfig { profile, ..NetworkConfig::default() };
        for backend in [Backend::Uring, Backend::Epoll] {
            let config = || TargetConfig { backend, ..config(1) };
            assert_eq!(all_lengths(config(), network, file(), false), reads, "from the pool");
            assert_eq!(all_lengths(config(), network, ram("16M"), false), 0, "nobody asked for it");
            assert_eq!(all_lengths(config(), network, ram("16M"), true), reads, "from the region");
        }
    }
}

/// Reads by an RDMA host whose RDMA WRITEs are posted and wait in the network.
struct Stuck {
    fabric: Fabric,
    target: Target,
    neighbour: RawHost,
    _admins: RawHost,
    host: Host,
    admin: ConnectionId,
    queue: ConnectionId,
    cids: Vec<CommandId>,
    rdma: SocketAddr,
}

const READS: u32 = 4;

impl Stuck {
    /// There are as many small buffers as reads.
    fn new(seed: u64) -> Self {
        let fabric = Fabric::new(NetworkConfig { seed, ..NetworkConfig::default() });
        let config = TargetConfig { small_buffers_per_core: 4, ..config(1) };
        let streams = fabric.streams(&config);
        let (target, tcp, rdma) = fabric.target_of(config, streams, file());
        let (tcp_admin, cntlid) = RawHost::admin(tcp, Wants::default());
        let mut neighbour = RawHost::io(tcp, cntlid, 1, Wants::default());
        for block in 0..8 {
            let data = pattern(block + 1, 4096);
            assert!(status(&neighbour.write(1, block * 8, &data, BS)).is_success());
        }
        let mut host = Host::new(&fabric, rdma);
        let (admin, cntlid) = host.admin(&nqn(), 0);
        let queue = host.io(cntlid, 1, 64);
        let count = |fabric: &Fabric| (fabric.devices()[0].counts.requests, in_place(fabric));
        let (requests, leases) = count(&fabric);
        fabric.halt(true);
        let submit = |n| {
            let block = host.block(DATA + n * 4096, 4096);
            let transfer = HostTransfer::Keyed { block, invalidate: false };
            host.submit(queue, &block_sqe(io::READ, 1, u64::from(n) * 8, 8), transfer)
        };
        let cids = (0..READS).map(submit).collect();
        host.turn();
        let all = u64::from(READS);
        eventually("the commands are there", || {
            if count(&fabric).0 < requests + all {
                fabric.network.step();
            }
            count(&fabric).0 == requests + all
        });
        eventually("the data are to be sent", || count(&fabric).1 == leases + all);
        let _admins = tcp_admin;
        let mut stuck = Self { fabric, target, neighbour, _admins, host, admin, queue, cids, rdma };
        stuck.stir();
        assert!((0..READS).all(|n| stuck.is_blank(n)), "the network stands still");
        stuck
    }

    /// Has the neighbour read other blocks.
    fn stir(&mut self) {
        for block in [4, 5, 6, 7, 4, 5, 6, 7] {
            let answer = self.neighbour.read(1, block * 8, 8, BS);
            assert!(answer.data == pattern(block + 1, 4096));
        }
    }

    fn there(&mut self, n: u32) -> Vec<u8> {
        self.host.get(DATA + n * 4096, 4096)
    }

    fn is_blank(&mut self, n: u32) -> bool {
        self.there(n).iter().all(|&byte| byte == 0)
    }

    fn is_own(&mut self, n: u32) -> bool {
        self.there(n) == pattern(u64::from(n) + 1, 4096)
    }

    /// The network goes on, and nobody has got another's data.
    fn end(mut self) {
        self.fabric.halt(false);
        self.host.close(self.queue);
        self.host.close(self.admin);
        for n in 0..READS {
            assert!(self.is_blank(n) || self.is_own(n), "read {n} has got another's data");
        }
        self.stir();
        drop((self.neighbour, self._admins));
        nobody_is_left(&self.target);
        self.target.shutdown().unwrap();
        // What is left is the host's.
        let network = &self.fabric.network;
        eventually("the host's memory only", || network.leftovers().0 == 1);
        self.fabric.end();
    }
}

#[test]
fn a_buffer_is_nobody_elses_until_the_device_has_read_it() {
    let mut stuck = Stuck::new(1);
    stuck.fabric.halt(false);
    for (n, cid) in (0..).zip(std::mem::take(&mut stuck.cids)) {
        assert!(stuck.host.wait(stuck.queue, cid).status.is_success());
        assert!(stuck.is_own(n), "read {n}");
    }
    stuck.end();
}

#[test]
fn a_queue_pair_that_ends_amid_writes_reads_no_other_data() {
    for seed in 0..4 {
        // By the target, which uses the buffers again at once.
        let mut stuck = Stuck::new(seed);
        stuck.target.remove_listener(stuck.rdma).unwrap();
        eventually("the queues are gone", || stuck.target.queues(&nqn()).len() == 2);
        stuck.stir();
        stuck.end();
        // By the network, and by the host.
        let mut stuck = Stuck::new(seed);
        stuck.fabric.network.cut_all();
        stuck.stir();
        stuck.end();
        let mut stuck = Stuck::new(seed);
        stuck.host.port.close(stuck.queue, std::time::Instant::now());
        stuck.stir();
        stuck.end();
        let mut stuck = Stuck::new(seed);
        stuck.fabric.network.remove_listening(stuck.rdma);
        stuck.stir();
        stuck.end();
    }
}
