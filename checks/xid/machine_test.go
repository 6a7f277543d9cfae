package xid

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// xidMachine is a node with a growing log and repeated runs.
type xidMachine struct {
	t     *testing.T
	root  string
	boot  int
	seq   int
	lines []string
	up    int64 // seconds since the boot
	check gpuXid
	gpus  []checks.GPUState
	past  string
	spare string
	stuck []string
}

func newXidMachine(t *testing.T) *xidMachine {
	t.Helper()
	m := &xidMachine{t: t, root: t.TempDir(), up: 100, check: gpuXid{Hours: "24"}, past: "/past"}
	for name, text := range checktest.XidNode() {
		m.write(name, text)
	}
	m.reboot()
	return m
}

func (m *xidMachine) write(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// reboot starts a new boot, a day after the start of the last one.
func (m *xidMachine) reboot() {
	m.boot++
	m.seq, m.lines, m.up = 0, nil, 100
	m.write("proc/sys/kernel/random/boot_id", fmt.Sprintf("boot-%d\n", m.boot))
	m.write("proc/stat", fmt.Sprintf("cpu 1\nbtime %d\n", checktest.XidBooted+m.boot*day))
	m.say("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build")
}

// driver sets the version of the node's driver.
func (m *xidMachine) driver(version string) {
	m.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  "+version+"  Release Build\n")
}

// say logs a line.
func (m *xidMachine) say(text string) {
	m.lines = append(m.lines, fmt.Sprintf("4,%d,%d,-;%s", m.seq, m.up*1e6, text))
	m.seq++
}

func (m *xidMachine) xid(code int, text string) {
	m.say(fmt.Sprintf("%s%d, %s", checktest.OnC1, code, text))
}

func (m *xidMachine) env() *checks.Env {
	m.write("dev/kmsg", strings.Join(m.lines, "\n")+"\n")
	m.write("proc/uptime", fmt.Sprintf("%d.00 1.00\n", m.up))
	env := &checks.Env{Host: probe.NewHost(m.root)}
	env.Host.SetPast(m.past, m.spare)
	env.Host.SetStuck(m.stuck)
	if m.gpus != nil {
		env.GPUStates = func() []checks.GPUState { return m.gpus }
	}
	return env
}

// look runs the check and compares its findings in short: severity, code, and
// the notes between the meaning and the time.
func (m *xidMachine) look(want ...string) {
	m.t.Helper()
	var got []string
	for _, f := range m.check.Run(m.t.Context(), m.env()) {
		_, notes, _ := strings.Cut(strings.Replace(f.Message, "(GSP)", "", 1), ")") // that of the meaning
		notes, _, _ = strings.Cut(notes, "since ")
		got = append(got, strings.TrimRight(fmt.Sprintf("%s %s %s %s", f.Severity, strings.TrimPrefix(f.Code, "gpu."), f.Remedy, strings.Trim(notes, ", ")), " "))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		m.t.Errorf("boot %d, %d s (-want +got):\n%s", m.boot, m.up, diff)
	}
}
