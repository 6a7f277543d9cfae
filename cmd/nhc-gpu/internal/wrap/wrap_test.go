package wrap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTimespec(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]timespec{
		"":                         {},
		"300":                      {secs: 300},
		"08":                       {secs: 8},
		"1w2d3h4m5s":               {secs: 604800 + 2*86400 + 3*3600 + 4*60 + 5},
		"1D12H":                    {secs: 129600},
		"6h10f":                    {secs: 21600, fudge: 10, hasFudge: true},
		"0f":                       {hasFudge: true},
		"1h30":                     {secs: 3630},
		"h":                        {wrong: `Missing number before character 'h' in timespec "h" at position 0.`},
		"5m x":                     {secs: 300, wrong: `Missing number before character ' ' in timespec "5m x" at position 2.`},
		"5x1":                      {wrong: `Invalid character 'x' encountered in timespec "5x1" at position 1.`},
		"99999999999999999999999w": {secs: maxTimespec},
	} {
		if diff := cmp.Diff(want, parseTimespec(spec), cmp.AllowUnexported(timespec{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", spec, diff)
		}
	}
}

func FuzzTimespec(f *testing.F) {
	f.Add("1d12h5f")
	f.Add("9999999999999999999999999999999999s9")
	f.Fuzz(func(t *testing.T, spec string) {
		got := parseTimespec(spec)
		if got.secs < 0 || got.secs > maxTimespec || got.fudge < 0 {
			t.Errorf("%q: %+v", spec, got)
		}
		if l := parseLoop(spec); l.every < time.Second {
			t.Errorf("%q: every %s", spec, l.every)
		}
	})
}

func TestFormatTime(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 7, 4, 5, 6, 7, time.UTC)
	for format, want := range map[string]string{
		"(%F %T)": "(2026-03-07 04:05:06)", "%s": "1772856306", "100%%": "100%", "%Q %": "%Q %", "%a %d %b %Y": "Sat 07 Mar 2026", "%N": "000000007",
	} {
		if got := formatTime(at, format); got != want {
			t.Errorf("formatTime(%q) = %q, want %q", format, got, want)
		}
	}
}

