//! What the kernel says of a device unasked: that a queue or the device has failed, or that a port is down.
//!
//! librdmacm has one context of a device for all its users in this process, and that has one descriptor for this news. Whoever
//! reads it gives a copy to each user, and acknowledges it only then: a queue is not destroyed before.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::layout::{AsyncEvent, VerbsContext};
use super::{RdmaDevice, removal};
use crate::verbs::{ConnectionId, Event, ProviderError};

/// Names of `enum ibv_event_type`.
pub(super) mod kind {
    pub(in super::super) const CQ_ERR: u32 = 0;
    pub(in super::super) const QP_FATAL: u32 = 1;
    pub(in super::super) const QP_REQ_ERR: u32 = 2;
    pub(in super::super) const QP_ACCESS_ERR: u32 = 3;
    pub(in super::super) const COMM_EST: u32 = 4;
    pub(in super::super) const DEVICE_FATAL: u32 = 8;
    pub(in super::super) const PORT_ACTIVE: u32 = 9;
    pub(in super::super) const PORT_ERR: u32 = 10;
    pub(in super::super) const SRQ_ERR: u32 = 14;
    pub(in super::super) const QP_LAST_WQE_REACHED: u32 = 16;
}

/// News, and of which object: the address of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Alarm {
    kind: u32,
    of: usize,
}

/// Where a user of a device gets its copies.
#[derive(Debug)]
pub(super) struct Mailbox {
    alarms: Mutex<Vec<Alarm>>,
    bell: UnixStream,
    ringer: UnixStream,
}

impl Mailbox {
    fn new() -> std::io::Result<Self> {
        let (bell, ringer) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ringer.set_nonblocking(true)?;
        Ok(Self { alarms: Mutex::default(), bell, ringer })
    }

    fn put(&self, alarm: Alarm) {
        lock(&self.alarms).push(alarm);
        self.ring();
    }

    fn ring(&self) {
        // If it is full, it rings already.
        let _ = (&self.ringer).write(&[1]);
    }

    fn take(&self) -> Vec<Alarm> {
        // An error means that nobody has rung.
        while matches!((&self.bell).read(&mut [0; 64]), Ok(count) if count > 0) {}
        std::mem::take(&mut *lock(&self.alarms))
    }
}

/// The users of each device, by the address of its context.
static USERS: Mutex<BTreeMap<usize, Vec<Weak<Mailbox>>>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The users of a device that are left.
fn users_of(
    all: &mut BTreeMap<usize, Vec<Weak<Mailbox>>>,
    context: *mut VerbsContext,
) -> &mut Vec<Weak<Mailbox>> {
    all.retain(|_, users| {
        users.retain(|user| user.strong_count() > 0);
        !users.is_empty()
    });
    all.entry(context.addr()).or_default()
}

impl RdmaDevice {
    /// Gets news of the device from here on. Gives the descriptors that are readable when there are some.
    pub(super) fn open_alarms(&mut self) -> Result<[RawFd; 2], ProviderError> {
        let failed = |error: std::io::Error| {
            ProviderError::new("waiting for an RDMA device", error.to_string())
        };
        let mailbox = Arc::new(Mailbox::new().map_err(failed)?);
        let bell = mailbox.bell.as_raw_fd();
        users_of(&mut lock(&USERS), self.context).push(Arc::downgrade(&mailbox));
        self.mailbox = Some(mailbox);
        // SAFETY: the context is alive.
        let descriptor = unsafe { (*self.context).async_fd };
        super::news::set_nonblocking(descriptor)?;
        Ok([descriptor, bell])
    }

    /// Takes the news of the device, for all its users and for this one.
    pub(super) fn take_alarms(&mut self) {
        while self.read_alarm() {}
        self.take_mail();
    }

    /// Takes what this user was given, and has itself woken for what follows from it.
    pub(super) fn keep_mail(&mut self) {
        self.take_mail();
        if let Some(mailbox) = self.mailbox.as_ref().filter(|_| !self.pending.is_empty()) {
            mailbox.ring();
        }
    }

