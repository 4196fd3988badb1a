//! `raceline create-ns`, `attach-ns`, `detach-ns`, `delete-ns`, `format` and `ns-rescan`: what hosts do to namespaces.

use raceline_host::blocking::Host;
use raceline_proto::nvme::identify::{
    ControllerList, IdentifyNamespace, OACS_FORMAT, OACS_NAMESPACE_MANAGEMENT, cns,
};
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{NamespaceId, Sqe};
use serde_json::{Value, json};
use zerocopy::IntoBytes as _;

use super::device::Device;
use super::fields::Bytes;
use super::identify::{block_sizes, format_in_use, format_of};
use super::{refuse_binary, say};
use crate::cli::nvme::{
    AttachArgs, ControllerArgs, CreateArgs, DeleteArgs, DeviceArgs, FormatArgs, NvmeFormat,
};
use crate::failure::Failure;
use crate::shell;

/// SEL of Namespace Management and Namespace Attachment: create, attach.
const MAKE: u32 = 0;
/// SEL: delete, detach.
const UNDO: u32 = 1;
/// NSIDs of a namespace list.
const LISTED: usize = 1024;

/// `raceline create-ns`.
pub(crate) fn create(args: &CreateArgs) -> Result<(), Failure> {
    refuse_binary(&args.device, "create-ns")?;
    let device = Device::connect_admin(&args.device)?;
    // Only what is given in bytes needs the block formats.
    let needs_formats =
        args.block_size.is_some() || args.nsze_si.is_some() || args.ncap_si.is_some();
    let data = match needs_formats {
        true => device
            .identify(cns::NAMESPACE, NamespaceId::BROADCAST)
            .map_err(|failure| device.explain(failure, OACS_NAMESPACE_MANAGEMENT))?,
        false => Vec::new(),
    };
    let flbas = match (args.flbas, args.block_size) {
        (Some(flbas), _) => flbas,
        (None, Some(size)) => format_of(&data, size).ok_or_else(|| no_format(&data, size))?,
        (None, None) => 0,
    };
    let block_bytes = block_bytes(&data, flbas);
    let blocks = |count: Option<u64>, si: Option<u64>| -> Result<Option<u64>, Failure> {
        let Some(si) = si else { return Ok(count) };
        let block = block_bytes.ok_or_else(|| {
            Failure::usage("the controller does not say how large a block of this format is: use --nsze and --ncap")
        })?;
        Ok(Some(si / block))
    };
    let nsze = blocks(args.nsze, args.nsze_si)?.unwrap_or(0);
    let ncap = blocks(args.ncap, args.ncap_si)?.unwrap_or(nsze);
    let mut data =
        IdentifyNamespace { nsze: nsze.into(), ncap: ncap.into(), ..IdentifyNamespace::default() };
    (data.flbas, data.dps, data.nmic) = (flbas, args.dps, args.nmic);
    data.anagrpid = args.anagrp_id.into();
    data.nvmsetid = args.nvmset_id.into();
    let sqe = Sqe {
        opc: admin::NAMESPACE_MANAGEMENT,
        cdw10: MAKE.into(),
        cdw11: (u32::from(args.csi) << 24).into(),
        ..Sqe::default()
    };
    let nsid = device.manage(sqe, data.as_bytes().to_vec())?;
    device.disconnect();
    say(&args.device, &format!("create-ns: Success, created nsid:{nsid}"), &json!({ "nsid": nsid }))
}

/// Bytes of a block of that format.
fn block_bytes(data: &[u8], flbas: u8) -> Option<u64> {
    let lbads = Bytes(data).byte(128 + usize::from(flbas & 0xf) * 4 + 2);
    (9..32).contains(&lbads).then(|| 1 << lbads)
}

fn no_format(data: &[u8], size: u32) -> Failure {
    Failure::usage(format!(
        "there are no blocks of {size} bytes: the controller has {}",
        block_sizes(data)
    ))
}

/// `raceline attach-ns`.
pub(crate) fn attach(args: &AttachArgs) -> Result<(), Failure> {
    attachment(args, MAKE, "attach-ns")
}

/// `raceline detach-ns`.
pub(crate) fn detach(args: &AttachArgs) -> Result<(), Failure> {
    attachment(args, UNDO, "detach-ns")
}

fn attachment(args: &AttachArgs, select: u32, verb: &str) -> Result<(), Failure> {
    refuse_binary(&args.device, verb)?;
    let mut list = ControllerList::default();
    let device = Device::connect_admin(&args.device)?;
    let mut controllers = args.controllers.clone();
    if controllers.is_empty() {
        controllers.push(device.controller().cntlid.0);
    }
    controllers.sort_unstable();
    controllers.dedup();
    let count =
        u16::try_from(controllers.len()).ok().filter(|count| usize::from(*count) <= list.ids.len());
    list.count =
        count.ok_or_else(|| Failure::usage("--controllers takes at most 2047 numbers"))?.into();
    for (place, id) in list.ids.iter_mut().zip(&controllers) {
        *place = (*id).into();
    }
    let nsid = args.namespace_id;
    let sqe = Sqe {
        opc: admin::NAMESPACE_ATTACHMENT,
        nsid: nsid.0.into(),
        cdw10: select.into(),
        ..Sqe::default()
    };
    device.manage(sqe, list.as_bytes().to_vec())?;
    device.disconnect();
    let document = json!({ "nsid": nsid.0, "controllers": controllers });
    say(&args.device, &format!("{verb}: Success, nsid:{nsid}"), &document)
}

