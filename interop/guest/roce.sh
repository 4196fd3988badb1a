# Shell functions for scripts whose transport is RDMA: soft RoCE on a network device of the guest, and Raceline's target in
# the guest itself, because no packet of soft RoCE leaves it.  lib.sh has to be sourced before.

# roce_up [DEVICE]: makes the device of soft RoCE, with all modules of both sides.
roce_up() {
    modprobe -a ib_uverbs rdma_cm rdma_ucm rdma_rxe nvme-rdma
    rdma link add rxe0 type rxe netdev "${1:-eth0}"
}

# target_start: Raceline's target with three namespaces like those of the tests over TCP, at $ADDR and $PORT, with the words
# in $TARGET_OPTIONS.
target_start() {
    [ -e /root/ns3 ] || truncate -s 384M /root/ns3
    # shellcheck disable=SC2086  # a list of words
    program_start target export ram:96M ram:96M,bs=4096 "file:/root/ns3,bs=4096" -n "$NQN" --allow-any-host --insecure \
        -l "rdma://$ADDR:$PORT" ${TARGET_OPTIONS:-}
}

# roce_wire: two more devices of soft RoCE, rxe1 at $NEAR and rxe2 at $FAR, and a wire between them, which is a veth pair: near and
# far.  What one of them sends to the other one is UDP on that wire.
NEAR=10.77.0.1
FAR=10.77.0.2
roce_wire() {
    modprobe -a veth sch_netem sch_ingress cls_u32 act_gact
    ip link add near type veth peer name far
    ip addr add $NEAR/24 dev near
    ip addr add $FAR/24 dev far
    ip link set near up
    ip link set far up
    # Usually the kernel delivers what goes to an address of its own without a device.  These rules come before, and are for what
    # the guest sends, not for what it receives.
    ip route add $FAR dev near src $NEAR table 101
    ip route add $NEAR dev far src $FAR table 102
    ip rule add pref 10 iif lo to $FAR lookup 101
    ip rule add pref 11 iif lo to $NEAR lookup 102
    ip rule add pref 100 lookup local
    ip rule del pref 0
    echo 1 >/proc/sys/net/ipv4/conf/all/accept_local
    # A wire that loses packets is not to lose these answers.
    ip neigh replace $FAR lladdr "$(cat /sys/class/net/far/address)" dev near nud permanent
    ip neigh replace $NEAR lladdr "$(cat /sys/class/net/near/address)" dev far nud permanent
    rdma link add rxe1 type rxe netdev near
    rdma link add rxe2 type rxe netdev far
}

# rdma_port ADDRESS PORT NQN [ID]: the kernel's target listens there, and offers the subsystem.
rdma_port() {
    local p=$NVMET/ports/${4:-1}
    modprobe nvmet-rdma
    mkdir "$p"
    echo rdma >"$p/addr_trtype"
    echo ipv4 >"$p/addr_adrfam"
    echo "$1" >"$p/addr_traddr"
    echo "$2" >"$p/addr_trsvcid"
    ln -s "$NVMET/subsystems/$3" "$p/subsystems/$3"
}
