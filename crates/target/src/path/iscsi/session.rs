//! A session: who its initiator is, which target node it is with, and what it knows of the LUNs of that.

use std::sync::Arc;
use std::time::Instant;

use raceline_bdev::{DeviceStats, Meter, OpKind};
use raceline_scsi::{
    Attentions, Nexus as ScsiNexus, PortGroup, PortGroupState, TargetFacts, UnitAttention,
};

use super::copies::Copies;
use crate::changes::iscsi_view::{IscsiLimits, Lun, Node};
use crate::changes::snapshot::DeviceId;
use crate::records::limited::Levels;
use crate::records::sessions::Nexus;
use crate::records::unit::Seen;

/// A session.
pub(crate) struct Session {
    /// Among the sessions of the target.
    pub(crate) nexus: Nexus,
    /// The same, as logical units know it.
    pub(crate) scsi: ScsiNexus,
    pub(crate) node: Arc<Node>,
    pub(crate) facts: TargetFacts,
    pub(crate) luns: Vec<Option<LunView>>,
    pub(crate) copies: Copies,
    latencies: Option<Latencies>,
    /// The limits by which it goes.
    limits: Option<Arc<IscsiLimits>>,
}

/// A session's part of the latency histogram of its target node.
struct Latencies {
    of_node: Arc<DeviceStats>,
    meter: Meter,
}

impl Latencies {
    fn new(of_node: &Arc<DeviceStats>) -> Self {
        Self { of_node: Arc::clone(of_node), meter: of_node.meter() }
    }
}

/// What a session knows of a LUN.
pub(crate) struct LunView {
    pub(crate) lun: Lun,
    pub(crate) seen: Seen,
    /// What the initiator has yet to be told.
    pub(crate) attentions: Attentions,
    /// The limits of its commands, if there are any.
    pub(crate) levels: Option<Levels>,
}

impl LunView {
    fn new(lun: &Lun, nexus: &ScsiNexus, attention: Option<UnitAttention>) -> Self {
        let mut attentions = Attentions::NONE;
        attention.into_iter().for_each(|attention| attentions.add(attention));
        Self { lun: lun.clone(), seen: lun.unit.attach(nexus), attentions, levels: None }
    }
}

impl Session {
    /// A session that begins; `attention`: what it is told first at each LUN.
    pub(crate) fn new(nexus: Nexus, node: &Arc<Node>, attention: Option<UnitAttention>) -> Self {
        let scsi = ScsiNexus {
            initiator: nexus.initiator.clone(),
            isid: nexus.isid,
            target: node.name.clone(),
            port: node.port(nexus.portal_group),
        };
        let luns = node.luns.iter();
        let luns = luns.map(|lun| lun.as_ref().map(|lun| LunView::new(lun, &scsi, attention)));
        let luns = luns.collect();
        let latencies = node.latencies.as_ref().map(Latencies::new);
        Self {
            facts: facts(node),
            node: Arc::clone(node),
            nexus,
            scsi,
            luns,
            copies: Copies::default(),
            latencies,
            limits: None,
        }
    }

    /// The LUN of this number, with the latest of its unit.
    #[inline]
    pub(crate) fn lun(&mut self, number: u16) -> Option<&mut LunView> {
        let view = self.luns.get_mut(usize::from(number))?.as_mut()?;
        if view.seen.is_stale(&view.lun.unit) {
            view.lun.unit.look(&self.scsi, &mut view.seen, &mut view.attentions);
        }
        Some(view)
    }

    /// The LUN of this number, as it was when a command for it began.
    #[inline]
    pub(crate) fn lun_as_seen(&self, number: u16) -> Option<&LunView> {
        self.luns.get(usize::from(number))?.as_ref()
    }

    /// The target node has changed. Gives the devices that the I_T nexus held by Reserve and has given up.
    pub(crate) fn show(&mut self, node: &Arc<Node>) -> Vec<DeviceId> {
        let mut released = Vec::new();
        let count = node.luns.len().max(self.luns.len());
        self.luns.resize_with(count, || None);
        let mut is_new = false;
        for (index, view) in self.luns.iter_mut().enumerate() {
            let shown = node.luns.get(index).and_then(Option::as_ref);
            match (&view, shown) {
                (None, None) => continue,
                (Some(old), Some(lun)) if old.lun.is_same(lun) => continue,
                _ => is_new = true,
            }
            if let Some(old) = view.take()
                && old.lun.unit.detach(&self.scsi)
            {
                released.push(old.lun.device);
            }
            *view = shown.map(|lun| LunView::new(lun, &self.scsi, None));
        }
        self.node = Arc::clone(node);
        let is_same = |latencies: &&mut Latencies| {
            node.latencies.as_ref().is_some_and(|wanted| Arc::ptr_eq(wanted, &latencies.of_node))
        };
        if self.latencies.as_mut().filter(is_same).is_none() {
            self.latencies = node.latencies.as_ref().map(Latencies::new);
        }
        if is_new {
            self.facts = facts(node);
            let all = self.luns.iter_mut().flatten();
            all.for_each(|view| view.attentions.add(UnitAttention::LunsChanged));
        }
        released
    }

    /// Takes the limits that are shown, or those of LUNs that are new. Gives whether any LUN has others than before.
    pub(crate) fn limit(&mut self, limits: &Arc<IscsiLimits>) -> bool {
        let is_same = |levels: &Option<Levels>, new: &Option<Levels>| match (levels, new) {
            (None, None) => true,
            (Some(one), Some(other)) => {
                one.len() == other.len() && one.iter().zip(&other[..]).all(|(a, b)| a.is_same(b))
            }
            _ => false,
        };
        let mut has_changed = false;
        for view in self.luns.iter_mut().flatten() {
            let levels = limits.levels(view.lun.device, &self.nexus.initiator);
            has_changed |= !is_same(&view.levels, &levels);
            view.levels = levels;
        }
        self.limits = Some(Arc::clone(limits));
        has_changed
    }

    /// Whether it goes by these limits.
    pub(crate) fn has_limits(&self, limits: &Arc<IscsiLimits>) -> bool {
        self.limits.as_ref().is_some_and(|own| Arc::ptr_eq(own, limits))
    }

    /// When a command that comes now has begun, if the target node has a histogram.
    #[inline]
    pub(crate) fn started(&mut self, now: Instant) -> Option<Instant> {
        Some(self.latencies.as_mut()?.meter.start(now))
    }

    /// A command that began then has ended.
    #[cold]
    pub(crate) fn ended(&self, started: Instant) {
        if let Some(latencies) = &self.latencies {
            // The histogram has commands of all kinds, and the meter looks at the clock itself.
            latencies.meter.finish(OpKind::Read, 0, (started, started), Ok(()));
        }
    }

    /// The initiator knows which LUNs there are.
    pub(crate) fn luns_are_known(&mut self) {
        self.luns.iter_mut().flatten().for_each(|view| view.attentions.luns_are_known());
    }

    /// The session has ended. Gives the devices that the I_T nexus held by Reserve and has given up.
    pub(crate) fn detach(&mut self) -> Vec<DeviceId> {
        let views = self.luns.drain(..).flatten();
        let released = views.filter(|view| view.lun.unit.detach(&self.scsi));
        released.map(|view| view.lun.device).collect()
    }
}

fn facts(node: &Node) -> TargetFacts {
    let groups = node.ports.iter();
    let groups = groups.map(|(tag, relative)| PortGroup {
        tag: *tag,
        state: PortGroupState::Optimized,
        ports: vec![*relative],
    });
    TargetFacts {
        name: node.name.clone(),
        groups: groups.collect(),
        luns: node.numbers().collect(),
    }
}
