# A machine that starts from a disk that `raceline connect --as vhost-user` makes: the firmware's loader, the kernel and the
# root are on it.  The server is killed while the root is in use.
#
# This script prints a line "REQUEST kill" to ask the machine outside to kill the server, and start it again.
#
# Environment: SERIAL, the disk's serial number; BOOT, first or again.  The second start finds what the first one wrote.
# SYSTEM, small (that of build-image.sh) or debian (that of debian-disk.sh, with systemd and its package database).
. ./lib.sh

# (The output of a check goes to a file.)
ask() { echo "REQUEST $1" >/dev/ttyS1; }

started() {
    grep -q '^/dev/vda1 / ext4 rw' /proc/mounts || fail "the root is not the disk's: $(grep ' / ' /proc/mounts)"
    [ "$(cat /sys/block/vda/serial)" = "$SERIAL" ] || fail "the disk is $(cat /sys/block/vda/serial)"
    grep -q 'BOOT_IMAGE=/vmlinuz' /proc/cmdline || fail "no loader has started the kernel: $(cat /proc/cmdline)"
    case $(dd if=/dev/vda bs=1 skip=510 count=2 2>/dev/null | od -An -tx1) in
        *'55 aa'*) ;;
        *) fail "the disk has no boot sector" ;;
    esac
}

# Programs of the root are read again from the disk, and are the same.
programs() {
    local first again
    first=$(cat /usr/bin/* 2>/dev/null | md5sum)
    echo 3 >/proc/sys/vm/drop_caches
    again=$(cat /usr/bin/* 2>/dev/null | md5sum)
    [ "$first" = "$again" ] || fail "the programs are not as they were"
}

killed() {
    local i
    for i in $(seq "$1"); do
        dd if=/dev/urandom of=/kept.$i bs=64k count=200 conv=fsync 2>/dev/null &
        sleep 0.3
        ask kill
        wait $! || fail "a write failed"
        echo 3 >/proc/sys/vm/drop_caches
        md5sum /kept.$i >>/kept.sums
    done
    sync
}

# settled BOOTS: systemd has brought everything up, from fsck to the last unit, and its journal has this many starts.
settled() {
    local state
    [ "$(cat /proc/1/comm)" = systemd ] || fail "process 1 is $(cat /proc/1/comm)"
    state=$(systemctl is-system-running --wait) || fail "$state: $(systemctl --failed --plain --no-legend)"
    [ "$(journalctl --list-boots -q | wc -l)" = "$1" ] || fail "the journal has $(journalctl --list-boots -q | wc -l) starts"
    journalctl --verify -q || fail "the journal is damaged"
}

# Every file of every package is read from the disk, and is what the package's sums say.
packages() {
    echo 3 >/proc/sys/vm/drop_caches
    dpkg --verify >/tmp/verified || fail "$(head -n 3 /tmp/verified)"
    [ ! -s /tmp/verified ] || fail "$(head -n 3 /tmp/verified)"
}

# dpkg unpacks a package with fsync and renames.
install() {
    mkdir -p /tmp/p/DEBIAN /tmp/p/opt/x
    printf 'Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n' >/tmp/p/DEBIAN/control
    dd if=/dev/urandom of=/tmp/p/opt/x/data bs=64k count=100 2>/dev/null
    (cd /tmp/p && md5sum opt/x/data >DEBIAN/md5sums)
    dpkg-deb --build /tmp/p /tmp/x.deb
    dpkg -i /tmp/x.deb
}

# What was installed before the last start is there, and whole.
installed() {
    [ "$(dpkg-query -W -f '${Status}' x)" = 'install ok installed' ] || fail "the package is $(dpkg-query -W -f '${Status}' x)"
    dpkg --verify x >/tmp/verified
    [ ! -s /tmp/verified ] || fail "$(cat /tmp/verified)"
}

kept() {
    [ "$(wc -l </kept.sums)" = "$1" ] || fail "the list has $(wc -l </kept.sums) files"
    md5sum -c /kept.sums >/tmp/sums 2>&1 || fail "$(grep -v OK /tmp/sums | head -n 1)"
}

dispatch "$@"
log_start
check started 60 started
case $SYSTEM-$BOOT in
    debian-first)
        check settled 240 settled 1
        check packages 400 packages
        check install 120 install
        ;;
    debian-again)
        check settled 240 settled 2
        check installed 120 installed
        ;;
    small-first) check programs 120 programs ;;
esac
case $BOOT in
    first) check killed 240 killed 3 ;;
    again) check kept 120 kept 3 ;;
esac
check kernel-log 10 log_clean
finish
