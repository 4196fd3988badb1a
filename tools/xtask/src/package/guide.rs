//! The operator's guide as a script: every command of docs/OPERATORS.md in its order, as it is written but for what stands here.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

/// What a clean root has in the place of what the guide names.
const INSTEAD: [(&str, &str); 3] = [
    // A file that the group `disk` may use, as it may use drives.
    ("/dev/nvme0n1", "/srv/nvme0n1"),
    ("HOSTNQN", HOST),
    // The newest change, below the head of the table.
    ("undo NUMBER", "undo $(raceline config log | awk 'NR == 2 { print $1 }')"),
];
/// The host that the guide lets in.
const HOST: &str = "nqn.2026-01.com.example:host";
/// Beginnings of commands that are left out: images of containers come from and go to places that a root does not have.
const LEFT_OUT: [&str; 1] = ["podman "];
/// What stands in the comment of a command that a daemon refuses: the exit code has to say so.
const REFUSED: &str = "# refused: ";
/// The exit code of a host whose connection was refused.
const REFUSED_CODE: u32 = 3;
/// The beginning of a command in the text.
const INDENT: &str = "    ";

/// What happens around a command, which is named by its beginning: before it, and after it.
const AROUND: [(&str, &str, &str); 5] = [
    ("raceline config undo NUMBER --dry-run", "", "raceline bdev ls | grep mistake"),
    ("raceline config undo NUMBER", "", "if raceline bdev ls | grep mistake; then exit 1; fi"),
    (
        "raceline config restore",
        "raceline bdev add ram:1M --name mistake",
        "if raceline bdev ls | grep mistake; then exit 1; fi\nraceline bdev ls | grep disk0",
    ),
    // The root becomes a machine with the package, and without a state.
    (
        "tar -C /var/lib -xpf",
        "rm -rf /var/lib/raceline\nsystemd-tmpfiles --create raceline.conf",
        "",
    ),
    (
        "raceline bdev ls",
        "",
        "raceline bdev ls | grep disk0\ncurl -fsS http://127.0.0.1:9009/readyz",
    ),
];
/// What is made ready before the first command: a drive, its folder, an address.
const BEFORE: &str = "\
ip link set lo up
ip address add 192.0.2.1/32 dev lo
truncate -s 64M /srv/nvme0n1
chgrp disk /srv/nvme0n1
chmod 0660 /srv/nvme0n1
mkdir -p /etc/systemd/system/raceline.service.d
printf '[Service]\\nReadWritePaths=/srv\\n' > /etc/systemd/system/raceline.service.d/srv.conf
echo 'APT::Get::Assume-Yes \"true\";' > /etc/apt/apt.conf.d/90yes
cd /root
cp /old.deb raceline_0_amd64.deb
";
/// Before the section about upgrades: a host writes and verifies all the time.
const BEFORE_UPGRADE: &str = "\
cp /new.deb raceline_NEW_amd64.deb
FIRST=$(systemctl show --property MainPID --value raceline)
raceline perf -a 192.0.2.1 -n nqn.2026-01.com.example:disks --hostnqn HOST --rw randrw --verify --bs 4k --iodepth 4 \
--ramp_time 0 --runtime 3600 > /perf.log 2>&1 & PERF=$!
CONTROLLERS='raceline rpc nvmf_subsystem_get_controllers nqn.2026-01.com.example:disks'
for turn in $(seq 300); do $CONTROLLERS | grep -q com.example:host && break; sleep 0.1; done
$CONTROLLERS | grep com.example:host
";
/// After it: the new program serves, and the host has not noticed.
const AFTER_UPGRADE: &str = "\
test \"$FIRST\" != \"$(systemctl show --property MainPID --value raceline)\"
grep -q 'has taken the place of the old one' /guide.log
journalctl -u raceline | grep 'Reloaded raceline'
sleep 2
kill -INT $PERF
wait $PERF || test $? = 130
cat /perf.log
if grep -i -E 'error:|reconnect' /perf.log; then echo 'the host has noticed the upgrade'; exit 1; fi
systemctl is-active raceline.socket raceline-disk@disk0
";
/// Before the removal: an upgrade over a state that no program can use goes through, and the service says what is wrong.
const BEFORE_REMOVAL: &str = r#"
rm raceline_0_amd64.deb
refused() {
    systemctl stop raceline.socket raceline 2>/dev/null || true
    systemctl reset-failed
    dpkg --install raceline_NEW_amd64.deb
    SINCE=$(date '+%Y-%m-%d %H:%M:%S')
    if systemctl start raceline; then echo "it starts with $1"; exit 1; fi
    systemctl stop raceline 2>/dev/null || true
    journalctl -u raceline --since "$SINCE" -o cat | grep "$2" | tail -1
    dpkg --status raceline | grep 'install ok installed'
}
again() { rm -rf /var/lib/raceline; cp -a /kept /var/lib/raceline; }
damaged() {
    cp "$NEWEST" /damaged
    refused "$1" "$2"
    cmp "$NEWEST" /damaged
    again
}
systemctl stop raceline.socket raceline
cp -a /var/lib/raceline /kept
NEWEST=$(ls -v /var/lib/raceline/config-* | tail -1)
NAME=$(basename "$NEWEST")
SIZE=$(stat -c %s "$NEWEST")
printf 'X' | dd of="$NEWEST" bs=1 seek=$((SIZE / 2)) conv=notrunc status=none
damaged 'a damaged file' "$NAME is damaged at byte .* nothing was started. Move $NAME away"
truncate -s 0 "$NEWEST"
damaged 'an empty file' "$NAME is damaged at byte .* nothing was started. Move $NAME away"
truncate -s $((SIZE / 2)) "$NEWEST"
damaged 'a half-written file' "$NAME is damaged at byte .* nothing was started. Move $NAME away"
sed -i 's/"format":1/"format":7/' "$NEWEST"
damaged 'a file of a newer version' "$NAME has format 7, .* use the version of raceline that wrote it"
chown root:root "$NEWEST" /var/lib/raceline/lock
damaged 'a file of another user' '/var/lib/raceline.*Permission denied'
mount -t tmpfs -o size=1M,mode=0700,uid=raceline,gid=raceline full /var/lib/raceline
cp -a /kept/. /var/lib/raceline/
dd if=/dev/zero of=/var/lib/raceline/filler bs=4k status=none || true
dpkg --install raceline_NEW_amd64.deb
systemctl reset-failed
systemctl start raceline
raceline bdev ls | grep disk0
if raceline bdev add ram:1M --name more > /full.log 2>&1; then echo 'a full disk takes changes'; exit 1; fi
grep 'make room and try again' /full.log
dpkg --install raceline_NEW_amd64.deb
raceline bdev ls | grep disk0
systemctl stop raceline.socket raceline
umount /var/lib/raceline
again
systemctl reset-failed
systemctl start raceline
raceline bdev ls | grep disk0
"#;
/// A function that removes the package by a command, which has to be refused: a disk of the kernel is in use. A root has no driver
/// for such disks, so something else has the unit, and a mount the name. Everything goes on, and the package is there.
pub(super) const HELD: &str = r#"
held() {
    mkdir -p /run/systemd/system/raceline-ublk@.service.d /etc/raceline/disks /mnt/held
    : > /etc/raceline/disks/held.conf
    printf '[Service]\nType=simple\nExecStart=\nExecStart=/bin/sleep infinity\n' > /run/systemd/system/raceline-ublk@.service.d/held.conf
    systemctl daemon-reload
    systemctl start raceline-ublk@held
    mount -t tmpfs /dev/ublkb7 /mnt/held
    if "$@" > /held.log 2>&1; then echo 'the package was removed below a disk in use'; exit 1; fi
    grep 'a disk of raceline-ublk@ is in use .* unmount it or take it out of use' /held.log || { cat /held.log; exit 1; }
    test -x /usr/bin/raceline
    systemctl is-active raceline-ublk@held raceline
    umount /mnt/held
    systemctl stop raceline-ublk@held
    rm -r /run/systemd/system/raceline-ublk@.service.d /etc/raceline/disks/held.conf
    systemctl daemon-reload
}
"#;
/// Its use where the guide removes the package.
const HELD_BY_DISK: &str = "\
held apt remove -y raceline
dpkg --status raceline | grep 'install ok installed'
";
/// After the last command: what may be left is the state.
const AFTER: &str = "\
LEFT=$(find / -xdev '(' -path /proc -o -path /sys -o -path /root -o -path /kept -o -path '/var/lib/raceline*' -o \
-path '/var/lib/dpkg*' -o -path '/var/log*' -o -path /etc/systemd/system/raceline.service.d -o -path /etc/raceline -o -path /raceline.rpm ')' \
-prune -o -name '*raceline*' -print)
test -z \"$LEFT\" || { echo \"left behind: $LEFT\"; exit 1; }
test -e /var/lib/raceline/lock
";

