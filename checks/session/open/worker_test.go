package open_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session/open"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sessiontest"
	"github.com/nhc-gpu/nhc-gpu/slurm"

	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
)

// hearer ignores the messages of bash, except the end of the run.
type hearer struct {
	*open.Bash
	status int
}

func (h *hearer) Quit(status int)                                      { h.status = status }
func (*hearer) Changed()                                               {}
func (*hearer) Output(int, []byte)                                     {}
func (*hearer) Syslog(string)                                          {}
func (*hearer) Flush()                                                 {}
func (*hearer) Died()                                                  {}
func (*hearer) Forked(int)                                             {}
func (*hearer) Leaving(int) (bool, string, string)                     { return false, "", "" }
func (*hearer) Die(string, string, bool, bool) (helper bool, _ string) { return false, "" }
func (*hearer) Call(string, string, []string) run.NativeReply          { return run.NativeReply{} }
func (*hearer) Match(string, string) run.NativeReply                   { return run.NativeReply{} }

// newFiles returns the files of a node's run. DIR in the files' texts is the node's directory.
func newFiles(t *testing.T, n *sessiontest.Node) (*open.Files, *hearer) {
	t.Helper()
	h := new(hearer)
	h.Bash = open.NewBash(n.Node, "nhc-test", false, -1, h)
	t.Cleanup(h.Close)
	f := open.New(n.Node, h.Bash)
	f.SetBudget()
	return f, h
}

func TestSysconfig(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("#\n", 1<<20-1) + "MODE=observe\n"
	for _, tt := range []struct {
		name, text, usual string // of nhc-test, and of nhc
		mode              os.FileMode
		vars              map[string]string
		err               string
		status            int // of a file that ends the run
	}{
		{name: "no file", vars: map[string]string{"VERBOSE": "0"}},
		{name: "assignments", text: "VERBOSE=1\nexport X=\"a b\"\nunset TIMEOUT\n", vars: map[string]string{"VERBOSE": "1", "X": "a b", "TIMEOUT": ""}},
		{name: "bash", text: "if true; then VERBOSE=1; fi\nX=$(echo a)\nL=(1 2)\n", vars: map[string]string{"VERBOSE": "1", "X": "a"}},
		{name: "it ends the run", text: "if true; then exit 7; fi\n", status: 7},
		{name: "others can write it", text: "VERBOSE=1\n", mode: 0o666, err: "writable by others"},
		{name: "a wrong value", text: "MODE=guess\n", err: "MODE=guess: want enforce or observe"},
		{name: "two settings in one word", text: "NHC_CHECK_ALL=1MODE=observe\n", err: "two settings in one word"},
		{name: "too long", text: long, err: "nhc-test: 2097163 bytes, want at most 2097152"},
		{name: "the usual file is too long", usual: long, err: "nhc: 2097163 bytes, want at most 2097152"},
		{name: "MODE of the usual file", usual: "if true; then\n  MODE=observe\nfi\n", vars: map[string]string{"MODE": "observe"}},
		{name: "a MODE of its own", text: "MODE=enforce\n", usual: "MODE=observe\n", vars: map[string]string{"MODE": "enforce"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := sessiontest.New(t, slurm.HealthCheck)
			if tt.text != "" {
				n.Write(t, "nhc-test", tt.text)
			}
			if tt.usual != "" {
				n.Write(t, "nhc", tt.usual)
			}
			if tt.mode != 0 {
				if err := os.Chmod(n.Dir+"/nhc-test", tt.mode); err != nil {
					t.Fatal(err)
				}
			}
			f, _ := newFiles(t, n)
			err := f.Sysconfig()
			var ended *open.Ended
			if errors.As(err, &ended) != (tt.status != 0) || ended != nil && ended.Status != tt.status {
				t.Errorf("%v, want status %d", err, tt.status)
			}
			if tt.status == 0 && ((err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("%v, want %q", err, tt.err)
			}
			for name, want := range tt.vars {
				if got := n.Set.Get(name); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
		})
	}
}

// Without an answer about the distribution the settings are unknown, unless the command line names
// their directory.
func TestUnknownDistribution(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck)
	dir := n.Set.Get("SYSCONFIGDIR")
	n.Bad = errors.New("no state") // so that this test leaves nothing in /run
	ctx, cancel := context.WithCancel(n.Ctx)
	cancel()
	n.Ctx = ctx
	if err := n.OpenState(""); err != nil {
		t.Fatal(err)
	}
	n.Ctx = t.Context()
	f, _ := newFiles(t, n)
	if err := f.Sysconfig(); err == nil || !strings.Contains(err.Error(), "find the directory of the settings: ") {
		t.Errorf("no answer: %v, want the error of the distribution", err)
	}
	n.Set.Put("SYSCONFIGDIR", dir, true)
	if err := f.Sysconfig(); err != nil {
		t.Errorf("the command line names the directory: %v", err)
	}
}

// The file server of HELPERDIR can be dead: the begin of a run does not look for the helpers.
func TestOpenWithHelperDir(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck, "HELPERDIR=/nonexistent")
	f, _ := newFiles(t, n)
	if errs := f.Open(nil, nil); len(errs) > 0 || n.Set.LostHelper != "" {
		t.Errorf("%v, looked for %q", errs, n.Set.LostHelper)
	}
}

