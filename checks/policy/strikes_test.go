package policy

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

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
	if s.Faults[len(s.Faults)-1].Key == "c" {
		t.Error("the oldest fault is kept in place of a newer one")
	}
}
