//! Tokens: read from a file, made, and compared in constant time.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq as _;

/// The shortest token: a shorter one could be guessed.
pub const MIN_TOKEN_BYTES: usize = 16;
/// The longest.
const MAX_TOKEN_BYTES: usize = 1024;
/// Random bytes of a token that is made.
const RANDOM_BYTES: usize = 32;
/// Rights of others.
const OTHERS: u32 = 0o007;

/// Why a token cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The file cannot be read or made.
    #[error("cannot use the token file {path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Everybody can read it.
    #[error("every user may read the token file {0}: chmod 0600 it, and change the token")]
    OpenToAll(PathBuf),
    /// It holds no token.
    #[error(
        "the token file {0} does not hold one line of {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} printable characters \
         without spaces: write one, for instance by openssl rand -hex 32"
    )]
    Form(PathBuf),
}

/// A secret that opens the server. It is not shown.
#[derive(Clone)]
pub struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// The token of a file that the operator has written.
    ///
    /// # Errors
    /// When the file cannot be read, is open to all, or holds no token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |error| TokenError::Io { path: path.to_owned(), error };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.mode() & OTHERS != 0 {
            return Err(TokenError::OpenToAll(path.to_owned()));
        }
        let mut text = Vec::new();
        // One byte more than the longest token with its line end tells that it is too long.
        let limit = MAX_TOKEN_BYTES as u64 + 3;
        file.take(limit).read_to_end(&mut text).map_err(failed)?;
        let token = text.trim_ascii_end();
        let fits = (MIN_TOKEN_BYTES..=MAX_TOKEN_BYTES).contains(&token.len());
        if !fits || !token.iter().all(u8::is_ascii_graphic) {
            return Err(TokenError::Form(path.to_owned()));
        }
        Ok(Self(token.to_vec()))
    }

    /// The token of a file, which is made with a random one if it is not there.
    ///
    /// # Errors
    /// As [`Self::read`] says, or when the file cannot be made.
    pub fn read_or_make(path: &Path) -> Result<Self, TokenError> {
        let failed = |error| TokenError::Io { path: path.to_owned(), error };
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        match made {
            Ok(mut file) => {
                let mut random = [0; RANDOM_BYTES];
                getrandom::fill(&mut random).map_err(|error| failed(io::Error::other(error)))?;
                let token = URL_SAFE_NO_PAD.encode(random);
                let written = writeln!(file, "{token}").and_then(|()| file.sync_all());
                if let Err(error) = written {
                    // Half a token would be taken for a whole one.
                    let _ = std::fs::remove_file(path);
                    return Err(failed(error));
                }
                Ok(Self(token.into_bytes()))
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::read(path),
            Err(error) => Err(failed(error)),
        }
    }

    /// Whether this is it. The time that this takes depends on lengths alone.
    pub(crate) fn is(&self, presented: &[u8]) -> bool {
        self.0.ct_eq(presented).into()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_is_made_once_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let made = Token::read_or_make(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.trim_end().len(), 43);
        assert!(made.is(text.trim_end().as_bytes()) && !made.is(text.as_bytes()));
        assert!(Token::read_or_make(&path).unwrap().is(text.trim_end().as_bytes()));
        let other = Token::read_or_make(&folder.path().join("other")).unwrap();
        assert!(!other.is(text.trim_end().as_bytes()));
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(matches!(Token::read(&path), Err(TokenError::Io { .. })));
        let long = "a".repeat(MAX_TOKEN_BYTES + 1);
        for text in
            ["", "\n", "short", "two lines of text\nand more\n", "with a space in it\n", &long]
        {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
            assert!(matches!(Token::read(&path), Err(TokenError::Form(_))), "{text:?}");
        }
        fs::write(&path, &long[..MAX_TOKEN_BYTES]).unwrap();
        assert!(Token::read(&path).is_ok());
        fs::set_permissions(&path, Permissions::from_mode(0o604)).unwrap();
        assert!(matches!(Token::read(&path), Err(TokenError::OpenToAll(_))));
    }
}
