//! `raceline nvmet`: the configuration of the Linux kernel's target, in nvmetcli's form or live in configfs.

mod export;
mod plan;
mod tree;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use raceline_control::keyring::KeyFolder;
use serde_json::Value;
use zeroize::Zeroizing;

use self::plan::Taken;
use super::{Daemon, names, text};
use crate::cli::manage::{NvmetArgs, NvmetVerb};
use crate::failure::Failure;

/// Where the kernel shows what is configured in it.
const CONFIGFS: &str = "/sys/kernel/config";

/// A larger file is no configuration.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Runs the verb.
pub(crate) fn run(args: &NvmetArgs) -> Result<(), Failure> {
    match &args.verb {
        NvmetVerb::Import { from, dry_run, state_dir } => {
            let saved = read(from)?;
            let mut daemon = Daemon::connect(&args.daemon)?;
            import(&mut daemon, from, &saved, (state_dir, *dry_run))
        }
        NvmetVerb::Export { file, force } => {
            export::run(&mut Daemon::connect(&args.daemon)?, file, *force)
        }
    }
}

/// The configuration in nvmetcli's form: of a file, or of a tree of configfs.
fn read(from: &Path) -> Result<Value, Failure> {
    let shown = from.display();
    let failed = |error: std::io::Error| Failure::usage(format!("{shown}: {error}"));
    let info = std::fs::metadata(from).map_err(|error| match from.starts_with(CONFIGFS) {
        true if error.kind() == ErrorKind::NotFound => Failure::usage(format!(
            "{shown}: the Linux kernel's target is not there: load it (`modprobe nvmet`), mount configfs if {CONFIGFS} is empty \
             (`mount -t configfs none {CONFIGFS}`), or name the file that nvmetcli has saved (/etc/nvmet/config.json)"
        )),
        _ => failed(error),
    })?;
    if info.is_dir() {
        return tree::read(from).map_err(Failure::usage);
    }
    if !info.is_file() {
        return Err(Failure::usage(format!("{shown} is neither a file nor a folder of configfs")));
    }
    let mut text = Zeroizing::new(String::new());
    let file = File::open(from).map_err(failed)?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(Failure::usage(format!("{shown}: more than 16 MiB are no configuration")));
    }
    let wrong = |error: serde_json::Error| {
        let (line, column) = (error.line(), error.column());
        Failure::usage(format!(
            "{shown}: line {line}, column {column}: this is not the JSON that nvmetcli saves"
        ))
    };
    serde_json::from_str(&text).map_err(wrong)
}

/// Carries the configuration out, or says what would be done.
fn import(
    daemon: &mut Daemon,
    from: &Path,
    saved: &Value,
    (state_dir, dry_run): (&Path, bool),
) -> Result<(), Failure> {
    let folder = KeyFolder::open(state_dir).map_err(Failure::runtime)?;
    let transports = daemon.list("nvmf_get_transports", Value::Null)?;
    let taken = Taken {
        devices: names(&daemon.list("bdev_get_bdevs", Value::Null)?, "name"),
        keys: folder.names().unwrap_or_default(),
        transports: names(&transports, "trtype")
            .iter()
            .map(|name| name.to_ascii_lowercase())
            .collect(),
        sizes: sizes_of(&transports, "tcp"),
        keys_folder: folder.path().to_owned(),
    };
    let wrong = |error| Failure::usage(format!("{}: {error}", from.display()));
    let planned = plan::make(saved, taken).map_err(wrong)?;
    if dry_run {
        return planned.plan.report(daemon.output, true);
    }
    let mut kept: Vec<&str> = Vec::new();
    let take_back = |kept: &[&str]| kept.iter().for_each(|name| drop(folder.remove(name)));
    for (name, text) in &planned.keys {
        if let Err(error) = folder.add(name, text) {
            take_back(&kept);
            let text =
                format!("cannot keep the key {name}: {error}; --state-dir names another folder");
            return Err(Failure::runtime(text));
        }
        kept.push(name);
    }
    planned.plan.carry_out(daemon).inspect_err(|_| take_back(&kept))?;
    planned.plan.report(daemon.output, false)
}

/// Parameters of the kernel's ports, and what they are of the daemon's transport.
const SIZES: [(&str, &str); 2] =
    [("inline_data_size", "in_capsule_data_size"), ("max_queue_size", "max_queue_depth")];

/// What a transport has of them; empty where it is not there.
fn sizes_of(transports: &[Value], name: &str) -> BTreeMap<&'static str, i64> {
    let is_it = |transport: &&Value| text(&transport["trtype"]).eq_ignore_ascii_case(name);
    let found = transports.iter().find(is_it);
    let size = |(ours, theirs): (&'static str, &str)| Some((ours, found?[theirs].as_i64()?));
    SIZES.into_iter().filter_map(size).collect()
}
