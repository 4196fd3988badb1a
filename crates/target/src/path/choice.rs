//! The path that the data of a command take, and how many bytes go at once: pure functions of numbers.
//!
//! [`read_path`] and [`write_path`] decide once for each command. Commands that are answered with their
//! header (`AtOnce`) take no slot, so their path is not stored. Thresholds come from
//! [`raceline_reactor::flow::policy`]; no other file of the target asks it for one on the data path.

use std::net::IpAddr;

use raceline_reactor::flow::policy::{self, Regime};
use raceline_reactor::flow::{Departure, SocketClass, Traffic};

use crate::changes::config::{TargetConfig, ZeroCopySend};

pub(crate) use raceline_reactor::flow::policy::MAX_H2C_DATA_BYTES;

/// Staging memory of a connection before Connect: one capsule with Connect data fits.
pub(crate) const EARLY_STAGING_BYTES: usize = 2048;
/// Staging memory of an admin queue.
const ADMIN_STAGING_BYTES: usize = 16 << 10;

/// How a read gets its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadPath {
    /// The device has the data at hand, and the answer leaves with the command's header: no slot.
    AtOnce,
    /// The device has the data at hand. The command has a slot, because its data need a digest, or because
    /// something about it is unusual.
    AtHand,
    /// A device request without a buffer: the device gives its own memory.
    InPlace,
    /// A device request without a buffer; an engine copies the device's memory into an I/O buffer, with
    /// its digest.
    Copied,
    /// A device request into an I/O buffer.
    Buffered,
}

/// What the path of a read depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadFacts {
    /// The device has its data at hand, and its meter takes no times.
    pub(crate) at_hand: bool,
    /// [`raceline_bdev::BdevInfo::reads_in_place`].
    pub(crate) in_place: bool,
    /// [`raceline_bdev::BdevInfo::copies_data`]: memory that others may write.
    pub(crate) copies_data: bool,
    /// The data need a digest, and are not digested while they are sent.
    pub(crate) digest_first: bool,
}

/// Chooses the path of a read.
#[inline]
pub(crate) fn read_path(facts: ReadFacts) -> ReadPath {
    match facts {
        ReadFacts { at_hand: true, digest_first: false, .. } => ReadPath::AtHand,
        ReadFacts { in_place: false, .. } => ReadPath::Buffered,
        // An engine copies memory that others may write before the digest is computed.
        ReadFacts { digest_first: true, copies_data: true, .. } => ReadPath::Copied,
        _ => ReadPath::InPlace,
    }
}

/// How the data of a write, or other data from a host, get to their command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritePath {
    /// The capsule is here with all data, and the device takes them with the command's header: no slot.
    AtOnce,
    /// All data, and their digest, are in staging memory, and the device takes them from there.
    Staged,
    /// The device takes whole blocks from staging memory as they come.
    Blocks {
        /// How many bytes of the data it has, from the first on.
        on_device: usize,
    },
    /// Into an I/O buffer, which the device gets when all data are in it. If all data turn out to be in
    /// staging memory together, they become [`Self::Staged`].
    Buffered {
        /// It is one of the large writes whose data are not to lie in staging memory first.
        lands_direct: bool,
    },
}

/// Whether a device takes data from any memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// It does not: it needs a request.
    Never,
    /// It does, but something holds writes back now.
    Later,
    /// It does.
    Now,
}

/// How the data of a command come from the host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostData {
    /// They are all in staging memory, and may go to the device from there.
    Staged,
    /// In the command's capsule.
    Capsule,
    /// They have not been asked for yet.
    Asked(Asked),
}

/// What the path of data that the host is about to be asked for depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// Bytes.
    pub(crate) len: u32,
    /// They are a Write's that is no half of a fused operation.
    pub(crate) is_plain_write: bool,
    /// A data digest comes with them.
    pub(crate) digest: bool,
    /// What the command's device takes.
    pub(crate) device: Takes,
    /// Commands that the queue has, including this one.
    pub(crate) commands: usize,
    /// The cache regime of the I/O buffers in use on the core. Set for plain writes only.
    pub(crate) held: Regime,
}

/// Chooses the path of a host's data.
#[inline]
pub(crate) fn write_path(data: &HostData) -> WritePath {
    let asked = match data {
        HostData::Staged => return WritePath::Staged,
        HostData::Capsule => return WritePath::Buffered { lands_direct: false },
        HostData::Asked(asked) => asked,
    };
    let in_blocks = asked.is_plain_write && policy::goes_by_blocks(asked.held);
    if in_blocks && asked.device != Takes::Never && !asked.digest {
        return WritePath::Blocks { on_device: 0 };
    }
    // On a deep queue most data under digests arrive whole in staging memory, and some devices take them
    // from there.
    let from_staging = policy::is_deep(asked.commands)
        && asked.len <= MAX_H2C_DATA_BYTES
        && asked.device == Takes::Now;
    WritePath::Buffered { lands_direct: policy::is_large(asked.len as usize) && !from_staging }
}

/// Whether the rest of a payload that has begun is received straight into its I/O buffer.
pub(crate) fn receives_direct(rest_bytes: u32) -> bool {
    rest_bytes as usize >= policy::IN_PLACE_BYTES_MIN
}

/// The staging memory of a queue.
pub(crate) fn staging_bytes(is_admin: bool) -> usize {
    if is_admin { ADMIN_STAGING_BYTES } else { policy::STAGING_BYTES }
}

