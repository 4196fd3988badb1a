//! `raceline id-ctrl` and `raceline id-ns`: Identify data as nvme-cli prints them.

use std::fmt::Write as _;

use raceline_proto::nvme::NamespaceId;
use raceline_proto::nvme::identify::cns;
use serde_json::{Value, json};

use super::decode::{Bits, of_controller, of_namespace};
use super::device::Device;
use super::fields::Form::{Decimal, Hex, Oui};
use super::fields::{Bytes, Fields, Form, hex, number};
use super::output;
use crate::cli::nvme::{IdCtrlArgs, IdNsArgs, NvmeFormat};
use crate::failure::Failure;

/// Bytes of a power state.
const POWER_STATE_LEN: usize = 32;
/// Where the power states are.
const POWER_STATES: usize = 2048;
/// NSFEAT, OPTPERF: one of these is set if fields about granularities count.
const NSFEAT_OPTPERF: u8 = 0b11 << 4;
/// Where the block formats of a namespace are, and how many there can be.
const BLOCK_FORMATS: (usize, usize) = (128, 64);

/// Fields before FGUID, from FGUID to DOMAINID, and the rest: first byte, length.
const CONTROLLER: [&[(&str, usize, usize, Form)]; 4] = [
    &[("vid", 0, 2, Hex), ("ssvid", 2, 2, Hex)],
    &[
        ("rab", 72, 1, Decimal),
        ("ieee", 73, 3, Oui),
        ("cmic", 76, 1, Hex),
        ("mdts", 77, 1, Decimal),
        ("cntlid", 78, 2, Hex),
        ("ver", 80, 4, Hex),
        ("rtd3r", 84, 4, Hex),
        ("rtd3e", 88, 4, Hex),
        ("oaes", 92, 4, Hex),
        ("ctratt", 96, 4, Hex),
        ("rrls", 100, 2, Hex),
        ("cntrltype", 111, 1, Decimal),
    ],
    &[
        ("crdt1", 128, 2, Decimal),
        ("crdt2", 130, 2, Decimal),
        ("crdt3", 132, 2, Decimal),
        ("nvmsr", 253, 1, Decimal),
        ("vwci", 254, 1, Decimal),
        ("mec", 255, 1, Decimal),
        ("oacs", 256, 2, Hex),
        ("acl", 258, 1, Decimal),
        ("aerl", 259, 1, Decimal),
        ("frmw", 260, 1, Hex),
        ("lpa", 261, 1, Hex),
        ("elpe", 262, 1, Decimal),
        ("npss", 263, 1, Decimal),
        ("avscc", 264, 1, Hex),
        ("apsta", 265, 1, Hex),
        ("wctemp", 266, 2, Decimal),
        ("cctemp", 268, 2, Decimal),
        ("mtfa", 270, 2, Decimal),
        ("hmpre", 272, 4, Decimal),
        ("hmmin", 276, 4, Decimal),
        ("tnvmcap", 280, 16, Decimal),
        ("unvmcap", 296, 16, Decimal),
        ("rpmbs", 312, 4, Hex),
        ("edstt", 316, 2, Decimal),
        ("dsto", 318, 1, Decimal),
        ("fwug", 319, 1, Decimal),
        ("kas", 320, 2, Decimal),
        ("hctma", 322, 2, Hex),
        ("mntmt", 324, 2, Decimal),
        ("mxtmt", 326, 2, Decimal),
        ("sanicap", 328, 4, Hex),
        ("hmminds", 332, 4, Decimal),
        ("hmmaxd", 336, 2, Decimal),
        ("nsetidmax", 338, 2, Decimal),
        ("endgidmax", 340, 2, Decimal),
        ("anatt", 342, 1, Decimal),
        ("anacap", 343, 1, Decimal),
        ("anagrpmax", 344, 4, Decimal),
        ("nanagrpid", 348, 4, Decimal),
        ("pels", 352, 4, Decimal),
        ("domainid", 356, 2, Decimal),
        ("megcap", 368, 16, Decimal),
        ("sqes", 512, 1, Hex),
        ("cqes", 513, 1, Hex),
        ("maxcmd", 514, 2, Decimal),
        ("nn", 516, 4, Decimal),
        ("oncs", 520, 2, Hex),
        ("fuses", 522, 2, Hex),
        ("fna", 524, 1, Hex),
        ("vwc", 525, 1, Hex),
        ("awun", 526, 2, Decimal),
        ("awupf", 528, 2, Decimal),
        ("icsvscc", 530, 1, Decimal),
        ("nwpc", 531, 1, Decimal),
        ("acwu", 532, 2, Decimal),
        ("ocfs", 534, 2, Hex),
        ("sgls", 536, 4, Hex),
        ("mnan", 540, 4, Decimal),
        ("maxdna", 544, 16, Decimal),
        ("maxcna", 560, 4, Decimal),
    ],
    &[
        ("ioccsz", 1792, 4, Decimal),
        ("iorcsz", 1796, 4, Decimal),
        ("icdoff", 1800, 2, Decimal),
        ("fcatt", 1802, 1, Hex),
        ("msdbd", 1803, 1, Decimal),
        ("ofcs", 1804, 2, Decimal),
    ],
];

