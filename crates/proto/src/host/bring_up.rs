//! Bringing a controller up after Connect: enable, wait until ready, identify, set features.

use std::fmt;
use std::time::{Duration, Instant};

use super::ana::{AnaError, AnaLog, AnaReader};
use super::info::{ControllerInfo, InfoError, NamespaceInfo};
use super::scan::{NamespaceScan, ScanError};
use super::{AdminRequest, command};
use crate::nvme::event::{CONFIG_ANA_CHANGE, CONFIG_DISCOVERY_CHANGE, CONFIG_NAMESPACE_ATTRIBUTE};
use crate::nvme::feature::{QueueCounts, fid};
use crate::nvme::identify::cns;
use crate::nvme::property::{
    CAP, CC, CSTS, Capabilities, Configuration, ControllerStatus, PropertyAccess, PropertySize, VS,
};
use crate::nvme::{ControllerId, Cqe, NamespaceId, Status};

/// Events that every host handles: namespace attributes (8), discovery log (31).
const WANTED_EVENTS: u32 = CONFIG_NAMESPACE_ATTRIBUTE | CONFIG_DISCOVERY_CHANGE;
/// How often CSTS is read while waiting for RDY.
const READY_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The unit of CAP.TO.
const TIMEOUT_UNIT: Duration = Duration::from_millis(500);

/// What is known after Connect.
#[derive(Clone, Copy, Debug)]
pub struct BringUpConfig {
    /// CNTLID from Connect.
    pub cntlid: ControllerId,
    /// The subsystem is a discovery subsystem.
    pub discovery: bool,
    /// KATO was not 0.
    pub keep_alive: bool,
    /// I/O queues to ask for.
    pub io_queues: u16,
    /// The host knows several paths, and follows the ANA log if there is one.
    pub ana: bool,
    /// The transport is RDMA.
    pub rdma: bool,
}

impl BringUpConfig {
    /// The events to ask for.
    fn wanted_events(&self) -> u32 {
        WANTED_EVENTS | if self.ana { CONFIG_ANA_CHANGE } else { 0 }
    }
}

/// A controller that is ready for I/O.
#[derive(Clone, Debug)]
pub struct BroughtUp {
    /// Its properties.
    pub controller: ControllerInfo,
    /// Most entries of a queue (CAP.MQES + 1).
    pub max_entries: u16,
    /// I/O queues granted, at most those asked for.
    pub io_queues: u16,
    /// Asynchronous events are enabled: keep a request outstanding.
    pub events: bool,
    /// Its active namespaces.
    pub namespaces: Vec<NamespaceInfo>,
    /// Its ANA log, if the host follows it and the controller has one.
    pub ana: Option<AnaLog>,
}

/// Why a controller could not be brought up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BringUpError {
    /// A command failed.
    Refused {
        /// The request.
        what: &'static str,
        /// The answer.
        status: Status,
    },
    /// CAP.MPSMIN is more than 4 KiB.
    PageSize(u8),
    /// CSTS.CFS became 1.
    Fatal,
    /// CSTS.RDY did not become 1 within CAP.TO.
    NotReady(Duration),
    /// Identify Controller reports something that this host cannot work with.
    Info(InfoError),
    /// The namespaces could not be read.
    Scan(ScanError),
    /// The ANA log could not be read, or contradicts itself.
    Ana(AnaError),
}

impl fmt::Display for BringUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { what, status } => write!(f, "{what} failed: {status}"),
            Self::PageSize(mpsmin) => {
                write!(f, "memory pages of 2^{} bytes are needed", mpsmin + 12)
            }
            Self::Fatal => write!(f, "the controller failed (CSTS.CFS)"),
            Self::NotReady(limit) => write!(f, "the controller did not become ready in {limit:?}"),
            Self::Info(error) => write!(f, "{error}"),
            Self::Scan(error) => write!(f, "{error}"),
            Self::Ana(error) => write!(f, "ANA log: {error}"),
        }
    }
}

impl std::error::Error for BringUpError {}

impl BringUpError {
    /// Whether another attempt would fail in the same way.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Refused { status, .. } => status.is_dnr(),
            Self::PageSize(_) | Self::Info(_) => true,
            Self::Fatal | Self::NotReady(_) | Self::Scan(_) | Self::Ana(_) => false,
        }
    }
}

