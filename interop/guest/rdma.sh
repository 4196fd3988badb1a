# Raceline's host over RDMA with the kernel's target (nvmet-rdma), both in this guest, over soft RoCE (rdma_rxe): first over one
# device, also by `raceline bench run`, then over two with a wire between them, which loses packets and is cut.  At last a block
# device of the kernel on a namespace of that target, by `raceline connect --as ublk`.
#
# Environment: NQN.  The program raceline is beside this script.  The target serves two namespaces in RAM: 1 has blocks
# of 512 bytes, 2 has blocks of 4096 bytes.
. ./lib.sh
. ./roce.sh
. ./ublk-disk.sh

ADDR=10.0.2.15
PORT=4420
# What perf does while connections are lost.  The host sends reads again, and must not repeat a write whose fate it does not know.
JOB="--bs 4k --size 4m --iodepth 8 -i 2 --ramp_time 0 --verify -o json"

# note WORDS: prints a line that is no check.
note() { echo "# $*" >/dev/ttyS1; }
is_linux_6_1() { case $(uname -r) in 6.1.*) ;; *) false ;; esac; }

# host VERB [OPTION...]: a verb of Raceline's host on the subsystem over RDMA.
host() {
    local verb=$1
    shift
    $RACELINE "$verb" -t rdma -a $ADDR -s $PORT -n "$NQN" "$@"
}

setup() {
    modprobe -a nvmet-rdma loop
    roce_up
    modprobe brd rd_nr=1 rd_size=$((96 * 1024))
    truncate -s 96M /tmp/ns2
    losetup -b 4096 --direct-io=off /dev/loop0 /tmp/ns2
    nvmet_subsystem "$NQN" /dev/ram0 /dev/loop0
    rdma_port $ADDR $PORT "$NQN"
}

discover() {
    $RACELINE discover -t rdma -a $ADDR -s $PORT >/tmp/log.txt
    grep "rdma .*$NQN" /tmp/log.txt || { cat /tmp/log.txt; fail "the subsystem is not listed"; }
}

identify() {
    host identify >/tmp/identify.txt
    grep -q "$NQN" /tmp/identify.txt || { cat /tmp/identify.txt; fail "no $NQN"; }
    host identify --namespace 2 -o json >/dev/null
}

# verb VERB [OPTION...]: a verb of nvme-cli, whose short options are not those of an address everywhere.
verb() {
    local verb=$1
    shift
    $RACELINE "$verb" --transport rdma --traddr $ADDR --trsvcid $PORT --nqn "$NQN" "$@"
}
# The verbs of nvme-cli.  (Linux's target has no Compare.)
verbs() {
    verb list -o json | grep -q PhysicalSize || fail "list shows no namespace"
    verb list-subsys -o json | grep -q "$NQN" || fail "list-subsys does not show the subsystem"
    verb id-ctrl | grep -q "^subnqn *: $NQN" || fail "id-ctrl shows another subsystem"
    verb id-ns --namespace-id 2 | grep -q '^nsze *: 0x6000' || fail "id-ns: $(verb id-ns --namespace-id 2 | grep nsze)"
    verb smart-log | grep -q '^percentage_used' || fail "no SMART log"
    verb error-log >/dev/null
    verb get-log --log-id 2 --log-len 512 >/dev/null
    verb ns-rescan
    verb reset
    dd if=/dev/urandom of=/tmp/data bs=512 count=8 2>/dev/null
    host write --namespace 1 --slba 3 /tmp/data
    verb flush --namespace-id 1
    host read --namespace 1 --slba 3 --blocks 8 /tmp/back
    cmp /tmp/data /tmp/back
    verb write-zeroes --namespace-id 1 --start-block 3 --block-count 7
    host read --namespace 1 --slba 3 --blocks 8 /tmp/back
    cmp -n 4096 /tmp/back /dev/zero
    verb dsm --namespace-id 1 --ad --slbs 64 --blocks 8
}

# write_read NSID BLOCKSIZE BLOCKS: writes random blocks and reads them back.
write_read() {
    dd if=/dev/urandom of=/tmp/data bs="$2" count="$3" 2>/dev/null
    host write --namespace "$1" --slba 3 /tmp/data
    host read --namespace "$1" --slba 3 --blocks "$3" /tmp/back
    cmp /tmp/data /tmp/back
}
write_read_all() {
    write_read 1 512 1
    write_read 1 512 8
    write_read 1 512 9
    write_read 1 512 4096
    write_read 2 4096 1
    write_read 2 4096 512
}

