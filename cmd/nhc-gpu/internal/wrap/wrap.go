// Package wrap is nhc-wrapper: it runs a health check and prints or mails the changes since the
// last run. cron starts it, never slurmd, so it opens its own files.
package wrap

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// Name is the command of nhc-gpu.
const Name = "wrap"

const optionSpec = ":A:D:L:M:P:S:VX:h"

// Exit statuses of LBNL's wrapper. It does not pass on that of the wrapped program.
const (
	ExitUsage = 99
	ExitState = 255
)

// notFound is bash's status for a program that does not exist.
const notFound = 127

// wrapper runs a program and reports only changes since its last run.
type wrapper struct {
	program string // name of the wrapper
	name    string // of the wrapped program: in texts, and of its files
	path    string // PATH of mail(1), and the end of that of the program
	run     run.Job
	state   *state
	dir     string // of the state; "" is the default
	mailTo  []string
	subject string
	verbose bool
	expire  int64 // seconds until an unchanged report is repeated; 0: never
	fudge   int64 // seconds that this may be early
	loop    string
	format  string // of times, as date(1) has it
	host    string
	sig     *console.Signals
	now     func() time.Time
}

// Run does what LBNL's nhc-wrapper does and returns the exit status. words[0] is the name
// that the program was called by: NAME-wrapper wraps NAME. path is the PATH of what it starts.
func Run(words []string, path string) int {
	w := &wrapper{program: filepath.Base(words[0]), path: path, now: time.Now, fudge: 5}
	w.format = cmp.Or(os.Getenv("NW_DATEFMT"), "(%F %T)")
	w.name = strings.TrimSuffix(w.program, "-wrapper")
	own := w.program == Name
	if own {
		w.program, w.name = "nhc-gpu "+Name, "nhc"
	}
	o, err := parse(words[1:])
	if o.help {
		help(w.program, w.name)
		return 0
	}
	if err != nil {
		fmt.Fprintf(console.Stdout, "ERROR:  %s\n", console.OptionError(err))
		help(w.program, w.name)
		return ExitUsage
	}
	for _, a := range o.mailTo {
		if strings.HasPrefix(a, "-") { // mail would take it for an option
			fmt.Fprintf(console.Stdout, "ERROR:  %q is not an e-mail address.\n", a)
			return ExitUsage
		}
	}
	unix.Umask(0o077)
	w.take(o, words[0], own)
	w.sig = console.CatchSignals()
	defer w.sig.Stop()
	return w.work(o.expire)
}

// take applies the command line and the environment.
func (w *wrapper) take(o arguments, argv0 string, own bool) {
	w.dir, w.mailTo, w.subject, w.verbose, w.loop = o.dir, o.mailTo, o.subject, o.verbose, o.loop
	path := w.path // after the directories of the wrapper itself
	exe, err := os.Executable()
	if err == nil {
		path = filepath.Dir(exe) + ":" + path
	}
	if strings.Contains(argv0, "/") {
		path = filepath.Dir(argv0) + ":" + path
	}
	w.run = run.Job{Merge: true, Timeout: w.limit(os.Getenv("NW_TIMEOUT"))}
	switch {
	case o.program != "":
		if strings.Contains(o.program, "/") {
			path = filepath.Dir(o.program) + ":" + path
		}
		w.name = filepath.Base(o.program)
		w.run.Program = ""
	case own && err == nil:
		w.run.Program = exe
	}
	w.run.Argv = append([]string{w.name}, o.words...)
	host, _ := os.Hostname()
	w.host, _, _ = strings.Cut(host, ".")
	w.subject = cmp.Or(w.subject, "NHC Report for "+w.host)
	w.run.Env = append(os.Environ(), "PATH="+path, "SUBPROG="+w.name, "HOSTNAME="+host, "HOSTNAME_S="+w.host)
}

// defaultLimit is the time limit of a wrapped program without NW_TIMEOUT: much longer than any
// TIMEOUT of nhc.
const defaultLimit = 10 * time.Minute

func (w *wrapper) limit(spec string) time.Duration {
	if spec == "" {
		return defaultLimit
	}
	t := parseTimespec(spec)
	if t.wrong != "" {
		w.warn(fmt.Errorf("NW_TIMEOUT: %s The limit is %s", t.wrong, defaultLimit))
		return defaultLimit
	}
	return time.Duration(t.secs) * time.Second
}

type arguments struct {
	dir, loop, program, subject, expire string
	mailTo, words                       []string
	verbose, help                       bool
}

// parse reads the options. The first argument that is not an option of the wrapper begins those of
// the wrapped program.
func parse(args []string) (o arguments, err error) {
	var pass []string
	rest, err := checks.Getopts(optionSpec, args, func(opt byte, arg string) {
		switch opt {
		case 'A':
			pass = strings.Fields(arg)
		case 'D':
			o.dir = arg
		case 'L':
			o.loop = arg
		case 'M':
			o.mailTo = strings.Fields(arg)
		case 'P':
			o.program = arg
		case 'S':
			o.subject = arg
		case 'V':
			o.verbose = true
		case 'X':
			o.expire = arg
		case 'h':
			o.help = true
		}
	})
	if usage, ok := errors.AsType[*checks.UsageError](err); ok && usage.Kind == checks.BadOption {
		rest, err = args[len(args)-len(rest)-1:], nil
	}
	o.words = append(pass, rest...)
	return o, err
}

