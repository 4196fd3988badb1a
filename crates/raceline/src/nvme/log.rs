//! `raceline get-log`, `smart-log` and `error-log`: log pages as nvme-cli prints them.

use std::fmt::Write as _;

use raceline_proto::nvme::log::{GetLogPage, lid};
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{NamespaceId, Sqe, Status};
use serde_json::{Value, json};

use super::decode::{CRITICAL_WARNING, ENDURANCE_GROUPS, PARAMETER, STATUS, lines};
use super::device::Device;
use super::fields::{Bytes, dump, hex, number};
use super::output;
use crate::cli::nvme::{ErrorLogArgs, GetLogArgs, NvmeFormat, SmartLogArgs};
use crate::failure::Failure;
use crate::shell;

const SMART_LEN: u32 = 512;
const ERROR_ENTRY_LEN: u32 = 64;
/// Bytes that are asked for at a time: every controller takes that many.
const PART_LEN: u32 = 4096;
/// The most that is read of a page.
const MAX_LOG_LEN: u32 = 64 << 20;
/// A data unit: a thousand blocks of 512 bytes.
const DATA_UNIT_BYTES: u128 = 512_000;
/// The freezing point of water in kelvin.
const FREEZING_KELVIN: i64 = 273;

/// Counters of the SMART log: the name in JSON, the label for people with its tabs, the first byte.
const COUNTERS: [(&str, &str, usize); 10] = [
    ("data_units_read", "Data Units Read\t\t\t\t", 32),
    ("data_units_written", "Data Units Written\t\t\t", 48),
    ("host_read_commands", "host_read_commands\t\t\t", 64),
    ("host_write_commands", "host_write_commands\t\t\t", 80),
    ("controller_busy_time", "controller_busy_time\t\t\t", 96),
    ("power_cycles", "power_cycles\t\t\t\t", 112),
    ("power_on_hours", "power_on_hours\t\t\t\t", 128),
    ("unsafe_shutdowns", "unsafe_shutdowns\t\t\t", 144),
    ("media_errors", "media_errors\t\t\t\t", 160),
    ("num_err_log_entries", "num_err_log_entries\t\t\t", 176),
];

/// Times of the SMART log before and after the sensors, as above, of four bytes.
const TIMES: [(&str, &str, usize); 6] = [
    ("warning_temp_time", "Warning Temperature Time\t\t", 192),
    ("critical_comp_time", "Critical Composite Temperature Time\t", 196),
    ("thm_temp1_trans_count", "Thermal Management T1 Trans Count\t", 216),
    ("thm_temp2_trans_count", "Thermal Management T2 Trans Count\t", 220),
    ("thm_temp1_total_time", "Thermal Management T1 Total Time\t", 224),
    ("thm_temp2_total_time", "Thermal Management T2 Total Time\t", 228),
];

/// `raceline get-log`.
pub(crate) fn get(args: &GetLogArgs) -> Result<(), Failure> {
    check(args)?;
    let device = Device::connect_admin(&args.device)?;
    let nsid = args.namespace_id.unwrap_or(NamespaceId::BROADCAST);
    let page = GetLogPage {
        lid: args.log_id,
        lsp: args.lsp,
        retain_event: args.rae,
        len_bytes: 0,
        offset: args.lpo,
        csi: args.csi,
    };
    let data = read(&device, nsid, page, args.log_len)?;
    let name = device.name().to_owned();
    device.disconnect();
    if args.device.named.format() == NvmeFormat::Binary {
        return shell::print(&data);
    }
    shell::print(page_normal(&name, args.log_id, nsid, &data).as_bytes())
}

/// Bytes of a page for people.
pub(super) fn page_normal(name: &str, lid: u8, nsid: NamespaceId, data: &[u8]) -> String {
    format!("Device:{name} log-id:{lid} namespace-id:{:#x}\n{}", nsid.0, dump(data))
}

fn check(args: &GetLogArgs) -> Result<(), Failure> {
    if args.device.named.format() == NvmeFormat::Json {
        return Err(Failure::usage(
            "get-log knows no fields: smart-log and error-log print JSON, and -o binary prints the bytes",
        ));
    }
    if args.log_len == 0 || !args.log_len.is_multiple_of(4) || args.log_len > MAX_LOG_LEN {
        return Err(Failure::usage("--log-len has to be a multiple of 4 from 4 to 67108864"));
    }
    if !args.lpo.is_multiple_of(4) {
        return Err(Failure::usage("--lpo has to be a multiple of 4"));
    }
    if args.lsp > 127 {
        return Err(Failure::usage("--lsp has to be from 0 to 127"));
    }
    Ok(())
}

