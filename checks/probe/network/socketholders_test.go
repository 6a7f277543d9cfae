package network

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// withFds adds open files to the processes of a tree: links by "pid/fd".
func withFds(t testing.TB, h *probe.Host, links map[string]string) *probe.Host {
	t.Helper()
	for name, target := range links {
		pid, fd := filepath.Split(name)
		path := h.Path(filepath.Join("/proc", pid, "fd"))
		probetest.Mkdir(t, path)
		if err := os.Symlink(target, filepath.Join(path, fd)); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func TestSocketHolders(t *testing.T) {
	t.Parallel()
	h := withFds(t, probe.NewHost(probetest.Tree(t, map[string]string{
		"proc/1/comm":    "systemd\n",
		"proc/90/comm":   "tmux: server\n",
		"proc/1000/comm": "sshd\n",
		"proc/1001/":     "",
		"proc/1002/fd":   "not a directory",
		"proc/1003/comm": "\n",
		"proc/self/comm": "self\n",
		"proc/uptime":    "1 1\n",
	})), map[string]string{
		"1/0": "/dev/null", "1/3": "socket:[87]", "1/4": "socket:[88]", "1/5": "pipe:[89]", "1/6": "anon_inode:[eventpoll]",
		"90/3":   "socket:[90]",
		"1000/3": "socket:[87]", "1000/4": "socket:[91]", "1000/5": "socket:[0]", "1000/6": "socket:[x]", "1000/7": "socket:[92",
		"1000/8": "/tmp/socket:[93]", "1000/9": "socket:[99999999999999999999999999]",
		"1003/3": "socket:[94]",
		"self/3": "socket:[95]",
	})
	want := map[uint64]Holder{
		87: {1000, "sshd"}, // systemd has opened it for sshd
		88: {1, "systemd"},
		90: {90, "tmux:"},
		91: {1000, "sshd"},
		94: {1003, ""},
	}
	got, err := Holders(h)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("SocketHolders (-want +got):\n%s", diff)
	}
	if _, err := Holders(probe.NewHost(probetest.Tree(t, nil))); probetest.Message(err) != "read /proc: no such file or directory" {
		t.Errorf("without /proc: %v", err)
	}
	if _, err := Holders(probe.NewHost(probetest.Tree(t, map[string]string{"proc": ""}))); probetest.Message(err) != "read /proc: not a directory" {
		t.Errorf("/proc a file: %v", err)
	}
}

// BenchmarkSocketHolders searches two thousand processes with twenty open files each, four of them
// sockets.
func BenchmarkSocketHolders(b *testing.B) {
	links := map[string]string{}
	files := map[string]string{}
	for pid := range 2000 {
		files[fmt.Sprintf("proc/%d/comm", pid+1)] = "daemon\n"
		for fd := range 20 {
			target := "/usr/lib/x86_64-linux-gnu/libc.so.6"
			if fd < 4 {
				target = fmt.Sprintf("socket:[%d]", pid*20+fd+1)
			}
			links[fmt.Sprintf("%d/%d", pid+1, fd)] = target
		}
	}
	h := withFds(b, probe.NewHost(probetest.Tree(b, files)), links)
	b.ReportAllocs()
	for b.Loop() {
		holders, err := Holders(probe.NewHost(h.Path("/")))
		if err != nil || len(holders) != 8000 {
			b.Fatalf("%d sockets: %v", len(holders), err)
		}
	}
}
