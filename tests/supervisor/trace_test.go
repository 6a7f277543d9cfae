package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// allowed has all paths that the process that slurmd starts may pass to the kernel, and why they
// can never block it. docs/design.md has the same list. Workers use all other paths.
var allowed = map[string]string{
	// before main
	`/etc/ld\.so\.(preload|cache)`:                             "ld.so",
	`/(usr/)?lib(64)?/([\w.-]+/)*[\w.+-]+\.so[\d.]*`:           "ld.so",
	`/proc/self/(maps|cgroup|mountinfo|exe)`:                   "libc and the Go runtime",
	`/sys/kernel/mm/transparent_hugepage/hpage_pmd_size`:       "the Go runtime",
	`/sys/fs/cgroup/([^/]+/)*cpu\.(max|cfs_(quota|period)_us)`: "the Go runtime",
	`/sys/devices/system/cpu/(online|possible)`:                "libc",
	`/etc/localtime|/usr/(share|lib)/zoneinfo/.*`:              "the time zone, by an init of a library",

	// in main
	`/proc/self/(exe|fd|fd/\d+|loginuid|stat|status|task/\d+/stat)`: "itself",
	`/proc/sys/kernel/random/boot_id`:                               "the boot id",
	`/dev/null`:                                                     "input and output of workers",
	`/dev/log`:                                                      "syslog",
	`/proc`:                                                         "to find what belongs to a worker that hangs",
	`/proc/\d+/(stat|status|task|wchan|task/\d+/(stat|wchan|syscall|fd/\d+))`: "how a worker hangs, and what is left of it; these files never block",
	`/proc/\d+/fd/\d+`: "the pipe on which a subshell waits for an answer",
}

// scenario is a run with a traced supervisor.
type scenario struct {
	name  string
	conf  string
	words []string
	env   []string
	exit  int
	slow  bool
}

var scenarios = []scenario{
	{name: "healthy", conf: "* || check_file_test -d /\n* || check_ps_loadavg $((1000*HW_CORES))\n* || site_check\n* || ( check_file_test -d / )\n"},
	{name: "failing", conf: "* || check_gpu_xid\n* || check_file_test -f /nonexistent\n", exit: 1},
	{name: "hanging", conf: "* || pkill -STOP -P $PPID -f '^nhc-gpu-worker local'\n* || check_file_test -d /\n* || sleep 50\n", words: []string{"-a", "-t", "3"}, exit: 142},
	{name: "prolog", conf: "* || check_file_test -f /nonexistent\n", words: []string{"--prolog"}, env: []string{"SLURM_JOB_ID=7", "SLURM_JOB_UID=0"}, exit: 1},
	{name: "epilog", conf: "* || check_file_test -d /\n", words: []string{"--epilog"}, env: []string{"SLURM_JOB_ID=7", "SLURM_JOB_UID=0"}},
	{name: "check", conf: "* || check_file_test -d /\n", words: []string{"--check"}},
	{name: "log", conf: "* || check_file_test -d /\n", words: []string{"LOGFILE=/nonexistent/log"}, exit: 1},
	{name: "no configuration", words: []string{"CONFFILE=/nonexistent/nhc.conf"}, slow: true},
	{name: "detached", conf: "* || check_file_test -d /\n", words: []string{"DETACHED_MODE=1"}, slow: true},
	{name: "debug", conf: "* || check_file_test -d /\n", words: []string{"-d", "-v"}, slow: true},
	{name: "all", conf: "* || false\n* || check_file_test -d /\n", words: []string{"-a"}, exit: 1, slow: true},
	{name: "plan", conf: "* || check_file_test -d /\n* || nosuchcommand\n", words: []string{"plan"}, exit: 1, slow: true},
	{name: "lint", conf: "* || check_file_test -d /\n* || nosuchcommand\n", words: []string{"lint"}, exit: 1, slow: true},
	{name: "topo", conf: "* || check_file_test -d /\n", words: []string{"topo"}, slow: true},
	{name: "baseline", conf: "* || check_file_test -d /\n", words: []string{"--baseline=0"}, slow: true},
	{name: "job", words: []string{"job"}, slow: true},
	{name: "clear", words: []string{"clear", "gpu0"}, exit: 10, slow: true},
	{name: "explain", words: []string{"xid", "explain", "79"}, slow: true},
}

