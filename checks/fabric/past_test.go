package fabric

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// step is a run of a check on a node, this many seconds after [fabricNow].
type step struct {
	at    int64
	files map[string]string // that have changed
	want  string            // severities and codes of the findings
}

// play runs a check at the times of the steps, and returns the environment of the last run.
func play(t *testing.T, sys *fakesys.Node, check checks.Check, steps ...step) *checks.Env {
	t.Helper()
	root := t.TempDir()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	var env *checks.Env
	for _, s := range steps {
		place := func(name, content string) {
			if err := selftest.Place(root, name, content+"\n"); err != nil {
				t.Fatal(err)
			}
		}
		place("proc/uptime", fmt.Sprintf("%d.00 1.00", 323045+s.at))
		for name, content := range s.files {
			place(name, content)
		}
		env = &checks.Env{Host: probe.NewHost(root), Doing: func(string) {}}
		env.Host.SetPast("/past")
		var got []string
		for _, f := range check.Run(t.Context(), env) {
			got = append(got, fmt.Sprint(f.Severity, " ", f.Code))
		}
		if text := strings.Join(got, ", "); text != s.want {
			t.Errorf("after %d s: %s, want %s", s.at, text, s.want)
		}
	}
	return env
}

// counterFiles are counters of port 1 of a device: pairs of a name and a value.
func counterFiles(sys *fakesys.Node, device string, pairs ...string) map[string]string {
	files := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		files[sys.Dir(device)+"/ports/1/"+pairs[i]] = pairs[i+1]
	}
	return files
}

const (
	tooMany     = "fail ib.errors.symbol_error"
	whileLost   = "warn ib.errors.symbol_error, warn ib.errors.link_downed"
	linkLost    = "warn ib.errors.link_downed"
	cannotRead  = "unknown ib.error"
	stoppedHigh = "warn ib.errors.full"
)

// A link that was lost excuses the errors of its training also in a run a moment after another.
func TestErrorsAMomentAfterALoss(t *testing.T) {
	t.Parallel()
	sys := fakesys.DGXH100()
	of := func(pairs ...string) map[string]string { return counterFiles(sys, "mlx5_3", pairs...) }
	trained := of("counters/symbol_error", "5000", "counters/link_downed", "1", "state", "4: ACTIVE", "phys_state", "5: LinkUp")
	play(t, sys, &ibErrors{}, step{at: 0}, step{at: 3900}, step{3915, trained, whileLost}, step{4200, nil, whileLost}, step{4500, nil, whileLost})
	down := of("counters/link_downed", "1", "state", "1: DOWN", "phys_state", "2: Polling")
	play(t, sys, &ibErrors{}, step{at: 0}, step{at: 3900}, step{3960, down, linkLost}, step{3975, trained, whileLost}, step{4200, nil, whileLost})
}

// A counter that stopped at its maximum while it failed fails until it is reset. One that a training link
// filled only warns.
func TestErrorsOfAFullCounter(t *testing.T) {
	t.Parallel()
	sys := fakesys.DGXH100()
	of := func(pairs ...string) map[string]string { return counterFiles(sys, "mlx5_3", pairs...) }
	play(t, sys, &ibErrors{}, step{at: 0}, step{300, of("counters/symbol_error", "30000"), tooMany}, step{600, of("counters/symbol_error", "65535"), tooMany},
		step{900, nil, tooMany}, step{4500, nil, tooMany}, step{100000, nil, tooMany}, step{100300, of("counters/symbol_error", "3"), ""},
		step{100600, of("counters/symbol_error", "65535", "counters/link_downed", "1"), whileLost + ", " + stoppedHigh}, step{104500, nil, stoppedHigh})
	play(t, sys, &ibErrors{}, step{at: 0}, step{300, of("counters/symbol_error", "65535"), tooMany}, step{4500, nil, tooMany},
		step{4800, map[string]string{"proc/sys/kernel/random/boot_id": "another"}, stoppedHigh}, step{5100, nil, stoppedHigh})
	play(t, sys, &ibErrors{Watch: true}, step{at: 0}, step{300, of("counters/symbol_error", "65535"), "warn ib.errors.symbol_error, " + stoppedHigh}, step{4500, nil, stoppedHigh})
	full := map[string]string{}
	for i := range 5 {
		maps.Copy(full, counterFiles(sys, fmt.Sprintf("mlx5_%d", i), "counters/symbol_error", "65535"))
	}
	play(t, sys, &ibErrors{}, step{at: 0}, step{300, full, "warn ib.errors.fabric, " + stoppedHigh}, step{4500, nil, stoppedHigh})
}

