package probe

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// CommandPath is the PATH of commands unless [Host.SetEnviron] sets another: the PATH that LBNL NHC
// sets.
const CommandPath = "/sbin:/usr/sbin:/bin:/usr/bin"

// Grace is the default time that a command gets to react to a signal before the next one, and to
// start after its time is up.
const Grace = 200 * time.Millisecond

// Command is a program to run. It gets /dev/null as standard input, or Input, or
// Stdin, never a descriptor of this process.
type Command struct {
	Argv    []string      // program and arguments, no shell in between
	Program string        // the file to run if it is not the one that Argv names
	Input   string        // file that is the standard input; links are not followed
	Stdin   []byte        // text that is the standard input
	Env     []string      // added to the environment that the Host gives to commands
	Unset   string        // prefix of variables to remove, except those of Env; "": none
	Dir     string        // working directory on the node; "" is this process's own
	Timeout time.Duration // when to end the command; 0 means only when the context ends
	Output  int           // how much of the standard output to keep, in bytes; 0 sends it to /dev/null
	Errors  int           // the same for the standard error
	Heard   func([]byte)  // called with the kept part of the standard error each time that it grows; must not wait
	Said    bool          // keep the last line of the standard error; Errors does not apply
	Merge   bool          // send the standard error to the standard output's destination; Errors does not apply

	// Signals are sent to the whole process group when the time is up, one after the other with
	// Grace in between, and then SIGKILL. Nil means SIGTERM.
	Signals []syscall.Signal
	Grace   time.Duration // 0 means [Grace]

	// Lasting means that processes that the command starts continue, such as the daemon of a
	// service. Otherwise Run kills every process of the command's group after the command has
	// ended.
	Lasting bool

	// CPUs are the CPUs for the command and its children, so that their memory is near. None means
	// those of this process.
	CPUs []int

	stdin *os.File // the standard input, see Talk

	// Linger is how long processes that the command leaves behind may still write; Run does not
	// wait for them after that. If it is 0, they may write as long as the command itself may run,
	// and are then killed.
	Linger time.Duration
}

// Exit is how a command ended.
type Exit struct {
	Status    int    // as in bash: 127 not found, 126 not executable, 128+N killed by signal N
	Output    []byte // the first Command.Output bytes of the standard output
	Truncated bool   // there was more
	Errors    []byte // the first Command.Errors bytes of the standard error
	Said      string // the last line of the standard error, shortened and printable; see Command.Said
	TimedOut  bool   // Run had to end it
	Stuck     bool   // it survived SIGKILL and was left behind; Status is 137
	Err       error  // why it could not start; nil otherwise
}

// Run runs a command. It returns at the latest when all signals have had their Grace after the time
// was up, even if the command still runs.
//
// The command leads its own process group but stays in the session of this process, so that ending
// the session ends the command, too. A Lasting command has its own session.
func (h *Host) Run(ctx context.Context, c Command) Exit {
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	var out, errs *capture
	var stdout, stderr *os.File
	for _, keep := range []struct {
		limit int
		by    **capture
		file  **os.File
		heard func([]byte)
	}{{c.Output, &out, &stdout, nil}, {c.Errors, &errs, &stderr, c.Heard}} {
		if keep.limit == 0 || (c.Merge || c.Said) && keep.file == &stderr {
			continue
		}
		var err error
		if *keep.by, *keep.file, err = newCapture(keep.limit, keep.heard); err != nil {
			if out != nil {
				_ = stdout.Close()
				out.stop()
			}
			return Exit{Status: notExecutable, Err: err}
		}
	}
	var said *errorFile
	if c.Said {
		said, stderr, _ = newErrorFile() // on failure it is /dev/null
	}
	p := h.start(c, &syscall.SysProcAttr{Setpgid: !c.Lasting, Setsid: c.Lasting}, stdout, stderr)
	x, ended := p.await(ctx, c, out)
	if p.unstarted {
		h.blocked.Store(true)
	}
	if ended && !c.Lasting && (c.Linger == 0 || x.TimedOut) {
		p.signal(unix.SIGKILL)
	}
	close(p.reap)
	if ended {
		x.Status = <-p.status
	}
	if out != nil {
		x.Output, x.Truncated = out.stop()
	}
	if errs != nil {
		x.Errors, _ = errs.stop()
	}
	if said != nil {
		x.Said = said.close()
	}
	return x
}

// RunOnce is Run for a command whose result does not change during the life of the Host. It runs
// the command at the first call with this key, and returns the stored result after that.
func (h *Host) RunOnce(ctx context.Context, key string, c Command) Exit {
	x, _ := Once(h, "run "+key, func() (Exit, error) { return h.Run(ctx, c), nil })
	return x
}

