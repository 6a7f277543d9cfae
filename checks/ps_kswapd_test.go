package checks

import (
	"fmt"
	"strings"
	"testing"
)

// onNodes is a line on a machine whose page-out threads have had that many
// seconds of CPU time.
func onNodes(name string, seconds []int, words []string, want ...Finding) scenario {
	procs := []useProc{{pid: 1, args: "/sbin/init"}}
	for i, s := range seconds {
		procs = append(procs, useProc{pid: 50 + i, args: fmt.Sprintf("[kswapd%d]", i), ticks: s*100 + 99})
	}
	return scenario{name: name, words: words, want: want, files: useNode(procs...)}
}

func TestPSKswapd(t *testing.T) { testCheck(t, "check_ps_kswapd") }

var _ = table("check_ps_kswapd", func(string) []scenario {
	imbalance := func(pids, times string) Finding {
		return Finding{Code: "ps.kswapd.imbalance", Severity: Fail, Device: Device{Kind: "process", Name: "kswapd"},
			Message: "check_ps_kswapd:  NUMA imbalance detected among PIDs " + pids + ".", Got: times + " s"}
	}
	two := func(times string) Finding { return imbalance("50 51", times) }
	quiet := warned(two("600 600"), "")
	quiet.Syslog = true
	garbage := onNodes("garbage", []int{1, 1}, of("1", "1"), unknown("parse /proc/51/stat: invalid argument"))
	garbage.broken, garbage.files["proc/51/stat"] = true, "51"
	gone := onNodes("one has gone meanwhile", []int{600, 1}, of("500", "100"))
	gone.broken = true
	delete(gone.files, "proc/51/stat")
	bad := func(word string) Finding { return valueFinding("check_ps_kswapd", "limit", word, "a number") }
	users := onNodes("a user's process of that name", []int{600}, of("500", "100"))
	for name, data := range useNode(useProc{pid: 60, uid: 5001, args: "[kswapd1]", ticks: 60000}) {
		if strings.HasPrefix(name, "proc/60/") || strings.HasPrefix(name, "/proc/60/") {
			users.files[name] = data
		}
	}
	return []scenario{
		users,
		onNodes("one node", []int{9999}, of("500", "100")),
		onNodes("none", nil, of("500", "100")),
		onNodes("balanced", []int{100, 120}, of("500", "100")).orTable(map[string]any{"threshold": "500", "discrepancy": "100"}),
		onNodes("ratio at the limit", []int{10, 109}, of("500", "10")),
		onNodes("ratio above the limit", []int{10, 110}, of("500", "10"), two("10 110")),
		onNodes("ratio above a fraction", []int{10, 110}, of("500", "10.5"), two("10 110")),
		onNodes("at the threshold", []int{500, 500}, of("500", "1")),
		onNodes("above a fraction", []int{500, 500}, of("499.5", "1"), two("500 500")),
		onNodes("above the threshold", []int{600, 590}, of("500", "100"), two("600 590")),
		onNodes("one idle, half the threshold", []int{250, 0}, of("501", "100")),
		onNodes("one idle, above half the threshold", []int{251, 0}, of("501", "100"), two("251 0")),
		onNodes("one of eight", []int{1, 1, 1, 1, 1, 501, 1, 1}, of("500", "100"),
			imbalance("50 51 52 53 54 55 56 57", "1 1 1 1 1 501 1 1")),
		onNodes("no limits are 0", []int{1, 1}, nil, two("1 1")),

		onNodes("log", []int{600, 600}, of("500", "100", "log"), warned(two("600 600"), "")).
			orTable(map[string]any{"threshold": int64(500), "discrepancy": int64(100), "actions": "log"}),
		onNodes("syslog", []int{600, 600}, of("500", "100", "syslog"), quiet),
		onNodes("all actions", []int{600, 600}, of("500", "100", "log syslog", "x", "kill", "die", "log"),
			warned(two("600 600"), ""), quiet, two("600 600")),
		onNodes("ignore", []int{600, 600}, of("500", "100", "ignore", "die")),
		onNodes("unknown action", []int{600, 600}, of("500", "100", "shout")),

		onNodes("malformed threshold", []int{600, 600}, of("1.5X", "100"), bad("1.5X")),
		onNodes("malformed discrepancy", []int{600, 600}, of("500", "ten", "log"), bad("ten")),
		garbage, gone,
		{name: "no /proc", broken: true, words: of("500", "100"), want: []Finding{unknown("read /proc: no such file or directory")}},
	}
})
