# A disk that `raceline connect --as vhost-user` makes of a file, in the machine itself: what it is, a file system, data,
# discard, a server that is killed under I/O, and a disk that grows.
#
# This script prints a line "REQUEST word" to ask the machine outside for something.  kill: kill the server, and start it
# again.  grow: make the disk 96 MiB larger.
#
# Environment: SERIAL, the disk's serial number, and MIB, its size.
. ./lib.sh

# (The output of a check goes to a file.)
ask() { echo "REQUEST $1" >/dev/ttyS1; }

# The name of the disk.
name() {
    local disk
    for disk in /sys/block/vd*; do
        [ "$(cat "$disk/serial")" != "$SERIAL" ] || { echo "${disk##*/}"; return; }
    done
    fail "there is no disk with serial number $SERIAL"
}
mib() { echo $(($(blockdev --getsize64 "/dev/$1") >> 20)); }

facts() {
    local disk queue
    disk=$(name)
    queue=/sys/block/$disk/queue
    [ "$(mib "$disk")" = "$MIB" ] || fail "it has $(mib "$disk") MiB"
    [ "$(cat "$queue/write_cache")" = 'write back' ] || fail "the kernel does not know of the cache"
    [ "$(cat "$queue/discard_max_bytes")" -gt 0 ] || fail "the kernel does not know that it can discard"
    [ "$(cat "$queue/write_zeroes_max_bytes")" -gt 0 ] || fail "the kernel does not know that it can zero"
    [ "$(ls "/sys/block/$disk/mq" | wc -l)" = 2 ] || fail "it has $(ls "/sys/block/$disk/mq" | wc -l) queues"
    # The guest can turn the cache off and on (CONFIG_WCE).
    echo 'write through' >"/sys/block/$disk/cache_type"
    dd if=/dev/urandom of="/dev/$disk" bs=64k count=4 oflag=direct 2>/dev/null
    echo 'write back' >"/sys/block/$disk/cache_type"
}

# filesystem KIND: makes a file system, writes, mounts again, and finds what was written.
filesystem() {
    local disk sum
    disk=/dev/$(name)
    blkdiscard "$disk"
    "mkfs.$1" -q "$disk"
    mkdir -p /tmp/mnt
    mount "$disk" /tmp/mnt
    dd if=/dev/urandom of=/tmp/mnt/data bs=64k count=200 conv=fsync 2>/dev/null
    sum=$(md5sum </tmp/mnt/data)
    umount /tmp/mnt
    mount "$disk" /tmp/mnt
    [ "$(md5sum </tmp/mnt/data)" = "$sum" ] || fail "the file is not as it was written"
    rm /tmp/mnt/data
    fstrim /tmp/mnt
    umount /tmp/mnt
}

discard() {
    local disk
    disk=/dev/$(name)
    dd if=/dev/urandom of="$disk" bs=1M count=4 oflag=direct 2>/dev/null
    blkdiscard -o 1M -l 1M "$disk"
    blkdiscard -z -o 2M -l 1M "$disk"
    # Both ranges read zeroes over a file.
    dd if="$disk" bs=1M skip=1 count=2 iflag=direct 2>/dev/null | cmp -n $((2 << 20)) - /dev/zero ||
        fail "the ranges do not read zeroes"
}

# goes_on DISK: waits until more writes have ended.
goes_on() {
    local before i=0
    before=$(awk '{print $5}' "/sys/block/$1/stat")
    while [ "$(awk '{print $5}' "/sys/block/$1/stat")" = "$before" ] && [ ! -s /tmp/fio.rc ]; do
        [ $i -lt 60 ] || fail "no write has ended for 60 s"
        sleep 1
        i=$((i + 1))
    done
}

# killed TIMES: the server is killed under a verifying job, which sees nothing of it but a pause.
killed() {
    local disk i
    disk=/dev/$(name)
    rm -f /tmp/fio.rc /tmp/killed
    (
        rc=0
        while [ $rc = 0 ] && [ ! -e /tmp/killed ]; do
            fio --name=x --filename="$disk" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k-64k \
                --size=16m --fsync=64 --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/fio.log 2>&1 || rc=$?
        done
        echo $rc >/tmp/fio.rc
    ) &
    for i in $(seq "$1"); do
        sleep 1
        ask kill
        sleep 1
        goes_on "${disk##*/}"
    done
    touch /tmp/killed
    i=0
    while [ ! -s /tmp/fio.rc ]; do
        [ $i -lt 150 ] || fail "fio did not end: I/O is stuck"
        sleep 1
        i=$((i + 1))
    done
    [ "$(cat /tmp/fio.rc)" = 0 ] || fail "$(tail -n 3 /tmp/fio.log)"
}

grown() {
    local disk i=0 larger=$((MIB + 96))
    disk=$(name)
    ask grow
    while [ "$(mib "$disk")" != $larger ]; do
        [ $i -lt 60 ] || fail "it has $(mib "$disk") MiB"
        sleep 1
        i=$((i + 1))
    done
    dd if=/dev/urandom of=/tmp/tail bs=1M count=4 2>/dev/null
    dd if=/tmp/tail of="/dev/$disk" bs=1M seek=$((larger - 4)) oflag=direct 2>/dev/null
    dd if="/dev/$disk" bs=1M skip=$((larger - 4)) iflag=direct 2>/dev/null | cmp - /tmp/tail || fail "its end is not as it was written"
}

dispatch "$@"
log_start
check facts 60 facts
check ext4 120 filesystem ext4
check discard 60 discard
check killed 240 killed 3
check ext4-after 120 filesystem ext4
check grown 90 grown
check kernel-log 10 log_clean
finish
