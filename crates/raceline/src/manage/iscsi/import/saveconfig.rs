//! The configuration file of LIO, the Linux kernel's target: what targetcli saves (`saveconfig.json`, rtslib-fb).
//!
//! Members that are not here are ignored. Numbers are read in wide types and checked where they are used, so that an
//! error can name the object.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Saved {
    pub(super) storage_objects: Vec<StorageObject>,
    pub(super) fabric_modules: Vec<Fabric>,
    pub(super) targets: Vec<Target>,
}

/// A backstore.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StorageObject {
    pub(super) name: String,
    /// `block`, `fileio`, `ramdisk`, `pscsi` or `user`.
    pub(super) plugin: String,
    pub(super) dev: Option<String>,
    /// Bytes.
    pub(super) size: Option<u64>,
    /// The unit serial number, a UUID unless somebody has set it.
    pub(super) wwn: Option<String>,
    pub(super) readonly: bool,
    pub(super) write_back: bool,
    pub(super) nullio: bool,
    pub(super) attributes: BTreeMap<String, Value>,
}

/// A fabric, which has the secrets of discovery.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Fabric {
    pub(super) name: String,
    pub(super) discovery_enable_auth: bool,
    #[serde(alias = "discovery_userid")]
    userid: Private,
    #[serde(alias = "discovery_password")]
    password: Private,
    #[serde(alias = "discovery_mutual_userid")]
    mutual_userid: Private,
    #[serde(alias = "discovery_mutual_password")]
    mutual_password: Private,
}

impl Fabric {
    pub(super) fn chap(&self) -> Chap<'_> {
        Chap([&self.userid, &self.password, &self.mutual_userid, &self.mutual_password])
    }
}

/// A target node.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Target {
    pub(super) wwn: String,
    pub(super) fabric: String,
    pub(super) tpgs: Vec<Tpg>,
}

/// A target portal group.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Tpg {
    pub(super) tag: u64,
    pub(super) enable: bool,
    pub(super) luns: Vec<Lun>,
    pub(super) portals: Vec<Portal>,
    pub(super) node_acls: Vec<NodeAcl>,
    pub(super) attributes: BTreeMap<String, Value>,
    pub(super) parameters: BTreeMap<String, Value>,
    chap_userid: Private,
    chap_password: Private,
    chap_mutual_userid: Private,
    chap_mutual_password: Private,
}

impl Tpg {
    /// The secrets of initiators without an ACL.
    pub(super) fn chap(&self) -> Chap<'_> {
        let (name, secret) = (&self.chap_userid, &self.chap_password);
        Chap([name, secret, &self.chap_mutual_userid, &self.chap_mutual_password])
    }

    /// An attribute that is a number or a number in text; `default`: what the kernel has unless it is set.
    pub(super) fn attribute(&self, name: &str, default: i64) -> i64 {
        let number = |value: &Value| value.as_i64().or_else(|| value.as_str()?.trim().parse().ok());
        self.attributes.get(name).and_then(number).unwrap_or(default)
    }

    /// A parameter of the negotiation.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).and_then(Value::as_str)
    }
}

/// A LUN of a target portal group.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Lun {
    pub(super) index: u64,
    /// `/backstores/PLUGIN/NAME`.
    pub(super) storage_object: String,
}

/// An address.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Portal {
    pub(super) ip_address: String,
    pub(super) port: u64,
    pub(super) iser: bool,
    pub(super) offload: bool,
}

/// What one initiator may do.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct NodeAcl {
    pub(super) node_wwn: String,
    pub(super) mapped_luns: Vec<MappedLun>,
    chap_userid: Private,
    chap_password: Private,
    chap_mutual_userid: Private,
    chap_mutual_password: Private,
}

impl NodeAcl {
    pub(super) fn chap(&self) -> Chap<'_> {
        let (name, secret) = (&self.chap_userid, &self.chap_password);
        Chap([name, secret, &self.chap_mutual_userid, &self.chap_mutual_password])
    }
}

/// A LUN as one initiator sees it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MappedLun {
    pub(super) index: u64,
    pub(super) tpg_lun: u64,
    #[serde(deserialize_with = "flag")]
    pub(super) write_protect: bool,
}

/// `write_protect` is a number in files of older versions.
fn flag<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(value != Value::Bool(false) && value != 0 && value != Value::Null)
}

/// A name or a secret of CHAP. Whatever the file has here is accepted, so that no error shows it.
#[derive(Default, Deserialize)]
#[serde(transparent)]
struct Private(Value);

impl std::fmt::Debug for Private {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Private")
    }
}

/// Name and secret of an initiator, and those of the target.
pub(super) struct Chap<'a>([&'a Private; 4]);

/// Secrets that are complete.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secrets {
    pub(super) user: String,
    pub(super) secret: String,
    pub(super) mutual: Option<(String, String)>,
}

impl Chap<'_> {
    /// The secrets; `None`: there are none.
    ///
    /// # Errors
    /// When a name is without its secret or the other way round, or something is no text; says what.
    pub(super) fn secrets(&self) -> Result<Option<Secrets>, String> {
        let text = |private: &Private, what: &str| match &private.0 {
            Value::Null => Ok(None),
            // What targetcli writes for a value that is not set.
            Value::String(text) if text.is_empty() || text == "NULL" => Ok(None),
            Value::String(text) => Ok(Some(text.clone())),
            _ => Err(format!("the {what} of CHAP is no text")),
        };
        let user = text(self.0[0], "user name")?;
        let secret = text(self.0[1], "password")?;
        let own = (text(self.0[2], "mutual user name")?, text(self.0[3], "mutual password")?);
        let mutual = match own {
            (Some(name), Some(secret)) => Some((name, secret)),
            (None, None) => None,
            _ => return Err("CHAP has only one of mutual user name and mutual password".into()),
        };
        match (user, secret) {
            (Some(user), Some(secret)) => Ok(Some(Secrets { user, secret, mutual })),
            (None, None) if mutual.is_none() => Ok(None),
            _ => Err("CHAP has only one of user name and password".into()),
        }
    }
}

/// What a value means that is built as targetcli saves it.
///
/// # Errors
/// When it is not built so.
pub(super) fn from_value(value: Value) -> Result<Saved, String> {
    // The message would show the value.
    serde_json::from_value(value).map_err(|_| "this is not what targetcli saves".to_owned())
}

/// Whether this is a file that targetcli has saved, and not a script of its commands.
pub(super) fn is_saved(text: &str) -> bool {
    text.trim_start().starts_with(['{', '['])
}

/// Reads the file.
///
/// # Errors
/// When it is not what targetcli saves; says where, and nothing of what stands there.
pub(super) fn read(text: &str) -> Result<Saved, String> {
    // A list would be taken for the members of the object in their order.
    if text.trim_start().starts_with('[') {
        return Err("line 1: this is a list, and targetcli saves an object".into());
    }
    serde_json::from_str(text).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        let message = error.to_string();
        let expected = message.split_once(", expected ").map(|(_, rest)| rest);
        match expected.and_then(|rest| rest.split(" at line ").next()) {
            Some(expected) if error.is_data() => format!("{place}: this has to be {expected}"),
            _ if error.is_eof() => format!("{place}: the file ends too early"),
            _ => format!("{place}: this is not JSON as targetcli saves it"),
        }
    })
}
