# The kernel's NVMe/TCP host proves itself to Raceline by DH-HMAC-CHAP, and Raceline to it; also while it does I/O.
#
# Environment: NQN; HOSTNQN and HOSTID of the host; HOST_KEY and NEW_KEY, which both prove the host; CTRL_KEY, which
# proves the controller; OTHER_KEY, which proves nobody.  TARGETS: words HASH/GROUP/PORT, one for each target at
# 10.0.2.2, which allows that hash function and that group only.  REAUTHENTICATIONS: how many to do under I/O.
. ./lib.sh
REAUTHENTICATIONS=${REAUTHENTICATIONS:-6}

# first: prints the port of the first target.
first() {
    local words=${TARGETS%% *}
    echo "${words##*/}"
}
# prove PORT [OPTION...]: connects to that target as the host that has the keys.
prove() {
    PORT=$1
    shift
    dmesg -c >/dev/null
    connect -q "$HOSTNQN" -I "$HOSTID" --nr-io-queues=1 --reconnect-delay=1 "$@"
}
# logged TEXT: fails unless the kernel has logged this text.
logged() { dmesg | grep -q "$1" || { dmesg | tail -n 5; fail "the kernel did not log '$1'"; }; }

# both HASH GROUP PORT: host and controller prove themselves; data go and come back.  The kernel logs only the admin
# queue's success.  An I/O queue that had not proved itself could carry no data.
both() {
    prove "$3" --dhchap-secret="$HOST_KEY" --dhchap-ctrl-secret="$CTRL_KEY"
    logged "qid 0: authenticated with hash hmac($1) dhgroup $2"
    logged "qid 0: controller authenticated"
    verify "$(dev 1)" 1m
    disconnect
}
host_only() {
    prove "$(first)" --dhchap-secret="$NEW_KEY"
    verify "$(dev 1)" 1m
    disconnect
}
# denied WHY OPTION...: the target must not let the host in, and the kernel must log WHY.
denied() {
    local why=$1
    shift
    dmesg -c >/dev/null
    refused 'failed|could not|error|denied' \
        nvme connect -t tcp -a "$ADDR" -s "$(first)" -n "$NQN" -q "$HOSTNQN" -I "$HOSTID" "$@"
    [ -z "$(ctrl)" ] || fail "there is a controller"
    logged "$why"
}

under_io() {
    local i=0 c
    prove "$(first)" --dhchap-secret="$HOST_KEY" --dhchap-ctrl-secret="$CTRL_KEY"
    c=/sys/class/nvme/$(ctrl)
    dmesg -c >/dev/null
    rm -f /tmp/fio.rc
    (
        rc=0
        fio --name=background --filename="$(dev 1)" --rw=randwrite --bs=4k-64k --size=8m --direct=1 --ioengine=libaio \
            --iodepth=8 --verify=crc32c --verify_fatal=1 --verify_dump=0 --do_verify=1 --time_based \
            --runtime=$((REAUTHENTICATIONS * 6)) --minimal >/tmp/fio.out 2>&1 || rc=$?
        echo $rc >/tmp/fio.rc
    ) &
    sleep 2
    while [ $i -lt "$REAUTHENTICATIONS" ]; do
        i=$((i + 1))
        # The new secret, the old one, and so on: each one is a rotation.
        if [ $((i % 2)) = 1 ]; then echo "$NEW_KEY"; else echo "$HOST_KEY"; fi >"$c/dhchap_secret"
        wait_authenticated $i
        [ ! -s /tmp/fio.rc ] || fail "fio ended before authentication $i"
    done
    i=0
    while [ ! -s /tmp/fio.rc ]; do
        [ $i -lt 120 ] || fail "fio did not end within 120 s: I/O is stuck"
        sleep 1
        i=$((i + 1))
    done
    [ "$(cat /tmp/fio.rc)" = 0 ] || { cut -c1-200 /tmp/fio.out; fail "fio ended with $(cat /tmp/fio.rc)"; }
    [ "$(state)" = live ] || fail "the controller is '$(state)'"
    if dmesg | grep -E 'error recovery|Reconnecting|resetting|authentication failed'; then fail "the connection broke"; fi
    disconnect
}
# wait_authenticated N: waits until the admin queue has authenticated N times, and gives the I/O queue, which comes
# after it, the time to do so.
wait_authenticated() {
    local i=0
    while [ "$(dmesg | grep -c 'qid 0: authenticated with')" -lt "$1" ]; do
        [ $i -lt 200 ] || fail "authentication $1 did not end"
        sleep 0.1
        i=$((i + 1))
    done
    sleep 1
}

dispatch "$@"
modprobe nvme-tcp
log_start
echo "# kernel $(uname -r), $(nvme version | head -n 1)"
for target in $TARGETS; do
    hash=${target%%/*} port=${target##*/}
    group=${target#*/}
    group=${group%/*}
    check "auth-$hash-$group" 120 both "$hash" "$group" "$port"
done
check auth-host-only 60 host_only
check dmesg-auth 10 log_clean
check auth-wrong-secret 60 denied 'qid 0: authentication failed' --dhchap-secret="$OTHER_KEY"
check auth-wrong-ctrl-secret 60 denied 'qid 0: authentication failed' --dhchap-secret="$HOST_KEY" --dhchap-ctrl-secret="$OTHER_KEY"
check auth-no-secret 60 denied 'qid 0: authentication'
log_start
check reauth-under-io 240 under_io
check dmesg-reauth 10 log_clean
finish
