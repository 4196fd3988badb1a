//! A disk for a virtual machine: vhost-user-blk at a socket.

use raceline_vhost::{Server, ServerConfig, ServerError};

use super::registry::{Noted, Registry};
use super::{End, InUse, Ready, Source, Watched, Way, default_socket, note, print, wait_with};
use crate::cli::connect::DiskArgs;
use crate::failure::Failure;
use crate::signals::Interrupt;

/// Letters of a serial number.
const SERIAL_LEN: usize = 20;

/// Serves the disk until a signal.
pub(super) fn serve(
    args: &DiskArgs,
    (source, way): (&Source, Way),
    registry: &Registry,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let device = source.device();
    let info = device.info();
    let socket = args.socket.clone().unwrap_or_else(|| default_socket(args, registry));
    let mut config = ServerConfig::new(device, socket);
    config.read_only = args.read_only;
    config.queues = args.queues;
    config.serial = args.serial.clone().unwrap_or_else(|| serial(&info.uuid));
    config.cores = way.cores;
    config.mode = args.mode.into();
    config.backend = args.io.into();
    let server = Server::start(&config).map_err(|error| failure(&error))?;
    let place = config.socket.display().to_string();
    let beside = (("vhost-user", way.transport), server.figures());
    let noted = note(args, (source, registry), beside, vec![place.clone()]);
    let ready = Ready {
        ready: true,
        kind: "vhost-user",
        uri: &format!("unix:{place}"),
        device: &place,
        bytes: server.bytes(),
        block_size: info.block_size,
        recovered: None,
        zero_copy: None,
        read_only: args.read_only || info.read_only,
        rpc: noted.as_ref().and_then(Noted::socket_in_use),
        pid: std::process::id(),
    };
    let uses = format!(
        "QEMU uses it by -chardev socket,id=disk0,path={place} -device vhost-user-blk-pci,chardev=disk0, cloud-hypervisor by \
         --disk vhost_user=true,socket={place}, both with memory that is shared"
    );
    let served = Served(&server, &place);
    let ended = print(&ready, &uses).and_then(|()| wait_with(source, interrupt, served));
    server.stop();
    drop(noted);
    ended.and_then(End::result)
}

/// A server, and the path of its socket.
struct Served<'a>(&'a Server, &'a str);

impl Watched for Served<'_> {
    /// A guest learns when the device has another size.
    fn look(&mut self) -> Result<(), Failure> {
        if !self.0.is_running() {
            let text = "a core of the vhost-user server has ended; the log says why";
            return Err(Failure::runtime(text));
        }
        self.0.refresh();
        Ok(())
    }

    fn user(&self, _at_once: bool) -> Option<InUse> {
        self.0.is_used().then(|| InUse {
            by: format!("A virtual machine is connected to {}", self.1),
            remedy: "Shut the machine down, or take the disk from it",
        })
    }
}

/// The same at each start, and another for each device: the end of its UUID.
fn serial(uuid: &[u8; 16]) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    digits[digits.len() - SERIAL_LEN..].to_owned()
}

fn failure(error: &ServerError) -> Failure {
    match error {
        ServerError::Invalid(text) => Failure::usage(text),
        ServerError::Socket(error) => super::no_socket(error),
        error => Failure::runtime(error),
    }
}
