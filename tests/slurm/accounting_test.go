package slurm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// addAccounting gives a cluster that is not started yet slurmdbd and its database.
func (c *Cluster) addAccounting() {
	c.t.Helper()
	if c.Root != "/" {
		c.t.Skipf("%s has no slurmdbd", c.Root)
	}
	for _, program := range []string{"slurmdbd", "mariadbd", "mysql_install_db"} {
		need.Program(c.t, program)
	}
	c.conf += `
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=6819
AccountingStoragePass=/run/munge/munge.socket
`
	c.Write("etc/slurmdbd.conf", []byte(`AuthType=auth/munge
AuthInfo=socket=/run/munge/munge.socket
DbdHost=localhost
DbdPort=6819
SlurmUser=root
LogFile=/run/cluster/log/slurmdbd.log
PidFile=/run/cluster/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
`), 0o600)
	c.beforeCtld = append(c.beforeCtld, c.startAccounting)
}

func (c *Cluster) startAccounting() {
	c.t.Helper()
	const data, socket = "/run/database", "/run/mysqld/mysqld.sock" // where slurmdbd expects it
	c.Exec("mkdir", data, filepath.Dir(socket))
	c.Exec("mysql_install_db", "--no-defaults", "--user=root", "--auth-root-authentication-method=normal", "--skip-test-db", "--datadir="+data)
	database := c.Daemon("mariadbd", "mariadbd", "--no-defaults", "--user=root", "--datadir="+data, "--socket="+socket, "--skip-networking",
		"--innodb-buffer-pool-size=64M", "--innodb-log-file-size=8M", "--innodb-flush-log-at-trx-commit=0")
	c.WaitFor(60*time.Second, "mariadbd", func() (string, bool) {
		c.MustRun(database)
		_, err := os.Stat(c.Inside(socket))
		return "no socket", err == nil
	})
	slurmdbd := c.Daemon("slurmdbd", "slurmdbd", "-D")
	c.WaitFor(60*time.Second, "slurmdbd", func() (string, bool) {
		c.MustRun(slurmdbd)
		out, err := c.Try("sacctmgr", "-i", "add", "cluster", "nhctest")
		return out, err == nil
	})
}

// A fleetEvent is an event of history --fleet, without its times.
type fleetEvent struct{ Node, State, User, Reason, Code, Device string }

