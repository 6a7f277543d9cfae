package checks

import (
	"fmt"
	"testing"
)

func TestPSLoadAvg(t *testing.T) { testCheck(t, "check_ps_loadavg") }

var _ = table("check_ps_loadavg", func(string) []scenario {
	node := map[string]string{"proc/loadavg": "12.97 8.00 0.31 3/1234 56789\n"}
	high := func(minutes, load int, limit, got string) []Finding {
		return []Finding{{Code: "ps.loadavg.high", Severity: Fail, Want: "less than " + limit, Got: got,
			Message: fmt.Sprintf("check_ps_loadavg:  %d-minute load average too high:  %d >= %s", minutes, load, limit)}}
	}
	bad := func(word string) []Finding {
		return []Finding{valueFinding("check_ps_loadavg", "limit", word, "a number")}
	}
	return []scenario{
		{name: "below", files: node, words: of("13", "9", "1"), table: map[string]any{"one": "13", "five": int64(9), "fifteen": "1"}},
		{name: "the fraction of the load does not count", files: node, words: of("12.5")},
		{name: "no limits", files: node},
		{name: "empty limits", files: node, words: of("", "", "1", "0"), table: nil},
		{name: "one minute", files: node, words: of("12"), want: high(1, 12, "12", "12.97")},
		{name: "five minutes", files: node, words: of("13", "7.5", "0"), want: high(5, 8, "7.5", "8.00")},
		{name: "fifteen minutes", files: node, words: of("", "", "0"), want: high(15, 0, "0", "0.31")},
		{name: "hexadecimal", files: node, words: of("0xC"), want: high(1, 12, "0xC", "12.97")},
		{name: "negative", files: node, words: of("13", "9", "-1"), want: high(15, 0, "-1", "0.31")},
		{name: "malformed", files: node, words: of("1", "2", "1.5.2"), want: bad("1.5.2")},
		{name: "malformed first", files: node, words: of("ten"), want: bad("ten")},
		{name: "no file", broken: true, words: of("1"), want: []Finding{unknown("read /proc/loadavg: no such file or directory")}},
		{name: "garbage", broken: true, words: of("1"), files: map[string]string{"proc/loadavg": "high\n"},
			want: []Finding{unknown("parse /proc/loadavg: invalid argument")}},
	}
})
