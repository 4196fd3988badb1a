//! Every threshold of how bytes travel, and the decisions that follow from them.
//!
//! Pure functions: no I/O, no clock, no state. Thresholds about caches are parts of the machine's
//! caches. The measured values are those of a machine with 1 MiB of second-level and 32 MiB of
//! last-level cache; each cites the lab page that supports it (docs/lab).

use crate::flow::machine::Machine;

/// Part of the last-level cache, in 32nds. Below it, what is under way stays in the caches
/// beside all else; 3 MiB of 32 (lab 0036, lab 0041).
const SPILLING_32NDS: usize = 3;
/// From this part on, what is under way has left the caches by the time it is used; 8 MiB of 32
/// (lab 0033, lab 0034, lab 0037).
const FLOODED_32NDS: usize = 8;
/// With more reading queues than this, data that wait in a socket have left the caches before their turn
/// comes (lab 0036).
const BULK_READERS_MAX: usize = 24;

/// A payload of this many bytes is large: it is received in pieces of this size, it may leave without
/// a copy, and a pipe must hold it (lab 0032, lab 0039).
pub const LARGE_BYTES: usize = 64 << 10;
/// A read of at least this many bytes from memory may leave without a copy over a network device: the
/// kernel's documentation has the gain begin at about 10 KB (lab 0056, which could not measure it).
pub const ZERO_COPY_BYTES_MIN: usize = 16 << 10;
/// Staging memory of a queue: one receive brings many capsules. A payload of more than half of it
/// gains from landing where it belongs (lab 0031).
pub const STAGING_BYTES: usize = 64 << 10;
/// Staging memory that is offered while a large payload is awaited: room for a 4 KiB write's capsule,
/// so that the payload itself is not copied (lab 0037).
pub const SMALL_STAGING_BYTES: usize = 4096 + 256;
/// The same at a host, whose responses are short: little beyond headers (lab 0037).
pub const HEADER_STAGING_BYTES: usize = IN_PLACE_BYTES_MIN / 2;
/// A payload of at least this size is received into its buffer; below it, one more copy costs less
/// than one more system call (lab 0031).
pub const IN_PLACE_BYTES_MIN: usize = 8 << 10;
/// Bytes that a queue moves before the other queues of its core have their turn (lab 0042), that may wait
/// unread in one socket (lab 0034), and that a pipe is made to hold (lab 0039).
pub const SHARE_BYTES: usize = 256 << 10;
/// Bytes that one receive takes of the core's staging memory (lab 0031), after which a poll leaves the
/// rest to the next one (lab 0030), and which the commands of one send may ask for when the caches are
/// flooded (lab 0034).
pub const TURN_BYTES: usize = 512 << 10;
/// Commands from which on a target's queue is deep: the data of its large writes come through staging
/// memory (lab 0033).
const DEEP_COMMANDS: usize = 16;
/// MAXH2CDATA: data bytes of one H2CData at most.
pub const MAX_H2C_DATA_BYTES: u32 = 128 << 10;
/// Commands whose data are fetched into the caches together (lab 0044).
pub const PREFETCH_COMMANDS: usize = 16;
/// Cache lines of each page that are fetched (lab 0044).
pub const PREFETCH_LINES: usize = 4;
/// Large buffers for copies of one thread; each is as large as the second-level cache (lab 0019).
pub const COPY_BUFFERS_MAX: usize = 8;

const _: () = {
    assert!(SPILLING_32NDS < FLOODED_32NDS && FLOODED_32NDS <= 32);
    assert!(SMALL_STAGING_BYTES < IN_PLACE_BYTES_MIN);
    assert!(
        IN_PLACE_BYTES_MIN <= STAGING_BYTES / 2,
        "what lands in place need not go through staging memory"
    );
    assert!(STAGING_BYTES / 2 < LARGE_BYTES, "a large payload never comes through own staging");
    assert!(LARGE_BYTES <= SHARE_BYTES, "a piece fits into a share");
    assert!(MAX_H2C_DATA_BYTES as usize <= SHARE_BYTES, "the data of one PDU fit into a share");
    assert!(SHARE_BYTES <= TURN_BYTES);
};

