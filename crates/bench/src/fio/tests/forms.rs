//! Numbers and forms, compared with fio 3.33.
//!
//! The values come from `fio --parse-only --debug=parse FILE`, lines "ret=0, out=", of a file with
//! `bs=TEXT` (sizes) or `runtime=TEXT` (times), with the fio of Debian 12. If a fio is installed, the test
//! asks it for the sizes again.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::super::units::{self, KbBase};
use super::{parse, percentile_list};

/// How we treat a text.
#[derive(Clone, Copy)]
enum Here {
    /// We read the same value as fio.
    Same,
    /// We refuse it, because fio reads another value than the text suggests.
    Refused,
}
use Here::{Refused, Same};

/// A size, the values that fio 3.33 reads with kb_base 1024 and with 1000, and our treatment.
const SIZES: &[(&str, u64, u64, Here)] = &[
    ("4096", 4096, 4096, Same),
    ("4b", 4, 4, Same),
    ("4B", 4, 4, Same),
    ("4k", 4 << 10, 4000, Same),
    ("4K", 4 << 10, 4000, Same),
    ("4kb", 4 << 10, 4000, Same),
    ("4KB", 4 << 10, 4000, Same),
    ("4ki", 4 << 10, 4000, Same),
    ("4Ki", 4 << 10, 4000, Same),
    ("4kib", 4000, 4 << 10, Same),
    ("4KiB", 4000, 4 << 10, Same),
    ("4m", 4 << 20, 4_000_000, Same),
    ("4mi", 4 << 20, 4_000_000, Same),
    ("4mb", 4 << 20, 4_000_000, Same),
    ("4mib", 4_000_000, 4 << 20, Same),
    ("4g", 4 << 30, 4_000_000_000, Same),
    ("4gi", 4 << 30, 4_000_000_000, Same),
    ("4gb", 4 << 30, 4_000_000_000, Same),
    ("4gib", 4_000_000_000, 4 << 30, Same),
    ("4t", 4 << 40, 4_000_000_000_000, Same),
    ("4ti", 4 << 40, 4_000_000_000_000, Same),
    ("4tb", 4 << 40, 4_000_000_000_000, Same),
    ("4tib", 4_000_000_000_000, 4 << 40, Same),
    ("4p", 4 << 50, 4_000_000_000_000_000, Same),
    ("4pi", 4 << 50, 4_000_000_000_000_000, Same),
    ("4pb", 4 << 50, 4_000_000_000_000_000, Same),
    ("4pib", 4_000_000_000_000_000, 4 << 50, Same),
    ("0x1000", 4096, 4096, Same),
    ("0X1000", 4096, 4096, Same),
    ("08", 8, 8, Same),
    // fio reads the digits and ignores the unit.
    ("4q", 4, 4, Refused),
    ("4e", 4, 4, Refused),
    ("1e3", 1, 1, Refused),
    ("4i", 4, 4, Refused),
    ("4ib", 4, 4, Refused),
    ("1.5k", 1, 1, Refused),
    ("4 k", 4, 4, Refused),
    ("0x10k", 16, 16, Refused),
    // fio reads the first letter and ignores the rest.
    ("4kbit", 4 << 10, 4000, Refused),
    ("1m512k", 1 << 20, 1_000_000, Refused),
    ("8k/50", 8 << 10, 8000, Refused),
    // 2^64 + 1024.
    ("18014398509481985k", 1024, 18_014_398_509_481_985_000, Refused),
];

/// Texts that fio refuses as well, or reads as a percentage or a zone.
const NO_SIZES: [&str; 13] = [
    "",
    "k",
    "kib",
    "i",
    "-1",
    "-4k",
    "(2*4k)",
    "\"4k\"",
    "50%",
    "1z",
    "99999999999999999999",
    "0x",
    "x",
];

