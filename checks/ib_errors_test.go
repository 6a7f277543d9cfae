package checks

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// The time of the nodes of the self-test, and their boot.
const (
	fabricNow  = 1767323045
	fabricBoot = "658f832e-2c36-42e1-a29c-a17c2e3298d2"
)

// portPast is what an earlier run, five minutes ago, has kept of eight ports, for two
// hours: every counter at 0.
func portPast(name, layer string, change func(map[string]*deviceHistory)) string {
	all := map[string]*deviceHistory{}
	for i := range 8 {
		d := &deviceHistory{Seen: fabricNow - 300, Series: map[string][]point{}}
		for _, c := range ibCounterRows {
			if c.judged() && c.of(layer) {
				d.Series[c.Name] = []point{{fabricNow - 7200, 0}}
			}
		}
		all[fmt.Sprintf(name, i)] = d
	}
	if change != nil {
		change(all)
	}
	data, err := json.Marshal(historyFile{Version: historyVersion, Boot: fabricBoot, Devices: all})
	if err != nil {
		panic(err)
	}
	return string(data)
}

// errorsOn is a line on a node with InfiniBand whose ports had no error until five
// minutes ago.
func errorsOn(name string, words []string, past func(map[string]*deviceHistory), now func(*fakesys.Node), want ...Finding) scenario {
	return onFabric(name, words, now, want...).holding("past/ib-errors.json", portPast("mlx5_%d:1", layerIB, past))
}

// errorsOnRoCE is the same with RoCE.
func errorsOnRoCE(name string, past func(map[string]*deviceHistory), now func(*fakesys.Node), want ...Finding) scenario {
	return onRoCE(name, nil, now, want...).holding("past/ib-errors.json", portPast("rocep%ds0:1", layerEth, past))
}

// countsOn has a port count so many.
func countsOn(device, counter string, n uint64) func(*fakesys.Node) {
	return func(node *fakesys.Node) { node.Set(device, "ports/1/"+counter, fmt.Sprint(n)) }
}

func inTurn(list ...func(*fakesys.Node)) func(*fakesys.Node) {
	return func(n *fakesys.Node) {
		for _, f := range list {
			f(n)
		}
	}
}

// errorFinding is what is said of a counter of the adapter with the number 3.
func errorFinding(device, counter string, severity Severity, want, got, more string) Finding {
	var remedy Remedy
	for _, c := range ibCounterRows {
		if c.base() == counter {
			remedy = c.Remedy
		}
	}
	return portFinding(ibErrorsName, device, 3, Finding{Code: "ib.errors." + counter, Severity: severity, Want: want, Got: got, Remedy: remedy}, counter+more)
}

