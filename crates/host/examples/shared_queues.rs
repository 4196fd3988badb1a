//! Threads and futures that share one I/O queue: each writes a block of namespace 1 and reads it back.
//!
//!     cargo run -p raceline-host --example shared_queues -- 127.0.0.1:4420 nqn.2026-01.io.raceline:example

#![allow(clippy::unwrap_used, reason = "an example is easier to read so")]

use raceline_host::caller::Operation;
use raceline_host::{CallerHost, HostConfig, SharedError, SharedOptions, SharedQueues};
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};

const NSID: NamespaceId = NamespaceId(1);

/// For any executor.
async fn write_and_read(
    queues: SharedQueues,
    slba: u64,
    block: Vec<u8>,
) -> Result<bool, SharedError> {
    let memory = block.clone().into();
    let written = queues.submit(Operation::Write { nsid: NSID, slba, memory, fua: false })?.await?;
    let Some(memory) = written.memory.filter(|_| written.result.is_ok()) else { return Ok(false) };
    // The memory has come back, and is used again.
    let read = queues.submit(Operation::Read { nsid: NSID, slba, memory })?.await?;
    Ok(read.result.is_ok() && read.memory.is_some_and(|memory| memory[..] == block))
}

fn main() {
    let mut words = std::env::args().skip(1);
    let address = words.next().expect("the address of a target").parse().unwrap();
    let subnqn = Nqn::new(&words.next().expect("the NQN of a subsystem")).unwrap();
    let hostnqn = Nqn::new("nqn.2026-01.io.raceline:example-host").unwrap();
    let config = HostConfig::new(address, subnqn, hostnqn, HostId(*b"raceline-example"));
    let host = CallerHost::connect(config).unwrap();
    let block_size = host.admin().namespace(NSID).unwrap().block_size;
    let queues = SharedQueues::open(&host, &SharedOptions::default()).unwrap();
    let threads: Vec<_> = (0..4u8)
        .map(|thread| {
            let (queues, slba) = (queues.clone(), u64::from(thread));
            let block = vec![thread; usize::try_from(block_size).unwrap()];
            std::thread::spawn(move || {
                let mut task = std::pin::pin!(write_and_read(queues, slba, block));
                // The smallest executor that there is: it looks until the future is ready.
                let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
                loop {
                    match task.as_mut().poll(&mut cx) {
                        std::task::Poll::Ready(same) => return same.unwrap(),
                        std::task::Poll::Pending => std::thread::yield_now(),
                    }
                }
            })
        })
        .collect();
    for (slba, thread) in threads.into_iter().enumerate() {
        println!("block {slba}: {}", if thread.join().unwrap() { "as written" } else { "WRONG" });
    }
    println!("{:?}", queues.totals());
    queues.close();
    host.disconnect();
}
