//! The targets of a run: those on the command line, and how job files refer to them.

use raceline_bench::fio::RemoteKeys;
use raceline_bench::runner::stage::FileSpec;
use raceline_host::{HostConfig, Transport};
use raceline_proto::nvme::{NamespaceId, Nqn};

use crate::cli::host::{ConnectArgs, namespace};
use crate::cli::perf::PerfArgs;
use crate::cli::values;
use crate::failure::Failure;
use crate::remote;

/// The name of the target of -a and -n in job files: that of SPDK's and the kernel's first controller.
const FIRST: &str = "Nvme0";

/// All targets that a run may use.
pub(super) struct Targets {
    connect: ConnectArgs,
    busy_poll: Option<std::time::Duration>,
    targets: Vec<Named>,
    /// The namespaces of the command line.
    namespaces: Vec<NamespaceId>,
    /// Number of targets on the command line.
    known: usize,
}

struct Named {
    name: String,
    /// The parameters from which it was resolved.
    key: (String, u16, Transport, Nqn, Option<Nqn>, (bool, bool)),
    host: HostConfig,
}

impl Targets {
    /// The targets of the command line.
    pub(super) fn new(args: &PerfArgs) -> Result<Self, Failure> {
        let mut targets = Self {
            connect: args.connect.clone(),
            busy_poll: args.busy_poll,
            targets: Vec::new(),
            namespaces: args.namespace.0.clone(),
            known: 0,
        };
        targets.add(FIRST.to_owned(), args.connect.clone())?;
        for spec in &args.target {
            if targets.targets.iter().any(|known| known.name.eq_ignore_ascii_case(&spec.name)) {
                return Err(Failure::usage(format!(
                    "--target {}: another target has this name; -a and -n name {FIRST}",
                    spec.name
                )));
            }
            let mut connect = args.connect.clone();
            connect.address.address.clone_from(&spec.address);
            connect.address.port = spec.port;
            connect.nqn = spec.nqn.clone();
            connect.paths.path.clear();
            targets.add(spec.name.clone(), connect)?;
        }
        targets.known = targets.targets.len();
        Ok(targets)
    }

    /// How to connect to this target.
    pub(super) fn host(&self, index: usize) -> &HostConfig {
        &self.targets[index].host
    }

    /// The namespaces of the command line, on each of its targets.
    pub(super) fn all(&self) -> Vec<FileSpec> {
        let on = |host| self.namespaces.iter().map(move |&nsid| FileSpec { host, nsid });
        (0..self.known).flat_map(on).collect()
    }

    /// The namespace for a name in a job file: `Nvme0n1`, `/dev/nvme0n1`, or the words of SPDK's engine.
    pub(super) fn named(&mut self, name: &str) -> Result<FileSpec, String> {
        if name.contains("traddr=") {
            return self.spelled(name);
        }
        let bare = name.strip_prefix("/dev/").unwrap_or(name);
        let split = bare.char_indices().rev().find(|(_, letter)| matches!(letter, 'n' | 'N'));
        let (controller, nsid) = split.map_or((bare, ""), |(at, _)| (&bare[..at], &bare[at + 1..]));
        let host = self.targets[..self.known]
            .iter()
            .position(|known| known.name.eq_ignore_ascii_case(controller));
        match (host, namespace(nsid)) {
            (Some(host), Ok(nsid)) => Ok(FileSpec { host, nsid }),
            _ => {
                let known: Vec<&str> =
                    self.targets[..self.known].iter().map(|known| known.name.as_str()).collect();
                Err(format!(
                    "filename `{name}` names no target: write {FIRST}n1 for namespace 1 of the target of -a \
                     and -n; known are {} (--target adds others)",
                    known.join(", ")
                ))
            }
        }
    }

    /// `traddr=... trsvcid=... subnqn=... ns=...`, as for SPDK's NVMe engine.
    fn spelled(&mut self, name: &str) -> Result<FileSpec, String> {
        let mut keys = RemoteKeys::default();
        let mut transport = None;
        for word in name.split_ascii_whitespace() {
            let wrong = || {
                format!(
                    "filename `{name}`: `{word}` is not understood: trtype=tcp or rdma, adrfam traddr trsvcid subnqn ns are"
                )
            };
            let (key, value) = word.split_once('=').ok_or_else(wrong)?;
            match key.to_ascii_lowercase().as_str() {
                "trtype" => transport = Some(values::transport(value).map_err(|_| wrong())?),
                "adrfam" => {}
                "traddr" => keys.address = Some(value.to_owned()),
                "trsvcid" => keys.port = Some(value.parse().map_err(|_| wrong())?),
                "subnqn" => keys.nqn = Some(value.to_owned()),
                "ns" => keys.nsid = Some(value.parse().map_err(|_| wrong())?),
                _ => return Err(wrong()),
            }
        }
        self.remote_over(transport, &keys)
            .map_err(|(_, error)| format!("filename `{name}`: {error}"))
    }

    /// The namespace that the keys of a job name; the command line supplies omitted parts. An error names
    /// the wrong key.
    pub(super) fn remote(&mut self, keys: &RemoteKeys) -> Result<FileSpec, (&'static str, String)> {
        self.remote_over(None, keys)
    }

    /// The same over a transport; `None`: that of the command line.
    fn remote_over(
        &mut self,
        transport: Option<Transport>,
        keys: &RemoteKeys,
    ) -> Result<FileSpec, (&'static str, String)> {
        let named = |key: &'static str, text: &str| {
            values::nqn(text).map_err(|error| (key, format!("{key} `{text}`: {error}")))
        };
        let mut connect = self.connect.clone();
        if let Some(address) = &keys.address {
            connect.address.address.clone_from(address);
            connect.address.port = values::DEFAULT_PORT;
            connect.paths.path.clear();
        }
        connect.address.transport = transport.or(connect.address.transport);
        if let Some(port) = keys.port {
            connect.address.port = port;
        }
        if let Some(nqn) = &keys.nqn {
            connect.nqn = named("nqn", nqn)?;
        }
        if let Some(nqn) = &keys.hostnqn {
            connect.address.hostnqn = Some(named("hostnqn", nqn)?);
        }
        connect.header_digest = keys.header_digest.unwrap_or(connect.header_digest);
        connect.data_digest = keys.data_digest.unwrap_or(connect.data_digest);
        let nsid = NamespaceId(keys.nsid.unwrap_or(1));
        let host = self.add(String::new(), connect);
        let host = host.map_err(|failure| ("traddr", failure.message))?;
        Ok(FileSpec { host, nsid })
    }

    /// Adds a target unless it is known, and gives its position.
    fn add(&mut self, name: String, connect: ConnectArgs) -> Result<usize, Failure> {
        let ConnectArgs { address, nqn, header_digest, data_digest, .. } = &connect;
        let (host, port) = (address.address.clone(), address.port);
        let transport = address.transport.unwrap_or_default();
        let digests = (*header_digest, *data_digest);
        let key = (host, port, transport, nqn.clone(), address.hostnqn.clone(), digests);
        let found = self.targets.iter().position(|known| known.key == key);
        if let Some(index) = found.filter(|_| name.is_empty()) {
            return Ok(index);
        }
        let mut host = remote::config(&connect)?;
        host.busy_poll = self.busy_poll;
        self.targets.push(Named { name, key, host });
        Ok(self.targets.len() - 1)
    }
}
