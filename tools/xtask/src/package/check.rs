//! The packages step: the packages are the same when they are made again, and install, upgrade and remove cleanly.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::deb::PROGRAM;
use super::image::USER;
use super::supply::Supply;
use super::{Packages, binary, containers, make, pages};
use crate::child::{Task, has_program};
use crate::raceline::Tree;
use crate::step::{Checks, Outcome};
use crate::{python, setup};

/// CycloneDX's validator, a Python package.
const VALIDATOR: &str = "cyclonedx-python-lib[json-validation]==11.12.0";
/// Judges the file that its argument names.
const VALIDATE: &str = "
import pathlib, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
wrong = JsonStrictValidator(SchemaVersion.V1_5).validate_str(pathlib.Path(sys.argv[1]).read_text())
sys.exit(str(wrong)[:2000] if wrong else 0)
";

/// The most that RDMA may add to the program.
const MOST_RDMA_BYTES: u64 = 400 << 10;

/// Runs the checks that need no network.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    if let Some(why) = setup::missing_for("packages") {
        return setup::cannot(&why);
    }
    if !setup::is_root() {
        return Ok(Outcome::Skipped("only root can install packages".to_owned()));
    }
    let scratch = tree.scratch("packages")?;
    let binary = &binary(tree)?;
    let made = make(tree, binary, &scratch.join("first"))?;
    let mut checks = Checks::default();
    checks.run("the-same-again", || the_same_again(tree, binary, &made, &scratch));
    checks.run("files", || files(&made));
    checks.run("licences", || licences(tree, &made, &scratch.join("licences")));
    checks.run("links-of-pages", || pages::check(&made, &scratch.join("pages")));
    checks.run("libraries", || libraries(binary));
    checks.run("size-of-rdma", || size_of_rdma(binary));
    match validator(tree) {
        Ok(python) => {
            checks.run("bill-of-materials", || bill_of_materials(&python, &made, &scratch))
        }
        Err(error) => checks.skip("bill-of-materials", &format!("{error:#}")),
    }
    let root = scratch.join("root");
    checks.run("install-upgrade-remove", || life(&made, &root));
    checks.run("rpm", || rpm(&made, &scratch.join("rpm")));
    if has_program("rpmlint") {
        checks.run("rpmlint", || rpmlint(&made));
    } else {
        checks.skip("rpmlint", "missing: rpmlint (package rpmlint)");
    }
    checks.run("image", || image(tree, &made, &scratch.join("image")));
    match containers::missing() {
        Some(why) => checks.skip("image-in-podman", &why),
        None => checks.run("image-in-podman", || containers::run(&made, &scratch.join("podman"))),
    }
    let outcome = checks.outcome();
    std::fs::remove_dir_all(&scratch)?;
    outcome
}

/// Two builds of the packages from one program are equal, byte for byte.
fn the_same_again(tree: &Tree, binary: &Path, made: &Packages, scratch: &Path) -> Result<()> {
    let again = make(tree, binary, &scratch.join("second"))?;
    super::differences::none(made, &again)
}

/// The Python that has CycloneDX's own validator.
pub(super) fn validator(tree: &Tree) -> Result<PathBuf> {
    python::install(&tree.target.join("cyclonedx"), VALIDATOR, "bin/python3")
}