// A counter that cannot be read for a moment loses neither its failure nor what it counts meanwhile.
func TestErrorsOfAnUnreadCounter(t *testing.T) {
	t.Parallel()
	sys := fakesys.DGXH100()
	of := func(pairs ...string) map[string]string { return counterFiles(sys, "mlx5_3", pairs...) }
	play(t, sys, &ibErrors{}, step{at: 0}, step{300, of("counters/symbol_error", "500"), tooMany}, step{600, of("counters/symbol_error", "?"), cannotRead},
		step{900, of("counters/symbol_error", "500"), tooMany}, step{4300, nil, ""})
	play(t, sys, &ibErrors{}, step{at: 0}, step{300, of("counters/symbol_error", "?"), cannotRead}, step{600, of("counters/symbol_error", "500"), tooMany})
	// Over a day these are fewer than 120 an hour.
	play(t, sys, &ibErrors{}, step{at: 0}, step{300, of("counters/symbol_error", "?"), cannotRead}, step{86000, nil, cannotRead}, step{86400, of("counters/symbol_error", "2000"), ""})
}

// A counter that is unread while the link trains does not fail for what it counted then. While link_downed is
// unread, the others are not judged.
func TestErrorsUnreadWhileTheLinkTrains(t *testing.T) {
	t.Parallel()
	sys := fakesys.DGXH100()
	of := func(pairs ...string) map[string]string { return counterFiles(sys, "mlx5_3", pairs...) }
	errors := func(n string) map[string]string { return of("counters/symbol_error", n) }
	play(t, sys, &ibErrors{}, step{at: 0}, step{at: 3900}, step{4200, of("counters/link_downed", "1", "counters/symbol_error", "?"), cannotRead + ", " + linkLost},
		step{4500, errors("5000"), linkLost}, step{4800, nil, linkLost}, step{5100, errors("6000"), tooMany + ", " + linkLost})
	play(t, sys, &ibErrors{}, step{at: 0}, step{at: 3900}, step{4200, of("counters/link_downed", "?", "counters/symbol_error", "5000"), cannotRead},
		step{4500, of("counters/link_downed", "1"), whileLost}, step{4800, nil, whileLost})
	play(t, sys, &ibErrors{}, step{at: 0}, step{at: 3900}, step{4200, of("counters/link_downed", "?", "counters/symbol_error", "5000"), cannotRead},
		step{4500, of("counters/link_downed", "0"), tooMany}, step{4800, nil, tooMany})
	// It stays unread.
	play(t, sys, &ibErrors{}, step{at: 0}, step{at: 3900}, step{4200, of("counters/link_downed", "?", "counters/symbol_error", "5000"), cannotRead},
		step{7500, nil, cannotRead + ", warn ib.errors.symbol_error"}, step{7800, of("counters/link_downed", "1"), whileLost})
}

// The growth of a counter does not include that of a part that is unread, or waits.
func TestErrorsOfAnUnreadPart(t *testing.T) {
	t.Parallel()
	sys := fakesys.RoCE()
	of := func(downs, errors, part string) map[string]string {
		dir := sys.Dir("eth13")
		return map[string]string{dir + "/carrier_down_count": downs, dir + "/statistics/tx_errors": errors, dir + "/statistics/tx_carrier_errors": part}
	}
	const beside, ofPart = "warn ib.errors.tx_errors", "warn ib.errors.tx_carrier_errors"
	// The link was lost.
	play(t, sys, &ibErrors{}, step{at: 0}, step{at: 3900}, step{4200, of("?", "6000", "6000"), ""}, step{4500, of("2", "6000", "6000"), ofPart}, step{4800, nil, ofPart})
	play(t, sys, &ibErrors{}, step{at: 0}, step{at: 3900}, step{4200, of("?", "18000", "6000"), ""}, step{4500, of("2", "18000", "6000"), ofPart + ", " + beside})
	play(t, sys, &ibErrors{}, step{at: 0}, step{at: 3900}, step{4200, of("2", "6000", "?"), cannotRead}, step{4500, of("2", "6000", "6000"), ""},
		step{4800, of("2", "12000", "6000"), beside})
	// It was not.
	play(t, sys, &ibErrors{}, step{at: 0}, step{at: 3900}, step{4200, of("1", "6000", "?"), cannotRead}, step{4500, of("1", "6000", "6000"), ofPart})
	// The part stays unread.
	play(t, sys, &ibErrors{}, step{at: 0}, step{4200, of("1", "0", "?"), cannotRead}, step{4500, of("1", "60000", "?"), cannotRead + ", " + beside})
}

