//! The key of `raceline export --tls`: made on first use, kept in the state directory, and never printed.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use raceline_auth::{Hash, KeyError, TlsKey};
use raceline_bdev::Identity;
use raceline_control::keyring::KeyFolder;
use raceline_control::keyring::folder::FolderError;
use raceline_proto::nvme::Nqn;

use crate::cli::key::{DEFAULT_STATE_DIR, STATE_VARIABLE};
use crate::failure::Failure;
use crate::secrets;
use crate::table::printable;

/// What the names of these keys begin with.
const PREFIX: &str = "export-";
/// The longest name of a key.
const MAX_NAME_BYTES: usize = 128;

/// A key that is kept, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeptKey {
    /// Its name.
    pub(crate) name: String,
    /// Its file.
    pub(crate) file: PathBuf,
}

/// The key of a subsystem in the state directory of `raceline key`. One that is not there is made.
pub(crate) fn find_or_make(identity: &Identity, nqn: &Nqn) -> Result<(TlsKey, KeptKey), Failure> {
    let state_dir = std::env::var_os(STATE_VARIABLE).map(PathBuf::from);
    find_or_make_in(
        &state_dir.unwrap_or_else(|| PathBuf::from(DEFAULT_STATE_DIR)),
        &name_of(identity, nqn),
    )
}

fn find_or_make_in(state_dir: &Path, name: &str) -> Result<(TlsKey, KeptKey), Failure> {
    let cannot = |error: FolderError| {
        Failure::runtime(format!(
            "--tls keeps its key in a state directory, and cannot: {error}. Name a directory of yours \
             ({STATE_VARIABLE}=DIR), or a key (--tls-psk KEY)"
        ))
    };
    let folder = KeyFolder::open(state_dir).map_err(cannot)?;
    let file = folder.file(name).map_err(cannot)?;
    let made = match folder.read(name) {
        Err(FolderError::Missing(..)) => {
            let key = TlsKey::generate(Hash::Sha256).map_err(Failure::runtime)?;
            match folder.add(name, &key.to_text()) {
                // Another export has made it at the same moment.
                Err(FolderError::Exists(_)) => {}
                added => drop(added.map_err(cannot)?),
            }
            true
        }
        Err(error) => return Err(cannot(error)),
        Ok(_) => false,
    };
    let text = folder.read(name).map_err(cannot)?;
    let key = TlsKey::parse(&text).map_err(|error: KeyError| {
        Failure::runtime(format!("--tls: cannot use the key in {}: {error}", file.display()))
    })?;
    let what = if made { "made a key for TLS" } else { "took the key for TLS" };
    tracing::info!("{what}: {}", file.display());
    raceline_sandbox::hide_memory().map_err(Failure::runtime)?;
    Ok((key, KeptKey { name: name.to_owned(), file }))
}

/// The name of a subsystem's key: a name of a file that tells people what it is for.
fn name_of(identity: &Identity, nqn: &Nqn) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let letters = nqn.as_str().chars().map(|letter| if plain(letter) { letter } else { '-' });
    let name: String = PREFIX.chars().chain(letters).collect();
    if name.len() <= MAX_NAME_BYTES {
        return name;
    }
    format!("{PREFIX}{}", identity.derive("key of a subsystem", nqn.as_str().as_bytes()))
}

impl KeptKey {
    /// What to do on another machine. Writing to a String does not fail.
    pub(crate) fn advice(&self, nqn: &str, host: Option<&Nqn>, listener: SocketAddr) -> String {
        let Self { name, file } = self;
        let nqn = printable(nqn);
        let address = match listener.ip() {
            ip if ip.is_unspecified() => "ADDRESS".to_owned(),
            ip => ip.to_string(),
        };
        let at = format!("-a {address} -s {} -n {nqn}", listener.port());
        let (own, own_name) = match host {
            Some(host) => (format!(" -q {}", printable(host.as_str())), printable(host.as_str())),
            None => (String::new(), "\"$(cat /etc/nvme/hostnqn)\"".to_owned()),
        };
        let mut text = String::new();
        let _ = write!(
            text,
            "on the other machine, with {} copied to {name}.key (mode 0600)\n  \
             raceline identify {at}{own} --tls-psk ./{name}.key\n  \
             nvme check-tls-key --insert --identity 1 --hostnqn {own_name} --subsysnqn {nqn} \
             --keydata \"$(cat {name}.key)\" && nvme connect -t tcp {at}{own} --tls    # tlshd has to run\n",
            file.display()
        );
        text
    }
}

/// The key of `--tls-psk`, as the derivation of the command line has it.
pub(crate) fn given(file: &Path, compat: bool) -> Result<TlsKey, Failure> {
    let key: TlsKey = secrets::from_file("--tls-psk", file)?;
    Ok(key.with_derivation(secrets::derivation(compat)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_is_private() {
        let state = tempfile::tempdir().unwrap();
        let (key, kept) = find_or_make_in(state.path(), "export-x").unwrap();
        assert_eq!(kept.file, state.path().join("keys/export-x"));
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&kept.file), mode(kept.file.parent().unwrap())), (0o600, 0o700));
        assert_eq!(find_or_make_in(state.path(), "export-x").unwrap(), (key, kept.clone()));
        std::fs::write(&kept.file, "NVMeTLSkey-1:01:AAAA:").unwrap();
        let message = find_or_make_in(state.path(), "export-x").unwrap_err().message;
        assert!(message.contains("export-x") && !message.contains("AAAA"), "{message}");
        std::fs::set_permissions(&kept.file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let message = find_or_make_in(state.path(), "export-x").unwrap_err().message;
        assert!(message.contains("chmod 600") && message.contains("--tls-psk"), "{message}");
    }

    #[test]
    fn names_of_subsystems_become_names_of_files() {
        let identity = Identity::of_this_machine();
        let name = |text: &str| name_of(&identity, &Nqn::new(text).unwrap());
        assert_eq!(name("nqn.2026-01.io.x:disk 1"), "export-nqn.2026-01.io.x-disk-1");
        let long = [name(&"a".repeat(200)), name(&"a".repeat(201))];
        assert!(long[0] != long[1] && long.iter().all(|name| name.len() <= MAX_NAME_BYTES));
    }

    #[test]
    fn people_read_what_to_type_on_the_other_machine() {
        let kept = KeptKey { name: "export-x".to_owned(), file: "/s/keys/export-x".into() };
        let text = kept.advice("nqn.x", None, "192.0.2.1:4420".parse().unwrap());
        assert!(
            text.contains(
                "  raceline identify -a 192.0.2.1 -s 4420 -n nqn.x --tls-psk ./export-x.key\n"
            ),
            "{text}"
        );
        assert!(text.contains("nvme connect -t tcp -a 192.0.2.1 -s 4420 -n nqn.x --tls"), "{text}");
        let host = Nqn::new("nqn.h").unwrap();
        let text = kept.advice("nqn.x", Some(&host), "[::]:4420".parse().unwrap());
        assert!(text.contains("-a ADDRESS -s 4420 -n nqn.x -q nqn.h --tls"), "{text}");
        assert!(text.contains("--hostnqn nqn.h --subsysnqn nqn.x"), "{text}");
    }
}