/// CycloneDX's validator takes the bill of materials, and not one that is wrong.
fn bill_of_materials(python: &Path, made: &Packages, scratch: &Path) -> Result<()> {
    valid_bill(python, &made.sbom)?;
    let text = std::fs::read_to_string(&made.sbom)?;
    let bill: Value = serde_json::from_str(&text)?;
    let known: BTreeSet<&str> = [&bill["metadata"]["component"]]
        .into_iter()
        .chain(bill["components"].as_array().into_iter().flatten())
        .filter_map(|component| component["bom-ref"].as_str())
        .collect();
    let links = bill["dependencies"].as_array().context("no dependencies")?;
    for name in links.iter().flat_map(|link| link["dependsOn"].as_array().into_iter().flatten()) {
        let name = name.as_str().unwrap_or_default();
        ensure!(known.contains(name), "{name} is linked and no component");
    }
    for (right, wrong) in [("\"library\"", "\"libary\""), ("SHA-256", "SHA-257")] {
        let broken = scratch.join("broken.cdx.json");
        std::fs::write(&broken, text.replacen(right, wrong, 1))?;
        ensure!(valid_bill(python, &broken).is_err(), "the validator takes {wrong}");
    }
    Ok(())
}

/// CycloneDX's validator takes the file.
pub(super) fn valid_bill(python: &Path, file: &Path) -> Result<()> {
    let ended = Task::new(python).args(["-c", VALIDATE]).args([file]).limit(120).run()?;
    ensure!(ended.success(), "the validator refuses it:\n{}", ended.tail(8));
    Ok(())
}

/// dpkg reads the package, and finds what belongs into it.
fn files(made: &Packages) -> Result<()> {
    let deb = made.deb.to_string_lossy();
    let fields = Task::new("dpkg-deb").args(["--field", &deb]).check()?.stdout;
    for field in [
        "Package: raceline",
        "Depends: libc6 (>= 2.",
        "Section: admin",
        "librdmacm1t64 | librdmacm1",
    ] {
        ensure!(fields.contains(field), "no `{field}` in the control file:\n{fields}");
    }
    let list = Task::new("dpkg-deb").args(["--contents", &deb]).check()?.stdout;
    for file in [
        "./usr/bin/raceline",
        "./usr/share/man/man1/raceline-export.1.gz",
        "./usr/share/bash-completion/completions/raceline",
        "./usr/share/zsh/vendor-completions/_raceline",
        "./usr/share/fish/vendor_completions.d/raceline.fish",
        "./usr/lib/systemd/system/raceline.service",
        "./usr/lib/systemd/system/raceline.socket",
        "./usr/lib/systemd/system/raceline-disk@.service",
        "./usr/lib/systemd/system/raceline-ublk@.service",
        "./usr/lib/sysusers.d/raceline.conf",
        "./usr/share/raceline/systemd/rdma.conf",
        "./usr/share/raceline/grafana/raceline.json",
        "./usr/share/raceline/prometheus/raceline.rules.yml",
        "./usr/share/doc/raceline/copyright",
        "./usr/share/doc/raceline/licences.txt.gz",
        "./usr/share/doc/raceline/sbom.cdx.json.gz",
        "./etc/default/raceline",
    ] {
        ensure!(list.lines().any(|line| line.ends_with(file)), "no {file} in the package:\n{list}");
    }
    // Permissions stand first: `s` in them gives the rights of the owner.
    let is_strange = |line: &&str| {
        !line.contains(" root/root ")
            || line.split(' ').next().is_some_and(|mode| mode.contains('s'))
    };
    let strange = list.lines().find(is_strange);
    ensure!(strange.is_none(), "a file is not plainly root's: {strange:?}");
    Ok(())
}

/// The program needs the C library and its companions only: those of RDMA are loaded when they are asked for.
fn libraries(binary: &Path) -> Result<()> {
    let section = Task::new("readelf").args(["--dynamic", "--wide"]);
    let section = section.args([binary]).check()?.stdout;
    let needed: Vec<&str> = section
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    ensure!(needed.contains(&"libc.so.6"), "readelf names no C library:\n{section}");
    let is_usual = |name: &&&str| {
        ["libc.so.", "libm.so.", "libgcc_s.so.", "ld-linux"]
            .iter()
            .any(|begin| name.starts_with(begin))
    };
    let strange: Vec<&&str> = needed.iter().filter(|name| !is_usual(name)).collect();
    ensure!(strange.is_empty(), "the program does not start without {strange:?}");
    Ok(())
}

