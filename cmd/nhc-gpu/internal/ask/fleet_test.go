package ask

import (
	"fmt"
	"strings"
	"testing"
	"time"

	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

func TestGroupFleet(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	for i := range 1000 {
		switch {
		case i < 12:
			fmt.Fprintf(&out, "n%03d|drain|2026-11-22T03:%02d:00|root|NHC: gpu%d lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost] +%d\n", i, 30-i, i%2, i)
		case i < 15:
			fmt.Fprintf(&out, "n%03d|drng|2026-11-22T03:00:00|alice|disk\n", i)
		case i == 15:
			fmt.Fprintf(&out, "n%03d|down*|2026-11-22T03:00:00|slurm|NHC: check_site:  my text\n", i)
		case i == 16: // back in service: the reason is an old one
			fmt.Fprintf(&out, "n%03d|idle|2026-11-22T03:00:00|root|NHC: gpu1 lost [gpu.recovery.lost]\n", i)
		case i == 17:
			fmt.Fprintf(&out, "n%03d|down*|Unknown|Unknown|none\n", i)
		default:
			fmt.Fprintf(&out, "n%03d|mix|Unknown|Unknown|none\n", i)
		}
	}
	nodes, err := slurm.ParseFleet([]byte(out.String()))
	if err != nil || len(nodes) != 1000 {
		t.Fatalf("%d nodes, %v", len(nodes), err)
	}
	var text strings.Builder
	describeFleet(&text, len(nodes), groupFleet(nodes))
	for _, want := range []string{
		"1000 nodes: 13 drained by nhc-gpu, 4 out of service for another reason\n\n   12  gpu.recovery.lost  since 2026-11-22T03:19:00\n",
		"n000, n001, n002, n003, n004, n005, n006, n007, n008, n009 and 2 more\n", "devices  gpu0 on 6, gpu1 on 6\n", "do       ",
		"    3  disk  since", "    1  NHC: check_site:  my text  since", "    1  no reason, state down*  since unknown\n       nodes    n017\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}

func TestFleetLine(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 3, 0, 0, 0, time.Local)
	e := slurm.FleetEvent{Node: "n1", Start: at, State: "DRAIN", User: "root(0)", Reason: "NHC: x"}
	if got := fleetLine(e, at.Add(time.Hour)); got != "2026-11-22 03:00:00  n1           DRAIN    for 60 min, still root(0)      NHC: x" {
		t.Errorf("%q", got)
	}
	e.End = at.Add(50 * time.Hour)
	if got := fleetLine(e, at); !strings.Contains(got, "for 2 days ") {
		t.Errorf("%q", got)
	}
}

func TestParseSince(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 3, 0, 0, 0, time.Local)
	for text, want := range map[string]time.Time{
		"": {}, "24h": now.Add(-24 * time.Hour), "7d": now.Add(-7 * 24 * time.Hour), "2026-11-20": time.Date(2026, 11, 20, 0, 0, 0, 0, time.Local),
		"2026-11-20 03:04": time.Date(2026, 11, 20, 3, 4, 0, 0, time.Local),
	} {
		if got, err := parseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	if _, err := parseSince("yesterday", now); err == nil {
		t.Error("yesterday: no error")
	}
}
