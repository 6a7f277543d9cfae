package open

import (
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// said collects the text of a standard descriptor.
type said struct{ strings.Builder }

func (*said) Until(time.Time) {}

// filesOf returns the files of host gpu01, in a role, without a worker.
func filesOf(role slurm.Role, errs *said) *Files {
	n := &node.Node{
		Role: role, Out: &said{}, Errs: errs, Log: &sink.Log{Out: io.Discard, Err: io.Discard},
		Set: &setting.Settings{Vars: map[string]string{"HOSTNAME": "gpu01", "TIMEOUT": "30", "SILENT": "0"}, Export: map[string]bool{}, Arrays: map[string][]string{}},
	}
	return New(n, NewBash(n, "nhc", false, -1, nil))
}

// slurmd's run stops at the first invalid line. A user's run reports every invalid line, and every
// line that slurmd's run would ignore.
func TestUseLines(t *testing.T) {
	t.Parallel()
	const text = "* || check_a 1\nother* || check_b\n/(gpu)\\\\1/ || check_c\ntrue | false\ngpu0[1] || check_d\n/(/ || check_e\n"
	for _, tt := range []struct {
		name           string
		text           string
		strict         bool
		vetted         []string
		others         int
		errs, doubts   int
		warnings, sure string // what stderr and the first error have in them
	}{
		{name: "lines of this host", text: "* || check_a 1\nother || check_b\n!other || check_c\n", vetted: []string{"check_a 1", "check_c"}, others: 1},
		{name: "slurmd's run", text: text, vetted: []string{"check_a 1"}, others: 1, errs: 1, doubts: 1, warnings: `no "||"`, sure: `nhc.conf:3: target "/(gpu)\\1/"`},
		{name: "for a person", text: text, strict: true, vetted: []string{"check_a 1", "check_d"}, others: 2, errs: 1, doubts: 2, sure: `nhc.conf:3: target "/(gpu)\\1/"`},
	} {
		errs := new(said)
		f := filesOf(slurm.HealthCheck, errs)
		f.Strict = tt.strict
		list := f.UseLines("nhc.conf", []byte(tt.text))
		var got []string
		for _, l := range f.Bash.Vetted {
			got = append(got, l.Check)
		}
		if diff := cmp.Diff(tt.vetted, got); diff != "" || f.Others != tt.others || len(list) != tt.errs || len(f.Doubts) != tt.doubts {
			t.Errorf("%s: %d others, errors %v, doubts %q (-want +got)\n%s", tt.name, f.Others, list, f.Doubts, diff)
		}
		if len(list) > 0 && !strings.Contains(list[0].Error(), tt.sure) {
			t.Errorf("%s: error %v, want %s", tt.name, list[0], tt.sure)
		}
		if (errs.Len() > 0) != (tt.warnings != "") || !strings.Contains(errs.String(), tt.warnings) {
			t.Errorf("%s: warned %q, want %q", tt.name, errs.String(), tt.warnings)
		}
	}
}

// The plan of a context is the same for slurmd and for a user.
func TestBuild(t *testing.T) {
	t.Parallel()
	lines, _, err := conf.Parse("nhc.conf", []byte("* || check_a\n* || export X=1\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		role  slurm.Role
		whole bool
		steps string
	}{
		{slurm.HealthCheck, false, "check_a X"},
		{slurm.Manual, true, "check_a X"},
		{slurm.Prolog, false, "X"},
		{slurm.Epilog, false, "check_job_leftovers X check_job_gpus"},
	} {
		f := filesOf(tt.role, new(said))
		f.Whole, f.Bash.Vetted = tt.whole, lines
		f.Bash.overrides = map[string]bool{"check_a": true}
		var got []string
		for _, s := range f.Build().Steps {
			switch {
			case len(s.Sets) > 0:
				got = append(got, s.Sets[0].Name)
			case s.Name != "":
				got = append(got, s.Name)
			default:
				got = append(got, s.Text)
			}
		}
		if text := strings.Join(got, " "); text != tt.steps {
			t.Errorf("%s: %s, want %s", tt.role, text, tt.steps)
		}
	}
}

func TestTrusted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode fs.FileMode
		uid  uint32
		want string
	}{
		{0o644, 0, ""},
		{0o775, 0, ""},
		{0o666, 0, "writable by others (mode 0666)"},
		{0o644, uint32(os.Geteuid()), ""},
		{0o644, 12345, "owned by uid 12345"},
	} {
		err := Trusted("/etc/nhc/nhc.conf", &wire.FileInfo{Mode: tt.mode, UID: tt.uid})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("mode %o of %d: %v, want %q", tt.mode, tt.uid, err, tt.want)
		}
	}
}
