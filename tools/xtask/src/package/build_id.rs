//! The build id of a program: a digest of what is packaged.
//!
//! The linker computes it over the whole program, with the lines for debuggers, in which the folder of the build stands. So
//! builds of one commit in two folders have different ids, and nothing else differs once those lines are gone.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use sha2::{Digest as _, Sha256};

use crate::child::Task;

/// The words before the id in what `readelf --notes` prints.
const LABEL: &str = "Build ID: ";

/// Replaces the id of a program by the digest of the program with zeros for an id. A program without one stays as it is.
pub(super) fn renew(program: &Path) -> Result<()> {
    let ended = Task::new("readelf")
        .args(["--notes".as_ref(), "--wide".as_ref(), program.as_os_str()])
        .env("LC_ALL", "C")
        .check()?;
    let Some(id) = id(&ended.stdout)? else { return Ok(()) };
    let mut bytes = std::fs::read(program)?;
    replace(&mut bytes, &id).with_context(|| program.display().to_string())?;
    std::fs::write(program, bytes)?;
    Ok(())
}

/// The id by what `readelf` says.
fn id(notes: &str) -> Result<Option<Vec<u8>>> {
    // With `--wide` it stands behind the kind of the note, without it on a line of its own.
    let Some((_, hex)) = notes.lines().find_map(|line| line.split_once(LABEL)) else {
        return Ok(None);
    };
    let hex = hex.trim_end();
    let byte = |at| hex.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    let id: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
    Ok(Some(id.with_context(|| format!("readelf shows the build id {hex}"))?))
}

fn replace(bytes: &mut [u8], id: &[u8]) -> Result<()> {
    ensure!(id.len() >= 8, "a build id of only {} bytes", id.len());
    let mut places = bytes.windows(id.len()).enumerate().filter(|(_, part)| *part == id);
    let at = places.next().map(|(at, _)| at).context("the build id is not in the program")?;
    ensure!(places.next().is_none(), "the build id is in the program twice");
    bytes[at..at + id.len()].fill(0);
    let digest = Sha256::digest(&*bytes);
    for (byte, value) in bytes[at..at + id.len()].iter_mut().zip(digest) {
        *byte = value;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_depends_on_the_program_only() {
        let notes =
            "Displaying notes\n  GNU  0x14\tNT_GNU_BUILD_ID\n    Build ID: 0123456789abcdef\n";
        let old = id(notes).unwrap().unwrap();
        assert_eq!(old, [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        let program = |id: &[u8], code: &[u8]| [b"note ".as_slice(), id, code].concat();
        let renewed = |id: &[u8], code: &[u8]| {
            let mut program = program(id, code);
            replace(&mut program, id).unwrap();
            program
        };
        let one = renewed(&old, b"code");
        assert_eq!(one, renewed(b"another!", b"code"));
        assert_ne!(one[..13], renewed(&old, b"edoc")[..13]);
        assert_ne!(one, program(&[0; 8], b"code"));
        assert!(replace(&mut program(b"another!", b"code"), &old).is_err());
        assert!(replace(&mut program(&old, &old), &old).is_err());
        let wide = "  GNU  0x14\tNT_GNU_BUILD_ID (unique build ID bitstring)\t    Build ID: 0123456789abcdef\n";
        assert_eq!(id(wide).unwrap().unwrap(), old);
        assert_eq!(id("no notes\n").unwrap(), None);
        assert!(id("  Build ID: 0x\n").is_err());
    }
}
