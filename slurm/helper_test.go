package slurm

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// commands is a Runner for the helpers: it answers the first command with the node's line, the next
// one with a status, and records both.
type commands struct {
	line   string
	status int // status of the marking command
	lost   error
	late   bool // the commands give no answer
	calls  []string
	env    []string // of the last command
}

func (c *commands) Run(_ context.Context, argv, env []string) (Output, error) {
	c.env = env
	call := argv[0]
	for _, a := range argv[1:] {
		call += " [" + a + "]"
	}
	c.calls = append(c.calls, call)
	if c.lost != nil {
		return Output{}, c.lost
	}
	if c.late {
		return Output{TimedOut: true}, nil
	}
	if len(c.calls) == 1 {
		return Output{Stdout: []byte(c.line + "\n")}, nil
	}
	return Output{Status: c.status, Stderr: []byte("complaint\n")}, nil
}

// The recorded behaviour of LBNL NHC 1.4.3, except where nhc-gpu differs.
var helperCases = []struct {
	name   string
	env    []string
	line   string // line of sinfo, pbsnodes or bhosts
	status int
	off    string // the helper's text and the command after the query, if any
	on     string
}{
	{
		"idle", nil, "idle none", 0,
		"Marking idle node01 offline:  NHC: check_y:  failed  now => scontrol [update] [State=DRAIN] [NodeName=node01] [Reason=NHC: check_y:  failed  now]",
		"Node node01 is already online. / Skipping idle node node01 (none )",
	},
	{
		"flag", nil, "mix* NHC: old  x", 0,
		"Marking mix* node01 offline:  NHC: check_y:  failed  now => scontrol [update] [State=DRAIN] [NodeName=node01] [Reason=NHC: check_y:  failed  now]",
		"Node node01 is already online. / Skipping mix* node node01 (NHC: old x)",
	},
	{
		"stale reason in service", nil, "plnd disk swap pending", 0,
		"Marking plnd node01 offline:  NHC: check_y:  failed  now => scontrol [update] [State=DRAIN] [NodeName=node01] [Reason=NHC: check_y:  failed  now]",
		"Node node01 is already online. / Skipping plnd node node01 (disk swap pending)",
	},
	{
		"ours", nil, "drng NHC: check_x:  old", 0,
		"Marking drng node01 offline:  NHC: check_y:  failed  now => scontrol [update] [State=DRAIN] [NodeName=node01] [Reason=NHC: check_y:  failed  now]",
		"Marking node01 online and clearing note (NHC: check_x: old) => scontrol [update] [State=RESUME] [NodeName=node01]",
	},
	{
		"ours again", nil, "drain* NHC: check_y: failed now", 0,
		"Marking drain* node01 offline:  NHC: check_y:  failed  now => scontrol [update] [State=DRAIN] [NodeName=node01] [Reason=NHC: check_y:  failed  now]",
		"Marking node01 online and clearing note (NHC: check_y: failed now) => scontrol [update] [State=RESUME] [NodeName=node01]",
	},
	{
		"a person's", nil, "drain a  b   c", 0,
		"Not offlining node01:  Already offline for non-NHC reason (a b c)",
		"Not onlining node01:  Down for non-NHC reason (a b c)",
	},
	{
		"one word", nil, "maint x", 0,
		"Not offlining node01:  Already offline for non-NHC reason (x )",
		"Not onlining node01:  Down for non-NHC reason (x )",
	},
	{
		"no note", nil, "drain none", 0,
		"Not offlining node01:  Already offline with no note set.",
		"Not onlining node01:  No note set.",
	},
	{
		"no note, taken", []string{"IGNORE_EMPTY_NOTE=1"}, "drain none", 0,
		"Marking drain node01 offline:  NHC: check_y:  failed  now => scontrol [update] [State=DRAIN] [NodeName=node01] [Reason=NHC: check_y:  failed  now]",
		"Marking node01 online and clearing note (none ) => scontrol [update] [State=RESUME] [NodeName=node01]",
	},
	{
		"down", nil, "down* NHC: old", 0,
		"Not changing state of down node node01.",
		"Marking node01 online and clearing note (NHC: old) => scontrol [update] [State=RESUME] [NodeName=node01]",
	},
	{
		"unknown", nil, "foo NHC: x", 0,
		`Not sure how to handle node state "foo" on node01`,
		`Not sure how to handle node state "foo" on node01 / Skipping foo node node01 (NHC: x)`,
	},
	{
		"nothing", nil, " ", 0,
		`Not sure how to handle node state "" on node01`,
		`Not sure how to handle node state "" on node01 / Skipping  node node01 ( )`,
	},
	{
		"first line", nil, "drain NHC: a b\ndrain bad dimm", 0,
		"Marking drain node01 offline:  NHC: check_y:  failed  now => scontrol [update] [State=DRAIN] [NodeName=node01] [Reason=NHC: check_y:  failed  now]",
		"Marking node01 online and clearing note (NHC: a b) => scontrol [update] [State=RESUME] [NodeName=node01]",
	},
	{
		"status", nil, "drain NHC: x", 3,
		"Marking drain node01 offline:  NHC: check_y:  failed  now => scontrol [update] [State=DRAIN] [NodeName=node01] [Reason=NHC: check_y:  failed  now]",
		"Marking node01 online and clearing note (NHC: x) => scontrol [update] [State=RESUME] [NodeName=node01]",
	},
	{
		"settings", []string{"SLURM_SC_OFFLINE_ARGS=update State=FAIL", "SLURM_SCONTROL=/x/scontrol"}, "idle none", 0,
		"Marking idle node01 offline:  NHC: check_y:  failed  now => /x/scontrol [update] [State=FAIL] [NodeName=node01] [Reason=NHC: check_y:  failed  now]",
		"Node node01 is already online. / Skipping idle node node01 (none )",
	},
	{
		"pbs free", []string{"NHC_RM=pbs"}, "node01 free admin note x", 0,
		"Marking free node01 offline:  NHC: check_y:  failed  now => pbsnodes [-o] [-N] [NHC: check_y:  failed  now] [node01]",
		"Skipping free node node01 (admin note x)",
	},
	{
		"pbs ours", []string{"NHC_RM=pbs"}, "node01 down,offline NHC: old note", 0,
		"Marking down,offline node01 offline:  NHC: check_y:  failed  now => pbsnodes [-o] [-N] [NHC: check_y:  failed  now] [node01]",
		"Marking node01 online and clearing note (NHC: old note) => pbsnodes [-c] [-N] [] [node01]",
	},
	{
		"pbs a person's", []string{"NHC_RM=pbs"}, "node01 offline admin note x", 0,
		"Marking offline node01 offline:  admin note x => pbsnodes [-o] [-N] [admin note x] [node01]",
		"Not onlining node01:  Offline for non-NHC reason (admin note x)",
	},
	{
		"pbs no note", []string{"NHC_RM=pbs"}, "node01 offline", 0,
		"Not offlining node01:  Already offline with no note set.",
		"Not onlining node01:  No note set.",
	},
	{
		"pbs settings", []string{"NHC_RM=pbs", "IGNORE_EMPTY_NOTE=1", "PBSNODES_OFFLINE_ARGS=-O"}, "node01 offline", 0,
		"Marking offline node01 offline:  NHC: check_y:  failed  now => pbsnodes [-O] [NHC: check_y:  failed  now] [node01]",
		"Marking node01 online and clearing note ( ) => pbsnodes [-c] [-N] [] [node01]",
	},
	{
		"lsf ok", []string{"NHC_RM=lsf"}, lsf("ok", ""), 0,
		"Marking ok node01 offline:  NHC: check_y:  failed  now => badmin [hclose] [-C] [NHC: check_y:  failed  now] [node01]",
		"Skipping ok node node01 ( )",
	},
	{
		"lsf ours", []string{"NHC_RM=lsf"}, lsf("closed_Adm", "NHC: old"), 0,
		"Marking closed_Adm node01 offline:  NHC: check_y:  failed  now => badmin [hclose] [-C] [NHC: check_y:  failed  now] [node01]",
		"Marking node01 online and clearing note (NHC: old) => badmin [hopen] [node01]",
	},
	{
		"lsf a person's", []string{"NHC_RM=lsf"}, lsf("closed_Full", "admin note"), 0,
		"Marking closed_Full node01 offline:  admin note => badmin [hclose] [-C] [admin note] [node01]",
		"Not onlining node01:  Down for non-NHC reason (admin note)",
	},
	{
		"lsf no note", []string{"NHC_RM=lsf"}, lsf("closed_Adm", ""), 0,
		"Not offlining node01:  Already offline with no note set.",
		"Not onlining node01:  No note set.",
	},
	{"lsf unavail", []string{"NHC_RM=lsf"}, lsf("unavail", "NHC: old"), 0, "", "Skipping unavail node node01 (NHC: old)"},
}

