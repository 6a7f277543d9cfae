package slurm

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// at returns a moment some seconds after a boot, with a clock that can be wrong.
func at(boot string, uptime float64, clock string) Moment {
	t, err := time.Parse(time.RFC3339, clock)
	if err != nil {
		panic(err)
	}
	return Moment{Time: t, Boot: boot, Uptime: uptime}
}

var (
	begun = at("boot-1", 1000, "2026-11-21T20:00:00Z")
	ended = at("boot-1", 4600, "2026-11-21T21:00:00Z")
)

// ofGPU returns counters of eight()[i].
func ofGPU(i int, values map[string]uint64) checks.Counters {
	g := eight()[i]
	return checks.Counters{Device: checks.Device{Kind: "gpu", Name: "gpu" + string(rune('0'+i)), PCI: g.PCI, UUID: g.UUID}, Values: values}
}

// aer returns the kernel's counters of that GPU, which have only its address.
func aer(i int, n uint64) checks.Counters {
	return checks.Counters{Device: checks.Device{Kind: "gpu", PCI: eight()[i].PCI}, Values: map[string]uint64{"aer.corrected": n}}
}

func ib(name string, values map[string]uint64) checks.Counters {
	return checks.Counters{Device: checks.Device{Kind: "port", Name: name, PCI: "0000:0c:00.0"}, Values: values}
}

// newRecord returns the record of a job with the GPUs 1 and 2 of eight.
func newRecord(t *testing.T, counted ...checks.Counters) *Record {
	t.Helper()
	s, why := ScopeOf(Job{Share: SomeGPUs, Minors: []int{5, 6}}, Numbering{}, eight())
	if why != "" {
		t.Fatal(why)
	}
	r := NewRecord(Job{ID: "1234", UID: 5001, User: "alice"}, s, "gpu01", begun)
	r.Counted, r.Log = counted, checks.LogMark{Boot: "b", Next: 17}
	data, err := json.Marshal(r) // as the epilog finds it
	if err != nil {
		t.Fatal(err)
	}
	if r, err = ParseRecord(data); err != nil {
		t.Fatal(err)
	}
	return r
}

func xid79(i int) checks.XidSeen {
	return checks.XidSeen{Code: 79, PCI: eight()[i].PCI, Name: "GPU has fallen off the bus", Class: "REBOOT", Lines: 2, First: begun.Time, Last: ended.Time, Text: "Xid 79"}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	r := newRecord(t, ofGPU(1, map[string]uint64{"ecc.dram.corrected": 7, "pcie.replays": 3, "throttle.thermal.ns": 5}),
		ofGPU(2, map[string]uint64{"pcie.replays": 100}), ofGPU(3, map[string]uint64{"pcie.replays": 0}), aer(1, 4), aer(2, 0),
		ib("mlx5_0:1", map[string]uint64{"ib.symbol_error": 0}), ib("mlx5_0:2", map[string]uint64{"ib.link_downed": 1}))
	r.Close(ended, []checks.Counters{
		ofGPU(1, map[string]uint64{"ecc.dram.corrected": 19, "pcie.replays": 3, "throttle.thermal.ns": 2_000_000_005, "throttle.power_cap.ns": 5}),
		ofGPU(2, map[string]uint64{"pcie.replays": 2}), ofGPU(3, map[string]uint64{"pcie.replays": 50}), aer(1, 5), aer(2, 0),
		ib("mlx5_0:1", map[string]uint64{"ib.symbol_error": 0}), ib("mlx5_0:2", map[string]uint64{"ib.link_downed": 3}),
	}, []checks.XidSeen{xid79(1), xid79(4)})
	want := "job 1234 of alice, gpu1 gpu2, 1 h 00 min: gpu1 0000:01:00.0 Xid 79 (GPU has fallen off the bus, REBOOT) 2 lines; " +
		"gpu1 0000:01:00.0 aer.corrected +1; gpu1 0000:01:00.0 ecc.dram.corrected +12; gpu1 0000:01:00.0 throttle.thermal +2s; " +
		"gpu2 0000:02:00.0 pcie.replays +2 since a reset; mlx5_0:2 0000:0c:00.0 ib.link_downed +2"
	if diff := cmp.Diff(want, r.Line()); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
	if r.Outcome != ClosedWhole || r.Counted != nil || len(r.Xids) != 1 {
		t.Errorf("closed as %q with %d Xids, counters %v; want complete, one Xid of the job's own GPU, no counters", r.Outcome, len(r.Xids), r.Counted)
	}
	for _, want := range []string{"\nended     2026-11-21T21:00:00Z\n", "\nstate     complete\n", "\ngpu       gpu1 0000:01:00.0 /dev/nvidia6 GPU-", "\ncount     gpu1 0000:01:00.0 ecc.dram.corrected +12\n"} {
		if !strings.Contains(r.Text(), want) {
			t.Errorf("text lacks %q:\n%s", want, r.Text())
		}
	}
}

