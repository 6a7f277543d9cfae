package fabric

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// The time of the nodes of the self-test, and their boot.
const (
	fabricNow  = 1767323045
	fabricBoot = "658f832e-2c36-42e1-a29c-a17c2e3298d2"
)

// portPast returns the history that an earlier run, five minutes ago, has of eight ports, for two
// hours: every counter at 0.
func portPast(name, layer string, change func(map[string]*checks.DeviceHistory)) string {
	all := map[string]*checks.DeviceHistory{}
	for i := range 8 {
		d := &checks.DeviceHistory{Seen: fabricNow - 300, Series: map[string][]checks.Point{}}
		for _, c := range IBCounterRows {
			if c.read() && c.of(layer) {
				d.Series[c.Name] = []checks.Point{{At: fabricNow - 7200, Value: 0}}
			}
		}
		all[fmt.Sprintf(name, i)] = d
	}
	if change != nil {
		change(all)
	}
	data, err := json.Marshal(checks.HistoryFile{Version: checks.HistoryVersion, Boot: fabricBoot, Devices: all})
	if err != nil {
		panic(err)
	}
	return string(data)
}

// errorsOn returns a line on a node with InfiniBand ports that had no error until five minutes
// ago.
func errorsOn(name string, words []string, past func(map[string]*checks.DeviceHistory), now func(*fakesys.Node), want ...checks.Finding) checktest.Scenario {
	return checktest.OnFabric(name, words, now, want...).Holding("past/ib-errors.json", portPast("mlx5_%d:1", layerIB, past))
}

// errorsOnRoCE is errorsOn for RoCE.
func errorsOnRoCE(name string, past func(map[string]*checks.DeviceHistory), now func(*fakesys.Node), want ...checks.Finding) checktest.Scenario {
	return checktest.OnRoCE(name, nil, now, want...).Holding("past/ib-errors.json", portPast("rocep%ds0:1", LayerEth, past))
}

// countsOn sets a counter of a port.
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

// errorFinding returns the finding about a counter of adapter 3.
func errorFinding(device, counter string, severity checks.Severity, want, got, more string) checks.Finding {
	var remedy checks.Remedy
	for _, c := range IBCounterRows {
		if c.Base() == counter {
			remedy = c.Remedy
		}
	}
	return checktest.PortFinding(ibErrorsName, device, 3, checks.Finding{Code: "ib.errors." + counter, Severity: severity, Want: want, Got: got, Remedy: remedy}, counter+more)
}

func TestIBErrors(t *testing.T) { checktest.Run(t, "check_ib_errors") }

