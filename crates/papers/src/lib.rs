//! The published experiments of the field, each as a named run that anyone can repeat.
//!
//! An [`experiment::Experiment`] is a declarative file: its question, its ways, its published numbers. A run
//! leaves one [`record::Record`] for each experiment. Everything that is derived, shown or compared comes
//! from records, so that a report can be made again, and by others.

pub mod agent;
pub mod bed;
pub mod catalogue;
pub mod compare;
pub mod environment;
pub mod experiment;
pub mod record;
pub mod report;
pub mod run;
pub mod statistics;
pub mod subject;
pub mod table;