func TestRecordOfQuietJob(t *testing.T) {
	t.Parallel()
	same := map[string]uint64{"pcie.replays": 3}
	r := newRecord(t, ofGPU(1, same), ofGPU(2, same))
	r.Close(ended, []checks.Counters{ofGPU(1, same), ofGPU(2, same)}, nil)
	if got, want := r.Line(), "job 1234 of alice, gpu1 gpu2, 1 h 00 min: nothing happened"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A GPU that no longer has counters is reported.
func TestRecordOfLostGPU(t *testing.T) {
	t.Parallel()
	r := newRecord(t, ofGPU(1, map[string]uint64{"pcie.replays": 3}), ofGPU(2, map[string]uint64{"pcie.replays": 3}))
	r.Close(ended, []checks.Counters{ofGPU(1, map[string]uint64{"pcie.replays": 3})}, nil)
	if got := r.Line(); !strings.HasSuffix(got, ": gpu2 0000:02:00.0 no longer has this counter") {
		t.Error(got)
	}
}

// Setting the clock while a job runs changes nothing; a reboot does.
func TestRecordClosed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		end     Moment
		outcome string
		line    string
	}{
		{"the clock was set back a year", at("boot-1", 4600, "2025-11-21T21:00:00Z"), ClosedWhole, "job 1234 of alice, gpu1 gpu2, 1 h 00 min: nothing happened"},
		{"the node was booted", at("boot-2", 60, "2026-11-21T21:00:00Z"), ClosedBetween, "job 1234 of alice, gpu1 gpu2, rebooted, then epilog: nothing happened"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRecord(t)
			r.Close(tt.end, nil, nil)
			if r.Outcome != tt.outcome || r.Line() != tt.line {
				t.Errorf("closed as %q: %s\nwant %q: %s", r.Outcome, r.Line(), tt.outcome, tt.line)
			}
		})
	}
}

