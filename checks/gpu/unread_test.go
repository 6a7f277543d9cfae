package gpu

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// A value that a run could not read keeps its past: it is no growth, and ends no row of runs. The other
// values are judged.

var errUnread = errors.New("timeout")

// tries is a check of eight H100 with a past. Only gpu3 changes.
type tries struct {
	t     *testing.T
	h     *probe.Host
	taken time.Time
}

func newTries(t *testing.T) *tries {
	t.Helper()
	files := fakenvml.Files(fakenvml.H100, 8)
	files["proc/sys/kernel/random/boot_id"] = nvlinkBoot + "\n"
	h := probe.NewHost(probetest.Tree(t, files))
	h.SetPast("/past")
	return &tries{t, h, time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)}
}

// run runs a check five minutes after the last run, and returns its findings about gpu3, briefly.
func (r *tries) run(c checks.Check, change func(*nvml.GPU)) (got []string) {
	r.t.Helper()
	n := checktest.H100s()
	r.taken = r.taken.Add(5 * time.Minute)
	n.Taken = r.taken
	change(&n.GPUs[3])
	nvml.Set(r.h, n, nil)
	for _, f := range c.Run(r.t.Context(), &checks.Env{Host: r.h}) {
		if f.Device.PCI != fakenvml.Address(3) {
			r.t.Errorf("about another device: %s", f.Message)
		}
		got = append(got, fmt.Sprint(f.Severity, " ", f.Code, checks.Before(" ", f.Got, "")))
	}
	return got
}

// want runs a check, once for each change.
func (r *tries) want(c checks.Check, steps ...tryStep) {
	r.t.Helper()
	for i, s := range steps {
		if diff := cmp.Diff(s.want, r.run(c, s.change)); diff != "" {
			r.t.Errorf("run %d (-want +got):\n%s", i+1, diff)
		}
	}
}

type tryStep struct {
	change func(*nvml.GPU)
	want   []string
}

func step(change func(*nvml.GPU), want ...string) tryStep { return tryStep{change, want} }

const (
	unreadValue = "unknown gpu.error.value cannot be read: timeout"
	unreadGPU   = "unknown gpu.error cannot be read: timeout"
)

func lostHandle(g *nvml.GPU) {
	*g = nvml.GPU{Index: g.Index, PCI: g.PCI, UUID: g.UUID, Serial: g.Serial, Err: errUnread}
}

func TestUnreadReplays(t *testing.T) {
	t.Parallel()
	replays := func(n int) func(*nvml.GPU) { return func(g *nvml.GPU) { g.Link.Replays = nvml.Known(n) } }
	failed := func(g *nvml.GPU) { g.Link.Replays = nvml.Failed[int](errUnread) }
	absent := func(g *nvml.GPU) { g.Link.Replays = nvml.Reading[int]{} }
	newTries(t).want(&gpuPCIe{Rate: 10},
		step(failed, unreadValue), // in the first run
		step(replays(20_000)),     // the total of months
		step(failed, unreadValue),
		step(replays(20_090)), // 9 a minute since it was read
		step(absent),
		step(failed, unreadValue),
		step(lostHandle, unreadGPU),
		step(replays(20_250)), // 8 a minute in 20 minutes
		step(failed, unreadValue),
		step(replays(20_460), "fail gpu.pcie.corrected 21.0"),
		step(replays(20_470)),
	)
}

func TestUnreadAER(t *testing.T) {
	t.Parallel()
	r := newTries(t)
	file := "sys/bus/pci/devices/" + fakenvml.Address(3) + "/aer_dev_fatal"
	put := func(content string) func(*nvml.GPU) {
		return func(*nvml.GPU) {
			_ = os.RemoveAll(r.h.Path("/" + file))
			if err := selftest.Place(r.h.Path("/"), file, content); err != nil {
				t.Fatal(err)
			}
		}
	}
	damaged := put("TOTAL_ERR_FATAL x\n")
	const why = "unknown gpu.error.value cannot be read: parse /sys/bus/pci/devices/0000:13:00.0/aer_dev_fatal: invalid argument"
	r.want(&gpuPCIe{},
		step(damaged, why),
		step(put("TOTAL_ERR_FATAL 3\n"), "warn gpu.pcie.fatal 3"), // of an unknown time
		step(damaged, why),
		step(put("TOTAL_ERR_FATAL 3\n")),
		step(put("TOTAL_ERR_FATAL 4\n"), "fail gpu.pcie.fatal 1"),
	)
}

