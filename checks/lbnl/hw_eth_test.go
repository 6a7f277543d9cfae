package lbnl

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

func TestHWEth(t *testing.T) { checktest.Run(t, "check_hw_eth") }

var _ = checktest.Table("check_hw_eth", func(string) []checktest.Scenario {
	const head = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n"
	node := map[string]string{"proc/net/dev": head + "    lo: 1 1 1 1\n  eth0: 1 1 1 1\n   ib0:12 1 1 1\n"}
	missing := func(dev, got string) []checks.Finding {
		return []checks.Finding{{
			Code: "hw.eth.missing", Severity: checks.Fail, Device: checks.Device{Kind: "netdev", Name: dev}, Want: dev, Got: got,
			Message: "check_hw_eth:  Ethernet device " + dev + " not detected."}}
	}
	return []checktest.Scenario{
		{Name: "there", Files: node, Words: []string{"eth0"}, Table: map[string]any{"dev": "eth0"}},
		{Name: "counters glued to the name", Files: node, Words: []string{"ib0", "more"}},
		{Name: "glob", Files: node, Words: []string{"eth[0-3]"}},
		{Name: "absent", Files: node, Words: []string{"eth1"}, Want: missing("eth1", "lo eth0 ib0")},
		{Name: "part of a name", Files: node, Words: []string{"eth"}, Want: missing("eth", "lo eth0 ib0")},
		{Name: "no name", Files: node, Want: missing("", "lo eth0 ib0")},
		{Name: "no interface at all", Files: map[string]string{"proc/net/dev": head}, Words: []string{"eth0"}, Want: missing("eth0", "")},
		{Name: "garbage", Broken: true, Files: map[string]string{"proc/net/dev": "\x00\xff\n\n"}, Words: []string{"eth0"}, Want: missing("eth0", "")},
		{Name: "no file", Broken: true, Words: []string{"eth0"}, Want: []checks.Finding{{
			Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /proc/net/dev: no such file or directory"}}},
	}
})
