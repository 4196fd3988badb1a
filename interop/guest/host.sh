# Checks of a target by the kernel's NVMe host: commands, file systems, data and discards.
#
# Environment: PORT, NQN, PEER and TRANSPORT.  PEER=raceline: the target is Raceline at 10.0.2.2, or with TRANSPORT=rdma
# in this guest.  PEER=kernel: the target is this guest's own nvmet, which shows that the checks can pass.  Namespace 1 has blocks of 512 bytes, namespaces 2 and 3
# of 4096 bytes; namespace 3 is a file.
. ./lib.sh
[ "$TRANSPORT" = tcp ] || . ./roce.sh
PEER=${PEER:-raceline}

# ---------------------------------------------------------------- commands

discovery() {
    nvme discover -t "$TRANSPORT" -a "$ADDR" -s "$PORT" | tee /tmp/discovery
    [ "$(grep -c "^subnqn: *$NQN\$" /tmp/discovery)" = 1 ] || fail "the subsystem is not listed once"
    grep -q "^trtype: *$TRANSPORT" /tmp/discovery || fail "no $TRANSPORT record"
    [ "$PEER" = kernel ] || grep -q "^trsvcid: *$PORT" /tmp/discovery || fail "wrong port in the log page"
}
discovery_persistent() {
    nvme discover -t "$TRANSPORT" -a "$ADDR" -s "$PORT" --persistent --keep-alive-tmo=30 >/dev/null
    sleep 1
    [ "$(cat /sys/class/nvme/nvme*/cntrltype | sort -u)" = discovery ] || fail "no discovery controller stays"
    nvme disconnect -n nqn.2014-08.org.nvmexpress.discovery
}
unknown_subsystem() {
    refused 'error|failed|could not|invalid' \
        nvme connect -t "$TRANSPORT" -a "$ADDR" -s "$PORT" -n nqn.2014-08.org.example:unknown
}
queues_are() {
    local n
    n=$(cat "/sys/class/nvme/$(ctrl)/queue_count")
    [ "$n" = $(($1 + 1)) ] || fail "queue_count is $n with $1 I/O queues asked for"
}
list() {
    local d
    d=$(dev 1)
    nvme list | tee /tmp/list
    grep -q "^${d}[[:space:]]" /tmp/list
    nvme list-subsys | grep -q "$NQN"
}
field() { sed -n "s/^$2 *: *//p" "$1" | head -n 1; }
id_ctrl() {
    nvme id-ctrl "/dev/$(ctrl)" | tee /tmp/id
    [ "$(field /tmp/id subnqn)" = "$NQN" ] || fail "subnqn is not ours"
    [ -n "$(field /tmp/id sn)" ] && [ -n "$(field /tmp/id mn)" ] && [ -n "$(field /tmp/id fr)" ] || fail "empty sn, mn or fr"
    [ "$(field /tmp/id sqes)" = 0x66 ] && [ "$(field /tmp/id cqes)" = 0x44 ] || fail "sqes, cqes"
    [ "$(field /tmp/id kas)" != 0 ] || fail "kas is 0"
    [ "$(field /tmp/id maxcmd)" != 0 ] || fail "maxcmd is 0"
    [ "$PEER" = kernel ] || [ "$(field /tmp/id mdts)" != 0 ] || fail "mdts is 0 (unlimited)"
}
id_ns() {
    local n d size want
    for n in 1 2 3; do
        d=$(dev $n)
        nvme id-ns "$d" >/tmp/id
        size=$(($(field /tmp/id nsze) * $(block_size "$d")))
        [ $size = "$(bytes "$d")" ] || fail "namespace $n: nsze says $size bytes, the block device $(bytes "$d")"
        want=4096
        [ $n != 1 ] || want=512
        [ "$(block_size "$d")" = $want ] || fail "namespace $n: blocks of $(block_size "$d")"
    done
}
ns_descs() {
    local n seen=/tmp/uuids
    : >$seen
    for n in 1 2 3; do
        nvme ns-descs "/dev/$(ctrl)" -n $n | tee /tmp/descs
        sed -n 's/^uuid *: *//p' /tmp/descs | grep -v '^00000000-0000-0000' >>$seen || fail "namespace $n has no UUID"
    done
    [ "$(sort -u $seen | wc -l)" = 3 ] || fail "UUIDs are not unique"
}
list_ns() {
    nvme list-ns "/dev/$(ctrl)" | tee /tmp/ns
    [ "$(grep -c '^\[' /tmp/ns)" = 3 ]
}
logs() {
    local c
    c=/dev/$(ctrl)
    nvme smart-log "$c" | tee /tmp/smart
    grep -q 'available_spare' /tmp/smart
    nvme error-log "$c" -e 1 | tee /tmp/log
    grep -qi 'error_count' /tmp/log || fail "error-log"
    nvme effects-log "$c" -c 0 | tee /tmp/log
    grep -qi 'flush' /tmp/log || fail "effects-log does not list Flush"
    nvme fw-log "$c" | tee /tmp/log
    grep -qi 'afi' /tmp/log || fail "fw-log"
    nvme changed-ns-list-log "$c" || fail "changed-ns-list-log"
}
# host_writes CONTROLLER: prints the number of write commands in the SMART log.  (Depending on its version, nvme-cli
# writes the name with underscores or spaces, and with or without capitals.)
host_writes() { nvme smart-log "$1" | tr ' ' _ | sed -n 's/^host_write_commands[_[:space:]]*:_*//Ip' | tr -d ,; }
smart_counts() {
    local c d before after
    [ "$PEER" = raceline ] || { echo "the kernel's target counts only block devices' reads"; return 77; }
    c=/dev/$(ctrl)
    d=$(dev 1)
    before=$(host_writes "$c")
    dd if=/dev/zero of="$d" bs=4k count=64 oflag=direct 2>/dev/null
    after=$(host_writes "$c")
    [ "$after" -ge $((before + 64)) ] || fail "64 writes moved host_write_commands from $before to $after"
}
features() {
    local f
    for f in 0x06 0x07 0x0b 0x0f; do
        nvme get-feature "/dev/$(ctrl)" -f $f || fail "feature $f"
    done
}
refusals() {
    local c d want
    c=/dev/$(ctrl)
    d=$(dev 1)
    # (nvmet checks the transfer length before the feature, and gives the third of these errors)
    refused 'INVALID_FIELD|Invalid Field|SGL Length Invalid' nvme get-feature "$c" -f 0x0c
    refused 'INVALID_OPCODE|Invalid (Command )?Opcode' nvme admin-passthru "$c" --opcode=0xc1 -n 0
    refused 'INVALID_OPCODE|Invalid (Command )?Opcode' nvme io-passthru "$d" --opcode=0x7e -n 1
    refused 'INVALID_LOG_PAGE|INVALID_FIELD|Invalid (Log|Field)' nvme get-log "$c" -i 0x7f -l 512
    want='LBA.OUT.OF.RANGE|LBA_RANGE|Out of Range'
    [ "$PEER" = raceline ] || want="$want|CAP_EXCEEDED|Capacity|Internal Error|INTERNAL"
    refused "$want" \
        nvme read "$d" --start-block=0x10000000 --block-count=0 --data-size=512
    nvme id-ctrl "$c" >/dev/null
}

