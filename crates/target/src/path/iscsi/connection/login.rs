//! Logins: who is let in, with which proof, and how the session begins (RFC 7143, 6.3).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use raceline_iscsi::chap::{Algorithm, CHALLENGE_LEN, Secret};
use raceline_iscsi::names::Name;
use raceline_iscsi::pdu::LoginStatus;
use raceline_iscsi::target::{
    Admission, Authentication, ChapDemand as ProtocolDemand, Credentials, Identity, TargetList,
    TargetPortal, TargetsWanted,
};
use raceline_reactor::Context;
use raceline_scsi::UnitAttention;

use super::{Connection, LifeState};
use crate::changes::iscsi_config::{ChapDemand, ChapPolicy};
use crate::changes::iscsi_message::IscsiMessage;
use crate::changes::iscsi_view::{IscsiView, Node};
use crate::changes::management::DeviceRequest;
use crate::changes::message::Message;
use crate::path::core::Core;
use crate::path::iscsi::session::Session;
use crate::path::iscsi::slots::Slots;
use crate::records::names::Place;
use crate::records::sessions::{Claim, Nexus, SessionRecord};

/// The hashes for CHAP, the best first (RFC 7143, 12.1.3: MD5 is the one that all have).
const ALGORITHMS: &[Algorithm] = Algorithm::ALL;
/// Commands that a discovery session may have outstanding.
const DISCOVERY_WINDOW: u16 = 16;
/// The handle of discovery sessions, which nothing refers to.
const DISCOVERY_HANDLE: u16 = u16::MAX;

impl Connection {
    /// The initiator has said who it is, and what it wants.
    pub(super) fn admit_login(&mut self, core: &Core) {
        let Some(who) = self.out.proto.identity().cloned() else { return };
        let view = Arc::clone(&core.snapshot.iscsi);
        match self.judge(core, &view, &who) {
            Ok(admission) => self.out.proto.admit(admission),
            Err(Denied::Moved(address)) => {
                self.out.proto.redirect(false, &address.to_string());
            }
            Err(Denied::Status(status)) => {
                let (peer, initiator) = (self.ends.peer, &who.initiator_name);
                tracing::info!(event = "refused", %peer, %initiator, target = ?who.target_name, %status, "iSCSI login refused");
                self.out.proto.refuse(status);
            }
        }
    }

    fn judge(&self, core: &Core, view: &IscsiView, who: &Identity) -> Result<Admission, Denied> {
        let group = view.group_of(self.ends.port_id);
        let group = group.ok_or(Denied::Status(LoginStatus::SERVICE_UNAVAILABLE))?;
        let tag = group.config.tag;
        let admission = |policy, window, alias: Option<String>| {
            Ok(Admission {
                command_window: window,
                portal_group_tag: tag,
                target_alias: alias,
                authentication: authentication(view, policy)?,
            })
        };
        if who.discovery {
            let policy = group.config.auth.unwrap_or(view.settings.discovery_auth);
            return admission(policy, DISCOVERY_WINDOW, None);
        }
        let node = self.node(view, who)?;
        let initiator = (who.initiator_name.as_str(), self.ends.peer.ip());
        if !view.admits(node, tag, initiator) {
            return Err(Denied::Status(LoginStatus::NOT_AUTHORIZED));
        }
        if let Some(address) = node.redirects.get(&tag) {
            return Err(Denied::Moved(*address));
        }
        if who.tsih != 0 && !core.shared.sessions().knows(who.tsih) {
            return Err(Denied::Status(LoginStatus::NO_SESSION));
        }
        if who.tsih != 0 {
            // A session has one connection.
            return Err(Denied::Status(LoginStatus::TOO_MANY_CONNECTIONS));
        }
        let alias = (!node.alias.is_empty()).then(|| node.alias.clone());
        admission(node.auth, node.queue_depth, alias)
    }