func init() {
	ofWholeNode("ib.errors.fabric", "ib.errors.none", "ib.errors.policy")
	const bad = "mlx5_3"
	const once, second, minute = "none in an hour", "at most 10 a second", "at most 5 a minute"
	spells := func(counter string, ago ...int64) func(map[string]*deviceHistory) {
		return func(all map[string]*deviceHistory) {
			for _, a := range ago {
				all[bad+":1"].Marks = map[string][]int64{counter: append(all[bad+":1"].Marks[counter], fabricNow-a)}
			}
		}
	}
	onMost := func(n *fakesys.Node) {
		for i := range 5 {
			n.Set(fmt.Sprintf("mlx5_%d", i), "ports/1/counters/port_rcv_errors", "30000")
		}
	}
	fabric := Finding{Code: "ib.errors.fabric", Severity: Warn, Remedy: CheckFabric,
		Message: "check_ib_errors:  port_rcv_errors of 5 of 8 InfiniBand ports at once, so it is the fabric: mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_4:1"}
	site := "[[counter]]\nname = \"symbol_error\"\nfail = 1000\n[[counter]]\nname = \"hw_counters/out_of_sequence\"\nper = \"second\"\nfail = 5\n"
	policy := func(why string) Finding {
		return Finding{Code: "ib.errors.policy", Severity: Warn, Remedy: FixConfig, Message: "check_ib_errors:  limits not used: " + why}
	}
	testCheck(ibErrorsName,
		errorsOn("healthy", nil, nil, nil),
		errorsOn("a counter that stood high before and stands there still", nil, func(all map[string]*deviceHistory) {
			all[bad+":1"].Series["counters/symbol_error"] = []point{{fabricNow - 9000, 40000}}
		}, countsOn(bad, "counters/symbol_error", 40000)),
		errorsOn("few symbol errors", nil, nil, countsOn(bad, "counters/symbol_error", 120)),
		errorsOn("many symbol errors in an hour", nil, nil, countsOn(bad, "counters/symbol_error", 121), errorFinding(bad, "symbol_error", Fail, "at most 120 an hour", "121", "")),
		errorsOn("the same, and nothing fails", of("-w"), nil, countsOn(bad, "counters/symbol_error", 121), errorFinding(bad, "symbol_error", Warn, "at most 120 an hour", "121", "")),
		errorsOn("the same of another device than those named", of("mlx5_[0-2]"), nil, countsOn("mlx5_4", "counters/symbol_error", 121)),
		errorsOn("many symbol errors, half an hour ago", nil, func(all map[string]*deviceHistory) {
			all[bad+":1"].Series["counters/symbol_error"] = []point{{fabricNow - 9000, 3}, {fabricNow - 1800, 503}}
		}, countsOn(bad, "counters/symbol_error", 503), errorFinding(bad, "symbol_error", Fail, "at most 120 an hour", "500", "")),
		errorsOn("many symbol errors, more than an hour ago", nil, func(all map[string]*deviceHistory) {
			all[bad+":1"].Series["counters/symbol_error"] = []point{{fabricNow - 9000, 3}, {fabricNow - 3700, 503}}
		}, countsOn(bad, "counters/symbol_error", 503)),
		errorsOn("symbol errors as the link was lost", nil, nil, inTurn(countsOn(bad, "counters/symbol_error", 500), countsOn(bad, "counters/link_downed", 1)),
			errorFinding(bad, "symbol_error", Warn, "at most 120 an hour", "500", ", and the link was lost"), errorFinding(bad, "link_downed", Warn, once, "1", "")),
		errorsOn("a link was lost", nil, nil, countsOn(bad, "counters/link_downed", 1), errorFinding(bad, "link_downed", Warn, once, "1", "")),
		errorsOn("a link recovers", nil, nil, countsOn(bad, "counters/link_error_recovery", 40), errorFinding(bad, "link_error_recovery", Warn, minute, "8", "")),
		errorsOn("a link recovers for the third time in an hour", nil, spells("counters/link_error_recovery", 1500, 600), countsOn(bad, "counters/link_error_recovery", 40),
			errorFinding(bad, "link_error_recovery", Fail, minute, "8", " too fast 3 times in an hour")),
		errorsOn("packets arrive damaged", nil, nil, countsOn(bad, "counters/port_rcv_errors", 6000), errorFinding(bad, "port_rcv_errors", Warn, second, "20", "")),
		errorsOn("packets arrive damaged for the third time in an hour", nil, spells("counters/port_rcv_errors", 1500, 600), countsOn(bad, "counters/port_rcv_errors", 6000),
			errorFinding(bad, "port_rcv_errors", Fail, second, "20", " too fast 3 times in an hour")),
		errorsOn("packets arrived damaged three times, and do not now", nil, spells("counters/port_rcv_errors", 3000, 1500, 600), nil,
			errorFinding(bad, "port_rcv_errors", Fail, second, "0", " too fast 3 times in an hour")),
		errorsOn("packets arrived damaged three times, once of them long ago", nil, spells("counters/port_rcv_errors", 3700, 1500, 600), nil),
		errorsOn("twice in the same five minutes is once", nil, spells("counters/port_rcv_errors", 1500, 200), countsOn(bad, "counters/port_rcv_errors", 6000),
			errorFinding(bad, "port_rcv_errors", Warn, second, "20", "")),
		errorsOn("packets were damaged further away", nil, nil, countsOn(bad, "counters/port_rcv_remote_physical_errors", 6000),
			errorFinding(bad, "port_rcv_remote_physical_errors", Warn, second, "20", "")),
		errorsOn("the integrity of a link", nil, nil, countsOn(bad, "counters/local_link_integrity_errors", 2), errorFinding(bad, "local_link_integrity_errors", Fail, once, "2", "")),
		errorsOn("overruns", nil, nil, countsOn(bad, "counters/excessive_buffer_overrun_errors", 1), errorFinding(bad, "excessive_buffer_overrun_errors", Warn, once, "1", "")),
		errorsOn("packets thrown away", nil, nil, countsOn(bad, "counters/port_xmit_discards", 60000), errorFinding(bad, "port_xmit_discards", Warn, "at most 100 a second", "200", "")),
		errorsOn("another node does not answer", nil, nil, countsOn(bad, "hw_counters/local_ack_timeout_err", 400), errorFinding(bad, "local_ack_timeout_err", Warn, "at most 1 a second", "1.3", "")),
		errorsOn("a process is not ready", nil, nil, countsOn(bad, "hw_counters/rnr_nak_retry_err", 4), errorFinding(bad, "rnr_nak_retry_err", Warn, once, "4", "")),
		errorsOn("a connection is given up", nil, nil, countsOn(bad, "hw_counters/req_transport_retries_exceeded", 4), errorFinding(bad, "req_transport_retries_exceeded", Warn, once, "4", "")),
		errorsOn("packets out of order, as adaptive routing brings them", nil, nil, countsOn(bad, "hw_counters/out_of_sequence", 4000000000)),
		errorsOn("a counter of 32 bits wraps", nil, func(all map[string]*deviceHistory) {
			all[bad+":1"].Series["hw_counters/local_ack_timeout_err"] = []point{{fabricNow - 9000, 1<<32 - 100}}
		}, countsOn(bad, "hw_counters/local_ack_timeout_err", 800), errorFinding(bad, "local_ack_timeout_err", Warn, "at most 1 a second", "3", "")),
		errorsOn("a counter is reset", nil, func(all map[string]*deviceHistory) {
			all[bad+":1"].Series["counters/symbol_error"] = []point{{fabricNow - 9000, 65535}}
		}, countsOn(bad, "counters/symbol_error", 3)),
		errorsOn("a counter is full", nil, func(all map[string]*deviceHistory) {
			all[bad+":1"].Series["counters/link_downed"] = []point{{fabricNow - 9000, 255}}
		}, countsOn(bad, "counters/link_downed", 255), portFinding(ibErrorsName, bad, 3, Finding{Code: "ib.errors.full", Severity: Warn}, "at their maximum, and count no more: link_downed (255)")),
		errorsOn("most ports at once", nil, nil, onMost, fabric),
		onFabric("the first run", nil, countsOn(bad, "counters/symbol_error", 60000)),
		onFabric("the first run after a boot", nil, countsOn(bad, "counters/symbol_error", 60000)).
			holding("past/ib-errors.json", strings.ReplaceAll(portPast("mlx5_%d:1", layerIB, nil), fabricBoot, "another")),
		onFabric("a past that is broken", nil, nil, Finding{Code: "fabric.past", Severity: Warn, Message: "check_ib_errors:  read /past/ib-errors.json: unexpected end of JSON input; it is begun anew"}).
			holding("past/ib-errors.json", `{"version":1,`),
		errorsOnRoCE("RoCE begins anew slowly", nil, countsOn("rocep3s0", "hw_counters/roce_slow_restart", 6000), errorFinding("rocep3s0", "roce_slow_restart", Warn, second, "20", "")),
		errorsOnRoCE("RoCE packets changed on their way", nil, countsOn("rocep3s0", "hw_counters/rx_icrc_encapsulated", 1), errorFinding("rocep3s0", "rx_icrc_encapsulated", Warn, once, "1", "")),
		errorsOnRoCE("symbol errors of RoCE are none of InfiniBand", nil, countsOn("rocep3s0", "counters/symbol_error", 60000)),
		errorsOn("the site's limits", nil, nil, countsOn(bad, "counters/symbol_error", 500)).holding("etc/nhc/ibcounters.toml", site),
		errorsOn("a counter of the site's", of("-f", "/my.toml"), func(all map[string]*deviceHistory) {
			all[bad+":1"].Series["hw_counters/out_of_sequence"] = []point{{fabricNow - 9000, 0}}
		}, countsOn(bad, "hw_counters/out_of_sequence", 6000), errorFinding(bad, "out_of_sequence", Fail, "at most 5 a second", "20", "")).holding("my.toml", site),
		errorsOn("limits that cannot be used", nil, nil, countsOn(bad, "counters/link_downed", 1),
			policy(`/etc/nhc/ibcounters.toml:1: symbol_error: per "day", want any, second, minute or hour`), errorFinding(bad, "link_downed", Warn, once, "1", "")).
			holding("etc/nhc/ibcounters.toml", "[[counter]]\nname = \"symbol_error\"\nper = \"day\"\n"),
		errorsOn("limits that are wrong twice", nil, nil, nil, policy("/etc/nhc/ibcounters.toml:1: y: want a counter that is known, or counters/NAME or hw_counters/NAME (nhc-gpu lint tells all)")).
			holding("etc/nhc/ibcounters.toml", "[[counter]]\nname = \"y\"\n[[counter]]\nname = \"z\"\n"),
		errorsOn("limits that are not there", of("-f", "/my.toml"), nil, nil, policy("read /my.toml: no such file or directory")),
		errorsUnread(), errorsGarbage(), errorsNone(),
		scenario{name: "no RDMA device", want: []Finding{{Code: "ib.none", Severity: Skip, Message: "check_ib_errors:  no RDMA device on this node"}}},
		onFabric("a device that is not there", of("mlx5_9"), nil, Finding{Code: "ib.unnamed", Severity: Fail, Device: Device{Kind: "port", Name: "mlx5_9"}, Want: "mlx5_9", Got: "none",
			Message: "check_ib_errors:  mlx5_9: no such RDMA device or port"}),
	)
}

