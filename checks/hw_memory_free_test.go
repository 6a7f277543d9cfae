package checks

import "fmt"

// freeFinding is too little that is free.
func freeFinding(check, code, what, got, limit string) Finding {
	return Finding{
		Code: code, Severity: Fail, Want: "at least " + limit + " kB", Got: got + " kB",
		Message: fmt.Sprintf("%s:  Not enough %s (%s kB < %s kB).", check, what, got, limit)}
}

func init() {
	for _, c := range []struct{ name, code, what, free, more string }{
		{"check_hw_physmem_free", "hw.memory.low", "RAM free", "203100000", "203100001"},
		{"check_hw_swap_free", "hw.swap.low", "swap free", "8000000", "8000001"},
		{"check_hw_mem_free", "hw.ramswap.low", "free memory", "211100000", "211100001"},
	} {
		low := func(limit string) Finding { return freeFinding(c.name, c.code, c.what, c.free, limit) }
		testCheck(c.name,
			onMemory("just enough", of(c.free, "more")),
			onMemory("enough", of("1.5GB")).orTable(map[string]any{"min": "1.5GB"}),
			onMemory("no limit", nil),
			onMemory("negative", of("-1")),

			onMemory("one kB too little", of(c.more), low(c.more)),
			onMemory("less than a kB too little", of(c.free+".5"), low(c.free+".5")),
			onMemory("too little in T", of("1T"), low("1073741824")),
			onMemory("word", of("abc"), cmdValue(c.name, "minimum", "abc", wantSize)),
			onMemory("two units", of("1.5GG"), cmdValue(c.name, "minimum", "1.5GG", wantSize)),
			onMemory("percentage", of("5%"), cmdValue(c.name, "minimum", "5%", wantSize)),
		)
		testCheck(c.name, withoutMemory("1")...)
	}
	testCheck("check_hw_swap_free",
		scenario{name: "no swap space", files: map[string]string{"proc/meminfo": "MemTotal: 4096 kB\n"}, words: of("1k"),
			want: []Finding{freeFinding("check_hw_swap_free", "hw.swap.low", "swap free", "0", "1")}},
		scenario{name: "no swap space and none wanted", files: map[string]string{"proc/meminfo": "MemTotal: 4096 kB\n"}, words: of("0")})
}
