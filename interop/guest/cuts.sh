# The kernel's native multipath while one of two paths is cut again and again: by RST, by dropped packets, by kill -9 of a
# daemon or the end of a listener, and by a change of the ANA state.  The paths lead to two daemons with the same file, or to
# two listeners of one daemon.
#
# Environment: NQN with PORT_A and PORT_B at two daemons, $NQN-listeners with PORT_C and PORT_D at one; KATO (keep alive timeout
# in seconds), ROUNDS (how often each kind of cut comes with each policy), POLICIES (those of the campaign with listeners; if empty,
# there is none).
# This script prints a line "REQUEST word letter" to ask the machine outside for something at one of these ports.  kill, start:
# the daemon ends by SIGKILL, and starts again.  cut, mend: the listener goes and comes.  optimized, inaccessible: the ANA
# state of all groups by the listener.
#
# Meanwhile fio writes and verifies pass after pass.  A pass fills each block with its number and the block's offset, so a block
# of an earlier pass is found as well as a torn one.  Two more jobs read and write 50 times a second, one command at a time.
# The longest of these that ends between a cut and the next one says after which time reads and writes went on.
. ./lib.sh
. ./multipath.sh

# What no cut may take, in seconds.  (A person judges the figures that are printed: this bound is for loaded machines.)
LIMIT_S=10
# Keep alive tells of dropped packets, so that they may take this much longer.
SILENCE_S=$((2 * KATO + LIMIT_S))

port_of() {
    case $1 in a) echo "$PORT_A" ;; b) echo "$PORT_B" ;; c) echo "$PORT_C" ;; d) echo "$PORT_D" ;; esac
}
# policies: prints those of this kernel.  queue-depth came with Linux 6.11.
policies() {
    echo round-robin numa
    ! modinfo -p nvme_core | grep -q 'iopolicy:.*queue-depth' || echo queue-depth
}

# ---------------------------------------------------------------- the work

