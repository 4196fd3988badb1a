//! Takes secrets out of what leaves the machine: by the names under which they stand, and by their form.

use serde_json::Value;

/// What stands in the place of a secret.
pub(super) const REMOVED: &str = "[removed]";

/// Parts of names under which secrets stand, in lower case, without - and _.
const SECRET_NAMES: [&str; 9] = [
    "secret",
    "password",
    "passwd",
    "passphrase",
    "token",
    "credential",
    "authorization",
    "privatekey",
    "cookie",
];
/// Names that hold one of those, and no secret: they name a key, or say how many there are.
const HARMLESS: [&str; 2] = ["tokenbucket", "chaptargetkey"];
/// How keys of NVMe begin, and private keys.
const SECRET_FORMS: [&str; 3] = ["NVMeTLSkey-", "DHHC-1:", "nvme-chap:"];
/// Options and variables whose value is a secret or names one.
const SECRET_WORDS: [&str; 6] =
    ["psk", "tlspsk", "racelinetlspsk", "dhchapkeyvalue", "racelinechapsecret", "bearer"];

fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Whether the value of this name is a secret.
fn is_secret_name(name: &str) -> bool {
    let name = plain(name);
    !HARMLESS.contains(&name.as_str())
        && (SECRET_NAMES.iter().any(|part| name.contains(part))
            || SECRET_WORDS.contains(&name.as_str()))
}

/// A document without secrets, at any depth; texts in it are looked into as well.
pub(super) fn document(value: &Value) -> Value {
    match value {
        Value::Array(values) => values.iter().map(document).collect(),
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| {
                let shown = match value {
                    Value::Bool(_) | Value::Null => value.clone(),
                    // A list of objects, as iSCSI's `secrets`, has its secrets inside.
                    Value::Array(values) if values.iter().all(Value::is_object) => document(value),
                    // The name of a key of the daemon.
                    _ if plain(name) == "psk" => named_key(value),
                    _ if is_secret_name(name) => REMOVED.into(),
                    _ => document(value),
                };
                (text(name), shown)
            })
            .collect(),
        Value::String(inside) => text(inside).into(),
        other => other.clone(),
    }
}

/// In a configuration, `psk` is a name: it stays, unless it looks like a key.
fn named_key(value: &Value) -> Value {
    let is_name = value.as_str().is_some_and(|name| {
        name.len() <= 40 && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:".contains(c))
    });
    if is_name { document(value) } else { REMOVED.into() }
}

/// Text without secrets.
pub(super) fn text(whole: &str) -> String {
    let mut out = String::with_capacity(whole.len());
    let mut in_private_key = false;
    for line in whole.split_inclusive('\n') {
        if line.contains("-----BEGIN ") && line.contains("PRIVATE KEY") {
            in_private_key = true;
            out.push_str(&format!("{REMOVED}\n"));
        }
        if !in_private_key {
            out.push_str(&self::line(line));
        }
        if line.contains("-----END ") {
            in_private_key = false;
        }
    }
    out
}

fn line(line: &str) -> String {
    forms(&urls(&assignments(line)))
}

/// Characters that end a value.
fn ends(c: char) -> bool {
    c.is_whitespace() || "\"',;&()[]{}<>\\".contains(c)
}

/// Characters that may stand in a name.
fn in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// `name=value`, `name: value`, `"name": "value"`, `--name value`, `Bearer value`.
fn assignments(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(in_name) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c| !in_name(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        out.push_str(name);
        rest = after;
        let is_option = name.starts_with("--") || name.eq_ignore_ascii_case("bearer");
        let is_option = is_option || name.eq_ignore_ascii_case("basic");
        if !is_secret_name(name) && !name.eq_ignore_ascii_case("basic") {
            continue;
        }
        let Some((between, value)) = value_after(rest, is_option) else { continue };
        out.push_str(&rest[..between]);
        // An option that follows is no value, nor is a number of things.
        if value > 0 && !rest[between..].starts_with('-') {
            out.push_str(REMOVED);
            rest = &rest[between + value..];
        } else {
            rest = &rest[between..];
        }
    }
    out.push_str(rest);
    out
}

