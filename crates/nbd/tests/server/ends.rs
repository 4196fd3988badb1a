//! Clients that end their own direction, or all, while requests are under way.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use raceline_bdev::{Bdev, BdevInfo, Channel, Done, Op, Request, SharedBdev};
use raceline_reactor::{Backend, Completion, Context};

use crate::client::{Bed, PATIENCE, request};
use crate::pattern;

const READ: u16 = 0;
const WRITE: u16 = 1;

/// Devices that answer at once, and ones that take their time.
const DEVICES: [&str; 2] = ["ram:16M", "ram:16M,delay=20000"];

#[test]
fn who_ends_its_direction_gets_all_replies() {
    for device in DEVICES {
        for backend in [Backend::Auto, Backend::Epoll] {
            let bed = Bed::start(device, backend);
            let mut client = bed.client(false);
            client.write(0, &pattern(0, 20 * 4096));
            let mut bytes = Vec::new();
            for cookie in 0..20 {
                bytes.extend(request(READ, 0, cookie, cookie * 4096, 4096));
            }
            for cookie in 20..25 {
                bytes.extend(request(WRITE, 0, cookie, 1 << 20, 4096));
                bytes.extend([5; 4096]);
            }
            // The last one did not come whole: it is not carried out.
            bytes.extend(request(WRITE, 0, 25, 0, 8192));
            bytes.extend([9; 5000]);
            client.stream.write_all(&bytes).unwrap();
            client.stream.shutdown(Shutdown::Write).unwrap();
            let mut all = Vec::new();
            client.stream.read_to_end(&mut all).unwrap();
            let mut cookies = Vec::new();
            let mut rest = all.as_slice();
            while let Some((header, more)) = rest.split_at_checked(16) {
                assert_eq!(header[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0]);
                let cookie = u64::from_be_bytes(header[8..].try_into().unwrap());
                rest = more;
                if cookie < 20 {
                    assert!(rest[..4096] == pattern(cookie * 4096, 4096), "{device} {cookie}");
                    rest = &rest[4096..];
                }
                cookies.push(cookie);
            }
            cookies.sort_unstable();
            assert_eq!(cookies, (0..25).collect::<Vec<u64>>(), "{device} {backend:?}");
            let mut other = bed.client(true);
            assert!(other.read(0, 4096) == pattern(0, 4096), "what came half is not there");
            assert_eq!(other.read(1 << 20, 4096), [5; 4096]);
        }
    }
}