# ---------------------------------------------------------------- I/O commands

pattern() { yes "$1" | head -c "$2"; }
# get DEVICE BLOCK COUNT [OPTION...]: reads blocks with nvme read into /tmp/b.
get() {
    local d=$1 start=$2 count=$3
    shift 3
    rm -f /tmp/b
    nvme read "$d" --start-block="$start" --block-count=$((count - 1)) \
        --data-size=$((count * $(block_size "$d"))) --data=/tmp/b "$@" >/dev/null
}
# put DEVICE BLOCK COUNT [OPTION...]: writes blocks from /tmp/a with nvme write.
put() {
    local d=$1 start=$2 count=$3
    shift 3
    nvme write "$d" --start-block="$start" --block-count=$((count - 1)) \
        --data-size=$((count * $(block_size "$d"))) --data=/tmp/a "$@"
}
flush_compare_zeroes() {
    local n d bs
    for n in 1 2 3; do
        d=$(dev $n)
        bs=$(block_size "$d")
        pattern "raceline $n" $((8 * bs)) >/tmp/a
        put "$d" 64 8
        nvme flush "$d"
        get "$d" 64 8
        cmp /tmp/a /tmp/b || fail "namespace $n: read differs from what was written"
        nvme write-zeroes "$d" --start-block=66 --block-count=1
        { head -c $((2 * bs)) /tmp/a; head -c $((2 * bs)) /dev/zero; tail -c $((4 * bs)) /tmp/a; } >/tmp/c
        get "$d" 64 8
        cmp /tmp/c /tmp/b || fail "namespace $n: wrong content after write-zeroes"
    done
}
force_unit_access() {
    local d bs
    d=$(dev 3)
    bs=$(block_size "$d")
    pattern fua $((4 * bs)) >/tmp/a
    put "$d" 128 4 --force-unit-access
    get "$d" 128 4 --force-unit-access
    cmp /tmp/a /tmp/b
}
# 256 KiB, which people and test suites try first, and 1 MiB, the most that a command of Raceline may have by default.
large_commands() {
    local n d bs size
    for n in 1 2 3; do
        d=$(dev $n)
        bs=$(block_size "$d")
        for size in 262144 1048576; do
            head -c $size /dev/urandom >/tmp/a
            put "$d" 512 $((size / bs)) || fail "namespace $n: a write of $size bytes"
            get "$d" 512 $((size / bs)) || fail "namespace $n: a read of $size bytes"
            cmp /tmp/a /tmp/b || fail "namespace $n: $size bytes changed"
        done
    done
}
compare() {
    local n d bs
    [ "$PEER" = raceline ] || { echo "the kernel's target has no Compare"; return 77; }
    for n in 1 2 3; do
        d=$(dev $n)
        bs=$(block_size "$d")
        pattern "compare $n" $((4 * bs)) >/tmp/a
        pattern "Compare $n" $((4 * bs)) >/tmp/x
        put "$d" 32 4
        nvme compare "$d" --start-block=32 --block-count=3 --data-size=$((4 * bs)) --data=/tmp/a || fail "namespace $n: equal data"
        refused 'COMPARE_FAILED|Compare Failure' \
            nvme compare "$d" --start-block=32 --block-count=3 --data-size=$((4 * bs)) --data=/tmp/x
    done
}
dataset_management() {
    local d bs
    d=$(dev 3)
    bs=$(block_size "$d")
    pattern dsm $((32 * bs)) >/tmp/a
    put "$d" 256 32
    nvme dsm "$d" --ad --slbs=264 --blocks=8
    get "$d" 256 32
    head -c $((8 * bs)) /tmp/a >/tmp/a1; head -c $((8 * bs)) /tmp/b >/tmp/b1
    tail -c $((16 * bs)) /tmp/a >/tmp/a2; tail -c $((16 * bs)) /tmp/b >/tmp/b2
    cmp /tmp/a1 /tmp/b1 && cmp /tmp/a2 /tmp/b2 || fail "blocks outside the deallocated range changed"
}
discard() {
    local d
    d=$(dev 3)
    dd if=/dev/urandom of="$d" bs=1M count=16 oflag=direct 2>/dev/null
    all_zero "$d" 0 16 && fail "nothing was written"
    blkdiscard -o 0 -l $((8 * 1048576)) "$d"
    all_zero "$d" 0 8 || fail "discarded blocks do not read as zeroes"
    all_zero "$d" 8 8 && fail "more was discarded than asked for"
    blkdiscard -z -o $((8 * 1048576)) -l $((8 * 1048576)) "$d"
    all_zero "$d" 8 8 || fail "blkdiscard -z left data"
}

