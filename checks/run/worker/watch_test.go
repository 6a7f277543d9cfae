package worker

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

const bootID = "proc/sys/kernel/random/boot_id"

// watchAt returns a worker of a recorded node.
func watchAt(t *testing.T, files map[string]string) (w *worker, root string) {
	t.Helper()
	root = probetest.Tree(t, files)
	page, err := wire.NewPage()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { page.Close() })
	return &worker{host: newGuardedHost(root), page: wire.OpenPage(int(page.Fd()))}, root
}

func heard(t *testing.T, w *worker, source string, from *checks.LogMark, limit time.Duration) *wire.Response {
	t.Helper()
	resp := w.answer(&wire.Request{Op: wire.OpWatch, Name: source, Mark: from, Timeout: limit})
	if resp.Err != "" {
		t.Fatal(resp.Err)
	}
	return resp
}

func eventKinds(h *wire.Heard) (list []string) {
	for _, e := range h.Events {
		list = append(list, e.Kind)
	}
	return list
}

func addTo(t *testing.T, root, name, text string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(root, name), os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.WriteString(text)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A new watch begins at the end of the log, one with a mark after it. Records that were
// overwritten are counted.
func TestKernelWatch(t *testing.T) {
	t.Parallel()
	w, root := watchAt(t, map[string]string{bootID: "boot-1\n", "dev/kmsg": "4,1,1,-;NVRM: Xid (PCI:0000:c1:00): 79, old\n6,2,2,-;hello\n"})
	resp := heard(t, w, monitor.Kernel, nil, 0)
	if len(resp.Heard.Events) != 0 || *resp.Mark != (checks.LogMark{Boot: "boot-1", Next: 3}) {
		t.Fatalf("%+v %+v", resp.Heard, resp.Mark)
	}
	addTo(t, root, "dev/kmsg", "6,3,3,-;usb 1-1: new device\n4,4,4,-;NVRM: Xid (PCI:0000:c1:00): 48, DBE\n4,5,4,-;NVRM: Xid (PCI:0000:c1:00): 63, again\n"+
		"4,6,5,-;mlx5_core 0000:23:00.0 ens1: Link down\n12,7,5,-;EXT4-fs error (device sda): forged\n3,8,6,-;EXT4-fs error (device sda1): x\n")
	resp = heard(t, w, monitor.Kernel, nil, time.Minute)
	if got := eventKinds(resp.Heard); !slices.Equal(got, []string{"gpu", "link", "disk"}) || resp.Mark.Next != 9 || resp.Heard.Lost != 0 || !strings.Contains(resp.Heard.Events[0].Text, ": 48, DBE") {
		t.Errorf("%+v %+v", resp.Heard, resp.Mark)
	}
	if resp = heard(t, w, monitor.Kernel, nil, 0); len(resp.Heard.Events) != 0 {
		t.Errorf("the same again: %+v", resp.Heard)
	}

	after, _ := watchAt(t, map[string]string{bootID: "boot-1\n", "dev/kmsg": "4,4,4,-;NVRM: Xid (PCI:0000:c1:00): 48, DBE\n6,5,5,-;x\n4,6,6,-;NVRM: Xid (PCI:0000:c1:00): 79, lost\n"})
	resp = heard(t, after, monitor.Kernel, &checks.LogMark{Boot: "boot-1", Next: 5}, 0)
	if len(resp.Heard.Events) != 1 || !strings.Contains(resp.Heard.Events[0].Text, ": 79") || resp.Heard.Lost != 0 {
		t.Errorf("with a mark: %+v", resp.Heard)
	}
	over, _ := watchAt(t, map[string]string{bootID: "boot-1\n", "dev/kmsg": "6,90,4,-;x\n"})
	if resp = heard(t, over, monitor.Kernel, &checks.LogMark{Boot: "boot-1", Next: 5}, 0); resp.Heard.Lost != 85 || resp.Mark.Next != 91 {
		t.Errorf("overwritten: %+v %+v, want 85 lost records", resp.Heard, resp.Mark)
	}
	boot, _ := watchAt(t, map[string]string{bootID: "boot-2\n", "dev/kmsg": "4,1,1,-;NVRM: Xid (PCI:0000:c1:00): 79, x\n"})
	if resp = heard(t, boot, monitor.Kernel, &checks.LogMark{Boot: "boot-1", Next: 5}, 0); len(resp.Heard.Events) != 0 || resp.Heard.Lost != 0 {
		t.Errorf("a mark of another boot: %+v", resp.Heard)
	}
	none, _ := watchAt(t, map[string]string{bootID: "boot-1\n"})
	if resp := none.answer(&wire.Request{Op: wire.OpWatch, Name: monitor.Kernel}); !strings.Contains(resp.Err, "open /dev/kmsg: no such file") {
		t.Errorf("no log: %+v", resp)
	}
	if resp := none.answer(&wire.Request{Op: wire.OpWatch, Name: "x"}); resp.Err != "watch x: there is no such source of events" {
		t.Errorf("%+v", resp)
	}
}

// A port that goes down, one that is gone and one that cannot be read are changes. A port of Ethernet
// has messages of its own.
func TestPortWatch(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for _, p := range []string{"mlx5_0/ports/1/", "mlx5_1/ports/1/", "mlx5_2/ports/1/"} {
		dir := "sys/class/infiniband/" + p
		files[dir+"state"], files[dir+"phys_state"], files[dir+"link_layer"] = "4: ACTIVE\n", "5: LinkUp\n", "InfiniBand\n"
	}
	files["sys/class/infiniband/mlx5_2/ports/1/link_layer"] = "Ethernet\n"
	w, root := watchAt(t, files)
	if resp := heard(t, w, monitor.Ports, nil, 0); len(resp.Heard.Events) != 0 {
		t.Errorf("the first look: %+v", resp.Heard)
	}
	port := filepath.Join(root, "sys/class/infiniband/mlx5_")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(port+"2/ports/1/state", "1: DOWN\n")
	if resp := heard(t, w, monitor.Ports, nil, 0); len(resp.Heard.Events) != 0 {
		t.Errorf("Ethernet: %+v", resp.Heard)
	}
	write(port+"1/ports/1/state", "1: DOWN\n")
	if resp := heard(t, w, monitor.Ports, nil, time.Minute); len(resp.Heard.Events) != 1 || resp.Heard.Events[0] != (wire.Event{Kind: "link", Text: "mlx5_1:1"}) {
		t.Errorf("down: %+v", resp.Heard)
	}
	if err := os.RemoveAll(port + "0"); err != nil {
		t.Fatal(err)
	}
	if resp := heard(t, w, monitor.Ports, nil, time.Minute); len(resp.Heard.Events) != 1 || resp.Heard.Events[0].Text != "mlx5_0:1" {
		t.Errorf("gone: %+v", resp.Heard)
	}
}

// startSlurmd starts a process of root that has the name of slurmd.
func startSlurmd(t *testing.T) *os.Process {
	t.Helper()
	need.Root(t, "only the slurmd of root counts")
	slurmd := exec.Command(namedSlurmd(t, "/bin/sleep"), "1000")
	if err := slurmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = slurmd.Process.Kill()
		_ = slurmd.Wait()
	})
	return slurmd.Process
}