/// A client that vanishes amid requests, or ends its direction and never reads, gives its place back.
#[test]
fn who_ends_all_gives_its_place_back() {
    let bed = Bed::start_with("ram:64M,delay=20000", |config| config.max_connections = 2);
    let mut good = bed.client(true);
    for round in 0..10 {
        let mut bad = loop_for_a_place(&bed, &mut good);
        for cookie in 0..20 {
            bad.write_all(&request(READ, 0, cookie, 0, 1 << 20)).unwrap();
        }
        if round % 2 == 0 {
            bad.shutdown(Shutdown::Write).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    good.write(0, &pattern(0, 4096));
    assert!(good.read(0, 4096) == pattern(0, 4096));
}

/// A connection that has begun transmission, once there is a place for it.
fn loop_for_a_place(bed: &Bed, good: &mut crate::client::Client) -> UnixStream {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut stream = bed.raw();
        let mut greeting = [0; 18];
        if stream.read_exact(&mut greeting).is_ok() {
            stream.write_all(&[0, 0, 0, 3]).unwrap();
            stream.write_all(&crate::client::go()).unwrap();
            return stream;
        }
        assert!(Instant::now() < end, "the place never came free");
        assert_eq!(good.read(8192, 512), [0; 512], "others go on");
    }
}

/// Slow clients are served, and those that stand still are not. It takes a minute and a half: a client has that long.
#[test]
#[ignore = "it takes 90 s"]
fn who_is_slow_is_served_and_who_stands_still_is_not() {
    const LEN: u32 = 32 << 20;
    const STEP: usize = 400 << 10;
    let bed = Bed::start("ram:64M", Backend::Auto);
    let second = Duration::from_secs(1);
    bed.client(true).write(32 << 20, &pattern(32 << 20, 32 << 20));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut reader = bed.client(false);
            for cookie in 0..4 {
                reader.stream.write_all(&request(READ, 0, cookie, 32 << 20, LEN)).unwrap();
            }
            let mut reply = vec![0; 16 + LEN as usize];
            for part in reply.chunks_mut(STEP) {
                reader.stream.read_exact(part).unwrap();
                std::thread::sleep(second);
            }
            assert!(reply[16..] == pattern(32 << 20, 32 << 20), "it has read slowly");
        });
        scope.spawn(|| {
            let mut writer = bed.client(false);
            writer.stream.write_all(&request(WRITE, 0, 7, 0, LEN)).unwrap();
            for part in pattern(0, LEN as usize).chunks(STEP) {
                writer.stream.write_all(part).unwrap();
                std::thread::sleep(second);
            }
            assert_eq!(writer.reply(0).unwrap().error, 0, "it has written slowly");
        });
        for is_read in [true, false] {
            let bed = &bed;
            scope.spawn(move || {
                let mut still = bed.client(false);
                let kind = if is_read { READ } else { WRITE };
                still.stream.write_all(&request(kind, 0, 1, 0, LEN)).unwrap();
                std::thread::sleep(55 * second);
                // Drops that an attacker sends to keep its place.
                if !is_read {
                    still.stream.write_all(&[0; 1000]).unwrap();
                }
                std::thread::sleep(10 * second);
                let mut rest = Vec::new();
                let _ = still.stream.read_to_end(&mut rest);
                assert!(rest.len() < LEN as usize, "it has stood still, and got {}", rest.len());
            });
        }
    });
    let mut other = bed.client(true);
    assert!(other.read(4096, 4096) == pattern(4096, 4096), "the slow write is there");
}

/// A device in memory that counts the reads that it was asked for.
struct Counting {
    base: SharedBdev,
    reads: Arc<AtomicUsize>,
}

struct CountingChannel(Box<dyn Channel>, Arc<AtomicUsize>);

impl Bdev for Counting {
    fn info(&self) -> BdevInfo {
        self.base.info()
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> std::io::Result<Box<dyn Channel>> {
        let base = self.base.open_channel(cx, owner)?;
        Ok(Box::new(CountingChannel(base, Arc::clone(&self.reads))))
    }
}

impl Channel for CountingChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        if matches!(request.op, Op::Read { .. }) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
        self.0.submit(cx, request, done);
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    ) {
        self.0.handle_completion(cx, completion, done);
    }

    fn flush(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        self.0.flush(cx, done);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.0.close(cx);
    }
}

/// What a client asks for of a device in memory waits for what it has not taken, and is answered in the end.
#[test]
fn reads_of_memory_wait_for_a_client_that_takes_nothing() {
    const LEN: u32 = 16 << 20;
    let reads = Arc::<AtomicUsize>::default();
    let bed = Bed::start_with("ram:64M", |config| {
        let base = Arc::clone(&config.exports[0].device);
        config.exports[0].device = Arc::new(Counting { base, reads: Arc::clone(&reads) });
    });
    let (mut client, mut good) = (bed.client(false), bed.client(true));
    client.write(0, &pattern(0, 4096));
    for cookie in 0..100 {
        client.stream.write_all(&request(READ, 0, cookie, 0, LEN)).unwrap();
    }
    // Others go on meanwhile.
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        assert!(good.read(0, 4096) == pattern(0, 4096));
    }
    // As many as there is room for, the first of which may be on its way.
    reads.store(0, Ordering::Relaxed);
    for _ in 0..100 {
        let reply = client.reply(LEN as usize).unwrap();
        assert_eq!(reply.error, 0);
        assert!(reply.data[..4096] == pattern(0, 4096));
    }
    let later = reads.load(Ordering::Relaxed);
    assert!((97..100).contains(&later), "{} of 100 had begun before", 100 - later);
}
