//! Arguments of the verbs that talk to a target by iSCSI instead of NVMe/TCP.

use std::path::PathBuf;

use raceline_initiator::Name;

/// How to reach a logical unit by iSCSI.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct IscsiArgs {
    /// Talk iSCSI: -a and -s name the portal, and -n is the IQN of the target
    #[arg(long)]
    #[arg(help_heading = "iSCSI")]
    pub(crate) iscsi: bool,

    /// The logical unit
    #[arg(long, value_name = "N", requires = "iscsi")]
    #[arg(value_parser = clap::value_parser!(u16).range(..=0x3fff))]
    #[arg(help_heading = "iSCSI")]
    pub(crate) lun: Option<u16>,

    /// IQN of this initiator [default: that in /etc/iscsi/initiatorname.iscsi, or derived from this machine]
    #[arg(long, value_name = "IQN", requires = "iscsi", value_parser = iscsi_name)]
    #[arg(help_heading = "iSCSI")]
    pub(crate) initiator: Option<Name>,

    /// The user that this initiator is to its target (CHAP)
    #[arg(long, value_name = "USER", requires_all = ["iscsi", "chap_secret"])]
    #[arg(help_heading = "iSCSI")]
    pub(crate) chap_user: Option<String>,

    /// File with the secret of the user, readable by its owner only, or name of a key
    #[arg(long, value_name = "KEY", requires = "chap_user")]
    #[arg(help_heading = "iSCSI")]
    pub(crate) chap_secret: Option<PathBuf>,

    /// The user that the target is, where it has to prove itself as well
    #[arg(long, value_name = "USER", requires_all = ["chap_user", "chap_target_secret"])]
    #[arg(help_heading = "iSCSI")]
    pub(crate) chap_target_user: Option<String>,

    /// File with the secret of the target, or name of a key
    #[arg(long, value_name = "KEY", requires = "chap_target_user")]
    #[arg(help_heading = "iSCSI")]
    pub(crate) chap_target_secret: Option<PathBuf>,
}

/// A name of an iSCSI node.
pub(crate) fn iscsi_name(text: &str) -> Result<Name, String> {
    Name::new(text).map_err(|error| error.to_string())
}
