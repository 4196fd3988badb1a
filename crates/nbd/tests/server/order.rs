//! What a connection has left at the device comes before what its client sends over the next one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_bdev::{DelayBdev, DelayControl, Delays, Latency, OpKind};

use crate::client::{Bed, Client, PATIENCE};
use crate::{READ, TRIM, ZEROES};

const WRITE: (u16, u16) = (1, 0);

fn serve(spec: &str, cores: usize) -> (Bed, DelayControl) {
    let mut control = None;
    let bed = Bed::start_with(spec, |config| {
        config.cores = vec![None; cores];
        let device = DelayBdev::new(config.exports[0].device.clone(), Delays::all(Duration::ZERO));
        control = Some(device.control());
        config.exports[0].device = Arc::new(device);
    });
    (bed, control.unwrap())
}

fn delay(control: &DelayControl, kinds: &[OpKind], delay: Duration) {
    for kind in kinds {
        control.set(*kind, Latency { average: delay, p99: delay });
    }
}

/// Sends a request that the device holds, and waits until it is there. False: it is not there any more, as this thread had no
/// processor for so long.
fn leave(
    client: &mut Client,
    (control, held): (&DelayControl, Duration),
    command: (u16, u16),
    data: &[u8],
) -> bool {
    let changes = [OpKind::Write, OpKind::WriteZeroes, OpKind::Deallocate];
    delay(control, &changes, held);
    client.send(command, (0, 4096), data);
    // The answer to what is refused at once shows that the request before it has come.
    client.send(READ, (1 << 20, 512), b"");
    let is_there = client.reply(0).unwrap().error == 22;
    delay(control, &changes, Duration::ZERO);
    is_there
}

#[test]
fn what_is_left_at_the_device_lands_before_later_writes() {
    const HELD: Duration = Duration::from_millis(500);
    for (spec, cores) in [("ram:1M", 1), ("ram:1M", 2), ("ram:1M,error=zeroes:unsupported", 2)] {
        for (command, data) in [(WRITE, [0x11; 4096].as_slice()), (TRIM, b""), (ZEROES, b"")] {
            // Its client is gone, or the server does not know that.
            for is_gone in [true, false] {
                let (bed, control) = serve(spec, cores);
                let mut first = bed.client(true);
                first.write(0, &[0x33; 4096]);
                let mut begun = Instant::now();
                while !leave(&mut first, (&control, HELD), command, data) {
                    (first, begun) = (bed.client(true), Instant::now());
                }
                let kept = (!is_gone).then_some(first);
                let mut second = bed.client(true);
                second.write(0, &[0x22; 4096]);
                std::thread::sleep((HELD + HELD / 5).saturating_sub(begun.elapsed()));
                assert!(
                    second.read(0, 4096) == [0x22; 4096],
                    "{spec} {cores} {command:?} {is_gone}"
                );
                drop(kept);
            }
        }
    }
}