/// Those who do not use RDMA have little of its code: the symbols that have the word in their names.
fn size_of_rdma(binary: &Path) -> Result<()> {
    let symbols = Task::new("nm").args(["--print-size", "--demangle", "--defined-only"]);
    let symbols = symbols.args([binary]).check()?.stdout;
    let sizes = symbols
        .lines()
        .filter(|line| line.to_ascii_lowercase().contains("rdma"))
        // Where a symbol has no size, its kind stands there.
        .filter_map(|line| line.split(' ').nth(1).filter(|size| size.len() > 1))
        .filter_map(|size| u64::from_str_radix(size, 16).ok());
    let bytes: u64 = sizes.sum();
    ensure!(bytes > 0, "the program has no symbols, or no RDMA");
    ensure!(bytes <= MOST_RDMA_BYTES, "RDMA has {} KiB of the program", bytes >> 10);
    Ok(())
}

/// Installs the package into a root of its own with this machine's dpkg, upgrades, removes and purges it.
fn life(made: &Packages, root: &Path) -> Result<()> {
    for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    for file in ["status", "available"] {
        std::fs::write(root.join("var/lib/dpkg").join(file), "")?;
    }
    let dpkg = |args: &[&str]| {
        let base = [
            format!("--root={}", root.display()),
            format!("--log={}", root.join("dpkg.log").display()),
            "--force-script-chrootless,depends,confold".to_owned(),
        ];
        let words = base.iter().map(String::as_str).chain(args.iter().copied());
        Task::new("dpkg").args(words).limit(120).check()
    };
    let deb = made.deb.to_string_lossy().into_owned();
    dpkg(&["--install", &deb])?;
    let program = root.join(PROGRAM);
    let version = Task::new(&program).args(["--version"]).check()?.stdout;
    ensure!(version.starts_with("raceline "), "--version says {version}");
    let state = root.join("var/lib/raceline");
    served(&program, &state, true)?;
    // An administrator's settings and the state outlive an upgrade, a removal and a purge.
    let defaults = root.join("etc/default/raceline");
    std::fs::write(&defaults, "RACELINE_OPTIONS=\"-m [0]\"\n")?;
    dpkg(&["--install", &deb])?;
    ensure!(
        std::fs::read_to_string(&defaults)?.contains("-m [0]"),
        "the upgrade replaced settings"
    );
    served(&program, &state, false)?;
    damaged(&program, &state)?;
    dpkg(&["--remove", "raceline"])?;
    ensure!(
        !program.exists() && defaults.exists(),
        "the removal left the program, or took settings"
    );
    dpkg(&["--purge", "raceline"])?;
    ensure!(!defaults.exists(), "the purge left {}", defaults.display());
    let left = left_over(root)?;
    ensure!(left.is_empty(), "the package left files behind: {left:?}");
    ensure!(state.join("lock").exists(), "the purge took the state");
    Ok(())
}

/// Serves with a state directory: at first makes a device, later finds it.
fn served(program: &Path, state: &Path, is_first: bool) -> Result<()> {
    // The package gives the folder to its service's user, and root is refused there. This root takes the place of that user.
    if setup::is_root() {
        std::os::unix::fs::chown(state, Some(0), Some(0))?;
    }
    let socket = state.with_extension("sock");
    let words = [socket.to_string_lossy().into_owned(), state.to_string_lossy().into_owned()];
    let mut daemon =
        Task::new(program).args(["serve", "-r", &words[0], "--state-dir", &words[1]]).start()?;
    daemon.wait_for("\"ready\":true", 60)?;
    let verb = |args: &[&str]| {
        let all = ["-s", &words[0]];
        let words = args.iter().copied().chain(all);
        Task::new(program).args(words).limit(60).check()
    };
    if is_first {
        verb(&["bdev", "add", "ram:1M", "--name", "kept"])?;
    }
    let listed = verb(&["bdev", "ls"])?.stdout;
    ensure!(listed.contains("kept"), "the state does not have the device: {listed}");
    daemon.signal("TERM");
    let ended = daemon.wait()?;
    ensure!(ended.success(), "the daemon ended badly ({}): {}", ended.why(), ended.tail(5));
    Ok(())
}