# verify_job RW BS [OPTION...]: many commands at a time on two queues, whose data are compared.
verify_job() {
    local rw=$1 bs=$2
    shift 2
    host perf "$@" --rw "$rw" --bs "$bs" --size 8m --iodepth 8 -i 2 --runtime 3 --ramp_time 0 --verify -o json >/tmp/perf.json || return 1
    grep -q '"iops"' /tmp/perf.json || fail "no result"
}
verify() {
    verify_job randwrite 4k
    verify_job randwrite 128k
    verify_job randrw 4k
}

refusals() {
    refused 'RDMA has no digests' host identify -g
    refused 'RDMA has no digests' host identify -G
    refused 'no listener|listener for RDMA|rejected|reaching' $RACELINE identify -t rdma -a $ADDR -s 4999 -n "$NQN"
    refused 'not the address of an RDMA device|RDMA device' $RACELINE identify -t rdma -a 127.0.0.1 -s $PORT -n "$NQN"
}

unknown_subsystem() {
    refused 'unknown|invalid|not allowed' \
        $RACELINE identify -t rdma -a $ADDR -s $PORT -n nqn.2014-08.org.example:unknown
}

# ---------------------------------------------------------------- the JBOF paper's rows

# bench_rows: `bench run` of the paper's latencies, with a small namespace, without the ways over files, and for a moment only.  What counts is that the rows over RDMA
# have figures and say over what they ran.  The figures themselves mean nothing, because processor and adapter are emulated.
bench_rows() {
    local series
    sed -e 's/^id = "CH-T2"/id = "SMALL"/' -e 's/^delta_to = /memory_mib = 16\n&/' ch-t2.toml |
        awk -v RS= -v ORS='\n\n' '!/\nid = "local-/' >/tmp/small.toml
    [ "$(grep -cE '^(id = "(SMALL|local|local-.*)"|memory_mib = 16)$' /tmp/small.toml)" = 3 ] || fail "the experiment has another form than this script knows"
    $RACELINE bench run SMALL --file /tmp/small.toml --rdma $ADDR --nvmet-rdma "$ADDR:$PORT,$NQN" \
        --quick --blocks 1 --runtime 1s --out /root/rows >/tmp/rows || { tail -n 5 /tmp/rows; fail "no record"; }
    cat /tmp/rows
    for series in rdma-poll iwarp; do
        has_figures $series read
        has_figures $series write
        record_says "\"of\":\"iWARP by an adapter, in the series \`$series\`\",\"by\":\"NVMe/RDMA over RoCE \(rxe0\), where the paper has iWARP\",\"effect\":\"[^\"]*No hardware is behind rxe0"
        record_says "\"link/$series\":\"RoCE \(rxe0\) at $ADDR, without hardware"
    done
    record_says "\"link/iwarp\":\"[^\"]*; the kernel's target is at $ADDR:$PORT\""
    record_says '"what":"series spdk-iwarp: [^"]*","why":"SPDK[^"]*name the folder in which SPDK was built --with-rdma with --spdk DIR'
    ! grep -qE '"what":"series (rdma-poll|iwarp)[:,]' /root/rows/SMALL.json || fail "a row over RDMA is missing in part"
    note "the rows over RDMA, emulated, so that no figure says anything of speed:"
    grep -E '^\| (read|write) \| [^|]*RDMA' /tmp/rows | sed 's/^/# /' >/dev/ttyS1
}
record_says() { grep -qE "$1" /root/rows/SMALL.json || fail "the record does not have $1"; }
# has_figures SERIES COLUMN: its run has a latency above 0.
has_figures() {
    grep -oE "\"series\":\"$1\",\"x\":\"$2\",\"runs\":\[\{\"block\":0,\"values\":\{[^}]*\}" /root/rows/SMALL.json >/tmp/values ||
        fail "$1 has no run of $2"
    grep -qE '"mean_us":[0-9.]*[1-9]' /tmp/values || { cat /tmp/values; fail "$1 has no latency of $2"; }
}

# ---------------------------------------------------------------- connections that are lost

