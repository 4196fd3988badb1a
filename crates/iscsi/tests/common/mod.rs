//! What tests share: a driver for each end, and a pair of them wired in memory.
#![allow(dead_code, reason = "no test uses everything")]

pub(crate) mod bench;
pub(crate) mod disk;
pub(crate) mod host;
pub(crate) mod stream;

use raceline_iscsi::FatalError;
use raceline_iscsi::initiator::InitiatorConfig;
use raceline_iscsi::names::{Isid, Name};

use disk::{Disk, Setup, TARGET};
use host::Host;

/// An initiator's configuration for the test target.
pub(crate) fn config() -> InitiatorConfig {
    InitiatorConfig::new(
        Name::new("iqn.2026-11.test.raceline:host").expect("a name"),
        Some(Name::new(TARGET).expect("a name")),
        Isid::random(1, 1),
    )
}

/// Both ends, and the bytes between them.
pub(crate) struct Pair {
    pub(crate) host: Host,
    pub(crate) disk: Disk,
    pub(crate) to_target: Vec<u8>,
    pub(crate) to_host: Vec<u8>,
    /// Everything that was sent, for playing it again.
    pub(crate) sent_to_target: Vec<u8>,
    pub(crate) sent_to_host: Vec<u8>,
    /// How many of these bytes were the login.
    pub(crate) login_to_target: usize,
    pub(crate) login_to_host: usize,
    /// Bytes per delivery.
    pub(crate) chunk: usize,
    pub(crate) host_error: Option<FatalError>,
    pub(crate) target_error: Option<FatalError>,
}

impl Pair {
    pub(crate) fn new(config: InitiatorConfig, setup: Setup, blocks: usize) -> Self {
        Self {
            host: Host::new(config),
            disk: Disk::new(setup, blocks),
            to_target: Vec::new(),
            to_host: Vec::new(),
            sent_to_target: Vec::new(),
            sent_to_host: Vec::new(),
            login_to_target: 0,
            login_to_host: 0,
            chunk: usize::MAX,
            host_error: None,
            target_error: None,
        }
    }

    /// Logs in and runs until nothing moves.
    pub(crate) fn log_in(&mut self) -> &mut Self {
        self.host.initiator.login(&mut self.to_target);
        self.run();
        self
    }

    /// Runs until nothing moves.
    pub(crate) fn run(&mut self) {
        for _ in 0..1_000_000 {
            let bytes = std::mem::take(&mut self.to_target);
            self.sent_to_target.extend_from_slice(&bytes);
            for chunk in bytes.chunks(self.chunk) {
                if self.target_error.is_none() {
                    self.target_error = self.disk.feed(chunk, &mut self.to_host).err();
                }
            }
            let bytes = std::mem::take(&mut self.to_host);
            self.sent_to_host.extend_from_slice(&bytes);
            for chunk in bytes.chunks(self.chunk) {
                if self.host_error.is_none() {
                    self.host_error = self.host.feed(chunk, &mut self.to_target).err();
                }
            }
            if self.to_target.is_empty() && self.to_host.is_empty() {
                return;
            }
        }
        panic!("the ends talk for ever");
    }

    /// Runs, and neither end may find a fault.
    pub(crate) fn run_well(&mut self) {
        self.run();
        assert_eq!(self.target_error, None);
        assert_eq!(self.host_error, None);
    }
}

/// Numbers from a seed (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 33).expect("31 bits") % end
    }

    pub(crate) fn flip(&mut self) -> bool {
        self.below(2) == 1
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_be_bytes()[0]).collect()
    }
}
