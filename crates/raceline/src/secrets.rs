//! Secrets of authentication and of TLS, from files or the environment and never from the command line.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use std::str::FromStr;

use raceline_auth::{Derivation, DhchapSecret, KeyError, TlsKey};
use zeroize::Zeroizing;

use crate::failure::Failure;

/// The longest file that is read: a secret and the end of its line.
const MAX_FILE_BYTES: usize = 4096;
/// Rights of other users than the owner.
const OTHERS: u32 = 0o077;

/// A secret in its text form.
pub(crate) trait Secret: FromStr<Err = KeyError> {
    /// How its text begins.
    const PREFIX: &str;
    /// What it is called.
    const NAME: &str;
}

impl Secret for DhchapSecret {
    const PREFIX: &str = "DHHC-1:";
    const NAME: &str = "DHHC-1 secret";
}

impl Secret for TlsKey {
    const PREFIX: &str = "NVMeTLSkey-1:";
    const NAME: &str = "NVMeTLSkey-1 key";
}

/// How keys of TLS are derived: as the specification says, unless `--tls-compat` asks for the old way.
pub(crate) fn derivation(compat: bool) -> Derivation {
    if compat { Derivation::OldLibnvme } else { Derivation::Standard }
}

/// The secret of a file, or of the environment variable `variable` if there is no file; `None`: neither is there.
/// A process that has one leaves no core dumps.
pub(crate) fn secret<S: Secret>(
    option: &str,
    file: Option<&Path>,
    variable: &str,
) -> Result<Option<S>, Failure> {
    let secret = if let Some(file) = file {
        from_file(option, file)?
    } else {
        match std::env::var(variable) {
            Ok(text) => Zeroizing::new(text)
                .parse()
                .map_err(|error| Failure::usage(format!("{variable}: {error}")))?,
            Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                let text = format!("{variable} is not text: it has to hold a {}", S::NAME);
                return Err(Failure::usage(text));
            }
        }
    };
    raceline_sandbox::hide_memory().map_err(Failure::runtime)?;
    Ok(Some(secret))
}

/// The secret in a file that only its owner can read.
pub(crate) fn from_file<S: Secret>(option: &str, path: &Path) -> Result<S, Failure> {
    let name = path.display();
    if path.to_string_lossy().starts_with(S::PREFIX) {
        return Err(Failure::usage(format!(
            "{option} takes a file with the secret, since every user can read command lines: write the secret into a \
             file of mode 0600"
        )));
    }
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::usage(format!("{option}: cannot read the secret in {name}: {error}"))
    };
    let mut file = File::open(path).map_err(|error| cannot(&error))?;
    let info = file.metadata().map_err(|error| cannot(&error))?;
    if info.is_file() && info.mode() & OTHERS != 0 {
        return Err(cannot(&format!(
            "other users have rights to it (mode {:04o}): run chmod 600 {name}",
            info.mode() & 0o7777
        )));
    }
    let mut text = Zeroizing::new(String::with_capacity(MAX_FILE_BYTES));
    file.by_ref()
        .take(MAX_FILE_BYTES as u64)
        .read_to_string(&mut text)
        .map_err(|error| cannot(&error))?;
    text.parse().map_err(|error: KeyError| cannot(&error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_secret_comes_from_a_file_that_is_private() {
        let read = |path: &Path| from_file::<DhchapSecret>("--x", path);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let secret = DhchapSecret::generate(None).unwrap();
        std::fs::write(&path, format!("{}\n", *secret.to_text())).unwrap();
        let set_mode = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode(0o600);
        assert_eq!(read(&path).unwrap(), secret);
        set_mode(0o640);
        let message = read(&path).unwrap_err().message;
        assert!(message.contains("chmod 600"), "{message}");
        set_mode(0o600);
        std::fs::write(&path, "DHHC-1:00:AAAA:").unwrap();
        let message = read(&path).unwrap_err().message;
        assert!(message.starts_with("--x: cannot read the secret in") && !message.contains("AAAA"));
        let message = read(&folder.path().join("none")).unwrap_err().message;
        assert!(message.contains("No such file"), "{message}");
        let text = secret.to_text();
        let message = read(Path::new(&*text)).unwrap_err().message;
        assert!(message.contains("mode 0600") && !message.contains(&text[10..]), "{message}");
    }

    #[test]
    fn each_kind_of_secret_takes_its_own_form() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = TlsKey::generate(raceline_auth::Hash::Sha384).unwrap();
        std::fs::write(&path, &*key.to_text()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(from_file::<TlsKey>("--x", &path).unwrap(), key);
        let message = from_file::<DhchapSecret>("--x", &path).unwrap_err().message;
        assert!(message.contains("DHHC-1") && !message.contains(&key.to_text()[20..]), "{message}");
        let message = from_file::<TlsKey>("--x", Path::new(&*key.to_text())).unwrap_err().message;
        assert!(message.contains("every user can read command lines"), "{message}");
    }
}