// The same for losses of a link, by the counter and by the log.
func TestFlapsOfAnUnreadCounter(t *testing.T) {
	t.Parallel()
	sys := fakesys.DGXH100()
	sys.Files["dev/kmsg"] = ""
	of := func(n string) map[string]string { return counterFiles(sys, "mlx5_3", "counters/link_downed", n) }
	flaps := &ibLinkFlapping{Hours: 24, Count: 5}
	play(t, sys, flaps, step{0, of("0"), ""}, step{300, of("?"), cannotRead}, step{600, of("1"), "warn ib.flap"})

	roce := fakesys.RoCE()
	roce.Files["dev/kmsg"] = wholeLog
	downs := roce.Dir("eth13") + "/carrier_down_count"
	line := wholeLog + strings.TrimSpace(kernelRecord(71, -200, "mlx5_core 0000:23:00.0 eth13: Link down"))
	play(t, roce, flaps, step{0, map[string]string{downs: "1"}, ""}, step{300, map[string]string{downs: "?", "dev/kmsg": line}, cannotRead},
		step{600, map[string]string{downs: "2"}, "warn ib.flap"})
	// The carrier stays unread.
	play(t, roce, flaps, step{0, map[string]string{downs: "1"}, ""}, step{300, map[string]string{downs: "?", "dev/kmsg": line}, cannotRead}, step{3600, nil, cannotRead + ", warn ib.flap"})

	// The log is read with the counter: it is one loss.
	unplugged := map[string]string{"dev/kmsg": strings.TrimSpace(kernelRecord(71, -200, "mlx5_core 0000:23:00.0: Port module event: module 0, Cable unplugged"))}
	maps.Copy(unplugged, of("?"))
	play(t, sys, &ibLinkFlapping{Hours: 24, Count: 2}, step{0, of("0"), ""}, step{300, unplugged, cannotRead}, step{600, of("1"), "warn ib.flap"})

	// Losses before the links have settled after the boot.
	const boot = -323045
	play(t, sys, flaps, step{boot + 120, of("0"), ""}, step{boot + 400, of("?"), cannotRead}, step{boot + 700, of("2"), ""})

	// The log has a gap before the run that could not read the carrier, none after it.
	gap := strings.TrimSpace(kernelRecord(80, -230, "nvme 0000:01:00.0: x"))
	play(t, roce, flaps, step{0, map[string]string{downs: "1"}, ""}, step{300, map[string]string{downs: "?", "dev/kmsg": gap}, cannotRead},
		step{600, map[string]string{downs: "2"}, "warn ib.flap"})
}

// Another set of members of a LAG is no growth.
func TestErrorsOfMembersThatLeave(t *testing.T) {
	t.Parallel()
	sys := fakesys.Kinds()["lags of data ports"]
	first, second := sys.Dir("ens3a")+"/statistics/rx_crc_errors", sys.Dir("ens3b")+"/statistics/rx_crc_errors"
	members := sys.Dir("bond3") + "/bonding/slaves"
	play(t, sys, &ibErrors{}, step{0, map[string]string{first: "1000", second: "500"}, ""}, step{at: 300}, step{600, map[string]string{members: "ens3a"}, ""},
		step{900, map[string]string{members: "ens3a ens3b"}, ""}, step{1200, map[string]string{first: "1121"}, "warn ib.errors.rx_crc_errors"})
}