func TestUnreadThrottle(t *testing.T) {
	t.Parallel()
	hot := func(d time.Duration) func(*nvml.GPU) {
		return func(g *nvml.GPU) { g.Throttle.HardwareThermal = nvml.Known(uint64(d)) }
	}
	warm := func(heat, power nvml.Reading[uint64]) func(*nvml.GPU) {
		return func(g *nvml.GPU) { g.Throttle.Thermal, g.Throttle.PowerCap = heat, power }
	}
	ns := func(d time.Duration) nvml.Reading[uint64] { return nvml.Known(uint64(d)) }
	failed := nvml.Failed[uint64](errUnread)
	unread := func(g *nvml.GPU) {
		g.Throttle.HardwareThermal, g.Throttle.Thermal, g.Throttle.PowerBrake, g.Throttle.PowerCap = failed, failed, failed, failed
	}
	newTries(t).want(&gpuThrottle{Percent: 10, name: "x"},
		step(hot(10*time.Hour)),
		step(unread, unreadValue),
		step(hot(10*time.Hour+50*time.Second)), // 8 % of 10 minutes
		step(lostHandle, unreadGPU),
		step(hot(10*time.Hour+170*time.Second), "fail gpu.throttle.hot 20 %"),
	)
	newTries(t).want(&gpuThrottle{Percent: 10, name: "x"},
		step(warm(ns(time.Hour), ns(time.Hour))),
		step(warm(ns(time.Hour+5*time.Minute), failed), unreadValue), // it may be the power cap
		step(warm(ns(time.Hour+10*time.Minute), ns(time.Hour+10*time.Minute))),
		step(warm(ns(time.Hour+15*time.Minute), ns(time.Hour+10*time.Minute)), "warn gpu.throttle.warm 100 %"),
	)
}

func TestUnreadThrottleReasons(t *testing.T) {
	t.Parallel()
	slowed := func(g *nvml.GPU) { g.Throttle = nvml.Throttle{Now: nvml.Known(uint64(nvml.ThrottleHardware))} }
	unread := func(g *nvml.GPU) { g.Throttle = nvml.Throttle{Now: nvml.Failed[uint64](errUnread)} }
	free := func(g *nvml.GPU) { g.Throttle = nvml.Throttle{Now: nvml.Known(uint64(0))} }
	const now = "warn gpu.throttle.now throttled at this moment: hardware slowdown"
	newTries(t).want(&gpuThrottle{Percent: 10, name: "x"},
		step(slowed, now), step(slowed, now), step(unread, unreadGPU), step(slowed, "fail gpu.throttle.hot throttled in 3 consecutive runs: hardware slowdown"),
		step(free), step(slowed, now), step(slowed, now), step(free), step(slowed, now),
	)
}

func TestUnreadECC(t *testing.T) {
	t.Parallel()
	counts := func(sram, dram nvml.Reading[uint64]) func(*nvml.GPU) {
		return func(g *nvml.GPU) { g.ECC.SRAM.Corrected, g.ECC.DRAM.Corrected = sram, dram }
	}
	n := func(n uint64) nvml.Reading[uint64] { return nvml.Known(n) }
	failed := nvml.Failed[uint64](errUnread)
	newTries(t).want(&gpuECC{Rate: 100},
		step(counts(failed, n(5)), unreadValue),
		step(counts(n(1000), n(5))),
		step(counts(failed, n(5)), unreadValue),
		step(counts(n(1010), n(10))), // 90 an hour
		step(counts(n(1010), n(20)), "warn gpu.ecc.rate 120"),
	)
}

// A GPU whose remapped rows are unread may have a row remapper: its uncorrected errors do not fail it.
func TestUnreadRows(t *testing.T) {
	t.Parallel()
	bad := func(rows nvml.Reading[nvml.RemappedRows]) func(*nvml.GPU) {
		return func(g *nvml.GPU) {
			g.Rows.Remapped, g.ECC.DRAM.Uncorrected = rows, nvml.Known(uint64(1))
		}
	}
	failed := nvml.Failed[nvml.RemappedRows](errUnread)
	newTries(t).want(&gpuECC{}, step(bad(failed), "warn gpu.ecc.dram 1", unreadValue))
	partly := failed
	partly.Known, partly.Value.Pending = true, true
	newTries(t).want(&gpuRemap{Max: maxRemapped}, step(bad(partly), "fail gpu.remap.pending memory rows need a reset to be remapped", unreadValue))
	n := &nvml.Snapshot{GPUs: []nvml.GPU{{Rows: nvml.Rows{Remapped: partly}}}}
	if s := StatesOf(n)[0]; s.RemapPending == nil || !*s.RemapPending || s.RemapFailed != nil {
		t.Errorf("states: pending %v, failed %v, want only pending", s.RemapPending, s.RemapFailed)
	}
}

