# The kernel's target moves into a daemon, and back: 20 disks as the paper's kernel target has them, hosts that may connect,
# states of paths, and parts that a daemon cannot have.  The kernel's host judges: the same names, and the same data.
#
# Environment: NQN.  The program raceline is beside this script; nvmetcli.tar (Python, and nvmetcli's library) may be.
. ./lib.sh

RACELINE=./raceline
export RACELINE_RPC_SOCKET=/tmp/run/rpc.sock
ADDR=127.0.0.1
PORT=4420
DISKS=20
MIB=8
KEPT=/tmp/tree
HOST=nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-00000000cafe

BASE=$NQN
name() { echo "$BASE-$1"; }
disk() { echo "/tmp/disk$1"; }
# on N COMMAND...: the command with subsystem N connected; the first check in each says which namespace it has.
on() {
    local number=$1
    shift
    NQN=$(name "$number")
    connect --hostnqn=$HOST --nr-io-queues=1 >/dev/null
    "$@"
    disconnect >/dev/null
}
# facts N: a line on subsystem N as the kernel's host sees it: identities, size, and the data's checksum.
facts() {
    local d
    d=$(dev 1)
    nvme id-ns "$d" -o json | tr -d ' "' | grep -E '^(nguid|nsze|anagrpid):' | tr '\n' ' '
    cat "/sys/block/${d##*/}/uuid" "/sys/class/nvme/$(ctrl)/serial" "/sys/class/nvme/$(ctrl)/model" | tr -d ' ' | tr '\n' ' '
    echo "$(block_size "$d") $(bytes "$d") $(dd if="$d" bs=1M iflag=direct 2>/dev/null | md5sum)"
}
all_facts() {
    local n=1
    while [ $n -le $DISKS ]; do
        echo "$n $(on $n facts)"
        n=$((n + 1))
    done
}
# fill: random bytes in the first and last MiB of the namespace.
fill() {
    local d
    d=$(dev 1)
    dd if=/dev/urandom of="$d" bs=1M count=1 oflag=direct conv=fsync 2>/dev/null
    dd if=/dev/urandom of="$d" bs=1M count=1 seek=$((MIB - 1)) oflag=direct conv=fsync 2>/dev/null
}

kernel_target() {
    local n=1 p=$NVMET/ports/1
    while [ $n -le $DISKS ]; do
        truncate -s ${MIB}M "$(disk $n)"
        nvmet_subsystem "$(name $n)" "$(disk $n)"
        n=$((n + 1))
    done
    # One that only a host may use, one namespace that is off, a state of a path, a port of RDMA: what differs between targets.
    mkdir "$NVMET/hosts/$HOST"
    echo 0 >"$NVMET/subsystems/$(name 1)/attr_allow_any_host"
    ln -s "$NVMET/hosts/$HOST" "$NVMET/subsystems/$(name 1)/allowed_hosts/$HOST"
    mkdir "$NVMET/subsystems/$(name 2)/namespaces/7"
    echo "$(disk 2)" >"$NVMET/subsystems/$(name 2)/namespaces/7/device_path"
    nvmet_port 1 $PORT "$(name 1)"
    n=2
    while [ $n -le $DISKS ]; do
        ln -s "$NVMET/subsystems/$(name $n)" "$p/subsystems/$(name $n)"
        n=$((n + 1))
    done
    mkdir "$p/ana_groups/2"
    echo non-optimized >"$p/ana_groups/2/ana_state"
    echo 0 >"$NVMET/subsystems/$(name 3)/namespaces/1/enable"
    echo 2 >"$NVMET/subsystems/$(name 3)/namespaces/1/ana_grpid"
    echo 1 >"$NVMET/subsystems/$(name 3)/namespaces/1/enable"
    mkdir "$NVMET/ports/2"
    echo rdma >"$NVMET/ports/2/addr_trtype"
    n=1
    while [ $n -le $DISKS ]; do
        on $n fill
        n=$((n + 1))
    done
    all_facts >/tmp/facts
    [ "$(wc -l </tmp/facts)" = $DISKS ] || fail "$(wc -l </tmp/facts) lines of facts"
    [ "$(awk '{ print $(NF - 1) }' /tmp/facts | sort -u | wc -l)" = $DISKS ] || fail "disks have the same data"
}

