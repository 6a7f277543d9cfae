// Package leaks shows that an ordinary user's program gets nothing that belongs to root from a run
// that starts it.
package leaks

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program, "bash", "setpriv", "unshare")) }

//go:embed hostile.sh
var hostile string

// rig is a directory that every user can read, with a hostile program in it.
type rig struct {
	dir    string
	report string // the hostile program's report of its access
	mounts string // shell text that prepares the mounts of a run
}

func newRig(t *testing.T) *rig {
	t.Helper()
	need.Root(t, "to start a program as another user")
	dir, err := os.MkdirTemp("", "nhc-gpu-leaks-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{dir: dir, report: filepath.Join(dir, "report")}
	r.write(t, "hostile.sh", hostile)
	r.write(t, "report", "")
	for path, mode := range map[string]os.FileMode{dir: 0o755, r.report: 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r *rig) write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := built.WriteProgram(path, []byte(text)); err != nil {
		t.Fatal(err)
	}
	return path
}

// attack returns the command that starts the hostile program as an ordinary user.
func (r *rig) attack(place string) string {
	return fmt.Sprintf("setpriv --reuid=65534 --regid=65534 --clear-groups bash %s/hostile.sh %s %s", r.dir, r.report, place)
}

// run runs a configuration, started by a process that leaks the descriptors 3 to 20; the last of
// them is a file that only root may read or write.
func (r *rig) run(t *testing.T, lines []string, args ...string) string {
	t.Helper()
	conf := r.write(t, "nhc.conf", strings.Join(lines, "\n")+"\n")
	secret := r.write(t, "secret", "root's own\n")
	if err := os.Chmod(secret, 0o600); err != nil {
		t.Fatal(err)
	}
	argv := append([]string{"--mount", "bash", "-c", r.mounts + ` exec "$@"`, "bash"},
		program, "-a", "-c", conf, "INCDIR="+r.dir+"/scripts", "MARK_OFFLINE=0")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", append(argv, args...)...)
	for fd := 3; fd <= 20; fd++ {
		path := os.DevNull
		if fd == 20 {
			path = secret
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, _ := cmd.CombinedOutput() // its status does not matter here
	if text, err := os.ReadFile(secret); err != nil || string(text) != "root's own\n" {
		t.Errorf("the file of root's is now %q, %v", text, err)
	}
	return string(out)
}

// service is the command that restarts a service.
const service = "/sbin/service"

// TestNothingIsInherited starts a hostile program from every place that starts one.
func TestNothingIsInherited(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.write(t, "scripts/site.nhc", r.attack("script")+"\ncheck_site() { check_file_test -d / ; "+r.attack("function")+"; }\n")
	places := []string{"script", "function", "line", "subshell", "background", "pipe", "substitution", "trap", "output", "status", "action"}
	if _, err := os.Stat(service); err == nil {
		r.mounts = "mount --bind " + r.write(t, "service", "#!/bin/bash\n"+r.attack("service")+"\n") + " " + service + " || exit;"
		places = append(places, "service")
	} else if need.InCI() {
		t.Errorf("CI must not leave out the restart of a service: %v", err)
	}
	lines := []string{
		"* || " + r.attack("line"),
		"* || check_site",
		"* || ( check_file_test -d / ; " + r.attack("subshell") + " )",
		"* || { check_file_test -d / ; " + r.attack("background") + "; } & wait",
		"* || check_file_test -d / | " + r.attack("pipe"),
		"* || X=$(check_file_test -d / ; " + r.attack("substitution") + ")",
		"* || trap '" + r.attack("trap") + "' USR2; kill -USR2 $$; check_file_test -d /",
		"* || check_cmd_output -m '*' " + r.attack("output"),
		"* || check_cmd_status -t 10 -r 0 " + r.attack("status"),
		"* || check_ps_service -0 -v -e '" + r.attack("action") + "' -d nosuchdaemon nosuch",
		"* || check_ps_service -0 -v -r -d nosuchdaemon nosuch",
	}
	for _, log := range []string{"-", r.dir + "/log"} {
		out := r.run(t, lines, "LOGFILE="+log)
		report, err := os.ReadFile(r.report)
		if err != nil {
			t.Fatal(err)
		}
		for _, place := range places {
			if !bytes.Contains(report, []byte(place+" ran as 65534\n")) {
				t.Errorf("LOGFILE=%s: nothing was started from %s", log, place)
			}
		}
		for line := range strings.Lines(string(report)) {
			if !strings.HasSuffix(line, " ran as 65534\n") {
				t.Errorf("LOGFILE=%s: %s", log, line)
			}
		}
		if t.Failed() {
			t.Fatalf("output:\n%s", out)
		}
		if err := os.Truncate(r.report, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForgedEventIsRejected makes a line pass its private descriptor to a user's program: the
// program's output is reported, and does not hide the failure behind it.
func TestForgedEventIsRejected(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	out := r.run(t, []string{
		// It writes endlessly, too.
		`* || setpriv --reuid=65534 --regid=65534 --clear-groups bash -c 'while printf "%s" exit:1:0: | tr : "\\\\0"; do :; done' >&241`,
		`* || check_file_test -e /nonexistent`,
	}, "LOGFILE=-")
	for _, want := range []string{"of user 65534 wrote to the private descriptor", "Health check failed:  check_file_test"} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
}

// TestSetuidCopyRefuses starts a copy of the program that has root's rights, as an ordinary user,
// with a command that would run with these rights.
func TestSetuidCopyRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	copied := r.write(t, "nhc-gpu", string(text))
	for _, mode := range []os.FileMode{os.ModeSetuid, os.ModeSetgid} {
		if err := os.Chmod(copied, 0o755|mode); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", copied, "-e", "id >>"+r.report)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(string(out), "refused") {
			t.Errorf("%v: exit status %d, want 3 and a refusal:\n%s", mode, code, out)
		}
		if got, err := os.ReadFile(r.report); err != nil || len(got) > 0 {
			t.Errorf("%v: the command ran: %s, %v", mode, got, err)
		}
	}
}
