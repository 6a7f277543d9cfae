package lbnl

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

const wantPsSize = "a size such as 64G or 1.5TB"

func TestPSMem(t *testing.T) { checktest.Run(t, "check_ps_mem") }

var _ = checktest.Table("check_ps_mem", func(string) []checktest.Scenario {
	mem := func(program, text, limit, got string) checks.Finding { return uses("mem", program, text, limit, got) }
	return []checktest.Scenario{
		onBusy("below", checktest.Of("-u", "alice", "4194305")),
		onBusy("fraction", checktest.Of("-u", "alice", "4.1G")).OrTable(map[string]any{"user": "alice", "limit": "4.1G"}),
		onBusy("reached", checktest.Of("4194304"), mem("wrf.exe", "(100) of alice using 4GB memory (RAM+swap) (limit 4GB)", "4GB", "4GB")),
		onBusy("units", checktest.Of("-u", "bob", "-m", "*idle*", "1500MB"),
			mem("/opt/bin/idle.exe", "(101) of bob using 1536MB memory (RAM+swap) (limit 1500MB)", "1500MB", "1536MB")),
		onBusy("fraction reached", checktest.Of("-u", "alice", "3.5g"), mem("wrf.exe", "(100) of alice using 4GB memory (RAM+swap) (limit 3584MB)", "3584MB", "4GB")),
		onBusy("system", checktest.Of("-A", "-u", "ntpsec", "50G"),
			mem("sysd", "(102) of ntpsec using 60000000kB memory (RAM+swap) (limit 50GB)", "50GB", "60000000kB")),
		onBusy("one of eight", checktest.Of("-m", "rank", "1"), mem("rank", "(205) of bob using 200GB memory (RAM+swap) (limit 1kB)", "1kB", "200GB")),
		onBusy("octal", checktest.Of("-m", "wrf*", "010k"), mem("wrf.exe", "(100) of alice using 4GB memory (RAM+swap) (limit 010kB)", "010kB", "4GB")),
		onBusy("octal that is divided", checktest.Of("-m", "wrf*", "04000"), mem("wrf.exe", "(100) of alice using 4GB memory (RAM+swap) (limit 2MB)", "2MB", "4GB")),
		onBusy("negative", checktest.Of("-m", "wrf*", "--", "-5"), mem("wrf.exe", "(100) of alice using 4GB memory (RAM+swap) (limit -5kB)", "-5kB", "4GB")),
		onBusy("no limit", nil, checktest.UsageFinding("check_ps_mem:  Syntax error:  Memory utilization limit required.", "")),
		onBusy("percentage", checktest.Of("-k", "50%"), checktest.UsageFinding("check_ps_mem:  Syntax error:  Percentage not supported by this check.", "")).Leaving(nil),
		onBusy("malformed", checktest.Of("-e", "echo act >> log", "1.5X"), checktest.ValueFinding("check_ps_mem", "limit", "1.5X", wantPsSize)).
			Leaving(map[string]string{"log": ""}),
		onBusy("malformed too", checktest.Of("1..5M"), checktest.ValueFinding("check_ps_mem", "limit", "1..5M", wantPsSize)),
		{Name: "no /proc", Broken: true, Words: checktest.Of("5"), Want: []checks.Finding{checktest.Unknown("read /proc: no such file or directory")}},
	}
})

func TestPSPhysMem(t *testing.T) { checktest.Run(t, "check_ps_physmem") }

