//! `raceline bdev`: devices.

use std::path::Path;

use raceline_bdev::{Backing, ByteSize, DeviceSpec, OpenError};
use raceline_control::reconcile::Removal;
use raceline_initiator::{IscsiUrl, Name};
use serde_json::{Value, json};

use super::{Daemon, config, elements, names, none_of_that_name, pool, size, text};
use crate::cli::device::Device;
use crate::cli::manage::{BdevArgs, BdevVerb};
use crate::failure::Failure;
use crate::initiator;
use crate::table::Table;

/// Default block size of devices in memory.
const DEFAULT_BLOCK_BYTES: u32 = 512;
/// The module that claims the device of a namespace or a pool.
const NVMF_MODULE: &str = "NVMe-oF Target";
/// The unit of bdev_null_resize.
const MIB: u64 = 1 << 20;

/// Runs the verb.
pub(crate) fn run(args: &BdevArgs) -> Result<(), Failure> {
    let mut daemon = Daemon::connect(&args.daemon)?;
    match &args.verb {
        BdevVerb::Ls { name } => list(&mut daemon, name.as_deref()),
        BdevVerb::Add { device, name, chap_key, initiator } => {
            let login = Login { chap_key: chap_key.as_deref(), initiator: initiator.as_ref() };
            add(&mut daemon, device, name.as_deref(), login)
        }
        BdevVerb::Rm { names, force } => {
            names.iter().try_for_each(|name| remove(&mut daemon, name, *force))
        }
        BdevVerb::Set { name, size, rescan: _ } => set(&mut daemon, name, *size),
    }
}

fn list(daemon: &mut Daemon, name: Option<&str>) -> Result<(), Failure> {
    let mut bdevs = daemon.list("bdev_get_bdevs", Value::Null)?;
    bdevs.extend(daemon.missing());
    if let Some(name) = name {
        bdevs = vec![find(&bdevs, name)?.clone()];
    }
    let users = Users::find(daemon, &bdevs)?;
    daemon.print(&bdevs, || {
        let mut table = Table::new(&["name", "kind", "size", "block", "uuid", "used by"]);
        for bdev in &bdevs {
            if let Some(reason) = bdev["reason"].as_str() {
                let kind = format!("missing {}", text(&bdev["type"]));
                let none = String::new;
                table.row([text(&bdev["name"]), kind, none(), none(), none(), reason.to_owned()]);
                continue;
            }
            table.row([
                text(&bdev["name"]),
                text(&bdev["product_name"]),
                size(bytes(bdev)),
                text(&bdev["block_size"]),
                text(&bdev["uuid"]),
                users.of(bdev).unwrap_or_default(),
            ]);
        }
        table
    })
}

/// The capacity of a device as the daemon describes it.
pub(super) fn bytes(bdev: &Value) -> u64 {
    let number = |member: &str| bdev[member].as_u64().unwrap_or(0);
    number("block_size").saturating_mul(number("num_blocks"))
}

fn find<'a>(bdevs: &'a [Value], name: &str) -> Result<&'a Value, Failure> {
    let found = bdevs.iter().find(|bdev| bdev["name"] == name || bdev["uuid"] == name);
    found.ok_or_else(|| none_of_that_name("device", name, &names(bdevs, "name")))
}

/// The namespaces, pools and LUNs that use devices.
struct Users {
    subsystems: Vec<Value>,
    /// The target nodes of iSCSI, if the daemon has any.
    nodes: Vec<Value>,
    /// The pools, if the daemon was asked for them.
    pools: Vec<Value>,
}

impl Users {
    fn find(daemon: &mut Daemon, bdevs: &[Value]) -> Result<Self, Failure> {
        let subsystems = daemon.list("nvmf_get_subsystems", Value::Null).unwrap_or_default();
        let nodes = daemon.list("iscsi_get_target_nodes", Value::Null).unwrap_or_default();
        let mut users = Self { subsystems, nodes, pools: Vec::new() };
        // A pool in which no host has made a namespace is not shown among the namespaces.
        let is_pool =
            |bdev: &Value| bdev["claimed_by"] == NVMF_MODULE && users.namespace(bdev).is_none();
        if bdevs.iter().any(is_pool) {
            users.pools = pool::pools(daemon, None)?;
        }
        Ok(users)
    }

