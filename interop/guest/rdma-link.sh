# The link between two guests loses packets, and goes and comes, under I/O over soft RoCE: the kernel's host (nvme-rdma) and then
# Raceline's host (`raceline perf`) are in one guest, and `raceline serve` and the kernel's target (nvmet-rdma) in the other.
#
# Environment: NQN, and ROLE: "target" serves until this machine is ended, "host" has the checks.  eth1 of both is the wire.
# WEB is the port at 10.0.2.2 by which the host asks the target's guest for its state, and TCP the port of its listener for
# TCP: both go by another network than the wire.  The host's guest prints "REQUEST down" and "REQUEST up" for the wire.
. ./lib.sh
. ./multipath.sh
. ./roce.sh

TARGET=192.168.77.1
HOST=192.168.77.2
PORT=4420
SOCKET=/tmp/daemon.sock
OTHER=$NQN-other
# The kernel's target, at the same device.
THEIRS=$NQN-theirs
THEIR_PORT=4430

# note WORDS: prints a line that is no check.
note() { echo "# $*" >/dev/ttyS1; }
# wire_up ADDRESS: gives eth1 the address, and makes the device of soft RoCE there.
wire_up() {
    # (both guests have the same addresses of network devices, unless told)
    ip link set eth1 address "02:00:00:00:00:0${1##*.}"
    ip addr add "$1/24" dev eth1
    ip link set eth1 up
    roce_up eth1
    modprobe sch_netem
}
# lose PERCENT: from now on the wire loses that part of the packets that this guest sends.  lost: prints how many it has lost.
# keep_all: it loses none any longer.  (The limit is for packets that wait, which count as lost as well.)
lose() { tc qdisc replace dev eth1 root netem loss "$1%" limit 10000; }
lost() { tc -s qdisc show dev eth1 | awk '/netem/ { found = 1 } found && /dropped/ { print $7 + 0; exit }'; }
keep_all() { tc qdisc del dev eth1 root; }

# ---------------------------------------------------------------- the target's guest

rpc() { $RACELINE rpc -s $SOCKET "$@"; }
listen() { rpc nvmf_subsystem_add_listener "$1" -t "$2" -a "$3" -f ipv4 -s "$4"; }
target_set_up() {
    wire_up $TARGET
    truncate -s 256M /root/disk
    program_start daemon serve -r $SOCKET --rdma --sandbox on --metrics 127.0.0.1:9009
    rpc nvmf_create_transport -t tcp
    rpc nvmf_create_transport -t rdma
    rpc bdev_uring_create /root/disk disk 4096
    rpc bdev_malloc_create -b other 64 512
    rpc nvmf_create_subsystem "$NQN" -a
    rpc nvmf_subsystem_add_ns "$NQN" disk -n 1
    listen "$NQN" rdma $TARGET $PORT
    rpc nvmf_create_subsystem "$OTHER" -a
    rpc nvmf_subsystem_add_ns "$OTHER" other -n 1
    listen "$OTHER" tcp 10.0.2.15 4421
    modprobe brd rd_nr=1 rd_size=$((96 * 1024))
    nvmet_subsystem "$THEIRS" /dev/ram0
    rdma_port $TARGET $THEIR_PORT "$THEIRS"
}
# queues_of TRANSPORT: how many queues it carries.
queues_of() { sed -n "s/^raceline_core_queues{.*transport=\"$1\".*} //p" /tmp/metrics | awk '{ sum += $1 } END { print sum + 0 }'; }
# The state that the host may ask for: the queues over the wire and the others, the queue pairs of the device, or why there are
# none, and the packets that the wire has lost.
report() {
    program_healthy daemon >/tmp/health 2>&1 || { echo "dead: $(tail -n 1 /tmp/health)"; return; }
    timeout 10 wget -q -O /tmp/metrics http://127.0.0.1:9009/metrics || { echo "dead: no metrics"; return; }
    echo "wire $(queues_of rdma)"
    echo "other $(queues_of tcp)"
    # Those of the daemon; those of the kernel's target have no process, and the connection manager has made them.
    rdma resource show qp >/tmp/pairs
    echo "pairs $(grep -c ' pid ' /tmp/pairs || true)"
    echo "theirs $(grep -c '\[rdma_cm\]' /tmp/pairs || true)"
    echo "lost $(lost)"
}
# wish PERCENT: what the other guest asks of this one: a wire that loses packets; 0: none any longer.
wish() {
    printf 'Content-Type: text/plain\n\n'
    if [ "$1" = 0 ]; then keep_all; else lose "$1"; fi
    echo done
}
target() {
    check target-set-up 120 target_set_up
    tail -n +1 -f /tmp/daemon.err | while IFS= read -r line; do note "$line"; done &
    # The other guest has no way to this one's shell but this.
    mkdir -p /tmp/web/cgi-bin
    { echo '#!/bin/dash'; echo "cd $PWD && exec /bin/dash ./$SELF call wish \"\$QUERY_STRING\" 2>&1"; } >/tmp/web/cgi-bin/wish
    chmod +x /tmp/web/cgi-bin/wish
    httpd -p 8080 -h /tmp/web
    while :; do
        report >/tmp/web/next
        mv /tmp/web/next /tmp/web/state
        sleep 1
    done
}

