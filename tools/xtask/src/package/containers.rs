//! The OCI image in podman without root: it has no shell, keeps its state, and does without io_uring where a filter forbids it.
//!
//! The user of podman exists only in a mount namespace, whose processes end with the check: nothing of the machine is changed.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Packages;
use crate::child::{Task, has_program};

/// What the check needs, with Debian's packages.
const PROGRAMS: [(&str, &str); 3] =
    [("podman", "podman"), ("crun", "crun"), ("newuidmap", "uidmap")];
/// Time for all of it, in seconds.
const LIMIT_S: u64 = 300;
/// A filter that forbids io_uring, as default filters of containers do.
const FILTER: &str = r#"{
  "defaultAction": "SCMP_ACT_ALLOW",
  "syscalls": [
    {
      "names": ["io_uring_setup", "io_uring_enter", "io_uring_register"],
      "action": "SCMP_ACT_ERRNO",
      "errnoRet": 1
    }
  ]
}
"#;
/// Makes the user, and becomes it. podman's crun refuses control groups of both versions at once, so there is one version.
const AS_ROOT: &str = r#"set -e
cd "$DIR"
mount --make-rprivate /
for file in passwd group subuid subgid; do cp /etc/$file . 2>/dev/null || : > $file; done
echo "podman-check:x:47110:47110::/mnt/home:/bin/sh" >> passwd
echo 'podman-check:x:47110:' >> group
for file in subuid subgid; do echo 'podman-check:4711000:65536' >> $file; done
for file in passwd group subuid subgid; do touch /etc/$file; mount --bind $file /etc/$file; done
if [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then umount -R -l /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; fi
mkdir home run; chown 47110:47110 home run; chmod 0700 run
# Folders above the image may be closed to this user.
mount --bind "$DIR" /mnt
exec setpriv --reuid 47110 --regid 47110 --clear-groups --reset-env env DIR=/mnt IMAGE="$IMAGE" sh /mnt/user.sh
"#;
/// What the user does.
const AS_USER: &str = r#"set -e
export HOME="$DIR/home" XDG_RUNTIME_DIR="$DIR/run"
cd "$HOME"
pod() { podman --cgroup-manager=cgroupfs --events-backend=file "$@" 2>&1; }
run() { pod run --cgroups=disabled --network none "$@"; }
echo "user $(id -u)"
pod load --input "$DIR/image.tar"
pod image exists "$IMAGE"
if run --rm --entrypoint /bin/sh "$IMAGE" -c true > shell.log; then echo 'the image has a shell'; exit 1; fi
grep -q 'not found' shell.log || { cat shell.log; exit 1; }
demo() { run --rm --env RACELINE_LOG=info --security-opt "seccomp=$1" "$IMAGE" demo --seconds 2; }
demo unconfined > free.log || { cat free.log; exit 1; }
if grep 'using epoll' free.log; then echo "io_uring $(cat /proc/sys/kernel/io_uring_disabled || echo not known)"; fi
demo "$DIR/filter.json" > filtered.log || { cat filtered.log; exit 1; }
grep 'io_uring cannot be used .*: using epoll' filtered.log
grep 'every block is as written' filtered.log
# podman's own filter, whatever it allows.
run --rm --env RACELINE_LOG=info "$IMAGE" demo --seconds 2 > own.log || { cat own.log; exit 1; }
grep -q 'every block is as written' own.log
if grep -q 'using epoll' own.log; then echo "podman's own filter: epoll"; else echo "podman's own filter: io_uring"; fi
serve() {
    run --rm --name served --security-opt "seccomp=$DIR/filter.json" --volume state:/var/lib/raceline "$IMAGE" > served.log & SERVE=$!
    for turn in $(seq 300); do grep -q '"ready":true' served.log && return; sleep 0.1; done
    cat served.log; false
}
verb() { pod exec served raceline "$@" -s /run/raceline/rpc.sock; }
end() { pod stop --time 20 served > /dev/null; wait $SERVE; }
serve
verb bdev add ram:1M --name kept > /dev/null
end
serve
verb bdev ls | grep kept
end
echo the-image-is-done
"#;

/// Why the check cannot be made here.
pub(super) fn missing() -> Option<String> {
    let missing = PROGRAMS.iter().filter(|(program, _)| !has_program(program));
    let words: Vec<String> =
        missing.map(|(program, package)| format!("{program} (package {package})")).collect();
    (!words.is_empty()).then(|| format!("missing: {}", words.join(", ")))
}

/// Runs the image.
pub(super) fn run(made: &Packages, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::copy(&made.image, folder.join("image.tar"))?;
    for (name, text) in [("filter.json", FILTER), ("root.sh", AS_ROOT), ("user.sh", AS_USER)] {
        std::fs::write(folder.join(name), text)?;
    }
    let script = folder.join("root.sh");
    let ended = Task::new("unshare")
        .args(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh"])
        .args([&script])
        .env("DIR", folder)
        .env("IMAGE", format!("raceline:{}", made.version))
        .limit(LIMIT_S)
        .run()?;
    let said = &ended.stdout;
    ensure!(said.contains("the-image-is-done"), "{}:\n{}", ended.why(), ended.tail(15));
    ensure!(said.contains("user 47110"), "not as its user: {said}");
    let own = said.lines().find(|line| line.starts_with("podman's own filter"));
    println!("# {}", own.context("nothing about podman's own filter")?);
    let fell_back = said.lines().find(|line| line.contains("using epoll"));
    println!(
        "# without root, under a filter: {}",
        fell_back.context("nothing about epoll")?.trim()
    );
    Ok(())
}