// lsf returns an output of bhosts -l.
func lsf(status, comment string) string {
	text := "HOST  node01\nSTATUS CPUF JL/U MAX NJOBS RUN SSUSP USUSP RSV DISPATCH_WINDOW\n" + status + " 60.00 - 16 0 0 0 0 0 -"
	if comment != "" {
		text += "\n ADMIN ACTION COMMENT: \"" + comment + "\""
	}
	return text
}

func TestHelpers(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 11, 21, 6, 23, 0, 0, time.UTC)
	for _, tt := range helperCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			vars := env(append(tt.env, "NHC_RM=slurm")...)
			for _, want := range []string{tt.off, tt.on} {
				run := &commands{line: tt.line, status: tt.status}
				c := NewController("node01", run, vars)
				var w bytes.Buffer
				var argv0, head string
				var status int
				if want == tt.off {
					argv0 = "/x/node-mark-offline"
					head = fmt.Sprintf("20261121 06:23:00 %s node01 %s\n", argv0, "check_y:  failed  now")
					status = MarkOffline(&w, argv0, []string{"node01", "check_y:  failed ", "now"}, vars, c, day)
				} else {
					argv0 = "/x/node-mark-online"
					head = fmt.Sprintf("20261121 06:23:00 [%s] %s node01\n", vars("NHC_RM"), argv0)
					status = MarkOnline(&w, argv0, []string{"node01"}, vars, c, day)
				}
				got, found := strings.CutPrefix(w.String(), head)
				if !found {
					t.Errorf("%q does not begin with %q", w.String(), head)
				}
				got = strings.Join(strings.Split(strings.TrimSuffix(strings.ReplaceAll(got, argv0+":  ", ""), "\n"), "\n"), " / ")
				wantStatus := 0
				if len(run.calls) > 1 {
					got += " => " + strings.Join(run.calls[1:], " ; ")
					wantStatus = tt.status
				}
				if diff := cmp.Diff(want, got); diff != "" || status != wantStatus {
					t.Errorf("%s: exit status %d, want %d (-want +got):\n%s", argv0, status, wantStatus, diff)
				}
			}
		})
	}
}

