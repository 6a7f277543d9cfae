package probe

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// statFile returns a process's stat file in the kernel's format: times in clock ticks, the address
// space in bytes, the resident memory in pages.
func statFile(name string, parent, user, system, start int, vsize, rss int64) string {
	return fmt.Sprintf("7 (%s) S %d 7 7 0 -1 4194304 1 2 3 4 %d %d 5 6 20 0 1 0 %d %d %d 18446744073709551615 1 1 0 0\n",
		name, parent, user, system, start, vsize, rss)
}

func TestProcessUsage(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{
		"proc/uptime":    "10000.50 123.4\n",
		"proc/7/stat":    statFile("bash", 1, 150, 50, 900050, 10<<20, 300),
		"proc/8/stat":    statFile(") R 0 0 (\n) 9", 7, 100000, 50, 1000049, 0, -3),
		"proc/9/stat":    "9 (short) S 1 2 3\n",
		"proc/10/stat":   strings.Replace(statFile("x", 1, 1, 1, 1, 1, 1), " 1 7 7 ", " -1 7 7 ", 1),
		"proc/11/stat/":  "",
		"proc/12/status": "",
	}))
	want := map[int]Usage{
		7: {Parent: 1, Ticks: 200, Start: 900050, VSZ: 10 << 10},
		8: {Parent: 7, Ticks: 100050, Start: 1000049},
	}
	for pid, u := range want {
		got, err := ReadUsage(h, Process{PID: pid})
		if diff := cmp.Diff(u, got); diff != "" || err != nil {
			t.Errorf("process %d: %v (-want +got):\n%s", pid, err, diff)
		}
	}
	for pid, text := range map[int]string{
		9:  "parse /proc/9/stat: invalid argument",
		10: "parse /proc/10/stat: invalid argument",
		11: "read /proc/11/stat: is a directory",
		12: os.ErrProcessDone.Error(),
	} {
		if _, err := ReadUsage(h, Process{PID: pid}); probetest.Message(err) != text {
			t.Errorf("process %d: %v, want %s", pid, err, text)
		}
	}
	uptime, err := Uptime(h)
	if err != nil || uptime != 1000050 {
		t.Errorf("Uptime = %d, %v", uptime, err)
	}
	for pid, share := range map[int]uint64{7: 2, 8: 100050 * 1000} {
		if got := want[pid].Share(uptime); got != share {
			t.Errorf("process %d: share %d, want %d", pid, got, share)
		}
	}
	if got := (Usage{Ticks: 5, Start: 9}).Share(9); got != 0 {
		t.Errorf("share of a process that has just started: %d", got)
	}
	if s := (Usage{Ticks: 6899}).Seconds(); s != 68 {
		t.Errorf("Seconds = %d", s)
	}
}

// The values of this process must agree with the kernel's other file.
func TestUsageOfThisProcess(t *testing.T) {
	t.Parallel()
	u, err := ReadUsage(NewHost("/"), Process{PID: os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	rss, err := Resident(NewHost("/"), Process{PID: os.Getpid()})
	if u.Parent != os.Getppid() || err != nil || rss == 0 || u.VSZ < rss {
		t.Errorf("got %+v, resident %d, %v, parent is %d", u, rss, err, os.Getppid())
	}
	uptime, err := Uptime(NewHost("/"))
	if err != nil || uptime+1 < u.Start {
		t.Errorf("uptime %d, %v; process started at %d", uptime, err, u.Start)
	}
}

func TestResident(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{
		"proc/7/status":  statusFile("VmRSS:\t1 kB", "S (sleeping)", 0, true) + "VmHWM:\t9 kB\nVmRSS:\t  2048 kB\n",
		"proc/8/status":  statusFile("kthreadd", "S (sleeping)", 0, false),
		"proc/9/status":  statusFile("x", "S (sleeping)", 0, true) + "VmRSS:\tmany kB\n",
		"proc/10/status": statusFile("x", "S (sleeping)", 0, true) + "VmRSS:",
		"proc/11/status": "VmRSS:\t1 kB\n",
	}))
	for pid, want := range map[int]string{
		7: "2048 ", 8: "0 ", 9: "0 parse /proc/9/status: invalid argument", 10: "0 parse /proc/10/status: invalid argument",
		11: "0 parse /proc/11/status: invalid argument", 12: "0 " + os.ErrProcessDone.Error(),
	} {
		kB, err := Resident(h, Process{PID: pid})
		if got := fmt.Sprint(kB, " ", probetest.Message(err)); got != want {
			t.Errorf("process %d: %s, want %s", pid, got, want)
		}
	}
}

func TestUptimeUnreadable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "parse /proc/uptime: invalid argument", "x 1\n": "parse /proc/uptime: invalid argument",
		"-1 1\n": "parse /proc/uptime: invalid argument", "NaN 1\n": "parse /proc/uptime: invalid argument",
		"1e300 1\n": "parse /proc/uptime: invalid argument",
	} {
		if _, err := Uptime(NewHost(probetest.Tree(t, map[string]string{"proc/uptime": text}))); probetest.Message(err) != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := Uptime(NewHost(probetest.Tree(t, nil))); probetest.Message(err) != "read /proc/uptime: no such file or directory" {
		t.Errorf("without the file: %v", err)
	}
}

// Whatever name a process has, the numbers are the kernel's.
func FuzzStat(f *testing.F) {
	for _, name := range []string{"bash", "", ")", "(", ") S 1 2 (3", "a\nb) R 0\n", strings.Repeat(")", 64), "\x00\xff"} {
		f.Add(name, uint32(1), uint32(5), uint32(7), []byte("tail"))
	}
	f.Fuzz(func(t *testing.T, name string, parent, ticks, start uint32, junk []byte) {
		_, _ = parseStat(junk)
		_, _ = parseResident(junk)
		want := Usage{Parent: int(parent >> 1), Ticks: uint64(ticks) + 1, Start: uint64(start), VSZ: 4}
		got, ok := parseStat([]byte(statFile(name, int(parent>>1), int(ticks), 1, int(start), 4096, 0)))
		if !ok || got != want {
			t.Errorf("name %q: got %+v, %v, want %+v", name, got, ok, want)
		}
	})
}

func TestStartTellsProcessesApart(t *testing.T) {
	t.Parallel()
	cmd := probetest.StartSleep(t)
	h := NewHost("/")
	p := Process{PID: cmd.Process.Pid, UID: uint32(os.Geteuid()), Args: "sleep 60"}
	u, err := ReadUsage(h, p)
	if err != nil {
		t.Fatal(err)
	}
	u.Start--
	Remember(h, usageKey(p), u, nil)
	if err := Kill(h, p); !errors.Is(err, ErrReplaced) || !Alive(h, p.PID) {
		t.Fatalf("a process that started at another time was killed: %v", err)
	}
	u.Start++
	Remember(h, usageKey(p), u, nil)
	if err := Kill(h, p); err != nil {
		t.Error(err)
	}
}
