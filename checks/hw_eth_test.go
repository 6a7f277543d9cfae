package checks

import "testing"

func TestHWEth(t *testing.T) { testCheck(t, "check_hw_eth") }

var _ = table("check_hw_eth", func(string) []scenario {
	const head = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n"
	node := map[string]string{"proc/net/dev": head + "    lo: 1 1 1 1\n  eth0: 1 1 1 1\n   ib0:12 1 1 1\n"}
	missing := func(dev, got string) []Finding {
		return []Finding{{
			Code: "hw.eth.missing", Severity: Fail, Device: Device{Kind: "netdev", Name: dev}, Want: dev, Got: got,
			Message: "check_hw_eth:  Ethernet device " + dev + " not detected."}}
	}
	return []scenario{
		{name: "there", files: node, words: []string{"eth0"}, table: map[string]any{"dev": "eth0"}},
		{name: "counters glued to the name", files: node, words: []string{"ib0", "more"}},
		{name: "glob", files: node, words: []string{"eth[0-3]"}},
		{name: "absent", files: node, words: []string{"eth1"}, want: missing("eth1", "lo eth0 ib0")},
		{name: "part of a name", files: node, words: []string{"eth"}, want: missing("eth", "lo eth0 ib0")},
		{name: "no name", files: node, want: missing("", "lo eth0 ib0")},
		{name: "no interface at all", files: map[string]string{"proc/net/dev": head}, words: []string{"eth0"}, want: missing("eth0", "")},
		{name: "garbage", broken: true, files: map[string]string{"proc/net/dev": "\x00\xff\n\n"}, words: []string{"eth0"}, want: missing("eth0", "")},
		{name: "no file", broken: true, words: []string{"eth0"}, want: []Finding{{
			Code: "probe.unreadable", Severity: Unknown, Message: "read /proc/net/dev: no such file or directory"}}},
	}
})
