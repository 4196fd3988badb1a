# The kernel's NBD client on a disk that `raceline connect --as nbd` makes of a file: file systems, data, discard, and a
# server that ends and comes back.  Then disks that a daemon of the guest makes by nbd_start_disk.
#
# Environment: PORT, the port of the disk at 10.0.2.2, and LARGE_PORT, that of another one with blocks of 4096 bytes.  Both have
# 384 MiB and are named disk.  The program raceline is beside this script.
. ./lib.sh

NBD=/dev/nbd0
RACELINE=./raceline
export RACELINE_RPC_SOCKET=/tmp/run/rpc.sock
FILE=/tmp/rpc.img
MIB=128
# What the kernel says when a disk ends.
ENDS='nbd0: (Receive control failed|shutting down)'

# attach [OPTION...]: makes the disk $NBD.
attach() {
    # A check that failed may have left it attached.
    nbd-client -d $NBD >/dev/null 2>&1 || true
    nbd-client "$ADDR" "$PORT" $NBD -N disk "$@"
    blockdev --getsize64 $NBD >/dev/null
}
detach() { nbd-client -d $NBD; }

size() {
    attach -C 2
    [ "$(blockdev --getsize64 $NBD)" = $((384 << 20)) ] || fail "it has $(blockdev --getsize64 $NBD) bytes"
    [ "$(cat /sys/block/nbd0/queue/fua)" = 1 ] || fail "the kernel does not know that the disk has FUA"
    grep -q 'write back' /sys/block/nbd0/queue/write_cache || fail "the kernel does not know of the cache"
    [ "$(cat /sys/block/nbd0/queue/discard_max_bytes)" -gt 0 ] || fail "the kernel does not know that it can discard"
    detach
}

# filesystem KIND: makes a file system, writes, attaches again, and finds what was written.
filesystem() {
    attach -C 2
    blkdiscard $NBD
    mkfs.$1 -q $NBD
    mkdir -p /tmp/mnt
    mount $NBD /tmp/mnt
    dd if=/dev/urandom of=/tmp/mnt/data bs=64k count=200 conv=fsync 2>/dev/null
    local sum
    sum=$(md5sum </tmp/mnt/data)
    umount /tmp/mnt
    detach
    attach
    mount $NBD /tmp/mnt
    [ "$(md5sum </tmp/mnt/data)" = "$sum" ] || fail "the file is not as it was written"
    rm /tmp/mnt/data
    fstrim /tmp/mnt
    umount /tmp/mnt
    detach
}

verify() {
    attach -C 2
    fio --name=x --filename=$NBD --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=16k \
        --size=24m --fsync=64 --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/fio.log 2>&1 ||
        fail "$(tail -n 3 /tmp/fio.log)"
    detach
}

discard() {
    attach
    dd if=/dev/urandom of=$NBD bs=1M count=4 oflag=direct 2>/dev/null
    blkdiscard -o 1M -l 1M $NBD
    blkdiscard -z -o 2M -l 1M $NBD
    # `cmp` against nothing but zeroes; both ranges read zeroes over a file.
    dd if=$NBD bs=1M skip=1 count=2 iflag=direct 2>/dev/null | cmp -n $((2 << 20)) - /dev/zero ||
        fail "the ranges do not read zeroes"
    detach
}

# blocks: the disk in use has blocks of this size, in bytes.
blocks() { [ "$(blockdev --getss $NBD)" = "$1" ] || fail "its blocks have $(blockdev --getss $NBD) bytes"; }

# A disk with blocks of 4096 bytes: by the option of nbd-client, which asks for no block size, it is like another.
large_blocks() {
    local PORT=$LARGE_PORT sum kind
    for kind in ext4 xfs; do
        attach -C 2 -b 4096
        blocks 4096
        blkdiscard $NBD
        mkfs.$kind -q $NBD
        mkdir -p /tmp/mnt
        mount $NBD /tmp/mnt
        dd if=/dev/urandom of=/tmp/mnt/data bs=64k count=200 conv=fsync 2>/dev/null
        sum=$(md5sum </tmp/mnt/data)
        umount /tmp/mnt
        detach
        attach -b 4096
        mount $NBD /tmp/mnt
        [ "$(md5sum </tmp/mnt/data)" = "$sum" ] || fail "the file is not as it was written"
        umount /tmp/mnt
        detach
    done
    attach -C 2 -b 4096
    fio --name=x --filename=$NBD --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k \
        --size=8m --fsync=64 --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/fio.log 2>&1 ||
        fail "$(tail -n 3 /tmp/fio.log)"
    detach
}

# The same disk without the option: requests of 512 bytes fail, and change nothing.
small_requests() {
    local PORT=$LARGE_PORT sum kind
    # The errors are in the kernel's log, so what was there before is judged here.
    log_clean "$ENDS"
    attach -b 4096
    dd if=/dev/urandom of=$NBD bs=1M count=8 oflag=direct 2>/dev/null
    sum=$(dd if=$NBD bs=1M count=8 iflag=direct 2>/dev/null | md5sum)
    detach
    attach
    blocks 512
    for kind in read write; do
        # (busybox's dd falls back to the kernel's cache, which has whole pages)
        ! fio --name=x --filename=$NBD --direct=1 --ioengine=psync --rw=$kind --bs=512 --offset=512 --size=512 \
            >/tmp/fio.log 2>&1 || fail "a part of a block: the $kind has worked"
    done
    [ "$(dd if=$NBD bs=1M count=8 iflag=direct 2>/dev/null | md5sum)" = "$sum" ] || fail "the data have changed"
    detach
    dmesg | grep -q 'I/O error, dev nbd0' || fail "the kernel has seen no error"
    log_start
}

