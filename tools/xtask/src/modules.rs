//! Circles of modules that use each other: no module may join the circles of its crate.

use std::collections::{BTreeMap, BTreeSet};

/// The modules that are still in circles, by crate. The lists may only shrink.
///
/// A module is a file in the crate's root, or a folder. In a crate with [`FOLDERS`], it is a file or a
/// folder in one of these: `path::slots`.
const CIRCLES: &[(&str, &[&str])] =
    &[("control", &[]), ("host", &[]), ("proto", &[]), ("target", &[])];

/// Folders that only group modules, and are no modules themselves, by crate.
const FOLDERS: &[(&str, &[&str])] = &[("target", &["changes", "path", "records"])];

/// Each module with the modules of the same crate that it uses.
type Uses = BTreeMap<String, BTreeSet<String>>;

/// The checked crates, by their folders.
#[derive(Default)]
pub(crate) struct Crates {
    files: BTreeMap<String, Vec<(String, String)>>,
}

impl Crates {
    /// Takes a file of the repository, if it is a source of one of the crates.
    pub(crate) fn take(&mut self, name: &str, text: &str) {
        let Some(rest) = name.strip_prefix("crates/") else { return };
        let Some((folder, path)) = rest.split_once("/src/") else { return };
        let looked_at = CIRCLES.iter().any(|(known, _)| *known == folder);
        if let (true, Some(path)) = (looked_at, path.strip_suffix(".rs")) {
            self.files
                .entry(folder.to_owned())
                .or_default()
                .push((path.to_owned(), text.to_owned()));
        }
    }

    /// The faults of the crates.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let judge = |(folder, files): (&String, &Vec<(String, String)>)| {
            let (_, known) = CIRCLES.iter().find(|(known, _)| known == folder)?;
            Some(compare(folder, &in_circles(&uses(files, folders_of(folder))), known))
        };
        self.files.iter().filter_map(judge).flatten().collect()
    }
}

/// Modules that have joined the circles of a crate, and listed modules that have left them.
fn compare(folder: &str, found: &BTreeSet<String>, known: &[&str]) -> Vec<String> {
    let joined = found.iter().filter(|module| !known.contains(&module.as_str())).map(|module| {
        format!("crates/{folder}: module {module} is now part of a circle of modules that use each other")
    });
    let left = known.iter().filter(|module| !found.contains(**module)).map(|module| {
        format!("crates/{folder}: module {module} is in no circle any more: take it off the list in tools/xtask/src/modules.rs")
    });
    joined.chain(left).collect()
}

fn folders_of(folder: &str) -> &'static [&'static str] {
    let found = FOLDERS.iter().find(|(known, _)| *known == folder);
    found.map_or(&[], |(_, folders)| folders)
}

/// The uses of each module. A module's path has one component, or two if the first is one of `folders`.
fn uses(files: &[(String, String)], folders: &[&str]) -> Uses {
    let module_of = |path: &str| {
        let mut parts = path.split('/');
        match (parts.next().unwrap_or(path), parts.next()) {
            (folder, Some(name)) if folders.contains(&folder) => format!("{folder}::{name}"),
            (name, _) => name.to_owned(),
        }
    };
    let is_module = |name: &String| name != "lib" && !folders.contains(&name.as_str());
    let modules: BTreeSet<String> =
        files.iter().map(|(path, _)| module_of(path)).filter(is_module).collect();
    let mut uses = Uses::new();
    for (path, text) in files {
        let module = module_of(path);
        if !modules.contains(&module) {
            continue;
        }
        let used = uses.entry(module.clone()).or_default();
        // What `super` names: the root of the crate, one of the folders, or the module itself.
        let parent = match path.rsplit_once('/') {
            None => Some(String::new()),
            Some((folder, _)) => folders.contains(&folder).then(|| format!("{folder}::")),
        };
        for name in named(text, parent.as_deref(), folders) {
            if name != module && modules.contains(&name) {
                used.insert(name);
            }
        }
    }
    uses
}

/// The modules that are named by their paths from the root of the crate, outside tests and comments.
/// `parent`: what `super` stands for, if that is not the module itself.
fn named(text: &str, parent: Option<&str>, folders: &[&str]) -> BTreeSet<String> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
    let code: String = text.lines().map(code).collect::<Vec<_>>().join("\n");
    let mut names = BTreeSet::new();
    for (root, prefix) in [("crate::", Some("")), ("super::", parent)] {
        let Some(prefix) = prefix else { continue };
        for (at, _) in code.match_indices(root) {
            let whole_word = code[..at].chars().next_back().is_none_or(|c| !is_word(c) && c != ':');
            if whole_word {
                for (name, rest) in first_components(&code[at + root.len()..]) {
                    names.extend(modules_behind(prefix, &name, rest, folders));
                }
            }
        }
    }
    names
}

