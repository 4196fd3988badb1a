//! Authentication again and again while a job runs: `--reauthenticate`.

use std::time::{Duration, Instant};

use raceline_host::HostConfig;

use crate::cli::host::AddressArgs;
use crate::cli::perf::PerfArgs;
use crate::failure::Failure;
use crate::remote;

/// When the hosts of a run authenticate again, and where their secrets are.
pub(super) struct Renewal {
    every: Duration,
    next: Instant,
    address: AddressArgs,
}

impl Renewal {
    /// What the command line asks for; `None`: nothing.
    pub(super) fn new(args: &PerfArgs) -> Result<Option<Self>, Failure> {
        let Some(every) = args.reauthenticate else { return Ok(None) };
        let address = args.connect.address.clone();
        if every.is_zero() {
            return Err(Failure::usage("--reauthenticate takes a time of more than 0"));
        }
        if remote::credentials(&address)?.is_none() {
            return Err(Failure::usage(
                "--reauthenticate needs a secret: add --dhchap-secret FILE",
            ));
        }
        Ok(Some(Self { every, next: Instant::now() + every, address }))
    }

    /// Renews the secrets of these hosts if it is time. A secret that cannot be read now is not replaced.
    pub(super) fn tick(&mut self, hosts: &[HostConfig]) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + self.every;
        match remote::credentials(&self.address) {
            Ok(Some(credentials)) => {
                hosts.iter().for_each(|host| host.credentials.renew(credentials.clone()));
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "authenticating with the secrets of before"),
        }
    }
}
