package lbnl

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// psService checks that the process of a service runs. With -S, -r, -c or -e it starts a
// missing service. With -s, -k or -E it checks that the process does not run, and ends it. MATCH
// is compared with the first word of each command line, or with the whole line if -f is given.
// Without MATCH, the first word must end in DAEMON or the name of the service. An action runs
// in the background. With -v the check waits for it and evaluates its exit status; with -V it
// then also checks the process or the service again.
//
//	node* || check_ps_service -u root -S crond
//	node* || check_ps_service -u root -S -f -m '@(*/sshd|*/sshd *)' sshd
type psService struct {
	Service       []string `arg:"*" toml:"service"`        // the name of the service
	Owner         string   `opt:"u" toml:"user"`           // match string for the user's name, or a uid
	Daemon        string   `opt:"d" toml:"daemon"`         // the name of the program; default: the service's
	Match         string   `opt:"m" toml:"match"`          // match string for the program
	FullMatch     bool     `opt:"f" toml:"full_match"`     // compare with the whole command line
	Nonfatal      bool     `opt:"0" toml:"nonfatal"`       // warn, do not fail
	Start         bool     `opt:"S" toml:"start"`          // if missing: service NAME start
	Restart       bool     `opt:"r" toml:"restart"`        // if missing: service NAME restart
	Cycle         bool     `opt:"c" toml:"cycle"`          // if missing: stop, wait 2 s, start
	MissingAction string   `opt:"e" toml:"missing_action"` // if missing: run this shell line
	Stop          bool     `opt:"s" toml:"stop"`           // if found: service NAME stop
	Kill          bool     `opt:"k" toml:"kill"`           // if found: send SIGKILL
	FoundAction   string   `opt:"E" toml:"found_action"`   // if found: run this shell line
	Wait          bool     `opt:"v" toml:"wait"`           // wait for the action and evaluate its exit status
	Verify        bool     `opt:"V" toml:"verify"`         // like -v, and check the process or the service again
}

// Doubt implements [checks.Doubtful]. The title of sshd begins with "sshd:", which *sshd does not match:
// LBNL NHC restarts a healthy sshd in each run (its issues 99, 151 and 169).
func (s *psService) Doubt() (word, text, now, better string) {
	if s.Match != "" || len(s.Service) == 0 || cmp.Or(s.Daemon, s.Service[0]) != "sshd" {
		return "", "", "", ""
	}
	return s.Service[0], `the title of sshd is "sshd: /usr/sbin/sshd -D [listener] ..."`, "a running sshd is not found",
		"-f -m '@(*/sshd|*/sshd *)' " + s.Service[0]
}

func init() {
	checks.Register(checks.Info{
		Name: "check_ps_service",
		Usage: "[-0] [-f] [-v|-V] [-S|-r|-c|-s|-k] [-u USER] [-d DAEMON | -m MATCH] [-e ACTION | -E ACTION] " +
			"SERVICE",
		Summary: "a service runs, or does not run",
		Lane:    checks.Local,
		New:     func() checks.Check { return &psService{} },
		Acts: func(c checks.Check) bool {
			s := c.(*psService)
			return s.unwanted() || s.Start || s.Restart || s.Cycle || s.MissingAction != ""
		},
		BadUsage: checks.UsageOf("check_ps_service"),
		Do: func() map[string]string {
			return map[string]string{
				"ps.service.down":    "Run systemctl status and read the service's log. If the message reports an action in progress, check again in a minute.",
				"ps.service.running": "Stop and disable the service: the line forbids it.",
				"ps.service.mended":  "No action: the line's action fixed it. If it happens often, find the fault of the service.",
			}
		},
	})
}

// WaitsForCommand implements [checks.Waiter]: a service can take a while to start.
func (s *psService) WaitsForCommand() bool { return s.Wait || s.Verify }

// unwanted reports whether the line is about a service that must not run.
func (s *psService) unwanted() bool { return s.Stop || s.Kill || s.FoundAction != "" }

func (s *psService) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	r := serviceRun{psService: s, env: env, service: strings.Join(s.Service, " ")}
	if r.service == "" {
		return []checks.Finding{checks.Usage("check_ps_service:  Syntax error:  Service name required.", "")}
	}
	procs, err := probe.Processes(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	if r.daemon = s.Daemon; r.daemon == "" {
		r.daemon = r.service
	}
	r.owner = checks.OwnerName(env, s.Owner)
	r.match = env.Matcher(&r.findings)
	for _, p := range procs {
		if p.Unread && r.mayBeService(p) {
			if r.doubt == nil {
				r.doubt = []checks.Finding{unread(env, "check_ps_service", p)}
			}
			continue
		}
		if p.Unread || !r.isService(p) {
			continue
		}
		if !s.unwanted() {
			env.Fact("%s runs as process %d", r.service, p.PID)
			return r.findings
		}
		if r.end(ctx, p) {
			return r.findings
		}
	}
	if !s.unwanted() && r.doubt == nil {
		r.begin(ctx)
	}
	return append(r.findings, r.doubt...)
}