var _ = checktest.Table("check_ib_errors", func(string) []checktest.Scenario {
	const bad = "mlx5_3"
	const once, second, minute = "none in an hour", "at most 10 a second", "at most 5 a minute"
	spells := func(counter string, ago ...int64) func(map[string]*checks.DeviceHistory) {
		return func(all map[string]*checks.DeviceHistory) {
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
	onAll := func(counter string, n uint64) func(*fakesys.Node) {
		return func(node *fakesys.Node) {
			for i := range 8 {
				countsOn(fmt.Sprintf("mlx5_%d", i), counter, n)(node)
			}
		}
	}
	const alone = "at most 1000 a second, or at most 100 times the other ports (they have 0)"
	fabric := checks.Finding{Code: "ib.errors.fabric", Severity: checks.Warn, Remedy: checks.CheckFabric,
		Message: "check_ib_errors:  port_rcv_errors on 5 of 8 InfiniBand ports at once, a fault of the fabric: mlx5_0:1 100, mlx5_1:1 100, mlx5_2:1 100, mlx5_3:1 100, mlx5_4:1 100 a second"}
	site := "[[counter]]\nname = \"symbol_error\"\nfail = 1000\n[[counter]]\nname = \"hw_counters/out_of_sequence\"\nper = \"second\"\nfail = 5\n"
	policy := func(why string) checks.Finding {
		return checks.Finding{Code: "ib.errors.policy", Severity: checks.Warn, Remedy: checks.FixConfig, Message: "check_ib_errors:  limits not used: " + why}
	}
	return []checktest.Scenario{
		errorsOn("healthy", nil, nil, nil),
		errorsOn("a counter that stood high before and stands there still", nil, func(all map[string]*checks.DeviceHistory) {
			all[bad+":1"].Series["counters/symbol_error"] = []checks.Point{{At: fabricNow - 9000, Value: 40000}}
		}, countsOn(bad, "counters/symbol_error", 40000)),
		errorsOn("few symbol errors", nil, nil, countsOn(bad, "counters/symbol_error", 120)),
		errorsOn("many symbol errors in an hour", nil, nil, countsOn(bad, "counters/symbol_error", 121), errorFinding(bad, "symbol_error", checks.Fail, "at most 120 an hour", "121", "")),
		errorsOn("the same, and nothing fails", checktest.Of("-w"), nil, countsOn(bad, "counters/symbol_error", 121), errorFinding(bad, "symbol_error", checks.Warn, "at most 120 an hour", "121", "")),
		errorsOn("the same of another device than those named", checktest.Of("mlx5_[0-2]"), nil, countsOn("mlx5_4", "counters/symbol_error", 121)),
		errorsOn("many symbol errors, half an hour ago", nil, func(all map[string]*checks.DeviceHistory) {
			all[bad+":1"].Series["counters/symbol_error"] = []checks.Point{{At: fabricNow - 9000, Value: 3}, {At: fabricNow - 1800, Value: 503}}
		}, countsOn(bad, "counters/symbol_error", 503), errorFinding(bad, "symbol_error", checks.Fail, "at most 120 an hour", "500", "")),
		errorsOn("many symbol errors, more than an hour ago", nil, func(all map[string]*checks.DeviceHistory) {
			all[bad+":1"].Series["counters/symbol_error"] = []checks.Point{{At: fabricNow - 9000, Value: 3}, {At: fabricNow - 3700, Value: 503}}
		}, countsOn(bad, "counters/symbol_error", 503)),
		errorsOn("a counter stopped at its maximum while it failed", nil, func(all map[string]*checks.DeviceHistory) {
			all[bad+":1"].Series["counters/symbol_error"] = []checks.Point{{At: fabricNow - 9000, Value: 3}, {At: fabricNow - 5000, Value: 65535}}
			spells("full counters/symbol_error", 5000)(all)
		}, countsOn(bad, "counters/symbol_error", 65535),
			errorFinding(bad, "symbol_error", checks.Fail, "at most 120 an hour", "65535", " stopped at its maximum while it failed (perfquery -R resets it)")),
		errorsOn("symbol errors as the link was lost", nil, nil, inTurn(countsOn(bad, "counters/symbol_error", 500), countsOn(bad, "counters/link_downed", 1)),
			errorFinding(bad, "symbol_error", checks.Warn, "at most 120 an hour", "500", ", and the link was lost"), errorFinding(bad, "link_downed", checks.Warn, once, "1", "")),
		errorsOn("symbol errors as the adapter was reset", nil, func(all map[string]*checks.DeviceHistory) {
			all[bad+":1"].Series[ibTraffic] = []checks.Point{{At: fabricNow - 9000, Value: 5000000}}
		}, inTurn(countsOn(bad, "counters/symbol_error", 500), countsOn(bad, ibTraffic, 70)),
			errorFinding(bad, "symbol_error", checks.Warn, "at most 120 an hour", "500", ", and the link was lost")),
		errorsOn("symbol errors as the adapter of a lost link was reset", nil, func(all map[string]*checks.DeviceHistory) {
			all[bad+":1"].Series[ibDowned] = []checks.Point{{At: fabricNow - 9000, Value: 3}}
		}, countsOn(bad, "counters/symbol_error", 500), errorFinding(bad, "symbol_error", checks.Warn, "at most 120 an hour", "500", ", and the link was lost")),
		errorsOn("symbol errors of a link in use", nil, func(all map[string]*checks.DeviceHistory) {
			all[bad+":1"].Series[ibTraffic] = []checks.Point{{At: fabricNow - 9000, Value: 50}}
		}, inTurn(countsOn(bad, "counters/symbol_error", 500), countsOn(bad, ibTraffic, 5000000)), errorFinding(bad, "symbol_error", checks.Fail, "at most 120 an hour", "500", "")),
		errorsOn("a link was lost", nil, nil, countsOn(bad, "counters/link_downed", 1), errorFinding(bad, "link_downed", checks.Warn, once, "1", "")),
		errorsOn("a link recovers", nil, nil, countsOn(bad, "counters/link_error_recovery", 40), errorFinding(bad, "link_error_recovery", checks.Warn, minute, "8", "")),
		errorsOn("a link recovers for the third time in an hour", nil, spells("counters/link_error_recovery", 1500, 600), countsOn(bad, "counters/link_error_recovery", 40),
			errorFinding(bad, "link_error_recovery", checks.Fail, minute, "8", " too fast 3 times in an hour")),
		errorsOn("packets arrive damaged", nil, nil, countsOn(bad, "counters/port_rcv_errors", 6000), errorFinding(bad, "port_rcv_errors", checks.Warn, second, "20", "")),
		errorsOn("packets arrive damaged for the third time in an hour", nil, spells("counters/port_rcv_errors", 1500, 600), countsOn(bad, "counters/port_rcv_errors", 6000),
			errorFinding(bad, "port_rcv_errors", checks.Fail, second, "20", " too fast 3 times in an hour")),
		errorsOn("packets arrived damaged three times, and do not now", nil, spells("counters/port_rcv_errors", 3000, 1500, 600), nil,
			errorFinding(bad, "port_rcv_errors", checks.Fail, second, "0", " too fast 3 times in an hour")),
		errorsOn("packets arrived damaged three times, once of them long ago", nil, spells("counters/port_rcv_errors", 3700, 1500, 600), nil),
		errorsOn("twice in the same five minutes is once", nil, spells("counters/port_rcv_errors", 1500, 200), countsOn(bad, "counters/port_rcv_errors", 6000),
			errorFinding(bad, "port_rcv_errors", checks.Warn, second, "20", "")),
		errorsOn("packets were damaged further away", nil, nil, countsOn(bad, "counters/port_rcv_remote_physical_errors", 6000),
			errorFinding(bad, "port_rcv_remote_physical_errors", checks.Warn, second, "20", "")),
		errorsOn("the integrity of a link", nil, nil, countsOn(bad, "counters/local_link_integrity_errors", 2), errorFinding(bad, "local_link_integrity_errors", checks.Fail, once, "2", "")),
		errorsOn("overruns", nil, nil, countsOn(bad, "counters/excessive_buffer_overrun_errors", 1), errorFinding(bad, "excessive_buffer_overrun_errors", checks.Warn, once, "1", "")),
		errorsOn("packets thrown away", nil, nil, countsOn(bad, "counters/port_xmit_discards", 60000), errorFinding(bad, "port_xmit_discards", checks.Warn, "at most 100 a second", "200", "")),
		errorsOn("another node does not answer", nil, nil, countsOn(bad, "hw_counters/local_ack_timeout_err", 400), errorFinding(bad, "local_ack_timeout_err", checks.Warn, "at most 1 a second", "1.3", "")),
		errorsOn("a process is not ready", nil, nil, countsOn(bad, "hw_counters/rnr_nak_retry_err", 4), errorFinding(bad, "rnr_nak_retry_err", checks.Warn, once, "4", "")),
		errorsOn("a connection is given up", nil, nil, countsOn(bad, "hw_counters/req_transport_retries_exceeded", 4), errorFinding(bad, "req_transport_retries_exceeded", checks.Warn, once, "4", "")),
		errorsOn("packets out of order, as adaptive routing brings them", nil, nil, onAll("hw_counters/out_of_sequence", 4000000000)),
		errorsOn("packets out of order on one port alone", nil, nil, countsOn(bad, "hw_counters/out_of_sequence", 30000000),
			errorFinding(bad, "out_of_sequence", checks.Warn, alone, "100000", "")),
		errorsOn("one port has some more of them than the others", nil, nil, inTurn(onAll("hw_counters/out_of_sequence", 3000000), countsOn(bad, "hw_counters/out_of_sequence", 200000000))),
		errorsOn("few of them on one port alone", nil, nil, countsOn(bad, "hw_counters/out_of_sequence", 300000)),
		errorsOn("packets out of order on the only port at work", nil, func(all map[string]*checks.DeviceHistory) {
			for _, d := range all {
				d.Series[ibTraffic] = []checks.Point{{At: fabricNow - 7200, Value: 0}}
			}
		}, inTurn(countsOn(bad, "hw_counters/out_of_sequence", 30000000), countsOn(bad, ibTraffic, 600000000))),
		errorsOn("packets out of order on one of three ports that are judged", checktest.Of("mlx5_[1-3]"), nil, countsOn(bad, "hw_counters/out_of_sequence", 30000000)),
		errorsOn("a counter of 32 bits wraps", nil, func(all map[string]*checks.DeviceHistory) {
			all[bad+":1"].Series["hw_counters/local_ack_timeout_err"] = []checks.Point{{At: fabricNow - 9000, Value: 1<<32 - 100}}
		}, countsOn(bad, "hw_counters/local_ack_timeout_err", 800), errorFinding(bad, "local_ack_timeout_err", checks.Warn, "at most 1 a second", "3", "")),
		errorsOn("a counter is reset", nil, func(all map[string]*checks.DeviceHistory) {
			all[bad+":1"].Series["counters/symbol_error"] = []checks.Point{{At: fabricNow - 9000, Value: 65535}}
		}, countsOn(bad, "counters/symbol_error", 3)),
		errorsOn("a counter is full", nil, func(all map[string]*checks.DeviceHistory) {
			all[bad+":1"].Series["counters/link_downed"] = []checks.Point{{At: fabricNow - 9000, Value: 255}}
		}, countsOn(bad, "counters/link_downed", 255), checktest.PortFinding(ibErrorsName, bad, 3, checks.Finding{Code: "ib.errors.full", Severity: checks.Warn}, "stopped at their maximum: link_downed (255)")),
		errorsOn("counters of several ports are full", nil, func(all map[string]*checks.DeviceHistory) {
			all[bad+":1"].Series["counters/link_downed"] = []checks.Point{{At: fabricNow - 9000, Value: 255}}
			all["mlx5_5:1"].Series["counters/symbol_error"] = []checks.Point{{At: fabricNow - 9000, Value: 65535}}
		}, inTurn(countsOn(bad, "counters/link_downed", 255), countsOn("mlx5_5", "counters/symbol_error", 65535)), checks.Finding{Code: "ib.errors.full", Severity: checks.Warn, Device: checks.Device{Kind: "ports"},
			Got:     "stopped at their maximum: mlx5_3:1 link_downed (255); mlx5_5:1 symbol_error (65535)",
			Message: "check_ib_errors:  counters of 2 ports stopped at their maximum: mlx5_3:1 link_downed (255); mlx5_5:1 symbol_error (65535)"}),
		errorsOn("most ports at once", nil, nil, onMost, fabric),
		checktest.AsIs(errorsOn("most ports at once, and one counts far more", nil, nil, inTurn(onMost, countsOn(bad, "counters/port_rcv_errors", 600000)),
			checks.Finding{Code: fabric.Code, Severity: checks.Warn, Remedy: checks.CheckFabric, Message: strings.Replace(fabric.Message, "mlx5_3:1 100", "mlx5_3:1 2000", 1)},
			errorFinding(bad, "port_rcv_errors", checks.Fail, second, "2000", ", more than 10 times the median of 5 ports (100)"))),
		checktest.AsIs(errorsOn("most ports at once by an external cause, and one counts far more", nil, nil, inTurn(func(n *fakesys.Node) {
			for i := range 8 {
				n.Set(fmt.Sprintf("mlx5_%d", i), "ports/1/counters/port_xmit_discards", "60000")
			}
		}, countsOn(bad, "counters/port_xmit_discards", 3000000)),
			checks.Finding{Code: "ib.errors.fabric", Severity: checks.Warn, Remedy: checks.CheckFabric, Message: "check_ib_errors:  port_xmit_discards on 8 of 8 InfiniBand ports at once, a fault of the fabric: " +
				"mlx5_0:1 200, mlx5_1:1 200, mlx5_2:1 200, mlx5_3:1 10000, mlx5_4:1 200, mlx5_5:1 200, mlx5_6:1 200, mlx5_7:1 200 a second"},
			errorFinding(bad, "port_xmit_discards", checks.Warn, "at most 100 a second", "10000", ", more than 10 times the median of 8 ports (200)"))),
		errorsOn("the largest number is printed exactly", nil, nil, countsOn(bad, "counters/local_link_integrity_errors", 1<<64-1),
			errorFinding(bad, "local_link_integrity_errors", checks.Fail, once, "18446744073709551615", "")),
		checktest.OnFabric("the first run", nil, countsOn(bad, "counters/symbol_error", 60000)),
		checktest.OnFabric("the first run after a boot", nil, countsOn(bad, "counters/symbol_error", 60000)).
			Holding("past/ib-errors.json", strings.ReplaceAll(portPast("mlx5_%d:1", layerIB, nil), fabricBoot, "another")),
		checktest.OnFabric("a damaged history", nil, nil, checks.Finding{Code: "fabric.past", Severity: checks.Warn, Message: "check_ib_errors:  /past/ib-errors.json is damaged; a new history begins"}).
			Holding("past/ib-errors.json", `{"version":1,`),
		errorsOnRoCE("RoCE slow restarts", nil, countsOn("rocep3s0", "hw_counters/roce_slow_restart", 6000), errorFinding("rocep3s0", "roce_slow_restart", checks.Warn, second, "20", "")),
		errorsOnRoCE("RoCE packets changed on their way", nil, countsOn("rocep3s0", "hw_counters/rx_icrc_encapsulated", 1), errorFinding("rocep3s0", "rx_icrc_encapsulated", checks.Warn, once, "1", "")),
		errorsOnRoCE("RoCE frames arrive damaged", nil, statisticOn("rx_crc_errors", 121), errorFinding("rocep3s0", "rx_crc_errors", checks.Warn, "at most 120 an hour", "121", "")),
		errorsOnRoCE("some RoCE frames arrive damaged", nil, statisticOn("rx_crc_errors", 120)),
		errorsOnRoCE("the link of a RoCE port has symbol errors", nil, statisticOn("tx_carrier_errors", 500), errorFinding("rocep3s0", "tx_carrier_errors", checks.Warn, "at most 120 an hour", "500", "")),
		errorsOnRoCE("the same for the third time in an hour", func(all map[string]*checks.DeviceHistory) {
			all["rocep3s0:1"].Marks = map[string][]int64{"net/tx_carrier_errors": {fabricNow - 1500, fabricNow - 600}}
		}, statisticOn("tx_carrier_errors", 500), errorFinding("rocep3s0", "tx_carrier_errors", checks.Fail, "at most 120 an hour", "500", " too fast 3 times in an hour")),
		errorsOnRoCE("the same while the link was lost", func(all map[string]*checks.DeviceHistory) {
			all["rocep3s0:1"].Marks = map[string][]int64{"net/tx_carrier_errors": {fabricNow - 1500, fabricNow - 600}}
			all["rocep3s0:1"].Series[ibDowned] = []checks.Point{{At: fabricNow - 7200, Value: 1}}
		}, inTurn(statisticOn("tx_carrier_errors", 500), func(n *fakesys.Node) { n.Set("eth13", "carrier_down_count", "2") }),
			errorFinding("rocep3s0", "tx_carrier_errors", checks.Warn, "at most 120 an hour", "500", "")),
		errorsOnRoCE("the same while the interface got another MTU", func(all map[string]*checks.DeviceHistory) {
			all["rocep3s0:1"].Marks = map[string][]int64{"net/tx_carrier_errors": {fabricNow - 1500, fabricNow - 600}}
			all["rocep3s0:1"].Series[ibDowned] = []checks.Point{{At: fabricNow - 7200, Value: 1}}
		}, inTurn(statisticOn("tx_carrier_errors", 500), func(n *fakesys.Node) { n.Set("eth13", "carrier_down_count", "2").Files["dev/kmsg"] = wholeLog }),
			errorFinding("rocep3s0", "tx_carrier_errors", checks.Fail, "at most 120 an hour", "500", " too fast 3 times in an hour")),
		errorsOnRoCE("RoCE frames of a wrong length", nil, statisticOn("rx_length_errors", 6000), errorFinding("rocep3s0", "rx_length_errors", checks.Warn, second, "20", "")),
		errorsOnRoCE("RoCE frames with broken octets", nil, statisticOn("rx_frame_errors", 6000), errorFinding("rocep3s0", "rx_frame_errors", checks.Warn, second, "20", "")),
		errorsOnRoCE("errors that are nothing but their parts", nil, inTurn(statisticOn("rx_errors", 6000), statisticOn("rx_crc_errors", 100), statisticOn("rx_length_errors", 2999), statisticOn("rx_frame_errors", 2901))),
		errorsOnRoCE("errors beside their parts", nil, inTurn(statisticOn("rx_errors", 9000), statisticOn("rx_length_errors", 2999)), errorFinding("rocep3s0", "rx_errors", checks.Warn, second, "20", "")),
		errorsOnRoCE("packets that are not sent", nil, inTurn(statisticOn("tx_errors", 60000), statisticOn("tx_aborted_errors", 60000)), errorFinding("rocep3s0", "tx_aborted_errors", checks.Warn, "at most 100 a second", "200", "")),
		errorsOnRoCE("packets that cannot be sent", nil, statisticOn("tx_errors", 6000), errorFinding("rocep3s0", "tx_errors", checks.Warn, second, "20", "")),
		errorsOnRoCE("statistics that are garbage", nil, func(n *fakesys.Node) { n.Set("eth13", "statistics/rx_errors", "many") },
			portFindingOf("rocep3s0", "parse /sys/class/net/eth13/statistics/rx_errors: invalid argument")),
		errorsOnEFA("EFA that is idle", nil),
		errorsOnEFA("EFA whose device refuses few commands", map[string]uint64{"hw_counters/cmds_err": 50, "hw_counters/keep_alive_rcvd": 5000}),
		errorsOnEFA("EFA whose device refuses commands", map[string]uint64{"hw_counters/cmds_err": 60}, efaFinding("cmds_err", checks.Warn, "at most 10 a minute", "12")),
		errorsOnEFA("EFA whose device does not answer", map[string]uint64{"hw_counters/no_completion_cmds": 1}, efaFinding("no_completion_cmds", checks.Fail, once, "1")),
		errorsOnEFA("EFA that drops packets", map[string]uint64{"ports/1/hw_counters/rx_drops": 60000}, efaFinding("rx_drops", checks.Warn, "at most 100 a second", "200")),
		errorsOnEFA("EFA whose packets are lost", map[string]uint64{"ports/1/hw_counters/retrans_timeout_events": 600}, efaFinding("retrans_timeout_events", checks.Warn, "at most 1 a second", "2")),
		errorsOnRoCE("symbol errors of a RoCE port are ignored", nil, countsOn("rocep3s0", "counters/symbol_error", 60000)),
		errorsOn("the site's limits", nil, nil, countsOn(bad, "counters/symbol_error", 500)).Holding("etc/nhc/ibcounters.toml", site),
		errorsOn("a counter of the site's", checktest.Of("-f", "/my.toml"), func(all map[string]*checks.DeviceHistory) {
			all[bad+":1"].Series["hw_counters/out_of_sequence"] = []checks.Point{{At: fabricNow - 9000, Value: 0}}
		}, countsOn(bad, "hw_counters/out_of_sequence", 6000), errorFinding(bad, "out_of_sequence", checks.Fail, "at most 5 a second", "20", "")).Holding("my.toml", site),
		errorsOn("limits that cannot be used", nil, nil, countsOn(bad, "counters/link_downed", 1),
			policy(`/etc/nhc/ibcounters.toml:1: symbol_error: per "day", want any, second, minute or hour`), errorFinding(bad, "link_downed", checks.Warn, once, "1", "")).
			Holding("etc/nhc/ibcounters.toml", "[[counter]]\nname = \"symbol_error\"\nper = \"day\"\n"),
		errorsOn("limits that are wrong twice", nil, nil, nil, policy("/etc/nhc/ibcounters.toml:1: y: name \"y\", want a known counter, or counters/NAME, hw_counters/NAME, device/NAME or net/NAME (nhc-gpu lint shows all errors)")).
			Holding("etc/nhc/ibcounters.toml", "[[counter]]\nname = \"y\"\n[[counter]]\nname = \"z\"\n"),
		errorsOn("a missing file of limits", checktest.Of("-f", "/my.toml"), nil, nil, policy("read /my.toml: no such file or directory")),
		errorsOnOPA("replays of an Omni-Path link", "counters/local_link_integrity_errors", 3, 9),
		errorsOnOPA("reinitialisations of an Omni-Path link", "counters/link_error_recovery", 10, 50),
		errorsOnOPA("a lost Omni-Path link", "counters/link_downed", 0, 1, checktest.About(ibErrorsName, checks.Device{Kind: "port", Name: "hfi1_0:1", PCI: "0000:c0:00.0", UUID: "b83f:d203:00c5:1ac0"},
			checks.Finding{Code: "ib.errors.link_downed", Severity: checks.Warn, Want: once, Got: "1", Remedy: checks.CheckCable}, "link_downed")),
		errorsUnread(), errorsGarbage(), errorsNone(),
		{Name: "no RDMA device", Want: []checks.Finding{{Code: "ib.none", Severity: checks.Skip, Message: "check_ib_errors:  no RDMA device on this node"}}},
		checktest.OnFabric("a device that does not exist", checktest.Of("mlx5_9"), nil, checks.Finding{Code: "ib.unnamed", Severity: checks.Fail, Device: checks.Device{Kind: "port", Name: "mlx5_9"}, Want: "mlx5_9", Got: "none",
			Message: "check_ib_errors:  mlx5_9: no such RDMA device or port"}),
	}
})

// statisticOn sets a statistic of the interface of RoCE adapter 3.
func statisticOn(name string, n uint64) func(*fakesys.Node) {
	return func(node *fakesys.Node) { node.Set("eth13", "statistics/"+name, fmt.Sprint(n)) }
}

// portFindingOf returns the finding that a counter of a port could not be read.
func portFindingOf(device, why string) checks.Finding {
	f := checktest.PortFinding(ibErrorsName, device, 3, checks.Finding{Code: "ib.error", Severity: checks.Unknown}, "cannot be read: "+why)
	f.Got = ""
	return f
}

// errorsOnOPA returns check_ib_errors on a node with an Omni-Path adapter, with a counter that was before.
func errorsOnOPA(name, counter string, before, now uint64, want ...checks.Finding) checktest.Scenario {
	n := fakesys.Kinds()["omni-path"]
	n.Set("hfi1_0", "ports/1/"+counter, fmt.Sprint(now))
	return checktest.OnNode(n, name, nil, want...).Holding("past/ib-errors.json", portPast("hfi1_%d:1", layerIB, func(all map[string]*checks.DeviceHistory) {
		all["hfi1_0:1"].Series[counter] = []checks.Point{{At: fabricNow - 300, Value: before}}
	}))
}

// efaNode returns a node with eight EFA adapters; the kernel shows no link layer for them.
func efaNode() *fakesys.Node {
	n := fakesys.EthernetOnly()
	n.Files["proc/modules"] += "efa 1 0 - Live 0x0\nib_uverbs 1 1 efa, Live 0x0\nib_core 1 2 efa,ib_uverbs, Live 0x0\n"
	for i := range 8 {
		n.AddHCA(fakesys.HCA{PCI: fakesys.PCI{Address: fakesys.HCAAddress(i), ID: "1d0f:efa1", Driver: "efa", NUMA: i / 4, Speed: "16.0 GT/s PCIe", Width: 16},
			Name: fmt.Sprintf("rdmap%ds0", i), Type: "0xefa1", Layer: "Unknown", Rate: "100 Gb/sec (4X EDR)", Index: i})
		dir := n.Dir(fmt.Sprintf("rdmap%ds0", i))
		maps.DeleteFunc(n.Files, func(f, _ string) bool {
			return strings.HasPrefix(f, dir) && (path.Base(path.Dir(f)) == "counters" || path.Base(path.Dir(f)) == "hw_counters" || path.Base(f) == "lid")
		})
		for _, c := range IBCounterRows {
			if name, ok := strings.CutPrefix(c.Name, "device/"); ok {
				n.Files[dir+"/hw_counters/"+name] = "0\n"
			} else if c.Layer == layerEFA {
				n.Files[dir+"/ports/1/"+c.Name] = "0\n"
			}
		}
	}
	delete(n.Files, "sys/class/infiniband_mad/abi_version")
	return n
}

// errorsOnEFA returns check_ib_errors on a node with EFA, with a counter of one adapter set.
func errorsOnEFA(name string, counts map[string]uint64, want ...checks.Finding) checktest.Scenario {
	n := efaNode()
	for file, count := range counts {
		n.Set("rdmap3s0", file, fmt.Sprint(count))
	}
	return checktest.OnNode(n, name, nil, want...).Holding("past/ib-errors.json", portPast("rdmap%ds0:1", layerEFA, nil))
}

// efaFinding returns the finding about a counter of that adapter.
func efaFinding(counter string, severity checks.Severity, want, got string) checks.Finding {
	return errorFinding("rdmap3s0", counter, severity, want, got, "")
}

// errorsUnread has an unreadable counter of a port, and another one that has grown and is still
// judged.
func errorsUnread() checktest.Scenario {
	s := errorsOn("a counter cannot be read", nil, nil, func(n *fakesys.Node) {
		n.Set("mlx5_3", "ports/1/counters/symbol_error/", "").Set("mlx5_3", "ports/1/counters/link_downed", "1")
	}, untold(ibErrorsName, "read /sys/class/infiniband/mlx5_3/ports/1/counters/symbol_error: is a directory"), errorFinding("mlx5_3", "link_downed", checks.Warn, "none in an hour", "1", ""))
	s.Broken = true
	return s
}

// untold returns the finding about mlx5_3 if a part of it could not be read.
func untold(check, why string) checks.Finding {
	f := checktest.PortFinding(check, "mlx5_3", 3, checks.Finding{Code: "ib.error", Severity: checks.Unknown}, "cannot be read: "+why)
	f.Got = ""
	return f
}

func errorsGarbage() checktest.Scenario {
	s := errorsOn("counters are garbage", nil, nil, inTurn(
		func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/counters/symbol_error", "18446744073709551616") },
		func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/counters/link_downed", "-1") },
	), untold(ibErrorsName,
		"parse /sys/class/infiniband/mlx5_3/ports/1/counters/link_downed: invalid argument; parse /sys/class/infiniband/mlx5_3/ports/1/counters/symbol_error: invalid argument"))
	s.Broken = true
	return s
}

// errorsNone returns a node with a kernel that shows no counters, as for EFA.
func errorsNone() checktest.Scenario {
	return checktest.OnFabric("no counters", nil, func(n *fakesys.Node) {
		maps.DeleteFunc(n.Files, func(f, _ string) bool {
			return path.Base(path.Dir(f)) == "counters" || path.Base(path.Dir(f)) == "hw_counters"
		})
	}, checks.Finding{Code: "ib.errors.none", Severity: checks.Skip, Message: "check_ib_errors:  no port has error counters"})
}

// A counter that grows fails, keeps failing for an hour, and is forgotten then: the node returns
// on its own.
func TestIBErrorsEnd(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	sys := fakesys.DGXH100()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	var got []checks.Severity
	for minute := 0; minute <= 90; minute += 5 {
		place := func(name, content string) {
			if err := selftest.Place(root, name, content); err != nil {
				t.Fatal(err)
			}
		}
		place("proc/uptime", fmt.Sprintf("%d.00 1.00\n", 323045+60*minute))
		if minute == 10 {
			place(sys.Dir("mlx5_3")+"/ports/1/counters/symbol_error", "9000\n")
		}
		env := &checks.Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		got = append(got, checks.Worst((&ibErrors{}).Run(t.Context(), env)))
	}
	for i, s := range got {
		if at := time.Duration(i) * 5 * time.Minute; (s == checks.Fail) != (at >= 10*time.Minute && at < 70*time.Minute) {
			t.Errorf("after %v: %v", at, s)
		}
	}
}

// minutes runs check_ib_errors every five minutes; act changes the node before a run.
func minutes(t *testing.T, last int, act func(minute int, set func(file, content string))) map[int][]checks.Finding {
	t.Helper()
	root := t.TempDir()
	sys := fakesys.DGXH100()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) {
		if err := selftest.Place(root, name, content+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	all := map[int][]checks.Finding{}
	for minute := 0; minute <= last; minute += 5 {
		write("proc/uptime", fmt.Sprintf("%d.00 1.00", 323045+60*minute))
		act(minute, func(file, content string) { write(sys.Dir("mlx5_3")+"/ports/1/"+file, content) })
		env := &checks.Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		all[minute] = (&ibErrors{}).Run(t.Context(), env)
	}
	return all
}

// A bad cable that sometimes also loses its link fails by its errors: a loss excuses the growth
// at that time, and no more.
func TestIBErrorsBesideLosses(t *testing.T) {
	t.Parallel()
	errors, lost := 0, 0
	all := minutes(t, 120, func(minute int, set func(file, content string)) {
		if errors += 40; minute%60 == 30 {
			errors += 5000 // as the link trains
			lost++
		}
		set("counters/symbol_error", fmt.Sprint(errors))
		set("counters/link_downed", fmt.Sprint(lost))
	})
	for minute, findings := range all {
		var got checks.Severity
		for _, f := range findings {
			if f.Code == "ib.errors.symbol_error" {
				got = f.Severity
				if f.Severity == checks.Fail && (len(f.Got) != 3 || f.Got > "480") {
					t.Errorf("minute %d: counts what the training link did: %s", minute, f.Message)
				}
			}
		}
		if want := minute >= 20; (got == checks.Fail) != want {
			t.Errorf("minute %d: %v, want a failure: %v", minute, findings, want)
		}
	}
}

// Maintenance of a leaf switch causes errors when the link goes down and when it comes back, in
// two intervals: neither fails.
func TestIBErrorsOfWorkOnALeaf(t *testing.T) {
	t.Parallel()
	for minute, findings := range minutes(t, 100, func(minute int, set func(file, content string)) {
		switch minute {
		case 20:
			set("state", "1: DOWN")
			set("phys_state", "2: Polling")
			set("counters/link_downed", "1")
			set("counters/symbol_error", "300")
		case 35:
			set("state", "4: ACTIVE")
			set("phys_state", "5: LinkUp")
			set("counters/symbol_error", "900")
			set("counters/link_error_recovery", "99")
		}
	}) {
		if checks.Worst(findings) == checks.Fail {
			t.Errorf("minute %d: %v", minute, findings)
		}
	}
}
