#!/bin/sh
# /init on the root disk.  It sets up the machine, runs /job/run.sh with its output on the
# second serial port, and ends the machine.  Before that it writes the results to the third
# disk: the exit code of run.sh in the first line, and from 64 KiB on a tar of /out.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
read -r t_kernel _ </proc/uptime

# The network is QEMU's user network.  Its addresses are fixed, so the guest needs no DHCP client.
modprobe -qa virtio_net e1000e configfs 2>/dev/null
mount -t configfs configfs /sys/kernel/config 2>/dev/null
ip link set lo up
i=0
while [ ! -e /sys/class/net/eth0 ] && [ $i -lt 50 ]; do sleep 0.1; i=$((i + 1)); done
if [ -e /sys/class/net/eth0 ]; then
    ip addr add 10.0.2.15/24 dev eth0
    ip link set eth0 up
    ip route add default via 10.0.2.2
    i=0
    while [ "$(cat /sys/class/net/eth0/operstate)" != up ] && [ $i -lt 40 ]; do sleep 0.05; i=$((i + 1)); done
fi

# vda is the root disk, or the disk that has it; vdb holds a tar with the job, and vdc takes the results.
tar -xf /dev/vdb -C /job 2>/dev/null
mkdir -p /etc/nvme
[ -e /etc/nvme/hostid ] || cat /proc/sys/kernel/random/uuid >/etc/nvme/hostid
[ -e /etc/nvme/hostnqn ] ||
    echo "nqn.2014-08.org.nvmexpress:uuid:$(cat /etc/nvme/hostid)" >/etc/nvme/hostnqn
set -a
[ -e /job/.env ] && . /job/.env
set +a
read -r t_ready _ </proc/uptime
echo "guest: kernel $(uname -r) up at ${t_kernel}s, job starts at ${t_ready}s" >/dev/kmsg

if grep -q ' guest.shell' /proc/cmdline; then
    echo "guest: interactive shell on the console; 'exit' ends the machine"
    setsid sh -c 'cd /job; exec sh -l </dev/ttyS0 >/dev/ttyS0 2>&1'
    rc=0
else
    stty -F /dev/ttyS1 raw -echo 2>/dev/null
    (cd /job && exec sh ./run.sh) >/dev/ttyS1 2>&1 </dev/null
    rc=$?
    echo "$rc" >/dev/vdc
    [ -n "$(ls -A /out)" ] && tar -c -C /out . | dd of=/dev/vdc bs=64k seek=1 2>/dev/null
    sync
fi
read -r t_end _ </proc/uptime
echo "guest: job ended at ${t_end}s, exit code $rc" >/dev/kmsg
# QEMU runs with -no-reboot, so a reboot ends QEMU.  A forced reboot skips a shutdown.
reboot -f