/// Fields of a namespace: before the granularities, these, after them.
const NAMESPACE: [&[(&str, usize, usize, Form)]; 3] = [
    &[
        ("nsze", 0, 8, Hex),
        ("ncap", 8, 8, Hex),
        ("nuse", 16, 8, Hex),
        ("nsfeat", 24, 1, Hex),
        ("nlbaf", 25, 1, Decimal),
        ("flbas", 26, 1, Hex),
        ("mc", 27, 1, Hex),
        ("dpc", 28, 1, Hex),
        ("dps", 29, 1, Hex),
        ("nmic", 30, 1, Hex),
        ("rescap", 31, 1, Hex),
        ("fpi", 32, 1, Hex),
        ("dlfeat", 33, 1, Decimal),
        ("nawun", 34, 2, Decimal),
        ("nawupf", 36, 2, Decimal),
        ("nacwu", 38, 2, Decimal),
        ("nabsn", 40, 2, Decimal),
        ("nabo", 42, 2, Decimal),
        ("nabspf", 44, 2, Decimal),
        ("noiob", 46, 2, Decimal),
        ("nvmcap", 48, 16, Decimal),
    ],
    &[
        ("npwg", 64, 2, Decimal),
        ("npwa", 66, 2, Decimal),
        ("npdg", 68, 2, Decimal),
        ("npda", 70, 2, Decimal),
        ("nows", 72, 2, Decimal),
    ],
    &[
        ("mssrl", 74, 2, Decimal),
        ("mcl", 76, 4, Decimal),
        ("msrc", 80, 1, Decimal),
        ("nulbaf", 82, 1, Decimal),
        ("anagrpid", 92, 4, Decimal),
        ("nsattr", 99, 1, Decimal),
        ("nvmsetid", 100, 2, Decimal),
        ("endgid", 102, 2, Decimal),
    ],
];

/// `raceline id-ctrl`.
pub(crate) fn controller(args: &IdCtrlArgs) -> Result<(), Failure> {
    let device = Device::connect_admin(&args.device)?;
    let data = device.identify(cns::CONTROLLER, NamespaceId(0))?;
    device.disconnect();
    let normal = |data: &[u8]| controller_normal(data, args.decode.human_readable);
    output(args.device.named.format(), &data, normal, controller_document)
}

/// `raceline id-ns`.
pub(crate) fn namespace(args: &IdNsArgs) -> Result<(), Failure> {
    let IdNsArgs { namespace: args, decode } = args;
    let device = Device::connect_admin(&args.device)?;
    let nsid = device.namespace(args.namespace_id)?;
    let data = device.identify(cns::NAMESPACE, nsid)?;
    let format = args.device.named.format();
    if format != NvmeFormat::Binary && data.iter().all(|byte| *byte == 0) {
        let failure = not_attached(&device, nsid);
        device.disconnect();
        return Err(failure);
    }
    device.disconnect();
    let normal = |data: &[u8]| {
        let fields = namespace_normal(data, decode.human_readable);
        format!("NVME Identify Namespace {nsid}:\n{fields}")
    };
    output(format, &data, normal, namespace_document)
}

