# The kernel's host over RDMA (nvme-rdma) on `raceline serve` in this guest, over soft RoCE (rdma_rxe).  The daemon is in its
# sandbox, whole.  A second daemon finds it by its discovery service over RDMA, and the device of soft RoCE is taken away
# under load.
#
# Environment: NQN.  The program raceline is beside this script.  The daemon listens for RDMA on port 4420 and for TCP on port
# 4421, serves a namespace in RAM (1, blocks of 512 bytes) and one in a file (2, blocks of 4096 bytes), and has ANA.
. ./lib.sh
. ./multipath.sh
. ./roce.sh

ADDR=10.0.2.15
PORT=4420
TCP_PORT=4421
SOCKET=/tmp/daemon.sock
SECOND=/tmp/second.sock
DISCOVERY=nqn.2014-08.org.nvmexpress.discovery

rpc() { $RACELINE rpc -s $SOCKET "$@"; }
second() { $RACELINE rpc -s $SECOND "$@"; }

# (on both CPUs, so that each core has a completion queue and a shared receive queue)
daemon_start() { program_start daemon serve -r $SOCKET -m 0x3 --rdma --sandbox on --state-dir /tmp/state; }
# place TRANSPORT PORT: an address as `raceline port` takes it; `port add` makes a transport that is missing.
place() { [ "$1" = tcp ] && echo "$ADDR:$2" || echo "$1://$ADDR:$2"; }
add_listener() { $RACELINE port add -s $SOCKET "$NQN" "$(place "$1" "$2")"; }
set_up() {
    truncate -s 256M /root/disk
    mkdir /tmp/state
    daemon_start
    rpc nvmf_create_transport -t tcp
    rpc bdev_malloc_create -b memory 96 512
    rpc bdev_uring_create /root/disk disk 4096
    rpc nvmf_create_subsystem "$NQN" -a -r
    rpc nvmf_subsystem_add_ns "$NQN" memory -n 1
    rpc nvmf_subsystem_add_ns "$NQN" disk -n 2
    add_listener rdma $PORT
    add_listener tcp $TCP_PORT
}
# Whether the sandbox holds: no capability to do anything, and filtered calls.
sandboxed() {
    local pid
    pid=$(cat /tmp/daemon.pid)
    grep -E '^(Seccomp|NoNewPrivs):' "/proc/$pid/status"
    grep -q '^Seccomp:[[:space:]]*2' "/proc/$pid/status" || fail "no filter of system calls"
    grep -q '^NoNewPrivs:[[:space:]]*1' "/proc/$pid/status" || fail "new privileges are possible"
    ls -l "/proc/$pid/fd" | grep -q /dev/infiniband/ || fail "no RDMA device is open"
}
# A daemon without --rdma says what it needs.
without_rdma() {
    program_start plain serve -r /tmp/plain.sock --sandbox on
    $RACELINE rpc -s /tmp/plain.sock nvmf_create_transport -t tcp
    refused 'given up the right to load libraries.*--rdma' $RACELINE rpc -s /tmp/plain.sock nvmf_create_transport -t rdma
    program_stop plain
}

discovery() {
    nvme discover -t rdma -a $ADDR -s $PORT | tee /tmp/discovery
    [ "$(grep -c "^subnqn: *$NQN\$" /tmp/discovery)" = 2 ] || fail "the subsystem is not listed once for each transport"
    [ "$(grep -c '^trtype: *rdma' /tmp/discovery)" -ge 1 ] && grep -q '^trtype: *tcp' /tmp/discovery || fail "a transport is missing"
}

