package open

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// hears counts the changes of settings that a shell reports.
type hears struct {
	Hearer
	changed int
}

func (h *hears) Changed() { h.changed++ }

func TestTrustScripts(t *testing.T) {
	t.Parallel()
	good, bad := wire.FileInfo{Mode: 0o644}, wire.FileInfo{Mode: 0o666}
	script := func(info wire.FileInfo, stock bool) wire.Script {
		return wire.Script{Path: "/s/a.nhc", FileInfo: info, Stock: stock}
	}
	for _, tt := range []struct {
		name    string
		dir     *wire.FileInfo
		scripts []wire.Script
		want    string
	}{
		{"no script", &bad, nil, ""},
		{"LBNL NHC's own, which are not read", &bad, []wire.Script{script(bad, true)}, ""},
		{"one of the site", &good, []wire.Script{script(good, false)}, ""},
		{"an unknown directory", nil, []wire.Script{script(good, false)}, ""},
		{"a directory that others can write", &bad, []wire.Script{script(good, false)}, "read /s: writable by others"},
		{"a script that others can write", &good, []wire.Script{script(good, false), script(bad, false)}, "read /s/a.nhc: writable by others"},
		{"no regular file", &good, []wire.Script{script(wire.FileInfo{Mode: fs.ModeDir | 0o777}, false)}, ""},
	} {
		err := trustScripts("/s", tt.dir, tt.scripts)
		if (err != nil) != (tt.want != "") || err != nil && !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestHardwareOf(t *testing.T) {
	t.Parallel()
	got := hardwareOf(cpu.CPUs{Sockets: 2, Cores: 64, Threads: 128}, probe.Memory{Total: 5, Free: 4, SwapTotal: 3, SwapFree: 1})
	want := map[string]uint64{"HW_SOCKETS": 2, "HW_CORES": 64, "HW_THREADS": 128, "HW_RAM_TOTAL": 5, "HW_RAM_FREE": 4, "HW_SWAP_TOTAL": 3, "HW_SWAP_FREE": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestContext(t *testing.T) {
	t.Parallel()
	for role, want := range map[slurm.Role]string{slurm.HealthCheck: "healthcheck", slurm.Prolog: "prolog", slurm.Epilog: "epilog", slurm.Manual: "manual"} {
		f := filesOf(role, new(said))
		if got := f.Context(); got != want {
			t.Errorf("%s: %q, want %q", role, got, want)
		}
		if f.Whole = true; f.Context() != "" {
			t.Errorf("%s: a plan for every context has the context %q", role, f.Context())
		}
	}
}

// The timeout of a role takes precedence over TIMEOUT, and slurmd's limit over both.
func TestTimeout(t *testing.T) {
	t.Parallel()
	roles := func(name string, d time.Duration) *conf.Config {
		return &conf.Config{Roles: map[string]conf.Role{name: {Budget: d}}}
	}
	for _, tt := range []struct {
		name    string
		role    slurm.Role
		config  *conf.Config
		timeout string
		want    time.Duration
	}{
		{"TIMEOUT", slurm.HealthCheck, nil, "30", 30 * time.Second},
		{"none", slurm.Manual, nil, "0", 0},
		{"slurmd ends the run", slurm.HealthCheck, nil, "600", 50 * time.Second},
		{"of the role", slurm.HealthCheck, roles(conf.HealthCheck, 20*time.Second), "30", 20 * time.Second},
		{"of another role", slurm.HealthCheck, roles(conf.Prolog, 20*time.Second), "30", 30 * time.Second},
	} {
		f := filesOf(tt.role, new(said))
		f.Config, f.Set.Vars["TIMEOUT"] = tt.config, tt.timeout
		if got := f.Timeout(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestOwnRequest(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		role  slurm.Role
		file  string
		given []string
		want  string
		own   bool
	}{
		{name: "a health check", role: slurm.HealthCheck, file: "/etc/nhc/nhc.conf"},
		{name: "a prolog", role: slurm.Prolog, file: "/etc/nhc/nhc.conf", want: "/etc/nhc/nhc-prolog.conf"},
		{name: "an epilog", role: slurm.Epilog, file: "/etc/nhc/nhc.conf", want: "/etc/nhc/nhc-epilog.conf"},
		{name: "the file is named", role: slurm.Prolog, file: "/x", given: []string{"CONFFILE"}, own: true},
		{name: "the file is its own", role: slurm.Prolog, file: "/etc/nhc/nhc-prolog.conf", own: true},
	} {
		f := filesOf(tt.role, new(said))
		f.Set.Vars["CONFFILE"], f.Given = tt.file, tt.given
		q, got := f.OwnRequest(), ""
		if q != nil {
			got = q.Path
		}
		if got != tt.want || f.Own != tt.own {
			t.Errorf("%s: reads %q, own %v; want %q, %v", tt.name, got, f.Own, tt.want, tt.own)
		}
	}
}

func TestTablesFile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ named, want string }{{"", "/etc/nhc/nhc.toml"}, {"/x.toml", "/x.toml"}} {
		f := filesOf(slurm.Manual, new(said))
		f.Set.Vars["CONFDIR"], f.Set.Vars["NAME"], f.Set.Vars["TOMLFILE"] = "/etc/nhc", "nhc", tt.named
		if got := f.TablesFile(); got != tt.want {
			t.Errorf("%s, want %s", got, tt.want)
		}
	}
}

func TestForThisHost(t *testing.T) {
	t.Parallel()
	f := filesOf(slurm.HealthCheck, new(said))
	ours, err := f.ForThisHost([]conf.Entry{{Name: "a", Hosts: "*"}, {Name: "b", Hosts: "other"}, {Name: "c", Hosts: `/(gpu)\1/`}, {Name: "d", Hosts: "gpu01"}})
	var names []string
	for _, e := range ours {
		names = append(names, e.Name)
	}
	if diff := cmp.Diff([]string{"a", "d"}, names); diff != "" || f.Others != 1 || err == nil || !strings.Contains(err.Error(), `hosts = "/(gpu)`) {
		t.Errorf("%d others, %v (-want +got)\n%s", f.Others, err, diff)
	}
}

// -d shows how each target was judged, in LBNL NHC's words.
func TestDebugTarget(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		target  string
		matched bool
		want    string
	}{
		{"gpu*", true, "DEBUG:  Glob match check:  gpu01 matches gpu*"},
		{"x", false, "DEBUG:  Glob match check:  gpu01 does not match x"},
		{"!x", true, "DEBUG:  Glob match check:  gpu01 does not match x"},
		{"/gpu/", true, "DEBUG:  Regexp match check (internal):  gpu01 matches /gpu/"},
		{"!/gpu/", false, "DEBUG:  Regexp match check (internal):  gpu01 matches /gpu/"},
		{"{gpu[01-02]}", true, "DEBUG:  mcheck_range:  Found gpu01 in gpu[01-02]."},
		{"{x}", false, "DEBUG:  mcheck_range:  gpu01 NOT found in x."},
	} {
		out := new(said)
		f := filesOf(slurm.HealthCheck, new(said))
		f.Log.Out, f.Set.Vars["DEBUG"] = out, "1"
		f.debugTarget(conf.Line{Target: tt.target, Check: "check_a"}, tt.matched)
		want := tt.want + "\n"
		if tt.matched {
			want += fmt.Sprintf("DEBUG:  Host match check:  \"gpu01\" matches %q for check:  check_a\n", tt.target)
		}
		if out.String() != want {
			t.Errorf("%s: %q, want %q", tt.target, out, want)
		}
	}
}

// The settings of bash after a line are the settings of the run.
func TestBashSettings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		does    func(*Bash)
		vars    map[string]string // "-": not set
		env     string
		changed int
	}{
		{"nothing changes", func(b *Bash) { b.Settings(map[string]string{"A": "1"}) }, map[string]string{"A": "1"}, "E=1", 0},
		{"a setting", func(b *Bash) { b.Settings(map[string]string{"A": "2", "B": "3"}) }, map[string]string{"A": "2", "B": "3"}, "E=1", 1},
		{"an exported one", func(b *Bash) { b.Environ(map[string]string{"A": "1", "E": "1"}) }, map[string]string{"A": "1"}, "A=1 E=1", 1},
		{"the same environment", func(b *Bash) { b.Environ(map[string]string{"E": "1"}) }, map[string]string{"E": "1"}, "E=1", 0},
		{"bash's own variables", func(b *Bash) { b.Environ(map[string]string{"E": "1", "SHLVL": "2", "PWD": "/x"}) }, map[string]string{"SHLVL": "-", "PWD": "-"}, "E=1", 0},
		{"no longer exported", func(b *Bash) { b.Environ(map[string]string{"E": "1"}); b.Environ(nil) }, map[string]string{"E": "1"}, "", 1},
		{"never reported by bash", func(b *Bash) { b.Environ(nil) }, map[string]string{"E": "1"}, "E=1", 0},
		{"all variables", func(b *Bash) {
			b.Variables([]run.ShellVar{{Name: "A", Value: "5", Export: true}, {Name: "N", Value: "n"}})
		}, map[string]string{"A": "5", "N": "n", "E": "-"}, "A=5", 1},
	} {
		f, h := filesOf(slurm.HealthCheck, new(said)), new(hears)
		f.Bash.hears = h
		f.Set.Vars, f.Set.Export = map[string]string{"A": "1", "E": "1"}, map[string]bool{"E": true}
		tt.does(f.Bash)
		for name, want := range tt.vars {
			got, ok := f.Set.Lookup(name)
			if !ok {
				got = "-"
			}
			if got != want {
				t.Errorf("%s: %s is %q, want %q", tt.name, name, got, want)
			}
		}
		if env := strings.Join(f.Set.Environ(), " "); env != tt.env || h.changed != tt.changed {
			t.Errorf("%s: environment %q, %d changes; want %q, %d", tt.name, env, h.changed, tt.env, tt.changed)
		}
	}
}

func TestLacksCommand(t *testing.T) {
	t.Parallel()
	site := wire.Script{Path: "/s/a.nhc", Functions: []string{"check_mine"}}
	reads := site
	reads.Sources = true
	stock := wire.Script{Stock: true, Functions: []string{"check_stock"}}
	for _, tt := range []struct {
		name    string
		scripts []wire.Script
		broken  bool // no script is read
		newPath bool
		sure    bool
	}{
		{name: "eval"},
		{name: "die"}, // of LBNL NHC
		{name: "check_mine", scripts: []wire.Script{site}},
		{name: "check_mine", scripts: []wire.Script{site}, broken: true, sure: true},
		{name: "check_stock", scripts: []wire.Script{stock}, sure: true},
		{name: "check_other", scripts: []wire.Script{reads}},
		{name: "check_other", scripts: []wire.Script{site}, sure: true},
		{name: "other", newPath: true},
		{name: "check_other", newPath: true, sure: true},
		{name: "other", sure: true},
	} {
		f := filesOf(slurm.HealthCheck, new(said))
		f.Pool, f.Ctx = run.NewPool(run.Options{Root: "/"}), t.Context()
		t.Cleanup(f.Pool.Close)
		f.Set.Vars["PATH"] = t.TempDir()
		f.Bash.Scripts = tt.scripts
		if tt.broken {
			f.Bash.Unloaded = fs.ErrPermission
		}
		known, sure := f.LacksCommand(tt.name, tt.newPath)
		if sure != tt.sure || sure && len(f.Bash.Scripts) > 0 && !tt.broken && !f.Bash.Scripts[0].Stock && !strings.Contains(strings.Join(known, " "), "check_mine") {
			t.Errorf("%+v: sure %v, known %v", tt, sure, known)
		}
	}
}

// slurm.conf limits a prolog and an epilog.
func TestUnderSlurm(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		role slurm.Role
		gpus *jobscan.SlurmGPUs
		want time.Duration
	}{
		{slurm.Prolog, &jobscan.SlurmGPUs{Prolog: 8 * time.Second, Epilog: 20 * time.Second}, 6 * time.Second},
		{slurm.Epilog, &jobscan.SlurmGPUs{Prolog: 8 * time.Second, Epilog: 20 * time.Second}, 18 * time.Second},
		{slurm.Prolog, &jobscan.SlurmGPUs{}, 10 * time.Second},
		{slurm.Prolog, nil, 10 * time.Second},
	} {
		f := filesOf(tt.role, new(said))
		f.Pool, f.Budget.Began, f.Bad = run.NewPool(run.Options{}), time.Now(), fs.ErrInvalid // Slurm is not asked
		f.Set.Slurm = tt.gpus
		f.SetBudget()
		if f.UnderSlurm(); f.Budget.End.Sub(f.Budget.Began) != tt.want {
			t.Errorf("%s with %+v: %s, want %s", tt.role, tt.gpus, f.Budget.End.Sub(f.Budget.Began), tt.want)
		}
	}
}