/// What the next completion answers.
#[derive(Debug)]
enum Step {
    Cap,
    Version,
    Enable,
    Status { give_up: Instant },
    Identify,
    Queues,
    Events,
    Scan(NamespaceScan),
    Ana(AnaReader),
    Done,
}

/// The steps from Connect to a controller that is ready for I/O.
#[derive(Debug)]
pub struct BringUp {
    config: BringUpConfig,
    step: Step,
    requested: bool,
    /// No request is made before this.
    not_before: Option<Instant>,
    cap: Capabilities,
    version: u32,
    controller: Option<ControllerInfo>,
    io_queues: u16,
    events: bool,
    namespaces: Vec<NamespaceInfo>,
    ana: Option<AnaLog>,
}

impl BringUp {
    /// Starts after Connect of the admin queue.
    #[must_use]
    pub fn new(config: BringUpConfig) -> Self {
        Self {
            config,
            step: Step::Cap,
            requested: false,
            not_before: None,
            cap: Capabilities(0),
            version: 0,
            controller: None,
            io_queues: config.io_queues,
            events: false,
            namespaces: Vec::new(),
            ana: None,
        }
    }

    /// The next command, one at a time.
    pub fn poll_request(&mut self, now: Instant) -> Option<AdminRequest> {
        if self.requested || self.not_before.is_some_and(|at| now < at) {
            return None;
        }
        let no_data = |sqe| Some(AdminRequest { sqe, receive_len: 0 });
        let request = match &mut self.step {
            Step::Cap => no_data(PropertyAccess::get(CAP, PropertySize::Eight)),
            Step::Version => no_data(PropertyAccess::get(VS, PropertySize::Four)),
            Step::Enable => no_data(PropertyAccess::set(CC, enable_value(self.cap))),
            Step::Status { .. } => no_data(PropertyAccess::get(CSTS, PropertySize::Four)),
            Step::Identify => {
                let sqe = command::identify(cns::CONTROLLER, NamespaceId(0));
                Some(AdminRequest { sqe, receive_len: 4096 })
            }
            Step::Queues => {
                let count = u32::from(self.config.io_queues);
                let counts = QueueCounts { submission: count, completion: count };
                no_data(command::set_features(fid::NUMBER_OF_QUEUES, counts.to_dword()))
            }
            Step::Events => {
                let oaes = self.controller.as_ref().map_or(0, |info| info.oaes);
                no_data(command::set_features(
                    fid::ASYNC_EVENT_CONFIG,
                    oaes & self.config.wanted_events(),
                ))
            }
            Step::Scan(scan) => scan.poll_request(),
            Step::Ana(reader) => reader.poll_request(),
            Step::Done => None,
        };
        self.requested = request.is_some();
        request
    }

