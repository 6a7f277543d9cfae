package jobscan

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

const (
	shmHead = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap\n"
	msgHead = "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      stime      rtime      ctime\n"
	semHead = "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n"
)

func TestIPCs(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		"proc/sysvipc/shm": shmHead + " 1096040452     32769  1666               1048576  4711  4712      2  5001   100  5002   100 1700000001 1700000002 1700000003                  4096                     0\n",
		"proc/sysvipc/msg": msgHead + "         -1          5   600         128          2   811   812  5001   100  5001   100          0          0 1700000004\n",
		"proc/sysvipc/sem": semHead + "          0          7   640          3  5001   100  5001   100          0 1700000005\n",
	}))
	want := []IPC{
		{Kind: SharedMemory, ID: 32769, Mode: 0o666, UID: 5001, Creator: 5002, Bytes: 1 << 20, Attached: 2, PIDs: []int{4711, 4712}, Changed: time.Unix(1700000003, 0)},
		{Kind: MessageQueue, ID: 5, Mode: 0o600, UID: 5001, Creator: 5001, Bytes: 128, PIDs: []int{811, 812}, Changed: time.Unix(1700000004, 0)},
		{Kind: SemaphoreSets, ID: 7, Mode: 0o640, UID: 5001, Creator: 5001, Changed: time.Unix(1700000005, 0)},
	}
	got, err := IPCs(h)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if err := RemoveIPC(h, got[0]); probetest.Message(err) != "a recorded node cannot be changed" {
		t.Errorf("removed: %v", err)
	}
	if got, err := IPCs(probe.NewHost(probetest.Tree(t, nil))); len(got) != 0 || err != nil {
		t.Errorf("a kernel without: %v, %v", got, err)
	}
	for text, want := range map[string]string{
		shmHead + "1 2 3\n": "parse /proc/sysvipc/shm: invalid argument",
		"a b\n1 2\n":        "parse /proc/sysvipc/shm: invalid argument",
	} {
		if _, err := IPCs(probe.NewHost(probetest.Tree(t, map[string]string{"proc/sysvipc/shm": text}))); probetest.Message(err) != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, err := IPCs(probe.NewHost(probetest.Tree(t, map[string]string{"proc/sysvipc/sem/": ""}))); probetest.Message(err) != "read /proc/sysvipc/sem: is a directory" {
		t.Errorf("unreadable: %v", err)
	}
}

// makeIPC creates one object of each kind.
func makeIPC(t *testing.T) map[IPCKind]int {
	t.Helper()
	ids := map[IPCKind]int{}
	for kind, call := range map[IPCKind][4]uintptr{
		SharedMemory: {unix.SYS_SHMGET, 0, 4096, 0o600}, MessageQueue: {unix.SYS_MSGGET, 0, 0o600, 0}, SemaphoreSets: {unix.SYS_SEMGET, 0, 1, 0o600},
	} {
		id, _, errno := unix.Syscall(call[0], call[1], call[2], call[3])
		if errno == unix.ENOSYS {
			t.Skip("this kernel has no System V IPC")
		} else if errno != 0 {
			t.Fatalf("make %s: %v", kind, errno)
		}
		ids[kind] = int(id)
		t.Cleanup(func() { _ = removeIPC(IPC{Kind: kind, ID: int(id)}) })
	}
	return ids
}

func findIPC(t *testing.T, h *probe.Host, kind IPCKind, id int) (IPC, bool) {
	t.Helper()
	list, err := IPCs(h)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range list {
		if o.Kind == kind && o.ID == id {
			return o, true
		}
	}
	return IPC{}, false
}

func TestRemoveIPC(t *testing.T) {
	t.Parallel()
	// The kernel's times are those of its last timer tick.
	var tick unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &tick); err != nil {
		t.Fatal(err)
	}
	h, began := probe.NewHost("/"), time.Unix(tick.Sec, 0)
	for kind, id := range makeIPC(t) {
		o, ok := findIPC(t, h, kind, id)
		if !ok || int(o.UID) != os.Geteuid() || o.Creator != o.UID || o.Mode != 0o600 || o.Changed.Before(began) {
			t.Errorf("%s %d: %v %+v", kind, id, ok, o)
		}
		changed := o
		changed.Changed = o.Changed.Add(-time.Second)
		if err := RemoveIPC(h, changed); !errors.Is(err, errChanged) {
			t.Errorf("%s: made anew: %v", kind, err)
		}
		if kind == SharedMemory {
			at, err := unix.SysvShmAttach(id, 0, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := RemoveIPC(h, o); !errors.Is(err, errChanged) {
				t.Errorf("%s: attached: %v", kind, err)
			}
			if err := unix.SysvShmDetach(at); err != nil {
				t.Fatal(err)
			}
		}
		if err := RemoveIPC(h, o); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if _, ok := findIPC(t, h, kind, id); ok {
			t.Errorf("%s %d is still there", kind, id)
		}
		if err := RemoveIPC(h, o); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: removed twice: %v", kind, err)
		}
		if err := removeIPC(o); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the kernel's own word on that: %v", kind, err)
		}
	}
}

func FuzzParseIPC(f *testing.F) {
	f.Add(shmHead + "0 1 600 1 1 1 1 1 1 1 1 1 1 1 1 1\n")
	f.Fuzz(func(_ *testing.T, text string) {
		for _, kind := range ipcKinds {
			_, _ = parseIPC(kind, text)
		}
	})
}
