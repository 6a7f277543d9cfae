package checks

import "testing"

const wantPsSize = "a size such as 64G or 1.5TB"

func TestPSMem(t *testing.T) { testCheck(t, "check_ps_mem") }

var _ = table("check_ps_mem", func(string) []scenario {
	mem := func(program, text, limit, got string) Finding { return uses("mem", program, text, limit, got) }
	return []scenario{
		onBusy("below", of("-u", "alice", "4194305")),
		onBusy("fraction", of("-u", "alice", "4.1G")).orTable(map[string]any{"user": "alice", "limit": "4.1G"}),
		onBusy("reached", of("4194304"), mem("wrf.exe", "(100) of alice using 4GB memory (RAM+swap) (limit 4GB)", "4GB", "4GB")),
		onBusy("units", of("-u", "bob", "-m", "*idle*", "1500MB"),
			mem("/opt/bin/idle.exe", "(101) of bob using 1536MB memory (RAM+swap) (limit 1500MB)", "1500MB", "1536MB")),
		onBusy("fraction reached", of("-u", "alice", "3.5g"), mem("wrf.exe", "(100) of alice using 4GB memory (RAM+swap) (limit 3584MB)", "3584MB", "4GB")),
		onBusy("system", of("-A", "-u", "ntpsec", "50G"),
			mem("sysd", "(102) of ntpsec using 60000000kB memory (RAM+swap) (limit 50GB)", "50GB", "60000000kB")),
		onBusy("one of eight", of("-m", "rank", "1"), mem("rank", "(205) of bob using 200GB memory (RAM+swap) (limit 1kB)", "1kB", "200GB")),
		onBusy("octal", of("-m", "wrf*", "010k"), mem("wrf.exe", "(100) of alice using 4GB memory (RAM+swap) (limit 010kB)", "010kB", "4GB")),
		onBusy("octal that is divided", of("-m", "wrf*", "04000"), mem("wrf.exe", "(100) of alice using 4GB memory (RAM+swap) (limit 2MB)", "2MB", "4GB")),
		onBusy("negative", of("-m", "wrf*", "--", "-5"), mem("wrf.exe", "(100) of alice using 4GB memory (RAM+swap) (limit -5kB)", "-5kB", "4GB")),
		onBusy("no limit", nil, usageFinding("check_ps_mem:  Syntax error:  Memory utilization limit required.", "")),
		onBusy("percentage", of("-k", "50%"), usageFinding("check_ps_mem:  Syntax error:  Percentage not supported by this check.", "")).leaving(nil),
		onBusy("malformed", of("-e", "echo act >> log", "1.5X"), valueFinding("check_ps_mem", "limit", "1.5X", wantPsSize)).
			leaving(map[string]string{"log": ""}),
		onBusy("malformed too", of("1..5M"), valueFinding("check_ps_mem", "limit", "1..5M", wantPsSize)),
		{name: "no /proc", broken: true, words: of("5"), want: []Finding{unknown("read /proc: no such file or directory")}},
	}
})

func TestPSPhysMem(t *testing.T) { testCheck(t, "check_ps_physmem") }

var _ = table("check_ps_physmem", func(string) []scenario {
	physmem := func(program, text, limit, got string) Finding { return uses("physmem", program, text, limit, got) }
	noMemory := busyNode()
	delete(noMemory, "proc/meminfo")
	return []scenario{
		onBusy("below", of("-u", "alice", "3%")),
		onBusy("below a fraction", of("-u", "alice", "2.1%")).orTable(map[string]any{"user": "alice", "limit": "2.1%"}),
		onBusy("percentage", of("2%"), physmem("wrf.exe", "(100) of alice using 2.0% RAM (limit 2%)", "2%", "2.0%")),
		onBusy("fraction of a percentage", of("-u", "bob", "0.5%"),
			physmem("/opt/bin/idle.exe", "(101) of bob using 1.4% RAM (limit 0.5%)", "0.5%", "1.4%")),
		onBusy("no more than ps knows", of("-m", "rank", "99%"), physmem("rank", "(205) of bob using 99.9% RAM (limit 99%)", "99%", "99.9%")),
		onBusy("kB", of("2097152"), physmem("wrf.exe", "(100) of alice using 2GB RAM (limit 2GB)", "2GB", "2GB")),
		onBusy("units", of("-u", "bob", "1g"), physmem("/opt/bin/idle.exe", "(101) of bob using 1500MB RAM (limit 1GB)", "1GB", "1500MB")),
		onBusy("octal percentage", of("010%"), physmem("rank", "(205) of bob using 99.9% RAM (limit 010%)", "010%", "99.9%")),
		onBusy("a size that is not divided stays as it is written", of("-m", "wrf*", "0x10"),
			physmem("wrf.exe", "(100) of alice using 2GB RAM (limit 0x10kB)", "0x10kB", "2GB")),
		onBusy("not fatal", of("-0", "2%"), warned(physmem("wrf.exe", "(100) of alice using 2.0% RAM (limit 2%)", "2%", "2.0%"), " (non-fatal)")),
		onBusy("no limit", nil, usageFinding("check_ps_physmem:  Syntax error:  Memory utilization limit required.", "")),
		onBusy("malformed", of("abc"), valueFinding("check_ps_physmem", "limit", "abc", wantPsSize+", or a percentage")),
		onBusy("percentage without a number", of("-k", "%"), valueFinding("check_ps_physmem", "limit", "%", wantPsSize+", or a percentage")).leaving(nil),
		onBusy("malformed percentage", of("-k", "5O%"), valueFinding("check_ps_physmem", "limit", "5O%", wantPsSize+", or a percentage")).leaving(nil),
		{name: "no /proc/meminfo", broken: true, words: of("5%"), files: noMemory,
			want: []Finding{unknown("read /proc/meminfo: no such file or directory")}},
	}
})

