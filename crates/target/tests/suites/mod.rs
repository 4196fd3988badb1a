//! Tests of the target that speak of NVMe alone: they run over each transport, which is that of the module `common` above.

mod ana;
mod authentication;
mod authentication_abuse;
mod blocks;
mod buffer_weights;
mod commands;
mod connecting;
mod control;
mod device_commands;
mod devices;
mod fencing;
mod io;
mod live;
tcp_only! {
    // A queue over RDMA stays on its core: `rdma/cores.rs`.
    mod moving;
}
mod odd_hosts;
mod placement;
mod pool;
mod qos;
mod reservations;
mod shared_reservations;
mod weights;
