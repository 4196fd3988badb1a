//! `bdev_nvme_{add,remove}_error_injection`: errors of a remote controller's commands, to see what becomes of them.

use std::sync::Arc;
use std::time::Duration;

use raceline_host::{InjectedKind, Injection, MAX_INJECTED_DELAY, RemoteController};
use raceline_proto::nvme::Status;
use raceline_proto::nvme::opcode::{admin, io};
use serde::Deserialize;

use super::{invalid, no_controller};
use crate::error::RpcError;
use crate::manager::controllers::Controller;
use crate::manager::controllers::link::Link;
use crate::method::{Call, Registry, States};

/// SCT has 3 bits.
const MAX_SCT: u8 = 7;
/// The commands that requests to a device become.
const IO_OPCODES: [u8; 5] =
    [io::FLUSH, io::WRITE, io::READ, io::WRITE_ZEROES, io::DATASET_MANAGEMENT];

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_nvme_add_error_injection", States::Runtime, add);
    registry.change("bdev_nvme_remove_error_injection", States::Runtime, remove);
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CommandType {
    Admin,
    Io,
}

impl From<CommandType> for InjectedKind {
    fn from(kind: CommandType) -> Self {
        match kind {
            CommandType::Admin => Self::Admin,
            CommandType::Io => Self::Io,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Add {
    name: String,
    cmd_type: CommandType,
    opc: u8,
    #[serde(default)]
    do_not_submit: bool,
    #[serde(default)]
    timeout_in_us: u64,
    err_count: Option<u32>,
    #[serde(default)]
    sct: u8,
    #[serde(default)]
    sc: u8,
}

fn add(call: &Call<'_>, params: Add) -> Result<bool, RpcError> {
    let delay = Duration::from_micros(params.timeout_in_us);
    if params.sct > MAX_SCT {
        return Err(invalid(format!("sct {} is more than {MAX_SCT}", params.sct)));
    }
    if delay > MAX_INJECTED_DELAY {
        let text = format!("timeout_in_us is more than {} s", MAX_INJECTED_DELAY.as_secs());
        return Err(invalid(text));
    }
    if !delay.is_zero() && !params.do_not_submit {
        let text =
            "timeout_in_us is how long a command waits that is not sent: it needs do_not_submit";
        return Err(invalid(text.to_owned()));
    }
    let opc = params.opc;
    match params.cmd_type {
        CommandType::Admin if opc != admin::GET_LOG_PAGE => {
            return Err(invalid(format!(
                "opc {opc}: errors can be injected into Get Log Page (2) of the admin commands, because no call causes \
                 another one"
            )));
        }
        CommandType::Io if !IO_OPCODES.contains(&opc) => {
            return Err(invalid(format!(
                "opc {opc}: requests to a device become Flush (0), Write (1), Read (2), Write Zeroes (8) and Dataset \
                 Management (9)"
            )));
        }
        _ => {}
    }
    let controller = controller(call, &params.name)?;
    let injection = Injection {
        instead: params.do_not_submit.then_some(delay),
        count: params.err_count.unwrap_or(1),
        status: Status::new(params.sct, params.sc),
    };
    remote(&controller)?.inject(params.cmd_type.into(), opc, injection);
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    name: String,
    cmd_type: CommandType,
    opc: u8,
}

fn remove(call: &Call<'_>, params: Remove) -> Result<bool, RpcError> {
    let controller = controller(call, &params.name)?;
    // As with SPDK, it is no error when there is none.
    remote(&controller)?.remove_injection(params.cmd_type.into(), params.opc);
    Ok(true)
}

fn controller(call: &Call<'_>, name: &str) -> Result<Arc<Controller>, RpcError> {
    let found = call.manager.model().controllers.get(name).cloned();
    found.ok_or_else(|| no_controller(name))
}

fn remote(controller: &Controller) -> Result<&RemoteController, RpcError> {
    match &controller.link {
        Link::Remote(remote) => Ok(remote),
        Link::Drive(_) => Err(invalid(format!(
            "`{}` is a local drive, whose commands the kernel sends: bdev_error_create makes a device above it that fails",
            controller.name
        ))),
    }
}
