//! What a connection has left at the device comes before what its client sends over the next one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_bdev::{DelayBdev, DelayControl, Delays, Latency, OpKind};

use crate::client::{Bed, Client};
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