/// `raceline delete-ns`.
pub(crate) fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    refuse_binary(&args.device, "delete-ns")?;
    let device = Device::connect_admin(&args.device)?;
    let nsid = args.namespace_id.0;
    let sqe = Sqe {
        opc: admin::NAMESPACE_MANAGEMENT,
        nsid: nsid.into(),
        cdw10: UNDO.into(),
        ..Sqe::default()
    };
    device.manage(sqe, Vec::new())?;
    device.disconnect();
    say(&args.device, &format!("delete-ns: Success, deleted nsid:{nsid}"), &json!({ "nsid": nsid }))
}

/// `raceline format`.
pub(crate) fn format(args: &FormatArgs) -> Result<(), Failure> {
    let of_device = &args.namespace.device;
    refuse_binary(of_device, "format")?;
    if !args.force {
        return Err(Failure::usage(
            "format destroys everything in the namespace: add --force if that is what you want",
        ));
    }
    let device = Device::connect_admin(of_device)?;
    let nsid = device.namespace(args.namespace.namespace_id)?;
    let data = device.identify(cns::NAMESPACE, nsid)?;
    let lbaf = match (args.lbaf, args.block_size) {
        (Some(lbaf), _) => lbaf,
        (None, Some(size)) => format_of(&data, size).ok_or_else(|| no_format(&data, size))?,
        (None, None) => u8::try_from(format_in_use(&data)).unwrap_or(0),
    };
    if lbaf > 63 {
        return Err(Failure::usage("--lbaf has to be from 0 to 63"));
    }
    let words = [
        (lbaf & 0xf, 0),
        (args.ms, 4),
        (args.pi, 5),
        (args.pil, 8),
        (args.ses, 9),
        (lbaf >> 4, 12),
    ];
    let cdw10 = words.into_iter().fold(0, |word, (value, shift)| word | u32::from(value) << shift);
    let sqe =
        Sqe { opc: admin::FORMAT_NVM, nsid: nsid.0.into(), cdw10: cdw10.into(), ..Sqe::default() };
    device.send(sqe, Vec::new()).map_err(|failure| device.explain(failure, OACS_FORMAT))?;
    device.disconnect();
    say(
        of_device,
        &format!("Success formatting namespace:{nsid}"),
        &json!({ "nsid": nsid.0, "lbaf": lbaf }),
    )
}

/// `raceline ns-rescan`: reads the list of namespaces anew.
pub(crate) fn rescan(args: &ControllerArgs) -> Result<(), Failure> {
    refuse_binary(&args.device, "ns-rescan")?;
    let device = Device::connect_admin(&args.device)?;
    let found = active(device.host())?;
    device.disconnect();
    if args.device.named.format() == NvmeFormat::Json {
        let list: Vec<Value> = found.iter().map(|nsid| json!({ "nsid": nsid })).collect();
        return shell::print(format!("{:#}\n", json!({ "nsid_list": list })).as_bytes());
    }
    let lines = found.iter().enumerate().map(|(place, nsid)| format!("[{place:4}]:{nsid:#x}\n"));
    shell::print(lines.collect::<String>().as_bytes())
}

/// The namespaces that are attached to the controller.
fn active(host: &Host) -> Result<Vec<u32>, Failure> {
    let mut found: Vec<u32> = Vec::new();
    loop {
        let after = NamespaceId(found.last().copied().unwrap_or(0));
        let data = host
            .identify(cns::ACTIVE_NAMESPACES, after)
            .map_err(|error| crate::remote::failure(&error))?;
        let bytes = Bytes(&data);
        let listed =
            (0..LISTED).map(|place| u32::try_from(bytes.number(place * 4, 4)).unwrap_or(0));
        // A list that does not ascend would never end.
        let part: Vec<u32> = listed.take_while(|nsid| *nsid > after.0).collect();
        let is_last = part.len() < LISTED;
        found.extend(part);
        if is_last {
            return Ok(found);
        }
    }
}

/// The connection's own controller is what the options name.
pub(crate) fn reset(args: &ControllerArgs) -> Result<(), Failure> {
    refuse_binary(&args.device, "reset")?;
    if let Some(name) = super::device::reset_of_daemon(&args.device)? {
        return say_reset(&args.device, &name);
    }
    let device = Device::connect_admin(&args.device)?;
    device.host().reset(super::RESET_TIMEOUT).map_err(|error| crate::remote::failure(&error))?;
    let name = device.name().to_owned();
    device.disconnect();
    say_reset(&args.device, &name)
}

fn say_reset(args: &DeviceArgs, name: &str) -> Result<(), Failure> {
    say(args, &format!("{name} was reset"), &json!({ "reset": name }))
}
