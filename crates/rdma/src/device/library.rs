//! libibverbs and librdmacm, loaded when RDMA is first used: a program runs without them until then.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libloading::{Library as Loaded, Symbol};

use super::layout::{
    AsyncEvent, CmEvent, CmId, CompletionChannel, CompletionQueue, ConnectionParameters,
    DeviceAttributes, EventChannel, MemoryRegion, PairAttributes, PairAttributesToChange,
    QueuePair, SharedAttributes, SharedQueue, VerbsContext,
};
use crate::verbs::ProviderError;

const VERBS: &str = "libibverbs.so.1";
const MANAGER: &str = "librdmacm.so.1";
/// What loading is called in errors.
const WHAT: &str = "loading the RDMA libraries";

/// The process has given up the right to load libraries.
static IS_SEALED: AtomicBool = AtomicBool::new(false);

/// A process that gives up rights calls this when it has done so: from then on the libraries cannot be loaded, and the
/// error says that, and not that they should be installed.
pub fn seal() {
    IS_SEALED.store(true, Ordering::Relaxed);
}

macro_rules! functions {
    ($( $library:ident $name:ident($($argument:ty),*) $(-> $result:ty)?; )*) => {
        /// The functions that are used of the libraries.
        #[derive(Clone, Copy)]
        pub(super) struct Functions {
            $( pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?, )*
        }

        impl Functions {
            /// None of them: whoever calls one ends the test.
            #[cfg(test)]
            pub(super) fn none() -> Self {
                Self { $( $name: {
                    unsafe extern "C" fn missing($(_: $argument),*) $(-> $result)? {
                        eprintln!("{} is called", stringify!($name));
                        std::process::abort()
                    }
                    missing
                }, )* }
            }

            /// Looks all of them up.
            fn find(verbs: &'static Loaded, manager: &'static Loaded) -> Result<Self, ProviderError> {
                Ok(Self { $( $name: {
                    let library = functions!(@library $library verbs manager);
                    type Function = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    // SAFETY: the type is that of the function in the library's stable interface, and the library is
                    // never unloaded.
                    let symbol: Result<Symbol<'static, Function>, _> = unsafe { library.get(name) };
                    *symbol.map_err(|error| failure(error.to_string()))?
                }, )* })
            }
        }
    };
    (@library verbs $verbs:ident $manager:ident) => { $verbs };
    (@library manager $verbs:ident $manager:ident) => { $manager };
}