// namedSlurmd returns a copy of a program with the name slurmd.
func namedSlurmd(t *testing.T, of string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "slurmd")
	data, err := os.ReadFile(of)
	if err == nil {
		err = probetest.WriteProgram(program, data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// A process that slurmd has forked, and which is no other program yet, is no slurmd.
func TestSlurmdForks(t *testing.T) {
	t.Parallel()
	need.Root(t, "slurmd is root's")
	slurmd := exec.Command(namedSlurmd(t, "/bin/sh"), "-c", "(read x) <&3 & echo $!; read x")
	end, stdin, err := os.Pipe() // neither ends before the end of the test
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	slurmd.Stdin, slurmd.ExtraFiles = end, []*os.File{end}
	out, err := slurmd.StdoutPipe()
	if err == nil {
		err = slurmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = slurmd.Process.Kill()
		_ = slurmd.Wait()
	})
	var forked int
	if _, err := fmt.Fscan(out, &forked); err != nil {
		t.Fatal(err)
	}
	fds, err := jobscan.Slurmds(newGuardedHost("/"))
	_, child := fds[forked]
	if _, found := fds[slurmd.Process.Pid]; err != nil || !found || child {
		t.Errorf("%v, %v: want PID %d without %d", fds, err, slurmd.Process.Pid, forked)
	}
}

// The end of slurmd is one event, also while its parent has not asked for its status.
func TestSlurmdWatch(t *testing.T) {
	t.Parallel()
	slurmd := startSlurmd(t)
	fds, err := jobscan.Slurmds(newGuardedHost("/"))
	fd, found := fds[slurmd.Pid]
	if err != nil || !found {
		t.Fatalf("%v, %v: want PID %d", fds, err, slurmd.Pid)
	}
	s := slurmdWatch{w: &worker{host: newGuardedHost("/")}, fds: map[int]int{slurmd.Pid: fd}}
	if heard, err := s.wait(listen{limit: 0}); err != nil || len(heard.Events) != 0 {
		t.Errorf("%+v, %v: it still runs", heard, err)
	}
	if err := slurmd.Kill(); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("slurmd with PID %d has ended", slurmd.Pid)
	if heard, err := s.wait(listen{limit: time.Minute}); err != nil || len(heard.Events) != 1 || heard.Events[0] != (wire.Event{Kind: "service", Text: want}) {
		t.Errorf("%+v, %v, want %s", heard, err, want)
	}
	if fds, err = jobscan.Slurmds(newGuardedHost("/")); err != nil || fds[slurmd.Pid] != 0 {
		t.Errorf("%v, %v: a zombie does not run", fds, err)
	}
}

// Without descriptors of processes, as in a service of systemd 239, the end of slurmd is an event at the next look.
func TestSlurmdWatchWithoutDescriptors(t *testing.T) {
	t.Parallel()
	slurmd := startSlurmd(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // which ends with this goroutine
		if err := refuse(unix.SYS_PIDFD_OPEN, unix.EPERM); err != nil {
			t.Errorf("filter system calls: %v", err)
			return
		}
		s := slurmdWatch{w: &worker{host: newGuardedHost("/")}}
		heard, err := s.wait(listen{limit: 0})
		if fd, known := s.fds[slurmd.Pid]; err != nil || len(heard.Events) != 0 || !known || fd != -1 {
			t.Errorf("%+v, %v, %v: want PID %d without a descriptor", heard, err, s.fds, slurmd.Pid)
		}
		s.fds = map[int]int{slurmd.Pid: -1} // others can run on this machine
		if err := slurmd.Kill(); err != nil {
			t.Error(err)
		}
		_, _ = slurmd.Wait()
		want := fmt.Sprintf("slurmd with PID %d has ended", slurmd.Pid)
		if heard, err = s.wait(listen{limit: 0}); err != nil || len(heard.Events) != 1 || heard.Events[0].Text != want {
			t.Errorf("%+v, %v, want %s", heard, err, want)
		}
	}()
	<-done
}

// refuse lets a system call of this thread fail from now on.
func refuse(call uint32, errno unix.Errno) error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // struct seccomp_data begins with the number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
}