func TestHelpersQuery(t *testing.T) {
	t.Parallel()
	for rm, want := range map[string]string{
		"slurm": "sinfo [-o] [%t %E] [-hn] [node01]",
		"pbs":   "pbsnodes [-n] [-l] [all] [node01]",
		"lsf":   "bhosts [-l] [node01]",
	} {
		run := &commands{}
		MarkOnline(&bytes.Buffer{}, "on", []string{"node01"}, env("NHC_RM="+rm), NewController("node01", run, env()), time.Now())
		if diff := cmp.Diff([]string{want}, run.calls); diff != "" {
			t.Errorf("%s (-want +got):\n%s", rm, diff)
		}
	}
}

func TestHelpersOtherRM(t *testing.T) {
	t.Parallel()
	for rm, want := range map[string]struct {
		status int
		text   string
	}{
		"":    {255, `on:  Unsupported RM detected in on:  ""`},
		"foo": {255, `on:  Unsupported RM detected in on:  "foo"`},
		"sge": {0, "on:  No additional node marking necessary for SGE and variants."},
	} {
		run := &commands{}
		var w bytes.Buffer
		status := MarkOnline(&w, "on", []string{"node01"}, env("NHC_RM="+rm), NewController("node01", run, env()), time.Now())
		if status != want.status || !strings.HasSuffix(w.String(), "on node01\n"+want.text+"\n") || len(run.calls) > 0 {
			t.Errorf("NHC_RM=%s: exit status %d, calls %v, text %q", rm, status, run.calls, w.String())
		}
	}
}