#[test]
fn sizes_are_fios() {
    for &(text, binary, decimal, here) in SIZES {
        for (base, value) in [(KbBase::Binary, binary), (KbBase::Decimal, decimal)] {
            let read = units::size(text, base);
            match here {
                Same => assert_eq!(read, Ok(value), "{text} {base:?}"),
                // The product may fit with the smaller base.
                Refused => assert!(read.is_err() || read == Ok(value), "{text} {base:?}: {read:?}"),
            }
        }
        if matches!(here, Refused) {
            assert!(units::size(text, KbBase::Binary).is_err(), "{text}");
        }
    }
    for text in NO_SIZES {
        assert!(units::size(text, KbBase::Binary).is_err(), "{text}");
    }
    let message = |text| units::size(text, KbBase::Binary).unwrap_err();
    assert_eq!(message("(2*4k)"), "`(2*4k)`: an expression is not computed here: write its result");
    assert_eq!(
        message("1.5k"),
        "`1.5k`: a size has no fraction, and fio would take it for 1: write a smaller unit"
    );
    assert_eq!(
        message("50%"),
        "`50%`: only size may be a percentage here: write a number of bytes"
    );
    assert_eq!(message("4z"), "`4z`: zones are not supported: write a number of bytes");
    // All of fio's numbers may have suffixes.
    assert_eq!(units::number("1k", 1, 4095, KbBase::Binary), Ok(1024_u16));
    assert_eq!(units::number("1kib", 1, 4095, KbBase::Binary), Ok(1000_u16));
    assert_eq!(units::number("0x20", 1, 4095, KbBase::Binary), Ok(32_u16));
    assert_eq!(
        units::number::<u16>("4-8", 1, 4095, KbBase::Binary),
        Err("`4-8` is not a number from 1 to 4095".to_owned())
    );
}

/// A time, the microseconds that fio 3.33 reads, and our treatment.
const TIMES: &[(&str, u64, Here)] = &[
    ("5", 5_000_000, Same),
    ("5s", 5_000_000, Same),
    ("5S", 5_000_000, Same),
    ("500ms", 500_000, Same),
    ("500MS", 500_000, Same),
    ("500msec", 500_000, Same),
    ("500us", 500, Same),
    ("500usec", 500, Same),
    ("2m", 120_000_000, Same),
    ("2M", 120_000_000, Same),
    ("1h", 3_600_000_000, Same),
    ("1d", 86_400_000_000, Same),
    ("0", 0, Same),
    // fio reads an unknown unit as microseconds.
    ("5sec", 5, Refused),
    ("2min", 2, Refused),
    ("1w", 1, Refused),
    ("1h30m", 1, Refused),
    ("5m30s", 5, Refused),
    ("500u", 500, Refused),
    ("0x10", 16, Refused),
    // fio drops everything after a dot or a space.
    ("1.5s", 1_000_000, Refused),
    ("1.5", 1_000_000, Refused),
    ("5 m", 5_000_000, Refused),
    ("5 s", 5_000_000, Refused),
    // fio reads the first of several values.
    ("5,6", 5_000_000, Refused),
    ("1:30", 1_000_000, Refused),
    ("00:01:00", 0, Refused),
];

#[test]
fn times_are_fios() {
    for &(text, micros, here) in TIMES {
        let read = units::time(text);
        match here {
            Same => assert_eq!(read, Ok(Duration::from_micros(micros)), "{text}"),
            Refused => assert!(read.is_err(), "{text}: {read:?}"),
        }
    }
    for text in ["", "-1", "s", "(5s)", "366d"] {
        assert!(units::time(text).is_err(), "{text}");
    }
}

