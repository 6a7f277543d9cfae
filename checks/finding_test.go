package checks

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFindingJSON(t *testing.T) {
	t.Parallel()
	want := Finding{
		Code: "hw.ib.down", Severity: Fail, Device: Device{Kind: "port", Name: "mlx5_0:1"},
		Message: "check_hw_ib:  No IB port", Remedy: CheckCable,
	}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	const text = `{"code":"hw.ib.down","severity":"fail","device":{"kind":"port","name":"mlx5_0:1"},` +
		`"message":"check_hw_ib:  No IB port","remedy":"check-cable"}`
	if string(data) != text {
		t.Errorf("got  %s\nwant %s", data, text)
	}
	var got Finding
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("there and back (-want +got):\n%s", diff)
	}
	for _, bad := range []string{`{"severity":"dire"}`, `{"severity":4}`} {
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// TestWorst holds the order: Unknown is worse than a warning, and never OK.
func TestWorst(t *testing.T) {
	t.Parallel()
	var findings []Finding
	for _, s := range []Severity{OK, Skip, Warn, Unknown, Fail} {
		findings = append(findings, Finding{Severity: s})
		if got := Worst(findings); got != s {
			t.Errorf("Worst = %v, want %v", got, s)
		}
	}
	if got := Severity(7).String(); got != "severity 7" {
		t.Errorf("got %q", got)
	}
}

func TestDevice(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]Device{
		"":                  {},
		"/home":             {Kind: "mount", Name: "/home"},
		"gpu3 0000:c1:00.0": {Name: "gpu3", PCI: "0000:c1:00.0"},
		"0000:c1:00.0":      {PCI: "0000:c1:00.0"},
	} {
		if got := d.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestText compares the messages that the three functions make from the same finding.
func TestText(t *testing.T) {
	t.Parallel()
	gpu3, left := Device{Name: "gpu3", PCI: "0000:c1:00.0"}, Finding{Want: "4", Got: "3"}
	for _, c := range []struct {
		f         Finding
		text, got string
	}{
		{Finding{}.Phrase("check_x", "%d of %d", 3, 4), "check_x:  3 of 4", ""},
		{left.Phrase("check_x", "3, not 4"), "check_x:  3, not 4", "3"},
		{Finding{}.Describe("check_x", "a\nb"), "check_x:  a; b", ""},
		{left.Describe("check_x", "100 %%"), "check_x:  100 %, want 4, got 3", "3"},
		{Finding{Device: gpu3}.Describe("check_x", "lost"), "check_x:  gpu3 0000:c1:00.0: lost", ""},
		{left.Report("check_x", gpu3, "links"), "check_x:  gpu3 0000:c1:00.0: links, want 4, got 3", "3"},
		{Finding{}.Report("check_x", gpu3, "a\nb"), "check_x:  gpu3 0000:c1:00.0: a; b", "a; b"},
		{Finding{}.Report("check_x", Device{}, "lost"), "check_x:  lost", "lost"},
	} {
		if c.f.Message != c.text || c.f.Got != c.got || "check_x:  "+c.f.Text("check_x") != c.text {
			t.Errorf("got %q, %q, want %q, %q", c.f.Message, c.f.Got, c.text, c.got)
		}
	}
}

var registered = Info{Name: "check_twice", Summary: "x", Lane: Local, New: func() Check { return &sample{} }}

func init() { Register(registered) }

func TestRegister(t *testing.T) {
	t.Parallel()
	for name, info := range map[string]Info{
		"incomplete": {Name: "check_x"},
		"twice":      registered,
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			Register(info)
		}()
	}
	if Local.Vendor() || !NVML.Vendor() {
		t.Error("Vendor: wrong for Local or NVML")
	}
}

// A finding's own advice replaces that of its code.
func TestFindingAdvice(t *testing.T) {
	t.Parallel()
	f := Finding{Code: "probe.hung"}
	if got := f.Advice(); got == "" || got != WhatToDo("probe.hung") {
		t.Errorf("%q", got)
	}
	if f.Do = "watch it"; f.Advice() != "watch it" {
		t.Errorf("%q", f.Advice())
	}
}
