# The kernel's NVMe/TCP target for a host outside the guest.  The script prints READY, then carries out requests.
#
# Environment: NQN.  With KEY and HOSTNQN, connections are over TLS, with that key of that host.  Port 4420 serves two namespaces in RAM: 1 has blocks of 512 bytes, 2 has blocks of 4096 bytes.
# A request is a line with one of these words, sent to port 4499.  The answer is "ok" or "failed: WHY":
#   lossy      lose, delay, swap and double packets on the way out    lossless    stop that
#   drop-io   end every I/O queue's connection      port-off, port-on   take the port away, put it back
#   clean     is the kernel's log free of warnings? end                 stop the guest
#   auth HASH GROUP HOSTNQN KEY CTRL_KEY      only this host may connect, and both sides have to prove themselves
. ./lib.sh

# Nothing in a connection says whether it is an admin queue's or an I/O queue's.  So a connection that has sent more
# than 200,000 bytes counts as an I/O queue's under load: an admin queue's does not send as many here.
drop_io() {
    ss -tnHi state established "( sport = :4420 )" >/tmp/connections
    awk '/^ *[0-9]+ +[0-9]+ /{peer = $4} match($0, /bytes_sent:[0-9]+/) {
        if (substr($0, RSTART + 11, RLENGTH - 11) > 200000) { sub(/.*:/, "", peer); print peer } }' \
        /tmp/connections >/tmp/ports
    [ -s /tmp/ports ] || { cat /tmp/connections; fail "no connection under load"; }
    while read -r port; do ss -K -tnH "( sport = :4420 and dport = :$port )"; done </tmp/ports
}
link() { ip -o route show default | sed 's/.* dev \([^ ]*\).*/\1/'; }
lossy() { tc qdisc add dev "$(link)" root netem delay 1ms 1ms loss 1% reorder 5% duplicate 1%; }
lossless() {
    tc -s qdisc show dev "$(link)" >/tmp/qdisc
    tc qdisc del dev "$(link)" root
    # Without a lost packet, the test would have proved nothing about loss.
    grep -q 'dropped [1-9]' /tmp/qdisc || { cat /tmp/qdisc; fail "no packet was lost"; }
}
# auth HASH GROUP HOSTNQN KEY CTRL_KEY: the kernel reads a host's keys when the host connects.
auth() {
    local host=$NVMET/hosts/$3 subsystem=$NVMET/subsystems/$NQN
    if [ ! -d "$host" ]; then
        mkdir "$host"
        echo 0 >"$subsystem/attr_allow_any_host"
        ln -s "$host" "$subsystem/allowed_hosts/$3"
    fi
    echo "hmac($1)" >"$host/dhchap_hash"
    echo "$2" >"$host/dhchap_dhgroup"
    echo "$4" >"$host/dhchap_key"
    echo "$5" >"$host/dhchap_ctrl_key"
}
request() {
    case $1 in
        lossy) lossy ;;
        lossless) lossless ;;
        drop-io) drop_io ;;
        port-off) rm "$NVMET/ports/1/subsystems/$NQN" ;;
        port-on) ln -s "$NVMET/subsystems/$NQN" "$NVMET/ports/1/subsystems/$NQN" ;;
        clean) log_clean "${2:-}" ;;
        auth) shift; auth "$@" ;;
        *) return 1 ;;
    esac
}
serve_request() {
    read -r line
    # shellcheck disable=SC2086  # a word and its argument
    if (set -eu; request $line) >/tmp/request.out 2>&1; then echo ok; else echo "failed: $(tail -n 1 /tmp/request.out)"; fi
}

dispatch "$@"
modprobe -a loop tcp_diag inet_diag sch_netem
modprobe brd rd_nr=1 rd_size=$((96 * 1024))
truncate -s 96M /tmp/ns2
losetup -b 4096 /dev/loop0 /tmp/ns2 --direct-io=off
nvmet_subsystem "$NQN" /dev/ram0 /dev/loop0
if [ -n "${KEY:-}" ]; then
    modprobe -a tls nvme-tcp
    tls_daemon
    tls_insert "$KEY" 0
    tls_insert "$KEY" 1
    nvmet_port 1 4420 "$NQN" tls1.3
else
    nvmet_port 1 4420 "$NQN"
fi
log_start
echo READY
while :; do nc -l -p 4499 -e /bin/dash "./$SELF" call serve_request; done