/// `len` bytes of a page from its offset on, in parts.
fn read(
    device: &Device,
    nsid: NamespaceId,
    page: GetLogPage,
    len: u32,
) -> Result<Vec<u8>, Failure> {
    let mut data = Vec::new();
    let mut left = len;
    while left > 0 {
        let part = left.min(PART_LEN);
        let done = u64::from(len - left);
        let mut sqe = Sqe { opc: admin::GET_LOG_PAGE, nsid: nsid.0.into(), ..Sqe::default() };
        let offset =
            page.offset.checked_add(done).ok_or_else(|| Failure::usage("--lpo is too large"))?;
        // An event ends with the last part.
        let retain_event = page.retain_event || part < left;
        GetLogPage { len_bytes: u64::from(part), offset, retain_event, ..page }.write(&mut sqe);
        data.extend(device.receive(sqe, part)?);
        left -= part;
    }
    Ok(data)
}

/// `raceline smart-log`.
pub(crate) fn smart(args: &SmartLogArgs) -> Result<(), Failure> {
    let device = Device::connect_admin(&args.device)?;
    let nsid = args.namespace_id.unwrap_or(NamespaceId::BROADCAST);
    let page = GetLogPage { lid: lid::SMART, ..GetLogPage::default() };
    let data = read(&device, nsid, page, SMART_LEN)?;
    let heading =
        format!("Smart Log for NVME device:{} namespace-id:{:x}\n", device.name(), nsid.0);
    device.disconnect();
    let normal = |data: &[u8]| heading + &smart_normal(data, args.decode.human_readable);
    output(args.device.named.format(), &data, normal, smart_document)
}

/// `raceline error-log`.
pub(crate) fn errors(args: &ErrorLogArgs) -> Result<(), Failure> {
    if args.log_entries == 0 {
        return Err(Failure::usage("--log-entries has to be 1 or more"));
    }
    let device = Device::connect_admin(&args.device)?;
    let most = u32::from(device.controller().raw.elpe) + 1;
    let entries = args.log_entries.min(most);
    let page = GetLogPage { lid: lid::ERROR, ..GetLogPage::default() };
    let data = read(&device, NamespaceId::BROADCAST, page, entries * ERROR_ENTRY_LEN)?;
    let heading = format!("Error Log Entries for device:{} entries:{entries}\n", device.name());
    device.disconnect();
    output(
        args.device.named.format(),
        &data,
        |data| heading + &errors_normal(data, args.decode.human_readable),
        errors_document,
    )
}

/// The sensors that there are: number and kelvin.
fn sensors(bytes: Bytes<'_>) -> impl Iterator<Item = (usize, u128)> {
    let all = (0..8).map(move |sensor| (sensor + 1, bytes.number(200 + 2 * sensor, 2)));
    all.filter(|(_, kelvin)| *kelvin != 0)
}

pub(super) fn celsius(kelvin: u128) -> String {
    let degrees = i64::try_from(kelvin).unwrap_or(i64::MAX) - FREEZING_KELVIN;
    format!("{degrees}°C ({kelvin} Kelvin)")
}

/// `decoded`: with what the bits of fields mean.
pub(super) fn smart_normal(data: &[u8], decoded: bool) -> String {
    let bytes = Bytes(data);
    let meaning = |value, bits| if decoded { lines(value, 1, bits) } else { String::new() };
    let mut text = format!(
        "critical_warning\t\t\t: {}\n{}temperature\t\t\t\t: {}\navailable_spare\t\t\t\t: {}%\n\
         available_spare_threshold\t\t: {}%\npercentage_used\t\t\t\t: {}%\n\
         endurance group critical warning summary: {}\n{}",
        hex(bytes.number(0, 1)),
        meaning(bytes.number(0, 1), CRITICAL_WARNING),
        celsius(bytes.number(1, 2)),
        bytes.byte(3),
        bytes.byte(4),
        bytes.byte(5),
        hex(bytes.number(6, 1)),
        meaning(bytes.number(6, 1), ENDURANCE_GROUPS),
    );
    for (name, label, at) in COUNTERS {
        let count = bytes.number(at, 16);
        let _ = match name.starts_with("data_units") {
            true => writeln!(
                text,
                "{label}: {count} ({})",
                units(count.saturating_mul(DATA_UNIT_BYTES))
            ),
            false => writeln!(text, "{label}: {count}"),
        };
    }
    let line = |text: &mut String, (_, label, at): (&str, &str, usize)| {
        let _ = writeln!(text, "{label}: {}", bytes.number(at, 4));
    };
    TIMES[..2].iter().for_each(|time| line(&mut text, *time));
    for (sensor, kelvin) in sensors(bytes) {
        let _ = writeln!(text, "Temperature Sensor {sensor}           : {}", celsius(kelvin));
    }
    TIMES[2..].iter().for_each(|time| line(&mut text, *time));
    text
}