# ------------------------------------------------------------------ the host's guest

# queues KIND: prints how many queues the target has of it: by a network ("wire" or "other"), or in the device: of the daemon
# ("pairs") or of the kernel's target ("theirs"); or the packets that it has sent and the wire has lost ("lost").
queues() {
    timeout 10 wget -q -O /tmp/state "http://10.0.2.2:$WEB/state" || { echo unknown; return; }
    ! grep dead /tmp/state >&2 || { echo dead; return; }
    sed -n "s/^$1 //p" /tmp/state
}
has_queues() { [ "$(queues "$1")" = "$2" ]; }
is_live() { [ "$(port_state "$1")" = live ]; }
not_live() { ! is_live $PORT; }
set_up() {
    wire_up $HOST
    modprobe nvme-tcp
    until_true 180 has_queues wire 0 || fail "the target's guest is not ready: $(queues wire)"
    until_true 20 ping -c 1 -W 1 $TARGET || fail "nothing comes over the wire"
}
# Two I/O queues over the wire, one over the other network.
connect_both() {
    nvme connect -t rdma -a $TARGET -s $PORT -n "$NQN" --nr-io-queues=2 --keep-alive-tmo=5 --reconnect-delay=1 --ctrl-loss-tmo=600
    until_true 30 is_live $PORT || fail "no connection over the wire"
    nvme connect -t tcp -a 10.0.2.2 -s "$TCP" -n "$OTHER" --nr-io-queues=1 --keep-alive-tmo=60
    until_true 30 is_live "$TCP" || fail "no connection over the other network"
    until_true 10 has_queues wire 3 || fail "the target has $(queues wire) queues over the wire"
    until_true 10 has_queues other 2 || fail "the target has $(queues other) other queues"
    dev 1
}
# other_writes: writes and reads the namespace that is reached over the other network.
other_writes() {
    local d
    d=$(NQN=$OTHER dev 1)
    verify "$d" 1m
}

