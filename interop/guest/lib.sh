# Shell functions for the scripts that run inside the guest: checks, nvme devices, the kernel's log.
#
# A script sources this file, defines one function per check and ends with
#     dispatch "$@"           # (the functions run in a child shell, under a time limit)
#     check NAME SECONDS FUNCTION [ARGUMENT...]
# Each check prints one line: "ok NAME", "not ok NAME: why" or "skip NAME: why".
# A function that cannot run for a good reason prints the reason and returns 77.

# The script's own name, for `check` to start it again.
SELF=${0##*/}
FIO_MAX=${FIO_MAX:-1m}
ADDR=${ADDR:-10.0.2.2}
FAILED=/tmp/failed-checks

# dispatch "$@": in the child shell run the named function, in the script itself do nothing.
dispatch() {
    [ "${1:-}" = call ] || return 0
    shift
    set -eu
    "$@"
    exit
}

# check NAME SECONDS FUNCTION...: run the function in a child shell and report.
check() {
    local name=$1 limit=$2 rc=0 why
    shift 2
    # (by its path: busybox's timeout would run its own shell, which prefers busybox's commands)
    timeout "$limit" /bin/dash "./$SELF" call "$@" >/tmp/check.out 2>&1 </dev/null || rc=$?
    why=$(grep . /tmp/check.out | tail -n 1)
    case $rc in
        0) echo "ok $name" ;;
        77) echo "skip $name: $why" ;;
        *)
            [ $rc != 124 ] && [ $rc != 143 ] || why="more than $limit s; $why"
            echo "not ok $name: $why (exit $rc)"
            tail -n 12 /tmp/check.out | sed 's/^/#   /'
            dmesg | tail -n 12 | sed 's/^/#   kernel: /'
            echo "$name" >>$FAILED
            ;;
    esac
}

# finish: the script's exit code says whether a check failed.
finish() {
    echo "# end of checks"
    [ ! -s $FAILED ]
    exit
}

# fail WORDS: end a check with a reason.
fail() { echo "$*"; exit 1; }

# refused TEXT COMMAND...: the command must fail, and say TEXT (case is ignored).
refused() {
    local text=$1
    shift
    if "$@" >/tmp/refused.out 2>&1; then
        cat /tmp/refused.out
        fail "accepted: $*"
    fi
    grep -qiE "$text" /tmp/refused.out || { cat /tmp/refused.out; fail "not refused with '$text': $*"; }
}

# ---------------------------------------------------------------- the kernel's log

# log_start: forget what the log holds so far.
log_start() { dmesg -c >/dev/null; }

# log_clean [PATTERN]: no warning or error about storage since log_start, but for lines matching
# PATTERN (what the test itself provoked).  The log is emptied.
log_clean() {
    dmesg -c --level=emerg,alert,crit,err,warn >/tmp/log.all
    # The emulated processor's own, and seen once: a debug exception that nobody asked for.
    sed -i '/WARNING: .*exc_debug_kernel/,/end trace/d' /tmp/log.all
    grep -E 'nvme|blk|[Ii]/[Oo] error|EXT4|XFS|JBD2|blocked for more|BUG|WARNING|Oops|Call Trace' \
        /tmp/log.all >/tmp/log.bad || true
    # With the kernel as its own peer, what its target says is not the host's complaint.
    [ "${PEER:-}" != kernel ] || sed -i '/ nvmet/d' /tmp/log.bad
    grep -vE "${1:-^$}" /tmp/log.bad >/tmp/log.left || true
    [ ! -s /tmp/log.left ] || { cat /tmp/log.left; fail "the kernel warns: $(head -n 1 /tmp/log.left)"; }
}

# ---------------------------------------------------------------- the kernel as a host

# connect [OPTION...]: associate with the subsystem $NQN.
connect() {
    nvme connect -t tcp -a "$ADDR" -s "$PORT" -n "$NQN" --keep-alive-tmo=30 "$@"
    dev 1 >/dev/null
}

# disconnect: end all associations with $NQN; its controllers must be gone after that.
disconnect() {
    nvme disconnect -n "$NQN"
    local i=0
    while [ -n "$(ctrl)" ]; do
        [ $i -lt 100 ] || fail "the controller did not go away"
        sleep 0.1
        i=$((i + 1))
    done
}

# ctrl: the name (nvme0) of the controller connected to $NQN, or nothing.
ctrl() {
    local c
    for c in /sys/class/nvme/nvme*; do
        [ "$(cat "$c/subsysnqn" 2>/dev/null)" = "$NQN" ] || continue
        echo "${c##*/}"
        return
    done
}

