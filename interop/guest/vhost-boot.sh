# A machine that starts from a disk that `raceline connect --as vhost-user` makes: the firmware's loader, the kernel and the
# root are on it.  The server is killed while the root is in use.
#
# This script prints a line "REQUEST kill" to ask the machine outside to kill the server, and start it again.
#
# Environment: SERIAL, the disk's serial number; BOOT, first or again.  The second start finds what the first one wrote.
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

kept() {
    [ "$(wc -l </kept.sums)" = "$1" ] || fail "the list has $(wc -l </kept.sums) files"
    md5sum -c /kept.sums >/tmp/sums 2>&1 || fail "$(grep -v OK /tmp/sums | head -n 1)"
}

dispatch "$@"
log_start
check started 60 started
case $BOOT in
    first)
        check programs 120 programs
        check killed 240 killed 3
        ;;
    again) check kept 120 kept 3 ;;
esac
check kernel-log 10 log_clean
finish
