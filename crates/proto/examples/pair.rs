//! The two ends of a queue, without a network: the bytes on the wire when a host reads a block.
//!
//! ```text
//! cargo run -p raceline-proto --example pair
//! ```

use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{Direction, Sqe};
use raceline_proto::tcp::{
    ControllerQueue, ControllerQueueConfig, Event, FatalError, HostEvent, HostQueue,
    HostQueueConfig,
};

const BLOCK: u32 = 512;

fn main() -> Result<(), FatalError> {
    let mut host = HostQueue::new(HostQueueConfig {
        hpda: 0,
        hdgst: true,
        ddgst: false,
        maxr2t: 0,
        slots: 16,
    });
    let mut controller = ControllerQueue::new(ControllerQueueConfig {
        max_h2c_data: 128 << 10,
        in_capsule_bytes: 8192,
        max_r2t_slots: 16,
        allow_hdgst: true,
        allow_ddgst: true,
    });

    let mut wire = Vec::new();
    host.ic_req(&mut wire);
    show("host -> controller  ICReq", &wire);
    if let Some(Event::Connected(request)) = controller.receive(&mut wire.as_slice())? {
        println!("                    {request:?}");
    }

    wire.clear();
    controller.ic_resp(&mut wire);
    show("controller -> host  ICResp", &wire);
    host.receive(&mut wire.as_slice())?;

    wire.clear();
    let read = Sqe { opc: io::READ, cid: 3.into(), nsid: 1.into(), ..Sqe::default() };
    host.command(&read, Direction::ControllerToHost, BLOCK, false, &mut wire);
    show("host -> controller  CapsuleCmd", &wire);
    let Some(Event::Command { sqe, .. }) = controller.receive(&mut wire.as_slice())? else {
        return Ok(());
    };

    wire.clear();
    controller.c2h_data(sqe.command_id(), 0, BLOCK, true, true, &mut wire);
    wire.extend_from_slice(&[0x5a; BLOCK as usize]);
    show("controller -> host  C2HData", &wire);
    let mut input = wire.as_slice();
    while let Some(event) = host.receive(&mut input)? {
        match event {
            HostEvent::Data { offset, bytes, .. } => {
                println!("                    {} bytes at {offset}", bytes.len());
            }
            HostEvent::DataEnd { success: true, .. } => {
                println!("                    done, no CapsuleResp needed");
            }
            other => println!("                    {other:?}"),
        }
    }
    Ok(())
}

fn show(what: &str, bytes: &[u8]) {
    let head: Vec<String> = bytes.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    println!("{what:<31} {:>4} bytes  {} ..", bytes.len(), head.join(" "));
}
