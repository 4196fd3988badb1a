//! Parameters as logs and messages may show them: without the secrets of CHAP.

use serde_json::Value;

/// The members that hold secrets: those of `iscsi_create_auth_group` and `iscsi_auth_group_add_secret`.
const SECRETS: [&str; 2] = ["secret", "msecret"];
/// The member in which a password may stand: that of `bdev_iscsi_create`.
const URL: &str = "url";
/// What stands in their place.
const MASK: &str = "***";

/// The same value with every secret masked.
pub(crate) fn masked(value: &Value) -> Value {
    replaced(value, Some(MASK))
}

/// The same value without its secrets: for readers that may not change anything.
pub(crate) fn without_secrets(value: &Value) -> Value {
    replaced(value, None)
}

fn replaced(value: &Value, mask: Option<&str>) -> Value {
    match value {
        Value::Array(values) => values.iter().map(|value| replaced(value, mask)).collect(),
        Value::Object(members) => {
            let shown = members.iter().filter_map(|(name, value)| {
                let value = match value {
                    _ if SECRETS.contains(&name.as_str()) => mask?.into(),
                    Value::String(url) if name == URL => without_password(url, mask).into(),
                    _ => replaced(value, mask),
                };
                Some((name.clone(), value))
            });
            Value::Object(shown.collect())
        }
        other => other.clone(),
    }
}

/// `iscsi://user%password@host...` without the password.
pub(crate) fn without_password(url: &str, mask: Option<&str>) -> String {
    let hidden = url.rsplit_once('@').and_then(|(login, place)| {
        let (user, _) = login.split_once('%')?;
        let mask = mask.map_or_else(String::new, |mask| format!("%{mask}"));
        Some(format!("{user}{mask}@{place}"))
    });
    hidden.unwrap_or_else(|| url.to_owned())
}

/// Whether a text of parameters may hold a secret: most do not, and are shown as they came.
pub(crate) fn may_hold_secret(text: &str) -> bool {
    // A name may be spelled with escapes.
    text.contains("secret") || text.contains("iscsi:") || text.contains("\\u")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_masked_at_any_depth() {
        let group =
            json!({ "tag": 1, "secrets": [{ "user": "u", "secret": "s", "msecret": ["m"] }] });
        let shown = masked(&group);
        assert_eq!(
            shown,
            json!({ "tag": 1, "secrets": [{ "user": "u", "secret": "***", "msecret": "***" }] })
        );
        assert_eq!(without_secrets(&group), json!({ "tag": 1, "secrets": [{ "user": "u" }] }));
        let lun = json!({ "name": "L", "url": "iscsi://u%p@ss@h/iqn.2026-01.c:x/0" });
        assert_eq!(masked(&lun)["url"], "iscsi://u%***@h/iqn.2026-01.c:x/0");
        assert_eq!(without_secrets(&lun)["url"], "iscsi://u@h/iqn.2026-01.c:x/0");
        assert!(may_hold_secret(&lun.to_string()));
        let plain = json!({ "url": "iscsi://h/iqn.2026-01.c:x/0" });
        assert_eq!(masked(&plain), plain);
        assert!(may_hold_secret(&group.to_string()) && !may_hold_secret(r#"{"tag":1}"#));
    }
}
