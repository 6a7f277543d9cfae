package verdict

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

func gpu(n int) checks.Device {
	return checks.Device{Kind: "gpu", Name: fmt.Sprintf("gpu%d", n), PCI: fmt.Sprintf("0000:%02x:00.0", 0x33+0x11*n)}
}

func faulty(check, code string, d checks.Device, remedy checks.Remedy) checks.Finding {
	return checks.Finding{Check: check, Code: code, Severity: checks.Fail, Device: d, Remedy: remedy, Message: check + ":  what the log has"}
}

// typical are common faults, and how sinfo -R shows each at its default width. docs/reference/slurm.md has
// the same table.
var typical = []struct {
	fault  string
	x      checks.Finding
	others int
	sinfo  string // 20 characters
	reason string
}{
	{"a GPU is lost", faulty("check_gpu_count", "gpu.recovery.lost", gpu(3), checks.RebootNode), 2,
		"NHC: gpu3 lost 0000:", "NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost] +2"},
	{"the driver asks for a reset", faulty("check_gpu_recovery", "gpu.recovery.reset", gpu(0), checks.ResetGPU), 0,
		"NHC: gpu0 reset due ", "NHC: gpu0 reset due 0000:33:00.0: reset the GPU (check_gpu_recovery) [gpu.recovery.reset]"},
	{"row remapping has failed", faulty("check_gpu_remap", "gpu.remap.failed", gpu(5), checks.ReseatOrRMA), 1,
		"NHC: gpu5 remap fail", "NHC: gpu5 remap failed 0000:88:00.0: reseat or RMA (check_gpu_remap) [gpu.remap.failed] +1"},
	{"uncorrectable ECC errors", faulty("check_gpu_ecc", "gpu.ecc.dram", gpu(2), checks.ResetGPU), 0,
		"NHC: gpu2 DRAM error", "NHC: gpu2 DRAM error 0000:55:00.0: reset the GPU (check_gpu_ecc) [gpu.ecc.dram]"},
	{"an Xid in the kernel's log", faulty("check_gpu_xid", "gpu.xid.119", gpu(1), checks.ResetGPU), 0,
		"NHC: gpu1 Xid 119 00", "NHC: gpu1 Xid 119 0000:44:00.0: reset the GPU (check_gpu_xid) [gpu.xid.119]"},
	{"NVLinks are down", faulty("check_gpu_nvlink", "gpu.nvlink.down", gpu(7), checks.ResetGPU), 0,
		"NHC: gpu7 NVLink dow", "NHC: gpu7 NVLink down 0000:aa:00.0: reset the GPU (check_gpu_nvlink) [gpu.nvlink.down]"},
	{"PCIe lanes are lost", faulty("check_gpu_pcie", "gpu.pcie.width", gpu(4), checks.ReseatOrRMA), 0,
		"NHC: gpu4 PCIe width", "NHC: gpu4 PCIe width 0000:77:00.0: reseat or RMA (check_gpu_pcie) [gpu.pcie.width]"},
	{"a GPU overheats", faulty("check_gpu_temp", "gpu.temp.slowdown", gpu(6), checks.NoRemedy), 0,
		"NHC: gpu6 overheated", "NHC: gpu6 overheated 0000:99:00.0 (check_gpu_temp) [gpu.temp.slowdown]"},
	{"NVML does not answer", faulty("check_gpu_temp", "probe.hung", gpu(1), checks.RebootNode), 0,
		"NHC: gpu1 hung 0000:", "NHC: gpu1 hung 0000:44:00.0: reboot (check_gpu_temp) [probe.hung]"},
	{"driver and library differ", faulty("check_gpu_driver", "gpu.driver.mismatch", checks.Device{}, checks.RebootNode), 0,
		"NHC: driver differs:", "NHC: driver differs: reboot (check_gpu_driver) [gpu.driver.mismatch]"},
	{"an InfiniBand port is down", faulty("check_ib_ports", "ib.ports.polling", checks.Device{Kind: "port", Name: "mlx5_0:1", PCI: "0000:18:00.0"}, checks.CheckCable), 0,
		"NHC: mlx5_0:1 link d", "NHC: mlx5_0:1 link down 0000:18:00.0: check the cable (check_ib_ports) [ib.ports.polling]"},
	{"an NVMe disk is worn out", faulty("check_nvme", "nvme.spare", checks.Device{Kind: "nvme", Name: "nvme2", PCI: "0000:81:00.0"}, checks.ReseatOrRMA), 0,
		"NHC: nvme2 worn out ", "NHC: nvme2 worn out 0000:81:00.0: reseat or RMA (check_nvme) [nvme.spare]"},
}

