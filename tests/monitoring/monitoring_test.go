// Package monitoring tests the metrics, the alerts, the dashboards and the plugin of
// node-problem-detector with the programs that use them.
package monitoring

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program)) }

const root = "../.."

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
	for name := range alerts(t) {
		if !strings.Contains(string(tests), "alertname: "+name+"\n        exp_alerts") {
			t.Errorf("no test in which %s fires", name)
		}
	}
}

// alerts returns the expressions of the alerts.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile(root + "/conf/prometheus/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	list := map[string]string{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			list[r.Alert] = r.Expr
		}
	}
	if len(list) < 5 {
		t.Fatalf("only %d alerts", len(list))
	}
	return list
}

// dashboard is the part of a dashboard that tests read.
type dashboard struct {
	UID, Title string
	Templating struct {
		List []struct{ Name, Type string }
	}
	Panels []struct {
		ID      int
		Title   string
		Type    string
		GridPos struct{ X, Y, W, H int }
		Targets []struct {
			Expr       string
			Datasource struct{ UID string }
		}
	}
}

func dashboards(t *testing.T) (list []dashboard) {
	t.Helper()
	files, _ := filepath.Glob(root + "/conf/grafana/*.json")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(data, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		list = append(list, d)
	}
	if len(list) != 2 {
		t.Fatalf("%d dashboards, want 2", len(list))
	}
	return list
}

// The panels of a dashboard have different ids, fit into the grid, and do not overlap.
func TestDashboards(t *testing.T) {
	t.Parallel()
	for _, d := range dashboards(t) {
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

// node runs the program as a node whose textfile is DIR/nhc.prom, and returns the exit status.
func node(t *testing.T, dir, name, lines, output string) int {
	t.Helper()
	for file, text := range map[string]string{
		"nhc.conf": lines, "nhc.toml": "[output]\n" + output, "scontrol": scontrol,
	} {
		if err := built.WriteProgram(filepath.Join(dir, file), []byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, file), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		_ = os.RemoveAll("/run/nhc-gpu/" + name)
		_ = os.RemoveAll("/var/lib/nhc-gpu/" + name)
	})
	cmd := exec.Command(program, "-a", "-D", dir, "LOGFILE=-", "NHC_RM=slurm", "SLURM_SCONTROL="+dir+"/scontrol")
	cmd.Env = append(os.Environ(), "SLURMD_NODENAME="+name)
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "nhc.prom")); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return cmd.ProcessState.ExitCode()
}

// scontrol keeps the state of a node in a file beside it.
const scontrol = `#!/bin/sh
cd "${0%/*}"
read -r state reason 2>/dev/null <state || state=IDLE
case "$*" in
*show*) echo "NodeName=n State=$state ThreadsPerCore=1 ${reason:+Reason=$reason [root@2026-11-21T06:23:00]}" ;;
*State=DRAIN*) echo "IDLE+DRAIN ${4#Reason=}" >state ;;
*update*) echo IDLE >state ;;
esac
`

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