/// The script. Its last line is `the-guide-is-done` if all went well.
pub(super) fn script(guide: &str) -> Result<String> {
    let mut script = String::from(
        "set -eE\ntrap 'echo \"FAILED ($?): $BASH_COMMAND\"' ERR\nexport LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive\n",
    );
    script.push_str(BEFORE);
    let (mut commands, mut section) = (0, "");
    for line in guide.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            if section == "Upgrade it" {
                script.push_str(AFTER_UPGRADE);
            }
            section = title;
            match section {
                "Upgrade it" => script.push_str(&BEFORE_UPGRADE.replace("HOST", HOST)),
                "Remove it" => {
                    script.push_str(&[BEFORE_REMOVAL, HELD, HELD_BY_DISK].concat());
                }
                _ => {}
            }
        }
        let Some(command) = line.strip_prefix(INDENT) else { continue };
        if LEFT_OUT.iter().any(|beginning| command.starts_with(beginning)) {
            continue;
        }
        let around = AROUND.iter().find(|(beginning, ..)| command.starts_with(beginning));
        let (before, after) = around.map_or(("", ""), |(_, before, after)| (*before, *after));
        let command =
            INSTEAD.iter().fold(command.to_owned(), |text, (from, to)| text.replace(from, to));
        let shown = command.replace('\'', "'\\''");
        let run = match command.contains(REFUSED) {
            true => format!(
                "if {command}\nthen echo 'this was not refused'; exit 1\nelse test $? = {REFUSED_CODE}; fi"
            ),
            false => command,
        };
        writeln!(script, "{before}\necho '+ {shown}'\n{run}\n{after}")?;
        commands += 1;
    }
    ensure!(commands > 60, "the guide has only {commands} commands");
    script.push_str(AFTER);
    script.push_str("echo the-guide-is-done\n");
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_taken_in_their_order_as_they_are_written() {
        let commands: String = (0..61).map(|n| format!("    echo {n} '/dev/nvme0n1'\n")).collect();
        let guide = format!(
            "# Guide\n\n## Install it\n\n{commands}\n    podman run x\n    connect # refused: y\n\n## Upgrade it\n\ntext\n\n## Remove it\n"
        );
        let script = script(&guide).unwrap();
        assert!(
            script.contains("echo '+ echo 7 '\\''/srv/nvme0n1'\\'''\necho 7 '/srv/nvme0n1'\n"),
            "{script}"
        );
        assert!(!script.contains("podman"));
        assert!(script.contains("\nif connect # refused: y\nthen "), "{script}");
        let place = |text: &str| script.find(text).unwrap();
        assert!(place("echo 20") < place("--verify") && place("--verify") < place("kill -INT"));
        assert!(super::script("# Guide\n\n    one\n").is_err());
    }
}
