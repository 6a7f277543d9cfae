package worker

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/jobs"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// The test program is the program of another user, too: it asks for a job, and prints the answer.
func init() {
	if dir := os.Getenv("ASK_OWN"); dir != "" {
		data, err := askForOwn(dir, "", strings.Fields(os.Getenv("ASK_WORDS")))
		fmt.Printf("%s %v", data, err)
		os.Exit(0)
	}
}

// sharedNode returns a worker that samples a node with the jobs 7 of user 1000 and 8 of user 1001, and the directory
// of its socket.
func sharedNode(t *testing.T) (w *worker, dir string) {
	t.Helper()
	w, root := samplesAt(t, map[string]string{
		jobDir + "7/cgroup.procs": "71\n", jobDir + "7/memory.current": "1048576\n", jobDir + "8/cgroup.procs": "81\n", jobDir + "8/memory.current": "1\n",
		"proc/71/status": "Name:\tx\nUid:\t1000\t1000\t1000\t1000\n", "proc/81/status": "Name:\tx\nUid:\t1001\t1001\t1001\t1001\n",
		"proc/uptime": "",
	})
	w.host.SetState(w.vars.State)
	if err := os.MkdirAll(w.vars.State, 0o700); err != nil {
		t.Fatal(err)
	}
	for p := filepath.Dir(w.vars.State); len(p) > len(os.TempDir()); p = filepath.Dir(p) { // other users can reach the socket
		if err := os.Chmod(p, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	s := openJobWatch(w)
	for range 2 {
		if _, err := s.wait(listen{limit: 1100 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
	}
	write(t, root, "proc/uptime", fmt.Sprintf("%.2f 0\n", probe.SinceBoot().Seconds()))
	return w, ownersDir(w.vars.State)
}

// askAs asks for a job as another user of this machine.
func askAs(t *testing.T, user uint32, dir, words string) string {
	t.Helper()
	program := filepath.Join(filepath.Dir(dir), "asker")
	if _, err := os.Lstat(program); err != nil {
		data, err := os.ReadFile("/proc/self/exe")
		if err == nil {
			err = built.WriteProgram(program, data)
		}
		if err == nil {
			err = os.Chmod(program, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program)
	cmd.Env = []string{"ASK_OWN=" + dir, "ASK_WORDS=" + words}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("user %d: %v: %s", user, err, out)
	}
	return string(out)
}

// A user gets the samples of a job of this user, and of no other.
func TestOwners(t *testing.T) {
	need.Root(t, "only root can run a process of another user")
	w, dir := sharedNode(t)
	for _, test := range []struct {
		user  uint32
		words string
		want  bool
	}{
		{1000, "7", true}, {1000, "8", false}, {1001, "7", false}, {1001, "8 hours", true}, {0, "7", true}, {1002, "7", false}, {1002, "../7", false}, {1002, "9", false},
	} {
		got := askAs(t, test.user, dir, test.words)
		job, _, _ := strings.Cut(test.words, " ")
		switch saw := strings.Contains(got, `{"job":"`+job+`"`); {
		case saw != test.want:
			t.Errorf("user %d asks for %s: %.200s, want an answer: %v", test.user, test.words, got, test.want)
		case saw && strings.Contains(got, "gpu"): // there is no record of a prolog: the GPUs of no job are known
			t.Errorf("user %d asks for %s: %.200s", test.user, test.words, got)
		}
		time.Sleep(ownersPause) // a user who asks again at once must wait
	}
	o := &owners{last: map[uint32]time.Time{1000: time.Now().Add(time.Hour)}}
	if data, err := o.answer([]string{"7"}, 1000); !errors.Is(err, errBusy) || data != nil {
		t.Errorf("a user who asks too often: %.100s, %v", data, err)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o755, filepath.Join(dir, "state"): 0o666, filepath.Join(w.vars.State, flight.File(monitor.Jobs)): 0o600} {
		if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %o", path, info, err, mode)
		}
	}
}

// All strangers together have one pace, whatever their UIDs.
func TestOwnersStrangers(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{"past/job-7.json": `{"job":"7","uid":1000}`}))
	h.SetPast("/past")
	o := &owners{env: func() *checks.Env { return &checks.Env{Host: h} }, last: map[uint32]time.Time{}}
	const strangers = 5
	began := time.Now()
	for user := range uint32(strangers) {
		if data, err := o.answer([]string{"7"}, 100_000+user); !errors.Is(err, jobs.ErrStranger) || data != nil {
			t.Errorf("user %d: %.100s, %v", user, data, err)
		}
	}
	if took := time.Since(began); took < strangers*strangersPause {
		t.Errorf("%d strangers in %s", strangers, took)
	}
}

// A user who asks again at once gets the answer, and not that there are no samples.
func TestOwnersAskAgain(t *testing.T) {
	need.Root(t, "the samples are root's")
	_, dir := sharedNode(t)
	for range 2 {
		if first := askAs(t, 1000, dir, "7"); !strings.Contains(first, `{"job":"7"`) {
			t.Errorf("%.200s", first)
		}
	}
}

// Connections of a user that ask nothing, or garbage, keep no other user from an answer, and the user itself not for
// long.
func TestOwnersHostile(t *testing.T) {
	need.Root(t, "the samples are root's")
	_, dir := sharedNode(t)
	path := filepath.Join(dir, "state")
	ask := func() (answer string) {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = fmt.Fprintln(conn, "7")
		answer, _ = bufio.NewReader(conn).ReadString('\n')
		return answer
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		var conns []net.Conn
		defer func() {
			for _, conn := range conns {
				conn.Close()
			}
		}()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			conn, err := net.Dial("unix", path)
			if err != nil {
				continue
			}
			if i%2 == 1 { // the others say nothing
				_, _ = conn.Write(bytes.Repeat([]byte{'7'}, 10_000))
			}
			if conns = append(conns, conn); len(conns) > 100 {
				conns[0].Close()
				conns = conns[1:]
			}
		}
	}()
	if got := askAs(t, 1000, dir, "7"); !strings.Contains(got, `{"job":"7"`) {
		t.Errorf("another user: %.200q", got)
	}
	close(stop)
	<-stopped
	answer := ""
	for end := time.Now().Add(10 * ownersWait); answer == "" && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		answer = ask()
	}
	var e flight.Extract
	if err := json.Unmarshal([]byte(answer), &e); err != nil || e.Job != "7" {
		t.Errorf("%.200q, %v", answer, err)
	}
}