    /// The user of a device: a namespace or a pool if there is one, otherwise the module that has claimed it, or else a
    /// LUN.
    fn of(&self, bdev: &Value) -> Option<String> {
        let pool = || {
            let pool = self.pools.iter().find(|pool| pool["bdev_name"] == bdev["name"])?;
            Some(format!("the pool of {}", text(&pool["nqn"])))
        };
        let module = || (bdev["claimed"] == true).then(|| text(&bdev["claimed_by"]));
        self.namespace(bdev).or_else(pool).or_else(module).or_else(|| self.lun(bdev))
    }

    fn lun(&self, bdev: &Value) -> Option<String> {
        self.nodes.iter().find_map(|node| {
            let mut luns = elements(node, "luns").iter();
            let lun = luns.find(|lun| lun["bdev_name"] == bdev["name"])?;
            Some(format!("LUN {} of {}", lun["lun_id"], text(&node["name"])))
        })
    }

    fn namespace(&self, bdev: &Value) -> Option<String> {
        for subsystem in &self.subsystems {
            for namespace in elements(subsystem, "namespaces") {
                if namespace["bdev_name"] == bdev["name"] && namespace["of_pool"] == true {
                    return Some(format!("the pool of {}", text(&subsystem["nqn"])));
                }
                if namespace["bdev_name"] == bdev["name"] {
                    return Some(format!("{} {}", text(&subsystem["nqn"]), namespace["nsid"]));
                }
            }
        }
        None
    }
}

/// Who the daemon is to the target of a logical unit.
#[derive(Clone, Copy)]
struct Login<'a> {
    /// The daemon's key with the secret of the URL's user.
    chap_key: Option<&'a str>,
    initiator: Option<&'a Name>,
}

fn add(
    daemon: &mut Daemon,
    device: &Device,
    name: Option<&str>,
    login: Login<'_>,
) -> Result<(), Failure> {
    let taken = match name {
        Some(_) => Vec::new(),
        None => names(&daemon.list("bdev_get_bdevs", Value::Null)?, "name"),
    };
    device.check()?;
    let (method, params) = match device {
        Device::Refused(_) => unreachable!("refused above"),
        Device::Lun(url) => ("bdev_iscsi_create", lun(url, name, &taken, login)?),
        Device::Local(_) if login.chap_key.is_some() || login.initiator.is_some() => {
            return Err(Failure::usage(
                "--chap-key and --initiator are for devices of the form iscsi://[USER@]HOST[:PORT]/IQN/LUN",
            ));
        }
        Device::Local(spec) => creation(spec, name, &taken)?,
    };
    let answer = daemon.call(method, params)?;
    let name = text(&answer);
    let bdevs = daemon.list("bdev_get_bdevs", json!({ "name": name }))?;
    let size = bdevs.first().map_or_else(String::new, |bdev| format!(", {}", size(bytes(bdev))));
    daemon.done(&answer, &format!("added device {name}{size}"))
}

/// The parameters of the call that makes a logical unit a device.
fn lun(
    url: &IscsiUrl,
    name: Option<&str>,
    taken: &[String],
    login: Login<'_>,
) -> Result<Value, Failure> {
    if url.user.is_some() != login.chap_key.is_some() {
        return Err(Failure::usage(
            "a user and its secret come together: write iscsi://USER@HOST[:PORT]/IQN/LUN, and name the daemon's key with \
             the secret by --chap-key (raceline key)",
        ));
    }
    let initiator = login.initiator.cloned().map_or_else(initiator::own_name, Ok)?;
    let mut params = json!({
        "name": name.map_or_else(|| free_name("Lun", taken), str::to_owned),
        "initiator_iqn": initiator.as_str(),
        "url": url.to_string(),
    });
    if let Some(key) = login.chap_key {
        params["chap_key"] = key.into();
    }
    Ok(params)
}