func (w *wrapper) work(expire string) int {
	state, err := openDefault(w.dir, w.name)
	if err != nil {
		dir := w.dir
		if state != nil {
			dir = state.path
		}
		fmt.Fprintf(console.Stdout, "ERROR:  State directory \"%s\" create/chown/chmod failed for uid %d.  Aborting.\n", dir, os.Geteuid())
		fmt.Fprintf(console.Stderr, "%s: %v\n", w.program, err)
		return ExitState
	}
	defer state.close()
	w.state = state
	if expire != "" {
		t := parseTimespec(expire)
		t.complain()
		w.expire = t.secs
		if t.hasFudge {
			w.fudge = t.fudge
		}
		w.vecho("Note:  Results will expire after %d seconds.", w.expire)
	}
	w.once()
	if w.loop != "" {
		w.forever()
	}
	if sig := w.sig.Caught(); sig != 0 {
		fmt.Fprintf(console.Stdout, "Terminated by signal %s.\n", console.SignalName(sig))
		return 128 + int(sig)
	}
	return 0
}

// once runs the program and reports the changes.
func (w *wrapper) once() {
	unlock, err := w.state.lock()
	if err != nil {
		w.warn(err)
		return
	}
	defer unlock()
	pool := run.NewPool(run.Options{Root: "/"})
	defer pool.Close() // in a loop not even a worker may accumulate anything
	_, doubts, err := pool.OpenState(w.state.path, "", "")
	if err != nil {
		doubts = append(doubts, err)
	}
	for _, err := range doubts {
		w.warn(err)
	}
	out, failed, ok := w.spawn(pool)
	if !ok {
		return
	}
	w.age()
	c, changed := w.compare(out, failed)
	switch {
	case len(w.mailTo) > 0:
		w.mail(pool, c, changed)
	case changed:
		_, _ = console.Stdout.Write(c.text())
	}
}

// spawn runs the program and returns its output, and whether it failed. An error that
// prevents its start or its end is part of the output.
func (w *wrapper) spawn(pool *run.Pool) (out []byte, failed, ok bool) {
	w.vecho("Executing \"%s\" %s", strings.Join(w.run.Argv, " "), w.stamp())
	o, err := pool.Run(w.sig.Ctx, w.run)
	if w.sig.Ctx.Err() != nil {
		return nil, false, false
	}
	add := func(format string, args ...any) {
		if n := len(o.Stdout); n > 0 && o.Stdout[n-1] != '\n' {
			o.Stdout = append(o.Stdout, '\n')
		}
		o.Stdout = fmt.Appendf(o.Stdout, "%s: %s: %s\n", w.program, w.name, fmt.Sprintf(format, args...))
	}
	if o.Cut {
		add("output cut after %d bytes", len(o.Stdout))
	}
	switch {
	case err != nil && o.Status == notFound:
		add("command not found")
	case err != nil:
		add("%v", err)
	case o.TimedOut:
		add("killed after %s", w.run.Timeout)
	}
	w.vecho("%s returned %d %s", w.name, o.Status, w.stamp())
	return o.Stdout, o.Status != 0 || err != nil || o.TimedOut, true
}

func (w *wrapper) stamp() string { return formatTime(w.now(), w.format) }

func (w *wrapper) vecho(format string, args ...any) {
	if w.verbose {
		fmt.Fprintf(console.Stdout, format+"\n", args...)
	}
}

func (w *wrapper) warn(err error) { fmt.Fprintf(console.Stderr, "%s: warning: %v\n", w.program, err) }

// mailLimit bounds one run of mail(1), which only queues the mail.
const mailLimit = 30 * time.Second

// MailPrograms are the paths that are tried for mail(1).
var MailPrograms = []string{"/usr/bin/mail", "/bin/mail"}

// mail sends the changes, after reports that could not be sent before. A report stays on disk until
// it is sent: a mail program that fails loses none.
func (w *wrapper) mail(pool *run.Pool, c change, changed bool) {
	if changed {
		if err := w.state.queue([]byte(verdict.Printable(string(c.mail())))); err != nil {
			w.warn(err)
		}
	}
	path, waiting := w.state.waiting()
	if !waiting {
		return
	}
	argv := append([]string{"mail", "-s", w.subject}, w.mailTo...)
	env := append(os.Environ(), "PATH="+w.path)
	var err error
	for _, program := range MailPrograms {
		var missing bool
		missing, err = w.deliver(pool, run.Job{Argv: argv, Env: env, Program: program, Input: path, Merge: true, Timeout: mailLimit})
		if err == nil {
			w.state.forget(mailFile)
			if changed && c.cleared {
				w.vecho("E-mail notification of cleared error sent to %s.", strings.Join(w.mailTo, " "))
			} else {
				w.vecho("Results e-mailed to %s", strings.Join(w.mailTo, " "))
			}
			return
		}
		if !missing {
			break
		}
		err = fmt.Errorf("no mail program: %s", strings.Join(MailPrograms, ", "))
	}
	w.warn(fmt.Errorf("mail to %s was not sent; the next run tries again: %w", strings.Join(w.mailTo, " "), err))
}

// deliver runs mail(1). missing reports that the program does not exist.
func (w *wrapper) deliver(pool *run.Pool, j run.Job) (missing bool, err error) {
	o, err := pool.Run(w.sig.Ctx, j)
	text, _, _ := strings.Cut(strings.TrimSpace(string(o.Stdout)), "\n")
	switch {
	case err != nil:
		return o.Status == notFound, fmt.Errorf("run %s: %w", j.Program, err)
	case o.TimedOut:
		return false, fmt.Errorf("%s did not end within %s", j.Program, j.Timeout)
	case o.Status != 0:
		return false, fmt.Errorf("%s ended with status %d: %s", j.Program, o.Status, text)
	}
	return false, nil
}
