//! Serves a device by NBD: `cargo run -p raceline-nbd --example serve -- ram:64M /tmp/nbd.sock`.

use std::process::ExitCode;

use raceline_bdev::{DeviceSpec, Identity};
use raceline_nbd::{Endpoint, Export, Server, ServerConfig};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [device, path] = arguments.as_slice() else {
        eprintln!("usage: serve DEVICE SOCKET, e.g. serve ram:64M /tmp/nbd.sock");
        return ExitCode::from(2);
    };
    match run(device, path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serve: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(device: &str, path: &str) -> Result<(), Box<dyn std::error::Error>> {
    let device = raceline_bdev::open(&device.parse::<DeviceSpec>()?, &Identity::of_this_machine())?;
    let description = device.info().name;
    let export = Export { name: "disk".to_owned(), description, device, read_only: false };
    let server =
        Server::start(&ServerConfig::new(vec![export], vec![Endpoint::Unix(path.into())]))?;
    println!("nbd+unix:///disk?socket={path}; Enter ends it");
    std::io::stdin().read_line(&mut String::new())?;
    server.stop();
    Ok(())
}