// errorsUnread has a counter of one port that cannot be read, beside one that has
// grown: it is judged all the same.
func errorsUnread() scenario {
	s := errorsOn("a counter cannot be read", nil, nil, func(n *fakesys.Node) {
		n.Set("mlx5_3", "ports/1/counters/symbol_error/", "").Set("mlx5_3", "ports/1/counters/link_downed", "1")
	}, untold(ibErrorsName, "read /sys/class/infiniband/mlx5_3/ports/1/counters/symbol_error: is a directory"), errorFinding("mlx5_3", "link_downed", Warn, "none in an hour", "1", ""))
	s.broken = true
	return s
}

// untold is what is said of mlx5_3 where something of it could not be read.
func untold(check, why string) Finding {
	f := portFinding(check, "mlx5_3", 3, Finding{Code: "ib.error", Severity: Unknown}, "could not tell: "+why)
	f.Got = ""
	return f
}

func errorsGarbage() scenario {
	s := errorsOn("counters are garbage", nil, nil, inTurn(
		func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/counters/symbol_error", "18446744073709551616") },
		func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/counters/link_downed", "-1") },
	), untold(ibErrorsName,
		"parse /sys/class/infiniband/mlx5_3/ports/1/counters/link_downed: invalid argument; parse /sys/class/infiniband/mlx5_3/ports/1/counters/symbol_error: invalid argument"))
	s.broken = true
	return s
}

