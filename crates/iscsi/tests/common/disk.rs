//! A driver of the target's end for tests: one RAM disk, everything at once, bytes in and bytes out.

use std::collections::VecDeque;

use raceline_crc32c::Crc32c;
use raceline_iscsi::FatalError;
use raceline_iscsi::names::Name;
use raceline_iscsi::pdu::{LoginStatus, LogoutResponseCode, ScsiCommand, TmfResponseCode};
use raceline_iscsi::target::{
    Admission, Authentication, Credentials, DataFault, Event, Finish, Referenced, Residual, Status,
    TargetConfig, TargetConnection, TargetList, TargetPortal, TargetsWanted, TaskId,
};

/// Bytes of a block.
pub(crate) const BLOCK: usize = 512;
/// Most bytes of a write.
const MAX_WRITE: u32 = 16 << 20;
/// The name of the target.
pub(crate) const TARGET: &str = "iqn.2026-11.test.raceline:disk";

/// What the tests set.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) config: TargetConfig,
    pub(crate) window: u16,
    pub(crate) authentication: Authentication,
    /// CHAP_N and what belongs to it.
    pub(crate) accounts: Vec<(String, Credentials)>,
    /// More targets in the list of targets.
    pub(crate) extra_targets: usize,
    /// The portal in the list of targets.
    pub(crate) portal: std::net::SocketAddr,
    /// Where initiators are sent, and whether for good.
    pub(crate) redirect: Option<(&'static str, bool)>,
    /// Reads end in a SCSI Response, not in the last Data-In.
    pub(crate) responses: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            config: TargetConfig::default(),
            window: 64,
            authentication: Authentication::None,
            accounts: Vec::new(),
            extra_targets: 0,
            portal: ([127, 0, 0, 1], 3260).into(),
            redirect: None,
            responses: false,
        }
    }
}

/// A command whose data are coming.
struct Pending {
    command: ScsiCommand,
    data: Vec<u8>,
    received: u32,
    asked: u32,
    fault: Option<DataFault>,
}

/// The target's end with a disk behind it.
pub(crate) struct Disk {
    pub(crate) target: TargetConnection,
    pub(crate) data: Vec<u8>,
    setup: Setup,
    pending: Vec<Option<Pending>>,
    /// Commands that are held back: they end when they are let go.
    pub(crate) hold: bool,
    pub(crate) held: VecDeque<(TaskId, ScsiCommand)>,
    pub(crate) pongs: usize,
    pub(crate) commands: usize,
    pub(crate) closing: bool,
}

impl Disk {
    pub(crate) fn new(setup: Setup, blocks: usize) -> Self {
        let target = TargetConnection::new(setup.config);
        Self {
            target,
            data: vec![0; blocks * BLOCK],
            setup,
            pending: Vec::new(),
            hold: false,
            held: VecDeque::new(),
            pongs: 0,
            commands: 0,
            closing: false,
        }
    }