// ownWords are scenarios that accept no settings.
var ownWords = []string{"job", "clear", "explain"}

// The test traces all paths that the process that slurmd starts opens, stats or connects to.
func TestSupervisorTouchesNoPath(t *testing.T) {
	t.Parallel()
	trace(t, false)
}

func TestAllOfTheSupervisorTouchesNoPath(t *testing.T) {
	tier.All(t)
	t.Parallel()
	trace(t, true)
}

func trace(t *testing.T, slow bool) {
	t.Helper()
	need.Program(t, "strace")
	if out, err := exec.Command("strace", "-qq", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		need.Skip(t, "needs ptrace: %v: %s", err, out)
	}
	for _, s := range scenarios {
		if s.slow != slow {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, call := range s.calls(t) {
				if !call.isAllowed() {
					t.Errorf("the supervisor touches %q:\n%s", call.path, call.line)
				}
			}
		})
	}
}

// A path that is not allowed is found.
func TestTraceSeesWhatIsForbidden(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`openat(AT_FDCWD, "/etc/nhc/nhc.conf", O_RDONLY|O_CLOEXEC) = 3`:                   "/etc/nhc/nhc.conf",
		`newfstatat(AT_FDCWD, "/run/nhc-gpu", 0x7ffd, 0) = 0`:                             "/run/nhc-gpu",
		`openat(5, "ledger.json", O_RDONLY) = 6`:                                          "5/ledger.json",
		`readlink("/etc/nhc", 0xc000, 128) = -1 EINVAL (Invalid argument)`:                "/etc/nhc",
		`rename("/dev/null", "/run/x") = 0`:                                               "/run/x",
		`connect(7, {sa_family=AF_UNIX, sun_path="/run/nscd/socket"}, 110) = -1 ENOENT (`: "/run/nscd/socket",
		`openat(AT_FDCWD, "/proc/12/cmdline", O_RDONLY) = 3`:                              "/proc/12/cmdline",
	} {
		if !slices.ContainsFunc(callsOf(line), func(c call) bool { return c.path == want && !c.isAllowed() }) {
			t.Errorf("%s: %+v, want %s, which is not allowed", line, callsOf(line), want)
		}
	}
	for _, line := range []string{`newfstatat(3, "", {st_mode=S_IFREG}, AT_EMPTY_PATH) = 0`, `getcwd("/etc/nhc", 4096) = 9`, `openat(AT_FDCWD, "/dev/null", O_RDWR) = 3`} {
		if list := callsOf(line); slices.ContainsFunc(list, func(c call) bool { return !c.isAllowed() }) {
			t.Errorf("%s: %+v, want nothing", line, list)
		}
	}
}

