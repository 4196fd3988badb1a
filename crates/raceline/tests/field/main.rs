//! Inputs of users: configurations, scripts, job files and hosts as they occur in the field, one small
//! input per kind, in `inputs/` if it is a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../support/mod.rs"]
mod support;

mod configs;
mod drives;
mod hosts;
mod jobs;
mod platforms;
mod scripts;