// A source that fails needs a new process, since this one remembers the error. If NVML has found no driver or no GPU,
// a new process asks it again after some minutes.
func TestWatchLeaves(t *testing.T) {
	t.Parallel()
	none, _ := watchAt(t, map[string]string{bootID: "boot-1\n"})
	if resp := none.answer(&wire.Request{Op: wire.OpWatch, Name: monitor.Kernel}); resp.Err == "" || !resp.Worn {
		t.Errorf("no log: %+v", resp)
	}
	for name, tt := range map[string]struct {
		err  error
		fail string
	}{
		"NVML fails":       {&nvml.Error{Call: "nvmlInit", Code: 999}, "nvmlInit: unknown error (NVML error 999)"},
		"without a driver": {fmt.Errorf("load it: %w", nvml.ErrDriverNotThere), ""},
		"without a GPU":    {nvml.ErrNoGPU, ""},
	} {
		w, _ := samplesAt(t, map[string]string{})
		nvml.Set(w.host, nil, tt.err)
		ask := func() *wire.Response {
			return w.answer(&wire.Request{Op: wire.OpWatch, Name: monitor.GPUs, Args: []string{"7"}})
		}
		resp := ask()
		if resp.Err != tt.fail || resp.Worn != (tt.fail != "") {
			t.Errorf("%s: %+v, want %q", name, resp, tt.fail)
		}
		if tt.fail != "" {
			continue
		}
		g := w.watches[monitor.GPUs].(*gpuWatch)
		if left := g.again - probe.SinceBoot(); left < reopenPause-time.Minute || left > reopenPause {
			t.Errorf("%s: asked again in %s", name, left)
		}
		g.again = probe.SinceBoot()
		if resp = ask(); resp.Err != "" || !resp.Worn {
			t.Errorf("%s, some minutes later: %+v", name, resp)
		}
	}
}
