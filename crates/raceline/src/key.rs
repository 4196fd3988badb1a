//! `raceline key`: makes and keeps keys, and says what to do with them. A secret is never printed.

use std::fmt::Write as _;
use std::io::stdin;
use std::os::fd::AsFd as _;
use std::path::Path;

use raceline_auth::{DhchapSecret, Hash, TlsKey};
use raceline_control::keyring::KeyFolder;
use raceline_control::keyring::file;
use raceline_control::keyring::folder::OLD_SUFFIX;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::cli::key::{EndsArgs, KeyArgs, KeyKind, KeyVerb};
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::secrets;
use crate::shell;
use crate::table::{Table, printable};

/// What a key is, without its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Nature {
    kind: KeyKind,
    /// `None`: it is used as it is.
    hash: Option<Hash>,
}

/// Runs the verb.
pub(crate) fn run(args: &KeyArgs) -> Result<(), Failure> {
    let folder = KeyFolder::open(&args.state_dir).map_err(Failure::runtime)?;
    let keys = Keys { folder, output: args.output };
    match &args.verb {
        KeyVerb::Gen { name, kind, hash, ends } => {
            let nature = Nature { kind: *kind, hash: Some(hash.unwrap_or(Hash::Sha256)) };
            let path = keys.folder.add(name, &new_text(nature)?).map_err(Failure::runtime)?;
            keys.tell(name, nature, &path, &advice(name, nature, ends, Change::New))
        }
        KeyVerb::Import { name, file } => keys.import(name, file),
        KeyVerb::Ls => keys.list(),
        KeyVerb::Rotate { name, ends } => {
            let text = keys.folder.read(name).map_err(Failure::runtime)?;
            let nature = nature_of(&text)
                .map_err(|error| Failure::runtime(format!("{}: {error}", printable(name))))?;
            let path = keys.folder.replace(name, &new_text(nature)?).map_err(Failure::runtime)?;
            keys.tell(name, nature, &path, &advice(name, nature, ends, Change::Rotation))
        }
        KeyVerb::Rm { names } => keys.remove(names),
    }
}

struct Keys {
    folder: KeyFolder,
    output: OutputFormat,
}

impl Keys {
    fn import(&self, name: &str, file: &Path) -> Result<(), Failure> {
        let text = match file.to_str() {
            Some("-") => {
                let input = stdin().as_fd().try_clone_to_owned().map_err(Failure::runtime)?;
                file::read_text(Path::new("standard input"), &mut input.into())
                    .map_err(Failure::runtime)?
            }
            _ => secrets::text("FILE", file)?,
        };
        let nature = nature_of(&text).map_err(Failure::runtime)?;
        let path = self.folder.add(name, text.trim()).map_err(Failure::runtime)?;
        self.tell(name, nature, &path, "")
    }

    fn list(&self) -> Result<(), Failure> {
        let names = self.folder.names().map_err(Failure::runtime)?;
        let described = names.into_iter().map(|name| {
            let text = self.folder.read(&name).map_err(|error| error.to_string());
            let nature = text.and_then(|text| nature_of(&text));
            (name, nature)
        });
        let described: Vec<_> = described.collect();
        let text = match self.output {
            OutputFormat::Json => {
                let all = described.iter().map(|(name, nature)| match nature {
                    Ok(nature) => self.document(name, *nature),
                    Err(problem) => json!({ "name": name, "problem": problem }),
                });
                format!("{:#}\n", Value::from_iter(all))
            }
            OutputFormat::Table => {
                let mut table = Table::new(&["name", "kind", "hash", "problem"]);
                for (name, nature) in described {
                    let (kind, hash, problem) = match nature {
                        Ok(nature) => (nature.kind.word(), nature.hash_word(), String::new()),
                        Err(problem) => ("", String::new(), problem),
                    };
                    table.row([name, kind.to_owned(), hash, problem]);
                }
                table.render("")
            }
        };
        shell::print(text.as_bytes())
    }

    fn remove(&self, names: &[String]) -> Result<(), Failure> {
        for name in names {
            self.folder.remove(name).map_err(Failure::runtime)?;
            if self.output == OutputFormat::Table {
                shell::print(format!("{} is gone\n", printable(name)).as_bytes())?;
            }
        }
        match self.output {
            OutputFormat::Json => shell::print(b"true\n"),
            OutputFormat::Table => Ok(()),
        }
    }

    /// Says what was made, and what to do with it.
    fn tell(&self, name: &str, nature: Nature, path: &Path, advice: &str) -> Result<(), Failure> {
        let text = match self.output {
            OutputFormat::Json => format!("{:#}\n", self.document(name, nature)),
            OutputFormat::Table => {
                let (kind, hash) = (nature.kind.word(), nature.hash_word());
                format!("{name}: a key for {kind} ({hash}) in {}\n{advice}", path.display())
            }
        };
        shell::print(text.as_bytes())
    }

    fn document(&self, name: &str, nature: Nature) -> Value {
        let path = self.folder.path().join(name);
        let (kind, hash) = (nature.kind.word(), nature.hash_word());
        json!({ "name": name, "kind": kind, "hash": hash, "path": path })
    }
}

impl KeyKind {
    fn word(self) -> &'static str {
        match self {
            Self::Dhchap => "dhchap",
            Self::Tls => "tls",
        }
    }
}

impl Nature {
    fn hash_word(self) -> String {
        self.hash.map_or_else(|| "none".to_owned(), |hash| hash.to_string())
    }
}

