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

// CommandPath is where commands are looked for unless [Host.SetEnviron] says
// otherwise: the PATH that LBNL NHC sets.
const CommandPath = "/sbin:/usr/sbin:/bin:/usr/bin"

// Grace is how long a command may take to heed a signal before the next one,
// and to start once its time is up, unless it says otherwise.
const Grace = 200 * time.Millisecond

// Command is a program to run. It gets /dev/null as standard input, or Input, or
// Stdin, never a descriptor of this process.
type Command struct {
	Argv    []string      // program and arguments, no shell in between
	Program string        // the file to run, if it is not the one that Argv names
	Input   string        // file that is the standard input; no link is followed
	Stdin   []byte        // text that is the standard input, at most what a pipe holds (64 KiB)
	Env     []string      // on top of the environment that the Host gives to commands
	Unset   string        // variables that begin so are not in it, but for those of Env; "": none
	Dir     string        // working directory on the node; "" is this process's own
	Timeout time.Duration // when to end it; 0 means only when the context does
	Output  int           // how much of the standard output to keep, in bytes; 0 sends it to /dev/null
	Errors  int           // the same for the standard error
	Said    bool          // keep the last line of the standard error; Errors does not apply
	Merge   bool          // send the standard error to where the standard output goes; Errors does not apply

	// Signals are sent to the whole process group when the time is up, one
	// after the other with Grace in between, and then SIGKILL. Nil means SIGTERM.
	Signals []syscall.Signal
	Grace   time.Duration // 0 means [Grace]

	// Lasting says that what the command starts shall live on, as the daemon
	// of a service does. Otherwise every process of its group is killed once
	// the command has ended.
	Lasting bool

	// CPUs are those that it may run on: it and what it starts, whose memory is then
	// near to them. None means those of this process.
	CPUs []int

	// Linger is how long what the command leaves behind when it ends may still
	// write; after that it is left alone. 0: as long as the command itself may
	// run, after which it is killed.
	Linger time.Duration
}

// Exit is how a command ended.
type Exit struct {
	Status    int    // as bash has it: 127 not found, 126 not executable, 128+N killed by signal N
	Output    []byte // the first Command.Output bytes of the standard output
	Truncated bool   // there was more
	Errors    []byte // the first Command.Errors bytes of the standard error
	Said      string // the last line of the standard error, shortened and printable; see Command.Said
	TimedOut  bool   // it had to be ended
	Stuck     bool   // it survived SIGKILL and was left behind; Status is 137
	Err       error  // why it could not be started; nil otherwise
}

// Run runs a command and returns at the latest when all its signals have had
// their Grace after its time was up, whatever becomes of the command.
//
// The command leads a process group of its own but stays in the session of
// this process, so that whoever ends the session ends the command, too. A
// Lasting one has its own session.
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
	}{{c.Output, &out, &stdout}, {c.Errors, &errs, &stderr}} {
		if keep.limit == 0 || (c.Merge || c.Said) && keep.file == &stderr {
			continue
		}
		var err error
		if *keep.by, *keep.file, err = newCapture(keep.limit); err != nil {
			return Exit{Status: notExecutable, Err: err}
		}
	}
	var said *errorFile
	if c.Said {
		said, stderr, _ = newErrorFile() // without one it is /dev/null
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

// RunOnce is Run for a command whose answer holds for the life of the Host: it
// is run when key is first asked for, and remembered.
func (h *Host) RunOnce(ctx context.Context, key string, c Command) Exit {
	x, _ := Once(h, "run "+key, func() (Exit, error) { return h.Run(ctx, c), nil })
	return x
}

// Spawn starts a command in a session of its own and leaves it to itself: it
// goes on when this process ends. It waits a moment for the end of the command, and
// returns the last line that it has written to its standard error by then. Timeout,
// Output and Signals do not apply.
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

// Blocked says whether this process can start no more commands: one of them
// never came to run, since its program lies on a file system that does not
// answer, and holds the lock that every other start needs; or a call of a library has
// been left behind.
func (h *Host) Blocked() bool { return h.blocked.Load() }

// LeaveBehind says that a call of a library does not come back, and that nobody waits
// for it any more: this process is of no further use.
func (h *Host) LeaveBehind() { h.blocked.Store(true) }

// process is a command under way.
type process struct {
	started   chan error    // gives nil, or why there is no process
	abandoned chan struct{} // closed by the owner if it cannot wait for the start
	exited    chan struct{} // closed when the process has ended, before it is reaped
	reap      chan struct{} // closed by the owner: the pid is not needed any more
	status    chan int      // gives the status when the process has been reaped
	grace     time.Duration // see Grace
	pid       int           // leader of the group; valid once started has given nil
	strays    []int         // descendants outside the group
	unstarted bool          // there was no waiting for its start any longer
}

// start starts a command in the background, for even that may block: the
// program may lie on a file system that does not answer. While a process that
// has ended is not reaped its group keeps its number, so that the group can be
// signalled without hitting a stranger.
func (h *Host) start(c Command, attr *syscall.SysProcAttr, stdout, stderr *os.File) *process {
	p := &process{
		started:   make(chan error),
		abandoned: make(chan struct{}),
		exited:    make(chan struct{}),
		reap:      make(chan struct{}),
		status:    make(chan int, 1),
		grace:     cmp.Or(c.Grace, Grace),
	}
	now := h.Apart() // the environment may change meanwhile
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
		p.status <- bashStatus(reap(p.pid))
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

// await waits until the process has ended and its output is at an end, or ends
// the process when the context does. It says whether there is a process that
// has ended; if not, the Exit tells why.
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
	if out != nil { // what the process left behind may still write
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

// awaitStart waits until the process is started, a Grace longer than the
// context allows; one that starts only after that is killed. It says whether
// there is an answer; the error is why there is no process.
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

// end signals the process until it has ended. It says whether it has.
func (p *process) end(signals []syscall.Signal) bool {
	if signals == nil {
		signals = []syscall.Signal{unix.SIGTERM}
	}
	for _, sig := range append(slices.Clip(signals), unix.SIGKILL) {
		p.strays = append(p.strays, descendants(p.pid)...)
		p.signal(sig)
		select {
		case <-p.exited:
			return true
		case <-time.After(p.grace):
		}
	}
	return false
}

// signal reaches the group, and with it what has left the group.
func (p *process) signal(sig syscall.Signal) {
	_ = unix.Kill(-p.pid, sig) // an error means that nobody is left
	for _, pid := range p.strays {
		_ = unix.Kill(pid, sig)
	}
}
