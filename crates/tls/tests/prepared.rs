//! The first handshake of a process holds up no core for what happens once in a process.

use std::sync::Arc;
use std::time::Duration;

use raceline_tls::{PskTable, TlsAcceptor};
use rustix::time::{ClockId, clock_gettime};

/// The time that this thread has had of a processor.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("it is not negative")
}

/// This process has no other test, which could be the first one to want a random number.
#[test]
fn random_numbers_are_ready_when_there_is_a_provider() {
    let before = processor_time();
    let acceptor = TlsAcceptor::new(Arc::new(PskTable::default()));
    let made = processor_time() - before;
    let core = std::thread::spawn(|| {
        let before = processor_time();
        aws_lc_rs::rand::fill(&mut [0; 32]).expect("the system has random numbers");
        processor_time() - before
    });
    let first = core.join().expect("it does not panic");
    assert!(first < made / 4, "the provider took {made:?}, and its first random number {first:?}");
    drop(acceptor);
}