# ---------------------------------------------------------------- data

# file_system TYPE NSID: writes and syncs files, unmounts, empties the caches, mounts again, and compares the files.
file_system() {
    local d sum
    d=$(dev "$2")
    case $1 in ext4) mkfs.ext4 -q -F "$d" ;; xfs) mkfs.xfs -q -f "$d" ;; esac
    mount -t "$1" "$d" /mnt
    mkdir /mnt/dir
    dd if=/dev/urandom of=/mnt/dir/data bs=1M count=16 conv=fsync 2>/dev/null
    for i in 1 2 3 4 5 6 7 8; do
        echo "$i" >/mnt/dir/small$i
        fsync /mnt/dir/small$i 2>/dev/null || sync
    done
    sum=$(cat /mnt/dir/* | md5sum)
    umount /mnt
    cold_caches
    mount -t "$1" "$d" /mnt
    [ "$(cat /mnt/dir/* | md5sum)" = "$sum" ] || fail "the files changed"
    rm -r /mnt/dir
    fstrim /mnt 2>/dev/null || true
    umount /mnt
    case $1 in ext4) fsck.ext4 -f -n "$d" ;; xfs) xfs_repair -n "$d" ;; esac
}
fio_verify() { verify "$(dev "$1")" "$2"; }
fio_readwrite() {
    fio --name=mixed --filename="$(dev 1)" --rw=randrw --bsrange=512-256k --size=16m --offset=32m --direct=1 \
        --ioengine=io_uring --iodepth=32 --numjobs=2 --offset_increment=16m --verify=crc32c --verify_fatal=1 \
        --minimal >/tmp/fio.out 2>&1 || { cut -c1-200 /tmp/fio.out; return 1; }
}

dispatch "$@"
begin_hosts
log_start
echo "# kernel $(uname -r), $(nvme version | head -n 1)"
check discover 30 discovery
check discover-persistent 30 discovery_persistent
check dmesg-discover 10 log_clean
check unknown-subsystem 30 unknown_subsystem
log_start

check connect-4-queues 30 connect --nr-io-queues=4
check queue-count-4 10 queues_are 4
check list 20 list
check id-ctrl 20 id_ctrl
check id-ns 20 id_ns
check ns-descs 20 ns_descs
check list-ns 20 list_ns
check logs 30 logs
check smart-counts 30 smart_counts
check get-feature 20 features
check refusals 30 refusals
check dmesg-admin 10 log_clean
check flush-writezeroes 30 flush_compare_zeroes
check fua 20 force_unit_access
check compare 30 compare
check large-commands 60 large_commands
check dsm 20 dataset_management
check blkdiscard 40 discard
check dmesg-commands 10 log_clean
check fio-verify-512 120 fio_verify 1 24m
check fio-verify-4096 120 fio_verify 2 24m
check fio-verify-file 120 fio_verify 3 24m
check fio-randrw 120 fio_readwrite
check ext4-ram 120 file_system ext4 1
check xfs-file 120 file_system xfs 3
check dmesg-data 10 log_clean
check disconnect 20 disconnect

if [ "$TRANSPORT" = rdma ]; then
    echo "skip digests: RDMA has no digests, because its links check their packets"
    check connect-1-queue 30 connect --nr-io-queues=1
    check queue-count-1 10 queues_are 1
    check 1-queue-id-ctrl 20 id_ctrl
    check 1-queue-commands 30 flush_compare_zeroes
    check 1-queue-fio-verify-512 120 fio_verify 1 12m
    check 1-queue-fio-verify-file 120 fio_verify 3 12m
    check 1-queue-ext4-4096 120 file_system ext4 2
    check 1-queue-disconnect 20 disconnect
    check dmesg-1-queue 10 log_clean
    check target-ends 30 program_stop target
    finish
fi
check connect-1-queue-digests 30 connect --nr-io-queues=1 --hdr-digest --data-digest
check queue-count-1 10 queues_are 1
check digests-id-ctrl 20 id_ctrl
check digests-logs 30 logs
check digests-refusals 30 refusals
check digests-commands 30 flush_compare_zeroes
check digests-fio-verify-512 120 fio_verify 1 12m
check digests-fio-verify-file 120 fio_verify 3 12m
check digests-ext4-4096 120 file_system ext4 2
check digests-disconnect 20 disconnect
check connect-header-digest 30 connect --nr-io-queues=2 --hdr-digest
check header-digest-verify 120 fio_verify 2 4m
check header-digest-disconnect 20 disconnect
check connect-data-digest 30 connect --nr-io-queues=2 --data-digest
check data-digest-verify 120 fio_verify 1 4m
check data-digest-disconnect 20 disconnect
check dmesg-digests 10 log_clean
finish
