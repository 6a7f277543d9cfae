package slurm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// remedyLog is the output of remedy --dry-run --json.
type remedyLog struct {
	Do, Why, Waits string
	Attempts       []struct {
		Do, Error string
		Done      bool
	}
	Holds []struct{ Code string }
}

// remedies asks the node what it would do now, and what it did.
func (n *Node) remedies() (log remedyLog) {
	n.c.t.Helper()
	out, err := n.Try(cluster.BinDir+"/nhc-gpu", "remedy", "--dry-run", "--json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &log)
	}
	if err != nil {
		n.c.t.Fatalf("%v: %s", err, out)
	}
	return log
}

// logRemedies logs the record and the history of each node if the test fails.
func (c *Cluster) logRemedies() {
	c.t.Cleanup(func() {
		for _, n := range c.Nodes {
			if !c.t.Failed() {
				return
			}
			out, err := n.Try("sh", "-c", cluster.BinDir+"/nhc-gpu remedy --dry-run; "+cluster.BinDir+"/nhc-gpu history | tail -n 20")
			c.t.Logf("%s: %v\n%s", n.Name, err, out)
		}
	})
}

// tried waits until the node has this many attempts whose results are known, and returns the last.
func (n *Node) tried(number int) (do, failed string) {
	n.c.t.Helper()
	var log remedyLog
	n.c.WaitFor(2*soon, "result of the remedy", func() (string, bool) {
		log = n.remedies()
		return log.Why + log.Waits, len(log.Attempts) == number && log.Attempts[number-1].Done
	})
	last := log.Attempts[number-1]
	return last.Do, last.Error
}

// outlivedBoot lets the record of remedies be that of an earlier boot.
func (n *Node) outlivedBoot() {
	n.c.t.Helper()
	n.c.Mkdir("nodes/" + n.Name + "/past/" + n.Name)
	n.c.Write("nodes/"+n.Name+"/past/"+n.Name+"/remedies.json", []byte(`{"version":1,"boot":"an earlier one"}`), 0o600)
}

// program puts a shell script into the node's /etc/nhc/bin, which is first in the PATH of its runs.
func (n *Node) program(name, text string) {
	n.c.t.Helper()
	n.c.Write("nodes/"+n.Name+"/nhc/bin/"+name, []byte("#!/bin/sh\necho \"${0##*/} $*\" >>/etc/nhc/calls\n"+text+"\n"), 0o755)
}

// useOwnPrograms lets the runs of the node use its own programs.
func (n *Node) useOwnPrograms(settings string) {
	n.c.t.Helper()
	n.c.Mkdir("nodes/" + n.Name + "/nhc/bin")
	n.Settings("PATH=/etc/nhc/bin:/usr/sbin:/usr/bin:/sbin:/bin\n" + settings)
}

// calls returns what the programs were called with.
func (n *Node) calls() string {
	data, _ := os.ReadFile(n.path("nhc/calls"))
	return string(data)
}