func TestUnreadPCIeGeneration(t *testing.T) {
	t.Parallel()
	slow := func(g *nvml.GPU) {
		g.Link.Gen, g.Link.Work = nvml.Known(1), nvml.Work{State: nvml.Known(0), Busy: nvml.Known(98)}
	}
	unread := func(g *nvml.GPU) { g.Link.Gen = nvml.Failed[int](errUnread) }
	unknownWork := func(g *nvml.GPU) {
		slow(g)
		g.Link.Work = nvml.Work{State: nvml.Known(0), Busy: nvml.Failed[int](errUnread)}
	}
	newTries(t).want(&gpuPCIe{}, step(slow), step(unread, unreadValue), step(slow), step(unknownWork), step(slow, "warn gpu.pcie.slow 1"))
}

func TestUnreadFabric(t *testing.T) {
	t.Parallel()
	joining := inFabric(func(f *nvml.Fabric) { f.State = nvml.FabricInProgress })
	unread := func(g *nvml.GPU) { g.Fabric = nvml.Failed[nvml.Fabric](errUnread) }
	odd := inFabric(func(f *nvml.Fabric) { f.State = 200 })
	const waits = "warn gpu.fabric.state in progress"
	newTries(t).want(&gpuFabric{},
		step(joining, waits), step(unread, unreadGPU), step(joining, waits), step(lostHandle, unreadGPU), step(odd, "unknown gpu.fabric.unknown unknown state 200"),
		step(joining, "fail gpu.fabric.state in progress"), step(inFabric(nil)), step(joining, waits),
	)
}

func TestUnreadNVLinkCounters(t *testing.T) {
	t.Parallel()
	crc := func(of7, of9 uint64, err error) func(*nvml.GPU) {
		return func(g *nvml.GPU) {
			list := checktest.Repeat(18, uint64(0))
			list[7], list[9] = of7, of9
			g.NVLink.Counts = nvml.Reading[nvml.LinkCounts]{Value: nvml.LinkCounts{"crc": list}, Known: true, Err: err}
		}
	}
	none := func(g *nvml.GPU) { g.NVLink.Counts = nvml.Failed[nvml.LinkCounts](errUnread) }
	const unread = nvml.UnreadCount
	newTries(t).want(&gpuNVLink{name: gpuNVLinkName},
		step(crc(unread, 5, errUnread), unreadValue),
		step(crc(9_000_000, 5, nil)), // since the driver was loaded
		step(crc(unread, 60_005, errUnread), "fail gpu.nvlink.errors 200.0", unreadValue),
		step(none, "fail gpu.nvlink.errors 200.0", unreadValue),
		step(lostHandle, unreadGPU),
		step(crc(9_100_000, 60_005, nil), "fail gpu.nvlink.errors 200.0"), // 83 per second on link 7 since it was read
	)
}

// links changes the states of some links; "?" is one that could not be read.
func links(states map[int]byte) func(*nvml.GPU) {
	return func(g *nvml.GPU) {
		up, unread := checktest.Repeat(18, true), checktest.Repeat(18, false)
		for link, state := range states {
			up[link], unread[link] = false, state == '?'
		}
		if g.NVLinks = nvml.Known(up); slices.Contains(unread, true) {
			g.NVLinks.Err, g.NVLinksUnread = errUnread, unread
		}
	}
}

func TestUnreadNVLinks(t *testing.T) {
	t.Parallel()
	newTries(t).want(&gpuNVLink{name: gpuNVLinkName},
		step(links(map[int]byte{11: '?'}), unreadValue),
		step(links(map[int]byte{3: '-', 11: '?'}), "fail gpu.nvlink.down 17", unreadValue),
		step(links(nil)),
	)
	slow := func(g *nvml.GPU) {
		speeds := checktest.Repeat(18, 26562)
		speeds[7], speeds[9] = nvml.UnreadSpeed, 13281
		g.NVLink.Speed = nvml.Reading[[]int]{Value: speeds, Known: true, Err: errUnread}
	}
	newTries(t).want(&gpuNVLink{Speed: 26000, name: gpuNVLinkName}, step(slow, "fail gpu.nvlink.speed 13281 MB/s", unreadValue))
	n := checktest.H100s()
	links(map[int]byte{11: '?'})(&n.GPUs[3])
	if s := StatesOf(n); s[3].Links != nil || len(s[4].Links) != 18 {
		t.Errorf("states: links %v, %v", s[3].Links, s[4].Links)
	}
}

