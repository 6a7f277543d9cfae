package bench

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakecuda"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// activeWords run lines on a node of eight GPUs whose CUDA does everything in no
// time, so that what is measured is the frame of active tests: the worker, the libraries,
// the watch, the claim, the result that is kept.
func activeWords(b *testing.B, conf string) []string {
	b.Helper()
	argv := gpuWords(b, 8, conf)
	dir := b.TempDir()
	lib, err := fakecuda.Place(dir, fakecuda.Scenario(8))
	if err != nil {
		b.Skipf("skip: %v", err)
	}
	if err := fakenvml.Write(nodeOf(argv), map[string]string{"proc/sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555\n"}); err != nil {
		b.Fatal(err)
	}
	return append(argv, "CUDA_LIBRARY="+lib)
}

// nodeOf is where the node of such a run begins.
func nodeOf(argv []string) string {
	const setting = "HOSTROOT="
	i := slices.IndexFunc(argv, func(word string) bool { return len(word) > len(setting) && word[:len(setting)] == setting })
	return filepath.Clean(argv[i][len(setting):])
}

// BenchmarkActive is a run with the shortest active test there is, on eight GPUs.
// BenchmarkGPUNone is the same without it.
func BenchmarkActive(b *testing.B) { measure(b, activeWords(b, "* || check_gpu_launch\n")...) }

// BenchmarkActiveFresh is a run for which the last result of such a test is young
// enough: no library is loaded and no process more is started than for any other line.
func BenchmarkActiveFresh(b *testing.B) {
	argv := activeWords(b, "* || check_gpu_launch --max-age 24h\n")
	measure(b, argv...)
	if n, err := processes(argv); err == nil {
		b.ReportMetric(float64(n), "processes/run")
	}
}