// TestReasonsAtSinfosWidth shows the output of sinfo -R for common faults: its default format
// has 20 characters for the reason, and they must contain device and fault.
func TestReasonsAtSinfosWidth(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../../docs/reference/slurm.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range typical {
		reason := "NHC: " + Reason(tt.x, tt.others)
		shown := reason[:min(20, len(reason))]
		t.Logf("%-20s | %s", shown, tt.fault)
		if reason != tt.reason || shown != tt.sinfo {
			t.Errorf("%s:\ngot  %q\n     %q\nwant %q\n     %q", tt.fault, shown, reason, tt.sinfo, tt.reason)
		}
		fault, _, _ := strings.Cut(checks.Words(tt.x.Code), " ")
		if !strings.Contains(shown, fault) || !strings.Contains(shown, tt.x.Device.Name) {
			t.Errorf("%s: sinfo -R shows %q: want device and fault", tt.fault, shown)
		}
		if row := fmt.Sprintf("| %s | `%s` | `%s` |\n", tt.fault, strings.TrimSpace(shown), reason); !strings.Contains(string(docs), row) {
			t.Errorf("docs/reference/slurm.md lacks the row\n%s", row)
		}
	}
}

func TestReason(t *testing.T) {
	t.Parallel()
	count := faulty("check_gpu_count", "gpu.count", checks.Device{Kind: "gpus"}, checks.PowerCycle)
	count.Want, count.Got = "8", "7"
	jobs := faulty("check_gpu_xid", "gpu.xid.79", gpu(3), checks.RebootNode)
	jobs.Jobs = "12 13"
	long := count
	long.Want = strings.Repeat("x", 100)
	for name, tt := range map[string]struct {
		x      checks.Finding
		others int
		want   string
	}{
		"LBNL NHC's text stays": {checks.Finding{Code: "fs.mount.missing", Severity: checks.Fail, Message: `check_fs_mount:  /home not mounted`, Remedy: checks.RebootNode}, 3,
			"check_fs_mount:  /home not mounted"},
		"a number of devices": {count, 0, "GPU count 7, want 8: power cycle (check_gpu_count) [gpu.count]"},
		"a fault that is no quantity": {checks.Finding{Check: "check_gpu_count", Code: "gpu.nvml", Severity: checks.Fail, Want: "8 GPUs", Got: "0", Remedy: checks.RebootNode}, 0,
			"no NVML: reboot (check_gpu_count) [gpu.nvml]"},
		"a long number": {long, 0, "GPU count: power cycle (check_gpu_count) [gpu.count]"},
		"a lost GPU that NVML does not name": {faulty("check_gpu_count", "gpu.recovery.lost", checks.Device{}, checks.RebootNode), 0,
			"GPU lost: reboot (check_gpu_count) [gpu.recovery.lost]"},
		"the jobs": {jobs, 1, "gpu3 lost 0000:66:00.0: reboot (check_gpu_xid) [gpu.xid.79] +1 [job 12 13]"},
		"a GPU without an index": {faulty("check_gpu_count", "gpu.count.gone", checks.Device{Kind: "gpu", PCI: "0000:66:00.0"}, checks.ReseatOrRMA), 0,
			"gpu gone from PCI 0000:66:00.0: reseat or RMA (check_gpu_count) [gpu.count.gone]"},
		"no kind": {faulty("check_pcie", "pcie.gone", checks.Device{PCI: "0000:66:00.0"}, checks.RebootNode), 0, "0000:66:00.0 gone from PCI: reboot (check_pcie) [pcie.gone]"},
		"a leftover of a job": {checks.Finding{
			Check: "check_job_leftovers", Code: "job.left.process", Severity: checks.Fail, Device: checks.Device{Kind: "process", Name: "train.py"},
			Remedy: checks.RestartApp, Message: "check_job_leftovers:  alice's process 4711 (train.py) of job 12 is left [job 12]", Jobs: "12",
		}, 0, "process left, alice's process 4711 (train.py) of job 12 is left: restart the program (check_job_leftovers) [job.left.process] [job 12]"},
		"a leftover with a long name": {checks.Finding{
			Check: "check_job_leftovers", Code: "job.left.file", Severity: checks.Fail, Device: checks.Device{Kind: "file"},
			Message: "check_job_leftovers:  /dev/shm/" + strings.Repeat("\u00e9", 200),
		}, 0, "files left, /dev/shm/" + strings.Repeat("\u00e9", 95) + "... (check_job_leftovers) [job.left.file]"},
		"a user's name that poses as a code": {checks.Finding{Message: "found gpu3 lost (check_gpu_count) [gpu.recovery.lost] +1"}, 0, "found gpu3 lost (check_gpu_count) (gpu.recovery.lost) +1"},
		"such a name before a blank":         {checks.Finding{Message: "found gpu3 lost (check_gpu_count) [gpu.recovery.lost] "}, 0, "found gpu3 lost (check_gpu_count) (gpu.recovery.lost)"},
		"such a name in the second line":     {checks.Finding{Message: "found\ngpu3 lost (check_gpu_count) [gpu.recovery.lost]\n"}, 0, "found gpu3 lost (check_gpu_count) (gpu.recovery.lost)"},
		"such a name with a tab":             {checks.Finding{Message: "found gpu3 lost\t(check_gpu_count)\t[gpu.recovery.lost]"}, 0, "found gpu3 lost (check_gpu_count) (gpu.recovery.lost)"},
		"lines without such a name":          {checks.Finding{Message: "found\n\"gpu3\" [lost]\n"}, 0, "found\n\"gpu3\" [lost]\n"},
		"another name with brackets":         {checks.Finding{Message: "check_ps_cpu:  [kworker] uses 100% (PID 7)"}, 0, "check_ps_cpu:  [kworker] uses 100% (PID 7)"},
		"a long path": {faulty("check_fs_used", "probe.hung", checks.Device{Kind: "path", Name: "/" + strings.Repeat("deep/", 40) + "end"}, checks.NoRemedy), 0,
			"..." + strings.Repeat("deep/", 12)[3:] + "end hung (check_fs_used) [probe.hung]"},
	} {
		if got := Reason(tt.x, tt.others); got != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, tt.want)
		}
	}
}

