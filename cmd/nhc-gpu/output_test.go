package main

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// dgxNode writes a DGX H100 below a directory. A faulty one has lost gpu3, has ECC off on
// the others, a port without a link, and an adapter with half its PCIe lanes.
func dgxNode(t *testing.T, dir string, faulty bool) {
	t.Helper()
	var lines []string
	n := fakesys.DGXH100()
	n.Files["dev/kmsg"] = "6,1,1000000,-;Linux version\n"
	for i := range 8 {
		lines = append(lines, fmt.Sprintf("%d nvmlDeviceGetTemperature 0 = %d", i, 54+i))
		if faulty && i != 3 {
			lines = append(lines, fmt.Sprintf("%d nvmlDeviceGetEccMode = 0 0", i))
		}
	}
	if faulty {
		lines = append(lines, "3 * error 15")
		n.Down("mlx5_3").HalfWidth(fakesys.HCAAddress(5))
	}
	for file, content := range fakenvml.Files(fakenvml.H100, 8) {
		if _, has := n.Files[file]; !has && !strings.HasPrefix(file, "sys/") {
			n.Files[file] = content
		}
	}
	maps.Copy(n.Files, map[string]string{
		"etc/os-release": "PRETTY_NAME=\"Rocky Linux 9.6 (Blue Onyx)\"\n", "proc/sys/kernel/osrelease": "5.14.0-570.el9.x86_64\n",
		"proc/meminfo": "MemTotal: 2113341440 kB\nMemFree: 2050000000 kB\nMemAvailable: 2060000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
		"proc/mounts":  "/dev/nvme0n1p2 / xfs rw,relatime 0 0\n", "tmp/keep": "", "etc/slurm/slurm.conf": "ClusterName=c\nNodeName=gpu017 Gres=gpu:8\n",
	})
	var cpus, nets strings.Builder
	for i := range 192 {
		fmt.Fprintf(&cpus, "processor : %d\nphysical id : %d\ncore id : %d\ncpu cores : 48\nsiblings : 96\n\n", i, i/96, i%48)
	}
	nets.WriteString("Inter-|   Receive\n face |bytes\n")
	for name := range strings.FieldsSeq("lo eth0 ib0 ib1 ib2 ib3 ib4 ib5 ib6 ib7") {
		fmt.Fprintf(&nets, "%s: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n", name)
	}
	n.Files["proc/cpuinfo"], n.Files["proc/net/dev"] = cpus.String(), nets.String()
	if _, err := fakenvml.Place(dir, fakenvml.Scenario(fakenvml.H100, 8, lines...)); err != nil {
		t.Fatal(err)
	}
	if err := n.Write(filepath.Join(dir, "root")); err != nil {
		t.Fatal(err)
	}
}

// onScreen runs the program with its standard output on a terminal of 80 columns, and returns the
// output, with dir replaced by /tmp/nhc-gpu-00000000.
func onScreen(t *testing.T, dir string, args ...string) string {
	t.Helper()
	person, program := terminal(t, 80)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(programDir(t, self), "nhc-gpu"), append(args, "HOSTNAME=gpu017", "SLURMD_NODENAME=gpu017", "NAME=demo", "HOSTROOT="+dir+"/root", "NVML_LIBRARY="+dir+"/libnvidia-ml.so.1")...)
	cmd.Args[0], cmd.Stdout, cmd.Env = "nhc-gpu", program, []string{"PATH=/usr/bin:/bin", "SLURMD_NODENAME=gpu017", "NO_COLOR=1"}
	saw := make(chan string)
	go func() {
		var all strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := person.Read(buf)
			all.Write(buf[:n])
			if err != nil {
				saw <- all.String()
				return
			}
		}
	}()
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	program.Close()
	return strings.NewReplacer("\r\n", "\n", dir, "/tmp/nhc-gpu-00000000", "nhc-gpu dev on", "nhc-gpu on", "/demo.conf", "/nhc.conf").Replace(<-saw)
}

// TestCheckOutput: docs/check-output.md shows what --check prints of a healthy node and of a
// faulty one. NHC_GPU_WRITE=docs writes it.
func TestCheckOutput(t *testing.T) {
	t.Parallel()
	need.Program(t, "gcc")
	const page = "../../docs/check-output.md"
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	// The output follows "    $ nhc-gpu ...", up to the next command or text.
	blocks := regexp.MustCompile(`(?m)^    \$ nhc-gpu (.*)   # on a (healthy|faulty) node\n((?:    .*\n|\n)*)`)
	slow := regexp.MustCompile(` \(\d+\.\d s\)`)
	words := func(text string) []string { return strings.Fields(slow.ReplaceAllString(text, "")) }
	shown := 0
	text := blocks.ReplaceAllStringFunc(string(data), func(block string) string {
		of := blocks.FindStringSubmatch(block)
		dir := fmt.Sprintf("/tmp/nhc-gpu-%08x", rand.Uint32())
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		dgxNode(t, dir, of[2] == "faulty")
		got := onScreen(t, dir, strings.Fields(of[1])...)
		shown++
		if slices.ContainsFunc(strings.Split(got, "\n"), func(line string) bool { return len(line) > 80 || strings.HasSuffix(line, " ") }) {
			t.Errorf("%s: a line is too long, or ends in a blank:\n%s", of[1], got)
		}
		var b strings.Builder
		for line := range strings.Lines(got) {
			if line != "\n" {
				line = "    " + line
			}
			b.WriteString(line)
		}
		if diff := cmp.Diff(words(b.String()), words(of[3])); diff != "" && os.Getenv("NHC_GPU_WRITE") != "docs" {
			t.Errorf("%s: NHC_GPU_WRITE=docs go test ./cmd/nhc-gpu -run CheckOutput writes it (-want +got):\n%s", of[1], diff)
		}
		return fmt.Sprintf("    $ nhc-gpu %s   # on a %s node\n%s\n", of[1], of[2], b.String())
	})
	if shown < 3 {
		t.Errorf("%d commands in %s", shown, page)
	}
	if os.Getenv("NHC_GPU_WRITE") == "docs" {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