# reads_begin SECONDS: writes known data, and begins to read them for that long, in the background.
reads_begin() {
    # shellcheck disable=SC2086  # a list of words
    host perf --rw write --runtime 3 $JOB >/tmp/fill.json
    created >/tmp/before
    # shellcheck disable=SC2086  # a list of words
    host perf --rw randread --runtime "$1" -l 120 $JOB >/tmp/perf.json 2>/tmp/perf.err &
    reads=$!
}
# reads_end WHAT: the reads go on to their end, and all data were as they had been written.
reads_end() {
    wait $reads || { cat /tmp/perf.err; fail "the reads did not survive the loss of their connections"; }
    grep -q '"verified_ios": *[1-9]' /tmp/perf.json || fail "no data were compared"
    note "$1: $(reconnects) times connected again, $(sed -n 's/.*"verified_ios": *\([0-9]*\).*/\1/p' /tmp/perf.json) reads compared"
}
reconnects() { sed -n 's/.*"reconnects": *\([0-9]*\).*/\1/p' /tmp/perf.json | sort -n | tail -n 1; }
has_reconnected() { [ "$(reconnects)" -ge 1 ] || fail "no connection was lost"; }

# created: prints how many controllers the kernel's target has made since the log was emptied.
created() { dmesg | grep -c 'nvmet: .*creating nvm controller' || true; }
has_created() { [ "$(created)" -gt "$(cat /tmp/before)" ]; }
# The kernel's target ends all connections of a subsystem that is taken off its port.
port_off_on() {
    local after
    reads_begin 30
    # The I/O queues follow within the 5 s after that.
    until_so 60 has_created
    sleep 5
    echo "files of the connection manager: $(ls -l "/proc/$(pidof raceline)/fd" | grep -c rdma_cm || true)"
    rm "$NVMET/ports/1/subsystems/$NQN"
    sleep 2
    ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/1/subsystems/$NQN"
    reads_end "the port off and on"
    # One for the job, and one for each connection after the loss.
    after=$(created)
    [ "$after" -ge $(($(cat /tmp/before) + 2)) ] || fail "$((after - $(cat /tmp/before))) controllers: no connection was lost"
    host identify >/dev/null
}

# From here on the host is at one end of a wire and the target at the other one.
wire() {
    roce_wire
    tc qdisc add dev near clsact
    tc qdisc add dev far clsact
    rdma_port $FAR $PORT "$NQN" 2
    ADDR=$FAR
    host identify | grep -q "$NQN"
    write_read 2 4096 16
    ip -s link show near
    [ "$(cat /sys/class/net/near/statistics/tx_packets)" -gt 60 ] || fail "the data have not gone over the wire"
}
# wire_is WORDS: from now on the wire loses or doubles packets, both ways.  (The limit is for packets that wait, which count as
# lost as well.)  wire_lost END: prints how many packets that end has sent and the wire has lost.  wire_whole: as it was.
wire_is() {
    # shellcheck disable=SC2086  # a list of words
    for end in near far; do tc qdisc replace dev $end root netem $1 limit 10000; done
}
wire_lost() { tc -s qdisc show dev "$1" | awk '/netem/ { found = 1 } found && /dropped/ { print $7 + 0; exit }'; }
wire_whole() { for end in near far; do tc qdisc del dev $end root; done; }
lost_both_ways() { [ "$(wire_lost near)" -ge 3 ] && [ "$(wire_lost far)" -ge 3 ]; }