// calls runs the program under strace and returns the paths that its first process and its threads
// use, and its children before they become workers.
func (s scenario) calls(t *testing.T) (list []call) {
	t.Helper()
	dir := t.TempDir()
	node := fmt.Sprintf("supervisor-%d-%s", os.Getpid(), strings.ReplaceAll(s.name, " ", "-")) // another suite may run on this machine
	t.Cleanup(func() { _, _ = os.RemoveAll("/run/nhc-gpu/"+node), os.RemoveAll("/var/lib/nhc-gpu/"+node) })
	slurmAt(t, filepath.Join(dir, "slurm"))
	for file, text := range map[string]string{
		"nhc.conf": s.conf, "nhc.toml": "# none\n", "sysconfig/nhc": "DEBUG=0\n", "scripts/site.nhc": "site_check() { :; }\n",
	} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	words := slices.Clone(s.words)
	if !slices.Contains(ownWords, s.name) {
		settings := []string{
			"CONFFILE=" + dir + "/nhc.conf", "TOMLFILE=" + dir + "/nhc.toml", "SYSCONFIGDIR=" + dir + "/sysconfig", "INCDIR=" + dir + "/scripts",
			"LOGFILE=" + dir + "/log", "RESULTFILE=" + dir + "/result", "NHC_RM=slurm", "SLURM_SCONTROL=" + dir + "/slurm/scontrol",
		}
		at := 0 // options precede settings, and the scenario's settings take precedence
		for at < len(words) && !strings.Contains(words[at], "=/") {
			at++
		}
		words = slices.Insert(words, at, settings...)
	}
	trace := filepath.Join(dir, "trace")
	cmd := exec.Command("strace", append([]string{"-ff", "-qq", "-s", "4096", "-e", "trace=%file,%process,%network", "-o", trace, program}, words...)...)
	cmd.Env = append([]string{"SLURMD_NODENAME=" + node}, s.env...)
	out, _ := cmd.CombinedOutput()
	if got := cmd.ProcessState.ExitCode(); got != s.exit {
		t.Errorf("exit status %d, want %d:\n%s", got, s.exit, out)
	}
	files, err := filepath.Glob(trace + ".*")
	must(t, err)
	lines := map[string][]string{} // of each thread
	first := ""
	for _, f := range files {
		text, err := os.ReadFile(f)
		must(t, err)
		pid := strings.TrimPrefix(filepath.Ext(f), ".")
		lines[pid] = strings.Split(strings.TrimSpace(string(text)), "\n")
		if strings.HasPrefix(lines[pid][0], `execve("`+program+`"`) {
			first = pid
		}
	}
	if first == "" {
		t.Fatalf("no process of %s among %q:\n%s", program, files, out)
	}
	threads, workers := []string{first}, 0
	for i := 0; i < len(threads); i++ {
		for n, line := range lines[threads[i]] {
			if i == 0 && n == 0 {
				continue // strace executes it
			}
			list = append(list, callsOf(line)...)
			born := clone.FindStringSubmatch(line)
			switch {
			case born == nil:
			case strings.Contains(line, "CLONE_THREAD"):
				threads = append(threads, born[1])
			default:
				workers++
				list = append(list, untilExec(lines[born[1]])...)
			}
		}
	}
	if workers == 0 || len(threads) < 2 {
		t.Errorf("%d workers, %d threads: the trace is not understood", workers, len(threads))
	}
	return list
}

var (
	clone  = regexp.MustCompile(`^(?:clone3?|v?fork)\(.* = (\d+)$`)
	path   = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
	dirFd  = regexp.MustCompile(`^\w+\((\d+), "`)
	twoEnd = regexp.MustCompile(`^(?:rename|link|symlink|mount|pivot_root)`)
)

// untilExec returns the paths that a child uses before it executes another program, including that
// program.
func untilExec(lines []string) (list []call) {
	for _, line := range lines {
		list = append(list, callsOf(line)...)
		if strings.HasPrefix(line, "execve(") {
			break
		}
	}
	return list
}

// call is a path in a system call.
type call struct{ path, line string }

func callsOf(line string) (list []call) {
	found := path.FindAllStringSubmatch(line, -1)
	switch {
	case len(found) == 0 || strings.HasPrefix(line, "getcwd("):
		return nil
	case strings.HasPrefix(line, "connect(") || strings.HasPrefix(line, "bind("):
	case strings.Contains(line, "sa_family") || strings.HasPrefix(line, "send") || strings.HasPrefix(line, "recv") || strings.HasPrefix(line, "exit"):
		return nil // of a connected socket
	case !twoEnd.MatchString(line):
		found = found[:1]
	}
	for _, f := range found {
		name := f[1]
		if fd := dirFd.FindStringSubmatch(line); fd != nil && !strings.HasPrefix(name, "/") && name != "" && !strings.Contains(line, "sun_path") {
			name = fmt.Sprintf("%s/%s", fd[1], name)
		}
		if name != "" {
			list = append(list, call{name, line})
		}
	}
	return list
}

func (c call) isAllowed() bool {
	for expr := range allowed {
		if regexp.MustCompile(`^(?:` + expr + `)$`).MatchString(c.path) {
			return true
		}
	}
	return false
}