functions! {
    verbs ibv_alloc_pd(*mut VerbsContext) -> *mut c_void;
    verbs ibv_dealloc_pd(*mut c_void) -> c_int;
    verbs ibv_reg_mr(*mut c_void, *mut c_void, usize, c_int) -> *mut MemoryRegion;
    verbs ibv_dereg_mr(*mut MemoryRegion) -> c_int;
    verbs ibv_create_cq(*mut VerbsContext, c_int, *mut c_void, *mut CompletionChannel, c_int) -> *mut CompletionQueue;
    verbs ibv_destroy_cq(*mut CompletionQueue) -> c_int;
    verbs ibv_create_comp_channel(*mut VerbsContext) -> *mut CompletionChannel;
    verbs ibv_destroy_comp_channel(*mut CompletionChannel) -> c_int;
    verbs ibv_get_cq_event(*mut CompletionChannel, *mut *mut CompletionQueue, *mut *mut c_void) -> c_int;
    verbs ibv_ack_cq_events(*mut CompletionQueue, c_uint);
    verbs ibv_get_device_list(*mut c_int) -> *mut *mut c_void;
    verbs ibv_free_device_list(*mut *mut c_void);
    verbs ibv_create_srq(*mut c_void, *mut SharedAttributes) -> *mut SharedQueue;
    verbs ibv_destroy_srq(*mut SharedQueue) -> c_int;
    verbs ibv_get_async_event(*mut VerbsContext, *mut AsyncEvent) -> c_int;
    verbs ibv_ack_async_event(*mut AsyncEvent);
    verbs ibv_modify_qp(*mut QueuePair, *mut PairAttributesToChange, c_int) -> c_int;
    verbs ibv_query_device(*mut VerbsContext, *mut DeviceAttributes) -> c_int;
    manager rdma_create_event_channel() -> *mut EventChannel;
    manager rdma_destroy_event_channel(*mut EventChannel);
    manager rdma_create_id(*mut EventChannel, *mut *mut CmId, *mut c_void, c_int) -> c_int;
    manager rdma_destroy_id(*mut CmId) -> c_int;
    manager rdma_bind_addr(*mut CmId, *mut libc::sockaddr) -> c_int;
    manager rdma_resolve_addr(*mut CmId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
    manager rdma_resolve_route(*mut CmId, c_int) -> c_int;
    manager rdma_create_qp(*mut CmId, *mut c_void, *mut PairAttributes) -> c_int;
    manager rdma_destroy_qp(*mut CmId);
    manager rdma_listen(*mut CmId, c_int) -> c_int;
    manager rdma_migrate_id(*mut CmId, *mut EventChannel) -> c_int;
    manager rdma_connect(*mut CmId, *mut ConnectionParameters) -> c_int;
    manager rdma_accept(*mut CmId, *mut ConnectionParameters) -> c_int;
    manager rdma_reject(*mut CmId, *const c_void, u8) -> c_int;
    manager rdma_disconnect(*mut CmId) -> c_int;
    manager rdma_notify(*mut CmId, c_uint) -> c_int;
    manager rdma_get_cm_event(*mut EventChannel, *mut *mut CmEvent) -> c_int;
    manager rdma_ack_cm_event(*mut CmEvent) -> c_int;
}

/// The functions, once they are loaded.
static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// Loads the RDMA libraries, unless they are loaded, and the drivers of the devices that are there: whoever is asked for
/// RDMA finds out at once whether there is any. Gives the number of devices.
///
/// # Errors
/// When they are not installed, or the process may not load them any longer.
pub fn load_libraries() -> Result<usize, ProviderError> {
    let functions = functions()?;
    let mut count: c_int = 0;
    // Whoever lists the devices loads their drivers.
    // SAFETY: the number is written before the call returns.
    let list = unsafe { (functions.ibv_get_device_list)(&raw mut count) };
    if list.is_null() {
        return Ok(0);
    }
    // SAFETY: the list is the library's, and nothing of it is used afterwards.
    unsafe { (functions.ibv_free_device_list)(list) };
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Loads the libraries, unless they are.
///
/// # Errors
/// When they are not installed, or the process may not load them any longer.
pub(super) fn functions() -> Result<&'static Functions, ProviderError> {
    if let Some(functions) = FUNCTIONS.get() {
        return Ok(functions);
    }
    if let Some(why) =
        refusal(cfg!(target_feature = "crt-static"), IS_SEALED.load(Ordering::Relaxed))
    {
        return Err(ProviderError::new(WHAT, why.to_owned()));
    }
    let functions = load([VERBS, MANAGER])?;
    Ok(FUNCTIONS.get_or_init(|| functions))
}

/// Why the libraries may not even be looked for. A static program has a C library of its own, and those of RDMA bring the
/// machine's: with two of them in a process, it crashes or worse.
fn refusal(is_static: bool, is_sealed: bool) -> Option<&'static str> {
    if is_static {
        return Some(
            "this is the static program, which can load no libraries, so it has no RDMA; use the program of the Debian or \
             RPM package, or one built without +crt-static",
        );
    }
    is_sealed.then_some(
        "this process was started without RDMA and has given up the right to load libraries; restart the daemon with \
         --rdma, or any other program without its sandbox (--sandbox off)",
    )
}

fn load([verbs, manager]: [&str; 2]) -> Result<Functions, ProviderError> {
    let open = |name: &str| {
        // SAFETY: the libraries' initialisers do nothing that this process relies on not being done.
        let loaded = unsafe { Loaded::new(name) };
        let loaded = loaded.map(|library| &*Box::leak(Box::new(library)));
        loaded.map_err(|error| failure(reason(name, &error)))
    };
    Functions::find(open(verbs)?, open(manager)?)
}

/// What the loader says, which names the file.
fn reason(name: &str, error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    let said = source.map_or_else(|| error.to_string(), ToString::to_string);
    if said.contains(name) { said } else { format!("{name}: {said}") }
}

fn failure(why: String) -> ProviderError {
    let why = format!(
        "{why}; install Debian's packages libibverbs1, librdmacm1 (librdmacm1t64 from Debian 13 on) and ibverbs-providers"
    );
    ProviderError::new(WHAT, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let error = load(["libibverbs-that-is-not-there.so.1", MANAGER]).err().unwrap();
        let text = error.to_string();
        for word in ["libibverbs-that-is-not-there.so.1", "libibverbs1", "ibverbs-providers"] {
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn where_nothing_can_be_loaded_nobody_is_told_to_install_anything() {
        assert_eq!(refusal(false, false), None);
        let sealed = refusal(false, true).unwrap();
        assert!(sealed.contains("restart") && !sealed.contains("install"));
        // That holds in its sandbox and out of it.
        for is_sealed in [false, true] {
            let text = refusal(true, is_sealed).unwrap();
            assert!(text.contains("static") && text.contains("package"), "{text}");
            assert!(!text.contains("restart") && !text.contains("install"), "{text}");
        }
    }

    #[test]
    fn every_function_is_in_the_libraries() {
        match load([VERBS, MANAGER]) {
            Ok(_) => {}
            Err(error) if error.to_string().contains("cannot open shared object") => {
                println!("SKIPPED: not looked up: {error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
