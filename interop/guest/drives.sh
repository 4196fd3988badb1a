# A daemon of Raceline on an NVMe drive of its own machine.  The daemon attaches the drive by its PCI address and exports
# it, and the kernel's host of the same machine uses it.  The drive is reset and pulled out under I/O.  At the end the
# kernel's own target moves to the daemon, and a limit of memory of the daemon's control group is nearly used.
#
# Environment: NQN, and DRIVE, the PCI address of a drive with namespaces 1 (512-byte blocks) and 2 (4096-byte blocks),
# 64 MiB each.  The program raceline is beside this script.  Each check but refusals and plugged-in runs twice: first
# the daemon reaches the data through the block devices, then through the generic devices by io_uring passthrough.
. ./lib.sh

ADDR=127.0.0.1
PORT=4420
RACELINE=./raceline
export RACELINE_RPC_SOCKET=/tmp/run/rpc.sock
STATE=/tmp/state
# How the daemon reaches the data: block or passthrough.  A child shell gets it by the environment.
export WAY=${WAY:-block}
# The start of the exported UUIDs.  They differ from the drive's, because a host ignores a namespace that it has already.
UUID=00000000-0000-4000-8000-00000000000

rpc() { $RACELINE rpc "$@"; }
sysfs() { echo /sys/bus/pci/devices/$DRIVE; }
# attach: has the daemon attach the drive under the name Nvme0.
attach() { rpc bdev_nvme_attach_controller -b Nvme0 -t PCIe -a "$DRIVE" --io-path $WAY "$@"; }
# node NSID: prints the device file through which the daemon uses that namespace.
node() {
    case $WAY in
        block) local_dev "$1" ;;
        *) local_dev "$1" | sed 's#/nvme#/ng#' ;;
    esac
}
# local_dev NSID: prints the block device of a namespace of the drive itself.
local_dev() {
    local d name
    for d in "$(sysfs)"/nvme/nvme*/nvme*n*; do
        [ "$(cat "$d/nsid" 2>/dev/null)" = "$1" ] || continue
        name=${d##*/}
        echo "/dev/$(echo "$name" | sed 's/c[0-9]*n/n/')"
        return
    done
    fail "the drive has no namespace $1"
}
says() { rpc "$1" ${3:-} | grep -q "$2"; }
serve() {
    $RACELINE serve -r "$RACELINE_RPC_SOCKET" "$@" >>/tmp/serve.out 2>>/tmp/serve.err &
    echo $! >/tmp/serve.pid
    until_so 60 rpc spdk_get_version
}
gone() { ! kill -0 "$(cat /tmp/serve.pid)" 2>/dev/null; }
usable() { [ -b "$(local_dev 2)" ]; }
alive() { kill -0 "$(cat /tmp/serve.pid)" 2>/dev/null || { tail -n 5 /tmp/serve.err; fail "the daemon is gone"; }; }

start() {
    [ -e "$(sysfs)/nvme" ] || fail "the kernel has no drive at $DRIVE"
    rm -rf $STATE
    mkdir -p /tmp/run $STATE
    serve --state-dir $STATE
}
refusals() {
    local d
    refused 'no PCI device at 0000:00:1f.7' rpc bdev_nvme_attach_controller -b N -t PCIe -a 00:1f.7
    refused 'is no NVMe drive' rpc bdev_nvme_attach_controller -b N -t PCIe -a 0000:00:00.0
    d=$(local_dev 2)
    mkfs.ext4 -q -F "$d"
    mount "$d" /mnt
    refused "namespace 2 of the drive at $DRIVE: .* mounted on /mnt" attach
    umount /mnt
    says bdev_get_bdevs '^\[\]' || fail "a refused drive left devices"
    echo "$DRIVE" >"$(sysfs)/driver/unbind"
    refused 'bound to no driver' attach
    echo "$DRIVE" >/sys/bus/pci/drivers/nvme/bind
    until_so 60 usable
}
attached() {
    local d
    until_so 60 attach
    cat /tmp/until
    grep -q 'Nvme0n1 *Nvme0n2' /tmp/until || fail "attached as $(cat /tmp/until)"
    rpc bdev_get_bdevs -b Nvme0n2 >/tmp/described
    for d in "\"pci_address\": \"$DRIVE\"" '"block_size": 4096' '"trtype": "PCIe"' '"model_number": "QEMU NVMe Ctrl"' \
        '"vendor_id": "0x1b36"' '"nvme_version": "1' '"serial_number": "raceline"' "\"device\": \"$(node 2)\"" "\"io_path\": \"$WAY\""; do
        grep -q "$d" /tmp/described || { cat /tmp/described; fail "no $d"; }
    done
    # The daemon has the drive: no other program can open it exclusively.
    refused "busy|can.t open blockdev" mount "$(local_dev 1)" /mnt
}
# writes NSID: prints how many writes the block layer has counted.  It does not count passthrough.
writes() { awk '{print $5}' "/sys/class/block/$(basename "$(local_dev "$1")")/stat"; }
exported() {
    local before
    rpc nvmf_create_transport -t tcp
    rpc nvmf_create_subsystem "$NQN" -a
    rpc nvmf_subsystem_add_ns "$NQN" Nvme0n1 -u ${UUID}1
    rpc nvmf_subsystem_add_ns "$NQN" Nvme0n2 -u ${UUID}2
    rpc nvmf_subsystem_add_listener "$NQN" -t tcp -a $ADDR -s $PORT
    connect --reconnect-delay=1
    [ "$(block_size "$(dev 1)") $(block_size "$(dev 2)")" = "512 4096" ] || fail "block sizes"
    before=$(writes 1)
    verify "$(dev 1)" 4m
    verify "$(dev 2)" 4m
    case $WAY in
        block) [ "$(writes 1)" -gt "$before" ] || fail "no write of the block device was counted" ;;
        *) [ "$(writes 1)" = "$before" ] || fail "the block device was written to" ;;
    esac
}
# The drive holds what the host has written, and its zeroed blocks read as zeroes.
written() {
    local d n
    for n in 1 2; do
        d=$(dev $n)
        yes "drive $n" | head -c $((8 << 20)) | dd of="$d" bs=1M oflag=direct iflag=fullblock 2>/dev/null
        blkdiscard -z -o 1048576 -l 1048576 "$d"
        blkdiscard -o 4194304 -l 1048576 "$d"
        sync
        dd if="$d" bs=1M count=8 iflag=direct 2>/dev/null | md5sum >/tmp/sum$n
        [ "$n" = 2 ] || all_zero "$d" 1 1 || fail "zeroed blocks are not zero"
    done
    disconnect
    rpc bdev_nvme_detach_controller Nvme0
    until_so 60 says bdev_get_bdevs '^\[\]'
    cold_caches
    for n in 1 2; do
        dd if="$(local_dev $n)" bs=1M count=8 iflag=direct 2>/dev/null | md5sum | cmp - /tmp/sum$n ||
            fail "namespace $n of the drive differs from what the host has read"
    done
    mkfs.ext4 -q -F "$(local_dev 1)" 4M || fail "the drive is not free again"
    attach
    rpc nvmf_subsystem_add_ns "$NQN" Nvme0n1 -u ${UUID}1
    rpc nvmf_subsystem_add_ns "$NQN" Nvme0n2 -u ${UUID}2
    connect --reconnect-delay=1
}
health() {
    rpc bdev_nvme_get_controller_health_info -c Nvme0 | tee /tmp/health
    grep -q '"model_number": "QEMU NVMe Ctrl"' /tmp/health || fail "no model"
    grep -q '"temperature_celsius": [1-9]' /tmp/health || fail "no temperature"
    grep -q "\"traddr\": \"$DRIVE\"" /tmp/health || fail "no address"
}
# A job that reads and writes does not notice a reset.
reset_under_io() {
    local job
    verify "$(dev 1)" 6m --bs=4k --rate_iops=400 &
    job=$!
    sleep 1
    rpc bdev_nvme_reset_controller Nvme0
    rpc bdev_nvme_get_controllers | grep -q '"state": "enabled"' || fail "not enabled after a reset"
    wait $job
}
# A killed daemon comes back from its state, and an ended one from a configuration file.  Both have the same configuration
# as before.
restarts() {
    rpc save_config >/tmp/before
    kill -9 "$(cat /tmp/serve.pid)"
    serve --state-dir $STATE
    rpc save_config | cmp - /tmp/before || fail "another configuration after a kill"
    wait_state live 30
    verify "$(dev 1)" 1m
    kill "$(cat /tmp/serve.pid)"
    until_so 60 gone
    serve -c /tmp/before
    rpc save_config | cmp - /tmp/before || fail "another configuration from a file"
    wait_state live 30
    verify "$(dev 2)" 1m
}
# When the drive is pulled out under I/O, the host gets errors and the daemon goes on.  When it is plugged in again, the
# same namespaces are back.
hot_removal() {
    local job rc=0
    verify "$(dev 2)" 16m --bs=4k --rate_iops=400 &
    job=$!
    sleep 1
    echo 1 >"$(sysfs)/remove"
    wait $job || rc=$?
    [ $rc != 0 ] || fail "the drive is gone, and nobody has noticed"
    alive
    until_so 60 says bdev_nvme_get_controllers '"state": "failed"'
    until_so 60 says bdev_get_bdevs '^\[\]'
    rpc nvmf_get_subsystems | grep '"missing"' || fail "nothing is missing"
    refused 'no PCI device' rpc bdev_nvme_get_controller_health_info -c Nvme0
    echo 1 >/sys/bus/pci/rescan
    until_so 60 says bdev_get_bdevs Nvme0n2
    until_so 60 says bdev_nvme_get_controllers '"state": "enabled"'
    alive
    verify "$(dev 1)" 1m
    verify "$(dev 2)" 1m
}
# A daemon that starts without the drive waits for it.
absent_at_start() {
    echo 1 >"$(sysfs)/remove"
    sleep 1
    kill "$(cat /tmp/serve.pid)"
    until_so 60 gone
    serve -c /tmp/before
    rpc save_config | cmp - /tmp/before || fail "another configuration without the drive"
    rpc bdev_get_missing | grep "no PCI device at $DRIVE" || fail "it is not missing"
    echo 1 >/sys/bus/pci/rescan
    until_so 60 says bdev_get_bdevs Nvme0n2
    verify "$(dev 2)" 1m
}
the_end() {
    disconnect
    kill "$(cat /tmp/serve.pid)"
    until_so 60 gone
    ! grep -i panicked /tmp/serve.err || fail "the daemon has panicked"
    dd if="$(local_dev 1)" of=/dev/null bs=1M count=1 iflag=direct 2>/dev/null
}

