//! Workloads, statistics and reports.