// Open reads all files; one that cannot be used is an error, and one that is not named may be missing.
func TestOpen(t *testing.T) {
	t.Parallel()
	const conf = "* || check_file_test -d /\n"
	for _, tt := range []struct {
		name  string
		role  slurm.Role
		files map[string]string
		words string
		mode  map[string]os.FileMode
		steps string // of the plan
		found string
		err   string
		lines string // the error of nhc.conf
	}{
		{name: "no file"},
		{name: "nhc.conf", files: map[string]string{"nhc-test.conf": conf}, steps: "check_file_test", found: "nhc-test.conf"},
		{name: "a table", files: map[string]string{"nhc-test.conf": conf, "nhc-test.toml": "[[check]]\nname = \"file_test\"\npath = \"/\"\n"}, steps: "check_file_test check_file_test", found: "nhc-test.toml nhc-test.conf"},
		{name: "an unknown policy", files: map[string]string{"nhc-test.toml": "[policy.gppu]\naction = \"warn\"\n"}, err: `policy "gppu": no check and no class has this name: want [policy.gpu]`},
		{name: "a wrong table", files: map[string]string{"nhc-test.toml": "[[check]\n"}, err: "nhc-test.toml:"},
		{name: "a named table that is missing", words: "TOMLFILE=/none/x.toml", err: "read /none/x.toml: no such file"},
		{name: "profiles", files: map[string]string{"profiles.toml": "[[platform]]\nname = \"mine\"\ndevices = [\"abcd\"]\n"}, found: "profiles.toml"},
		{name: "wrong profiles", files: map[string]string{"profiles.toml": "[[platforms]]\n"}, err: "profiles.toml"},
		{name: "named profiles that are missing", words: "PLATFORM_PROFILES=/none/p.toml", err: "read /none/p.toml: no such file"},
		{name: "others can write the table", files: map[string]string{"nhc-test.toml": "[[check]]\nname = \"file_test\"\npath = \"/\"\n"}, mode: map[string]os.FileMode{"nhc-test.toml": 0o666}, err: "writable by others"},
		{name: "others can write nhc.conf", files: map[string]string{"nhc-test.conf": conf}, mode: map[string]os.FileMode{"nhc-test.conf": 0o666}, found: "nhc-test.conf", lines: "writable by others"},
		{name: "a table that is a directory", files: map[string]string{"nhc-test.toml/x": ""}, err: "nhc-test.toml: "},
		{name: "a prolog's own file", role: slurm.Prolog, files: map[string]string{"nhc-test.conf": conf, "nhc-test-prolog.conf": "* || check_ps_cpu 1%\n"}, steps: "check_ps_cpu", found: "nhc-test-prolog.conf"},
		{name: "a prolog without a file of its own", role: slurm.Prolog, files: map[string]string{"nhc-test.conf": conf}, steps: "check_file_test", found: "nhc-test.conf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := sessiontest.New(t, tt.role, strings.Fields(tt.words)...)
			for name, text := range tt.files {
				n.Write(t, name, text)
			}
			for name, mode := range tt.mode {
				if err := os.Chmod(n.Dir+"/"+name, mode); err != nil {
					t.Fatal(err)
				}
			}
			f, _ := newFiles(t, n)
			errs := f.Open(nil, nil)
			if (len(errs) > 0) != (tt.err != "") || len(errs) > 0 && !strings.Contains(errs[0].Error(), tt.err) {
				t.Fatalf("%v, want %q", errs, tt.err)
			}
			if tt.err != "" {
				return
			}
			if got := strings.ReplaceAll(strings.Join(f.Found, " "), n.Dir+"/", ""); got != tt.found {
				t.Errorf("found %q, want %q", got, tt.found)
			}
			if errs = f.ReadLines(); (len(errs) > 0) != (tt.lines != "") || len(errs) > 0 && !strings.Contains(errs[0].Error(), tt.lines) {
				t.Errorf("lines: %v, want %q", errs, tt.lines)
			}
			f.Whole = true
			var steps []string
			for _, s := range f.Build().Steps {
				steps = append(steps, s.Name)
			}
			if got := strings.Join(steps, " "); got != tt.steps {
				t.Errorf("steps %q, want %q", got, tt.steps)
			}
			if f.Reopen() {
				t.Error("the file is read again")
			}
			n.Set.Put("CONFFILE", n.Dir+"/other.conf", true)
			n.Write(t, "other.conf", "* || check_ps_cpu 1%\n* || check_fs_mount_rw /\n")
			if !f.Reopen() || f.Path != n.Dir+"/other.conf" {
				t.Errorf("the file that a script has named is not read: %s", f.Path)
			}
			if file, err := f.MainFile(); err != nil || len(file.Data) == 0 {
				t.Errorf("%q, %v", file.Data, err)
			}
		})
	}
}

