//! Drivers and models for the fuzz targets: the targets are a few lines each, the checks are here.

pub mod chap;
pub mod config;
pub mod daemon;
pub mod front_end;
pub mod iscsi;
pub mod rdma;
pub mod tcp;
pub mod tls;
