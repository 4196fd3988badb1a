# Quick generic tests of xfstests, over ext4, on two disks by ublk, on two of the kernel's NBD client, and before that on
# two RAM disks of the kernel: what fails there as well says nothing of Raceline.
#
# Environment: NQN; TESTS, the arguments of xfstests' check; MOST, the seconds that each kind of disk may take; SOME, if those
# tests may be fewer than 15.  The program raceline is beside this script, and xfstests is on the disk that is made by
# xfstests-disk.sh.
. ./lib.sh

ADDR=127.0.0.1
PORT=4420
ROOT=/tmp/x
MIB=640

# ram_disk NUMBER: makes /dev/nullbNUMBER, which keeps its data in memory.  (xfstests does not cut the power of those of brd.)
ram_disk() {
    local disk=/sys/kernel/config/nullb/nullb$1
    mkdir "$disk"
    echo $MIB >"$disk/size"
    echo 1 >"$disk/memory_backed"
    echo 1 >"$disk/discard"
    echo 1 >"$disk/power"
    [ -b "/dev/nullb$1" ] || fail "there is no /dev/nullb$1"
}

prepare() {
    local d
    modprobe null_blk nr_devices=0
    ram_disk 0
    ram_disk 1
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
    # What udev makes elsewhere; bash needs it for <(...).
    [ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
    for d in dev proc sys; do mount --bind /$d $ROOT/$d; done
    mount -t tmpfs tmp $ROOT/tmp
    program_start target export ram:${MIB}M ram:${MIB}M -l $ADDR:$PORT -n "$NQN" --allow-any-host
}

# begin_disk KIND NUMBER: a disk on namespace NUMBER + 1, as /dev/ublkbNUMBER or /dev/nbdNUMBER.
begin_disk() {
    # (an emulated processor may take long to send anything)
    local from="-a $ADDR -s $PORT -n $NQN -N $(($2 + 1)) -k 60"
    # shellcheck disable=SC2086  # a list of words
    case $1 in
        ublk) program_start "ublk$2" connect --as ublk --ublk-id "$2" $from ;;
        nbd)
            program_start "nbd$2" connect --as nbd --socket "/tmp/run/nbd$2" $from
            nbd-client -unix "/tmp/run/nbd$2" "/dev/nbd$2" -N disk -C 2
            ;;
    esac
}

end_disk() {
    [ "$1" != nbd ] || nbd-client -d "/dev/nbd$2"
    program_stop "$1$2"
}

# names LINE FILE: prints the tests in that line of what `check` has said, sorted.
names() { sed -n "s/^$1: //p" "$2" | tr ' ' '\n' | grep . | sort || true; }

# shown KIND: copies its input, and shows the lines on tests at once.
shown() {
    local line
    while IFS= read -r line; do
        printf '%s\n' "$line"
        case $line in generic/*) echo "# $1: $line" >/dev/ttyS1 ;; esac
    done
}

# tests KIND DISK SCRATCH: runs them; /tmp/KIND.failed and /tmp/KIND.skipped have the names of those that failed, and of those
# that cannot run on such a disk.
tests() {
    local said=/tmp/$1.said ran
    printf 'export TEST_DEV=%s\nexport TEST_DIR=/mnt/test\nexport SCRATCH_DEV=%s\nexport SCRATCH_MNT=/mnt/scratch\nexport FSTYP=ext4\n' \
        "$2" "$3" >$ROOT/xfstests/local.config
    chroot $ROOT /sbin/mkfs.ext4 -q -F "$2"
    # (no udev runs here, and only that would make /dev/mapper/NAME)
    DM_DISABLE_UDEV=1 timeout "$MOST" chroot $ROOT /bin/bash -c "cd /xfstests && ./check $TESTS" 2>&1 | shown "$1" >"$said"
    umount $ROOT/mnt/scratch 2>/dev/null || true
    umount $ROOT/mnt/test 2>/dev/null || true
    grep -qE '^(Passed all|Failed) ' "$said" || { tail -n 20 "$said"; fail "the tests on $1 did not end within $MOST s"; }
    names Failures "$said" >/tmp/$1.failed
    names 'Not run' "$said" >/tmp/$1.skipped
    ran=$(names Ran "$said" | grep -c . || true)
    echo "# $1: $ran ran, $(grep -c . /tmp/$1.failed) failed, not for this machine: $(tr '\n' ' ' </tmp/$1.skipped)" >/dev/ttyS1
    [ "$ran" -ge 15 ] || [ -n "${SOME:-}" ] || fail "only $ran tests ran"
}

on_ram() { tests ram /dev/nullb0 /dev/nullb1; }

# only_on WORD KIND: the tests of which that is so on this kind of disk and not on a RAM disk.
only_on() { comm -23 "/tmp/$2.$1" "/tmp/ram.$1" | tr '\n' ' '; }

on() {
    local kind=$1 disk=$2 more t
    begin_disk "$kind" 0
    begin_disk "$kind" 1
    tests "$kind" "${disk}0" "${disk}1"
    program_healthy target
    end_disk "$kind" 0
    end_disk "$kind" 1
    more=$(only_on failed "$kind")
    for t in $more; do tail -n 15 "$ROOT/xfstests/results/$t.out.bad" 2>/dev/null || true; done
    [ -z "$more" ] || fail "these fail, and do not on a RAM disk: $more"
    more=$(only_on skipped "$kind")
    [ -z "$more" ] || fail "these cannot run, and can on a RAM disk: $more"
}

dispatch "$@"
check prepare 120 prepare
check ram $((MOST + 60)) on_ram
check ublk $((MOST + 180)) on ublk /dev/ublkb
check nbd $((MOST + 180)) on nbd /dev/nbd
finish
