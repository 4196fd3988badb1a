# Quick generic tests of xfstests, over ext4, on two disks by ublk, on two of the kernel's NBD client, and before that on
# two RAM disks of the kernel: what fails there as well says nothing of Raceline.
#
# Environment: NQN; TESTS, the arguments of xfstests' check; MOST, the seconds that each kind of disk may take.  The program
# raceline is beside this script, and xfstests is on the disk that is made by xfstests-disk.sh.
. ./lib.sh

RACELINE=./raceline
export RACELINE_RPC_SOCKET=/tmp/run/rpc.sock
PORT=4420
ROOT=/tmp/x
MIB=640

# until_so SECONDS COMMAND...: as until_true, and says what was waited for.
until_so() { until_true "$@" || fail "not so in time: $*"; }
is_block() { [ -b "$1" ]; }

prepare() {
    local d
    modprobe brd rd_nr=2 rd_size=$((MIB << 10))
    modprobe ublk_drv
    modprobe nbd nbds_max=2
    modprobe dm-flakey
    mkdir -p $ROOT /tmp/run
    for d in /dev/vd?; do
        mount "$d" $ROOT 2>/dev/null || continue
        [ ! -x $ROOT/xfstests/check ] || break
        umount $ROOT
    done
    [ -x $ROOT/xfstests/check ] || fail "no disk has xfstests"
    for d in dev proc sys; do mount --bind /$d $ROOT/$d; done
    mount -t tmpfs tmp $ROOT/tmp
    $RACELINE export ram:${MIB}M ram:${MIB}M -l 127.0.0.1:$PORT -n "$NQN" --allow-any-host >/tmp/export.out 2>/tmp/export.err &
    until_so 60 grep -q '"ready":true' /tmp/export.out
}

# begin_disk KIND NUMBER: a disk on namespace NUMBER + 1, as /dev/ublkbNUMBER or /dev/nbdNUMBER.
begin_disk() {
    local out=/tmp/connect.$1.$2
    case $1 in
        ublk)
            $RACELINE connect --as ublk --ublk-id "$2" -a 127.0.0.1 -s $PORT -n "$NQN" -N $(($2 + 1)) >"$out" 2>"$out.err" &
            until_so 60 is_block "/dev/ublkb$2"
            ;;
        nbd)
            $RACELINE connect --as nbd --socket "/tmp/run/nbd$2" -a 127.0.0.1 -s $PORT -n "$NQN" -N $(($2 + 1)) >"$out" 2>"$out.err" &
            until_so 60 grep -q '"ready":true' "$out"
            nbd-client -unix "/tmp/run/nbd$2" "/dev/nbd$2" -N disk -C 2
            ;;
    esac
    echo $! >"$out.pid"
}

end_disk() {
    [ "$1" != nbd ] || nbd-client -d "/dev/nbd$2"
    kill "$(cat "/tmp/connect.$1.$2.pid")"
}

# tests KIND DISK SCRATCH: runs them; /tmp/KIND.failed has the names of those that failed.
tests() {
    local ran
    printf 'export TEST_DEV=%s\nexport TEST_DIR=/mnt/test\nexport SCRATCH_DEV=%s\nexport SCRATCH_MNT=/mnt/scratch\nexport FSTYP=ext4\n' \
        "$2" "$3" >$ROOT/xfstests/local.config
    chroot $ROOT /sbin/mkfs.ext4 -q -F "$2"
    # shellcheck disable=SC2086  # a list of words
    timeout "$MOST" chroot $ROOT /bin/bash -c "cd /xfstests && ./check $TESTS" >/tmp/tests.$1 2>&1 || true
    umount $ROOT/mnt/scratch 2>/dev/null || true
    umount $ROOT/mnt/test 2>/dev/null || true
    grep -E '^generic/' /tmp/tests.$1 | sed "s/^/# $1: /"
    grep -qE '^(Passed all|Failed) ' /tmp/tests.$1 || { tail -n 20 /tmp/tests.$1; fail "it did not end within $MOST s"; }
    sed -n 's/^Failures: //p' /tmp/tests.$1 | tr ' ' '\n' | grep . | sort >/tmp/$1.failed || true
    ran=$(sed -n 's/^Ran: //p' /tmp/tests.$1 | wc -w)
    echo "# $1: $ran ran, $(grep -c . /tmp/$1.failed) failed, not for this machine: $(sed -n 's/^Not run: //p' /tmp/tests.$1)"
    [ "$ran" -ge 5 ] || fail "only $ran tests ran"
}

on_ram() { tests ram /dev/ram0 /dev/ram1; }

on() {
    local kind=$1 disk=$2 more
    begin_disk "$kind" 0
    begin_disk "$kind" 1
    tests "$kind" "${disk}0" "${disk}1"
    end_disk "$kind" 0
    end_disk "$kind" 1
    ! grep -q panicked /tmp/connect.* /tmp/export.err || fail "it panicked"
    more=$(comm -23 "/tmp/$kind.failed" /tmp/ram.failed | tr '\n' ' ')
    [ -z "$more" ] || {
        for t in $more; do tail -n 15 "$ROOT/xfstests/results/$t.out.bad" 2>/dev/null || true; done
        fail "these fail, and do not on a RAM disk: $more"
    }
}

dispatch "$@"
check prepare 120 prepare
check ram $((MOST + 60)) on_ram
check ublk $((MOST + 180)) on ublk /dev/ublkb
check nbd $((MOST + 180)) on nbd /dev/nbd
finish
