# Disks by `raceline connect --as ublk` over files and block devices of this machine, whose data go between the kernel's requests
# and the device without a copy: Linux 6.17 and newer.  Each check goes both ways, without a copy and with one.
#
# Environment: ROUNDS, the rounds of the comparison of speed (5; 0: none).  The program raceline is beside this script.
. ./lib.sh
. ./ublk-disk.sh

# (how data go is said at this level)
export RACELINE_LOG=info
SOCKET=/tmp/run/rpc.sock
METRICS=9400
# On ext4: data for a file system without a block device, as tmpfs, are copied.
FILE=/root/disk.img
MIB=384
ROUNDS=${ROUNDS:-5}
WAYS="on off"

# (other verbs are not told of the daemon, which is there for one check only)
rpc() { RACELINE_RPC_SOCKET=$SOCKET $RACELINE rpc "$@"; }
option() { [ "$1" = on ] || echo --no-zero-copy; }
is_on() { [ "$1" = on ] && echo true || echo false; }
# attach WAY DEVICE [OPTION...]: makes the disk $DISK, without a copy (on) or with one (off).
attach() {
    local way=$1 device=$2
    shift 2
    # shellcheck disable=SC2046  # no word, or one
    start_disk --bdev "$device" $(option "$way") "$@"
}
# begin WAY DEVICE [OPTION...]: as attach, after what an earlier check may have left over; the disk goes the way that is wanted.
begin() {
    umount /tmp/mnt 2>/dev/null || true
    no_disk
    attach "$@"
    goes "$1"
}
goes() { grep -q "\"zero_copy\":$(is_on "$1")" /tmp/connect.out || fail "wanted $1: $(cat /tmp/connect.out)"; }
new_file() {
    rm -f $FILE
    truncate -s ${MIB}M $FILE
}

# The driver's own word for what it can do; a disk says what it does, and the log why it does not.
state() {
    local way
    modprobe ublk_drv
    new_file
    for way in $WAYS; do
        begin "$way" file:$FILE
        cat /sys/block/ublkb0/queue/dma_alignment
        detach
    done
    grep -q 'data go to and from the device without a copy' /tmp/connect.err || fail "the log does not say that nothing is copied"
    grep -q 'data are copied: as was asked for' /tmp/connect.err || fail "the log does not say that it was asked for"
    attach on ram:16M
    goes off
    grep -q 'no plain file or block device' /tmp/connect.err || fail "the log does not say that memory is copied"
    detach
    begin on file:$FILE,bs=4096
    [ "$(cat /sys/block/ublkb0/queue/dma_alignment)" = 4095 ] || fail "memory of requests may lie anywhere"
    detach
}

# fio_verify DEVICE SIZES: random writes of many sizes, which are read again, also in another way of ours.
fio_verify() {
    fio --name=x --filename="$1" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bsrange="$2" --size=12m \
        --fsync=64 --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/fio.log 2>&1 || fail "$(tail -n 3 /tmp/fio.log)"
}
verify() {
    local way spec
    modprobe brd rd_nr=1 rd_size=65536
    for spec in file:$FILE file:$FILE,buffered file:$FILE,bs=4096 block:/dev/ram0; do
        for way in $WAYS; do
            begin "$way" "$spec" --cores 0,1
            fio_verify $DISK 4k-256k
            detach
            case $spec in
                *buffered) ;;
                # What is on the disk is in the file.
                file:*) begin "$way" "$spec"
                    dd if=/dev/urandom of=$DISK bs=256k count=4 oflag=direct 2>/dev/null
                    dd if=$DISK bs=512k count=2 iflag=direct 2>/dev/null | cmp -n $((1 << 20)) - $FILE || fail "$spec $way"
                    detach ;;
            esac
        done
    done
}

# Flush and FUA, discard, zeroes.
ranges() {
    local way
    for way in $WAYS; do
        begin "$way" file:$FILE
        fio --name=x --filename=$DISK --direct=1 --sync=dsync --ioengine=psync --rw=write --bs=4k --size=32k \
            >/tmp/fio.log 2>&1 || fail "$(tail -n 3 /tmp/fio.log)"
        dd if=/dev/urandom of=$DISK bs=1M count=4 oflag=direct conv=fsync 2>/dev/null
        blkdiscard -f -o 1M -l 1M $DISK
        blkdiscard -f -z -o 2M -l 1M $DISK
        dd if=$DISK bs=1M skip=1 count=2 iflag=direct 2>/dev/null | cmp -n $((2 << 20)) - /dev/zero ||
            fail "the ranges do not read zeroes"
        # Beside memory that is not in whole pages: a buffer of 512 bytes, and one at an odd place.
        fio --name=x --filename=$DISK --direct=1 --ioengine=psync --rw=randwrite --bs=512 --size=64k --mem_align=512 \
            --verify=crc32c --do_verify=1 --verify_fatal=1 >/tmp/fio.log 2>&1 || fail "$(tail -n 3 /tmp/fio.log)"
        detach
    done
}