    /// Takes what this user was given.
    fn take_mail(&mut self) {
        let mail = self.mailbox.as_ref().map(|mailbox| mailbox.take());
        for alarm in mail.into_iter().flatten() {
            self.heed(alarm);
        }
    }

    /// Reads one of the kernel's, and gives it to all users.
    fn read_alarm(&mut self) -> bool {
        if self.is_deaf {
            return false;
        }
        let mut event = AsyncEvent::default();
        // SAFETY: the context is alive, and its descriptor does not block.
        let failed = unsafe { (self.functions.ibv_get_async_event)(self.context, &raw mut event) };
        if failed != 0 {
            if std::io::Error::last_os_error().kind() != std::io::ErrorKind::WouldBlock {
                self.stop_listening_to_alarms();
            }
            return false;
        }
        let alarm = Alarm { kind: event.kind, of: event.element };
        self.log_alarm(alarm);
        let mut all = lock(&USERS);
        for user in users_of(&mut all, self.context).iter().filter_map(Weak::upgrade) {
            user.put(alarm);
        }
        drop(all);
        // SAFETY: each event is acknowledged once; its object is alive until then.
        unsafe { (self.functions.ibv_ack_async_event)(&raw mut event) };
        true
    }

    /// The descriptor has nothing more to say, and would be readable for ever.
    fn stop_listening_to_alarms(&mut self) {
        self.is_deaf = true;
        // SAFETY: the context is alive.
        let descriptor = unsafe { (*self.context).async_fd };
        if let Some(news) = &self.news {
            // An error means that it is not watched.
            let _ = news.forget_raw(descriptor);
        }
    }

    /// What concerns all users is logged by the one who reads it. The log limits what is repeated.
    fn log_alarm(&self, alarm: Alarm) {
        let (device, port) = (&self.name, alarm.of & 0xff);
        match alarm.kind {
            kind::DEVICE_FATAL => tracing::error!(device, "the RDMA device has failed"),
            kind::PORT_ERR => tracing::warn!(device, port, "a port of the RDMA device is down"),
            kind::PORT_ACTIVE => tracing::info!(device, port, "a port of the RDMA device is up"),
            other => tracing::debug!(device, event = other, "the RDMA device has news"),
        }
    }

    /// What news mean for this user: errors end what they are of.
    fn heed(&mut self, alarm: Alarm) {
        let device = &self.name;
        match alarm.kind {
            kind::CQ_ERR if alarm.of == self.completions.addr() => {
                tracing::error!(
                    device,
                    "a completion queue has overflowed or failed: its queues end"
                );
                self.fail();
            }
            kind::SRQ_ERR if alarm.of == self.shared.addr() => {
                tracing::error!(device, "a shared receive queue has failed: its queues end");
                self.fail();
            }
            kind::DEVICE_FATAL => {
                self.stop_listening_to_alarms();
                self.fail();
            }
            kind::QP_FATAL | kind::QP_REQ_ERR | kind::QP_ACCESS_ERR => {
                let Some(connection) = self.connections.by_pair(alarm.of) else { return };
                let peer = self.peer_of(connection).map(|peer| peer.to_string());
                let what = match alarm.kind {
                    kind::QP_REQ_ERR => "its peer sent what it does not take",
                    kind::QP_ACCESS_ERR => "its peer reached for memory that it may not reach",
                    _ => "the device has failed it",
                };
                tracing::warn!(device, peer, what, "an RDMA queue ends");
                self.pending.push_back(Event::Disconnected(connection));
            }
            kind::COMM_EST => {
                if let Some(connection) = self.connections.by_pair(alarm.of) {
                    self.notify(connection, alarm.kind);
                }
            }
            kind::QP_LAST_WQE_REACHED => {
                let Some(connection) = self.connections.by_pair(alarm.of) else { return };
                self.pending.push_back(Event::ReceivesEnded(connection));
            }
            _ => {}
        }
    }

