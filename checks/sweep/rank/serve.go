package rank

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

// Options configure a rank.
type Options struct {
	Version string    // of nhc-gpu
	Name    string    // of the node in Slurm; "": SLURMD_NODENAME, or the host name
	Errors  io.Writer // what the launcher cannot know: nil is the standard error
	// Settings are those of the node's sysconfig file: its libraries and HOSTROOT.
	Settings map[string]string
	Platform checks.PlatformOf // finds the platform of a GPU model; can be nil
	NCCL     NCCLSite

	root    string     // of the node's files
	program string     // see node
	environ []string   // of commands; nil: this process's
	self    sweep.Node // the description of the node, in tests
}

const (
	ticketLimit  = 30 * time.Second // for the ticket to come by the standard input
	connectLimit = 60 * time.Second // to connect to the launcher, at least; a busy one admits thousands
	endLimit     = 1900 * time.Millisecond
	scancelLimit = 10 * time.Second
	scancelAfter = time.Second // at most: not all ranks at the same moment
)

// Serve reads a ticket, connects to its launcher, and carries out tasks until the launcher says
// goodbye, which is nil. After anything else it returns why it has ended.
func Serve(ctx context.Context, in io.Reader, o Options) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGPIPE)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go awaitSignal(ctx, signals, cancel)

	ticket, err := awaitTicket(ctx, in)
	if err != nil {
		return err
	}
	if ticket.Limit > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeoutCause(ctx, ticket.Limit, errLimit)
		defer stop()
	}
	s := newSession(&o, ticket)
	if err := s.connect(ctx); err != nil {
		return err
	}
	return s.serve(ctx)
}

// awaitSignal has a signal end the context.
func awaitSignal(ctx context.Context, signals <-chan os.Signal, end context.CancelCauseFunc) {
	for {
		select {
		case s := <-signals:
			if s != unix.SIGPIPE { // the standard error is gone, and the rank goes on
				end(&signalError{s})
			}
		case <-ctx.Done():
			return
		}
	}
}

// signalError means that a signal has ended the rank.
type signalError struct{ signal os.Signal }

func (e *signalError) Error() string {
	name := e.signal.String()
	if s, ok := e.signal.(syscall.Signal); ok {
		name = unix.SignalName(s)
	}
	return "ended by " + name
}

// These are other reasons of an end.
var (
	errLimit    = errors.New("the time limit of the sweep is over")
	errLauncher = errors.New("the launcher is gone")
)

// awaitTicket reads the ticket. The standard input may never end, and srun may be gone.
func awaitTicket(ctx context.Context, in io.Reader) (*wire.Ticket, error) {
	type result struct {
		ticket *wire.Ticket
		err    error
	}
	c := make(chan result, 1)
	go func() {
		t, err := wire.ReadTicket(in)
		c <- result{t, err}
	}()
	select {
	case r := <-c:
		return r.ticket, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(ticketLimit):
		return nil, fmt.Errorf("read the ticket from the standard input: nothing came for %v", ticketLimit)
	}
}

// session is a rank and its connection to the launcher.
type session struct {
	ticket *wire.Ticket
	node   *node
	conn   *wire.Conn
	tasks  *tasks
	log    *log.Logger
}

func newSession(o *Options, t *wire.Ticket) *session {
	if o.Errors == nil {
		o.Errors = os.Stderr
	}
	s := &session{ticket: t, log: log.New(o.Errors, "nhc-gpu sweep: ", log.Lmsgprefix)}
	s.node = &node{host: probe.NewHost(cmp.Or(o.root, o.Settings["HOSTROOT"])), version: o.Version, program: cmp.Or(o.program, "/proc/self/exe"), Node: o.self, nccl: o.NCCL}
	if o.environ == nil {
		o.environ = os.Environ() // with the PATH of the launcher's user, which has Slurm's programs
	}
	s.node.host.SetEnviron(o.environ)
	probe.SetLibraries(s.node.host, o.Settings)
	if s.node.Name == "" {
		var silent []string
		s.node.Node, s.node.addresses, silent = describe(s.node.host, cmp.Or(o.Name, os.Getenv("SLURMD_NODENAME")), o.Platform)
		for _, what := range silent {
			s.log.Printf("%s: the files of its %s did not answer within %v", s.node.Name, what, describeLimit)
		}
	}
	return s
}

