package slurm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/monitoring"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// A real node_exporter on each node reads its textfile, a real Prometheus scrapes them, and each
// expression of an alert and of a panel returns data.
func TestMetrics(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for _, program := range []string{"prometheus", "prometheus-node-exporter", "gcc"} {
		need.Program(t, program)
	}
	c := newCluster(t)
	c.addNodes(4) // the alert about many nodes wants five with one code
	output := func(n *Node, more string) {
		n.write("nhc.toml", "[guard]\nenabled = false\n[output]\ntextfile = \"/var/log/nhc.prom\"\n"+more)
	} // five nodes shall drain for one fault
	for _, n := range c.Nodes {
		output(n, "")
	}
	flapping, failing, unknown, stopped := c.Nodes[0], c.Nodes[1:6], c.Nodes[6], c.Nodes[7]
	gpu := failing[0]
	if _, err := fakenvml.Place(gpu.path("nvml"), fakenvml.Scenario(fakenvml.H100, 4, "3 field 230 = 1")); err != nil {
		t.Fatal(err)
	}
	c.up()
	gpu.Settings("NHC_CHECK_ALL=1\nNVML_LIBRARY=" + cluster.Dir + "/nodes/" + gpu.Name + "/nvml/libnvidia-ml.so.1\n")
	gpu.Conf(defaultConf, "* || check_gpu_recovery")
	for _, n := range failing {
		n.Remove("ok")
		n.WaitState("drain", soon)
	}
	// A person accepts the fault of the last node.
	stopped.Remove("ok")
	stopped.WaitState("drain", soon)
	stopped.WaitRounds(1) // the drain comes before the event
	if out, err := stopped.Try("/run/bin/nhc-gpu", "silence", "file.test", "--until", "+1d", "--by", "alice", "--why", "4711"); err != nil {
		t.Fatal(out, err)
	}
	stopped.WaitState("idle", soon)
	output(unknown, "command = [\"/nonexistent\"]\ncommand_on = \"always\"\n")
	unknown.Conf("* || no_such_command")

	dir := t.TempDir()
	config := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nscrape_configs:\n"
	for _, n := range c.Nodes {
		address := monitoring.FreeAddress(t)
		monitoring.Start(t, "prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile", "--collector.textfile.directory="+n.path("log"), "--web.listen-address="+address)
		config += fmt.Sprintf("- {job_name: %s, static_configs: [{targets: [%q]}], relabel_configs: [{target_label: instance, replacement: %s}]}\n", n.Name, address, n.Name)
	}
	if err := os.WriteFile(dir+"/prometheus.yml", []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	address := monitoring.FreeAddress(t)
	monitoring.Start(t, "prometheus", "--config.file="+dir+"/prometheus.yml", "--storage.tsdb.path="+dir+"/data", "--web.listen-address="+address)
	p := monitoring.Server("http://" + address)
	p.Wait(t, "count(nhc_gpu_verdict) == 8")
	p.Wait(t, "count(node_textfile_scrape_error == 0) == 8")

	for range 2 {
		flapping.Remove("ok")
		p.Wait(t, `nhc_gpu_verdict{instance="gpu01"} == 2 and on() nhc_gpu_drained{instance="gpu01", owner="nhc"} == 1`)
		flapping.Create("ok")
		p.Wait(t, `nhc_gpu_verdict{instance="gpu01"} == 0`)
	}
	// slurmd of the last node ends, which delays the health checks of the others. Its last run was an
	// hour ago. The guard held its drain, and a drill was under way: TestGuard and TestDrill show both.
	c.Exec("sh", "-c", "kill -TERM $(cat "+cluster.Dir+"/run/slurmd."+stopped.Name+".pid)")
	<-stopped.slurmd.Ended
	old := regexp.MustCompile(`(?m)^(nhc_gpu_run_timestamp_seconds) .*$`).ReplaceAllString(monitoring.Read(t, stopped.path("log/nhc.prom")), fmt.Sprintf("$1 %d", time.Now().Add(-time.Hour).Unix()))
	old = regexp.MustCompile(`(?m)^(nhc_gpu_held_by_guard|nhc_gpu_drill_active) 0$`).ReplaceAllString(old, "$1 1")
	if err := os.WriteFile(stopped.path("log/nhc.prom"), []byte(old), 0o644); err != nil {
		t.Fatal(err)
	}
	p.Wait(t, "time() - nhc_gpu_run_timestamp_seconds > 900")
	p.Wait(t, "nhc_gpu_output_failures == 1")

	exprs := monitoring.Alerts(t)
	for _, d := range monitoring.Dashboards(t) {
		for _, panel := range d.Panels {
			for i, target := range panel.Targets {
				for _, n := range []*Node{unknown, gpu, flapping} { // the instance that has such data
					expr := strings.NewReplacer("$__range", "5m", "$instance", n.Name).Replace(target.Expr)
					expr = strings.Replace(expr, "[5m:5m]", "[5m:1s]", 1)
					exprs[fmt.Sprintf("%s: %s %d", d.Title, panel.Title, i)] = expr
					if p.Ask(t, expr) > 0 {
						break
					}
				}
			}
		}
	}
	for what, expr := range exprs {
		if n := p.Ask(t, expr); n == 0 {
			t.Errorf("%s: %s returns nothing", what, expr)
		}
	}
	// An alert that always fires is none.
	for expr, want := range map[string]int{
		exprs["NhcGpuNodeFailing"]: 5, exprs["NhcGpuNodeUnknown"]: 1, exprs["NhcGpuNotRun"]: 1, exprs["NhcGpuOutputFailing"]: 1, exprs["NhcGpuDrainedForADay"]: 5, exprs["NhcGpuManyNodes"]: 1, exprs["NhcGpuHeldByGuard"]: 1, exprs["NhcGpuDrill"]: 1,
		`nhc_gpu_check_result{instance="gpu02", device="gpu3", code="gpu.recovery.reset"} == 2`: 1,
	} {
		if n := p.Ask(t, expr); n != want {
			t.Errorf("%s: %d series, want %d", expr, n, want)
		}
	}

	// Each metric in a document exists.
	names := regexp.MustCompile(`\bnhc_gpu_[a-z_]+`)
	for _, file := range []string{"docs/outputs.md", "conf/grafana/fleet.json", "conf/grafana/node.json", "conf/prometheus/alerts.yml", "conf/prometheus/alerts_test.yml"} {
		found := names.FindAllString(monitoring.Read(t, filepath.Join("../..", file)), -1)
		slices.Sort(found)
		for _, metric := range slices.Compact(found) {
			if p.Ask(t, metric) == 0 && !strings.HasSuffix(metric, "_") {
				t.Errorf("%s: there is no metric %s", file, metric)
			}
		}
	}
}
