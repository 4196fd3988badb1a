//! Hosts that reach for memory of the target: no byte of it changes, their own queues end, and others go on.

use std::time::Duration;

use raceline_proto::nvme::opcode::io;
use raceline_rdma::HostTransfer;
use raceline_rdma::fake::{NetworkConfig, Profile};
use raceline_rdma::verbs::{Operation, SendWork};

use super::bad_input::Scene;
use super::host::Host;
use super::{DATA, blocks, write_and_read};
use crate::common::{block_sqe, nqn, pattern};

/// The number of a request that no queue of a host has posted.
const FOREIGN_REQUEST: u64 = 1 << 40;

#[test]
fn a_key_that_an_rdma_read_has_told_is_dead_for_data_of_others() {
    const LEN: u32 = 64 << 10;
    let delay = Duration::from_micros(100);
    let network = NetworkConfig { profile: Profile::Iwarp, delay, ..NetworkConfig::default() };
    let mut scene = Scene::new(network);
    let mut host = Host::new(&scene.fabric, scene.rdma);
    let (_, cntlid) = host.admin(&nqn(), 0);
    let queue = host.io(cntlid, 1, 32);
    write_and_read(&mut host, queue, 0, LEN);
    let told = host.port.provider().sinks(queue)[0];
    assert_eq!(told.len, LEN, "the buffer of the write");

    // Data of another host come in parts. Meanwhile the first host writes over all of them again and again.
    scene.fabric.halt(true);
    let data = pattern(5, usize::try_from(LEN).unwrap());
    scene.good.put(DATA, &data);
    let list: Vec<_> = (0..16).map(|n| scene.good.block(DATA + n * 4096, 4096)).collect();
    let write = block_sqe(io::WRITE, 1, 2048, blocks(LEN));
    let cid = scene.good.submit(scene.queue, &write, HostTransfer::List(&list));
    host.put(DATA, &vec![0xa5; usize::try_from(LEN).unwrap()]);
    let work = SendWork {
        id: FOREIGN_REQUEST,
        operation: Operation::Write { remote: told.address, key: told.lkey },
        local: host.memory.slice(DATA, LEN),
        signalled: true,
        inline: false,
    };
    for n in 0..600 {
        // A WRITE takes two steps of the network.
        if n % 3 == 0 && host.losses.is_empty() {
            host.port.provider().post_raw(queue, work).unwrap();
        }
        scene.fabric.network.step();
        scene.good.turn();
        host.turn();
    }
    scene.fabric.halt(false);
    assert!(scene.good.wait(scene.queue, cid).status.is_success());
    let read = block_sqe(io::READ, 1, 2048, blocks(LEN));
    let back = DATA + (1 << 20);
    assert!(scene.good.command(scene.queue, &read, back, LEN).status.is_success());
    assert!(scene.good.get(back, LEN) == data, "another host has written into the data");
    host.until("the loss of the queue", |host| {
        host.losses.iter().any(|(of, _)| *of == queue).then_some(())
    });
    scene.goes_on();
    scene.fabric.network.remove(host.port.provider());
    scene.end();
}
