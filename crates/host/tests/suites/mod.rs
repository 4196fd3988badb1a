//! Tests of the host against a target of ours: they run over each transport, which is that of the module `served` above.

mod authentication;
mod caller;
mod core;
mod fused;
mod paths;
mod reexport;
mod refused;
mod shared;
mod waiting;