# down, up: the wire goes or comes.  since: prints for how many seconds it has.
down() {
    ask down
    date +%s >/tmp/link
}
up() {
    ask up
    date +%s >/tmp/link
}
since() { echo "$(($(date +%s) - $(cat /tmp/link))) s"; }
# both_lose PERCENT: the wire loses that part of the packets of both ways; 0: none.
both_lose() {
    if [ "$1" = 0 ]; then keep_all; else lose "$1"; fi
    [ "$(timeout 10 wget -q -O - "http://10.0.2.2:$WEB/cgi-bin/wish?$1")" = done ] || fail "the target's guest does not do as asked"
}
lost_both_ways() { [ "$(lost)" -ge 3 ] && [ "$(queues lost)" -ge 3 ]; }
# The wire loses one packet of a thousand: what was lost is sent again, no data are wrong, and no connection is lost.
lossy() {
    local start round
    start=$(date +%s)
    both_lose 0.1
    # A MiB that is written or read is 1,024 packets.
    for round in 1 2 3 4; do
        verify "$(dev 1)" 6m || fail "$(tail -n 3 /tmp/fio.out)"
        sleep 2
        ! lost_both_ways || break
    done
    note "the wire lost $(lost) packets of the host's and $(queues lost) of the target's in $(($(date +%s) - start)) s"
    lost_both_ways || fail "too few packets were lost"
    both_lose 0
    is_live $PORT || fail "the controller is $(port_state $PORT)"
    ! dmesg | grep 'starting error recovery' || fail "a connection was lost"
}
# The same with Raceline's host, which connects over such a wire, too.
own_lossy() {
    both_lose 0.1
    $RACELINE perf -t rdma -a $TARGET -s $PORT -n "$NQN" -k 10s -l 100 --rw randrw --bs 16k --size 8m -i 2 --iodepth 8 \
        --ramp_time 0 --runtime 20s --verify -o json >/tmp/perf.json 2>/tmp/perf.err || { cat /tmp/perf.err; fail "perf has failed"; }
    sleep 2
    note "the wire lost $(lost) packets of our host's and $(queues lost) of the target's"
    lost_both_ways || fail "too few packets were lost"
    both_lose 0
    grep -q '"reconnects": *0' /tmp/perf.json || fail "perf has lost a connection"
}
# The link goes for shorter than keep alive.  (Soft RoCE repeats what was lost for about 2 s, and then ends its queues.)
short_loss() {
    fio_background 1 0 8m 3
    sleep 3
    [ ! -s /tmp/fio.rc ] || fail "fio has ended before the link has gone"
    down
    sleep 3
    up
    until_true 60 is_live $PORT || fail "the controller is $(port_state $PORT)"
    note "connected $(since) after the link has come"
    fio_succeeded 90
    has_queues other 2 || fail "the other connection has $(queues other) queues"
}
# The link goes for longer than keep alive: the target frees the queues before it comes back, and the host connects anew.
long_loss() {
    fio_background 1 0 8m 3
    sleep 3
    [ ! -s /tmp/fio.rc ] || fail "fio has ended before the link has gone"
    down
    until_true 60 not_live || fail "the kernel did not notice that the link is gone"
    note "the kernel's host has lost it $(since) after the link has gone"
    until_true 60 has_queues wire 0 || fail "the target still has $(queues wire) queues over the wire"
    note "the target has freed the queues $(since) after the link has gone"
    until_true 20 has_queues pairs 0 || fail "the target's device still has $(queues pairs) queue pairs"
    [ ! -s /tmp/fio.rc ] || fail "fio has ended without a link"
    other_writes
    has_queues other 2 || fail "the other connection has $(queues other) queues"
    up
    until_true 60 is_live $PORT || fail "the controller is $(port_state $PORT)"
    note "the kernel's host is connected $(since) after the link has come"
    fio_succeeded 90
    until_true 10 has_queues wire 3 || fail "the target has $(queues wire) queues over the wire"
    until_true 10 has_queues pairs 3 || fail "the target's device has $(queues pairs) queue pairs"
}
# own_host PORT NQN KIND: Raceline's host, while the link to that target goes for longer than keep alive.  It holds writes back
# whose fate it does not know, and sends them again (--multipath).
own_host() {
    until_true 30 has_queues "$3" 0 || fail "there are $(queues "$3") queues before it begins"
    rm -f /tmp/perf.rc
    (
        rc=0
        $RACELINE perf -t rdma -a $TARGET -s "$1" -n "$2" --multipath -k 5s -l 300 --rw randrw --bs 16k --size 8m -i 2 \
            --iodepth 8 --ramp_time 0 --runtime 60s --verify -o json >/tmp/perf.json 2>/tmp/perf.err || rc=$?
        echo $rc >/tmp/perf.rc
    ) &
    until_true 30 has_queues "$3" 3 || { cat /tmp/perf.err; fail "perf has $(queues "$3") queues"; }
    sleep 3
    down
    until_true 60 has_queues "$3" 0 || fail "the target still has $(queues "$3") queues"
    note "the target has freed the queues of perf $(since) after the link has gone"
    [ "$3" != wire ] || until_true 20 has_queues pairs 0 || fail "the target's device still has $(queues pairs) queue pairs"
    [ ! -s /tmp/perf.rc ] || { cat /tmp/perf.err; fail "perf has ended without a link"; }
    up
    until_true 60 has_queues "$3" 3 || { cat /tmp/perf.err; fail "the target has $(queues "$3") queues"; }
    note "perf is connected $(since) after the link has come"
    until_true 120 test -s /tmp/perf.rc || fail "perf did not end"
    [ "$(cat /tmp/perf.rc)" = 0 ] || { cat /tmp/perf.err; fail "perf ended with $(cat /tmp/perf.rc)"; }
    grep -q '"reconnects": *[1-9]' /tmp/perf.json || fail "perf has not reconnected"
}
# Both targets serve new connections after the losses.
own_reads() {
    $RACELINE identify -t rdma -a $TARGET -s $PORT -n "$NQN" >/dev/null
    $RACELINE identify -t rdma -a $TARGET -s $THEIR_PORT -n "$THEIRS" >/dev/null
}
# The other connection has never been made anew.
other_untouched() {
    other_writes
    ! dmesg | grep -E "$(of_port "$TCP"): (starting error recovery|Reconnecting|Successfully reconnected)" || fail "the other connection was lost"
}

dispatch "$@"
[ "$ROLE" = host ] || target
log_start
check set-up 240 set_up
check connect 90 connect_both
check write-read 60 verify "$(dev 1)" 4m
check lossy 300 lossy
check short-loss 120 short_loss
check long-loss 240 long_loss
check other-untouched 60 other_untouched
check write-read-after 60 verify "$(dev 1)" 4m
check kernel-log 20 paths_clean
check disconnect 30 disconnect
check own-lossy 120 own_lossy
check own-host 300 own_host $PORT "$NQN" wire
check own-host-and-nvmet 300 own_host $THEIR_PORT "$THEIRS" theirs
check own-host-after 120 own_reads
finish