/// Why a controller has nothing to say of a namespace: zeroes stand for one that exists elsewhere, and for none at all.
fn not_attached(device: &Device, nsid: NamespaceId) -> Failure {
    let before = NamespaceId(nsid.0.saturating_sub(1));
    // A controller without namespace management has no such list: there is nothing that is not attached.
    let next = device.identify(cns::ALLOCATED_NAMESPACES, before).ok();
    let is_there = next.is_some_and(|list| Bytes(&list).number(0, 4) == u128::from(nsid.0));
    match is_there {
        true => Failure::runtime(format!(
            "namespace {nsid} is there, but not attached to this controller: raceline attach-ns does that"
        )),
        false => device.info(nsid).err().unwrap_or_else(|| {
            Failure::runtime(format!("the controller says nothing about namespace {nsid}"))
        }),
    }
}

fn controller_fields(data: &[u8]) -> Fields<'_> {
    let [ids, first, middle, last] = CONTROLLER;
    let mut fields = Fields::new(data);
    fields.numbers(ids);
    for (name, at, len) in [("sn", 4, 20), ("mn", 24, 40), ("fr", 64, 8)] {
        fields.text(name, fields.bytes.text(at, len));
    }
    fields.numbers(first);
    fields.text("fguid", fields.bytes.uuid(112));
    fields.numbers(middle);
    fields.text("subnqn", fields.bytes.text(768, 256));
    fields.numbers(last);
    fields
}

/// The power states that there are.
fn power_states(data: &[u8]) -> impl Iterator<Item = Bytes<'_>> {
    let count = usize::from(Bytes(data).byte(263)).min(31) + 1;
    data.get(POWER_STATES..)
        .unwrap_or_default()
        .chunks_exact(POWER_STATE_LEN)
        .take(count)
        .map(Bytes)
}

/// `decoded`: with what the bits of fields mean.
pub(super) fn controller_normal(data: &[u8], decoded: bool) -> String {
    let fields = controller_fields(data).normal(10, known(decoded, of_controller));
    let mut text = format!("NVME Identify Controller:\n{fields}");
    for (number, state) in power_states(data).enumerate() {
        let flags = state.byte(3);
        let scale = if flags & 1 == 0 { 2 } else { 1 };
        let most = power(state.number(0, 2), scale);
        let kind = if flags & 2 == 0 { "" } else { "non-" };
        let [entry, exit] = [4, 8].map(|at| state.number(at, 4));
        let [rrt, rrl, rwt, rwl] = [12, 13, 14, 15].map(|at| state.byte(at));
        let idle = power(state.number(16, 2), state.byte(18) >> 6);
        let active = power(state.number(20, 2), state.byte(22) >> 6);
        let workload = match state.byte(22) & 7 {
            0 => "-",
            1 => "1MiB 32 RW, 30s idle",
            2 => "80K 128KiB SW",
            _ => "reserved",
        };
        let _ = writeln!(
            text,
            "ps   {number:4} : mp:{most} {kind}operational enlat:{entry} exlat:{exit} rrt:{rrt} rrl:{rrl}\n            \
             rwt:{rwt} rwl:{rwl} idle_power:{idle} active_power:{active}\n            active_power_workload:{workload}"
        );
    }
    text
}

/// What fields mean, if that is to be said.
fn known(
    decoded: bool,
    meaning: fn(&str) -> Option<&'static [Bits]>,
) -> impl Fn(&str) -> Option<&'static [Bits]> {
    move |name| if decoded { meaning(name) } else { None }
}

/// A power in watts; scale 1 is 0.0001 W, scale 2 is 0.01 W.
fn power(value: u128, scale: u8) -> String {
    match scale {
        0 => "-".to_owned(),
        1 => format!("{}.{:04}W", value / 10_000, value % 10_000),
        2 => format!("{}.{:02}W", value / 100, value % 100),
        _ => "reserved".to_owned(),
    }
}

