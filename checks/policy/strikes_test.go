package policy

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

func TestStrikes(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	var s Strikes
	for _, step := range []struct {
		run  int64
		key  string
		of   int
		want int
	}{
		{1, "a", 3, 1},
		{1, "a", 3, 1}, // the same run
		{1, "b", 3, 1}, // another fault
		{3, "a", 3, 2}, // one run without it
		{6, "a", 3, 1}, // 4 and 5 had none
		{7, "a", 3, 2},
		{8, "a", 3, 3},
		{9, "a", 3, 3},
		{600, "a", 3, 1}, // all others are forgotten
		{5, "a", 3, 1},   // the memory is of another node, or was lost: the numbers begin again
	} {
		if n, _ := s.Add(step.key, step.run, step.of, now); n != step.want {
			t.Errorf("run %d of %s: %d, want %d", step.run, step.key, n, step.want)
		}
	}
	if len(s.Faults) != 1 {
		t.Errorf("%+v", s.Faults)
	}
	s = Strikes{}
	for run, step := range []struct {
		kind, name string
		want       int
	}{
		{"process", "a.out", 1},
		{"process", "b.out", 2}, // the user has renamed it
		{"path", "/dev/shm/x", 3},
		{"mount", "/scratch", 1},
		{"mount", "/home", 1},
		{"gpu", "gpu0", 1},
		{"gpu", "gpu1", 1},
		{"gpu", "gpu0", 2},
	} {
		f := checks.Finding{Check: "check_ps_cpu", Code: "ps.cpu.high", Device: checks.Device{Kind: step.kind, Name: step.name}}
		if n, _ := s.Add(KeyOf(&f), int64(run+1), 10, now); n != step.want {
			t.Errorf("run %d, %s %s: %d, want %d", run+1, step.kind, step.name, n, step.want)
		}
	}
	s = Strikes{}
	for i, f := range []checks.Finding{ // these names are not of users
		{Check: "check_ps_daemon", Code: "ps.daemon.down", Device: checks.Device{Kind: "process", Name: "sshd"}},
		{Check: "check_ps_daemon", Code: "ps.daemon.down", Device: checks.Device{Kind: "process", Name: "munged"}},
		{Check: "check_pcie", Code: "pcie.width", Device: checks.Device{Kind: "nic", Name: "eth0"}},
		{Check: "check_pcie", Code: "pcie.width", Device: checks.Device{Kind: "nic", Name: "eth1"}},
	} {
		if n, _ := s.Add(KeyOf(&f), int64(i+1), 10, now); n != 1 {
			t.Errorf("%s: strike %d of another device", f.Device, n)
		}
	}
	s = Strikes{}
	for i := range int64(36) {
		n, since := s.Add("c", i+1, 36, now.Add(time.Duration(i)*5*time.Minute))
		if n != int(i+1) || !since.Equal(now) {
			t.Errorf("run %d: %d since %s", i+1, n, since)
		}
	}
	for i := range 2 * mostFaults {
		s.Add(fmt.Sprint("x", i), 100, conf.MostStrikes, now)
	}
	data, err := json.Marshal(&s)
	if err != nil || len(s.Faults) != mostFaults || len(data) > 64<<10 {
		t.Errorf("%d faults, %d bytes, %v", len(s.Faults), len(data), err)
	}
	s = Strikes{}
	for run := int64(1); run <= 2; run++ {
		for i := range mostFaults + 20 { // GPUs that cannot be read
			s.Add(KeyOf(&checks.Finding{Check: fmt.Sprint("check", i/8), Code: UnknownGPU, Device: checks.Device{Kind: "gpu", Name: fmt.Sprint("gpu", i%8)}}), run, 36, now)
		}
		if n, _ := s.Add("check_ib_ports ib.ports.down mlx5_3:1", run, 3, now); n != int(run) {
			t.Errorf("run %d of a fault beside many unknown results: strike %d", run, n)
		}
	}
	if s.Faults[len(s.Faults)-1].Key == "c" {
		t.Error("the oldest fault is kept in place of a newer one")
	}
}