// A fault reboots the node through Slurm. Once it helps; the second time it does not, and the node is
// held for RMA until a person ends that. A job, a person's drain, a reservation and the mode observe
// prevent a reboot.
func TestRemedyReboot(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := newCluster(t)
	c.conf += "RebootProgram=/etc/nhc/bin/reboot\nResumeTimeout=600\n"
	for _, n := range c.Nodes {
		n.useOwnPrograms("")
		n.program("reboot", "")
		n.outlivedBoot()
		n.write("nhc.toml", "[remedy.boot]\ndo = \"reboot-node\"\ncodes = [\"file.test\"]\n")
	}
	c.up()
	c.logRemedies()
	n, persons, jobs, reserved := c.Nodes[0], c.Nodes[1], c.Nodes[2], c.Nodes[3]
	rebooted := func(n *Node, times int) {
		t.Helper()
		c.WaitFor(2*soon, "reboot", func() (string, bool) { return n.show(), strings.Count(n.calls(), "reboot ") == times })
	}

	c.Update(persons, "State=DRAIN", "Reason=alice: disk")
	c.Exec("scontrol", "create", "reservation", "ReservationName=service", "StartTime=now+30minutes", "Duration=60", "Users=root", "Flags=MAINT", "Nodes="+reserved.Name)
	job := strings.TrimSpace(c.Exec("sbatch", "--parsable", "--nodelist="+jobs.Name, "--output=/dev/null", "--chdir=/", "--wrap=sleep 1000"))
	jobs.WaitState("mix alloc", soon)

	n.Remove("ok")
	rebooted(n, 1)
	for _, other := range []*Node{persons, jobs, reserved} {
		other.Remove("ok")
	}
	n.Create("ok")
	n.reboot()
	n.WaitState("idle", 2*soon)
	if do, failed := n.tried(1); do != "reboot-node" || failed != "" {
		t.Errorf("the first remedy is %q, error %q, want a reboot that helped", do, failed)
	}
	jobs.WaitReason("drng", reason, soon)
	reserved.WaitReason("drain", reason, soon)
	for _, other := range []*Node{persons, jobs, reserved} {
		other.WaitRounds(2)
		if calls := other.calls(); calls != "" {
			t.Errorf("%s: %s", other.Name, calls)
		}
	}
	persons.Must("drain", "alice: disk")
	for other, want := range map[*Node]string{persons: "nhc-gpu does not hold the node", jobs: "the node is not empty: job " + job, reserved: "reservation service"} {
		if log := other.remedies(); log.Do != "reboot-node" || !strings.HasPrefix(log.Waits, want) {
			t.Errorf("%s: %+v, want a reboot that waits: %s", other.Name, log, want)
		}
	}
	for _, other := range []*Node{persons, reserved} {
		other.Create("ok")
	}
	c.Exec("scancel", job) // the node is empty now
	rebooted(jobs, 1)
	c.Update(jobs, "State=RESUME") // a person takes the request back: no other follows
	jobs.WaitReason("drain", reason+" : held for RMA", 2*soon)
	c.Update(jobs, "State=RESUME") // the next drain is held, too
	jobs.WaitReason("drain", reason+" : held for RMA", 2*soon)
	jobs.Create("ok")
	jobs.WaitReason("drain", "NHC: /etc/nhc/ok held for RMA (check_file_test) [remedy.hold]", soon)
	if calls := jobs.calls(); strings.Count(calls, "reboot ") != 1 {
		t.Errorf("calls %q, want one reboot", calls)
	}
	if out, err := jobs.Try(cluster.BinDir+"/nhc-gpu", "clear", "--remedy", "--all"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	jobs.WaitState("idle", soon)

	n.Remove("ok")
	rebooted(n, 2)
	n.reboot()
	const hold = "NHC: /etc/nhc/ok held for RMA: reseat or RMA (check_file_test) [remedy.hold]"
	n.WaitReason("drain", reason+" : held for RMA", 2*soon)
	if do, failed := n.tried(2); do != "reboot-node" || !strings.Contains(failed, "check_file_test") {
		t.Errorf("the second remedy is %q, error %q, want a reboot that did not help", do, failed)
	}
	n.Create("ok")
	n.WaitRounds(3)
	n.WaitReason("drain", hold, soon)
	if calls := n.calls(); strings.Count(calls, "reboot ") != 2 {
		t.Errorf("calls %q, want two reboots", calls)
	}
	if out, err := n.Try(cluster.BinDir+"/nhc-gpu", "clear", "--remedy", "file.test"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.WaitState("idle", soon)
}

// A reboot does not repair the node: no job may start on it after the boot, whatever ReturnToService is.
func TestRemedyRebootKeepsDrain(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for _, returns := range []string{"1", "2"} {
		t.Run("ReturnToService="+returns, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.conf = strings.Replace(c.conf, "ReturnToService=1\n", "ReturnToService="+returns+"\n", 1)
			c.conf += "RebootProgram=/etc/nhc/bin/reboot\nResumeTimeout=600\n"
			plain, verified := c.Nodes[0], c.Nodes[1]
			for n, verify := range map[*Node]string{plain: "", verified: "verify = [\"check_file_test -f /etc/nhc/ok\"]\n"} {
				n.useOwnPrograms("")
				n.program("reboot", "")
				n.outlivedBoot()
				n.write("nhc.toml", "[remedy.boot]\ndo = \"reboot-node\"\ncodes = [\"file.test\"]\nattempts = 1\n"+verify)
			}
			c.up()
			c.logRemedies()
			for _, n := range []*Node{plain, verified} { // one at a time is repaired
				n.Remove("ok")
				c.WaitFor(2*soon, "reboot", func() (string, bool) { return n.show(), strings.Contains(n.calls(), "reboot ") })
				n.reboot()
				if out := n.show(); !strings.Contains(out, "+DRAIN") || !strings.Contains(out, "Reason=NHC:") {
					t.Errorf("after the boot: %s", out)
				}
				job := strings.TrimSpace(c.Exec("sbatch", "--parsable", "--nodelist="+n.Name, "--output=/dev/null", "--chdir=/", "--wrap=true"))
				n.WaitReason("drain", reason+" : held for RMA", 2*soon)
				if out := c.Exec("squeue", "--noheader", "--jobs="+job, "--format=%T"); strings.TrimSpace(out) != "PENDING" {
					t.Errorf("job on %s: %s", n.Name, out)
				}
			}
		})
	}
}

// slurmctld does not get the first request of a reboot. No person has cancelled it: it is a try that has
// failed, and the next one follows.
func TestRemedyRebootUnanswered(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := newCluster(t)
	c.conf += "RebootProgram=/etc/nhc/bin/reboot\nResumeTimeout=600\n"
	n := c.Nodes[0]
	n.useOwnPrograms("")
	n.program("reboot", "")
	n.program("scontrol", `if [ "$1" = reboot ] && [ ! -e /etc/nhc/lost ]; then touch /etc/nhc/lost; sleep 60; fi
PATH=/usr/sbin:/usr/bin:/sbin:/bin; exec scontrol "$@"`)
	n.outlivedBoot()
	n.write("nhc.toml", "[remedy.boot]\ndo = \"reboot-node\"\ncodes = [\"file.test\"]\n")
	c.up()
	c.logRemedies()
	n.Remove("ok")
	if do, failed := n.tried(1); do != "reboot-node" || !strings.Contains(failed, "got no answer") {
		t.Errorf("remedy %q, error %q, want a reboot whose request was lost", do, failed)
	}
	c.WaitFor(2*soon, "reboot", func() (string, bool) { return n.show(), strings.Contains(n.calls(), "\nreboot ") })
	n.Create("ok")
	n.reboot()
	n.WaitState("idle", 2*soon)
	if do, failed := n.tried(2); do != "reboot-node" || failed != "" {
		t.Errorf("remedy %q, error %q, want a reboot that helped", do, failed)
	}
}

// While the record of the tries cannot be written to the disk, nothing begins that can end with a boot.
func TestRemedyNeedsDisk(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := newCluster(t)
	n := c.Nodes[0]
	n.useOwnPrograms("")
	n.program("own", "exit 7")
	n.outlivedBoot()
	n.write("nhc.toml", "[remedy.own]\ndo = \"power-cycle\"\ncodes = [\"file.test\"]\ncommand = [\"/etc/nhc/bin/own\"]\n")
	c.up()
	c.logRemedies()
	mount := func(mode string) {
		t.Helper()
		if out, err := n.Try("mount", "-o", "remount,bind,"+mode, "/var/lib/nhc-gpu"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	mount("ro")
	n.Remove("ok")
	c.WaitFor(2*soon, "refused remedy", func() (string, bool) {
		return n.Log(), strings.Count(c.Syslog()+n.Log(), "remedies.json: read-only file system") > 1
	})
	if calls, log := n.calls(), n.remedies(); calls != "" || len(log.Attempts) > 0 {
		t.Errorf("calls %q, %+v: want no try", calls, log)
	}
	mount("rw")
	if do, failed := n.tried(1); do != "power-cycle" || n.calls() == "" {
		t.Errorf("remedy %q, error %q, calls %q, want a power cycle", do, failed, n.calls())
	}
}

// The reset of a GPU: what uses it is stopped, started again, and its modes are put back. A service is
// restarted, and a program of the site gets the event.
func TestRemedyOnNode(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := newCluster(t)
	gpu, service, program, watched := c.Nodes[0], c.Nodes[1], c.Nodes[2], c.Nodes[3]
	if _, err := fakenvml.Place(gpu.path("nvml"), fakenvml.Scenario(fakenvml.H100, gpusOfNode)); err != nil {
		t.Fatal(err)
	}
	gpu.useOwnPrograms("NVML_LIBRARY=" + cluster.Dir + "/nodes/" + gpu.Name + "/nvml/libnvidia-ml.so.1\n")
	gpu.Conf("* || check_gpu_recovery\n* || check_gpu_xid")
	gpu.write("nhc.toml", "[remedy.reset]\ndo = \"reset-gpu\"\nservices = [\"nvidia-dcgm\", \"off\"]\nverify = [\"check_file_test -f /etc/nhc/ok\"]\n")
	gpu.write("healthy", fakenvml.Scenario(fakenvml.H100, gpusOfNode, "* field 230 error 3"))
	c.Write("kmsg", []byte("4,0,1000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  "+fakenvml.Driver+"\n"), 0o644)
	gpu.program("systemctl", "[ \"$4\" != off ] && [ \"$3\" != off ]")
	gpu.program("nvidia-smi", `case $* in
*=pci.bus_id*) printf '00000000:10:00.0\n00000000:11:00.0\n' ;;
--query*) pm=Enabled limit=500.00
  [ ! -e /etc/nhc/off ] || pm=Disabled
  [ ! -e /etc/nhc/reset ] || limit=700.00
  echo $pm, $limit, Default, Disabled, Disabled; echo some warning >&2 ;;
*"-pm 0") touch /etc/nhc/off ;;
*"-pm 1") rm /etc/nhc/off ;;
--gpu-reset*) touch /etc/nhc/reset; cp /etc/nhc/healthy `+cluster.Dir+`/nodes/`+gpu.Name+`/nvml/nvml.scenario ;;
esac`)
	service.useOwnPrograms("")
	service.write("nhc.toml", "[remedy.sssd]\ndo = \"restart-app\"\ncodes = [\"file.test\"]\nservices = [\"sssd\"]\n")
	service.program("systemctl", "touch /etc/nhc/ok")
	program.useOwnPrograms("")
	program.outlivedBoot()
	program.write("nhc.toml", "[remedy.own]\ndo = \"power-cycle\"\ncodes = [\"file.test\"]\ncommand = [\"/etc/nhc/bin/own\", \"now\"]\n")
	program.program("own", "cat >/etc/nhc/event; exit 7")
	watched.useOwnPrograms("MODE=observe\n")
	watched.write("nhc.toml", "[remedy.sssd]\ndo = \"restart-app\"\ncodes = [\"file.test\"]\nservices = [\"sssd\"]\n")
	watched.program("systemctl", "")
	c.up(func() { c.Exec("cp", cluster.Dir+"/kmsg", "/dev/kmsg") })
	c.logRemedies()

	gpu.GPUs("3 field 230 = 1")
	if do, failed := gpu.tried(1); do != "reset-gpu" || failed != "" {
		t.Errorf("remedy %q, error %q, want a reset that helped", do, failed)
	}
	gpu.WaitState("idle", soon)
	id := fakenvml.Address(3)
	query := "nvidia-smi --query-gpu=persistence_mode,power.limit,compute_mode,accounting.mode,mig.mode.current --format=csv,noheader,nounits -i " + id + "\n"
	want := query + "systemctl is-active --quiet nvidia-dcgm\nsystemctl is-active --quiet off\nsystemctl stop nvidia-dcgm\nnvidia-smi -i " + id + " -pm 0\n" +
		"nvidia-smi --gpu-reset -i " + id + "\n" + query + "nvidia-smi -i " + id + " -pm 1\nnvidia-smi -i " + id + " -pl 500.00\nsystemctl start nvidia-dcgm\n"
	if got := gpu.calls(); got != want {
		t.Errorf("calls\n%s\nwant\n%s", got, want)
	}
	if out, err := gpu.Try(cluster.BinDir+"/nhc-gpu", "history"); err != nil || !strings.Contains(out, "remedy reset-gpu for gpu.recovery.reset of gpu3 0000:13:00.0: begins") || !strings.Contains(out, ": the checks pass") {
		t.Errorf("%v: the history lacks the reset:\n%s", err, out)
	}

	// A driver without recovery actions logs no reset either: the node knows that of the remedy.
	logs := func(n int, text string) {
		gpu.write("kmsg", fmt.Sprintf("4,%d,%d000000,-;%s\n", n, n, text))
		c.Exec("sh", "-c", "cat "+cluster.Dir+"/nodes/"+gpu.Name+"/nhc/kmsg >>/dev/kmsg")
	}
	logs(1, fmt.Sprintf("NVRM: Xid (PCI:%s): 95, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No", strings.TrimSuffix(fakenvml.Address(5), ".0")))
	if do, failed := gpu.tried(2); do != "reset-gpu" || failed != "" {
		t.Errorf("remedy %q, error %q, want a reset that helped", do, failed)
	}
	gpu.WaitState("idle", soon)
	// An error of a switch resets all GPUs. It stays, since this node has no PCI bus with GPUs that could
	// be known to be reset.
	logs(2, "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 35 LTSSM Fault Up")
	if do, failed := gpu.tried(3); do != "reset-gpu" || !strings.Contains(failed, "20034") || !strings.Contains(gpu.calls(), "nvidia-smi --gpu-reset -i 00000000:10:00.0,00000000:11:00.0\n") {
		t.Errorf("remedy %q, error %q, want a reset of all GPUs; calls\n%s", do, failed, gpu.calls())
	}

	service.Remove("ok")
	if do, failed := service.tried(1); do != "restart-app" || failed != "" {
		t.Errorf("remedy %q, error %q, want a restart that helped", do, failed)
	}
	service.WaitState("idle", soon)
	// The fault is gone, but a check that the site names fails.
	service.write("nhc.toml", "[remedy.sssd]\ndo = \"restart-app\"\ncodes = [\"file.test\"]\nservices = [\"sssd\"]\nverify = [\"check_file_test -f /etc/nhc/never\"]\n")
	service.Remove("ok")
	service.WaitReason("drain", "NHC: /etc/nhc/ok held for RMA (check_file_test) [remedy.hold]", 2*soon)
	if _, failed := service.tried(2); !strings.Contains(failed, "check_file_test -f /etc/nhc/never") {
		t.Errorf("the second restart has error %q, want the failed check", failed)
	}
	if out, err := service.Try(cluster.BinDir+"/nhc-gpu", "clear", "--remedy", "--all"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	service.WaitState("idle", soon)

	// A drill carries out the remedy if a person wants that, and ends with it.
	service.write("nhc.toml", "[remedy.named]\ndo = \"restart-app\"\ncodes = [\"net.dns\"]\nservices = [\"named\"]\n")
	calls := service.calls()
	drill := func(options ...string) {
		t.Helper()
		if out, err := service.Try(append([]string{cluster.BinDir + "/nhc-gpu", "drill", "net.dns.server"}, options...)...); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		service.WaitReason("drain", "NHC: [drill] ", soon)
	}
	drill()
	service.WaitRounds(2)
	if log := service.remedies(); log.Do != "restart-app" || log.Waits != "a drill is under way: nothing is done" || service.calls() != calls {
		t.Errorf("in a drill: %+v, calls %q", log, service.calls())
	}
	if out, err := service.Try(cluster.BinDir+"/nhc-gpu", "drill", "--end"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	service.WaitState("idle", soon)
	drill("--remedy")
	if do, failed := service.tried(1); do != "restart-app" || failed != "" || !strings.HasSuffix(service.calls(), "systemctl restart named\n") {
		t.Errorf("remedy %q, error %q, calls %q, want a restart", do, failed, service.calls())
	}
	service.WaitState("idle", soon)

	program.Remove("ok")
	for i := 1; i <= 2; i++ {
		if do, failed := program.tried(i); do != "power-cycle" || !strings.Contains(failed, "exit status 7") {
			t.Errorf("remedy %q, error %q, want a program that failed", do, failed)
		}
	}
	program.WaitReason("drain", reason+" : held for RMA", soon)
	var event struct{ Node string }
	data, err := os.ReadFile(filepath.Join(program.path("nhc"), "event"))
	if err == nil {
		err = json.Unmarshal(data, &event)
	}
	if err != nil || event.Node != program.Name {
		t.Errorf("%v: the program got %q", err, data)
	}

	watched.Remove("ok")
	watched.WaitRounds(3)
	if log := watched.remedies(); log.Waits != "MODE=observe: nothing is done" || watched.calls() != "" {
		t.Errorf("observe: %+v, calls %q", log, watched.calls())
	}
}
