//! libraceline: its header, its shared library, and the example in C against a target of Raceline.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::child::{Task, has_program};
use crate::raceline::{Export, Tree};
use crate::setup;
use crate::step::{Checks, Outcome};

/// The version of the interface: a part of the shared library's name.
const SONAME: &str = "libraceline.so.1";
/// The version of its symbols, as in `libraceline.map`.
const SYMBOL_VERSION: &str = "@@RACELINE_1";
/// Where the header is.
const HEADER: &str = "crates/capi/include/raceline.h";
/// The sources with entries, in the order of the header.
const SOURCES: [&str; 5] = ["status", "config", "host", "queues", "buffer"];
/// System libraries that the static library needs.
pub(crate) const SYSTEM_LIBRARIES: [&str; 4] = ["-lgcc_s", "-lpthread", "-lm", "-ldl"];
/// Time for a release build with empty caches on two cores, in seconds.
const BUILD_LIMIT_S: u64 = 1200;
/// Time for the example, in seconds.
const EXAMPLE_LIMIT_S: u64 = 60;

/// Writes the header and builds the shared library.
pub(crate) fn build(tree: &Tree) -> Result<Outcome> {
    std::fs::write(tree.root.join(HEADER), header(&tree.root)?)?;
    let library = shared_library(tree)?;
    Ok(Outcome::Passed(library.display().to_string()))
}

/// Checks that the header matches the sources, and that C compilers accept it.
pub(crate) fn check_header(root: &Path) -> Result<Outcome> {
    let is = std::fs::read_to_string(root.join(HEADER)).unwrap_or_default();
    ensure!(is == header(root)?, "{HEADER} is not what the sources say: run cargo xtask capi");
    if !has_program("cc") {
        return Ok(Outcome::Passed("current; no C compiler here".to_owned()));
    }
    for (language, standard) in [("c", "-std=c11"), ("c++", "-std=c++17")] {
        let mut task = Task::new("cc").args(["-x", language, standard, "-fsyntax-only"]);
        task = task.args(["-Wall", "-Wextra", "-Werror", "-pedantic"]).args([root.join(HEADER)]);
        task.limit(60).check().with_context(|| format!("as {language}"))?;
    }
    Ok(Outcome::Passed("current, and C and C++".to_owned()))
}

/// The static library, built once. Of the crate's types only this one is made: with the other, cargo would compile all crates
/// below to machine code besides what they are linked from, and would not optimise across them.
pub(crate) fn static_library(tree: &Tree) -> Result<PathBuf> {
    let args = ["rustc", "--quiet", "--release", "--locked", "--package", "raceline-capi"];
    let args = args.into_iter().chain(["--crate-type", "staticlib"]);
    Task::new("cargo").args(args).dir(&tree.root).limit(BUILD_LIMIT_S).echo().check()?;
    let library = tree.target.join("release/libraceline.a");
    ensure!(library.is_file(), "the build left no {}", library.display());
    Ok(library)
}

/// The step: the library's symbols, and the example in C, also under AddressSanitizer.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    if !has_program("cc") {
        return setup::cannot("missing: cc (cargo xtask setup)");
    }
    let mut checks = Checks::default();
    let library = shared_library(tree)?;
    checks.run("symbols", || symbols(&tree.root, &library));
    let scratch = tree.scratch("capi")?;
    let target = Export::start(tree, &["ram:64M"])?;
    let variants: [(&str, &[&str]); 2] =
        [("example", &["-O2"]), ("example-asan", &["-O1", "-g", "-fsanitize=address,undefined"])];
    for (name, flags) in variants {
        checks.run(name, || {
            let program = scratch.join(name);
            compile_example(tree, flags, &program)?;
            run_example(tree, &program, &target)
        });
    }
    checks.run("example-without-target", || {
        let port = target.port.to_string();
        target.stop("TERM")?;
        let task = example(
            tree,
            &scratch.join("example"),
            &["127.0.0.1", &port, "nqn.2014-08.org.example:gone"],
        );
        let ended = task.run()?;
        ensure!(!ended.success(), "it works without a target");
        ensure!(ended.output.contains("nothing listens there"), "{}", ended.tail(5));
        Ok(())
    });
    checks.outcome()
}

