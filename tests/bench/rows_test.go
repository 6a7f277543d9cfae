package bench

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakecuda"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// A row is a program to measure, with its arguments.
type row struct {
	name string
	argv []string
	env  []string
}

const empty = "an empty configuration"

// rows returns all rows.
func rows(t *testing.T) []row {
	t.Helper()
	run := func(name, conf string, more ...string) row {
		return row{name: name, argv: append(words(t, conf), more...)}
	}
	list := []row{
		{name: yardstick, argv: []string{emptyProgram(t)}},
		run(empty, "* || A=1\n"),
		run("40 lines, 3 of them commands", forty()),
		run("the same, with one line for bash", forty()+"* || true && true\n"),
		run("40 lines, with all outputs but the command", forty(), "TOMLFILE="+outputs(t)),
		run("1000 lines for other nodes", otherNodes(1000)),
	}
	list = append(list, run("all checks of the fabric, 10 adapters", fabricChecks, "HOSTROOT="+fabric(t, fakesys.DGXH200())))
	for _, ports := range []int{1, 8, 64} {
		list = append(list, run(fmt.Sprintf("check_ib_ports and check_ib_errors, ports: %d", ports), "* || check_ib_ports\n* || check_ib_errors\n", "HOSTROOT="+fabric(t, fakesys.Ports(ports))))
	}
	node := gpuNode(t, 8)
	job := []string{"SLURM_JOB_ID=1234", "SLURM_JOB_UID=5001", "SLURM_JOB_USER=alice", "SLURM_JOB_GPUS=2,5", "SLURMD_NODENAME=bench"}
	list = append(list,
		run("one check of 8 GPUs", "* || check_gpu_vbios\n", node...),
		run("all passive checks of 8 GPUs", fmt.Sprintf(gpuChecks, 8), node...))
	for _, role := range []string{"--prolog", "--epilog"} {
		r := run(role[2:]+" of a job with 2 of 8 GPUs", fmt.Sprintf(gpuChecks, 8), node...)
		r.argv, r.env = slices.Insert(r.argv, 1, role), job
		list = append(list, r)
	}
	lib, err := fakecuda.Place(t.TempDir(), fakecuda.Scenario(8))
	if err != nil {
		t.Fatal(err)
	}
	node = append(node, "CUDA_LIBRARY="+lib, "TIMEOUT=120") // an active test does not run without enough time
	return append(list,
		run("check_gpu_launch, 8 GPUs", "* || check_gpu_launch\n", node...),
		run("the same, with a fresh result", "* || check_gpu_launch --max-age 24h\n", node...))
}

// forty returns 40 lines that every Linux machine passes, in the mix of a site's file: 10 about
// files, 11 file systems, 7 hardware, 7 processes, 3 commands, a socket, and one line for another
// node.
func forty() string {
	var b strings.Builder
	add := func(n int, line string) { b.WriteString(strings.Repeat(line+"\n", n)) }
	add(4, "* || check_file_test -f -r /etc/passwd")
	add(2, "* || check_file_test -d -x /")
	add(2, "* || check_file_stat -u 0 /etc/passwd")
	add(2, "* || check_file_contents /etc/passwd '/^root:/'")
	add(6, "* || check_fs_mount -f /proc")
	add(2, "* || check_fs_used / 101%")
	add(2, "* || check_fs_iused / 101%")
	add(1, "* || check_fs_free / 1k")
	add(2, "* || check_hw_cpuinfo")
	add(2, "* || check_hw_physmem 1k 100TB")
	add(1, "* || check_hw_swap_free 0")
	add(2, "* || check_hw_eth lo")
	add(5, "* || check_ps_daemon nhc-gpu-bench")
	add(1, "* || check_ps_loadavg 100000")
	add(1, "* || check_ps_mem 100TB")
	add(2, "* || check_cmd_status -r 0 /bin/true")
	add(1, "* || check_cmd_output -m '/./' /bin/uname")
	add(1, "* || check_net_socket -0 -p tcp -l '*:1'")
	add(1, "nosuchhost || check_hw_gm myri0")
	return b.String()
}

func otherNodes(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s || check_hw_swap_free 1\n", []string{fmt.Sprintf("bench%04d", i), fmt.Sprintf("bench%03d*", i), fmt.Sprintf("{bench[%d-%d]}", i, i+8), fmt.Sprintf("/^bench%d[0-9]$/", i)}[i%4])
	}
	return b.String()
}

// outputs returns an nhc.toml with all outputs but the command.
func outputs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	text := fmt.Sprintf("[output]\njsonl = %q\ntextfile = %q\nautopilot = true\nsyslog = true\njournald = true\n", dir+"/nhc.jsonl", dir+"/nhc.prom")
	if err := os.WriteFile(dir+"/nhc.toml", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir + "/nhc.toml"
}

// daemon starts the process that the lines about processes look for.
func daemon(t *testing.T) {
	t.Helper()
	cmd := exec.Command("sleep", "3600")
	cmd.Args[0] = "nhc-gpu-bench"
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

func words(t *testing.T, conf string) []string {
	t.Helper()
	return []string{program, "-c", confFile(t, conf), "LOGFILE=-", "MARK_OFFLINE=0"}
}

func confFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nhc.conf")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// gpuChecks are all passive checks of GPUs, as in a site's file.
const gpuChecks = `
* || check_gpu_count %d
* || check_gpu_driver
* || check_gpu_recovery
* || check_gpu_ecc 20000000 10000
* || check_gpu_remap
* || check_gpu_persistence
* || check_gpu_mode -m off
* || check_gpu_vbios
* || check_gpu_temp
* || check_gpu_power
* || check_gpu_clocks
* || check_gpu_throttle
* || check_gpu_pcie 5 16
* || check_gpu_nvlink -n 18
* || check_gpu_fabric
* || check_gpu_procs
* || check_gpu_xid
`

// fabricChecks are all passive checks of the fabric that do not need the driver of GPUs.
const fabricChecks = `
* || check_ib_ports
* || check_ib_errors
* || check_ib_link_flapping
* || check_ib_pkey 0xffff
* || check_ib_gid
* || check_ib_firmware
* || check_ib_pcie
* || check_ib_modules
* || check_ib_count
* || check_eth_link
* || check_net_route -d default
* || check_pcie nvme
* || check_pcie_aer
* || check_nvme_count 8
* || check_nvme
* || check_hw_topology
`

// gpuNode creates a node whose fake NVML answers at once. So only the cost of the program counts, not
// that of the driver.
func gpuNode(t *testing.T, gpus int) (settings []string) {
	t.Helper()
	lib, err := fakenvml.Place(t.TempDir(), fakenvml.Scenario(fakenvml.H100, gpus))
	if err != nil {
		t.Fatal(err)
	}
	files := maps.Clone(fakenvml.Files(fakenvml.H100, gpus))
	files["proc/sys/kernel/random/boot_id"] = "11111111-2222-3333-4444-555555555555\n"
	return []string{"NVML_LIBRARY=" + lib, "HOSTROOT=" + tree(t, files)}
}

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	files = maps.Clone(files)
	files["dev/kmsg"] = kernelLog
	if err := fakenvml.Write(root, files); err != nil {
		t.Fatal(err)
	}
	return root
}

func fabric(t *testing.T, node *fakesys.Node) string {
	t.Helper()
	root := t.TempDir()
	node.Files["dev/kmsg"] = kernelLog
	if err := node.Write(root); err != nil {
		t.Fatal(err)
	}
	return root
}

const kernelLog = "6,1,1000000,-;Linux version\n"