// An operator clears only ports that had errors: packets, and packets out of order, are none.
func TestClearedPorts(t *testing.T) {
	t.Parallel()
	sys := fakesys.DGXH100()
	traffic := map[string]string{}
	for i := range 8 {
		maps.Copy(traffic, counterFiles(sys, fmt.Sprintf("mlx5_%d", i), ibTraffic, "900", "hw_counters/out_of_sequence", "9"))
	}
	env := play(t, sys, &ibErrors{}, step{at: 0}, step{300, traffic, ""})
	if got, err := ClearIB(env, nil, "uid 0"); err != nil || len(got) > 0 {
		t.Errorf("cleared %v, %v", got, err)
	}
	env = play(t, sys, &ibErrors{}, step{at: 0}, step{300, counterFiles(sys, "mlx5_3", "counters/symbol_error", "9"), ""})
	if got, err := ClearIB(env, nil, "uid 0"); err != nil || !slices.Equal(got, []string{"mlx5_3:1"}) {
		t.Errorf("cleared %v, %v", got, err)
	}
}

// An old message about a transceiver explains a lost link only if the link has never worked since.
func TestOldMessageOfATransceiver(t *testing.T) {
	t.Parallel()
	const short, day = "nic.module.cable", 25 * 3600
	sys := fakesys.DGXH100()
	up := counterFiles(sys, "mlx5_3", "state", "4: ACTIVE", "phys_state", "5: LinkUp")
	down := counterFiles(sys, "mlx5_3", "state", "1: DOWN", "phys_state", "2: Polling")
	const shorted = "mlx5_core 0000:23:00.0: Port module event[error]: module 0, Cable error, Bad or shorted cable/module"
	log := strings.TrimSpace(kernelRecord(70, 100, shorted))
	sys.Files["dev/kmsg"] = log + "\n"
	play(t, sys, &kernelMessages{Hours: 24}, step{0, up, "warn " + short}, step{600, down, "fail " + short}, step{900, up, "warn " + short}, step{day, nil, ""}, step{day + 300, down, ""},
		step{day + 600, map[string]string{"dev/kmsg": log + "\n" + strings.TrimSpace(kernelRecord(71, -day-500, shorted))}, "fail " + short}, step{2*day + 900, nil, "fail " + short})
	play(t, sys, &kernelMessages{Hours: 24}, step{0, down, "fail " + short}, step{day, nil, "fail " + short})
}

// The second port of a front-end card counts as a device while it is down, if check_ib_ports or the kernel has
// seen it up.
func TestCountOfASecondPort(t *testing.T) {
	t.Parallel()
	sys := fakesys.Kinds()["roce, front end half cabled"]
	count := func(was bool, ups string) string {
		f := fabricOf(t, sys)
		i := slices.IndexFunc(f.Ports, func(p Port) bool { return p.Device == "mlx5_f1" })
		past := `{"seen":1767322745,"series":{"1":[[1767322745,0]]}}`
		if was {
			past = `{"seen":1767322745,"series":{"1":[[1767322445,100],[1767322745,0]]}}`
		}
		root := t.TempDir()
		if err := sys.Write(root); err != nil {
			t.Fatal(err)
		}
		if err := selftest.Place(root, ibPastFile, fmt.Sprintf(`{"version":1,"boot":%q,"devices":{%q:%s}}`, fabricBoot, pastName(f.Ports[i].HCA, LayerEth), past)); err != nil {
			t.Fatal(err)
		}
		if err := selftest.Place(root, sys.Dir("eth1")+"/carrier_up_count", ups+"\n"); err != nil {
			t.Fatal(err)
		}
		env := &checks.Env{Host: probe.NewHost(root), Doing: func(string) {}}
		env.Host.SetPast("/past")
		var got []string
		for _, f := range (&ibCount{Count: 9}).Run(t.Context(), env) {
			got = append(got, fmt.Sprint(f.Severity, " ", f.Code))
		}
		return strings.Join(got, ", ")
	}
	if diff := cmp.Diff([]string{"", "", "fail ib.count"}, []string{count(true, "0"), count(false, "2"), count(false, "0")}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