// An epilog without a prolog, as after an update, attributes nothing to the job.
func TestRecordWithoutProlog(t *testing.T) {
	t.Parallel()
	r := NewRecord(Job{ID: "7", UID: 5001}, Scope{Known: true}, "gpu01", Moment{})
	r.Outcome = ClosedNoProlog
	r.Close(ended, []checks.Counters{ofGPU(1, map[string]uint64{"pcie.replays": 9})}, []checks.XidSeen{xid79(1)})
	if got, want := r.Line(), "job 7 of uid 5001, no GPU, no prolog: nothing happened"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Records that are still open when another job begins.
func TestRecordEndedBefore(t *testing.T) {
	t.Parallel()
	job := func(id string, boot string, minors ...int) *Record {
		j := Job{ID: id, Share: SomeGPUs, Minors: minors}
		if minors == nil {
			j.Share = NoGPUs
		}
		s, _ := ScopeOf(j, Numbering{}, eight())
		return NewRecord(j, s, "gpu01", at(boot, 10, "2026-11-21T20:00:00Z"))
	}
	scriptFor := job("1", "b", 3)
	scriptFor.Shared = true
	whole := NewRecord(Job{ID: "1", Share: AllGPUs, Alone: true}, Scope{Own: eight()}, "gpu01", at("b", 10, "2026-11-21T20:00:00Z"))
	unsure := NewRecord(Job{ID: "1", Share: SomeGPUs, Minors: []int{17}}, Scope{Own: eight()}, "gpu01", at("b", 10, "2026-11-21T20:00:00Z"))
	tests := []struct {
		name     string
		old, now *Record
		want     string
	}{
		{"two jobs side by side", job("1", "b", 0, 1), job("2", "b", 2, 3), ""},
		{"a GPU changes hands", job("1", "b", 0, 1), job("2", "b", 1), ClosedNoEpilog},
		{"the node died", job("1", "a", 0), job("2", "b", 1), ClosedReboot},
		{"the job was requeued", job("1", "b", 0), job("1", "b", 5), ClosedNoEpilog},
		{"parts of one GPU", scriptFor, job("2", "b", 3), ""},
		{"it had the node for itself", whole, job("2", "b", 3), ClosedNoEpilog},
		{"it has the node for itself", job("2", "b"), whole, ClosedNoEpilog},
		{"its GPUs are unknown", unsure, job("2", "b", 3), ""},
		{"without GPUs", job("1", "b"), job("2", "b"), ""},
		{"shards of one GPU, of which a prolog is not told", job("runs", "b", 3), job("2", "b", 3), ""},
		{"the job that runs is this one", job("runs", "b", 3), job("runs", "b", 3), ClosedNoEpilog},
		{"the node died under it", job("runs", "a", 3), job("2", "b", 3), ClosedReboot},
	}
	for _, tt := range tests {
		if got := tt.old.EndedBefore(tt.now, false, func(job string) bool { return job == "runs" }); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	// Two jobs with shards of one GPU and without a process yet.
	none := func(string) bool { return false }
	if got := job("1", "b", 3).EndedBefore(job("2", "b", 3), true, none); got != "" {
		t.Errorf("a shard of the same GPU: %q, want it to stay open", got)
	}
	if got := job("1", "a", 3).EndedBefore(job("2", "b", 3), true, none); got != ClosedReboot {
		t.Errorf("a shard before the boot: %q", got)
	}
}

// Failures that began in the job.
func TestRecordBegan(t *testing.T) {
	t.Parallel()
	gpu := func(i int) checks.Device { return checks.Device{Kind: "gpu", PCI: eight()[i].PCI} }
	r := newRecord(t)
	r.Failing = []string{FailingKey(checks.Finding{Code: "gpu.pcie.width", Device: gpu(1)})}
	r.Looked = []string{"check_x"}
	all := newRecord(t)
	all.Whole, all.Looked = true, r.Looked
	unseen := newRecord(t)
	unsure := NewRecord(Job{ID: "1", Share: SomeGPUs, Minors: []int{17}}, Scope{Own: eight()}, "gpu01", Moment{})
	unsure.Looked = r.Looked
	older := xid79(1)
	older.Before = true
	tests := []struct {
		name   string
		record *Record
		f      checks.Finding
		xids   []checks.XidSeen
		want   bool
	}{
		{"its GPU", r, checks.Finding{Code: "gpu.recovery.reset", Device: gpu(1)}, nil, true},
		{"another GPU", r, checks.Finding{Code: "gpu.recovery.reset", Device: gpu(0)}, nil, false},
		{"it was there before", r, checks.Finding{Code: "gpu.pcie.width", Device: gpu(1)}, nil, false},
		{"the same of its other GPU", r, checks.Finding{Code: "gpu.pcie.width", Device: gpu(2)}, nil, true},
		{"the node", r, checks.Finding{Code: "fs.mount.missing"}, nil, false},
		{"the node, of which it has all", all, checks.Finding{Code: "fs.mount.missing"}, nil, true},
		{"an Xid since", r, checks.Finding{Code: "gpu.xid.79", Device: gpu(1)}, []checks.XidSeen{xid79(1)}, true},
		{"an Xid before", r, checks.Finding{Code: "gpu.xid.79", Device: gpu(1)}, nil, false},
		{"an Xid of another GPU since", r, checks.Finding{Code: "gpu.xid.79", Device: gpu(1)}, []checks.XidSeen{xid79(2)}, false},
		{"a burst that began before", r, checks.Finding{Code: "gpu.xid.79", Device: gpu(1)}, []checks.XidSeen{older}, false},
		{"before the first look", unseen, checks.Finding{Code: "gpu.recovery.reset", Device: gpu(1)}, nil, false},
		{"an Xid, and nobody had looked", unseen, checks.Finding{Code: "gpu.xid.79", Device: gpu(1)}, []checks.XidSeen{xid79(1)}, true},
		{"a job with unknown GPUs", unsure, checks.Finding{Code: "gpu.xid.79", Device: gpu(1)}, []checks.XidSeen{xid79(1)}, false},
		{"a line of bash", all, checks.Finding{Message: "Check x returned 1"}, nil, false},
	}
	for _, tt := range tests {
		if got := tt.record.Began("check_x", tt.f, tt.xids); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestParseRecord(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "{}", `{"version":1,"job":"../x"}`, `{"version":2,"job":"1"}`, "\x00", `[1]`} {
		if r, err := ParseRecord([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), "read the record of a job: ") {
			t.Errorf("%q: %+v, %v, want an error", text, r, err)
		}
	}
}
