//! NVMe, NVMe/TCP and the messages of NVMe/RDMA as state machines that do no I/O.
//!
//! Bytes and the time go in, actions and bytes come out: no sockets, no clock, no threads, no
//! unsafe. The layers, bottom up:
//!
//! * [`nvme`]: commands, completions, status, Identify, features, log pages, Fabrics commands
//!   as they are on the wire;
//! * [`tcp`]: the NVMe/TCP PDUs, framing, and the two ends of one queue's connection;
//! * [`rdma`]: what NVMe/RDMA puts into private data, capsules and descriptors;
//! * [`reservation`]: who is registered with a namespace, who has reserved it, what each host may do;
//! * [`controller`]: what a controller does with a command;
//! * [`host`]: what a host does to bring a controller up and to track its commands.
#![forbid(unsafe_code)]

pub mod controller;
pub mod host;
pub mod nvme;
pub mod rdma;
pub mod reservation;
pub mod tcp;
