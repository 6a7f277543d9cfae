package lbnl

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

func TestPSLoadAvg(t *testing.T) { checktest.Run(t, "check_ps_loadavg") }

var _ = checktest.Table("check_ps_loadavg", func(string) []checktest.Scenario {
	node := map[string]string{"proc/loadavg": "12.97 8.00 0.31 3/1234 56789\n"}
	high := func(minutes, load int, limit, got string) []checks.Finding {
		return []checks.Finding{{Code: "ps.loadavg.high", Severity: checks.Fail, Want: "less than " + limit, Got: got,
			Message: fmt.Sprintf("check_ps_loadavg:  %d-minute load average too high:  %d >= %s", minutes, load, limit)}}
	}
	bad := func(word string) []checks.Finding {
		return []checks.Finding{checktest.ValueFinding("check_ps_loadavg", "limit", word, "a number")}
	}
	return []checktest.Scenario{
		{Name: "below", Files: node, Words: checktest.Of("13", "9", "1"), Table: map[string]any{"one": "13", "five": int64(9), "fifteen": "1"}},
		{Name: "the fraction of the load does not count", Files: node, Words: checktest.Of("12.5")},
		{Name: "no limits", Files: node},
		{Name: "empty limits", Files: node, Words: checktest.Of("", "", "1", "0"), Table: nil},
		{Name: "one minute", Files: node, Words: checktest.Of("12"), Want: high(1, 12, "12", "12.97")},
		{Name: "five minutes", Files: node, Words: checktest.Of("13", "7.5", "0"), Want: high(5, 8, "7.5", "8.00")},
		{Name: "fifteen minutes", Files: node, Words: checktest.Of("", "", "0"), Want: high(15, 0, "0", "0.31")},
		{Name: "hexadecimal", Files: node, Words: checktest.Of("0xC"), Want: high(1, 12, "0xC", "12.97")},
		{Name: "negative", Files: node, Words: checktest.Of("13", "9", "-1"), Want: high(15, 0, "-1", "0.31")},
		{Name: "malformed", Files: node, Words: checktest.Of("1", "2", "1.5.2"), Want: bad("1.5.2")},
		{Name: "malformed first", Files: node, Words: checktest.Of("ten"), Want: bad("ten")},
		{Name: "no file", Broken: true, Words: checktest.Of("1"), Want: []checks.Finding{checktest.Unknown("read /proc/loadavg: no such file or directory")}},
		{Name: "garbage", Broken: true, Words: checktest.Of("1"), Files: map[string]string{"proc/loadavg": "high\n"},
			Want: []checks.Finding{checktest.Unknown("parse /proc/loadavg: invalid argument")}},
	}
})
