# The kernel's own block device on a namespace: `raceline connect --as ublk` over a daemon of the same machine.  File systems,
# data, flush and FUA, discard, a daemon that is killed and one that comes back, a namespace that grows, the end under I/O.
#
# Environment: NQN.  The program raceline is beside this script.
. ./lib.sh

RACELINE=./raceline
export RACELINE_RPC_SOCKET=/tmp/run/rpc.sock
PORT=4420
METRICS=9400
DISK=/dev/ublkb0
FILE=/tmp/target.img
MIB=384

rpc() { $RACELINE rpc "$@"; }
# attach [OPTION...]: makes the disk $DISK.
attach() {
    : >/tmp/connect.out
    $RACELINE connect --as ublk -a 127.0.0.1 -s $PORT -n "$NQN" "$@" >/tmp/connect.out 2>>/tmp/connect.err &
    echo $! >/tmp/connect.pid
    until_so 60 grep -q '"ready"' /tmp/connect.out
    grep -q "\"device\":\"$DISK\"" /tmp/connect.out || fail "not $DISK: $(cat /tmp/connect.out)"
    [ -b $DISK ] || fail "there is no $DISK"
}
gone() { ! kill -0 "$(cat /tmp/connect.pid)" 2>/dev/null; }
detach() {
    $RACELINE disconnect -d $DISK "$@"
    until_so 30 gone
    [ ! -e $DISK ] || fail "$DISK is still there"
    [ ! -e /dev/ublkc0 ] || fail "/dev/ublkc0 is still there"
    ! grep -q 'panicked' /tmp/connect.err || fail "it panicked: $(cat /tmp/connect.err)"
}
# count WHAT: how many requests the daemon's device has done, such as flushes.
count() {
    local n
    busybox wget -qO /tmp/metrics http://127.0.0.1:$METRICS/metrics 2>/tmp/wget.err || true
    n=$(grep "bdev_$1_completed_total{" /tmp/metrics | sed 's/.* //; s/[.].*//')
    [ -n "$n" ] || fail "the daemon counts no $1: $(cat /tmp/wget.err) $(grep -c . /tmp/metrics)" >&2
    echo "$n"
}
# begin [OPTION...]: as attach, after what an earlier check may have left over.
begin() {
    $RACELINE disconnect --all --force >/dev/null 2>&1 || true
    $RACELINE disconnect -d $DISK --force >/dev/null 2>&1 || true
    attach "$@"
}

without_driver() {
    refused 'modprobe ublk_drv' $RACELINE connect --as ublk --bdev ram:16M
    refused 'io_uring only' $RACELINE connect --as ublk --bdev ram:16M --io epoll
    modprobe ublk_drv
    echo 2 >/proc/sys/kernel/io_uring_disabled
    refused 'io_uring_disabled' $RACELINE connect --as ublk --bdev ram:16M
    echo 0 >/proc/sys/kernel/io_uring_disabled
}

target() {
    mkdir -p /tmp/run
    truncate -s ${MIB}M $FILE
    $RACELINE serve -r "$RACELINE_RPC_SOCKET" --metrics 127.0.0.1:$METRICS >>/tmp/serve.out 2>>/tmp/serve.err &
    until_so 60 rpc spdk_get_version
    rpc nvmf_create_transport -t tcp
    rpc bdev_aio_create $FILE file0 512
    rpc nvmf_create_subsystem "$NQN" -a
    rpc nvmf_subsystem_add_ns "$NQN" file0
    rpc nvmf_subsystem_add_listener "$NQN" -t tcp -a 127.0.0.1 -s $PORT
}

facts() {
    local q=/sys/block/ublkb0/queue
    begin --queue-depth 32 --max-io-kib 256 --cores 0,1
    [ "$(blockdev --getsize64 $DISK)" = $((MIB << 20)) ] || fail "it has $(blockdev --getsize64 $DISK) bytes"
    [ "$(cat $q/fua)" = 1 ] || fail "the kernel does not know that the disk has FUA"
    grep -q 'write back' $q/write_cache || fail "the kernel does not know of the cache"
    [ "$(cat $q/discard_max_bytes)" -gt 0 ] || fail "the kernel does not know that it can discard"
    [ "$(cat $q/write_zeroes_max_bytes)" -gt 0 ] || fail "the kernel does not know that it can zero"
    [ "$(cat $q/max_hw_sectors_kb)" = 256 ] || fail "a request has $(cat $q/max_hw_sectors_kb) KiB"
    [ "$(cat $q/nr_requests)" = 32 ] || fail "a queue has $(cat $q/nr_requests) requests"
    [ "$(ls /sys/block/ublkb0/mq | wc -l)" = 2 ] || fail "it has $(ls /sys/block/ublkb0/mq | wc -l) queues"
    detach
    attach --read-only
    [ "$(blockdev --getro $DISK)" = 1 ] || fail "it can be written"
    detach
}

