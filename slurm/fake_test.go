package slurm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// fake is a Runner that represents slurmctld and one node, as far as scontrol
// shows them.
type fake struct {
	state, reason string
	keepsReason   bool // as 24.11 does after RESUME
	returns       int  // ReturnToService

	groups  string // the partitions, as the guard reads them
	comment string // of the node

	jobs, reservations string // squeue's and scontrol's answers
	rebootProgram      string

	calls []string // "read", "count", "config", "DRAIN NHC: x", "RESUME", "comment", "COMMENT x"

	// on, if set, receives every call before it is served. It can change the node, and can
	// answer instead of slurmctld; then it returns true.
	on func(f *fake, call string) (Output, error, bool)
}

func (f *fake) Run(_ context.Context, argv, _ []string) (Output, error) {
	call := "read"
	switch {
	case argv[0] == "squeue":
		call = "jobs"
	case slices.Contains(argv, "reservation"):
		call = "reservations"
	case slices.Contains(argv, "reboot"):
		call = strings.Join(argv[1:], " ")
	case slices.Contains(argv, "-a"):
		call = "count"
	case slices.Contains(argv, "config"):
		call = "config"
	case strings.HasPrefix(argv[len(argv)-1], "Comment:"):
		call = "comment"
	case strings.HasPrefix(argv[len(argv)-1], "Comment="):
		call = "COMMENT " + strings.TrimPrefix(argv[len(argv)-1], "Comment=")
	case slices.Contains(argv, "update"):
		call = strings.TrimPrefix(argv[2], "State=")
		if len(argv) > 4 {
			call += " " + strings.TrimPrefix(argv[4], "Reason=")
		}
	}
	f.calls = append(f.calls, call)
	if f.on != nil {
		if out, err, done := f.on(f, call); done {
			return out, err
		}
	}
	switch call {
	case "jobs":
		return Output{Stdout: []byte(f.jobs)}, nil
	case "reservations":
		return Output{Stdout: []byte(f.reservations)}, nil
	case "count":
		return Output{Stdout: []byte(f.groups)}, nil
	case "comment":
		return Output{Stdout: fmt.Appendf(nil, "%-2048s\n", cmp.Or(f.comment, "(null)"))}, nil
	}
	if text, ok := strings.CutPrefix(call, "COMMENT "); ok {
		f.comment = text
		return Output{}, nil
	}
	if call == "read" && argv[0] == "sinfo" {
		return f.columns(), nil
	}
	return f.serve(call), nil
}

// columns returns sinfo's answer.
func (f *fake) columns() Output {
	return Output{Stdout: fmt.Appendf(nil, "%-200s%-60s%-2048s\n", strings.ToLower(f.state), "root", cmp.Or(f.reason, "none"))}
}

// serve returns slurmctld's answer.
func (f *fake) serve(call string) Output {
	verb, reason, _ := strings.Cut(call, " ")
	held := strings.Contains(f.state, "+DRAIN")
	switch {
	case verb == "read":
		return Output{Stdout: fmt.Appendf(nil, "NodeName=gpu01 Arch=x86_64 CPUs=1 State=%s ThreadsPerCore=1 AllocTRES=%s\n", f.state, f.shown())}
	case verb == "config":
		return Output{Stdout: fmt.Appendf(nil, "RebootProgram = %s\nReturnToService = %d\nSLURM_VERSION = 22.05.8\n", cmp.Or(f.rebootProgram, "(null)"), f.returns)}
	case verb == "reboot":
		f.state += "+REBOOT_ISSUED"
	case verb == "DRAIN":
		if !held {
			f.state += "+DRAIN"
		}
		f.reason = reason
	case !held && !strings.HasPrefix(f.state, "DOWN") && !strings.Contains(f.state, "+FAIL"):
		return Output{Status: 1, Stderr: []byte("slurm_update error: Invalid node state specified\n")}
	default:
		f.state = strings.ReplaceAll(strings.Replace(f.state, "DOWN", "IDLE", 1), "+DRAIN", "")
		if !f.keepsReason {
			f.reason = ""
		}
	}
	return Output{}
}

