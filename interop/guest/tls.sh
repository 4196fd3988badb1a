# Checks of a target by the kernel's NVMe/TCP host over TLS: handshakes by tlshd, records by the kernel.
#
# Environment: PORT, NQN, HOSTNQN, and two keys. KEY is the target's key for HOSTNQN, OTHER_KEY is another one.
. ./lib.sh

# insert KEY VERSION: puts the key into the kernel's keyring, under that version of its identity.
insert() {
    keyctl clear %:.nvme
    nvme check-tls-key --keydata="$1" --identity="$2" --subsysnqn="$NQN" --hostnqn="$HOSTNQN" --insert
    keyctl show %:.nvme
}
daemon() {
    printf '[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n' >/etc/tlshd.conf
    start-stop-daemon -S -b -x /usr/sbin/tlshd -- -s -c /etc/tlshd.conf
    sleep 1
    pidof tlshd
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
check tlshd 20 daemon
check without-tls 60 without
for version in 1 0; do
    check identity-$version 120 encrypted $version
    check reset-$version 90 reset
    check disconnect-$version 30 disconnect
done
check another-key-1 60 another_key 1
check another-key-0 60 another_key 0
finish
