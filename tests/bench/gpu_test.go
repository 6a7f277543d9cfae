package bench

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// gpuChecks are all checks of GPUs, as a site would have them.
const gpuChecks = `
* || check_gpu_count %d
* || check_gpu_driver
* || check_gpu_recovery
* || check_gpu_ecc 20000000 10000
* || check_gpu_remap
* || check_gpu_persistence
* || check_gpu_mode -m off
* || check_gpu_vbios
* || check_gpu_temp
* || check_gpu_power
* || check_gpu_clocks
* || check_gpu_throttle
* || check_gpu_pcie 5 16
* || check_gpu_nvlink -n 18
* || check_gpu_fabric
* || check_gpu_procs
* || check_gpu_xid
`

// gpuWords run a configuration on a node whose NVML answers in no time, so that
// what is measured is the cost above NVML's own.
func gpuWords(b *testing.B, gpus int, conf string) []string {
	b.Helper()
	dir := b.TempDir()
	lib, err := fakenvml.Place(dir, fakenvml.Scenario(fakenvml.H100, gpus))
	if err != nil {
		b.Skipf("skip: %v", err)
	}
	root := filepath.Join(dir, "root")
	files := fakenvml.Files(fakenvml.H100, gpus)
	files["dev/kmsg"] = "6,1,1000000,-;Linux version\n"
	if err := fakenvml.Write(root, files); err != nil {
		b.Fatal(err)
	}
	return append(words(confFile(b, conf)), "NVML_LIBRARY="+lib, "HOSTROOT="+root)
}

func BenchmarkGPU(b *testing.B) {
	for _, gpus := range []int{8, 16} {
		b.Run(fmt.Sprint(gpus), func(b *testing.B) {
			argv := gpuWords(b, gpus, fmt.Sprintf(gpuChecks, gpus))
			measure(b, argv...)
			if n, err := processes(argv); err == nil {
				b.ReportMetric(float64(n), "processes/run")
			}
		})
	}
}

// BenchmarkGPUNone loads the library and asks one GPU who it is: what the checks
// of BenchmarkGPU cost is the difference.
func BenchmarkGPUNone(b *testing.B) { measure(b, gpuWords(b, 1, "* || check_gpu_vbios\n")...) }

// BenchmarkProlog and BenchmarkEpilog are those of a job with two of eight GPUs,
// with the job's record. What NVML itself takes is not in it.
func BenchmarkProlog(b *testing.B) { aroundJob(b, "--prolog") }

func BenchmarkEpilog(b *testing.B) { aroundJob(b, "--epilog") }

func aroundJob(b *testing.B, role string) {
	for name, value := range map[string]string{
		"SLURM_JOB_ID": "1234", "SLURM_JOB_UID": "5001", "SLURM_JOB_USER": "alice", "SLURM_JOB_GPUS": "2,5", "SLURMD_NODENAME": "bench",
	} {
		b.Setenv(name, value)
	}
	argv := gpuWords(b, 8, fmt.Sprintf(gpuChecks, 8))
	argv = slices.Insert(argv, 1, role)
	measure(b, argv...)
	if n, err := processes(argv); err == nil {
		b.ReportMetric(float64(n), "processes/run")
	}
}
