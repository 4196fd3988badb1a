//! Drivers and models for the fuzz targets: each target is a few lines, what it checks is here.

pub mod config;
pub mod daemon;
pub mod tcp;