# The daemon attaches a drive that is plugged in while the daemon watches, and drops it when it is pulled out.  It leaves a
# drive alone that was there before the daemon began to watch.
plugged_in() {
    start
    rpc bdev_nvme_set_hotplug -e -r 50000
    echo 1 >"$(sysfs)/remove"
    echo 1 >/sys/bus/pci/rescan
    until_so 60 usable
    sleep 4
    says bdev_get_bdevs '^\[\]' || fail "a drive was taken that had been there"
    kill "$(cat /tmp/serve.pid)"
    until_so 60 gone
    echo 1 >"$(sysfs)/remove"
    rm -rf $STATE
    mkdir -p $STATE
    serve --state-dir $STATE
    rpc bdev_nvme_set_hotplug -e -r 50000
    echo 1 >/sys/bus/pci/rescan
    until_so 60 says bdev_get_bdevs HotInNvme0n2
    refused "busy|can.t open blockdev" mount "$(local_dev 1)" /mnt
    echo 1 >"$(sysfs)/remove"
    until_so 60 says bdev_nvme_get_controllers '^\[\]'
    kill -9 "$(cat /tmp/serve.pid)"
    serve --state-dir $STATE
    echo 1 >/sys/bus/pci/rescan
    until_so 60 says bdev_get_bdevs HotInNvme0n2
    rpc bdev_nvme_detach_controller HotInNvme0
    # The daemon leaves a detached drive alone: its file system can be mounted.
    mkfs.ext4 -q -F "$(local_dev 1)"
    mount "$(local_dev 1)" /mnt
    sleep 4
    says bdev_get_bdevs '^\[\]' || fail "a drive was taken that had been detached"
    umount /mnt
    kill "$(cat /tmp/serve.pid)"
    until_so 60 gone
}