// serviceRun is one run of the check.
type serviceRun struct {
	*psService
	env      *checks.Env
	service  string
	daemon   string
	owner    string
	match    func(s, expr string) bool
	findings []checks.Finding
	doubt    []checks.Finding // that the process of the service was found, or not
}

func (r *serviceRun) isService(p probe.Process) bool {
	name, expr := p.Command(), r.Match
	if r.FullMatch {
		name = p.Args
	}
	if expr == "" {
		expr = "*" + r.daemon
	}
	return r.match(name, expr) && r.isOwner(p)
}

func (r *serviceRun) isOwner(p probe.Process) bool {
	return r.owner == "" || r.match(checks.OwnerOf(r.env, p), r.owner)
}

// mayBeService is isService for a process whose command line could not be read.
func (r *serviceRun) mayBeService(p probe.Process) bool {
	return (mayRun(r.env, p, r.daemon) || r.Match != "" && r.match(p.Args, r.Match)) && r.isOwner(p)
}

// text begins every message of the check.
func (r *serviceRun) text(state string) string {
	return fmt.Sprintf("check_ps_service:  Service %s (process %s) %s%s",
		r.service, r.daemon, checks.Before("owned by ", r.owner, " "), state)
}

// note reports a successful action.
func (r *serviceRun) note(message string) {
	r.findings = append(r.findings, checks.Finding{
		Code:     "ps.service.mended",
		Severity: checks.Warn,
		Device:   checks.Device{Kind: "service", Name: r.service},
		Message:  message,
	})
}

// fail reports a service that is down, or one that must not run.
func (r *serviceRun) fail(code, message string) {
	f := checks.Finding{
		Code:     code,
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "service", Name: r.service},
		Message:  message,
		Want:     "running",
		Got:      "not running",
	}
	if r.unwanted() {
		f.Want, f.Got = f.Got, f.Want
	}
	if r.Nonfatal {
		f.Severity = checks.Warn
		f.Message += " (non-fatal)"
	}
	r.findings = append(r.findings, f)
}

// end ends a process that must not run. It reports whether the check is complete: only a kill
// continues with the next process.
func (r *serviceRun) end(ctx context.Context, p probe.Process) bool {
	var message string
	var done bool
	switch {
	case r.Kill:
		message, done = r.kill(p)
	case r.Stop:
		message, done = r.stop(ctx, p)
	default:
		message, done = r.found(ctx, p)
	}
	if done {
		r.note(message)
		return !r.Kill || !r.Wait
	}
	r.fail("ps.service.running", message)
	return true
}

// killWait is the time limit for a killed process to disappear.
const killWait = 200 * time.Millisecond

func (r *serviceRun) kill(p probe.Process) (message string, done bool) {
	text := r.text("running")
	if why := probe.Spared(r.env.Host, p.PID); why != "" {
		return fmt.Sprintf("%s; process ID %d not killed: %s", text, p.PID, why), false
	}
	if !r.env.Acts("kill %s", r.env.ProcessText(p)) {
		return text, false
	}
	r.env.At("kill %d", p.PID)
	err := probe.Kill(r.env.Host, p)
	switch {
	case !r.Wait && !r.Verify:
		return fmt.Sprintf("%s; killed process ID %d (SIGKILL)", text, p.PID), false
	case err != nil:
		return fmt.Sprintf("%s; \"kill -9 %d\" failed (exit code 1).", text, p.PID), false
	case r.Wait:
		return fmt.Sprintf("%s; process ID %d killed successfully.", text, p.PID), true
	}
	for end := time.Now().Add(killWait); probe.Alive(r.env.Host, p.PID); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Sprintf("%s; \"kill -9 %d\" succeeded but failed to terminate process.", text, p.PID), false
		}
	}
	return fmt.Sprintf("%s; process ID %d terminated successfully.", text, p.PID), true
}