rpc() { $RACELINE rpc "$@"; }
# daemon: starts a daemon, in place of one that was killed.
daemon() {
    mkdir -p /tmp/run
    $RACELINE serve -r "$RACELINE_RPC_SOCKET" --state-dir /tmp/state --sandbox on >>/tmp/serve.out 2>>/tmp/serve.err &
    echo $! >/tmp/serve.pid
    until_so 60 rpc spdk_get_version
}
gone() { ! kill -0 "$(cat /tmp/serve.pid)" 2>/dev/null; }
end_daemon() {
    kill "$1" "$(cat /tmp/serve.pid)"
    until_so 30 gone
    ! grep -q 'panicked' /tmp/serve.err || fail "it panicked: $(cat /tmp/serve.err)"
}
# unused NUMBER: nobody uses the disk.
unused() { [ ! -e "/sys/block/nbd$1/pid" ]; }
absent() { [ ! -e "/sys/block/nbd$1" ]; }

# A daemon says what is missing, and that it has to start again: its sandbox was made without the module.
without_module() {
    daemon
    truncate -s ${MIB}M $FILE
    rpc bdev_aio_create $FILE file0 512
    refused 'modprobe nbd' rpc nbd_start_disk file0
    modprobe nbd nbds_max=2
    refused 'start it again' rpc nbd_start_disk file0
    end_daemon -TERM
    daemon
}

by_rpc() {
    local sum disk
    disk=$(rpc nbd_start_disk file0)
    [ "$disk" = $NBD ] || fail "it is '$disk'"
    [ "$(blockdev --getsize64 $NBD)" = $((MIB << 20)) ] || fail "it has $(blockdev --getsize64 $NBD) bytes"
    [ "$(cat /sys/block/nbd0/queue/fua)" = 1 ] || fail "the kernel does not know that the disk has FUA"
    grep -q 'write back' /sys/block/nbd0/queue/write_cache || fail "the kernel does not know of the cache"
    [ "$(cat /sys/block/nbd0/queue/discard_max_bytes)" -gt 0 ] || fail "the kernel does not know that it can discard"
    rpc nbd_get_disks | grep -q '"/dev/nbd0"' || fail "it is not listed: $(rpc nbd_get_disks)"
    refused 'resource busy' rpc nbd_start_disk file0 $NBD
    refused 'illegal nbd device' rpc nbd_start_disk file0 /dev/sda
    mkfs.ext4 -q $NBD
    mkdir -p /tmp/mnt
    mount $NBD /tmp/mnt
    dd if=/dev/urandom of=/tmp/mnt/data bs=64k count=200 conv=fsync 2>/dev/null
    sum=$(md5sum </tmp/mnt/data)
    refused 'is in use' rpc nbd_stop_disk $NBD
    umount /tmp/mnt
    rpc nbd_stop_disk $NBD
    until_so 30 unused 0
    refused 'No such device' rpc nbd_stop_disk $NBD
    # A number that there is not comes and goes with the disk.
    [ "$(rpc nbd_start_disk file0 /dev/nbd5)" = /dev/nbd5 ] || fail "it is not /dev/nbd5"
    mount /dev/nbd5 /tmp/mnt
    [ "$(md5sum </tmp/mnt/data)" = "$sum" ] || fail "the file is not as it was written"
    rm /tmp/mnt/data
    fstrim /tmp/mnt
    umount /tmp/mnt
    rpc nbd_stop_disk /dev/nbd5
    until_so 30 absent 5
}

# A disk that another program has is refused, and stays as it is.
taken() {
    attach
    refused 'resource busy' rpc nbd_start_disk file0 $NBD
    [ "$(blockdev --getsize64 $NBD)" = $((384 << 20)) ] || fail "it has $(blockdev --getsize64 $NBD) bytes"
    [ "$(rpc nbd_start_disk file0)" = /dev/nbd1 ] || fail "not the next one that is free"
    rpc nbd_stop_disk /dev/nbd1
    detach
    until_so 30 unused 0
}

grown() {
    rpc nbd_start_disk file0 $NBD
    truncate -s $((MIB + 64))M $FILE
    rpc bdev_aio_rescan file0
    larger() { [ "$(blockdev --getsize64 $NBD)" = $((MIB + 64 << 20)) ]; }
    until_so 30 larger
    dd if=/dev/zero of=$NBD bs=1M seek=$((MIB + 63)) count=1 oflag=direct 2>/dev/null
    rpc nbd_stop_disk $NBD
}

# A killed daemon under a job that verifies: it waits, and ends well after the daemon has started again.
rpc_killed() {
    local i job
    rpc nbd_start_disk file0 $NBD
    fio --name=x --filename=$NBD --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=16k --size=24m --fsync=64 \
        --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/fio.log 2>&1 &
    job=$!
    for i in 1 2; do
        sleep 1
        end_daemon -KILL
        daemon
        rpc nbd_get_disks | grep -q '"/dev/nbd0"' || fail "it is not listed: $(tail -n 5 /tmp/serve.err)"
    done
    wait $job || fail "$(tail -n 3 /tmp/fio.log)"
    dmesg | grep -q 'nbd0: reconnected socket' || fail "it is another disk: $(dmesg | grep nbd0 | tail -n 3)"
    # A daemon that ends in good order ends its disks.
    end_daemon -TERM
    unused 0 || fail "the disk is still there"
}

dispatch "$@"
log_start
check rpc-without-module 90 without_module
check size 60 size
check ext4 120 filesystem ext4
check xfs 120 filesystem xfs
check fio-verify 120 verify
check discard 60 discard
check large-blocks 240 large_blocks
check small-requests 60 small_requests
check rpc-disk 120 by_rpc
check rpc-taken 60 taken
check rpc-grown 60 grown
check rpc-killed 180 rpc_killed
check kernel-log 10 log_clean "$ENDS"
finish