// One of two GPUs has a link that is down by design, and the other cannot read its link: neither is accused.
func TestUnreadNVLinkAccusesNoOther(t *testing.T) {
	t.Parallel()
	r := newTries(t)
	n := checktest.H100s()
	n.GPUs = n.GPUs[3:5]
	links(map[int]byte{11: '-'})(&n.GPUs[0])
	links(map[int]byte{11: '?'})(&n.GPUs[1])
	nvml.Set(r.h, n, nil)
	for _, f := range (&gpuNVLink{name: gpuNVLinkName}).Run(t.Context(), &checks.Env{Host: r.h}) {
		if f.Severity != checks.Unknown {
			t.Errorf("%s", f.Message)
		}
	}
}

// Without memory on the node NVML fails: nothing is known of the GPUs.
func TestNoMemoryForNVML(t *testing.T) {
	t.Parallel()
	lack := &nvml.Error{Call: "nvmlInit", Code: 20}
	for _, err := range []error{lack, &nvml.Error{Call: "nvmlDeviceGetCount_v2", Code: 23}, fmt.Errorf("load: %w", probe.ErrNoRoom)} {
		for name, c := range map[string]checks.Check{gpuCountName: &gpuCount{Want: 8}, gpuDriverName: &gpuDriver{}} {
			r := newTries(t)
			nvml.Set(r.h, nil, err)
			if got := c.Run(t.Context(), &checks.Env{Host: r.h}); checks.Worst(got) != checks.Unknown {
				t.Errorf("%s, %v: %+v", name, err, got)
			}
		}
	}
	newTries(t).want(&gpuCount{Want: 8}, step(func(g *nvml.GPU) {
		lostHandle(g)
		g.Err = &nvml.Error{Call: "nvmlDeviceGetHandleByIndex_v2(3)", Code: 20}
	}, "unknown gpu.error 7"))
}

// Persistence mode is not turned on if the processes of the GPU are unknown.
func TestPersistenceOfUnknownUse(t *testing.T) {
	t.Parallel()
	newTries(t).want(&gpuPersistence{Fail: true, Set: true}, step(func(g *nvml.GPU) {
		g.Modes.Persistence, g.Processes = nvml.Known(false), nvml.Reading[[]nvml.GPUProcess]{}
	}, "warn gpu.persistence off"))
}

// Any call can report that the InfoROM is corrupt.
func TestInforomByTheSerialNumber(t *testing.T) {
	t.Parallel()
	newTries(t).want(&gpuDriver{}, step(func(g *nvml.GPU) {
		g.InforomValid, g.Serial = nvml.Reading[bool]{}, nvml.Failed[string](&nvml.Error{Call: "nvmlDeviceGetSerial(3)", Code: 14})
	}, "fail gpu.driver.inforom the InfoROM is corrupt"))
}

// NVIDIA may allow the errors of a GPU whose threshold is unread.
func TestUnreadSRAMThreshold(t *testing.T) {
	t.Parallel()
	errs := func(threshold nvml.Reading[bool]) func(*nvml.GPU) {
		return func(g *nvml.GPU) {
			g.ECC.SRAM.UncorrectedAggregate, g.ECC.SRAMThreshold = nvml.Known(uint64(6)), threshold
		}
	}
	newTries(t).want(&gpuECC{},
		step(errs(nvml.Failed[bool](errUnread)), "warn gpu.ecc.sram.aggregate 6", unreadValue),
		step(errs(nvml.Reading[bool]{}), "fail gpu.ecc.sram.threshold 6"),
	)
}

// ECC may be off by default on a GPU whose default is unread.
func TestUnreadDefaultOfECC(t *testing.T) {
	t.Parallel()
	newTries(t).want(&gpuECC{}, step(func(g *nvml.GPU) {
		g.ECC.On, g.ECC.Pending, g.ECC.Default = nvml.Known(false), nvml.Known(false), nvml.Failed[bool](errUnread)
	}, unreadValue))
}