/// A damaged state directory is refused with its file and a remedy, and is as it was when the damage is undone.
fn damaged(program: &Path, state: &Path) -> Result<()> {
    let is_config = |name: &str| name.starts_with("config-");
    let mut names: Vec<String> = std::fs::read_dir(state)?
        .filter_map(|file| file.ok()?.file_name().into_string().ok())
        .filter(|name| is_config(name))
        .collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    let newest = state.join(names.last().context("the state has no configuration")?);
    let whole = std::fs::read(&newest)?;
    let mut torn = whole.clone();
    let middle = torn.len() / 2;
    torn[middle] ^= 0x20;
    std::fs::write(&newest, torn)?;
    let socket = state.with_extension("sock");
    let words = [socket.to_string_lossy().into_owned(), state.to_string_lossy().into_owned()];
    let task = Task::new(program).args(["serve", "-r", &words[0], "--state-dir", &words[1]]);
    let ended = task.limit(60).run()?;
    ensure!(
        ended.status.is_some_and(|status| status.code() == Some(1)),
        "it did not refuse: {}",
        ended.why()
    );
    let name = newest.file_name().unwrap_or_default().to_string_lossy().into_owned();
    ensure!(ended.output.contains(&name), "the refusal does not name {name}: {}", ended.tail(5));
    std::fs::write(&newest, whole)?;
    served(program, state, false)
}

/// The files below a root that are neither state, nor dpkg's, nor of the machine.
fn left_over(root: &Path) -> Result<Vec<String>> {
    let mut left = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
            let is_known = [
                "var/lib/dpkg",
                "var/lib/raceline",
                "dpkg.log",
                "etc/passwd",
                "etc/group",
                "etc/shadow",
                "etc/gshadow",
                "etc/.pwd.lock",
                "etc/subuid",
                "etc/subgid",
            ]
            .iter()
            .any(|known| name.starts_with(known));
            match path.symlink_metadata()?.is_dir() {
                _ if is_known => {}
                true => folders.push(path),
                false => left.push(name),
            }
        }
    }
    Ok(left)
}

