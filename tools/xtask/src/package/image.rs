//! The OCI image: the program and the libraries that it is linked with, no shell, a user without privileges.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::arch;
use super::archive::{Entry, gzip, tar};
use super::c_library::{LICENCES, Library, licences, with_libraries};
use super::deb::{DOCUMENTS, PROGRAM};
use super::supply::Supply;
use crate::child::Task;

/// The user and group of the program.
pub(super) const USER: u32 = 65532;

/// What stands before the licences of the C library.
const PREFACE: &str = "This image contains the C library and GCC's library, unchanged, as Debian's packages have them. They stand below with
their licences. Debian has their sources: `apt-get source PACKAGE=VERSION`, or https://snapshot.debian.org.
";

/// What the layer holds. The bill of materials is that of the program; the layer's own also has the libraries.
pub(super) fn layer(
    root: &Path,
    program: &Path,
    (supply, sbom): (&Supply, &[u8]),
) -> Result<Vec<Entry>> {
    let files = libraries(program)?;
    let libraries = Library::find_all(files.iter().map(Path::new))?;
    let document = |name: &str| format!("{DOCUMENTS}/{name}");
    let (bill, texts) = (with_libraries(sbom, &libraries)?, supply.texts(root)?);
    let own_licences = licences(PREFACE, &libraries)?;
    let mut entries = vec![
        Entry::file(PROGRAM, 0o755, std::fs::read(program)?),
        Entry::file("etc/passwd", 0o644, format!("raceline:x:{USER}:{USER}::/:/nonexistent\n")),
        Entry::file("etc/group", 0o644, format!("raceline:x:{USER}:\n")),
        Entry::file(&document("copyright"), 0o644, supply.copyright()),
        Entry::file(&document("licences.txt.gz"), 0o644, gzip(texts.as_bytes())?),
        Entry::file(&document(&format!("{LICENCES}.gz")), 0o644, gzip(own_licences.as_bytes())?),
        Entry::file(&document("sbom.cdx.json.gz"), 0o644, gzip(&bill)?),
    ];
    // Two folders are its own: where its socket is, and its state.
    for path in ["run/raceline/", "var/lib/raceline/"] {
        entries.push(Entry { owner: USER, mode: 0o700, ..Entry::folder(path) });
    }
    // Programs make the locks of cores and temporary files there.
    for path in ["tmp/", "var/tmp/"] {
        entries.push(Entry { mode: 0o1777, ..Entry::folder(path) });
    }
    for library in files {
        let bytes = std::fs::read(&library).with_context(|| library.clone())?;
        entries.push(Entry::file(library.trim_start_matches('/'), 0o755, bytes));
    }
    Ok(entries)
}

/// The libraries of the program, where the loader looks for them.
fn libraries(program: &Path) -> Result<Vec<String>> {
    let ended = Task::new("ldd").args([program]).check()?;
    let path = |line: &str| {
        let line = line.trim();
        let path = line.split_once(" => ").map_or(line, |(_, path)| path);
        path.split(" (").next().filter(|path| path.starts_with('/')).map(str::to_owned)
    };
    let found: Vec<String> = ended.stdout.lines().filter_map(path).collect();
    ensure!(
        found.iter().any(|path| path.contains("libc.so")),
        "ldd names no libc: {}",
        ended.stdout
    );
    Ok(found)
}

/// The image as a tar of an OCI layout.
pub(super) fn image(
    root: &Path,
    program: &Path,
    (supply, sbom): (&Supply, &[u8]),
    time_s: u64,
) -> Result<Vec<u8>> {
    let plain = tar("", &layer(root, program, (supply, sbom))?, time_s)?;
    let config = json!({
        "architecture": arch()?, "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "ExposedPorts": { "4420/tcp": {}, "8009/tcp": {}, "3260/tcp": {} },
            "Entrypoint": ["/usr/bin/raceline"],
            "Cmd": ["serve", "-r", "/run/raceline/rpc.sock", "--state-dir", "/var/lib/raceline"],
            "Volumes": { "/var/lib/raceline": {} },
            "WorkingDir": "/",
            "Labels": { "org.opencontainers.image.version": supply.version },
        },
        "rootfs": { "type": "layers", "diff_ids": [digest(&plain)] },
    });
    let mut blobs = Vec::new();
    let mut add = |kind: &str, bytes: Vec<u8>| -> Value {
        let digest = digest(&bytes);
        let path = format!("blobs/{}", digest.replace(':', "/"));
        let descriptor = json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest, "size": bytes.len(),
        });
        blobs.push(Entry::file(&path, 0o644, bytes));
        descriptor
    };
    let layer = add("layer.v1.tar+gzip", gzip(&plain)?);
    let config = add("config.v1+json", serde_json::to_vec(&config)?);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config, "layers": [layer],
    });
    let mut manifest = add("manifest.v1+json", serde_json::to_vec(&manifest)?);
    manifest["annotations"] =
        json!({ "org.opencontainers.image.ref.name": format!("raceline:{}", supply.version) });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    blobs.push(Entry::file("index.json", 0o644, serde_json::to_vec(&index)?));
    blobs.push(Entry::file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()));
    tar("", &blobs, time_s)
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}