// Many users that say nothing keep no place from one more, and those that have asked keep theirs.
func TestOwnersFull(t *testing.T) {
	t.Parallel()
	o := &owners{open: map[uint32]*place{}}
	connect := func(user uint32) (p *place, other net.Conn) {
		conn, other := net.Pipe()
		if p = o.enter(conn, user); p != nil {
			p.since = time.Unix(int64(user), 0)
		}
		_ = other.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		return p, other
	}
	ended := func(other net.Conn) bool {
		_, err := other.Read(make([]byte, 1))
		return errors.Is(err, io.EOF)
	}
	var places []*place
	var others []net.Conn
	for user := range uint32(ownersOpen) {
		p, other := connect(user)
		places, others = append(places, p), append(others, other)
	}
	if p, _ := connect(1); p != nil {
		t.Error("a user has two places")
	}
	places[0].asked = true
	if p, _ := connect(1000); p == nil || ended(others[0]) || !ended(others[1]) || ended(others[2]) || len(o.open) != ownersOpen {
		t.Errorf("one more: %v, %d places", p, len(o.open))
	}
	if o.leave(places[1], 1); len(o.open) != ownersOpen {
		t.Error("who has lost a place takes another one")
	}
	for _, p := range o.open {
		p.asked = true
	}
	if p, _ := connect(1001); p != nil {
		t.Error("a place of one who has asked")
	}
}

// busyListener fails once, as without a free descriptor.
type busyListener struct {
	net.Listener
	failed bool
}

func (b *busyListener) Accept() (net.Conn, error) {
	if !b.failed {
		b.failed = true
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return b.Listener.Accept()
}

// A connection that cannot be accepted ends nothing.
func TestOwnersGoOn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	o := &owners{last: map[uint32]time.Time{uint32(os.Geteuid()): time.Now().Add(time.Hour)}, open: map[uint32]*place{}}
	ended := make(chan struct{})
	go func() {
		o.accept(&busyListener{Listener: l})
		close(ended)
	}()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, _ = fmt.Fprintln(conn, "x")
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want the end of the connection", err)
	}
	l.Close()
	<-ended
}

// A user who listens at the place of the monitor is not believed.
func TestOwnersFake(t *testing.T) {
	need.Root(t, "only root can run a process of another user")
	dir := t.TempDir()
	path := filepath.Join(dir, "node")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(conn).ReadString('\n')
			fmt.Fprintln(conn, `{"job":"7"}`)
			conn.Close()
		}
	}()
	if data, err := askForOwn(dir, "", []string{"7"}); err != nil || string(data) != "{\"job\":\"7\"}\n" {
		t.Errorf("the listener is this user's: %q, %v", data, err)
	}
	raw, err := l.(*net.UnixListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	// The kernel remembers who has called listen: another user does, by a thread with other rights.
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- func() error {
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), 1000, ^uintptr(0)); errno != 0 {
				return errno
			}
			var failed error
			_ = raw.Control(func(fd uintptr) { failed = syscall.Listen(int(fd), 8) })
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), 0, ^uintptr(0)); errno != 0 {
				return errno
			}
			return failed
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if data, err := askForOwn(dir, "", []string{"7"}); err == nil || !strings.Contains(err.Error(), "is not owned by root") {
		t.Errorf("the listener is user 1000's: %q, %v", data, err)
	}
}

// The samples of another version's format stay beside the new ones.
func TestOtherFormat(t *testing.T) {
	t.Parallel()
	w, _ := samplesAt(t, map[string]string{})
	if err := os.MkdirAll(w.vars.State, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(w.vars.State, flight.File(monitor.Jobs))
	old := append([]byte("NHCFLT9\n"), make([]byte, flight.HeaderSize)...)
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	s := openJobWatch(w)
	s.sample(probe.SinceBoot())
	s.Close()
	kept, err := os.ReadFile(path + ".other")
	if err != nil || !bytes.Equal(kept, old) {
		t.Errorf("%d bytes, %v, want the old samples", len(kept), err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := flight.ReadHeader(f); err != nil {
		t.Error(err)
	}
}

// A directory that has not answered a user is not asked again for the next one.
func TestOwnersOfSilentMemory(t *testing.T) {
	t.Parallel()
	n := ownersNode{Host: probe.NewHost(t.TempDir()), vars: wire.Vars{Past: "/past"}}
	first := n.next()
	if first.StuckAt("/past") != nil {
		t.Error("the first does not ask")
	}
	first.InTime("read /past", time.Millisecond, func() { select {} })
	for range 2 {
		if next := n.next(); next.StuckAt("/past") == nil || next.Past() != "/past" {
			t.Error("a later one asks")
		}
	}
	if n.since = time.Now().Add(-ownersSilence); n.next().StuckAt("/past") != nil {
		t.Error("it is never asked again")
	}
}
