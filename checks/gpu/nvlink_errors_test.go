package gpu

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// errorPast returns the stored counters of gpu3; only link 7 has errors.
func errorPast(boot string, counts map[string]uint64) string {
	past := linkErrors{Boot: boot, Up: checktest.Repeat(18, true), Counts: nvml.LinkCounts{}}
	for name, n := range counts {
		past.Counts[name] = checktest.Repeat(18, uint64(0))
		past.Counts[name][7] = n
	}
	text, _ := json.Marshal(past)
	return before300(string(text))
}

func nvlinkErrorScenarios(name string) []checktest.Scenario {
	const file = "past/gpu-nvlink-errors.json"
	says := nvlinkSays(name)
	counted := func(counts map[string]uint64) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) {
			all := nvml.LinkCounts{}
			for name, n := range counts {
				all[name] = checktest.Repeat(18, uint64(0))
				all[name][7] = n
			}
			g.NVLink.Counts = nvml.Known(all)
		})
	}
	type c = map[string]uint64
	errs := func(severity checks.Severity, want, got, what string) checks.Finding {
		return says(severity, "errors", checks.ResetGPU, want, got, what+" on NVLink 7 since the last run")
	}
	run := func(title string, words []string, then, now c, want ...checks.Finding) checktest.Scenario {
		return inBoot(checktest.OnGPUs(title, words, counted(now), want...).Holding(file, errorPast(nvlinkBoot, then)))
	}
	rates := func(s checktest.Scenario, ber float64) checktest.Scenario {
		list := checktest.Repeat(18, 0.0)
		list[7] = ber
		s.NVML.GPUs[3].NVLink.BER = nvml.Known(list)
		return s
	}
	failed := func(title, boot string, ago, taken time.Duration, crc uint64, want ...checks.Finding) checktest.Scenario {
		past := linkErrors{Boot: boot, Up: checktest.Repeat(18, true), Counts: nvml.LinkCounts{"crc": checktest.Repeat(18, uint64(5))}}
		past.Failed = []linkFailure{{At: checktest.H100s().Taken.Add(-ago), What: "CRC errors", On: "NVLink 7", Want: "at most 100 per second", Got: "200.0"}}
		text, _ := json.Marshal(past)
		now := checktest.Gpu3(func(g *nvml.GPU) {
			list := checktest.Repeat(18, uint64(5))
			list[7] = crc
			g.NVLink.Counts = nvml.Known(nvml.LinkCounts{"crc": list})
		})
		return inBoot(checktest.OnGPUs(title, nil, now, want...).Holding(file, pastAt(taken, string(text))))
	}
	lasts := says(checks.Fail, "errors", checks.ResetGPU, "at most 100 per second", "200.0", "CRC errors on NVLink 7 20 minutes ago")
	again := run("a link that was down", nil, c{"replays": 0}, c{"replays": 700})
	again.Files[file] = strings.Replace(again.Files[file], "true,true,true,true,true,true,true,true", "true,true,true,true,true,true,true,false", 1)
	return []checktest.Scenario{
		run("no new errors", nil, c{"replays": 5000, "crc": 70000}, c{"replays": 5000, "crc": 70000}),
		run("one replay per minute", nil, c{"replays": 5}, c{"replays": 10}),
		run("replays", nil, c{"replays": 5}, c{"replays": 17}, errs(checks.Warn, "at most 1 per minute", "2.4", "replays")),
		run("replays, strictly", checktest.Of("-s"), c{"replays": 5}, c{"replays": 17}, errs(checks.Fail, "at most 1 per minute", "2.4", "replays")).OrTable(map[string]any{"strict": true}),
		run("some CRC errors", nil, c{"crc": 5}, c{"crc": 29005}),
		run("many CRC errors", nil, c{"crc": 5}, c{"crc": 60005}, errs(checks.Fail, "at most 100 per second", "200.0", "CRC errors")),
		failed("many CRC errors, not long ago", nvlinkBoot, 20*time.Minute, 5*time.Minute, 5, lasts),
		failed("many CRC errors, not long ago, and another run ten seconds later", nvlinkBoot, 20*time.Minute, 10*time.Second, 5, lasts),
		failed("many CRC errors, and again", nvlinkBoot, 20*time.Minute, 5*time.Minute, 60005, errs(checks.Fail, "at most 100 per second", "200.0", "CRC errors")),
		failed("many CRC errors, long ago", nvlinkBoot, time.Hour, 5*time.Minute, 5),
		failed("many CRC errors, before a reset of the GPU", nvlinkBoot, 20*time.Minute, 5*time.Minute, 0),
		failed("many CRC errors, before the boot", "other", 20*time.Minute, 5*time.Minute, 5),
		run("a counter that wraps", nil, c{"replays": math.MaxUint32 - 1}, c{"replays": 20}, errs(checks.Warn, "at most 1 per minute", "4.4", "replays")),
		run("counters that were reset", nil, c{"replays": 700, "crc": 0}, c{"replays": 2, "crc": 60000000}),
		inBoot(checktest.OnGPUs("errors of the first run", nil, counted(c{"replays": 700}))),
		inBoot(checktest.OnGPUs("errors of another boot", nil, counted(c{"replays": 700})).Holding(file, errorPast("other", c{"replays": 0}))),
		checktest.OnGPUs("an unknown boot", nil, counted(c{"replays": 700})).Holding(file, errorPast("", c{"replays": 0})),
		again,
		run("a failed recovery", nil, c{"recoveries": 1, "recoveries_failed": 0}, c{"recoveries": 2, "recoveries_failed": 1},
			errs(checks.Warn, "at most 0", "1", "recoveries"), errs(checks.Warn, "at most 0", "1", "failed recoveries")),
		rates(run("a poor link", nil, c{"effective": 1}, c{"effective": 9}, says(checks.Warn, "ber", checks.ResetGPU, "at most 1e-06", "3e-05", "effective bit error rate of NVLink 7")), 3e-5),
		rates(run("a poor link, strictly", checktest.Of("-s"), c{"effective": 1}, c{"effective": 9}, says(checks.Fail, "ber", checks.ResetGPU, "at most 1e-06", "3e-05", "effective bit error rate of NVLink 7")), 3e-5),
		rates(run("a link that was poor before", nil, c{"effective": 9}, c{"effective": 9}), 3e-5),
		rates(run("a good link", nil, c{"effective": 1}, c{"effective": 9}), 15e-255),
	}
}