    /// Takes input; appends what the target sends.
    pub(crate) fn feed(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Result<(), FatalError> {
        // Data whose place is known land there, as a socket would receive them.
        if let Some(wanted) = self.target.payload_wanted() {
            let (bytes, rest) = input.split_at(input.len().min(wanted.len as usize));
            let pending = self.pending[wanted.dest.index()].as_mut().expect("a command with data");
            let offset = wanted.offset as usize;
            pending.data[offset..offset + bytes.len()].copy_from_slice(bytes);
            self.target.payload_received(bytes.len());
            input = rest;
        }
        loop {
            match self.target.receive(&mut input) {
                Ok(Some(event)) => {
                    if let Err(error) = self.handle(event, out) {
                        self.target.terminate(&error, out);
                        self.closing = true;
                        return Err(error);
                    }
                }
                Ok(None) => {
                    self.closing |= self.target.is_closing();
                    return Ok(());
                }
                Err(error) => {
                    self.target.terminate(&error, out);
                    self.closing = true;
                    return Err(error);
                }
            }
        }
    }

    fn handle(&mut self, event: Event<'_>, out: &mut Vec<u8>) -> Result<(), FatalError> {
        match event {
            Event::Answer => self.target.answer(out),
            Event::Login => self.login(),
            Event::Credentials => {
                let name = self.target.chap_name().unwrap_or_default();
                let account = self.setup.accounts.iter().find(|(account, _)| account == name);
                let credentials = account.map(|(_, credentials)| credentials.clone());
                self.target.credentials(credentials.as_ref());
            }
            Event::Establish => self.target.establish(7),
            Event::Command { task, command, immediate, unsolicited } => {
                self.commands += 1;
                self.begin(task, command, immediate + unsolicited, out);
            }
            Event::Data { task, offset, bytes } => {
                let pending = self.pending[task.index()].as_mut().expect("a command with data");
                let offset = offset as usize;
                pending.data[offset..offset + bytes.len()].copy_from_slice(bytes);
            }
            Event::DataEnd { task, offset, len, digest, sequence_end } => {
                let pending = self.pending[task.index()].as_mut().expect("a command with data");
                let range = offset as usize..(offset + len) as usize;
                if digest.is_some_and(|digest| !digest.is_right(&pending.data[range])) {
                    self.target.data_digest_wrong(task, out)?;
                    self.fail(task, DataFault::Digest, out);
                    return Ok(());
                }
                pending.received = offset + len;
                if sequence_end {
                    self.go_on(task, out);
                }
            }
            Event::DataFault { task, fault } => self.fail(task, fault, out),
            Event::TaskManagement { task, request } => {
                let response = match request.referenced {
                    Referenced::Task(victim) => {
                        self.held.retain(|(held, _)| *held != victim);
                        self.pending[victim.index()] = None;
                        self.target.abort(victim);
                        TmfResponseCode::Complete
                    }
                    Referenced::None | Referenced::NeverCame => TmfResponseCode::Complete,
                    Referenced::Unknown => TmfResponseCode::NoTask,
                };
                self.target.tmf_response(task, response, out);
            }
            Event::SendTargets => self.send_targets(),
            Event::Logout(_) => {
                self.target.logout_response(LogoutResponseCode::Closed, out);
                self.closing = true;
            }
            Event::Pong => self.pongs += 1,
        }
        Ok(())
    }

    fn login(&mut self) {
        let identity = self.target.identity().expect("known at a login");
        let wrong = identity.target_name.as_ref().is_some_and(|name| name.as_str() != TARGET);
        if wrong {
            return self.target.refuse(LoginStatus::NOT_FOUND);
        }
        if let Some((address, permanently)) = self.setup.redirect {
            return self.target.redirect(permanently, address);
        }
        self.target.admit(Admission {
            command_window: self.setup.window,
            portal_group_tag: 1,
            target_alias: Some("test disk".to_owned()),
            authentication: self.setup.authentication.clone(),
        });
    }

    fn send_targets(&mut self) {
        let mut list = TargetList::default();
        let portal = TargetPortal { address: self.setup.portal, portal_group_tag: 1 };
        let wanted = self.target.targets_wanted().cloned();
        let more = if wanted == Some(TargetsWanted::All) { self.setup.extra_targets } else { 0 };
        list.push(&Name::new(TARGET).expect("a name"), [portal]);
        for number in 0..more {
            list.push(&Name::new(&format!("{TARGET}-{number}")).expect("a name"), [portal]);
        }
        self.target.send_targets(list);
    }

    /// Begins a command; `announced` bytes of data come by themselves.
    fn begin(&mut self, task: TaskId, command: ScsiCommand, announced: u32, out: &mut Vec<u8>) {
        if self.pending.len() < self.target.task_slots() {
            self.pending.resize_with(self.target.task_slots(), || None);
        }
        if command.writes() && command.edtl > MAX_WRITE {
            self.check(task, 5, 0x1a, out);
        } else if command.writes() && command.edtl > 0 {
            let data = vec![0; command.edtl as usize];
            let pending = Pending { command, data, received: 0, asked: announced, fault: None };
            self.pending[task.index()] = Some(pending);
            if announced == 0 {
                self.go_on(task, out);
            }
        } else if self.hold {
            self.held.push_back((task, command));
        } else {
            self.execute(task, &command, &[], out);
        }
    }

    /// Asks for what is missing, or executes the command.
    fn go_on(&mut self, task: TaskId, out: &mut Vec<u8>) {
        let parameters = *self.target.parameters();
        let pending = self.pending[task.index()].as_mut().expect("a command with data");
        let edtl = pending.command.edtl;
        let mut outstanding = (pending.asked - pending.received).div_ceil(parameters.max_burst_len);
        while pending.asked < edtl && outstanding < u32::from(parameters.max_outstanding_r2t) {
            let len = (edtl - pending.asked).min(parameters.max_burst_len);
            self.target.r2t(task, pending.asked, len, out);
            pending.asked += len;
            outstanding += 1;
        }
        if pending.received == edtl {
            let pending = self.pending[task.index()].take().expect("a command with data");
            if self.hold {
                self.held.push_back((task, pending.command));
                return;
            }
            self.execute(task, &pending.command, &pending.data, out);
        }
    }

    fn fail(&mut self, task: TaskId, fault: DataFault, out: &mut Vec<u8>) {
        if let Some(pending) = &mut self.pending[task.index()] {
            pending.fault = Some(fault);
        }
        self.pending[task.index()] = None;
        let sense = fault.sense();
        let status = Status { status: 2, residual: Residual::None, sense: &sense };
        self.target.response(task, &status, out);
    }

    /// Lets the commands go that were held.
    pub(crate) fn release(&mut self, out: &mut Vec<u8>) {
        while let Some((task, command)) = self.held.pop_front() {
            self.execute(task, &command, &[], out);
        }
    }

    /// Executes a command, whose data are all there.
    fn execute(&mut self, task: TaskId, command: &ScsiCommand, data: &[u8], out: &mut Vec<u8>) {
        let cdb = &command.cdb;
        let (lba, blocks) = match cdb[0] {
            0x88 | 0x8a => (
                u64::from_be_bytes(cdb[2..10].try_into().expect("8 bytes")),
                u32::from_be_bytes(cdb[10..14].try_into().expect("4 bytes")),
            ),
            _ => (
                u64::from(u32::from_be_bytes(cdb[2..6].try_into().expect("4 bytes"))),
                u32::from(u16::from_be_bytes(cdb[7..9].try_into().expect("2 bytes"))),
            ),
        };
        let start = usize::try_from(lba.min(1 << 40)).expect("64 bits") * BLOCK;
        let len = blocks as usize * BLOCK;
        match cdb[0] {
            0x28 | 0x88 if start + len <= self.data.len() => {
                let bytes = self.data[start..start + len].to_vec();
                self.send(task, command, &bytes, out);
            }
            0x2a | 0x8a if start + len <= self.data.len() => {
                let count = len.min(data.len());
                self.data[start..start + count].copy_from_slice(&data[..count]);
                let residual = Residual::between(command.edtl, len as u64);
                self.target.response(task, &Status { residual, ..Status::default() }, out);
            }
            0x28 | 0x88 | 0x2a | 0x8a => self.check(task, 5, 0x21, out),
            0x00 | 0x35 => self.target.response(task, &Status::default(), out),
            0x12 if cdb[1] & 1 == 0 => {
                let mut inquiry = [0x20; 36];
                inquiry[..8].copy_from_slice(&[0, 0, 6, 0x12, 31, 0, 0, 2]);
                inquiry[8..16].copy_from_slice(b"RACELINE");
                inquiry[16..26].copy_from_slice(b"TEST DISK ");
                let allocated = usize::from(u16::from_be_bytes([cdb[3], cdb[4]]));
                self.send(task, command, &inquiry[..allocated.min(36)], out);
            }
            0x25 => {
                let last = u32::try_from(self.data.len() / BLOCK - 1).expect("a small disk");
                let mut capacity = [0; 8];
                capacity[..4].copy_from_slice(&last.to_be_bytes());
                capacity[6] = 2;
                self.send(task, command, &capacity, out);
            }
            0x9e => {
                let mut capacity = [0; 32];
                let last = (self.data.len() / BLOCK - 1) as u64;
                capacity[..8].copy_from_slice(&last.to_be_bytes());
                capacity[10] = 2;
                self.send(task, command, &capacity, out);
            }
            0xa0 => {
                let mut luns = [0; 16];
                luns[3] = 8;
                self.send(task, command, &luns, out);
            }
            0x1a => self.send(task, command, &[3, 0, 0, 0], out),
            _ => self.check(task, 5, 0x20, out),
        }
    }

    fn check(&mut self, task: TaskId, key: u8, asc: u8, out: &mut Vec<u8>) {
        let mut sense = [0; 18];
        (sense[0], sense[2], sense[7], sense[12]) = (0x70, key, 10, asc);
        let status = Status { status: 2, residual: Residual::None, sense: &sense };
        self.target.response(task, &status, out);
    }

    /// Sends data of a read and ends it.
    fn send(&mut self, task: TaskId, command: &ScsiCommand, data: &[u8], out: &mut Vec<u8>) {
        let residual = Residual::between(command.edtl, data.len() as u64);
        let data = &data[..data.len().min(command.edtl as usize)];
        if data.is_empty() {
            return self.target.response(task, &Status { residual, ..Status::default() }, out);
        }
        let finish = (!self.setup.responses).then_some(Finish { status: 0, residual });
        let mut offset = 0;
        while offset < data.len() {
            let left = u32::try_from(data.len() - offset).expect("small");
            let at = u32::try_from(offset).expect("small");
            let piece = self.target.data_in(task, at, left, finish, out);
            let bytes = &data[offset..offset + piece.len as usize];
            out.extend_from_slice(bytes);
            let mut crc = Crc32c::new();
            crc.update(bytes);
            if piece.trailer > 0 {
                self.target.data_trailer(piece.len, crc, out);
            }
            offset += bytes.len();
        }
        if finish.is_none() {
            self.target.response(task, &Status { residual, ..Status::default() }, out);
        }
    }
}