# clear_kernel: takes the kernel's configuration apart; it is gone then, and addresses and files are free.
clear_kernel() {
    local s
    find "$NVMET/ports" -type l -exec rm {} +
    find "$NVMET/subsystems" -path '*/allowed_hosts/*' -type l -exec rm {} +
    for s in "$NVMET"/subsystems/*/namespaces/*; do echo 0 >"$s/enable"; rmdir "$s"; done
    for s in "$NVMET"/ports/*/ana_groups/*; do [ "${s##*/}" = 1 ] || rmdir "$s"; done
    for s in "$NVMET"/ports/* "$NVMET"/subsystems/* "$NVMET"/hosts/*; do [ ! -d "$s" ] || rmdir "$s"; done
    [ -z "$(ls "$NVMET/subsystems")" ] || fail "the kernel keeps $(ls "$NVMET/subsystems")"
}

daemon() {
    local i=0
    mkdir -p /tmp/run /tmp/state
    $RACELINE serve -r "$RACELINE_RPC_SOCKET" --state-dir /tmp/state >>/tmp/serve.out 2>>/tmp/serve.err &
    echo $! >/tmp/serve.pid
    until $RACELINE rpc spdk_get_version >/dev/null 2>&1; do
        [ $i -lt 300 ] || { tail -n 5 /tmp/serve.err; fail "the daemon does not answer"; }
        sleep 0.2
        i=$((i + 1))
    done
    $RACELINE rpc framework_wait_init >/dev/null
}

planned() {
    cp -r "$NVMET" $KEPT 2>/dev/null || true
    daemon
    $RACELINE nvmet import --dry-run --state-dir /tmp/state >/tmp/plan 2>&1 || { cat /tmp/plan; fail "no plan"; }
    grep -q 'not the same: /ports/2: transport rdma' /tmp/plan || fail "port 2 is not named: $(grep same: /tmp/plan)"
    grep -q "not the same: .*$(name 2)/namespaces/7" /tmp/plan || fail "namespace 7 is not named: $(grep same: /tmp/plan)"
    [ "$(grep -c "would make namespace 1 of" /tmp/plan)" = $DISKS ] || fail "$(grep -c 'namespace 1' /tmp/plan) namespaces"
    [ "$($RACELINE subsys ls -o json | tr -d ' \n')" = '[]' ] || fail "a plan has made something"
    # The kernel listens there: the whole import is taken back.
    refused 'in use' $RACELINE nvmet import --state-dir /tmp/state
    [ "$($RACELINE subsys ls -o json | tr -d ' \n')" = '[]' ] || fail "the refused import has left something"
}

into_the_daemon() {
    clear_kernel
    $RACELINE nvmet import $KEPT --state-dir /tmp/state >/tmp/import 2>&1 || { cat /tmp/import; fail "not imported"; }
    all_facts >/tmp/facts.ours
    diff /tmp/facts /tmp/facts.ours >/tmp/facts.diff || fail "it differs: $(grep " 3 \|^.3 " /tmp/facts.diff)"
    refused 'not allowed|denied|failed|Connect' nvme connect -t tcp -a $ADDR -s $PORT -n "$(name 1)" \
        --hostnqn=nqn.2014-08.org.example:other
}

# Writes to the daemon are in the file when it goes back, and the state outlives a kill.
killed() {
    on 5 fill
    on 5 facts >/tmp/five
    kill -9 "$(cat /tmp/serve.pid)"
    while kill -0 "$(cat /tmp/serve.pid)" 2>/dev/null; do sleep 0.1; done
    daemon
    [ "$(on 5 facts)" = "$(cat /tmp/five)" ] || fail "disk 5 is not as it was"
    all_facts >/tmp/facts
}

back_by_nvmetcli() {
    [ -e nvmetcli.tar ] || { echo "nvmetcli's source is not there"; return 77; }
    mkdir -p /tmp/python
    tar -xf nvmetcli.tar -C /tmp/python
    $RACELINE nvmet export /tmp/back.json 2>/tmp/remarks || { cat /tmp/remarks; fail "not exported"; }
    kill "$(cat /tmp/serve.pid)"
    while kill -0 "$(cat /tmp/serve.pid)" 2>/dev/null; do sleep 0.1; done
    nvmetcli 'print(nvme.Root().restore_from_file("/tmp/back.json", True))' >/tmp/restored 2>&1 ||
        { cat /tmp/restored; fail "nvmetcli refuses it"; }
    grep -qx '\[\]' /tmp/restored || fail "nvmetcli has errors: $(cat /tmp/restored)"
    all_facts >/tmp/facts.back
    diff /tmp/facts /tmp/facts.back >/tmp/facts.diff || fail "it differs: $(grep " 3 \|^.3 " /tmp/facts.diff)"
    nvmetcli 'nvme.Root().save_to_file("/tmp/saved.json")' >/tmp/saved 2>&1 || { cat /tmp/saved; fail "nvmetcli saves nothing"; }
    clear_kernel
    daemon
    $RACELINE config clear --yes >/dev/null
    $RACELINE nvmet import /tmp/saved.json --state-dir /tmp/state >/tmp/import 2>&1 || { cat /tmp/import; fail "not imported"; }
    all_facts >/tmp/facts.again
    diff /tmp/facts /tmp/facts.again >/tmp/facts.diff || fail "it differs: $(grep " 3 \|^.3 " /tmp/facts.diff)"
}
# nvmetcli LINE: a line of Python with nvmetcli's library.
nvmetcli() {
    PYTHONHOME=/tmp/python/usr PYTHONPATH=/tmp/python/nvmetcli LD_LIBRARY_PATH=/tmp/python/lib \
        /tmp/python/usr/bin/python3 -c "from nvmet import nvme
$1"
}

dispatch "$@"
modprobe -a nvmet nvmet-tcp nvme-tcp
log_start
check kernel-target 240 kernel_target
check planned 120 planned
check into-the-daemon 240 into_the_daemon
check killed 240 killed
check back-by-nvmetcli 400 back_by_nvmetcli
check kernel-log 10 log_clean 'connect request for invalid|Connect|failed to connect'
finish
