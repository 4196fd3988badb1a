# The kernel's NVMe host while associations break: by a reset, by a disconnect under I/O, and by a killed target.
#
# The environment is that of host.sh.  With PEER=raceline this script prints "REQUEST kill" and "REQUEST start".
# The program that runs the guest then kills the target with SIGKILL, or starts it again on the same port, and
# carries the requests out in order.  With PEER=kernel this script takes nvmet's port away and puts it back.
. ./lib.sh
[ "$TRANSPORT" = tcp ] || . ./roce.sh
PEER=${PEER:-raceline}
KILLS=${KILLS:-3}
RECORDS=/tmp/records
# What the host logs of requests that come while its only path is away, or that it is sending when it shuts its
# own socket for a reset.  The error is -EPIPE, or -ECONNRESET if an answer was still on its way.  (200 resets
# under mixed I/O at depth 64 gave 8 and 3 of them; the kernel counted 234 such answers in TCPAbortOnData.)
# When the target breaks a connection, as with each kill below, the host also logs "starting error recovery":
# only the checks that kill allow that line.
WAITS='failed to send request -(32|104)|no (usable|available) path - (requeuing|failing) I/O|nvme_ns_head_submit_bio: [0-9]+ callbacks suppressed'

# fio_opened NSID: waits until that job has opened the disk.  If the disk went before, fio would make a file of its name.
fio_opened() {
    local i=0 d p
    d=$(dev "$1")
    while :; do
        for p in $(pidof fio); do
            ! ls -l "/proc/$p/fd" 2>/dev/null | grep -q "$d\$" || return 0
        done
        [ $i -lt 300 ] || fail "fio has not opened $d after 30 s"
        sleep 0.1
        i=$((i + 1))
    done
}

reset_under_io() {
    local i
    fio_background 2 0 8m 2
    for i in 1 2 3; do
        sleep 1
        nvme reset "/dev/$(ctrl)"
        wait_state live 30
    done
    fio_succeeded 100
    verify "$(dev 1)" 2m
}
disconnect_under_io() {
    # fio cannot finish 1000 loops here: only the disconnect ends the job.
    fio_background 2 0 32m 1000
    fio_opened 2
    sleep 2
    disconnect
    fio_ended 30
    [ "$(cat /tmp/fio.rc)" != 0 ] || fail "fio had ended before the disconnect"
}
storm() {
    local i
    for i in 1 2 3 4 5 6; do
        connect --nr-io-queues=2
        dd if="$(dev 1)" of=/dev/null bs=64k count=8 iflag=direct 2>/dev/null
        disconnect
    done
}

# ---------------------------------------------------------------- a killed target

# block N: prints the 4 KiB of record N.
block() { yes "record $1 of the writer" | head -c 4096; }
# writer: writes one record after another.  It adds a record's number to $RECORDS once the record is flushed.
writer() {
    local n=0 d
    d=$(dev 3)
    while [ ! -e /tmp/writer.stop ]; do
        block $n >/tmp/writer.block
        unpiped dd if=/tmp/writer.block of="$d" bs=4096 seek=$((4096 + n)) count=1 conv=notrunc,fsync oflag=direct 2>/tmp/writer.err ||
            { echo "writer: record $n: dd ended with $?: $(tail -n 1 /tmp/writer.err)" >>/tmp/writer.failed; return; }
        echo $n >>$RECORDS
        n=$((n + 1))
    done
    echo done >/tmp/writer.done
}
recorded() { wc -l <$RECORDS; }
# records_hold COUNT: fails unless the first COUNT records, which were flushed, read as they were written.
records_hold() {
    local n=0 d
    d=$(dev 3)
    cold_caches
    dd if="$d" of=/tmp/readback bs=4096 skip=4096 count="$1" iflag=direct 2>/dev/null
    while [ $n -lt "$1" ]; do
        block $n
        n=$((n + 1))
    done >/tmp/expected
    cmp /tmp/expected /tmp/readback || fail "a flushed record is lost"
}
target_goes() {
    if [ "$TRANSPORT" = rdma ]; then
        program_kill target
    elif [ "$PEER" = raceline ]; then
        echo "REQUEST kill" >/dev/ttyS1
    else
        rm "$NVMET/ports/1/subsystems/$NQN"
    fi
}
target_returns() {
    if [ "$TRANSPORT" = rdma ]; then
        target_start
    elif [ "$PEER" = raceline ]; then
        echo "REQUEST start" >/dev/ttyS1
    else
        ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/1/subsystems/$NQN"
    fi
}
lost() { [ "$(state)" != live ]; }
kill_under_io() {
    local i count=0 waited
    fio_background 3 0 12m 2
    rm -f /tmp/writer.*
    : >$RECORDS
    writer &
    for i in $(seq "$KILLS"); do
        waited=0
        while [ "$(recorded)" -lt $((count + 40)) ]; do
            [ $waited -lt 120 ] || fail "the writer makes no progress: $(cat /tmp/writer.failed 2>/dev/null)"
            sleep 1
            waited=$((waited + 1))
        done
        target_goes
        until_true 60 lost || fail "the kernel did not notice that the target is gone"
        count=$(recorded)
        target_returns
        wait_state live 60
        records_hold "$count"
    done
    : >/tmp/writer.stop
    waited=0
    while [ ! -e /tmp/writer.done ]; do
        [ ! -e /tmp/writer.failed ] || fail "$(cat /tmp/writer.failed)"
        [ $waited -lt 60 ] || fail "the writer is stuck"
        sleep 1
        waited=$((waited + 1))
    done
    records_hold "$(recorded)"
    echo "$(recorded) flushed records over $KILLS kills"
    fio_succeeded 120
}

dispatch "$@"
begin_hosts
log_start
echo "# kernel $(uname -r), $(nvme version | head -n 1)"
check connect 30 connect --nr-io-queues=2 --reconnect-delay=1
check reset-under-io 150 reset_under_io
check dmesg-reset 10 log_clean "resetting controller|$WAITS"
check disconnect-under-io 60 disconnect_under_io
# The kernel logs requests that the host itself gave up as I/O errors.  If a Keep Alive that was never sent is
# among them, the kernel counts its round trip from time 0.
check dmesg-disconnect 10 log_clean "failed nvme_keep_alive_end_io|long keepalive RTT|I/O error, dev nvme|Buffer I/O error on dev nvme|$WAITS"
check connect-storm 90 storm
check dmesg-storm 10 log_clean

# RDMA has no digests.
[ "$TRANSPORT" = rdma ] || DIGESTS="--hdr-digest --data-digest"
# shellcheck disable=SC2086  # two options
check connect-for-kill 30 connect --nr-io-queues=2 --reconnect-delay=1 ${DIGESTS:-}
# Over RDMA the target is emulated, too.
[ "$TRANSPORT" = rdma ] && limit=600 || limit=300
check kill-under-io $limit kill_under_io
# The kernel logs a lost connection, attempts to reconnect while no target listens, and requests that wait for the path.
check dmesg-kill 10 log_clean "$WAITS|failed to connect socket|Failed reconnect attempt|failed to (send|receive) |starting error recovery|Reconnecting in|Connect command failed|failed nvme_keep_alive_end_io|queue [0-9]+ connect|receive failed|rescanning namespaces|Connect rejected: status 8"
check fio-verify-after 120 verify "$(dev 1)" 2m
check disconnect 30 disconnect
check dmesg-end 10 log_clean
finish
