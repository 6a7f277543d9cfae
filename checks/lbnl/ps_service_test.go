package lbnl

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// serviceFinding returns a finding about a service; text follows the name of the check.
func serviceFinding(code, service, text string) checks.Finding {
	f := checks.Finding{Code: "ps.service." + code, Severity: checks.Fail, Device: checks.Device{Kind: "service", Name: service}, Message: "check_ps_service:  " + text}
	switch code {
	case "down":
		f.Want, f.Got = "running", "not running"
	case "running":
		f.Want, f.Got = "not running", "running"
	case "mended":
		f.Severity = checks.Warn
	}
	return f
}

// onServices returns a scenario with processes and a service command. The command appends its
// arguments to a log and exits with the status in the file rc-VERB.
func onServices(name string, words []string, want ...checks.Finding) checktest.Scenario {
	files := psNode()
	files["sbin/service"] = `#!/bin/sh
echo "$@" >> {root}/log
for verb; do :; done
[ -f {root}/rc-$verb ] && exit $(cat {root}/rc-$verb)
exit 0
`
	return checktest.Scenario{
		Name: name, Words: words, Want: want, Files: files, Tools: []string{"bash"}, Vars: map[string]string{"PWD": "/"},
	}
}

// answering makes the service command fail.
func answering(s checktest.Scenario, verb, status string) checktest.Scenario {
	s.Files = maps.Clone(s.Files)
	s.Files["rc-"+verb] = status
	return s
}

// logged returns the log of the service command.
func logged(lines ...string) map[string]string {
	return map[string]string{"log": strings.Join(append(lines, ""), "\n")}
}

// absentd does not run, dbserverd does; an action fixed started and ended.
func absentd(text string) checks.Finding {
	return serviceFinding("down", "absentd", "Service absentd (process absentd) not running"+text)
}

func started(text string) checks.Finding {
	return serviceFinding("mended", "absentd", "Service absentd (process absentd) not running"+text)
}

func dbserverd(text string) checks.Finding {
	return serviceFinding("running", "dbserverd", "Service dbserverd (process dbserverd) running"+text)
}

func ended(text string) checks.Finding {
	return serviceFinding("mended", "dbserverd", "Service dbserverd (process dbserverd) running"+text)
}

func TestPSService(t *testing.T) { checktest.Run(t, "check_ps_service") }

var _ = checktest.Table("check_ps_service", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onServices("running", checktest.Of("dbserverd")).OrTable(map[string]any{"service": "dbserverd"}),
		onServices("by the end of the path", checktest.Of("-u", "root", "crond")).OrTable(map[string]any{"user": "root", "service": "crond"}),
		onServices("another program", checktest.Of("-d", "crond", "cron")).OrTable(map[string]any{"daemon": "crond", "service": "cron"}),
		onServices("match string", checktest.Of("-m", "/cro?nd$/", "cron")).OrTable(map[string]any{"match": "/cro?nd$/", "service": "cron"}),
		onServices("whole line", checktest.Of("-f", "-m", "wrf.exe *96", "-u", "/^al/", "wrf")).
			OrTable(map[string]any{"full_match": true, "match": "wrf.exe *96", "user": "/^al/", "service": "wrf"}),
		onServices("owner by uid", checktest.Of("-u", "5001", "wrf.exe")),
		onServices("a uid without account asks for no owner", checktest.Of("-u", "6789", "dbserverd")),
		onServices("one of eight has died", checktest.Of("-d", "rank", "ranks")),

		onServices("down", checktest.Of("absentd"), absentd("")),
		onServices("the name is not the end of the path", checktest.Of("crond -n"),
			serviceFinding("down", "crond -n", "Service crond -n (process crond -n) not running")),
		onServices("words are one name", checktest.Of("crond", "-n"),
			serviceFinding("down", "crond -n", "Service crond -n (process crond -n) not running")),
		onServices("another owner", checktest.Of("-u", "120", "-d", "dbserverd", "db"),
			serviceFinding("down", "db", "Service db (process dbserverd) owned by ntpsec not running")),
		onServices("down but not fatal", checktest.Of("-0", "absentd"), nonfatal(absentd(""))).OrTable(map[string]any{"nonfatal": true, "service": "absentd"}),
	}
})