/// rpm finds the package whole, and installs and removes its files; its program runs.
fn rpm(made: &Packages, root: &Path) -> Result<()> {
    let package = made.rpm.to_string_lossy().into_owned();
    let rpm = |args: &[&str]| Task::new("rpm").args(args.iter().copied()).limit(120).check();
    // Nothing is signed; every digest is there and right.
    let whole = rpm(&["--checksig", "--verbose", "--nosignature", &package])?.stdout;
    for digest in ["Header SHA256 digest: OK", "Payload SHA256 digest: OK"] {
        ensure!(whole.contains(digest), "no `{digest}`:\n{whole}");
    }
    let list = rpm(&["--query", "--list", "--package", &package])?.stdout;
    for file in
        ["/usr/bin/raceline", "/usr/lib/systemd/system/raceline.socket", "/etc/raceline/disks"]
    {
        ensure!(list.lines().any(|line| line == file), "no {file} in the package:\n{list}");
    }
    let suggested = rpm(&["--query", "--suggests", "--package", &package])?.stdout;
    ensure!(
        suggested.contains("librdmacm"),
        "the package suggests no library of RDMA: {suggested}"
    );
    let kept = rpm(&["--query", "--configfiles", "--package", &package])?.stdout;
    ensure!(kept.trim() == "/etc/default/raceline", "other files of an administrator: {kept}");
    for script in ["post", "preun", "postun"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/rpm").join(script);
        Task::new("sh").args(["-n", &file.to_string_lossy()]).check()?;
    }
    std::fs::create_dir_all(root)?;
    let base = format!("--root={}", std::fs::canonicalize(root)?.display());
    // The root has no shell; clean-roots runs the scripts.
    let base = [base.as_str(), "--noscripts", "--nodeps", "--nosignature"];
    let change = |args: &[&str]| rpm(&[&base[..], args].concat());
    change(&["--install", &package])?;
    let program = root.join(PROGRAM);
    let version = Task::new(&program).args(["--version"]).check()?.stdout;
    ensure!(version.starts_with("raceline "), "--version says {version}");
    let verified = rpm(&[base[0], "--verify", "--nodeps", "--noscripts", "raceline"])?;
    ensure!(verified.stdout.trim().is_empty(), "rpm finds changes: {}", verified.stdout);
    let defaults = root.join("etc/default/raceline");
    std::fs::write(&defaults, "RACELINE_OPTIONS=\"-m [0]\"\n")?;
    change(&["--upgrade", "--replacepkgs", &package])?;
    let kept = std::fs::read_to_string(&defaults)?;
    ensure!(kept.contains("-m [0]"), "the upgrade replaced settings");
    change(&["--erase", "raceline"])?;
    ensure!(!program.exists(), "the removal left the program");
    let folders = ["etc/raceline", "usr/share/raceline", "usr/share/doc/raceline"];
    let left = folders.into_iter().find(|folder| root.join(folder).exists());
    ensure!(left.is_none(), "the removal left {left:?}");
    Ok(())
}

/// rpmlint finds no error but that nobody has signed the package, which is for those who publish it.
fn rpmlint(made: &Packages) -> Result<()> {
    let package = made.rpm.to_string_lossy().into_owned();
    let ended = Task::new("rpmlint").args([package.as_str()]).limit(300).run()?;
    ensure!(ended.output.contains("1 packages and 0 specfiles checked"), "{}", ended.tail(5));
    let is_wrong = |line: &&str| line.contains(": E: ") && !line.ends_with("E: no-signature");
    let wrong: Vec<&str> = ended.output.lines().map(str::trim).filter(is_wrong).collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}

/// The Debian package has the text of a licence for each crate, and the RPM package's licence is that of all crates.
fn licences(tree: &Tree, made: &Packages, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    Task::new("dpkg-deb")
        .args(["--extract".as_ref(), made.deb.as_os_str(), to.as_os_str()])
        .check()?;
    all_texts(tree, to)?;
    let query = ["--query", "--package", "--queryformat", "%{LICENSE}"];
    let said = Task::new("rpm").args(query).args([&made.rpm]).limit(120).check()?.stdout;
    let bill: Value = serde_json::from_slice(&std::fs::read(&made.sbom)?)?;
    let mut terms = 0;
    for component in bill["components"].as_array().into_iter().flatten() {
        let licence = component["licenses"][0]["expression"].as_str().unwrap_or_default();
        for term in super::rules::terms(licence) {
            terms += 1;
            let is_there = super::rules::terms(&said).contains(&term);
            ensure!(
                is_there,
                "{} is under {term}, and the RPM package is `{said}`",
                component["name"]
            );
        }
    }
    ensure!(terms > 100, "the bill of materials names {terms} licences only");
    println!("# licence of the RPM package: {said}");
    Ok(())
}

/// What a `copyright` refers to is beside it, and has a text for each crate of the program.
fn all_texts(tree: &Tree, root: &Path) -> Result<()> {
    let folder = root.join(super::deb::DOCUMENTS);
    let copyright = std::fs::read_to_string(folder.join("copyright"))?;
    ensure!(copyright.contains("licences.txt.gz beside this file"), "{copyright}");
    let texts = unzipped(&folder.join("licences.txt.gz"))?;
    let lacking = Supply::read(&tree.root)?.without_text(&texts);
    ensure!(lacking.is_empty(), "no text of the licence of {}", lacking.join(", "));
    Ok(())
}

