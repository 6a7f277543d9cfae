package lbnl

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// fakePing answers for hosts called up*, and records its arguments.
const fakePing = `#!/bin/sh
for last; do printf '[%s]' "$last" >> {root}/calls; done
echo >> {root}/calls
echo PING; echo error >&2
case $last in up*) exit 0 ;; down*) exit 1 ;; esac
exit 2
`

// onPing returns a scenario with fakePing. calls are the expected arguments of its calls.
func onPing(name string, words []string, calls string, want ...checks.Finding) checktest.Scenario {
	return checktest.Scenario{
		Name: name, Words: words, Files: map[string]string{"usr/bin/ping": fakePing}, Acts: true, Want: want,
		Leaves: map[string]string{"calls": calls},
	}
}

func TestNetPing(t *testing.T) { checktest.Run(t, "check_net_ping") }

var _ = checktest.Table("check_net_ping", func(string) []checktest.Scenario {
	silent := func(host, got string) checks.Finding {
		return checks.Finding{
			Code: "net.ping", Severity: checks.Fail, Device: checks.Device{Kind: "host", Name: host}, Want: "an answer", Got: got,
			Message: "check_net_ping:  No response received from " + host}
	}
	const defaults = "[-q][-n][-t][2][-c][1][-w][1]"
	return []checktest.Scenario{
		onPing("defaults", checktest.Of("up1"), defaults+"[up1]\n").OrTable(map[string]any{"targets": "up1"}),
		onPing("every target", checktest.Of("up1", "up2"), defaults+"[up1]\n"+defaults+"[up2]\n").
			OrTable(map[string]any{"targets": []any{"up1", "up2"}}),
		onPing("every option", checktest.Of("-W", "3", "-w", "4", "-c", "5", "-t", "6", "-s", "7", "-i", "0.2", "-I", "ib0", "up1"),
			"[-q][-n][-I][ib0][-i][0.2][-s][7][-t][6][-c][5][-w][4][-W][3][up1]\n").
			OrTable(map[string]any{
				"timeout": int64(3), "deadline": int64(4), "count": int64(5), "ttl": int64(6), "size": int64(7), "interval": 0.2,
				"interface": "ib0", "targets": "up1",
			}),
		onPing("empty options are left out", checktest.Of("-t", "", "-c", "", "-w", "", "up1"), "[-q][-n][up1]\n"),
		onPing("a value of several words", checktest.Of("-w", "1 -f", "-t", " ", "up1"), "[-q][-n][-t][-c][1][-w][1][-f][up1]\n"),

		onPing("no answer", checktest.Of("down1"), defaults+"[down1]\n", silent("down1", "no answer")),
		onPing("one of eight", checktest.Of("up1", "up2", "up3", "down4", "up5", "up6", "up7", "up8"),
			defaults+"[up1]\n"+defaults+"[up2]\n"+defaults+"[up3]\n"+defaults+"[down4]\n", silent("down4", "no answer")),
		onPing("unknown host", checktest.Of("bad1"), defaults+"[bad1]\n", silent("bad1", "ping ended with status 2")),
		onPing("an empty target", checktest.Of("", "up1"), defaults+"[]\n", silent("", "ping ended with status 2")),
		{Name: "no ping", Words: checktest.Of("up1"), Acts: true, Want: []checks.Finding{silent("up1", "run ping: file does not exist")}},

		onPing("no target", checktest.Of("-c", "1"), "", checktest.UsageFinding("check_net_ping:  No target(s) given for ping.", "")),
		onPing("an empty target alone", checktest.Of(""), "", checktest.UsageFinding("check_net_ping:  No target(s) given for ping.", "")),
		onPing("unknown option", checktest.Of("-z", "up1"), "", checktest.UsageFinding("check_net_ping:  Invalid option:  -z", "one of -I -i -s -t -c -w -W")),
		onPing("option without its argument", checktest.Of("-c"), "", checktest.UsageFinding("check_net_ping:  Option -c requires an argument.", "")),
		{
			Name: "garbage for a ping", Words: checktest.Of("up1"), Acts: true, Files: map[string]string{"usr/bin/ping": "\x7fELF\x00\xff"}, Broken: true,
			Want: []checks.Finding{silent("up1", "run {root}/usr/bin/ping: exec format error")},
		},
	}
})