var _ = checktest.Table("check_ps_service", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onServices("start", checktest.Of("-S", "absentd"), absentd("; start in progress")).Leaving(logged("absentd start")).
			OrTable(map[string]any{"start": true, "service": "absentd"}),
		onServices("restart", checktest.Of("-0", "-r", "absentd"), nonfatal(absentd("; restart in progress"))).Leaving(logged("absentd restart")).
			OrTable(map[string]any{"nonfatal": true, "restart": true, "service": "absentd"}),
		onServices("action", checktest.Of("-e", "echo mend >> log", "absentd"), absentd(`; "echo mend >> log" in progress`)).Leaving(logged("mend")).
			OrTable(map[string]any{"missing_action": "echo mend >> log", "service": "absentd"}),
		onServices("start comes before all others", checktest.Of("-e", "echo mend >> log", "-c", "-r", "-S", "absentd"), absentd("; start in progress")).
			Leaving(logged("absentd start")),
		onServices("start and wait", checktest.Of("-v", "-S", "absentd"), started("; start; service absentd stopped successfully.")).
			Leaving(logged("absentd start")).OrTable(map[string]any{"wait": true, "start": true, "service": "absentd"}),
		answering(onServices("start fails", checktest.Of("-v", "-S", "absentd"), absentd("; start failed (exit code 5).")), "start", "5").
			Leaving(logged("absentd start")),
		onServices("restart and verify", checktest.Of("-V", "-r", "absentd"), started("; restart succeeded; service absentd now running.")).
			Leaving(logged("absentd restart", "absentd status")).OrTable(map[string]any{"verify": true, "restart": true, "service": "absentd"}),
		answering(onServices("restart does not help", checktest.Of("-V", "-r", "absentd"), absentd("; restart succeeded but failed to start service absentd.")), "status", "3").Leaving(logged("absentd restart", "absentd status")),
		onServices("action and verify", checktest.Of("-V", "-e", "exit 0", "absentd"), started(`; "exit 0" succeeded; service absentd now running.`)).
			Leaving(logged("absentd status")),
	}
})

var _ = checktest.Table("check_ps_service", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onServices("not wanted and not there", checktest.Of("-s", "absentd")).Leaving(map[string]string{"log": ""}).OrTable(map[string]any{"stop": true, "service": "absentd"}),
		onServices("stop", checktest.Of("-s", "dbserverd"), dbserverd("; service termination in progress")).Leaving(logged("dbserverd stop")),
		onServices("stop and wait", checktest.Of("-v", "-s", "dbserverd"), ended("; service dbserverd stopped successfully.")).Leaving(logged("dbserverd stop")),
		answering(onServices("stop fails", checktest.Of("-v", "-s", "dbserverd"), dbserverd(`; "/sbin/service dbserverd stop" failed (exit code 2).`)), "stop", "2").Leaving(logged("dbserverd stop")),
		onServices("stop does not help", checktest.Of("-V", "-s", "dbserverd"),
			dbserverd(`; "/sbin/service dbserverd stop" succeeded but failed to stop process 100.`)).Leaving(logged("dbserverd stop")),
		stopping(onServices("stop and verify", checktest.Of("-V", "-s", "-d", "wrf.exe", "wrf"), serviceFinding("mended", "wrf",
			"Service wrf (process wrf.exe) running; service wrf stopped and process 102 terminated successfully.")), "102").Leaving(logged("wrf stop")),
		onServices("found action", checktest.Of("-E", "echo found >> log", "dbserverd"), dbserverd(`; "echo found >> log" in progress.`)).Leaving(logged("found")).
			OrTable(map[string]any{"found_action": "echo found >> log", "service": "dbserverd"}),
		onServices("found action, not fatal", checktest.Of("-0", "-E", "true", "dbserverd"), nonfatal(dbserverd(`; "true" in progress.`))).Leaving(nil),
		onServices("found action and wait", checktest.Of("-v", "-E", "exit 0", "dbserverd"), ended(" succeeded.")).Leaving(nil),
		onServices("found action fails", checktest.Of("-v", "-E", "exit 4", "dbserverd"), dbserverd(" failed (exit code 4).")).Leaving(nil),
		onServices("found action does not help", checktest.Of("-V", "-E", "exit 0", "dbserverd"),
			dbserverd(" succeeded but failed to terminate process 100.")).Leaving(nil),
		onServices("found action and verify", checktest.Of("-V", "-E", "rm -r proc/100", "dbserverd"),
			ended(" successfully terminated service dbserverd (process 100).")).Leaving(nil),
		// A simulated node has no process to kill.
		onServices("kill", checktest.Of("-k", "dbserverd"), dbserverd("; killed process ID 100 (SIGKILL)")).Leaving(nil).
			OrTable(map[string]any{"kill": true, "service": "dbserverd"}),
		onServices("kill fails", checktest.Of("-v", "-k", "dbserverd"), dbserverd(`; "kill -9 100" failed (exit code 1).`)).Leaving(nil),
	}
})