/// The call that makes a device.
fn creation(
    device: &DeviceSpec,
    name: Option<&str>,
    taken: &[String],
) -> Result<(&'static str, Value), Failure> {
    if device.delay.is_some() || !device.errors.is_empty() {
        return Err(Failure::usage(
            "delay= and error= are devices of their own here: raceline rpc bdev_delay_create, \
             bdev_error_create",
        ));
    }
    if device.uncorrectable {
        return Err(Failure::usage(
            "uncorrectable cannot be asked for over RPC: raceline export takes it",
        ));
    }
    let block_size = device.block_size.map(|size| size.bytes());
    let uuid = device.uuid;
    let in_memory = |bytes: ByteSize, prefix: &str| {
        let block_size = block_size.unwrap_or(DEFAULT_BLOCK_BYTES);
        let mut params = json!({
            "name": name.map_or_else(|| free_name(prefix, taken), str::to_owned),
            "num_blocks": bytes.0 / u64::from(block_size),
            "block_size": block_size,
            "uuid": uuid,
        });
        if let Some(bytes) = device.physical_block_size {
            params["physical_block_size"] = bytes.into();
        }
        params
    };
    let on_disk = |path: &Path| {
        // The daemon gets a whole path, which shows no more that it is a size.
        if let error @ OpenError::OnlySize(_) = OpenError::missing(path)
            && !path.exists()
        {
            return Err(Failure::usage(error));
        }
        let absolute = std::path::absolute(path);
        let absolute = absolute.map_err(|error| {
            Failure::usage(format!("{} cannot be made absolute: {error}", path.display()))
        })?;
        let filename = absolute.to_str().ok_or_else(|| {
            Failure::usage(format!("{} is not UTF-8, as JSON has to be", path.display()))
        })?;
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("disk");
        let own = || {
            if taken.iter().any(|name| name == stem) {
                free_name(stem, taken)
            } else {
                stem.to_owned()
            }
        };
        let name = name.map_or_else(own, str::to_owned);
        let mut params =
            json!({ "filename": filename, "name": name, "block_size": block_size, "uuid": uuid });
        if device.read_only {
            params["readonly"] = true.into();
        }
        if device.shared {
            params["shared"] = true.into();
        }
        // Only bdev_aio_create makes read-only devices.
        Ok((if device.read_only { "bdev_aio_create" } else { "bdev_uring_create" }, params))
    };
    match &device.backing {
        Backing::Ram { huge_pages: true, .. } => {
            Err(Failure::usage("hugepages cannot be asked for over RPC"))
        }
        Backing::Ram { size, .. } => Ok(("bdev_malloc_create", in_memory(*size, "Malloc"))),
        Backing::Null { size } => Ok(("bdev_null_create", in_memory(*size, "Null"))),
        Backing::File { size: Some(_), path, .. } => {
            Err(Failure::usage(match OpenError::missing(path) {
                error @ OpenError::NoDevice(_) if !path.exists() => error.to_string(),
                _ => {
                    format!("size= would create a file: truncate -s SIZE {} first", path.display())
                }
            }))
        }
        Backing::File { buffered: true, .. } => {
            Err(Failure::usage("buffered files cannot be asked for over RPC"))
        }
        Backing::File { path, .. } | Backing::Block { path } | Backing::Path { path } => {
            on_disk(path)
        }
    }
}

/// The first free name of PREFIX0, PREFIX1 and so on.
fn free_name(prefix: &str, taken: &[String]) -> String {
    let mut names = (0..=taken.len()).map(|number| format!("{prefix}{number}"));
    names.find(|name| !taken.contains(name)).unwrap_or_default()
}

fn remove(daemon: &mut Daemon, name: &str, force: bool) -> Result<(), Failure> {
    let mut bdevs = daemon.list("bdev_get_bdevs", Value::Null)?;
    bdevs.extend(daemon.missing());
    let bdev = find(&bdevs, name)?;
    let name = text(&bdev["name"]);
    let users = Users::find(daemon, std::slice::from_ref(bdev))?;
    if !force && let Some(user) = users.of(bdev) {
        return Err(Failure::runtime(format!(
            "device {name} is used by {user}: remove that first, or use --force"
        )));
    }
    let configuration = config::running(daemon)?;
    let mut objects = configuration.objects().iter();
    let object = match bdev["type"] == "controller" {
        true => objects.find(|object| object.key.starts_with(&["nvme".to_owned(), name.clone()])),
        false => objects.find(|object| object.key == ["bdev".to_owned(), name.clone()]),
    };
    let Some(Removal::Call(call)) = object.map(|object| &object.removal) else {
        return Err(Failure::runtime(format!(
            "device {name} ({}) is a part of another: remove what it was made of (raceline rpc \
             bdev_split_delete, bdev_nvme_detach_controller)",
            text(&bdev["product_name"])
        )));
    };
    let answer = daemon.make(call).map_err(super::failure)?;
    daemon.done(&answer, &format!("removed device {name}"))
}