// After a second error the list has all links that NVML can have. Those that do not exist hide no link that is down.
func TestUnreadNVLinksThatDoNotExist(t *testing.T) {
	t.Parallel()
	unread := func(down ...int) func(*nvml.GPU) {
		return func(g *nvml.GPU) {
			states := map[int]byte{11: '?', 12: '?'}
			for _, link := range down {
				states[link] = '-'
			}
			links(states)(g)
			for len(g.NVLinks.Value) < 36 {
				g.NVLinks.Value, g.NVLinksUnread = append(g.NVLinks.Value, false), append(g.NVLinksUnread, true)
			}
		}
	}
	newTries(t).want(&gpuNVLink{name: gpuNVLinkName},
		step(unread(), unreadValue), // in the first run
		step(unread(), unreadValue),
		step(unread(3), "fail gpu.nvlink.down 17", unreadValue),
		step(links(nil)),
		step(unread(3), "fail gpu.nvlink.down 17", unreadValue),
	)
}

// The platform has the number of links if no other GPU and no earlier run has it.
func TestUnreadNVLinksOfTheOnlyGPU(t *testing.T) {
	t.Parallel()
	states := map[int]byte{3: '-', 11: '?', 12: '?'}
	for want, links18 := range map[string]int{"fail gpu.nvlink.down": 18, "": 0} {
		r := newTries(t)
		n := checktest.H100s()
		n.GPUs = n.GPUs[:1]
		g := &n.GPUs[0]
		links(states)(g)
		for len(g.NVLinks.Value) < nvml.MaxLinks {
			g.NVLinks.Value, g.NVLinksUnread = append(g.NVLinks.Value, false), append(g.NVLinksUnread, true)
		}
		nvml.Set(r.h, n, nil)
		platform := func(string, string, int) *checks.Platform { return &checks.Platform{Name: "GH200", NVLinks: links18} }
		got := ""
		for _, f := range (&gpuNVLink{Links: 18, name: gpuNVLinkName}).Run(t.Context(), &checks.Env{Host: r.h, Platform: platform}) {
			if f.Code == "gpu.nvlink.down" {
				got = fmt.Sprint(f.Severity, " ", f.Code)
			}
		}
		if got != want {
			t.Errorf("%d links on the platform: %q, want %q", links18, got, want)
		}
	}
}

// A counter that is unread on all links is not in the list.
func TestUnreadNVLinkCounter(t *testing.T) {
	t.Parallel()
	counts := func(list nvml.LinkCounts, err error) func(*nvml.GPU) {
		return func(g *nvml.GPU) {
			g.NVLink.Counts = nvml.Reading[nvml.LinkCounts]{Value: list, Known: true, Err: err}
		}
	}
	none, errs := checktest.Repeat(18, uint64(0)), checktest.Repeat(18, uint64(0))
	errs[7] = 240_000
	both := func(crc []uint64) func(*nvml.GPU) { return counts(nvml.LinkCounts{"crc": crc, "replays": none}, nil) }
	unread := counts(nvml.LinkCounts{"replays": none}, errUnread)
	newTries(t).want(&gpuNVLink{name: gpuNVLinkName},
		step(both(none)), step(unread, unreadValue), step(unread, unreadValue), step(unread, unreadValue),
		step(both(errs), "fail gpu.nvlink.errors 200.0"), // in 20 minutes
	)
	gone := counts(nvml.LinkCounts{"replays": none}, nil) // a driver without the counter
	newTries(t).want(&gpuNVLink{name: gpuNVLinkName}, step(both(none)), step(gone), step(both(errs)))
}

// Three observations prove nothing if the time counters exist.
func TestUnreadThrottleCounters(t *testing.T) {
	t.Parallel()
	short := func(seconds uint64) func(*nvml.GPU) {
		return func(g *nvml.GPU) {
			g.Throttle.Now = nvml.Known(uint64(nvml.ThrottleHardware | nvml.ThrottleHardwareThermal))
			g.Throttle.HardwareThermal = nvml.Known(seconds * uint64(time.Second))
		}
	}
	unread := func(g *nvml.GPU) {
		short(0)(g)
		g.Throttle.HardwareThermal, g.Throttle.PowerBrake = nvml.Failed[uint64](errUnread), nvml.Failed[uint64](errUnread)
	}
	newTries(t).want(&gpuThrottle{Percent: 10, name: "x"},
		step(short(12), "warn gpu.throttle.now throttled at this moment: hardware slowdown and hardware thermal slowdown"), step(short(24)),
		step(unread, "warn gpu.throttle.now throttled at this moment: hardware slowdown and hardware thermal slowdown", unreadValue), step(short(48)),
		step(short(148), "fail gpu.throttle.hot 33 %"),
	)
}

