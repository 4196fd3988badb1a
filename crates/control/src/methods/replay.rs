//! The methods in the form that the manager needs: calls that it makes again, and devices that arrive.

use serde_json::Value;

use super::bdev;
use crate::error::RpcError;
use crate::manager::{Change, Manager, Phase, Replay};
use crate::method::Registry;
use crate::params::raw_params;
use crate::role::Peer;

impl Replay for Registry {
    fn current_name(&self, method: &str) -> Option<&'static str> {
        self.get(method).map(|method| method.name)
    }

    fn admits(&self, method: &str, phase: Phase) -> Option<bool> {
        self.get(method).map(|method| method.states.admits(phase))
    }

    fn check(&self, method: &str, params: Option<&Value>) -> Result<(), RpcError> {
        Registry::check(self, method, raw_params(params)?.as_deref())
    }

    fn call(
        &self,
        manager: &Manager,
        method: &str,
        params: Option<&Value>,
    ) -> Result<(), RpcError> {
        let params = raw_params(params)?;
        Registry::call(self, manager, Peer::this_process(), method, params.as_deref()).map(drop)
    }

    fn examine(&self, change: &mut Change<'_>, device: &str) {
        bdev::examine_unasked(change, device);
    }
}
