//! Arguments about what a process gives up.

use std::path::{Path, PathBuf};

/// `--sandbox`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SandboxChoice {
    /// Give up nothing: for a debugger, or to find out whether the sandbox is the reason of a failure
    Off,
    /// Give up all of it, or do not start
    On,
}

/// Arguments of verbs that run a target.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct SandboxArgs {
    /// Give up, once started, what the program does not need: capabilities, files, system calls
    /// [default: on, as far as this kernel can]
    #[arg(long, value_enum, value_name = "WHETHER")]
    pub(crate) sandbox: Option<SandboxChoice>,
}

/// A file or folder by its one name, so that what is permitted is what was written.
pub(crate) fn confine_path(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    if !path.is_absolute() {
        return Err("it does not begin with `/`: write the whole path".to_owned());
    }
    let real = path.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            "it is not there: make it first, because what is made later is not what was permitted"
                .to_owned()
        }
        _ => error.to_string(),
    })?;
    if real != path {
        return Err(format!(
            "it is another name of {0} (by a symbolic link or `..`): write {0}, because a link can lead elsewhere \
             later",
            real.display()
        ));
    }
    Ok(real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_name() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        let link = real.with_file_name("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        assert_eq!(confine_path(&text(&real)), Ok(real.clone()));
        assert_eq!(confine_path(&format!("{}/", real.display())), Ok(real.clone()));
        for (path, expected) in [
            ("volumes".to_owned(), "write the whole path"),
            (String::new(), "write the whole path"),
            (text(&real.join("missing")), "make it first"),
            (text(&link), "another name of"),
            (text(&link.join(".")), "another name of"),
            (text(&real.join("../real")), "another name of"),
        ] {
            let error = confine_path(&path).unwrap_err();
            assert!(error.contains(expected), "{path}: {error}");
        }
    }
}
