# Raceline's host over RDMA with the kernel's target (nvmet-rdma), both in this guest, over soft RoCE (rdma_rxe).
#
# Environment: NQN.  The program raceline is beside this script.  The target serves two namespaces in RAM: 1 has blocks
# of 512 bytes, 2 has blocks of 4096 bytes.
. ./lib.sh
. ./roce.sh

ADDR=10.0.2.15
PORT=4420

# host VERB [OPTION...]: a verb of Raceline's host on the subsystem over RDMA.
host() {
    local verb=$1
    shift
    $RACELINE "$verb" -t rdma -a $ADDR -s $PORT -n "$NQN" "$@"
}

rdma_port() {
    local p=$NVMET/ports/1
    mkdir "$p"
    echo rdma >"$p/addr_trtype"
    echo ipv4 >"$p/addr_adrfam"
    echo $ADDR >"$p/addr_traddr"
    echo $PORT >"$p/addr_trsvcid"
    ln -s "$NVMET/subsystems/$NQN" "$p/subsystems/$NQN"
}

setup() {
    modprobe -a nvmet-rdma loop
    roce_up
    modprobe brd rd_nr=1 rd_size=$((96 * 1024))
    truncate -s 96M /tmp/ns2
    losetup -b 4096 --direct-io=off /dev/loop0 /tmp/ns2
    nvmet_subsystem "$NQN" /dev/ram0 /dev/loop0
    rdma_port
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

# verify_job RW BS: many commands at a time on two queues, whose data are compared.
verify_job() {
    host perf --rw "$1" --bs "$2" --size 8m --iodepth 8 -i 2 --runtime 3 --ramp_time 0 --verify -o json >/tmp/perf.json
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

# The kernel's target ends all connections of a subsystem that is taken off its port.
# created: prints how many controllers the kernel's target has made since the log was emptied.
created() { dmesg | grep -c 'nvmet: .*creating nvm controller' || true; }
# queues: prints how many queues Raceline has: each has the connection manager open.
queues() { ls -l "/proc/$(pidof raceline)/fd" 2>/dev/null | grep -c rdma_cm || true; }
port_off_on() {
    local before after
    before=$(created)
    host perf --rw randread --bs 4k --size 4m --iodepth 8 -i 2 --runtime 30 --ramp_time 0 -o json >/tmp/perf.json 2>/tmp/perf.err &
    local job=$!
    # The admin queue and two I/O queues.
    while [ "$(queues)" -lt 3 ]; do
        kill -0 $job || { cat /tmp/perf.err; fail "the job has ended"; }
        sleep 0.5
    done
    sleep 5
    rm "$NVMET/ports/1/subsystems/$NQN"
    sleep 2
    ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/1/subsystems/$NQN"
    wait $job || { cat /tmp/perf.err; fail "the reads did not survive the loss of their connections"; }
    # One for the job, and one for each connection after the loss.
    after=$(created)
    [ "$after" -ge $((before + 2)) ] || fail "$((after - before)) controllers: no connection was lost"
    host identify >/dev/null
}

dispatch "$@"
log_start
check setup 60 setup
check discover 60 discover
check identify 60 identify
check write-read 300 write_read_all
check verify 300 verify
check unknown-subsystem 60 unknown_subsystem
check refusals 60 refusals
echo "skip link-loss: soft RoCE hands packets for its own address over within the device, where none can be lost"
echo "skip queue-loss: ss -K ends sockets, and RDMA has none; port-off-on ends all queues"
check port-off-on 240 port_off_on
check verify-after 180 verify_job randwrite 4k
check kernel-log 10 log_clean 'nvmet_rdma: (queue|received)|connect request for invalid subsystem nqn.2014-08.org.example:unknown'
finish