// status and history --fleet on a real Slurm with its accounting, for an ordinary user, whose
// environment changes what Slurm's commands print.
func TestFleet(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := newGPUCluster(t, "HealthCheckInterval=2")
	c.addAccounting()
	c.partitions = "PartitionName=main Nodes=gpu[01,02,04] Default=YES State=UP\nPartitionName=quiet Nodes=gpu[03,04] Hidden=YES State=UP\n"
	c.up(c.startSyslog)
	fleet := func(args ...string) string {
		t.Helper()
		user := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "SLURM_TIME_FORMAT=relative", "SINFO_STATE=idle", "/run/bin/nhc-gpu"}
		return c.Exec(append(user, args...)...)
	}
	if got := fleet("status", "--fleet"); got != "4 nodes: 0 drained by nhc-gpu, 0 out of service for another reason\n" {
		t.Errorf("status --fleet of healthy nodes:\n%s", got)
	}

	const lost = "NHC: gpu3 lost 0000:13:00.0: reboot (check_gpu_count) [gpu.recovery.lost]"
	const pipe = "NHC: site: disk | fan"
	began := time.Now().Truncate(time.Second)
	c.Nodes[0].GPUs("3 * error 15")
	c.Nodes[1].GPUs("5 field 230 = 1")
	c.Nodes[2].Conf("* || die 1 'site: disk | fan'")
	for i, reason := range []string{lost, wantsReset(5), pipe} {
		c.Nodes[i].WaitReason("drain", reason, soon)
	}
	c.Update(c.Nodes[3], "State=DRAIN", "Reason=fan | row 7")
	c.Nodes[3].WaitReason("drain", "fan | row 7", soon)

	want := regexp.MustCompile(`(?s)^4 nodes: 3 drained by nhc-gpu, 1 out of service for another reason
.*
    1  gpu\.recovery\.lost  since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d
       nodes    gpu01
       devices  gpu3 on 1
       do       The GPU has fallen off the bus`)
	if got := fleet("status", "--fleet"); !want.MatchString(got) || !strings.Contains(got, "    1  "+pipe+"  since 2") || !strings.Contains(got, "    1  fan | row 7  since 2") {
		t.Errorf("status --fleet:\n%s", got)
	}
	var groups []struct {
		Owner, Code, Reason, Since string
		Nodes                      []string
		Devices                    map[string]int
	}
	if err := json.Unmarshal([]byte(fleet("status", "--fleet", "--format", "json")), &groups); err != nil || len(groups) != 4 {
		t.Errorf("status --fleet --format json: %v, %+v", err, groups)
	}
	for _, g := range groups {
		if since, err := time.ParseInLocation("2006-01-02T15:04:05", g.Since, time.Local); err != nil || since.Before(began) ||
			g.Code == "gpu.recovery.reset" && (g.Owner != "nhc" || g.Nodes[0] != "gpu02" || g.Devices["gpu5"] != 1) {
			t.Errorf("status --fleet --format json: %v, %+v", err, g)
		}
	}

	// Another fault of gpu02 changes the reason; all are repaired.
	c.Nodes[1].GPUs("3 * error 15")
	c.Nodes[1].WaitReason("drain", lost, soon)
	c.Nodes[0].GPUs()
	c.Nodes[1].GPUs()
	c.Nodes[2].Conf(gpuLines)
	for _, n := range c.Nodes[:3] {
		n.WaitState("idle", soon)
	}
	rows := []fleetEvent{
		{"gpu01", "DRAIN", "root(0)", lost, "gpu.recovery.lost", "gpu3"},
		{"gpu02", "DRAIN", "root(0)", wantsReset(5), "gpu.recovery.reset", "gpu5"},
		{"gpu02", "DRAIN", "root(0)", lost, "gpu.recovery.lost", "gpu3"},
		{"gpu03", "DRAIN", "root(0)", pipe, "", ""},
		{"gpu04", "DRAIN", "root(0)", "fan | row 7", "", ""},
	}
	history := func(args ...string) (list []fleetEvent) {
		t.Helper()
		for line := range strings.Lines(fleet(append([]string{"history", "--fleet", "--json"}, args...)...)) {
			var e struct {
				fleetEvent
				Start, End time.Time
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if open := e.Node == "gpu04"; e.Start.Before(began) || e.Start.After(time.Now()) || e.End.IsZero() != open || !open && e.End.Before(e.Start) || open == strings.Contains(line, `"end"`) {
				t.Errorf("times of %s", line)
			}
			list = append(list, e.fleetEvent)
		}
		return list
	}
	byNode := func(a, b fleetEvent) int { return strings.Compare(a.Node, b.Node) }
	c.WaitFor(soon, "rows in the accounting", func() (string, bool) { // slurmctld sends them later
		got := history()
		slices.SortStableFunc(got, byNode)
		diff := cmp.Diff(rows, got)
		return diff, diff == ""
	})
	if got := history("--since", "1h", "--code", "gpu.recovery.l"); len(got) != 2 {
		t.Errorf("history --fleet --code: %+v", got)
	}
	text := fleet("history", "--fleet")
	for _, row := range rows {
		line := fmt.Sprintf(`(?m)^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  %-12s DRAIN    for \d+ s(, still)? +root\(0\)      %s$`, row.Node, regexp.QuoteMeta(row.Reason))
		if !regexp.MustCompile(line).MatchString(text) {
			t.Errorf("history --fleet has no %s:\n%s", line, text)
		}
	}
	if n := strings.Count(text, "\n"); n != len(rows) {
		t.Errorf("history --fleet has %d lines:\n%s", n, text)
	}
}