/// Each library of the image is in its bill of materials, and the texts of their licences are there.
fn texts_of_libraries(root: &Path) -> Result<()> {
    let folder = root.join(super::deb::DOCUMENTS);
    let texts = unzipped(&folder.join(format!("{}.gz", super::c_library::LICENCES)))?;
    for word in [
        "GNU LESSER GENERAL PUBLIC LICENSE",
        "GCC RUNTIME LIBRARY EXCEPTION",
        "GNU GENERAL PUBLIC LICENSE\n                       Version 3",
        "==== glibc (libc6 ",
        "==== libgcc (libgcc-s1 ",
    ] {
        ensure!(texts.contains(word), "the licences of the image's libraries do not say {word}");
    }
    let bill: Value = serde_json::from_str(&unzipped(&folder.join("sbom.cdx.json.gz"))?)?;
    let components = bill["components"].as_array().context("no components")?;
    for package in ["pkg:deb/debian/libc6@", "pkg:deb/debian/libgcc-s1@"] {
        let is_it =
            |one: &&Value| one["purl"].as_str().is_some_and(|purl| purl.starts_with(package));
        let count = components.iter().filter(is_it).count();
        ensure!(count == 1, "the image's bill of materials has {package} {count} times");
    }
    Ok(())
}

/// The text of a compressed file.
fn unzipped(file: &Path) -> Result<String> {
    ensure!(file.exists(), "{} is not there", file.display());
    Ok(Task::new("gzip").args(["-dc".as_ref(), file.as_os_str()]).check()?.stdout)
}

/// The image is a layout that unpacks, and its program runs as its user with nothing else around.
fn image(tree: &Tree, made: &Packages, to: &Path) -> Result<()> {
    let (layout, root) = (to.join("layout"), to.join("root"));
    for folder in [&layout, &root] {
        std::fs::create_dir_all(folder)?;
    }
    let unpack = |archive: &Path, to: &Path| {
        let (archive, to) =
            (archive.to_string_lossy().into_owned(), to.to_string_lossy().into_owned());
        Task::new("tar")
            .args(["--extract", "--same-owner", "--file", &archive, "--directory", &to])
            .check()
    };
    unpack(&made.image, &layout)?;
    let blob = |descriptor: &serde_json::Value| -> Result<std::path::PathBuf> {
        let digest = descriptor["digest"].as_str().context("a blob without a digest")?;
        let file = layout.join("blobs").join(digest.replace(':', "/"));
        let sum = Task::new("sha256sum").args([&file]).check()?.stdout;
        ensure!(
            digest.ends_with(sum.split_whitespace().next().unwrap_or("none")),
            "{digest} is {sum}"
        );
        Ok(file)
    };
    let read = |file: &Path| -> Result<serde_json::Value> {
        Ok(serde_json::from_slice(&std::fs::read(file)?)?)
    };
    let manifest = read(&blob(&read(&layout.join("index.json"))?["manifests"][0])?)?;
    let config = read(&blob(&manifest["config"])?)?;
    ensure!(config["config"]["User"] == format!("{USER}:{USER}"), "another user: {config}");
    unpack(&blob(&manifest["layers"][0])?, &root)?;
    ensure!(!root.join("bin/sh").exists(), "the image has a shell");
    all_texts(tree, &root)?;
    texts_of_libraries(&root)?;
    // Default filters of containers forbid io_uring; the program must do without.
    let root_text = root.to_string_lossy().into_owned();
    let user = format!("--userspec={USER}:{USER}");
    let words =
        [user.as_str(), &root_text, "/usr/bin/raceline", "demo", "--seconds", "2", "--io", "epoll"];
    let ended = Task::new("chroot").args(words).limit(120).check()?;
    ensure!(!ended.stdout.trim().is_empty(), "demo prints nothing");
    Ok(())
}