    /// When [`Self::poll_request`] has a request again, if it is waiting.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.not_before
    }

    /// Takes the completion of the command that was asked for.
    ///
    /// # Errors
    /// When the controller cannot be brought up.
    pub fn handle_completion(
        &mut self,
        now: Instant,
        cqe: &Cqe,
        data: &[u8],
    ) -> Result<(), BringUpError> {
        self.requested = false;
        let must = |what| {
            let status = cqe.status;
            if status.is_success() { Ok(()) } else { Err(BringUpError::Refused { what, status }) }
        };
        match &mut self.step {
            Step::Cap => {
                must("reading CAP")?;
                self.cap = Capabilities(u64::from(cqe.dw1) << 32 | u64::from(cqe.dw0));
                if self.cap.mpsmin() > 0 {
                    return Err(BringUpError::PageSize(self.cap.mpsmin()));
                }
                self.step = Step::Version;
            }
            Step::Version => {
                must("reading VS")?;
                self.version = cqe.dw0;
                self.step = Step::Enable;
            }
            Step::Enable => {
                must("enabling the controller")?;
                self.step = Step::Status { give_up: now + ready_limit(self.cap) };
            }
            Step::Status { give_up } => {
                must("reading CSTS")?;
                let give_up = *give_up;
                self.handle_status(now, ControllerStatus(cqe.dw0), give_up)?;
            }
            Step::Identify => {
                must("Identify Controller")?;
                self.handle_identify(data)?;
            }
            Step::Queues => {
                // Old targets have no such feature; this host still asks them for queues.
                if cqe.status.is_success() {
                    self.io_queues = granted_queues(cqe.dw0).min(self.config.io_queues);
                }
                self.step = self.step_after_queues();
            }
            Step::Events => {
                self.events = cqe.status.is_success();
                self.step = self.scan_step();
            }
            Step::Scan(scan) => {
                scan.handle_completion(cqe, data).map_err(BringUpError::Scan)?;
                if let Some(namespaces) = scan.poll_done() {
                    self.namespaces = namespaces;
                    self.step = self.step_after_scan();
                }
            }
            Step::Ana(reader) => {
                reader.handle_completion(cqe, data).map_err(BringUpError::Ana)?;
                if let Some(log) = reader.poll_done() {
                    self.ana = Some(log);
                    self.step = Step::Done;
                }
            }
            Step::Done => {}
        }
        Ok(())
    }

    /// The result, once, when everything has been done.
    pub fn poll_done(&mut self) -> Option<BroughtUp> {
        if !matches!(self.step, Step::Done) {
            return None;
        }
        Some(BroughtUp {
            controller: self.controller.take()?,
            max_entries: self.cap.mqes().saturating_add(1),
            io_queues: self.io_queues,
            events: self.events,
            namespaces: std::mem::take(&mut self.namespaces),
            ana: self.ana.take(),
        })
    }

    fn handle_status(
        &mut self,
        now: Instant,
        csts: ControllerStatus,
        give_up: Instant,
    ) -> Result<(), BringUpError> {
        if csts.cfs() {
            return Err(BringUpError::Fatal);
        }
        if csts.rdy() {
            self.not_before = None;
            self.step = Step::Identify;
            return Ok(());
        }
        if now >= give_up {
            return Err(BringUpError::NotReady(ready_limit(self.cap)));
        }
        self.not_before = Some(now + READY_POLL_INTERVAL);
        Ok(())
    }

    fn handle_identify(&mut self, data: &[u8]) -> Result<(), BringUpError> {
        let mut controller = ControllerInfo::parse(data).map_err(BringUpError::Info)?;
        let config = self.config;
        controller
            .check(config.cntlid, config.discovery, config.keep_alive)
            .map_err(BringUpError::Info)?;
        if config.rdma {
            controller.adapt_to_rdma().map_err(BringUpError::Info)?;
        }
        self.controller = Some(controller);
        self.step = if config.discovery || config.io_queues == 0 {
            self.step_after_queues()
        } else {
            Step::Queues
        };
        Ok(())
    }

    fn step_after_queues(&self) -> Step {
        match &self.controller {
            Some(info) if info.oaes & self.config.wanted_events() != 0 => Step::Events,
            _ => self.scan_step(),
        }
    }

    fn scan_step(&self) -> Step {
        match &self.controller {
            Some(info) if !self.config.discovery => {
                Step::Scan(NamespaceScan::new(info.namespace_count, self.version))
            }
            _ => Step::Done,
        }
    }

    fn step_after_scan(&self) -> Step {
        let controller = self.controller.as_ref().filter(|_| self.config.ana);
        controller.and_then(AnaReader::new).map_or(Step::Done, Step::Ana)
    }
}

/// CC to enable: CSS selects the NVM command set, or all I/O command sets when CAP.CSS has only
/// its bit 6 (Base 2.0, figure 36).
fn enable_value(cap: Capabilities) -> u32 {
    let all = !cap.supports_nvm() && cap.tells_command_sets();
    let css = if all { Configuration::CSS_ALL } else { Configuration::CSS_NVM };
    Configuration::ENABLED.with_css(css).0
}

/// CAP.TO, at least one unit.
fn ready_limit(cap: Capabilities) -> Duration {
    TIMEOUT_UNIT * u32::from(cap.to().max(1))
}