    fn node<'a>(&self, view: &'a IscsiView, who: &Identity) -> Result<&'a Arc<Node>, Denied> {
        let name = who.target_name.as_ref().map(Name::as_str).unwrap_or_default();
        view.nodes.get(name).ok_or(Denied::Status(LoginStatus::NOT_FOUND))
    }

    /// The initiator proves that it knows a secret.
    pub(super) fn give_credentials(&mut self, core: &Core) {
        let view = &core.snapshot.iscsi;
        let who = self.out.proto.identity();
        let policy = who.and_then(|who| {
            if who.discovery {
                let group = view.group_of(self.ends.port_id);
                let own = group.and_then(|group| group.config.auth);
                return Some(own.unwrap_or(view.settings.discovery_auth));
            }
            self.node(view, who).ok().map(|node| node.auth)
        });
        let name = self.out.proto.chap_name();
        let secrets = policy.and_then(|policy| view.secrets(policy));
        let found = secrets
            .zip(name)
            .and_then(|(secrets, name)| secrets.iter().find(|secret| secret.user == name));
        let credentials = found.map(|found| Credentials {
            secret: Secret::new(found.secret.as_bytes().to_vec()),
            own: found
                .mutual
                .as_ref()
                .map(|(name, secret)| (name.clone(), Secret::new(secret.as_bytes().to_vec()))),
        });
        self.out.proto.credentials(credentials.as_ref());
    }

    // -------------------------------------------------------------------- the session

    /// The login has succeeded but for its last response: begins the session, once an older one of the same nexus is
    /// gone.
    pub(super) fn establish(&mut self, core: &Core) {
        let Some(who) = self.out.proto.identity().cloned() else { return };
        if who.discovery {
            self.out.proto.establish(DISCOVERY_HANDLE);
            return;
        }
        let view = Arc::clone(&core.snapshot.iscsi);
        // What exists may have changed since the login began.
        let (node, group) = match (self.node(&view, &who), view.group_of(self.ends.port_id)) {
            (Ok(node), Some(group)) => (Arc::clone(node), group.config.tag),
            _ => return self.out.proto.refuse(LoginStatus::TARGET_REMOVED),
        };
        let nexus = Nexus {
            initiator: who.initiator_name.as_str().to_owned(),
            isid: who.isid.0,
            target: node.name.clone(),
            portal_group: group,
        };
        let place = core.place(self.key);
        let (peer, local) = (self.ends.peer, self.ends.local);
        let counters = Arc::clone(&self.counters);
        let record = SessionRecord { place, tsih: 0, cid: who.cid, peer, local, counters };
        let max = view.settings.max_sessions;
        let claim = core.shared.sessions().claim(&nexus, record, max);
        match claim {
            Claim::Session(tsih) => {
                let attention = self.reinstates.then_some(UnitAttention::NexusLoss);
                let mut session = Session::new(nexus, &node, attention);
                session.limit(&view.limits);
                self.session = Some(Box::new(session));
                self.out.proto.establish(tsih);
            }
            Claim::After(old) => {
                let isid = nexus.isid;
                tracing::info!(%peer, initiator = %nexus.initiator, ?isid, target = %nexus.target, "an iSCSI session is begun anew: the old one ends");
                self.reinstates = true;
                self.wait_for(core, old);
            }
            Claim::Full => {
                tracing::warn!(%peer, max, "iSCSI login refused: there are as many sessions as there may be");
                self.out.proto.refuse(LoginStatus::OUT_OF_RESOURCES);
            }
        }
    }

    fn wait_for(&self, core: &Core, old: Place) {
        let to = core.place(self.key);
        core.send(old.core, Message::Iscsi(IscsiMessage::GiveUp { key: old.key, to }));
    }

    /// The session that this one takes the place of is gone.
    pub(crate) fn predecessor_gone(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        if self.state != LifeState::Login || self.session.is_some() || !self.reinstates {
            return;
        }
        self.establish(core);
        self.parse(cx, core);
    }

    /// A PDU of the protocol's own was appended: the login may be over.
    pub(super) fn look_at_phase(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        if self.state != LifeState::Login {
            return;
        }
        if self.out.proto.is_full_feature() {
            let count = self.out.proto.task_slots();
            self.slots = Slots::new(count);
            self.out.set_entries(count);
            if self.session.is_some() {
                self.use_large_staging();
            }
            self.state = LifeState::Open;
            self.heard = cx.now;
            self.admit(core);
            self.update_share(core);
            self.arm_timers(cx, core);
            if let Some(session) = &self.session {
                let (initiator, target) = (&session.nexus.initiator, &session.nexus.target);
                let (peer, place) = (self.ends.peer, core.index);
                tracing::info!(event = "connect", %peer, initiator, target, core = place, "iSCSI session begins");
            }
        } else if self.out.proto.is_closing() {
            if let Some((status, why)) = self.out.proto.refusal() {
                tracing::info!(event = "refused", peer = %self.ends.peer, %status, why, "iSCSI login refused");
            }
            self.end(cx, core);
        }
    }

    // ------------------------------------------------------------------------ changes

    /// What exists has changed.
    pub(crate) fn handle_snapshot(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        let view = Arc::clone(&core.snapshot.iscsi);
        if self.state == LifeState::Closing {
            return;
        }
        if view.group_of(self.ends.port_id).is_none() {
            return self.close(cx, core, "its portal group was removed");
        }
        let Some(session) = &mut self.session else { return };
        let initiator = (session.nexus.initiator.as_str(), self.ends.peer.ip());
        let node = view.nodes.get(&session.nexus.target);
        let node = node.filter(|node| view.admits(node, session.nexus.portal_group, initiator));
        let Some(node) = node else {
            return self.close(cx, core, "its target node was removed, or is not for it any more");
        };
        let is_new = !Arc::ptr_eq(node, &session.node);
        if is_new {
            for device in session.show(node) {
                core.shared.reserve(DeviceRequest::Released(device));
            }
        }
        let is_limited_anew =
            (is_new || !session.has_limits(&view.limits)) && session.limit(&view.limits);
        if is_new {
            self.drop_removed(core);
        }
        if is_limited_anew {
            self.limit_anew(cx, core);
        }
    }

    // ---------------------------------------------------------------------- discovery

    /// The initiator wants to know which targets there are.
    pub(super) fn send_targets(&mut self, core: &Core) {
        let view = &core.snapshot.iscsi;
        let wanted = self.out.proto.targets_wanted().cloned();
        let Some(who) = self.out.proto.identity() else { return };
        let only = match (&wanted, &self.session) {
            (Some(TargetsWanted::Named(name)), _) => Some(name.as_str().to_owned()),
            (Some(TargetsWanted::Current), Some(session)) => Some(session.node.name.clone()),
            _ => None,
        };
        let mut list = TargetList::default();
        let local = self.ends.local;
        let initiator = who.initiator_name.as_str();
        for (node, portals) in view.reachable(initiator, self.ends.peer.ip()) {
            if only.as_ref().is_some_and(|only| *only != node.name) {
                continue;
            }
            let Ok(name) = Name::new(&node.name) else { continue };
            let portals = portals.into_iter().filter_map(|(address, portal_group_tag)| {
                let address = reachable_address(address, local)?;
                Some(TargetPortal { address, portal_group_tag })
            });
            list.push(&name, portals);
        }
        self.out.proto.send_targets(list);
    }
}