# state: the kernel's word for the state of that controller.
state() { cat "/sys/class/nvme/$(ctrl)/state" 2>/dev/null || echo gone; }

# wait_state WORD SECONDS
wait_state() {
    local i=0
    while [ "$(state)" != "$1" ]; do
        [ $i -lt "$2" ] || fail "the controller is '$(state)' and not '$1' after $2 s"
        sleep 1
        i=$((i + 1))
    done
}

# dev NSID: the block device of that namespace of $NQN (waits up to 20 s).
dev() {
    local i=0 s d
    while [ $i -lt 200 ]; do
        for s in /sys/class/nvme-subsystem/nvme-subsys*; do
            [ "$(cat "$s/subsysnqn" 2>/dev/null)" = "$NQN" ] || continue
            for d in "$s"/nvme*n*; do
                # (the number in the name is not the namespace's: new kernels scan in parallel)
                d=${d##*/}
                [ "$(cat "/sys/block/$d/nsid" 2>/dev/null)" = "$1" ] && [ -b "/dev/$d" ] || continue
                echo "/dev/$d"
                return 0
            done
        done
        sleep 0.1
        i=$((i + 1))
    done
    echo "no block device for namespace $1" >&2
    return 1
}

# block_size DEVICE, bytes DEVICE
block_size() { blockdev --getss "$1"; }
bytes() { blockdev --getsize64 "$1"; }

# cold_caches: forget what the page cache holds, so that the next read asks the target.
cold_caches() { sync; echo 3 >/proc/sys/vm/drop_caches; }

# verify DEVICE SIZE [FIO OPTION...]: write mixed block sizes, read all back, compare checksums.
verify() {
    local d=$1 size=$2
    shift 2
    fio --name=verify --filename="$d" --rw=randwrite --bsrange="$(block_size "$d")-$FIO_MAX" --size="$size" \
        --direct=1 --ioengine=libaio --iodepth=16 --verify=crc32c --verify_fatal=1 --verify_dump=0 \
        --do_verify=1 --minimal "$@" >/tmp/fio.out 2>&1 || { cut -c1-200 /tmp/fio.out; return 1; }
}

# unpiped COMMAND...: run it with SIGPIPE ignored. Linux sends a command in the context of the process
# that does the I/O, and without MSG_NOSIGNAL: while a connection breaks, that process is sent SIGPIPE
# (dd then ends with 141 and no word, with "failed to send request -32" in the kernel's log), although
# its request is repeated on the next connection and succeeds.
unpiped() {
    (
        trap '' PIPE
        exec "$@"
    )
}

# all_zero DEVICE OFFSET_MIB COUNT_MIB
all_zero() {
    local want got
    want=$(dd if=/dev/zero bs=1M count="$3" 2>/dev/null | md5sum)
    got=$(dd if="$1" bs=1M skip="$2" count="$3" iflag=direct 2>/dev/null | md5sum)
    [ "$want" = "$got" ]
}

# ---------------------------------------------------------------- the kernel as a target

NVMET=/sys/kernel/config/nvmet

# nvmet_subsystem NQN DEVICE...: open to all hosts, one namespace per device.
nvmet_subsystem() {
    local s=$NVMET/subsystems/$1 n=0 d
    shift
    modprobe nvmet
    mkdir "$s"
    echo 1 >"$s/attr_allow_any_host"
    for d; do
        n=$((n + 1))
        mkdir "$s/namespaces/$n"
        echo "$d" >"$s/namespaces/$n/device_path"
        echo 1 >"$s/namespaces/$n/enable"
    done
}

# nvmet_port ID PORT NQN: listen on every address and offer the subsystem there.
nvmet_port() {
    local p=$NVMET/ports/$1
    modprobe nvmet-tcp
    mkdir "$p"
    echo tcp >"$p/addr_trtype"
    echo ipv4 >"$p/addr_adrfam"
    echo 0.0.0.0 >"$p/addr_traddr"
    echo "$2" >"$p/addr_trsvcid"
    ln -s "$NVMET/subsystems/$3" "$p/subsystems/$3"
}

# Three namespaces like those of Raceline in these tests, served by this same kernel.
nvmet_self() {
    modprobe -a loop
    modprobe brd rd_nr=1 rd_size=$((96 * 1024))
    truncate -s 96M /tmp/ns2
    truncate -s 384M /root/ns3
    losetup -b 4096 --direct-io=off /dev/loop0 /tmp/ns2
    losetup -b 4096 /dev/loop1 /root/ns3
    nvmet_subsystem "$NQN" /dev/ram0 /dev/loop0 /dev/loop1
    nvmet_port 1 "$PORT" "$NQN"
}
