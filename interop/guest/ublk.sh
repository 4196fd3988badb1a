# The kernel's own block device on a namespace: `raceline connect --as ublk` over a daemon of the same machine.  File systems,
# data, flush and FUA, discard, a process that is killed and one that goes on, two paths with TLS and without, a namespace that
# grows, the end under I/O.
#
# Environment: NQN.  The program raceline is beside this script.
. ./lib.sh
. ./ublk-disk.sh

export RACELINE_RPC_SOCKET=/tmp/run/rpc.sock
PORT=4420
METRICS=9400
FILE=/tmp/target.img
MIB=384
# The only host that may connect by two listeners of the daemon, and its key for TLS: anyone may know it.
HOST=nqn.2014-08.org.example:guest
KEY=NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:

rpc() { $RACELINE rpc "$@"; }
# attach [OPTION...]: makes the disk $DISK.
attach() { start_disk -a 127.0.0.1 -s $PORT -n "$NQN" "$@"; }
# count WHAT [DEVICE]: how many requests a device of the daemon has done, such as flushes.
count() {
    local n
    busybox wget -qO /tmp/metrics http://127.0.0.1:$METRICS/metrics 2>/tmp/wget.err || true
    n=$(grep "bdev_$1_completed_total{.*\"${2:-file0}\"" /tmp/metrics | sed 's/.* //; s/[.].*//')
    [ -n "$n" ] || fail "the daemon counts no $1: $(cat /tmp/wget.err) $(grep -c . /tmp/metrics)" >&2
    echo "$n"
}
# begin [OPTION...]: as attach, after what an earlier check may have left over.
begin() {
    no_disk
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

killed() {
    begin
    killed_under_jobs attach attach attach
}

# A driver that gives requests to a thread while it dies waits for their answers without end: that was so about each twentieth
# time, when a core had a request on the ring of its disk.
killed_often_under_jobs() {
    begin
    killed_often 40 attach
}

# All requests of a queue are with the process that is killed: up to Linux 6.14, the kernel sees its end only when it looks after
# their time.
killed_with_all() {
    begin --queue-depth 4
    killed_often 2 attach --queue-depth 4
}

# writes_by ADDRESS NQN: prints how many writes the present queues at that address of the daemon have done.
writes_by() {
    rpc nvmf_subsystem_get_qpairs "$2" | awk -v at="$1" -F '"' '
        / "(listen|peer)_address":/ { side = $2 }
        / "traddr":/ && side == "listen_address" { here = $4 == at }
        / "num_write_ops":/ && here { gsub(/[^0-9]/, "", $3); sum += $3 }
        END { print sum + 0 }'
}
serves() { [ "$(writes_by "$1" "$2")" -gt 0 ]; }
# disk_errors: prints how many errors of the disk the kernel has logged.
disk_errors() { dmesg | grep -cE "error.*${DISK#/dev/}|${DISK#/dev/}.*error" || true; }
# sums: prints a sum of each file of the file system.
sums() { (cd /tmp/mnt && find . -type f | sort | xargs md5sum); }

# over_two ONE TWO plain|tls: a disk by listeners of the daemon at two addresses is used while one of them goes and comes back, and
# then the other one, twice.  No user of the disk sees an error.  What they wrote is in the file of the daemon, where the kernel
# reads it without us.
over_two() {
    local one=$1 two=$2 security=$3 nqn=$NQN-$3 image=/root/$3.img psk="" own="" at jobs n=0 errors flushes unmaps
    umask 077
    printf '%s\n' "$KEY" >/tmp/tls.key
    if [ "$security" = tls ]; then psk="--psk tls" own="--tls-psk /tmp/tls.key"; fi
    no_disk
    truncate -s 96M "$image"
    [ -z "$psk" ] || rpc keyring_file_add_key tls /tmp/tls.key
    rpc bdev_aio_create "$image" "$security" 512
    $RACELINE subsys add "$nqn"
    $RACELINE ns add "$nqn" "$security"
    # shellcheck disable=SC2086  # no word, or two
    $RACELINE host add "$nqn" $HOST $psk
    for at in $one $two; do
        $RACELINE port add "$nqn" $at:$PORT --security "$security"
        [ -z "$psk" ] || refused 'over TLS only' $RACELINE identify -a $at -s $PORT -n "$nqn" -q $HOST -l 0
    done
    errors=$(disk_errors)
    # (a path is not given up, however long a busy machine takes to bring its listener back)
    # shellcheck disable=SC2086  # no word, or two
    start_disk -a "$one" -s $PORT --path "$two:$PORT" -n "$nqn" -q $HOST --policy round-robin --cores 0,1 -l -1 $own
    mkfs.ext4 -q $DISK
    mkdir -p /tmp/mnt
    mount $DISK /tmp/mnt
    flushes=$(count flushes "$security") unmaps=$(count unmaps "$security")
    rm -f /tmp/enough
    jobs /tmp/mnt/fio &
    jobs=$!
    for at in $one $two $one $two; do
        until_so 60 serves "$one" "$nqn"
        until_so 60 serves "$two" "$nqn"
        under_way
        $RACELINE port rm "$nqn" $at:$PORT
        under_way
        n=$((n + 1))
        dd if=/dev/urandom of=/tmp/mnt/$n bs=64k count=24 conv=fsync 2>/dev/null
        dd if=/dev/urandom of=/tmp/mnt/gone bs=64k count=24 conv=fsync 2>/dev/null
        rm /tmp/mnt/gone
        fstrim /tmp/mnt
        ! serves $at "$nqn" || fail "the path by $at is still there"
        $RACELINE port add "$nqn" $at:$PORT --security "$security"
    done
    until_so 60 serves "$at" "$nqn"
    under_way
    touch /tmp/enough
    wait $jobs || fail "$(tail -n 3 /tmp/fio.log)"
    sums >/tmp/sums
    umount /tmp/mnt
    fsck.ext4 -f -n $DISK
    detach
    [ "$(disk_errors)" = "$errors" ] || fail "$(dmesg | grep "${DISK#/dev/}" | tail -n 3)"
    [ "$(count flushes "$security")" -ge $((flushes + 8)) ] || fail "8 fsyncs made $(($(count flushes "$security") - flushes)) flushes"
    [ "$(count unmaps "$security")" -ge $((unmaps + 4)) ] || fail "4 fstrims made $(($(count unmaps "$security") - unmaps)) discards"
    rpc nvmf_delete_subsystem "$nqn"
    rpc bdev_aio_delete "$security"
    fsck.ext4 -f -n "$image"
    modprobe loop
    mount -o loop,ro "$image" /tmp/mnt
    sums | cmp - /tmp/sums || fail "the daemon's file has other data: $(sums)"
    umount /tmp/mnt
    [ "$(wc -l </tmp/sums)" = 5 ] || fail "$(cat /tmp/sums)"
    rm "$image"
}

# A disk in use stays when its process is to end, and its users go on with the next process. A closed terminal ends nothing.
in_use() {
    local writer
    begin
    mkfs.ext4 -q $DISK
    mkdir -p /tmp/mnt
    mount $DISK /tmp/mnt
    kill -HUP "$(cat /tmp/connect.pid)"
    dd if=/dev/urandom of=/tmp/mnt/data bs=64k count=16 conv=fsync 2>/dev/null
    ! gone || fail "it has ended with its terminal"
    dd if=/dev/urandom of=/tmp/mnt/data bs=64k count=160 conv=fsync 2>/dev/null &
    writer=$!
    kill "$(cat /tmp/connect.pid)"
    until_so 30 gone
    [ -b $DISK ] || fail "the disk has ended under its mount"
    grep -q "$DISK is in use by a mount.*connect --as ublk -a 127.0.0.1 -s $PORT.*goes on with it" /tmp/connect.err ||
        fail "nobody is told: $(cat /tmp/connect.err)"
    attach
    recovered
    wait $writer || fail "a write has failed"
    md5sum /tmp/mnt/data >/tmp/sum
    umount /tmp/mnt
    mount $DISK /tmp/mnt
    md5sum -c /tmp/sum >/dev/null || fail "the file is not as it was written"
    umount /tmp/mnt
    sleep 600 <$DISK &
    writer=$!
    sleep 1
    kill "$(cat /tmp/connect.pid)"
    until_so 30 gone
    [ -b $DISK ] || fail "the disk has ended under a program"
    grep -q "in use by process $writer" /tmp/connect.err || fail "nobody is told: $(tail -n 2 /tmp/connect.err)"
    attach
    # Who asks for the end of the disk is obeyed.
    $RACELINE disconnect -d $DISK
    until_so 30 gone
    kill $writer
    wait $writer || true
    until_so 30 [ ! -e $DISK ]
    # Nobody uses it: a signal removes it.
    attach
    kill "$(cat /tmp/connect.pid)"
    until_so 30 gone
    [ ! -e $DISK ] || fail "$DISK is left over"
}

# ended_by_loss: waits until the process has ended because its only path was away too long.
ended_by_loss() {
    local rc=0
    until_so 60 gone
    wait "$(cat /tmp/connect.pid)" || rc=$?
    [ "$rc" = 1 ] || fail "its exit code is $rc: $(tail -n 3 /tmp/connect.err)"
}
# listener add|remove: the listener of the daemon comes, or goes.
listener() { rpc nvmf_subsystem_$1_listener "$NQN" -t tcp -a 127.0.0.1 -s $PORT; }
# lost DISK USER: takes the only path of a disk away, which USER has.  The process stays, says so once, and answers with errors.
lost() {
    local rc=0 said="$1 is in use by $2.*so this process stays and answers with errors"
    : >/tmp/connect.err
    listener remove
    until_so 60 grep -q "$said" /tmp/connect.err
    timeout 10 dd if=$1 of=/dev/null bs=4k count=1 iflag=direct 2>/tmp/dd.err || rc=$?
    [ "$rc" = 1 ] && grep -q 'Input/output error' /tmp/dd.err || fail "a read has the exit code $rc: $(cat /tmp/dd.err)"
    # (for longer than it may take until it looks again)
    sleep 3
    ! gone || fail "it has ended under its user: $(tail -n 3 /tmp/connect.err)"
    [ "$(grep -c "$said" /tmp/connect.err)" = 1 ] || fail "it is told $(grep -c "$said" /tmp/connect.err) times"
}
# The only path is away for longer than -l says: requests fail at once, and the process ends with an error when nobody uses the disk
# any more.
given_up() {
    local user
    begin -l 2
    mkfs.ext4 -q $DISK
    mkdir -p /tmp/mnt
    mount $DISK /tmp/mnt
    dd if=/dev/urandom of=/tmp/mnt/data bs=64k count=16 2>/dev/null
    md5sum /tmp/mnt/data >/tmp/sum
    sync
    lost $DISK 'a mount'
    umount /tmp/mnt
    ended_by_loss
    [ ! -e $DISK ] || fail "$DISK is left over"
    listener add
    attach -l 2
    mount $DISK /tmp/mnt
    md5sum -c /tmp/sum >/dev/null || fail "the file is not as it was written"
    umount /tmp/mnt
    sleep 600 <$DISK &
    user=$!
    sleep 1
    lost $DISK "process $user"
    kill $user
    wait $user || true
    ended_by_loss
    [ ! -e $DISK ] || fail "$DISK is left over"
    listener add
    # A signal has the disk stay for the next process, whose requests succeed.
    attach -l 2
    mount $DISK /tmp/mnt
    lost $DISK 'a mount'
    kill "$(cat /tmp/connect.pid)"
    until_so 30 gone
    [ -b $DISK ] || fail "the disk has ended under its mount"
    listener add
    attach -l 2
    recovered
    umount /tmp/mnt
    # Nobody uses it: it goes with its process.
    listener remove
    ended_by_loss
    [ ! -e $DISK ] || fail "$DISK is left over"
    listener add
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

# A daemon whose recovery of a disk fails, because it may not use the CPU of the second queue, has nothing of the disk open
# afterwards: the same daemon goes on with it.
recovery_fails() {
    local rpc="$RACELINE rpc -s /tmp/run/second.sock" image=/root/recovery.img disk=/dev/ublkb5 n sleeper
    truncate -s 16M $image
    for n in 1 2; do
        $RACELINE serve -r /tmp/run/second.sock >>/tmp/second.out 2>>/tmp/second.err &
        echo $! >/tmp/connect.pid
        until_so 60 $rpc spdk_get_version
        $rpc bdev_aio_create $image again 512
        [ $n = 1 ] || break
        $rpc ublk_create_target
        $rpc ublk_start_disk again 5 -q 2
        dd if=/dev/urandom of=$disk bs=64k count=16 oflag=direct 2>/dev/null
        kill -9 "$(cat /tmp/connect.pid)"
        until_so 30 gone
    done
    $rpc ublk_create_target -m '[0,7]'
    refused 'core 7 cannot be used' $rpc ublk_start_disk again 5 -q 2
    refused 'core 7 cannot be used' $rpc ublk_start_disk again 5 -q 2
    $rpc ublk_destroy_target
    $rpc ublk_create_target
    $rpc ublk_recover_disk again 5
    dd if=$disk bs=64k count=16 iflag=direct 2>/dev/null | cmp -n $((1 << 20)) - $image || fail "the disk is another one"
    # The end of a disk does not wait for a program that has it open for long. Its files go when that closes it.
    sleep 600 <$disk &
    sleeper=$!
    timeout 30 $rpc ublk_stop_disk 5
    [ ! -e $disk ] || fail "$disk is left over"
    kill $sleeper
    wait $sleeper || true
    until_so 30 [ ! -e /dev/ublkc5 ]
    kill "$(cat /tmp/connect.pid)"
    until_so 30 gone
    ! grep -q 'panicked' /tmp/second.err || fail "it panicked: $(cat /tmp/second.err)"
}

# run_unit [OPTION...]: runs the command line of raceline-ublk@.service as it is written there, with no more capabilities than it
# has, and with these options besides those of its file.
run_unit() {
    local line caps
    line=$(sed -n 's/^ExecStart=//p' "$UNIT")
    caps=$(sed -n 's/^CapabilityBoundingSet=//p' "$UNIT" | tr A-Z a-z | sed 's/^cap_/+/; s/ cap_/,+/g')
    [ -n "$line" ] && [ -n "$caps" ] || fail "the unit has no command line, or all capabilities"
    RACELINE_DISK_OPTIONS="-a 127.0.0.1 -s $PORT -n $NQN --ublk-id 7 $*"
    : >/tmp/connect.out
    # systemd divides a variable without quotes at its spaces, as the shell does.
    eval "exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,$caps $line" >/tmp/connect.out 2>>/tmp/connect.err &
    echo $! >/tmp/connect.pid
}
# start_unit [OPTION...]: as run_unit, and waits for the disk.
start_unit() {
    run_unit "$@"
    until_so 60 grep -q '"device":"/dev/ublkb7"' /tmp/connect.out
}
# This guest has no systemd. The unit's command line serves, sees that its disk is in use, goes on with it, and ends it.
unit() {
    local sleeper
    UNIT=./raceline-ublk@.service
    [ -e /usr/bin/raceline ] || ln -s "$PWD/raceline" /usr/bin/raceline
    start_unit
    mkfs.ext4 -q /dev/ublkb7
    mkdir -p /tmp/mnt
    mount /dev/ublkb7 /tmp/mnt
    dd if=/dev/urandom of=/tmp/mnt/data bs=64k count=16 conv=fsync 2>/dev/null
    md5sum /tmp/mnt/data >/tmp/sum
    kill "$(cat /tmp/connect.pid)"
    until_so 30 gone
    grep -q '/dev/ublkb7 is in use by a mount' /tmp/connect.err || fail "it has not seen the mount: $(tail -n 2 /tmp/connect.err)"
    start_unit
    recovered
    umount /tmp/mnt
    mount /dev/ublkb7 /tmp/mnt
    md5sum -c /tmp/sum >/dev/null || fail "the file is not as it was written"
    umount /tmp/mnt
    # A program of another user has it open.
    setpriv --reuid=1000 --clear-groups sleep 600 </dev/ublkb7 &
    sleeper=$!
    sleep 1
    kill "$(cat /tmp/connect.pid)"
    until_so 30 gone
    grep -q "/dev/ublkb7 is in use by process $sleeper" /tmp/connect.err ||
        fail "it has not seen the program: $(tail -n 2 /tmp/connect.err)"
    kill $sleeper
    wait $sleeper || true
    start_unit
    kill "$(cat /tmp/connect.pid)"
    until_so 30 gone
    [ ! -e /dev/ublkb7 ] || fail "/dev/ublkb7 is left over"
    # Its path is given up: the unit sees the mount then, too, and has the disk again when it is started once the path is back.
    start_unit -l 2
    mount /dev/ublkb7 /tmp/mnt
    lost /dev/ublkb7 'a mount'
    umount /tmp/mnt
    ended_by_loss
    [ ! -e /dev/ublkb7 ] || fail "/dev/ublkb7 is left over"
    # (systemd starts it again until there is one)
    run_unit -l 2
    until_so 60 gone
    [ ! -e /dev/ublkb7 ] || fail "there is a disk without a path"
    listener add
    start_unit -l 2
    mount /dev/ublkb7 /tmp/mnt
    md5sum -c /tmp/sum >/dev/null || fail "the file is not as it was written"
    umount /tmp/mnt
    kill "$(cat /tmp/connect.pid)"
    until_so 30 gone
}

# From Linux 6.15 on a disk can be resized while it is there; before, it is told once that it keeps its size until it is attached
# again.
resize() {
    local resizes
    resizes=$(uname -r | awk -F . '{ print ($1 > 6 || ($1 == 6 && $2 >= 15)) }')
    begin
    truncate -s $((MIB + 64))M $FILE
    rpc bdev_aio_rescan file0
    if [ "$resizes" = 1 ]; then
        until_so 30 has_mib $((MIB + 64))
        dd if=/dev/urandom of=/tmp/end bs=1M count=1 2>/dev/null
        dd if=/tmp/end of=$DISK bs=1M seek=$((MIB + 63)) oflag=direct 2>/dev/null
        dd if=$DISK bs=1M skip=$((MIB + 63)) iflag=direct 2>/dev/null | cmp - /tmp/end || fail "its end is not as it was written"
    else
        until_so 30 grep -q 'keeps its size' /tmp/connect.err
        has_mib $MIB || fail "it has $(blockdev --getsize64 $DISK) bytes"
        dd if=/dev/zero of=$DISK bs=4k count=1 oflag=direct 2>/dev/null
    fi
    detach
    attach
    has_mib $((MIB + 64)) || fail "it has $(blockdev --getsize64 $DISK) bytes"
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

# Reads and writes go by the queues of -P, and everything else by the others; what is read is what was written.
polled() {
    local queues
    begin --cores 0,1 -i 2 -P 2 --mode interrupt
    queues=$(rpc nvmf_subsystem_get_qpairs "$NQN" | grep '"qid"' | tr -dc '0-9\n' | sort -n | tr '\n' ' ')
    [ "$queues" = '0 1 2 3 4 ' ] || fail "the target has the queues $queues"
    fio --name=x --filename=$DISK --direct=1 --ioengine=libaio --iodepth=8 --rw=randrw --bs=4k --size=8m --fsync=64 \
        --verify=crc32c --numjobs=2 --offset_increment=16m --group_reporting >/tmp/fio.out 2>&1 || fail "$(tail -5 /tmp/fio.out)"
    detach
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
# Every run of the tests has these, and WHOLE=1 the others as well.
if_whole() { [ -z "${WHOLE:-}" ] || check "$@"; }
check without-driver 60 without_driver
check target 120 target
check facts 120 facts
check ext4 120 filesystem ext4
if_whole xfs 120 filesystem xfs
check fio-verify 120 verify
if_whole polled 120 polled
check durable 60 durable
check killed 240 killed
if_whole killed-often 600 killed_often_under_jobs
if_whole killed-with-all 300 killed_with_all
check tls 300 over_two 127.0.0.2 127.0.0.3 tls
if_whole two-paths 300 over_two 127.0.0.4 127.0.0.5 plain
check in-use 240 in_use
if_whole memory 90 memory
if_whole resize 120 resize
if_whole speed 240 speed
cat /tmp/speed 2>/dev/null || true
check kernel-log 10 log_clean
# From here on, disks end or lose their only path while they are in use.
check given-up 240 given_up
if_whole abandoned 90 abandoned
if_whole recovery-fails 120 recovery_fails
if_whole unit 300 unit
check under-io 90 under_io
check kernel-log-of-losses 10 log_clean '(EXT4-fs|JBD2|Aborting journal|I/O error).*ublkb|ublkb.*(I/O error|lost)|callbacks suppressed'
finish
