//! Limits of this process: each connection and device needs a file descriptor, and memory.

use raceline_reactor::room;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;

/// What a target with one core needs for its start.
const START_MEMORY: u64 = 128 << 20;

/// Gives a failure the limit of memory that may be its cause.
pub(crate) fn explain(failure: Failure) -> Failure {
    let is_memory = failure.message.contains("(os error 12)");
    match room::scarce_memory(if is_memory { u64::MAX } else { START_MEMORY }) {
        Some(why) => Failure { message: format!("{} ({why})", failure.message), ..failure },
        None => failure,
    }
}

/// Raises the number of file descriptors to the permitted maximum, and gives it.
pub(crate) fn raise_file_descriptors() -> Option<u64> {
    let now = getrlimit(Resource::Nofile);
    if now.current == now.maximum {
        return now.current;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum }) {
        Ok(()) => now.maximum,
        Err(error) => {
            tracing::warn!("cannot raise the limit of file descriptors: {error}");
            now.current
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_what_is_permitted() {
        raise_file_descriptors();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
    }
}
