package checktest

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"

	stdcmp "cmp"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// prepare creates the scenario's node, and the line's arguments and environment on it.
func (s Scenario) prepare(t *testing.T, name string) (root string, words []string, env *checks.Env) {
	t.Helper()
	root = s.Build(t)
	words = make([]string, len(s.Words))
	for i, w := range s.Words {
		words[i] = strings.ReplaceAll(w, "{root}", root)
	}
	vars := map[string]string{}
	for k, v := range s.Vars {
		vars[k] = strings.ReplaceAll(v, "{root}", root)
	}
	if s.Libraries != nil {
		maps.Copy(vars, s.Libraries(t, t.TempDir()))
	}
	env = &checks.Env{
		Host:    probe.NewHost(root),
		Line:    strings.Join(append([]string{name}, words...), " "),
		Timeout: s.timeout,
		Vars:    vars,
		Doing:   func(string) {},
		Slurm:   s.Slurm,
		Part:    s.Part,
	}
	if s.Live {
		env.Host = probe.NewHost("/")
	}
	probe.SetLibraries(env.Host, vars)
	if s.dcgm != nil {
		s.dcgm(env.Host)
	}
	env.Job = s.Job.On(s.NVML)
	if s.Node != "" {
		s.Past = stdcmp.Or(s.Past, "/past")
	}
	if s.NVML != nil || s.NVMLErr != nil {
		n := s.NVML
		if n != nil { // a check can change a setting
			own := *n
			own.GPUs = slices.Clone(n.GPUs)
			n = &own
		}
		nvml.Set(env.Host, n, s.NVMLErr)
		s.Past = stdcmp.Or(s.Past, "/past")
	}
	if s.Platform != nil {
		env.Platform = func(string, string, int) *checks.Platform { return s.Platform }
	}
	env.Host.SetPast(s.Past)
	env.Host.SetState(filepath.Join(root, "state"))
	return root, words, env
}

// Run runs the check and compares its findings.
func (s Scenario) Run(t *testing.T, name string) {
	t.Helper()
	root, words, env := s.prepare(t, name)
	got := s.WithoutRates(s.bindAndRun(t, name, words, env))
	for i := range got {
		for _, text := range []*string{&got[i].Message, &got[i].Device.Name, &got[i].Want, &got[i].Got} {
			*text = strings.ReplaceAll(*text, root, "{root}")
		}
	}
	for i := range min(len(got), len(s.Want)) {
		if s.Want[i].Do == "" { // only some scenarios are about the advice
			got[i].Do = ""
		}
	}
	if diff := cmp.Diff(s.Want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", env.Line, diff)
	}
	for file, want := range s.Leaves {
		AwaitContent(t, filepath.Join(root, file), strings.ReplaceAll(want, "{root}", root))
	}
}

// WithoutRates drops the measured values of an active test, unless the scenario expects
// some.
func (s Scenario) WithoutRates(got []checks.Finding) []checks.Finding {
	isRate := func(f checks.Finding) bool { return f.Severity == checks.OK && strings.HasSuffix(f.Code, ".rates") }
	if slices.ContainsFunc(s.Want, isRate) {
		return got
	}
	if got = slices.DeleteFunc(got, isRate); len(got) == 0 {
		return nil
	}
	return got
}

// bindAndRun binds and runs a line as a plan does.
func (s Scenario) bindAndRun(t *testing.T, name string, words []string, env *checks.Env) []checks.Finding {
	t.Helper()
	info, ok := checks.Lookup(name)
	if !ok {
		t.Fatalf("no check %s", name)
	}
	c := info.New()
	if err := checks.Bind(c, words); err != nil {
		usage, ok := errors.AsType[*checks.UsageError](err)
		if !ok || info.BadUsage == nil {
			t.Fatalf("Bind: %v", err)
		}
		return []checks.Finding{info.BadUsage(env.Line, usage)}
	}
	if s.Table != nil {
		same := info.New()
		if err := checks.BindTable(same, asSent(t, s.Table)); err != nil {
			t.Fatalf("BindTable: %v", err)
		}
		everything := cmp.Exporter(func(reflect.Type) bool { return true })
		if diff := cmp.Diff(c, same, everything); diff != "" {
			t.Errorf("the table binds another check (-words +table):\n%s", diff)
		}
	}
	if acts := info.Acts != nil && info.Acts(c); acts != s.Acts {
		t.Errorf("%s: acts %v, want %v", env.Line, acts, s.Acts)
	}
	return checks.Look(t.Context(), env, name, c)
}

// asSent returns a table as a worker receives it: JSON has one kind of number.
func asSent(t *testing.T, table map[string]any) (sent map[string]any) {
	t.Helper()
	data, err := json.Marshal(table)
	if err == nil {
		err = json.Unmarshal(data, &sent)
	}
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

// AwaitContent waits for the output of an action in the background.
func AwaitContent(t *testing.T, path, want string) {
	t.Helper()
	if want == "" {
		time.Sleep(50 * time.Millisecond)
		if data, err := os.ReadFile(path); err == nil {
			t.Errorf("%s: %q, want no such file", path, data)
		}
		return
	}
	var data []byte
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if data, _ = os.ReadFile(path); string(data) == want {
			return
		}
	}
	t.Errorf("%s: %q, want %q", path, data, want)
}
