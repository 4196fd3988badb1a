//! Any bytes as the messages of NVMe/RDMA: what is found in them lies within them and within the limits.

use raceline_proto::nvme::Sqe;
use raceline_proto::rdma::{
    AcceptData, CapsuleLimits, CommandCapsule, GrantLimits, HostData, QueueRequest, RejectData,
    parse_response,
};

/// Private data of a request, an accept and a reject.
pub fn private_data(data: &[u8]) {
    let limits = GrantLimits { admin_entries: 32, io_entries: 128, io_queues: 16, reads: 16 };
    if let Ok(request) = QueueRequest::parse(data) {
        assert!(data.len() >= 32 && request.entries >= 2 && request.receives >= 1);
        assert_eq!(QueueRequest::parse(&request.to_bytes()), Ok(request));
        if let Ok(grant) = request.grant(&limits, data[31]) {
            assert!((1..=128).contains(&grant.entries) && (1..=16).contains(&grant.reads));
            assert!(u32::from(grant.entries) <= request.entries);
        }
    }
    assert!(AcceptData::parse(data).is_none() || data.len() >= 32);
    assert!(RejectData::parse(data).is_none() || data.len() >= 4);
    assert_eq!(parse_response(data).is_ok(), data.len() == 16);
}

/// A command capsule. The first bytes are the limits.
pub fn capsule(data: &[u8]) {
    let Some((&[a, b, descriptors, c], message)) = data.split_first_chunk() else { return };
    let limits = CapsuleLimits {
        in_capsule_bytes: u32::from(u16::from_le_bytes([a, b])),
        descriptors,
        transfer_bytes: u32::from(c) << 12,
    };
    let Ok(CommandCapsule { data, .. }) = CommandCapsule::parse(message, &limits) else {
        return assert!(message.len() < Sqe::LEN);
    };
    let Ok(data) = data else { return };
    assert!(data.len() <= limits.transfer_bytes);
    if let HostData::InCapsule { start, len } = data {
        let end = u64::from(start) + u64::from(len);
        assert!(start >= 64 && end <= 64 + u64::from(limits.in_capsule_bytes));
        assert!(end <= u64::try_from(message.len()).unwrap_or(0));
    } else {
        let blocks: Vec<_> = data.blocks(message).collect();
        assert!(blocks.len() <= 16);
        assert_eq!(
            blocks.iter().map(|block| u64::from(block.len)).sum::<u64>(),
            u64::try_from(data.len()).expect("it fits")
        );
    }
}
