//! What a process tells the one that takes its place about the connections of a target, in the form of [`FORM`].

use std::net::SocketAddr;

use raceline_proto::controller::{ConnectRequest, ControllerState, Security};
use raceline_proto::nvme::cross_reset::ControllerInstance;
use raceline_proto::nvme::{ControllerId, HostId, HostNqn, Nqn, QueueId};
use raceline_proto::tcp::ControllerQueueState;
use serde::{Deserialize, Serialize};

use crate::path::traveller::Answers;

/// The form of [`HandedTarget`] and of all that it holds. Every change of these types is a new form; a test holds the
/// present one.
pub const FORM: u32 = 1;

/// The connections of a target, in the order of their sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedTarget {
    /// The generation that hosts were shown last.
    pub(crate) generation: u64,
    pub(crate) connections: Vec<HandedConnection>,
}

impl HandedTarget {
    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedConnection {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The address of its listener.
    pub(crate) listener: SocketAddr,
    /// The core that had it.
    pub(crate) core: usize,
    /// `None`: nothing has come on it.
    pub(crate) queue: Option<HandedQueue>,
}

/// A queue that its host has connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedQueue {
    pub(crate) qid: u16,
    pub(crate) entries: u16,
    pub(crate) cntlid: u16,
    pub(crate) subsystem: String,
    /// `None`: the host has no name.
    pub(crate) host: Option<String>,
    pub(crate) hostid: [u8; 16],
    pub(crate) flow_control: bool,
    pub(crate) says_success: bool,
    pub(crate) sqhd: u16,
    pub(crate) queue: ControllerQueueState,
    /// Commands that have come and have had no effect. Of an admin queue: requests for events.
    pub(crate) commands: Vec<Vec<u8>>,
    /// The host has proved who it is, and may do so again.
    pub(crate) is_proven: bool,
    /// Of an admin queue.
    pub(crate) controller: Option<HandedController>,
}

/// A controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedController {
    pub(crate) ciu: u8,
    pub(crate) cirn: u64,
    pub(crate) authentication: bool,
    pub(crate) tls: bool,
    pub(crate) state: ControllerState,
}

impl HandedQueue {
    pub(crate) fn answers(&self) -> Answers {
        let (entries, flow_control) = (self.entries, self.flow_control);
        Answers { entries, flow_control, says_success: self.says_success }
    }

    /// The Connect that has made it. `None`: a name is wrong.
    pub(crate) fn request(&self) -> Option<ConnectRequest> {
        let hostnqn = match &self.host {
            Some(name) => HostNqn::Named(Nqn::new(name).ok()?),
            None => HostNqn::Unnamed,
        };
        Some(ConnectRequest {
            qid: QueueId(self.qid),
            queue_entries: self.entries.into(),
            disable_sq_flow: !self.flow_control,
            kato_ms: 0,
            hostid: HostId(self.hostid),
            cntlid: ControllerId(self.cntlid),
            subnqn: Nqn::new(&self.subsystem).ok()?,
            hostnqn,
        })
    }
}

impl HandedController {
    pub(crate) fn instance(&self, cntlid: u16) -> ControllerInstance {
        ControllerInstance { cntlid: ControllerId(cntlid), ciu: self.ciu, cirn: self.cirn }
    }

    pub(crate) fn security(&self) -> Security {
        Security { authentication: self.authentication, tls: self.tls }
    }
}

#[cfg(test)]
mod tests {
    use raceline_proto::tcp::{ControllerQueue, ControllerQueueConfig};

    use super::*;

    /// The form of a state: names and kinds of all members, whatever the values.
    fn form(value: &serde_json::Value) -> String {
        use serde_json::Value;
        match value {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Number(_) => "number".to_owned(),
            Value::String(_) => "text".to_owned(),
            Value::Array(all) => format!("[{}]", all.first().map_or(String::new(), form)),
            Value::Object(members) => {
                let members = members.iter().map(|(name, value)| format!("{name}:{}", form(value)));
                format!("{{{}}}", members.collect::<Vec<_>>().join(","))
            }
        }
    }

    #[test]
    fn a_queue_that_is_not_between_two_commands_is_not_handed_over() {
        let queue = ControllerQueue::new(ControllerQueueConfig {
            max_h2c_data: 4096,
            in_capsule_bytes: 4096,
            max_r2t_slots: 4,
            allow_hdgst: true,
            allow_ddgst: true,
        });
        assert!(queue.is_untouched());
        assert!(queue.hand_over().is_none(), "it has had no ICReq");
    }

    #[test]
    fn the_form_of_the_state_has_this_number() {
        // Whoever changes this text also counts FORM up.
        let text = r#"{"generation":7,"connections":[{"peer":"127.0.0.1:9","local":"127.0.0.1:4420",
            "listener":"127.0.0.1:4420","core":0,"queue":{"qid":1,"entries":129,"cntlid":5,
            "subsystem":"nqn.2016-06.io.spdk:a","host":"nqn.2016-06.io.spdk:h","hostid":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1],
            "flow_control":false,"says_success":true,"sqhd":3,"queue":{"max_h2c_data":131072,
            "in_capsule_bytes":4096,"max_r2t_slots":129,"header_digest":true,"data_digest":false,"hpda":0,
            "maxr2t":0,"held":[4]},"commands":[[1]],"is_proven":false,"controller":{"ciu":1,"cirn":9,
            "authentication":false,"tls":false,"state":{"age":{"secs":1,"nanos":2},"kato_ms":10000,
            "silent":{"secs":0,"nanos":1},"disabled":{"secs":0,"nanos":1},"shut_down":false,"cc":4587521,"rdy":true,"cfs":false,
            "shst":0,"queues":[1],"granted":127,"features":{"arbitration":0,"power_management":0,
            "over_temperature":65535,"under_temperature":0,"error_recovery":0,"write_atomicity":0,
            "waits_before_retry":false,"copies_across":false},"event_config":256,
            "events":[[false,true]],"requests":[12],"errors":[[0]],"error_count":1,"changed":[1],
            "changed_overflow":false,"resets":[[1,2,3,4]],"notices":[[1,2,3]],"notice_count":1,
            "notice_masks":{"1":2},"tolerances":[0,0]}}}}]}"#;
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        let state: HandedTarget = serde_json::from_value(value.clone()).unwrap();
        let written = serde_json::to_value(&state).unwrap();
        assert_eq!(form(&written), form(&value), "FORM is {FORM}: another form has another number");
        assert_eq!(FORM, 1);
    }
}
