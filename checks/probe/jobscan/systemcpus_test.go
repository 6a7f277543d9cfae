package jobscan

import (
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestParseCPUs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"0": "[0]", "0-2,5": "[0 1 2 5]", "": "[]", "2-1": "[]", "x": "[]", "0-99999": "[]"} {
		if list, _ := parseCPUs(text); fmt.Sprint(list) != want {
			t.Errorf("%q: %v, want %s", text, list, want)
		}
	}
}

// slurmd stands for a process that runs on one CPU only. The tests do not need root for a process of their own.
func TestSystemCPUs(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c", "sleep 1000 & echo $!; wait")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	child := make([]byte, 16)
	n, _ := out.Read(child)
	sleep, _ := strconv.Atoi(strings.TrimSpace(string(child[:n])))
	t.Cleanup(func() {
		_ = unix.Kill(sleep, unix.SIGKILL)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	pid := cmd.Process.Pid
	var own, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		t.Fatal(err)
	}
	first := 0
	for !own.IsSet(first) {
		first++
	}
	one.Set(first)
	if err := Confine(pid, &one); err != nil {
		t.Fatal(err)
	}
	for _, p := range []int{pid, sleep} {
		var now unix.CPUSet
		if err := unix.SchedGetaffinity(p, &now); err != nil || now != one {
			t.Errorf("process %d runs on %d CPUs, %v, want one", p, now.Count(), err)
		}
	}
	for _, test := range []struct {
		online, conf string
		want         string
	}{
		{fmt.Sprintf("0-%d", first+3), "", fmt.Sprintf("[%d]", first)},
		{fmt.Sprintf("0-%d", first+1), "TaskPluginParam=Cores,SlurmdOffSpec\n", ""},
		{strconv.Itoa(first), "", "none"},
		{"", "", "none"},
	} {
		files := map[string]string{"sys/devices/system/cpu/online": test.online + "\n", "etc/slurm/slurm.conf": test.conf}
		h := probe.NewHost(probetest.Tree(t, files))
		set, known := SystemCPUs(h, []int{pid})
		var got []int
		for cpu := range maxCPUs {
			if set.IsSet(cpu) {
				got = append(got, cpu)
			}
		}
		switch {
		case test.want == "none" && known,
			test.want == "" && (!known || slices.Contains(got, first) || len(got) != first+1),
			strings.HasPrefix(test.want, "[") && (!known || fmt.Sprint(got) != test.want):
			t.Errorf("online %q, %q: CPUs %v, known %v, want %s", test.online, test.conf, got, known, test.want)
		}
		if _, known := SystemCPUs(h, nil); known {
			t.Error("no slurmd: want unknown")
		}
	}
}