pub(super) fn controller_document(data: &[u8]) -> Value {
    let mut document = controller_fields(data).document();
    let states = power_states(data).map(|state| {
        json!({
            "max_power": number(state.number(0, 2)),
            "flags": state.byte(3),
            "entry_lat": number(state.number(4, 4)),
            "exit_lat": number(state.number(8, 4)),
            "read_tput": state.byte(12),
            "read_lat": state.byte(13),
            "write_tput": state.byte(14),
            "write_lat": state.byte(15),
            "idle_power": number(state.number(16, 2)),
            "idle_scale": state.byte(18) >> 6,
            "active_power": number(state.number(20, 2)),
            "active_power_work": state.byte(22) & 7,
            "active_scale": state.byte(22) >> 6,
        })
    });
    document.insert("psds".to_owned(), states.collect());
    document.into()
}

fn namespace_fields(data: &[u8]) -> Fields<'_> {
    let [before, granularities, after] = NAMESPACE;
    let mut fields = Fields::new(data);
    fields.numbers(before);
    if fields.bytes.byte(24) & NSFEAT_OPTPERF != 0 {
        fields.numbers(granularities);
    }
    fields.numbers(after);
    fields.text("nguid", fields.bytes.digits(104, 16));
    fields.text("eui64", fields.bytes.digits(120, 8));
    fields
}

/// The block formats that there are: metadata bytes, block size as a power of two, performance.
fn block_formats(data: &[u8]) -> impl Iterator<Item = [u128; 3]> {
    let bytes = Bytes(data);
    let count = usize::from(bytes.byte(25)) + usize::from(bytes.byte(82)) + 1;
    (0..count.min(BLOCK_FORMATS.1)).map(move |place| {
        let at = BLOCK_FORMATS.0 + place * 4;
        [bytes.number(at, 2), bytes.number(at + 2, 1), bytes.number(at + 3, 1)]
    })
}

/// The number of the block format in use.
pub(super) fn format_in_use(data: &[u8]) -> usize {
    let flbas = Bytes(data).byte(26);
    usize::from(flbas & 0xf) | usize::from(flbas & 0x60) >> 1
}

/// The number of the block format with blocks of this size and no metadata.
pub(super) fn format_of(data: &[u8], block_size: u32) -> Option<u8> {
    let wanted = u128::from(block_size);
    let found = block_formats(data)
        .position(|[ms, lbads, _]| ms == 0 && lbads < 32 && 1 << lbads == wanted);
    found.and_then(|number| u8::try_from(number).ok())
}

/// The sizes of blocks that there are, for an error.
pub(super) fn block_sizes(data: &[u8]) -> String {
    let sizes = block_formats(data).filter(|[_, lbads, _]| (9..32).contains(lbads));
    let sizes: Vec<String> = sizes.map(|[_, lbads, _]| (1_u64 << lbads).to_string()).collect();
    sizes.join(", ")
}

/// `decoded`: with what the bits of fields mean.
pub(super) fn namespace_normal(data: &[u8], decoded: bool) -> String {
    // nvme-cli has a tab in this one name.
    let text = namespace_fields(data).normal(8, known(decoded, of_namespace));
    let mut text = text.replace("\nnsattr  : ", "\nnsattr\t: ");
    let in_use = format_in_use(data);
    for (number, [ms, lbads, rp]) in block_formats(data).enumerate() {
        let used = if number == in_use { "(in use)" } else { "" };
        let _ = match decoded {
            true => writeln!(
                text,
                "LBA Format {number:2} : Metadata Size: {ms:<3} bytes - Data Size: {:<2} bytes - Relative Performance: {} \
                 {used}",
                u32::try_from(lbads).ok().and_then(|lbads| 1_u128.checked_shl(lbads)).unwrap_or(0),
                performance(rp),
            ),
            false => writeln!(
                text,
                "lbaf {number:2} : ms:{ms:<3} lbads:{lbads:<2} rp:{} {used}",
                hex(rp)
            ),
        };
    }
    text
}

/// How fast a block format is, beside the others.
fn performance(rp: u128) -> String {
    let word = ["Best", "Better", "Good", "Degraded"];
    format!("{} {}", hex(rp & 3), usize::try_from(rp & 3).map_or("", |number| word[number]))
}

pub(super) fn namespace_document(data: &[u8]) -> Value {
    let mut document = namespace_fields(data).document();
    let formats = block_formats(data)
        .map(|[ms, ds, rp]| json!({ "ms": number(ms), "ds": number(ds), "rp": number(rp) }));
    document.insert("lbafs".to_owned(), formats.collect());
    document.into()
}
