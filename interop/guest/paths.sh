# The kernel's native multipath over two listeners of a daemon: the states of an ANA group change and paths are cut while
# fio writes and verifies.
#
# Environment: PORT_A, PORT_B, NQN.  The subsystem reports ANA and has namespace 1.  This script prints a line "REQUEST word
# [argument]" to ask the machine outside for something.  STATE a|b: sets the state of all groups by that listener.  cut a|b:
# removes the listener, which breaks its connections.  mend a|b: adds it again.  move GROUP: moves namespace 1 to another group.
. ./lib.sh
. ./multipath.sh


connect_both() {
    local p
    forget_controllers
    for p in "$PORT_A" "$PORT_B"; do
        nvme connect -t tcp -a "$ADDR" -s "$p" -n "$NQN" --keep-alive-tmo=30 --reconnect-delay=1 --ctrl-loss-tmo=120
        wait_live "$p"
        wait_ana "$p" optimized
    done
    dev 1
    [ "$(ls -d /sys/class/nvme-subsystem/nvme-subsys*/nvme*n1 | wc -l)" = 1 ] || fail "there is no single disk"
    nvme id-ctrl -H "/dev/$(of_port "$PORT_A")" >/tmp/id
    grep -qi 'ANA *supported\|Asymmetric Namespace Access.*supported\|ANA report' /tmp/id || { grep -i cmic -A6 /tmp/id; fail "CMIC says nothing of ANA"; }
    nvme ana-log "/dev/$(of_port "$PORT_A")" | tee /tmp/ana
    grep -q 'optimized' /tmp/ana || fail "the log has no optimized group"
}
# has_written PORT COUNT: whether there were more writes by that path, or fio has ended.
has_written() { [ "$(writes "$1")" -gt "$2" ] || [ -s /tmp/fio.rc ]; }
# ana_follows WORD KERNELS_WORD: the path by port A gets that state; I/O goes by port B, and comes back.
ana_follows() {
    local a b
    policy round-robin
    fio_background 1 0 8m 3
    sleep 1
    ask "$1 a"
    wait_ana "$PORT_A" "$2"
    wait_ana "$PORT_B" optimized
    a=$(writes "$PORT_A") b=$(writes "$PORT_B")
    sleep 1
    # (fio reads for a time, too)
    until_true 20 has_written "$PORT_B" "$b" || fail "no writes go by the other path"
    [ "$(writes "$PORT_A")" = "$a" ] || fail "writes still go by the path in state $2"
    ask "optimized a"
    wait_ana "$PORT_A" optimized
    fio_succeeded 90
}
# Both paths change places ten times while fio verifies.
swap() {
    local i
    policy numa
    fio_background 1 0 8m 4
    for i in 1 2 3 4 5; do
        ask "inaccessible a"
        wait_ana "$PORT_A" inaccessible
        ask "optimized a"
        wait_ana "$PORT_A" optimized
        ask "inaccessible b"
        wait_ana "$PORT_B" inaccessible
        ask "optimized b"
        wait_ana "$PORT_B" optimized
    done
    fio_succeeded 100
}
# With no path that is accessible, the kernel holds I/O back, and goes on when one comes.
none_left() {
    ask "inaccessible a"
    ask "inaccessible b"
    wait_ana "$PORT_A" inaccessible
    wait_ana "$PORT_B" inaccessible
    dd if="$(dev 1)" of=/dev/null bs=4k count=1 iflag=direct 2>/tmp/dd &
    sleep 2
    kill -0 $! 2>/dev/null || { cat /tmp/dd; fail "a read ended without a path"; }
    ask "optimized b"
    wait $! || { cat /tmp/dd; fail "the read failed"; }
    ask "optimized a"
    wait_ana "$PORT_A" optimized
}
is_moved() { [ "$(cat "$(path "$PORT_A")/ana_grpid")" = 7 ]; }
move_group() {
    ask "move 7"
    until_true 10 is_moved || fail "the group is $(cat "$(path "$PORT_A")/ana_grpid")"
    wait_ana "$PORT_A" optimized
    verify "$(dev 1)" 2m
}
cut_under_io() {
    local i p name
    policy round-robin
    fio_background 1 0 8m 4
    for i in 1 2 3; do
        for name in a b; do
            [ $name = a ] && p=$PORT_A || p=$PORT_B
            sleep 1
            ask "cut $name"
            sleep 1
            ask "mend $name"
            wait_live "$p"
            wait_ana "$p" optimized
        done
    done
    fio_succeeded 120
}
gone() { disconnect; }

dispatch "$@"
modprobe nvme-tcp
log_start
check connect-both 60 connect_both
check non-optimized 110 ana_follows non_optimized non-optimized
check inaccessible 110 ana_follows inaccessible inaccessible
check swap 120 swap
check none-left 40 none_left
check move-group 40 move_group
check dmesg-states 20 paths_clean
check cut-under-io 150 cut_under_io
check dmesg-cuts 20 paths_clean
check disconnect 30 gone
finish
