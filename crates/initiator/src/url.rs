//! `iscsi://[user[%pass]@]host[:port]/iqn/lun`: the name of a logical unit that libiscsi made common, and SPDK uses.

use std::fmt;
use std::str::FromStr;

use raceline_iscsi::chap::Secret;
use raceline_iscsi::names::{Name, NameError};

/// The port of an iSCSI portal (RFC 7143, 4.2.7.1).
const PORT: u16 = 3260;
/// The largest number of a logical unit (SAM-5, 4.7.7.4).
const MAX_LUN: u16 = 0x3fff;

/// A logical unit by its URL. It is shown without its password.
#[derive(Clone, Debug)]
pub struct IscsiUrl {
    /// The user of CHAP.
    pub user: Option<String>,
    /// The secret of the user, if the URL has it.
    pub password: Option<Secret>,
    /// Name or address of the portal, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The target.
    pub target: Name,
    /// The logical unit.
    pub lun: u16,
}

/// Why a text is no such URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another scheme.
    #[error("it does not begin with iscsi://")]
    Scheme,
    /// There are not three parts.
    #[error("it is not of the form iscsi://[user[%pass]@]host[:port]/iqn/lun")]
    Form,
    /// The name of the target is none.
    #[error("the name of the target: {0}")]
    Target(NameError),
    /// The logical unit is no number, or too large a one.
    #[error("the logical unit is a number from 0 to 16383")]
    Lun,
    /// The port is no number, or 0.
    #[error("the port is a number from 1 to 65535")]
    Port,
}

impl FromStr for IscsiUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let rest = text.strip_prefix("iscsi://").ok_or(UrlError::Scheme)?;
        // A password may have any character; the host has no '@'.
        let (login, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, rest),
        };
        let (portal, path) = place.split_once('/').ok_or(UrlError::Form)?;
        let (target, lun) = path.rsplit_once('/').ok_or(UrlError::Form)?;
        let lun = lun.parse().ok().filter(|lun| *lun <= MAX_LUN).ok_or(UrlError::Lun)?;
        let target = Name::new(target).map_err(UrlError::Target)?;
        let (host, port) = portal_of(portal)?;
        let (user, password) = match login.map(|login| login.split_once('%').ok_or(login)) {
            None => (None, None),
            Some(Ok((user, password))) => (Some(user), Some(password)),
            Some(Err(user)) => (Some(user), None),
        };
        if host.is_empty() || user == Some("") {
            return Err(UrlError::Form);
        }
        Ok(Self {
            user: user.map(str::to_owned),
            password: password.map(|password| Secret::new(password.as_bytes().to_vec())),
            host: host.to_owned(),
            port,
            target,
            lun,
        })
    }
}

/// Host and port; an address of IPv6 is in brackets.
fn portal_of(portal: &str) -> Result<(&str, u16), UrlError> {
    let (host, port) = match portal.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or(UrlError::Form)?;
            (
                host,
                if rest.is_empty() {
                    None
                } else {
                    Some(rest.strip_prefix(':').ok_or(UrlError::Form)?)
                },
            )
        }
        None => match portal.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (portal, None),
        },
    };
    let port = port
        .map_or(Ok(PORT), |port| port.parse().ok().filter(|port| *port > 0).ok_or(UrlError::Port));
    Ok((host, port?))
}

impl fmt::Display for IscsiUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("iscsi://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        let brackets = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        let Self { host, port, target, lun, .. } = self;
        write!(f, "{}{host}{}:{port}/{target}/{lun}", brackets.0, brackets.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<IscsiUrl, UrlError> {
        text.parse()
    }

    #[test]
    fn all_parts_are_read_and_the_password_is_not_shown() {
        let url =
            parse("iscsi://me%pa@s/s%w@[::1]:3261/iqn.2026-01.io.raceline:x/7").expect("a URL");
        assert_eq!(
            (url.user.as_deref(), &*url.host, url.port, url.lun),
            (Some("me"), "::1", 3261, 7)
        );
        assert!(url.password.is_some());
        assert_eq!(url.to_string(), "iscsi://me@[::1]:3261/iqn.2026-01.io.raceline:x/7");
        assert!(!format!("{url:?}").contains("pa@s"), "{url:?}");
        let plain = parse("iscsi://disk.example/iqn.2026-01.io.raceline:x/0").expect("a URL");
        assert_eq!(
            (plain.port, plain.user.is_none(), plain.password.is_none()),
            (3260, true, true)
        );
        assert!(
            parse("iscsi://u@h/iqn.2026-01.io.raceline:x/0").expect("a URL").password.is_none()
        );
    }

    #[test]
    fn what_is_no_url_is_refused() {
        let error = |text: &str| parse(text).expect_err("refused");
        assert_eq!(error("nvme://h/iqn.2026-01.c:x/0"), UrlError::Scheme);
        assert_eq!(error("iscsi://h"), UrlError::Form);
        assert_eq!(error("iscsi://h/iqn.2026-01.c:x"), UrlError::Form);
        assert_eq!(error("iscsi:///iqn.2026-01.c:x/0"), UrlError::Form);
        assert_eq!(error("iscsi://@h/iqn.2026-01.c:x/0"), UrlError::Form);
        assert_eq!(error("iscsi://[::1/iqn.2026-01.c:x/0"), UrlError::Form);
        assert_eq!(error("iscsi://h:0/iqn.2026-01.c:x/0"), UrlError::Port);
        assert_eq!(error("iscsi://h/iqn.2026-01.c:x/16384"), UrlError::Lun);
        assert!(matches!(error("iscsi://h/disk/0"), UrlError::Target(_)));
    }
}