// Spawn starts a command in its own session; the command continues after this process ends. Spawn
// waits a moment for the end of the command, and returns the last line that the command has written
// to its standard error by then. Timeout, Output and Signals do not apply.
func (h *Host) Spawn(ctx context.Context, c Command) (said string, err error) {
	errs, stderr, err := newErrorFile()
	if err != nil {
		return "", err
	}
	p := h.start(c, &syscall.SysProcAttr{Setsid: true}, nil, stderr)
	close(p.reap)
	ok, err := p.awaitStart(ctx)
	switch {
	case !ok:
		h.blocked.Store(true)
		err = ctx.Err()
	case err == nil:
		select {
		case <-p.exited:
		case <-ctx.Done():
		case <-time.After(spawnListen):
		}
	}
	return errs.close(), err
}

// Blocked reports whether this process cannot start more commands. Either a command never started
// because its program lies on a file system that does not answer, and it holds the lock that every
// start needs; or a call of a library was abandoned.
func (h *Host) Blocked() bool { return h.blocked.Load() }

// LeaveBehind records that a call of a library has not returned and was abandoned: this process can
// do no further work.
func (h *Host) LeaveBehind() { h.blocked.Store(true) }

// process is a command in progress.
type process struct {
	started   chan error    // delivers nil, or why there is no process
	abandoned chan struct{} // closed by the owner if it cannot wait for the start
	exited    chan struct{} // closed when the process has ended, before it is reaped
	reap      chan struct{} // closed by the owner when it no longer needs the PID
	status    chan int      // delivers the status when the process has been reaped
	grace     time.Duration // see Grace
	pid       int           // leader of the group; valid once started has delivered nil
	strays    []int         // descendants outside the group
	unstarted bool          // the wait for its start was abandoned
}

// start starts a command in the background, because even that may block: the program may lie on a
// file system that does not answer. Until an ended process is reaped, the number of its group is
// not reused, so a signal to the group cannot hit another process.
func (h *Host) start(c Command, attr *syscall.SysProcAttr, stdout, stderr *os.File) *process {
	p := &process{
		started:   make(chan error),
		abandoned: make(chan struct{}),
		exited:    make(chan struct{}),
		reap:      make(chan struct{}),
		status:    make(chan int, 1),
		grace:     cmp.Or(c.Grace, Grace),
	}
	now := h.Apart() // the environment may change in the meantime
	go func() {
		pid, err := execute(now, c, attr, stdout, stderr)
		for _, f := range []*os.File{stdout, stderr} {
			if f != nil {
				_ = f.Close()
			}
		}
		if err == nil {
			p.pid = pid
		}
		select {
		case p.started <- err:
		case <-p.abandoned:
			if err == nil {
				_ = unix.Kill(-p.pid, unix.SIGKILL)
			}
		}
		if err != nil {
			return
		}
		awaitExit(p.pid)
		close(p.exited)
		<-p.reap
		p.status <- ExitStatus(reap(p.pid))
	}()
	return p
}

// awaitExit waits for the end of a child without reaping it.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// reap waits for a child that has ended.
func reap(pid int) syscall.WaitStatus {
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(pid, &status, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			return status
		}
	}
}

// await waits until the process has ended and its output is complete, or ends the process when the
// context ends. It returns whether a process has ended; if not, the Exit explains why.
func (p *process) await(ctx context.Context, c Command, out *capture) (Exit, bool) {
	stuck := Exit{Status: Signalled + int(unix.SIGKILL), TimedOut: true, Stuck: true}
	ok, err := p.awaitStart(ctx)
	if err != nil {
		return Exit{Status: startStatus(err), Err: err}, false
	}
	if !ok {
		return stuck, false
	}
	select {
	case <-p.exited:
	case <-ctx.Done():
		if !p.end(c.Signals) {
			return stuck, false
		}
		return Exit{TimedOut: true}, true
	}
	if out != nil { // processes left behind may still write
		if c.Linger > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, c.Linger)
			defer cancel()
		}
		select {
		case <-out.eof:
		case <-ctx.Done():
		}
	}
	return Exit{}, true
}

// awaitStart waits until the process has started, at most a Grace longer than the context allows.
// It kills a process that starts after that. It returns whether there is an answer; the error
// explains why there is no process.
func (p *process) awaitStart(ctx context.Context) (bool, error) {
	select {
	case err := <-p.started:
		return true, err
	case <-ctx.Done():
	}
	select {
	case err := <-p.started:
		return true, err
	case <-time.After(p.grace):
		close(p.abandoned)
		p.unstarted = true
		return false, nil
	}
}

// end signals the process until it has ended. It returns whether it has.
func (p *process) end(signals []syscall.Signal) bool {
	if signals == nil {
		signals = []syscall.Signal{unix.SIGTERM}
	}
	for _, sig := range append(slices.Clip(signals), unix.SIGKILL) {
		p.strays = append(p.strays, listDescendants(p.pid)...)
		p.signal(sig)
		select {
		case <-p.exited:
			return true
		case <-time.After(p.grace):
		}
	}
	return false
}

// signal signals the group and the processes that have left the group.
func (p *process) signal(sig syscall.Signal) {
	_ = unix.Kill(-p.pid, sig) // an error means that the group is empty
	for _, pid := range p.strays {
		_ = unix.Kill(pid, sig)
	}
}
