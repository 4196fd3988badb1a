# `raceline serve --take-over` under the kernel's host: ten new processes one after another take the place of the daemon, while
# two jobs verify what they write over four queues.  Then new processes die in the middle of it.
#
# Environment: NQN.  The program raceline is beside this script.  The guest has four CPUs: the kernel makes a queue for each.
. ./lib.sh

ADDR=127.0.0.1
PORT=4420
SOCKET=/tmp/run/rpc.sock
TIMES=10

rpc() { $RACELINE rpc -s $SOCKET "$@"; }
# daemon [OPTION...]: the daemon, or with --take-over the next one.
daemon() { program_start daemon -v serve -r $SOCKET --state-dir /tmp/state --keep-ram "$@"; }

set_up() {
    modprobe nvme-tcp
    mkdir -p /tmp/run /tmp/state
    truncate -s 256M /root/disk
    daemon
    rpc nvmf_create_transport -t tcp
    rpc bdev_malloc_create -b memory 64 512
    rpc bdev_aio_create /root/disk disk 4096
    rpc nvmf_create_subsystem "$NQN" -a
    rpc nvmf_subsystem_add_ns "$NQN" memory -n 1
    rpc nvmf_subsystem_add_ns "$NQN" disk -n 2
    rpc nvmf_subsystem_add_listener "$NQN" -t tcp -a $ADDR -s $PORT
}

# sockets: prints the kernel's own ports of the connections to $PORT.  A host that connects anew has others.
sockets() {
    local port
    port=$(printf ':%04X' $PORT)
    awk -v to="$port" '$4 == "01" && substr($3, 9) == to { print substr($2, 10) }' /proc/net/tcp | sort
}
four_queues() {
    connect --nr-io-queues=4
    dev 2
    sockets >/tmp/sockets
    [ "$(grep -c . /tmp/sockets)" = 5 ] || fail "there are $(grep -c . /tmp/sockets) connections and not 5"
}

# jobs NSID: verifying jobs on that namespace, one after another, until /tmp/enough is there; /tmp/jobs.NSID has how they ended.
jobs() {
    local d rc=0
    d=$(dev "$1")
    while [ ! -e /tmp/enough ] && [ $rc = 0 ]; do
        fio --name=x --filename="$d" --direct=1 --ioengine=libaio --iodepth=8 --numjobs=2 --rw=randwrite --bs=4k-64k \
            --size=4m --offset_increment=8m --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_dump=0 \
            >"/tmp/fio.$1" 2>&1 || rc=$?
    done
    echo $rc >"/tmp/jobs.$1"
}
# done_of NSID: prints how many reads and writes of that namespace have completed.
done_of() { awk '{ print $1 + $5 }' "/sys/block/$(basename "$(dev "$1")")/stat"; }
moved() { [ "$(done_of "$1")" -gt $(($(cat "/tmp/before.$1") + 20)) ]; }
# goes_on: both jobs complete commands from now on, and by the same connections.
goes_on() {
    local n
    for n in 1 2; do done_of $n >/tmp/before.$n; done
    for n in 1 2; do until_so 60 moved $n; done
    for n in 1 2; do [ ! -e /tmp/jobs.$n ] || { cat /tmp/fio.$n; fail "the job on namespace $n has ended"; }; done
    sockets >/tmp/now
    cmp -s /tmp/sockets /tmp/now || {
        grep -v '"target":"raceline::audit"' /tmp/daemon.err | tail -n 30
        fail "the host has connected anew"
    }
    ! dmesg | grep 'starting error recovery' || fail "the host has lost a connection"
    [ "$(state)" = live ] || fail "the controller is $(state)"
}
begin_jobs() {
    rm -f /tmp/enough /tmp/jobs.*
    jobs 1 &
    jobs 2 &
    goes_on
}
# end_jobs: they end, and have found no wrong byte.
end_jobs() {
    local n
    touch /tmp/enough
    for n in 1 2; do
        until_so 120 test -s /tmp/jobs.$n
        [ "$(cat /tmp/jobs.$n)" = 0 ] || { tail -n 5 /tmp/fio.$n; fail "the job on namespace $n found an error"; }
    done
}

gone() { ! kill -0 "$1" 2>/dev/null; }
take_over() {
    local old
    old=$(cat /tmp/daemon.pid)
    daemon --take-over
    until_so 20 gone "$old"
    program_healthy daemon
    goes_on
}
ten_times() {
    local i=0
    begin_jobs
    while [ $i -lt $TIMES ]; do
        i=$((i + 1))
        take_over
    done
    end_jobs
    ! grep 'not handed over' /tmp/daemon.err || fail "a connection was not handed over"
    [ "$(pauses | grep -c .)" = $TIMES ] || fail "the daemons tell of $(pauses | grep -c .) take-overs"
}
# pauses: prints the microseconds for which each daemon has had its hosts wait, the shortest first.
pauses() { sed -n 's/.*pause_us=\([0-9]*\).*/\1/p' /tmp/daemon.err | sort -n; }

wants() { grep -c 'a process wants to take the place' /tmp/daemon.err || true; }
wanted() { [ "$(wants)" -gt "$1" ]; }
went_on() { [ "$(grep -c 'this daemon goes on, as that process is gone' /tmp/daemon.err || true)" -gt "$1" ]; }
# dies AFTER: a new process is stopped that long after it has met the daemon, and is killed if the daemon is still there. If
# it has been faster, it goes on.
dies() {
    local old new deaths asked
    old=$(cat /tmp/daemon.pid)
    asked=$(wants)
    deaths=$(grep -c 'this daemon goes on, as that process is gone' /tmp/daemon.err || true)
    setsid "$RACELINE" -v serve -r $SOCKET --state-dir /tmp/state --keep-ram --take-over >/tmp/new.out 2>>/tmp/daemon.err </dev/null &
    new=$!
    until_so 60 wanted "$asked"
    sleep "$1"
    kill -STOP $new
    # What it has said before, the daemon acts on now.
    sleep 1
    if gone "$old"; then
        kill -CONT $new
        echo $new >/tmp/daemon.pid
        until_so 60 grep -q '"ready"' /tmp/new.out
    else
        kill -9 $new
        until_so 60 went_on "$deaths"
        echo "$1" >>/tmp/deaths
    fi
    program_healthy daemon
    goes_on
}
successors_die() {
    local after
    : >/tmp/deaths
    begin_jobs
    for after in 0 0.1 0.2 0.4 0.8 1.6; do dies $after; done
    [ "$(grep -c . /tmp/deaths)" -ge 3 ] || fail "only $(grep -c . /tmp/deaths) new processes could be killed in time"
    # The daemon that has gone on can still be replaced, and told.
    take_over
    rpc bdev_malloc_create -b more 8 512
    rpc bdev_malloc_delete more
    end_jobs
}
same_data() {
    local n
    for n in 1 2; do verify "$(dev $n)" 2m; done
    disconnect
}

dispatch "$@"
log_start
check set-up 120 set_up
check four-queues 60 four_queues
check ten-times 900 ten_times
check successors-die 600 successors_die
check same-data 60 same_data
check kernel-log 10 log_clean
check daemon-ends 30 program_stop daemon
[ ! -s /tmp/deaths ] || echo "# killed, in seconds after they had met the daemon: $(tr '\n' ' ' </tmp/deaths)"
echo "# microseconds of pause, emulated: $(pauses | tr '\n' ' ')"
finish
