package lbnl

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// memoryNode has 263856120 kB of RAM, 203100000 of them free, and 8388604 kB of
// swap space with 8000000 free.
var memoryNode = map[string]string{"proc/meminfo": "MemTotal:       263856120 kB\nMemFree:        200000000 kB\n" +
	"MemAvailable:   210000000 kB\nBuffers:           100000 kB\nCached:           3000000 kB\nSwapCached:            77 kB\n" +
	"SwapTotal:        8388604 kB\nSwapFree:         8000000 kB\n"}

func onMemory(name string, words []string, want ...checks.Finding) checktest.Scenario {
	return checktest.Scenario{Name: name, Files: memoryNode, Words: words, Want: want}
}

// sizeFinding returns the failure for a size beyond a limit. The kind, such as "RAM size", is what.
func sizeFinding(check, code, what, got, text, limit string) checks.Finding {
	return checks.Finding{
		Code: code, Severity: checks.Fail, Want: limit + " kB", Got: got + " kB",
		Message: fmt.Sprintf("%s:  Actual %s (%s kB) %s allowed (%s kB).", check, what, got, text, limit)}
}

// withoutMemory returns scenarios with a missing or broken /proc/meminfo.
func withoutMemory(words ...string) []checktest.Scenario {
	unknown := func(why string) []checks.Finding {
		return []checks.Finding{{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /proc/meminfo: " + why}}
	}
	return []checktest.Scenario{
		{Name: "no file", Broken: true, Words: words, Want: unknown("no such file or directory")},
		{Name: "garbage", Broken: true, Files: map[string]string{"proc/meminfo": "MemTotal: \xff kB\n"}, Words: words,
			Want: unknown("no MemTotal line")},
	}
}

func TestHWPhysMem(t *testing.T) { checktest.Run(t, "check_hw_physmem") }

var _ = checktest.Table("check_hw_physmem", func(string) []checktest.Scenario {
	tooLittle := func(want string) checks.Finding {
		return sizeFinding("check_hw_physmem", "hw.memory.small", "RAM size", "263856120", "less than minimum", want)
	}
	tooMuch := func(want string) checks.Finding {
		return sizeFinding("check_hw_physmem", "hw.memory.large", "RAM size", "263856120", "greater than maximum", want)
	}
	malformed := func(what, word, want string) checks.Finding { return cmdValue("check_hw_physmem", what, word, want) }
	return append([]checktest.Scenario{
		onMemory("exact", checktest.Of("263856120", "263856120")).OrTable(map[string]any{"min": int64(263856120), "max": "263856120"}),
		onMemory("units", checktest.Of("1gb", "1T")),
		onMemory("unit of the file", checktest.Of("263856120k", "263856120kB")),
		onMemory("fraction", checktest.Of("0.245T", "251.7G")),
		onMemory("percent", checktest.Of("269133242", "258579000", "2%")).
			OrTable(map[string]any{"min": "269133242", "max": "258579000", "fudge": "2%"}),
		onMemory("percent with a fraction", checktest.Of("265175400", "1T", "0.5%")),
		onMemory("fudge in kB", checktest.Of("263856220", "263856220", "100")),
		onMemory("fudge with a unit", checktest.Of("262807544", "262807544", "1GB")),
		onMemory("no minimum", checktest.Of("", "263856115", "5")),
		onMemory("negative minimum", checktest.Of("-5", "1T", "", "more")),

		onMemory("too little", checktest.Of("263856121", "1T"), tooLittle("263856121")),
		onMemory("too little in G", checktest.Of("300G", "400G"), tooLittle("314572800")),
		onMemory("too little by less than a kB", checktest.Of("263856120.5k", "1T"), tooLittle("263856120.5")),
		onMemory("beyond the percentage", checktest.Of("269133243", "2T", "2%"), tooLittle("269133243")),
		onMemory("too much", checktest.Of("1", "263856119"), tooMuch("263856119")),
		onMemory("too much in G", checktest.Of("1M", "1G"), tooMuch("1048576")),
		onMemory("no maximum counts as 0", checktest.Of("1"), tooMuch("")),
		onMemory("nothing wanted", nil, tooMuch("")),
		onMemory("beyond the fudge", checktest.Of("1", "263856019", "100"), tooMuch("263856019")),

		onMemory("word", checktest.Of("abc", "def"), malformed("minimum", "abc", wantSize)),
		onMemory("percentage", checktest.Of("1", "10%"), malformed("maximum", "10%", wantSize)),
		onMemory("two dots", checktest.Of("1", "2T", "2.5.5%"), malformed("fudge factor", "2.5.5%", wantSize+", or a percentage")),
		onMemory("two units", checktest.Of("1", "2T", "1.5GG"), malformed("fudge factor", "1.5GG", wantSize+", or a percentage")),
	}, withoutMemory("1", "2")...)
})

func TestHWSwap(t *testing.T) { checktest.Run(t, "check_hw_swap") }

var _ = checktest.Table("check_hw_swap", func(string) []checktest.Scenario {
	tooLittle := func(want string) checks.Finding {
		return sizeFinding("check_hw_swap", "hw.swap.small", "SWAP size", "8388604", "less than minimum", want)
	}
	tooMuch := func(want string) checks.Finding {
		return sizeFinding("check_hw_swap", "hw.swap.large", "SWAP size", "8388604", "greater than maximum", want)
	}
	return append([]checktest.Scenario{
		onMemory("exact", checktest.Of("8388604", "8388604")).OrTable(map[string]any{"min": int64(8388604), "max": int64(8388604)}),
		onMemory("percent of the swap space", checktest.Of("8556376", "8220832", "2%")).
			OrTable(map[string]any{"min": "8556376", "max": "8220832", "fudge": "2%"}),
		onMemory("fudge with a unit", checktest.Of("7340028", "7340028", "1GB")),
		{Name: "none wanted and none there", Files: map[string]string{"proc/meminfo": "MemTotal: 4096 kB\n"}, Words: checktest.Of("0", "0")},

		onMemory("too little", checktest.Of("8388605", "1T"), tooLittle("8388605")),
		onMemory("too much", checktest.Of("1M", "1.5G"), tooMuch("1572864")),
		onMemory("no maximum counts as 0", checktest.Of("1", ""), tooMuch("")),
		onMemory("beyond the fudge", checktest.Of("1", "8388503", "100"), tooMuch("8388503")),
		{Name: "none there", Files: map[string]string{"proc/meminfo": "MemTotal: 4096 kB\n"}, Words: checktest.Of("1k", "1G"), Want: []checks.Finding{
			sizeFinding("check_hw_swap", "hw.swap.small", "SWAP size", "0", "less than minimum", "1")}},
		onMemory("two dots", checktest.Of("1", "2T", "2.5.5%"), cmdValue("check_hw_swap", "fudge factor", "2.5.5%", wantSize+", or a percentage")),
	}, withoutMemory("1", "2")...)
})

func TestHWMem(t *testing.T) { checktest.Run(t, "check_hw_mem") }

var _ = checktest.Table("check_hw_mem", func(string) []checktest.Scenario {
	tooLittle := func(want string) checks.Finding {
		return sizeFinding("check_hw_mem", "hw.ramswap.small", "system memory", "272244724", "less than minimum", want)
	}
	tooMuch := func(want string) checks.Finding {
		return sizeFinding("check_hw_mem", "hw.ramswap.large", "system memory", "272244724", "greater than maximum", want)
	}
	return append([]checktest.Scenario{
		onMemory("exact", checktest.Of("272244724k", "272244724kB")).OrTable(map[string]any{"min": "272244724k", "max": "272244724kB"}),
		onMemory("percent of both", checktest.Of("277689618", "266799830", "2%")).
			OrTable(map[string]any{"min": "277689618", "max": "266799830", "fudge": "2%"}),
		onMemory("fraction", checktest.Of("1.5G", "1P")),

		onMemory("too little", checktest.Of("272244725", "1T"), tooLittle("272244725")),
		onMemory("too much", checktest.Of("0", "259.5G"), tooMuch("272105472")),
		onMemory("nothing wanted", nil, tooMuch("")),
		onMemory("word", checktest.Of("1", "ten"), cmdValue("check_hw_mem", "maximum", "ten", wantSize)),
	}, withoutMemory("1", "2")...)
})
