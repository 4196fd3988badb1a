//! What a port of a target has done.

use std::ops::AddAssign;

/// What a port has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Looks for completions.
    pub polls: u64,
    /// Those that found none.
    pub idle_polls: u64,
    /// Completions.
    pub completions: u64,
    /// Commands of hosts.
    pub requests: u64,
    /// Requests that were posted to send queues.
    pub sends: u64,
    /// Calls that posted them: each takes one to the device's doorbell.
    pub send_posts: u64,
    /// Receives that were posted after those with which queues begin.
    pub receives: u64,
    /// Calls that posted them.
    pub receive_posts: u64,
    /// Requests for queues that were refused.
    pub refused: u64,
    /// Shared receives that the device may have lost with the queue pair that had them.
    pub lost_receives: u64,
}

impl AddAssign for PortCounts {
    fn add_assign(&mut self, other: Self) {
        let Self {
            polls,
            idle_polls,
            completions,
            requests,
            sends,
            send_posts,
            receives,
            receive_posts,
            refused,
            lost_receives,
        } = other;
        self.polls += polls;
        self.idle_polls += idle_polls;
        self.completions += completions;
        self.requests += requests;
        self.sends += sends;
        self.send_posts += send_posts;
        self.receives += receives;
        self.receive_posts += receive_posts;
        self.refused += refused;
        self.lost_receives += lost_receives;
    }
}