    /// Nothing can be done with the device any longer, as after its removal.
    fn fail(&mut self) {
        for connection in self.connections.all() {
            self.pending.push_back(Event::DeviceRemoved(connection));
        }
        self.pending.push_back(Event::DeviceRemoved(ConnectionId::NOBODY));
    }

    /// The context of an identifier that is alive: it may be another device's.
    pub(super) fn note_removal(&self, context: *mut VerbsContext) -> bool {
        if context.is_null() {
            return false;
        }
        removal::note(context);
        context == self.context
    }
}

#[cfg(test)]
mod tests {
    use super::super::stub::{alarm, open, stub};
    use super::*;
    use crate::verbs::{DomainId, PairConfig, Provider};
    use crate::waiting::WaitingDevice;

    fn pair(device: &mut RdmaDevice) -> (ConnectionId, usize) {
        stub(|stub| stub.inline = 64);
        let id = device.create_id().unwrap();
        let connection = device.connections.add(id);
        let config = PairConfig {
            domain: DomainId::OWN,
            sends: 8,
            receives: 8,
            shares_receives: false,
            inline_bytes: 0,
        };
        device.make_pair(connection, &config).unwrap();
        (connection, device.pair(connection).unwrap().addr())
    }

    fn events(device: &mut RdmaDevice) -> Vec<Event> {
        device.arm();
        std::iter::from_fn(|| device.next_event()).collect()
    }

    #[test]
    fn the_error_of_a_queue_ends_that_queue_whoever_reads_it() {
        let (mut one, mut other) = (open(), open());
        let (mine, address) = pair(&mut one);
        let (_, _) = pair(&mut one);
        for (n, error) in
            [kind::QP_FATAL, kind::QP_REQ_ERR, kind::QP_ACCESS_ERR].into_iter().enumerate()
        {
            alarm(error, address);
            alarm(kind::QP_LAST_WQE_REACHED, address);
            assert_eq!(events(&mut other), [], "it has another queue");
            assert_eq!(stub(|stub| stub.acknowledged), 2 * (n + 1));
            let said = [Event::Disconnected(mine), Event::ReceivesEnded(mine)];
            assert_eq!(events(&mut one), said);
        }
        // Nobody ends a queue for what was said of an earlier one at the same address.
        alarm(kind::QP_FATAL, address);
        other.arm();
        one.destroy(mine);
        assert_eq!(events(&mut one), []);
    }

    #[test]
    fn the_manager_is_told_that_a_message_has_come() {
        let mut device = open();
        let (connection, address) = pair(&mut device);
        alarm(kind::COMM_EST, address);
        assert_eq!(events(&mut device), [], "the manager says it in its own words");
        assert_eq!(stub(|stub| std::mem::take(&mut stub.notified)), [kind::COMM_EST]);
        device.destroy(connection);
        alarm(kind::COMM_EST, address);
        assert_eq!(events(&mut device), []);
        assert_eq!(stub(|stub| stub.notified.len()), 0, "the queue pair is no more");
    }

    #[test]
    fn the_error_of_a_device_is_that_of_all_its_users() {
        let (mut one, mut other) = (open(), open());
        let (mine, _) = pair(&mut one);
        alarm(kind::CQ_ERR, other.completions.addr());
        assert_eq!(events(&mut one), []);
        assert_eq!(events(&mut other), [Event::DeviceRemoved(ConnectionId::NOBODY)]);
        alarm(kind::PORT_ERR, 1);
        alarm(kind::DEVICE_FATAL, 0);
        let nobody = Event::DeviceRemoved(ConnectionId::NOBODY);
        assert_eq!(events(&mut one), [Event::DeviceRemoved(mine), nobody.clone()]);
        assert_eq!(events(&mut other), [nobody]);
        assert_eq!(stub(|stub| stub.acknowledged), 3);
    }
}