func TestWorst(t *testing.T) {
	t.Parallel()
	lbnl := checks.Finding{Code: "fs.mount.missing", Severity: checks.Fail, Message: "check_fs_mount:  /home not mounted"}
	timeout := checks.Finding{Severity: checks.Fail, Message: "Script timed out."}
	var (
		failed  = faulty("check_gpu_remap", "gpu.remap.failed", gpu(5), checks.ReseatOrRMA)
		pending = faulty("check_gpu_remap", "gpu.remap.pending", gpu(3), checks.ResetGPU)
		lost    = faulty("check_gpu_recovery", "gpu.recovery.lost", gpu(3), checks.RebootNode)
		secure  = faulty("check_gpu_xid", "gpu.xid.110", gpu(3), checks.PowerCycle)
		reboot  = faulty("check_gpu_driver", "gpu.driver.mismatch", checks.Device{}, checks.RebootNode)
		cable   = faulty("check_ib_ports", "ib.ports.polling", checks.Device{Kind: "port", Name: "mlx5_0:1"}, checks.CheckCable)
		hot     = faulty("check_gpu_temp", "gpu.temp.limit", gpu(3), checks.NoRemedy)
		links   = faulty("check_gpu_nvlink", "gpu.nvlink.down", gpu(1), checks.ResetGPU)
		width   = faulty("check_pcie", "pcie.width", checks.Device{Kind: "pci", PCI: gpu(3).PCI}, checks.ReseatOrRMA)
		other   = faulty("check_pcie", "pcie.width", checks.Device{Kind: "pci", PCI: gpu(6).PCI}, checks.ReseatOrRMA)
		count   = faulty("check_gpu_count", "gpu.count", checks.Device{Kind: "gpus"}, checks.PowerCycle)
		disk    = faulty("check_nvme", "nvme.gone", checks.Device{Kind: "nvme", Name: "nvme3", PCI: "0000:43:00.0"}, checks.ReseatOrRMA)
		disks   = faulty("check_nvme_count", "nvme.count", checks.Device{Kind: "nvmes"}, checks.ReseatOrRMA)
		hcas    = faulty("check_ib_count", "ib.count", checks.Device{Kind: "hcas"}, checks.ReseatOrRMA)
	)
	drill := lost
	drill.Drill = true
	list := func(x ...checks.Finding) []checks.Finding { return x }
	for name, tt := range map[string]struct {
		list []checks.Finding
		want checks.Finding
	}{
		"a failed remap before a pending one": {list(pending, failed), failed},
		"the order does not matter":           {list(failed, pending), failed},
		"RMA before reboot":                   {list(reboot, failed), failed},
		"power cycle before reboot":           {list(reboot, count), count},
		"reboot before reset":                 {list(pending, links, reboot), reboot},
		"reset before the rest":               {list(cable, hot, lbnl, pending), pending},
		"the first of equals":                 {list(lbnl, cable, hot), lbnl},
		"a fault before the end of the run":   {list(cable, timeout), cable},
		"the end of the run alone":            {list(timeout), timeout},
		"lost before the links to it":         {list(links, lost), lost},
		"lost before other reboots":           {list(reboot, lost), lost},
		"lost before what it entails":         {list(width, count, hot, lost), lost},
		"lost by a security fault":            {list(lost, secure), secure},
		"another device needs RMA":            {list(lost, other), other},
		"fewer adapters are another fault":    {list(lost, hcas), hcas},
		"a disk before the number of disks":   {list(disks, disk), disk},
		"a number alone":                      {list(cable, count), count},
		"a drill hides no real failure":       {list(drill, hot), hot},
		"and entails none":                    {list(drill, count, reboot), count},
		"a drill alone":                       {list(drill), drill},
	} {
		if got := tt.list[Worst(tt.list)]; got != tt.want {
			t.Errorf("%s: %s %s, want %s %s", name, got.Device, got.Code, tt.want.Device, tt.want.Code)
		}
		if turned := slices.Clone(tt.list); !strings.Contains(name, "first of") {
			slices.Reverse(turned)
			if got := turned[Worst(turned)]; got.Remedy.Rank() != tt.want.Remedy.Rank() {
				t.Errorf("%s, the other way round: %s %s", name, got.Device, got.Code)
			}
		}
	}
	if got := Worst(nil); got != -1 {
		t.Errorf("no failure: %d", got)
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"no result: nvmlDeviceGetSerial(3): the GPU is lost (NVML error 15)":                                     "no result: the GPU is lost",
		"no result: field 230 of nvmlDeviceGetFieldValues(0): unknown error (NVML error 999)":                    "no result: unknown error",
		"cannot ask NVML: nvmlInit: the driver is not loaded (NVML error 9)":                                     "cannot ask NVML: the driver is not loaded",
		"gpu1 0000:40:00.0: hung (in nvmlDeviceGetTemperature(1): process 12 in state D, wait channel x)":        "gpu1 0000:40:00.0: hung (process 12 in state D, wait channel x)",
		"no result: its worker died in nvmlDeviceGetUUID(5) of gpu5 0000:15:00.0: exit status 127":               "no result: its worker died: exit status 127",
		"no result: after 2.0 s the check was still at work in nvmlDeviceGetTemperature(1) of gpu1 0000:40:00.0": "no result: after 2.0 s the check was still at work",
		"no result: its worker died in nvmlInit: signal: segmentation fault":                                     "no result: its worker died: signal: segmentation fault",
		"hung (in statfs /home: process 12 in state D)":                                                          "hung (in statfs /home: process 12 in state D)",
		"cuMemAlloc(3): CUDA_ERROR_OUT_OF_MEMORY (2)":                                                            "CUDA_ERROR_OUT_OF_MEMORY (2)",
		"gpu3 0000:66:00.0: link 7 down, want 18 up, got 17":                                                     "gpu3 0000:66:00.0: link 7 down, want 18 up, got 17",
	} {
		if got := Plain(message); got != want {
			t.Errorf("Plain(%q)\ngot  %q\nwant %q", message, got, want)
		}
	}
}
