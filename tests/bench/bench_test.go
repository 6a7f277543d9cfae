// Package bench measures whole runs of the program on a configuration of 40
// ordinary check lines: wall clock, CPU time, peak memory, processes.
//
//	go test -bench . ./tests/bench
//
// NHC_REF names a reference implementation (nhc of LBNL NHC, with its scripts in
// /etc/nhc/scripts) to measure beside it.
package bench

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
)

var program string // the binary to measure

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program)) }

// forty are 40 lines that every Linux machine passes, in the mix of a site's
// file: 10 about files, 11 file systems, 7 hardware, 7 processes, 3 commands, a
// socket, and one line for another node.
func forty() string {
	var b strings.Builder
	add := func(n int, line string) {
		for range n {
			b.WriteString(line + "\n")
		}
	}
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

func confFile(b testing.TB, text string) string {
	b.Helper()
	file := filepath.Join(b.TempDir(), "nhc.conf")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	return file
}

type cost struct {
	wall, cpu time.Duration
	rss       int64 // of the largest process, KiB
}

func once(b testing.TB, argv ...string) cost {
	b.Helper()
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_CHILDREN, &before)
	began := time.Now()
	cmd := exec.Command(argv[0], argv[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		b.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out.String())
	}
	c := cost{wall: time.Since(began)}
	_ = unix.Getrusage(unix.RUSAGE_CHILDREN, &after)
	c.cpu = time.Duration(after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano()) * time.Nanosecond
	if ru, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		c.rss = ru.Maxrss
	}
	return c
}

// measure runs a program over and over and reports medians.
func measure(b *testing.B, argv ...string) (wall time.Duration) {
	b.Helper()
	var walls, cpus []time.Duration
	for b.Loop() {
		c := once(b, argv...)
		walls, cpus = append(walls, c.wall), append(cpus, c.cpu)
	}
	slices.Sort(walls)
	slices.Sort(cpus)
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	b.ReportMetric(ms(walls[len(walls)/2]), "wall-ms/run")
	b.ReportMetric(ms(walls[len(walls)*95/100]), "wall-p95-ms/run")
	b.ReportMetric(ms(cpus[len(cpus)/2]), "cpu-ms/run")
	return walls[len(walls)/2]
}

// daemon is the process that the lines for processes look for.
func daemon(b *testing.B) {
	b.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.Args[0] = "nhc-gpu-bench"
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

func words(conf string) []string {
	return []string{program, "-c", conf, "LOGFILE=-", "MARK_OFFLINE=0"}
}

func BenchmarkEmpty(b *testing.B) { measure(b, words(confFile(b, "* || A=1\n"))...) }

func BenchmarkForty(b *testing.B) {
	daemon(b)
	argv := words(confFile(b, forty()))
	measure(b, argv...)
	if n, err := processes(argv); err == nil {
		b.ReportMetric(float64(n), "processes/run")
	}
	if kib, err := peak(b, argv); err == nil {
		b.ReportMetric(float64(kib)/1024, "peak-MiB/run")
	}
}

// BenchmarkFortyBusy is the same beside a thousand idle processes.
func BenchmarkFortyBusy(b *testing.B) {
	daemon(b)
	const crowd = 1000
	for range crowd {
		cmd := exec.Command("sleep", "600")
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	measure(b, words(confFile(b, forty()))...)
}

func BenchmarkReference(b *testing.B) {
	ref := os.Getenv("NHC_REF")
	if ref == "" {
		b.Skip("skip: NHC_REF names no reference implementation")
	}
	daemon(b)
	conf := confFile(b, forty())
	argv := []string{ref, "-c", conf, "LOGFILE=-", "MARK_OFFLINE=0"}
	ours := once(b, words(conf)...)
	theirs := measure(b, argv...)
	b.ReportMetric(float64(theirs)/float64(ours.wall), "times-ours")
	if n, err := processes(argv); err == nil {
		b.ReportMetric(float64(n), "processes/run")
	}
	if kib, err := peak(b, argv); err == nil {
		b.ReportMetric(float64(kib)/1024, "peak-MiB/run")
	}
}

// processes counts the processes of one run, with strace.
func processes(argv []string) (int, error) {
	log := filepath.Join(os.TempDir(), fmt.Sprintf("nhc-gpu-strace-%d", os.Getpid()))
	defer os.Remove(log)
	cmd := exec.Command("strace", append([]string{"-f", "-qq", "-e", "trace=execve", "-e", "status=successful", "-o", log}, argv...)...)
	if err := cmd.Run(); err != nil {
		return 0, err
	}
	data, err := os.ReadFile(log)
	return len(regexp.MustCompile(`(?m)execve`).FindAll(data, -1)), err
}

// peak is the most memory that all processes of a run held together, by a
// cgroup v1 of its own, KiB.
func peak(b *testing.B, argv []string) (int64, error) {
	group, err := os.MkdirTemp("/sys/fs/cgroup/memory", "nhc-gpu-bench-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(group)
	once(b, append([]string{"/bin/sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, group}, argv...)...)
	data, err := os.ReadFile(filepath.Join(group, "memory.max_usage_in_bytes"))
	if err != nil {
		return 0, err
	}
	var n int64
	_, err = fmt.Sscan(string(data), &n)
	return n / 1024, err
}
