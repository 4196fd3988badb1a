//! Any bytes of an NBD client: the negotiation does not depend on how they are cut, and every plan is inside its export.
//! Input: how the bytes are cut, then the bytes; what follows the negotiation is taken for requests.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raceline_nbd::protocol::wire::REQUEST_LEN;
use raceline_nbd::protocol::{
    Agreement, ExportFacts, Negotiation, Plan, Progress, Request, TlsPolicy, plan,
};

fn exports() -> Vec<ExportFacts> {
    let disk = ExportFacts {
        name: "disk".to_owned(),
        description: "a disk".to_owned(),
        bytes: 1 << 30,
        block_bytes: 512,
        preferred_bytes: 4096,
        read_only: false,
        trims: true,
        fast_zero: true,
        in_memory: false,
        knows_holes: true,
    };
    let other = ExportFacts {
        name: "other".to_owned(),
        block_bytes: 4096,
        fast_zero: false,
        in_memory: true,
        knows_holes: false,
        ..disk.clone()
    };
    vec![disk, other]
}

/// Feeds the bytes in pieces of this size; gives the answers, the result, and what is left.
fn negotiate<'a>(
    exports: &[ExportFacts],
    input: &'a [u8],
    piece: usize,
    tls: TlsPolicy,
) -> (Vec<u8>, Progress, &'a [u8]) {
    let mut out = Vec::new();
    let mut negotiation = Negotiation::new(tls, &mut out);
    let mut rest = input;
    while !rest.is_empty() {
        let now = &rest[..rest.len().min(piece)];
        let (taken, progress) = negotiation.handle(exports, now, &mut out);
        assert!(taken <= now.len());
        rest = &rest[taken..];
        if progress == Progress::StartsTls {
            // What follows stands for what TLS carries.
            assert!(tls != TlsPolicy::None, "there is no TLS");
            negotiation.secured();
            continue;
        }
        if progress != Progress::Goes {
            return (out, progress, rest);
        }
        assert_eq!(taken, now.len());
    }
    (out, Progress::Goes, rest)
}

fn check(facts: &ExportFacts, agreed: &Agreement, request: &Request) {
    let (offset, len) = match plan(facts, agreed, request) {
        Err(refusal) => return assert!(refusal.skip <= request.length),
        Ok(Plan::Read { offset, len } | Plan::Write { offset, len, .. }) => {
            assert!(len <= 32 << 20);
            (offset, len as u64)
        }
        Ok(
            Plan::Trim { offset, len, .. }
            | Plan::WriteZeroes { offset, len, .. }
            | Plan::BlockStatus { offset, len, .. },
        ) => (offset, len),
        Ok(Plan::Flush | Plan::Cache | Plan::Disconnect) => return,
    };
    let block = u64::from(facts.block_bytes);
    assert!(len > 0 && offset.is_multiple_of(block) && len.is_multiple_of(block));
    assert!(offset + len <= facts.bytes);
}

fuzz_target!(|data: &[u8]| {
    let Some((&piece, input)) = data.split_first() else { return };
    let exports = exports();
    let policies = [TlsPolicy::None, TlsPolicy::Allowed, TlsPolicy::Required];
    let tls = policies[usize::from(piece) % policies.len()];
    let (out, progress, rest) = negotiate(&exports, input, usize::MAX, tls);
    let pieces = negotiate(&exports, input, usize::from(piece).max(1), tls);
    assert!(pieces.1 == progress && pieces.0 == out, "the cuts make a difference");
    let agreed = match progress {
        Progress::Begins(agreed) => agreed,
        _ => Agreement { export: usize::from(piece) % 2, structured: true, allocation: piece > 9 },
    };
    let rest = if rest.is_empty() { input } else { rest };
    for bytes in rest.chunks_exact(REQUEST_LEN - 4) {
        let mut whole = [0; REQUEST_LEN];
        whole[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        whole[4..].copy_from_slice(bytes);
        let request = Request::parse(&whole).expect("it begins with the magic number");
        check(&exports[agreed.export], &agreed, &request);
    }
});
