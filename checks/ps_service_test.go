package checks

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// serviceFinding is what the check says about a service; text follows the name
// of the check.
func serviceFinding(code, service, text string) Finding {
	f := Finding{Code: "ps.service." + code, Severity: Fail, Device: Device{Kind: "service", Name: service}, Message: "check_ps_service:  " + text}
	switch code {
	case "down":
		f.Want, f.Got = "running", "not running"
	case "running":
		f.Want, f.Got = "not running", "running"
	case "mended":
		f.Severity = Warn
	}
	return f
}

// onServices is a node with processes and a service command that writes what
// it is asked for to a log; it answers with the status in the file rc-VERB.
func onServices(name string, words []string, want ...Finding) scenario {
	files := psNode()
	files["sbin/service"] = `#!/bin/sh
echo "$@" >> {root}/log
for verb; do :; done
[ -f {root}/rc-$verb ] && exit $(cat {root}/rc-$verb)
exit 0
`
	return scenario{
		name: name, words: words, want: want, files: files, tools: []string{"bash"}, vars: map[string]string{"PWD": "/"},
	}
}

// answering makes the service command fail.
func (s scenario) answering(verb, status string) scenario {
	s.files = maps.Clone(s.files)
	s.files["rc-"+verb] = status
	return s
}

// logged is what the service command has been asked for.
func logged(lines ...string) map[string]string {
	return map[string]string{"log": strings.Join(append(lines, ""), "\n")}
}

// absentd does not run, dbserverd does; started and ended are services that have
// been put right.
func absentd(text string) Finding {
	return serviceFinding("down", "absentd", "Service absentd (process absentd) not running"+text)
}

func started(text string) Finding {
	return serviceFinding("mended", "absentd", "Service absentd (process absentd) not running"+text)
}

func dbserverd(text string) Finding {
	return serviceFinding("running", "dbserverd", "Service dbserverd (process dbserverd) running"+text)
}

func ended(text string) Finding {
	return serviceFinding("mended", "dbserverd", "Service dbserverd (process dbserverd) running"+text)
}

func TestPSService(t *testing.T) { testCheck(t, "check_ps_service") }

var _ = table("check_ps_service", func(string) []scenario {
	return []scenario{
		onServices("running", of("dbserverd")).orTable(map[string]any{"service": "dbserverd"}),
		onServices("by the end of the path", of("-u", "root", "crond")).orTable(map[string]any{"user": "root", "service": "crond"}),
		onServices("another program", of("-d", "crond", "cron")).orTable(map[string]any{"daemon": "crond", "service": "cron"}),
		onServices("match string", of("-m", "/cro?nd$/", "cron")).orTable(map[string]any{"match": "/cro?nd$/", "service": "cron"}),
		onServices("whole line", of("-f", "-m", "wrf.exe *96", "-u", "/^al/", "wrf")).
			orTable(map[string]any{"full_match": true, "match": "wrf.exe *96", "user": "/^al/", "service": "wrf"}),
		onServices("owner by uid", of("-u", "5001", "wrf.exe")),
		onServices("a uid without account asks for no owner", of("-u", "6789", "dbserverd")),
		onServices("one of eight has died", of("-d", "rank", "ranks")),

		onServices("down", of("absentd"), absentd("")),
		onServices("the name is not the end of the path", of("crond -n"),
			serviceFinding("down", "crond -n", "Service crond -n (process crond -n) not running")),
		onServices("words are one name", of("crond", "-n"),
			serviceFinding("down", "crond -n", "Service crond -n (process crond -n) not running")),
		onServices("another owner", of("-u", "120", "-d", "dbserverd", "db"),
			serviceFinding("down", "db", "Service db (process dbserverd) owned by ntpsec not running")),
		onServices("down but not fatal", of("-0", "absentd"), nonfatal(absentd(""))).orTable(map[string]any{"nonfatal": true, "service": "absentd"}),
	}
})

