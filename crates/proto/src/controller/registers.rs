//! CAP, VS, CC and CSTS, and the enable, reset and shutdown that CC asks for
//! (Base 2.0, 3.1.3, 3.5 and 3.6).

use crate::nvme::Status;
use crate::nvme::property::{
    CAP, CC, CSTS, Capabilities, Configuration, ControllerStatus, PropertyAccess, PropertySize,
    VERSION_1_4, VS,
};

/// CAP.TO: a reset or an enable takes at most this long, in 500 ms.
const READY_TIMEOUT: u8 = 30;
/// CC.IOSQES of the 64-byte submission queue entry.
const IOSQES: u32 = 6;
/// CC.IOCQES of the 16-byte completion queue entry.
const IOCQES: u32 = 4;
/// CSTS.SHST: shutdown is in progress.
const SHST_OCCURRING: u32 = 1;
/// CSTS.SHST: shutdown is complete.
const SHST_COMPLETE: u32 = 2;

/// The effect of a write to CC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigurationChange {
    /// Nothing.
    Nothing,
    /// The controller is ready now.
    Enabled,
    /// The I/O queues must go; then [`Registers::finish_drain`].
    Drain,
}

/// What has to wait until the I/O queues are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drain {
    /// CC.EN went from 1 to 0: RDY follows.
    pub(crate) reset: bool,
    /// CC.SHN was set: SHST becomes "complete".
    pub(crate) shutdown: bool,
}

/// The properties.
#[derive(Debug)]
pub(crate) struct Registers {
    cap: Capabilities,
    pub(super) cc: Configuration,
    pub(super) rdy: bool,
    pub(super) cfs: bool,
    pub(super) shst: u32,
    drain: Option<Drain>,
    is_discovery: bool,
}

impl Registers {
    pub(crate) fn new(max_queue_entries: u16, is_discovery: bool) -> Self {
        let cap = Capabilities::fabrics(max_queue_entries.saturating_sub(1), READY_TIMEOUT);
        Self {
            // A discovery controller has no I/O command set to report.
            cap: if is_discovery { cap } else { cap.telling_command_sets() },
            cc: Configuration::default(),
            rdy: false,
            cfs: false,
            shst: 0,
            drain: None,
            is_discovery,
        }
    }

    pub(crate) fn status(&self) -> ControllerStatus {
        ControllerStatus::new(self.rdy, self.cfs, self.shst)
    }

    /// Property Get.
    pub(crate) fn get(&self, access: PropertyAccess) -> Result<u64, Status> {
        match (access.offset, access.size) {
            (CAP, PropertySize::Eight) => Ok(self.cap.0),
            (VS, PropertySize::Four) => Ok(VERSION_1_4.into()),
            (CC, PropertySize::Four) => Ok(self.cc.0.into()),
            (CSTS, PropertySize::Four) => Ok(self.status().0.into()),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    /// Property Set; CC is the only one that can be written.
    pub(crate) fn set(&mut self, access: PropertyAccess) -> Result<ConfigurationChange, Status> {
        match (access.offset, access.size, u32::try_from(access.value)) {
            (CC, PropertySize::Four, Ok(value)) => Ok(self.set_cc(Configuration(value))),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    fn set_cc(&mut self, cc: Configuration) -> ConfigurationChange {
        let old = std::mem::replace(&mut self.cc, cc);
        let reset = old.en() && !cc.en();
        let shutdown = old.shn() == 0 && cc.shn() != 0;
        if shutdown {
            self.shst = SHST_OCCURRING;
        }
        if let Some(drain) = &mut self.drain {
            // requests in the meantime are completed when the queues are gone
            drain.reset |= reset;
            drain.shutdown |= shutdown;
            ConfigurationChange::Nothing
        } else if reset || shutdown {
            self.drain = Some(Drain { reset, shutdown });
            ConfigurationChange::Drain
        } else if cc.en() && !old.en() {
            self.enable()
        } else {
            ConfigurationChange::Nothing
        }
    }

    /// EN went from 0 to 1. A setting that CAP does not offer is fatal (Base 2.0, figure 46). IOSQES and
    /// IOCQES may still be 0: the host may set them until its first I/O queue. A host may select all I/O
    /// command sets on a discovery controller, too, although its CAP does not offer it: it has no I/O queues.
    fn enable(&mut self) -> ConfigurationChange {
        let cc = self.cc;
        let sizes = self.is_discovery
            || matches!(cc.iosqes(), 0 | IOSQES) && matches!(cc.iocqes(), 0 | IOCQES);
        let sets = matches!(cc.css(), Configuration::CSS_NVM | Configuration::CSS_ALL);
        if cc.mps() != 0 || cc.ams() != 0 || !sets || !sizes {
            self.cfs = true;
            return ConfigurationChange::Nothing;
        }
        self.rdy = true;
        ConfigurationChange::Enabled
    }

    /// The I/O queues are gone: completes the reset, the shutdown or both.
    pub(crate) fn finish_drain(&mut self) -> Option<Drain> {
        let drain = self.drain.take()?;
        if drain.reset {
            self.rdy = false;
            self.cfs = false;
            self.shst = 0;
        }
        if drain.shutdown {
            self.shst = SHST_COMPLETE;
        }
        if drain.reset && self.cc.en() {
            self.enable();
        }
        Some(drain)
    }

    /// Whether CC.CSS selects command sets that CAP.CSS does not offer.
    pub(crate) fn selects_untold_command_sets(&self) -> bool {
        self.cc.css() == Configuration::CSS_ALL && !self.cap.tells_command_sets()
    }

    /// Fatal: CSTS.CFS.
    pub(crate) fn fail(&mut self) {
        self.cfs = true;
    }

    /// Whether a reset or a shutdown waits for the I/O queues.
    pub(crate) fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Whether a shutdown has completed.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.shst == SHST_COMPLETE
    }

    /// Whether an I/O queue may connect.
    pub(crate) fn takes_io_queues(&self) -> bool {
        self.rdy && !self.cfs && self.shst == 0 && self.drain.is_none()
    }

    /// Whether CC.IOSQES and CC.IOCQES are the entry sizes that this controller uses.
    pub(crate) fn entry_sizes_are_right(&self) -> bool {
        self.cc.iosqes() == IOSQES && self.cc.iocqes() == IOCQES
    }
}