// A matcher of the site is a command that bash runs.
func TestExternalMatcher(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck)
	n.Set.Arrays["NHC_MCHECK_DELIM"] = []string{"@@"}
	n.Set.Arrays["NHC_MCHECK_COMMAND"] = []string{"mine %h %m"}
	n.Write(t, "scripts/mine.nhc", "mine() { [[ $2 == *ok* ]]; }\n")
	f, _ := newFiles(t, n)
	if errs := f.Open(nil, nil); len(errs) > 0 {
		t.Fatal(errs)
	}
	errs := f.UseLines("x", []byte("@ok@ || check_a\n@no@ || check_b\n"))
	var got []string
	for _, l := range f.Bash.Vetted {
		got = append(got, l.Check)
	}
	if diff := cmp.Diff([]string{"check_a"}, got); diff != "" || len(errs) > 0 || f.Others != 1 {
		t.Errorf("%v, %d others (-want +got)\n%s; %s", errs, f.Others, diff, n.Err)
	}
}

// LBNL NHC's HW_ variables are set if a line uses them.
func TestPresetHardware(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck, "HW_SOCKETS=9")
	f, _ := newFiles(t, n)
	f.PresetHardware([]byte("* || check_ps_loadavg 1\n"))
	if got, ok := n.Set.Lookup("HW_CORES"); ok {
		t.Errorf("no line uses HW_CORES=%s", got)
	}
	f.PresetHardware([]byte("* || check_x $HW_CORES $HW_SOCKETS $HW_RAM_TOTAL\n"))
	for name, ok := range map[string]bool{"HW_CORES": true, "HW_RAM_TOTAL": true, "HW_THREADS": false} {
		if v := n.Set.Get(name); (v != "" && v != "0") != ok {
			t.Errorf("%s=%s", name, v)
		}
	}
	if got := n.Set.Get("HW_SOCKETS"); got != "9" {
		t.Errorf("HW_SOCKETS=%s, which the site has set to 9", got)
	}
}

// A function of the site can use the variables, too: the line that calls it does not show that.
func TestPresetHardwareForFunctions(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"scripts/load.nhc", "nhc-test"} { // a script, the settings
		n := sessiontest.New(t, slurm.HealthCheck, "HW_SOCKETS=9")
		n.Write(t, file, "check_load() { echo $((100*HW_CORES)); }\n")
		f, _ := newFiles(t, n)
		if err := f.Sysconfig(); err != nil {
			t.Fatal(err)
		}
		if errs := f.Open(nil, nil); len(errs) > 0 {
			t.Fatal(errs)
		}
		f.PresetHardware([]byte("* || check_load\n"))
		if cores, sockets := n.Set.Get("HW_CORES"), n.Set.Get("HW_SOCKETS"); cores == "" || cores == "0" || sockets != "9" {
			t.Errorf("%s: HW_CORES=%s HW_SOCKETS=%s", file, cores, sockets)
		}
	}
}

