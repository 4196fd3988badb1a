//! Intel Data Streaming Accelerator: through the idxd driver's character devices, or emulated.
//!
//! [`DsaEngine`] and [`EmulatedEngine`] are engines of `raceline-accel`, whose table does not know them:
//! the program that wants one gives it to [`raceline_accel::Framework::new`].
//!
//! [`descriptor`] is the published format, [`discover`] finds work queues, [`portal`] is the door
//! into one, [`emulated`] a device made of a thread, and [`queue`] one core's queue to any of them. No
//! hardware has run this so far; docs/ACCEL.md says what has been run on what.
//!
//! ```
//! use std::sync::Arc;
//! use raceline_accel::{Framework, OpCode};
//! use raceline_dsa::{EmulatedEngine, emulated::EmulatedConfig};
//!
//! let engine = EmulatedEngine::start(EmulatedConfig::default(), 1)?;
//! let framework = Framework::new(vec![Arc::new(engine)])?;
//! framework.assign(OpCode::Crc32c, "dsa_emulated")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod descriptor;
pub mod discover;
pub mod emulated;
pub mod portal;
pub mod queue;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use raceline_accel::{Engine, EngineQueue, OpSet};

use crate::discover::{DiscoverError, Mode, Roots, WorkQueue};
use crate::emulated::{EmulatedConfig, EmulatedDevice};
use crate::portal::{OpenWorkQueue, PortalError};
use crate::queue::{DEPTH, DsaQueue};

/// The engine on hardware.
#[derive(Debug)]
pub struct DsaEngine {
    roots: Roots,
    queues: Vec<WorkQueue>,
    /// Beside `queues`: those that a core has needed.
    opened: Mutex<Vec<Option<OpenWorkQueue>>>,
    cores: usize,
}

impl DsaEngine {
    /// The engine with all work queues that this machine has for user space, for `cores` cores. The room
    /// of dedicated work queues is divided between these.
    ///
    /// # Errors
    /// There is no such work queue; the error says what to configure.
    pub fn discover(roots: Roots, cores: usize) -> Result<Self, DiscoverError> {
        let queues = discover::discover(&roots)?;
        let opened = Mutex::new(queues.iter().map(|_| None).collect());
        Ok(Self { roots, queues, opened, cores: cores.max(1) })
    }

    /// The work queues.
    #[must_use]
    pub fn work_queues(&self) -> &[WorkQueue] {
        &self.queues
    }
}

impl Engine for DsaEngine {
    fn name(&self) -> &'static str {
        "dsa"
    }

    fn operations(&self) -> OpSet {
        // A queue that lacks one says so in its capabilities.
        queue::DSA_OPERATIONS
    }

    fn open_queue(&self, cpu: Option<usize>) -> io::Result<Box<dyn EngineQueue>> {
        let node = cpu.and_then(|cpu| discover::node_of_core(&self.roots, cpu));
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reasons = Vec::new();
        for index in discover::nearest(&self.queues, node) {
            match open(&self.queues[index], &mut opened[index], self.cores) {
                Ok(queue) => return Ok(Box::new(queue)),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(io::Error::other(reasons.join("; ")))
    }
}

/// A queue to this work queue, which is opened if it is not.
fn open(
    queue: &WorkQueue,
    opened: &mut Option<OpenWorkQueue>,
    cores: usize,
) -> Result<DsaQueue, PortalError> {
    if opened.is_none() {
        *opened = Some(OpenWorkQueue::open(queue)?);
    }
    let open = opened
        .as_ref()
        .ok_or_else(|| PortalError::Exhausted { queue: queue.name.clone(), depth: queue.depth })?;
    let portal = open.portal(window(queue, cores))?;
    Ok(DsaQueue::new(portal, queue, DEPTH))
}

/// How many descriptors one of `cores` cores may have in a work queue.
fn window(queue: &WorkQueue, cores: usize) -> usize {
    match queue.mode {
        Mode::Dedicated => queue.depth.div_ceil(cores.max(1)),
        Mode::Shared => queue.depth,
    }
}

/// The engine on an [`EmulatedDevice`], for tests and for trying out.
#[derive(Clone, Debug)]
pub struct EmulatedEngine {
    device: Arc<EmulatedDevice>,
    cores: usize,
}

impl EmulatedEngine {
    /// Starts a device for `cores` cores.
    ///
    /// # Errors
    /// The kernel gives no thread.
    pub fn start(config: EmulatedConfig, cores: usize) -> io::Result<Self> {
        Ok(Self { device: Arc::new(EmulatedDevice::start(config)?), cores: cores.max(1) })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &EmulatedDevice {
        &self.device
    }
}

impl Engine for EmulatedEngine {
    fn name(&self) -> &'static str {
        "dsa_emulated"
    }

    fn operations(&self) -> OpSet {
        queue::DSA_OPERATIONS
    }

    fn open_queue(&self, _cpu: Option<usize>) -> io::Result<Box<dyn EngineQueue>> {
        let queue = self.device.work_queue();
        let portal = self.device.portal(window(&queue, self.cores)).ok_or_else(|| {
            let (queue, depth) = (queue.name.clone(), queue.depth);
            io::Error::other(PortalError::Exhausted { queue, depth })
        })?;
        Ok(Box::new(DsaQueue::new(Box::new(portal), &queue, DEPTH)))
    }
}