/// `name`; or, if it is one of the folders, the modules that `rest` names in it.
fn modules_behind(prefix: &str, name: &str, rest: &str, folders: &[&str]) -> Vec<String> {
    let inner = rest.strip_prefix("::").filter(|_| prefix.is_empty() && folders.contains(&name));
    match inner {
        Some(inner) => {
            let inner = first_components(inner).into_iter();
            inner.map(|(module, _)| format!("{name}::{module}")).collect()
        }
        None => vec![format!("{prefix}{name}")],
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// `a::b` names `a`; `{a, b::c}` names `a` and `b`. Each name comes with the text behind it.
fn first_components(rest: &str) -> Vec<(String, &str)> {
    let word = |text: &str| text.chars().take_while(|c| is_word(*c)).collect::<String>();
    let Some(list) = rest.strip_prefix('{') else {
        let name = word(rest);
        let behind = &rest[name.len()..];
        return vec![(name, behind)];
    };
    let mut names = Vec::new();
    let (mut depth, mut at_start) = (0, true);
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => at_start = true,
            _ if at_start && is_word(letter) => {
                let name = word(&list[at..]);
                let behind = &list[at + name.len()..];
                names.push((name, behind));
                at_start = false;
            }
            _ => {}
        }
    }
    names
}

/// The modules that use themselves by way of others.
fn in_circles(uses: &Uses) -> BTreeSet<String> {
    let reaches_itself = |start: &&String| {
        let mut seen = BTreeSet::new();
        let mut next = vec![*start];
        while let Some(module) = next.pop() {
            for used in uses.get(module).into_iter().flatten() {
                if used == *start {
                    return true;
                }
                if seen.insert(used) {
                    next.push(used);
                }
            }
        }
        false
    };
    uses.keys().filter(reaches_itself).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        in_circles(&uses(&files, &["x", "y"])).into_iter().collect()
    }

    #[test]
    fn circles_are_found_however_paths_are_written() {
        let lib = ("lib", "mod a; mod b; mod c; use a::A;");
        let a = ("a", "use crate::b::B;\nfn a() { super::d::f() }");
        let b = ("b/part", "use crate::{c::{C, D}, e};");
        let c = ("c", "fn c(x: crate::a::A) {}");
        let d =
            ("d", "// crate::a\nuse crate::Thing;\n#[cfg(test)]\nmod tests { use crate::a::A; }");
        let e = ("e", "use crate::e::own; use other_crate::a::A;");
        assert_eq!(circles(&[lib, a, b, c, d, e]), ["a", "b", "c"]);
        assert!(circles(&[lib, a, b, d, e, ("c", "")]).is_empty());
        // Within a folder, super is the folder.
        assert!(circles(&[("a", "use crate::b;"), ("b/x", "use super::a;")]).is_empty());
    }

    #[test]
    fn circles_are_found_within_folders_and_between_them() {
        let lib = ("lib", "mod x; mod y; pub use x::a::A;");
        let folder = ("x", "pub(crate) mod a; pub(crate) mod b;");
        let a = ("x/a", "use crate::x::b::B;");
        let b = ("x/b", "use crate::{x::c, y::{d::D, e}};");
        let e = ("y/e/part", "use crate::x::a::A;");
        let same = ("x/c", "use super::a::A;");
        assert_eq!(circles(&[lib, folder, a, b, e]), ["x::a", "x::b", "y::e"]);
        assert_eq!(circles(&[lib, folder, a, b, same]), ["x::a", "x::b", "x::c"]);
        assert!(circles(&[lib, folder, a, b, ("y/d", "use crate::y::e;")]).is_empty());
        // Within a module's folder, super is the module.
        assert!(circles(&[a, ("x/b/part", "use super::a;")]).is_empty());
    }

    #[test]
    fn the_list_only_shrinks() {
        let found = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        assert!(compare("x", &found, &["a", "b"]).is_empty());
        assert!(compare("x", &found, &["a"])[0].contains("module b is now part of a circle"));
        assert!(compare("x", &found, &["a", "b", "c"])[0].contains("module c is in no circle"));
    }
}