fn set(daemon: &mut Daemon, name: &str, new_size: Option<ByteSize>) -> Result<(), Failure> {
    let bdevs = daemon.list("bdev_get_bdevs", Value::Null)?;
    let name = text(&find(&bdevs, name)?["name"]);
    let configuration = config::running(daemon)?;
    let key = ["bdev".to_owned(), name.clone()];
    let object = configuration.objects().iter().find(|object| object.key == key);
    let made_by = object.map_or("", |object| object.call.method.as_str());
    let answer = match (new_size, made_by) {
        (Some(size), "bdev_null_create") => {
            if !size.0.is_multiple_of(MIB) {
                return Err(Failure::usage(format!("{size} is not a multiple of 1 MiB")));
            }
            daemon.call("bdev_null_resize", json!({ "name": name, "new_size": size.0 / MIB }))?
        }
        (Some(_), "bdev_malloc_create") => {
            return Err(Failure::runtime(format!(
                "device {name} is in memory and keeps its size: add another"
            )));
        }
        (Some(_), _) => {
            return Err(Failure::runtime(format!(
                "device {name} takes its size from what it stands on: change that, then use --rescan"
            )));
        }
        (None, "bdev_aio_create") => daemon.call("bdev_aio_rescan", json!({ "name": name }))?,
        (None, "bdev_uring_create") => daemon.call("bdev_uring_rescan", json!({ "name": name }))?,
        (None, _) => {
            return Err(Failure::runtime(format!("device {name} has no file to look at again")));
        }
    };
    let bdevs = daemon.list("bdev_get_bdevs", json!({ "name": name }))?;
    let now = bdevs.first().map_or(0, bytes);
    daemon.done(&answer, &format!("device {name} has {}", size(now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(spec: &str, taken: &[&str]) -> Result<(&'static str, Value), Failure> {
        let taken: Vec<String> = taken.iter().map(|&name| name.to_owned()).collect();
        creation(&spec.parse().unwrap(), None, &taken)
    }

    #[test]
    fn devices_are_made_by_the_methods_of_their_kind() {
        let (method, params) = create("ram:1M,bs=4096", &["Malloc0"]).unwrap();
        assert_eq!(method, "bdev_malloc_create");
        assert_eq!(params["name"], "Malloc1");
        assert_eq!((&params["num_blocks"], &params["block_size"]), (&json!(256), &json!(4096)));
        assert!(params.get("physical_block_size").is_none(), "{params}");
        let (_, params) = create("null:1M,pbs=16k", &[]).unwrap();
        assert_eq!(params["physical_block_size"], 16 << 10);
        let (method, params) = create("file:/srv/disk.img", &["disk"]).unwrap();
        assert_eq!(method, "bdev_uring_create");
        assert_eq!(params["name"], "disk0");
        let (method, params) = create("block:/dev/nvme0n1,readonly", &[]).unwrap();
        assert_eq!((method, &params["name"]), ("bdev_aio_create", &json!("nvme0n1")));
        assert_eq!(params["readonly"], true);
    }

    #[test]
    fn a_logical_unit_is_made_by_its_url() {
        let me = Name::new("iqn.2026-01.io.raceline:me").unwrap();
        let make = |url: &str, chap_key| {
            let login = Login { chap_key, initiator: Some(&me) };
            lun(&url.parse().unwrap(), None, &["Lun0".to_owned()], login)
        };
        let params = make("iscsi://u@192.0.2.1/iqn.2026-01.io.raceline:x/7", Some("k")).unwrap();
        let url = "iscsi://u@192.0.2.1:3260/iqn.2026-01.io.raceline:x/7";
        let expected =
            json!({ "name": "Lun1", "initiator_iqn": me.as_str(), "url": url, "chap_key": "k" });
        assert_eq!(params, expected);
        let open = make("iscsi://192.0.2.1/iqn.2026-01.io.raceline:x/7", None).unwrap();
        assert!(open.get("chap_key").is_none(), "{open}");
        make("iscsi://u@192.0.2.1/iqn.2026-01.io.raceline:x/7", None).unwrap_err();
        make("iscsi://192.0.2.1/iqn.2026-01.io.raceline:x/7", Some("k")).unwrap_err();
    }

    #[test]
    fn what_cannot_be_had_is_said() {
        for spec in ["ram:1M,hugepages", "file:/x,size=1M", "file:/x,buffered", "ram:1M,delay=5"] {
            create(spec, &[]).unwrap_err();
        }
    }
}
