package probe

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTalk(t *testing.T) {
	t.Parallel()
	h := NewHost("/")
	c := Command{Argv: []string{"bash", "-c", `read a; echo "got $a"; read b; echo bad >&2; exit 7`}, Errors: 1 << 10}
	talk, err := StartTalk(t.Context(), h, c)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(talk.Out)
	if _, err := talk.In.WriteString("one\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := lines.ReadString('\n'); line != "got one\n" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
	if _, err := talk.In.WriteString("two\n"); err != nil {
		t.Fatal(err)
	}
	if x := talk.Wait(t.Context()); x.Status != 7 || string(x.Errors) != "bad\n" || x.TimedOut {
		t.Errorf("%+v", x)
	}
	if _, err := StartTalk(t.Context(), h, Command{Argv: []string{"/nonexistent/program"}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such program: %v", err)
	}
}

// The end of the context ends the command and its children, even those that ignore SIGTERM.
func TestTalkEnds(t *testing.T) {
	t.Parallel()
	talk, err := StartTalk(t.Context(), NewHost("/"), Command{Argv: []string{"bash", "-c", `trap "" TERM; (trap "" TERM; echo $BASHPID; while :; do read -t 1; done) & wait; wait`}})
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(talk.Out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if x := talk.Wait(ctx); !x.TimedOut || x.Status != Signalled+int(unix.SIGKILL) {
		t.Errorf("%+v", x)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		state, err := NewHost("/").ReadFile("/proc/" + strings.TrimSpace(line) + "/stat")
		if err != nil || strings.Contains(string(state), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("its child is left: %s", state)
		}
	}
}

// A command whose start was abandoned is killed and reaped if it starts after all.
func TestTalkStartsLate(t *testing.T) {
	h := NewHost("/")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	syscall.ForkLock.RLock() // no process starts
	talk, err := StartTalk(ctx, h, Command{Argv: []string{"sleep", "inf"}, Grace: time.Millisecond})
	syscall.ForkLock.RUnlock()
	if talk != nil || !errors.Is(err, context.Canceled) || !h.Blocked() {
		t.Fatalf("%v, %v", talk, err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if !strings.Contains(string(stacks), "probe.(*Host).start.") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the command is not reaped:\n%s", stacks)
		}
	}
}