// connect connects to the launcher.
func (s *session) connect(ctx context.Context) error {
	dialing, cancel := context.WithTimeout(ctx, max(connectLimit, s.ticket.Silence))
	defer cancel()
	conn, err := wire.Dial(dialing, s.ticket, wire.Hello{Version: s.node.version, Node: s.node.Node, PID: os.Getpid()})
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !errors.As(err, new(*wire.RefusedError)) {
			s.cancelJob(ctx)
		}
		return err
	}
	s.conn = conn
	if a, err := netip.ParseAddrPort(conn.Address()); err == nil {
		s.node.towards = a.Addr().Unmap()
	}
	s.tasks = newTasks(s.node, func(m *wire.Message) {
		if err := conn.Send(m); err != nil {
			s.log.Print(err) // Receive fails, too, and ends the rank
		}
	})
	return nil
}

// serve handles the launcher's messages, and ends every task at the end.
func (s *session) serve(ctx context.Context) error {
	beating, cancel := context.WithCancel(context.Background())
	defer cancel()
	go s.conn.Beat(beating)
	messages, lost := s.receive(beating)
	var why error
	for why == nil {
		select {
		case m := <-messages:
			if m.Bye != "" {
				s.end("")
				return nil
			}
			s.tasks.handle(m)
		case err := <-lost:
			why = fmt.Errorf("%w: %w", errLauncher, err)
		case <-ctx.Done():
			why = context.Cause(ctx)
		}
	}
	if !errors.Is(why, errLauncher) {
		s.end(why.Error())
		return why
	}
	s.end("")
	s.cancelJob(ctx)
	return why
}

// receive receives messages until the connection fails or the context ends.
func (s *session) receive(ctx context.Context) (<-chan *wire.Message, <-chan error) {
	messages, lost := make(chan *wire.Message), make(chan error, 1)
	go func() {
		for {
			m, err := s.conn.Receive()
			if err != nil {
				lost <- err
				return
			}
			select {
			case messages <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	return messages, lost
}

// end ends all tasks, within endLimit, and says goodbye unless the launcher is gone.
func (s *session) end(bye string) {
	if bye != "" {
		_ = s.conn.Send(&wire.Message{Bye: bye})
	}
	if left := s.tasks.end(endLimit); left > 0 {
		s.log.Printf("%s: %d tasks could not be ended: a process hangs in the kernel", s.node.Name, left)
	}
	_ = s.conn.Close()
}

// cancelJob ends the job of the sweep if the ticket allows that, and the launcher is gone, which
// would have done so. A rank that has lost its network, or was frozen, must not end the sweep of the
// others: then the time limit of the job ends it.
func (s *session) cancelJob(ctx context.Context) {
	if s.ticket.Job == "" {
		return
	}
	if !wire.Gone(ctx, s.ticket) {
		s.log.Printf("%s: lost its launcher, which may still run: job %s is not cancelled", s.node.Name, s.ticket.Job)
		return
	}
	select {
	case <-time.After(rand.N(scancelAfter)):
	case <-ctx.Done(): // another rank was faster, and Slurm ends this one
		return
	}
	x := s.node.host.Run(ctx, probe.Command{Argv: []string{"scancel", s.ticket.Job}, Timeout: scancelLimit, Said: true})
	if x.Status != 0 && ctx.Err() == nil {
		s.log.Printf("%s: scancel %s: exit status %d: %s", s.node.Name, s.ticket.Job, x.Status, cmp.Or(x.Said, fmt.Sprint(x.Err)))
	}
}
