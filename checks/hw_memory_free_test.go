package checks

import (
	"fmt"
	"testing"
)

// freeFinding is too little that is free.
func freeFinding(check, code, what, got, limit string) Finding {
	return Finding{
		Code: code, Severity: Fail, Want: "at least " + limit + " kB", Got: got + " kB",
		Message: fmt.Sprintf("%s:  Not enough %s (%s kB < %s kB).", check, what, got, limit)}
}

func TestHWPhysMemFree(t *testing.T) { testCheck(t, "check_hw_physmem_free") }

var _ = table("check_hw_physmem_free", func(string) []scenario {
	return freeMemory("check_hw_physmem_free", "hw.memory.low", "RAM free", "203100000", "203100001")
})

func TestHWMemFree(t *testing.T) { testCheck(t, "check_hw_mem_free") }

var _ = table("check_hw_mem_free", func(string) []scenario {
	return freeMemory("check_hw_mem_free", "hw.ramswap.low", "free memory", "211100000", "211100001")
})

func TestHWSwapFree(t *testing.T) { testCheck(t, "check_hw_swap_free") }

var _ = table("check_hw_swap_free", func(string) []scenario {
	return append(freeMemory("check_hw_swap_free", "hw.swap.low", "swap free", "8000000", "8000001"),
		scenario{name: "no swap space", files: map[string]string{"proc/meminfo": "MemTotal: 4096 kB\n"}, words: of("1k"),
			want: []Finding{freeFinding("check_hw_swap_free", "hw.swap.low", "swap free", "0", "1")}},
		scenario{name: "no swap space and none wanted", files: map[string]string{"proc/meminfo": "MemTotal: 4096 kB\n"}, words: of("0")})
})

func freeMemory(check, code, what, free, more string) []scenario {
	low := func(limit string) Finding { return freeFinding(check, code, what, free, limit) }
	return append([]scenario{
		onMemory("just enough", of(free, "more")),
		onMemory("enough", of("1.5GB")).orTable(map[string]any{"min": "1.5GB"}),
		onMemory("no limit", nil),
		onMemory("negative", of("-1")),

		onMemory("one kB too little", of(more), low(more)),
		onMemory("less than a kB too little", of(free+".5"), low(free+".5")),
		onMemory("too little in T", of("1T"), low("1073741824")),
		onMemory("word", of("abc"), cmdValue(check, "minimum", "abc", wantSize)),
		onMemory("two units", of("1.5GG"), cmdValue(check, "minimum", "1.5GG", wantSize)),
		onMemory("percentage", of("5%"), cmdValue(check, "minimum", "5%", wantSize)),
	}, withoutMemory("1")...)
}