// A person learns about scripts that bash cannot read.
func TestDoubtScripts(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.Manual)
	n.Write(t, "scripts/good.nhc", "check_good() { :; }\n")
	n.Write(t, "scripts/bad.nhc", "check_bad() {\n")
	f, _ := newFiles(t, n)
	if errs := f.Open(nil, nil); len(errs) > 0 {
		t.Fatal(errs)
	}
	f.DoubtScripts()
	if len(f.Doubts) != 1 || !strings.Contains(f.Doubts[0], "bad.nhc") || !strings.HasSuffix(f.Doubts[0], ": bash does not run this file") {
		t.Errorf("%q", f.Doubts)
	}
}

// Around a job the scripts are read only for the lines of its own file, but what they define counts.
func TestLoadScripts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		role   slurm.Role
		own    bool
		script string
		kind   plan.Kind // of a line with a check that the script defines
		status int
		err    string
	}{
		{name: "a health check", role: slurm.HealthCheck, script: "check_file_test() { :; }", kind: plan.ShellLine},
		{name: "another function", role: slurm.HealthCheck, script: "check_mine() { :; }", kind: plan.Native},
		{name: "the run ends", role: slurm.HealthCheck, script: "exit 4", status: 4, kind: plan.Native},
		{name: "a prolog with its own file", role: slurm.Prolog, own: true, script: "check_file_test() { :; }", kind: plan.ShellLine},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := sessiontest.New(t, tt.role)
			n.Write(t, "scripts/mine.nhc", tt.script+"\n")
			f, h := newFiles(t, n)
			if errs := f.Open(nil, nil); len(errs) > 0 {
				t.Fatal(errs)
			}
			f.Own = tt.own
			if err := f.LoadScripts(); (err != nil) != (tt.err != "") || h.status != tt.status {
				t.Errorf("%v, ends with status %d, want %d", err, h.status, tt.status)
			}
			f.UseLines("x", []byte("* || check_file_test -d /\n"))
			f.Whole = true
			if s := f.Build().Steps; len(s) == 0 || s[0].Kind != tt.kind {
				t.Errorf("steps %+v, want kind %v", s, tt.kind)
			}
		})
	}
	n := sessiontest.New(t, slurm.Prolog)
	n.Write(t, "scripts/mine.nhc", "touch "+n.Dir+"/ran\ncheck_file_test() { :; }\n")
	f, _ := newFiles(t, n)
	f.Open(nil, nil)
	f.Own = false
	if err := f.LoadScripts(); err != nil || !f.Bash.HasScripts() {
		t.Error(err)
	}
	if _, err := os.Stat(n.Dir + "/ran"); err == nil {
		t.Error("a prolog without lines of its own has run a script")
	}
}

// A signal can come before the shell has started. It ends the line, but not the site's helper.
func TestSignalBeforeTheShell(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck)
	n.Script(t, "helper", "touch "+n.Dir+"/helped")
	n.Set.Put("OFFLINE_NODE", n.Dir+"/helper", false)
	wake, woken, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer wake.Close()
	defer woken.Close()
	h := new(hearer)
	h.Bash = open.NewBash(n.Node, "nhc-test", false, int(wake.Fd()), h)
	t.Cleanup(h.Close)
	*n.Sig = sessiontest.Signal(syscall.SIGHUP)
	if _, err := woken.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(20 * time.Second)
	if err = h.Need(end); err == nil {
		_, _, err = h.Line(false, 0, "sleep 60", end)
	}
	if !errors.Is(err, run.ErrInterrupted) {
		t.Errorf("a line: %v, want %v", err, run.ErrInterrupted)
	}
	if err := h.Helper(&run.Failed{Message: "a fault"}, end); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(n.Dir + "/helped"); err != nil {
		t.Error(err)
	}
}
