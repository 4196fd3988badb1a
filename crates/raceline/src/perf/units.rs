//! The logical units of a run over iSCSI: `raceline perf --iscsi`.

use std::net::SocketAddr;

use raceline_bench::runner::iscsi::IscsiUnit;
use raceline_bench::runner::stage::StageConfig;
use raceline_proto::nvme::{NamespaceId, Nqn};

use crate::cli::host::ConnectArgs;
use crate::cli::perf::PerfArgs;
use crate::failure::Failure;
use crate::initiator::RemoteUnit;

/// Units by the portal and the name of their target, asked once each.
pub(super) struct Units {
    connect: ConnectArgs,
    busy_poll: Option<std::time::Duration>,
    known: Vec<((SocketAddr, Nqn), IscsiUnit)>,
}

impl Units {
    /// What the command line says of iSCSI; `None`: the run is over NVMe/TCP.
    pub(super) fn new(args: &PerfArgs) -> Result<Option<Self>, Failure> {
        if !args.connect.address.iscsi.iscsi {
            return Ok(None);
        }
        let nvme_only = [
            ("--namespace", args.namespace.0 != [NamespaceId(1)], "--lun N names the logical unit"),
            ("--accel", args.accel.is_some(), "the CPU computes the digests of iSCSI"),
            ("-W and -P", args.maps.are_mapped(), "each queue is a session of its own"),
            ("--i10", args.maps.i10.is_some(), "iSCSI commands are not kept back"),
            ("--show-maps", args.maps.show_maps, "iSCSI has no queue maps"),
            ("--send-flags", args.maps.send_flags, "iSCSI sessions send without them"),
            ("--reauthenticate", args.reauthenticate.is_some(), "CHAP is a part of the login"),
        ];
        if let Some((option, _, instead)) = nvme_only.iter().find(|(_, given, _)| *given) {
            return Err(Failure::usage(format!("{option} is for NVMe/TCP: {instead}")));
        }
        let (connect, busy_poll) = (args.connect.clone(), args.busy_poll);
        Ok(Some(Self { connect, busy_poll, known: Vec::new() }))
    }

    /// The units of a stage, in the order of its hosts.
    pub(super) fn of(&mut self, stage: &StageConfig) -> Result<Vec<IscsiUnit>, Failure> {
        let mut units = Vec::with_capacity(stage.hosts.len());
        for host in &stage.hosts {
            let key = (host.address, host.subnqn.clone());
            if let Some((_, unit)) = self.known.iter().find(|(known, _)| *known == key) {
                units.push(unit.clone());
                continue;
            }
            let mut connect = self.connect.clone();
            connect.address.address = host.address.ip().to_string();
            connect.address.port = host.address.port();
            connect.nqn = host.subnqn.clone();
            let mut unit = RemoteUnit::connect(&connect)?.into_known();
            unit.session.busy_poll = self.busy_poll;
            self.known.push((key, unit.clone()));
            units.push(unit);
        }
        Ok(units)
    }
}