/// What the caches hold of what is under way on a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Regime {
    /// All of it.
    Warm,
    /// What was touched last.
    Spilling,
    /// Nothing by the time it is used.
    Flooded,
}

/// What the caches hold of this many bytes under way.
#[inline]
#[must_use]
pub fn regime(machine: &Machine, bytes: usize) -> Regime {
    let part = machine.llc_bytes / 32;
    if bytes >= part * FLOODED_32NDS {
        Regime::Flooded
    } else if bytes >= part * SPILLING_32NDS {
        Regime::Spilling
    } else {
        Regime::Warm
    }
}

/// Whether a payload is better received into its buffer than copied there from a queue's own staging
/// memory.
#[inline]
#[must_use]
pub fn is_large(bytes: usize) -> bool {
    bytes > STAGING_BYTES / 2
}

// ------------------------------------------------------------------------------- reads of a host

/// Where a host's receive puts the payloads of large reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landing {
    /// Each into its buffer.
    InPlace,
    /// All into the core's staging memory, which stays in the caches, to be copied from there. The
    /// sockets are then empty sooner, and the sender gets their pages back while these are warm.
    Staging,
}

/// Where the payloads of large reads land. A single queue gets its data one after the other and warm,
/// up to what the caches hold (lab 0036).
#[inline]
#[must_use]
pub fn landing(reading: Regime, readers: usize, has_core_staging: bool) -> Landing {
    let least = if readers > 1 { Regime::Spilling } else { Regime::Flooded };
    let staging = has_core_staging && readers <= BULK_READERS_MAX && reading >= least;
    if staging { Landing::Staging } else { Landing::InPlace }
}

/// Whether an idle queue should expect a large payload. At depth 1 the receive is posted before its
/// command is submitted, so the queue assumes the size of its previous read. Copies cost little while the
/// caches hold all that comes (lab 0037).
#[must_use]
pub fn expects_large(last_read: usize, reading: Regime) -> bool {
    is_large(last_read) && reading == Regime::Flooded
}

/// Most bytes of one receive into a payload's buffer. With smaller pieces the sender gets the socket's
/// pages back sooner, while they are still in the caches (lab 0032).
#[inline]
#[must_use]
pub fn piece(reading: Regime) -> usize {
    if reading == Regime::Flooded { 2 * LARGE_BYTES } else { LARGE_BYTES }
}

/// Bytes that the commands of one send may ask for; the last command may go beyond. `unread` bytes have
/// come and no receive has taken them. The queue waits for `asked` bytes, and may wait for `share` at
/// most. If the controller fills the sockets faster than the host drains them, data have left the caches
/// when they are received, and the host stays slow (lab 0034).
///
/// No data would come to make a queue look again that has asked for nothing. So such a queue may always
/// ask for one command.
#[must_use]
pub fn bytes_to_ask(unread: usize, asked: usize, share: usize) -> usize {
    let least = usize::from(asked == 0);
    let most = if unread > SHARE_BYTES { 0 } else { TURN_BYTES };
    share.saturating_sub(asked).min(most).max(least)
}

// ------------------------------------------------------------------------------ writes of a host

/// Whether commands leave before data that the controller waits for. Commands are short, and while the
/// data flow the controller can ask for the next. With more under way it has all it needs (lab 0041).
#[inline]
#[must_use]
pub fn commands_before_data(writing: Regime) -> bool {
    writing == Regime::Warm
}

// ---------------------------------------------------------------------------- writes of a target

/// Whether a device that copies gets the blocks of a large write as they come, rather than when all have
/// come. By then the caches hold other data than the write's buffer (lab 0033).
#[must_use]
pub fn goes_by_blocks(held: Regime) -> bool {
    held == Regime::Flooded
}

