//! libraceline: the caller-driven host behind a C interface.
//!
//! `cargo xtask capi` makes the header `include/raceline.h` from these files; the header says how to use the
//! library. Entries whose code may panic run it in `boundary::guard`, so that no panic leaves the library.
//! Every wrong pointer that the library can recognise is refused with a text.

#![allow(non_camel_case_types, reason = "the names are those of the header")]

mod boundary;
mod buffer;
mod config;
mod handle;
mod host;
mod queues;
#[cfg(test)]
mod rdma_tests;
mod status;

pub use buffer::{raceline_buffer_alloc, raceline_buffer_free};
pub use config::{
    RACELINE_DATA_DIGEST, RACELINE_HEADER_DIGEST, RACELINE_I10, RACELINE_NO_FAILBACK,
    raceline_config, raceline_config_init,
};
pub use host::{
    RACELINE_NAMESPACE_CACHE, RACELINE_NAMESPACE_DEALLOCATE, RACELINE_NAMESPACE_READ_ONLY,
    RACELINE_NAMESPACE_WRITE_ZEROES, raceline_connect, raceline_disconnect, raceline_host,
    raceline_namespace, raceline_namespace_ids, raceline_namespace_info,
};
pub use queues::{
    RACELINE_DEALLOCATE, RACELINE_FUA, RACELINE_POLLED, raceline_compare, raceline_completion,
    raceline_completion_text, raceline_deallocate, raceline_flush, raceline_poll, raceline_queues,
    raceline_queues_close, raceline_queues_open, raceline_queues_options, raceline_range,
    raceline_read, raceline_room, raceline_send, raceline_wait, raceline_write,
    raceline_write_zeroes,
};
pub use status::{
    RACELINE_BUSY, RACELINE_CANNOT_CONNECT, RACELINE_CLOSED, RACELINE_COMMAND_FAILED,
    RACELINE_DIGEST, RACELINE_FULL, RACELINE_INTERNAL, RACELINE_INVALID, RACELINE_NO_MEMORY,
    RACELINE_NOT_SENT, RACELINE_OK, RACELINE_REFUSED, RACELINE_TIMEOUT, RACELINE_UNKNOWN_FATE,
    raceline_code_text, raceline_error_text, raceline_version,
};