/// The header as cbindgen makes it.
fn header(root: &Path) -> Result<String> {
    let crate_root = root.join("crates/capi");
    let config = cbindgen::Config::from_file(crate_root.join("cbindgen.toml"));
    let config = config.map_err(|why| anyhow::anyhow!("cbindgen.toml: {why}"))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(crate_root.join(format!("src/{source}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().context("the header cannot be made")?.write(&mut text);
    let text = String::from_utf8(text).context("the header is no text")?;
    // The top of the header tells C users about safety in other words.
    Ok(without_safety(&text))
}

/// Drops the paragraphs "# Safety" of the comments.
fn without_safety(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut dropping = false;
    for line in text.lines() {
        let bare = line.trim();
        if bare == "* # Safety" {
            dropping = true;
            while lines.last().is_some_and(|line| line.trim() == "*") {
                lines.pop();
            }
        }
        dropping &= bare != "*/";
        if !dropping {
            lines.push(line);
        }
    }
    lines.join("\n") + "\n"
}

/// Makes the shared library from the static one: rustc gives the linker a version script of its own for a
/// `cdylib`, and linkers take no second one with versions.
fn shared_library(tree: &Tree) -> Result<PathBuf> {
    let archive = static_library(tree)?;
    let library = tree.target.join("release").join(SONAME);
    let map = tree.root.join("crates/capi/libraceline.map");
    Task::new("cc")
        .args(["-shared", "-Wl,-z,defs", "-Wl,-z,nodelete", "-Wl,--gc-sections"])
        .args([format!("-Wl,-soname,{SONAME}"), format!("-Wl,--version-script={}", map.display())])
        .args(entries(&tree.root)?.iter().map(|name| format!("-Wl,-u,{name}")))
        .args([&archive])
        .args(SYSTEM_LIBRARIES)
        .args(["-o"])
        .args([&library])
        .limit(120)
        .check()?;
    let link = tree.target.join("release/libraceline.so");
    if link.symlink_metadata().is_ok() {
        std::fs::remove_file(&link)?;
    }
    std::os::unix::fs::symlink(SONAME, &link)?;
    Ok(library)
}

/// The names of the functions in the header.
fn entries(root: &Path) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(root.join(HEADER))?;
    let mut names = BTreeSet::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with(['*', '/', '#'])) {
        let Some((before, _)) = line.split_once('(') else { continue };
        let name = before.rsplit([' ', '*']).next().unwrap_or("");
        if name.starts_with("raceline_") {
            names.insert(name.to_owned());
        }
    }
    ensure!(!names.is_empty(), "{HEADER} has no functions");
    Ok(names)
}

/// The library must export the functions of the header, with their version, and nothing else.
fn symbols(root: &Path, library: &Path) -> Result<()> {
    let ended = Task::new("nm").args(["-D", "--defined-only"]).args([library]).limit(60).check()?;
    let mut found = BTreeSet::new();
    for line in ended.stdout.lines() {
        let [_, kind, name] = line.split_whitespace().collect::<Vec<_>>()[..] else { continue };
        if kind == "A" {
            continue; // the version itself
        }
        let Some(bare) = name.strip_suffix(SYMBOL_VERSION) else {
            bail!("{name} is exported without {SYMBOL_VERSION}");
        };
        found.insert(bare.to_owned());
    }
    let expected = entries(root)?;
    ensure!(found == expected, "exported: {found:?}\nin the header: {expected:?}");
    let ended = Task::new("readelf").args(["-d"]).args([library]).limit(60).check()?;
    ensure!(ended.stdout.contains(&format!("[{SONAME}]")), "no soname:\n{}", ended.tail(20));
    Ok(())
}

fn compile_example(tree: &Tree, flags: &[&str], program: &Path) -> Result<()> {
    Task::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .args(flags)
        .args([tree.root.join("crates/capi/examples/verify.c")])
        .args(["-I"])
        .args([tree.root.join("crates/capi/include")])
        .args(["-L"])
        .args([tree.target.join("release")])
        .args(["-lraceline", "-o"])
        .args([program])
        .limit(120)
        .check()?;
    Ok(())
}

fn example(tree: &Tree, program: &Path, words: &[&str]) -> Task {
    let libraries = tree.target.join("release");
    Task::new(program).args(words).env("LD_LIBRARY_PATH", libraries).limit(EXAMPLE_LIMIT_S)
}

fn run_example(tree: &Tree, program: &Path, target: &Export) -> Result<()> {
    let port = target.port.to_string();
    let ended = example(tree, program, &["127.0.0.1", &port, &target.nqn]).check()?;
    ensure!(ended.stdout.contains("all data are right"), "{}", ended.tail(10));
    Ok(())
}
