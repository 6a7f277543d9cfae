package verdict

import (
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"

	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

func fail(message string) []checks.Finding {
	return []checks.Finding{{Severity: checks.Fail, Message: message}}
}

// render formats events: L log, O standard output, S syslog.
func render(events []Event) (out []string) {
	for _, e := range events {
		out = append(out, [...]string{"L ", "O ", "S ", "offline ", "online", "result "}[e.To]+e.Text)
	}
	return out
}

// tape runs a fold and collects its events.
type tape struct {
	Fold
	events []Event
}

func (p *tape) do(events []Event) { p.events = append(p.events, events...) }

func (p *tape) native(line string, findings []checks.Finding) {
	if !p.Over() {
		p.do(p.Begin(line, 7))
		p.do(p.Found(findings))
	}
}

func (p *tape) shell(line string, deaths []string, status int) {
	if p.Over() {
		return
	}
	p.do(p.Begin(line, 7))
	for _, d := range deaths {
		p.do(p.Died("3", d, false, true))
		if p.Over() {
			return
		}
	}
	p.do(p.Ended(status))
}

func TestFold(t *testing.T) {
	t.Parallel()
	const bad, worse = "check_a:  bad", "check_b:  worse"
	tests := map[string]struct {
		set  Settings
		play func(*tape)
		want []string
		exit int
	}{
		"good": {Settings{Mark: true}, func(p *tape) { p.native("check_a", nil) }, []string{"online"}, 0},
		"good, verbose": {Settings{Verbose: true, Silent: true}, func(p *tape) { p.native("check_a x", nil) },
			[]string{"L Node Health Check starting.", `L Running check:  "check_a x"`, "L Node Health Check completed successfully (2s)."}, 0},
		"first failure ends": {Settings{Mark: true}, func(p *tape) { p.native("check_a", fail(bad)); p.native("check_b", fail(worse)) },
			[]string{"L ERROR:  nhc:  Health check failed:  " + bad, "S Health check failed:  " + bad, "offline " + bad}, 1},
		"with a log": {Settings{Logged: true}, func(p *tape) { p.native("check_a", fail(bad)) },
			[]string{"L ERROR:  nhc:  Health check failed:  " + bad, "S Health check failed:  " + bad, "O ERROR:  nhc:  Health check failed:  " + bad}, 1},
		"quiet": {Settings{Silent: true, Logged: true, Mark: true}, func(p *tape) { p.native("check_a", fail(bad)) },
			[]string{"S Health check failed:  " + bad, "offline " + bad}, 1},
		"all": {Settings{All: true, Mark: true}, func(p *tape) { p.native("check_a", fail(bad)); p.native("check_b", append(fail(worse), fail("x")...)) },
			[]string{
				"L ERROR:  nhc:  Health check failed:  " + bad, "S Health check failed:  " + bad, "offline " + bad,
				"L ERROR:  nhc:  Health check failed:  " + worse, "L ERROR:  nhc:  Health check failed:  x",
				"S Health check failed:  " + worse, "S Health check failed:  x",
				"L ERROR:  nhc:  3 health checks failed.", "S 3 health checks failed.",
			}, 3},
		"all, with checks of our own: the node is marked at the end, for the worst": {Settings{All: true, Mark: true, Late: true}, func(p *tape) {
			p.native("check_gpu_remap", []checks.Finding{faulty("check_gpu_remap", "gpu.remap.pending", gpu(3), checks.ResetGPU)})
			p.native("check_a", fail(bad))
			p.native("check_gpu_remap", []checks.Finding{faulty("check_gpu_remap", "gpu.remap.failed", gpu(5), checks.ReseatOrRMA)})
		},
			[]string{
				"L ERROR:  nhc:  Health check failed:  check_gpu_remap:  what the log has", "S Health check failed:  check_gpu_remap:  what the log has",
				"S Advice [gpu.remap.pending]:  reset the GPU: " + checks.WhatToDo("gpu.remap.pending"),
				"L ERROR:  nhc:  Health check failed:  " + bad, "S Health check failed:  " + bad,
				"L ERROR:  nhc:  Health check failed:  check_gpu_remap:  what the log has", "S Health check failed:  check_gpu_remap:  what the log has",
				"S Advice [gpu.remap.failed]:  reseat or RMA: " + checks.WhatToDo("gpu.remap.failed"),
				"offline gpu5 remap failed 0000:88:00.0: reseat or RMA (check_gpu_remap) [gpu.remap.failed] +2",
				"L ERROR:  nhc:  3 health checks failed.", "S 3 health checks failed.",
			}, 3},
		"all, and the time is over": {Settings{All: true, Mark: true, Late: true}, func(p *tape) {
			p.native("check_a", fail(bad))
			p.do(p.Expired(""))
		}, []string{
			"L ERROR:  nhc:  Health check failed:  " + bad, "S Health check failed:  " + bad,
			`L ERROR:  nhc:  Health check failed:  Script timed out while executing "check_a".`, `S Health check failed:  Script timed out while executing "check_a".`,
			"offline " + bad,
		}, 142},
		"all, and a line leaves in silence": {Settings{All: true, Mark: true, Late: true}, func(p *tape) { p.native("check_a", fail(bad)); p.do(p.Exited(0)) },
			[]string{"L ERROR:  nhc:  Health check failed:  " + bad, "S Health check failed:  " + bad, "offline " + bad}, 0},
		"all passes": {Settings{All: true, Mark: true, Late: true}, func(p *tape) { p.native("check_a", nil) }, []string{"online"}, 0},
		"a check with two failures ends with both": {Settings{Mark: true}, func(p *tape) {
			p.native("check_gpu_remap", append(fail(bad), faulty("check_gpu_remap", "gpu.remap.failed", gpu(5), checks.ReseatOrRMA)))
			p.native("check_b", fail(worse))
		}, []string{
			"L ERROR:  nhc:  Health check failed:  " + bad, "L ERROR:  nhc:  Health check failed:  check_gpu_remap:  what the log has",
			"S Health check failed:  " + bad, "S Health check failed:  check_gpu_remap:  what the log has",
			"S Advice [gpu.remap.failed]:  reseat or RMA: " + checks.WhatToDo("gpu.remap.failed"),
			"offline gpu5 remap failed 0000:88:00.0: reseat or RMA (check_gpu_remap) [gpu.remap.failed] +1",
		}, 1},
		"in the background": {Settings{Detach: true, All: true, Logged: true}, func(p *tape) { p.native("check_a", fail(bad)); p.native("check_b", fail(worse)) },
			[]string{
				"L ERROR:  nhc:  Health check failed:  " + bad, "S Health check failed:  " + bad, "result 1 " + bad,
				"L ERROR:  nhc:  Health check failed:  " + worse, "S Health check failed:  " + worse,
				"O ERROR:  nhc:  2 health checks failed.", "L ERROR:  nhc:  2 health checks failed.", "S 2 health checks failed.",
			}, 2},
		"warnings fail nothing": {Settings{Mark: true}, func(p *tape) {
			p.native("check_a", []checks.Finding{{Severity: checks.Warn, Message: "a note"}, {Severity: checks.Skip, Message: "not here"}})
		}, []string{"L a note", "online"}, 0},
		"a loud warning goes to syslog as well": {Settings{Mark: true}, func(p *tape) {
			p.native("check_a", []checks.Finding{{Severity: checks.Warn, Message: "a new code", Loud: true}})
		}, []string{"L a new code", "online", "S a new code"}, 0},
		"unknown drains nobody and resumes nobody": {Settings{Mark: true, Logged: true}, func(p *tape) {
			p.native("check_a", []checks.Finding{{Severity: checks.Unknown, Message: "check_a:  could not tell"}})
			p.native("check_b", nil)
		}, []string{
			"L ERROR:  nhc:  Health check unknown:  check_a:  could not tell", "S Health check unknown:  check_a:  could not tell",
			"O ERROR:  nhc:  Health check unknown:  check_a:  could not tell",
		}, ExitUnknown},
		"status of a finding": {Settings{}, func(p *tape) {
			p.native("check_a", []checks.Finding{{Severity: checks.Fail, Message: bad, Status: 300}})
		}, []string{"L ERROR:  nhc:  Health check failed:  " + bad, "S Health check failed:  " + bad}, 44},
		"plain failure": {Settings{}, func(p *tape) { p.shell("false", nil, 1) },
			[]string{"L Node Health Check failed.  Check false returned 1", "L ERROR:  nhc:  Health check failed:  Check false returned 1", "S Health check failed:  Check false returned 1"}, 1},
		"a death and its status are one failure": {Settings{All: true}, func(p *tape) { p.shell("f", []string{"dead"}, 9) },
			[]string{"S Health check failed:  dead", "L ERROR:  nhc:  1 health checks failed.", "S 1 health checks failed."}, 1},
		"forked, plain": {Settings{Forked: true, Apart: true}, func(p *tape) { p.shell("sh -c 'exit 7'", nil, 7) },
			[]string{"L Node Health Check failed.  Check sh -c 'exit 7' returned 7", "L ERROR:  nhc:  Health check failed:  Check sh -c 'exit 7' returned 7", "S Health check failed:  Check sh -c 'exit 7' returned 7"}, 107},
		"forked, high status": {Settings{Forked: true, Apart: true}, func(p *tape) { p.shell("nosuch", nil, 127) },
			[]string{"L Node Health Check failed.  Check nosuch returned 127", "L ERROR:  nhc:  Health check failed:  Check nosuch returned 127", "S Health check failed:  Check nosuch returned 127"}, 127},
		"forked, died":   {Settings{Forked: true, Apart: true}, func(p *tape) { p.shell("f", []string{"dead"}, 3) }, []string{"S Health check failed:  dead"}, 3},
		"unforked, died": {Settings{Forked: true, Apart: true}, func(p *tape) { p.shell("A=1 f", []string{"dead"}, 3) }, []string{"S Health check failed:  dead"}, 103},
		"exit 0":         {Settings{Mark: true}, func(p *tape) { p.do(p.Begin("exit 0", 0)); p.do(p.Exited(0)) }, nil, 0},
		"exit 4 ends also with -a": {Settings{All: true}, func(p *tape) { p.do(p.Begin("exit 4", 0)); p.do(p.Exited(4)); p.native("check_b", fail(worse)) },
			[]string{"L Node Health Check failed.  Check exit 4 returned 4", "L ERROR:  nhc:  Health check failed:  Check exit 4 returned 4", "S Health check failed:  Check exit 4 returned 4"}, 4},
		"death in a subshell that fails": {Settings{Mark: true}, func(p *tape) {
			p.do(p.Begin("( die 3 x )", 0))
			p.do(p.Died("3", "x", true, true))
			p.do(p.Ended(3))
		}, []string{"S Health check failed:  x", "offline x"}, 3},
		"death in a subshell whose line passes": {Settings{Mark: true}, func(p *tape) {
			p.do(p.Begin("X=$(die 3 x); true", 0))
			p.do(p.Died("3", "x", true, true))
			p.do(p.Ended(0))
		}, []string{"S Health check failed:  x", "offline x"}, 0},
		"death in a subshell whose line ends the shell": {Settings{Mark: true}, func(p *tape) {
			p.do(p.Begin("( die 3 x ) || exit 1", 0))
			p.do(p.Died("3", "x", true, true))
			p.do(p.Exited(1))
		}, []string{"S Health check failed:  x", "offline x"}, 1},
		"death in a subshell whose line ends the shell with 0": {Settings{Mark: true}, func(p *tape) {
			p.do(p.Begin("( die 3 x ) || exit 0", 0))
			p.do(p.Died("3", "x", true, true))
			p.do(p.Exited(0))
		}, []string{"S Health check failed:  x", "offline x"}, 0},
		"death in a subshell whose line ends the shell, with -a": {Settings{Mark: true, All: true, Late: true}, func(p *tape) {
			p.do(p.Begin("( die 3 x ); die 4 y; exit 1", 0))
			p.do(p.Died("3", "x", true, true))
			p.do(p.Died("4", "y", false, true))
			p.do(p.Exited(1))
		}, []string{"S Health check failed:  x", "S Health check failed:  y", "offline y"}, 1},
		"death in a subshell, in the background": {Settings{Detach: true, Logged: true}, func(p *tape) {
			p.do(p.Begin("( check_gpu_remap )", 0))
			p.Called([]checks.Finding{faulty("check_gpu_remap", "gpu.remap.failed", gpu(5), checks.ReseatOrRMA)})
			p.do(p.Died("7", "check_gpu_remap:  what the log has", true, true))
			p.do(p.Ended(7))
		}, []string{
			"S Health check failed:  check_gpu_remap:  what the log has",
			"S Advice [gpu.remap.failed]:  reseat or RMA: " + checks.WhatToDo("gpu.remap.failed"),
			"result 7 check_gpu_remap:  what the log has",
		}, 7},
		"death in a subshell whose line passes, with -a in the background": {Settings{Detach: true, All: true}, func(p *tape) {
			p.do(p.Begin("( die 7 x ) || true", 0))
			p.do(p.Died("7", "x", true, true))
			p.do(p.Ended(0))
			p.shell("die 3 y", []string{"y"}, 3)
		}, []string{"S Health check failed:  x", "result 7 x", "S Health check failed:  y", "L ERROR:  nhc:  2 health checks failed.", "S 2 health checks failed."}, 2},
		"death that a command substitution has caught": {Settings{Logged: true}, func(p *tape) {
			p.do(p.Begin("X=$(die 3 x)", 0))
			p.do(p.Died("3", "x", true, false))
			p.do(p.Ended(3))
		}, []string{"L ERROR:  nhc:  Health check failed:  x", "S Health check failed:  x", "O ERROR:  nhc:  Health check failed:  x"}, 3},
		"apart, but not -f": {Settings{Apart: true}, func(p *tape) { p.shell("sh -c 'exit 7'", nil, 7) },
			[]string{"L Node Health Check failed.  Check sh -c 'exit 7' returned 7", "L ERROR:  nhc:  Health check failed:  Check sh -c 'exit 7' returned 7", "S Health check failed:  Check sh -c 'exit 7' returned 7"}, 7},
		"a lost shell, after a death in a subshell": {Settings{Mark: true}, func(p *tape) {
			p.do(p.Begin("( die 3 x ); lost", 0))
			p.do(p.Died("3", "x", true, true))
			p.do(p.Broken(checks.Finding{Severity: checks.Unknown, Message: "lost"}))
		}, []string{"S Health check failed:  x", "offline x"}, 1},
		"a lost shell": {Settings{Mark: true}, func(p *tape) {
			p.do(p.Begin("lost", 0))
			p.do(p.Broken(checks.Finding{Severity: checks.Unknown, Message: "lost"}))
		}, []string{"L ERROR:  nhc:  Health check unknown:  lost", "S Health check unknown:  lost"}, ExitUnknown},
		"timeout with -f": {Settings{Forked: true, Apart: true}, func(p *tape) { p.do(p.Begin("sleep 9", 0)); p.do(p.Expired("")) },
			[]string{`L ERROR:  nhc:  Health check failed:  Script timed out while executing "sleep 9".`, `S Health check failed:  Script timed out while executing "sleep 9".`}, 242},
		"timeout with -a and -f": {Settings{All: true, Forked: true, Apart: true}, func(p *tape) { p.do(p.Begin("sleep 9", 0)); p.do(p.Expired("")) },
			[]string{`L ERROR:  nhc:  Health check failed:  Script timed out while executing "sleep 9".`, `S Health check failed:  Script timed out while executing "sleep 9".`}, 142},
		"a script of the site leaves": {Settings{Mark: true}, func(p *tape) { p.Quit(3) }, nil, 3},
		"no empty line for syslog":    {Settings{}, func(p *tape) { p.Queue(""); p.Queue("a"); p.Queue("") }, []string{"S a", "S "}, 0},
		"-e goes on after a death with -a": {Settings{Eval: true, All: true}, func(p *tape) { p.shell("die 3 dead; false", []string{"dead"}, 1) },
			[]string{"S Health check failed:  dead"}, 1},
		"timeout, also with -a": {Settings{All: true, Mark: true}, func(p *tape) { p.do(p.Begin("sleep 9", 0)); p.do(p.Expired("")) },
			[]string{`L ERROR:  nhc:  Health check failed:  Script timed out while executing "sleep 9".`, `S Health check failed:  Script timed out while executing "sleep 9".`, `offline Script timed out while executing "sleep 9".`}, 142},
		"-e":        {Settings{Eval: true, Mark: true}, func(p *tape) { p.shell("false", nil, 1) }, nil, 1},
		"-e passes": {Settings{Eval: true, Mark: true}, func(p *tape) { p.shell("true", nil, 0) }, nil, 0},
		"a finding for syslog": {Settings{Mark: true}, func(p *tape) {
			note := checks.Finding{Severity: checks.Warn, Message: "note"}
			quiet := note
			quiet.Syslog = true
			p.native("check_a", append([]checks.Finding{quiet, note}, fail(bad)...))
		}, []string{"L note", "L ERROR:  nhc:  Health check failed:  " + bad, "S note", "S Health check failed:  " + bad, "offline " + bad}, 1},
		"queued syslog": {Settings{Mark: true}, func(p *tape) { p.Queue("q1"); p.native("check_a", fail(bad)) },
			[]string{"L ERROR:  nhc:  Health check failed:  " + bad, "S q1", "S Health check failed:  " + bad, "offline " + bad}, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &tape{Fold: Fold{Settings: tc.set}}
			p.Name = "nhc"
			p.do(p.Start())
			tc.play(p)
			events, exit := p.Finish(2)
			p.do(events)
			if diff := cmp.Diff(tc.want, render(p.events)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if exit != tc.exit {
				t.Errorf("exit status %d, want %d", exit, tc.exit)
			}
		})
	}
}

// With -a the exit status is the number of failures, at most 255.
func TestManyFailures(t *testing.T) {
	t.Parallel()
	p := &tape{Fold: Fold{Settings: Settings{Name: "nhc", All: true}}}
	for range 300 {
		p.native("check_a", fail("x"))
	}
	if _, exit := p.Finish(0); exit != 255 {
		t.Errorf("exit status %d, want 255", exit)
	}
}

// A run that fails and then times out marks the node once, for the fault that it found.
func TestTimeoutAfterFailureMarksOnce(t *testing.T) {
	t.Parallel()
	for _, failed := range []bool{true, false} {
		var p tape
		p.Mark = true
		p.do(p.Begin("check_a", 7))
		want := []string{`offline Script timed out while executing "check_a".`}
		if failed {
			p.do(p.Found(fail("check_a:  x")))
			want = []string{"offline check_a:  x"}
		}
		p.do(p.Expired(""))
		var marks []string
		for i, e := range p.events {
			if e.To == Offline {
				marks = append(marks, render(p.events)[i])
			}
		}
		if diff := cmp.Diff(want, marks); diff != "" {
			t.Errorf("failed %v (-want +got):\n%s", failed, diff)
		}
	}
}