/// The lengths of what stands between a name and its value, and of the value.
fn value_after(rest: &str, is_option: bool) -> Option<(usize, usize)> {
    let bytes = rest.as_bytes();
    let skip = |mut at: usize, set: &[u8]| {
        while bytes.get(at).is_some_and(|byte| set.contains(byte)) {
            at += 1;
        }
        at
    };
    // A quotation mark that ends the name may be escaped, as JSON in JSON is.
    let at = skip(0, b"\\\"'");
    let mut at = skip(at, b" \t");
    let is_assigned = matches!(bytes.get(at), Some(b'=' | b':'));
    if is_assigned {
        at = skip(at, b"=:> \t");
    } else if !is_option || at == 0 {
        return None;
    }
    let quoted = skip(at, b"\\\"'");
    // "Authorization: Bearer X": the scheme is not the value.
    let rest_of = &rest[quoted..];
    let scheme =
        ["Bearer ", "Basic ", "bearer ", "basic "].iter().find(|s| rest_of.starts_with(*s));
    let begin = quoted + scheme.map_or(0, |scheme| scheme.len());
    let value = &rest[begin..];
    let length = if quoted > at {
        value.find(['"', '\'', '\\', '\n']).unwrap_or(value.len())
    } else {
        value.find(ends).unwrap_or(value.len())
    };
    Some((begin, length))
}

/// `scheme://user:password@host` and libiscsi's `iscsi://user%password@host`.
fn urls(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after.find(ends).unwrap_or(after.len());
        let (url, others) = after.split_at(end);
        match url.rsplit_once('@') {
            // A password may have an @ or a / of its own.
            Some((login, place)) if login.contains([':', '%']) => {
                let user = login.split([':', '%']).next().unwrap_or_default();
                out.push_str(&format!("{user}:{REMOVED}@{place}"));
            }
            _ => out.push_str(url),
        }
        rest = others;
    }
    out.push_str(rest);
    out
}

/// Keys in the forms that NVMe gives them.
fn forms(line: &str) -> String {
    let mut out = line.to_owned();
    for form in SECRET_FORMS {
        let mut from = 0;
        while let Some(at) = out[from..].find(form).map(|at| at + from) {
            let end = out[at..].find(ends).map_or(out.len(), |length| at + length);
            out.replace_range(at..end, REMOVED);
            from = at + REMOVED.len();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_go_from_text_whatever_they_stand_in() {
        for planted in [
            "secret=S3CR3T",
            "password: S3CR3T",
            "PASSWORD = \"S3CR3T with blanks\"",
            "'api_token' => 'S3CR3T'",
            "raceline perf --dhchap-secret S3CR3T -n x",
            "raceline perf --dhchap-secret=S3CR3T",
            "RACELINE_DHCHAP_SECRET=S3CR3T raceline",
            "RACELINE_TLS_PSK=S3CR3T raceline",
            "Authorization: Bearer S3CR3T",
            "authorization: Basic S3CR3T==",
            "curl -H \"Authorization: Bearer S3CR3T\"",
            "sent Bearer S3CR3T to it",
            "iscsi://user%S3CR3T@host/iqn.2026-01.c:x/0",
            "iscsi://user%S3@CR3T@host/iqn.2026-01.c:x/0",
            "http://admin:S3CR3T@10.0.0.1:9009/rpc?x=1",
            "key NVMeTLSkey-1:01:S3CR3T: was read",
            "DHHC-1:00:S3CR3T:",
            "{\"msecret\":\"S3CR3T\"}",
            "params={\\\"secret\\\": \\\"S3CR3T\\\"}",
            "-----BEGIN PRIVATE KEY-----\nS3CR3T\n-----END PRIVATE KEY-----\n",
        ] {
            let shown = text(planted);
            assert!(!shown.contains("S3CR3T") && !shown.contains("CR3T"), "{planted} -> {shown}");
            assert!(shown.contains(REMOVED), "{planted} -> {shown}");
        }
    }

    #[test]
    fn what_is_no_secret_stays() {
        for harmless in [
            "host connected peer=127.0.0.1:4420 host=nqn.2014-08.org.nvmexpress:uuid:1",
            "raceline serve --http 127.0.0.1:9009 -m [0,1]",
            "the secret of `u` has less than 12 bytes",
            "2 tokens and no more\n",
            "http://10.0.0.1:9009/metrics",
        ] {
            assert_eq!(text(harmless), harmless);
        }
    }

    #[test]
    fn documents_are_looked_into_at_any_depth() {
        let planted = json!({
            "secrets": [{ "user": "u", "secret": "S3CR3T", "msecret": ["S3CR3T"] }],
            "url": "iscsi://u%S3CR3T@h/iqn.x/0",
            "dhchap_key": "key0", "psk": "psk0",
            "deep": [{ "note": "password=S3CR3T", "access_token": 12345 }],
        });
        let shown = document(&planted);
        assert!(!shown.to_string().contains("S3CR3T"), "{shown}");
        assert!(!shown.to_string().contains("12345"), "{shown}");
        assert_eq!(shown["secrets"][0]["user"], "u");
        assert_eq!((&shown["dhchap_key"], &shown["psk"]), (&json!("key0"), &json!("psk0")));
        assert_eq!(document(&json!({ "psk": "NVMeTLSkey-1:01:AAAA:" }))["psk"], REMOVED);
        assert_eq!(document(&json!({ "psk": "a+/=" }))["psk"], REMOVED);
    }
}