# filesystem KIND: makes a file system, writes, attaches again, and finds what was written.
filesystem() {
    local sum
    begin
    mkfs.$1 -q $DISK
    mkdir -p /tmp/mnt
    mount $DISK /tmp/mnt
    dd if=/dev/urandom of=/tmp/mnt/data bs=64k count=160 conv=fsync 2>/dev/null
    sum=$(md5sum </tmp/mnt/data)
    refused 'is in use' $RACELINE disconnect -d $DISK
    umount /tmp/mnt
    detach
    attach
    mount $DISK /tmp/mnt
    [ "$(md5sum </tmp/mnt/data)" = "$sum" ] || fail "the file is not as it was written"
    rm /tmp/mnt/data
    fstrim /tmp/mnt
    umount /tmp/mnt
    blkdiscard -f $DISK
    detach
}

verify() {
    begin --cores 0,1
    fio --name=x --filename=$DISK --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=16k \
        --size=24m --fsync=64 --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/fio.log 2>&1 ||
        fail "$(tail -n 3 /tmp/fio.log)"
    detach
}

# What is flushed, written through, discarded and zeroed arrives at the daemon's device as that.
durable() {
    local flushes writes after
    begin
    flushes=$(count flushes)
    dd if=/dev/zero of=$DISK bs=4k count=1 conv=fsync 2>/dev/null
    after=$(count flushes)
    [ "$after" -gt "$flushes" ] || fail "an fsync made no flush: $flushes, $after"
    # The kernel makes a write with FUA and one flush of each.  Without FUA there would be two flushes.
    flushes=$(count flushes) writes=$(count writes)
    fio --name=x --filename=$DISK --direct=1 --sync=dsync --ioengine=psync --rw=write --bs=4k --size=32k \
        >/tmp/fio.log 2>&1 || fail "$(tail -n 3 /tmp/fio.log)"
    [ "$(count writes)" -ge $((writes + 8)) ] || fail "8 writes are $(($(count writes) - writes))"
    after=$(count flushes)
    [ $((after - flushes)) -le 9 ] || fail "8 durable writes made $((after - flushes)) flushes"
    dd if=/dev/urandom of=$DISK bs=1M count=4 oflag=direct 2>/dev/null
    blkdiscard -f -o 1M -l 1M $DISK
    blkdiscard -f -z -o 2M -l 1M $DISK
    [ "$(count unmaps)" -ge 1 ] || fail "the daemon's device was asked for no discard"
    dd if=$DISK bs=1M skip=1 count=2 iflag=direct 2>/dev/null | cmp -n $((2 << 20)) - /dev/zero ||
        fail "the ranges do not read zeroes"
    detach
}

# written: prints how many sectors were written to the disk.
written() { awk '{ print $7 }' /sys/block/ublkb0/stat; }
moved() { [ "$(written)" -gt "$(cat /tmp/before)" ]; }
# under_way: waits until the disk is written.
under_way() {
    written >/tmp/before
    until_so 60 moved
}
# jobs: verifying jobs, one after another, until /tmp/enough is there.
jobs() {
    while [ ! -e /tmp/enough ]; do
        fio --name=x --filename=$DISK --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=16k --size=8m \
            --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/fio.log 2>&1 || return 1
    done
}
# A killed process under jobs that verify: they wait, and end well after the same command line was given again.
killed() {
    local i jobs
    rm -f /tmp/enough
    begin
    jobs &
    jobs=$!
    for i in 1 2 3; do
        under_way
        kill -9 "$(cat /tmp/connect.pid)"
        until_so 30 gone
        attach
        grep -q '"recovered":true' /tmp/connect.out || fail "it is another disk: $(cat /tmp/connect.out)"
    done
    under_way
    touch /tmp/enough
    wait $jobs || fail "$(tail -n 3 /tmp/fio.log)"
    detach
}

# A process that was killed and is not missed: its disk is removed.
abandoned() {
    begin
    kill -9 "$(cat /tmp/connect.pid)"
    until_so 30 gone
    until_so 30 $RACELINE disconnect -d $DISK
    [ ! -e $DISK ] || fail "$DISK is still there"
    refused 'no such disk' $RACELINE disconnect -d $DISK
}