# live TRANSPORT PORT OPTION...: connects, and waits until the path is live.
live() {
    local transport=$1 port=$2
    shift 2
    nvme connect -t "$transport" -a $ADDR -s "$port" -n "$NQN" --keep-alive-tmo=5 --reconnect-delay=1 --ctrl-loss-tmo=300 "$@"
    wait_live "$port"
}
commands() {
    local d
    d=$(dev 2)
    nvme id-ctrl "/dev/$(of_port $PORT)" | grep -q "$NQN"
    nvme flush "$d"
    # In a capsule, and by a key.
    verify "$d" 4m --bsrange=4k-4k
    verify "$d" 16m --bsrange=256k-1m
    dd if=/dev/urandom of="$d" bs=1M count=4 oflag=direct 2>/dev/null
    nvme write-zeroes "$d" --start-block=0 --block-count=255
    all_zero "$d" 0 1 || fail "write-zeroes"
    nvme dsm "$d" --ad --slbs=256 --blocks=256
    mkfs.ext4 -q -F "$d"
    mount "$d" /mnt
    dd if=/dev/urandom of=/mnt/data bs=1M count=8 conv=fsync 2>/dev/null
    md5sum </mnt/data >/tmp/sum
    umount /mnt
    cold_caches
    mount "$d" /mnt
    [ "$(md5sum </mnt/data)" = "$(cat /tmp/sum)" ] || fail "the file changed"
    umount /mnt
    fsck.ext4 -f -n "$d"
}

lost() { [ "$(port_state "$1")" != live ]; }
gone() { [ "$(port_state "$1")" = gone ]; }
not_live() { until_true 60 lost "$1" || fail "the kernel did not notice that the daemon is gone"; }

