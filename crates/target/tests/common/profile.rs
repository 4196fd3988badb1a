//! The kind of devices of a simulated network: RoCE, or iWARP where `RACELINE_RDMA_PROFILE` says so.

use raceline_rdma::fake::Profile;

/// What the environment asks for.
pub fn of_environment() -> Profile {
    match std::env::var("RACELINE_RDMA_PROFILE").as_deref() {
        Err(_) | Ok("roce") => Profile::Roce,
        Ok("iwarp") => Profile::Iwarp,
        Ok(other) => panic!("RACELINE_RDMA_PROFILE is '{other}', and neither roce nor iwarp"),
    }
}