/// The smaller of the submission and completion queues granted.
fn granted_queues(dw0: u32) -> u16 {
    let QueueCounts { submission, completion } = QueueCounts::from_dword(dw0);
    u16::try_from(submission.min(completion)).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::info::tests::{controller_page, namespace_page};
    use super::*;
    use crate::nvme::ana::AnaState;
    use crate::nvme::identify::IDENTIFY_LEN;
    use crate::nvme::opcode::{admin, fabrics};

    const READY: u32 = 1;
    const FATAL: u32 = 2;
    const CONFIG: BringUpConfig = BringUpConfig {
        cntlid: ControllerId(7),
        discovery: false,
        keep_alive: true,
        io_queues: 4,
        ana: false,
        rdma: false,
    };

    /// A controller: properties, identify pages, and the requests it got.
    struct Scripted {
        cap: Capabilities,
        csts: Vec<u32>,
        controller: [u8; IDENTIFY_LEN],
        queues: Result<u32, Status>,
        events: Status,
        ana_state: u8,
        log: Vec<(u8, u32)>,
    }

    impl Scripted {
        fn new() -> Self {
            Self {
                cap: Capabilities::fabrics(127, 15),
                csts: vec![0, 0, READY],
                controller: controller_page(7),
                queues: Ok(1 << 16 | 1),
                events: Status::SUCCESS,
                ana_state: 2,
                log: Vec::new(),
            }
        }

        fn answer(&mut self, request: &AdminRequest) -> (Cqe, Vec<u8>) {
            let sqe = request.sqe;
            let ok = |dw0, dw1| (Cqe { dw0, dw1, ..Cqe::default() }, Vec::new());
            let failed = |status| (Cqe { status, ..Cqe::default() }, Vec::new());
            self.log.push((sqe.opc, sqe.cdw10.get()));
            match (sqe.opc, sqe.fctype(), sqe.cdw10.get()) {
                (fabrics::OPCODE, fabrics::PROPERTY_GET, _) => match sqe.cdw11.get() {
                    CAP => ok(
                        u32::try_from(self.cap.0 & 0xffff_ffff).unwrap(),
                        u32::try_from(self.cap.0 >> 32).unwrap(),
                    ),
                    VS => ok(0x0001_0400, 0),
                    CSTS if self.csts.len() > 1 => ok(self.csts.remove(0), 0),
                    CSTS => ok(self.csts[0], 0),
                    other => panic!("property {other:x}h"),
                },
                (fabrics::OPCODE, fabrics::PROPERTY_SET, _) => {
                    assert_eq!((sqe.cdw11.get(), sqe.cdw12.get()), (CC, 0x0046_0001));
                    ok(0, 0)
                }
                (admin::IDENTIFY, _, 1) => (Cqe::default(), self.controller.to_vec()),
                (admin::IDENTIFY, _, 2) => {
                    let mut page = vec![0; IDENTIFY_LEN];
                    page[0] = 1;
                    (Cqe::default(), page)
                }
                (admin::IDENTIFY, _, 0) => (Cqe::default(), namespace_page(64).to_vec()),
                (admin::IDENTIFY, _, 3) => failed(Status::INVALID_FIELD),
                (admin::SET_FEATURES, _, 0x07) => {
                    assert_eq!(sqe.cdw11.get(), 3 << 16 | 3);
                    self.queues.map_or_else(failed, |dw0| ok(dw0, 0))
                }
                (admin::SET_FEATURES, _, 0x0b) => {
                    let ana = self.controller[76] & 8 != 0;
                    assert_eq!(sqe.cdw11.get(), if ana { 1 << 8 | 1 << 11 } else { 1 << 8 });
                    failed(self.events)
                }
                (admin::GET_LOG_PAGE, _, words) if words & 0xff == 0x0c => {
                    let mut page = vec![0; 4096];
                    page[8] = 1;
                    (page[16], page[20], page[32], page[48]) = (5, 1, self.ana_state, 1);
                    (Cqe::default(), page)
                }
                other => panic!("unexpected command {other:?}"),
            }
        }

        fn run(&mut self, config: BringUpConfig) -> Result<BroughtUp, BringUpError> {
            let mut bring_up = BringUp::new(config);
            let mut now = Instant::now();
            loop {
                if let Some(done) = bring_up.poll_done() {
                    return Ok(done);
                }
                if let Some(request) = bring_up.poll_request(now) {
                    let (cqe, data) = self.answer(&request);
                    bring_up.handle_completion(now, &cqe, &data)?;
                } else {
                    now = bring_up.poll_timeout().expect("waits for a command or for the time");
                }
            }
        }
    }

    #[test]
    fn a_controller_comes_up() {
        let up = Scripted::new().run(CONFIG).unwrap();
        assert_eq!((up.max_entries, up.io_queues, up.events), (128, 2, true));
        assert_eq!(up.namespaces.len(), 1);
        assert_eq!(up.namespaces[0].block_count, 64);
    }

    #[test]
    fn a_host_with_several_paths_reads_the_ana_log() {
        let with_ana = || {
            let mut controller = Scripted::new();
            controller.controller[76] = 0x0b;
            controller.controller[92..96].copy_from_slice(&(1u32 << 8 | 1 << 11).to_le_bytes());
            controller.controller[344] = 8;
            controller
        };
        let config = BringUpConfig { ana: true, ..CONFIG };
        let log = with_ana().run(config).unwrap().ana.unwrap();
        assert_eq!(log.state(NamespaceId(1)), Some(AnaState::NonOptimized));
        let error = Scripted { ana_state: 7, ..with_ana() }.run(config).unwrap_err();
        let text = "ANA log: group 5 has the state 7h, which does not exist";
        assert_eq!((error.to_string().as_str(), error.is_permanent()), (text, false));
        let mut without = Scripted::new();
        assert_eq!(without.run(config).unwrap().ana, None);
    }

    #[test]
    fn over_rdma_a_controller_has_keyed_sgls() {
        let up = |sgls: u32, discovery| {
            let mut controller = Scripted::new();
            controller.controller[536..540].copy_from_slice(&sgls.to_le_bytes());
            let up = controller.run(BringUpConfig { rdma: true, discovery, ..CONFIG });
            up.map(|up| up.controller.in_capsule_bytes)
        };
        let error = BringUpError::Info(InfoError::NoKeyedSgls);
        assert_eq!((up(1, false), up(1, true)), (Err(error), Err(error)));
        assert!(error.is_permanent());
        assert_eq!((up(1 | 1 << 2, false), up(1 | 1 << 2 | 1 << 20, false)), (Ok(0), Ok(8192)));
    }

    #[test]
    fn features_may_be_refused() {
        let mut controller = Scripted::new();
        controller.queues = Err(Status::INVALID_FIELD.dnr());
        controller.events = Status::INVALID_FIELD.dnr();
        let up = controller.run(CONFIG).unwrap();
        assert_eq!((up.io_queues, up.events), (4, false));
    }

    #[test]
    fn a_discovery_controller_has_no_queues_and_no_namespaces() {
        let mut controller = Scripted::new();
        controller.controller[92..96].fill(0);
        let up = controller.run(BringUpConfig { discovery: true, ..CONFIG }).unwrap();
        assert!(up.namespaces.is_empty() && !up.events);
        assert!(controller.log.iter().all(|&(opcode, _)| opcode != admin::SET_FEATURES));
    }

    #[test]
    fn a_controller_that_never_gets_ready() {
        let mut controller = Scripted::new();
        controller.csts = vec![0];
        let limit = Duration::from_millis(7500);
        assert_eq!(controller.run(CONFIG).unwrap_err(), BringUpError::NotReady(limit));
    }

    #[test]
    fn failures() {
        let mut controller = Scripted::new();
        controller.csts = vec![0, FATAL];
        assert_eq!(controller.run(CONFIG).unwrap_err(), BringUpError::Fatal);
        let mut controller = Scripted::new();
        controller.cap.0 |= 1 << 48;
        assert_eq!(controller.run(CONFIG).unwrap_err(), BringUpError::PageSize(1));
        let mut controller = Scripted::new();
        controller.controller[78] = 8;
        let error = controller.run(CONFIG).unwrap_err();
        assert!(matches!(error, BringUpError::Info(InfoError::ControllerId { .. })));
        assert!(error.is_permanent());
    }
}