/// If a fio is installed, it must agree with the table for both bases. `timeout` bounds its run.
#[test]
fn sizes_are_those_of_the_fio_that_is_installed() {
    let version = Command::new("fio").arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    if !version.as_ref().is_ok_and(|version| version.starts_with("fio-3.")) {
        eprintln!("SKIPPED: no fio 3 here: {version:?}");
        return;
    }
    for base in [1024, 1000] {
        let section = |(number, (text, ..)): (usize, &(&str, u64, u64, Here))| {
            format!("[s{number}]\nioengine=null\nsize=1m\nkb_base={base}\nbs={text}\n")
        };
        let text: String = SIZES.iter().enumerate().map(section).collect();
        let mut fio = Command::new("timeout")
            .args(["20", "fio", "--parse-only", "--debug=parse", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The text is smaller than a pipe's buffer, and the pipe is closed after it.
        fio.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = fio.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let values = after_bs(&said);
        let expected: Vec<u64> = SIZES
            .iter()
            .map(|&(_, binary, decimal, _)| if base == 1024 { binary } else { decimal })
            .collect();
        assert_eq!(values, expected, "kb_base {base}: {version:?}\n{said}");
    }
}

/// The values that fio reports for `bs`: the line after each "__handle_option=bs".
fn after_bs(said: &str) -> Vec<u64> {
    let mut lines = said.lines();
    let mut values = Vec::new();
    while let Some(line) = lines.next() {
        if line.contains("__handle_option=bs,") {
            let next = lines.next().unwrap_or_default();
            values.extend(next.rsplit_once("out=").and_then(|(_, out)| out.parse::<u64>().ok()));
        }
    }
    values
}

/// A kind of the manual's table, accepted forms, and refused forms: the lines below `[x]`, unless the form
/// has a section itself.
type Kind = (&'static str, &'static [&'static str], &'static [&'static str]);

const KINDS: &[Kind] = &[
    ("sections", &["[x]\n[x]\n", "[global]\n[globals]\n[x]\n"], &["[x\n", "bs=4k\n[x]\n"]),
    (
        "lines",
        &["; a\n# b\n[x]\nbs=4k ; c\n", "[x]\r\nbs=4k\r\n", "\u{feff}[x]\n", "\tbs=4k \t"],
        &["include other.fio"],
    ),
    ("space around `=`", &["bs = 4k", "bs =4k"], &[]),
    (
        "variables",
        &["iodepth=${N}"],
        &["iodepth=${M}", "numjobs=$ncpus", "bs=$pagesize", "size=$mb_memory"],
    ),
    (
        "sizes and numbers",
        &[
            "io_size=4b",
            "bs=4kb",
            "bs=4Ki",
            "kb_base=1000\nbs=4kib",
            "bs=0x1000",
            "size=50%",
            "iodepth=1k",
        ],
        &["bs=1.5k", "bs=4 k", "bs=4q", "bs=1m512k", "bs=-1", "bs=(2*4k)", "size=1z", "offset=50%"],
    ),
    (
        "times",
        &[
            "runtime=90",
            "runtime=90s",
            "runtime=500msec",
            "ramp_time=500usec",
            "runtime=2m",
            "runtime=1h",
            "runtime=1d",
        ],
        &["runtime=5sec", "runtime=2min", "runtime=1h30m", "runtime=1.5s", "runtime=1:30"],
    ),
    (
        "switches",
        &["thread=1", "randrepeat=0", "group_reporting"],
        &["norandommap=yes", "time_based=true"],
    ),
    (
        "reads,writes,trims",
        &[
            "bs=4k,8k",
            "rate=1m,2m",
            "rw=randrw\nrate_iops=300,100",
            "bs=,8k",
            "bs=4k-8k",
            "bs=4k:8k",
            "bs=4k,8k,16k",
        ],
        &["rw=rw\nbs=4k,8k", "rw=randrw\nrate=,1m", "bs=4k,8k,16k,32k"],
    ),
    (
        "`rw`",
        &[
            "rw=read",
            "rw=write",
            "rw=randread",
            "rw=randwrite",
            "rw=rw",
            "rw=readwrite",
            "rw=randrw",
        ],
        &["rw=trim", "rw=randtrim", "rw=trimwrite", "rw=randread:8"],
    ),
    ("keys", &["iodepth=4", "direct=1"], &["bssplit=4k/50:8k/50", "nosuchkey=1"]),
];

/// The manual has a row for each kind, and the row is true.
#[test]
fn the_manual_says_what_is_taken() {
    let manual = include_str!("../../../../../docs/manual.md");
    let read = |form: &&str| {
        let text = if form.contains('[') { (*form).to_owned() } else { format!("[x]\n{form}\n") };
        parse("x.fio", &text, &|name| (name == "N").then(|| "4".to_owned()))
    };
    for (kind, taken, refused) in KINDS {
        assert!(manual.contains(&format!("\n| {kind} | ")), "the manual lacks the row {kind}");
        for form in *taken {
            assert!(read(form).is_ok(), "{form}: {:?}", read(form).err());
        }
        for form in *refused {
            let error = read(form).unwrap_err();
            assert!(error.line > 0 && !error.message.is_empty(), "{form}: {error}");
        }
    }
}

#[test]
fn lists_are_fios() {
    assert_eq!(units::cpus("4,0-2,1").unwrap(), [4, 0, 1, 2]);
    assert_eq!(percentile_list("99.9:50").unwrap(), [50.0, 99.9]);
}