/// Bytes in powers of 1000 with two digits: 3.94 EB.
pub(super) fn units(bytes: u128) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    let mut unit = 0;
    let mut scale = 1_u128;
    while unit + 1 < UNITS.len() && bytes >= scale * 1000 {
        scale *= 1000;
        unit += 1;
    }
    // Rounded as printf does it, but without a number of too few digits.
    let hundredths = bytes.saturating_mul(100).saturating_add(scale / 2) / scale;
    format!("{}.{:02} {}B", hundredths / 100, hundredths % 100, UNITS[unit])
}

pub(super) fn smart_document(data: &[u8]) -> Value {
    let bytes = Bytes(data);
    let mut document = json!({
        "critical_warning": bytes.byte(0),
        "temperature": number(bytes.number(1, 2)),
        "avail_spare": bytes.byte(3),
        "spare_thresh": bytes.byte(4),
        "percent_used": bytes.byte(5),
        "endurance_grp_critical_warning_summary": bytes.byte(6),
    });
    for (name, _, at) in COUNTERS {
        document[name] = number(bytes.number(at, 16));
    }
    for (name, _, at) in TIMES {
        document[name] = number(bytes.number(at, 4));
    }
    for (sensor, kelvin) in sensors(bytes) {
        document[format!("temperature_sensor_{sensor}")] = number(kelvin);
    }
    document
}

fn entries(data: &[u8]) -> impl Iterator<Item = Bytes<'_>> {
    data.chunks_exact(ERROR_ENTRY_LEN as usize).map(Bytes)
}

/// Who is meant by an error (TRTYPE).
fn transport(trtype: u8) -> &'static str {
    match trtype {
        0 => "The transport type is not indicated or the error is not transport related.",
        1 => "RDMA Transport error.",
        2 => "Fibre Channel Transport error.",
        3 => "TCP Transport error.",
        254 => "Intra-host Transport error.",
        _ => "Reserved",
    }
}

/// `decoded`: with what the bits of fields mean.
pub(super) fn errors_normal(data: &[u8], decoded: bool) -> String {
    let meaning = |value, bits| if decoded { lines(value, 2, bits) } else { String::new() };
    let mut text = ".................\n".to_owned();
    for (place, entry) in entries(data).enumerate() {
        let word = entry.number(12, 2);
        let location = entry.number(14, 2);
        let status = Status::from_wire(u16::try_from(word).unwrap_or(0));
        let _ = write!(
            text,
            " Entry[{place:2}]   \n.................\nerror_count\t: {}\nsqid\t\t: {}\ncmdid\t\t: {}\n\
             status_field\t: {}({})\n{}phase_tag\t: {}\nparm_err_loc\t: {}\n{}lba\t\t: {}\nnsid\t\t: {}\nvs\t\t: {}\n\
             trtype\t\t: {}\ncs\t\t: {}\ntrtype_spec_info: {}\n.................\n",
            entry.number(0, 8),
            entry.number(8, 2),
            hex(entry.number(10, 2)),
            hex(word >> 1),
            status.text(),
            meaning(word >> 1, STATUS),
            hex(word & 1),
            hex(location),
            // All ones: the error is of no parameter.
            if location == 0xffff { String::new() } else { meaning(location, PARAMETER) },
            hex(entry.number(16, 8)),
            hex(entry.number(24, 4)),
            entry.byte(28),
            transport(entry.byte(29)),
            hex(entry.number(32, 8)),
            hex(entry.number(40, 2)),
        );
    }
    text
}

pub(super) fn errors_document(data: &[u8]) -> Value {
    let list = entries(data).map(|entry| {
        let word = entry.number(12, 2);
        json!({
            "error_count": number(entry.number(0, 8)),
            "sqid": number(entry.number(8, 2)),
            "cmdid": number(entry.number(10, 2)),
            "status_field": number(word >> 1),
            "phase_tag": number(word & 1),
            "parm_error_location": number(entry.number(14, 2)),
            "lba": number(entry.number(16, 8)),
            "nsid": number(entry.number(24, 4)),
            "vs": entry.byte(28),
            "trtype": entry.byte(29),
            "cs": number(entry.number(32, 8)),
            "trtype_spec_info": number(entry.number(40, 2)),
        })
    });
    json!({ "errors": list.collect::<Vec<_>>() })
}