// A real node_exporter reads textfiles, a real Prometheus scrapes them, and each expression of an
// alert and of a panel returns data.
func TestScrape(t *testing.T) {
	tier.All(t)
	t.Parallel()
	need.Program(t, "prometheus")
	need.Program(t, "prometheus-node-exporter")
	need.Root(t, "only root has outputs")
	dir := t.TempDir()
	nodeDir := func(i int) string {
		at := fmt.Sprintf("%s/n%d", dir, i)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		return at
	}
	const (
		good = "* || check_file_test -d /\n"
		bad  = "* || check_file_test -f /nonexistent\n* || check_hw_eth nosuch0\n"
	)
	textfile := func(i int) string { return fmt.Sprintf("textfile = %q\n", nodeDir(i)+"/nhc.prom") }
	name := func(i int) string { return fmt.Sprintf("monitoring-%d", i) }
	if exit := node(t, nodeDir(0), name(0), good, textfile(0)); exit != 0 {
		t.Fatalf("a healthy node: exit status %d", exit)
	}
	for i := 1; i <= 5; i++ {
		if exit := node(t, nodeDir(i), name(i), bad, textfile(i)); exit == 0 {
			t.Fatalf("node %d passes", i)
		}
	}
	// Node 6 is unknown, and an output fails twice; node 7 has a GPU that fails, and its last run was
	// an hour ago.
	for range 2 {
		if exit := node(t, nodeDir(6), name(6), "* || no_such_command\n", textfile(6)+"command = [\"/nonexistent\"]\ncommand_on = \"always\"\n"); exit != 3 {
			t.Fatalf("an unknown node: exit status %d", exit)
		}
	}
	old := time.Now().Add(-time.Hour).Unix()
	stale := regexp.MustCompile(`(?m)^(nhc_gpu_run_timestamp_seconds) .*$`).ReplaceAllString(read(t, nodeDir(1)+"/nhc.prom"), fmt.Sprintf("$1 %d", old))
	stale = strings.Replace(stale, "nhc_gpu_check_result{", "nhc_gpu_check_result{check=\"check_gpu_xid\",code=\"gpu.xid.reset\",device=\"gpu3\"} 2\nnhc_gpu_check_result{", 1)
	if err := os.WriteFile(nodeDir(7)+"/nhc.prom", []byte(stale), 0o644); err != nil {
		t.Fatal(err)
	}

	// Nodes 0 and 1 have node_exporter; the others are served as they are.
	files := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer files.Close()
	config := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nscrape_configs:\n"
	add := func(i int, address, path string) {
		config += fmt.Sprintf("- {job_name: n%d, metrics_path: %s, static_configs: [{targets: [%q]}], relabel_configs: [{target_label: instance, replacement: n%d}]}\n", i, path, address, i)
	}
	for i := range 2 {
		address := freeAddress(t)
		start(t, "prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile", "--collector.textfile.directory="+nodeDir(i), "--web.listen-address="+address)
		add(i, address, "/metrics")
	}
	for i := 2; i <= 7; i++ {
		add(i, strings.TrimPrefix(files.URL, "http://"), fmt.Sprintf("/n%d/nhc.prom", i))
	}
	if err := os.WriteFile(dir+"/prometheus.yml", []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	start(t, "prometheus", "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data", "--web.listen-address="+address)
	p := server("http://" + address)
	p.wait(t, "count(nhc_gpu_verdict) == 8")
	p.wait(t, `node_textfile_scrape_error == 0`)

	// Node 0 flaps. Each verdict is scraped before the next run.
	for i := range 4 {
		lines, want := bad, 2
		if i%2 == 1 {
			lines, want = good, 0
		}
		node(t, nodeDir(0), name(0), lines, textfile(0))
		p.wait(t, fmt.Sprintf(`nhc_gpu_verdict{instance="n0"} == %d`, want))
	}

	exprs := alerts(t)
	for _, d := range dashboards(t) {
		for _, panel := range d.Panels {
			for i, target := range panel.Targets {
				for _, instance := range []string{"n6", "n1", "n0"} { // the instance that has such data
					expr := strings.NewReplacer("$__range", "5m", "[5m:5m]", "[5m:1s]", "$instance", instance).Replace(target.Expr)
					exprs[fmt.Sprintf("%s: %s %d", d.Title, panel.Title, i)] = strings.Replace(expr, "[5m:5m]", "[5m:1s]", 1)
					if p.ask(t, expr) > 0 {
						break
					}
				}
			}
		}
	}
	for what, expr := range exprs {
		if n := p.ask(t, expr); n == 0 {
			t.Errorf("%s: %s returns nothing", what, expr)
		}
	}
	// An alert that always fires, or a panel of one node that shows all, is none.
	for expr, want := range map[string]int{
		exprs["NhcGpuNodeFailing"]: 6, exprs["NhcGpuNodeUnknown"]: 1, exprs["NhcGpuNotRun"]: 1, exprs["NhcGpuOutputFailing"]: 1, exprs["NhcGpuDrainedForADay"]: 6,
		`nhc_gpu_check_result{device="gpu3"} == 2`: 1,
	} {
		if n := p.ask(t, expr); n != want {
			t.Errorf("%s: %d series, want %d", expr, n, want)
		}
	}

	// Each metric in a document exists.
	names := regexp.MustCompile(`\bnhc_gpu_[a-z_]+`)
	for _, file := range []string{"docs/outputs.md", "conf/grafana/fleet.json", "conf/grafana/node.json", "conf/prometheus/alerts.yml", "conf/prometheus/alerts_test.yml"} {
		found := names.FindAllString(read(t, filepath.Join(root, file)), -1)
		slices.Sort(found)
		for _, metric := range slices.Compact(found) {
			if p.ask(t, metric) == 0 && !strings.HasSuffix(metric, "_") {
				t.Errorf("%s: there is no metric %s", file, metric)
			}
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// freeAddress returns an address of this machine that nothing listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start runs a server until the end of the test.
func start(t *testing.T, argv ...string) {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%s", argv[0], read(t, log.Name()))
		}
	})
}

// server is the address of a Prometheus.
type server string

// ask returns the number of series of an expression.
func (s server) ask(t *testing.T, expr string) int {
	t.Helper()
	n, err := s.query(expr)
	if err != nil {
		t.Errorf("%s: %v", expr, err)
	}
	return n
}

func (s server) query(expr string) (int, error) {
	resp, err := http.Get(string(s) + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return 0, err
	}
	if answer.Status != "success" {
		return 0, errors.New(answer.Error)
	}
	return len(answer.Data.Result), nil
}

// wait waits until an expression has a result.
func (s server) wait(t *testing.T, expr string) {
	t.Helper()
	var n int
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if n, err = s.query(expr); err == nil && n > 0 {
			return
		}
	}
	t.Fatalf("%s: %d series, %v", expr, n, err)
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
	if err := json.Unmarshal([]byte(read(t, root+"/conf/npd/nhc-gpu.json")), &config); err != nil {
		t.Fatal(err)
	}
	findings := read(t, root+"/docs/reference/findings.md")
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
	text := fmt.Sprintf("textfile = %q\n", dir+"/nhc.prom")
	for lines, want := range map[string]map[string]int{
		"* || check_file_test -d /\n":  {"NodeHealthProblem": 0, "GPUXidProblem": 0},
		"* || check_file_test -f /x\n": {"NodeHealthProblem": 1, "GPUXidProblem": 0},
	} {
		node(t, dir, "monitoring-npd", lines, text)
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
	node(t, dir, name, "* || check_file_test -f /nonexistent\n", fmt.Sprintf("textfile = %q\n", dir+"/nhc.prom"))
	plugin := "#!/bin/sh\nexport SLURMD_NODENAME=" + name + "\nexec " + program + " \"$@\"\n"
	if err := built.WriteProgram(dir+"/plugin", []byte(plugin)); err != nil {
		t.Fatal(err)
	}
	config := strings.NewReplacer("/usr/sbin/nhc-gpu", dir+"/plugin", `"invoke_interval": "60s"`, `"invoke_interval": "1s"`).Replace(read(t, root+"/conf/npd/nhc-gpu.json"))
	if err := os.WriteFile(dir+"/npd.json", []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	host, port, _ := net.SplitHostPort(address)
	start(t, "node-problem-detector", "--enable-k8s-exporter=false", "--config.custom-plugin-monitor="+dir+"/npd.json", "--prometheus-address="+host, "--prometheus-port="+port, "--port=0")
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
	node(t, dir, name, "* || check_file_test -d /\n", fmt.Sprintf("textfile = %q\n", dir+"/nhc.prom"))
	await(gauge("NodeHealthProblem", "NodeHealthFault", 0))
}
