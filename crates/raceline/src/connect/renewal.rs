//! Secrets whose files change while a disk is there: they are read again, and count from the next connection on.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use raceline_host::CredentialStore;

use crate::cli::host::AddressArgs;
use crate::failure::Failure;
use crate::{remote, secrets};

/// Which file it is, of which time and length.
type Stamp = Option<(u64, i64, i64, u64)>;

/// The secrets of a host for DH-HMAC-CHAP, and the files that they are from.
pub(super) struct Renewal {
    args: AddressArgs,
    store: CredentialStore,
    files: Vec<PathBuf>,
    seen: Vec<Stamp>,
}

impl Renewal {
    /// Of the secrets that these options name, as they have just been read.
    pub(super) fn new(args: AddressArgs, store: CredentialStore) -> Self {
        let named = [&args.dhchap_secret, &args.dhchap_ctrl_secret];
        let files: Vec<PathBuf> =
            named.into_iter().flatten().filter_map(|path| secrets::file_of(path)).collect();
        let seen = files.iter().map(stamp).collect();
        Self { args, store, files, seen }
    }

    /// Reads them again if a file is another one than before. What cannot be read leaves the secrets as they are.
    pub(super) fn look(&mut self) {
        let now: Vec<Stamp> = self.files.iter().map(stamp).collect();
        if now == self.seen {
            return;
        }
        self.seen = now;
        match self.read() {
            Ok(()) => {
                tracing::info!("the secrets were read again, and count from the next connection on")
            }
            Err(failure) => tracing::warn!(
                "a secret has changed, and the one before goes on counting: {failure}; a file that is right counts at once"
            ),
        }
    }

    fn read(&self) -> Result<(), Failure> {
        if let Some(credentials) = remote::credentials(&self.args)? {
            self.store.set(Some(Arc::new(credentials)));
        }
        Ok(())
    }
}

fn stamp(file: &PathBuf) -> Stamp {
    let info = std::fs::metadata(file).ok()?;
    Some((info.ino(), info.mtime(), info.mtime_nsec(), info.len()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use clap::Parser as _;
    use raceline_auth::DhchapSecret;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        address: AddressArgs,
    }

    fn write(file: &Path, text: &str) {
        // As an administrator should: the file is whole or not there.
        let new = file.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(new, file).unwrap();
    }

    #[test]
    fn a_secret_that_changes_in_its_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let [first, second] = [(); 2].map(|()| DhchapSecret::generate(None).unwrap().to_text());
        write(&file, &first);
        let shown = file.to_string_lossy().into_owned();
        let args = Line::parse_from(["x", "-a", "127.0.0.1", "-S", &shown]).address;
        let store = CredentialStore::default();
        store.set(remote::credentials(&args).unwrap().map(Arc::new));
        let has = |secret: &str| *store.get().unwrap().secret.to_text() == secret;
        let mut renewal = Renewal::new(args, store.clone());
        renewal.look();
        assert!(has(&first));
        // What is no secret, and what is not there, leave it as it is.
        write(&file, "DHHC-1:00:broken");
        renewal.look();
        std::fs::remove_file(&file).unwrap();
        renewal.look();
        assert!(has(&first));
        write(&file, &second);
        renewal.look();
        assert!(has(&second));
    }
}
