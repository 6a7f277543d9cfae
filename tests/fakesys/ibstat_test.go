package fakesys_test

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// The real ibstat accepts the trees as nodes, and prints the same values as our reader.
func TestIbstatAgrees(t *testing.T) {
	t.Parallel()
	need.Program(t, "ibstat")
	for name, n := range map[string]*fakesys.Node{
		"dgx-h100": fakesys.DGXH100(), "dgx-h200": fakesys.DGXH200(), "dgx-a100": fakesys.DGXA100(), "hgx-b200": fakesys.HGXB200(), "nd-h100-v5": fakesys.NDH100v5(), "gb200": fakesys.GB200(),
		"roce": fakesys.RoCE(), "one down": fakesys.DGXH100().Down("mlx5_3"), "half rate": fakesys.DGXH100().HalfRate("mlx5_3"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var theirs []byte
			done := make(chan error)
			go func() { // its thread sees another /sys, and ends with it
				err := n.Mount(dir)
				if err == nil {
					theirs, err = exec.CommandContext(t.Context(), "ibstat").CombinedOutput()
				}
				done <- err
			}()
			if err := <-done; err != nil {
				if len(theirs) == 0 {
					need.Skip(t, "%v", err)
				}
				t.Fatalf("ibstat: %v\n%s", err, theirs)
			}
			list, err := rdma.HCAs(probe.NewHost(dir), nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(saysIbstat(string(theirs)), asIbstat(list)); diff != "" {
				t.Errorf("(-ibstat +ours):\n%s", diff)
			}
		})
	}
}

// saysIbstat returns the lines of ibstat that the program reads, too.
func saysIbstat(out string) []string {
	var lines []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		key, _, _ := strings.Cut(line, ":")
		switch key, _, _ = strings.Cut(key, " '"); strings.TrimRight(key, " 0123456789") {
		case "CA", "CA type", "Firmware version", "Node GUID", "Port", "State", "Physical state", "Rate", "Base lid", "SM lid", "Link layer":
			lines = append(lines, line)
		}
	}
	return lines
}

func asIbstat(list []rdma.HCA) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	number := func(hex string) uint64 {
		n, _ := strconv.ParseUint(hex, 0, 16)
		return n
	}
	states := map[string]string{"ACTIVE": "Active", "DOWN": "Down", "INIT": "Initializing"}
	for _, a := range list {
		add("CA '%s'", a.Name)
		add("CA type: %s", a.Type)
		add("Firmware version: %s", a.Firmware)
		add("Node GUID: 0x%s", strings.ReplaceAll(a.GUID, ":", ""))
		for _, p := range a.Ports {
			add("Port %s:", p.Port)
			add("State: %s", states[p.State])
			add("Physical state: %s", p.Phys)
			add("Rate: %s", p.Rate)
			add("Base lid: %d", number(p.LID))
			add("SM lid: %d", number(p.SMLID))
			add("Link layer: %s", p.Layer)
		}
	}
	return lines
}
