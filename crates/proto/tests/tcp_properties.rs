//! What one end encodes the other decodes, for all values of every PDU type; and no sequence of bytes
//! breaks a queue.
#![allow(clippy::unwrap_used)] // a test

mod tcp_support;

use proptest::prelude::*;
use raceline_proto::nvme::{CommandId, Cqe, Direction, QueueId, Sqe, Status};
use raceline_proto::tcp::{
    ControllerQueue, ControllerQueueConfig, DataDest, Event, FatalError, HostEvent, HostQueue,
    HostQueueConfig, IcReq, IcResp, R2tGrant, Violation,
};
use tcp_support::{READ, WRITE, append, sqe};
use zerocopy::FromBytes;

prop_compose! {
    fn any_config()(
        hpda in 0..=31_u8,
        hdgst: bool,
        ddgst: bool,
        maxr2t: u32,
        slots in 0..=10_u32,
    ) -> HostQueueConfig {
        HostQueueConfig { hpda, hdgst, ddgst, maxr2t, slots: 1 << slots }
    }
}

prop_compose! {
    fn any_controller()(
        max_h2c_data in 1024..u32::MAX / 4,
        in_capsule_bytes: u32,
        max_r2t_slots in 1..=u16::MAX,
        allow_hdgst: bool,
        allow_ddgst: bool,
    ) -> ControllerQueueConfig {
        ControllerQueueConfig {
            max_h2c_data: max_h2c_data * 4,
            in_capsule_bytes,
            max_r2t_slots,
            allow_hdgst,
            allow_ddgst,
        }
    }
}

prop_compose! {
    fn any_cqe()(dw0: u32, dw1: u32, sqhd: u16, sqid: u16, cid: u16, status: u16) -> Cqe {
        let status = Status::from_wire(status);
        Cqe { dw0, dw1, sqhd, sqid: QueueId(sqid), cid: CommandId(cid), status }
    }
}

/// Connected ends with all the digests that the host asks for.
fn connect(
    host: HostQueueConfig,
    controller: ControllerQueueConfig,
) -> (HostQueue, ControllerQueue) {
    let mut controller = ControllerQueue::new(ControllerQueueConfig {
        allow_hdgst: true,
        allow_ddgst: true,
        ..controller
    });
    let mut host = HostQueue::new(host);
    let (mut request, mut response) = (Vec::new(), Vec::new());
    host.ic_req(&mut request);
    controller.receive(&mut &request[..]).unwrap();
    controller.ic_resp(&mut response);
    host.receive(&mut &response[..]).unwrap();
    (host, controller)
}

