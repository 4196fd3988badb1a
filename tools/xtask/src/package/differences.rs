//! How packages of two builds differ: which file, which member of it, and what stands at the first difference.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Packages;
use crate::child::{Task, has_program};

/// The most differences that are named.
const MOST: usize = 10;
/// Bytes that are shown before the first difference, and from there on.
const BEFORE: usize = 48;
const AFTER: usize = 48;

/// An error that names what differs, if anything does.
pub(super) fn none(one: &Packages, other: &Packages) -> Result<()> {
    let mut all = Vec::new();
    for (one, other) in one.files().into_iter().zip(other.files()) {
        all.extend(files(one, other)?);
    }
    ensure!(all.is_empty(), "{}", all.join("\n"));
    Ok(())
}

/// What differs in two files: nothing, or a line for each member.
pub(super) fn files(one: &Path, other: &Path) -> Result<Vec<String>> {
    let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
    let [left, right] = [read(one)?, read(other)?];
    if left == right {
        return Ok(Vec::new());
    }
    let name = one.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut lines = match members(one).and_then(|left| Ok((left, members(other)?))) {
        Ok((left, right)) => of_members(&left, &right),
        Err(error) => vec![format!("its members cannot be listed: {error:#}")],
    };
    if lines.is_empty() {
        lines.push(place(&left, &right));
    }
    let left_out = lines.len().saturating_sub(MOST);
    lines.truncate(MOST);
    if left_out > 0 {
        lines.push(format!("and {left_out} more"));
    }
    Ok(lines.into_iter().map(|line| format!("{name} differs: {line}")).collect())
}

/// The members of a package, each with what is known of it. A file of another kind has none.
fn members(file: &Path) -> Result<BTreeMap<String, String>> {
    let path = file.to_string_lossy().into_owned();
    let said = |program: &str, args: &[&str]| -> Result<String> {
        let args = args.iter().copied().chain([path.as_str()]);
        Ok(Task::new(program).args(args).env("LC_ALL", "C").env("TZ", "UTC").check()?.stdout)
    };
    let listed = match file.extension().and_then(|name| name.to_str()) {
        Some("deb") => {
            let list = said("dpkg-deb", &["--contents"])?;
            let sums = "mkdir \"$1.d\" && dpkg-deb --raw-extract \"$0\" \"$1.d\" && cd \"$1.d\" && \
                        find . -type f -exec sha256sum {} +; rm -rf \"$1.d\"";
            let args = ["-c", sums, &path, &path];
            let sums = Task::new("sh").args(args).env("LC_ALL", "C").check()?.stdout;
            by_last_word(&list).chain(by_last_word(&sums)).collect::<Vec<_>>()
        }
        Some("rpm") if has_program("rpm") => {
            let list = said("rpm", &["--query", "--dump", "--nosignature", "--package"])?;
            let split = |line: &str| {
                let (path, rest) = line.split_once(' ')?;
                Some((path.to_owned(), rest.to_owned()))
            };
            list.lines().filter_map(split).collect()
        }
        Some("tar" | "gz") => {
            by_last_word(&said("tar", &["--list", "--verbose", "--file"])?).collect()
        }
        _ => Vec::new(),
    };
    let mut all = BTreeMap::<String, String>::new();
    for (name, what) in listed {
        let known = all.entry(name).or_default();
        // Writing to a string does not fail.
        let _ = write!(known, " {what}");
    }
    Ok(all)
}

/// Lines as pairs of their last word and the words before it.
fn by_last_word(text: &str) -> impl Iterator<Item = (String, String)> + '_ {
    text.lines().filter_map(|line| {
        let (what, name) = line.rsplit_once(' ')?;
        Some((name.to_owned(), what.split_whitespace().collect::<Vec<_>>().join(" ")))
    })
}

fn of_members(left: &BTreeMap<String, String>, right: &BTreeMap<String, String>) -> Vec<String> {
    let names = left.keys().chain(right.keys().filter(|name| !left.contains_key(*name)));
    names
        .filter_map(|name| match (left.get(name), right.get(name)) {
            (Some(one), Some(other)) if one == other => None,
            (Some(one), Some(other)) => Some(format!("{name}: {} | {}", one.trim(), other.trim())),
            (Some(_), None) => Some(format!("{name} is in the first only")),
            _ => Some(format!("{name} is in the second only")),
        })
        .collect()
}

/// The first place at which bytes differ, and what can be read there.
fn place(left: &[u8], right: &[u8]) -> String {
    let same = left.iter().zip(right).take_while(|(one, other)| one == other).count();
    let around = |bytes: &[u8]| {
        let part = &bytes[same.saturating_sub(BEFORE)..bytes.len().min(same + AFTER)];
        let is_text = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
        part.iter().map(|byte| if is_text(*byte) { char::from(*byte) } else { '.' }).collect()
    };
    let [one, other]: [String; 2] = [around(left), around(right)];
    let differ = left.iter().zip(right).filter(|(one, other)| one != other).count();
    format!(
        "{} and {} bytes, {differ} of them differ, the first at byte {same}: `{one}` | `{other}`",
        left.len(),
        right.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_shown() {
        let said = place(b"panicked at /home/one/src/x.rs", b"panicked at /home/two/src/x.rs");
        assert!(
            said.starts_with("30 and 30 bytes, 3 of them differ, the first at byte 18"),
            "{said}"
        );
        assert!(
            said.contains("/home/one/src/x.rs") && said.contains("/home/two/src/x.rs"),
            "{said}"
        );
        assert!(
            place(b"same", b"same and more")
                .contains("the first at byte 4: `same` | `same and more`")
        );
    }

    #[test]
    fn members_are_compared_by_name() {
        let all = |text| by_last_word(text).collect::<BTreeMap<_, _>>();
        let one = all("-rw 3  ./a\n-rw 4 ./b\n-rw 5 ./c\n");
        assert_eq!(of_members(&one, &one), Vec::<String>::new());
        let other = all("-rw 3 ./a\n-r-- 4 ./b\n-rw 1 ./d\n");
        assert_eq!(
            of_members(&one, &other),
            ["./b: -rw 4 | -r-- 4", "./c is in the first only", "./d is in the second only"]
        );
    }

    #[test]
    fn equal_files_have_no_differences_and_others_a_line() {
        let folder = std::env::temp_dir().join(format!("xtask-differences-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [one, other] = ["one", "other"].map(|name| folder.join(name));
        std::fs::write(&one, "text 1").unwrap();
        std::fs::write(&other, "text 1").unwrap();
        assert_eq!(files(&one, &other).unwrap(), Vec::<String>::new());
        std::fs::write(&other, "text 2").unwrap();
        let said = files(&one, &other).unwrap();
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("one differs: 6 and 6 bytes, 1 of them differ"), "{said:?}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
