//! TLS of an NBD disk, with the files of keys and certificates that QEMU's and libnbd's tools use.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use raceline_auth::TlsPsk;
use raceline_nbd::ServerTls;
use raceline_reactor::StreamProvider;
use raceline_tls::{Certificates, TlsAcceptor};
use zeroize::Zeroizing;

use crate::cli::connect::{DiskTlsArgs, SERVER_CERTIFICATES};
use crate::failure::Failure;
use crate::secrets;

const PSK: &str = "--nbd-tls-psk";
const CERTIFICATES: &str = "--nbd-tls-certificates";

/// The most bytes of a file of certificates.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// TLS as the command line asks for it.
pub(super) fn of(args: &DiskTlsArgs) -> Result<Option<ServerTls>, Failure> {
    let provider: Arc<dyn StreamProvider> = match (&args.psk, &args.certificates) {
        (Some(path), _) => {
            let keys = keys(&secrets::text(PSK, path)?)
                .map_err(|text| Failure::usage(format!("{PSK} {}: {text}", path.display())))?;
            let find = move |identity: &[u8]| keys.get(identity).cloned();
            Arc::new(TlsAcceptor::new(Arc::new(find)))
        }
        (None, Some(dir)) => {
            Arc::new(TlsAcceptor::with_certificates(certificates(dir, args.any_client)?))
        }
        (None, None) => return Ok(None),
    };
    raceline_sandbox::hide_memory().map_err(Failure::runtime)?;
    Ok(Some(ServerTls { provider, required: !args.optional }))
}

/// Lines `USER:KEY`, the key in hexadecimal digits, as psktool writes them.
fn keys(text: &str) -> Result<HashMap<Vec<u8>, TlsPsk>, String> {
    let mut keys = HashMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // The text of a line is a secret, so no error shows it.
        let wrong = |what: &str| format!("line {number} {what}; psktool writes lines USER:KEY");
        let (user, digits) = line.split_once(':').ok_or_else(|| wrong("has no colon"))?;
        let key = bytes_of(digits).ok_or_else(|| wrong("has no key of hexadecimal digits"))?;
        let key = TlsPsk::external(&key);
        let key = key.map_err(|_| wrong("has a key that is not of 16 to 64 bytes"))?;
        if user.is_empty() {
            return Err(wrong("has no name of a user"));
        }
        if keys.insert(user.as_bytes().to_vec(), key).is_some() {
            return Err(wrong("has a user who has a key already"));
        }
    }
    if keys.is_empty() { Err("there is no key".to_owned()) } else { Ok(keys) }
}

fn bytes_of(digits: &str) -> Option<Zeroizing<Vec<u8>>> {
    let digits = digits.as_bytes();
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    });
    pairs.collect::<Option<Vec<u8>>>().map(Zeroizing::new)
}

/// `server-cert.pem`, `server-key.pem` and, unless any client is served, `ca-cert.pem` of a folder.
fn certificates(dir: &Path, any_client: bool) -> Result<Certificates, Failure> {
    let [certificate, key, authority] = SERVER_CERTIFICATES.map(|name| dir.join(name));
    let authority = match any_client {
        true => None,
        false => Some(read(&authority)?),
    };
    let mode = fs::metadata(&key).map_or(0, |info| info.permissions().mode());
    if mode & 0o077 != 0 {
        let (key, mode) = (key.display(), mode & 0o7777);
        return Err(Failure::usage(format!(
            "{CERTIFICATES}: others than its owner can use the key {key} (mode {mode:04o}): chmod 600 {key}"
        )));
    }
    let made = Certificates::new(
        &read(&certificate)?,
        &read(&key)?,
        authority.as_deref().map(Vec::as_slice),
    );
    made.map_err(|error| {
        Failure::usage(format!(
            "{CERTIFICATES}: cannot use the files of {}: {error}",
            dir.display()
        ))
    })
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let cannot = |why: &dyn std::fmt::Display| {
        Failure::usage(format!("{CERTIFICATES}: cannot read {}: {why}", path.display()))
    };
    let info = fs::metadata(path).map_err(|error| cannot(&error))?;
    if !info.is_file() || info.len() > MAX_PEM_BYTES {
        return Err(cannot(&"it is no file of at most 1 MiB"));
    }
    fs::read(path).map(Zeroizing::new).map_err(|error| cannot(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_psktool_writes_them() {
        let alice = "00112233445566778899aabbccddeeff";
        let table = keys(&format!("# users\nalice:{alice}\n\nbob:{alice}{alice}\n")).unwrap();
        assert_eq!(table.len(), 2);
        assert_eq!(table[b"alice".as_slice()].key().expose()[..3], [0, 0x11, 0x22]);
        for (text, why) in [
            ("", "no key"),
            ("alice", "line 1 has no colon"),
            ("alice:xx", "hexadecimal"),
            ("alice:001", "hexadecimal"),
            ("alice:0011", "16 to 64 bytes"),
            (&format!(":{alice}"), "name of a user"),
            (&format!("a:{alice}\na:{alice}"), "line 2 has a user who"),
        ] {
            let error = keys(text).unwrap_err();
            assert!(error.contains(why) && !error.contains(alice), "{text}: {error}");
        }
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for name in SERVER_CERTIFICATES {
            fs::write(dir.path().join(name), "no certificate").unwrap();
        }
        let key = dir.path().join("server-key.pem");
        for (mode, why) in [(0o640, "chmod 600"), (0o600, "cannot use the files of")] {
            fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
            let message = certificates(dir.path(), false).err().unwrap().message;
            assert!(message.contains(why), "{message}");
        }
        fs::remove_file(dir.path().join("ca-cert.pem")).unwrap();
        let message = certificates(dir.path(), false).err().unwrap().message;
        assert!(message.contains("ca-cert.pem"), "{message}");
    }
}
