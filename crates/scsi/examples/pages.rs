//! Prints what a disk tells of itself as hexadecimal digits, for decoders such as those of sg3_utils.
//!
//! ```text
//! cargo run -p raceline-scsi --example pages -- inquiry | sg_inq --inhex=-
//! cargo run -p raceline-scsi --example pages -- vpd 83  | sg_vpd --inhex=-
//! cargo run -p raceline-scsi --example pages -- mode 3f ff | sdparm --inhex=- --six --all
//! cargo run -p raceline-scsi --example pages -- fixed   | sg_decode_sense --file=-
//! cargo run -p raceline-scsi --example pages -- cdb a30a0000000000000400
//! ```

use std::io::Write as _;
use std::process::ExitCode;

use raceline_scsi::{
    Admission, AsciiField, Attentions, DataDirection, Identity, Limits, Lun, LunState, Plan, Port,
    PortGroup, PortGroupState, Request, Sense, TargetFacts, View, plan,
};

fn lun() -> Lun {
    Lun {
        block_size: 512,
        block_count: 1 << 21,
        physical_block_size: 4096,
        io_boundary_bytes: 128 << 10,
        read_only: false,
        volatile_write_cache: true,
        deallocate: true,
        deallocate_zeroes: true,
        knows_holes: false,
        identity: Identity {
            uuid: *b"\x12\x34\x56\x78\x9a\xbc\x4d\xef\x81\x23\x45\x67\x89\xab\xcd\xef",
            nguid: *b"\x12\x34\x56\x78\x9a\xbc\xde\xf0\x52\x41\x43\x00\x00\x00\x00\x01",
            eui64: *b"\x52\x41\x43\x00\x00\x00\x00\x01",
            serial: "123456789abc4def8123".to_owned(),
            vendor: AsciiField::new("RACELINE"),
            product: AsciiField::new("iSCSI disk"),
            revision: AsciiField::new("0.1"),
        },
        limits: Limits::new(1 << 20),
    }
}

/// The data of a command.
fn data_of(cdb: &[u8]) -> Result<Vec<u8>, String> {
    let mut padded = [0; 16];
    padded.get_mut(..cdb.len()).ok_or("a CDB has at most 16 bytes")?.copy_from_slice(cdb);
    let groups = vec![PortGroup { tag: 1, state: PortGroupState::Optimized, ports: vec![1] }];
    let name = "iqn.2026-01.org.example:disk".to_owned();
    let view = View {
        lun: &lun(),
        state: &LunState::default(),
        admission: Admission::ALL,
        target: &TargetFacts { name, groups, luns: vec![0] },
        port: Port { group: 1, relative: 1 },
        port_state: PortGroupState::Optimized,
    };
    let request = Request { cdb: padded, edtl: u32::MAX, direction: DataDirection::In };
    match plan(&view, &mut Attentions::default(), &request) {
        Plan::Reply(reply) => Ok(reply.data),
        other => Err(format!("{other:?}")),
    }
}

fn number(text: &str) -> Result<u8, String> {
    u8::from_str_radix(text, 16).map_err(|error| format!("{text}: {error}"))
}

fn run(arguments: &[&str]) -> Result<Vec<u8>, String> {
    let sense = Sense::miscompare(0x1234);
    let wrong = Sense::bad_cdb_bit(1, 7);
    match *arguments {
        ["inquiry"] => data_of(&[0x12, 0, 0, 0, 255, 0]),
        ["vpd", page] => data_of(&[0x12, 1, number(page)?, 1, 0, 0]),
        ["mode", page, subpage] => data_of(&[0x1a, 0, number(page)?, number(subpage)?, 255, 0]),
        ["mode10", page, subpage] => {
            data_of(&[0x5a, 0x10, number(page)?, number(subpage)?, 0, 0, 0, 2, 0, 0])
        }
        ["fixed"] => Ok(wrong.encode(false).as_bytes().to_vec()),
        ["fixed-information"] => Ok(sense.encode(false).as_bytes().to_vec()),
        ["descriptors"] => Ok(wrong.encode(true).as_bytes().to_vec()),
        ["descriptors-information"] => Ok(sense.encode(true).as_bytes().to_vec()),
        ["cdb", digits] => {
            let pairs = digits.as_bytes().chunks(2).map(String::from_utf8_lossy);
            data_of(&pairs.map(|pair| number(&pair)).collect::<Result<Vec<_>, _>>()?)
        }
        _ => Err("what: inquiry, vpd PAGE, mode PAGE SUBPAGE, mode10 PAGE SUBPAGE, fixed, \
                  fixed-information, descriptors, descriptors-information or cdb DIGITS"
            .to_owned()),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(data) => {
            let digits: Vec<String> = data.iter().map(|byte| format!("{byte:02x}")).collect();
            let lines: Vec<String> = digits.chunks(16).map(|line| line.join(" ")).collect();
            match writeln!(std::io::stdout(), "{}", lines.join("\n")) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE, // nobody reads them
            }
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