/// What changes nothing is served at once.
#[test]
fn reads_of_a_new_connection_wait_for_nobody() {
    let (bed, control) = serve("ram:1M", 1);
    let mut first = bed.client(true);
    first.write(0, &[0x33; 4096]);
    assert!(leave(&mut first, (&control, Duration::from_secs(3)), WRITE, &[0x11; 4096]));
    let mut second = bed.client(true);
    assert!(second.read(8192, 4096) == [0; 4096]);
    first.stream.set_nonblocking(true).unwrap();
    assert_eq!(first.reply(0).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn who_has_begun_waits_for_nobody() {
    let (bed, control) = serve("ram:1M", 2);
    let (mut first, mut second) = (bed.client(true), bed.client(true));
    second.write(8192, &[0x33; 4096]);
    assert!(leave(&mut first, (&control, Duration::from_secs(3)), WRITE, &[0x11; 4096]));
    second.write(8192, &[0x22; 4096]);
    assert!(second.read(8192, 4096) == [0x22; 4096]);
    first.stream.set_nonblocking(true).unwrap();
    assert_eq!(first.reply(0).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

/// Waits until the server has begun to answer so many reads.
fn until_read(bed: &Bed, count: u64) {
    let end = Instant::now() + PATIENCE;
    while bed.totals().reads < count {
        assert!(Instant::now() < end, "{:?}", bed.totals());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the server answers a write within a while.
fn answers(client: &mut Client) -> bool {
    client.stream.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
    let is_there = client.reply(0).is_ok();
    client.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    is_there
}

/// All memory is taken by a client that does not take its replies. What a connection has sent waits for memory, in part where
/// nobody has read it yet. Nothing of that lands after a later connection's change was answered.
#[test]
fn what_waits_for_memory_lands_before_later_writes() {
    const OWN: u32 = 1 << 20;
    for cores in [1, 2] {
        let (bed, _control) = serve("file:DIR/disk,size=64M,buffered", cores);
        let mut first = bed.client(false);
        first.write(0, &[0x33; 8192]);
        // Connections go to the cores in turn.
        let between = (cores == 2).then(|| bed.client(false));
        let mut greedy = bed.client(false);
        for _ in 0..4 {
            greedy.send(READ, (0, LARGE), b"");
        }
        greedy.send(READ, (0, OWN), b"");
        until_read(&bed, 5);
        first.send(READ, (OWN.into(), OWN), b"");
        until_read(&bed, 6);
        for offset in [0, 4096] {
            first.send(WRITE, (offset, 4096), &[0x11; 4096]);
        }
        let mut second = bed.client(false);
        second.send(WRITE, (0, 8192), &[0x22; 8192]);
        assert!(!answers(&mut second), "{cores}: a write of before has not begun");
        // What changes nothing waits for nobody.
        let mut third = bed.client(false);
        assert!(third.read(0, 4096) == [0x33; 4096]);
        drop(greedy);
        assert_eq!(second.reply(0).unwrap().error, 0);
        assert_eq!(first.reply(OWN as usize).unwrap().data.len(), OWN as usize);
        for _ in 0..2 {
            assert_eq!(first.reply(0).unwrap().error, 0);
        }
        assert!(second.read(0, 8192) == [0x22; 8192], "{cores}: an earlier write has landed later");
        drop(between);
    }
}

const LARGE: u32 = 32 << 20;

/// A server whose clients may hold others up for one second. Its disk has 64 MiB.
fn impatient() -> Bed {
    impatient_after(Duration::from_secs(1))
}

fn impatient_after(time: Duration) -> Bed {
    Bed::start_with("file:DIR/disk,size=64M,buffered", |config| config.hold_time = time)
}

/// Longer than a busy machine may keep a test from looking.
const UNSEEN: Duration = Duration::from_secs(4);

/// Long before anything else would end the client that is waited for.
const SOON: Duration = Duration::from_secs(20);

/// The server has closed the connection, whatever of its replies came before.
fn is_ended(client: &mut Client) -> bool {
    match std::io::copy(&mut client.stream, &mut std::io::sink()) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Clients that stand still hold all the memory: one takes no replies, or several stop amid a write. They are ended, and nobody
/// else is: what was sent before a later connection began lands before that one's changes.
#[test]
fn who_holds_the_memory_that_others_wait_for_is_ended() {
    const OWN: u32 = 1 << 20;
    for writes in [false, true] {
        let bed = impatient_after(UNSEEN);
        let mut first = bed.client(false);
        first.write(0, &[0x33; 8192]);
        let mut greedy: Vec<Client> = Vec::new();
        if writes {
            for len in [LARGE, LARGE, LARGE, LARGE, 5 << 20] {
                let mut client = bed.client(false);
                client.send(WRITE, (16 << 20, len), &[0x44; 512]);
                greedy.push(client);
            }
        } else {
            let mut client = bed.client(false);
            for _ in 0..4 {
                client.send(READ, (0, LARGE), b"");
            }
            client.send(READ, (0, OWN), b"");
            until_read(&bed, 5);
            greedy.push(client);
        }
        first.send(READ, (OWN.into(), OWN), b"");
        until_read(&bed, if writes { 1 } else { 6 });
        for offset in [0, 4096] {
            first.send(WRITE, (offset, 4096), &[0x11; 4096]);
        }
        let mut second = bed.client(false);
        let begun = Instant::now();
        second.send(WRITE, (0, 8192), &[0x22; 8192]);
        assert!(!answers(&mut second), "writes of before have not begun");
        assert_eq!(second.reply(0).unwrap().error, 0);
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        assert!(greedy.iter_mut().all(is_ended));
        assert_eq!(first.reply(OWN as usize).unwrap().data.len(), OWN as usize);
        for _ in 0..2 {
            assert_eq!(first.reply(0).unwrap().error, 0);
        }
        assert!(
            second.read(0, 8192) == [0x22; 8192],
            "{writes}: an earlier write has landed later"
        );
        assert!(second.read(16 << 20, 4096) == [0; 4096], "part of a write has landed");
    }
}

/// A client that takes no replies has no place for its next request, on which others wait. It is ended, and that request is not
/// begun any more.
#[test]
fn who_takes_no_replies_holds_others_up_for_a_while_only() {
    let bed = impatient_after(UNSEEN);
    let mut first = bed.client(false);
    first.write(0, &[0x33; 4096]);
    // Replies to some go to the socket's memory, and give their places to the next ones.
    for _ in 0..256 {
        first.send(READ, (0, 8192), b"");
    }
    until_read(&bed, 128);
    first.send(WRITE, (0, 4096), &[0x11; 4096]);
    let mut second = bed.client(false);
    let begun = Instant::now();
    second.send(WRITE, (0, 4096), &[0x22; 4096]);
    assert!(!answers(&mut second), "the write of before has not begun");
    assert_eq!(second.reply(0).unwrap().error, 0);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(is_ended(&mut first));
    std::thread::sleep(Duration::from_millis(200));
    assert!(second.read(0, 4096) == [0x22; 4096], "a write of the connection that was ended");
}

/// A write that has not come whole keeps nobody back, and lands when it has.
#[test]
fn who_stops_amid_a_write_keeps_nobody_back() {
    let bed = impatient();
    let mut first = bed.client(false);
    first.write(0, &[0x33; 4096]);
    first.send(WRITE, (0, 4096), &[0x11; 2048]);
    let mut second = bed.client(false);
    let begun = Instant::now();
    second.write(0, &[0x22; 4096]);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(second.read(0, 4096) == [0x22; 4096]);
    std::thread::sleep(Duration::from_secs(3));
    first.send_rest(&[0x11; 2048]);
    assert_eq!(first.reply(0).unwrap().error, 0);
    assert!(second.read(0, 4096) == [0x11; 4096]);
}