# nvmet_end: takes everything away that the kernel's target has.
nvmet_end() {
    local d
    for d in $NVMET/ports/*/subsystems/*; do rm "$d"; done
    for d in $NVMET/ports/*; do rmdir "$d"; done
    for d in $NVMET/subsystems/*/namespaces/*; do echo 0 >"$d/enable"; rmdir "$d"; done
    for d in $NVMET/subsystems/*; do rmdir "$d"; done
}
# uuid_of NQN: the UUID of the only namespace that the kernel's host has of that subsystem.
uuid_of() {
    local s
    for s in /sys/class/nvme-subsystem/*; do
        [ "$(cat "$s/subsysnqn")" != "$1" ] || cat "$s"/nvme*n1/uuid
    done
}
disk_of() {
    local s
    for s in /sys/class/nvme-subsystem/*; do
        [ "$(cat "$s/subsysnqn")" != "$1" ] || { set -- "$s"/nvme*n1; echo "/dev/${1##*/}" | sed 's/c[0-9]*n/n/'; return; }
    done
}
has_disk() { [ -b "$(disk_of "$1")" ]; }
# The kernel's target of the JBOF paper moves to a daemon: two subsystems, each with a device, and one port.  The host
# finds its data and UUIDs again.  The daemon's own export of it names the same devices.
moves() {
    local n uuids="" old new
    for n in 0 1; do
        truncate -s 16M /tmp/ssd$n
        nvmet_subsystem nvme-ssd$n /tmp/ssd$n
    done
    nvmet_port 1 4421 nvme-ssd0
    ln -s $NVMET/subsystems/nvme-ssd1 $NVMET/ports/1/subsystems/nvme-ssd1
    for n in 0 1; do
        nvme connect -t tcp -a $ADDR -s 4421 -n nvme-ssd$n -i 1
        until_so 60 has_disk nvme-ssd$n
        yes "ssd $n" | head -c 1048576 | dd of="$(disk_of nvme-ssd$n)" bs=64k iflag=fullblock oflag=direct 2>/dev/null
        old="${old:-} $(uuid_of nvme-ssd$n)"
    done
    nvme disconnect-all
    # Some attributes can only be written.
    cp -rP $NVMET /tmp/tree 2>/dev/null || true
    nvmet_end
    rm -rf $STATE
    mkdir -p $STATE
    serve --state-dir $STATE
    $RACELINE nvmet import /tmp/tree --state-dir $STATE | tee /tmp/moved
    grep -q 'not the same: /subsystems/nvme-ssd1: the name is no NQN' /tmp/moved
    for n in 0 1; do
        nvme connect -t tcp -a $ADDR -s 4421 -n nqn.2026-01.io.raceline:nvme-ssd$n -i 1
        until_so 60 has_disk nqn.2026-01.io.raceline:nvme-ssd$n
        yes "ssd $n" | head -c 1048576 | cmp -n 1048576 - "$(disk_of nqn.2026-01.io.raceline:nvme-ssd$n)"
        new="${new:-} $(uuid_of nqn.2026-01.io.raceline:nvme-ssd$n)"
    done
    [ "$old" = "$new" ] || fail "the UUIDs were $old and are $new"
    # nvme-cli and Raceline say the same of the same controller.
    $RACELINE id-ns -a $ADDR -s 4421 -n nqn.2026-01.io.raceline:nvme-ssd1 -b >/tmp/ours
    nvme id-ns "$(disk_of nqn.2026-01.io.raceline:nvme-ssd1)" -b >/tmp/theirs
    cmp /tmp/ours /tmp/theirs
    $RACELINE id-ns -a $ADDR -s 4421 -n nqn.2026-01.io.raceline:nvme-ssd1 >/tmp/ours
    nvme id-ns "$(disk_of nqn.2026-01.io.raceline:nvme-ssd1)" >/tmp/theirs
    for n in nsze flbas nguid anagrpid; do
        [ "$(sed -n "s/^$n *: *//p" /tmp/ours)" = "$(sed -n "s/^$n *: *//p" /tmp/theirs)" ] || fail "$n is another one"
    done
    nvme disconnect-all
    $RACELINE nvmet export >/tmp/exported 2>/tmp/remarks
    grep -q '"/tmp/ssd1"' /tmp/exported
    kill "$(cat /tmp/serve.pid)"
    until_so 60 gone
}

# reads NAME: how many reads the daemon's device has done.
reads() { rpc bdev_get_iostat -b "$1" | sed -n 's/.*"num_read_ops": *\([0-9]*\).*/\1/p'; }
more_reads() { [ "$(reads disk)" -gt $(($1 + 20)) ]; }
logged() { grep -q "$1" /tmp/serve.err; }
# The control group of the daemon gets a limit that is nearly used.  The host that is there is served, another one waits, and
# the log says which limit it is.  With more memory the other one is let in.
limited_memory() {
    local job before waiting group=/sys/fs/cgroup/limited
    [ -e /sys/fs/cgroup/cgroup.controllers ] || mount -t cgroup2 none /sys/fs/cgroup
    grep -qw memory /sys/fs/cgroup/cgroup.controllers || { echo "this kernel has no limits of memory"; return 77; }
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control
    mkdir $group
    rm -rf $STATE
    mkdir -p /tmp/run $STATE
    (
        sh -c "echo \$\$ >$group/cgroup.procs; exec $RACELINE serve -r $RACELINE_RPC_SOCKET --state-dir $STATE" \
            >/tmp/serve.out 2>/tmp/serve.err &
        echo $! >/tmp/serve.pid
    )
    until_so 30 rpc spdk_get_version
    grep -qx "$(cat /tmp/serve.pid)" $group/cgroup.procs || fail "the daemon is not in its group"
    # Smaller than what the limit leaves: to write to it does not use the limit up.
    rpc bdev_malloc_create -b disk 4 512
    rpc nvmf_create_transport -t tcp
    rpc nvmf_create_subsystem "$NQN" -a
    rpc nvmf_subsystem_add_ns "$NQN" disk
    rpc nvmf_subsystem_add_listener "$NQN" -t tcp -a $ADDR -s $PORT
    set -- -a $ADDR -s $PORT -n "$NQN"
    $RACELINE perf "$@" --rw randrw --verify --bs 4k --iodepth 1 --ramp_time 0 --runtime 600 >/tmp/perf.log 2>&1 &
    job=$!
    until_so 60 more_reads 0
    echo $(($(cat $group/memory.current) + 12582912)) >$group/memory.max
    echo "limit $(cat $group/memory.max), in use $(cat $group/memory.current)"
    # The kernel may have accepted one before; it is closed.
    $RACELINE identify "$@" >/tmp/first.log 2>&1 || true &
    until_so 30 logged 'MiB of memory are left'
    grep 'cannot accept a connection' /tmp/serve.err | grep 'memory.max, MemoryMax=' || fail "it does not name the limit"
    before=$(reads disk)
    until_so 60 more_reads "$before"
    $RACELINE identify "$@" >/tmp/waits.log 2>&1 &
    waiting=$!
    sleep 3
    kill -0 $waiting 2>/dev/null || { cat /tmp/waits.log; fail "the host did not wait"; }
    alive
    echo max >$group/memory.max
    wait $waiting || { cat /tmp/waits.log; fail "the host was not let in"; }
    kill -INT $job
    wait $job || [ $? = 130 ] || { tail -n 5 /tmp/perf.log; fail "the host that was there has failed"; }
    ! grep -i 'error:\|reconnect' /tmp/perf.log || fail "the host that was there has noticed"
    kill "$(cat /tmp/serve.pid)"
    until_so 20 gone
    grep -q '^oom_kill 0' $group/memory.events || fail "the kernel has killed for memory"
    rmdir $group
}

dispatch "$@"
modprobe nvme
modprobe nvme-tcp
log_start
echo "# kernel $(uname -r), $(nvme version | head -n 1)"
ls /sys/bus/pci/devices/$DRIVE/nvme/*/ | tr '\n' ' ' | sed 's/^/# /'; echo
for WAY in block passthrough; do
    check $WAY-start 60 start
    [ $WAY = passthrough ] || check refusals 60 refusals
    check $WAY-attached 30 attached
    check $WAY-exported 120 exported
    check $WAY-written 120 written
    check $WAY-health 20 health
    check $WAY-reset-under-io 120 reset_under_io
    check $WAY-restarts 120 restarts
    check $WAY-hot-removal 120 hot_removal
    check $WAY-absent-at-start 120 absent_at_start
    check $WAY-end 60 the_end
done
check plugged-in 120 plugged_in
check moves 120 moves
check limited-memory 240 limited_memory
[ ! -s $FAILED ] || tail -n 30 /tmp/serve.err | sed 's/^/# serve: /'
finish
