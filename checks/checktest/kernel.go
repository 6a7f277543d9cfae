package checktest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// The node of the tests: eight GPUs, and a fixed boot time.
const (
	XidBooted = 1790000000 // 2026-09-21T14:13:20Z
	XidBoot   = "658f832e-2c36-42e1-a29c-a17c2e3298d2"
)

var xidGPUs = []string{
	"0000:18:00.0", "0000:2a:00.0", "0000:3a:00.0", "0000:5d:00.0", "0000:9a:00.0", "0000:ab:00.0", "0000:c1:00.0", "0000:db:00.0",
}

// XidNode returns the files of a node that has logged lines, each "SECONDS TEXT", 100,000
// seconds after its boot.
func XidNode(lines ...string) map[string]string {
	files := map[string]string{
		"dev/kmsg":                       KmsgOf(lines...),
		"proc/stat":                      fmt.Sprintf("cpu  1 2 3\nbtime %d\n", XidBooted),
		"proc/uptime":                    "100000.00 1.00\n",
		"proc/sys/kernel/random/boot_id": XidBoot + "\n",
		"proc/driver/nvidia/version":     "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n",
	}
	for i, pci := range xidGPUs {
		files["proc/driver/nvidia/gpus/"+pci+"/information"] = fmt.Sprintf("GPU UUID: \t GPU-%d\n", i)
	}
	return files
}

// KmsgOf returns lines as records of the kernel itself.
func KmsgOf(lines ...string) string {
	var b strings.Builder
	b.WriteString("5,0,0,-;Linux version 6.8.0\n")
	for i, line := range lines {
		seconds, text, _ := strings.Cut(line, " ")
		fmt.Fprintf(&b, "4,%d,%s000000,-;%s\n", i+1, seconds, text)
	}
	return b.String()
}

// OnC1 is the beginning of a line about an Xid of GPU 6 of that node.
const OnC1 = "NVRM: Xid (PCI:0000:c1:00): "

// ExplainEnv returns the environment of a node with some files.
func ExplainEnv(t *testing.T, files map[string]string) *checks.Env {
	t.Helper()
	s := Scenario{Files: files}
	return &checks.Env{Host: probe.NewHost(s.Build(t))}
}

// Lines of the driver of the adapter mlx5_3.
const (
	On23      = "mlx5_core 0000:23:00.0: "
	Fatal23   = On23 + "poll_health:1083:(pid 0): Fatal error 5 detected"
	Shorted23 = On23 + "Port module event[error]: module 0, Cable error, Bad or shorted cable/module"
)
