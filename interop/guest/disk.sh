# The kernel's NBD client on a disk that `raceline connect --as nbd` makes of a file: file systems, data, discard, and a
# server that ends and comes back.
#
# Environment: PORT, the port of the disk at 10.0.2.2.  The disk has 384 MiB and is named disk.
. ./lib.sh

NBD=/dev/nbd0

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

dispatch "$@"
modprobe nbd nbds_max=2
log_start
check size 60 size
check ext4 120 filesystem ext4
check xfs 120 filesystem xfs
check fio-verify 120 verify
check discard 60 discard
check kernel-log 10 log_clean 'nbd0: (Receive control failed|shutting down)'
finish
