package probe

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestLoadAverages(t *testing.T) {
	t.Parallel()
	got, err := LoadAverages(NewHost(probetest.Tree(t, map[string]string{"proc/loadavg": "12.97 8.00 0.31 3/1234 56789\n"})))
	if want := [3]float64{12.97, 8, 0.31}; err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, text := range []string{"", "1 2\n", "1 2 x\n", "1 -2 3\n", "NaN 1 1\n", "1e99 1 1\n"} {
		if _, err := LoadAverages(NewHost(probetest.Tree(t, map[string]string{"proc/loadavg": text}))); probetest.Message(err) != "parse /proc/loadavg: invalid argument" {
			t.Errorf("%q: %v", text, err)
		}
	}
}
