//! What the verbs print beside what nvme-cli 2.3 prints of the same bytes.
//!
//! The files in `golden` are the output of `nvme id-ctrl`, `id-ns`, `smart-log` and `error-log`, with `-o normal` and
//! `-o json`, and of `nvme get-log`, whose ioctl was answered with the bytes that are made here. Those of `list` and `list-subsys` are what Raceline
//! has for a daemon, in nvme-cli's layout: nvme-cli lists the kernel's devices only.

use raceline_proto::nvme::NamespaceId;
use serde_json::Value;

use super::{identify, log};

/// Bytes of which each differs from its neighbours, and none is above 7Fh.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|place| u8::try_from((place * 7 + 3) & 0x7f).unwrap()).collect()
}

fn put(bytes: &mut [u8], at: usize, len: usize, text: &str, filler: u8) {
    bytes[at..at + len].fill(filler);
    bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
}

fn controller() -> Vec<u8> {
    let mut bytes = pattern(4096);
    put(&mut bytes, 4, 20, "SERIAL-7", b' ');
    put(&mut bytes, 24, 40, "A model of a drive", b' ');
    put(&mut bytes, 64, 8, "1.2.3", b' ');
    put(&mut bytes, 768, 256, "nqn.2014-08.org.example:golden", 0);
    bytes[263] = 1;
    bytes[2080..2112].fill(0);
    bytes
}

fn namespace() -> Vec<u8> {
    let mut bytes = pattern(4096);
    bytes[24] |= 0x10;
    (bytes[25], bytes[26], bytes[82], bytes[99]) = (2, 1, 0, 1);
    bytes[128..140].copy_from_slice(&[0, 0, 9, 2, 8, 0, 12, 0, 0, 0, 12, 1]);
    bytes
}

fn smart() -> Vec<u8> {
    let mut bytes = pattern(512);
    bytes[0] = 4;
    bytes[1..3].copy_from_slice(&310_u16.to_le_bytes());
    for at in (32..192).step_by(16) {
        bytes[at + 5..at + 16].fill(0);
    }
    bytes[202..204].fill(0);
    bytes
}

fn errors() -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in 0..2_u16 {
        let mut one = [0; 64];
        one[..8].copy_from_slice(&(7 - u64::from(entry)).to_le_bytes());
        for (at, value) in
            [(8, entry), (10, 0x10 + entry), (12, 0x4004 + entry), (14, 0xffff), (16, 0x1234)]
        {
            one[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        (one[24], one[29], one[32], one[40]) = (1, 3, 9, 5);
        bytes.extend(one);
    }
    bytes
}

/// Bytes of which some are letters, some are at the ends of what can be printed, and some are above 7Fh.
fn page() -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..84_usize).map(|place| u8::try_from((place * 29 + 3) & 0xff).unwrap()).collect();
    bytes[4..8].copy_from_slice(b" !~\x7f");
    bytes
}

/// Numbers of more than 64 bits are text, and nvme-cli 2.3 has text for all numbers of 128 bits.
fn same(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            ours.len() == theirs.len()
                && theirs
                    .iter()
                    .all(|(name, value)| ours.get(name).is_some_and(|our| same(our, value)))
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len()
                && ours.iter().zip(theirs).all(|(our, their)| same(our, their))
        }
        (Value::Number(ours), Value::String(theirs)) => ours.to_string() == *theirs,
        (ours, theirs) => ours == theirs,
    }
}

#[track_caller]
fn check(name: &str, ours: &Value, theirs: &str) {
    let theirs: Value = serde_json::from_str(theirs).unwrap();
    let members = |value: &Value| -> Vec<String> {
        value.as_object().unwrap().iter().map(|(name, value)| format!("{name}={value}")).collect()
    };
    assert!(same(ours, &theirs), "{name}: {:#?} instead of {:#?}", members(ours), members(&theirs));
}

#[test]
fn json_is_that_of_nvme_cli() {
    check(
        "id-ctrl",
        &identify::controller_document(&controller()),
        include_str!("golden/id-ctrl.json"),
    );
    check("id-ns", &identify::namespace_document(&namespace()), include_str!("golden/id-ns.json"));
    check("smart-log", &log::smart_document(&smart()), include_str!("golden/smart-log.json"));
    check("error-log", &log::errors_document(&errors()), include_str!("golden/error-log.json"));
}

