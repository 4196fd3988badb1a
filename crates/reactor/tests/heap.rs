//! A process whose heap has nothing to give says so, and ends.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::Command;

use raceline_reactor::Heap;
use rustix::process::{Resource, Rlimit, setrlimit};

#[global_allocator]
static HEAP: Heap = Heap { exit_code: 7 };

const IS_CHILD: &str = "RACELINE_TEST_OF_HEAP";

#[test]
fn a_process_without_memory_ends_with_words() {
    if std::env::var_os(IS_CHILD).is_some() {
        let limit = Some(1 << 30);
        setrlimit(Resource::As, Rlimit { current: limit, maximum: limit }).unwrap();
        let all: Vec<Vec<u8>> = (0..).map(|_| vec![1; 1 << 20]).take(2000).collect();
        unreachable!("{} MiB of 1024", all.len());
    }
    let own = std::env::current_exe().unwrap();
    let child = Command::new(own).args(["--nocapture"]).env(IS_CHILD, "1").output().unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.code(), Some(7), "{said}");
    let words = "raceline: there is no memory for another 1048576 bytes: this process ends.";
    assert!(said.contains(words), "{said}");
    assert!(said.contains("LimitAS="), "{said}");
}