# What is in memory of the process ends with it.
memory() {
    $RACELINE connect --as ublk --bdev ram:16M --ublk-id 5 >/tmp/connect.out 2>>/tmp/connect.err &
    echo $! >/tmp/connect.pid
    until_so 60 grep -q '"ready"' /tmp/connect.out
    refused 'is there already' $RACELINE connect --as ublk --bdev ram:32M --ublk-id 5
    dd if=/dev/urandom of=/dev/ublkb5 bs=1M count=8 oflag=direct 2>/dev/null
    kill -9 "$(cat /tmp/connect.pid)"
    until_so 30 gone
    until_so 30 $RACELINE disconnect -d /dev/ublkb5
    [ ! -e /dev/ublkc5 ] || fail "/dev/ublkc5 is still there"
}

# The kernel of this guest cannot resize a disk: it is told once, and the disk goes on; the next one has the new size.
resize() {
    begin
    truncate -s $((MIB + 64))M $FILE
    rpc bdev_aio_rescan file0
    until_so 30 grep -q 'keeps its size' /tmp/connect.err
    [ "$(blockdev --getsize64 $DISK)" = $((MIB << 20)) ] || fail "it has $(blockdev --getsize64 $DISK) bytes"
    dd if=/dev/zero of=$DISK bs=4k count=1 oflag=direct 2>/dev/null
    detach
    attach
    [ "$(blockdev --getsize64 $DISK)" = $((MIB + 64 << 20)) ] || fail "it has $(blockdev --getsize64 $DISK) bytes"
    detach
}

under_io() {
    local fio
    begin
    fio --name=x --filename=$DISK --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw --bs=4k --size=16m \
        --time_based --runtime=600 >/tmp/fio.log 2>&1 &
    fio=$!
    under_way
    detach
    ! wait $fio || fail "fio has not noticed that the disk has ended"
}

# iops DEVICE BYTES: what fio reads of a device at depth 32.
iops() {
    fio --name=x --filename="$1" --direct=1 --ioengine=libaio --iodepth=32 --rw=randread --bs="$2" --size=64m --norandommap \
        --time_based --ramp_time=1 --runtime=3 --minimal 2>/dev/null | awk -F ';' 'NF > 8 { print $8 }'
}

# The disk beside the kernel's own block device, nvme-tcp, on the same namespace: in turn, five rounds. Both are emulated,
# so only the ratio says something, and not what it is on a processor.
speed() {
    local d bytes round ours theirs
    begin --cores 0,1
    modprobe nvme-tcp
    ADDR=127.0.0.1 connect
    d=$(dev 1)
    dd if=/dev/urandom of=$DISK bs=1M count=64 oflag=direct 2>/dev/null
    for bytes in 4k 128k; do
        : >/tmp/rounds
        for round in 1 2 3 4 5; do
            ours=$(iops $DISK $bytes)
            theirs=$(iops "$d" $bytes)
            [ "${ours:-0}" -gt 0 ] && [ "${theirs:-0}" -gt 0 ] || fail "fio has no figures: '$ours' and '$theirs'"
            echo "$ours $theirs" >>/tmp/rounds
        done
        awk -v bytes=$bytes '{ o[NR] = $1; t[NR] = $2; r[NR] = $1 / $2 }
            function sorted(a, n,    i, j, x) {
                for (i = 2; i <= n; i++) for (j = i; j > 1 && a[j] < a[j - 1]; j--) { x = a[j]; a[j] = a[j - 1]; a[j - 1] = x }
            }
            END { sorted(o, NR); sorted(t, NR); sorted(r, NR); m = int((NR + 1) / 2)
                printf "# emulated: %s reads at depth 32: ublk %d IOPS, nvme-tcp of the kernel %d, ratio %.2f (%.2f - %.2f)\n",
                    bytes, o[m], t[m], r[m], r[1], r[NR] }' /tmp/rounds >>/tmp/speed
    done
    disconnect
    detach
}

dispatch "$@"
log_start
check without-driver 60 without_driver
check target 120 target
check facts 120 facts
check ext4 120 filesystem ext4
check xfs 120 filesystem xfs
check fio-verify 120 verify
check durable 60 durable
check killed 240 killed
check abandoned 90 abandoned
check memory 90 memory
check resize 120 resize
check under-io 90 under_io
check speed 240 speed
cat /tmp/speed 2>/dev/null || true
# The disk that ends under I/O, and the one that was abandoned, provoke errors.
check kernel-log 10 log_clean '(I/O error|Buffer I/O error).*ublkb|ublkb.*(I/O error|lost)'
finish