# written PORT: prints how many writes the path by that port has completed, to both namespaces.
written() {
    local c
    c=$(of_port "$1")
    cat /sys/class/nvme/"$c"/nvme*c"${c#nvme}"n*/stat | awk '{ sum += $5 } END { print sum + 0 }'
}
# Two paths to one disk, one over each transport; each is taken away in turn while fio verifies.
both_transports() {
    local rdma tcp
    live tcp $TCP_PORT
    dev 1
    [ "$(ls -d /sys/class/nvme-subsystem/nvme-subsys*/nvme*n1 | wc -l)" = 1 ] || fail "there is no single disk"
    policy round-robin
    rdma=$(written $PORT) tcp=$(written $TCP_PORT)
    verify "$(dev 1)" 4m
    [ "$(written $PORT)" -gt "$rdma" ] || fail "the path over RDMA has had no writes"
    [ "$(written $TCP_PORT)" -gt "$tcp" ] || fail "the path over TCP has had no writes"
}
cut_each() {
    local pair transport port
    fio_background 1 0 8m 4
    for pair in "rdma $PORT" "tcp $TCP_PORT" "rdma $PORT"; do
        transport=${pair% *} port=${pair#* }
        sleep 1
        $RACELINE port rm -s $SOCKET "$NQN" "$(place "$transport" "$port")"
        not_live "$port"
        add_listener "$transport" "$port"
        wait_live "$port"
    done
    fio_succeeded 120
}
states() {
    $RACELINE port set -s $SOCKET "$NQN" "$(place rdma $PORT)" --ana inaccessible
    wait_ana $PORT inaccessible
    verify "$(dev 1)" 2m
    rpc nvmf_subsystem_listener_set_ana_state "$NQN" -t rdma -a $ADDR -f ipv4 -s $PORT -n optimized
    wait_ana $PORT optimized
}
kill_under_io() {
    local i
    # Only the file outlives the daemon.
    fio_background 2 0 8m 3
    for i in 1 2; do
        sleep 2
        program_kill daemon
        not_live $PORT
        daemon_start
        wait_live $PORT
        wait_live $TCP_PORT
    done
    fio_succeeded 180
    verify "$(dev 2)" 2m
}

# A second daemon follows the discovery service over RDMA: a path over each transport, and devices that read what is there.
has_both_paths() { [ "$(second bdev_nvme_get_controllers | grep -c '"traddr"')" -ge 2 ]; }
has_found() { second bdev_get_bdevs -b found1n1 >/dev/null 2>&1; }
has_forgotten() { ! has_found; }
followed() {
    program_start second serve -r $SECOND --rdma --sandbox on
    second bdev_nvme_start_discovery -b found -t rdma -a $ADDR -f ipv4 -s $PORT -w
    second bdev_nvme_get_discovery_info | tee /tmp/info
    grep -q '"RDMA"' /tmp/info || fail "the service is not followed over RDMA"
    second bdev_get_bdevs -b found0n1 >/dev/null
    until_true 20 has_both_paths || { second bdev_nvme_get_controllers; fail "there is no path for each transport"; }
    second bdev_nvme_get_controllers | tee /tmp/info
    grep -q '"RDMA"' /tmp/info && grep -q '"TCP"' /tmp/info || fail "a transport is missing"
    # A subsystem that comes is found, and one that goes is forgotten.
    rpc nvmf_create_subsystem "$NQN-two" -a
    rpc bdev_malloc_create -b two 16 512
    rpc nvmf_subsystem_add_ns "$NQN-two" two
    rpc nvmf_subsystem_add_listener "$NQN-two" -t rdma -a $ADDR -f ipv4 -s $PORT
    until_true 30 has_found || { second bdev_nvme_get_discovery_info; fail "the new subsystem is not found"; }
    rpc nvmf_delete_subsystem "$NQN-two"
    until_true 30 has_forgotten || fail "the subsystem that is gone is still there"
    second bdev_nvme_stop_discovery -b found
    program_stop second
}

# lower_limits: the experiment with limits that bind in an emulated machine, where a protocol has some hundred IOPS at most.
lower_limits() {
    sed -e 's/^id = "CONVERGED"/id = "LOWER"/' \
        -e 's/limit_iops = 2000/limit_iops = 40/; s/limit 2,000 IOPS/limit 40 IOPS/' \
        -e 's/limit_iops = 1000/limit_iops = 20/; s/limit 1,000 IOPS/limit 20 IOPS/' converged.toml >/tmp/lower.toml
    [ "$(grep -c 'limit_iops = [24]0 ' /tmp/lower.toml)" = 4 ] || fail "the experiment has other limits than this script knows"
}
# divided: reads the table of the experiment.  Together, the shares are those of the IOPS, and 100 % in all.  With limits, no
# protocol has more than a tenth above its own, and one that had at least twice as much without has at least two thirds of it.
divided() {
    awk -F'|' '
        function number(text) { gsub(/[ ,]/, "", text); return text + 0 }
        function wrong(text) { print text; failed = 1 }
        $2 == " together " { order[++n] = $3; iops[$3] = number($4); share[$3] = number($5); sum += number($4); shares += number($5) }
        $2 == " limits " { m++; got[$3] = number($4); part[$3] = number($6) }
        END {
            if (n != 4 || m != 4) wrong("not four protocols in both columns: " n + 0 " and " m + 0)
            if (shares < 99 || shares > 101) wrong("the shares are " shares " % in all")
            for (i = 1; i <= n; i++) {
                way = order[i]
                if (iops[way] <= 0 || got[way] <= 0) { wrong("no command over" way); continue }
                is = 100 * iops[way] / sum
                if (is - share[way] > 1 || share[way] - is > 1) wrong("the share of" way "is " share[way] " % and not " is " %")
                if (part[way] <= 0) { wrong("no limit for" way); continue }
                if (part[way] > 110) wrong("with limits," way "has " part[way] " % of its limit")
                limit = 100 * got[way] / part[way]
                if (iops[way] < 2 * limit) continue
                bound++
                if (part[way] < 67) wrong(way "has only " part[way] " % of its limit, which it exceeds without")
            }
            if (bound < 2) wrong("the limits bind " bound + 0 " protocols")
            exit failed
        }' "$1"
}
# NVMe/TCP, the same with TLS, iSCSI and NVMe/RDMA at once on one file of another target, first without limits and then with
# them.  The command fails if one host reads other data than it wrote.
all_at_once() {
    lower_limits
    $RACELINE bench run LOWER --file /tmp/lower.toml --rdma $ADDR --quick --blocks 1 --runtime 10s --out /root/lower | tee /tmp/lower
    grep -E '^\| (together|limits) ' /tmp/lower | sed 's/^/# /' >/dev/ttyS1
    divided /tmp/lower || fail "$(divided /tmp/lower)"
}

# The queue pairs of each core take their receives from the core's shared queue: the admin queue's and those of two I/O queues.
shared_receives() {
    local thread sharing own all=0
    rdma resource show srq | tee /tmp/srq
    rdma resource show qp | tee /tmp/qp
    [ "$(grep -c . /tmp/srq)" = 2 ] || fail "there is not one shared receive queue for each core"
    # (the kernel names the thread that has made it)
    for thread in $(sed -n 's/.* pid \([0-9]*\) .*/\1/p' /tmp/srq); do
        [ -d "/proc/$(cat /tmp/daemon.pid)/task/$thread" ] || fail "a shared receive queue is not the daemon's"
        # Numbers of queue pairs, such as 18,20,22-24.
        sharing=$(grep " pid $thread " /tmp/srq | sed -n 's/.* lqpn \([0-9,-]*\) .*/\1/p' | tr , '\n' |
            awk -F- '{ n += NF == 2 ? $2 - $1 + 1 : 1 } END { print n + 0 }')
        own=$(grep -c " pid $thread " /tmp/qp)
        [ "$own" -ge 1 ] || fail "a core has no queue pair"
        [ "$sharing" = "$own" ] || fail "$sharing of a core's $own queue pairs share their receives"
        all=$((all + own))
    done
    [ "$all" -ge 3 ] || fail "the daemon has $all queue pairs"
    echo "$all queue pairs on two cores share the receives of their core"
}

# The one device goes away under load: the kernel gives its path up, and I/O goes on by the other one.  The kernel waits until
# the daemon has closed the device.
returns() { grep -c 'an RDMA listener has a device again' /tmp/daemon.err || true; }
has_returned() { [ "$(returns)" -gt "$(cat /tmp/returns)" ]; }
device_removed() {
    returns >/tmp/returns
    fio_background 1 0 8m 4
    sleep 2
    timeout 60 rdma link delete rxe0 || fail "the daemon does not let go of the device"
    until_true 60 gone $PORT || fail "the controller of port $PORT is $(port_state $PORT)"
    fio_succeeded 120
    verify "$(dev 1)" 2m
    rpc nvmf_get_subsystems | grep -q "$NQN"
    grep 'listens again as soon as a device has its address' /tmp/daemon.err
    program_healthy daemon
}
# The listener comes back with the device, in the daemon's sandbox.
device_returns() {
    forget_controllers
    roce_up
    until_true 60 has_returned || fail "the listener does not come back"
    live rdma $PORT
    dev 1
    verify "$(dev 2)" 2m
    program_healthy daemon
}

dispatch "$@"
# The kernel tells its parts in the reverse order of their loading that a device goes; ib_uverbs is the first, and the last to
# be told, because it waits for programs.
roce_up
modprobe nvme-tcp
log_start
check set-up 90 set_up
check sandboxed 10 sandboxed
check without-rdma 60 without_rdma
check discover 30 discovery
check connect 30 live rdma $PORT --nr-io-queues=2
check shared-receives 20 shared_receives
check commands 180 commands
check dmesg-commands 10 log_clean
check both-transports 60 both_transports
check cut-each 240 cut_each
check states 60 states
check kill-under-io 400 kill_under_io
check dmesg-cuts 20 paths_clean
check followed 180 followed
check all-at-once 300 all_at_once
check device-removed 240 device_removed
check device-returns 120 device_returns
check device-removed-again 240 device_removed
check device-returns-again 120 device_returns
check disconnect 30 disconnect
check daemon-ends 30 program_stop daemon
finish