var _ = table("check_ps_service", func(string) []scenario {
	return []scenario{
		onServices("start", of("-S", "absentd"), absentd("; start in progress")).leaving(logged("absentd start")).
			orTable(map[string]any{"start": true, "service": "absentd"}),
		onServices("restart", of("-0", "-r", "absentd"), nonfatal(absentd("; restart in progress"))).leaving(logged("absentd restart")).
			orTable(map[string]any{"nonfatal": true, "restart": true, "service": "absentd"}),
		onServices("action", of("-e", "echo mend >> log", "absentd"), absentd(`; "echo mend >> log" in progress`)).leaving(logged("mend")).
			orTable(map[string]any{"missing_action": "echo mend >> log", "service": "absentd"}),
		onServices("start comes before all others", of("-e", "echo mend >> log", "-c", "-r", "-S", "absentd"), absentd("; start in progress")).
			leaving(logged("absentd start")),
		onServices("start and wait", of("-v", "-S", "absentd"), started("; start; service absentd stopped successfully.")).
			leaving(logged("absentd start")).orTable(map[string]any{"wait": true, "start": true, "service": "absentd"}),
		onServices("start fails", of("-v", "-S", "absentd"), absentd("; start failed (exit code 5).")).answering("start", "5").
			leaving(logged("absentd start")),
		onServices("restart and verify", of("-V", "-r", "absentd"), started("; restart succeeded; service absentd now running.")).
			leaving(logged("absentd restart", "absentd status")).orTable(map[string]any{"verify": true, "restart": true, "service": "absentd"}),
		onServices("restart does not help", of("-V", "-r", "absentd"), absentd("; restart succeeded but failed to start service absentd.")).
			answering("status", "3").leaving(logged("absentd restart", "absentd status")),
		onServices("action and verify", of("-V", "-e", "exit 0", "absentd"), started(`; "exit 0" succeeded; service absentd now running.`)).
			leaving(logged("absentd status")),
	}
})

var _ = table("check_ps_service", func(string) []scenario {
	return []scenario{
		onServices("not wanted and not there", of("-s", "absentd")).leaving(map[string]string{"log": ""}).orTable(map[string]any{"stop": true, "service": "absentd"}),
		onServices("stop", of("-s", "dbserverd"), dbserverd("; service termination in progress")).leaving(logged("dbserverd stop")),
		onServices("stop and wait", of("-v", "-s", "dbserverd"), ended("; service dbserverd stopped successfully.")).leaving(logged("dbserverd stop")),
		onServices("stop fails", of("-v", "-s", "dbserverd"), dbserverd(`; "/sbin/service dbserverd stop" failed (exit code 2).`)).
			answering("stop", "2").leaving(logged("dbserverd stop")),
		onServices("stop does not help", of("-V", "-s", "dbserverd"),
			dbserverd(`; "/sbin/service dbserverd stop" succeeded but failed to stop process 100.`)).leaving(logged("dbserverd stop")),
		onServices("stop and verify", of("-V", "-s", "-d", "wrf.exe", "wrf"), serviceFinding("mended", "wrf",
			"Service wrf (process wrf.exe) running; service wrf stopped and process 102 terminated successfully.")).
			stopping("102").leaving(logged("wrf stop")),
		onServices("found action", of("-E", "echo found >> log", "dbserverd"), dbserverd(`; "echo found >> log" in progress.`)).leaving(logged("found")).
			orTable(map[string]any{"found_action": "echo found >> log", "service": "dbserverd"}),
		onServices("found action, not fatal", of("-0", "-E", "true", "dbserverd"), nonfatal(dbserverd(`; "true" in progress.`))).leaving(nil),
		onServices("found action and wait", of("-v", "-E", "exit 0", "dbserverd"), ended(" succeeded.")).leaving(nil),
		onServices("found action fails", of("-v", "-E", "exit 4", "dbserverd"), dbserverd(" failed (exit code 4).")).leaving(nil),
		onServices("found action does not help", of("-V", "-E", "exit 0", "dbserverd"),
			dbserverd(" succeeded but failed to terminate process 100.")).leaving(nil),
		onServices("found action and verify", of("-V", "-E", "rm -r proc/100", "dbserverd"),
			ended(" successfully terminated service dbserverd (process 100).")).leaving(nil),
		// Nothing can be killed on a node of files.
		onServices("kill", of("-k", "dbserverd"), dbserverd("; killed process ID 100 (SIGKILL)")).leaving(nil).
			orTable(map[string]any{"kill": true, "service": "dbserverd"}),
		onServices("kill fails", of("-v", "-k", "dbserverd"), dbserverd(`; "kill -9 100" failed (exit code 1).`)).leaving(nil),
	}
})