# A wire that loses and doubles packets, without changing their order: adapters send again what was lost, and no connection ends.
# (Namespace 2 has what the large reads compare with.)
link_loss() {
    local round
    ADDR=$FAR
    host perf --namespace 2 --rw write --bs 64k --size 8m --iodepth 8 -i 2 --runtime 3 --ramp_time 0 --verify -o json >/tmp/fill.json
    wire_is 'loss 0.2% duplicate 1%'
    for round in 1 2 3; do
        verify_kept randwrite 4k
        verify_kept randread 64k --namespace 2
        verify_kept randrw 4k
        ! lost_both_ways || break
    done
    note "the wire lost $(wire_lost near) packets of the host's and $(wire_lost far) of the target's"
    lost_both_ways || fail "too few packets were lost"
    wire_whole
}
# Writes of 64 KiB over the same wire, whose data the target gets by RDMA READs.  Soft RoCE may fail by that: when an answer gets lost
# while the READ is sent again, the next answer may be out of sequence.  check_ack takes that for an error without a status, and
# rxe_completer warns of it (drivers/infiniband/sw/rxe/rxe_comp.c of Linux 6.12.118).  The target learns nothing, so the command is too
# late after 30 s.  Only then the check is skipped, and this warning does not count: whatever else has failed, fails here as well.
link_loss_of_reads() {
    local rc=0
    ADDR=$FAR
    wire_is 'loss 0.2% duplicate 1%'
    (verify_kept randwrite 64k) 2>/tmp/perf.err || rc=$?
    wire_whole
    cat /tmp/perf.err
    [ $rc != 0 ] || return 0
    failed_by_time || fail "the writes were not kept, and not because one was too late"
    dmesg | grep 'WARNING: .* rxe_completer' || fail "a write was too late, and the kernel has not warned of its fault"
    : >$ROCE_FAULT
    echo "soft RoCE has ended a queue by a fault of its own (rxe_completer in rxe_comp.c), in RDMA READs over a wire that loses packets"
    return 77
}
# failed_by_time: by what it has printed, perf has failed because a write was too late, and has read no wrong data.  (A queue ends with
# the write that is too late; what became of its other writes is unknown.)
failed_by_time() {
    ! grep -qE 'LBA [0-9]+: found ' /tmp/perf.err /tmp/perf.json || return 1
    grep -q ' did not complete in time: Write of namespace ' /tmp/perf.err || return 1
    grep '^raceline: ' /tmp/perf.err | tail -n 1 |
        grep -qE '^raceline: Write of .*: (no completion in time|the connection was lost; whether the command was executed is unknown)$'
}
# verify_kept RW BS [OPTION...]: a job as verify_job has it, during which no connection may be lost.
verify_kept() {
    verify_job "$@" || fail "a job has failed"
    [ "$(reconnects)" = 0 ] || fail "a connection was lost"
}

# pairs: prints the host's queue pairs on the wire and their peers, by number, the oldest first.
pairs() {
    rdma resource show qp | awk '/link rxe1\// && / type RC / && / state RTS / {
        for (i = 1; i < NF; i++) { if ($i == "lqpn") mine = $(i + 1); if ($i == "rqpn") peer = $(i + 1) }
        print mine, peer }' | sort -n
}
has_pairs() { [ "$(pairs | grep -c .)" = "$1" ]; }
# under_load: waits until the reads have their queues, and goes on for a moment.
under_load() {
    until_so 60 has_pairs 3
    sleep 3
}
# drop END WAY MATCH...: packets that match, as tc's filter u32 has it, go at that end, on their way in or out ("ingress" or
# "egress").  dropped END WAY: prints how many have gone.  take END WAY: none go any longer.
#
# What goes on its way in is lost on the wire.  What goes on its way out is an error of its queue pair, in soft RoCE.  So is a change of
# queueing disciplines under load, and the pair by which connections are made never recovers from that.
drop() {
    local end=$1 way=$2
    shift 2
    # (a check that failed may have left some)
    take "$end" "$way" 2>/dev/null || true
    tc filter add dev "$end" "$way" protocol ip u32 "$@" action drop
}
dropped() { tc -s filter show dev "$1" "$2" | sed -n 's/.*(dropped \([0-9]*\),.*/\1/p'; }
take() { tc filter del dev "$1" "$2"; }

# The connection of one I/O queue ends, and no other one.  Each packet has the number of the queue pair that it is for, in the last
# three bytes of the second word behind IP (20 bytes) and UDP (8 bytes).  The admin queue's pair is the oldest, because a host
# connects it first, so the newest one is an I/O queue's.  Numbers go up: that of the next connection is another one.  (The packets go
# on their way out, where soft RoCE takes it for an error of the pair at once.  That of Linux 6.1 sends such a packet again for
# ever: rxe_requester in drivers/infiniband/sw/rxe/rxe_req.c, of 6.1.192 and of 6.12.118.)
queue_loss() {
    local lost
    ! is_linux_6_1 || { echo "soft RoCE of Linux 6.1 sends for ever what its device refuses, so the pair does not fail"; return 77; }
    ADDR=$FAR
    reads_begin 12
    under_load
    pairs
    drop_for near egress "$(pairs | tail -n 1)"
    reads_end "an I/O queue's connection ended"
    lost=$(dropped near egress)
    take near egress
    [ "$lost" -ge 1 ] || fail "no packet has gone"
    has_reconnected
}

