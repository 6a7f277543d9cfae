package event

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/leodido/go-syslog/v4/rfc5424"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Prometheus' own parser reads the metrics.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	e := faulty()
	e.Compare(nil)
	e.Outputs = []Failure{{Output: "jsonl"}}
	e.Results = append(e.Results, Result{Check: "check_gpu_remap", Code: "gpu.remap", Severity: checks.Fail, Device: checks.Device{Kind: "gpu", Name: "gpu5\"\\\n"}})
	for range 2 * maxSeries {
		e.Results = append(e.Results, Result{Check: "check_x", Code: "x." + strings.Repeat("y", len(e.Results))})
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(e.Prometheus(true, "")))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for name, f := range families {
		if f.GetHelp() == "" || f.GetType().String() != "GAUGE" {
			t.Errorf("%s: help %q, type %s", name, f.GetHelp(), f.GetType())
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			got[name+" "+strings.Join(labels, " ")] = m.GetGauge().GetValue()
		}
	}
	if n := len(families["nhc_gpu_check_result"].GetMetric()); n != maxSeries {
		t.Errorf("%d results, want %d", n, maxSeries)
	}
	maps.DeleteFunc(got, func(name string, _ float64) bool {
		return strings.HasPrefix(name, "nhc_gpu_check_result check=check_x ")
	})
	at := float64(e.Time.UnixMilli()) / 1000
	want := map[string]float64{
		"nhc_gpu_check_result check=check_gpu_count code= device=":                         0,
		"nhc_gpu_check_result check=check_gpu_recovery code=gpu.recovery.lost device=gpu3": 2,
		"nhc_gpu_check_result check=check_gpu_recovery code=gpu.recovery.lost device=gpu4": 2,
		"nhc_gpu_check_result check=check_gpu_remap code=gpu.remap device=gpu5___":         2,
		"nhc_gpu_check_result check=check_fs_used code=fs.used device=":                    1,
		"nhc_gpu_check_result check=shell code= device=":                                   3,
		"nhc_gpu_run_timestamp_seconds ":                                                   at,
		"nhc_gpu_run_duration_seconds ":                                                    0.042,
		"nhc_gpu_verdict ":                                                                 2,
		"nhc_gpu_verdict_since_timestamp_seconds ":                                         at,
		"nhc_gpu_unknown ":            1,
		"nhc_gpu_drained owner=nhc":   1,
		"nhc_gpu_drained owner=other": 0, "nhc_gpu_held_by_guard ": 0,
		"nhc_gpu_output_failures ": 1, "nhc_gpu_drill_active ": 0,
		"autopilot_health_checks health=remapped node=gpu017 cpumodel= gpumodel= deviceid=5___": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	families, err = parser.TextToMetricFamilies(bytes.NewReader(e.Prometheus(true, "n7")))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			if l := m.GetLabel()[0]; l.GetName() != "slurm_node" || l.GetValue() != "n7" {
				t.Errorf("%s of a node of several: %v", name, m)
			}
		}
	}
	if _, err := parser.TextToMetricFamilies(bytes.NewReader((&Event{}).Prometheus(true, ""))); err != nil {
		t.Errorf("no run: %v", err)
	}
}

// A parser of RFC 5424 reads the records of syslog, whatever the texts are.
func TestSyslog(t *testing.T) {
	t.Parallel()
	e := faulty()
	e.Node = "gpu 017é"
	e.Results[1].Got = `a "quoted]" \ value` + strings.Repeat("é", maxValue)
	var records []*rfc5424.SyslogMessage
	for _, line := range e.Syslog("nhc active"+strings.Repeat("x", 60), "nhc@32473", 77) {
		m, err := rfc5424.NewParser().Parse([]byte(line))
		if err != nil {
			t.Fatalf("%v\n%s", err, line)
		}
		if len(line) > 8<<10 {
			t.Errorf("a record of %d bytes", len(line))
		}
		records = append(records, m.(*rfc5424.SyslogMessage))
	}
	if len(records) != 4 {
		t.Fatalf("%d records, want one for each finding", len(records))
	}
	first := records[0]
	data := (*first.StructuredData)["nhc@32473"]
	if *first.Facility != 3 || *first.Severity != 3 || !first.Timestamp.Equal(e.Time) || *first.Hostname != "gpu_017_" || len(*first.Appname) != 48 || *first.ProcID != "77" ||
		data["code"] != "gpu.recovery.lost" || data["device"] != "gpu3" || !strings.HasPrefix(data["got"], `a "quoted]" \ value`) || *first.Message != text(e.Results[1].Message) {
		t.Errorf("%+v %q", first, data)
	}
	if *records[2].Severity != 4 || *records[3].Severity != 4 {
		t.Error("a warning and an unknown result are warnings")
	}
	lines := healthy().Syslog("nhc", "nhc@32473", 1)
	if len(lines) != 1 || !strings.HasSuffix(lines[0], " node gpu017: ok: 1 checks passed") {
		t.Errorf("healthy: %q", lines)
	}
	if lines := e.Private().Syslog("nhc", "nhc@32473", 1); strings.Contains(strings.Join(lines, " "), "alice") {
		t.Errorf("private: %q", lines)
	}
}

// The journal takes only such names of fields.
func TestJournal(t *testing.T) {
	t.Parallel()
	entries := faulty().Journal("nhc")
	if len(entries) != 4 {
		t.Fatalf("%d entries", len(entries))
	}
	first := entries[0]
	if first.Priority != 3 || first.Fields["NHC_CODE"] != "gpu.recovery.lost" || first.Fields["SYSLOG_IDENTIFIER"] != "nhc" || first.Fields["MESSAGE_ID"] != messageID {
		t.Errorf("%+v", first)
	}
	for _, name := range slices.Sorted(maps.Keys(first.Fields)) {
		if strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" || strings.HasPrefix(name, "_") {
			t.Errorf("field %s", name)
		}
	}
}

func TestMilliseconds(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]float64{0: 0, 1: 0, 1249 * time.Microsecond: 1.2, time.Minute: 60000} {
		if got := Milliseconds(d); got != want {
			t.Errorf("%s: %v, want %v", d, got, want)
		}
	}
}