proptest! {
    #[test]
    fn ic_req_and_ic_resp(config in any_config(), offer in any_controller()) {
        let mut out = Vec::new();
        let mut host = HostQueue::new(config);
        host.ic_req(&mut out);
        let mut controller = ControllerQueue::new(offer);
        let request = IcReq {
            hpda: config.hpda,
            header_digest: config.hdgst,
            data_digest: config.ddgst,
            maxr2t: config.maxr2t,
        };
        prop_assert_eq!(controller.receive(&mut &out[..]), Ok(Some(Event::Connected(request))));
        prop_assert_eq!(controller.r2t_limit(), config.maxr2t.saturating_add(1));

        out.clear();
        controller.ic_resp(&mut out);
        let response = IcResp {
            cpda: 0,
            header_digest: config.hdgst && offer.allow_hdgst,
            data_digest: config.ddgst && offer.allow_ddgst,
            max_h2c_data: offer.max_h2c_data,
        };
        let got = host.receive(&mut &out[..]);
        if response.header_digest == config.hdgst && response.data_digest == config.ddgst {
            prop_assert_eq!(got, Ok(Some(HostEvent::Connected(response))));
        } else {
            prop_assert_eq!(got.unwrap_err().violation(), Violation::DgstUnexpected);
        }
    }

    #[test]
    fn capsule_cmd(
        config in any_config(),
        offer in any_controller(),
        bytes: [u8; 64],
        data in proptest::collection::vec(any::<u8>(), 0..128),
        in_capsule: bool,
    ) {
        let (mut host, mut controller) = connect(config, offer);
        controller.set_queue_kind(true);
        let data = &data[..data.len() & !3];
        let len = u32::try_from(data.len()).unwrap();
        let in_capsule = in_capsule && len > 0;
        let direction = if len > 0 { Direction::HostToController } else { Direction::None };
        let sent = Sqe::read_from_bytes(&bytes).unwrap();
        let mut out = Vec::new();
        host.command(&sent, direction, len, in_capsule, &mut out);
        if in_capsule {
            append(&mut out, data, config.ddgst);
        }
        let mut input = &out[..];
        let Ok(Some(Event::Command { sqe, in_capsule: got })) = controller.receive(&mut input)
        else { panic!("a command") };
        prop_assert_eq!(got, if in_capsule { len } else { 0 });
        prop_assert!(sqe.uses_sgl());
        prop_assert_eq!(sqe.fuse(), sent.fuse());
        prop_assert_eq!(sqe.sgl1.length.get(), len);
        prop_assert_eq!(Sqe { flags: sent.flags, sgl1: sent.sgl1, ..sqe }, sent);
        if in_capsule {
            let dest = DataDest::Capsule;
            let event = Event::Data { dest, offset: 0, bytes: data };
            prop_assert_eq!(controller.receive(&mut input), Ok(Some(event)));
            let Ok(Some(Event::DataEnd { offset: 0, len: got, ddgst, last_pdu: true, .. })) =
                controller.receive(&mut input)
            else { panic!("the end") };
            prop_assert_eq!(got, len);
            prop_assert_eq!(ddgst, config.ddgst.then(|| raceline_crc32c::crc32c(data)));
        }
        prop_assert_eq!(controller.receive(&mut input), Ok(None));
        prop_assert!(input.is_empty());
    }

    #[test]
    fn capsule_resp(config in any_config(), offer in any_controller(), cqe in any_cqe()) {
        let (mut host, mut controller) = connect(config, offer);
        host.command(&sqe(WRITE, cqe.cid.0), Direction::None, 0, false, &mut Vec::new());
        let mut out = Vec::new();
        controller.response(&cqe, &mut out);
        prop_assert_eq!(host.receive(&mut &out[..]), Ok(Some(HostEvent::Response(cqe))));
    }

    #[test]
    fn r2t_and_h2c_data(
        config in any_config(),
        offer in any_controller(),
        cid: u16,
        slot: u16,
        rounds in 1..5_u32,
        dwords in 1..64_u32,
        piece_dwords in 1..64_u32,
    ) {
        let (mut host, mut controller) = connect(config, offer);
        let slot = slot % offer.max_r2t_slots;
        let (cid, len) = (CommandId(cid), dwords * 4);
        host.command(
            &sqe(WRITE, cid.0), Direction::HostToController, len * rounds, false, &mut Vec::new(),
        );
        for round in 0..rounds {
            let mut out = Vec::new();
            let start = round * len;
            controller.r2t(slot, cid, start, len, &mut out);
            let Ok(Some(HostEvent::SendData(grant))) = host.receive(&mut &out[..])
            else { panic!("an R2T") };
            prop_assert_eq!(grant, R2tGrant { cid, ttag: grant.ttag, offset: start, len });
            let mut offset = start;
            while offset < start + len {
                let piece = (piece_dwords * 4).min(start + len - offset);
                let last = offset + piece == start + len;
                let data = vec![0x5a; usize::try_from(piece).unwrap()];
                out.clear();
                host.h2c_data(&grant, offset, piece, last, &mut out);
                append(&mut out, &data, config.ddgst);
                let mut input = &out[..];
                let dest = DataDest::Slot(slot);
                let ddgst = config.ddgst.then(|| raceline_crc32c::crc32c(&data));
                prop_assert_eq!(
                    controller.receive(&mut input),
                    Ok(Some(Event::Data { dest, offset, bytes: &data }))
                );
                prop_assert_eq!(
                    controller.receive(&mut input),
                    Ok(Some(Event::DataEnd { dest, offset, len: piece, ddgst, last_pdu: last }))
                );
                offset += piece;
            }
        }
    }

    #[test]
    fn c2h_data(
        config in any_config(),
        offer in any_controller(),
        cid: u16,
        pieces in proptest::collection::vec(1..64_u32, 1..5),
        success: bool,
    ) {
        let (mut host, mut controller) = connect(config, offer);
        let cid = CommandId(cid);
        let total = pieces.iter().sum::<u32>() * 4;
        host.command(
            &sqe(READ, cid.0), Direction::ControllerToHost, total, false, &mut Vec::new(),
        );
        let mut offset = 0;
        for piece in pieces {
            let len = piece * 4;
            let last = offset + len == total;
            let data = vec![0xa5; usize::try_from(len).unwrap()];
            let mut out = Vec::new();
            controller.c2h_data(cid, offset, len, last, last && success, &mut out);
            prop_assert_eq!(out.len() + if config.ddgst { 4 } else { 0 }, controller.c2h_overhead());
            append(&mut out, &data, config.ddgst);
            let mut input = &out[..];
            let ddgst = config.ddgst.then(|| raceline_crc32c::crc32c(&data));
            prop_assert_eq!(
                host.receive(&mut input),
                Ok(Some(HostEvent::Data { cid, offset, bytes: &data }))
            );
            let success = last && success;
            prop_assert_eq!(
                host.receive(&mut input),
                Ok(Some(HostEvent::DataEnd { cid, offset, len, ddgst, last, success }))
            );
            offset += len;
        }
    }

    #[test]
    fn term_req(config in any_config(), offer in any_controller(), index: prop::sample::Index) {
        let (mut host, mut controller) = connect(config, offer);
        let error = FatalError::new(*index.get(Violation::ALL));
        let mut out = Vec::new();
        controller.term_req(&error, &mut out);
        let Ok(Some(HostEvent::Terminated(reason))) = host.receive(&mut &out[..])
        else { panic!("a TermReq") };
        prop_assert_eq!((reason.fes, reason.fei), (error.fes(), error.fei()));

        let (mut host, mut controller) = connect(config, offer);
        out.clear();
        host.term_req(&error, &mut out);
        let Ok(Some(Event::Terminated(reason))) = controller.receive(&mut &out[..])
        else { panic!("a TermReq") };
        prop_assert_eq!((reason.fes, reason.fei), (error.fes(), error.fei()));
    }

    /// A common header of arbitrary values: judged by its 8 bytes, or taken.
    #[test]
    fn any_header(
        config in any_config(),
        offer in any_controller(),
        pdu_type in 0..=10_u8,
        flags in 0..16_u8,
        hlen in prop_oneof![Just(24_u8), Just(72), Just(128), any::<u8>()],
        pdo: u8,
        plen in prop_oneof![0..600_u32, any::<u32>()],
        rest in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut bytes = vec![pdu_type, flags, hlen, pdo];
        bytes.extend(plen.to_le_bytes());
        bytes.extend(&rest);
        let (mut host, mut controller) = connect(config, offer);
        let mut input = &bytes[..];
        while let Ok(Some(_)) = controller.receive(&mut input) {}
        let mut input = &bytes[..];
        while let Ok(Some(_)) = host.receive(&mut input) {}
    }
}