/// Whether a queue with this many commands is deep.
#[must_use]
pub fn is_deep(commands: usize) -> bool {
    commands >= DEEP_COMMANDS
}

/// Whether what is written to a region of this size goes past the caches, which cannot hold it
/// (lab 0045).
#[must_use]
pub fn goes_past_caches(machine: &Machine, region_bytes: usize) -> bool {
    region_bytes > machine.llc_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use Regime::{Flooded, Spilling, Warm};

    /// The machine of the lab pages.
    const LAB: Machine = Machine::ASSUMED;
    const READ: usize = 128 << 10;

    #[test]
    fn regimes_are_parts_of_the_last_level_cache() {
        let small = Machine { llc_bytes: 64 << 10, ..LAB };
        for (machine, bytes, expected) in [
            (LAB, 0, Warm),
            (LAB, (3 << 20) - 1, Warm),
            (LAB, 3 << 20, Spilling),
            (LAB, (8 << 20) - 1, Spilling),
            (LAB, 8 << 20, Flooded),
            (LAB, usize::MAX, Flooded),
            (small, 5 << 10, Warm),
            (small, 6 << 10, Spilling),
            (small, 16 << 10, Flooded),
        ] {
            assert_eq!(regime(&machine, bytes), expected, "{bytes} bytes, {machine}");
        }
    }

    /// Depth, reading queues, and where 128 KiB reads land.
    #[test]
    fn large_reads_of_few_queues_land_in_staging_memory() {
        for (depth, readers, expected) in [
            (32, 1, Landing::InPlace),
            (63, 1, Landing::InPlace),
            (127, 1, Landing::Staging),
            (1, 16, Landing::InPlace),
            (8, 4, Landing::Staging),
            (127, 24, Landing::Staging),
            (127, 64, Landing::InPlace),
        ] {
            let reading = regime(&LAB, depth * readers * READ);
            assert_eq!(landing(reading, readers, true), expected, "{depth} x {readers}");
            assert_eq!(landing(reading, readers, false), Landing::InPlace);
        }
    }

    #[test]
    fn an_idle_queue_expects_a_large_read_only_where_copies_leave_the_caches() {
        assert!(expects_large(READ, Flooded));
        assert!(!expects_large(READ, Spilling));
        assert!(!expects_large(READ, Warm));
        assert!(!expects_large(4 << 10, Flooded), "many of them in one receive gain from staging");
        assert!(!expects_large(0, Flooded));
    }

    #[test]
    fn a_host_that_is_behind_asks_for_less() {
        assert_eq!(bytes_to_ask(0, READ, usize::MAX), TURN_BYTES);
        assert_eq!(bytes_to_ask(SHARE_BYTES, READ, 10 << 20), TURN_BYTES);
        assert_eq!(bytes_to_ask(SHARE_BYTES + 1, READ, 10 << 20), 0);
        assert_eq!(bytes_to_ask(0, READ, READ + 4096), 4096);
        assert_eq!(bytes_to_ask(0, READ, READ), 0);
        assert_eq!(bytes_to_ask(0, READ, 0), 0);
        assert_eq!(bytes_to_ask(0, 0, 0), 1, "a queue that has asked for nothing is never stuck");
    }

    #[test]
    fn the_rest_of_the_table() {
        assert_eq!([Warm, Spilling, Flooded].map(piece), [64 << 10, 64 << 10, 128 << 10]);
        assert_eq!([Warm, Spilling, Flooded].map(commands_before_data), [true, false, false]);
        assert!(!goes_by_blocks(regime(&LAB, 63 * READ)));
        assert!(goes_by_blocks(regime(&LAB, 64 * READ)));
        assert!(!goes_by_blocks(regime(&LAB, 64 * (16 << 10))), "bytes count, not buffers");
        assert!(!is_deep(15) && is_deep(16));
        assert!(!goes_past_caches(&LAB, 32 << 20) && goes_past_caches(&LAB, (32 << 20) + 1));
        assert!(!is_large(32 << 10) && is_large((32 << 10) + 1));
    }
}
