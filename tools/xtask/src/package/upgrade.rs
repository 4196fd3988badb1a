//! What the scripts of the packages do with a service that runs, on a system whose `systemctl` only plays.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// The scripts, and how they are told that this is an upgrade.
const SCRIPTS: [(&str, &[&str]); 2] =
    [("deb/postinst", &["configure", "0.1.0-1"]), ("rpm/post", &["2"])];
/// Notes how it is called. The folder has what the reload gives back, and what is told of it afterwards.
const SYSTEMCTL: &str = r#"#!/bin/sh
folder=$(dirname "$0")
echo "$*" >> "$folder/calls"
case "$*" in
*is-active*) exit "$(cat "$folder/is-active")" ;;
reload*) exit "$(cat "$folder/reload")" ;;
show*) cat "$folder/show" ;;
esac
"#;

/// Runs a script; gives what it says, and the calls of `systemctl`.
fn run(
    (script, arguments): (&str, &[&str]),
    is_active: u8,
    (reload, status): (u8, &str),
) -> (Output, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("xtask-upgrade-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let programs = folder.join("bin");
    fs::create_dir_all(&programs).unwrap();
    let others = ["systemd-sysusers", "systemd-tmpfiles"].map(|name| (name, "#!/bin/sh\n"));
    for (name, text) in others.into_iter().chain([("systemctl", SYSTEMCTL)]) {
        fs::write(programs.join(name), text).unwrap();
        fs::set_permissions(programs.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let shown = format!(
        "ExecReload={{ path=/usr/bin/raceline ; argv[]=/usr/bin/raceline serve --take-over ; ignore_errors=no ; \
         start_time=[n/a] ; stop_time=[n/a] ; pid=7 ; {status} }}\n"
    );
    for (name, text) in
        [("is-active", is_active.to_string()), ("reload", reload.to_string()), ("show", shown)]
    {
        fs::write(programs.join(name), text).unwrap();
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(script);
    // The machine of this test may have no systemd.
    let here = folder.display().to_string();
    let text = fs::read_to_string(file).unwrap().replace("/run/systemd/system", &here);
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", &text, "script"]).args(arguments).env("PATH", path);
    let output = command.env_remove("DPKG_ROOT").output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    let calls = fs::read_to_string(programs.join("calls")).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    (output, calls)
}

fn said(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr[..]].concat()).unwrap()
}

#[test]
fn a_reload_that_succeeds_is_all() {
    for script in SCRIPTS {
        let (output, calls) = run(script, 0, (0, "code=exited ; status=0"));
        assert!(said(&output).contains("has taken the place of the old one"), "{output:?}");
        assert!(calls.contains("reload raceline.service"), "{calls}");
        assert!(!calls.contains("restart"), "{calls}");
    }
}

#[test]
fn only_another_form_of_state_restarts_the_service() {
    for script in SCRIPTS {
        let (output, calls) = run(script, 0, (1, "code=exited ; status=5"));
        let said = said(&output);
        assert!(said.contains("does not know the form of the old one's state"), "{said}");
        assert!(calls.ends_with("restart raceline.service\n"), "{calls}");
    }
}

/// Wrong options, a device that is missing, a damaged state, memory that would be lost, a program that cannot start at all.
#[test]
fn any_other_refusal_leaves_the_old_program_alone() {
    let others = [
        "code=exited ; status=1",
        "code=exited ; status=2",
        "code=exited ; status=50",
        "code=exited ; status=203",
        "code=killed ; status=5/TRAP",
        "code=(null) ; status=0/0",
    ];
    for script in SCRIPTS {
        for status in others {
            let (output, calls) = run(script, 0, (1, status));
            assert!(!calls.contains("restart"), "{status}: {calls}");
            let said = said(&output);
            let words = ["which goes on", "journalctl -u raceline", "systemctl reload raceline"];
            assert!(words.iter().all(|word| said.contains(word)), "{status}: {said}");
        }
    }
}

#[test]
fn a_service_that_does_not_run_stays_as_it_is() {
    for script in SCRIPTS {
        let (_, calls) = run(script, 3, (0, "code=exited ; status=0"));
        assert!(!calls.contains("reload raceline") && !calls.contains("start"), "{calls}");
    }
}