# filesystem KIND: what is written without a copy is found with one, and the other way round.
filesystem() {
    local way other sum
    for way in $WAYS; do
        other=off
        [ "$way" = on ] || other=on
        new_file
        begin "$way" file:$FILE
        mkfs.$1 -q $DISK
        mkdir -p /tmp/mnt
        mount $DISK /tmp/mnt
        dd if=/dev/urandom of=/tmp/mnt/data bs=64k count=80 conv=fsync 2>/dev/null
        dd if=/dev/urandom of=/tmp/mnt/odd bs=777 count=500 conv=fsync 2>/dev/null
        sum=$(cat /tmp/mnt/data /tmp/mnt/odd | md5sum)
        umount /tmp/mnt
        detach
        begin "$other" file:$FILE
        mount $DISK /tmp/mnt
        [ "$(cat /tmp/mnt/data /tmp/mnt/odd | md5sum)" = "$sum" ] || fail "the files are not as they were written ($way)"
        rm /tmp/mnt/data
        fstrim /tmp/mnt
        umount /tmp/mnt
        detach
    done
}

# A file system that is full, and a file that has become shorter, in the middle of a request: errors, and no data of others.
errors() {
    local way
    truncate -s 24M /tmp/small.img
    mkfs.ext4 -q -F /tmp/small.img
    mkdir -p /tmp/small
    modprobe loop
    for way in $WAYS; do
        mount -o loop /tmp/small.img /tmp/small
        truncate -s 64M /tmp/small/disk
        begin "$way" file:/tmp/small/disk
        ! dd if=/dev/urandom of=$DISK bs=1M count=60 oflag=direct 2>/tmp/dd.err || fail "60 MiB fit into 24"
        grep -qi 'no space' /tmp/dd.err || fail "$(cat /tmp/dd.err)"
        detach
        rm /tmp/small/disk
        umount /tmp/small
        new_file
        begin "$way" file:$FILE
        dd if=/dev/urandom of=$DISK bs=1M count=4 oflag=direct 2>/dev/null
        truncate -s $(((1 << 20) + 8192)) $FILE
        ! dd if=$DISK of=/tmp/dd.out bs=64k count=32 iflag=direct 2>/tmp/dd.err || fail "what is not there was read"
        grep -qi 'i/o error\|input/output' /tmp/dd.err || fail "$(cat /tmp/dd.err)"
        [ "$(stat -c %s /tmp/dd.out)" = $((1 << 20)) ] || fail "$(stat -c %s /tmp/dd.out) bytes were read ($way)"
        cmp -n $((1 << 20)) /tmp/dd.out $FILE || fail "what is there was not read"
        new_file
        detach
    done
}

# A disk made without a copy goes on in a process that is told to copy, and back; one that was made with a copy stays so.
killed() {
    local way
    for way in $WAYS; do
        begin "$way" file:$FILE
        killed_under_jobs "again $way on" "again $way off" "again $way off" "again $way on"
    done
}
# again MADE WAY: makes a disk again that was made in one way, by a process that is told another one.
again() {
    attach "$2" file:$FILE
    if [ "$1" = on ]; then goes "$2"; else goes off; fi
}

# SIGTERM under a mount: the disk stays, and its users go on with the next process.
in_use() {
    local way writer
    for way in $WAYS; do
        new_file
        begin "$way" file:$FILE
        mkfs.ext4 -q $DISK
        mkdir -p /tmp/mnt
        mount $DISK /tmp/mnt
        dd if=/dev/urandom of=/tmp/mnt/data bs=64k count=160 conv=fsync 2>/dev/null &
        writer=$!
        kill "$(cat /tmp/connect.pid)"
        until_so 30 gone
        [ -b $DISK ] || fail "the disk has ended under its mount"
        attach "$way" file:$FILE
        recovered
        goes "$way"
        wait $writer || fail "a write has failed"
        md5sum /tmp/mnt/data >/tmp/sum
        umount /tmp/mnt
        mount $DISK /tmp/mnt
        md5sum -c /tmp/sum >/dev/null || fail "the file is not as it was written"
        umount /tmp/mnt
        detach
    done
}

# A file grows under its disk, and what is behind its old end is written and read.
resize() {
    local way
    for way in $WAYS; do
        new_file
        begin "$way" file:$FILE
        truncate -s $((MIB + 64))M $FILE
        until_so 30 has_mib $((MIB + 64))
        dd if=/dev/urandom of=/tmp/end bs=1M count=1 2>/dev/null
        dd if=/tmp/end of=$DISK bs=1M seek=$((MIB + 63)) oflag=direct 2>/dev/null
        dd if=$DISK bs=1M skip=$((MIB + 63)) iflag=direct 2>/dev/null | cmp - /tmp/end || fail "its end is not as it was written"
        detach
    done
    new_file
}

under_io() {
    local way fio
    for way in $WAYS; do
        begin "$way" file:$FILE
        fio --name=x --filename=$DISK --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw --bs=4k --size=16m \
            --time_based --runtime=600 >/tmp/fio.log 2>&1 &
        fio=$!
        under_way
        detach
        ! wait $fio || fail "fio has not noticed that the disk has ended"
    done
}

