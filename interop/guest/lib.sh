# Shell functions for the scripts that run inside the guest: checks, nvme devices, the kernel's log.
#
# A script sources this file, defines one function per check and ends with
#     dispatch "$@"           # (each function runs in a child shell, under a time limit)
#     check NAME SECONDS FUNCTION [ARGUMENT...]
# Each check prints one line: "ok NAME", "not ok NAME: why" or "skip NAME: why".
# A function that cannot run here prints the reason and returns 77: its check is then skipped.

# The script's own name: `check` starts the script again by it.
SELF=${0##*/}
FIO_MAX=${FIO_MAX:-1m}
TRANSPORT=${TRANSPORT:-tcp}
ADDR=${ADDR:-10.0.2.2}
FAILED=/tmp/failed-checks
# A check makes it that has met the one fault of soft RoCE that is known.
ROCE_FAULT=/tmp/roce-fault
# (where a script puts this program into the guest)
RACELINE=${RACELINE:-./raceline}

# dispatch "$@": runs the named function in a child shell of `check`; does nothing in the script itself.
dispatch() {
    [ "${1:-}" = call ] || return 0
    shift
    set -eu
    "$@"
    exit
}

# check NAME SECONDS FUNCTION...: runs the function in a child shell, and prints the result.
check() {
    local name=$1 limit=$2 rc=0 why
    shift 2
    # (dash by its path: by name, busybox's timeout would run busybox's shell, which prefers busybox's commands)
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

# finish: ends the script, with exit code 1 if a check has failed and 0 otherwise.
finish() {
    echo "# end of checks"
    [ ! -s $FAILED ]
    exit
}

# fail WORDS: ends a check as failed, with this reason.
fail() { echo "$*"; exit 1; }

# until_true SECONDS COMMAND...: runs the command every 0.2 s until it succeeds; fails if it has not after SECONDS.  (By the
# clock: on an emulated processor, a command takes long.)
until_true() {
    local limit=$1 start
    shift
    start=$(date +%s)
    while ! "$@"; do
        [ $(($(date +%s) - start)) -lt "$limit" ] || return 1
        sleep 0.2
    done
}

# until_so SECONDS COMMAND...: as until_true, and ends the check if the command has not succeeded, with the last words of the
# command and of the programs that write to /tmp/*.err.  /tmp/until has what the command printed the last time.
until_so() {
    local limit=$1
    shift
    until_true "$limit" kept "$@" || {
        tail -n 5 /tmp/until /tmp/*.err 2>/dev/null || true
        fail "not so within $limit s: $*"
    }
}
kept() { "$@" >/tmp/until 2>&1; }

# refused TEXT COMMAND...: the command must fail, and its output must match TEXT in upper or lower case.
refused() {
    local text=$1
    shift
    if "$@" >/tmp/refused.out 2>&1; then
        cat /tmp/refused.out
        fail "accepted: $*"
    fi
    grep -qiE "$text" /tmp/refused.out || { cat /tmp/refused.out; fail "not refused with '$text': $*"; }
}

# ---------------------------------------------------------------- Raceline in the guest

# program_start NAME ARGUMENT...: starts Raceline in the background, and waits for its ready line.
program_start() {
    local name=$1 i=0
    shift
    rm -f "/tmp/$name.out"
    # (the child shell of a check ends; the program goes on)
    setsid "$RACELINE" "$@" >"/tmp/$name.out" 2>>"/tmp/$name.err" </dev/null &
    echo $! >"/tmp/$name.pid"
    while ! grep -q '"ready"' "/tmp/$name.out"; do
        kill -0 "$(cat "/tmp/$name.pid")" 2>/dev/null || { tail -n 5 "/tmp/$name.err"; fail "raceline $1 has ended"; }
        [ $i -lt 300 ] || fail "raceline $1 is not ready after 30 s"
        sleep 0.1
        i=$((i + 1))
    done
}
# program_kill NAME: kills it without warning.
program_kill() {
    program_healthy "$1"
    kill -9 "$(cat "/tmp/$1.pid")"
}
# program_healthy NAME: fails if it has ended or panicked.
program_healthy() {
    ! grep -A 5 'panicked at' "/tmp/$1.err" || fail "$1 has panicked"
    kill -0 "$(cat "/tmp/$1.pid")" || { tail -n 5 "/tmp/$1.err"; fail "$1 has ended"; }
}
# program_stop NAME: ends it by SIGTERM; it has to end within 20 s.
program_stop() {
    local i=0
    program_healthy "$1"
    kill -TERM "$(cat "/tmp/$1.pid")"
    while kill -0 "$(cat "/tmp/$1.pid")" 2>/dev/null; do
        [ $i -lt 200 ] || fail "$1 did not end"
        sleep 0.1
        i=$((i + 1))
    done
}

# ---------------------------------------------------------------- the kernel's log

# log_start: empties the kernel's log.
log_start() { dmesg -c >/dev/null; }

# log_clean [PATTERN]: fails if the kernel has logged a warning or error about storage since log_start.
# Lines that match PATTERN are allowed: the test itself provoked them.  The log is emptied.
log_clean() {
    dmesg -c --level=emerg,alert,crit,err,warn >/tmp/log.all
    # The emulated processor once raised a debug exception for which no test had given a cause.
    sed -i '/WARNING: .*exc_debug_kernel/,/end trace/d' /tmp/log.all
    # (rdma.sh says why)
    [ ! -e $ROCE_FAULT ] || sed -i '/WARNING: .* rxe_completer/,/end trace/d' /tmp/log.all
    grep -E 'nvme|blk|[Ii]/[Oo] error|EXT4|XFS|JBD2|blocked for more|BUG|WARNING|Oops|Call Trace' \
        /tmp/log.all >/tmp/log.bad || true
    # When the peer is the kernel itself, lines of its target (nvmet) are not complaints of its host.
    [ "${PEER:-}" != kernel ] || sed -i '/ nvmet/d' /tmp/log.bad
    grep -vE "${1:-^$}" /tmp/log.bad >/tmp/log.left || true
    [ ! -s /tmp/log.left ] || { cat /tmp/log.left; fail "the kernel warns: $(head -n 1 /tmp/log.left)"; }
}

# ---------------------------------------------------------------- the kernel as a host

# begin_hosts: loads the kernel's host for $TRANSPORT, and starts the target if that is in this guest: the kernel's own with
# PEER=kernel, Raceline's over RDMA (roce.sh).
begin_hosts() {
    modprobe "nvme-$TRANSPORT"
    if [ "$TRANSPORT" = rdma ]; then
        ADDR=10.0.2.15
        export ADDR
        roce_up
        check target-starts 60 target_start
    elif [ "${PEER:-}" = kernel ]; then
        ADDR=127.0.0.1
        export ADDR
        nvmet_self
    fi
}

# connect [OPTION...]: connects to the subsystem $NQN, and waits for namespace 1.
connect() {
    nvme connect -t "$TRANSPORT" -a "$ADDR" -s "$PORT" -n "$NQN" --keep-alive-tmo=30 "$@"
    dev 1 >/dev/null
}

# disconnect: ends all associations with $NQN.  Its controllers must be gone within 10 s.
disconnect() {
    nvme disconnect -n "$NQN"
    local i=0
    while [ -n "$(ctrl)" ]; do
        [ $i -lt 100 ] || fail "the controller did not go away"
        sleep 0.1
        i=$((i + 1))
    done
}

# ctrl: prints the name of the controller that is connected to $NQN, such as nvme0, or nothing.
ctrl() {
    local c
    for c in /sys/class/nvme/nvme*; do
        [ "$(cat "$c/subsysnqn" 2>/dev/null)" = "$NQN" ] || continue
        echo "${c##*/}"
        return
    done
}

# state: prints the kernel's word for the state of that controller, or "gone".
state() { cat "/sys/class/nvme/$(ctrl)/state" 2>/dev/null || echo gone; }

# wait_state WORD SECONDS: waits until the controller is in that state; fails after SECONDS.
wait_state() {
    local i=0
    while [ "$(state)" != "$1" ]; do
        [ $i -lt "$2" ] || fail "the controller is '$(state)' and not '$1' after $2 s"
        sleep 1
        i=$((i + 1))
    done
}

# dev NSID: prints the block device of that namespace of $NQN.  It waits for the device for at most 20 s.
dev() {
    local i=0 s d
    while [ $i -lt 200 ]; do
        for s in /sys/class/nvme-subsystem/nvme-subsys*; do
            [ "$(cat "$s/subsysnqn" 2>/dev/null)" = "$NQN" ] || continue
            for d in "$s"/nvme*n*; do
                # (new kernels scan in parallel, so the number in the name may differ from the namespace's)
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

# block_size DEVICE: prints the bytes of a block.  bytes DEVICE: prints the bytes of the device.
block_size() { blockdev --getss "$1"; }
bytes() { blockdev --getsize64 "$1"; }

# cold_caches: empties the page cache, so that the next read asks the target.
cold_caches() { sync; echo 3 >/proc/sys/vm/drop_caches; }

# verify DEVICE SIZE [FIO OPTION...]: writes mixed block sizes, reads all back, and compares checksums.
verify() {
    local d=$1 size=$2
    shift 2
    fio --name=verify --filename="$d" --rw=randwrite --bsrange="$(block_size "$d")-$FIO_MAX" --size="$size" \
        --direct=1 --ioengine=libaio --iodepth=16 --verify=crc32c --verify_fatal=1 --verify_dump=0 \
        --do_verify=1 --minimal "$@" >/tmp/fio.out 2>&1 || { cut -c1-200 /tmp/fio.out; return 1; }
}

# unpiped COMMAND...: runs the command with SIGPIPE ignored. Linux sends an NVMe command in the context of the
# process that does the I/O, without MSG_NOSIGNAL. While a connection breaks, that process gets SIGPIPE,
# although Linux repeats the request on the next connection and it succeeds. (dd then ends with 141 and
# prints nothing; the kernel's log has "failed to send request -32".)
unpiped() {
    (
        trap '' PIPE
        exec "$@"
    )
}

# fio_background NSID OFFSET SIZE LOOPS: starts a verifying job, which writes its exit code to /tmp/fio.rc at its end.
fio_background() {
    rm -f /tmp/fio.rc
    (
        rc=0
        unpiped fio --name=background --filename="$(dev "$1")" --rw=randwrite --bs=4k-64k --offset="$2" --size="$3" \
            --direct=1 --ioengine=libaio --iodepth=8 --verify=crc32c --verify_fatal=1 --verify_dump=0 \
            --do_verify=1 --loops="$4" --minimal >/tmp/fio.out 2>&1 || rc=$?
        echo $rc >/tmp/fio.rc
    ) &
}
# fio_ended SECONDS: waits for the end of that job.  fio_succeeded SECONDS: it must have found no wrong byte.
fio_ended() { until_true "$1" test -s /tmp/fio.rc || fail "fio did not end within $1 s: I/O is stuck"; }
fio_succeeded() {
    fio_ended "$1"
    [ "$(cat /tmp/fio.rc)" = 0 ] || { cut -c1-200 /tmp/fio.out; fail "fio ended with $(cat /tmp/fio.rc)"; }
}

# all_zero DEVICE OFFSET_MIB COUNT_MIB: whether that part of the device reads as zeroes.
all_zero() {
    local want got
    want=$(dd if=/dev/zero bs=1M count="$3" 2>/dev/null | md5sum)
    got=$(dd if="$1" bs=1M skip="$2" count="$3" iflag=direct 2>/dev/null | md5sum)
    [ "$want" = "$got" ]
}

# ---------------------------------------------------------------- the kernel as a target

NVMET=/sys/kernel/config/nvmet

# nvmet_subsystem NQN DEVICE...: makes a subsystem that is open to all hosts, with one namespace per device.
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

# nvmet_port ID PORT NQN [tls1.3]: listens on that TCP port of every address, and offers the subsystem there.
nvmet_port() {
    local p=$NVMET/ports/$1
    modprobe nvmet-tcp
    mkdir "$p"
    echo tcp >"$p/addr_trtype"
    echo ipv4 >"$p/addr_adrfam"
    echo 0.0.0.0 >"$p/addr_traddr"
    echo "$2" >"$p/addr_trsvcid"
    if [ -n "${4:-}" ]; then
        echo "$4" >"$p/addr_tsas"
        echo required >"$p/addr_treq"
    fi
    ln -s "$NVMET/subsystems/$3" "$p/subsystems/$3"
}

# tls_daemon: starts the daemon that shakes hands for the kernel, with the kernel's keys of NVMe.
tls_daemon() {
    printf '[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n' >/etc/tlshd.conf
    start-stop-daemon -S -b -x /usr/sbin/tlshd -- -s -c /etc/tlshd.conf
    sleep 1
    pidof tlshd
}

# tls_insert KEY VERSION: puts the key for $HOSTNQN and $NQN into the kernel's keyring, under that version of its identity.
tls_insert() {
    nvme check-tls-key --keydata="$1" --identity="$2" --subsysnqn="$NQN" --hostnqn="$HOSTNQN" --insert
    keyctl show %:.nvme
}

# nvmet_self: serves three namespaces like those of Raceline in these tests from this same kernel.
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
