# Shell functions for the scripts about disks by `raceline connect --as ublk`: a disk that is there, jobs on it, and its end.
# lib.sh has to be sourced before.  The program raceline is beside this script.

RACELINE=./raceline
DISK=/dev/ublkb0

# start_disk ARGUMENT...: makes the disk $DISK, by a process whose number is in /tmp/connect.pid.
start_disk() {
    : >/tmp/connect.out
    $RACELINE connect --as ublk "$@" >/tmp/connect.out 2>>/tmp/connect.err &
    echo $! >/tmp/connect.pid
    until_so 60 grep -q '"ready"' /tmp/connect.out
    grep -q "\"device\":\"$DISK\"" /tmp/connect.out || fail "not $DISK: $(cat /tmp/connect.out)"
    [ -b $DISK ] || fail "there is no $DISK"
}
# recovered: fails if the disk is another one than before.
recovered() { grep -q '"recovered":true' /tmp/connect.out || fail "it is another disk: $(cat /tmp/connect.out)"; }
gone() { ! kill -0 "$(cat /tmp/connect.pid)" 2>/dev/null; }
# no_disk: removes what an earlier check may have left over.
no_disk() {
    $RACELINE disconnect --all --force >/dev/null 2>&1 || true
    $RACELINE disconnect -d $DISK --force >/dev/null 2>&1 || true
}
detach() {
    $RACELINE disconnect -d $DISK "$@"
    until_so 30 gone
    [ ! -e $DISK ] || fail "$DISK is still there"
    [ ! -e "/dev/ublkc${DISK#/dev/ublkb}" ] || fail "the character device of $DISK is still there"
    ! grep -q 'panicked' /tmp/connect.err || fail "it panicked: $(cat /tmp/connect.err)"
}
has_mib() { [ "$(blockdev --getsize64 $DISK)" = $(($1 << 20)) ]; }

# written: prints how many sectors were written to the disk.
written() { awk '{ print $7 }' "/sys/block/${DISK#/dev/}/stat"; }
moved() { [ "$(written)" -gt "$(cat /tmp/before)" ]; }
# under_way: waits until the disk is written.
under_way() {
    written >/tmp/before
    until_so 60 moved
}
# jobs [FILE]: verifying jobs on the disk, or on a file, one after another, until /tmp/enough is there.
jobs() {
    while [ ! -e /tmp/enough ]; do
        fio --name=x --filename="${1:-$DISK}" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=16k --size=8m \
            --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/fio.log 2>&1 || return 1
    done
}
# killed_often TIMES COMMAND...: as killed_under_jobs, with the same COMMAND each time.
killed_often() {
    local times=$1 commands=""
    shift
    while [ "$times" -gt 0 ]; do
        times=$((times - 1))
        commands="$commands '$*'"
    done
    eval "killed_under_jobs $commands"
}
# killed_under_jobs COMMAND...: the process of the disk is killed under jobs that verify, once for each COMMAND, which makes the
# disk again.  The jobs wait, and end well; then the disk is removed.
killed_under_jobs() {
    local jobs again
    rm -f /tmp/enough
    jobs &
    jobs=$!
    for again; do
        under_way
        kill -9 "$(cat /tmp/connect.pid)"
        until_so 30 gone
        # shellcheck disable=SC2086  # a command and its words
        $again
        recovered
    done
    under_way
    touch /tmp/enough
    wait $jobs || fail "$(tail -n 3 /tmp/fio.log)"
    detach
}
