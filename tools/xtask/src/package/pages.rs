//! The pages of the manual in the packages: which they are, and links that lead to what is installed.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Packages;
use super::archive::{Entry, gzip};
use super::deb::{DOCUMENTS, PACKAGING};
use crate::child::Task;

/// The pages, by their places in the repository.
const PAGES: [&str; 8] = [
    "docs/manual.md",
    "docs/OPERATORS.md",
    "docs/RPC.md",
    "docs/METRICS.md",
    "docs/HA.md",
    "docs/fabrics.md",
    "docs/ACCEL.md",
    "SECURITY.md",
];
/// Between the text of a link and its target.
const LINK: &str = "](";

/// The files of all pages.
pub(super) fn files(root: &Path) -> Result<Vec<Entry>> {
    let file = |page: &&str| {
        let text = std::fs::read_to_string(root.join(page)).with_context(|| (*page).to_owned())?;
        let name = format!("{DOCUMENTS}/{}", installed(page));
        Ok(Entry::file(&name, 0o644, gzip(rewritten(page, &text).as_bytes())?))
    };
    PAGES.iter().map(file).collect()
}

/// The name of a page in the folder of documents.
fn installed(page: &str) -> String {
    format!("{}.gz", page.rsplit('/').next().unwrap_or(page))
}

/// Whether the target of a link is a file, and not a place on the page or elsewhere.
fn is_file(target: &str) -> bool {
    !target.starts_with('#') && !target.contains("://") && !target.starts_with("mailto:")
}

/// Where a relative link of a page leads in the repository.
fn resolved(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The text of a page with links to what is installed. What is not becomes text that names the file of the source.
fn rewritten(page: &str, text: &str) -> String {
    let mut whole = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(LINK) {
        let Some((target, after)) = after.split_once(')').filter(|(target, _)| is_file(target))
        else {
            whole.push_str(before);
            whole.push_str(LINK);
            rest = after;
            continue;
        };
        let (file, place) = target.split_once('#').map_or((target, None), |(f, p)| (f, Some(p)));
        let file = resolved(page, file);
        let place = place.map(|place| format!("#{place}")).unwrap_or_default();
        let packaged = file.strip_prefix("packaging/");
        let packaged = packaged.and_then(|file| PACKAGING.iter().find(|(name, _)| *name == file));
        whole.push_str(before);
        if PAGES.contains(&file.as_str()) {
            whole.push_str(&format!("{LINK}{}{place})", installed(&file)));
        } else if let Some((_, path)) = packaged {
            whole.push_str(&format!("{LINK}/{path})"));
        } else if let Some(begin) = whole.rfind('[') {
            whole.remove(begin);
            whole.push_str(&format!(" (`{file}` of the source)"));
        }
        rest = after;
    }
    whole.push_str(rest);
    whole
}

/// Every link of an installed page leads to a file that the package has.
pub(super) fn check(made: &Packages, root: &Path) -> Result<()> {
    std::fs::create_dir_all(root)?;
    let deb = made.deb.to_string_lossy().into_owned();
    Task::new("dpkg-deb").args(["--extract", &deb, &root.to_string_lossy()]).check()?;
    let folder = root.join(DOCUMENTS);
    let (mut pages, mut links, mut lost) = (0, 0, BTreeSet::new());
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.ends_with(".md.gz") {
            continue;
        }
        let text = Task::new("gzip").args(["--decompress", "--stdout"]).args([&path]).check()?;
        for part in text.stdout.split(LINK).skip(1) {
            let target = part.split(')').next().unwrap_or_default();
            let file = target.split('#').next().unwrap_or_default();
            let to = match file.strip_prefix('/') {
                Some(file) => root.join(file),
                None => folder.join(file),
            };
            if is_file(target) && !to.is_file() {
                lost.insert(format!("{name}: {target}"));
            }
            links += usize::from(is_file(target));
        }
        pages += 1;
    }
    ensure!(pages == PAGES.len(), "the package has {pages} pages");
    ensure!(links > 30, "the pages have only {links} links");
    ensure!(
        lost.is_empty(),
        "links to nothing: {}",
        lost.into_iter().collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_what_is_installed() {
        let text = "[a](HA.md#b), [c](#d), [e](https://f/g.md), [h](../SECURITY.md), \
            [i](../packaging/raceline.service), [j k](lab/1.md#l) and a[0](x).";
        let expected = "[a](HA.md.gz#b), [c](#d), [e](https://f/g.md), [h](SECURITY.md.gz), \
            [i](/usr/lib/systemd/system/raceline.service), j k (`docs/lab/1.md` of the source) and a0 (`docs/x` of the source).";
        assert_eq!(rewritten("docs/manual.md", text), expected);
        assert_eq!(resolved("SECURITY.md", "docs/manual.md"), "docs/manual.md");
    }
}