#[track_caller]
fn lines(ours: &str, theirs: &str) {
    for (number, (our, their)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(our.trim_end(), their.trim_end(), "line {}", number + 1);
    }
    assert_eq!(ours.lines().count(), theirs.lines().count());
}

#[test]
fn text_is_that_of_nvme_cli() {
    lines(&identify::controller_normal(&controller(), false), include_str!("golden/id-ctrl.txt"));
    let text =
        format!("NVME Identify Namespace 1:\n{}", identify::namespace_normal(&namespace(), false));
    lines(&text, include_str!("golden/id-ns.txt"));
    let heading = "Smart Log for NVME device:null namespace-id:ffffffff\n";
    lines(
        &(heading.to_owned() + &log::smart_normal(&smart(), false)),
        include_str!("golden/smart-log.txt"),
    );
    // The explanation of the status is nvme-cli's own.
    let theirs = include_str!("golden/error-log.txt");
    let long = ": A reserved coded value or an unsupported value in a defined field";
    let heading = "Error Log Entries for device:null entries:2\n";
    lines(&(heading.to_owned() + &log::errors_normal(&errors(), false)), &theirs.replace(long, ""));
}

/// The last line has four bytes. nvme-cli prints a fifth letter there, which is left of the line before: Raceline does not.
#[test]
fn a_dump_is_that_of_nvme_cli() {
    let theirs = include_str!("golden/get-log.txt").replace("\".0Mj.\"", "\".0Mj\"");
    let ours = log::page_normal("null", 0xc0, NamespaceId::BROADCAST, &page());
    assert_eq!(ours, theirs);
}

#[test]
fn short_data_are_shown_as_zeroes() {
    for data in [&[][..], &[0xff; 10]] {
        identify::controller_document(data);
        identify::namespace_document(data);
        log::smart_document(data);
        for decoded in [false, true] {
            let controller = identify::controller_normal(data, decoded);
            assert!(controller.starts_with("NVME Identify Controller:"));
            let format = if decoded { "LBA Format" } else { "lbaf" };
            assert!(identify::namespace_normal(data, decoded).contains(format));
            assert!(log::smart_normal(data, decoded).contains("critical_warning"));
        }
    }
    // A controller that says 256 power states and 512 block formats has as many as the specification has.
    let text = identify::controller_normal(&[0xff; 4096], false);
    assert_eq!(text.matches("ps   ").count(), 32);
    assert_eq!(identify::namespace_normal(&[0xff; 4096], false).matches("\nlbaf ").count(), 64);
}

/// With `-H`, lines that say what bits mean are added, and block formats are in words; nothing else changes.
#[test]
fn decoded_text_has_the_other_text_in_it() {
    let all = |decoded| {
        [
            identify::controller_normal(&controller(), decoded),
            identify::namespace_normal(&namespace(), decoded),
            log::smart_normal(&smart(), decoded),
            log::errors_normal(&errors(), decoded),
        ]
    };
    for (plain, decoded) in all(false).into_iter().zip(all(true)) {
        let is_added = |line: &&str| !line.is_empty() && !line.starts_with("  [");
        let formats = |line: &&str| !line.starts_with("lbaf") && !line.starts_with("LBA Format");
        let rest: Vec<&str> = decoded.lines().filter(is_added).filter(formats).collect();
        let wanted: Vec<&str> =
            plain.lines().filter(|line| !line.is_empty()).filter(formats).collect();
        assert_eq!(rest, wanted);
        assert!(decoded.matches("\n  [").count() > 5, "{decoded}");
    }
    let [controller, namespace, smart, errors] = all(true);
    for (text, line) in [
        (&controller, "\n  [3:3] : "),
        (
            &namespace,
            "\nLBA Format  1 : Metadata Size: 8   bytes - Data Size: 4096 bytes - Relative Performance: 0 Best (in use)\n",
        ),
        (&smart, "\n  [2:2] : 0x1\tThe reliability of the subsystem is degraded\n"),
        (&errors, "\n  [10:8] : 0\tGeneric Command Status\n"),
        (&errors, "\n  [7:0] : 0x2\tStatus Code: 2\n"),
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(errors.contains("parm_err_loc\t: 0xffff\nlba"), "{errors}");
}