var _ = checktest.Table("check_ps_physmem", func(string) []checktest.Scenario {
	physmem := func(program, text, limit, got string) checks.Finding {
		return uses("physmem", program, text, limit, got)
	}
	noMemory := busyNode()
	delete(noMemory, "proc/meminfo")
	return []checktest.Scenario{
		onBusy("below", checktest.Of("-u", "alice", "3%")),
		onBusy("below a fraction", checktest.Of("-u", "alice", "2.1%")).OrTable(map[string]any{"user": "alice", "limit": "2.1%"}),
		onBusy("percentage", checktest.Of("2%"), physmem("wrf.exe", "(100) of alice using 2.0% RAM (limit 2%)", "2%", "2.0%")),
		onBusy("fraction of a percentage", checktest.Of("-u", "bob", "0.5%"),
			physmem("/opt/bin/idle.exe", "(101) of bob using 1.4% RAM (limit 0.5%)", "0.5%", "1.4%")),
		onBusy("no more than ps knows", checktest.Of("-m", "rank", "99%"), physmem("rank", "(205) of bob using 99.9% RAM (limit 99%)", "99%", "99.9%")),
		onBusy("kB", checktest.Of("2097152"), physmem("wrf.exe", "(100) of alice using 2GB RAM (limit 2GB)", "2GB", "2GB")),
		onBusy("units", checktest.Of("-u", "bob", "1g"), physmem("/opt/bin/idle.exe", "(101) of bob using 1500MB RAM (limit 1GB)", "1GB", "1500MB")),
		onBusy("octal percentage", checktest.Of("010%"), physmem("rank", "(205) of bob using 99.9% RAM (limit 010%)", "010%", "99.9%")),
		onBusy("a size that is not divided stays as it is written", checktest.Of("-m", "wrf*", "0x10"),
			physmem("wrf.exe", "(100) of alice using 2GB RAM (limit 0x10kB)", "0x10kB", "2GB")),
		onBusy("not fatal", checktest.Of("-0", "2%"), warned(physmem("wrf.exe", "(100) of alice using 2.0% RAM (limit 2%)", "2%", "2.0%"), " (non-fatal)")),
		onBusy("no limit", nil, checktest.UsageFinding("check_ps_physmem:  Syntax error:  Memory utilization limit required.", "")),
		onBusy("malformed", checktest.Of("abc"), checktest.ValueFinding("check_ps_physmem", "limit", "abc", wantPsSize+", or a percentage")),
		onBusy("percentage without a number", checktest.Of("-k", "%"), checktest.ValueFinding("check_ps_physmem", "limit", "%", wantPsSize+", or a percentage")).Leaving(nil),
		onBusy("malformed percentage", checktest.Of("-k", "5O%"), checktest.ValueFinding("check_ps_physmem", "limit", "5O%", wantPsSize+", or a percentage")).Leaving(nil),
		{Name: "no /proc/meminfo", Broken: true, Words: checktest.Of("5%"), Files: noMemory,
			Want: []checks.Finding{checktest.Unknown("read /proc/meminfo: no such file or directory")}},
	}
})

func TestPSTime(t *testing.T) { checktest.Run(t, "check_ps_time") }

var _ = checktest.Table("check_ps_time", func(string) []checktest.Scenario {
	took := func(text, limit string) checks.Finding {
		return uses("time", "/opt/bin/idle.exe", "(101) of bob has consumed 1:08 of CPU time (limit 1m08s)"+text, limit, "1:08")
	}
	const wanted = "seconds, or minutes and seconds such as 12m34s"
	idle := func(words ...string) []string { return append(checktest.Of("-m", "*idle.exe"), words...) }
	return []checktest.Scenario{
		onBusy("below", idle("69")),
		onBusy("below minutes", idle("1m09s")).OrTable(map[string]any{"match": "*idle.exe", "limit": "1m09s"}),
		onBusy("reached", idle("68"), took("", "68")),
		onBusy("seconds", idle("60s"), took("", "60s")),
		onBusy("minutes", idle("1M"), took("", "1M")),
		onBusy("both", idle("1m08"), took("", "1m08")),
		onBusy("no minutes", idle("m9s"), took("", "m9s")),
		onBusy("one of eight", checktest.Of("-m", "rank", "100m"),
			uses("time", "rank", "(205) of bob has consumed 205:45 of CPU time (limit 205m45s)", "100m", "205:45")),
		onBusy("all", checktest.Of("-a", "-m", "/idle|rank/", "1m"), warned(took("", "1m"), " (1)"),
			warned(uses("time", "rank", "(205) of bob has consumed 205:45 of CPU time (limit 205m45s)", "1m", "205:45"), " (2)"),
			counting(uses("time", "rank", "(205) of bob has consumed 205:45 of CPU time (limit 205m45s)", "1m", "205:45"), 2)),
		onBusy("kill", idle("-k", "1m"), took("; killed", "1m")).Leaving(nil),
		onBusy("no limit", nil, checktest.UsageFinding("check_ps_time:  Syntax error:  CPU time utilization limit required.", "")),
		onBusy("other characters", checktest.Of("-k", "1h"), checktest.UsageFinding(`check_ps_time:  Syntax error:  Invalid characters in CPU time limit "1h"`, "")).Leaving(nil),
		onBusy("malformed", checktest.Of("-k", "12S3"), checktest.ValueFinding("check_ps_time", "limit", "12S3", wanted)).Leaving(nil),
		onBusy("malformed octal", checktest.Of("08"), checktest.ValueFinding("check_ps_time", "limit", "08", wanted)),
		onBusy("too much", checktest.Of("99999999999999999999m"), checktest.ValueFinding("check_ps_time", "limit", "99999999999999999999m", wanted)),
		{Name: "no /proc", Broken: true, Words: checktest.Of("5"), Want: []checks.Finding{checktest.Unknown("read /proc: no such file or directory")}},
	}
})

func TestParseCPUTime(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"90": "90", "90s": "90", "2m": "120", "1m30": "90", "1m30s": "90", "1M08s": "68", "08m09": "489", "010": "8",
		"m": "0", "1m2m3": "63", "s": "0", "S": "", "1S": "", "09": "", "1mS": "",
	} {
		got, ok := parseCPUTime(word)
		if text := checks.Decimal(got); ok != (want != "") || ok && text != want {
			t.Errorf("%q: %s, %v, want %s", word, text, ok, want)
		}
	}
}