func (f *fake) shown() string {
	if f.reason == "" {
		return ""
	}
	return " Reason=" + f.reason + " [root@2026-11-21T06:23:00]"
}

// answer is a reply to a call instead of slurmctld's.
type answer func(f *fake, call string) (Output, error)

var (
	errNotFound = errors.New(`exec: "scontrol": executable file not found in $PATH`)

	timeout answer = func(*fake, string) (Output, error) { return Output{TimedOut: true}, nil }
	refused answer = func(*fake, string) (Output, error) {
		return failed(1, "Unable to contact slurm controller (connect failure)")
	}
	notFound answer = func(*fake, string) (Output, error) { return Output{Status: 127}, errNotFound }
	lost     answer = func(*fake, string) (Output, error) { return Output{}, errors.New("its worker died") }
	applied  answer = func(f *fake, call string) (Output, error) {
		f.serve(call)
		return failed(1, "Socket timed out on send/recv operation")
	}
)

func failed(status int, text string) (Output, error) {
	return Output{Status: status, Stderr: []byte("slurm_update error: " + text + "\n")}, nil
}

// always answers every call whose name begins with one of the names.
func always(a answer, names ...string) func(*fake, string) (Output, error, bool) {
	return func(f *fake, call string) (Output, error, bool) {
		for _, n := range names {
			if strings.HasPrefix(call, n) {
				out, err := a(f, call)
				return out, err, true
			}
		}
		return Output{}, nil, false
	}
}

// controller returns a controller of the fake, with its own memory.
func controller(t *testing.T, f *fake) *Controller {
	t.Helper()
	return &Controller{Node: "gpu01", Runner: f, Dir: &store{}, BootID: "boot-1"}
}

// store is a state directory in memory. broken is the error of every operation, full that of
// writing.
type store struct {
	mu           sync.Mutex
	data         []byte
	broken, full error
	held         bool // by another process
	locked       chan struct{}
}

func (s *store) Load() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data, s.broken
}

func (s *store) Save(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmp.Or(s.broken, s.full); err != nil {
		return err
	}
	s.data = data
	return nil
}

func (s *store) Lock(wait time.Duration) (func(), error) {
	s.mu.Lock()
	if s.locked == nil {
		s.locked = make(chan struct{}, 1)
	}
	held, broken := s.held, s.broken
	s.mu.Unlock()
	if broken != nil {
		return nil, broken
	}
	if !held {
		select {
		case s.locked <- struct{}{}:
			return func() { <-s.locked }, nil
		case <-time.After(wait):
		}
	}
	return nil, &BusyError{PID: 42, Age: time.Second}
}

// put replaces the stored data, as another program would.
func put(c *Controller, data string) { c.Dir.(*store).data = []byte(data) }

var (
	healthy = Verdict{Healthy: true}
	failing = Verdict{Message: "gpu3 fell off the bus"}
)

const ourReason = "NHC: gpu3 fell off the bus"

// act runs Act as a health check and checks the calls it made.
func act(t *testing.T, c *Controller, v Verdict, calls ...string) Outcome {
	t.Helper()
	o, err := c.Act(t.Context(), v, HealthCheck)
	if err != nil {
		t.Errorf("Act: %v", err)
	}
	called(t, c, o, calls...)
	return o
}

// called checks the calls since the previous check.
func called(t *testing.T, c *Controller, o Outcome, calls ...string) {
	t.Helper()
	f := c.Runner.(*fake)
	if !slices.Equal(f.calls, calls) || o.Calls != len(calls) {
		t.Errorf("calls %q (%d), want %q", f.calls, o.Calls, calls)
	}
	f.calls = nil
}

func (f *fake) is(t *testing.T, state, reason string) {
	t.Helper()
	if f.state != state || f.reason != reason {
		t.Errorf("node is %s, reason %q, want %s, reason %q", f.state, f.reason, state, reason)
	}
}
