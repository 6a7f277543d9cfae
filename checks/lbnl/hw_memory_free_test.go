package lbnl

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// freeFinding returns the failure for too little free memory.
func freeFinding(check, code, what, got, limit string) checks.Finding {
	return checks.Finding{
		Code: code, Severity: checks.Fail, Want: "at least " + limit + " kB", Got: got + " kB",
		Message: fmt.Sprintf("%s:  Not enough %s (%s kB < %s kB).", check, what, got, limit)}
}

func TestHWPhysMemFree(t *testing.T) { checktest.Run(t, "check_hw_physmem_free") }

var _ = checktest.Table("check_hw_physmem_free", func(string) []checktest.Scenario {
	return freeMemory("check_hw_physmem_free", "hw.memory.low", "RAM free", "203100000", "203100001")
})

func TestHWMemFree(t *testing.T) { checktest.Run(t, "check_hw_mem_free") }

var _ = checktest.Table("check_hw_mem_free", func(string) []checktest.Scenario {
	return freeMemory("check_hw_mem_free", "hw.ramswap.low", "free memory", "211100000", "211100001")
})

func TestHWSwapFree(t *testing.T) { checktest.Run(t, "check_hw_swap_free") }

var _ = checktest.Table("check_hw_swap_free", func(string) []checktest.Scenario {
	return append(freeMemory("check_hw_swap_free", "hw.swap.low", "swap free", "8000000", "8000001"),
		checktest.Scenario{Name: "no swap space", Files: map[string]string{"proc/meminfo": "MemTotal: 4096 kB\n"}, Words: checktest.Of("1k"),
			Want: []checks.Finding{freeFinding("check_hw_swap_free", "hw.swap.low", "swap free", "0", "1")}},
		checktest.Scenario{Name: "no swap space and none wanted", Files: map[string]string{"proc/meminfo": "MemTotal: 4096 kB\n"}, Words: checktest.Of("0")})
})

func freeMemory(check, code, what, free, more string) []checktest.Scenario {
	low := func(limit string) checks.Finding { return freeFinding(check, code, what, free, limit) }
	return append([]checktest.Scenario{
		onMemory("just enough", checktest.Of(free, "more")),
		onMemory("enough", checktest.Of("1.5GB")).OrTable(map[string]any{"min": "1.5GB"}),
		onMemory("no limit", nil),
		onMemory("negative", checktest.Of("-1")),

		onMemory("one kB too little", checktest.Of(more), low(more)),
		onMemory("less than a kB too little", checktest.Of(free+".5"), low(free+".5")),
		onMemory("too little in T", checktest.Of("1T"), low("1073741824")),
		onMemory("word", checktest.Of("abc"), cmdValue(check, "minimum", "abc", wantSize)),
		onMemory("two units", checktest.Of("1.5GG"), cmdValue(check, "minimum", "1.5GG", wantSize)),
		onMemory("percentage", checktest.Of("5%"), cmdValue(check, "minimum", "5%", wantSize)),
	}, withoutMemory("1")...)
}
