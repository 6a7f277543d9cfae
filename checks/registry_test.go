package checks

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestEveryTableIsRun refuses a table of scenarios that no test runs by the name of its check.
func TestEveryTableIsRun(t *testing.T) {
	t.Parallel()
	want, got := slices.Sorted(maps.Keys(tables)), slices.Sorted(maps.Keys(testsOfChecks(t)))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("checks with tables, and those of testCheck(t, \"check_...\") (-want +got):\n%s", diff)
	}
}

// TestEveryCheckIsTested refuses a check that is not known to pass, to fail,
// and to cope with a broken node.
func TestEveryCheckIsTested(t *testing.T) {
	t.Parallel()
	for _, name := range Names() {
		info, _ := Lookup(name)
		if u, ok := info.New().(interface{ Unsupported() string }); ok && u.Unsupported() != "" {
			continue // see TestUnsupported
		}
		var passes, fails, breaks bool
		for _, s := range scenariosOf(name) {
			worst := Worst(s.want)
			passes = passes || !s.broken && worst <= Warn
			fails = fails || !s.broken && worst == Fail
			breaks = breaks || s.broken
		}
		if !passes || !fails || !breaks {
			t.Errorf("%s: scenarios for pass: %v, fail: %v, broken node: %v; want all three", name, passes, fails, breaks)
		}
	}
}

// TestEveryGPUCheckFindsOneOfEight refuses a check of GPUs that is not known to
// fail on one bad GPU of eight, and to name it.
func TestEveryGPUCheckFindsOneOfEight(t *testing.T) {
	t.Parallel()
	for _, name := range Names() {
		if info, _ := Lookup(name); info.Lane != NVML {
			continue
		}
		found := slices.ContainsFunc(scenariosOf(name), func(s scenario) bool {
			return s.nvml != nil && len(s.nvml.GPUs) == 8 && len(s.want) == 1 && s.want[0].Severity == Fail &&
				s.want[0].Device.Name == "gpu3" && strings.Contains(s.want[0].Message, s.want[0].Device.PCI)
		})
		if !found {
			t.Errorf("%s: no scenario in which gpu3 of eight alone fails", name)
		}
	}
}

// TestEveryFindingHasAdvice refuses findings that leave an administrator
// alone, and advice that belongs to no finding.
func TestEveryFindingHasAdvice(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, name := range Names() {
		for _, s := range scenariosOf(name) {
			for _, f := range s.want {
				seen[f.Code] = true
				if WhatToDo(f.Code) == "" && f.Code != ArrayCode {
					t.Errorf("%s: %s: no Info.Do has a word on the code %q", name, s.name, f.Code)
				}
			}
		}
	}
	for _, name := range Names() {
		info, _ := Lookup(name)
		for code := range info.Do {
			if !seen[code] && (!info.Active || !strings.HasSuffix(code, ".baseline")) { // which the frame's own test shows
				t.Errorf("%s: Info.Do has the code %q, which no scenario shows", name, code)
			}
		}
	}
}

func TestNamesAreSorted(t *testing.T) {
	t.Parallel()
	if names := Names(); len(names) == 0 || !slices.IsSorted(names) {
		t.Errorf("Names() = %v", names)
	}
}

// TestAdviceConflicts: no init function replaces the advice of another, whichever is first.
func TestAdviceConflicts(t *testing.T) {
	t.Parallel()
	for code, text := range map[string]string{"job.none": WhatToDo("job.none"), "gpu.count": WhatToDo("gpu.count")} {
		func() {
			defer func() {
				if recover() == nil || WhatToDo(code) != text {
					t.Errorf("%s: other advice replaces that of its check", code)
				}
			}()
			RegisterAdvice(map[string]string{code: text + " Or not."})
		}()
	}
}

// TestDeadlineCancelsNothing: the supervisor gives a step up; what a check has under way then
// must not fail by itself, and look like a fault of the node.
func TestDeadlineCancelsNothing(t *testing.T) {
	t.Parallel()
	ctx := WithDeadline(t.Context(), time.Now().Add(-time.Second))
	if _, ends := ctx.Deadline(); !ends || ctx.Err() != nil || room(ctx) != 0 {
		t.Errorf("deadline %v, error %v, room %v", ends, ctx.Err(), room(ctx))
	}
}