/// The class of the socket of a queue with this staging memory. `None`: the class that every socket has
/// before its queue is connected, which is right for an admin queue.
pub(crate) fn socket_class(
    staging_bytes: usize,
    pass_bytes: usize,
    departure: Departure,
) -> Option<SocketClass> {
    (staging_bytes == policy::STAGING_BYTES).then_some(SocketClass {
        traffic: Traffic::Responses,
        share: pass_bytes,
        core_staging: policy::TURN_BYTES,
        departure,
    })
}

/// How the bytes of a connection between these addresses leave. Between two sockets of one machine the kernel
/// copies in any case, only later and at a higher price.
pub(crate) fn departure(config: &TargetConfig, local: IpAddr, peer: IpAddr) -> Departure {
    let (local, peer) = (local.to_canonical(), peer.to_canonical());
    let without_copy = match config.zero_copy {
        ZeroCopySend::Off => false,
        ZeroCopySend::On => true,
        ZeroCopySend::Auto => !peer.is_loopback() && peer != local,
    };
    match (without_copy, config.send_flags) {
        (true, _) => Departure::ZeroCopy(config.zero_copy_bytes as usize),
        (false, true) => Departure::Flagged,
        (false, false) => Departure::Copied,
    }
}

/// How much of its staging memory a receive may fill; `large_data_next`: data of large writes are awaited
/// that are not to lie there first.
pub(crate) fn staging_window(large_data_next: bool) -> usize {
    if large_data_next { policy::SMALL_STAGING_BYTES } else { policy::STAGING_BYTES }
}

/// Whether a connection has had its share of a pass.
#[inline]
pub(crate) fn pass_is_over(moved_bytes: usize, pass_bytes: usize) -> bool {
    moved_bytes >= pass_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_copied_goes_to_other_machines() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let leaves = |zero_copy, send_flags, local, peer| {
            let config = TargetConfig { zero_copy, send_flags, ..TargetConfig::default() };
            departure(&config, address(local), address(peer))
        };
        let kept = Departure::ZeroCopy(policy::ZERO_COPY_BYTES_MIN);
        let same = [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1", "127.0.0.2"),
            ("::1", "::1"),
            ("10.0.0.1", "10.0.0.1"),
            ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1"),
            ("2001:db8::1", "2001:db8::1"),
        ];
        for (local, peer) in same {
            assert_eq!(leaves(ZeroCopySend::Auto, false, local, peer), Departure::Copied, "{peer}");
            assert_eq!(leaves(ZeroCopySend::On, false, local, peer), kept);
        }
        for (local, peer) in [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")] {
            assert_eq!(leaves(ZeroCopySend::Auto, true, local, peer), kept);
            assert_eq!(leaves(ZeroCopySend::Off, true, local, peer), Departure::Flagged);
            assert_eq!(leaves(ZeroCopySend::Off, false, local, peer), Departure::Copied);
        }
    }

    #[test]
    fn reads_take_the_shortest_way() {
        let file =
            ReadFacts { at_hand: false, in_place: false, copies_data: false, digest_first: false };
        let ram = ReadFacts { at_hand: true, in_place: true, copies_data: true, ..file };
        assert_eq!(read_path(file), ReadPath::Buffered);
        assert_eq!(read_path(ReadFacts { digest_first: true, ..file }), ReadPath::Buffered);
        assert_eq!(read_path(ram), ReadPath::AtHand);
        assert_eq!(read_path(ReadFacts { at_hand: false, ..ram }), ReadPath::InPlace);
        assert_eq!(read_path(ReadFacts { digest_first: true, ..ram }), ReadPath::Copied);
        let zeroes = ReadFacts { copies_data: false, digest_first: true, ..ram };
        assert_eq!(read_path(zeroes), ReadPath::InPlace);
    }

    #[test]
    fn data_that_were_asked_for_land_by_size_depth_and_device() {
        let asked = Asked {
            len: 128 << 10,
            is_plain_write: true,
            digest: false,
            device: Takes::Now,
            commands: 1,
            held: Regime::Spilling,
        };
        let path = |asked| write_path(&HostData::Asked(asked));
        let (direct, staged) = (
            WritePath::Buffered { lands_direct: true },
            WritePath::Buffered { lands_direct: false },
        );
        assert_eq!(path(asked), direct);
        assert_eq!(path(Asked { len: 32 << 10, ..asked }), staged, "a small one");
        let deep = Asked { commands: 16, ..asked };
        assert_eq!(path(deep), staged);
        assert_eq!(path(Asked { device: Takes::Later, ..deep }), direct);
        assert_eq!(path(Asked { len: MAX_H2C_DATA_BYTES + 1, ..deep }), direct);
        let flooded = Asked { held: Regime::Flooded, ..asked };
        let blocks = WritePath::Blocks { on_device: 0 };
        assert_eq!(path(flooded), blocks);
        assert_eq!(path(Asked { device: Takes::Later, ..flooded }), blocks);
        assert_eq!(path(Asked { device: Takes::Never, ..flooded }), direct);
        assert_eq!(path(Asked { is_plain_write: false, ..flooded }), direct);
        assert_eq!(path(Asked { digest: true, ..flooded }), direct);
    }

    #[test]
    fn data_in_a_capsule_are_small() {
        assert_eq!(write_path(&HostData::Staged), WritePath::Staged);
        assert_eq!(write_path(&HostData::Capsule), WritePath::Buffered { lands_direct: false });
    }
}