// A missing command gives exit status 127 and a message on standard error.
func TestHelpersMissingCommand(t *testing.T) {
	t.Parallel()
	for rm, want := range map[string]int{"slurm": 0, "pbs": 127} {
		run := &commands{lost: errNotFound}
		c := NewController("node01", run, env())
		var w, complaints bytes.Buffer
		c.Stderr = &complaints
		status := MarkOffline(&w, "off", []string{"node01", "x"}, env("NHC_RM="+rm), c, time.Now())
		if status != want || strings.Contains(w.String(), "$PATH") || !strings.Contains(complaints.String(), "off:  run ") {
			t.Errorf("%s: exit status %d, standard output %q, standard error %q", rm, status, w.String(), complaints.String())
		}
	}
}

// Without an answer the node may have another's note: the helper changes nothing and fails.
func TestHelpersWithoutAnswer(t *testing.T) {
	t.Parallel()
	for _, rm := range []string{"slurm", "pbs", "lsf"} {
		for name, mark := range map[string]func(run *commands) int{
			"off": func(run *commands) int {
				return MarkOffline(&bytes.Buffer{}, "off", []string{"node01", "x"}, env("NHC_RM="+rm), NewController("node01", run, env()), time.Now())
			},
			"on": func(run *commands) int {
				return MarkOnline(&bytes.Buffer{}, "on", []string{"node01"}, env("NHC_RM="+rm), NewController("node01", run, env()), time.Now())
			},
		} {
			run := &commands{late: true}
			if status := mark(run); status != 124 || len(run.calls) != 1 {
				t.Errorf("%s, %s: exit status %d after %q, want 124 after one command", rm, name, status, run.calls)
			}
		}
	}
}

// The commands get the variables of the site that they need, and those of Slurm none that changes what they print.
func TestHelpersEnvironment(t *testing.T) {
	t.Parallel()
	site := []string{"LSF_ENVDIR=/opt/lsf", "SLURM_CONF_SERVER=ctl", "SLURM_TIME_FORMAT=relative", "PATH=/opt/lsf/bin:/bin"}
	for rm, want := range map[string][]string{"lsf": site, "slurm": {"SLURM_CONF_SERVER=ctl"}} {
		run := &commands{line: "idle none"}
		c := NewController("node01", run, env())
		c.Settings.Exports = site
		MarkOffline(&bytes.Buffer{}, "off", []string{"node01", "x"}, env("NHC_RM="+rm), c, time.Now())
		var got []string
		for _, e := range run.env {
			if slices.Contains(site, e) {
				got = append(got, e)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", rm, diff)
		}
	}
}

// The next run detects the change that a helper made to the node.
func TestHelpersForget(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	act(t, c, healthy, "read")
	run := &commands{line: "idle none"}
	byHand := *c
	byHand.Runner = run
	if status := MarkOffline(&bytes.Buffer{}, "off", []string{"gpu01", "by hand"}, env("NHC_RM=slurm"), &byHand, time.Now()); status != 0 {
		t.Errorf("exit status %d", status)
	}
	f.serve("DRAIN NHC: by hand")
	act(t, c, healthy, "read", "RESUME")
}

func TestHelpersWithoutArguments(t *testing.T) {
	t.Parallel()
	run := &commands{line: "idle none"}
	c := NewController("node01", run, env())
	MarkOffline(&bytes.Buffer{}, "off", nil, env("NHC_RM=slurm"), c, time.Now())
	if len(run.calls) != 2 || run.calls[1] != "scontrol [update] [State=DRAIN] [NodeName=node01] [Reason=NHC:]" {
		t.Errorf("calls %q", run.calls)
	}
}