# now: prints the time in milliseconds, as in fio's logs.  start_clock finds the time of the boot for it: date has seconds only.
now() {
    local up
    read -r up _ </proc/uptime
    echo $(($(cat /tmp/boot) + ${up%.*}${up#*.}0))
}
start_clock() {
    local second up
    second=$(date +%s)
    while [ "$(date +%s)" = "$second" ]; do :; done
    read -r up _ </proc/uptime
    echo $(((second + 1) * 1000 - ${up%.*}${up#*.}0)) >/tmp/boot
}

# pass NUMBER [FIO OPTION...]: writes the first 4 MiB and verifies them; with --verify_only, verifies what that pass wrote.
pass() {
    local number=$1
    shift
    unpiped fio --name=pass --filename="$(dev 1)" --rw=randwrite --bsrange=4k-64k --size=4m --randseed="$number" \
        --direct=1 --ioengine=libaio --iodepth=8 --verify=pattern --verify_pattern="0x$(printf %08x "$number")%o" \
        --verify_fatal=1 --verify_dump=0 --verify_state_save=0 --do_verify=1 --minimal "$@" >/tmp/pass.out 2>&1
}
passes() {
    local number=0
    while [ ! -e /tmp/stop ]; do
        number=$((number + 1))
        pass $number || { echo "pass $number: fio ended with $?" >/tmp/passes.failed; return; }
        echo $number >/tmp/passes
    done
    : >/tmp/passes.done
}
# passed NUMBER: waits until so many passes are done.
passed() {
    local i=0
    while [ "$(cat /tmp/passes 2>/dev/null || echo 0)" -lt "$1" ]; do
        work_goes_on
        [ $i -lt 120 ] || fail "pass $1 did not end within 120 s: I/O is stuck"
        sleep 1
        i=$((i + 1))
    done
}
work_goes_on() {
    [ ! -e /tmp/passes.failed ] || { cut -c1-200 /tmp/pass.out; fail "$(cat /tmp/passes.failed)"; }
}
# probe NAME KIND OFFSET: a job whose log has the latency of each command.
probe() {
    (
        trap '' PIPE
        exec fio --name="$1" --filename="$(dev 1)" --rw="$2" --bs=4k --offset="$3" --size=1m --direct=1 --ioengine=libaio \
            --iodepth=1 --rate_iops=50 --time_based --runtime=7200 --write_lat_log="/tmp/$1" --log_unix_epoch=1 \
            --minimal >"/tmp/$1.out" 2>&1
    ) &
    echo $! >"/tmp/$1.pid"
}
# probe_ends NAME: ends that job; the fifth of the numbers that it prints is its error.
probe_ends() {
    local i=0 pid
    pid=$(cat "/tmp/$1.pid")
    kill -TERM "$pid"
    while kill -0 "$pid" 2>/dev/null; do
        [ $i -lt 60 ] || fail "the job $1 did not end within 60 s: I/O is stuck"
        sleep 1
        i=$((i + 1))
    done
    [ "$(grep ';' "/tmp/$1.out" | cut -d';' -f5)" = 0 ] || { cut -c1-200 "/tmp/$1.out"; fail "the job $1 has an error"; }
}

# ---------------------------------------------------------------- cuts

# wait_lost PORT: waits until the kernel has noticed the loss of the path.
wait_lost() {
    local i=0
    while [ "$(port_state "$1")" = live ]; do
        [ $i -lt $((10 * SILENCE_S + 100)) ] || fail "the kernel did not notice the loss of port $1"
        sleep 0.1
        i=$((i + 1))
    done
}
# drop PORT: from now on, packets from and to this port are lost.  drop_ends: they come through again; some must have been lost.
drop() {
    tc filter add dev eth0 egress protocol ip flower ip_proto tcp dst_port "$1" action drop
    tc filter add dev eth0 ingress protocol ip flower ip_proto tcp src_port "$1" action drop
}
drop_ends() {
    tc -s filter show dev eth0 egress >/tmp/dropped
    tc filter del dev eth0 egress
    tc filter del dev eth0 ingress
    grep -q 'dropped [1-9]' /tmp/dropped || { cat /tmp/dropped; fail "no packet was dropped"; }
}
# cut KIND LETTER: cuts the path by that port and mends it; ends when the kernel uses it again.
cut_path() {
    local port
    port=$(port_of "$2")
    echo "$(now) $1" >>/tmp/cuts
    case $1 in
        rst)
            ss -HKn dst "$ADDR" dport = ":$port" >/tmp/killed
            # (With the first one, the kernel ends the others of the same controller itself.)
            [ -s /tmp/killed ] || fail "no connection of port $port was reset"
            sleep 1
            ;;
        silence) drop "$port"; wait_lost "$port"; drop_ends ;;
        kill) ask "kill $2"; wait_lost "$port"; ask "start $2" ;;
        listener) ask "cut $2"; wait_lost "$port"; ask "mend $2" ;;
        ana) ask "inaccessible $2"; wait_ana "$port" inaccessible; sleep 0.5; ask "optimized $2" ;;
    esac
    wait_live "$port"
    wait_ana "$port" optimized
    work_goes_on
    sleep 1
}
# busier LETTERS: prints which of the two paths has completed more in 0.5 s.
busier() {
    local one two
    one=$(reads "$(port_of "${1%?}")") two=$(reads "$(port_of "${1#?}")")
    sleep 0.5
    one=$(($(reads "$(port_of "${1%?}")") - one)) two=$(($(reads "$(port_of "${1#?}")") - two))
    [ $one -gt $two ] && echo "${1%?}" || echo "${1#?}"
}
# cuts LETTERS KINDS POLICY: with numa, the path in use is cut; with the other policies, both in turn.
cuts() {
    local i kind letter=${1%?}
    policy "$3"
    for i in $(seq "$ROUNDS"); do
        for kind in $2; do
            [ "$3" != numa ] || letter=$(busier "$1")
            cut_path "$kind" "$letter"
            [ "$letter" = "${1%?}" ] && letter=${1#?} || letter=${1%?}
        done
    done
}

# ---------------------------------------------------------------- figures

# stalls NAME: prints for each cut its kind and the longest command of that job up to the next cut, in milliseconds.
stalls() {
    awk -F '[, ]+' 'FNR == NR { at[n] = $1; kind[n++] = $2; next }
        { while (c < n && $1 >= at[c]) c++ }
        c { seen[c - 1] = 1; if ($2 / 1e6 > most[c - 1]) most[c - 1] = $2 / 1e6 }
        END { for (i = 0; i < n; i++) printf "%s %d\n", kind[i], seen[i] ? most[i] : 999999 }' /tmp/cuts "/tmp/$1_lat.1.log"
}
# figures CAMPAIGN: prints medians and the worst of each kind outside; fails far above the bound.
figures() {
    local kind name limit median worst line
    for kind in $(awk '!seen[$2]++ { print $2 }' /tmp/cuts); do
        line="# $1, $kind: $(grep -c " $kind\$" /tmp/cuts) cuts"
        limit=$LIMIT_S
        [ "$kind" != silence ] || limit=$SILENCE_S
        for name in reads writes; do
            stalls $name | awk -v kind="$kind" '$1 == kind { print $2 }' | sort -n >/tmp/sorted
            median=$(sed -n "$((($(grep -c . /tmp/sorted) + 1) / 2))p" /tmp/sorted)
            worst=$(tail -n 1 /tmp/sorted)
            line="$line; $name after $median ms (median), $worst ms (worst)"
            [ "$worst" -le $((limit * 1000)) ] || echo "$kind: $name stood still for $worst ms, more than $limit s" >>/tmp/late
        done
        echo "$line" >/dev/ttyS1
    done
    [ ! -s /tmp/late ] || fail "$(head -n 1 /tmp/late)"
}

# ---------------------------------------------------------------- checks

connect_both() {
    local letter
    forget_controllers
    for letter in "${1%?}" "${1#?}"; do
        nvme connect -t tcp -a "$ADDR" -s "$(port_of "$letter")" -n "$NQN" --keep-alive-tmo="$KATO" --reconnect-delay=1 \
            --ctrl-loss-tmo=600
        wait_live "$(port_of "$letter")"
        wait_ana "$(port_of "$letter")" optimized
    done
    dev 1
    [ "$(ls -d "$(dirname "$(iopolicy)")"/nvme*n1 | wc -l)" = 1 ] || fail "there is no single disk"
}
# campaign NAME LETTERS KINDS POLICIES
campaign() {
    local one
    rm -f /tmp/stop /tmp/passes* /tmp/cuts /tmp/late
    # (A campaign that fails leaves no work behind to the next one.)
    trap ': >/tmp/stop; kill $(cat /tmp/*.pid) 2>/dev/null || true' EXIT
    passes &
    probe reads randread 32m
    probe writes randwrite 40m
    passed 1
    for one in $4; do cuts "$2" "$3" "$one"; done
    passed $(($(cat /tmp/passes) + 1))
    : >/tmp/stop
    while [ ! -e /tmp/passes.done ]; do work_goes_on; sleep 1; done
    probe_ends reads
    probe_ends writes
    figures "$1"
}
# by_each_path LETTERS: what the last pass wrote is there by each path alone.
by_each_path() {
    local alone other before
    [ -e /tmp/passes.done ] || fail "the passes before did not end"
    for alone in "${1%?}" "${1#?}"; do
        [ "$alone" = "${1%?}" ] && other=${1#?} || other=${1%?}
        ask "inaccessible $other"
        wait_ana "$(port_of "$other")" inaccessible
        before=$(reads "$(port_of "$alone")")
        pass "$(cat /tmp/passes)" --verify_only || { cut -c1-200 /tmp/pass.out; fail "a block is stale or torn by path $alone"; }
        [ "$(reads "$(port_of "$alone")")" -gt "$before" ] || fail "nothing was read by path $alone"
        ask "optimized $other"
        wait_ana "$(port_of "$other")" optimized
    done
}

dispatch "$@"
modprobe -a nvme-tcp sch_ingress cls_flower act_gact inet_diag tcp_diag
tc qdisc add dev eth0 clsact
start_clock
log_start
echo "# kernel $(uname -r), policies $(echo $(policies)), keep alive timeout $KATO s"
check connect-daemons 60 connect_both ab
check cuts-daemons "$CAMPAIGN_S" campaign "two daemons" ab "rst silence kill ana" "$(echo $(policies))"
check daemons-by-each-path 60 by_each_path ab
check dmesg-daemons 20 paths_clean
check disconnect-daemons 30 disconnect
if [ -n "$POLICIES" ]; then
    NQN=$NQN-listeners
    check connect-listeners 60 connect_both cd
    check cuts-listeners "$CAMPAIGN_S" campaign "two listeners" cd "rst silence listener ana" "$POLICIES"
    check listeners-by-each-path 60 by_each_path cd
    check dmesg-listeners 20 paths_clean
    check disconnect-listeners 30 disconnect
fi
finish
