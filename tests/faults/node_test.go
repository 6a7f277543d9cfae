package faults

import "github.com/nhc-gpu/nhc-gpu/tests/fakesys"

const gpuLines = "* || check_gpu_count 8\n* || check_gpu_recovery\n* || check_gpu_ecc\n* || check_gpu_temp\n"

// nvmlFaults break NVIDIA's library and driver. The report of a hang or a crash names the call;
// that of one GPU's fault names the GPU.
var nvmlFaults = []fault{
	{name: "NVML hangs in nvmlInit", guard: "K3", conf: gpuLines, gpu: []string{"- nvmlInit hang"}, words: "-t 6", exit: 1, within: 7.5, action: drained, says: "hung"},
	{name: "NVML hangs in nvmlDeviceGetHandleByIndex", conf: gpuLines, gpu: []string{"5 nvmlDeviceGetHandleByIndex hang"}, words: "-t 6", exit: 1, within: 7.5, action: drained, says: "hung"},
	{name: "NVML hangs in nvmlDeviceGetUUID", conf: gpuLines, gpu: []string{"5 nvmlDeviceGetUUID hang"}, words: "-t 6", exit: 1, within: 7.5, action: drained, says: `hung \(in nvmlDeviceGetUUID\(5\)|gpu5`},
	{name: "NVML hangs in nvmlDeviceGetTemperature", conf: gpuLines, gpu: []string{"1 nvmlDeviceGetTemperature hang"}, words: "-t 6", exit: 1, within: 7.5, action: drained, says: "hung"},
	{name: "NVML hangs in nvmlDeviceGetMemoryErrorCounter", conf: gpuLines, gpu: []string{"2 nvmlDeviceGetMemoryErrorCounter hang"}, words: "-t 6", exit: 1, within: 7.5, action: drained, says: "hung"},
	{name: "NVML hangs, beside other checks", conf: gpuLines + bad, gpu: []string{"- nvmlInit hang"}, words: "-a -t 6", exit: 2, within: 7.5, action: drained, says: "/nowhere returned 1"},
	{name: "NVML crashes in nvmlInit", conf: gpuLines, gpu: []string{"- nvmlInit crash"}, exit: 3, within: 4, says: "died"},
	{name: "NVML crashes in nvmlDeviceGetTemperature", conf: gpuLines, gpu: []string{"1 nvmlDeviceGetTemperature crash"}, exit: 3, within: 4, says: "died"},
	{name: "NVML ends the process", conf: gpuLines, gpu: []string{"1 nvmlDeviceGetTemperature exit 0"}, exit: 3, within: 4},
	{name: "NVML crashes in a prolog", guard: "A6", conf: gpuLines, gpu: []string{"- nvmlInit crash"}, words: "--prolog", env: "SLURM_JOB_ID=7 SLURM_JOB_GPUS=1", exit: 0, within: 4},
	{name: "NVML is slow", guard: "K3", conf: gpuLines, gpu: []string{"* * late 10"}, words: "-t 30", exit: 0, within: 30},
	{name: "NVML library missing", conf: gpuLines, gpu: []string{}, set: "rm node/libnvidia-ml.so.1", exit: 1, within: 3, action: drained},
	{name: "NVML library is garbage", conf: gpuLines, gpu: []string{}, set: "rm node/libnvidia-ml.so.1; head -c 100000 /dev/urandom >node/libnvidia-ml.so.1", exit: 1, within: 3, action: drained},
	{name: "NVML library is a fifo", conf: gpuLines, gpu: []string{}, set: "rm node/libnvidia-ml.so.1; mkfifo node/libnvidia-ml.so.1", words: "-t 6", exit: 1, within: 7.5, action: drained, says: "hung"},
	{name: "one GPU of eight has uncorrected errors", conf: gpuLines, gpu: []string{"3 nvmlDeviceGetMemoryErrorCounter 1 0 * = 2"}, exit: 1, within: 3, action: drained, says: "gpu3"},
	{name: "one GPU of eight is too hot", conf: "* || check_gpu_temp 60\n", gpu: []string{"3 nvmlDeviceGetTemperature = 90"}, exit: 1, within: 3, action: drained, says: "gpu3"},
	{name: "one GPU of eight is lost", conf: "* || check_gpu_recovery\n", gpu: []string{"3 * error 15"}, exit: 1, within: 3, action: drained, says: "gpu3|0000:13:00.0"},
	{name: "seven GPUs", conf: gpuLines, gpu: []string{"- nvmlDeviceGetCount = 7"}, exit: 1, within: 3, action: drained, says: "want 8"},
	{name: "an error that NVML does not define", conf: gpuLines, gpu: []string{"3 nvmlDeviceGetTemperature error 12345"}, exit: 3, within: 3},
	{name: "an Xid of the kernel", guard: "B2", conf: "* || check_gpu_xid\n", gpu: []string{}, set: kmsg(`4,100,1000,-;NVRM: Xid (PCI:0000:13:00): 79, pid=1, GPU has fallen off the bus.`), within: 3, says: "gpu3 0000:13:00.0: Xid 79"},
	{name: "an Xid that a user has written", guard: "B2", conf: "* || check_gpu_xid\n", gpu: []string{}, set: kmsg(`12,100,1000,-;NVRM: Xid (PCI:0000:13:00): 79, pid=1, GPU has fallen off the bus.`), within: 3, mute: "Xid 79|20034|fallen"},
	{name: "an Xid in a user's process name", guard: "B2", conf: "* || check_gpu_xid\n", gpu: []string{}, set: kmsg(`4,100,1000,-;NVRM: Xid (PCI:0[77]: segfault at 0 ip 0 sp 0 error 4 in x[1+1]`), within: 3, mute: "Xid 79|20034|fallen"},
	{name: "a GPU off the bus in a user's names", guard: "B2", conf: "* || check_gpu_xid\n", gpu: []string{}, set: kmsg(`6,100,1000,-;NVRM: GPU[77]: segfault at 0 ip 0 sp 0 error 4 in x 0000:13:00.0: GPU has fallen off the bus.[1+1]`), within: 3, mute: "Xid 79|20034|fallen"},
	{name: "an SXid in a user's names", guard: "B2", conf: "* || check_gpu_xid\n", gpu: []string{}, set: kmsg(`6,100,1000,-;nvidia-nvswitch[77]: segfault at 0 ip 0 sp 0 error 4 in y: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 01 [1+1]`), within: 3, mute: "Xid 79|20034|fallen"},
	{name: "an Xid behind a line break of a user", guard: "B2", conf: "* || check_gpu_xid\n", gpu: []string{}, set: kmsg(`4,100,1000,-;process 'x\x0aNVRM: Xid (PCI:0000:13:00): 79, pid=1, x' launched`), within: 3, mute: "Xid 79|20034|fallen"},
}