/// Why a login goes no further.
enum Denied {
    Status(LoginStatus),
    Moved(SocketAddr),
}

/// What a policy demands.
fn authentication(view: &IscsiView, policy: ChapPolicy) -> Result<Authentication, Denied> {
    let (required, mutual) = match policy.demand {
        ChapDemand::Disabled => return Ok(Authentication::None),
        ChapDemand::Optional if view.secrets(policy).is_none() => return Ok(Authentication::None),
        ChapDemand::Optional => (false, false),
        ChapDemand::Required => (true, false),
        ChapDemand::Mutual => (true, true),
    };
    let mut challenge = [0; CHALLENGE_LEN];
    let mut id = [0; 1];
    if getrandom::fill(&mut challenge).and_then(|()| getrandom::fill(&mut id)).is_err() {
        tracing::error!("no random numbers: nobody can authenticate");
        return Err(Denied::Status(LoginStatus::OUT_OF_RESOURCES));
    }
    Ok(Authentication::Chap(ProtocolDemand {
        required,
        mutual,
        algorithms: ALGORITHMS,
        id: id[0],
        challenge,
    }))
}

/// The address of a portal as an initiator reaches it that came to `local`. A portal on all addresses is told as the one
/// that the initiator has used. `None`: it is of the other family.
fn reachable_address(portal: SocketAddr, local: SocketAddr) -> Option<SocketAddr> {
    let ip = local.ip().to_canonical();
    if !portal.ip().is_unspecified() {
        return Some(portal);
    }
    let fits = match portal.ip() {
        IpAddr::V4(_) => ip.is_ipv4(),
        IpAddr::V6(_) => true,
    };
    fits.then(|| SocketAddr::new(ip, portal.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portal_on_all_addresses_is_told_as_the_one_that_was_used() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let local = address("192.0.2.7:3260");
        assert_eq!(
            reachable_address(address("0.0.0.0:3261"), local),
            Some(address("192.0.2.7:3261"))
        );
        assert_eq!(
            reachable_address(address("192.0.2.8:3260"), local),
            Some(address("192.0.2.8:3260"))
        );
        assert_eq!(reachable_address(address("0.0.0.0:3260"), address("[2001:db8::1]:3260")), None);
    }
}
