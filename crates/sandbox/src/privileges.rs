//! Memory that nobody else reads, and capabilities that are gone for good.

use std::io;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_no_new_privs,
};

use crate::SandboxError;

/// More capabilities than any kernel has: a set has 64 bits.
const CAPABILITY_BITS: u32 = u64::BITS;

/// Keeps memory out of core dumps, and away from debuggers without CAP_SYS_PTRACE. It holds for the whole process.
///
/// # Errors
/// When the system refuses.
pub fn hide_memory() -> Result<(), SandboxError> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).map_err(failed("set RLIMIT_CORE to 0"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("set PR_SET_DUMPABLE to 0"))
}

/// Gives up all capabilities but these, of those that the thread has, and the ways to new ones.
pub(crate) fn drop_all_but(kept: CapabilitySet) -> Result<(), SandboxError> {
    set_no_new_privs(true).map_err(failed("set PR_SET_NO_NEW_PRIVS"))?;
    let has = capabilities(None).map_err(failed("read its capabilities"))?;
    // Only this capability may shrink the bounding set. Without it the set stays, and so does the user's inability
    // to gain anything from it.
    if has.effective.contains(CapabilitySet::SETPCAP) {
        shrink_bounding_set(kept).map_err(failed("shrink its capability bounding set"))?;
    }
    match clear_ambient_capability_set() {
        // EINVAL: a kernel without ambient capabilities.
        Ok(()) | Err(Errno::INVAL) => {}
        Err(error) => return Err(failed("clear its ambient capabilities")(error)),
    }
    let permitted = has.permitted & kept;
    let sets =
        CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() };
    if sets == has {
        return Ok(());
    }
    set_capabilities(None, sets).map_err(failed("give up capabilities"))
}

fn shrink_bounding_set(kept: CapabilitySet) -> Result<(), Errno> {
    for bit in 0..CAPABILITY_BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match capability_is_in_bounding_set(capability) {
            // Beyond the last one that this kernel has.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error),
            Ok(true) if !kept.contains(capability) => {
                remove_capability_from_bounding_set(capability)?;
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

fn failed(action: &'static str) -> impl Fn(Errno) -> SandboxError {
    move |error| SandboxError::Step { action, source: io::Error::from(error) }
}
