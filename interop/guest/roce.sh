# Shell functions for scripts whose transport is RDMA: soft RoCE on a network device of the guest, and Raceline's target in
# the guest itself, because no packet of soft RoCE leaves it.  lib.sh has to be sourced before.

RACELINE=${RACELINE:-./raceline}

# roce_up [DEVICE]: makes the device of soft RoCE, with all modules of both sides.
roce_up() {
    modprobe -a ib_uverbs rdma_cm rdma_ucm rdma_rxe nvme-rdma
    rdma link add rxe0 type rxe netdev "${1:-eth0}"
}

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

# target_start: Raceline's target with three namespaces like those of the tests over TCP, at $ADDR and $PORT, with the words
# in $TARGET_OPTIONS.
target_start() {
    [ -e /root/ns3 ] || truncate -s 384M /root/ns3
    # shellcheck disable=SC2086  # a list of words
    program_start target export ram:96M ram:96M,bs=4096 "file:/root/ns3,bs=4096" -n "$NQN" --allow-any-host --insecure \
        -l "rdma://$ADDR:$PORT" ${TARGET_OPTIONS:-}
}
