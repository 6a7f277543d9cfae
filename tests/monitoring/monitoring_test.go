package monitoring

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program)) }

func TestAlerts(t *testing.T) {
	tier.All(t)
	t.Parallel()
	need.Program(t, "promtool")
	for _, argv := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command("promtool", argv...)
		cmd.Dir = root + "/conf/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", argv, err, out)
		}
	}
	// Each alert has a test.
	tests, err := os.ReadFile(root + "/conf/prometheus/alerts_test.yml")
	if err != nil {
		t.Fatal(err)
	}
	for name := range Alerts(t) {
		if !strings.Contains(string(tests), "alertname: "+name+"\n        exp_alerts") {
			t.Errorf("no test in which %s fires", name)
		}
	}
}

// The panels of a dashboard have different ids, fit into the grid, and do not overlap.
func TestDashboards(t *testing.T) {
	t.Parallel()
	for _, d := range Dashboards(t) {
		ids := map[int]bool{}
		for i, p := range d.Panels {
			if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 || p.GridPos.X+p.GridPos.W > 24 {
				t.Errorf("%s: panel %d %q is wrong", d.Title, p.ID, p.Title)
			}
			ids[p.ID] = true
			for _, target := range p.Targets {
				if target.Datasource.UID != "${datasource}" {
					t.Errorf("%s: %s has a fixed data source", d.Title, p.Title)
				}
			}
			for _, q := range d.Panels[:i] {
				a, b := p.GridPos, q.GridPos
				if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
					t.Errorf("%s: %q and %q overlap", d.Title, p.Title, q.Title)
				}
			}
		}
		if d.UID == "" || d.Templating.List[0].Name != "datasource" {
			t.Errorf("%s: no uid or no variable for the data source", d.Title)
		}
	}
}

// node runs the program as a node whose textfile is DIR/nhc.prom.
func node(t *testing.T, dir, name, lines string) {
	t.Helper()
	for file, text := range map[string]string{
		"nhc.conf": lines, "nhc.toml": fmt.Sprintf("[output]\ntextfile = %q\n", dir+"/nhc.prom"),
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		_ = os.RemoveAll("/run/nhc-gpu/" + name)
		_ = os.RemoveAll("/var/lib/nhc-gpu/" + name)
	})
	cmd := exec.Command(program, "-a", "-D", dir, "LOGFILE=-", "MARK_OFFLINE=0", "HOSTNAME="+name)
	cmd.Env = append(os.Environ(), "SLURMD_NODENAME="+name)
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "nhc.prom")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestMetricsHaveTheUsualForm(t *testing.T) {
	tier.All(t)
	t.Parallel()
	need.Program(t, "promtool")
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/nhc.conf", []byte("* || check_file_test -d /\n* || check_file_test -f /nonexistent\n* || false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	metrics, _ := exec.Command(program, "--check", "--format", "prometheus", "-c", dir+"/nhc.conf").Output() // status 2
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = strings.NewReader(string(metrics))
	if out, err := check.CombinedOutput(); err != nil || len(metrics) == 0 {
		t.Errorf("promtool check metrics: %v\n%s\n%s", err, out, metrics)
	}
}

// npd is the part of a configuration of node-problem-detector that tests read.
type npd struct {
	Plugin       string
	PluginConfig struct {
		Timeout         string `json:"timeout"`
		MaxOutputLength int    `json:"max_output_length"`
	}
	Conditions []struct{ Type, Reason, Message string }
	Rules      []struct {
		Type, Condition, Reason, Path, Timeout string
		Args                                   []string
	}
}

