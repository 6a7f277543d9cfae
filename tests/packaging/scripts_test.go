package packaging_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
)

// hostile is an environment that changes the behavior of a shell or its commands.
var hostile = []string{
	"SHELLOPTS=noexec:xtrace", "BASHOPTS=extdebug", "PS4=$(touch pwned)", "BASH_ENV=./evil", "ENV=./evil", "IFS=e", "PATH=.", "CDPATH=/", "POSIXLY_CORRECT=1",
	"BASH_FUNC_exec%%=() { touch pwned; }", "BASH_FUNC_shopt%%=() { touch pwned; }", "BASH_FUNC_exit%%=() { touch pwned; }", "SLURM_JOB_ID=1; touch pwned",
}

// The scripts that slurmd starts before and after a job start the program, in any environment, and
// pass on the status 1. If the program is missing, or crashes, they let the job run.
//
// It is not parallel: a process that another test forks has a program of this test open for a
// moment, and the kernel does not execute a file that is open for writing.
func TestJobScripts(t *testing.T) {
	newer := linkNewer(t)
	for _, role := range []string{"prolog", "epilog"} {
		for name, c := range map[string]struct {
			program string // "" is none
			mode    os.FileMode
			env     []string
			status  int
			said    string
			logged  string
		}{
			"well":             {program: "#!/bin/sh\necho \"$@\"\n", mode: 0o755, said: "--" + role},
			"failing":          {program: "#!/bin/sh\n[ $1 = version ]\n", mode: 0o755, status: 1},
			"failing always":   {program: "#!/bin/sh\necho failed >&2\nexit 1\n", mode: 0o755, status: 1},
			"crashing":         {program: "#!/bin/sh\nexit 142\n", mode: 0o755, logged: "crashed (status 142)"},
			"hostile":          {program: "#!/bin/sh\necho \"$@\"\n[ $1 = version ]\n", mode: 0o755, env: hostile, status: 1, said: "--" + role},
			"gone":             {logged: "cannot be started"},
			"gone and hostile": {env: hostile, logged: "cannot be started"},
			"not executable":   {program: "#!/bin/sh\nexit 1\n", mode: 0o644, logged: "cannot be started"},
			"no program":       {program: "\x7fELF\x00\x00", mode: 0o755, logged: "cannot be started"},
			"for a newer libc": {program: newer, mode: 0o755, logged: "cannot be started"},
			"no interpreter":   {program: "#!/nonexistent/sh\n", mode: 0o755, logged: "cannot be started"},
		} {
			t.Run(role+" "+name, func(t *testing.T) {
				status, said, logged, dir := runScript(t, role, c.program, c.mode, c.env)
				if status != c.status || strings.TrimSpace(said) != c.said {
					t.Errorf("status %d, says %q, want %d, %q", status, said, c.status, c.said)
				}
				want := ""
				if c.logged != "" {
					want = "--socket-errors=on -t nhc-gpu -p daemon.err " + role + ": " + filepath.Join(dir, "nhc-gpu") + " " + c.logged + ": the node was not checked\n"
				}
				if diff := cmp.Diff(want, logged); diff != "" {
					t.Errorf("syslog (-want +got):\n%s", diff)
				}
				if _, err := os.Stat(filepath.Join(dir, "pwned")); err == nil {
					t.Error("the environment has run a command")
				}
			})
		}
	}
}