// Both GPUs of a node may have a lower power limit if the other one could not be read.
func TestUnreadOtherGPU(t *testing.T) {
	t.Parallel()
	lowered := func(g *nvml.GPU) { g.Power.Limit = nvml.Known(g.Power.Default.Value / 2) }
	for name, c := range map[string]struct {
		other func(*nvml.GPU)
		want  bool
	}{
		"lowered": {lowered, false},
		"unread":  {func(g *nvml.GPU) { g.Power.Limit = nvml.Failed[uint32](errUnread) }, false},
		"lost":    {lostHandle, false},
		"usual":   {func(*nvml.GPU) {}, true},
	} {
		r := newTries(t)
		n := checktest.H100s()
		n.GPUs = n.GPUs[3:5]
		lowered(&n.GPUs[0])
		c.other(&n.GPUs[1])
		nvml.Set(r.h, n, nil)
		found := (&gpuPower{}).Run(t.Context(), &checks.Env{Host: r.h})
		if got := slices.ContainsFunc(found, func(f checks.Finding) bool { return f.Code == "gpu.power.limit" }); got != c.want {
			t.Errorf("%s: %+v, want a finding: %v", name, found, c.want)
		}
	}
}

// Counters that stay unread excuse a throttled GPU for an hour.
func TestThrottleCountersThatStayUnread(t *testing.T) {
	t.Parallel()
	hot := func(unread bool) func(*nvml.GPU) {
		return func(g *nvml.GPU) {
			g.Throttle.Now = nvml.Known(uint64(nvml.ThrottleHardware | nvml.ThrottleHardwareThermal))
			if g.Throttle.HardwareThermal = nvml.Known(uint64(0)); unread {
				g.Throttle.HardwareThermal, g.Throttle.PowerBrake = nvml.Failed[uint64](errUnread), nvml.Failed[uint64](errUnread)
			}
		}
	}
	const what = "hardware slowdown and hardware thermal slowdown"
	const now, hotNow = "warn gpu.throttle.now throttled at this moment: " + what, "fail gpu.throttle.hot throttled in %d consecutive runs: " + what
	steps := []tryStep{step(hot(false), now)}
	for range 11 {
		steps = append(steps, step(hot(true), now, unreadValue))
	}
	newTries(t).want(&gpuThrottle{Percent: 10, name: "x"}, append(steps, step(hot(true), fmt.Sprintf(hotNow, 13), unreadValue))...)
	newTries(t).want(&gpuThrottle{Percent: 10, name: "x"}, // never read
		step(hot(true), now, unreadValue), step(hot(true), now, unreadValue),
		step(hot(true), fmt.Sprintf(hotNow, 3), unreadValue))
}

