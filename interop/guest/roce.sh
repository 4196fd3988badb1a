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
