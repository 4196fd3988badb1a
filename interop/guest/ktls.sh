# Checks of records that this guest's kernel makes (kTLS) for our target and our host, and of our target by the kernel's
# host over them.
#
# Environment: NQN, HOSTNQN, and KEY, the key for HOSTNQN.  The program raceline is beside this script.
. ./lib.sh

RACELINE=./raceline
ADDR=127.0.0.1
# Targets with records by the kernel, and with records in user space.
KERNEL_PORT=4430
USER_PORT=4431
PORT=$KERNEL_PORT

# ours: the options of a host of ours at PORT.
ours() { echo "-a $ADDR -s $1 -n $NQN -q $HOSTNQN --tls-psk /tmp/tls.key --tls-compat"; }

# serve PORT KTLS: starts a target.
serve() {
    $RACELINE export ram:64M -n "$NQN" -l $ADDR:"$1" --host "$HOSTNQN" --tls-psk /tmp/tls.key --tls-compat \
        --ktls "$2" >"/tmp/export-$2.out" 2>"/tmp/export-$2.err" &
    local i=0
    until grep -q '"ready":true' "/tmp/export-$2.out"; do
        [ $i -lt 200 ] || { cat "/tmp/export-$2.err"; fail "no target"; }
        sleep 0.1
        i=$((i + 1))
    done
}

# opened DIRECTION: how many connections have ever had keys of that direction (Tx, Rx) in the kernel.
opened() { awk -v name="Tls$1Sw" '$1 == name { print $2 }' /proc/net/tls_stat; }

# by_kernel ENDS QUEUES COMMAND...: runs the command, for which the kernel has to make and open the records of as many
# ends of as many connections.
by_kernel() {
    local ends=$(($1 * $2)) tx rx
    shift 2
    tx=$(opened Tx) rx=$(opened Rx)
    "$@"
    tx=$(($(opened Tx) - tx)) rx=$(($(opened Rx) - rx))
    [ $tx -ge $ends ] && [ $rx -ge $ends ] && return
    fail "the kernel made the records of $tx ends, opened those of $rx, and has to for $ends"
}

# pair PORT KTLS: our host writes blocks that say where they belong, and reads all of them back.
pair() {
    # shellcheck disable=SC2046  # a list of words
    $RACELINE perf $(ours "$1") --ktls "$2" -i 2 --rw randwrite --bs "$3" --iodepth 8 --verify --ramp_time 0 \
        --runtime 4 --size 8m
}
# file PORT KTLS: a file of 3 MiB goes to the target and comes back; commands have 1 MiB.
file() {
    head -c 3145728 /dev/urandom >/tmp/in
    # shellcheck disable=SC2046
    $RACELINE write $(ours "$1") --ktls "$2" /tmp/in
    # shellcheck disable=SC2046
    $RACELINE read $(ours "$1") --ktls "$2" --blocks 6144 /tmp/out
    cmp /tmp/in /tmp/out
}
# auto: this kernel cannot change keys (before Linux 6.14), so `auto` leaves the records in user space.  A newer one can.
auto() {
    local tx
    tx=$(opened Tx)
    # shellcheck disable=SC2046
    $RACELINE -v identify $(ours $USER_PORT) --ktls auto >/tmp/auto.out 2>&1
    if [ "$(opened Tx)" = "$tx" ]; then
        grep -q 'made in user space' /tmp/auto.out || { cat /tmp/auto.out; fail "nothing says why"; }
    fi
}
# keyring: our host takes the key from the kernel's keyring, where nvme-cli has put it, and only from there.
keyring() {
    local version key host="-a $ADDR -s $USER_PORT -n $NQN -q $HOSTNQN -l 0"
    for version in 1 0; do
        keyctl clear %:.nvme
        tls_insert "$KEY" $version
        for key in kernel: "kernel:$(keyctl rlist %:.nvme)"; do
            # shellcheck disable=SC2086  # a list of words
            $RACELINE identify $host --tls-psk "$key" | grep "$NQN"
        done
    done
    keyctl clear %:.nvme
    # shellcheck disable=SC2086
    refused 'no key of type psk' $RACELINE identify $host --tls-psk kernel:
}
daemon() {
    printf '[debug]\nloglevel=1\n[authenticate]\nkeyrings=.nvme\n' >/etc/tlshd.conf
    start-stop-daemon -S -b -x /usr/sbin/tlshd -- -s -c /etc/tlshd.conf
    sleep 1
    pidof tlshd
    keyctl clear %:.nvme
    nvme check-tls-key --keydata="$KEY" --identity=1 --subsysnqn="$NQN" --hostnqn="$HOSTNQN" --insert
}
kernel_host() {
    connect --tls --hostnqn="$HOSTNQN" --nr-io-queues=2
    verify "$(dev 1)" 8m
}
reset() {
    nvme reset "/dev/$(ctrl)"
    wait_state live 30
    verify "$(dev 1)" 4m
}

dispatch "$@"
printf '%s' "$KEY" >/tmp/tls.key
chmod 600 /tmp/tls.key
modprobe -a tls nvme-tcp
log_start
echo "# kernel $(uname -r), $(nvme version | head -n 1)"
serve $KERNEL_PORT on
serve $USER_PORT off
check auto 60 auto
for way in "$KERNEL_PORT on 2 both" "$KERNEL_PORT off 1 target" "$USER_PORT on 1 host"; do
    # shellcheck disable=SC2086
    set -- $way
    check "file-$4" 90 by_kernel "$3" 4 file "$1" "$2"
    check "small-$4" 90 by_kernel "$3" 3 pair "$1" "$2" 4k
    check "large-$4" 90 by_kernel "$3" 3 pair "$1" "$2" 128k
done
check keyring 60 keyring
check tlshd 20 daemon
check kernel-host 120 by_kernel 2 3 kernel_host
check kernel-host-reset 90 by_kernel 2 3 reset
check kernel-host-disconnect 30 disconnect
finish
