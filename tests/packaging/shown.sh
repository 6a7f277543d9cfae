#!/bin/bash
# shown.sh PACKAGE: shows how a node gets nhc-gpu, loses a GPU and returns to service. It runs in a
# system made by roots.sh, in namespaces of its own: Slurm, node_exporter and Prometheus are real,
# the GPUs are simulated. /mnt has their files.
set -euo pipefail

step() { printf '\n== %s\n' "$*"; }

# run STATUS COMMAND...: shows a command, its output, and its exit status, which must be STATUS.
run() {
  local want=$1 got=0
  shift
  printf '\n# %s\n' "$*"
  "$@" >/run/shown/said 2>&1 || got=$?
  cat /run/shown/said
  [ "$got" = 0 ] || echo "(exit status $got)"
  [ "$got" = "$want" ] || { echo "want exit status $want"; exit 1; }
}

# wait_for TEXT COMMAND...: waits until the command prints TEXT; an empty TEXT is no output.
wait_for() {
  local want=$1 got='' i
  shift
  for i in $(seq 300); do
    got=$("$@" 2>&1) || true
    if [ -z "$want" ] && [ -z "$got" ]; then return; fi
    if [ -n "$want" ] && [[ $got == *"$want"* ]]; then return; fi
    sleep 0.2
  done
  printf 'after a minute %s does not print "%s":\n%s\n' "$*" "$want" "$got"
  tail -n 20 /run/shown/log/*
  exit 1
}

daemon() {
  local log=/run/shown/log/$1.out
  "$@" >"$log" 2>&1 &
}

scenario() { # changes the GPUs: lines of tests/fakenvml
  { cat /mnt/nvml/nvml.scenario; printf '%s\n' "$@"; } >/run/shown/scenario
  mv /run/shown/scenario "$lib/nvml.scenario"
}

ask_prometheus=(promtool query instant http://127.0.0.1:9090)
firing='ALERTS{alertstate="firing"}'

# The node: a name, a network, devices, the PCI bus and the driver.
echo node01 >/proc/sys/kernel/hostname
echo '127.0.0.1 localhost node01' >/etc/hosts
ip link set lo up
ip address add 192.0.2.1/32 dev lo # with 127.0.0.1 alone getaddrinfo(3) sees no IPv4
umount -R /dev # this machine's
mount -t tmpfs tmpfs /dev
for d in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "/dev/${d%:*}" c 1 "${d#*:}"; done
for i in 0 1 2 3 4 5 6 7 ctl; do mknod -m 666 "/dev/nvidia$i" c 195 "${i/ctl/255}"; done
ln -s /proc/self/fd /dev/fd
: >/dev/kmsg
cp -a /mnt/node/sys/. /sys
mkdir /sys/block
: >/etc/resolv.conf
mount --bind /mnt/node/proc/driver /proc/driver
[ ! -e /proc/modules ] || mount --bind /mnt/node/proc/modules /proc/modules # not every kernel has modules
lib=$(dirname "$(ldconfig -p | sed -n '/libc\.so\.6 /{s/.*=> //p;q}')")
cp /mnt/nvml/libnvidia-ml.so.1 /mnt/nvml/nvml.scenario "$lib"
ldconfig
mkdir -p /run/shown/{run,log,state,spool} /run/munge /var/lib/prometheus/node-exporter

. /etc/os-release
step "$PRETTY_NAME, $(slurmctld -V), Prometheus, and eight simulated H100"

step "Settings first: MODE=observe. Then the package"
printf 'NHC_CHECK_ALL=1\nMODE=observe\n' >/etc/default/nhc
run 0 cat /etc/default/nhc
run 0 dpkg -i "$1"
run 0 nhc-gpu version

step "Write nhc.conf on the healthy node, and check it"
run 0 nhc-gpu genconf --dir /etc/nhc
sed -i '/check_ps_loadavg/d' /etc/nhc/nhc.conf # the machine of this test may be busy
cat >/etc/nhc/nhc.toml <<'EOF'
[output]
textfile = "/var/lib/prometheus/node-exporter/nhc.prom"
EOF
run 0 grep -n check_gpu_ /etc/nhc/nhc.conf
run 0 nhc-gpu lint /etc/nhc

step "slurmd starts nhc-gpu. In mode observe it logs its decisions, and sends nothing"
sed 's,/run/cluster/,/run/shown/,; s,/run/bin,/usr/sbin,; s,^AuthInfo=.*,,' /mnt/slurm.conf >/etc/slurm/slurm.conf
cat >>/etc/slurm/slurm.conf <<'EOF'
SlurmctldHost=node01(127.0.0.1)
GresTypes=gpu
NodeName=node01 NodeAddr=127.0.0.1 CPUs=16 RealMemory=1000000 Gres=gpu:8
PartitionName=main Nodes=ALL Default=YES State=UP
EOF
echo 'Name=gpu File=/dev/nvidia[0-7]' >/etc/slurm/gres.conf
echo CgroupPlugin=cgroup/v1 >/etc/slurm/cgroup.conf # Slurm uses no cgroup here, and cannot choose
run 0 grep HealthCheck /etc/slurm/slurm.conf

dd if=/dev/urandom of=/run/shown/munge.key bs=128 count=1 status=none
chmod 400 /run/shown/munge.key
daemon munged --foreground --key-file=/run/shown/munge.key --pid-file=/run/shown/munged.pid --log-file=/run/shown/log/munged.log \
  --seed-file=/run/shown/munged.seed --origin=127.0.0.1
wait_for MUNGE: munge -n
daemon slurmctld -D
wait_for 'is UP' scontrol ping
daemon slurmd -D -N node01
daemon prometheus-node-exporter --collector.disable-defaults --collector.textfile --collector.textfile.directory=/var/lib/prometheus/node-exporter \
  --web.listen-address=127.0.0.1:9100
cat >/run/shown/prometheus.yml <<'EOF'
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [/usr/share/nhc-gpu/prometheus/alerts.yml]
scrape_configs:
- job_name: nodes
  static_configs: [{targets: ["127.0.0.1:9100"]}]
  relabel_configs: [{target_label: instance, replacement: node01}]
EOF
daemon prometheus --config.file=/run/shown/prometheus.yml --storage.tsdb.path=/run/shown/data --web.listen-address=127.0.0.1:9090
wait_for idle sinfo -h -o %t
wait_for 'node01: ok' nhc-gpu status
run 0 nhc-gpu status

step "gpu3 falls off the bus: nhc-gpu would drain the node"
scenario '3 * error 15'
wait_for 'would drain node' cat /var/log/nhc.log
run 0 grep would /var/log/nhc.log
run 0 sinfo -N -o '%N %t %E'
[ "$(sinfo -h -o %t)" = idle ]

step "Switch on: Slurm drains the node"
run 0 sed -i '/^MODE=/d' /etc/default/nhc
wait_for drain sinfo -h -o %t
run 0 sinfo -N -o '%N %t %u %E'

step "Prometheus alerts"
wait_for NhcGpuNodeFailing "${ask_prometheus[@]}" "$firing"
wait_for '} => 1 ' "${ask_prometheus[@]}" 'nhc_gpu_drained{owner="nhc"}'
run 0 "${ask_prometheus[@]}" "$firing"

step "Status and history explain it"
run 2 nhc-gpu status
run 0 nhc-gpu status --fleet
run 0 nhc-gpu history

step "The evidence is kept"
wait_for gpu.recovery.lost.tar.gz ls /var/lib/nhc-gpu/node01/evidence
run 0 ls -l /var/lib/nhc-gpu/node01/evidence
run 0 tar -tzf /var/lib/nhc-gpu/node01/evidence/*gpu.recovery.lost.tar.gz

step "The GPU is replaced: nhc-gpu resumes the node"
scenario
wait_for ' idle ' sinfo -h -o ' %t ' # not idle*, as until slurmctld asks slurmd again
wait_for 'node01: ok' nhc-gpu status
wait_for '' "${ask_prometheus[@]}" "$firing"
run 0 sinfo -N -o '%N %t %E'
run 0 nhc-gpu status
run 0 nhc-gpu history
run 0 "${ask_prometheus[@]}" "$firing"
step "All clear"
