//! Secrets of authentication and of TLS: from files, keys by name, or the environment, and never from the command line.

use std::fs::File;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use raceline_auth::{Derivation, DhchapSecret, KeyError, TlsKey};
use raceline_control::keyring::file::{self, Protection};
use raceline_control::keyring::{KernelKey, Places};
use zeroize::Zeroizing;

use crate::cli::key::{DEFAULT_STATE_DIR, STATE_VARIABLE};
use crate::failure::Failure;

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

/// The secret of a file or a key, or of the environment variable `variable` if there is neither; `None`: nothing is
/// there.
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

/// The secret in a file that only its owner can read, or of a key by its name, or of a key of the kernel.
pub(crate) fn from_file<S: Secret>(option: &str, path: &Path) -> Result<S, Failure> {
    text(option, path)?.parse().map_err(|error: KeyError| {
        Failure::usage(format!("{option}: cannot use the secret in {}: {error}", path.display()))
    })
}

/// The text of a key: of a file that only its owner can read, of a pipe, of a key by its name, or of a key of the kernel.
pub(crate) fn text(option: &str, path: &Path) -> Result<Zeroizing<String>, Failure> {
    let given = path.to_string_lossy();
    if [DhchapSecret::PREFIX, TlsKey::PREFIX].iter().any(|prefix| given.starts_with(prefix)) {
        return Err(Failure::usage(format!(
            "{option} takes a file with the secret, since every user can read command lines: write the secret into a \
             file of mode 0600"
        )));
    }
    if let Some(key) = KernelKey::parse(&given) {
        return key.text().map_err(|error| Failure::usage(format!("{option}: {error}")));
    }
    let state_dir = std::env::var_os(STATE_VARIABLE).map(PathBuf::from);
    let state_dir = state_dir.unwrap_or_else(|| PathBuf::from(DEFAULT_STATE_DIR));
    let (path, protection) = locate(path, &Places::of(Some(&state_dir)));
    let cannot =
        |error: &dyn std::fmt::Display| Failure::usage(format!("{option}: cannot read {error}"));
    // The shell's own way to hand a secret over: <(command).
    let is_pipe = std::fs::metadata(&path).is_ok_and(|info| info.file_type().is_fifo());
    if is_pipe {
        let mut pipe =
            File::open(&path).map_err(|error| cannot(&format!("{}: {error}", path.display())))?;
        return file::read_text(&path, &mut pipe).map_err(|error| cannot(&error));
    }
    file::read(&path, protection).map_err(|error| match is_word(&path) {
        true => {
            cannot(&format!("{error}, and there is no such key: raceline key ls lists the keys"))
        }
        false => cannot(&error),
    })
}

/// The file that has the key which is named like this; none for a pipe, or a key of the kernel.
pub(crate) fn file_of(path: &Path) -> Option<PathBuf> {
    if KernelKey::parse(&path.to_string_lossy()).is_some() {
        return None;
    }
    let state_dir = std::env::var_os(STATE_VARIABLE).map(PathBuf::from);
    let state_dir = state_dir.unwrap_or_else(|| PathBuf::from(DEFAULT_STATE_DIR));
    let (path, _) = locate(path, &Places::of(Some(&state_dir)));
    std::fs::metadata(&path).is_ok_and(|info| info.is_file()).then_some(path)
}

/// Whether it can be the name of a key.
fn is_word(path: &Path) -> bool {
    !path.to_string_lossy().contains('/')
}

/// The file that is meant: a word without a slash is the name of a key, if there is such a key.
fn locate(path: &Path, places: &Places) -> (PathBuf, Protection) {
    let name = path.to_str().filter(|_| is_word(path));
    name.and_then(|name| places.find(name)).unwrap_or_else(|| (path.to_owned(), Protection::File))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use raceline_control::keyring::KeyFolder;

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
        assert!(message.starts_with("--x: cannot use the secret in") && !message.contains("AAAA"));
        let message = read(&folder.path().join("none")).unwrap_err().message;
        assert!(message.contains("No such file"), "{message}");
        let message = read(folder.path()).unwrap_err().message;
        assert!(message.contains("is a folder"), "{message}");
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

    #[test]
    fn a_word_is_the_name_of_a_key_and_a_path_is_a_file() {
        let state = tempfile::tempdir().unwrap();
        let folder = KeyFolder::open(state.path()).unwrap();
        let kept = folder.add("web1", "x").unwrap();
        let mut places = Places::of(Some(state.path()));
        places.credentials = None;
        let located = |text: &str| locate(Path::new(text), &places).0;
        assert_eq!(located("web1"), kept);
        assert_eq!(located("./web1"), Path::new("./web1"));
        assert_eq!(located("web2"), Path::new("web2"));
    }
}
