package monitor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// sampled returns when the samples of the GPUs were last written, 0 for never.
func (n *node) sampled() int64 {
	info, err := os.Stat(n.state + "/samples-gpus")
	if err != nil {
		return 0
	}
	return info.ModTime().UnixNano()
}

// newFaultyNode returns a node on which a job runs and NVML has a fault; the monitor has begun.
func newFaultyNode(t *testing.T, fault string) *node {
	t.Helper()
	n := newNode(t, "check_gpu_recovery")
	n.gpus(fault)
	n.job("4711", 3)
	n.start(0)
	return n
}

// NVML fails while a job begins, as during an upgrade of the driver: it is opened again while the job runs.
func TestNVMLStartsLater(t *testing.T) {
	t.Parallel()
	n := newFaultyNode(t, "- nvmlInit error 999")
	n.await("failure", func() bool { return len(n.ledger().Silent) > 0 })
	n.gpus()
	n.await("answer", func() bool { return len(n.ledger().Silent) == 0 })
	n.await("samples", func() bool { return n.sampled() > 0 })
}

// NVML's events end with an error: the checks of GPUs run once, and the samples go on.
func TestNVMLEventsEnd(t *testing.T) {
	t.Parallel()
	n := newFaultyNode(t, "- nvmlEventSetWait error 999")
	n.await("samples", func() bool { return n.sampled() > 0 })
	for range 5 {
		last := n.sampled()
		n.await("next sample", func() bool { return n.sampled() > last })
	}
	if got := strings.Count(n.out.String(), "nvmlEventSetWait"); got != 1 || !strings.Contains(n.out.String(), "event gpu: NVML reports no more events") || len(n.ledger().Silent) > 0 {
		t.Errorf("reported %d times, %+v\n%s", got, n.ledger(), n.out.String())
	}
}

// A node with more GPUs than there are columns for samples hears them all, and says once how many have samples.
func TestManyGPUs(t *testing.T) {
	t.Parallel()
	n := newNode(t, "check_gpu_recovery")
	if _, err := fakenvml.Place(filepath.Join(n.dir, "nvml"), fakenvml.Scenario(fakenvml.H100, 20, "19 nvmlEventSetWait with event = 8 79")); err != nil {
		t.Fatal(err)
	}
	n.job("4711", 3)
	n.start(0)
	n.await("samples", func() bool { return n.sampled() > 0 })
	n.must(os.WriteFile(filepath.Join(n.dir, "nvml/event"), nil, 0o600))
	n.await("event", func() bool { return strings.Contains(n.out.String(), "event gpu: gpu19: Xid 79") })
	const note = "samples of 16 of 20 GPUs: there is no place for more"
	if got := strings.Count(n.out.String(), note); got != 1 || len(n.ledger().Silent) > 0 {
		t.Errorf("%d times %q, %+v\n%s", got, note, n.ledger(), n.out.String())
	}
}