func TestPSTime(t *testing.T) { testCheck(t, "check_ps_time") }

var _ = table("check_ps_time", func(string) []scenario {
	took := func(text, limit string) Finding {
		return uses("time", "/opt/bin/idle.exe", "(101) of bob has consumed 1:08 of CPU time (limit 1m08s)"+text, limit, "1:08")
	}
	const wanted = "seconds, or minutes and seconds such as 12m34s"
	idle := func(words ...string) []string { return append(of("-m", "*idle.exe"), words...) }
	return []scenario{
		onBusy("below", idle("69")),
		onBusy("below minutes", idle("1m09s")).orTable(map[string]any{"match": "*idle.exe", "limit": "1m09s"}),
		onBusy("reached", idle("68"), took("", "68")),
		onBusy("seconds", idle("60s"), took("", "60s")),
		onBusy("minutes", idle("1M"), took("", "1M")),
		onBusy("both", idle("1m08"), took("", "1m08")),
		onBusy("no minutes", idle("m9s"), took("", "m9s")),
		onBusy("one of eight", of("-m", "rank", "100m"),
			uses("time", "rank", "(205) of bob has consumed 205:45 of CPU time (limit 205m45s)", "100m", "205:45")),
		onBusy("all", of("-a", "-m", "/idle|rank/", "1m"), warned(took("", "1m"), " (1)"),
			warned(uses("time", "rank", "(205) of bob has consumed 205:45 of CPU time (limit 205m45s)", "1m", "205:45"), " (2)"),
			counting(uses("time", "rank", "(205) of bob has consumed 205:45 of CPU time (limit 205m45s)", "1m", "205:45"), 2)),
		onBusy("kill", idle("-k", "1m"), took("; killed", "1m")).leaving(nil),
		onBusy("no limit", nil, usageFinding("check_ps_time:  Syntax error:  CPU time utilization limit required.", "")),
		onBusy("other characters", of("-k", "1h"), usageFinding(`check_ps_time:  Syntax error:  Invalid characters in CPU time limit "1h"`, "")).leaving(nil),
		onBusy("malformed", of("-k", "12S3"), valueFinding("check_ps_time", "limit", "12S3", wanted)).leaving(nil),
		onBusy("malformed octal", of("08"), valueFinding("check_ps_time", "limit", "08", wanted)),
		onBusy("too much", of("99999999999999999999m"), valueFinding("check_ps_time", "limit", "99999999999999999999m", wanted)),
		{name: "no /proc", broken: true, words: of("5"), want: []Finding{unknown("read /proc: no such file or directory")}},
	}
})

func TestParseCPUTime(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"90": "90", "90s": "90", "2m": "120", "1m30": "90", "1m30s": "90", "1M08s": "68", "08m09": "489", "010": "8",
		"m": "0", "1m2m3": "63", "s": "0", "S": "", "1S": "", "09": "", "1mS": "",
	} {
		got, ok := parseCPUTime(word)
		if text := decimal(got); ok != (want != "") || ok && text != want {
			t.Errorf("%q: %s, %v, want %s", word, text, ok, want)
		}
	}
}
