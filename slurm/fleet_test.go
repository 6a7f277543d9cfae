package slurm

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseFleet(t *testing.T) {
	t.Parallel()
	out := `n1|idle|Unknown|Unknown|none
n2|drain|2026-11-22T03:12:41|root|NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost] +2
n2|drain|2026-11-22T03:12:41|root|NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost] +2
n3|down*|2026-11-21T01:00:00|slurm|a | b

garbage
`
	nodes, err := ParseFleet([]byte(out))
	if err == nil || err.Error() != `sinfo printed "garbage", want NODE|STATE|TIME|USER|REASON` {
		t.Errorf("error %v", err)
	}
	if len(nodes) != 3 || nodes[0].Reason != "" || nodes[0].User != "" || nodes[1].State.Class != Drained || nodes[2].Reason != "a | b" || nodes[2].State.Class != Down {
		t.Errorf("%+v", nodes)
	}
	if !Ours(nodes[1].Reason) || Ours(nodes[2].Reason) {
		t.Error("whose reasons they are")
	}
	if nodes, err := ParseFleet(nil); nodes != nil || err != nil {
		t.Errorf("nothing: %v, %v", nodes, err)
	}
}

func TestReasonParts(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string][2]string{
		"NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost] +2": {"gpu.recovery.lost", "gpu3"},
		"NHC: mlx5_0:1 down: check the cable (check_ib_ports) [ib.ports.polling]":      {"ib.ports.polling", "mlx5_0:1"},
		"NHC: check_fs_used:  / is 97% full (1kB), threshold is 90%":                   {"", ""},
		"NHC: GPU count 7, want 8 GPUs: power cycle (check_gpu_count) [gpu.count]":     {"gpu.count", ""},
		"NHC: sweep slow TCP eth1 [sweep.tcp.slow] : reboot issued":                    {"sweep.tcp.slow", ""},
		"alice: disk [x.y] is bad":    {"", ""},
		"alice: disk (check_a) [x.y]": {"", ""},
		"":                            {"", ""},
	} {
		if got := [2]string{ReasonCode(reason), ReasonDevice(reason)}; got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
	}
}

func TestParseEvents(t *testing.T) {
	t.Parallel()
	at := func(clock string) time.Time {
		when, err := time.ParseInLocation(slurmClock, "2026-11-22T"+clock, time.Local)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	out := strings.Join([]string{
		"|2026-11-20T00:00:00|Unknown||root(0)|Cluster Registered TRES",
		"n2|2026-11-22T03:00:00|2026-11-22T03:10:00|DRAIN|root(0)|NHC: gpu3 lost (check_gpu_count) [gpu.recovery.lost]",
		"n2|2026-11-22T03:10:00|Unknown|DRAIN|root(0)|NHC: gpu3 lost (check_gpu_count) [gpu.recovery.lost] +1",
		"n1|2026-11-22T02:00:00|2026-11-22T02:30:00|DRAIN|alice(1000)|disk | fan",
		"n1|2026-11-22T02:30:00|2026-11-22T02:40:00|BOOT^|root(0)|disk",
		"n1|soon|Unknown|DRAIN|root(0)|x",
		"rubbish", "",
	}, "\n")
	got, err := ParseEvents([]byte(out))
	if err == nil || !strings.Contains(err.Error(), `"rubbish"`) || !strings.Contains(err.Error(), `start "soon" of node n1`) {
		t.Errorf("error %v", err)
	}
	want := []FleetEvent{
		{Node: "n1", Start: at("02:00:00"), End: at("02:30:00"), State: "DRAIN", User: "alice(1000)", Reason: "disk | fan"},
		{Node: "n1", Start: at("02:30:00"), End: at("02:40:00"), State: "BOOT^", User: "root(0)", Reason: "disk"},
		{Node: "n2", Start: at("03:00:00"), State: "DRAIN", User: "root(0)", Reason: "NHC: gpu3 lost (check_gpu_count) [gpu.recovery.lost]", Code: "gpu.recovery.lost", Device: "gpu3"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if argv := (Settings{}).EventArgv(at("01:02:03")); argv[4] != "start=2026-11-22T01:02:03" {
		t.Errorf("%q", argv)
	}
}

// The lines of other tasks of an array, and of other components, are not those of the job.
func TestJobNodes(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]string{
		"7|alice|gpu[01-03]\n":                 "alice gpu01 gpu02 gpu03",
		"8|alice|gpu01\n7|alice|gpu02\n":       "alice gpu02", // an array
		"9|alice|\n8|alice|gpu01\n7|alice|\n":  " ",           // it waits
		"7|alice|\n7|alice|gpu02\n":            "alice gpu02",
		"17|alice|gpu01\n":                     " ",
		"7|al ice|gpu01\n":                     " ",
		"7|-alice|gpu01\n":                     " ",
		"7|alice|gpu01|gpu02\n":                " ",
		"slurm_load_jobs error: no such job\n": " ",
		"":                                     " ",
	} {
		if user, nodes, err := ParseJobNodes([]byte(out), "7"); user+" "+strings.Join(nodes, " ") != want || err != nil {
			t.Errorf("%q: %q on %q, %v, want %q", out, user, nodes, err, want)
		}
	}
	if _, nodes, err := ParseJobNodes([]byte("7|alice|-x,gpu[\n"), "7"); err == nil {
		t.Errorf("%q", nodes)
	}
}
