# Checks of a target by the kernel's NVMe/TCP host over TLS: handshakes by tlshd, records by the kernel.
#
# Environment: PORT, NQN, HOSTNQN, and two keys. KEY is the target's key for HOSTNQN, OTHER_KEY is another one.
. ./lib.sh

# insert KEY VERSION: the key is the only one in the kernel's keyring.
insert() {
    keyctl clear %:.nvme
    tls_insert "$@"
}
connect_tls() { connect --tls --hostnqn="$HOSTNQN" "$@"; }
# encrypted VERSION: connects, and moves data over several queues.
encrypted() {
    insert "$KEY" "$1"
    connect_tls --nr-io-queues=2
    nvme id-ctrl "/dev/$(ctrl)" | grep -q "$NQN"
    verify "$(dev 1)" 8m
}
reset() {
    nvme reset "/dev/$(ctrl)"
    wait_state live 30
    verify "$(dev 1)" 4m
}
another_key() {
    insert "$OTHER_KEY" "$1"
    refused 'error|failed|could not|denied|refused' \
        nvme connect -t tcp -a "$ADDR" -s "$PORT" -n "$NQN" --hostnqn="$HOSTNQN" --tls
}
without() {
    refused 'error|failed|could not|reset' \
        nvme connect -t tcp -a "$ADDR" -s "$PORT" -n "$NQN" --hostnqn="$HOSTNQN"
}

dispatch "$@"
modprobe -a tls nvme-tcp
log_start
echo "# kernel $(uname -r), $(nvme version | head -n 1)"
check tlshd 20 tls_daemon
check without-tls 60 without
for version in 1 0; do
    check identity-$version 120 encrypted $version
    check reset-$version 90 reset
    check disconnect-$version 30 disconnect
done
check another-key-1 60 another_key 1
check another-key-0 60 another_key 0
finish