# count NAME: a count of the daemon's disk.
count() {
    busybox wget -qO /tmp/metrics http://127.0.0.1:$METRICS/metrics 2>/tmp/wget.err || true
    grep "raceline_disk_$1_total{" /tmp/metrics | sed 's/.* //; s/[.].*//'
}
# The same disk by RPC: what the daemon says of it, what it counts, and that it can be told to copy.
daemon() {
    new_file
    mkdir -p /tmp/run
    $RACELINE serve -r $SOCKET --metrics 127.0.0.1:$METRICS >>/tmp/serve.out 2>>/tmp/serve.err &
    echo $! >/tmp/serve.pid
    until_so 60 rpc spdk_get_version
    rpc bdev_aio_create $FILE file0 512
    rpc ublk_create_target
    rpc ublk_start_disk file0 0
    rpc ublk_get_disks | tr -d ' \n' | grep -q '"zero_copy":true' || fail "$(rpc ublk_get_disks)"
    fio_verify $DISK 4k-64k
    [ "$(count uncopied_completed)" -gt 100 ] || fail "$(grep raceline_disk_ /tmp/metrics) $(cat /tmp/wget.err)"
    rpc ublk_destroy_target
    rpc ublk_create_target --disable-user-copy
    rpc ublk_start_disk file0 0
    rpc ublk_get_disks | tr -d ' \n' | grep -q '"zero_copy":false' || fail "$(rpc ublk_get_disks)"
    fio_verify $DISK 4k-64k
    [ "$(count uncopied_completed)" = 0 ] || fail "$(grep raceline_disk_ /tmp/metrics)"
    rpc ublk_stop_disk 0
    kill "$(cat /tmp/serve.pid)"
    ! grep -q 'panicked' /tmp/serve.err || fail "it panicked: $(cat /tmp/serve.err)"
}

# iops BYTES READ-OR-WRITE: what fio does with the disk at depth 32.
iops() {
    fio --name=x --filename=$DISK --direct=1 --ioengine=libaio --iodepth=32 --rw=rand"$2" --bs="$1" --size=48m --norandommap \
        --time_based --ramp_time=1 --runtime=3 --minimal 2>/dev/null | awk -F ';' -v f="$([ "$2" = read ] && echo 8 || echo 49)" \
        'NF > 50 { print $f }'
}
# Without a copy beside with one, on memory of the kernel (brd), in turn.  The machine is emulated, so only the ratio says
# something, and not what it is on a processor.
speed() {
    local bytes kind round on off way
    modprobe brd rd_nr=1 rd_size=65536 2>/dev/null || true
    : >/tmp/speed
    for round in $(seq "$ROUNDS"); do
        for way in $WAYS; do
            begin "$way" block:/dev/ram0 --cores 0
            [ "$round" != 1 ] || dd if=/dev/urandom of=$DISK bs=1M count=48 oflag=direct 2>/dev/null
            for bytes in 4k 128k; do
                for kind in read write; do iops $bytes $kind >"/tmp/iops.$way.$bytes.$kind"; done
            done
            detach
        done
        for bytes in 4k 128k; do
            for kind in read write; do
                on=$(cat "/tmp/iops.on.$bytes.$kind") off=$(cat "/tmp/iops.off.$bytes.$kind")
                [ "${on:-0}" -gt 0 ] && [ "${off:-0}" -gt 0 ] || fail "fio has no figures: '$on' and '$off'"
                echo "$on $off" >>"/tmp/rounds.$bytes.$kind"
            done
        done
    done
    for bytes in 4k 128k; do
        for kind in read write; do
            awk -v what="$bytes ${kind}s" '{ o[NR] = $1; t[NR] = $2; r[NR] = $1 / $2 }
                function sorted(a, n,    i, j, x) {
                    for (i = 2; i <= n; i++) for (j = i; j > 1 && a[j] < a[j - 1]; j--) { x = a[j]; a[j] = a[j - 1]; a[j - 1] = x }
                }
                END { sorted(o, NR); sorted(t, NR); sorted(r, NR); m = int((NR + 1) / 2)
                    printf "# emulated: %s at depth 32: without a copy %d IOPS, with one %d, ratio %.2f (%.2f - %.2f)\n",
                        what, o[m], t[m], r[m], r[1], r[NR] }' "/tmp/rounds.$bytes.$kind" >>/tmp/speed
        done
    done
}

dispatch "$@"
log_start
check state 120 state
check fio-verify 300 verify
check ranges 120 ranges
check ext4 240 filesystem ext4
check xfs 240 filesystem xfs
check errors 150 errors
check killed 300 killed
check in-use 240 in_use
check resize 180 resize
check under-io 240 under_io
check daemon 200 daemon
[ "$ROUNDS" = 0 ] || check speed 500 speed
cat /tmp/speed 2>/dev/null || true
# Disks that end under I/O, and those that are full or too short, provoke errors.
check kernel-log 10 log_clean '(I/O error|Buffer I/O error|critical space allocation error).*ublkb|ublkb.*(I/O error|lost)'
finish