// linkNewer returns a program that requires a newer version of a library than the system has.
func linkNewer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	lib, program := filepath.Join(dir, "libnewer.so"), filepath.Join(dir, "program")
	files := map[string]string{"lib.c": "void f(void) {}\n", "main.c": "void f(void);\nint main(void) { f(); }\n", "2.0": "V_2.0 { f; };\n", "1.0": "V_1.0 { f; };\n"}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(version string) {
		run(t, exec.Command("gcc", "-shared", "-fPIC", "-Wl,--version-script="+filepath.Join(dir, version), "-o", lib, filepath.Join(dir, "lib.c")))
	}
	link("2.0")
	run(t, exec.Command("gcc", "-o", program, filepath.Join(dir, "main.c"), lib, "-Wl,-rpath,"+dir))
	link("1.0")
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// runScript runs the script of a role with a program instead of nhc-gpu, and with a logger that
// records its arguments.
func runScript(t *testing.T, role, program string, mode os.FileMode, env []string) (status int, said, logged, dir string) {
	t.Helper()
	dir = t.TempDir()
	path := filepath.Join(root, "slurm", role+".d", "50-nhc-gpu")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%s: %v, want mode 0755", path, st.Mode())
	}
	script := strings.NewReplacer("/usr/sbin/nhc-gpu", filepath.Join(dir, "nhc-gpu"), "/usr/bin/logger", filepath.Join(dir, "logger")).Replace(string(text))
	files := map[string]string{"script": script, "logger": "#!/bin/sh\necho \"$@\" >" + dir + "/logged\n", "evil": "touch pwned\n", "exec": "#!/bin/sh\ntouch pwned\n"}
	for name, text := range files {
		if err := built.WriteProgram(filepath.Join(dir, name), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if program != "" {
		path := filepath.Join(dir, "nhc-gpu")
		if err := errors.Join(built.WriteProgram(path, []byte(program)), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(dir, "script"))
	cmd.Dir, cmd.Env = dir, append([]string{}, env...)
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		status = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	data, _ := os.ReadFile(filepath.Join(dir, "logged"))
	return status, string(out), string(data), dir
}

// The scripts start the program at its installed path.
func TestScriptsFollowPrefix(t *testing.T) {
	t.Parallel()
	dest := t.TempDir()
	run(t, exec.Command("make", "-C", root, "install", "DESTDIR="+dest, "PREFIX=/opt/nhc", "BIN="+filepath.Join(t.TempDir(), "nhc-gpu")))
	for _, role := range []string{"prolog", "epilog"} {
		path := filepath.Join(dest, "opt/nhc/share/nhc-gpu/slurm", role+".d", "50-nhc-gpu")
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "\n/opt/nhc/sbin/nhc-gpu --"+role+"\n") || strings.Contains(string(text), "/usr/sbin") {
			t.Errorf("%s: %v\n%s", path, err, text)
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o755 {
			t.Errorf("%s: mode %v, want 0755", path, st.Mode())
		}
	}
}

// An rpm transaction restores the files that it has removed, and not those that an administrator has
// deleted after an earlier transaction was interrupted.
func TestRPMKeepsFiles(t *testing.T) {
	t.Parallel()
	const whole = "sh pre 2; rm etc/nhc/nhc.conf; sh pre 2; sh post; sh post"
	for name, c := range map[string]struct {
		transactions []string
		link         bool // /etc/nhc is a symbolic link
		want         string
	}{
		"a file that rpm removes":              {[]string{whole}, false, "nhc.conf site.nhc"},
		"the files of a link":                  {[]string{whole}, true, "nhc.conf site.nhc"},
		"an unchanged copy by rpm":             {[]string{"sh pre 2; cp etc/nhc/nhc.conf etc/nhc/nhc.conf.rpmsave; sh post"}, true, "nhc.conf site.nhc"},
		"after an interruption":                {[]string{"sh pre 2; sh pre 2", "rm etc/nhc/site.nhc", whole}, false, "nhc.conf"},
		"after an interruption, without files": {[]string{"sh pre 2", "rm -r etc/nhc", "sh pre 2; sh post"}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dir, "etc/nhc"), 0o755); err != nil {
				t.Fatal(err)
			}
			if c.link {
				if err := errors.Join(os.Rename(dir+"/etc/nhc", dir+"/shared"), os.Symlink(dir+"/shared", dir+"/etc/nhc")); err != nil {
					t.Fatal(err)
				}
			}
			cp := "#!/bin/sh\ncase $1 in -*n*) exit 1; esac\nexec /bin/cp \"$@\"\n" // of coreutils 9.2 to 9.4, if a file exists
			if err := built.WriteProgram(filepath.Join(dir, "cp"), []byte(cp)); err != nil {
				t.Fatal(err)
			}
			files := map[string]string{"etc/nhc/nhc.conf": "", "etc/nhc/site.nhc": ""}
			for script, file := range map[string]string{"pre": "pre-install.sh", "post": "post-trans.sh"} {
				text, err := os.ReadFile(filepath.Join(root, "rpm/scripts", file))
				if err != nil {
					t.Fatal(err)
				}
				files[script] = "PATH=" + dir + ":$PATH\n" + strings.NewReplacer("/etc/", dir+"/etc/", "/var/lib/", dir+"/var/lib/").Replace(string(text))
			}
			for file, text := range files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, transaction := range c.transactions { // its shell stands for rpm
				cmd := exec.Command("sh", "-c", "set -e; "+transaction+"; true")
				cmd.Dir = dir
				run(t, cmd)
			}
			if st, err := os.Lstat(dir + "/etc/nhc"); c.link && (err != nil || st.Mode()&os.ModeSymlink == 0) {
				t.Errorf("/etc/nhc is no link any more: %v", err)
			}
			left, _ := filepath.Glob(dir + "/etc/nhc/*")
			for i := range left {
				left[i] = filepath.Base(left[i])
			}
			if got := strings.Join(left, " "); got != c.want {
				t.Errorf("/etc/nhc has %q, want %q", got, c.want)
			}
			if _, err := os.Stat(filepath.Join(dir, "var/lib/rpm-state/nhc-gpu")); err == nil {
				t.Error("the copy remains")
			}
		})
	}
}

// After a removal none of the state is left.
func TestRemovalLeavesNoState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(root, "rpm/scripts/post-remove.sh"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"run/nhc-gpu/n1", "run/nhc-gpu-jobs", "run/nhc-gpu-wrap", "var/lib/nhc-gpu/n1", "run/systemd/other"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := strings.NewReplacer("/run/systemd", dir+"/none", "/run/", dir+"/run/", "/var/lib/", dir+"/var/lib/").Replace(string(text))
	run(t, exec.Command("sh", "-c", script, "sh", "purge"))
	left, _ := filepath.Glob(dir + "/*/*")
	lib, _ := filepath.Glob(dir + "/var/lib/*")
	if diff := cmp.Diff([]string{dir + "/run/systemd", dir + "/var/lib"}, append(left, lib...)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}
