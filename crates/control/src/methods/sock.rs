//! `sock_*`: options of sockets.

use serde::Deserialize;
use serde_json::json;

use crate::error::RpcError;
use crate::manager::catalogue::{Entry, Section};
use crate::manager::options::{SOCKET_KINDS, SocketOptions, TLS_KIND, option_key};
use crate::method::{Call, Registry, States};
use crate::params::{NoParams, flag_or_number, refuse};

pub(super) fn register(registry: &mut Registry) {
    registry.read("sock_impl_get_options", States::Both, get_options);
    registry.change("sock_impl_set_options", States::Startup, set_options);
    registry.read("sock_get_default_impl", States::Both, get_default);
    registry.change("sock_set_default_impl", States::Startup, set_default);
}

/// The greatest value of enable_placement_id that SPDK knows.
const MAX_PLACEMENT: u32 = 3;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    impl_name: String,
}

fn check_kind(name: &str) -> Result<(), RpcError> {
    let known = SOCKET_KINDS.map(|(known, _)| known);
    if known.contains(&name) {
        return Ok(());
    }
    let name = name.escape_debug();
    Err(RpcError::invalid_params(format!("impl_name `{name}` is none of {}", known.join(", "))))
}

fn check_kind_with_options(name: &str) -> Result<(), RpcError> {
    if name == TLS_KIND { Ok(()) } else { check_kind(name) }
}

fn get_options(call: &Call<'_>, params: Kind) -> Result<serde_json::Value, RpcError> {
    check_kind_with_options(&params.impl_name)?;
    let options = call.manager.model().socket_options(&params.impl_name);
    let mut text = json!(options);
    if let Some(members) = text.as_object_mut() {
        members.shift_remove("impl_name");
    }
    Ok(text)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetOptions {
    impl_name: String,
    recv_buf_size: Option<u32>,
    send_buf_size: Option<u32>,
    enable_recv_pipe: Option<bool>,
    enable_quickack: Option<bool>,
    #[serde(default, deserialize_with = "flag_or_number")]
    enable_placement_id: Option<u32>,
    /// An older parameter, which stood for both of the next two.
    enable_zerocopy_send: Option<bool>,
    enable_zerocopy_send_server: Option<bool>,
    enable_zerocopy_send_client: Option<bool>,
    zerocopy_threshold: Option<u32>,
    tls_version: Option<u32>,
    enable_ktls: Option<bool>,
}

fn set_options(call: &Call<'_>, params: SetOptions) -> Result<bool, RpcError> {
    check_kind_with_options(&params.impl_name)?;
    refuse(&[
        ("enable_ktls", params.enable_ktls == Some(true) && params.impl_name != TLS_KIND),
        ("tls_version", params.tls_version.is_some_and(|version| version != 0)),
    ])?;
    if params.enable_placement_id.is_some_and(|id| id > MAX_PLACEMENT) {
        let detail = format!("enable_placement_id must be 0 to {MAX_PLACEMENT}");
        return Err(RpcError::invalid_params(detail));
    }
    call.manager.change(|change| {
        let old = change.model().socket_options(&params.impl_name);
        let both = params.enable_zerocopy_send;
        let (server, client) = (
            params.enable_zerocopy_send_server.or(both),
            params.enable_zerocopy_send_client.or(both),
        );
        let options = SocketOptions {
            recv_buf_size: params.recv_buf_size.unwrap_or(old.recv_buf_size),
            send_buf_size: params.send_buf_size.unwrap_or(old.send_buf_size),
            enable_recv_pipe: params.enable_recv_pipe.unwrap_or(old.enable_recv_pipe),
            enable_quickack: params.enable_quickack.unwrap_or(old.enable_quickack),
            enable_placement_id: params.enable_placement_id.unwrap_or(old.enable_placement_id),
            enable_zerocopy_send_server: server.unwrap_or(old.enable_zerocopy_send_server),
            enable_zerocopy_send_client: client.unwrap_or(old.enable_zerocopy_send_client),
            zerocopy_threshold: params.zerocopy_threshold.unwrap_or(old.zerocopy_threshold),
            enable_ktls: params.enable_ktls.unwrap_or(old.enable_ktls),
            ..old
        };
        let entry = Entry::new(Section::Sock, "sock_impl_set_options", &options)?;
        change.put(option_key(&format!("sock-{}", params.impl_name)), entry);
        Ok(true)
    })
}

fn get_default(call: &Call<'_>, _params: NoParams) -> Result<serde_json::Value, RpcError> {
    Ok(json!({ "impl_name": call.manager.model().default_socket_kind() }))
}

fn set_default(call: &Call<'_>, params: Kind) -> Result<bool, RpcError> {
    check_kind(&params.impl_name)?;
    call.manager.change(|change| {
        let params = json!({ "impl_name": params.impl_name });
        let entry = Entry::new(Section::Sock, "sock_set_default_impl", &params)?;
        change.put(option_key("sock-default"), entry);
        Ok(true)
    })
}
