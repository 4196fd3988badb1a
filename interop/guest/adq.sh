# `raceline adq` on devices of a kernel that has all of its parts: a veth pair of four queues, and the emulated Intel
# card with real interrupts.  The machine is this guest's alone, so that also settings of the whole machine are set.
#
# Environment: NQN.  The program raceline and the facts of an E810 (ice.json) are beside this script.  No device here has
# traffic classes of its own: the commands of ADQ's recipe are given to the kernel's own queueing discipline instead
# ("hw 0", "skip_hw"), which shows that they are understood and whose packets they move, and nothing about a device.
. ./lib.sh

RACELINE=./raceline
STATE=/tmp/adq
# The target's end of the pair, the host's end in a namespace of its own, and their addresses.
TARGET=192.0.2.1
HOST=192.0.2.2
PORT=4420
CARD=eth0
unset SSH_CONNECTION

adq() { $RACELINE adq "$@"; }
apply() { adq apply "$1" --listener $TARGET:$PORT --state-dir $STATE; }
revert() { adq revert "$1" --state-dir $STATE; }
peer() { ip netns exec peer "$@"; }

# read_back FILE: writes everything that can be read of both devices and of the machine's settings.
read_back() {
    local i f
    for i in va $CARD; do
        ethtool -k $i || true
        ethtool -l $i || true
        ethtool -c $i || true
        ethtool --show-priv-flags $i || true
        tc qdisc show dev $i
        tc filter show dev $i ingress
        ip -o link show $i | sed 's/ state .*//'
        grep -H . /sys/class/net/$i/queues/*/xps_* /sys/class/net/$i/napi_defer_hard_irqs \
            /sys/class/net/$i/gro_flush_timeout || true
        for f in /sys/class/net/$i/device/msi_irqs/*; do
            [ ! -e "$f" ] || grep -H . "/proc/irq/${f##*/}/smp_affinity_list"
        done
    done >"$1" 2>&1
    (cd /proc/sys/net && grep -H . core/* ipv4/*) 2>/dev/null | grep -v fastopen_key >>"$1"
    grep -q 'va/queues/tx-3/xps_rxqs:0' "$1" || { head -n 40 "$1"; fail "the maps of va cannot be read"; }
    grep -q 'core/rmem_max:' "$1" || fail "the sysctls cannot be read"
}

# as_before: fails unless everything reads as it did before the first check.
as_before() {
    read_back /tmp/after
    diff /tmp/before /tmp/after >/tmp/differs || { head -n 20 /tmp/differs; fail "not as before: $(head -n 2 /tmp/differs | tail -n 1)"; }
    [ -z "$(ls $STATE 2>/dev/null)" ] || fail "a journal is left: $(ls $STATE)"
}

# make_pair: makes the pair and the namespace.
make_pair() {
    ip netns add peer
    ip link add va numtxqueues 4 numrxqueues 4 type veth peer name vb numtxqueues 4 numrxqueues 4
    ip link set vb netns peer
    ip addr add $TARGET/24 dev va
    ip link set va up
    peer ip addr add $HOST/24 dev vb
    peer ip link set vb up
    peer ip link set lo up
    mkdir -p $STATE
    read_back /tmp/before
}

# A plan changes nothing.  What was applied is in place, and is given back exactly, the machine's settings included.
round_trip() {
    local device=$1 wanted=$2
    adq plan "$device" --listener $TARGET:$PORT >/tmp/plan
    as_before
    apply "$device" >/tmp/applied || { cat /tmp/applied; fail "cannot be applied"; }
    grep -q 'steps are done and read back' /tmp/applied || fail "$(tail -n 1 /tmp/applied)"
    read_back /tmp/set
    for f in $wanted; do
        grep -q "$f" /tmp/set || fail "not set: $f"
    done
    adq show "$device" --state-dir $STATE >/tmp/shown || { cat /tmp/shown; fail "it is not in place"; }
    refused 'is applied already' apply "$device"
    revert "$device"
    as_before
    revert "$device" | grep -q 'nothing is applied' || fail "a second revert finds something"
}

on_pair() { round_trip va "va/queues/tx-0/xps_rxqs:1 va/queues/tx-1/xps_rxqs:2 rmem_max:268435456 syn_backlog:16384"; }

# The card has real interrupts: one goes to the core of its queue.
on_card() {
    local irqs
    irqs=$(ls /sys/class/net/$CARD/device/msi_irqs | wc -l)
    [ "$irqs" -gt 0 ] || fail "the card has no interrupts"
    adq plan $CARD | grep -q '^ *[0-9]*\. echo [0-9]* > /proc/irq/' || { adq plan $CARD; fail "no interrupt gets a core"; }
    round_trip $CARD "rmem_max:268435456"
}

# done_steps: prints how many steps the journal has as done, or nothing.
done_steps() { grep -o '"progress": *"done"' $STATE/va.json 2>/dev/null | wc -l; }

# A recipe that is killed half-way is known, refuses a second, and is given back.
killed() {
    local after broken=0 pid
    for after in 2 6; do
        apply va >/dev/null 2>&1 &
        pid=$!
        while kill -0 $pid 2>/dev/null && [ "$(done_steps)" -lt $after ]; do :; done
        kill -9 $pid 2>/dev/null || true
        wait $pid 2>/dev/null || true
        grep -q '"complete": *false' $STATE/va.json && broken=$((broken + 1))
        refused 'is applied already, or was broken off' apply va
        revert va
        as_before
    done
    [ $broken -gt 0 ] || fail "no recipe was killed before its end"
}

# The interface keeps its number under a new name.
renamed() {
    apply va >/dev/null
    ip link set va down
    ip link set va name vx
    revert va
    ip link set vx name va
    ip link set va up
    as_before
}

# printed PATTERN: prints the first command of an E810's plan that matches, for the device va.
printed() {
    adq plan va --facts ./ice.json --listener $TARGET:$PORT --queues 2 |
        sed -n 's/^ *[0-9]*\. \(tc .*\)/\1/p' | grep -m 1 "$1" | sed 's/ dev [^ ]* / dev va /'
}

# in_software COMMAND: gives a printed command to the kernel's own discipline and filter.
in_software() {
    local line
    line=$(echo "$1" | sed 's/ hw 1 mode channel$/ hw 0/; s/ skip_sw hw_tc 1$/ skip_hw action skbedit priority 1/')
    [ "$line" != "$1" ] || [ -z "${1##*clsact*}" ] || fail "nothing to replace in: $1"
    echo "# $line"
    $line
}

# sent QUEUE: prints the packets that have left va by that queue (queue disciplines are numbered from 1).
sent() {
    tc -s qdisc show dev va |
        awk -v at="parent 8001:$(($1 + 1))" -v any=":$(($1 + 1)) " \
            '/^qdisc/ {mine = index($0 " ", any) && /parent/} mine && $1 == "Sent" {print $4; exit}'
}

# The commands of ADQ's recipe, in software: a plan shows the discipline that is there and refuses to go over it; what the
# target sends with priority 1 leaves by the queues of class 1; the filter meets what comes to the listener.
classes() {
    local before after hits pid
    refused '.' $(printed mqprio)
    refused 'unsupp|not supp|offload|invalid' $(printed mqprio)
    in_software "$(printed mqprio)"
    tc -j qdisc show dev va | grep -q '"kind":"mqprio"' || fail "no mqprio"
    tc -j qdisc show dev va | grep -q '"queues":\[\[0,1\],\[2,3\]\]' || { tc -j qdisc show dev va; fail "other queues"; }
    refused 'root queueing discipline mqprio' apply va
    in_software "$(printed clsact)"
    refused '.' $(printed flower)
    in_software "$(printed flower)"
    $RACELINE export ram:16M -n "$NQN" -l $TARGET:$PORT --allow-any-host --insecure --sock-priority 1 \
        >/tmp/export.out 2>/tmp/export.err &
    pid=$!
    i=0
    while ! grep -qs '"ready":true' /tmp/export.out; do
        [ $i -lt 100 ] || { cat /tmp/export.err; fail "the target is not ready"; }
        sleep 0.1
        i=$((i + 1))
    done
    before="$(sent 0) $(sent 1) $(sent 2) $(sent 3)"
    peer $RACELINE perf -a $TARGET -s $PORT -n "$NQN" --rw randread --bs 4k --iodepth 8 -i 2 --runtime 1 --ramp_time 0 -o json \
        >/tmp/perf.out 2>&1 || { tail -n 5 /tmp/perf.out; fail "perf"; }
    after="$(sent 0) $(sent 1) $(sent 2) $(sent 3)"
    kill $pid
    wait $pid || true
    echo "# packets sent by queue: before $before, after $after"
    echo "$before $after" | awk '{
        others = $5 - $1 + $6 - $2; own = $7 - $3 + $8 - $4
        exit !(own > 100 && others * 20 < own)
    }' || fail "packets by queue: before $before, after $after"
    hits=$(tc -s filter show dev va ingress | sed -n 's/.*Sent [0-9]* bytes \([0-9]*\) pkt.*/\1/p' | head -n 1)
    echo "# the filter has met $hits packets"
    [ "${hits:-0}" -gt 100 ] || { tc -s filter show dev va ingress; fail "the filter has met ${hits:-no} packets"; }
    tc qdisc del dev va clsact
    tc qdisc del dev va root
    as_before
}

dispatch "$@"
echo "# kernel $(uname -r), $(tc -V), $(ethtool --version)"
modprobe -a veth sch_mqprio sch_ingress cls_flower act_skbedit
check pair 20 make_pair
check round-trip-pair 100 on_pair
check round-trip-card 100 on_card
check killed 100 killed
check renamed 30 renamed
check classes 60 classes
finish