func (r *serviceRun) stop(ctx context.Context, p probe.Process) (message string, done bool) {
	text := r.text("running")
	if !r.Wait && !r.Verify {
		if !r.env.Spawn(ctx, r.serviceText("stop"), r.serviceCommand("stop")) {
			return text, false
		}
		return text + "; service termination in progress", false
	}
	command := fmt.Sprintf("\"%s\"", r.serviceText("stop"))
	switch status, acted := r.env.Do(ctx, r.serviceText("stop"), r.serviceCommand("stop")); {
	case !acted:
		return text, false
	case status != 0:
		return fmt.Sprintf("%s; %s failed (exit code %d).", text, command, status), false
	case !r.Verify:
		return fmt.Sprintf("%s; service %s stopped successfully.", text, r.service), true
	case probe.Alive(r.env.Host, p.PID):
		return fmt.Sprintf("%s; %s succeeded but failed to stop process %d.", text, command, p.PID), false
	}
	return fmt.Sprintf("%s; service %s stopped and process %d terminated successfully.", text, r.service, p.PID), true
}

func (r *serviceRun) found(ctx context.Context, p probe.Process) (message string, done bool) {
	text := r.text("running")
	action := r.env.Shell(r.FoundAction)
	if !r.Wait && !r.Verify {
		if !r.env.Spawn(ctx, r.FoundAction, action) {
			return text, false
		}
		return fmt.Sprintf("%s; \"%s\" in progress.", text, r.FoundAction), false
	}
	switch status, acted := r.env.Do(ctx, r.FoundAction, action); {
	case !acted:
		return text, false
	case status != 0:
		return fmt.Sprintf("%s failed (exit code %d).", text, status), false
	case !r.Verify:
		return text + " succeeded.", true
	case probe.Alive(r.env.Host, p.PID):
		return fmt.Sprintf("%s succeeded but failed to terminate process %d.", text, p.PID), false
	}
	return fmt.Sprintf("%s successfully terminated service %s (process %d).", text, r.service, p.PID), true
}

// begin starts a service that should run, and reports the result.
func (r *serviceRun) begin(ctx context.Context) {
	message, done := r.start(ctx)
	if done {
		r.note(message)
		return
	}
	r.fail("ps.service.down", message)
}

func (r *serviceRun) start(ctx context.Context) (message string, done bool) {
	down := r.text("not running")
	text := down
	var action probe.Command
	var command string // the action as text
	switch {
	case r.Start:
		text += "; start"
		action, command = r.serviceCommand("start"), r.serviceText("start")
	case r.Restart:
		text += "; restart"
		action, command = r.serviceCommand("restart"), r.serviceText("restart")
	case r.Cycle:
		text += "; cycle"
		action, command = r.cycle(), r.serviceText("stop")+"; sleep 2; "+r.serviceText("start")
	case r.MissingAction != "":
		text += fmt.Sprintf("; \"%s\"", r.MissingAction)
		action, command = r.env.Shell(r.MissingAction), r.MissingAction
	default:
		return text, false
	}
	if !r.Wait && !r.Verify {
		if !r.env.Spawn(ctx, command, action) {
			return down, false
		}
		return text + " in progress", false
	}
	switch status, acted := r.env.Do(ctx, command, action); {
	case !acted:
		return down, false
	case status != 0:
		return fmt.Sprintf("%s failed (exit code %d).", text, status), false
	case !r.Verify: // LBNL NHC prints "stopped" here
		return fmt.Sprintf("%s; service %s stopped successfully.", text, r.service), true
	case r.status(ctx) != 0:
		return fmt.Sprintf("%s succeeded but failed to start service %s.", text, r.service), false
	}
	return fmt.Sprintf("%s succeeded; service %s now running.", text, r.service), true
}

// serviceCommand returns the command of the node's service manager.
func (r *serviceRun) serviceCommand(verb string) probe.Command {
	argv := append([]string{"/sbin/service"}, strings.Fields(r.service)...)
	return r.env.Command(append(argv, verb)...)
}

// serviceText returns that command as text.
func (r *serviceRun) serviceText(verb string) string {
	return fmt.Sprintf("/sbin/service %s %s", r.service, verb)
}

// cycle returns one command that stops and starts the service, also after this process has ended.
func (r *serviceRun) cycle() probe.Command {
	argv := append([]string{r.env.Host.Path("/sbin/service")}, strings.Fields(r.service)...)
	return r.env.Shell(`"$0" "$@" stop; sleep 2; "$0" "$@" start`, argv...)
}

// status asks the service manager whether the service runs.
func (r *serviceRun) status(ctx context.Context) int {
	c := r.serviceCommand("status")
	r.env.At("run %s", strings.Join(c.Argv, " "))
	c.Lasting = true // processes that it starts must survive
	return r.env.Host.Run(ctx, c).Status
}
