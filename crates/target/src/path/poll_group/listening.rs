//! The listeners of a core, and what it waits for on behalf of another core's listener.

use std::net::SocketAddr;
use std::sync::Arc;

use raceline_proto::nvme::ControllerId;
use raceline_reactor::socket::{ListenOptions, check_free};
use raceline_reactor::{Context, StreamProvider, Token, inheritance};

use super::{LISTENER_BIT, Listener, PollGroup, name_of};
use crate::records::names::Protocol;
use crate::records::placement::PlacementPolicy;

impl PollGroup {
    pub(super) fn listen(
        &mut self,
        cx: &mut Context<'_>,
        address: SocketAddr,
        port: (Protocol, u16),
        mut streams: Option<Arc<dyn StreamProvider>>,
    ) -> std::io::Result<SocketAddr> {
        let index = self.next_listener;
        let token = Token { owner: 0, generation: 0, index: LISTENER_BIT | index };
        let is_rdma = streams.as_ref().is_some_and(|streams| streams.is_rdma());
        if let Some(streams) = streams.as_ref().filter(|_| is_rdma) {
            let shared = Arc::downgrade(&self.core.shared);
            let is_there = move |id| {
                shared.upgrade().is_none_or(|shared| shared.has_controller(ControllerId(id)))
            };
            streams.know_controllers(address, Arc::new(is_there));
        }
        let (id, address) = match streams.as_ref().and_then(|streams| streams.listen(address)) {
            Some(listener) => {
                streams = None;
                cx.io.listen_provided(listener?, token)?
            }
            None => {
                let config = &self.core.shared.config;
                let by_cpu = config.placement == PlacementPolicy::Listener;
                let is_new = !inheritance::is_sharing();
                if by_cpu && is_new && self.core.index == 0 && address.port() != 0 {
                    check_free(address)?;
                }
                let group = by_cpu.then_some(&config.cores[..]);
                let options = ListenOptions { priority: config.socket_priority, group };
                match inheritance::take(&name_of(address, port.0, self.core.index)) {
                    Some(listener) => match cx.io.hands_over() {
                        Some(io) => io.adopt_listener(listener, token)?,
                        None => return Err(std::io::ErrorKind::Unsupported.into()),
                    },
                    None => cx.io.listen_with(address, options, token)?,
                }
            }
        };
        self.next_listener += 1;
        let io = cx.io.hands_over().filter(|_| inheritance::is_enabled());
        let copy = io.and_then(|io| io.copy_listener(id));
        let name = name_of(address, port.0, self.core.index);
        let _offer = copy.map(|copy| inheritance::offer_owned(name, copy));
        self.listeners.push(Listener { id, index, port, streams, is_rdma, _offer });
        Ok(address)
    }

    /// Waits for the news of connections that come by a listener of another core.
    #[cold]
    pub(super) fn attend(
        &mut self,
        cx: &mut Context<'_>,
        address: SocketAddr,
        port: (Protocol, u16),
        streams: &dyn StreamProvider,
    ) -> std::io::Result<()> {
        let Some(listener) = streams.attend(address, self.core.index) else { return Ok(()) };
        let index = self.next_listener;
        let token = Token { owner: 0, generation: 0, index: LISTENER_BIT | index };
        let (id, _) = cx.io.listen_provided(listener?, token)?;
        self.next_listener += 1;
        let is_rdma = streams.is_rdma();
        let listener = Listener { id, index, port, streams: None, is_rdma, _offer: None };
        self.listeners.push(listener);
        Ok(())
    }

    pub(super) fn close_listener(&mut self, cx: &mut Context<'_>, port: (Protocol, u16)) {
        if let Some(i) = self.listeners.iter().position(|l| l.port == port) {
            cx.io.close_listener(self.listeners.swap_remove(i).id);
        }
    }
}