// kmsg creates a kernel log of a node.
func kmsg(line string) string {
	return "mkdir -p node/root/dev node/root/proc/sys/kernel/random; echo this >node/root/proc/sys/kernel/random/boot_id; cat >node/root/dev/kmsg <<'EOF'\n6,1,1,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06\n" + line + "\nEOF\n"
}

// awaitStep waits for a process that calls itself a step.
const awaitStep = ` & for i in {1..600}; do [ "$(head -c 10 /proc/$!/cmdline)" = slurmstepd ] && exit 0; sleep 0.05; done; exit 1`

// nodeFaults are nodes with one faulty device, files that do not answer, and wrong clocks.
var nodeFaults = []fault{
	{name: "one port of eight is down", conf: "* || check_ib_ports\n", sys: func(n *fakesys.Node) { n.Down("mlx5_3") }, exit: 1, within: 3, action: drained, says: "mlx5_3"},
	{name: "one port of eight has half its rate", conf: "* || check_ib_ports\n", sys: func(n *fakesys.Node) { n.HalfRate("mlx5_3") }, exit: 1, within: 3, action: drained, says: "mlx5_3"},
	{name: "one adapter of eight is gone", conf: "* || check_ib_count 8\n", sys: func(n *fakesys.Node) { n.Remove("mlx5_3") }, exit: 1, within: 3, action: drained},
	{name: "one adapter of eight has lost lanes", conf: "* || check_ib_pcie\n", sys: func(n *fakesys.Node) { n.HalfWidth(fakesys.HCAAddress(3)) }, exit: 1, within: 3, action: drained, says: "mlx5_3"},
	{name: "a port's state is garbage", conf: "* || check_ib_ports\n", sys: func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/state", "\x00\xff") }, exit: 3, within: 3, says: "mlx5_3"},
	{name: "a port's state is a fifo", conf: "* || check_ib_ports\n", sys: func(*fakesys.Node) {}, set: "f=$(readlink -f node/root/sys/class/infiniband/mlx5_3)/ports/1/state; rm $f; mkfifo $f", words: "-t 6", exit: 1, within: 7.5, action: drained, says: "hung|mlx5_3"},
	{name: "no /sys", conf: "* || check_ib_ports\n", sys: func(*fakesys.Node) {}, set: "rm -rf node/root/sys", within: 3},
	{name: "HOSTROOT missing", guard: "A2", conf: "* || check_hw_cpuinfo 1\n", words: "HOSTROOT=/mnt/none", exit: 3, within: 3},
	{name: "a directory whose entries are gone", conf: "* || check_file_contents gone/x /a/\n", set: "mkdir gone", exit: 1, within: 3, action: drained},
	{name: "a file of 10 GB to look into", conf: "* || check_file_contents big /a/\n", set: "truncate -s 10G big", words: "-t 6", exit: 3, within: 7.5},
	{name: "a fifo to look into", guard: "A7", conf: "* || check_file_contents pipe /a/\n" + bad, set: "mkfifo pipe", words: "-a -t 6", exit: 1, within: 7.5, action: drained},
	{name: "a file system that is full", conf: "* || check_fs_free /mnt/full 10%\n", set: "mkdir full; mount -t tmpfs -o size=64k tmpfs full; head -c 60k /dev/zero >full/x", exit: 1, within: 3, action: drained},
	{name: "a mount that is gone", conf: "* || check_fs_mount_rw -t tmpfs -f /mnt/scratch\n", set: "mkdir scratch", exit: 1, within: 3, action: drained},
	{name: "a mount that is read-only", conf: "* || check_fs_mount_rw -f /mnt/scratch\n", set: "mkdir scratch; mount -t tmpfs -o ro tmpfs scratch", exit: 1, within: 3, action: drained},
	{name: "300 more processes", conf: "* || check_ps_daemon nosuchd\n", set: "for i in {1..300}; do sleep 300 & done", exit: 1, within: 7, action: drained},
	{name: "a process that renames itself", guard: "B3", conf: "* || check_disk_write -t 5 /nowhere\n", set: "setpriv --reuid 65534 --regid 65534 --clear-groups bash -c \"exec -a 'slurmstepd: [999.batch]' sleep 300\"" + awaitStep, words: "-t 30", exit: 3, within: 5, says: "/nowhere: not measured", mute: "job 999"},
	{name: "a step of a job", guard: "B3", conf: "* || check_disk_write -t 5 /nowhere\n", set: "cp /bin/sleep slurmstepd; bash -c \"exec -a 'slurmstepd: [999.batch]' ./slurmstepd 300\"" + awaitStep, words: "-v -t 30", within: 5, says: "job 999 runs on the node"},
}
