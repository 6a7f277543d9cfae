package lbnl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// onNodes returns a scenario where the page-out threads have used the given seconds of CPU time.
func onNodes(name string, seconds []int, words []string, want ...checks.Finding) checktest.Scenario {
	procs := []checktest.UseProc{{PID: 1, Args: "/sbin/init"}}
	for i, s := range seconds {
		procs = append(procs, checktest.UseProc{PID: 50 + i, Args: fmt.Sprintf("[kswapd%d]", i), Ticks: s*100 + 99})
	}
	return checktest.Scenario{Name: name, Words: words, Want: want, Files: checktest.UseNode(procs...)}
}

func TestPSKswapd(t *testing.T) { checktest.Run(t, "check_ps_kswapd") }

var _ = checktest.Table("check_ps_kswapd", func(string) []checktest.Scenario {
	imbalance := func(pids, times string) checks.Finding {
		return checks.Finding{Code: "ps.kswapd.imbalance", Severity: checks.Fail, Device: checks.Device{Kind: "process", Name: "kswapd"},
			Message: "check_ps_kswapd:  NUMA imbalance detected among PIDs " + pids + ".", Got: times + " s"}
	}
	two := func(times string) checks.Finding { return imbalance("50 51", times) }
	quiet := warned(two("600 600"), "")
	quiet.Syslog = true
	garbage := onNodes("garbage", []int{1, 1}, checktest.Of("1", "1"), checktest.Unknown("parse /proc/51/stat: invalid argument"))
	garbage.Broken, garbage.Files["proc/51/stat"] = true, "51"
	gone := onNodes("one has gone meanwhile", []int{600, 1}, checktest.Of("500", "100"))
	gone.Broken = true
	delete(gone.Files, "proc/51/stat")
	bad := func(word string) checks.Finding {
		return checktest.ValueFinding("check_ps_kswapd", "limit", word, "a number")
	}
	users := onNodes("a user's process of that name", []int{600}, checktest.Of("500", "100"))
	for name, data := range checktest.UseNode(checktest.UseProc{PID: 60, UID: 5001, Args: "[kswapd1]", Ticks: 60000}) {
		if strings.HasPrefix(name, "proc/60/") || strings.HasPrefix(name, "/proc/60/") {
			users.Files[name] = data
		}
	}
	return []checktest.Scenario{
		users,
		onNodes("one node", []int{9999}, checktest.Of("500", "100")),
		onNodes("none", nil, checktest.Of("500", "100")),
		onNodes("balanced", []int{100, 120}, checktest.Of("500", "100")).OrTable(map[string]any{"threshold": "500", "discrepancy": "100"}),
		onNodes("ratio at the limit", []int{10, 109}, checktest.Of("500", "10")),
		onNodes("ratio above the limit", []int{10, 110}, checktest.Of("500", "10"), two("10 110")),
		onNodes("ratio above a fraction", []int{10, 110}, checktest.Of("500", "10.5"), two("10 110")),
		onNodes("at the threshold", []int{500, 500}, checktest.Of("500", "1")),
		onNodes("above a fraction", []int{500, 500}, checktest.Of("499.5", "1"), two("500 500")),
		onNodes("above the threshold", []int{600, 590}, checktest.Of("500", "100"), two("600 590")),
		onNodes("one idle, half the threshold", []int{250, 0}, checktest.Of("501", "100")),
		onNodes("one idle, above half the threshold", []int{251, 0}, checktest.Of("501", "100"), two("251 0")),
		onNodes("one of eight", []int{1, 1, 1, 1, 1, 501, 1, 1}, checktest.Of("500", "100"),
			imbalance("50 51 52 53 54 55 56 57", "1 1 1 1 1 501 1 1")),
		onNodes("no limits are 0", []int{1, 1}, nil, two("1 1")),

		onNodes("log", []int{600, 600}, checktest.Of("500", "100", "log"), warned(two("600 600"), "")).
			OrTable(map[string]any{"threshold": int64(500), "discrepancy": int64(100), "actions": "log"}),
		onNodes("syslog", []int{600, 600}, checktest.Of("500", "100", "syslog"), quiet),
		onNodes("all actions", []int{600, 600}, checktest.Of("500", "100", "log syslog", "x", "kill", "die", "log"),
			warned(two("600 600"), ""), quiet, two("600 600")),
		onNodes("ignore", []int{600, 600}, checktest.Of("500", "100", "ignore", "die")),
		onNodes("unknown action", []int{600, 600}, checktest.Of("500", "100", "shout")),

		onNodes("malformed threshold", []int{600, 600}, checktest.Of("1.5X", "100"), bad("1.5X")),
		onNodes("malformed discrepancy", []int{600, 600}, checktest.Of("500", "ten", "log"), bad("ten")),
		garbage, gone,
		{Name: "no /proc", Broken: true, Words: checktest.Of("500", "100"), Want: []checks.Finding{checktest.Unknown("read /proc: no such file or directory")}},
	}
})
