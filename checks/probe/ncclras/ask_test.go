package ncclras

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakeras"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// TestMain is a process of a job, too: it listens as NCCL does, and answers as its environment says.
func TestMain(m *testing.M) {
	if how := os.Getenv("RAS_FAKE"); how != "" {
		fakeras.Serve(how)
		return
	}
	os.Exit(m.Run())
}

// start starts a process of a job, and returns its PID.
func start(t *testing.T, how, listen string, attr ...*syscall.SysProcAttr) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "RAS_FAKE="+how, "NCCL_RAS_ADDR="+listen)
	if len(attr) > 0 {
		cmd.SysProcAttr = attr[0]
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return strconv.Itoa(cmd.Process.Pid)
}

// freePort returns a port at which no process listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func TestAsk(t *testing.T) {
	t.Parallel()
	h := probe.NewHost("")
	quiet := func(string) {}
	for _, host := range []string{"127.0.0.1", "[::1]", "0.0.0.0"} {
		at := host + ":" + freePort(t)
		pid := start(t, "lag", at)
		a, err := Ask(h, []string{pid}, time.Minute, quiet)
		if err != nil {
			t.Errorf("%s: %v", at, err)
			continue
		}
		r, err := Parse(a.Text)
		if err == nil {
			err = r.Locate(append(a.Hosts, "10.0.0.1"), InnerPIDs(h, []string{pid}), func(int) string { return "gpu3" })
		}
		if want := fmt.Sprintf("rank 3 (gpu3 of this node, process %s) has launched 6649 AllReduce operations, the first 6650", pid); err != nil || len(r.Last()) != 1 || r.Last()[0].Text() != want {
			t.Errorf("%s: %v, %+v, want %s", at, err, r, want)
		}
	}
}

// A job in a container has a network, and PIDs, of its own.
func TestAskNamespace(t *testing.T) {
	need.Root(t, "only root can enter a network namespace")
	t.Parallel()
	h := probe.NewHost("")
	own, _ := os.Readlink("/proc/self/ns/net")
	pid := start(t, "lag", "127.0.0.1:28028", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID})
	a, err := Ask(h, []string{pid}, time.Minute, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	r, err := Parse(a.Text)
	if err == nil {
		err = r.Locate(append(a.Hosts, "10.0.0.1"), InnerPIDs(h, []string{pid}), func(int) string { return "gpu3" })
	}
	if err != nil || r.Last()[0].PID != 1 || r.Last()[0].Device != "gpu3" {
		t.Errorf("%v, %+v", err, r)
	}
	if now, _ := os.Readlink("/proc/thread-self/ns/net"); now != own {
		t.Errorf("this process is in %s, want %s", now, own)
	}
}

// Endpoints that cannot be asked, or must not be believed.
func TestAskHostile(t *testing.T) {
	t.Parallel()
	h := probe.NewHost("")
	self := strconv.Itoa(os.Getpid())
	for how, want := range map[string]string{
		"mute":    "no answer",
		"garbage": `got "hello?[2Jworld"`,
		"trickle": "no answer",
		"endless": "", // the parser refuses it
	} {
		at := "127.0.0.1:" + freePort(t)
		pid := start(t, how, at)
		began := time.Now()
		a, err := Ask(h, []string{pid}, 2*time.Second, func(string) {})
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", how, err, want)
		}
		if took := time.Since(began); took > Deadline {
			t.Errorf("%s: took %v", how, took)
		}
		if err == nil {
			if _, err := Parse(a.Text); !errors.Is(err, ErrNoReport) {
				t.Errorf("%s: %v", how, err)
			}
		}
		// The same endpoint is not that of another job.
		if _, err := Ask(h, []string{self, "999999999"}, time.Second, func(string) {}); !errors.Is(err, ErrNoEndpoint) {
			t.Errorf("%s: %v, want no endpoint of this process", how, err)
		}
	}
}

// Two jobs of a user share a port: the kernel chooses the one that answers.
func TestAskShared(t *testing.T) {
	t.Parallel()
	h := probe.NewHost("")
	at := "127.0.0.1:" + freePort(t)
	mine, other := start(t, "lag", at), start(t, "lag", at)
	answered, refused := 0, 0
	for range 40 {
		switch _, err := Ask(h, []string{mine}, time.Minute, func(string) {}); {
		case err == nil:
			answered++
		case strings.Contains(err.Error(), "not of this job"):
			refused++
		default:
			t.Fatal(err)
		}
	}
	if answered == 0 || refused == 0 {
		t.Errorf("process %s, beside %s: %d answers, %d refused, want both", mine, other, answered, refused)
	}
}

func TestParseAddress(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0100007F:6D7C":                         "127.0.0.1:28028",
		"00000000000000000000000001000000:6D7C": "[::1]:28028",
		"0000000000000000FFFF00000100007F:6D7C": "127.0.0.1:28028",
		"x":                                     "invalid AddrPort", "01:1": "invalid AddrPort",
	} {
		if got, _ := parseAddress(text); got.String() != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