func TestParseWrap(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]arguments{
		"-M root -X 12h -- -d -t 60": {mailTo: []string{"root"}, expire: "12h", words: []string{"-d", "-t", "60"}},
		"-M root -d -M x":            {mailTo: []string{"root"}, words: []string{"-d", "-M", "x"}},
		"-V -dV DEBUG=1":             {verbose: true, words: []string{"-dV", "DEBUG=1"}},
		"-Vd":                        {verbose: true, words: []string{"-Vd"}},
		"--check -V":                 {words: []string{"--check", "-V"}},
		"word -V":                    {words: []string{"word", "-V"}},
		"-L5mt -P /bin/x -D /d -h":   {loop: "5mt", program: "/bin/x", dir: "/d", help: true},
	} {
		got, err := parse(strings.Fields(line))
		if err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(arguments{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", line, diff)
		}
	}
	got, err := parse([]string{"-A", " -d  -t 60 ", "-S", "two words", "a b"})
	want := arguments{subject: "two words", words: []string{"-d", "-t", "60", "a b"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(arguments{})); diff != "" || err != nil {
		t.Errorf("-A: %v (-want +got):\n%s", err, diff)
	}
}

// TestLoopWait: runs fall on multiples since midnight, a clock that is set
// makes no two runs of one, and none ever follows at once.
func TestLoopWait(t *testing.T) {
	t.Parallel()
	midnight := time.Date(2026, 3, 7, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return midnight.Add(d) }
	for _, tt := range []struct {
		name  string
		now   time.Time
		last  time.Time
		every time.Duration
		want  time.Duration
	}{
		{"first", at(7 * time.Minute), time.Time{}, 5 * time.Minute, 3 * time.Minute},
		{"first, just before", at(5*time.Minute - time.Second), time.Time{}, 5 * time.Minute, time.Second},
		{"on time", at(10 * time.Minute), at(10 * time.Minute), 5 * time.Minute, 5 * time.Minute},
		{"part of a second late", at(10*time.Minute + 300*time.Millisecond), at(10 * time.Minute), 5 * time.Minute, 5 * time.Minute},
		{"long run", at(14 * time.Minute), at(10 * time.Minute), 5 * time.Minute, time.Minute},
		{"longer than the interval", at(16 * time.Minute), at(10 * time.Minute), 5 * time.Minute, 4 * time.Minute},
		{"clock set back a second since the last run", at(10*time.Minute - time.Second), at(10*time.Minute - time.Second), 5 * time.Minute, 5*time.Minute + time.Second},
		{"clock set back beyond midnight", at(-time.Hour - time.Minute), time.Time{}, 5 * time.Minute, time.Minute},
		{"every second", at(time.Second), at(0), time.Second, time.Second},
		{"more than a day", at(30 * time.Hour), time.Time{}, 48 * time.Hour, 18 * time.Hour},
	} {
		if got := loopWait(tt.now, midnight, tt.last, tt.every); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestReports walks through what a program may write, run after run.
func TestReports(t *testing.T) {
	t.Parallel()
	clock := time.Now()
	state, err := openState(t.TempDir()+"/s", "nhc")
	must(t, err)
	defer state.close()
	w := &wrapper{name: "nhc", host: "n1", state: state, expire: 3600, fudge: 5, now: func() time.Time { return clock }}
	const cleared = "The following nhc errors on n1 have now been CLEARED:\n\n"
	for i, step := range []struct {
		later time.Duration
		out   string
		want  string // "": no report
	}{
		{0, "", ""},
		{0, "bad\n", "bad\n"},
		{0, "bad\n", ""},
		{time.Hour / 2, "bad\n", ""},
		{time.Hour/2 - 5*time.Second, "bad\n", "bad\n"}, // the hour, less the allowance
		{0, "worse\n\n", "worse\n"},
		{-24 * time.Hour, "worse\n\n", "worse\n"}, // the clock was wrong when it was kept
		{24 * time.Hour, "", cleared + "worse\n"}, // in the run in which the report expires
		{0, "bad %s \\n", "bad %s \\n\n"},
		{0, "", cleared + "bad %s \\n\n"},
		{0, "", ""},
		{0, "bad\n", "bad\n"},
		{0, "pass: slow\n", cleared + "bad\n"},
		{0, "", ""},
		{0, "pass: slow\n", ""},
		{0, "", ""},
		{0, "bad\n", "bad\n"},
		{0, "pass: slow\n", cleared + "bad\n"},
		{0, "bad\n", "bad\n"},
		{2 * time.Hour, "pass: slow\n", cleared + "bad\n"},
		{0, "pass: slow\n", ""},
		{0, "bad\n", "bad\n"},
		{0, "pass: bad\n", cleared + "bad\n"},
		{0, "bad\n", "bad\n"},
		{0, "fail: ", ""}, // a crash clears nothing
		{0, "bad\n", ""},
		{0, "fail: ", ""},
		{0, "", cleared + "bad\n"},
		{0, "fail: ", ""},
		{0, "", ""},
	} {
		clock = clock.Add(step.later)
		w.age()
		old, _ := os.Stat(state.path + "/nhc.save")
		how, out, given := strings.Cut(step.out, ": ")
		if !given {
			how, out = "", step.out
		}
		c, changed := w.compare([]byte(out), how == "fail" || how == "" && out != "")
		got := ""
		if changed {
			got = string(c.text())
		}
		if got != step.want {
			t.Errorf("step %d: reported %q, want %q", i, got, step.want)
		}
		if now, err := os.Stat(state.path + "/nhc.save"); err != nil || old == nil || !os.SameFile(old, now) {
			must(t, os.Chtimes(state.path+"/nhc.save", time.Time{}, clock))
		}
	}
}

// The state has no NAME.failed if it could not be written. An unchanged failure is no news then, either.
func TestReportsWithoutFailure(t *testing.T) {
	t.Parallel()
	const cleared = "The following nhc errors on n1 have now been CLEARED:\n\nbad\n"
	for name, tt := range map[string]struct {
		files map[string]string
		outs  []string
		want  []string
	}{
		"a failure":            {map[string]string{"nhc.save": "bad\n"}, []string{"bad\n", "bad\n", ""}, []string{"", "", cleared}},
		"it is cleared":        {map[string]string{"nhc.save": "bad\n"}, []string{"", ""}, []string{cleared, ""}},
		"it changes":           {map[string]string{"nhc.save": "bad\n"}, []string{"worse\n"}, []string{"worse\n"}},
		"a pass":               {map[string]string{"nhc.save": ""}, []string{"", "bad\n"}, []string{"", "bad\n"}},
		"it cannot be written": {map[string]string{"nhc.failed/x": ""}, []string{"bad\n", "bad\n", "bad\n", ""}, []string{"bad\n", "", "", cleared}},
	} {
		dir := t.TempDir() + "/s"
		for file, text := range tt.files {
			must(t, os.MkdirAll(filepath.Dir(dir+"/"+file), 0o700))
			must(t, os.WriteFile(dir+"/"+file, []byte(text), 0o600))
		}
		state, err := openState(dir, "nhc")
		must(t, err)
		defer state.close()
		w := &wrapper{name: "nhc", host: "n1", state: state, now: time.Now}
		for i, out := range tt.outs {
			c, changed := w.compare([]byte(out), out != "")
			got := ""
			if changed {
				got = string(c.text())
			}
			if got != tt.want[i] {
				t.Errorf("%s, run %d: reported %q, want %q", name, i, got, tt.want[i])
			}
		}
	}
}

func TestStateIsLocked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/s"
	one, err := openState(dir, "nhc")
	must(t, err)
	two, err := openState(dir, "nhc")
	must(t, err)
	unlock, err := one.lock()
	must(t, err)
	if _, err := two.lock(); err == nil || !strings.Contains(err.Error(), "another wrapper is running") {
		t.Errorf("second lock: %v", err)
	}
	unlock()
	if _, err := two.lock(); err != nil {
		t.Errorf("after unlock: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