/// What the text of a key is; an error shows no part of it.
fn nature_of(text: &str) -> Result<Nature, String> {
    let text = text.trim();
    let kind = match text.starts_with("NVMeTLSkey-1:") {
        true => TlsKey::parse(text).map(|_| KeyKind::Tls),
        false => DhchapSecret::parse(text).map(|_| KeyKind::Dhchap),
    };
    let kind = kind.map_err(|error| error.to_string())?;
    // A key that was read has two digits here.
    let digits = text.split(':').nth(1).and_then(|digits| digits.parse().ok());
    Ok(Nature { kind, hash: digits.and_then(Hash::from_id) })
}

/// The text of a new key of this nature.
fn new_text(Nature { kind, hash }: Nature) -> Result<Zeroizing<String>, Failure> {
    let text = match kind {
        KeyKind::Dhchap => DhchapSecret::generate(hash).map(|secret| secret.to_text()),
        KeyKind::Tls => match hash.unwrap_or(Hash::Sha256) {
            Hash::Sha512 => {
                return Err(Failure::usage("TLS has no suite with SHA-512: use sha256 or sha384"));
            }
            hash => TlsKey::generate(hash).map(|key| key.to_text()),
        },
    };
    text.map_err(Failure::runtime)
}

/// Why a key is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    New,
    Rotation,
}

/// What to do with a key on both sides. Writing to a String does not fail.
fn advice(name: &str, nature: Nature, ends: &EndsArgs, change: Change) -> String {
    let or = |given: Option<&str>, word: &str| given.map_or_else(|| word.to_owned(), printable);
    let host = or(ends.hostnqn.as_ref().map(|nqn| nqn.as_str()), "HOSTNQN");
    let nqn = or(ends.nqn.as_ref().map(|nqn| nqn.as_str()), "NQN");
    let address = or(ends.traddr.as_deref(), "ADDRESS");
    let at = format!("-t tcp -a {address} -s {} -n {nqn}", ends.trsvcid);
    let secret = format!("\"$(cat {name}.key)\"");
    let mut text = "on the daemon's machine\n".to_owned();
    let _ = match (nature.kind, change) {
        (KeyKind::Dhchap, Change::New) => {
            writeln!(text, "  raceline host add {nqn} {host} --dhchap-key {name}")
        }
        (KeyKind::Dhchap, Change::Rotation) => writeln!(
            text,
            "  raceline host set {nqn} {host} --dhchap-key {name} --previous-dhchap-key {name}{OLD_SUFFIX}"
        ),
        (KeyKind::Tls, Change::New) => writeln!(
            text,
            "  raceline host add {nqn} {host} --psk {name}\n  \
             raceline port add {nqn} {address}:{} --tls",
            ends.trsvcid
        ),
        (KeyKind::Tls, Change::Rotation) => writeln!(
            text,
            "  raceline host rm {nqn} {host} && raceline host add {nqn} {host} --psk {name}"
        ),
    };
    let _ = writeln!(text, "on the host, with the file copied to {name}.key (mode 0600)");
    let _ = match nature.kind {
        KeyKind::Dhchap => write!(
            text,
            "  nvme connect {at} -q {host} --dhchap-secret {secret}\n  \
             nvme connect {at} -q {host} --kxchap-secret {secret}    (nvme-cli 3)\n  \
             raceline identify -a {address} -s {} -n {nqn} -q {host} -S ./{name}.key\n",
            ends.trsvcid
        ),
        KeyKind::Tls => write!(
            text,
            "  nvme check-tls-key --insert --identity 1 --hostnqn {host} --subsysnqn {nqn} --keydata {secret}\n  \
             nvme keys insert-tls-psk --identity 1 --hostnqn {host} --subsysnqn {nqn} --keydata {secret}    \
             (nvme-cli 3)\n  nvme connect {at} -q {host} --tls\n  \
             raceline identify -a {address} -s {} -n {nqn} -q {host} --tls-psk ./{name}.key\n",
            ends.trsvcid
        ),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_as_what_they_are() {
        for kind in [KeyKind::Dhchap, KeyKind::Tls] {
            for hash in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
                let nature = Nature { kind, hash };
                match new_text(nature) {
                    Err(failure) => {
                        assert_eq!((kind, hash), (KeyKind::Tls, Some(Hash::Sha512)));
                        assert_eq!(failure.code, crate::failure::code::USAGE);
                    }
                    Ok(_) if kind == KeyKind::Tls && hash.is_none() => {}
                    Ok(text) => assert_eq!(nature_of(&text), Ok(nature)),
                }
            }
        }
        for text in ["", "DHHC-1:00:AAAA:", "NVMeTLSkey-1:00:AAAA:", "ssh-ed25519 AAAA"] {
            let problem = nature_of(text).unwrap_err();
            assert!(!problem.contains("AAAA"), "{problem}");
        }
    }

    #[test]
    fn people_read_what_to_type_and_no_secret() {
        let ends = EndsArgs {
            hostnqn: None,
            nqn: None,
            traddr: Some("192.0.2.1".to_owned()),
            trsvcid: 4420,
        };
        let nature = |kind| Nature { kind, hash: Some(Hash::Sha256) };
        let text = advice("k", nature(KeyKind::Dhchap), &ends, Change::New);
        let line = "  nvme connect -t tcp -a 192.0.2.1 -s 4420 -n NQN -q HOSTNQN --dhchap-secret \"$(cat k.key)\"\n";
        assert!(text.contains(line), "{text}");
        let text = advice("k", nature(KeyKind::Dhchap), &ends, Change::Rotation);
        assert!(text.contains("--dhchap-key k --previous-dhchap-key k.old\n"), "{text}");
        let text = advice("k", nature(KeyKind::Tls), &ends, Change::New);
        let line = "  nvme check-tls-key --insert --identity 1 --hostnqn HOSTNQN --subsysnqn NQN --keydata \"$(cat k.key)\"\n";
        assert!(text.contains(line), "{text}");
    }
}