// Each rule of node-problem-detector is a command that the program knows, and codes that exist. Its
// answer comes from the last event: 0 healthy, 1 fault, any other status unknown.
func TestNodeProblemDetector(t *testing.T) {
	t.Parallel()
	need.Root(t, "only root can read the last event")
	var config npd
	if err := json.Unmarshal([]byte(Read(t, root+"/conf/npd/nhc-gpu.json")), &config); err != nil {
		t.Fatal(err)
	}
	findings := Read(t, root+"/docs/reference/findings.md")
	dir := t.TempDir()
	run := func(args []string) (int, string) {
		cmd := exec.Command(program, args...)
		cmd.Env = append(os.Environ(), "SLURMD_NODENAME=monitoring-npd")
		out, err := cmd.Output()
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	if len(config.Conditions) != 6 || len(config.Rules) != 6 || config.Plugin != "custom" {
		t.Fatalf("%+v", config)
	}
	for _, rule := range config.Rules {
		if status, out := run(rule.Args); status != 3 {
			t.Errorf("%s without an event: exit status %d, %q, want 3", rule.Condition, status, out)
		}
		if limit, err := time.ParseDuration(rule.Timeout); err != nil || limit < 20*time.Second {
			t.Errorf("%s: timeout %s, want 20s", rule.Condition, rule.Timeout)
		}
		if !slices.ContainsFunc(config.Conditions, func(c struct{ Type, Reason, Message string }) bool { return c.Type == rule.Condition }) {
			t.Errorf("there is no condition %s", rule.Condition)
		}
		at := slices.Index(rule.Args, "--code")
		if at < 0 {
			continue
		}
		for prefix := range strings.SplitSeq(rule.Args[at+1], ",") {
			if !strings.Contains(findings, "| `"+prefix) {
				t.Errorf("%s: no code begins with %s", rule.Condition, prefix)
			}
		}
	}
	for lines, want := range map[string]map[string]int{
		"* || check_file_test -d /\n":  {"NodeHealthProblem": 0, "GPUXidProblem": 0},
		"* || check_file_test -f /x\n": {"NodeHealthProblem": 1, "GPUXidProblem": 0},
	} {
		node(t, dir, "monitoring-npd", lines)
		for _, rule := range config.Rules {
			status, out := run(rule.Args)
			if n, ok := want[rule.Condition]; ok && n != status || len(out) > config.PluginConfig.MaxOutputLength+1 || strings.Count(out, "\n") != 1 {
				t.Errorf("%s: exit status %s, %q", rule.Condition, strconv.Itoa(status), out)
			}
		}
	}
}

// node-problem-detector itself runs the rules and reports the conditions. Its program is built from
// k8s.io/node-problem-detector with the tag disable_system_log_monitor.
func TestProgramOfNodeProblemDetector(t *testing.T) {
	tier.All(t)
	t.Parallel()
	if _, err := exec.LookPath("node-problem-detector"); err != nil {
		t.Skip("no node-problem-detector, which Debian does not have")
	}
	need.Root(t, "only root can read the last event")
	dir := t.TempDir()
	const name = "monitoring-detector"
	node(t, dir, name, "* || check_file_test -f /nonexistent\n")
	plugin := "#!/bin/sh\nexport SLURMD_NODENAME=" + name + "\nexec " + program + " \"$@\"\n"
	if err := built.WriteProgram(dir+"/plugin", []byte(plugin)); err != nil {
		t.Fatal(err)
	}
	config := strings.NewReplacer("/usr/sbin/nhc-gpu", dir+"/plugin", `"invoke_interval": "60s"`, `"invoke_interval": "1s"`).Replace(Read(t, root+"/conf/npd/nhc-gpu.json"))
	if err := os.WriteFile(dir+"/npd.json", []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	address := FreeAddress(t)
	host, port, _ := net.SplitHostPort(address)
	Start(t, "node-problem-detector", "--enable-k8s-exporter=false", "--config.custom-plugin-monitor="+dir+"/npd.json", "--prometheus-address="+host, "--prometheus-port="+port, "--port=0")
	gauge := func(condition, reason string, value int) string {
		return fmt.Sprintf("problem_gauge{reason=%q,type=%q} %d\n", reason, condition, value)
	}
	await := func(want ...string) {
		t.Helper()
		got := ""
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			resp, err := http.Get("http://" + address + "/metrics")
			if err != nil {
				continue
			}
			data, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			got = string(data)
			if !slices.ContainsFunc(want, func(w string) bool { return !strings.Contains(got, w) }) {
				return
			}
		}
		t.Fatalf("want %q in\n%s", want, got)
	}
	await(gauge("NodeHealthProblem", "NodeHealthFault", 1), gauge("GPUXidProblem", "GPUXid", 0))
	node(t, dir, name, "* || check_file_test -d /\n")
	await(gauge("NodeHealthProblem", "NodeHealthFault", 0))
}