var _ = table("check_ps_service", func(string) []scenario {
	const name = "check_ps_service:  "
	return []scenario{
		onServices("no name", of("-u", "root"), usageFinding(name+"Syntax error:  Service name required.", "")),
		onServices("unknown option", of("-Z", "dbserverd"), usageFinding(name+"Invalid option:  -Z", "one of -u -d -m -f -0 -S -r -c -e -s -k -E -v -V")),
		onServices("option without its argument", of("-u"), usageFinding(name+"Option -u requires an argument.", "")),
		{name: "no /proc", broken: true, words: of("sshd"), want: []Finding{{
			Code: "probe.unreadable", Severity: Unknown, Message: "read /proc: no such file or directory"}}},
		{name: "garbage", broken: true, words: of("absentd"), want: []Finding{absentd("")},
			files: map[string]string{"proc/7/status": "\xff\x00", "proc/8/status/": "", "proc/9/cmdline": "absentd\x00"}},
	}
})

// stopping makes the service command end a process of the node.
func (s scenario) stopping(pid string) scenario {
	s.files = maps.Clone(s.files)
	s.files["sbin/service"] = strings.Replace(s.files["sbin/service"], "exit 0", "rm -r {root}/proc/"+pid, 1)
	return s
}

// victim starts processes under a name that no other has.
func victim(t *testing.T, name string, n int) {
	t.Helper()
	for range n {
		cmd := exec.Command("/bin/sleep", "60")
		cmd.Args[0] = name
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = cmd.Wait()
		}()
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			<-done
		})
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) { // an exec shows its words a moment after it has succeeded
			args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
			if err == nil && strings.HasPrefix(string(args), name+"\x00") {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s did not begin: %q, %v", name, args, err)
			}
		}
	}
}

// TestPsServiceKills runs on this machine: it must really kill, and only what
// it is about.
func TestPsServiceKills(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		option string
		n      int
		text   string
		worst  Severity
	}{
		{option: "-k", n: 1, text: "killed process ID 1 (SIGKILL)", worst: Fail},
		{option: "-vk", n: 2, text: "process ID 1 killed successfully.", worst: Warn},
		{option: "-Vk", n: 1, text: "process ID 1 terminated successfully.", worst: Warn},
	} {
		t.Run(c.option, func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("nhc-gpu-test-%d%s", os.Getpid(), c.option)
			victim(t, name, c.n)
			env := &Env{Host: probe.NewHost("/"), Doing: func(string) {}}
			check := &psService{}
			if err := Bind(check, []string{c.option, name}); err != nil {
				t.Fatal(err)
			}
			findings := check.Run(t.Context(), env)
			if len(findings) != c.n || Worst(findings) != c.worst {
				t.Fatalf("got %+v", findings)
			}
			want := fmt.Sprintf("check_ps_service:  Service %s (process %[1]s) running; %s", name, c.text)
			got := withoutNumbers(findings[0].Message, name)
			if diff := cmp.Diff(withoutNumbers(want, name), got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			gone := &psService{Service: []string{name}}
			for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				env.Host = probe.NewHost("/")
				if f := gone.Run(t.Context(), env); Worst(f) == Fail {
					break
				}
				if time.Now().After(end) {
					t.Fatal("still running")
				}
			}
		})
	}
}

// withoutNumbers replaces the name and every process ID.
func withoutNumbers(s, name string) string {
	s = strings.ReplaceAll(s, name, "NAME")
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, s)
}

func TestPsServiceCycle(t *testing.T) {
	if testing.Short() {
		t.Skip("a cycle takes two seconds")
	}
	t.Parallel()
	s := onServices("cycle", []string{"-c", "absentd"},
		serviceFinding("down", "absentd", "Service absentd (process absentd) not running; cycle in progress"))
	s.leaving(map[string]string{"log": "absentd stop\nabsentd start\n"}).run(t, "check_ps_service")
}