# drop_for END WAY "MINE PEER": what goes to the pair PEER.
drop_for() {
    drop "$1" "$2" match ip protocol 17 0xff match u32 "$(printf 0x%08x "${3#* }")" 0x00ffffff at 32
}

# All packets for one pair of the target get lost on the wire for good, and no others.  The host's pair sends them again as often
# as its host allows, then it fails, and the controller is connected anew, with other pairs: before the commands are too late
# (30 s).
packets_lost() {
    local pair start lost
    ADDR=$FAR
    reads_begin 25
    under_load
    pairs
    pair=$(pairs | tail -n 1)
    start=$(date +%s)
    drop_for far ingress "$pair"
    until_so 30 has_others "$pair"
    note "the pair whose packets got lost was replaced after $(($(date +%s) - start)) s"
    lost=$(dropped far ingress)
    [ "$lost" -ge 2 ] || fail "$lost packets were lost: none was sent again"
    reads_end "an I/O queue's packets lost for good"
    take far ingress
    has_reconnected
}
# has_others "MINE PEER": that pair is no more, and all queues have one.
has_others() { has_pairs 3 && ! pairs | grep -qx "$1"; }

# link_gone SECONDS RUNTIME: the wire loses all packets for so long, while the host reads.
link_gone() {
    local lost
    ADDR=$FAR
    reads_begin "$2"
    under_load
    drop far ingress match u32 0 0
    drop near ingress match u32 0 0
    sleep "$1"
    lost=$(($(dropped far ingress) + $(dropped near ingress)))
    take near ingress
    take far ingress
    [ $lost -ge 2 ] || fail "$lost packets were lost"
    reads_end "the link gone for $1 s"
}
# For longer than keep alive (5 s).
link_gone_long() {
    link_gone 12 25
    has_reconnected
}

# ---------------------------------------------------------------- a block device of the kernel

attach() { start_disk -t rdma -a $ADDR -s $PORT -n "$NQN" "$@"; }
no_ublk() { is_linux_6_1 && echo "Debian's Linux 6.1 has no ublk driver"; }
disk() {
    ! no_ublk || return 77
    modprobe ublk_drv
    attach --cores 0,1
    has_mib 96 || fail "it has $(blockdev --getsize64 $DISK) bytes"
    mkfs.ext4 -q $DISK
    mount $DISK /mnt
    dd if=/dev/urandom of=/mnt/data bs=64k count=64 conv=fsync 2>/dev/null
    md5sum /mnt/data >/tmp/sum
    fio --name=x --filename=/mnt/fio --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bsrange=4k-64k --size=12m --fsync=64 \
        --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/fio.log 2>&1 || fail "$(tail -n 3 /tmp/fio.log)"
    umount /mnt
    fsck.ext4 -f -n $DISK
    detach
    attach
    mount $DISK /mnt
    md5sum -c /tmp/sum >/dev/null || fail "the file is not as it was written"
    umount /mnt
    fsck.ext4 -f -n $DISK
    detach
}
disk_killed() {
    ! no_ublk || return 77
    no_disk
    attach
    killed_under_jobs attach attach
}

# What the kernel's target logs when a host or a connection has gone.
LEAVES='nvmet_rdma: (queue|received)|nvmet: ctrl [0-9]+ (keep-alive timer|fatal error)'

dispatch "$@"
echo "# kernel $(uname -r)"
log_start
check setup 60 setup
check discover 60 discover
check identify 60 identify
check verbs 120 verbs
check write-read 300 write_read_all
check verify 300 verify
check unknown-subsystem 60 unknown_subsystem
check refusals 60 refusals
check bench-rows 240 bench_rows
check port-off-on 240 port_off_on
check verify-after 180 verify_job randwrite 4k
check wire 60 wire
check link-loss 180 link_loss
check link-loss-of-reads 120 link_loss_of_reads
check kernel-log 10 log_clean "$LEAVES|connect request for invalid subsystem nqn.2014-08.org.example:unknown"
check queue-loss 120 queue_loss
check queue-packets-lost 180 packets_lost
check link-gone 120 link_gone 2 12
check link-gone-long 180 link_gone_long
check identify-after 60 identify
check disk 240 disk
check disk-killed 300 disk_killed
# While the wire loses all that the target sends, the target's adapter gives up after as many repetitions as the host allows.
check kernel-log-after-losses 10 log_clean "$LEAVES|nvmet_rdma: SEND for CQE 0x[0-9a-f]+ failed with status transport retry counter exceeded"
finish