func TestLinkLimits(t *testing.T) {
	t.Parallel()
	if l, err := parseLinkLimits(nvlinkErrorsData); err != nil || len(l.Limits) < 5 || l.BER.Most <= 0 || l.BER.Source == "" {
		t.Errorf("%+v, %v", l, err)
	}
	for _, bad := range []string{
		"x", "[[limit]]\ncounter = \"a\"\n", "[[limit]]\ncounter = \"a\"\nwhat = \"a\"\nsource = \"a\"\nper = \"day\"\nseverity = \"warn\"\n",
		"[[limit]]\ncounter = \"a\"\nwhat = \"a\"\nsource = \"a\"\nper = \"run\"\nseverity = \"ok\"\n", "more = 1\n",
	} {
		if _, err := parseLinkLimits(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func FuzzAddedTo(f *testing.F) {
	for _, pair := range [][2]uint64{{0, 0}, {5, 7}, {math.MaxUint32, 0}, {math.MaxUint64, 0}, {1 << 31, 3}} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, then, now uint64) {
		added, ok := subtractCounter(then, now)
		switch {
		case !ok && now >= then, ok && now >= then && added != now-then:
			t.Errorf("%d, %d: %d, %v", then, now, added, ok)
		case ok && now < then && (then > math.MaxUint32 || added > math.MaxUint32/8+1 || uint32(then)+uint32(added) != uint32(now)):
			t.Errorf("%d, %d: wrapped by %d", then, now, added)
		}
	})
}