// A GPU whose MIG mode is unread may have MIG on: its links are off, it is in no fabric, and its memory is divided.
func TestUnreadMIG(t *testing.T) {
	t.Parallel()
	unread := func(change func(*nvml.GPU)) func(*nvml.GPU) {
		return func(g *nvml.GPU) {
			change(g)
			g.Modes.MIG, g.Modes.MIGPending = nvml.Failed[bool](errUnread), nvml.Reading[bool]{}
		}
	}
	down := func(n int) func(*nvml.GPU) {
		states := map[int]byte{}
		for link := range n {
			states[link] = '-'
		}
		return links(states)
	}
	newTries(t).want(&gpuNVLink{name: gpuNVLinkName},
		step(unread(down(0)), unreadValue),
		step(unread(down(18)), unreadValue),
		step(unread(down(1)), "fail gpu.nvlink.down 17", unreadValue), // with MIG none is up
		step(down(18), "fail gpu.nvlink.down 0"),
	)
	newTries(t).want(&gpuNVLink{Links: 18, name: gpuNVLinkName}, step(unread(down(18)), unreadValue))
	joining := inFabric(func(f *nvml.Fabric) { f.State = nvml.FabricInProgress })
	none := inFabric(func(f *nvml.Fabric) { f.State = nvml.FabricNotSupported })
	newTries(t).want(&gpuFabric{},
		step(unread(none), unreadValue), step(unread(joining), unreadValue), step(unread(joining), unreadValue), step(unread(joining), unreadValue),
		step(joining, "warn gpu.fabric.state in progress"), step(none, "fail gpu.fabric.state not supported"), step(unread(inFabric(nil))),
	)
	newTries(t).want(&gpuRemap{Max: maxRemapped}, step(unread(func(g *nvml.GPU) { g.Rows.Remapped = nvml.Reading[nvml.RemappedRows]{} }), unreadValue))
	less := func(g *nvml.GPU) { g.Memory = nvml.Known(nvml.GPUMemory{Total: 40 << 30}) }
	newTries(t).want(&gpuCount{Want: 8}, step(unread(less)), step(less, "fail gpu.memory.size 40960 MiB"))
	lifetime := func(n uint64) func(*nvml.GPU) { // NVML has no other counters with MIG on
		return func(g *nvml.GPU) {
			g.Modes.MIG, g.ECC.SRAM, g.ECC.DRAM = nvml.Known(true), nvml.ECCCounts{}, nvml.ECCCounts{}
			g.ECC.SRAM.CorrectedAggregate, g.ECC.DRAM.CorrectedAggregate = nvml.Known(n), nvml.Known(uint64(0))
			g.ECC.SRAM.Uncorrected, g.ECC.DRAM.Uncorrected = nvml.Known(uint64(0)), nvml.Known(uint64(0))
		}
	}
	newTries(t).want(&gpuECC{Rate: 100}, step(lifetime(1000)), step(unread(lifetime(1000)), unreadValue), step(lifetime(2000), "warn gpu.ecc.rate 6000"))
}

// The mode after a reset is unknown if it could not be read.
func TestUnreadPendingECC(t *testing.T) {
	t.Parallel()
	unread := func(g *nvml.GPU) { g.ECC.Pending = nvml.Failed[bool](errUnread) }
	newTries(t).want(&gpuECC{}, step(unread, unreadValue),
		step(func(g *nvml.GPU) { g.ECC.Pending = nvml.Known(false) }, "warn gpu.ecc.pending ECC is on and will be off after a reset"))
}

// Lost lanes fail if another GPU of the model has more, or the node has no other one. A GPU that was not read may have
// as few: its slot, too.
func TestUnreadOtherWidth(t *testing.T) {
	t.Parallel()
	narrow := func(g *nvml.GPU) { g.Link.Width = nvml.Known(8) }
	unread := func(g *nvml.GPU) { g.Link.Width = nvml.Failed[int](errUnread) }
	platform := func(string, string, int) *checks.Platform { return checktest.Hgx() }
	for name, c := range map[string]struct {
		other func(*nvml.GPU)
		want  checks.Severity
	}{
		"narrow":              {narrow, checks.Warn},
		"wide":                {func(*nvml.GPU) {}, checks.Fail},
		"unread":              {unread, checks.Warn},
		"lost":                {lostHandle, checks.Warn},
		"lost, another model": {func(g *nvml.GPU) { lostHandle(g); g.Name = nvml.Known("Tesla T4") }, checks.Fail},
	} {
		r := newTries(t)
		n := checktest.H100s()
		n.GPUs = n.GPUs[3:5]
		narrow(&n.GPUs[0])
		c.other(&n.GPUs[1])
		nvml.Set(r.h, n, nil)
		got := checks.OK
		for _, f := range (&gpuPCIe{}).Run(t.Context(), &checks.Env{Host: r.h, Platform: platform}) {
			if f.Code == "gpu.pcie.width" && f.Device.PCI == fakenvml.Address(3) {
				got = f.Severity
			}
		}
		if got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	r := newTries(t)
	n := checktest.H100s()
	n.GPUs = n.GPUs[3:6] // two alike, and a lost one of another model with another limit
	for i := range 2 {
		n.GPUs[i].Power.Limit = nvml.Known(n.GPUs[i].Power.Default.Value / 2)
	}
	n.GPUs[2].Name, n.GPUs[2].Err = nvml.Known("Tesla T4"), errUnread
	nvml.Set(r.h, n, nil)
	if found := (&gpuPower{}).Run(t.Context(), &checks.Env{Host: r.h}); slices.ContainsFunc(found, func(f checks.Finding) bool { return f.Code == "gpu.power.limit" }) {
		t.Errorf("a limit that all GPUs of the model have: %+v", found)
	}
}
