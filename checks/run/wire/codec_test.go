package wire

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
)

// TestCodec reads with encoding/json what Encode writes, and the other way round.
func TestCodec(t *testing.T) {
	t.Parallel()
	request := &Request{
		ID: 7, Op: OpCheck, Args: []string{"a\n\"<b>", ""}, Table: map[string]any{"n": 1.5, "l": []any{"x", true}}, Timeout: math.MaxInt64,
		Over: map[string]string{"A": "1"}, Data: []byte{0, 255, '\n'}, Env: []string{}, Mark: &checks.LogMark{}, Places: []Place{{Past: "/x", Always: true}}, Merge: true,
		Vars: &Vars{Plain: map[string]string{}, Arrays: map[string][]string{"a": nil, "b": {"c"}}, Job: &checks.Job{ID: "1"}, Slurm: &jobscan.SlurmGPUs{Count: 8}, Learn: true},
	}
	response := &Response{
		ID: 7, Findings: []checks.Finding{{Code: "a.b", Severity: checks.Warn, Message: "x"}}, Took: time.Second, Data: []byte("x"), Status: -1,
		File: &FileInfo{Mode: 0o644, UID: math.MaxUint32, Size: 1 << 40}, Scripts: []Script{{Path: "/s", FileInfo: FileInfo{Missing: true}}},
		Lines: [][]byte{nil, []byte("x")}, Busy: &Holder{}, Err: "no\u2028 \xff",
	}
	same(t, &Request{}, request, &Request{Vars: &Vars{}})
	same(t, &Response{}, response, &Response{File: &FileInfo{}})
}

func same[T any](t *testing.T, list ...*T) {
	t.Helper()
	for _, m := range list {
		standard, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		line, err := Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		var want, decoded, written T
		if err := json.Unmarshal(standard, &want); err != nil {
			t.Fatal(err)
		}
		if err := Decode(standard, &decoded); err != nil {
			t.Errorf("Decode(%s): %v", standard, err)
		}
		if err := json.Unmarshal(line, &written); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if diff := cmp.Diff(want, decoded); diff != "" {
			t.Errorf("Decode(%s): %s", standard, diff)
		}
		if diff := cmp.Diff(want, written); diff != "" {
			t.Errorf("Encode: %s: %s", line, diff)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"", "[]", "7", `"x"`, "{", `{"id":"x"}`, `{"id":1}{}`, `{"file":[]}`, `{"status":1.5}`, "\xff"} {
		if err := Decode([]byte(line), new(Response)); err == nil {
			t.Errorf("%q: no error", line)
		}
	}
	if err := Decode([]byte(`{"id":1,"file":null,"new":{}}`), new(Response)); err != nil {
		t.Error(err)
	}
}
