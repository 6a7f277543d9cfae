package cuda

import (
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestCUDAProcesses(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{"proc/self": "", "proc/meminfo": "", "proc/14/stat": "gone"}))
	for pid, targets := range map[int][]string{
		10: {"/dev/null", "/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"}, // a job
		11: {"/dev/nvidia3", "/dev/nvidiactl"},                                 // monitoring
		12: {"/dev/nvidia5", "/dev/nvidia-uvm"},                                // on another GPU
		13: {"/dev/nvidia3", "/dev/nvidia30", "/dev/nvidia-uvm"},
	} {
		dir := h.Path("/proc/" + strconv.Itoa(pid) + "/fd")
		probetest.Mkdir(t, dir)
		for i, target := range targets {
			if err := os.Symlink(target, dir+"/"+strconv.Itoa(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := Processes(h, 3)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []int{10, 13}) {
		t.Errorf("%v, %v; want 10 and 13", got, err)
	}
	if none, err := Processes(h, 30); err != nil || !slices.Equal(none, []int{13}) {
		t.Errorf("%v, %v", none, err)
	}
}
