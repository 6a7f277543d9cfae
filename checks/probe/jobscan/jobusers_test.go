package jobscan

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestStepsOf(t *testing.T) {
	t.Parallel()
	h := jobTree(t)
	for job, want := range map[string][]string{"123": {"0"}, "77": {"0"}, "7": nil} {
		if got, err := StepsOf(h, JobRef{ID: job}); err != nil || !cmp.Equal(want, got) {
			t.Errorf("%s: %q, %v, want %q", job, got, err, want)
		}
	}
	if _, err := StepsOf(probe.NewHost(probetest.Tree(t, nil)), JobRef{ID: "1"}); err == nil {
		t.Error("no /proc, and that is no error")
	}
}

func TestJobUsers(t *testing.T) {
	t.Parallel()
	got, err := JobUsers(jobTree(t))
	want := map[string][]uint32{"77": {5001}, "123": {5001, 5002}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	files := map[string]string{"proc/20/cmdline": "slurmstepd: [9.extern]\x00"}
	jobTask(files, "proc/20", "slurmstepd", "S", 1, 20, 0, 0, noSignal)
	if got, err := JobUsers(probe.NewHost(probetest.Tree(t, files))); err != nil || !cmp.Equal(got, map[string][]uint32{"9": nil}) {
		t.Errorf("a job without a process: %v, %v", got, err)
	}
	jobTask(files, "proc/21", "x", "S", 1, 21, 5001, 0, noSignal)
	files["proc/21/cgroup/"] = ""
	if _, err := JobUsers(probe.NewHost(probetest.Tree(t, files))); probetest.Message(err) != "read /proc/21/cgroup: is a directory" {
		t.Errorf("unreadable: %v", err)
	}
	if got, err := JobUsers(probe.NewHost(probetest.Tree(t, map[string]string{"proc/": ""}))); got != nil || err != nil {
		t.Errorf("no job: %v, %v", got, err)
	}
	if _, err := JobUsers(probe.NewHost(probetest.Tree(t, nil))); err == nil {
		t.Error("no /proc, and that is no error")
	}
}
