//! Arguments that say with which hash functions and groups hosts and controllers authenticate.

use raceline_host::{Algorithms, DhGroup, Hash};

/// The hash functions and groups that this end allows.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct AlgorithmArgs {
    /// Hash functions that an authentication may use, the preferred first
    /// [default: sha512,sha384,sha256]
    #[arg(long = "dhchap-digests", value_name = "LIST", value_delimiter = ',')]
    #[arg(help_heading = "Authentication")]
    digests: Vec<Hash>,

    /// Groups that an authentication may use, the preferred first: null, ffdhe2048, ffdhe3072, ffdhe4096,
    /// ffdhe6144, ffdhe8192 [default: all but null, ffdhe3072 first]
    #[arg(long = "dhchap-dhgroups", value_name = "LIST", value_delimiter = ',')]
    #[arg(help_heading = "Authentication")]
    groups: Vec<DhGroup>,
}

impl AlgorithmArgs {
    /// What is allowed.
    pub(crate) fn algorithms(&self) -> Algorithms {
        let default = Algorithms::default();
        Algorithms {
            hashes: if self.digests.is_empty() { default.hashes } else { self.digests.clone() },
            groups: if self.groups.is_empty() { default.groups } else { self.groups.clone() },
        }
    }
}