var _ = checktest.Table("check_ps_service", func(string) []checktest.Scenario {
	const name = "check_ps_service:  "
	return []checktest.Scenario{
		onServices("no name", checktest.Of("-u", "root"), checktest.UsageFinding(name+"Syntax error:  Service name required.", "")),
		onServices("unknown option", checktest.Of("-Z", "dbserverd"), checktest.UsageFinding(name+"Invalid option:  -Z", "one of -u -d -m -f -0 -S -r -c -e -s -k -E -v -V")),
		onServices("option without its argument", checktest.Of("-u"), checktest.UsageFinding(name+"Option -u requires an argument.", "")),
		{Name: "no /proc", Broken: true, Words: checktest.Of("sshd"), Want: []checks.Finding{{
			Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /proc: no such file or directory"}}},
		{Name: "garbage", Broken: true, Words: checktest.Of("absentd"), Want: []checks.Finding{absentd("")},
			Files: map[string]string{"proc/7/status": "\xff\x00", "proc/8/status/": "", "proc/9/cmdline": "absentd\x00"}},
	}
})

// stopping returns a scenario where the service command ends a process of the node.
func stopping(s checktest.Scenario, pid string) checktest.Scenario {
	s.Files = maps.Clone(s.Files)
	s.Files["sbin/service"] = strings.Replace(s.Files["sbin/service"], "exit 0", "rm -r {root}/proc/"+pid, 1)
	return s
}

// victim starts processes with a unique name.
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
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) { // the new command line appears shortly after a successful exec
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

// TestPsServiceKills runs on this machine: the check must kill the matching processes and no
// others.
func TestPsServiceKills(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		option string
		n      int
		text   string
		worst  checks.Severity
	}{
		{option: "-k", n: 1, text: "killed process ID 1 (SIGKILL)", worst: checks.Fail},
		{option: "-vk", n: 2, text: "process ID 1 killed successfully.", worst: checks.Warn},
		{option: "-Vk", n: 1, text: "process ID 1 terminated successfully.", worst: checks.Warn},
	} {
		t.Run(c.option, func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("nhc-gpu-test-%d%s", os.Getpid(), c.option)
			victim(t, name, c.n)
			env := &checks.Env{Host: probe.NewHost("/"), Doing: func(string) {}}
			check := &psService{}
			if err := checks.Bind(check, []string{c.option, name}); err != nil {
				t.Fatal(err)
			}
			findings := check.Run(t.Context(), env)
			if len(findings) != c.n || checks.Worst(findings) != c.worst {
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
				if f := gone.Run(t.Context(), env); checks.Worst(f) == checks.Fail {
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
	t.Parallel()
	s := onServices("cycle", []string{"-c", "absentd"},
		serviceFinding("down", "absentd", "Service absentd (process absentd) not running; cycle in progress"))
	s.Leaving(map[string]string{"log": "absentd stop\nabsentd start\n"}).Run(t, "check_ps_service")
}