// errorsNone is a node whose kernel tells no counters, as of EFA.
func errorsNone() scenario {
	return onFabric("no counters", nil, func(n *fakesys.Node) {
		maps.DeleteFunc(n.Files, func(f, _ string) bool {
			return path.Base(path.Dir(f)) == "counters" || path.Base(path.Dir(f)) == "hw_counters"
		})
	}, Finding{Code: "ib.errors.none", Severity: Skip, Message: "check_ib_errors:  no port tells how many errors it has seen"})
}

// A counter that goes wrong fails, stays so for an hour, and is forgotten then: the
// node comes back by itself.
func TestIBErrorsEnd(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	sys := fakesys.DGXH100()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	var got []Severity
	for minute := 0; minute <= 90; minute += 5 {
		place := func(name, content string) {
			if err := place(root, name, content); err != nil {
				t.Fatal(err)
			}
		}
		place("proc/uptime", fmt.Sprintf("%d.00 1.00\n", 323045+60*minute))
		if minute == 10 {
			place(sys.Dir("mlx5_3")+"/ports/1/counters/symbol_error", "9000\n")
		}
		env := &Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		got = append(got, Worst((&ibErrors{}).Run(t.Context(), env)))
	}
	for i, s := range got {
		if at := time.Duration(i) * 5 * time.Minute; (s == Fail) != (at >= 10*time.Minute && at < 70*time.Minute) {
			t.Errorf("after %v: %v", at, s)
		}
	}
}
