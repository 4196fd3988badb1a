//! The limit for a first command: a process that answers reads by blocked threads, one for each
//! connection, and has no other work.

use std::io::{IoSlice, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};

use crate::bench::simple::{BLOCK_BYTES, CAPSULE_CMD_LEN, Queue, READ_BYTES, data_header, slba};
use crate::child::{Running, Task};

/// The longest that it may run, in seconds, and the time until it prints its port.
const LIMIT_S: u64 = 900;
const READY_LIMIT_S: u64 = 20;
/// The stack of a thread.
const STACK_BYTES: usize = 64 << 10;

/// The process, and this side's ends of its connections.
pub(super) struct Blocking {
    process: Running,
    pub(super) queues: Vec<Queue>,
}

impl Blocking {
    /// Starts the process on a core with as much memory as a namespace has.
    pub(super) fn start(core: usize, connections: usize, memory_bytes: usize) -> Result<Self> {
        let me = std::env::current_exe()?;
        let words = [core, connections, memory_bytes].map(|number| number.to_string());
        let [core, connections_word, memory_word] = &words;
        let task = Task::new("taskset").args(["-c", core]).args([me.as_os_str()]);
        let task = task.args(["answer-blocking", connections_word, memory_word]);
        // Huge pages for large memory, as a RAM namespace has them: in this process, the first access to
        // 2 MiB that were untouched for seconds costs tens of microseconds.
        let task = task.env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
        let mut process = task.limit(LIMIT_S).start()?;
        let line = process.wait_for("listening on ", READY_LIMIT_S)?;
        let port = line.rsplit(' ').next().unwrap_or("").parse();
        let port = port.with_context(|| format!("the port of the blocking side: {line}"))?;
        let queues = (0..connections).map(|_| Queue::bare(port)).collect::<Result<_>>()?;
        Ok(Self { process, queues })
    }

    /// Process id.
    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Lets its threads end with their connections.
    pub(super) fn stop(self) -> Result<()> {
        drop(self.queues);
        let ended = self.process.wait()?;
        anyhow::ensure!(ended.success(), "the blocking side: {}\n{}", ended.why(), ended.tail(5));
        Ok(())
    }
}

/// The process itself: answers on `connections` connections, and ends with them.
pub(crate) fn answer(connections: usize, memory_bytes: usize) -> Result<()> {
    // Not zeroes, so that all of it is allocated.
    let memory: Arc<[u8]> = vec![0x5A; memory_bytes].into();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    println!("listening on {}", listener.local_addr()?.port());
    let mut threads = Vec::new();
    for _ in 0..connections {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let memory = Arc::clone(&memory);
        let thread = thread::Builder::new().stack_size(STACK_BYTES);
        threads.push(thread.spawn(move || answer_one(stream, &memory))?);
    }
    for thread in threads {
        thread.join().unwrap_or_else(|_| anyhow::bail!("a thread panicked"))?;
    }
    Ok(())
}

/// Answers reads until the connection ends: one receive and one send for each.
fn answer_one(mut stream: TcpStream, memory: &[u8]) -> Result<()> {
    let header = data_header();
    let mut capsule = [0; CAPSULE_CMD_LEN as usize];
    while stream.read_exact(&mut capsule).is_ok() {
        let at = usize::try_from(slba(&capsule) * u64::from(BLOCK_BYTES))?;
        let data = memory.get(at..at + READ_BYTES as usize).context("a read beyond the end")?;
        let mut parts = [IoSlice::new(&header), IoSlice::new(data)];
        let sent = stream.write_vectored(&parts)?;
        let mut rest = &mut parts[..];
        IoSlice::advance_slices(&mut rest, sent);
        for part in rest {
            stream.write_all(part)?;
        }
    }
    Ok(())
}
