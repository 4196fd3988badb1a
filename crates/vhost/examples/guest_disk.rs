//! Serves a device to a guest: `cargo run -p raceline-vhost --example guest_disk -- ram:64M /tmp/disk.sock`.

use std::process::ExitCode;

use raceline_bdev::{DeviceSpec, Identity};
use raceline_vhost::{Server, ServerConfig};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, path] = arguments.as_slice() else {
        eprintln!("usage: guest_disk DEVICE SOCKET, e.g. guest_disk ram:64M /tmp/disk.sock");
        return ExitCode::from(2);
    };
    match run(device, path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("guest_disk: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(device: &str, path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let device = raceline_bdev::open(&device.parse::<DeviceSpec>()?, &Identity::of_this_machine())?;
    let server = Server::start(&ServerConfig::new(device, path.into()))?;
    println!(
        "-chardev socket,id=c,path={path} -device vhost-user-blk-pci,chardev=c; Enter ends it"
    );
    std::io::stdin().read_line(&mut String::new())?;
    server.stop();
    Ok(())
}
